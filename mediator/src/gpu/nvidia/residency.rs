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
//! stretch of residency is told as running for the rest of it, then idle. Where somebody waits, the engine's status register
//! tells longer pauses at once: [`Residency::idle`], [`Residency::busy`].

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
const TIME_SLICE: Nanos = Nanos::from_us(2_048);

/// Whose residency is idle for less than this has kernels that are longer than time slices, so that he is stopped in the middle
/// of one. SOURCE: measured: from one launch and wait to the next, 9 us of an H200 are idle.
const LONG_KERNELS: f64 = 0.003;

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
    /// None; the last was saved then.
    None { saved: Moment, told: bool },
}

/// A tenant was resident, or nobody was for longer than a switch.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    tenant: Option<TenantId>,
    from: Moment,
    to: Moment,
}

/// Turns records into the event meter's engine states.
#[derive(Debug)]
pub struct Residency {
    engine: EngineId,
    tenants: BTreeMap<u32, TenantId>,
    idle: BTreeMap<TenantId, f64>,
    occupant: Occupant,
    stretches: VecDeque<Stretch>,
    edges: Edges,
    /// Who is being held, and since when.
    held: BTreeMap<TenantId, Moment>,
    /// Residencies that ended because of that, and how long each is idle before.
    handovers: VecDeque<(TenantId, Moment)>,
    idle_at_handover: BTreeMap<TenantId, Nanos>,
    /// Fraction in which the engine processes launches.
    launching: BTreeMap<TenantId, f64>,
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
            handovers: VecDeque::new(),
            idle_at_handover: BTreeMap::new(),
            launching: BTreeMap::new(),
            stopped: BTreeSet::new(),
            state: None,
            engine,
            tenants: BTreeMap::new(),
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
        self.held.remove(&tenant);
        self.stopped.remove(&tenant);
        let gone = self.tenants.extract_if(.., |_, of| *of == tenant);
        gone.map(|(pid, _)| pid).collect()
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
        match self.occupant {
            Occupant::Resident { pid, .. } => Some(self.owner(pid)),
            Occupant::Unknown | Occupant::None { .. } => None,
        }
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

    /// A tenant is being held since then, or (none) may run.
    pub fn set_held(&mut self, tenant: TenantId, since: Option<Moment>) {
        if let Some(since) = since {
            self.held.entry(tenant).or_insert(since);
        } else {
            self.held.remove(&tenant);
        }
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
        for stretch in self.stretches.iter().rev() {
            if stretch.to <= from {
                break;
            }
            let part = stretch.to.min(to).since(stretch.from.max(from));
            if part > Nanos::ZERO {
                *sums.entry(stretch.tenant).or_default() += part;
            }
        }
        sums
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
        let tracked = self.tenants.contains_key(&pid);
        if !tracked && (self.untracked.len() < UNTRACKED_MAX || self.untracked.contains_key(&pid)) {
            *self.untracked.entry(pid).or_default() += 1;
        }
        let restore = if self.stopped.contains(&self.owner(pid)) {
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
        if let Occupant::Resident { pid, from, .. } = self.occupant {
            let tenant = self.owner(pid);
            let busy = self.idle.get(&tenant).copied().unwrap_or(0.0) < LONG_KERNELS;
            let save = if busy && at.since(from) >= TIME_SLICE {
                self.stopped.insert(tenant);
                self.edges.stopped
            } else {
                self.stopped.remove(&tenant);
                self.edges.left
            };
            let end = Moment(at.0.saturating_sub(save.0));
            if self.held.get(&tenant).is_some_and(|since| *since <= at) {
                self.hand_over(tenant, end, events);
            }
            self.settle(end, events);
            if let Occupant::Resident { told, runs, .. } = self.occupant
                && runs
            {
                self.tell(told.max(end), EngineState::Switching, events);
            }
        } else {
            // One that comes without its "active" still says that its context has left.
            self.settle(at, events);
            self.tell(at, EngineState::Switching, events);
        }
        let told = false;
        self.occupant = Occupant::None { saved: at, told };
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
            self.remember(Some(tenant), from, end);
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
                self.remember(None, saved + SWITCH_MAX, now);
            }
            Occupant::None { saved, told: true } => {
                let last = self.stretches.back();
                let from = last.map_or(saved, |last| last.to).max(saved);
                self.remember(None, from, now);
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
                    self.remember(None, told, now);
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
        let of = |fractions: &BTreeMap<TenantId, f64>| fractions.get(&tenant).copied();
        let fraction = of(&self.idle).unwrap_or(0.0) + of(&self.launching).unwrap_or(0.0);
        // CAST: a part of the length.
        let idle = Nanos((length.0 as f64 * fraction) as u64).min(length);
        if idle > Nanos::ZERO {
            self.tell(from + (length - idle), EngineState::Idle, events);
            self.tell(to, EngineState::Running(tenant), events);
        }
        self.remember(Some(tenant), from, to);
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
        if self.resident() != Some(tenant) {
            return;
        }
        self.settle(at, events);
        if let Occupant::Resident {
            told,
            idle,
            runs: true,
            ..
        } = &mut self.occupant
            && std::mem::replace(idle, to) != to
        {
            let at = (*told).max(at);
            *told = at;
            let state = if to {
                EngineState::Idle
            } else {
                EngineState::Running(tenant)
            };
            self.tell(at, state, events);
        }
    }

    fn remember(&mut self, tenant: Option<TenantId>, from: Moment, to: Moment) {
        if to <= from {
            return;
        }
        if self.stretches.len() == STRETCHES {
            self.stretches.pop_front();
        }
        self.stretches.push_back(Stretch { tenant, from, to });
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
mod tests {
    use super::*;
    use EngineState::{Idle, Running, Switching};
    use proptest::prelude::*;
    use turnstile_accounting::{EventMeter, Meter, Observation, Window};

    const ENGINE: EngineId = EngineId(0);
    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);

    fn record(seq: u64, us: u64, pid: u32, change: Change) -> SwitchRecord {
        SwitchRecord {
            seq,
            at: Moment(us * 1000),
            pid,
            context: pid + 100,
            change,
        }
    }

    fn residency() -> Residency {
        let mut residency = Residency::new(ENGINE, Edges::NONE);
        residency.assign(10, A);
        residency.assign(11, A);
        residency.assign(20, B);
        residency
    }

    fn states(events: &[SwitchEvent]) -> Vec<(u64, EngineState)> {
        events
            .iter()
            .map(|event| (event.at.0 / 1000, event.state))
            .collect()
    }

    #[test]
    fn contexts_of_all_processes_of_a_tenant_are_its_time() {
        let mut residency = residency();
        let mut events = Vec::new();
        let log = [
            record(0, 100, 10, Change::Active),
            record(1, 300, 10, Change::Saved),
            record(2, 380, 11, Change::Active),
            record(3, 400, 11, Change::Saved),
            record(4, 480, 30, Change::Active),
        ];
        for record in &log {
            residency.take(record, &mut events);
        }
        let expected = [
            (100, Running(A)),
            (300, Switching),
            (380, Running(A)),
            (400, Switching),
            (480, Running(UNTRACKED)),
        ];
        assert_eq!(states(&events), expected);
        assert_eq!(residency.untracked().get(&30), Some(&1));
        residency.assign(30, B);
        assert!(residency.untracked().is_empty());
    }

    #[test]
    fn an_engine_without_a_context_is_idle_after_a_switch() {
        let mut residency = residency();
        let mut events = Vec::new();
        residency.take(&record(0, 100, 10, Change::Active), &mut events);
        residency.take(&record(1, 200, 10, Change::Saved), &mut events);
        residency.settle(Moment(400_000), &mut events);
        assert_eq!(events.len(), 2);
        residency.settle(Moment(900_000), &mut events);
        residency.settle(Moment(950_000), &mut events);
        residency.take(&record(2, 1000, 20, Change::Active), &mut events);
        assert_eq!(states(&events)[2..], [(500, Idle), (1000, Running(B))]);
    }

    #[test]
    fn a_second_signal_takes_idle_time_out_of_residency() {
        let mut residency = residency();
        residency.set_idle_fraction(A, 0.25);
        let mut events = Vec::new();
        residency.take(&record(0, 100, 10, Change::Active), &mut events);
        residency.settle(Moment(500_000), &mut events);
        residency.settle(Moment(500_000), &mut events);
        residency.take(&record(1, 900, 10, Change::Saved), &mut events);
        residency.take(&record(2, 950, 20, Change::Active), &mut events);
        residency.settle(Moment(1_350_000), &mut events);
        let expected = [
            (100, Running(A)),
            (400, Idle),
            (500, Running(A)),
            (800, Idle),
            (900, Running(A)),
            (900, Switching),
            (950, Running(B)),
        ];
        assert_eq!(states(&events), expected);
        let resident =
            |from: u64, to: u64| residency.resident_within(Moment(from * 1000), Moment(to * 1000));
        let us = Nanos::from_us;
        assert_eq!(
            resident(0, 2000),
            [(Some(A), us(800)), (Some(B), us(400))].into()
        );
        assert_eq!(
            resident(400, 1000),
            [(Some(A), us(500)), (Some(B), us(50))].into()
        );
        assert!(resident(901, 949).is_empty(), "switching");
        residency.take(&record(3, 1400, 20, Change::Saved), &mut events);
        residency.settle(Moment(1_800_000), &mut events);
        residency.settle(Moment(2_000_000), &mut events);
        assert_eq!(states(&events)[7..], [(1400, Switching), (1700, Idle)]);
        let resident = residency.resident_within(Moment(1_400_000), Moment(3_000_000));
        assert_eq!(resident, [(None, us(300))].into());
    }

    #[test]
    fn an_engine_that_was_seen_idle_is_idle_until_it_is_seen_at_work() {
        let mut residency = residency();
        residency.set_idle_fraction(A, 0.5);
        let mut events = Vec::new();
        residency.take(&record(0, 100, 10, Change::Active), &mut events);
        residency.idle(B, Moment(150_000), &mut events);
        assert_eq!(events.len(), 1, "not resident");
        residency.idle(A, Moment(300_000), &mut events);
        residency.idle(A, Moment(350_000), &mut events);
        residency.settle(Moment(400_000), &mut events);
        residency.busy(A, Moment(500_000), &mut events);
        residency.take(&record(1, 600, 10, Change::Saved), &mut events);
        let expected = [
            (100, Running(A)),
            (200, Idle),
            (300, Running(A)),
            (300, Idle),
            (500, Running(A)),
            (550, Idle),
            (600, Running(A)),
            (600, Switching),
        ];
        assert_eq!(states(&events), expected);
        let resident = residency.resident_within(Moment(0), Moment(600_000));
        let us = Nanos::from_us;
        assert_eq!(resident, [(Some(A), us(300)), (None, us(200))].into());
    }

    #[test]
    fn a_hole_in_the_log_is_nobodys_time() {
        let mut residency = residency();
        let mut events = Vec::new();
        residency.take(&record(0, 100, 10, Change::Active), &mut events);
        residency.take(&record(5, 900, 20, Change::Active), &mut events);
        let mut meter = EventMeter::new([ENGINE]);
        for event in events {
            meter.observe(Observation::Switch(event));
        }
        let usage = meter.close(Window::new(Moment(100_000), Moment(1_000_000)).unwrap());
        assert_eq!(usage.engines[0].unobserved_ns, Nanos::from_us(800));
        assert_eq!(usage.anomalies.lost, 4);
    }

    #[test]
    fn a_log_that_ends_in_a_hole_is_not_taken_as_idle() {
        let mut residency = residency();
        let mut events = Vec::new();
        let mut meter = EventMeter::new([ENGINE]);
        residency.take(&record(0, 100, 10, Change::Active), &mut events);
        residency.take(&record(1, 200, 10, Change::Saved), &mut events);
        for event in events.drain(..) {
            meter.observe(Observation::Switch(event));
        }
        residency.lose();
        meter.restart(ENGINE);
        residency.settle(Moment(1_000_000), &mut events);
        assert!(events.is_empty());
        let usage = meter.close(Window::new(Moment(100_000), Moment(1_000_000)).unwrap());
        assert_eq!(usage.engines[0].unobserved_ns, Nanos::from_us(800));
        assert_eq!(usage.engines[0].idle_ns, Nanos::ZERO);
    }

    #[test]
    fn a_context_stands_still_at_the_edges_of_its_residency() {
        let mut residency = Residency::new(ENGINE, Edges::H200);
        residency.assign(10, A);
        residency.assign(20, B);
        let mut events = Vec::new();
        residency.take(&record(0, 1_000, 10, Change::Active), &mut events);
        // Nothing is told that may yet turn out to be an edge.
        residency.settle(Moment(1_003_000), &mut events);
        assert_eq!(states(&events), [(1_000, Switching)]);
        residency.settle(Moment(1_100_000), &mut events);
        residency.take(&record(1, 1_500, 10, Change::Saved), &mut events);
        residency.take(&record(2, 1_580, 20, Change::Active), &mut events);
        residency.settle(Moment(1_584_000), &mut events);
        let expected = [
            (1_000, Switching),
            (1_004, Running(A)),
            (1_441, Switching),
            (1_584, Running(B)),
        ];
        assert_eq!(states(&events), expected);
        // Its time slice ran out in the middle of a kernel.
        residency.take(&record(3, 4_000, 20, Change::Saved), &mut events);
        residency.take(&record(4, 4_084, 20, Change::Active), &mut events);
        residency.settle(Moment(4_200_000), &mut events);
        assert_eq!(
            states(&events)[4..],
            [(3_899, Switching), (4_128, Running(B))]
        );
        // One that launches and waits is not stopped in the middle.
        residency.set_idle_fraction(B, 0.01);
        residency.take(&record(5, 9_000, 20, Change::Saved), &mut events);
        // Shorter than its edges.
        residency.take(&record(6, 9_084, 10, Change::Active), &mut events);
        residency.take(&record(7, 9_110, 10, Change::Saved), &mut events);
        residency.settle(Moment(9_150_000), &mut events);
        let end = states(&events).last().copied();
        assert_eq!(end, Some((8_941, Switching)));
        let resident = residency.resident_within(Moment(0), Moment(9_200_000));
        let us = Nanos::from_us;
        let expected = [
            (Some(A), us(1_441 - 1_004)),
            (Some(B), us(3_899 - 1_584 + 8_941 - 4_128)),
        ];
        assert_eq!(resident, expected.into());
    }

    #[test]
    fn who_is_held_is_idle_for_a_moment_before_he_leaves() {
        let mut residency = Residency::new(ENGINE, Edges::NONE);
        residency.assign(10, A);
        residency.set_idle_fraction(A, 0.1);
        residency.set_idle_at_handover(A, Nanos::from_us(300));
        let mut events = Vec::new();
        residency.take(&record(0, 1_000, 10, Change::Active), &mut events);
        residency.take(&record(1, 2_000, 10, Change::Saved), &mut events);
        residency.take(&record(2, 3_000, 10, Change::Active), &mut events);
        residency.set_held(A, Some(Moment(4_000_000)));
        residency.take(&record(3, 4_300, 10, Change::Saved), &mut events);
        let expected = [
            (1_000, Running(A)),
            (1_900, Idle),
            (2_000, Running(A)),
            (2_000, Switching),
            (2_300, Idle),
            (3_000, Running(A)),
            (3_900, Idle),
            (4_000, Running(A)),
            (4_000, Idle),
            (4_300, Switching),
        ];
        assert_eq!(states(&events), expected);
        let count =
            |from: u64, to: u64| residency.handovers_within(Moment(from * 1000), Moment(to * 1000));
        assert_eq!(count(0, 5_000), [(A, 1)].into());
        assert!(count(0, 4_000).is_empty() && count(4_300, 5_000).is_empty());
    }

    proptest! {
        /// Law 1, whatever the log says.
        #[test]
        fn every_nanosecond_is_somebodys(edges in prop::bool::ANY, log in prop::collection::vec((0u64..3, 0u64..700, 9u32..22, any::<bool>()), 0..60), idle in 0.0..1.5) {
            let mut residency = residency();
            if edges {
                residency.edges = Edges::H200;
            }
            residency.set_idle_fraction(A, idle);
            residency.set_idle_at_handover(A, Nanos((idle * 300_000.0) as u64));
            let mut events = Vec::new();
            let (mut seq, mut at) = (0, 0);
            for (jump, later, pid, active) in log {
                seq += 1 + jump;
                at += later;
                let change = if active { Change::Active } else { Change::Saved };
                residency.take(&record(seq, at, pid, change), &mut events);
                residency.set_held(A, (jump == 1).then_some(Moment(at * 1000)));
            }
            residency.settle(Moment(at * 1000 + 500_000), &mut events);
            prop_assert!(events.is_sorted_by_key(|event| event.at));
            prop_assert!(events.windows(2).all(|pair| pair[0].seq < pair[1].seq));
            let mut meter = EventMeter::new([ENGINE]);
            for event in events {
                meter.observe(Observation::Switch(event));
            }
            let window = Window::new(Moment(0), Moment(at * 1000 + 600_000)).unwrap();
            let usage = meter.close(window);
            prop_assert_eq!(usage.engines[0].accounted_ns(), window.length());
        }
    }
}
