//! The host's state: tenants, their gates, the policy and the ledger. One lock guards it, for
//! microseconds: the control loop takes it for a message, the accounting thread at the end of a
//! period. Nothing under it waits for a VM.

pub(crate) mod accounts;
#[cfg(test)]
pub(crate) mod bench;
pub(crate) mod debts;
mod departed;
pub(crate) mod described;
pub(crate) mod dma;
mod drain;
pub(crate) mod mailbox;
pub(crate) mod memory;
mod orders;
pub(crate) mod peer;
mod periods;
mod presence;
pub(crate) mod recorder;
#[cfg(test)]
pub(crate) mod recording_gpu;
pub(crate) mod settings;
pub(crate) mod snapshot;
pub(crate) mod timings;

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use turnstile_accounting::ledger::TenantTotals;
use turnstile_accounting::{AccountId, EngineId, Ledger, Moment, Nanos, TenantId};
use turnstile_policies::{Tuning, Weight, policy_by_name};
use turnstile_vmm::wire::{FrameWriter, ToVmm};
use uuid::Uuid;

use self::accounts::Accounts;
use self::described::Described;
use self::mailbox::Letter;
use self::memory::Memory;
use self::peer::Tenant;
use self::recorder::{LedgerConfig, LedgerHealth, LedgerStartError, Recorder};
use self::settings::Settings;
use self::timings::Timings;
use super::common::Common;
use super::error::{HostError, chain};
use super::journal::{Changed, Journal};
use super::limits::Limits;
use super::untracked::UntrackedLog;
use crate::tenant::requests::{Account, Effect};
use turnstile_gpu::{DoorbellChange, Gpu};
use turnstile_mediation::{COMPUTE, Mediation};

/// Tenants and policy of a host.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Name of the policy.
    pub policy: String,
    /// Its tuning.
    pub tuning: Tuning,
    /// Weight of a tenant that names none.
    pub weight: Weight,
    /// GPU memory of a VM that names none.
    pub gpu_memory_bytes: u64,
    /// Channels that a VM may have open.
    pub channels: u32,
    /// Tenants at a time.
    pub tenants_max: usize,
    /// Memory files of VMs have to have all of their pages.
    pub preallocated_memory: bool,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            policy: turnstile_policies::DEFAULT_POLICY.into(),
            tuning: Tuning::default(),
            weight: Weight::DEFAULT,
            gpu_memory_bytes: 64 << 20,
            channels: 64,
            tenants_max: 256,
            preallocated_memory: false,
        }
    }
}

/// A tenant that has left and is not settled yet.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) tenant: TenantId,
    pub(super) account: AccountId,
    left: Moment,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) mediation: Mediation,
    /// Where tenants' memory is, if it moves.
    pub(super) memory: Option<Memory>,
    /// The ledger from the engines' own log, where another meter is in use.
    pub(super) truth: Option<Ledger>,
    pub(super) tenants: BTreeMap<TenantId, Tenant>,
    /// What an operator set, by name.
    pub(super) settings: BTreeMap<String, Settings>,
    pub(super) described: Described,
    /// Which account each tenant belongs to.
    pub(super) accounts: Accounts,
    /// Processes without a tenant that were logged.
    untracked: UntrackedLog,
    /// Tenants that left, but may still have work on the engines: settled after [`SETTLE_AFTER`].
    pub(super) leaving: Vec<Leaving>,
    /// Tenants that left lately, as readers see them.
    departed: departed::Departed,
    /// Names of VMs that are being admitted.
    pub(super) starting: BTreeMap<String, TenantId>,
    pub(super) ledger_errors: u64,
    pub(super) timings: Timings,
    /// Debts of an earlier run that no tenant has come back for.
    debts: Vec<debts::KeptDebt>,
    /// Writes charges to the disk, if configured.
    recorder: Option<Recorder>,
}

/// Tenants, gates, policy and ledger of one GPU.
#[derive(Debug)]
pub struct Host {
    pub(super) gpu: Arc<dyn Gpu>,
    pub(super) config: HostConfig,
    /// What it has in common with the other GPUs of the daemon.
    pub(super) common: Common,
    /// Weight of a tenant that names none; may change while the daemon runs.
    default_weight: AtomicU32,
    state: Mutex<State>,
    /// Whether the GPU is there, and why not. An innermost lock.
    presence: Mutex<(presence::Presence, String)>,
    /// The accounting thread sleeps for longer than a period, as no tenant has work.
    idle: AtomicBool,
}

impl Host {
    /// A host without tenants, of a daemon with this GPU alone.
    ///
    /// # Errors
    /// If there is no policy of that name.
    pub fn new(gpu: Arc<dyn Gpu>, config: HostConfig) -> Result<Self, HostError> {
        let common = Common::new(1, config.tenants_max);
        Self::with(gpu, config, common)
    }

    /// A host without tenants, of a daemon with other GPUs.
    ///
    /// # Errors
    /// If there is no policy of that name.
    pub(crate) fn with(
        gpu: Arc<dyn Gpu>,
        config: HostConfig,
        common: Common,
    ) -> Result<Self, HostError> {
        let row = policy_by_name(&config.policy).ok_or_else(|| HostError::UnknownPolicy {
            name: config.policy.clone(),
        })?;
        let mediation = Mediation::for_gpu(row, &config.tuning, &gpu.capabilities());
        let state = State {
            mediation,
            memory: Memory::of(&*gpu),
            truth: None,
            tenants: BTreeMap::new(),
            settings: BTreeMap::new(),
            described: Described::default(),
            accounts: Accounts::default(),
            untracked: UntrackedLog::default(),
            leaving: Vec::new(),
            departed: departed::Departed::default(),
            starting: BTreeMap::new(),
            ledger_errors: 0,
            timings: Timings::default(),
            debts: Vec::new(),
            recorder: None,
        };
        Ok(Self {
            gpu,
            default_weight: config.weight.get().into(),
            config,
            common,
            state: Mutex::new(state),
            idle: AtomicBool::new(false),
            presence: Mutex::default(),
        })
    }

    /// This run of the daemon, as the ledger names it.
    pub const fn boot(&self) -> Uuid {
        self.common.boot
    }

    /// What happened lately.
    pub const fn journal(&self) -> &Arc<Journal> {
        &self.common.journal
    }

    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// What tenants, accounts and clients hold.
    pub const fn limits(&self) -> &Arc<Limits> {
        &self.common.limits
    }

    /// Name of the policy.
    pub fn policy(&self) -> &str {
        &self.config.policy
    }

    /// Weight of a tenant that names none.
    pub fn default_weight(&self) -> Weight {
        Weight::new(self.default_weight.load(Ordering::Relaxed)).unwrap_or(self.config.weight)
    }

    /// Sets the weight of tenants that name none and connect from now on.
    pub fn set_default_weight(&self, weight: Weight) {
        self.default_weight.store(weight.get(), Ordering::Relaxed);
    }

    /// The GPU.
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        &self.gpu
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock leaves at worst one tenant's numbers wrong; the others must go on.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A tenant may have work: ends a long sleep of the accounting thread.
    pub(super) fn end_idle(&self) {
        if self.idle.swap(false, Ordering::AcqRel) {
            self.gpu.wake();
        }
    }

    /// Whether the accounting thread may sleep for long, as [`Self::begins_idle`] found.
    pub(crate) fn is_idle(&self) -> bool {
        self.idle.load(Ordering::Acquire)
    }

    /// Whether a tenant of this name is here, or is being admitted.
    pub(super) fn has(&self, name: &str) -> bool {
        let state = self.lock();
        state.starting.contains_key(name) || state.find(name).is_some()
    }

    /// A tenant is gone.
    pub(super) fn leave(&self, tenant: TenantId) {
        let mut state = self.lock();
        let last = state.tenants.get(&tenant);
        let last = last.map(|entry| {
            let faults = self.gpu.report().faults.remove(&tenant);
            let (now, faults) = (self.gpu.now(), faults.unwrap_or_default());
            self.tenant_snapshot(&state, now, (tenant, entry), faults)
        });
        if let (Some(gone), Some(last)) = (state.tenants.remove(&tenant), last) {
            self.common
                .journal
                .vm("vm_left", &gone.name, &last.metadata);
            state.departed.add(self.gpu.now(), last);
            log::info!("{tenant}, {}, has left", gone.name);
            let _ = state.mediation.remove(tenant, self.gpu.now());
            if let Some(memory) = &mut state.memory {
                memory.remove(tenant);
            }
            self.common.registry().left(tenant);
            state.described.leave(tenant);
            state.timings.forget(tenant);
            state.accounts.book.leave(&gone.name);
            let (account, left) = (gone.account.0, self.gpu.now());
            state.leaving.push(Leaving {
                tenant,
                account,
                left,
            });
        }
        drop(state);
        self.gpu.destroy_context(tenant);
    }

    /// Hands a mailbox request to the VM's mailbox; false if the VM broke the rules.
    pub(super) fn mailbox(&self, tenant: TenantId, letter: Letter) -> bool {
        self.lock()
            .tenants
            .get_mut(&tenant)
            .and_then(Tenant::vm)
            .is_none_or(|(vm, _)| vm.mailbox.post(&self.common.limits, letter))
    }

    /// What a VM may read of its account.
    pub(super) fn account(&self, tenant: TenantId) -> Account {
        let state = self.lock();
        let (compute, copy) = split(&state.mediation.ledger().tenant(tenant).engines);
        let weight = state.mediation.weight(tenant).map_or(0, Weight::get);
        let set = state.tenants.get(&tenant);
        let memory_max_bytes = set.and_then(|entry| state.set_of(&entry.name).memory.max_bytes);
        Account {
            memory_max_bytes,
            weight,
            compute_ns: compute.used_ns.0,
            copy_ns: copy.used_ns.0,
        }
    }

    /// A mailbox request was served. The gate is made before the answer, so that a doorbell finds
    /// it.
    pub(super) fn mailbox_served(&self, tenant: TenantId, effect: Effect, answer: &ToVmm) {
        let mut state = self.lock();
        let stands = state.mediation.gates(tenant);
        let Some((vm, vmm)) = state.tenants.get_mut(&tenant).and_then(Tenant::vm) else {
            return;
        };
        match effect {
            Effect::None => {}
            Effect::Opened(channel) => {
                if let Some(made) = stands.and_then(|stands| vm.gates.add(channel, stands)) {
                    vmm.send_move(made);
                }
                let change = DoorbellChange::AnyOpen(vm.gates.any_open());
                self.gpu.doorbells_changed(tenant, change);
                self.end_idle();
            }
            Effect::Closed(channel) => {
                vm.gates.remove(channel);
                vmm.send(&ToVmm::ChannelClosed { channel });
            }
        }
        vmm.send(answer);
    }

    /// The VMM moved a gate as requested.
    pub(super) fn gate_done(&self, tenant: TenantId, channel: u32, seq: u64, trapped: u64) {
        let mut state = self.lock();
        let Some((vm, vmm)) = state.tenants.get_mut(&tenant).and_then(Tenant::vm) else {
            return;
        };
        if let Some(next) = vm.gates.done(channel, seq, trapped) {
            vmm.send_move(next);
        }
        let open = vm.gates.any_open();
        drop(state);
        self.gpu
            .doorbells_changed(tenant, DoorbellChange::AnyOpen(open));
        // A write may have passed before the gate closed, or have been delivered when it opened.
        self.gpu.doorbells_changed(tenant, DoorbellChange::Written);
    }

    /// A doorbell write of this tenant trapped: it passed a watched gate, or a closed gate kept it.
    pub(super) fn kicked(&self, tenant: TenantId) {
        self.gpu.doorbells_changed(tenant, DoorbellChange::Written);
        let running = self.gpu.engine_status(COMPUTE).running;
        let mut state = self.lock();
        let now = self.gpu.now();
        if running != Some(tenant) {
            state.timings.woke(tenant, now);
        }
        if let Some((vm, _)) = state.tenants.get_mut(&tenant).and_then(Tenant::vm) {
            vm.gates.woke();
            let change = DoorbellChange::AnyOpen(vm.gates.any_open());
            self.gpu.doorbells_changed(tenant, change);
        }
        if let Some(order) = state.mediation.woke(tenant, now) {
            state.carry_out(&*self.gpu, &[order]);
        }
        self.end_idle();
    }

    /// Begins to make what is charged durable.
    pub(super) fn open_ledger(&self, config: LedgerConfig) -> Result<(), LedgerStartError> {
        self.lock().recorder = Some(Recorder::start(config, self.common.boot, &*self.gpu)?);
        Ok(())
    }

    /// Writes the last window; false if the ledger lacks something of this run. No period may end
    /// after this.
    pub(super) fn close_ledger(&self) -> bool {
        let mut recorder = self.lock().recorder.take();
        if let Some(recorder) = recorder.as_mut().filter(|_| !self.is_there()) {
            recorder.ends_silent(self.gpu.now());
        }
        recorder.is_none_or(Recorder::close)
    }

    /// Why the durable ledger is not written now; none while it is, and without one.
    pub fn ledger_reason(&self) -> Option<String> {
        self.lock().recorder.as_ref().and_then(Recorder::reason)
    }

    /// How the durable ledger stands; none without one.
    pub fn ledger_health(&self) -> Option<LedgerHealth> {
        self.lock().recorder.as_ref().map(Recorder::health)
    }

    /// Whether a change can be noted in the ledger now; always without one.
    pub fn can_note(&self) -> bool {
        self.lock().recorder.as_ref().is_none_or(Recorder::can_note)
    }

    /// Notes a change that was made, in the journal (as an event of this kind) and in the ledger.
    /// `name` is the tenant's or the account's.
    pub fn note(&self, kind: &str, name: &str, changed: Changed) {
        if let Some(recorder) = &self.lock().recorder {
            recorder.note(name, &changed);
        }
        self.common.journal.add(kind, name, Some(changed));
    }
}

/// Sends a peer the reason for which it is refused, if its socket takes it.
pub(super) fn refuse(error: &dyn std::error::Error, stream: &UnixStream) {
    let (mut writer, text) = (FrameWriter::new(), chain(error));
    if writer.push(&ToVmm::Refused { text }, Vec::new()).is_ok() {
        let _ = writer.flush(stream);
    }
}

/// Time after which a tenant that left has no work on the engines: a GPU's kernel limit is below
/// it.
const SETTLE_AFTER: Nanos = Nanos::from_ms(60_000);

/// Compute and copy totals out of per-engine totals.
pub(super) fn split(engines: &[(EngineId, TenantTotals)]) -> (TenantTotals, TenantTotals) {
    let (mut compute, mut copy) = (TenantTotals::default(), TenantTotals::default());
    for (engine, totals) in engines {
        let sum = if *engine == COMPUTE {
            &mut compute
        } else {
            &mut copy
        };
        sum.used_ns += totals.used_ns;
        sum.begun += totals.begun;
    }
    (compute, copy)
}

/// The engines of a GPU, by index.
pub(super) fn engines(gpu: &dyn Gpu) -> impl Iterator<Item = EngineId> + use<> {
    let capability = gpu.capabilities();
    (0..capability.compute_engines + capability.copy_engines).map(EngineId)
}

#[cfg(test)]
mod calls_tests;
#[cfg(test)]
mod figures_tests;
#[cfg(test)]
pub(crate) mod ledger_tests;
#[cfg(test)]
mod loop_tests;
