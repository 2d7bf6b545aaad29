//! The host's state: tenants, their gates, the policy and the ledger. One lock guards it, for
//! microseconds: the control loop takes it for a message, the accounting thread at the end of a
//! period. Nothing under it waits for a VM.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use turnstile_abi::regs::status;
use turnstile_accounting::ledger::TenantTotals;
use turnstile_accounting::meter::ChannelReading;
use turnstile_accounting::{
    AccountId, DemandEvent, EngineId, Ledger, LedgerError, Moment, Nanos, SwitchEvent, TenantId,
    Usage,
};
use turnstile_policies::{Tuning, Weight, policy_by_name};
use turnstile_vmm::wire::ToVmm;
use uuid::Uuid;

use super::accounts::Accounts;
use super::error::HostError;
use super::journal::{Changed, Journal};
use super::mailbox::Letter;
use super::memory::Memory;
use super::peer::{Kind, Tenant};
use super::recorder::{LedgerConfig, LedgerHealth, LedgerStartError, Recorder};
use super::registry::Registry;
use super::settings::Settings;
use super::timings::Timings;
use super::untracked::Told;
use crate::tenant::gates::GateBook;
use crate::tenant::pages::StatusView;
use crate::tenant::requests::{Account, Effect};
use turnstile_gpu::{ChannelActivity, Gpu, LOOKS, Look, Suspend};
use turnstile_mediation::{Activity, COMPUTE, Control, GateOrder, HoldOrder, Mediation};

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
    /// Which account each tenant belongs to.
    pub(super) accounts: Accounts,
    /// Processes of tenants that are programs.
    pub(super) registry: Registry,
    /// Processes without a tenant that were logged.
    told: Told,
    /// Tenants that left, but may still have work on the engines: settled after [`SETTLE_AFTER`].
    pub(super) leaving: Vec<Leaving>,
    pub(super) next: u32,
    /// Names of VMs that are being admitted.
    pub(super) starting: BTreeMap<String, TenantId>,
    pub(super) ledger_errors: u64,
    pub(super) timings: Timings,
    /// Writes charges to the disk, if configured.
    recorder: Option<Recorder>,
}

/// Tenants, gates, policy and ledger of one GPU.
#[derive(Debug)]
pub struct Host {
    pub(super) gpu: Arc<dyn Gpu>,
    pub(super) config: HostConfig,
    /// This run of the daemon.
    boot: Uuid,
    /// Weight of a tenant that names none; may change while the daemon runs.
    default_weight: AtomicU32,
    state: Mutex<State>,
    journal: Arc<Journal>,
}

impl Host {
    /// A host without tenants.
    ///
    /// # Errors
    /// If there is no policy of that name.
    pub fn new(gpu: Arc<dyn Gpu>, config: HostConfig) -> Result<Self, HostError> {
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
            accounts: Accounts::default(),
            registry: Registry::default(),
            told: Told::default(),
            leaving: Vec::new(),
            next: 1,
            starting: BTreeMap::new(),
            ledger_errors: 0,
            timings: Timings::default(),
            recorder: None,
        };
        Ok(Self {
            gpu,
            default_weight: config.weight.get().into(),
            config,
            boot: Uuid::new_v4(),
            state: Mutex::new(state),
            journal: Arc::default(),
        })
    }

    /// This run of the daemon, as the ledger names it.
    pub const fn boot(&self) -> Uuid {
        self.boot
    }

    /// What happened lately.
    pub const fn journal(&self) -> &Arc<Journal> {
        &self.journal
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

    /// A tenant is gone.
    pub(super) fn leave(&self, tenant: TenantId) {
        let mut state = self.lock();
        if let Some(gone) = state.tenants.remove(&tenant) {
            self.journal.add("vm_left", &gone.name, None);
            let _ = state.mediation.remove(tenant, self.gpu.now());
            if let Some(memory) = &mut state.memory {
                memory.remove(tenant);
            }
            state.registry.left(tenant);
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
            .is_none_or(|(vm, _)| vm.mailbox.post(letter))
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
                self.gpu.set_unwatched(tenant, vm.gates.any_open());
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
        self.gpu.set_unwatched(tenant, open);
        // A write may have passed before the gate closed, or have been delivered when it opened.
        self.gpu.ring(tenant);
    }

    /// A doorbell write of this tenant trapped: it passed a watched gate, or a closed gate kept it.
    pub(super) fn kicked(&self, tenant: TenantId) {
        self.gpu.ring(tenant);
        let running = self.gpu.engine_status(COMPUTE).running;
        let mut state = self.lock();
        let now = self.gpu.now();
        if running != Some(tenant) {
            state.timings.woke(tenant, now);
        }
        if let Some((vm, _)) = state.tenants.get_mut(&tenant).and_then(Tenant::vm) {
            vm.gates.woke();
            self.gpu.set_unwatched(tenant, vm.gates.any_open());
        }
        if let Some(order) = state.mediation.woke(tenant, now) {
            state.carry_out(&*self.gpu, &[order]);
        }
    }

    /// Admits a waiting tenant if the compute engine has nothing to do. The caller has checked that
    /// no tenant runs. No work may be pending of a tenant that may run, and no gate with kept
    /// doorbells may be opening. An engine that is switching is not idle. Returns whether a tenant
    /// was admitted.
    pub(super) fn ran_dry(&self) -> bool {
        let mut state = self.lock();
        let state = &mut *state;
        if state
            .tenants
            .values()
            .filter_map(Tenant::gates)
            .any(GateBook::any_opening)
        {
            return false;
        }
        for tenant in state.tenants.keys() {
            if state.memory.as_ref().is_some_and(|m| m.waits(*tenant)) {
                continue;
            }
            if self.pending(*tenant) > 0 {
                if self.drains() || state.mediation.admitted(*tenant) {
                    return false;
                }
                state.mediation.queued(*tenant);
            }
        }
        if !state.mediation.anyone_waits() {
            return false;
        }
        let now = self.gpu.now();
        let Some(order) = state.mediation.ran_dry(now) else {
            return false;
        };
        state.carry_out(&*self.gpu, &[order]);
        true
    }

    /// Takes what was logged of the engines and of tenants' demand. The policy does not get the
    /// switches where a meter polls.
    pub(super) fn observe(&self, switches: &[SwitchEvent], demand: &[DemandEvent]) {
        if !(switches.is_empty() && demand.is_empty()) {
            self.lock().mediation.observe(switches, demand);
        }
    }

    /// Decides anew from what was observed, and carries it out.
    pub(super) fn decide(&self) {
        let mut state = self.lock();
        let orders = state.mediation.decide(self.gpu.now());
        state.carry_out(&*self.gpu, &orders);
    }

    /// Polls an engine that divides its time by itself, and carries out the orders of the rule.
    /// Returns when the next poll is due.
    pub(super) fn look(&self, look: &mut Look, channels: &mut Vec<ChannelActivity>) -> Moment {
        let mut state = self.lock();
        let looked = state.mediation.look(look);
        if log::log_enabled!(target: LOOKS, log::Level::Trace) {
            for seen in &look.seen {
                let owed = state.mediation.owed(seen.tenant);
                let admitted = state.mediation.admitted(seen.tenant);
                let (at, tenant) = (look.at.0, seen.tenant.0);
                let work = u8::from(seen.has_work);
                log::trace!(target: LOOKS, "state {at} {tenant} {work} {admitted} {owed:?}");
            }
            for window in &look.windows {
                let to = window.usage.window.to().0;
                for reading in &window.readings {
                    let tenant = reading.tenant.0;
                    let (worked, resident) = (reading.worked, reading.resident);
                    log::trace!(target: LOOKS, "window {to} {tenant} {worked:?} {resident:?}");
                }
            }
        }
        state.carry_out(&*self.gpu, &looked.gates);
        for (tenant, slice) in looked.slices {
            self.gpu.set_slice(tenant, slice);
        }
        drop(state);
        look.exact = looked.exact;
        for window in look.windows.drain(..) {
            self.period_end(None, window.usage, None, channels);
        }
        looked.next
    }

    /// Whether the policy takes what the engines do, and not only the usage of periods.
    pub(super) fn schedules_by_events(&self) -> bool {
        policy_by_name(&self.config.policy).is_some_and(|row| row.every_engine)
            || self.gpu.capabilities().demand
    }

    /// Whether any tenant has work.
    pub(super) fn any_wants(&self) -> bool {
        self.lock().mediation.any_wants()
    }

    /// Whether held tenants have to be polled within a period: the GPU gives no notice of them.
    pub(super) fn looks_at_held(&self) -> bool {
        let state = self.lock();
        state.mediation.control() == Control::Gates && state.mediation.held().next().is_some()
    }

    /// Whether there is no tenant.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().tenants.is_empty()
    }

    /// When the next decision is due, if before the end of the period.
    pub(super) fn decide_at(&self) -> Option<Moment> {
        self.lock().mediation.decide_at()
    }

    /// Whether a tenant is held.
    pub(super) fn anyone_held(&self) -> bool {
        self.lock().mediation.held().next().is_some()
    }

    /// Whether memory is moving or its turns are under way, so that it needs a step within a
    /// period.
    pub(super) fn memory_is_busy(&self) -> bool {
        self.lock().memory.as_ref().is_some_and(Memory::is_busy)
    }

    /// Runs a step of the memory manager.
    pub(super) fn memory_tick(&self) {
        let mut state = self.lock();
        let state = &mut *state;
        if let Some(memory) = &mut state.memory {
            memory.step(&mut state.mediation, &*self.gpu, self.gpu.now());
        }
    }

    /// Whether the GPU runs the pending work of a held tenant.
    fn drains(&self) -> bool {
        self.gpu.capabilities().suspend == Suspend::Drains
    }

    /// Commands of a tenant that were announced and have not finished.
    fn pending(&self, tenant: TenantId) -> u64 {
        let mut channels = Vec::new();
        self.gpu.activity(tenant, &mut channels);
        channels
            .iter()
            .map(|channel| u64::from(channel.pending))
            .sum()
    }

    /// A period ended: charges it, decides, moves gates, writes status pages.
    pub(super) fn period_end(
        &self,
        extrapolated: Option<Usage>,
        mut observed: Usage,
        truth: Option<Usage>,
        channels: &mut Vec<ChannelActivity>,
    ) {
        let mut state = self.lock();
        let state = &mut *state;
        let end = observed.window.to();
        observed.copied = self.gpu.take_copied();
        if let Some(usage) = truth {
            let kept = 1;
            let ledger = state
                .truth
                .get_or_insert_with(|| Ledger::new(engines(&*self.gpu), kept));
            if let Err(error) = ledger.append(usage) {
                count(&mut state.ledger_errors, error);
            }
        }
        let activity: Vec<Activity> = state
            .tenants
            .keys()
            .map(|tenant| {
                channels.clear();
                self.gpu.activity(*tenant, channels);
                Activity {
                    tenant: *tenant,
                    pending: channels
                        .iter()
                        .map(|channel| u64::from(channel.pending))
                        .sum(),
                    last_active: channels.iter().map(|channel| channel.last_active).max(),
                }
            })
            .collect();
        if let Some(memory) = &mut state.memory {
            memory.period(&mut state.mediation, &observed);
        }
        let recording = state.recorder.is_some();
        let charged = recording.then(|| (extrapolated.clone(), observed.clone()));
        let orders = match state
            .mediation
            .period_end(extrapolated, observed, &activity)
        {
            Ok(orders) => {
                let orders = orders.to_vec();
                if let (Some(recorder), Some((extrapolated, observed))) =
                    (&mut state.recorder, &charged)
                {
                    let usages: Vec<&Usage> = extrapolated.iter().chain([observed]).collect();
                    let (tenants, starting) = (&state.tenants, &state.starting);
                    let (mediation, book) = (&state.mediation, &state.accounts.book);
                    recorder.period(&*self.gpu, mediation, tenants, starting, book, &usages);
                }
                orders
            }
            Err(error) => {
                count(&mut state.ledger_errors, error);
                Vec::new()
            }
        };
        // Opening orders first: the engine switches to an opened tenant as soon as another stops.
        let closes = |order: &GateOrder| order.state == turnstile_vmm::gate::GateState::Closed;
        let (close, mut orders): (Vec<GateOrder>, Vec<GateOrder>) =
            orders.into_iter().partition(closes);
        orders.extend(close);
        state.carry_out(&*self.gpu, &orders);
        if let Some(memory) = &mut state.memory {
            memory.wishes(&state.mediation, state.tenants.keys(), end);
            memory.step(&mut state.mediation, &*self.gpu, self.gpu.now());
        }
        state.write_status(&*self.gpu, end);
        for tenant in state.tenants.values_mut() {
            tenant.peer.flush();
        }
        state.told.look(end, || self.gpu.untracked());
        let due = |gone: &mut Leaving| end.since(gone.left) >= SETTLE_AFTER;
        let settled: Vec<Leaving> = state.leaving.extract_if(.., due).collect();
        for Leaving {
            tenant, account, ..
        } in settled
        {
            state.settle(tenant, account);
        }
    }

    /// Begins to make what is charged durable.
    pub(super) fn open_ledger(&self, config: LedgerConfig) -> Result<(), LedgerStartError> {
        self.lock().recorder = Some(Recorder::start(config, self.boot, &*self.gpu)?);
        Ok(())
    }

    /// Writes the last window. No period may end after this.
    pub(super) fn close_ledger(&self) {
        let recorder = self.lock().recorder.take();
        drop(recorder);
    }

    /// How the durable ledger stands; none without one.
    pub fn ledger_health(&self) -> Option<LedgerHealth> {
        self.lock().recorder.as_ref().map(Recorder::health)
    }

    /// Whether a change can be noted in the ledger now; always without one.
    pub(crate) fn can_note(&self) -> bool {
        self.lock().recorder.as_ref().is_none_or(Recorder::can_note)
    }

    /// Notes a change that was made, in the journal (as an event of this kind) and in the ledger.
    /// `name` is the tenant's or the account's.
    pub(crate) fn note(&self, kind: &str, name: &str, changed: Changed) {
        if let Some(recorder) = &self.lock().recorder {
            recorder.note(name, &changed);
        }
        self.journal.add(kind, name, Some(changed));
    }

    /// Reads put and get of all channels.
    pub(super) fn read_channels(&self) -> Vec<ChannelReading> {
        let (mut readings, mut channels) = (Vec::new(), Vec::new());
        for tenant in self.lock().tenants.keys() {
            channels.clear();
            self.gpu.activity(*tenant, &mut channels);
            readings.extend(channels.iter().map(|channel| channel.reading(*tenant)));
        }
        readings
    }

    /// Whether the GPU may leave commands of a tenant pending: the tenant is held, or its memory
    /// moves.
    pub(super) fn is_suspended(&self, tenant: TenantId) -> bool {
        let state = self.lock();
        !self.drains() && (state.memory.is_some() || !state.mediation.admitted(tenant))
    }

    /// Channels in use and open, for the lengths of poll phases.
    pub(super) fn channel_counts(&self) -> (u32, u32) {
        let state = self.lock();
        let mut counts = (0, 0);
        let mut channels = Vec::new();
        for (tenant, entry) in &state.tenants {
            channels.clear();
            self.gpu.activity(*tenant, &mut channels);
            // CAST: at most 1,024 channels a tenant
            counts.0 += channels
                .iter()
                .filter(|channel| channel.last_active.0 > 0)
                .count() as u32;
            counts.1 += entry.gates().map_or(0, |gates| gates.channels().count()) as u32;
        }
        counts
    }

    /// Sets a tenant's weight; it applies at the next decision.
    ///
    /// # Errors
    /// If there is no such tenant.
    pub fn set_weight(
        &self,
        tenant: TenantId,
        weight: Weight,
    ) -> Result<(), turnstile_policies::PolicyError> {
        let mut state = self.lock();
        if let Some(memory) = &mut state.memory {
            memory.set_weight(tenant, weight);
        }
        state.mediation.set_weight(tenant, weight)
    }
}

/// Time after which a tenant that left has no work on the engines: a GPU's kernel limit is below
/// it.
const SETTLE_AFTER: Nanos = Nanos::from_ms(60_000);

fn count(errors: &mut u64, error: LedgerError) {
    // Once a period at most, and only if law 1 is broken: worth every line.
    *errors += 1;
    log::error!("Ledger: {error}");
}

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
        sum.fault_ns += totals.fault_ns;
        sum.begun += totals.begun;
    }
    (compute, copy)
}

/// The engines of a GPU, by index.
pub(super) fn engines(gpu: &dyn Gpu) -> impl Iterator<Item = EngineId> + use<> {
    let capability = gpu.capabilities();
    (0..capability.compute_engines + capability.copy_engines).map(EngineId)
}

impl State {
    /// Moves VMs' gates, then suspends or resumes queued work.
    pub(super) fn carry_out(&mut self, gpu: &dyn Gpu, orders: &[GateOrder]) {
        let orders = orders.iter().filter_map(|order| self.gates(gpu, *order));
        let mut orders: Vec<(TenantId, bool)> = orders.collect();
        if self.mediation.control() == Control::Holds {
            // Gates are watched or open: what is queued is the dispatcher's.
            orders.clear();
        }
        for HoldOrder {
            tenant,
            engine,
            held,
        } in self.mediation.take_holds()
        {
            gpu.hold(tenant, engine, held);
        }
        if !orders.is_empty() {
            gpu.carry_out(&orders);
        }
    }

    /// Moves a VM's gates; a program has channels of its own only. Returns whether the tenant is to
    /// be suspended or resumed, if either.
    fn gates(
        &mut self,
        gpu: &dyn Gpu,
        GateOrder { tenant, state }: GateOrder,
    ) -> Option<(TenantId, bool)> {
        let entry = self.tenants.get_mut(&tenant)?;
        log::trace!("{tenant}: {state:?}");
        if let Some((vm, vmm)) = entry.vm() {
            let channels: Vec<u32> = vm.gates.channels().collect();
            for channel in channels {
                if let Some(request) = vm.gates.set(channel, state) {
                    vmm.send_move(request);
                }
            }
            gpu.set_unwatched(tenant, vm.gates.any_open());
        }
        let suspended = state == turnstile_vmm::gate::GateState::Closed;
        // A tenant is not resumed before all of its memory is on the card.
        let lacks = |memory: &Memory| !memory.may_run(tenant);
        let stays = !suspended && self.memory.as_ref().is_some_and(lacks);
        (!stays).then_some((tenant, suspended))
    }

    fn write_status(&mut self, gpu: &dyn Gpu, at: Moment) {
        use status::engine_state::{IDLE, OTHER, OWN};
        let running: Vec<Option<TenantId>> = engines(gpu)
            .map(|engine| gpu.engine_status(engine).running)
            .collect();
        let ledger = self.mediation.ledger();
        for (tenant, entry) in &self.tenants {
            let Kind::Vm(vm) = &entry.kind else { continue };
            let totals = ledger.tenant(*tenant);
            let (compute, copy) = split(&totals.engines);
            let mut view = StatusView {
                compute_ns: compute.used_ns.0,
                copy_ns: copy.used_ns.0,
                weight: self.mediation.weight(*tenant).map_or(0, Weight::get),
                admitted: self.mediation.admitted(*tenant),
                held_ns: (totals.held_ns + self.mediation.held_now(*tenant, at)).0,
                updated_at_ns: at.0,
                ..StatusView::default()
            };
            for (shown, running) in view.engines.iter_mut().zip(&running) {
                *shown = match running {
                    None => IDLE,
                    Some(own) if own == tenant => OWN,
                    Some(_) => OTHER,
                };
            }
            vm.status.write(&view);
        }
    }
}
