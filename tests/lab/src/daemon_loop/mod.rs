//! The daemon's loop in virtual time.
//!
//! ```text
//!   guest -> simulated gate -> software GPU -> log, registers -> meter -> mediation -> policy
//!              ^                                                             |
//!              +------------- gate moves, 60 us each ------------------------+
//! ```
//!
//! Real code: the guests' 64-byte commands, the VMM's gate, the daemon's gate book, the software
//! GPU's core, the meters, the mediation, the policies. Simulated: time, the mapping of pages, the
//! guests' loads. A run is a function of its [`Setup`] and its tenants: a repeated run has the same
//! log and the same decisions.
//!
//! By default a run has the parameters of the daemon, its period and ticks included.
//!
//! After each step a run checks the laws of fair sharing ([`laws`]); a broken law ends the run with
//! seed and moment.

mod books;
pub mod fleet;
pub mod gates;
pub mod guest;
pub mod laws;
mod sampler;
mod seats;
mod setup;
mod timeline;
mod watch;
pub mod world;

pub use books::BookKeeping;
pub use guest::{Lengths, Load};
pub use laws::{BrokenLaw, Violation};
pub use world::{MeterSetup, Outcome, Participant, Setup, World, run, run_with_books};
