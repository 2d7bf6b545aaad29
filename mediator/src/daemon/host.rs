//! The host's state: tenants, their gates, the policy and the ledger. One lock, held for microseconds: by the control
//! loop for a message, by the accounting thread at the end of a period. Nothing under it waits for a VM.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use turnstile_abi::regs::{features, status};
use turnstile_abi::{CHUNK_BYTES, pci};
use turnstile_accounting::ledger::TenantTotals;
use turnstile_accounting::{EngineId, Ledger, LedgerError, Moment, Nanos, TenantId, Usage};
use turnstile_policies::{TenantParams, Tuning, Weight, policy_by_name};
use turnstile_vmm::wire::{FrameWriter, PROTOCOL, ToDaemon, ToVmm};

use super::error::{HostError, chain};
use super::mailbox::{Letter, Mailbox};
use super::memory::Memory;
use super::peer::{Kind, Peer, Tenant, Vm};
use super::recorder::{LedgerConfig, LedgerHealth, LedgerStartError, Recorder};
use super::registry::Registry;
use super::snapshot::{HostSnapshot, TenantKind, TenantSnapshot};
use super::untracked::Told;
use crate::gpu::{ChannelActivity, Gpu, Suspend, TenantResources};
use crate::mediation::{Activity, COMPUTE, GateOrder, Mediation};
use crate::tenant::gates::GateBook;
use crate::tenant::guest_memory::{self};
use crate::tenant::interrupts::EventfdInterrupts;
use crate::tenant::pages::{StatusPage, StatusView, doorbell_pages};
use crate::tenant::requests::{Account, Effect};

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

#[derive(Debug)]
pub(super) struct State {
    mediation: Mediation,
    /// Where tenants' memory is, if it moves.
    pub(super) memory: Option<Memory>,
    /// What the engines' own log says, where the meter in use is another.
    truth: Option<Ledger>,
    pub(super) tenants: BTreeMap<TenantId, Tenant>,
    /// Processes of those that are programs.
    pub(super) registry: Registry,
    /// Processes that are nobody's and were spoken of.
    told: Told,
    /// Gone, but perhaps not yet from the engines: settled a period after.
    leaving: Vec<(TenantId, Moment)>,
    pub(super) next: u32,
    /// Names of VMs that are being taken in.
    starting: BTreeSet<String>,
    ledger_errors: u64,
    /// Makes what is charged durable, if that was asked for.
    recorder: Option<Recorder>,
}

/// Tenants, gates, policy and ledger of one GPU.
#[derive(Debug)]
pub struct Host {
    gpu: Arc<dyn Gpu>,
    config: HostConfig,
    state: Mutex<State>,
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
        let mediation = Mediation::new((row.make)(&config.tuning), engines(&*gpu));
        let state = State {
            mediation,
            memory: Memory::of(&*gpu),
            truth: None,
            tenants: BTreeMap::new(),
            registry: Registry::default(),
            told: Told::default(),
            leaving: Vec::new(),
            next: 1,
            starting: BTreeSet::new(),
            ledger_errors: 0,
            recorder: None,
        };
        Ok(Self {
            gpu,
            config,
            state: Mutex::new(state),
        })
    }

    /// The GPU.
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        &self.gpu
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock leaves at worst one tenant's numbers behind; the others must go on.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a VM in: checks its Hello, makes its context and pages, answers Welcome. Returns its number and the kick
    /// that its VMM signals.
    pub(super) fn admit(
        self: &Arc<Self>,
        hello: ToDaemon,
        mut fds: Vec<OwnedFd>,
        stream: UnixStream,
    ) -> Result<(TenantId, File), HostError> {
        let mut writer = FrameWriter::new();
        let taken = self.take_in(hello, &mut fds, &stream, &mut writer);
        if let Err(error) = &taken {
            let text = chain(error);
            if writer.push(&ToVmm::Refused { text }, Vec::new()).is_ok() {
                let _ = writer.flush(&stream);
            }
        }
        taken
    }

    /// Checks what every tenant says first; returns its weight.
    pub(super) fn permitted(
        &self,
        protocol: u32,
        name: &str,
        weight: Option<u32>,
    ) -> Result<Weight, HostError> {
        if protocol != PROTOCOL {
            return Err(HostError::Protocol { theirs: protocol });
        }
        let permitted = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(permitted) {
            let name = name.chars().take(64).collect();
            return Err(HostError::BadName { name });
        }
        Ok(weight.map_or(Ok(self.config.weight), Weight::new)?)
    }

    /// Whether there is room for one more tenant, of this name.
    pub(super) fn room(&self, state: &State, name: &str) -> Result<(), HostError> {
        if state.tenants.len() + state.starting.len() >= self.config.tenants_max {
            return Err(HostError::TooManyTenants {
                max: self.config.tenants_max,
            });
        }
        let taken = state.tenants.values().any(|tenant| tenant.name == name);
        if taken || state.starting.contains(name) {
            let name = name.to_owned();
            return Err(HostError::NameTaken { name });
        }
        Ok(())
    }

    fn take_in(
        self: &Arc<Self>,
        hello: ToDaemon,
        fds: &mut Vec<OwnedFd>,
        stream: &UnixStream,
        writer: &mut FrameWriter,
    ) -> Result<(TenantId, File), HostError> {
        let ToDaemon::Hello {
            protocol,
            name,
            weight,
            gpu_memory_bytes,
            regions,
        } = hello
        else {
            return Err(HostError::NoHello);
        };
        let weight = self.permitted(protocol, &name, weight)?;
        let memory_bytes = gpu_memory_bytes.unwrap_or(self.config.gpu_memory_bytes);
        let max = self.gpu.capabilities().memory_bytes;
        if memory_bytes == 0 || memory_bytes > max || !memory_bytes.is_multiple_of(CHUNK_BYTES) {
            return Err(HostError::GpuMemory {
                bytes: memory_bytes,
                max,
            });
        }
        let vectors = 1..=usize::from(pci::VECTORS);
        if !fds
            .len()
            .checked_sub(1)
            .is_some_and(|count| vectors.contains(&count))
        {
            return Err(HostError::Descriptors { got: fds.len() });
        }
        let interrupts = Arc::new(EventfdInterrupts::new(fds.split_off(1))?);
        // PANIC: none; one descriptor is left, or the count was refused
        let memory_fd = fds.pop().ok_or(HostError::Descriptors { got: 0 })?;
        let guest = Arc::new(guest_memory::map(memory_fd, &regions)?);
        let status = StatusPage::new()?;
        let kick = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|errno| HostError::Host(errno.into()))?;
        let kick = File::from(kick);
        let duplicate = |file: &File| file.try_clone().map(OwnedFd::from).map_err(HostError::Host);

        let tenant = {
            let mut state = self.lock();
            self.room(&state, &name)?;
            state.starting.insert(name.clone());
            state.number()
        };
        // A GPU may take long over it: the others go on meanwhile.
        let _starting = Starting {
            host: self.as_ref(),
            name: name.clone(),
        };
        let mailbox = Mailbox::start(self, tenant, guest.clone()).map_err(HostError::Host)?;
        let own = self.gpu.doorbells(tenant, self.config.channels);
        let doorbells = match own.map_err(HostError::Gpu)? {
            Some(own) => own,
            None => Arc::new(doorbell_pages(self.config.channels)?),
        };
        let resources = TenantResources {
            guest,
            doorbells: doorbells.clone(),
            interrupts,
            memory_bytes,
            channels: self.config.channels,
        };
        let aperture = self
            .gpu
            .create_context(tenant, resources)
            .map_err(HostError::Gpu)?;
        let capability = self.gpu.capabilities();
        let mut feature_bits = features::PTX | features::STATUS_PAGE;
        if capability.aperture {
            feature_bits |= features::APERTURE;
        }
        if capability.software {
            feature_bits |= features::SOFTWARE;
        }
        let welcome = ToVmm::Welcome {
            tenant: tenant.0,
            channels: self.config.channels,
            gpu_memory_bytes: memory_bytes,
            features: feature_bits,
            doorbells_offset: doorbells.offset(),
        };
        let answered = (|| {
            let pages = doorbells.file().ok_or(io::ErrorKind::Unsupported);
            let fds = vec![
                duplicate(pages.map_err(|kind| HostError::Host(kind.into()))?)?,
                duplicate(status.file())?,
                OwnedFd::from(aperture),
                duplicate(&kick)?,
            ];
            writer.push(&welcome, fds)?;
            writer.flush(stream)?;
            stream.try_clone().map_err(HostError::Host)
        })();
        let stream = match answered {
            Ok(stream) => stream,
            Err(error) => {
                self.gpu.destroy_context(tenant);
                return Err(error);
            }
        };
        let writer = std::mem::take(writer);
        let vm = Vm {
            mailbox,
            gates: GateBook::default(),
            status,
        };
        let peer = Peer { stream, writer };
        let mut state = self.lock();
        if let Some(memory) = &mut state.memory {
            memory.add(tenant, weight, memory_bytes);
        }
        state.insert(tenant, name, weight, peer, Kind::Vm(Box::new(vm)));
        Ok((tenant, kick))
    }

    /// A tenant is gone.
    pub(super) fn leave(&self, tenant: TenantId) {
        let mut state = self.lock();
        if state.tenants.remove(&tenant).is_some() {
            let _ = state.mediation.remove(tenant);
            if let Some(memory) = &mut state.memory {
                memory.remove(tenant);
            }
            state.registry.left(tenant);
            state.leaving.push((tenant, self.gpu.now()));
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

    /// What a VM may be told of its account.
    pub(super) fn account(&self, tenant: TenantId) -> Account {
        let state = self.lock();
        let (compute, copy) = split(&state.mediation.ledger().tenant(tenant).engines);
        let weight = state.mediation.weight(tenant).map_or(0, Weight::get);
        Account {
            weight,
            compute_ns: compute.used_ns.0,
            copy_ns: copy.used_ns.0,
        }
    }

    /// A mailbox request was served: the gate first, then the answer, so that a doorbell finds its gate.
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

    /// The VMM moved a gate as asked.
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
        // A write may have slipped through before the gate closed, or have been delivered when it opened.
        self.gpu.ring(tenant);
    }

    /// A doorbell write of this tenant trapped at a watched gate (and went through), or was kept at a closed one.
    pub(super) fn kicked(&self, tenant: TenantId) {
        self.gpu.ring(tenant);
        let mut state = self.lock();
        let now = self.gpu.now();
        if let Some(order) = state.mediation.woke(tenant, now) {
            state.carry_out(&*self.gpu, order);
        }
    }

    /// Lets a waiting tenant in, if the compute engine has nothing to do: nobody runs (the caller has seen that), nothing
    /// is pending that may run, and no gate is opening behind which something was kept. An engine that is being
    /// switched has not run dry.
    pub(super) fn ran_dry(&self) {
        let mut state = self.lock();
        let state = &mut *state;
        if state
            .tenants
            .values()
            .filter_map(Tenant::gates)
            .any(GateBook::any_opening)
        {
            return;
        }
        for tenant in state.tenants.keys() {
            if state.memory.as_ref().is_some_and(|m| m.waits(*tenant)) {
                continue;
            }
            if self.pending(*tenant) > 0 {
                if self.drains() || state.mediation.admitted(*tenant) {
                    return;
                }
                state.mediation.queued(*tenant);
            }
        }
        if !state.mediation.anyone_waits() {
            return;
        }
        let now = self.gpu.now();
        if let Some(order) = state.mediation.ran_dry(now) {
            state.carry_out(&*self.gpu, order);
        }
    }

    /// Whether there is no tenant.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().tenants.is_empty()
    }

    /// When the next decision is due, if before the end of the period.
    pub(super) fn decide_at(&self) -> Option<Moment> {
        self.lock().mediation.decide_at()
    }

    /// Whether some tenant is held back.
    pub(super) fn anyone_held(&self) -> bool {
        self.lock().mediation.held().next().is_some()
    }

    /// Whether memory is on its way or its turns are being taken, so that it has to be looked after within a period.
    pub(super) fn memory_is_busy(&self) -> bool {
        self.lock().memory.as_ref().is_some_and(Memory::is_busy)
    }

    /// Looks after memory.
    pub(super) fn memory_tick(&self) {
        let mut state = self.lock();
        let state = &mut *state;
        if let Some(memory) = &mut state.memory {
            memory.step(&mut state.mediation, &*self.gpu, self.gpu.now());
        }
    }

    /// Whether the GPU runs what is pending of a tenant that is held back.
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
        observed: Usage,
        truth: Option<Usage>,
        channels: &mut Vec<ChannelActivity>,
    ) {
        let mut state = self.lock();
        let state = &mut *state;
        let end = observed.window.to();
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
                    recorder.period(&*self.gpu, &state.mediation, &state.tenants, &usages);
                }
                orders
            }
            Err(error) => {
                count(&mut state.ledger_errors, error);
                Vec::new()
            }
        };
        // Who may run first: the engine goes over to him as soon as another stops.
        let closes = |order: &&GateOrder| order.state == turnstile_vmm::gate::GateState::Closed;
        let (close, open): (Vec<&GateOrder>, Vec<&GateOrder>) = orders.iter().partition(closes);
        for order in open.into_iter().chain(close) {
            state.carry_out(&*self.gpu, *order);
        }
        if let Some(memory) = &mut state.memory {
            memory.wishes(&state.mediation, state.tenants.keys(), end);
            memory.step(&mut state.mediation, &*self.gpu, self.gpu.now());
        }
        state.write_status(&*self.gpu, end);
        for tenant in state.tenants.values_mut() {
            tenant.peer.flush();
        }
        state.told.look(end, || self.gpu.untracked());
        let mediation = &mut state.mediation;
        state.leaving.retain(|(tenant, left)| {
            let wait = end.since(*left) < SETTLE_AFTER;
            if !wait {
                mediation.settle(*tenant);
            }
            wait
        });
    }

    /// Begins to make what is charged durable.
    pub(super) fn open_ledger(&self, config: LedgerConfig) -> Result<(), LedgerStartError> {
        self.lock().recorder = Some(Recorder::start(config, &*self.gpu)?);
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

    /// Whether a tenant was let in at some time of the period under way.
    pub(super) fn was_admitted(&self, tenant: TenantId) -> bool {
        self.lock().mediation.was_admitted(tenant)
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

    /// Tenants, totals, conservation.
    pub fn snapshot(&self) -> HostSnapshot {
        let state = self.lock();
        let charged = state.mediation.ledger();
        let truth = state.truth.as_ref().unwrap_or(charged);
        let total = truth.snapshot();
        let at = total.window.map_or(Moment(0), |window| window.to());
        let wall = total.window.map_or(0, |window| window.length().0);
        let tenants = state
            .tenants
            .iter()
            .map(|(tenant, entry)| {
                let (compute, copy) = split(&charged.tenant(*tenant).engines);
                let (engine, _) = split(&truth.tenant(*tenant).engines);
                TenantSnapshot {
                    tenant: *tenant,
                    name: entry.name.clone(),
                    weight: state.mediation.weight(*tenant).map_or(0, Weight::get),
                    admitted: state.mediation.admitted(*tenant),
                    compute_ns: compute.used_ns,
                    copy_ns: copy.used_ns,
                    engine_ns: engine.used_ns,
                    held_ns: charged.tenant(*tenant).held_ns
                        + state.mediation.held_now(*tenant, at),
                    doorbells_trapped: entry.gates().map_or(0, GateBook::trapped),
                    gate_moves: entry.gates().map_or(0, GateBook::moves),
                    memory: state
                        .memory
                        .as_ref()
                        .map(|memory| memory.snapshot(*tenant, charged)),
                    kind: match entry.kind {
                        Kind::Vm(_) => TenantKind::Vm,
                        Kind::Program(_) => TenantKind::Program {
                            processes: state.registry.count(*tenant),
                        },
                    },
                }
            })
            .collect();
        let conservation_error_ns = total
            .engines
            .iter()
            .map(|engine| i128::from(wall) - i128::from(engine.totals.accounted_ns().0))
            .map(i128::abs)
            .sum();
        HostSnapshot {
            gpu: self.gpu.figures(),
            at,
            tenants,
            engines: total.engines,
            conservation_error_ns,
            untracked: self.gpu.untracked(),
            ledger_errors: state.ledger_errors,
        }
    }
}

/// By then the engines have let go of a tenant that left: the kernel limit of a GPU is below it.
const SETTLE_AFTER: Nanos = Nanos::from_ms(60_000);

fn count(errors: &mut u64, error: LedgerError) {
    // Once a period at most, and only if law 1 is broken: worth every line.
    *errors += 1;
    log::error!("Ledger: {error}");
}

/// Compute and copy totals out of per-engine totals.
fn split(engines: &[(EngineId, TenantTotals)]) -> (TenantTotals, TenantTotals) {
    let (mut compute, mut copy) = (TenantTotals::default(), TenantTotals::default());
    for (engine, totals) in engines {
        let sum = if *engine == COMPUTE {
            &mut compute
        } else {
            &mut copy
        };
        sum.used_ns += totals.used_ns;
        sum.fault_ns += totals.fault_ns;
    }
    (compute, copy)
}

/// A name that is kept for a VM until it was taken in, or was not.
struct Starting<'a> {
    host: &'a Host,
    name: String,
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        self.host.lock().starting.remove(&self.name);
    }
}

/// The engines of a GPU, by index.
pub(super) fn engines(gpu: &dyn Gpu) -> impl Iterator<Item = EngineId> + use<> {
    let capability = gpu.capabilities();
    (0..capability.compute_engines + capability.copy_engines).map(EngineId)
}

impl State {
    /// A number that no tenant had before.
    pub(super) fn number(&mut self) -> TenantId {
        let number = TenantId(self.next);
        self.next += 1;
        number
    }

    /// Takes a tenant in that the GPU has taken in.
    pub(super) fn insert(
        &mut self,
        tenant: TenantId,
        name: String,
        weight: Weight,
        peer: Peer,
        kind: Kind,
    ) {
        let params = TenantParams { weight, cap: None };
        if let Err(error) = self.mediation.add(tenant, params) {
            log::error!("Policy: {error}");
        }
        log::info!("{tenant} is {name}, weight {}", weight.get());
        self.tenants.insert(tenant, Tenant { name, peer, kind });
    }

    /// A VM's gates move, then what is queued is stopped or goes on; a program has channels of its own alone.
    fn carry_out(&mut self, gpu: &dyn Gpu, GateOrder { tenant, state }: GateOrder) {
        let Some(entry) = self.tenants.get_mut(&tenant) else {
            return;
        };
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
        match state {
            turnstile_vmm::gate::GateState::Closed => gpu.suspend(tenant),
            // Not before all of its memory is there.
            _ if self.memory.as_ref().is_some_and(|m| !m.may_run(tenant)) => {}
            _ => gpu.resume(tenant),
        }
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
