//! GPU time accounting: engine state in, nanoseconds per tenant out.
//!
//! ```text
//! Sample, SwitchEvent -> Meter -> Usage -> Ledger -> bill, metrics, API
//!      (state)          (meter)  (usage)  (ledger)
//! ```
//!
//! An engine shows its occupant, either as a register to be polled or as a log of switches
//! ([`state`]). A [`Meter`] turns either into a [`Usage`]: for one [`Window`] of time and for each
//! engine, how long each tenant ran and where the rest of the time went. The [`Ledger`] adds usages
//! up and refuses one that does not balance. [`share`], [`gps`] and [`entitled`] calculate what
//! would have been fair.
//!
//! A bill is made from the same usages: a [`Rollup`] adds them up into windows, a [`store`] makes
//! the windows durable, an [`export`] shows them, an [`audit`] checks them.
//!
//! ```text
//! Usage -> Rollup -> Entry -> Store -> export: CloudEvents, CSV, FOCUS
//!        (rollup)  (record)  (store)          \-> audit
//! ```
//!
//! Everything but `store` and `export` is pure: no clock, no lock, no I/O. Time is a parameter, and
//! charges are whole nanoseconds, so that sums are exact.
#![forbid(unsafe_code)]

mod allowance;
pub mod audit;
pub mod change;
pub mod entitled;
#[cfg(feature = "export")]
pub mod export;
pub mod gps;
pub mod ids;
pub mod ledger;
pub mod metadata;
pub mod meter;
mod poll;
pub mod record;
pub mod renumber;
pub mod rollup;
pub mod share;
pub mod state;
#[cfg(feature = "store")]
pub mod store;
pub mod synthetic;
mod units;
mod usage;
mod window;

pub use allowance::Allowance;
pub use ledger::{Ledger, LedgerError};
pub use metadata::{Metadata, MetadataError};
pub use meter::{EventMeter, Meter, Observation, PolledMeter};
pub use poll::{Reading, Seen};
pub use rollup::Rollup;
pub use state::{Demand, DemandEvent, EngineState, Sample, SwitchEvent};
pub use units::{AccountId, EngineId, Moment, Nanos, TenantId};
pub use usage::{Anomalies, EngineUsage, Metric, Signals, TenantUsage, Usage};
pub use window::{Window, WindowError};
