//! A PTX interpreter: what the software GPU runs on its multiprocessors.
//!
//! ```text
//! text -> lexer -> parse (statements) -> lower (register slots, lane kernels, branch targets)
//!      -> Module
//! Module + Launch -> exec (warps of 32 lanes, groups of lanes with a common pc) -> BlockOutcome
//! ```
//!
//! The text comes from a guest and is not trusted. [`Module::load`] refuses everything unknown,
//! with the line number, and bounds every table by [`Limits`]. Running a loaded module can end in a
//! fault but not in a panic: addresses are checked, arithmetic is total.
//!
//! **Lanes.** Registers are arrays of 32 lanes. An instruction is one call of a lane kernel (a loop
//! over 32 lanes which the compiler vectorises), followed by a write under the active mask.
//!
//! **Divergence.** A warp is a set of groups of lanes with one program counter each. The group with
//! the lowest counter runs; groups that meet are merged. For compiler output this reconverges at
//! the immediate post-dominator. It is correct for any program, because instructions that exchange
//! data between lanes (`shfl.sync`, `vote.sync`, `bar.warp.sync`, `bar.sync`) wait for the lanes
//! they name. At intervals another group gets a turn, so that lanes which wait for each other
//! through memory make progress (as on hardware since Volta).
//!
//! **Calls.** The frame of a function is in local memory, which bounds the depth of calls. Lanes
//! within a call run before their callers; groups join only within the same call.
//!
//! **Addresses.** A generic address is a GPU virtual address, except in windows at the top of
//! the 64-bit space: see [`SHARED_WINDOW`], [`LOCAL_WINDOW`], [`PARAM_WINDOW`].
//!
//! "PTX ISA" is NVIDIA's "Parallel Thread Execution ISA Version 9.0"; "PTX ISA, `x`" its
//! description of `x`.
#![deny(unsafe_code)]

mod code;
mod entry;
mod error;
mod exec;
mod expression;
mod function;
mod initialiser;
mod kernels;
mod lexer;
mod lower;
mod matrix;
mod memory;
mod module;
mod ops;
mod parse;
mod relocation;
#[cfg(test)]
mod tests;
mod types;

pub use entry::{Entry, Limits, Param};
pub use error::LoadError;
pub use exec::{BlockOutcome, Control, ExecError, Launch, Scratch, run_block};
pub use memory::{DeviceMemory, MemoryFault, Timer, WINDOW_BYTES};
pub use module::{Module, Symbol};

/// Lanes of a warp.
pub const LANES: usize = 32;

/// One value per lane.
pub(crate) type Lanes<T> = [T; LANES];
