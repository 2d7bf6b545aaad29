//! The GPU as a state machine: tenants, the channel table, the front end. Reads no clock and does
//! not execute engine work.
//!
//! The driver (real or virtual time) has exclusive access. It passes in events with their time and
//! takes the work that engines are to begin from [`Core::dispatch`]. Engines and the dispatcher are
//! in [`self::dispatch`].
//!
//! Invariant: the log of every engine is a complete timeline, and the status registers always equal
//! its last record.

pub(crate) mod again;
pub(crate) mod demand;
pub(crate) mod dispatch;
pub(crate) mod front_end;
pub(crate) mod moves;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use turnstile_abi::{CHANNELS_MAX, ErrorCode};
use turnstile_accounting::{Demand, EngineState, Moment, SwitchEvent, TenantId};

use self::demand::DemandLog;
use self::dispatch::Engine;
use self::front_end::{Budgets, Part};
use self::moves::Moves;
use super::address_space::swap::MemoryLog;
use super::board::Board;
use super::channel::{Channel, Phase};
use super::config::{ENGINES, SoftConfig};
use super::execute::context::Context;
use super::registers::Registers;
use super::switch_log::SwitchLog;
use turnstile_gpu::ring::{ChannelFault, check_channel, word_reached};
use turnstile_gpu::{
    ChannelActivity, ChannelConfig, Doorbells, GuestMemory, Refusal, TenantResources,
};

/// Slots of the channel table.
pub(super) const SLOTS: usize = CHANNELS_MAX as usize;

/// A slot of the channel table; the generation distinguishes its successive channels.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) generation: u64,
    pub(super) channel: Option<Channel>,
}

/// Reference to a channel that may be gone when the reference is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotRef {
    pub(super) slot: u32,
    pub(super) generation: u64,
}

/// A tenant.
#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) context: Arc<Context>,
    resources: TenantResources,
    /// Slot by channel number.
    numbers: Vec<Option<u32>>,
    pub(super) suspended: bool,
    /// No command of it is started on these engines.
    pub(super) held: [bool; ENGINES],
    /// Its demand as it was last logged.
    pub(super) demand: [Demand; ENGINES],
    /// Chunks of it that are queued to be moved, or moving.
    pub(super) moving: usize,
    /// Some gate is open: its doorbell raises no notification and has to be polled.
    unwatched: bool,
    /// For its commands that need no engine.
    pub(super) front_end: Part,
}

impl Tenant {
    /// Slots of its open channels.
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.numbers.iter().flatten().copied()
    }
}

/// A location in a VM's memory that has to be polled. Polling takes no lock.
#[derive(Clone, Debug)]
pub(super) enum Watched {
    /// A doorbell page behind an open gate.
    Doorbell {
        doorbells: Arc<dyn Doorbells>,
        channel: u32,
        seen: u32,
    },
    /// The word that a channel waits for.
    Word {
        guest: Arc<GuestMemory>,
        gpa: u64,
        value: u64,
    },
}

impl Watched {
    /// Whether the location has changed, so that the core has to run.
    pub(super) fn has_changed(&self) -> bool {
        match self {
            Self::Doorbell {
                doorbells,
                channel,
                seen,
            } => doorbells.put(*channel) != *seen,
            Self::Word { guest, gpa, value } => word_reached(guest, *gpa, *value),
        }
    }
}

/// The GPU.
#[derive(Debug)]
// FIELDS: the whole state of a GPU under one lock; its rooms own parts of it.
pub(super) struct Core {
    pub(super) config: SoftConfig,
    pub(super) now: Moment,
    pub(super) tenants: BTreeMap<TenantId, Tenant>,
    pub(super) slots: Vec<Slot>,
    /// For commands that need no engine.
    pub(super) budgets: Budgets,
    /// Queue of channels for the front end.
    pub(super) line: VecDeque<u32>,
    /// Channels that wait for a word.
    pub(super) waits: BTreeSet<u32>,
    /// Channels that wait for an engine, by [`super::execute::work::Class`].
    pub(super) ready: [BTreeSet<u32>; 2],
    /// The slot last served, by class.
    pub(super) cursor: [u32; 2],
    pub(super) engines: [Engine; ENGINES],
    /// The last record of each engine.
    pub(super) logged: [EngineState; ENGINES],
    pub(super) registers: Arc<Registers>,
    pub(super) log: SwitchLog,
    pub(super) demand: DemandLog,
    /// Bytes that copy engines have moved, until they are taken.
    pub(super) copied: BTreeMap<TenantId, u64>,
    /// Counts up whenever [`Core::watched`] would answer differently.
    changes: Arc<AtomicU64>,
    pub(super) moves: Moves,
    /// Receives memory moves; none where memory does not move.
    pub(super) memory_log: Option<Arc<MemoryLog>>,
    /// Where all of it is shown, if somewhere.
    pub(super) board: Option<Arc<dyn Board>>,
}

impl Core {
    pub(super) fn new(config: SoftConfig, now: Moment) -> Self {
        Self {
            config,
            now,
            tenants: BTreeMap::new(),
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            budgets: Budgets::default(),
            line: VecDeque::new(),
            waits: BTreeSet::new(),
            ready: Default::default(),
            // So that slot 0 is served first.
            cursor: [SLOTS as u32; 2],
            engines: Default::default(),
            logged: [EngineState::Idle; ENGINES],
            registers: Arc::default(),
            log: SwitchLog::new(config.log_capacity, now),
            demand: DemandLog::default(),
            copied: BTreeMap::new(),
            changes: Arc::default(),
            moves: Moves::default(),
            memory_log: None,
            board: None,
        }
    }

    /// Time never falls: callers that race for the core may have read the clock in another order.
    pub(super) fn tick(&mut self, now: Moment) -> Moment {
        self.now = self.now.max(now);
        self.now
    }

    /// Shows everything on `board`, from what is known now on.
    pub(super) fn show_on(&mut self, board: Arc<dyn Board>) {
        self.registers.show_on(board.clone());
        for event in self.log.records() {
            board.switched(event);
        }
        self.board = Some(board);
    }

    /// Counts up whenever there is something else to watch.
    pub(super) fn changes(&self) -> Arc<AtomicU64> {
        self.changes.clone()
    }

    /// Makes the watcher rebuild its list of watched locations.
    pub(super) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    pub(super) fn tenant(&self, tenant: TenantId) -> Result<&Tenant, Refusal> {
        self.tenants.get(&tenant).ok_or_else(|| Refusal {
            code: ErrorCode::BadArgument,
            detail: format!("{tenant} has no context"),
        })
    }

    pub(super) fn context(&self, tenant: TenantId) -> Result<Arc<Context>, Refusal> {
        Ok(self.tenant(tenant)?.context.clone())
    }

    pub(super) fn add_tenant(
        &mut self,
        context: Arc<Context>,
        resources: TenantResources,
    ) -> Result<(), Refusal> {
        let (id, now) = (context.tenant, self.now);
        if self.tenants.contains_key(&id) {
            return Err(Refusal {
                code: ErrorCode::BadArgument,
                detail: format!("{id} has a context already"),
            });
        }
        let channels = resources.channels.min(CHANNELS_MAX) as usize;
        let cost = self.config.cost.front_end;
        let front_end = self.budgets.add(resources.account, cost, now);
        let tenant = Tenant {
            context,
            resources,
            numbers: vec![None; channels],
            suspended: false,
            held: [false; ENGINES],
            demand: [Demand::Nothing; ENGINES],
            moving: 0,
            unwatched: false,
            front_end,
        };
        self.tenants.insert(id, tenant);
        Ok(())
    }

    /// Ends a tenant. Requests a stop of its work on engines, which is charged until it has
    /// stopped.
    pub(super) fn remove_tenant(&mut self, now: Moment, tenant: TenantId) {
        let now = self.tick(now);
        let Some(gone) = self.tenants.remove(&tenant) else {
            return;
        };
        self.budgets.remove(tenant, &gone.front_end);
        for slot in 0..SLOTS as u32 {
            let channel = self.slots[slot as usize].channel.as_ref();
            if channel.is_some_and(|channel| channel.tenant == tenant) {
                self.vacate(slot);
            }
        }
        self.stop_engines_of(tenant);
        self.moves.forget(tenant);
        self.settle(now);
    }

    /// Takes a channel out of the table.
    pub(super) fn vacate(&mut self, slot: u32) {
        self.unqueue(slot);
        self.line.retain(|other| *other != slot);
        let entry = &mut self.slots[slot as usize];
        entry.generation += 1;
        if let Some(channel) = entry.channel.take() {
            channel.show_gone();
            if let Some(owner) = self.tenants.get_mut(&channel.tenant) {
                let part = &mut owner.front_end;
                self.budgets.forget(channel.tenant, part, slot);
            }
            self.demand.touch(channel.tenant);
        }
        self.changed();
    }

    /// Takes a channel out of whatever it waits in.
    fn unqueue(&mut self, slot: u32) {
        self.waits.remove(&slot);
        for ready in &mut self.ready {
            ready.remove(&slot);
        }
    }

    pub(super) fn open_channel(
        &mut self,
        now: Moment,
        tenant: TenantId,
        config: ChannelConfig,
    ) -> Result<u32, Refusal> {
        let now = self.tick(now);
        let free = self.slots.iter().position(|slot| slot.channel.is_none());
        let owner = self.tenant(tenant)?;
        check_channel(&owner.resources.guest, &config)?;
        let number = owner.numbers.iter().position(Option::is_none);
        let number = number.ok_or(ErrorCode::TooManyChannels)?;
        let slot = free.ok_or(ErrorCode::HostLimit)?;
        let channel = Channel::new(
            now,
            // CAST: both are below CHANNELS_MAX.
            number as u32,
            owner.context.clone(),
            owner.resources.clone(),
            config,
            self.board.clone(),
        );
        self.slots[slot].channel = Some(channel);
        if let Some(owner) = self.tenants.get_mut(&tenant) {
            owner.numbers[number] = Some(slot as u32);
        }
        self.changed();
        Ok(number as u32)
    }

    pub(super) fn close_channel(
        &mut self,
        now: Moment,
        tenant: TenantId,
        number: u32,
    ) -> Result<(), Refusal> {
        let now = self.tick(now);
        self.tenant(tenant)?;
        let owner = self.tenants.get_mut(&tenant);
        let entry = owner.and_then(|owner| owner.numbers.get_mut(number as usize));
        let slot = entry.and_then(Option::take);
        let slot = slot.ok_or(ErrorCode::NoSuchChannel)?;
        self.cancel_switch_to(slot);
        let on_engine = self.is_on_engine(slot);
        if let Some(channel) = &mut self.slots[slot as usize].channel {
            if on_engine {
                channel.closing = true;
                self.changed();
            } else {
                channel.report_closed();
                self.vacate(slot);
            }
        }
        self.settle(now);
        Ok(())
    }

    /// Whether a suspended tenant is on no engine.
    pub(super) fn is_quiet(&self, tenant: TenantId) -> bool {
        let suspended = self.tenants.get(&tenant).is_some_and(|t| t.suspended);
        let loads = self.engines.iter().filter_map(|engine| engine.load());
        suspended && !loads.into_iter().any(|load| load.is_command_of(tenant))
    }

    /// Releases the chunks that a tenant has freed. If a command of the tenant executes, they are
    /// released when it ends.
    pub(super) fn settle_limbo(&self, tenant: TenantId) {
        let loads = self.engines.iter().filter_map(|engine| engine.load());
        if let Some(entry) = self.tenants.get(&tenant)
            && !loads.into_iter().any(|load| load.is_command_of(tenant))
        {
            entry.context.space.settle_limbo();
        }
    }

    /// Fills in what each open channel of the tenant has to do.
    pub(super) fn activity(&self, tenant: TenantId, channels: &mut Vec<ChannelActivity>) {
        let slots = self.tenants.get(&tenant).into_iter();
        let slots = slots.flat_map(|tenant| tenant.numbers.iter().flatten());
        let open = slots.filter_map(|slot| self.slots[*slot as usize].channel.as_ref());
        channels.extend(open.map(Channel::activity));
    }

    pub(super) fn set_unwatched(&mut self, tenant: TenantId, open: bool) {
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.unwatched = open;
            self.changed();
        }
    }

    /// Faults of each tenant's channels by kind.
    pub(super) fn faults(&self) -> BTreeMap<TenantId, BTreeMap<ErrorCode, u64>> {
        let of = |(tenant, entry): (&TenantId, &Tenant)| (*tenant, entry.context.faults());
        self.tenants.iter().map(of).collect()
    }

    pub(super) fn read_events(&mut self, events: &mut Vec<SwitchEvent>) {
        self.log.drain(events);
    }

    /// Lists the locations that raise no notification and have to be polled.
    pub(super) fn watched(&self, list: &mut Vec<Watched>) {
        list.clear();
        for tenant in self.tenants.values().filter(|tenant| tenant.unwatched) {
            for slot in tenant.numbers.iter().flatten() {
                let Some(channel) = &self.slots[*slot as usize].channel else {
                    continue;
                };
                if !matches!(channel.phase, Phase::Faulted) {
                    list.push(Watched::Doorbell {
                        doorbells: channel.resources().doorbells.clone(),
                        channel: channel.number,
                        seen: channel.put(),
                    });
                }
            }
        }
        for slot in &self.waits {
            let Some(channel) = &self.slots[*slot as usize].channel else {
                continue;
            };
            // One in line is fetched from next; while its tenant has no budget, watching would
            // spin.
            if let Phase::Waiting { gpa, value } = channel.phase
                && !channel.in_line
            {
                let guest = channel.guest().clone();
                list.push(Watched::Word { guest, gpa, value });
            }
        }
    }

    /// Polls the doorbells of open gates, and the words that channels wait for. The clock is read
    /// after them: nothing is noted as earlier than the guest's write of it.
    pub(super) fn poll(&mut self, clock: impl FnOnce() -> Moment) {
        let unwatched = self.tenants.iter().filter(|(_, t)| t.unwatched);
        let tenants: Vec<TenantId> = unwatched.map(|(id, _)| *id).collect();
        let news = tenants.iter().flat_map(|tenant| self.doorbells(*tenant));
        let news = news.collect();
        self.take(news, None, clock);
    }

    /// Polls the tenant's doorbells, and then the clock.
    pub(super) fn ring(&mut self, tenant: TenantId, clock: impl FnOnce() -> Moment) {
        let news = self.doorbells(tenant).collect();
        self.take(news, Some(tenant), clock);
    }

    /// Slots and put indices of a tenant's channels.
    fn doorbells(&self, tenant: TenantId) -> impl Iterator<Item = (u32, u32)> {
        let entry = self.tenants.get(&tenant);
        let slots = entry
            .into_iter()
            .flat_map(|entry| entry.numbers.iter().flatten());
        let channel = |slot: u32| self.slots[slot as usize].channel.as_ref();
        slots.filter_map(move |slot| Some((*slot, channel(*slot)?.doorbell())))
    }

    fn take(
        &mut self,
        news: Vec<(u32, u32)>,
        waits_of: Option<TenantId>,
        clock: impl FnOnce() -> Moment,
    ) {
        let over = front_end::waits_over(self, waits_of);
        let now = self.tick(clock());
        for (slot, put) in news {
            self.announce(now, slot, put);
        }
        for slot in over {
            front_end::line_up(self, slot);
        }
        front_end::pass(self, now);
    }

    fn announce(&mut self, now: Moment, slot: u32, put: u32) {
        let Some(channel) = &mut self.slots[slot as usize].channel else {
            return;
        };
        if matches!(channel.phase, Phase::Faulted) {
            return;
        }
        let (tenant, running) = (channel.tenant, matches!(channel.phase, Phase::Running));
        match channel.announce(now, put) {
            Ok(false) => return,
            Ok(true) if running => self.demand.touch(tenant),
            Ok(true) => front_end::line_up(self, slot),
            Err(fault) => self.fault_channel(now, slot, fault),
        }
        self.changed();
    }

    /// Ends a channel with an error.
    pub(super) fn fault_channel(&mut self, now: Moment, slot: u32, fault: ChannelFault) {
        self.cancel_switch_to(slot);
        self.unqueue(slot);
        if let Some(channel) = &mut self.slots[slot as usize].channel {
            let tenant = channel.tenant;
            channel.fault(now, fault);
            self.demand.touch(tenant);
            self.changed();
        }
    }
}
