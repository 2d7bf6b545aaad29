//! A model of an engine with the hardware's time slices, fitted to measured pairs of programs, and
//! the rule `owed` that polls it. Nothing here ran on a GPU.
//!
//! In: programs, their weights and accounts. Out: what each does of what it does alone.
//!
//! `programs.rs` has the programs, `engine.rs` the engine, `host.rs` the hosts, `steps.rs` what
//! they do. `mediator.rs` has the driver of the rule, `outcome.rs` the measurements of a run.

mod engine;
mod host;
mod mediator;
mod outcome;
mod programs;
pub mod rows;
mod steps;

pub use engine::{Poller, Sim};
pub use mediator::{Mediator, Silence, Sources};
pub use outcome::{Outcome, alone, native, observe};
pub use programs::{Program, program};

/// Nanoseconds of the model.
pub type Ns = i64;
/// A microsecond.
pub const US: Ns = 1_000;
/// A millisecond.
pub const MS: Ns = 1_000_000;
/// A second.
pub const SEC: Ns = 1_000_000_000;
/// Later than any run.
pub(crate) const NEVER: Ns = i64::MAX / 4;

/// A seeded generator (xorshift).
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed * 7_919 + 88_172_645_463_325_252)
    }

    /// From zero up to one.
    pub(crate) fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Around zero with a deviation of one.
    pub(crate) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}
