//! Models of the papers: pure functions, for comparisons and for decisions to come.
//!
//! - [`sm`]: speed of a program by its number of SMs (streaming multiprocessors);
//! - [`split`]: ways to divide the SMs among programs;
//! - [`take`]: how a program's SM is taken: wait, terminate, or migrate;
//! - [`neon`]: charges from samples of each task alone;
//! - [`processes`]: total time of equal processes on one GPU;
//! - [`blocks`]: blocks of kernels on SM slots, by list scheduling;
//! - [`slice`](mod@slice): time slices with memory that is copied in and out.
//!
//! Random inputs are checked against the stated laws by `tests/model.rs`.

pub mod blocks;
pub mod neon;
pub mod processes;
pub mod slice;
pub mod sm;
pub mod split;
pub mod take;
