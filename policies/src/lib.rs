//! Scheduling policies as pure functions of events.
//!
//! ```text
//!   demand, engine state   ->  observe     ->  decide  ->  Admit | Hold per tenant
//!   what was used (meter)  ->  period_end  ->  the same                 |
//!   a trapped doorbell     ->  woke        ->  the same for one         v
//!                                                   holds and gates (mediator)
//! ```
//!
//! A [`Policy`] has no clock, lock, thread or I/O: it takes events and decides which tenants may
//! run until the next one. Each policy is one file or folder and one row of [`POLICIES`]:
//!
//! - `none` admits every tenant: the hardware's own round-robin, accounted but not scheduled;
//! - `dfq` (default): disengaged fair queuing with patience, over accounts and their tenants;
//! - `dfq-literal`: disengaged fair queuing as the LoGA paper prints it, for comparison;
//! - `owed`: for hardware that slices by itself; its input is polls instead of events ([`Owed`]).
//!
//! Further [`ROWS`] are policies of the papers, which the lab drives for comparison.
//! [`model`] has models of the papers, and [`place`] the choice of a GPU for a job.
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
//! let mut policy = policy_by_name(DEFAULT_POLICY).unwrap().policy(&Tuning::default()).unwrap();
//! let membership = Membership { account: AccountId(0), name: "vm" };
//! policy.add(tenant, membership, TenantParams::default(), Moment(0))?;
//! policy.woke(tenant, Moment(0))?; // its first doorbell: Admit, so open its gates
//!
//! let state = EngineState::Running(tenant);
//! meter.observe(Observation::Switch(SwitchEvent { at: Moment(0), engine, seq: 0, state }));
//! policy.observe(Moment(0), EngineEvent::State(state));
//!
//! let window = Window::starting(Moment(0), DECISION_PERIOD_NS);
//! let usage = meter.close(window);
//! let used_ns = usage.tenant_ns(tenant, Metric::Total);
//! let tenants = [TenantPeriod { tenant, used_ns, charged_ns: used_ns, admitted: true, backlogged:
//! true }];
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
pub mod model;
mod none;
mod owed;
mod params;
pub mod place;
mod policy;
mod roster;
mod table;
mod virtual_time;

pub use dfq::Dfq;
pub use dfq_literal::DfqLiteral;
pub use none::AdmitAll;
pub use owed::{CALM_INTERVAL, LOOK_INTERVAL, Measured, Orders, Owed, Standing, TenantOrder};
pub use params::{Cap, Membership, ParamsError, TenantParams, Weight};
pub use policy::{
    Basis, Debt, Decision, EngineEvent, HoldReason, PeriodUsage, Policy, PolicyError,
    TenantDecision, TenantPeriod,
};
pub use table::{
    Comparison, DECISION_PERIOD_NS, DEFAULT_POLICY, POLICIES, PolicyRow, ROWS, Rule, Tuning,
    policy_by_name,
};
