//! From contexts that come and go to who has the engine. Pure.
//!
//! ```text
//!   active(pid, context) -> Running(tenant of pid) -- saved --> Switching -- nobody came within a switch --> Idle
//!            ^------------------- active ----------------------------'                                        |
//!            '--------------------------------------------- active -------------------------------------------'
//! ```
//!
//! # Resident is not running
//! A context that has nothing to do stays on the engine until another needs it; a tenant that is alone makes no records at
//! all. So "active" bounds its time from above. The second signal are the counters of the whole engine
//! ([`super::utilisation`]): they say how much of the resident time was idle, and [`Residency::set_idle_fraction`] whose. A
//! stretch of residency is told as running for the rest of it, then idle. Where somebody waits, the engine's status register
//! tells longer pauses at once: [`Residency::idle`], [`Residency::busy`].

use std::collections::{BTreeMap, VecDeque};

use turnstile_accounting::{EngineId, EngineState, Moment, Nanos, SwitchEvent, TenantId};

use super::events::{Change, SwitchRecord};

/// Stands for all processes that nobody made a tenant: their time is accounted, and shown as theirs.
pub const UNTRACKED: TenantId = TenantId(u32::MAX);

/// After a context was saved and for so long none came, the engine counts as idle from then on.
///
/// SOURCE: a switch between two busy contexts took about 80 us (facts sheet section 1); this is a few of them.
pub const SWITCH_MAX: Nanos = Nanos::from_us(300);

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
    /// A context of this process; up to `told` it was told how much of its time was idle. It was seen without work.
    Resident {
        pid: u32,
        context: u32,
        told: Moment,
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
    /// Number of the record that should come next.
    next_record: Option<u64>,
    /// Number of the next event.
    next_event: u64,
    untracked: BTreeMap<u32, u64>,
}

impl Residency {
    /// Nobody is known.
    pub fn new(engine: EngineId) -> Self {
        Self {
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
            self.occupant = Occupant::Unknown;
        }
        self.settle(record.at, events);
        let SwitchRecord { pid, context, .. } = *record;
        match record.change {
            Change::Active => {
                let tracked = self.tenants.contains_key(&pid);
                if !tracked
                    && (self.untracked.len() < UNTRACKED_MAX || self.untracked.contains_key(&pid))
                {
                    *self.untracked.entry(pid).or_default() += 1;
                }
                let (told, idle) = (record.at, false);
                self.occupant = Occupant::Resident {
                    pid,
                    context,
                    told,
                    idle,
                };
                let state = EngineState::Running(self.owner(pid));
                self.tell(record.at, state, events);
            }
            Change::Saved => {
                // One that comes without its "active" still says that its context has left.
                let (saved, told) = (record.at, false);
                self.occupant = Occupant::None { saved, told };
                self.tell(record.at, EngineState::Switching, events);
            }
        }
    }

    /// Records were lost behind the last one that was taken. The meter has to be told as well, so that it does not charge
    /// what the last one began.
    pub fn lose(&mut self) {
        self.occupant = Occupant::Unknown;
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
                context,
                told,
                idle,
            } if now > told => {
                let tenant = self.owner(pid);
                if idle {
                    self.remember(None, told, now);
                } else {
                    self.tell_residency(tenant, told, now, events);
                }
                self.occupant = Occupant::Resident {
                    pid,
                    context,
                    told: now,
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
        let fraction = self.idle.get(&tenant).copied().unwrap_or(0.0);
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
        if let Occupant::Resident { told, idle, .. } = &mut self.occupant
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
        let mut residency = Residency::new(ENGINE);
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

    proptest! {
        /// Law 1, whatever the log says.
        #[test]
        fn every_nanosecond_is_somebodys(log in prop::collection::vec((0u64..3, 0u64..700, 9u32..22, any::<bool>()), 0..60), idle in 0.0..1.5) {
            let mut residency = residency();
            residency.set_idle_fraction(A, idle);
            let mut events = Vec::new();
            let (mut seq, mut at) = (0, 0);
            for (jump, later, pid, active) in log {
                seq += 1 + jump;
                at += later;
                let change = if active { Change::Active } else { Change::Saved };
                residency.take(&record(seq, at, pid, change), &mut events);
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
