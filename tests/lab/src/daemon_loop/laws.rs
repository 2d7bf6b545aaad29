//! The laws that a run obeys, checked after every step.
//!
//! - *Conservation* (law 1): for every engine, the log's own sum is the time passed. Meter and
//!   ledger agree with it to the nanosecond, and the log agrees with the lengths of the executed
//!   kernels.
//! - *Error bound*: the error of each charge of a window is at most the bound in the usage, which
//!   is at most the window's length.
//! - *No saving up, bounded lag* (laws 2 and 3): while a tenant is backlogged, no other's service
//!   by weight gains more than a stated bound ([`Lag`]) on its own, over any stretch of time. A
//!   tenant that returns with saved-up time breaks this.
//! - *Work conserving* (law 4): while a doorbell write is kept behind a gate, the engine is not
//!   idle for longer than the mediator's reaction.
//! - *Nothing lost* (law 6): launches are executed once and in order, fences complete once and in
//!   order.

use turnstile_accounting::{EngineId, Moment, Nanos, TenantId};

use super::guest::Executed;
use crate::result::Failure;

/// A law broken by a run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Seed {seed}, at {} ns: {law}", at.0)]
pub struct Violation {
    /// Seed of the run.
    pub seed: u64,
    /// When.
    pub at: Moment,
    /// The law, and how it was broken.
    pub law: BrokenLaw,
}

impl From<Violation> for Failure {
    fn from(violation: Violation) -> Self {
        Self(violation.to_string())
    }
}

/// The law that was broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokenLaw {
    /// Memory has the wrong place or the wrong content.
    #[error("Memory: {0}")]
    Memory(String),
    /// Records of an engine's log are missing.
    #[error("Log of engine {} has record {seq} where {expected} was due", engine.0)]
    Log {
        /// Engine.
        engine: EngineId,
        /// Number found.
        seq: u64,
        /// Number due.
        expected: u64,
    },
    /// A record's time is before that of the record before.
    #[error("Log goes back from {} ns to {} ns", from.0, to.0)]
    Backwards {
        /// Time of the record before.
        from: Moment,
        /// Time of this record.
        to: Moment,
    },
    /// An engine's time does not add up.
    #[error("Engine {engine} accounts for {accounted_ns} of {wall_ns}")]
    Conservation {
        /// Engine.
        engine: usize,
        /// Sum of its parts.
        accounted_ns: Nanos,
        /// Time passed.
        wall_ns: Nanos,
    },
    /// The event meter and the log differ.
    #[error("Meter has {metered_ns} of {tenant}, the log {logged_ns}")]
    Meter {
        /// Tenant.
        tenant: TenantId,
        /// By the meter.
        metered_ns: Nanos,
        /// By the log.
        logged_ns: Nanos,
    },
    /// A charge is off by more than its error bound, or the bound exceeds the window.
    #[error("{tenant} was charged {charged_ns} of {logged_ns}, error bound {bound_ns}")]
    Bound {
        /// Tenant.
        tenant: TenantId,
        /// By the meter.
        charged_ns: Nanos,
        /// By the log.
        logged_ns: Nanos,
        /// The bound in the usage.
        bound_ns: Nanos,
    },
    /// The ledger refused a usage.
    #[error("Ledger: {0}")]
    Ledger(#[from] turnstile_accounting::LedgerError),
    /// A tenant's engine time is not that of its kernels.
    #[error("Kernels of {tenant} take {least_ns} to {most_ns}, its engine time is {logged_ns}")]
    Service {
        /// Tenant.
        tenant: TenantId,
        /// Kernels that have ended.
        least_ns: Nanos,
        /// Kernels that have begun.
        most_ns: Nanos,
        /// By the log.
        logged_ns: Nanos,
    },
    /// A launch was lost, repeated or reordered.
    #[error("Launch {number} of {tenant} executed where {expected} was due, {submitted} submitted")]
    Launch {
        /// Tenant.
        tenant: TenantId,
        /// Number found.
        number: u64,
        /// Number due.
        expected: u64,
        /// Launches submitted.
        submitted: u64,
    },
    /// A fence was lost, repeated or reordered, or its channel ended.
    #[error(
        "Fence {seen} of {tenant} after {before}, with {submitted} submitted and {interrupts} interrupts"
    )]
    Fence {
        /// Tenant.
        tenant: TenantId,
        /// Value found.
        seen: u64,
        /// Value before.
        before: u64,
        /// Fences submitted.
        submitted: u64,
        /// Interrupts raised.
        interrupts: u64,
    },
    /// A tenant's work never ended, although all gates were opened.
    #[error("{tenant} submitted {submitted} launches, {completed} ended")]
    Lost {
        /// Tenant.
        tenant: TenantId,
        /// Launches submitted.
        submitted: u64,
        /// Launches that ended.
        completed: u64,
    },
    /// The engine was idle for too long.
    #[error("Engine idle for {idle_ns} with work of {tenant} behind a gate, {bound_ns} allowed")]
    Idle {
        /// A tenant that waited.
        tenant: TenantId,
        /// Length of the idle time.
        idle_ns: Nanos,
        /// The mediator's reaction.
        bound_ns: Nanos,
    },
    /// A backlogged tenant fell too far behind another.
    #[error("{behind} fell {lag_ns} behind {ahead} (by weight, as of its own), {bound_ns} allowed")]
    Lag {
        /// The backlogged tenant.
        behind: TenantId,
        /// The other.
        ahead: TenantId,
        /// Service it lacks.
        lag_ns: u64,
        /// Service it may lack.
        bound_ns: u64,
    },
    /// Software around the run failed.
    #[error("{0}")]
    Setup(String),
}

/// Laws 2 and 3 for a pair: a tenant that is always backlogged, and any other.
#[derive(Clone, Debug)]
struct Pair {
    behind: usize,
    ahead: usize,
    /// In service times weight: what `ahead` may gain.
    bound: i128,
    /// The least difference so far.
    least: i128,
}

/// The parameters of a tenant that the laws need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claimant {
    pub(super) weight: u32,
    pub(super) saturating: bool,
    /// Its first launch.
    pub(super) start: Moment,
    pub(super) queued_ns_max: Nanos,
}

/// Laws 2 and 3. The bound consists of periods, gate moves and queued kernels of the two.
#[derive(Debug)]
pub struct Lag {
    claimants: Vec<Claimant>,
    pairs: Vec<Pair>,
    /// Largest lag so far, in thousandths of the bound.
    worst_permille: i128,
}

impl Lag {
    /// Pairs of these tenants, with a decision every `period_ns` and gate moves of `move_ns`.
    pub(super) fn new(claimants: Vec<Claimant>, period_ns: Nanos, move_ns: Nanos) -> Self {
        let mut pairs = Vec::new();
        for (behind, own) in claimants.iter().enumerate() {
            for (ahead, other) in claimants.iter().enumerate() {
                if own.saturating && behind != ahead {
                    let bound = Self::bound(own, other, period_ns, move_ns);
                    pairs.push(Pair {
                        behind,
                        ahead,
                        bound,
                        least: 0,
                    });
                }
            }
        }
        Self {
            claimants,
            pairs,
            worst_permille: 0,
        }
    }

    /// The most that `other` may gain on `own` in any stretch, in service times weight.
    ///
    /// Between two decisions a tenant may use a period and the time of a gate move, after which its
    /// queue drains. It is admitted while its lead is below what a period gives to the one behind.
    /// Both ends of the stretch count.
    ///
    /// A tenant that thinks between its commands returns between two decisions, and is compared
    /// with an estimate of virtual time. Its gain by that has no proven bound: in 3,000 random
    /// worlds of half a second it stayed within 1.01 of this one, and twice as much is permitted.
    fn bound(own: &Claimant, other: &Claimant, period_ns: Nanos, move_ns: Nanos) -> i128 {
        let burst = |of: &Claimant| i128::from(period_ns.0 + move_ns.0 + of.queued_ns_max.0);
        let (own_weight, other_weight) = (i128::from(own.weight), i128::from(other.weight));
        let back = if other.saturating {
            0
        } else {
            2 * other_weight
        };
        let lead = i128::from(period_ns.0) * (own_weight + other_weight + back);
        let bound = lead + burst(other) * own_weight + burst(own) * other_weight;
        if other.saturating { bound } else { 2 * bound }
    }

    /// Compares the services until now.
    pub(super) fn check(&mut self, service: &[Nanos], now: Moment) -> Result<(), BrokenLaw> {
        for pair in &mut self.pairs {
            let difference = difference(&self.claimants, pair, service);
            if now < self.claimants[pair.behind].start {
                // It is not backlogged yet.
                pair.least = difference;
                continue;
            }
            pair.least = pair.least.min(difference);
            let lag = difference - pair.least;
            self.worst_permille = self.worst_permille.max(lag * 1000 / pair.bound);
            if lag > pair.bound {
                // Service that `behind` lacks, at its weight.
                let weight = i128::from(self.claimants[pair.ahead].weight);
                let of_own = |value: i128| u64::try_from(value / weight).unwrap_or(u64::MAX);
                return Err(BrokenLaw::Lag {
                    behind: id(pair.behind),
                    ahead: id(pair.ahead),
                    lag_ns: of_own(lag),
                    bound_ns: of_own(pair.bound),
                });
            }
        }
        Ok(())
    }

    pub(super) fn worst_permille(&self) -> u64 {
        u64::try_from(self.worst_permille).unwrap_or(0)
    }
}

/// The lead of `ahead`, in service times weight.
fn difference(claimants: &[Claimant], pair: &Pair, service: &[Nanos]) -> i128 {
    let times = |place: usize, weight: u32| i128::from(service[place].0) * i128::from(weight);
    times(pair.ahead, claimants[pair.behind].weight)
        - times(pair.behind, claimants[pair.ahead].weight)
}

/// The id of the tenant at this index of a run's list.
pub(super) fn id(place: usize) -> TenantId {
    // CAST: runs have few tenants.
    TenantId(place as u32 + 1)
}

/// Law 6 of launches, and law 1 between kernels and log.
#[derive(Debug, Default)]
pub(super) struct Launches {
    /// Launches begun of each tenant, their sum, and the length of the last.
    started: Vec<(u64, Nanos, Nanos)>,
    /// Whether a begun kernel may be stopped, so that another tenant runs before its end.
    stops_kernels: bool,
}

impl Launches {
    pub(super) fn new(tenants: usize, stops_kernels: bool) -> Self {
        Self {
            stops_kernels,
            started: vec![(0, Nanos::ZERO, Nanos::ZERO); tenants],
        }
    }

    /// Takes a launch that the GPU has begun.
    pub(super) fn take(&mut self, executed: Executed, submitted: u64) -> Result<(), BrokenLaw> {
        let place = (executed.tenant.0 as usize).wrapping_sub(1);
        let expected = self.started.get(place).map_or(0, |started| started.0);
        if place >= self.started.len() || executed.number != expected || expected >= submitted {
            return Err(BrokenLaw::Launch {
                tenant: executed.tenant,
                number: executed.number,
                expected,
                submitted,
            });
        }
        let (number, sum, last) = &mut self.started[place];
        *number += 1;
        *sum += executed.length_ns;
        *last = executed.length_ns;
        Ok(())
    }

    /// Each tenant's engine time is that of its kernels; the last one may be running or stopped.
    pub(super) fn check(&self, service: &[Nanos], runs: Option<usize>) -> Result<(), BrokenLaw> {
        for (place, (&(_, sum, last), &logged_ns)) in self.started.iter().zip(service).enumerate() {
            let unended = self.stops_kernels || runs == Some(place);
            let least_ns = if unended { sum - last } else { sum };
            if !(least_ns..=sum).contains(&logged_ns) {
                return Err(BrokenLaw::Service {
                    tenant: id(place),
                    least_ns,
                    most_ns: sum,
                    logged_ns,
                });
            }
        }
        Ok(())
    }
}

/// Law 4.
#[derive(Debug)]
pub(super) struct Idleness {
    bound_ns: Nanos,
    since: Option<(Moment, TenantId)>,
    longest_ns: Nanos,
}

impl Idleness {
    pub(super) const fn new(bound_ns: Nanos) -> Self {
        Self {
            bound_ns,
            since: None,
            longest_ns: Nanos::ZERO,
        }
    }

    /// From now on: whether the engine is idle while a tenant waits.
    pub(super) fn update(&mut self, now: Moment, idle: bool, waits: Option<TenantId>) {
        self.since = match (idle, waits) {
            (true, Some(tenant)) => Some(self.since.map_or((now, tenant), |since| since)),
            _ => None,
        };
    }

    /// Nothing has changed since the last call, up to `now`.
    pub(super) fn check(&mut self, now: Moment, enforced: bool) -> Result<(), BrokenLaw> {
        let Some((since, tenant)) = self.since else {
            return Ok(());
        };
        let idle_ns = now.since(since);
        self.longest_ns = self.longest_ns.max(idle_ns);
        if enforced && idle_ns > self.bound_ns {
            return Err(BrokenLaw::Idle {
                tenant,
                idle_ns,
                bound_ns: self.bound_ns,
            });
        }
        Ok(())
    }

    pub(super) const fn longest_ns(&self) -> Nanos {
        self.longest_ns
    }
}
