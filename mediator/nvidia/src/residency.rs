//! From contexts that come and go to who has the engine. Pure.
//!
//! ```text
//!   active(pid, context) -> Running(tenant of pid) -- saved --> Switching -- nobody came within a switch --> Idle
//!            ^------------------- active ----------------------------'                                        |
//!            '--------------------------------------------- active -------------------------------------------'
//! ```
//!
//! # The edges of a residency
//! "Active" is logged when a context's state has been loaded, and "saved" when it has been stored: its kernels stand still for
//! a while after the one and before the other. [`Edges`] says how long; that is switching, and nobody's time.
//!
//! # Resident is not running
//! A context that has nothing to do stays on the engine until another needs it; a tenant that is alone makes no records at
//! all. So "active" bounds its time from above. The second signal are the counters of the whole engine
//! ([`super::utilisation`]): they say how much of the resident time was idle, and [`Residency::set_idle_fraction`] whose. A
//! stretch of residency is told as running for the rest of it, then idle; where most of it was idle, the other way round. Where
//! somebody waits, the engine's status register tells longer pauses at once: [`Residency::idle`], [`Residency::busy`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use turnstile_accounting::{EngineId, EngineState, Moment, Nanos, SwitchEvent, TenantId};

use super::events::{Change, SwitchRecord};

/// Stands for all processes that nobody made a tenant: their time is accounted, and shown as theirs.
pub const UNTRACKED: TenantId = TenantId(u32::MAX);

/// After a context was saved and for so long none came, the engine counts as idle from then on.
///
/// SOURCE: a switch between two busy contexts took about 80 us (facts sheet section 1); this is a few of them.
pub const SWITCH_MAX: Nanos = Nanos::from_us(300);

/// Who stays for less is not stopped in the middle of his work. SOURCE: facts sheet section 1: a time slice is 2.048 ms.
pub(super) const TIME_SLICE: Nanos = Nanos::from_us(2_048);

/// Who is stopped when his time slice ends is saved within so long. SOURCE: measured: 263 residencies of an H200 that ended so lasted
/// 2.17 to 2.21 ms; 814 that ended after a kernel of 2 ms beside somebody who waits 2.06 to 2.08 ms.
const EXPIRY: Nanos = Nanos::from_us(100);

/// Whose residency is idle for less than this has kernels that are longer than time slices, so that he is stopped in the middle
/// of one. SOURCE: measured: from one launch and wait to the next, 9 us of an H200 are idle.
const LONG_KERNELS: f64 = 0.003;

/// Who is suspended is in the middle of a kernel, unless he is idle for as much of his residency.
const MOSTLY_IDLE: f64 = 0.5;

/// How long a context stands still at the edges of its residency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edges {
    /// From "active" to its first instruction, after it was stopped in the middle of its work.
    pub resumed: Nanos,
    /// From its last instruction to "saved", when it is stopped in the middle.
    pub stopped: Nanos,
    /// From "active" to the first instruction, after it had left because it had nothing to do.
    pub came: Nanos,
    /// From having nothing to do to "saved".
    pub left: Nanos,
}

impl Edges {
    /// Of an H200. SOURCE: measured, by the time stamps of kernels that fill it (p10, p50, p90 of 120 to 640 changes): resumed
    /// 36, 44, 50 us; stopped 97, 101, 107; came 4, 4, 4; left 58, 59, 59.
    pub const H200: Self = Self {
        resumed: Nanos::from_us(44),
        stopped: Nanos::from_us(101),
        came: Nanos::from_us(4),
        left: Nanos::from_us(59),
    };
    /// None.
    pub const NONE: Self = Self {
        resumed: Nanos::ZERO,
        stopped: Nanos::ZERO,
        came: Nanos::ZERO,
        left: Nanos::ZERO,
    };
}

/// Stretches that are remembered for [`Residency::resident_within`]: two seconds of 11,700 records a second, the most that
/// was measured.
const STRETCHES: usize = 1 << 14;

/// Processes that are nobody's and counted one by one; the rest is lost in the total.
const UNTRACKED_MAX: usize = 1024;

/// No more is made good of what was told wrongly: pauses that programs make now and then, and not the time until one who began, or stopped, was known to have.
/// SOURCE: replays of 55 recorded pairs, 6 s each: charges of 110 tenants are off by 0.128 % (root of the mean square) with 2 ms, 0.130 with 1.5, 0.128 with 3, 0.147 with 5, 0.177
/// without.
const OWED_MAX_NS: i64 = 2_000_000;
/// And so much more of pauses of which launches say whose they were.
const OWED_SURE_NS: i64 = 20_000_000;
/// The same of one who is alone, of whom counters say all; as long as that lasts. It is told two intervals of the counters later at most.
const OWED_ALONE_NS: i64 = 300_000_000;

/// What is on the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Occupant {
    /// Not known: the log begins, or has a hole.
    Unknown,
    /// A context of this process, since `from`; up to `told` it was told how much of its time was idle. It runs, or will
    /// from `told` on. It was seen without work.
    Resident {
        pid: u32,
        from: Moment,
        told: Moment,
        runs: bool,
        idle: bool,
    },
    /// Our own context, which makes somebody leave and computes nothing; what it did was told up to then.
    Own { told: Moment },
    /// None; the last was saved then.
    None { saved: Moment, told: bool },
}

/// A tenant was resident, or nobody was for longer than a switch.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    tenant: Option<TenantId>,
    from: Moment,
    to: Moment,
    /// It was idle for so long by the fractions of the time, without what was made good.
    idle: Nanos,
    /// It left in its first pause.
    unpaused: bool,
}

/// What a tenant was told wrongly.
#[derive(Clone, Copy, Debug, Default)]
struct Owed {
    /// It was idle for so much longer, in ns; negative: less.
    ns: i64,
    /// So much more than [`OWED_MAX_NS`] may be owed, as launches say of whose pause it was.
    sure_ns: i64,
}

impl Owed {
    const fn most_ns(self) -> i64 {
        OWED_MAX_NS + self.sure_ns
    }

    fn add(&mut self, more_ns: i64, most_ns: i64) {
        self.ns = self.ns.saturating_add(more_ns).clamp(-most_ns, most_ns);
    }
}

/// Turns records into the event meter's engine states.
#[derive(Debug)]
pub struct Residency {
    engine: EngineId,
    tenants: BTreeMap<u32, TenantId>,
    /// The process that makes others leave, when it was told to last, and when it was told that this is over.
    own: Option<u32>,
    own_takes: Moment,
    own_left: Moment,
    idle: BTreeMap<TenantId, f64>,
    occupant: Occupant,
    stretches: VecDeque<Stretch>,
    edges: Edges,
    /// Who is being held, and since when.
    held: BTreeMap<TenantId, Moment>,
    /// Those of them whose channels were suspended: what ran on them was stopped in the middle.
    suspended: BTreeSet<TenantId>,
    /// Residencies that ended because of that, and how long each is idle before.
    handovers: VecDeque<(TenantId, Moment)>,
    idle_at_handover: BTreeMap<TenantId, Nanos>,
    /// Fraction in which the engine processes launches.
    launching: BTreeMap<TenantId, f64>,
    /// Made good in what is told next.
    owed: BTreeMap<TenantId, Owed>,
    /// Who was stopped in the middle of his work when he was last resident.
    stopped: BTreeSet<TenantId>,
    /// What was told last.
    state: Option<EngineState>,
    /// Number of the record that should come next.
    next_record: Option<u64>,
    /// Number of the next event.
    next_event: u64,
    untracked: BTreeMap<u32, u64>,
}

impl Residency {
    /// Nobody is known.
    pub fn new(engine: EngineId, edges: Edges) -> Self {
        Self {
            edges,
            held: BTreeMap::new(),
            suspended: BTreeSet::new(),
            handovers: VecDeque::new(),
            idle_at_handover: BTreeMap::new(),
            launching: BTreeMap::new(),
            owed: BTreeMap::new(),
            stopped: BTreeSet::new(),
            state: None,
            engine,
            tenants: BTreeMap::new(),
            own: None,
            own_takes: Moment(0),
            own_left: Moment(0),
            idle: BTreeMap::new(),
            occupant: Occupant::Unknown,
            stretches: VecDeque::new(),
            next_record: None,
            next_event: 0,
            untracked: BTreeMap::new(),
        }
    }

    /// A process belongs to a tenant from now on.
    pub fn assign(&mut self, pid: u32, tenant: TenantId) {
        self.tenants.insert(pid, tenant);
        self.untracked.remove(&pid);
    }

    /// This process makes others leave the engine, and is nobody's: while it is there, contexts are being switched.
    pub fn set_own(&mut self, pid: Option<u32>) {
        self.own = pid;
    }

    /// That process was told to take the engine.
    pub fn own_takes(&mut self, at: Moment) {
        self.own_takes = at;
    }

    /// It was told that this is over: from then on it does nothing.
    pub fn own_leaves(&mut self, at: Moment) {
        self.own_left = at;
    }

    /// Whether it is that process.
    pub fn is_own(&self, pid: u32) -> bool {
        self.own == Some(pid)
    }

    /// A process is gone; its number may come back as somebody else.
    pub fn forget(&mut self, pid: u32) {
        self.tenants.remove(&pid);
        self.untracked.remove(&pid);
    }

    /// All processes of a tenant are nobody's any more; returns them.
    pub fn forget_tenant(&mut self, tenant: TenantId) -> Vec<u32> {
        self.idle.remove(&tenant);
        self.idle_at_handover.remove(&tenant);
        self.launching.remove(&tenant);
        self.owed.remove(&tenant);
        self.held.remove(&tenant);
        self.suspended.remove(&tenant);
        self.stopped.remove(&tenant);
        let gone = self.tenants.extract_if(.., |_, of| *of == tenant);
        gone.map(|(pid, _)| pid).collect()
    }

    #[cfg(test)]
    pub(super) fn remembers(&self, tenant: TenantId) -> bool {
        let idle = self.idle.contains_key(&tenant) || self.idle_at_handover.contains_key(&tenant);
        idle || self.launching.contains_key(&tenant) || self.owed.contains_key(&tenant)
    }

    /// The tenant of a process.
    pub fn tenant(&self, pid: u32) -> Option<TenantId> {
        self.tenants.get(&pid).copied()
    }

    /// Processes that used the engine and are nobody's, with how often they came.
    pub const fn untracked(&self) -> &BTreeMap<u32, u64> {
        &self.untracked
    }

    /// Who is resident now.
    pub fn resident(&self) -> Option<TenantId> {
        self.resident_since().map(|(tenant, _)| tenant)
    }

    /// The same, and since when.
    pub fn resident_since(&self) -> Option<(TenantId, Moment)> {
        match self.occupant {
            Occupant::Resident { pid, from, .. } => Some((self.owner(pid), from)),
            Occupant::Unknown | Occupant::Own { .. } | Occupant::None { .. } => None,
        }
    }

    /// Of those who are nobody's, who has ended is forgotten, unless the engine is his by what was read.
    pub fn forget_gone(&mut self, is_gone: impl Fn(u32) -> bool) {
        let here = match self.occupant {
            Occupant::Resident { pid, .. } => Some(pid),
            Occupant::Unknown | Occupant::Own { .. } | Occupant::None { .. } => None,
        };
        let stays = |pid: u32| here == Some(pid) || !is_gone(pid);
        self.untracked.retain(|pid, _| stays(*pid));
    }

    /// From now on this fraction of the tenant's residency counts as idle.
    pub fn set_idle_fraction(&mut self, tenant: TenantId, fraction: f64) {
        self.idle.insert(tenant, fraction.clamp(0.0, 1.0));
    }

    /// From now on this fraction of the tenant's residency is the processing of its launches, and counts as idle as well: none of its
    /// kernels runs in it.
    pub fn set_launching_fraction(&mut self, tenant: TenantId, fraction: f64) {
        self.launching.insert(tenant, fraction.clamp(0.0, 1.0));
    }

    /// From now on so much of a residency that ends because the tenant is held counts as idle.
    pub fn set_idle_at_handover(&mut self, tenant: TenantId, idle: Nanos) {
        self.idle_at_handover.insert(tenant, idle);
    }

    /// A tenant was idle for so much longer than was told; negative: less. Of that `sure_ns` was a pause that was certainly his.
    pub fn owe_idle(&mut self, tenant: TenantId, more_ns: i64, sure_ns: i64) {
        let owed = self.owed.entry(tenant).or_default();
        // What was made good of it is over.
        let left_ns = owed.sure_ns.min(owed.ns.abs());
        owed.sure_ns = left_ns.saturating_add(sure_ns).min(OWED_SURE_NS);
        owed.add(more_ns, owed.most_ns());
    }

    /// The same of one who was alone, which is all that was told wrongly.
    pub fn owe_idle_alone(&mut self, tenant: TenantId, more_ns: i64) {
        let owed = self.owed.entry(tenant).or_default();
        owed.add(more_ns, OWED_ALONE_NS);
    }

    /// For how much longer a tenant was idle than was told, and is made good while he is not alone, in ns; negative: less.
    pub fn owed_ns(&self, tenant: TenantId) -> i64 {
        let owed = self.owed.get(&tenant).copied().unwrap_or_default();
        owed.ns.clamp(-owed.most_ns(), owed.most_ns())
    }

    /// What a tenant is owed is forgotten.
    pub fn owe_nothing(&mut self, tenant: TenantId) {
        self.owed.remove(&tenant);
    }

    /// For how long each tenant was told to be idle while it was resident within an interval of the last two seconds, without what was made good.
    pub fn told_idle_within(&self, from: Moment, to: Moment) -> BTreeMap<TenantId, f64> {
        let mut sums = BTreeMap::new();
        for (stretch, part) in self.within(from, to) {
            if let Some(tenant) = stretch.tenant {
                let of_it = part.0 as f64 / stretch.to.since(stretch.from).0 as f64;
                *sums.entry(tenant).or_default() += stretch.idle.0 as f64 * of_it;
            }
        }
        sums
    }

    /// A tenant is being held since then, or (none) may run.
    pub fn set_held(&mut self, tenant: TenantId, since: Option<Moment>) {
        if let Some(since) = since {
            self.held.entry(tenant).or_insert(since);
        } else {
            self.held.remove(&tenant);
            self.suspended.remove(&tenant);
        }
    }

    /// A tenant that is being held is stopped wherever it is, and not left to run until another comes.
    pub fn suspend(&mut self, tenant: TenantId) {
        self.suspended.insert(tenant);
    }

    /// Whether a tenant is being held.
    pub fn is_held(&self, tenant: TenantId) -> bool {
        self.held.contains_key(&tenant)
    }

    /// How many residencies of each tenant ended within an interval of the last two seconds because it is held.
    pub fn handovers_within(&self, from: Moment, to: Moment) -> BTreeMap<TenantId, u32> {
        let mut counts = BTreeMap::new();
        for (tenant, at) in self.handovers.iter().rev() {
            if *at <= from {
                break;
            }
            if *at <= to {
                *counts.entry(*tenant).or_default() += 1;
            }
        }
        counts
    }

    /// How long each tenant was resident within an interval of the last two seconds, and (as none) how long nobody was,
    /// switches aside.
    pub fn resident_within(&self, from: Moment, to: Moment) -> BTreeMap<Option<TenantId>, Nanos> {
        let mut sums = BTreeMap::new();
        for (stretch, part) in self.within(from, to) {
            *sums.entry(stretch.tenant).or_default() += part;
        }
        sums
    }

    /// So much of that was of tenants who left in their first pause.
    pub fn unpaused_within(&self, from: Moment, to: Moment) -> BTreeMap<TenantId, Nanos> {
        let mut sums = BTreeMap::new();
        for (stretch, part) in self.within(from, to) {
            if let Some(tenant) = stretch.tenant.filter(|_| stretch.unpaused) {
                *sums.entry(tenant).or_default() += part;
            }
        }
        sums
    }

    /// How long one was resident within such an interval.
    pub fn resident_of(&self, tenant: TenantId, from: Moment, to: Moment) -> Nanos {
        let own = |(stretch, _): &(&Stretch, Nanos)| stretch.tenant == Some(tenant);
        let parts = self.within(from, to).filter(own).map(|(_, part)| part.0);
        Nanos(parts.sum())
    }

    /// Who was resident then.
    pub fn resident_at(&self, at: Moment) -> Option<TenantId> {
        let (stretch, _) = self.within(at, at + Nanos(1)).next()?;
        stretch.tenant
    }

    /// Stretches that lie in an interval, and how much of each, the last first.
    fn within(&self, from: Moment, to: Moment) -> impl Iterator<Item = (&Stretch, Nanos)> {
        let late = self.stretches.iter().rev();
        let late = late.take_while(move |stretch| stretch.to > from);
        let part = move |stretch: &Stretch| stretch.to.min(to).since(stretch.from.max(from));
        let parts = late.map(move |stretch| (stretch, part(stretch)));
        parts.filter(|(_, part)| *part > Nanos::ZERO)
    }

    /// Takes the next record of the log.
    pub fn take(&mut self, record: &SwitchRecord, events: &mut Vec<SwitchEvent>) {
        let expected = self.next_record.unwrap_or(record.seq);
        let missing = record.seq.saturating_sub(expected);
        self.next_record = Some(record.seq + 1);
        if missing > 0 {
            // The meter sees the same hole, and takes what lies in it as unobserved.
            self.next_event += missing;
            self.lose();
        }
        match record.change {
            Change::Active => self.came(record, events),
            Change::Saved => self.left(record, events),
        }
    }

    fn came(&mut self, record: &SwitchRecord, events: &mut Vec<SwitchEvent>) {
        let (at, pid) = (record.at, record.pid);
        self.settle(at, events);
        if self.is_own(pid) {
            self.tell(at, EngineState::Switching, events);
            self.occupant = Occupant::Own { told: at };
            return;
        }
        let owner = self.owner(pid);
        for (_, owed) in self.owed.iter_mut().filter(|(other, _)| **other != owner) {
            // He is not alone any more.
            owed.add(0, owed.most_ns());
        }
        let tracked = self.tenants.contains_key(&pid);
        if !tracked && (self.untracked.len() < UNTRACKED_MAX || self.untracked.contains_key(&pid)) {
            *self.untracked.entry(pid).or_default() += 1;
        }
        let restore = if self.stopped.contains(&owner) {
            self.edges.resumed
        } else {
            self.edges.came
        };
        if restore > Nanos::ZERO {
            self.tell(at, EngineState::Switching, events);
        }
        self.occupant = Occupant::Resident {
            pid,
            from: at,
            told: at + restore,
            runs: false,
            idle: false,
        };
        self.settle(at, events);
    }

    fn left(&mut self, record: &SwitchRecord, events: &mut Vec<SwitchEvent>) {
        let at = record.at;
        if let Occupant::Resident {
            pid, from, idle, ..
        } = self.occupant
        {
            let tenant = self.owner(pid);
            let held = self.held.get(&tenant).is_some_and(|since| *since <= at);
            let length = at.since(from);
            let save = if !idle && self.was_stopped(tenant, length, held) {
                self.stopped.insert(tenant);
                self.edges.stopped
            } else {
                self.stopped.remove(&tenant);
                self.edges.left
            };
            let end = Moment(at.0.saturating_sub(save.0));
            // Who is stopped in the middle of a kernel does not pause before.
            if held && !self.suspended.contains(&tenant) {
                self.hand_over(tenant, end, events);
            }
            if length < SWITCH_MAX && !held {
                // Somebody waited: he left in his first pause.
                self.work(end, events);
            }
            self.settle(end, events);
            if let Occupant::Resident { told, runs, .. } = self.occupant
                && runs
            {
                self.tell(told.max(end), EngineState::Switching, events);
            }
        } else {
            // One that comes without its "active" still says that its context has left; and so does our own.
            self.settle(at, events);
            self.tell(at, EngineState::Switching, events);
        }
        let told = false;
        self.occupant = Occupant::None { saved: at, told };
    }

    /// Whether one who leaves after so long is in the middle of his work.
    fn was_stopped(&self, tenant: TenantId, length: Nanos, held: bool) -> bool {
        let idle = self.idle.get(&tenant).copied().unwrap_or(0.0);
        if held && self.suspended.contains(&tenant) {
            return idle < MOSTLY_IDLE;
        }
        let expired = TIME_SLICE + self.edges.stopped;
        if length < expired {
            return false; // another waits, and he had nothing to do
        }
        // Nobody else leaves just then.
        let just = length < expired + EXPIRY && !held;
        just || idle < LONG_KERNELS
    }

    /// A residency so far had no pause.
    fn work(&mut self, end: Moment, events: &mut Vec<SwitchEvent>) {
        if let Occupant::Resident {
            pid,
            told,
            runs,
            idle: false,
            ..
        } = &mut self.occupant
            && *told < end
        {
            let from = std::mem::replace(told, end);
            *runs = true;
            let tenant = self.tenants.get(pid).copied().unwrap_or(UNTRACKED);
            self.tell(from, EngineState::Running(tenant), events);
            self.remember(Some(tenant), from, end, Nanos::ZERO);
            if let Some(last) = self.stretches.back_mut() {
                last.unpaused = true;
            }
        }
    }

    /// A residency that ends then because the tenant is held.
    fn hand_over(&mut self, tenant: TenantId, end: Moment, events: &mut Vec<SwitchEvent>) {
        if self.handovers.len() == STRETCHES {
            self.handovers.pop_front();
        }
        self.handovers.push_back((tenant, end));
        let idle = self.idle_at_handover.get(&tenant).copied();
        let from = Moment(end.0.saturating_sub(idle.unwrap_or_default().0));
        self.settle(from, events);
        if let Occupant::Resident {
            told,
            runs: true,
            idle: false,
            ..
        } = &mut self.occupant
            && *told < end
        {
            let from = std::mem::replace(told, end);
            self.tell(from, EngineState::Idle, events);
            self.remember(Some(tenant), from, end, end.since(from));
        }
    }

    /// Records were lost behind the last one that was taken. The meter has to be told as well, so that it does not charge
    /// what the last one began.
    pub fn lose(&mut self) {
        self.occupant = Occupant::Unknown;
        self.state = None;
    }

    /// All records until `now` were taken: tells how much of a residency so far was idle; an engine that has been without a
    /// context for longer than a switch is idle.
    pub fn settle(&mut self, now: Moment, events: &mut Vec<SwitchEvent>) {
        match self.occupant {
            Occupant::None { saved, told: false } if now.since(saved) > SWITCH_MAX => {
                self.occupant = Occupant::None { saved, told: true };
                self.tell(saved + SWITCH_MAX, EngineState::Idle, events);
                self.remember(None, saved + SWITCH_MAX, now, Nanos::ZERO);
            }
            Occupant::None { saved, told: true } => {
                let last = self.stretches.back();
                let from = last.map_or(saved, |last| last.to).max(saved);
                self.remember(None, from, now, Nanos::ZERO);
            }
            Occupant::Own { told } => {
                // While it is there to make somebody leave, the engine works, by its counters, as while it changes contexts.
                let end = self.own_left.min(now).max(told);
                if self.own_left >= self.own_takes && end < now {
                    self.tell(end, EngineState::Idle, events);
                    self.remember(None, end, now, Nanos::ZERO);
                }
                self.occupant = Occupant::Own {
                    told: now.max(told),
                };
            }
            Occupant::Resident {
                pid,
                from,
                told,
                runs,
                idle,
            } if now > told || (now == told && !runs) => {
                let tenant = self.owner(pid);
                if !runs {
                    self.tell(told, EngineState::Running(tenant), events);
                }
                if idle {
                    self.remember(None, told, now, Nanos::ZERO);
                } else {
                    self.tell_residency(tenant, told, now, events);
                }
                self.occupant = Occupant::Resident {
                    pid,
                    from,
                    told: now,
                    runs: true,
                    idle,
                };
            }
            _ => {}
        }
    }

    /// A stretch of a residency that goes on.
    fn tell_residency(
        &mut self,
        tenant: TenantId,
        from: Moment,
        to: Moment,
        events: &mut Vec<SwitchEvent>,
    ) {
        let length = to.since(from);
        let part = |fractions: &BTreeMap<TenantId, f64>| {
            let fraction = fractions.get(&tenant).copied().unwrap_or(0.0);
            // CAST: a part of the length.
            Nanos((length.0 as f64 * fraction) as u64)
        };
        let paused = part(&self.idle);
        let usual = (paused + part(&self.launching)).min(length);
        let idle = self.make_good(tenant, usual, length);
        let running = EngineState::Running(tenant);
        // What is told last counts on until more is told; the next stretch begins with the same.
        if idle.0 > length.0 / 2 {
            self.tell(from, EngineState::Idle, events);
            if idle < length {
                self.tell(from + idle, running, events);
            }
            self.tell(to, EngineState::Idle, events);
        } else {
            self.tell(from, running, events);
            if idle > Nanos::ZERO {
                self.tell(from + (length - idle), EngineState::Idle, events);
            }
            self.tell(to, running, events);
        }
        self.remember(Some(tenant), from, to, paused);
    }

    /// How long to tell of a stretch as idle, which would be so much of it, so that what is owed is less.
    fn make_good(&mut self, tenant: TenantId, usual: Nanos, length: Nanos) -> Nanos {
        let Some(owed) = self.owed.get_mut(&tenant) else {
            return usual;
        };
        let idle = Nanos(usual.0.saturating_add_signed(owed.ns)).min(length);
        // CAST: at most what is owed.
        owed.ns -= idle.0.cast_signed() - usual.0.cast_signed();
        idle
    }

    /// Since when this tenant is resident, if it is, and was not seen without work.
    pub fn works_since(&self, tenant: TenantId) -> Option<Moment> {
        match self.occupant {
            Occupant::Resident {
                pid,
                from,
                idle: false,
                ..
            } if self.owner(pid) == tenant => Some(from),
            _ => None,
        }
    }

    /// The engine was seen without work, since about `at`, while this tenant is resident.
    pub fn idle(&mut self, tenant: TenantId, at: Moment, events: &mut Vec<SwitchEvent>) {
        self.turn(tenant, at, true, events);
    }

    /// The engine was seen at work again at `at`, while this tenant is resident.
    pub fn busy(&mut self, tenant: TenantId, at: Moment, events: &mut Vec<SwitchEvent>) {
        self.turn(tenant, at, false, events);
    }

    fn turn(&mut self, tenant: TenantId, at: Moment, to: bool, events: &mut Vec<SwitchEvent>) {
        let told = match self.occupant {
            Occupant::Resident {
                pid, told, idle, ..
            } if self.owner(pid) == tenant && idle != to => told,
            // Nothing new: the log may not have been read since, and somebody else may have come.
            _ => return,
        };
        // What was told stands; who has just come and stopped at once was there.
        let at = at.max(told);
        self.settle(at, events);
        if let Occupant::Resident { idle, .. } = &mut self.occupant {
            *idle = to;
        }
        let state = if to {
            EngineState::Idle
        } else {
            EngineState::Running(tenant)
        };
        self.tell(at, state, events);
    }

    /// Whether whoever is resident was seen without work, and not at work since.
    pub const fn is_idle(&self) -> bool {
        matches!(self.occupant, Occupant::Resident { idle: true, .. })
    }

    fn remember(&mut self, tenant: Option<TenantId>, from: Moment, to: Moment, idle: Nanos) {
        if to <= from {
            return;
        }
        if self.stretches.len() == STRETCHES {
            self.stretches.pop_front();
        }
        self.stretches.push_back(Stretch {
            tenant,
            from,
            to,
            idle,
            unpaused: false,
        });
    }

    fn owner(&self, pid: u32) -> TenantId {
        self.tenant(pid).unwrap_or(UNTRACKED)
    }

    fn tell(&mut self, at: Moment, state: EngineState, events: &mut Vec<SwitchEvent>) {
        if self.state.replace(state) == Some(state) {
            return;
        }
        events.push(SwitchEvent {
            at,
            engine: self.engine,
            seq: self.next_event,
            state,
        });
        self.next_event += 1;
    }
}

#[cfg(test)]
mod tests;
