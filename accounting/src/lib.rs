//! GPU time accounting: meters over engine state, and the ledger.
#![forbid(unsafe_code)]

mod units;

pub use units::{EngineId, Moment, Nanos, TenantId};
