//! What is read at a poll, and what it shows of each tenant.
//!
//! In: the signals of [`crate::observe`], and the tenant of each process, channel and group. Out:
//! an [`EngineReading`]. One owner, under one lock; the lock is held for the time of a poll.
//!
//! A window goes from one poll to the next. It is closed at once where the log and the engine's
//! status agree on the resident tenant: then no record is missing. Else it is closed at a later
//! poll, as records come up to [`SETTLED`] late; [`SHOWN`] where the log was not flushed.

mod silence;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use turnstile_accounting::meter::{Case, WorkedMeter};
use turnstile_accounting::{EngineId, EngineUsage, Moment, Nanos, Reading, Seen, TenantId, Window};
use turnstile_gpu::{COMPUTE, EngineReading, READINGS as TRACED};
use turnstile_host::process;
use turnstile_vmm::wire::ObjectChange;

use crate::costs::{Cost, Work};
use crate::events::{Change, EventLog, SwitchRecord};
use crate::groups::Groups as EngineGroups;
use crate::models::Edges;
use crate::observe::context_switches::{ContextSwitches, Owner};
use crate::observe::log_watch::LogWatch;
use crate::observe::{BusyTime, Group, Signals};
use crate::rm::{RmClient, RmError};
use crate::tenant::control_files::ControlFiles;
use crate::tenant::groups::Groups;
use crate::tenant::processes::Processes;
use crate::tenant::state::{Event, State, Tenant};
use crate::tenant::waits::Waits;

/// Records of the log are complete up to this long before it was read. SOURCE: the log is flushed
/// before it is read; a switch takes 0.15 ms.
const SETTLED: Nanos = Nanos::from_us(600);
/// The driver moves records to where they are read 30 times a second without a flush.
const SHOWN: Nanos = Nanos::from_ms(50);

/// Readings of the engine's status at a poll while copies run, and from one to the next. Kernels
/// behind copies are as short as 13 us.
const READINGS: u32 = 8;
const READING_INTERVAL: Duration = Duration::from_micros(15);

/// Copies are taken to run for this long after a poll that found a copy engine at work.
const COPIES: Nanos = Nanos::from_ms(500);

/// The engine idles if less than this part of a window was worked, in percent.
const WORKED_PERCENT: u64 = 97;

/// A time between two polls of which not all is known yet.
#[derive(Debug)]
struct Open {
    window: Window,
    busy: Option<Nanos>,
    case: Case,
    /// Tenants that had work at both ends.
    with_work: BTreeSet<TenantId>,
    /// The tenant that each copy engine worked for at the end.
    copying: Vec<Option<TenantId>>,
}

/// Reads the engine.
#[derive(Debug)]
// FIELDS: all that a poll reads and updates in one pass, under one lock.
pub(super) struct EngineProbe {
    /// The log is its, and ends with it.
    client: RmClient,
    log: EventLog,
    /// Records that logs before this one lost, and that found no room in them.
    lost_before: (u64, u64),
    watch: LogWatch,
    /// Why the log could not be read at the last poll.
    refused: Option<String>,
    signals: Signals,
    switches: ContextSwitches,
    meter: WorkedMeter,
    busy: BusyTime,
    pub(super) processes: Processes,
    pub(super) groups: Groups,
    files: ControlFiles,
    engine_groups: EngineGroups,
    pub(super) tenants: BTreeMap<TenantId, Tenant>,
    preemptor: Option<u32>,
    last: Option<Moment>,
    /// When a copy engine was last seen at work.
    copied: Option<Moment>,
    open: VecDeque<Open>,
    /// The engine idled in the last window that was closed.
    idles: bool,
    records: Vec<SwitchRecord>,
    pub(super) polls: Cost,
    /// Of these, reading the log and the channels.
    pub(super) log_reads: Cost,
    pub(super) channel_reads: Cost,
    pub(super) switched: u64,
    pub(super) split: u64,
}

impl EngineProbe {
    pub(super) fn new((client, log): (RmClient, EventLog), signals: Signals, edges: Edges) -> Self {
        Self {
            client,
            log,
            lost_before: (0, 0),
            watch: LogWatch::default(),
            refused: None,
            signals,
            switches: ContextSwitches::new(edges),
            meter: WorkedMeter::new(COMPUTE),
            busy: BusyTime::default(),
            processes: Processes::default(),
            groups: Groups::default(),
            files: ControlFiles::default(),
            engine_groups: EngineGroups::default(),
            tenants: BTreeMap::new(),
            preemptor: None,
            last: None,
            copied: None,
            open: VecDeque::new(),
            idles: false,
            records: Vec::new(),
            polls: Cost::default(),
            log_reads: Cost::default(),
            channel_reads: Cost::default(),
            switched: 0,
            split: 0,
        }
    }

    /// A tenant appears with its first process.
    pub(super) fn add(&mut self, tenant: TenantId, pid: u32) {
        self.tenants.entry(tenant).or_default();
        self.processes.assign(pid, tenant);
    }

    /// A tenant is gone.
    pub(super) fn remove(&mut self, tenant: TenantId) {
        self.tenants.remove(&tenant);
        self.groups.forget(tenant);
        self.engine_groups.forget(tenant);
        self.meter.forget(tenant);
        for pid in self.processes.remove(tenant) {
            self.switches.forget(pid);
        }
    }

    /// The driver made or freed objects for a process of a tenant. Whether the tenant has other
    /// channels than before.
    pub(super) fn changed(&mut self, tenant: TenantId, pid: u32, changes: &[ObjectChange]) -> bool {
        self.processes.changed(tenant, pid, changes)
    }

    /// A process has ended.
    pub(super) fn exited(&mut self, pid: u32) {
        self.processes.exited(pid);
        self.switches.forget(pid);
    }

    /// The preemptor is this process.
    pub(super) fn set_preemptor(&mut self, pid: Option<u32>) {
        self.preemptor = pid;
    }

    /// Something happens to a tenant.
    pub(super) fn apply(&mut self, tenant: TenantId, event: Event, at: Moment) {
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.apply(event, at);
        }
    }

    /// The tenant on the engine now; none while contexts are switched, or if it is not known.
    pub(super) fn resident(&self) -> Option<TenantId> {
        let (group, _) = self.signals.compute()?;
        self.engine_groups.tenant(group?)
    }

    /// Whether a tenant's context is on the engine, and no other tenant that may run has work: then
    /// the hardware does not take the engine from it at the end of its slice.
    pub(super) fn stays_resident(&self, tenant: TenantId) -> bool {
        let others = self.tenants.iter().filter(|(other, _)| **other != tenant);
        let mut waiting = others.filter(|(_, of)| of.has_work && !of.state.needs_lease());
        self.resident() == Some(tenant) && waiting.next().is_none()
    }

    /// Whether a channel of a tenant has something queued; none where that is not known.
    pub(super) fn has_work(&self, tenant: TenantId) -> Option<bool> {
        for channel in self.groups.channels(tenant)? {
            if self.signals.channel(*channel)?.is_queued() {
                return Some(true);
            }
        }
        Some(false)
    }

    /// Polls at `now`. A tenant that `requests` has a request that needs its memory, which is work.
    /// If the log cannot be read, nothing of it is known until it is replaced.
    pub(super) fn poll(
        &mut self,
        now: impl Fn() -> Moment,
        requests: impl Fn(TenantId) -> bool,
        reading: &mut EngineReading,
    ) {
        let work = Work::begin();
        reading.windows.clear();
        let count = self.signals.busy_count();
        let at = now().max(self.last.unwrap_or(Moment(0)));
        reading.at = at;
        let busy = count.and_then(|count| self.busy.take(at, count));
        if let Some(busy) = busy {
            log::trace!(target: TRACED, "busy {} {}", at.0, busy.0);
        }
        let copying = self.read_copies(at);
        let case = Case {
            copies: self.copied.is_some_and(|copied| at.since(copied) < COPIES),
            beside: self.compete(),
        };
        let group = self.read_engine(case);
        let before = self.with_work();
        self.files.begin(&self.processes);
        let tenants = self.tenants.keys().copied();
        self.groups
            .follow(tenants, &self.processes, &mut self.files, Instant::now());
        let channels = Work::brief();
        self.read_channels(at, requests);
        self.read_waits();
        self.channel_reads.add(&channels);
        // The records of an own turn, and before one, are needed at once.
        let any_held = self.tenants.values().any(|of| of.state.needs_lease());
        let exact = reading.exact || any_held;
        let (log, switched) = (Work::brief(), self.switched);
        self.refused = self.read_log(exact).err().map(|error| error.to_string());
        self.log_reads.add(&log);
        self.watch.take(at, group, self.switched > switched);
        let agree = self.learn_group(group);
        if let Some(from) = self.last.replace(at)
            && at > from
        {
            let with_work = self.with_work().intersection(&before).copied().collect();
            self.open.push_back(Open {
                window: Window::starting(from, at.since(from)),
                busy,
                case,
                with_work,
                copying,
            });
        }
        let settled = match (exact, agree) {
            (true, true) => at,
            (true, false) => Moment(at.0.saturating_sub(SETTLED.0)),
            (false, _) => Moment(at.0.saturating_sub(SHOWN.0)),
        };
        let known = self.watch.known_until().unwrap_or(settled);
        self.close(settled.min(known), reading);
        let seen = |(tenant, of): (&TenantId, &Tenant)| Seen {
            tenant: *tenant,
            has_work: of.has_work,
            idle: of.idle(at),
            blocks: of.waits == Waits::Blocking,
        };
        reading.tenants = self.tenants.iter().map(seen).collect();
        self.polls.add(&work);
    }

    /// Whether several tenants that may run have work.
    fn compete(&self) -> bool {
        let may_run = |of: &&Tenant| of.has_work && !of.state.needs_lease();
        self.tenants.values().filter(may_run).nth(1).is_some()
    }

    /// Reads the status of the engine: the group on it. A resident tenant is found at work or not.
    /// Where the readings have to stand for the counter, they are more.
    fn read_engine(&mut self, case: Case) -> Option<Group> {
        let count = if case.copies { READINGS } else { 1 };
        let mut found = None;
        for reading in 0..count {
            let begun = Instant::now();
            while reading > 0 && begun.elapsed() < READING_INTERVAL {
                std::hint::spin_loop();
            }
            let (group, works) = self.signals.compute()?;
            if let Some(tenant) = group.and_then(|group| self.engine_groups.tenant(group)) {
                self.meter.read(tenant, works, case);
                let (Case { copies, beside }, tenant) = (case, tenant.0);
                log::trace!(target: TRACED, "read {tenant} {works} {copies} {beside}");
            }
            found = group;
        }
        found
    }

    /// Reads the log: all of it, or what the driver has moved by itself.
    fn read_log(&mut self, all: bool) -> Result<(), RmError> {
        let read = match all {
            true => self.log.read(&self.client, &mut self.records),
            false => self.log.read_shown(&self.client, &mut self.records),
        };
        let mut records = std::mem::take(&mut self.records);
        self.switched += records.len() as u64;
        for record in records.drain(..) {
            let owner = self.owner(record);
            trace(record, owner);
            if let Owner::Tenant { tenant, .. } = owner
                && let Some(of) = self.tenants.get_mut(&tenant)
            {
                // A context is loaded because it has work.
                of.worked_at(record.at);
                let event = match record.change {
                    Change::Active => Event::SchedIn,
                    Change::Saved => Event::Saved,
                };
                of.apply(event, record.at);
            }
            self.switches.take(record, owner);
        }
        self.records = records;
        let complete = *read.as_ref().unwrap_or(&false);
        if !complete {
            self.switches.lose();
        }
        for event in self.switches.drain() {
            self.meter.switched(event);
        }
        if !complete {
            self.meter.lost();
        }
        read.map(drop)
    }

    /// The owner of a record's process; a child of a tenant becomes the tenant's.
    fn owner(&mut self, SwitchRecord { pid, change, .. }: SwitchRecord) -> Owner {
        if self.preemptor == Some(pid) {
            return Owner::Preemptor;
        }
        let known = self.processes.tenant(pid);
        let tenant = match (known, change) {
            (Some(tenant), _) => Some(tenant),
            (None, Change::Active) => self.processes.adopt(pid, process::parent),
            (None, Change::Saved) => None,
        };
        let Some(tenant) = tenant else {
            return Owner::Unknown;
        };
        Owner::Tenant {
            tenant,
            slice: self.groups.slice(tenant),
            held: self.tenants.get(&tenant).and_then(|of| of.held),
        }
    }

    /// The group was on the engine before the log was read: it is the tenant's that was resident by
    /// the log, if it still is. Whether the log and the status agreed before.
    fn learn_group(&mut self, before: Option<Group>) -> bool {
        let after = self.signals.compute().and_then(|(group, _)| group);
        let stayed = before.filter(|_| before == after);
        let resident = self.switches.resident();
        let tenant = resident.and_then(|(pid, _)| self.processes.tenant(pid));
        let (Some(group), Some(tenant)) = (stayed, tenant) else {
            return false;
        };
        let agree = self.engine_groups.tenant(group) == Some(tenant);
        self.engine_groups.learn(group, tenant);
        agree
    }

    fn with_work(&self) -> BTreeSet<TenantId> {
        let with_work = self.tenants.iter().filter(|(_, of)| of.has_work);
        with_work.map(|(tenant, _)| *tenant).collect()
    }

    /// Reads the channels of each tenant. Where they are not known, a tenant has work while it is
    /// resident, and while it is held.
    fn read_channels(&mut self, at: Moment, requests: impl Fn(TenantId) -> bool) {
        let all: Vec<TenantId> = self.tenants.keys().copied().collect();
        for tenant in all {
            let read = self.has_work(tenant);
            if let Some(of) = self.tenants.get_mut(&tenant) {
                let assumed = of.state == State::Resident || of.state.needs_lease();
                of.observe_work(read.unwrap_or(assumed) || requests(tenant), at);
            }
        }
    }

    /// Reads what tenants wait for, where the engine idles beside several that have work.
    fn read_waits(&mut self) {
        let suspect = self.idles && self.compete();
        for (tenant, of) in &mut self.tenants {
            let due = suspect || of.waits == Waits::Blocking;
            // Channels of a held tenant have the sign, and wait for the tenant's release.
            if !due || !of.has_work || of.state.needs_lease() {
                continue;
            }
            let channels = self.groups.channels(*tenant).unwrap_or_default();
            let words = channels
                .iter()
                .map(|channel| self.signals.channel(*channel));
            if let Some(words) = words.collect::<Option<Vec<_>>>() {
                of.waits = of.waits.after(&words);
            }
        }
    }

    /// Reads the copy engines: the tenant that each works for.
    fn read_copies(&mut self, at: Moment) -> Vec<Option<TenantId>> {
        let engines = self.signals.at_work().map(|engine| {
            let engine = engine?;
            self.copied = Some(at);
            let own = |tenant: &&TenantId| engine.works_for(self.groups.copy_channels(**tenant));
            self.tenants.keys().find(own).copied()
        });
        engines.collect()
    }

    /// Closes the windows that end by `settled`, up to which the log is complete.
    fn close(&mut self, settled: Moment, reading: &mut EngineReading) {
        self.switches.settle(settled);
        for event in self.switches.drain() {
            self.meter.switched(event);
        }
        let is_known = |open: &mut Open| open.window.to() <= settled;
        while let Some(open) = self.open.pop_front_if(is_known) {
            let mut worked = self.meter.close(open.window, open.busy, open.case);
            self.split += u64::from(worked.split);
            self.see_idle(open.window.length(), &worked.readings);
            for tenant in open.with_work {
                let listed = |of: &&mut Reading| of.tenant == tenant;
                match worked.readings.iter_mut().find(listed) {
                    Some(reading) => {
                        let resident = reading.resident.unwrap_or_default();
                        reading.waited = open.window.length().saturating_sub(resident);
                    }
                    None => worked.readings.push(Reading {
                        tenant,
                        worked: Some(Nanos::ZERO),
                        resident: Some(Nanos::ZERO),
                        waited: open.window.length(),
                    }),
                }
            }
            let copying = (1..).map(EngineId).zip(open.copying);
            let engines = copying.map(|(engine, of)| EngineUsage::read(engine, open.window, of));
            worked.usage.engines.extend(engines);
            reading.windows.push(worked);
        }
    }

    /// A window was closed: whether the engine idled in it, and which tenants were on it.
    fn see_idle(&mut self, window: Nanos, readings: &[Reading]) {
        let worked: Option<u64> = readings.iter().map(|of| of.worked.map(|ns| ns.0)).sum();
        self.idles = worked.is_some_and(|ns| ns * 100 < window.0 * WORKED_PERCENT);
        for Reading {
            tenant, resident, ..
        } in readings
        {
            if let Some(of) = self.tenants.get_mut(tenant) {
                of.waits = of.waits.after_window(resident.unwrap_or_default());
            }
        }
    }
}

/// Traces a record of the log as it was taken.
fn trace(record: SwitchRecord, owner: Owner) {
    if !log::log_enabled!(target: TRACED, log::Level::Trace) {
        return;
    }
    let SwitchRecord { seq, at, pid, .. } = record;
    let change = match record.change {
        Change::Active => "active",
        Change::Saved => "saved",
    };
    let (tenant, slice, held) = match owner {
        Owner::Tenant {
            tenant,
            slice,
            held,
        } => (tenant.0.to_string(), slice.0, held),
        Owner::Preemptor => ("preemptor".to_owned(), 0, None),
        Owner::Unknown => ("unknown".to_owned(), 0, None),
    };
    let held = held.unwrap_or(Moment(0)).0;
    log::trace!(target: TRACED, "{change} {seq} {} {pid} {tenant} {slice} {held}", at.0);
}
