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
//! - `dfq-literal`: the same as the LoGA paper prints it, for comparison;
//! - `slices`: fair queuing in exclusive slices, for GPUs on which a switch between tenants is dear.
//!
//! One period of a mediator:
//!
//! ```
//! use turnstile_accounting::*;
//! use turnstile_policies::*;
//!
//! let (engine, tenant) = (EngineId(0), TenantId(1));
//! let mut meter = EventMeter::new([engine]);
//! let mut ledger = Ledger::new([engine], 1_000);
//! let mut policy = (policy_by_name(DEFAULT_POLICY).unwrap().make)(&Tuning::default());
//! policy.add(tenant, TenantParams::default())?;
//! policy.woke(tenant, Moment(0))?; // its first doorbell: Admit, so open its gates
//!
//! let state = EngineState::Running(tenant);
//! meter.observe(Observation::Switch(SwitchEvent { at: Moment(0), engine, seq: 0, state }));
//!
//! let window = Window::starting(Moment(0), DECISION_PERIOD_NS);
//! let usage = meter.close(window);
//! let used_ns = usage.tenant_ns(tenant, Metric::Total);
//! let tenants = [TenantPeriod { tenant, used_ns, admitted: true, backlogged: true, overcharged_ns: 0 }];
//! ledger.append(usage)?;
//! let (poll_ns, nonpoll_ns) = (window.length(), Nanos::ZERO);
//! let period = PeriodUsage { end: window.to(), basis: Basis::Measured, poll_ns, nonpoll_ns, tenants: &tenants };
//! for decided in policy.period_end(&period) {
//!     assert_eq!(decided.decision, Decision::Admit); // open, watch or close its gates
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod cap;
mod dfq;
mod dfq_literal;
mod member;
mod none;
mod params;
mod policy;
mod roster;
mod slices;
mod table;
mod virtual_time;

pub use dfq::Dfq;
pub use dfq_literal::DfqLiteral;
pub use none::AdmitAll;
pub use params::{Cap, ParamsError, TenantParams, Weight};
pub use policy::{
    Basis, Decision, HoldReason, PeriodUsage, Policy, PolicyError, TenantDecision, TenantPeriod,
};
pub use slices::{SLICE_MIN, Slices};
pub use table::{DECISION_PERIOD_NS, DEFAULT_POLICY, POLICIES, PolicyRow, Tuning, policy_by_name};
