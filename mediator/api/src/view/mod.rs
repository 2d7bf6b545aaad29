//! The operator's view: differences of two samples, as parts of the time between them. Pure.

mod sample;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use sample::{
    AccountSample, EngineTime, LedgerSample, MemorySample, Sample, TenantSample, WaitingSample,
};

/// One GPU over an interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
// FIELDS: a document of JSON: one fact each.
pub struct View {
    /// Identity of the GPU.
    #[serde(default)]
    pub gpu: String,
    /// End of the interval on the GPU's clock, in nanoseconds.
    pub at_ns: u64,
    /// Its length, in nanoseconds; 0 if no period ended in it, and then all parts are 0 too.
    pub interval_ns: u64,
    /// Where the compute engine's time went.
    pub engine: EngineParts,
    /// Copy engines in use, all together, in parts of the interval (1 is one engine all the time).
    pub copying: f64,
    /// Wall time less everything accounted for since the daemon began, in nanoseconds.
    pub conservation_error_ns: i64,
    /// Times a second that a tenant was scheduled in on the compute engine.
    pub switches_per_s: f64,
    /// GPU memory in bytes.
    pub memory_bytes: u64,
    /// GPU memory that tenants hold, in bytes, as far as the GPU reports it.
    pub memory_held_bytes: u64,
    /// The tenants, by number.
    pub tenants: Vec<Row>,
    /// Accounts of which a tenant has connected, by name.
    #[serde(default)]
    pub accounts: Vec<AccountRow>,
    /// Processes on the GPU that belong to no tenant.
    pub untracked: usize,
    /// VMs that wait for a place on any GPU, in line; not in the history.
    #[serde(default)]
    pub waiting: Vec<WaitingSample>,
    /// The durable ledger; none if the daemon keeps none.
    pub ledger: Option<LedgerSample>,
}

/// Where the compute engine's time went, in parts of an interval; they add up to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EngineParts {
    /// Tenants'.
    pub used: f64,
    /// Stalled on faults.
    pub fault: f64,
    /// Between contexts.
    pub switching: f64,
    /// With nothing to do.
    pub idle: f64,
    /// Without any signal.
    pub unobserved: f64,
}

/// What a tenant does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Doing {
    /// Nothing, and it wants nothing.
    #[default]
    Idle,
    /// It has work and may run.
    Runs,
    /// It has work and is held.
    Held,
}

impl Doing {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Runs => "runs",
            Self::Held => "held",
        }
    }
}

/// A tenant over an interval. Parts are of the interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
// FIELDS: a row of JSON: one figure each.
pub struct Row {
    /// Number.
    pub tenant: u32,
    /// Name.
    pub name: String,
    /// Name of its account.
    #[serde(default)]
    pub account: String,
    /// Processes of a program on the GPU; null for a VM.
    pub processes: Option<usize>,
    /// Weight in force.
    pub weight: u32,
    /// The part of the engine that it gets at most; null for no limit.
    pub cap: Option<f64>,
    /// What it does at the end.
    pub doing: Doing,
    /// Compute time that it was entitled to, by weights, quotas and what each tenant wanted.
    pub entitled: f64,
    /// Compute time that it received.
    pub received: f64,
    /// Time with work and without the engine.
    pub waiting: f64,
    /// Time held.
    pub held: f64,
    /// Copy time.
    pub copying: f64,
    /// Times a second that it was scheduled in on the compute engine.
    pub switches_per_s: f64,
    /// Compute time charged since it connected, in seconds: what is billed.
    pub gpu_seconds: f64,
    /// GPU memory that it holds, in bytes, where the GPU reports it.
    pub held_bytes: Option<u64>,
    /// Its memory, where that moves.
    pub memory: Option<MemorySample>,
}

/// An account over an interval. Parts are of the interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AccountRow {
    /// Name.
    pub name: String,
    /// Share relative to other accounts.
    pub weight: u32,
    /// Tenants connected.
    pub tenants: u32,
    /// Compute time that its tenants were entitled to.
    pub entitled: f64,
    /// Compute time that its tenants received, those that have left included.
    pub received: f64,
    /// Copy time, likewise.
    pub copying: f64,
    /// Compute time charged since the daemon began, in seconds.
    pub gpu_seconds: f64,
}

impl View {
    /// Differences from one sample to a later one. A tenant that connected meanwhile counts from
    /// zero. So does everything if the daemon was restarted meanwhile (its totals are lower).
    pub fn between(before: &Sample, after: &Sample) -> Self {
        let nothing = Sample::default();
        let same_run = before.at_ns <= after.at_ns && before.engine.used_ns <= after.engine.used_ns;
        let before = if same_run { before } else { &nothing };
        let interval = Interval::between(&before.engine, &after.engine);
        let part = |before: u64, after: u64| interval.of(after.saturating_sub(before));
        let known: BTreeMap<u32, &TenantSample> = before
            .tenants
            .iter()
            .map(|tenant| (tenant.tenant, tenant))
            .collect();
        let new = TenantSample::default();
        let tenants: Vec<Row> = after
            .tenants
            .iter()
            .map(|now| {
                let was = known.get(&now.tenant).copied().unwrap_or(&new);
                Row {
                    tenant: now.tenant,
                    name: now.name.clone(),
                    account: now.account.clone(),
                    processes: now.processes,
                    weight: now.weight,
                    // CAST: a ratio
                    cap: (now.cap_ns).map(|(quota, period)| quota as f64 / period.max(1) as f64),
                    doing: match (now.backlogged, now.admitted) {
                        (false, _) => Doing::Idle,
                        (true, true) => Doing::Runs,
                        (true, false) => Doing::Held,
                    },
                    entitled: part(was.entitled_ns, now.entitled_ns),
                    received: part(was.compute_ns, now.compute_ns),
                    waiting: part(was.waited_ns, now.waited_ns),
                    held: part(was.held_ns, now.held_ns),
                    copying: part(was.copy_ns, now.copy_ns),
                    switches_per_s: interval.per_second(now.slices.saturating_sub(was.slices)),
                    gpu_seconds: now.compute_ns as f64 / 1e9,
                    held_bytes: now.held_bytes,
                    memory: now.memory,
                }
            })
            .collect();
        let account = |now: &AccountSample| {
            let was = before.accounts.iter().find(|was| was.name == now.name);
            let was = was.cloned().unwrap_or_default();
            let own = tenants.iter().filter(|row| row.account == now.name);
            AccountRow {
                name: now.name.clone(),
                weight: now.weight,
                tenants: now.tenants,
                // The sum of no parts would be -0.
                entitled: own.fold(0.0, |sum, row| sum + row.entitled),
                received: part(was.compute_ns, now.compute_ns),
                copying: part(was.copy_ns, now.copy_ns),
                gpu_seconds: now.compute_ns as f64 / 1e9,
            }
        };
        let accounts = after.accounts.iter().map(account).collect();
        Self {
            gpu: after.gpu.clone(),
            at_ns: after.at_ns,
            interval_ns: interval.ns,
            engine: EngineParts {
                used: part(before.engine.used_ns, after.engine.used_ns),
                fault: part(before.engine.fault_ns, after.engine.fault_ns),
                switching: part(before.engine.switching_ns, after.engine.switching_ns),
                idle: part(before.engine.idle_ns, after.engine.idle_ns),
                unobserved: part(before.engine.unobserved_ns, after.engine.unobserved_ns),
            },
            copying: part(before.copy_ns, after.copy_ns),
            conservation_error_ns: after.conservation_error_ns,
            switches_per_s: interval.per_second(after.slices.saturating_sub(before.slices)),
            memory_bytes: after.memory_bytes,
            memory_held_bytes: after.tenants.iter().map(TenantSample::on_the_gpu).sum(),
            tenants,
            accounts,
            untracked: after.untracked,
            waiting: after.waiting.clone(),
            ledger: after.ledger,
        }
    }
}

/// An interval to take parts of.
struct Interval {
    ns: u64,
}

impl Interval {
    /// The time between two states of an engine, by what is accounted for in it.
    fn between(before: &EngineTime, after: &EngineTime) -> Self {
        Self {
            ns: after.accounted_ns().saturating_sub(before.accounted_ns()),
        }
    }

    fn per_second(&self, count: u64) -> f64 {
        self.of(count) * 1e9
    }

    fn of(&self, ns: u64) -> f64 {
        if self.ns == 0 {
            0.0
        } else {
            ns as f64 / self.ns as f64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(number: u32, compute_ms: u64, entitled_ms: u64) -> TenantSample {
        TenantSample {
            tenant: number,
            name: format!("vm{number}"),
            weight: 100,
            admitted: true,
            backlogged: true,
            compute_ns: compute_ms * 1_000_000,
            entitled_ns: entitled_ms * 1_000_000,
            ..TenantSample::default()
        }
    }

    fn sample(at_ms: u64, used_ms: u64, tenants: Vec<TenantSample>) -> Sample {
        Sample {
            at_ns: at_ms * 1_000_000,
            engine: EngineTime {
                used_ns: used_ms * 1_000_000,
                idle_ns: (at_ms - used_ms) * 1_000_000,
                ..EngineTime::default()
            },
            tenants,
            ..Sample::default()
        }
    }

    #[test]
    fn parts_are_of_the_time_between() {
        let before = sample(1_000, 500, vec![tenant(1, 300, 250), tenant(2, 200, 250)]);
        let after = sample(2_000, 1_300, vec![tenant(1, 500, 450), tenant(2, 800, 850)]);
        let view = View::between(&before, &after);
        assert_eq!(view.interval_ns, 1_000_000_000);
        assert_eq!((view.engine.used, view.engine.idle), (0.8, 0.2));
        let rows: Vec<(f64, f64)> = view
            .tenants
            .iter()
            .map(|row| (row.received, row.entitled))
            .collect();
        assert_eq!(rows, [(0.2, 0.2), (0.6, 0.6)]);
        assert_eq!(view.tenants[1].gpu_seconds, 0.8);
    }

    #[test]
    fn tenant_that_arrived_between_samples_is_counted_from_zero() {
        let before = sample(1_000, 0, vec![]);
        let after = sample(2_000, 400, vec![tenant(7, 400, 400)]);
        assert_eq!(View::between(&before, &after).tenants[0].received, 0.4);
    }

    #[test]
    fn a_daemon_that_began_anew_is_seen_from_its_beginning() {
        let before = sample(90_000, 80_000, vec![tenant(1, 80_000, 80_000)]);
        let after = sample(500, 100, vec![tenant(1, 100, 100)]);
        let view = View::between(&before, &after);
        assert_eq!(view.interval_ns, 500_000_000);
        assert_eq!(view.tenants[0].received, 0.2);
    }

    #[test]
    fn account_received_what_tenants_that_left_received() {
        let with = |mut sample: Sample, compute_ms: u64| {
            for tenant in &mut sample.tenants {
                tenant.account = "a".to_owned();
            }
            sample.accounts = vec![AccountSample {
                name: "a".to_owned(),
                weight: 100,
                tenants: 1,
                compute_ns: compute_ms * 1_000_000,
                copy_ns: 0,
            }];
            sample
        };
        let before = with(
            sample(1_000, 500, vec![tenant(1, 300, 250), tenant(2, 200, 250)]),
            500,
        );
        let after = with(sample(2_000, 1_300, vec![tenant(2, 800, 450)]), 1_300);
        let accounts = View::between(&before, &after).accounts;
        assert_eq!((accounts[0].received, accounts[0].entitled), (0.8, 0.2));
    }

    #[test]
    fn no_time_makes_no_parts() {
        let same = sample(1_000, 500, vec![tenant(1, 300, 250)]);
        let view = View::between(&same, &same);
        assert_eq!(view.interval_ns, 0);
        assert_eq!(view.tenants[0].received, 0.0);
        assert_eq!(view.engine.used, 0.0);
    }

    #[test]
    fn held_tenant_is_shown_as_held_with_work_and_idle_without() {
        let mut one = tenant(1, 0, 0);
        one.admitted = false;
        let view = View::between(&sample(0, 0, vec![]), &sample(1, 0, vec![one.clone()]));
        assert_eq!(view.tenants[0].doing, Doing::Held);
        one.backlogged = false;
        let view = View::between(&sample(0, 0, vec![]), &sample(1, 0, vec![one]));
        assert_eq!(view.tenants[0].doing, Doing::Idle);
    }
}
