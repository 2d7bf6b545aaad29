//! Meters: from engine state to usage.
//!
//! A meter is given observations as they come and closes windows one after the other. Three kinds:
//! [`PolledMeter`] reads status registers as LoGA does, [`EventMeter`] a log of context switches,
//! [`WorkedMeter`] such a log and a busy counter.
//! Every nanosecond of a window that is not a tenant's, idle, switching or fault is said to be
//! unobserved; nothing is made up.

mod events;
mod pace;
mod phases;
mod polled;
mod rate;
mod unobserved;
mod worked;

pub use events::EventMeter;
pub use pace::Pace;
pub use phases::{ChannelCount, PhasePlan, Phases};
pub use polled::PolledMeter;
pub use unobserved::{ChannelReading, Look, Unobserved};
pub use worked::{Case, Worked, WorkedMeter};

use crate::state::{Sample, SwitchEvent};
use crate::units::EngineId;
use crate::usage::{Signals, Usage};
use crate::window::Window;
use core::fmt;

/// One piece of engine state, in either form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observation {
    /// A reading of an engine's status registers.
    Sample(EngineId, Sample),
    /// A record of the context-switch log.
    Switch(SwitchEvent),
}

/// Turns engine state into usage, window by window.
pub trait Meter: fmt::Debug + Send {
    /// Which signals this meter's usages rest on.
    fn signals(&self) -> Signals;

    /// Takes one observation; those it cannot use are counted in the next usage.
    fn observe(&mut self, observation: Observation);

    /// The usage of `window`, in which all that happened has been observed already.
    ///
    /// Windows go forward: what precedes the end of an earlier window is forgotten, and a window that
    /// reaches back is unobserved there.
    fn close(&mut self, window: Window) -> Usage;
}
