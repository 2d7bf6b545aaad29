//! Meters: from engine state to usage.
//!
//! A meter takes observations in order of time and closes windows one after the other. Three kinds:
//! [`PolledMeter`] reads status registers as LoGA does, [`EventMeter`] a log of context switches,
//! [`WorkedMeter`] such a log and a busy counter. Time of a window that is not known to be a
//! tenant's, idle, switching or fault is reported as unobserved.

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
pub use unobserved::{ChannelReading, ChannelSnapshot, KnownIdle, Unobserved};
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
    /// The signals that this meter's usages are based on.
    fn signals(&self) -> Signals;

    /// Takes one observation; observations that it cannot use are counted in the next usage.
    fn observe(&mut self, observation: Observation);

    /// The usage of `window`. All observations of its time have to be taken before.
    ///
    /// Windows go forward: what precedes the end of an earlier window is dropped, and a window that
    /// begins before that end is unobserved up to it.
    fn close(&mut self, window: Window) -> Usage;
}
