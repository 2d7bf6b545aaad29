//! The experiment lab: the daemon's loop in virtual time.
//!
//! ```text
//!   guest -> simulated gate -> software GPU -> log, registers -> meter -> mediation -> policy
//!              ^                                                             |
//!              +------------- gate moves, 60 us each ------------------------+
//! ```
//!
//! Real here: the guests' 64-byte commands, the VMM's gate, the daemon's gate book, the software GPU's core, the meters,
//! the mediation, the policies. Simulated: time, the mapping of pages, what the guests want. A run is a function of its
//! [`Setup`] and its tenants: the same twice leaves the same log and the same decisions.
//!
//! By default a run does as the daemon does, its period and ticks included.
//!
//! After every step a run checks the laws of fair sharing ([`laws`]); a law that is broken ends it with seed and moment.

mod books;
pub mod chart;
pub mod experiments;
pub mod gates;
pub mod guest;
pub mod laws;
mod sampler;
mod setup;
mod timeline;
mod watch;
pub mod world;

pub use books::BookKeeping;
pub use guest::{Lengths, Load};
pub use laws::{BrokenLaw, Violation};
pub use world::{MeterSetup, Outcome, Participant, Setup, World, run, run_with_books};
