//! The gate before a doorbell page.
//!
//! ```text
//!            close                      close
//!   Open  ----------->  Closed  <-----------  Watched
//!    |  <-----------  open    ---------------->  |
//!    |                        watch (nothing     |
//!    |                        was parked)        |
//!    +------------------ watch ----------------->+
//!    +<------------- trap, or open --------------+
//! ```
//!
//! *Open*: the guest's page is the doorbell page; a doorbell write costs no exit. *Watched*: the
//! doorbell page is protected, so the next write traps, is let through and opens the gate. An idle
//! VM thus becomes active without polling. *Closed*: the doorbell page is protected until the first
//! write. That write traps, and a parking page replaces the doorbell page: it takes this write and
//! the later ones without an exit. The parked value is delivered when the gate opens. The page that
//! the device reads changes only through an open gate or by a delivery, so its reader need not know
//! the gate's state.

#[cfg(feature = "gate")]
mod control;
#[cfg(feature = "gate")]
mod pages;

#[cfg(feature = "gate")]
pub use control::{
    GateControl, GateCounters, GateTrace, Page, PageMap, PageMapError, PageWords, newer,
};
#[cfg(feature = "gate")]
pub use pages::{SharedPages, ThreadMap};
#[cfg(feature = "gate")]
pub use vm_memory::FileOffset;

use serde::{Deserialize, Serialize};

/// State of one channel's gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateState {
    /// Doorbell writes go straight to the page.
    Open,
    /// The next write traps, is let through and opens the gate.
    Watched,
    /// Writes are parked; the first traps.
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
    /// A doorbell write trapped.
    Trap,
}

impl GateState {
    /// The legal moves. A trap at an open gate is no move: the write was in progress when the gate
    /// opened, and is delivered.
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
