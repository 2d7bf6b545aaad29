//! The experiment lab: figures of papers and promises of our own, each with a verdict.
//!
//! In: the name of an experiment and its seeds. Out: quantities ([`result`]), of which tables,
//! charts and JSON are made. An experiment is one file and one row of [`experiments::EXPERIMENTS`].
//!
//! Two kinds of experiments exist. Models are pure functions of `policies`, or run on a small
//! engine ([`engine`]), and run everywhere. The others run the daemon's loop in virtual time
//! (`daemon_loop`, with the feature `world`).

pub mod chart;
pub mod command;
#[cfg(feature = "world")]
pub mod daemon_loop;
pub mod drive;
pub mod engine;
pub mod experiments;
pub mod jobs;
pub mod mistakes;
pub mod page;
pub mod result;
pub mod run;
pub mod seeds;
pub mod slices;

#[cfg(feature = "world")]
pub use daemon_loop::{
    BookKeeping, BrokenLaw, Lengths, Load, MeterSetup, Outcome, Participant, Setup, Violation,
    World, run, run_with_books,
};
