//! All policies by name: a new one is one file and one row.
//!
//! [`POLICIES`] are those that a mediator offers. [`ROWS`] has those of the papers too, which the
//! lab compares with them.

use crate::dfq::Dfq;
use crate::dfq_literal::DfqLiteral;
use crate::none::AdmitAll;
use crate::owed::Owed;
use crate::policy::Policy;
use serde::{Deserialize, Serialize};
#[cfg(doc)]
use turnstile_accounting::Metric;
use turnstile_accounting::Nanos;

/// Parameters that an operator may tune, for any policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tuning {
    /// Service by which one tenant may be ahead of another when its command starts; the patience,
    /// if that is longer. A larger value means fewer changes of holds and larger share errors.
    pub slack_ns: Nanos,
    /// Longest pause for which the place of a tenant is kept, if it launches and waits. An engine
    /// that cannot be preempted is left idle for at most this time. Zero reserves nothing.
    pub patience_ns: Nanos,
    /// Time to stop a running kernel and start another; none if kernels cannot be stopped. The
    /// mediator sets it from the GPU's properties.
    #[serde(skip)]
    pub preemption_ns: Option<Nanos>,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            slack_ns: Nanos::from_ms(1),
            patience_ns: Nanos::from_ms(1),
            preemption_ns: None,
        }
    }
}

/// One policy.
#[derive(Clone, Copy, Debug)]
pub struct PolicyRow {
    /// The name in the configuration.
    pub name: &'static str,
    /// One line of help.
    pub about: &'static str,
    /// Weights have an effect.
    pub weights: bool,
    /// Caps have an effect.
    pub caps: bool,
    /// Latency targets have an effect.
    pub targets: bool,
    /// Turns of a tenant on several GPUs can coincide.
    pub gangs: bool,
    /// It schedules copy engines as well, each with its own instance.
    pub every_engine: bool,
    /// It is for comparison in the lab, and no mediator offers it.
    pub lab: bool,
    /// Makes an instance without tenants.
    pub make: fn(&Tuning) -> Rule,
}

impl PolicyRow {
    /// A policy that decides by the events of a dispatcher; none if it decides by polls.
    pub fn policy(&self, tuning: &Tuning) -> Option<Box<dyn Policy>> {
        match (self.make)(tuning) {
            Rule::Events(policy) => Some(policy),
            Rule::Looks(_) | Rule::Lab(_) => None,
        }
    }
}

/// A policy, by its kind of input.
#[derive(Debug)]
pub enum Rule {
    /// The events of a dispatcher that the mediator holds.
    Events(Box<dyn Policy>),
    /// Polls of an engine that divides its time by itself.
    Looks(Box<Owed>),
    /// Phases and traps that no mediator has: the lab drives it.
    Lab(Comparison),
}

/// A policy of a paper, for comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// One program at a time, to its end.
    Fcfs,
    /// One command at a time, each submission trapped, the least exact service first.
    Engaged,
    /// Samples of each task alone ([`crate::model::neon`]).
    Neon,
    /// LoGA-CL: [`DfqLiteral`] by the mean time between two switches ([`Metric::PerTurn`]).
    LogaPerTurn,
}

/// Period of decisions where usage is measured throughout. Measured in the simulator of
/// `tests/simulated`, with commands of 50 us to 2 ms and no preemption: shares are within half a
/// percentage point of the fluid ideal in every second. At twice the period they just exceed that
/// for weights of 1 to 9.
pub const DECISION_PERIOD_NS: Nanos = Nanos::from_ms(1);

/// The policy of a GPU without a configured one.
pub const DEFAULT_POLICY: &str = "dfq";

/// A policy that is compared in the lab.
const fn compared(name: &'static str, about: &'static str, make: fn(&Tuning) -> Rule) -> PolicyRow {
    PolicyRow {
        name,
        about,
        weights: false,
        caps: false,
        targets: false,
        gangs: false,
        every_engine: false,
        lab: true,
        make,
    }
}

/// Every policy that a mediator offers.
pub const POLICIES: &[PolicyRow] = {
    let mut offered = 0;
    while offered < ROWS.len() && !ROWS[offered].lab {
        offered += 1;
    }
    ROWS.split_at(offered).0
};

/// Every policy; those of the lab are the last.
pub const ROWS: &[PolicyRow] = &[
    PolicyRow {
        name: "none",
        about: "Admit every tenant: account, but do not schedule",
        weights: false,
        caps: false,
        targets: false,
        gangs: false,
        every_engine: false,
        lab: false,
        make: |_| Rule::Events(Box::new(AdmitAll::default())),
    },
    PolicyRow {
        name: "dfq",
        about: "Disengaged fair queuing with patience: weighted and capped, by account and tenant",
        weights: true,
        caps: true,
        targets: false,
        gangs: false,
        every_engine: true,
        lab: false,
        make: |tuning| Rule::Events(Box::new(Dfq::new(tuning))),
    },
    PolicyRow {
        name: "dfq-literal",
        about: "Disengaged fair queuing as the LoGA paper prints it",
        weights: false,
        caps: false,
        targets: false,
        gangs: false,
        every_engine: false,
        lab: false,
        make: |_| Rule::Events(Box::new(DfqLiteral::default())),
    },
    PolicyRow {
        name: "owed",
        about: "All tenants together, and a turn for the tenant that is owed one, for NVIDIA GPUs",
        weights: true,
        caps: true,
        targets: true,
        gangs: true,
        every_engine: false,
        lab: false,
        make: |tuning| Rule::Looks(Box::new(Owed::new(tuning))),
    },
    compared(
        "neon",
        "NEON's fair queuing, from samples of each task alone",
        |_| Rule::Lab(Comparison::Neon),
    ),
    compared(
        "engaged",
        "Fair queuing with each submission trapped",
        |_| Rule::Lab(Comparison::Engaged),
    ),
    compared(
        "fcfs",
        "First come first served: a program until it ends",
        |_| Rule::Lab(Comparison::Fcfs),
    ),
    compared(
        "loga-cl",
        "dfq-literal by the mean time between two switches",
        |_| Rule::Lab(Comparison::LogaPerTurn),
    ),
];

/// The row of the policy `name`, if a mediator offers it.
pub fn policy_by_name(name: &str) -> Option<&'static PolicyRow> {
    POLICIES.iter().find(|row| row.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mediators_offer_every_row_but_those_of_the_lab() {
        for row in ROWS {
            let rule = (row.make)(&Tuning::default());
            assert_eq!(row.lab, matches!(rule, Rule::Lab(_)), "{}", row.name);
            assert_eq!(policy_by_name(row.name).is_some(), !row.lab, "{}", row.name);
        }
        assert!(policy_by_name(DEFAULT_POLICY).is_some());
        assert!(policy_by_name("fifo").is_none());
    }
}
