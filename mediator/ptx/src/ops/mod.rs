//! Scalar semantics of instructions, total on all inputs. 16-bit values are zero-extended in 32
//! bits.

pub(super) mod exact;
pub(super) mod float;
pub(super) mod int;
#[cfg(test)]
mod test;
pub(super) mod video;
