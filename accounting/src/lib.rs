//! GPU time accounting: engine state in, nanoseconds per tenant out.
//!
//! ```text
//! Sample, SwitchEvent -> Meter -> Usage -> Ledger -> bill, metrics, API
//!      (state)          (meter)  (usage)  (ledger)
//! ```
//!
//! An engine shows who occupies it, either as a register to be polled or as a log of switches
//! ([`state`]). A [`Meter`] turns either into a [`Usage`]: for one [`Window`] of time and for every
//! engine, how long each tenant ran and where the rest of the time went. The [`Ledger`] adds usages
//! up and refuses one that does not balance. [`share`], [`gps`] and [`entitled`] say what would have been fair.
//!
//! What is to be billed goes on from there: a [`Rollup`] adds usages up into windows, a [`store`] makes
//! them durable, an [`export`] shows them, an [`audit`] checks them.
//!
//! ```text
//! Usage -> Rollup -> Entry -> Store -> export: CloudEvents, CSV, FOCUS
//!        (rollup)  (record)  (store)          \-> audit
//! ```
//!
//! Everything but `store` and `export` is pure: no clock, no lock, no I/O; time is a parameter, and what is charged is
//! counted in whole nanoseconds, so that sums are exact.
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
mod look;
pub mod meter;
pub mod record;
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
pub use look::{Reading, Seen};
pub use meter::{EventMeter, Meter, Observation, PolledMeter};
pub use rollup::Rollup;
pub use state::{Demand, DemandEvent, EngineState, Sample, SwitchEvent};
pub use units::{AccountId, EngineId, Moment, Nanos, TenantId};
pub use usage::{Anomalies, EngineUsage, Metric, Signals, TenantUsage, Usage};
pub use window::{Window, WindowError};
