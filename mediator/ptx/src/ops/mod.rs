//! Scalar semantics of instructions, total on all inputs. 16-bit values are zero-extended in 32
//! bits.

pub(super) mod exact;
pub(super) mod float;
pub(super) mod int;
pub(super) mod mbarrier;
#[cfg(test)]
mod test;
pub(super) mod video;
