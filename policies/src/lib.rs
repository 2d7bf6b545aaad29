//! Scheduling policies as pure functions of events.
//!
//! ```text
//!   what was used (meter)  ->  period_end  ->  Admit | Hold per tenant  ->  gates (mediator)
//!   a trapped doorbell     ->  woke        ->  Admit | Hold for one
//!   an engine without work ->  ran_dry     ->  one of those held back
//! ```
//!
//! A [`Policy`] has no clock, lock, thread or I/O: it is told what happened and says who may run until
//! it is told more. Each policy is one file and one row of [`POLICIES`]:
//!
//! - `none` admits everybody: the hardware's own round-robin, accounted but not scheduled;
//! - `dfq` (default): disengaged fair queuing, repaired, with weights and caps;
//! - `dfq-literal`: the same as the LoGA paper prints it, for comparison.
#![forbid(unsafe_code)]

mod cap;
mod dfq;
mod dfq_literal;
mod none;
mod params;
mod policy;
mod table;
mod virtual_time;

pub use dfq::Dfq;
pub use dfq_literal::DfqLiteral;
pub use none::AdmitAll;
pub use params::{Cap, ParamsError, TenantParams, Weight};
pub use policy::{
    Basis, Decision, HoldReason, PeriodUsage, Policy, PolicyError, TenantDecision, TenantPeriod,
};
pub use table::{DEFAULT_POLICY, POLICIES, PolicyRow, Tuning, policy_by_name};
