//! Running totals at a moment, for displays.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use turnstile_daemon::{HostSnapshot, LedgerHealth, TenantKind};
use turnstile_mediation::COMPUTE;

/// Totals of one GPU and its tenants. They only grow while the daemon runs, so that the difference
/// of two samples is what happened between them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
// FIELDS: a copy: one fact of a GPU each.
pub struct Sample {
    /// Identity of the GPU.
    #[serde(default)]
    pub gpu: String,
    /// When, on the GPU's clock, in nanoseconds: the end of the last closed period.
    pub at_ns: u64,
    /// Where the compute engine's time went, by its own log.
    pub engine: EngineTime,
    /// Time of copy engines in use, all together, in nanoseconds.
    pub copy_ns: u64,
    /// Wall time less everything accounted for, in nanoseconds; other than zero means lost time.
    pub conservation_error_ns: i64,
    /// Times that a tenant was scheduled in on the compute engine.
    pub slices: u64,
    /// GPU memory in bytes.
    pub memory_bytes: u64,
    /// The tenants, by number.
    pub tenants: Vec<TenantSample>,
    /// Accounts of which a tenant has connected, by name.
    #[serde(default)]
    pub accounts: Vec<AccountSample>,
    /// Processes on the GPU that belong to no tenant.
    pub untracked: usize,
    /// VMs that wait for a place on any GPU, in line; not in the history.
    #[serde(default)]
    pub waiting: Vec<WaitingSample>,
    /// The durable ledger; none if the daemon keeps none.
    pub ledger: Option<LedgerSample>,
}

/// A VM that waits for a place on a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaitingSample {
    /// Name.
    pub name: String,
    /// Why no GPU takes it now.
    pub reason: String,
}

/// Where the compute engine's time went, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EngineTime {
    /// Tenants'.
    pub used_ns: u64,
    /// Stalled on faults.
    pub fault_ns: u64,
    /// Between contexts.
    pub switching_ns: u64,
    /// With nothing to do.
    pub idle_ns: u64,
    /// Without any signal, or between windows.
    pub unobserved_ns: u64,
}

impl EngineTime {
    /// All of it.
    pub const fn accounted_ns(&self) -> u64 {
        self.used_ns + self.fault_ns + self.switching_ns + self.idle_ns + self.unobserved_ns
    }
}

/// One account's totals.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccountSample {
    /// Name.
    pub name: String,
    /// Share relative to other accounts.
    pub weight: u32,
    /// Tenants connected.
    pub tenants: u32,
    /// Compute time charged since the daemon began, tenants that have left included.
    pub compute_ns: u64,
    /// Copy time charged, likewise.
    pub copy_ns: u64,
}

/// One tenant's totals.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
// FIELDS: a row: one fact of a tenant each.
pub struct TenantSample {
    /// Number; never used again while the daemon runs.
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
    /// Engine time that it gets at most in each of its periods, and their length, in nanoseconds;
    /// null for no limit.
    pub cap_ns: Option<(u64, u64)>,
    /// Whether it may run.
    pub admitted: bool,
    /// Whether it had work.
    pub backlogged: bool,
    /// Compute time charged.
    pub compute_ns: u64,
    /// Copy time charged.
    pub copy_ns: u64,
    /// Compute time that it was entitled to, by weights, quotas and what each tenant wanted.
    pub entitled_ns: u64,
    /// Time with work and without the engine.
    pub waited_ns: u64,
    /// Time held.
    pub held_ns: u64,
    /// Times that it was scheduled in on the compute engine.
    pub slices: u64,
    /// GPU memory that it holds, in bytes, where the GPU reports it.
    pub held_bytes: Option<u64>,
    /// Its memory, where that moves.
    pub memory: Option<MemorySample>,
}

/// Where a tenant's memory is, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemorySample {
    /// On the GPU.
    pub resident_bytes: u64,
    /// At the host.
    pub swapped_bytes: u64,
    /// Copied because of it so far.
    pub moved_bytes: u64,
    /// On the GPU, and never to move.
    #[serde(default)]
    pub pinned_bytes: u64,
}

/// How the durable ledger stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LedgerSample {
    /// Entries on the disk since the daemon began.
    pub written: u64,
    /// The last attempt to write failed.
    pub failing: bool,
    /// Periods that were refused, as they did not balance.
    pub refused: u64,
}

impl Sample {
    /// Of a GPU and its ledger.
    pub fn new(gpu: &str, host: &HostSnapshot, ledger: Option<LedgerHealth>) -> Self {
        let mut engine = EngineTime::default();
        let (mut copy_ns, mut slices) = (0, 0);
        for seen in &host.engines {
            let totals = &seen.totals;
            if seen.engine != COMPUTE {
                copy_ns += totals.used_ns.0;
                continue;
            }
            slices = totals.begun;
            engine = EngineTime {
                used_ns: totals.used_ns.0,
                fault_ns: totals.fault_ns.0,
                switching_ns: totals.switching_ns.0,
                idle_ns: totals.idle_ns.0,
                unobserved_ns: totals.unobserved_ns.0 + totals.gap_ns.0,
            };
        }
        Self {
            gpu: gpu.to_owned(),
            at_ns: host.at.0,
            engine,
            copy_ns,
            // CAST: an error of 292 years is no less wrong
            conservation_error_ns: i64::try_from(host.conservation_error_ns).unwrap_or(i64::MAX),
            slices,
            memory_bytes: host.memory_bytes,
            tenants: host.tenants.iter().map(TenantSample::from).collect(),
            accounts: host.accounts.iter().map(AccountSample::from).collect(),
            untracked: host.untracked.len(),
            waiting: Vec::new(),
            ledger: ledger.map(|ledger| LedgerSample {
                written: ledger.written,
                failing: ledger.failing,
                refused: ledger.refused,
            }),
        }
    }
}

impl TenantSample {
    /// GPU memory of it that is on the GPU, in bytes, as far as that is known.
    pub fn on_the_gpu(&self) -> u64 {
        let resident = self.memory.map(|memory| memory.resident_bytes);
        resident.or(self.held_bytes).unwrap_or(0)
    }
}

impl From<&turnstile_daemon::AccountSnapshot> for AccountSample {
    fn from(account: &turnstile_daemon::AccountSnapshot) -> Self {
        Self {
            name: account.name.clone(),
            weight: account.weight,
            tenants: account.tenants,
            compute_ns: account.compute_ns.0,
            copy_ns: account.copy_ns.0,
        }
    }
}

impl From<&turnstile_daemon::TenantSnapshot> for TenantSample {
    fn from(tenant: &turnstile_daemon::TenantSnapshot) -> Self {
        Self {
            tenant: tenant.tenant.0,
            name: tenant.name.clone(),
            account: tenant.account.clone(),
            processes: match tenant.kind {
                TenantKind::Vm => None,
                TenantKind::Program { processes } => Some(processes),
            },
            weight: tenant.weight,
            cap_ns: tenant.cap.map(|cap| (cap.quota_ns().0, cap.period_ns().0)),
            admitted: tenant.admitted,
            backlogged: tenant.backlogged,
            compute_ns: tenant.compute_ns.0,
            copy_ns: tenant.copy_ns.0,
            entitled_ns: tenant.entitled_ns.0,
            waited_ns: tenant.waited_ns.0,
            held_ns: tenant.held_ns.0,
            slices: tenant.slices,
            held_bytes: tenant.memory_held_bytes,
            memory: tenant.memory.map(|memory| MemorySample {
                resident_bytes: memory.resident_bytes,
                swapped_bytes: memory.swapped_bytes,
                moved_bytes: memory.moved_bytes,
                pinned_bytes: memory.pinned_bytes,
            }),
        }
    }
}
