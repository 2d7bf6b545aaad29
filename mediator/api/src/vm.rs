//! A tenant as the API shows it, a VM or a program, and how it is scheduled.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use turnstile_accounting::{Metadata, Nanos, TenantId};
use turnstile_policies::{Cap, ParamsError, Weight};
use utoipa::ToSchema;

use super::Shared;
use super::attachment::VmAttachment;
use super::body::Patch;
use super::problem::Problem;
use turnstile_daemon::limits::Amount;
use turnstile_daemon::{MemoryLimits, MemorySnapshot, Settings, TenantKind, TenantSnapshot};

/// Shortest and longest period of a cap, and shortest quota.
/// SOURCE: kernel/sched/core.c, min_cfs_quota_period, max_cfs_quota_period, min_bw_runtime of the
/// same order
const PERIOD_US: std::ops::RangeInclusive<u64> =
    Cap::PERIOD_MIN.0 / 1_000..=Cap::PERIOD_MAX.0 / 1_000;
/// SOURCE: Documentation/admin-guide/cgroup-v2.rst, cpu.max
const PERIOD_DEFAULT_US: u64 = 100_000;

/// How a tenant is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Scheduling {
    /// Its share relative to others, as cgroup's `cpu.weight`.
    #[schema(minimum = 1, maximum = 10_000)]
    pub weight: u32,
    /// Engine time that it gets at most in each period, in microseconds; null for no limit.
    #[serde(default)]
    #[schema(minimum = 1_000, maximum = 1_000_000)]
    pub quota_us: Option<u64>,
    /// Length of the period in microseconds, not below the quota. It means nothing without a quota,
    /// and is 100,000 if only a quota is given.
    #[serde(default)]
    #[schema(minimum = 1_000, maximum = 1_000_000)]
    pub period_us: Option<u64>,
    /// Whether time slices of other tenants are short while it is resident for less than its part:
    /// requests at a low rate end sooner, for some per cent of the others' rate (policy `owed`).
    #[serde(default)]
    pub latency_target: bool,
    /// Whether its turns on its GPUs coincide, where kernels wait for each other
    /// (policy `owed`).
    #[serde(default)]
    pub gang: bool,
}

/// Changes to how a tenant is scheduled; what is left out stays as it is.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "a schema: the patch itself is merged as JSON")]
pub(super) struct SchedulingPatch {
    /// Its share relative to others.
    #[schema(minimum = 1, maximum = 10_000)]
    weight: Option<u32>,
    /// Engine time that it gets at most in each period, in microseconds; null lifts the limit.
    #[schema(minimum = 1_000, maximum = 1_000_000)]
    quota_us: Option<u64>,
    /// Length of the period in microseconds.
    #[schema(minimum = 1_000, maximum = 1_000_000)]
    period_us: Option<u64>,
    /// Whether it has a latency target.
    latency_target: Option<bool>,
    /// Whether its turns on its GPUs coincide.
    gang: Option<bool>,
}

/// What a tenant used since it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmUsage {
    /// Time on the compute engine that was charged.
    pub compute_ns: u64,
    /// Time on the copy engines that was charged.
    pub copy_ns: u64,
    /// Bytes that the copy engines moved in that time; null where the GPU does not count them.
    pub copy_bytes: Option<u64>,
    /// Time for which it was held.
    pub held_ns: u64,
    /// Doorbell writes that trapped.
    pub doorbells_trapped: u64,
    /// Times that its gates were moved.
    pub gate_moves: u64,
}

/// Where a tenant's GPU memory is, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmResidence {
    /// On the GPU.
    pub resident_bytes: u64,
    /// At the host.
    pub swapped_bytes: u64,
    /// Copied to the host so far.
    pub swapped_out_bytes: u64,
    /// Copied back so far.
    pub swapped_in_bytes: u64,
    /// On the GPU, and never to move.
    pub pinned_bytes: u64,
    /// Copied because of it so far, its own or others', which is what it is charged for.
    pub moved_bytes: u64,
    /// Time of the link that this took.
    pub moved_ns: u64,
}

/// Instance id, project and labels of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VmMetadata {
    /// Id of the instance: of one VM from its creation to its end, on whatever host. Bills have one
    /// resource for each.
    #[serde(default)]
    #[schema(value_type = Option<Uuid>)]
    pub instance_id: Option<String>,
    /// The project, 1 to 253 bytes without control characters.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 253)]
    pub project: Option<String>,
    /// At most 32 labels. A key has 1 to 63 of `A-Z a-z 0-9 . _ / -`, with a letter or digit at
    /// both ends, a value up to 253 bytes without control characters.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

impl VmMetadata {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            instance_id: metadata.instance_id().map(|id| id.to_string()),
            project: metadata.project().map(str::to_owned),
            labels: metadata.labels().clone(),
        }
    }

    /// The same, checked.
    pub(super) fn checked(self) -> Result<Arc<Metadata>, Problem> {
        let checked = Metadata::new(self.instance_id.as_deref(), self.project, self.labels);
        checked
            .map(Arc::new)
            .map_err(|error| Problem::field(format!("/{}", error.part()), error.to_string()))
    }
}

/// A tenant: a virtual machine, or a program and what descends from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
// FIELDS: a row of JSON: one fact each.
pub struct Vm {
    /// Name, as its VMM or launcher gives it.
    pub name: String,
    /// `vm` or `program`; null if it is not connected.
    pub kind: Option<String>,
    /// Account that it belongs to; null before it first connected.
    pub account: Option<String>,
    /// Whether it is connected. A tenant that is not is listed if it has settings.
    pub connected: bool,
    /// Identity of the GPU that it is on, or on which a declared VM has its place; else null.
    #[serde(default)]
    pub gpu: Option<String>,
    /// Identities of all GPUs that it is on. Of a program on several, usage and memory are sums,
    /// the entitlement is the mean, and it may run if it may on each of them.
    #[serde(default)]
    pub gpus: Vec<String>,
    /// Number in this run of the daemon.
    pub number: Option<u32>,
    /// How it is scheduled, now or when it connects.
    pub scheduling: Scheduling,
    /// Part of the compute engine's last second that it was entitled to, from 0 to 1; null before
    /// its first second.
    pub entitled_ratio: Option<f64>,
    /// Whether it may run now.
    pub admitted: Option<bool>,
    /// What it used since it connected.
    pub usage: Option<VmUsage>,
    /// Instance id, project and labels in force.
    #[serde(default)]
    pub metadata: VmMetadata,
    /// Limits of its GPU memory, as they were set.
    pub limits: MemoryLimits,
    /// Where its memory is; null where memory does not move.
    pub memory: Option<VmResidence>,
    /// Of a declared VM: its state and its socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attachment: Option<VmAttachment>,
    /// Of a VM without a GPU: its place in line, and why it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<VmWaiting>,
    /// What it holds of the daemon's bounded resources; not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<BTreeMap<String, Amount>>,
}

/// A VM that waits for a place on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmWaiting {
    /// Its place in line, from 1. One that fits on no GPU delays no other.
    pub place: u32,
    /// GPU memory that it needs.
    pub gpu_memory_bytes: u64,
    /// Why no GPU takes it now.
    pub reason: String,
}

impl Scheduling {
    /// Of a weight and a cap, and nothing else.
    pub(super) fn of(weight: u32, cap: Option<Cap>) -> Self {
        Self {
            weight,
            latency_target: false,
            gang: false,
            quota_us: cap.map(|cap| cap.quota_ns().0 / 1_000),
            period_us: cap.map(|cap| cap.period_ns().0 / 1_000),
        }
    }

    pub(super) fn cap(&self) -> Result<Option<Cap>, Problem> {
        let period = self.period_us.unwrap_or(PERIOD_DEFAULT_US);
        if !PERIOD_US.contains(&period) {
            let detail = format!(
                "A period has {} to {} us",
                PERIOD_US.start(),
                PERIOD_US.end()
            );
            return Err(Problem::field("/period_us", detail));
        }
        let Some(quota) = self.quota_us else {
            return Ok(None);
        };
        let refused = |detail: String| Problem::field("/quota_us", detail);
        if !(*PERIOD_US.start()..=period).contains(&quota) {
            return Err(refused(format!(
                "A quota has {} us to the period's {period} us; null is no limit",
                PERIOD_US.start()
            )));
        }
        Cap::new(Nanos(quota * 1_000), Nanos(period * 1_000))
            .map(Some)
            .map_err(|error| refused(error.to_string()))
    }

    /// Sets all of it, or what a patch of `before` names; the rest stays as it was set.
    pub(super) fn enter(
        &self,
        before: Option<(&Self, &Patch)>,
        settings: &mut Settings,
    ) -> Result<(), Problem> {
        let weight = Weight::new(self.weight)
            .map_err(|error: ParamsError| Problem::field("/weight", error.to_string()))?;
        let cap = self.cap()?;
        if before.is_none_or(|(before, _)| before.weight != self.weight) {
            settings.weight = Some(weight);
        }
        let of_cap = |patch: &Patch| patch.names("quota_us") || patch.names("period_us");
        if before.is_none_or(|(_, patch)| of_cap(patch)) {
            settings.cap = cap;
        }
        settings.latency_target = self.latency_target;
        settings.gang = self.gang;
        Ok(())
    }
}

fn residence(memory: MemorySnapshot) -> VmResidence {
    VmResidence {
        resident_bytes: memory.resident_bytes,
        swapped_bytes: memory.swapped_bytes,
        swapped_out_bytes: memory.swapped_out_bytes,
        swapped_in_bytes: memory.swapped_in_bytes,
        pinned_bytes: memory.pinned_bytes,
        moved_bytes: memory.moved_bytes,
        moved_ns: memory.moved_ns.0,
    }
}

fn connected(
    gpu: &str,
    tenant: &TenantSnapshot,
    entitled: Option<f64>,
    limits: MemoryLimits,
) -> Vm {
    let kind = match tenant.kind {
        TenantKind::Vm => "vm",
        TenantKind::Program { .. } => "program",
    };
    Vm {
        name: tenant.name.clone(),
        kind: Some(kind.into()),
        account: Some(tenant.account.clone()),
        connected: true,
        gpu: Some(gpu.to_owned()),
        gpus: vec![gpu.to_owned()],
        number: Some(tenant.tenant.0),
        scheduling: Scheduling {
            latency_target: tenant.latency_target,
            gang: tenant.gang,
            ..Scheduling::of(tenant.weight, tenant.cap)
        },
        entitled_ratio: entitled,
        admitted: Some(tenant.admitted),
        usage: Some(VmUsage {
            compute_ns: tenant.compute_ns.0,
            copy_ns: tenant.copy_ns.0,
            copy_bytes: tenant.copy_bytes,
            held_ns: tenant.held_ns.0,
            doorbells_trapped: tenant.doorbells_trapped,
            gate_moves: tenant.gate_moves,
        }),
        metadata: VmMetadata::of(&tenant.metadata),
        limits,
        memory: tenant.memory.map(residence),
        attachment: None,
        waiting: None,
        held: None,
    }
}

fn absent(name: &str, settings: &Settings, default: Weight, account: Option<String>) -> Vm {
    let weight = settings.weight.unwrap_or(default).get();
    Vm {
        name: name.to_owned(),
        kind: None,
        account,
        connected: false,
        gpu: None,
        gpus: Vec::new(),
        number: None,
        scheduling: Scheduling {
            latency_target: settings.latency_target,
            gang: settings.gang,
            ..Scheduling::of(weight, settings.cap)
        },
        entitled_ratio: None,
        admitted: None,
        usage: None,
        metadata: VmMetadata::of(&settings.metadata),
        limits: settings.memory,
        memory: None,
        attachment: None,
        waiting: None,
        held: None,
    }
}

impl VmUsage {
    fn add(&mut self, other: &Self) {
        self.compute_ns += other.compute_ns;
        self.copy_ns += other.copy_ns;
        self.copy_bytes = self.copy_bytes.zip(other.copy_bytes).map(|(a, b)| a + b);
        self.held_ns += other.held_ns;
        self.doorbells_trapped += other.doorbells_trapped;
        self.gate_moves += other.gate_moves;
    }
}

impl VmResidence {
    fn add(&mut self, other: &Self) {
        self.resident_bytes += other.resident_bytes;
        self.swapped_bytes += other.swapped_bytes;
        self.swapped_out_bytes += other.swapped_out_bytes;
        self.swapped_in_bytes += other.swapped_in_bytes;
        self.pinned_bytes += other.pinned_bytes;
        self.moved_bytes += other.moved_bytes;
        self.moved_ns += other.moved_ns;
    }
}

impl Vm {
    /// The same tenant on a further GPU.
    fn add(&mut self, other: Self) {
        // CAST: a host has some GPUs.
        let known = self.gpus.len() as f64;
        let both = self.entitled_ratio.zip(other.entitled_ratio);
        self.entitled_ratio = both.map(|(mean, next)| (mean * known + next) / (known + 1.0));
        self.gpus.extend(other.gpus);
        let both = self.admitted.zip(other.admitted);
        self.admitted = both.map(|(first, next)| first && next);
        if let (Some(usage), Some(next)) = (&mut self.usage, &other.usage) {
            usage.add(next);
        }
        if let (Some(memory), Some(next)) = (&mut self.memory, &other.memory) {
            memory.add(next);
        }
    }

    /// All tenants by name: those that are connected, and those of which something is set.
    pub(super) fn all(shared: &Shared) -> BTreeMap<String, Self> {
        let first = shared.gpus.first();
        let (default, set) = (first.host.default_weight(), first.snapshots.get());
        let settings = &set.settings;
        let named = |(name, settings): (&String, &Settings)| {
            let owner = set.owners.get(name).cloned();
            let vm = absent(name, settings, default, owner);
            (name.clone(), vm)
        };
        let mut vms: BTreeMap<String, Vm> = settings.iter().map(named).collect();
        for seen in shared.gpus.iter() {
            let last = seen.live.last();
            let rows = last.iter().flat_map(|view| &view.tenants);
            let entitled: BTreeMap<u32, f64> = rows.map(|row| (row.tenant, row.entitled)).collect();
            for tenant in &seen.snapshots.get().tenants {
                let entitled = entitled.get(&tenant.tenant.0).copied();
                let set = settings.get(&tenant.name);
                let limits = set.map(|set| set.memory).unwrap_or_default();
                let vm = connected(&seen.identity.gpu, tenant, entitled, limits);
                match vms.get_mut(&vm.name) {
                    Some(known) if known.number == vm.number => known.add(vm),
                    _ => drop(vms.insert(vm.name.clone(), vm)),
                }
            }
        }
        for declared in shared.fleet.declared() {
            if let Some(vm) = vms.get_mut(&declared.declared.name) {
                vm.attachment = Some(VmAttachment::of(&declared));
                vm.gpu = vm.gpu.take().or(declared.placed);
                vm.account = vm.account.take().or(declared.declared.account);
            }
        }
        for waiting in shared.fleet.waiting() {
            let one = || absent(&waiting.name, &Settings::default(), default, None);
            let vm = vms.entry(waiting.name.clone()).or_insert_with(one);
            vm.account = vm.account.take().or(waiting.account);
            vm.waiting = Some(VmWaiting {
                place: waiting.place,
                gpu_memory_bytes: waiting.gpu_memory_bytes,
                reason: waiting.reason,
            });
        }
        vms
    }

    /// A tenant that is listed, or has a name that belongs to an account.
    pub(super) fn named(shared: &Shared, name: &str) -> Result<Self, Problem> {
        let known = Self::all(shared).remove(name).or_else(|| {
            let first = &shared.gpus.first().host;
            let (owner, default) = (first.owner(name)?, first.default_weight());
            Some(absent(name, &Settings::default(), default, Some(owner)))
        });
        let mut vm = known.ok_or_else(|| Problem::no_vm(name))?;
        vm.held = vm.number.map(|number| {
            let held = shared.fleet.limits().of_tenant(TenantId(number));
            let named = |(name, amount): (&str, Amount)| (name.to_owned(), amount);
            held.into_iter().map(named).collect()
        });
        Ok(vm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_on_two_gpus_is_listed_once_with_sums() {
        let of = |gpu: &str, compute_ns, admitted, entitled| {
            let tenant = TenantSnapshot {
                compute_ns: Nanos(compute_ns),
                admitted,
                ..TenantSnapshot::of_name("train")
            };
            connected(gpu, &tenant, Some(entitled), MemoryLimits::default())
        };
        let mut vm = of("GPU-0", 5, true, 0.5);
        vm.add(of("GPU-1", 7, false, 1.0));
        assert_eq!(vm.gpus, ["GPU-0", "GPU-1"]);
        assert_eq!(vm.usage.map(|usage| usage.compute_ns), Some(12));
        assert_eq!((vm.entitled_ratio, vm.admitted), (Some(0.75), Some(false)));
        vm.add(of("GPU-2", 0, true, 0.0));
        assert_eq!((vm.gpus.len(), vm.entitled_ratio), (3, Some(0.5)));
    }
}
