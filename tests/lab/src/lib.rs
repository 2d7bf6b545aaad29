//! The experiment lab: figures of papers and promises of our own, each with a verdict.
//!
//! In: the name of an experiment and its seeds. Out: quantities ([`result`]), of which tables,
//! charts and JSON are made. An experiment is one file and one row of [`experiments::EXPERIMENTS`].
//!
//! Two kinds of experiments exist. Models are pure functions of `policies` and run everywhere. The
//! others (feature `world`) run the daemon's loop in virtual time:
//!
//! ```text
//!   guest -> simulated gate -> software GPU -> log, registers -> meter -> mediation -> policy
//!              ^                                                             |
//!              +------------- gate moves, 60 us each ------------------------+
//! ```
//!
//! Real code: the guests' 64-byte commands, the VMM's gate, the daemon's gate book, the software
//! GPU's core, the meters, the mediation, the policies. Simulated: time, the mapping of pages, the
//! guests' loads. A run is a function of its `Setup` and its tenants: a repeated run has the same
//! log and the same decisions.
//!
//! By default a run has the parameters of the daemon, its period and ticks included.
//!
//! After each step a run checks the laws of fair sharing (`laws`); a broken law ends the run with
//! seed and moment.

#[cfg(feature = "world")]
mod books;
pub mod chart;
pub mod command;
pub mod drive;
pub mod engine;
pub mod experiments;
#[cfg(feature = "world")]
pub mod gates;
#[cfg(feature = "world")]
pub mod guest;
pub mod jobs;
#[cfg(feature = "world")]
pub mod laws;
pub mod page;
pub mod result;
#[cfg(feature = "world")]
mod sampler;
pub mod seeds;
#[cfg(feature = "world")]
mod setup;
#[cfg(feature = "world")]
mod timeline;
#[cfg(feature = "world")]
mod watch;
#[cfg(feature = "world")]
pub mod world;

#[cfg(feature = "world")]
pub use books::BookKeeping;
#[cfg(feature = "world")]
pub use guest::{Lengths, Load};
#[cfg(feature = "world")]
pub use laws::{BrokenLaw, Violation};
#[cfg(feature = "world")]
pub use world::{MeterSetup, Outcome, Participant, Setup, World, run, run_with_books};
