//! The host's state: tenants, their gates, the policy and the ledger. One lock guards it, for
//! microseconds: the control loop takes it for a message, the accounting thread at the end of a
//! period. Nothing under it waits for a VM.

pub(crate) mod accounts;
mod config;
pub(crate) mod debts;
mod departed;
pub(crate) mod described;
pub(crate) mod dma;
mod engines;
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
pub(crate) mod state;
#[cfg(test)]
pub(crate) mod test_bench;
pub(crate) mod timings;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use turnstile_accounting::TenantId;
use turnstile_policies::{Weight, policy_by_name};
use turnstile_vmm::wire::ToVmm;
use uuid::Uuid;

use self::accounts::{Accounts, AccountsConfig, resolve_all, resolve_made};
pub use self::config::HostConfig;
use self::debts::KeptDebt;
pub(crate) use self::engines::{engines, split};
use self::mailbox::Letter;
use self::peer::Tenant;
pub(crate) use self::peer::refuse;
use self::presence::GpuPresence;
use self::settings::{Settings, SettingsError, check_policy};
use self::snapshot::{HostSnapshot, TenantSnapshot};
use self::state::{Leaving, State};
use super::common::Common;
use super::error::{HostError, UserError};
use super::journal::Journal;
use super::limits::Limits;
use crate::accounts::{AccountsError, Entry, Rule, View};
use crate::tenant::requests::{Account, Effect};
use turnstile_gpu::{DoorbellChange, Gpu};
use turnstile_mediation::{COMPUTE, Mediation};

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
    /// Whether the GPU is there, and why not.
    presence: GpuPresence,
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
        let state = State::new(mediation, &*gpu);
        Ok(Self {
            gpu,
            default_weight: config.weight.get().into(),
            config,
            common,
            state: Mutex::new(state),
            idle: AtomicBool::new(false),
            presence: GpuPresence::default(),
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
        self.lock().has(name)
    }

    /// Whether there is room for one more tenant, of this name.
    pub(super) fn room(&self, state: &State, name: &str) -> Result<(), HostError> {
        let max = self.config.tenants_max;
        if state.tenants.len() + state.starting.len() >= max {
            return Err(HostError::TooManyTenants { max });
        }
        if self.presence.is_removed() {
            return Err(HostError::Removed);
        }
        if state.has(name) {
            let name = name.to_owned();
            return Err(HostError::NameTaken { name });
        }
        Ok(())
    }

    /// A tenant is gone.
    pub(super) fn leave(&self, tenant: TenantId) {
        let mut state = self.lock();
        let last = state.tenants.get(&tenant);
        let last = last.map(|entry| {
            let faults = self.gpu.report().faults.remove(&tenant);
            let (now, faults) = (self.gpu.now(), faults.unwrap_or_default());
            let parts = (&*self.gpu, &self.common);
            TenantSnapshot::of(&state, parts, now, (tenant, entry), faults)
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
            state.records.timings.forget(tenant);
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
            state.records.timings.woke(tenant, now);
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

    /// Tenants, totals, conservation.
    pub fn snapshot(&self) -> HostSnapshot {
        HostSnapshot::of(&self.lock(), &*self.gpu, &self.common)
    }

    /// The same, unless the state cannot be had in `patience`.
    pub fn try_snapshot(&self, patience: Duration) -> Option<HostSnapshot> {
        let begin = Instant::now();
        loop {
            if let Some(state) = self.try_lock() {
                return Some(HostSnapshot::of(&state, &*self.gpu, &self.common));
            }
            if begin.elapsed() >= patience {
                return None;
            }
            thread::sleep(LOCK_INTERVAL);
        }
    }

    /// Why nothing is known of the GPU now; none while it answers, and while it is removed. Waits
    /// for no device.
    pub fn silence(&self) -> Option<String> {
        self.presence.silence()
    }

    /// Whether an operator has removed the GPU.
    pub fn is_removed(&self) -> bool {
        self.presence.is_removed()
    }

    /// The VM of this name, if it is connected.
    pub(crate) fn vm_named(&self, name: &str) -> Option<TenantId> {
        let mut vms = self.vms().into_iter();
        vms.find(|(_, of)| of == name).map(|(tenant, _)| tenant)
    }

    /// VMs that are connected, and their names.
    pub(crate) fn vms(&self) -> Vec<(TenantId, String)> {
        self.lock().vms()
    }

    /// Whether a tenant has work: queued, kept at a gate, or on an engine.
    pub(crate) fn has_work(&self, tenant: TenantId) -> bool {
        let runs = |engine| self.gpu.engine_status(engine).running == Some(tenant);
        self.lock().mediation.wants(tenant)
            || self.pending(tenant) > 0
            || engines(&*self.gpu).any(runs)
    }

    /// Ends a tenant: its VMM gets the reason, and the control loop then sees the connection end.
    pub(crate) fn end(&self, tenant: TenantId, reason: &str) {
        if let Some(entry) = self.lock().tenants.get_mut(&tenant) {
            entry.peer.end(reason);
        }
    }

    /// Takes accounts over when the daemon begins and no tenant is there.
    ///
    /// # Errors
    /// If a user of the configuration is not known on this host.
    pub(crate) fn begin_accounts(&self, config: AccountsConfig) -> Result<(), UserError> {
        let made = resolve_made(config.made);
        self.configure_accounts(resolve_all(config.entries)?, config.fronts);
        self.lock().accounts.book.restore(made, config.names);
        Ok(())
    }

    /// Takes the accounts of a configuration in place of those before. Tenants that are connected
    /// stay in their accounts; new terms apply at the next decision.
    pub fn configure_accounts(
        &self,
        entries: Vec<(String, Rule)>,
        fronts: BTreeMap<String, String>,
    ) {
        let state = &mut *self.lock();
        let (accounts, mediation) = (&mut state.accounts, &mut state.mediation);
        accounts.configure(mediation, entries, fronts);
    }

    /// All accounts by name: those of entries, and those of which a tenant has connected.
    pub fn accounts(&self) -> BTreeMap<String, View> {
        self.lock().accounts.book.views()
    }

    /// What a state file keeps of accounts: entries of the API, and names with their accounts.
    pub fn kept_accounts(&self) -> (BTreeMap<String, Entry>, BTreeMap<String, String>) {
        self.lock().accounts.kept()
    }

    /// The account that a tenant's name belongs to, if it belongs to one.
    pub fn owner(&self, name: &str) -> Option<String> {
        let state = self.lock();
        state.accounts.book.owner(name).map(ToString::to_string)
    }

    /// Frees a tenant's name, unless it is connected.
    pub fn forget_name(&self, name: &str) {
        let state = &mut *self.lock();
        state.accounts.forget_name(&mut state.mediation, name);
    }

    /// Whether the policy knows what an entry sets.
    ///
    /// # Errors
    /// If it knows no weights, or no caps.
    pub fn check_terms(&self, entry: &Entry) -> Result<(), SettingsError> {
        let weight = (entry.weight != Weight::DEFAULT).then_some(entry.weight);
        check_policy(&self.config.policy, weight, entry.cap)
    }

    /// Whether [`Self::set_account`] would take this.
    ///
    /// # Errors
    /// Why not.
    pub fn check_account(&self, name: &str, rule: Option<&Rule>) -> Result<(), AccountsError> {
        self.lock().accounts.book.check(name, rule)
    }

    /// Sets the entry of an account in place of the configuration's; its terms apply at the next
    /// decision, its matches to tenants that connect from now on. None removes the entry, and frees
    /// the names of the account.
    ///
    /// # Errors
    /// As [`Self::check_account`]; then nothing is changed.
    pub fn set_account(&self, name: &str, rule: Option<Rule>) -> Result<(), AccountsError> {
        let state = &mut *self.lock();
        state.accounts.set(&mut state.mediation, name, rule)
    }

    /// Debts for the next run of the daemon.
    pub fn debts(&self) -> Vec<KeptDebt> {
        let state = self.lock();
        let Accounts { debts, book, .. } = &state.accounts;
        debts.with_present(book, &state.mediation)
    }

    /// Everything that was set, by name.
    pub fn settings(&self) -> BTreeMap<String, Settings> {
        self.lock().settings.clone()
    }

    /// Whether these could be set of this tenant, connected or not; `None` removes its settings.
    ///
    /// # Errors
    /// Why not.
    pub fn check_settings(
        &self,
        name: &str,
        settings: Option<&Settings>,
    ) -> Result<(), SettingsError> {
        let (policy, gpu) = (&self.config.policy, self.gpu.capabilities());
        self.lock()
            .check_settings(name, settings, policy, gpu.memory_held)
    }

    /// Sets these of a tenant, from the next decision on, or when it connects. `None` removes its
    /// settings.
    ///
    /// # Errors
    /// As [`Self::check_settings`]; then nothing is changed.
    pub fn set_settings(
        &self,
        name: &str,
        settings: Option<Settings>,
    ) -> Result<(), SettingsError> {
        self.check_settings(name, settings.as_ref())?;
        self.lock().set_settings(name, settings)
    }
}

/// Interval of attempts to lock the state.
const LOCK_INTERVAL: Duration = Duration::from_micros(200);

#[cfg(test)]
mod calls_tests;
#[cfg(test)]
mod figures_tests;
#[cfg(test)]
pub(crate) mod ledger_tests;
#[cfg(test)]
mod loop_tests;
