//! From records of the context-switch log to the states of the compute engine. Pure.
//!
//! ```text
//!   active(pid) --> Switching, then Running(tenant of pid) -- saved --> Switching
//!        ^                                                                 |
//!        '------------- within SWITCH_MAX ---------------------------------+--> Idle
//! ```
//!
//! "Active" is logged when the state of a context was loaded, "saved" when it was stored. Its
//! kernels do not run for a while after the one and before the other ([`Edges`]): that time is
//! switching, and is charged to no tenant.
//!
//! In: records, and the tenant of each process. Out: states in order of time, numbered, with a gap
//! in the numbers where records are missing. Called by [`crate::sharing`] at each look.

use turnstile_accounting::{EngineState, Moment, Nanos, SwitchEvent, TenantId};
use turnstile_gpu::COMPUTE;

use crate::events::{Change, SwitchRecord};
use crate::models::Edges;

/// After a context was saved and none was loaded for this time, the engine is idle since then.
/// SOURCE: a switch takes 0.15 ms.
const SWITCH_MAX: Nanos = Nanos::from_us(300);
/// The preemptor's context stays on the engine when no other follows: later than this the engine is
/// idle. SOURCE: suspending a tenant, for which it is taken, takes 1.04 ms at most (74 times).
const TAKEN_MAX: Nanos = Nanos::from_us(1_200);

/// What is known of a process when a record of it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// It belongs to a tenant.
    Tenant {
        /// The tenant.
        tenant: TenantId,
        /// The time slice of its channel groups.
        slice: Nanos,
        /// Since when it is held: the kernels on the engine then are stopped wherever they are.
        held: Option<Moment>,
    },
    /// The preemptor's: for a moment after its context came, contexts are being switched.
    Preemptor,
    /// It belongs to no tenant.
    Unknown,
}

/// What is on the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Occupant {
    /// Not known: the log begins, or has a hole.
    Unknown,
    /// A context of this process, from the record on.
    Resident { pid: u32, from: Moment },
    /// The preemptor's, from the record on.
    Preemptor { pid: u32, from: Moment },
    /// None since this context was saved.
    None { saved: Moment },
}

/// The states of the engine, from its log.
#[derive(Debug)]
pub(crate) struct ContextSwitches {
    edges: Edges,
    occupant: Occupant,
    /// Processes that were stopped in the middle of their work when they were last saved.
    stopped: Vec<u32>,
    next_record: Option<u64>,
    next_event: u64,
    last: Moment,
    events: Vec<SwitchEvent>,
}

impl ContextSwitches {
    /// Of a GPU with contexts of these edges. The time of processes without a tenant is that of
    /// [`TenantId::UNTRACKED`].
    pub(crate) const fn new(edges: Edges) -> Self {
        Self {
            edges,
            occupant: Occupant::Unknown,
            stopped: Vec::new(),
            next_record: None,
            next_event: 0,
            last: Moment(0),
            events: Vec::new(),
        }
    }

    /// The process with the resident context, and since when, by the records so far.
    pub(crate) const fn resident(&self) -> Option<(u32, Moment)> {
        match self.occupant {
            Occupant::Resident { pid, from } | Occupant::Preemptor { pid, from } => {
                Some((pid, from))
            }
            Occupant::Unknown | Occupant::None { .. } => None,
        }
    }

    /// Takes a record of a process with this owner.
    pub(crate) fn take(&mut self, record: SwitchRecord, owner: Owner) {
        if self.next_record.is_some_and(|next| next != record.seq) {
            self.lose();
        }
        self.next_record = Some(record.seq + 1);
        match record.change {
            Change::Active => self.active(record, owner),
            Change::Saved => self.saved(record, owner),
        }
    }

    /// Records behind the last one are missing.
    pub(crate) fn lose(&mut self) {
        self.occupant = Occupant::Unknown;
        self.next_event += 1;
    }

    /// Another log follows, which numbers its records by itself.
    pub(crate) fn begin_anew(&mut self) {
        self.lose();
        self.next_record = None;
        self.stopped.clear();
    }

    /// All records up to `until` were read.
    pub(crate) fn settle(&mut self, until: Moment) {
        let idle_from = match self.occupant {
            Occupant::None { saved } => (until.since(saved) > SWITCH_MAX).then_some(saved),
            Occupant::Preemptor { from, .. } => {
                (until.since(from) > TAKEN_MAX).then(|| from + TAKEN_MAX)
            }
            Occupant::Unknown | Occupant::Resident { .. } => None,
        };
        if let Some(at) = idle_from {
            self.push(at, EngineState::Idle);
        }
    }

    /// Moves the states so far to the end of `events`.
    pub(crate) fn drain(&mut self) -> std::vec::Drain<'_, SwitchEvent> {
        self.events.drain(..)
    }

    /// A process has ended.
    pub(crate) fn forget(&mut self, pid: u32) {
        self.stopped.retain(|stopped| *stopped != pid);
    }

    fn active(&mut self, SwitchRecord { at, pid, .. }: SwitchRecord, owner: Owner) {
        self.settle(at);
        self.occupant = match owner {
            Owner::Preemptor => Occupant::Preemptor { pid, from: at },
            Owner::Tenant { .. } | Owner::Unknown => Occupant::Resident { pid, from: at },
        };
        self.push(at, EngineState::Switching);
        let running = match owner {
            Owner::Tenant { tenant, .. } => tenant,
            Owner::Unknown => TenantId::UNTRACKED,
            Owner::Preemptor => return,
        };
        let was_stopped = self.stopped.contains(&pid);
        self.stopped.retain(|stopped| *stopped != pid);
        let edge = if was_stopped {
            self.edges.resumed
        } else {
            self.edges.came
        };
        self.push(at + edge, EngineState::Running(running));
    }

    fn saved(&mut self, SwitchRecord { at, pid, .. }: SwitchRecord, owner: Owner) {
        if matches!(self.occupant, Occupant::Preemptor { .. }) {
            self.settle(at);
        }
        let from = self.resident().filter(|(resident, _)| *resident == pid);
        let from = from.map(|(_, from)| from);
        self.occupant = Occupant::None { saved: at };
        let stopped = match (owner, from) {
            (
                Owner::Tenant {
                    held: Some(since), ..
                },
                _,
            ) if at >= since => true,
            (Owner::Tenant { slice, .. }, Some(from)) => {
                at.since(from) > slice + self.edges.expiry()
            }
            (Owner::Tenant { .. }, None) => true,
            (Owner::Preemptor | Owner::Unknown, _) => false,
        };
        let edge = if stopped {
            self.edges.stopped
        } else {
            self.edges.left
        };
        if stopped {
            self.stopped.push(pid);
        }
        // Without the record before it, the beginning of the residency is not known.
        if from.is_some() {
            self.push(Moment(at.0.saturating_sub(edge.0)), EngineState::Switching);
        }
    }

    /// A state begins, no earlier than the one before.
    fn push(&mut self, at: Moment, state: EngineState) {
        self.last = self.last.max(at);
        self.events.push(SwitchEvent {
            at: self.last,
            engine: COMPUTE,
            seq: self.next_event,
            state,
        });
        self.next_event += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use turnstile_accounting::meter::{Case, WorkedMeter};
    use turnstile_accounting::{Reading, Window};

    const UNKNOWN: TenantId = TenantId::UNTRACKED;

    /// Processes 1 to 3 are tenants, 7 is the preemptor, others are unknown.
    fn owner(pid: u32) -> Owner {
        match pid {
            1..=3 => Owner::Tenant {
                tenant: TenantId(pid),
                slice: Nanos::from_us(2_048),
                held: None,
            },
            7 => Owner::Preemptor,
            _ => Owner::Unknown,
        }
    }

    fn record(seq: u64, at_us: u64, pid: u32, change: Change) -> SwitchRecord {
        SwitchRecord {
            seq,
            at: Moment(at_us * 1_000),
            pid,
            context: pid,
            change,
        }
    }

    /// How long each tenant was resident in the first `to_us`, by these records.
    fn resident_us(records: &[(u64, u32, Change)], to_us: u64) -> Vec<(u32, u64)> {
        let mut switches = ContextSwitches::new(Edges::H200);
        for (seq, (at_us, pid, change)) in (0..).zip(records) {
            switches.take(record(seq, *at_us, *pid, *change), owner(*pid));
        }
        switches.settle(Moment(to_us * 1_000));
        let mut meter = WorkedMeter::new(COMPUTE);
        switches.drain().for_each(|event| meter.switched(event));
        let from = Moment(records[0].0 * 1_000);
        let window = Window::starting(from, Moment(to_us * 1_000).since(from));
        let worked = meter.close(window, None, Case::default());
        let of = |reading: &Reading| (reading.tenant.0, reading.resident.unwrap().0 / 1_000);
        worked.readings.iter().map(of).collect()
    }

    #[test]
    fn another_log_begins_behind_one_gap_and_with_no_context() {
        let mut switches = ContextSwitches::new(Edges::H200);
        switches.take(record(40, 1_000, 1, Change::Active), owner(1));
        assert_eq!(switches.resident(), Some((1, Moment(1_000_000))));
        let before: Vec<u64> = switches.drain().map(|event| event.seq).collect();
        switches.begin_anew();
        assert_eq!(switches.resident(), None);
        // Its records have numbers of their own.
        switches.take(record(0, 5_000, 2, Change::Active), owner(2));
        switches.take(record(1, 6_000, 2, Change::Saved), owner(2));
        let after: Vec<u64> = switches.drain().map(|event| event.seq).collect();
        let gap = before.last().unwrap() + 2;
        let expected: Vec<u64> = (gap..).take(after.len()).collect();
        assert!(
            !after.is_empty() && after == expected,
            "{before:?} {after:?}"
        );
    }

    #[test]
    fn edges_of_a_residency_are_switching() {
        let records = [
            (1_000, 1, Change::Active),
            (2_000, 1, Change::Saved),
            (2_010, 2, Change::Active),
        ];
        // 4 us after "active" and 59 us before "saved" of a context that left by itself.
        assert_eq!(resident_us(&records, 3_000), [(1, 937), (2, 986)]);
    }

    #[test]
    fn a_context_that_is_stopped_in_a_kernel_has_longer_edges() {
        let records = [
            (1_000, 1, Change::Active),
            (3_150, 1, Change::Saved),
            (3_160, 2, Change::Active),
            (4_160, 2, Change::Saved),
            (4_170, 1, Change::Active),
        ];
        let first = 2_150 - 4 - 101;
        let again = 5_000 - 4_170 - 44;
        assert_eq!(resident_us(&records, 5_000)[0], (1, first + again));
    }

    #[test]
    fn the_preemptor_is_switching_and_an_unknown_process_is_not_a_tenant() {
        let records = [
            (1_000, 7, Change::Active),
            (1_500, 7, Change::Saved),
            (1_510, 50, Change::Active),
        ];
        assert_eq!(resident_us(&records, 2_000), [(UNKNOWN.0, 486)]);
    }

    #[test]
    fn the_engine_is_idle_where_the_preemptor_stays_and_its_time_reduces_no_charge() {
        let mut switches = ContextSwitches::new(Edges::H200);
        switches.take(record(0, 0, 1, Change::Active), owner(1));
        switches.take(record(1, 10_000, 1, Change::Saved), owner(1));
        switches.take(record(2, 10_010, 7, Change::Active), owner(7));
        switches.settle(Moment(20_000_000));
        let mut meter = WorkedMeter::new(COMPUTE);
        switches.drain().for_each(|event| meter.switched(event));
        let window = Window::starting(Moment(0), Nanos::from_ms(20));
        // The tenant worked for all of its 10 ms, and the engine for the switch.
        let worked = meter.close(window, Some(Nanos::from_us(11_200)), Case::default());
        let engine = &worked.usage.engines[0];
        let close = |is: Nanos, us: u64| is.0.abs_diff(us * 1_000) <= 100_000;
        assert!(close(engine.idle_ns, 8_790), "{engine:?}");
        assert!(close(engine.switching_ns, 1_270), "{engine:?}");
        assert!(
            close(worked.readings[0].worked.unwrap(), 9_930),
            "{engine:?}"
        );
        // It is switching again from just before the next context comes.
        switches.take(record(3, 20_010, 7, Change::Saved), owner(7));
        switches.take(record(4, 20_020, 1, Change::Active), owner(1));
        switches.drain().for_each(|event| meter.switched(event));
        let next = Window::starting(Moment(20_000_000), Nanos::from_ms(1));
        let worked = meter.close(next, Some(Nanos::from_ms(1)), Case::default());
        assert!(close(worked.usage.engines[0].switching_ns, 24));
    }

    #[test]
    fn after_a_hole_the_engine_is_unknown_until_the_next_record() {
        let mut switches = ContextSwitches::new(Edges::H200);
        switches.take(record(0, 1_000, 1, Change::Active), owner(1));
        switches.take(record(5, 9_000, 2, Change::Active), owner(2));
        let mut meter = WorkedMeter::new(COMPUTE);
        switches.drain().for_each(|event| meter.switched(event));
        let window = Window::starting(Moment(1_000_000), Nanos::from_ms(10));
        let worked = meter.close(window, Some(Nanos::from_ms(10)), Case::default());
        let engine = &worked.usage.engines[0];
        assert!(engine.unobserved_ns >= Nanos::from_us(7_000), "{engine:?}");
    }

    proptest! {
        /// Whatever is logged, states are in order of time.
        #[test]
        fn states_are_in_order(
            records in prop::collection::vec((0_u64..20, 0_u64..3_000, 0_u32..9, any::<bool>()), 1..60),
        ) {
            let mut switches = ContextSwitches::new(Edges::H200);
            let (mut seq, mut at_us) = (0, 0);
            for (skipped, after_us, pid, active) in records {
                seq += 1 + skipped / 18;
                at_us += after_us;
                let change = if active { Change::Active } else { Change::Saved };
                switches.take(record(seq, at_us, pid, change), owner(pid));
                switches.settle(Moment(at_us * 1_000));
            }
            let events: Vec<_> = switches.drain().collect();
            let ordered = |two: &[SwitchEvent]| two[0].at <= two[1].at && two[0].seq < two[1].seq;
            prop_assert!(events.windows(2).all(ordered));
        }
    }
}
