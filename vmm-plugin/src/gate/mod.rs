//! The gate before a doorbell page.
//!
//! ```text
//!            close                      close
//!   Open  ----------->  Closed  <-----------  Watched
//!    |  <-----------  open    ---------------->  |
//!    |                        watch (nothing     |
//!    |                        was kept)          |
//!    +------------------ watch ----------------->+
//!    +<------------- trap, or open --------------+
//! ```
//!
//! *Open*: the page is mapped into the guest; a doorbell write costs no exit. *Watched*: the next write traps, is let
//! through and opens the gate: so an idle VM becomes active without anyone polling for it. *Closed*: writes trap and
//! are kept; the last value is delivered on opening. The page that the device reads changes only through an open gate
//! or by a delivery, so whoever reads it needs not know the gate's state.

mod control;
mod pages;

pub use control::{GateControl, GateCounters, GateTrace, PageMap, PageMapError, PageWords};
pub use pages::{SharedPages, ThreadMap};

use serde::{Deserialize, Serialize};

/// State of one channel's gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateState {
    /// Doorbell writes go straight to the page.
    Open,
    /// The next write traps, is let through and opens the gate.
    Watched,
    /// Writes trap and are kept.
    Closed,
}

/// What moves a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateEvent {
    /// The mediator opens it.
    Open,
    /// The mediator watches it.
    Watch,
    /// The mediator closes it.
    Close,
    /// A doorbell write came out of the guest.
    Trap,
}

impl GateState {
    /// The legal moves. A trap at an open gate is no move: the write was on its way when the gate opened, and is
    /// delivered.
    pub const fn after(self, event: GateEvent) -> Self {
        match (self, event) {
            (_, GateEvent::Open) => Self::Open,
            (_, GateEvent::Watch) => Self::Watched,
            (_, GateEvent::Close) => Self::Closed,
            (Self::Closed, GateEvent::Trap) => Self::Closed,
            (Self::Watched | Self::Open, GateEvent::Trap) => Self::Open,
        }
    }
}
