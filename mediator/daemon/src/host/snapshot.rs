//! The daemon's state as it is published.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use turnstile_abi::ErrorCode;
use turnstile_accounting::ledger::EngineSnapshot;
use turnstile_accounting::{Metadata, Moment, Nanos, TenantId};

use turnstile_policies::{Cap, Weight};

use super::accounts::AccountSnapshot;
use super::peer::{Kind, Tenant};
use super::recorder::{LedgerHealth, Recorder};
use super::settings::Settings;
use super::split;
use super::state::State;
use crate::common::Common;
use crate::histogram::Histogram;
use crate::limits::LimitsSnapshot;
use crate::tenant::gates::GateBook;
use turnstile_gpu::{Gpu, Untracked};
use turnstile_mediation::Tally;

/// What a tenant is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TenantKind {
    /// A virtual machine.
    Vm,
    /// A program and its children.
    Program {
        /// Its processes that use the GPU.
        processes: usize,
    },
}

/// A tenant in a [`HostSnapshot`].
#[derive(Clone, Debug, Serialize)]
// FIELDS: a row: one fact of a tenant each.
pub struct TenantSnapshot {
    /// Number.
    pub tenant: TenantId,
    /// Name.
    pub name: String,
    /// Name of its account.
    pub account: String,
    /// What it is.
    #[serde(flatten)]
    pub kind: TenantKind,
    /// Instance id, project and labels in force.
    #[serde(skip_serializing_if = "is_empty")]
    pub metadata: Arc<Metadata>,
    /// Weight in force.
    pub weight: u32,
    /// Upper limit in force.
    pub cap: Option<Cap>,
    /// Whether it has a latency target.
    pub latency_target: bool,
    /// Whether its turns on its GPUs coincide.
    pub gang: bool,
    /// Whether it may run.
    pub admitted: bool,
    /// Compute time charged.
    pub compute_ns: Nanos,
    /// Copy time charged.
    pub copy_ns: Nanos,
    /// Bytes that copy engines moved in that time, where the GPU counts them.
    pub copy_bytes: Option<u64>,
    /// Compute time by the engine's own log.
    pub engine_ns: Nanos,
    /// Time held.
    pub held_ns: Nanos,
    /// Compute time that it was entitled to (`turnstile_accounting::entitled`).
    pub entitled_ns: Nanos,
    /// Time in which it had work and did not run.
    pub waited_ns: Nanos,
    /// Whether it had work at the end of the last period.
    pub backlogged: bool,
    /// Doorbell writes that trapped.
    pub doorbells_trapped: u64,
    /// Gates moved.
    pub gate_moves: u64,
    /// Times that it was scheduled in on the compute engine.
    pub slices: u64,
    /// How often it was held, and why.
    #[serde(skip)]
    pub tally: Tally,
    /// Time from wake-up to residency on the engine.
    #[serde(skip)]
    pub latency: Histogram,
    /// Faults of its channels by kind, where the GPU counts them.
    #[serde(skip)]
    pub faults: BTreeMap<ErrorCode, u64>,
    /// GPU memory that it holds, where the GPU reports it.
    pub memory_held_bytes: Option<u64>,
    /// GPU memory that it may hold; none for a program without a limit.
    pub memory_limit_bytes: Option<u64>,
    /// Its GPU memory, where that moves.
    #[serde(flatten)]
    pub memory: Option<MemorySnapshot>,
}

/// Where a tenant's GPU memory is, and what was moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemorySnapshot {
    /// Bytes on the GPU, or on their way to or from it.
    pub resident_bytes: u64,
    /// Bytes allocated that are not.
    pub swapped_bytes: u64,
    /// Bytes of it that were copied to the host so far.
    pub swapped_out_bytes: u64,
    /// Bytes of it that were copied back so far.
    pub swapped_in_bytes: u64,
    /// Bytes of any tenant that were copied because of it so far: what it is charged for.
    pub moved_bytes: u64,
    /// Time of the link that this took.
    pub moved_ns: Nanos,
    /// Of the bytes on the GPU, those that cannot move.
    pub pinned_bytes: u64,
}

/// A copy of the host's state.
#[derive(Clone, Debug, Serialize)]
// FIELDS: a copy: one fact of a GPU each.
pub struct HostSnapshot {
    /// Figures of the GPU's own work, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub gpu: BTreeMap<&'static str, u64>,
    /// When, on the GPU's clock: the end of the last closed window.
    pub at: Moment,
    /// GPU memory in bytes.
    pub memory_bytes: u64,
    /// The VMs and programs.
    pub tenants: Vec<TenantSnapshot>,
    /// Tenants that left in the last five minutes, with their last totals.
    #[serde(skip)]
    pub departed: Vec<Arc<TenantSnapshot>>,
    /// Accounts of which a tenant has connected, by name.
    pub accounts: Vec<AccountSnapshot>,
    /// Where the engines' time went, by their own log.
    pub engines: Vec<EngineSnapshot>,
    /// Wall time less everything accounted for, all engines: zero, or time was lost (law 1).
    pub conservation_error_ns: i128,
    /// What the GPU cannot do on this host, with the remedy.
    #[serde(skip)]
    pub lacks: Option<String>,
    /// Processes that use the GPU and belong to no tenant.
    pub untracked: Vec<Untracked>,
    /// What was set, by tenant's name.
    #[serde(skip)]
    pub settings: BTreeMap<String, Settings>,
    /// Accounts of these names.
    #[serde(skip)]
    pub owners: BTreeMap<String, String>,
    /// The durable ledger, if there is one.
    #[serde(skip)]
    pub ledger: Option<LedgerHealth>,
    /// Why it is not written, if so.
    #[serde(skip)]
    pub ledger_reason: Option<String>,
    /// What all hold of the daemon's resources.
    pub limits: LimitsSnapshot,
    /// Usages that the ledger refused.
    pub ledger_errors: u64,
    /// Lengths of the compute engine's switches.
    #[serde(skip)]
    pub switches: Histogram,
}

fn is_empty(metadata: &Metadata) -> bool {
    metadata.is_empty()
}

impl TenantSnapshot {
    /// A VM of this name that has used nothing.
    pub fn of_name(name: &str) -> Self {
        Self {
            tenant: TenantId(0),
            name: name.to_owned(),
            account: String::new(),
            kind: TenantKind::Vm,
            metadata: Arc::default(),
            weight: Weight::DEFAULT.get(),
            cap: None,
            latency_target: false,
            gang: false,
            admitted: false,
            compute_ns: Nanos::ZERO,
            copy_ns: Nanos::ZERO,
            copy_bytes: None,
            engine_ns: Nanos::ZERO,
            held_ns: Nanos::ZERO,
            entitled_ns: Nanos::ZERO,
            waited_ns: Nanos::ZERO,
            backlogged: false,
            doorbells_trapped: 0,
            gate_moves: 0,
            slices: 0,
            tally: Tally::default(),
            latency: Histogram::default(),
            faults: BTreeMap::new(),
            memory_held_bytes: None,
            memory_limit_bytes: None,
            memory: None,
        }
    }

    /// What is shown of a tenant; the last window ended at `at`.
    pub(super) fn of(
        state: &State,
        (gpu, common): (&dyn Gpu, &Common),
        at: Moment,
        (tenant, entry): (TenantId, &Tenant),
        faults: BTreeMap<ErrorCode, u64>,
    ) -> Self {
        let charged = state.mediation.ledger();
        let truth = state.records.truth.as_ref().unwrap_or(charged);
        let totals = charged.tenant(tenant);
        let (compute, copy) = split(&totals.engines);
        let (engine, _) = split(&truth.tenant(tenant).engines);
        let set = state.set_of(&entry.name);
        let limit = set.memory.max_bytes.unwrap_or(entry.brought.memory_bytes);
        Self {
            tenant,
            name: entry.name.clone(),
            account: entry.account.1.clone(),
            metadata: state.described.of(tenant).clone(),
            weight: state.mediation.weight(tenant).map_or(0, Weight::get),
            cap: state.mediation.cap(tenant),
            latency_target: set.latency_target,
            gang: set.gang,
            admitted: state.mediation.admitted(tenant),
            compute_ns: compute.used_ns,
            copy_ns: copy.used_ns,
            copy_bytes: totals.copy_bytes,
            engine_ns: engine.used_ns,
            held_ns: totals.held_ns + state.mediation.held_now(tenant, at),
            entitled_ns: state.mediation.due(tenant).entitled_ns,
            waited_ns: state.mediation.due(tenant).waited_ns,
            backlogged: state.mediation.backlogged(tenant),
            doorbells_trapped: entry.gates().map_or(0, GateBook::trapped),
            gate_moves: entry.gates().map_or(0, GateBook::moves),
            slices: compute.begun,
            tally: state.mediation.tally(tenant),
            latency: state.records.timings.latency(tenant),
            faults,
            memory_held_bytes: gpu
                .capabilities()
                .memory_held
                .then(|| gpu.memory(tenant).held_bytes),
            memory_limit_bytes: (limit > 0).then_some(limit),
            memory: state
                .memory
                .as_ref()
                .map(|memory| memory.snapshot(tenant, charged)),
            kind: match entry.kind {
                Kind::Vm(_) => TenantKind::Vm,
                Kind::Program(_) => TenantKind::Program {
                    processes: common.registry().count(tenant),
                },
            },
        }
    }
}

impl HostSnapshot {
    /// Tenants, totals, conservation.
    pub(super) fn of(state: &State, gpu: &dyn Gpu, common: &Common) -> Self {
        let charged = state.mediation.ledger();
        let truth = state.records.truth.as_ref().unwrap_or(charged);
        let total = truth.snapshot();
        let at = total.window.map_or(Moment(0), |window| window.to());
        let wall = total.window.map_or(0, |window| window.length().0);
        let mut report = gpu.report();
        let tenants = state.tenants.iter().map(|(tenant, entry)| {
            let faults = report.faults.remove(tenant).unwrap_or_default();
            TenantSnapshot::of(state, (gpu, common), at, (*tenant, entry), faults)
        });
        let tenants = tenants.collect();
        let leaving = state.leaving.iter().map(|gone| (gone.tenant, gone.account));
        let present = state.tenants.iter();
        let present = present.map(|(id, tenant)| (*id, tenant.account.0));
        let conservation_error_ns = total
            .engines
            .iter()
            .map(|engine| i128::from(wall) - i128::from(engine.totals.accounted_ns().0))
            .map(i128::abs)
            .sum();
        Self {
            gpu: report.figures,
            lacks: report.lacks,
            at,
            memory_bytes: gpu.capabilities().memory_bytes,
            tenants,
            accounts: state.accounts.snapshots(charged, leaving.chain(present)),
            engines: total.engines,
            departed: state.departed.all(|tenant| {
                let unsettled = state.leaving.iter().any(|gone| gone.tenant == tenant);
                unsettled.then(|| charged.tenant(tenant))
            }),
            conservation_error_ns,
            untracked: report.untracked,
            limits: common.limits.snapshot(),
            owners: state
                .settings
                .keys()
                .filter_map(|name| {
                    Some((name.clone(), state.accounts.book.owner(name)?.to_string()))
                })
                .collect(),
            settings: state.settings.clone(),
            ledger: state.records.recorder.as_ref().map(Recorder::health),
            ledger_reason: state.records.recorder.as_ref().and_then(Recorder::reason),
            ledger_errors: state.records.errors,
            switches: state.records.timings.switches(),
        }
    }
}
