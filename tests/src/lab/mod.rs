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
//! Where a law needs it, a run by default does what the daemon should do and does not yet, and can be told to do as the
//! daemon does: [`Setup::kick_when_kept`], [`Setup::dry`]. It decides every millisecond and looks for a dry engine four
//! times between; the daemon's own defaults are longer.
//!
//! After every step a run checks the laws of fair sharing ([`laws`]); a law that is broken ends it with seed and moment.

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

pub use guest::{Lengths, Load};
pub use laws::{BrokenLaw, Violation};
pub use world::{Dry, MeterSetup, Outcome, Participant, Setup, World, run};
