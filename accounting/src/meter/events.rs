//! The event meter: exact time from a log of engine states.
//!
//! Each record begins a state that lasts until the next one. Where the log has a hole, the time
//! between the records on both sides is unobserved: the known state ended somewhere in it.

use super::{Meter, Observation};
use crate::state::{EngineState, SwitchEvent};
use crate::units::{EngineId, Moment, Nanos};
use crate::usage::{Anomalies, EngineUsage, Signals, Usage};
use crate::window::Window;
use std::collections::VecDeque;

/// Default number of records kept per engine between two windows.
const CAPACITY: usize = 1 << 20;

/// Accounts a context-switch log.
#[derive(Debug)]
pub struct EventMeter {
    engines: Vec<Timeline>,
    capacity: usize,
    anomalies: Anomalies,
}

/// A state that began at a moment; `None` if it is unknown.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Moment,
    state: Option<EngineState>,
}

/// One engine's log from the end of the last window on.
#[derive(Debug)]
struct Timeline {
    engine: EngineId,
    /// The state at `closed`, and when it began.
    current: Mark,
    /// The end of the last window.
    closed: Moment,
    /// Marks after `closed`, in order of time.
    ahead: VecDeque<Mark>,
    next_seq: Option<u64>,
    /// Time that may be charged wrongly because records were late or missing.
    misplaced: Nanos,
}

impl EventMeter {
    /// A meter of `engines`, which are unobserved until their first record.
    pub fn new(engines: impl IntoIterator<Item = EngineId>) -> Self {
        Self::with_capacity(engines, CAPACITY)
    }

    /// A meter that keeps at most `capacity` records per engine between two windows; further
    /// records are dropped and accounted as a hole in the log.
    pub fn with_capacity(engines: impl IntoIterator<Item = EngineId>, capacity: usize) -> Self {
        let mut engines: Vec<_> = engines.into_iter().map(Timeline::new).collect();
        engines.sort_by_key(|e| e.engine);
        engines.dedup_by_key(|e| e.engine);
        Self {
            engines,
            capacity,
            anomalies: Anomalies::default(),
        }
    }

    /// The log of `engine` begins anew (reset, restart of the log). Its state is unknown from its
    /// last record on, and its sequence numbers may start anywhere.
    pub fn restart(&mut self, engine: EngineId) {
        if let Some(line) = self.engines.iter_mut().find(|e| e.engine == engine) {
            line.lose();
            line.next_seq = None;
        }
    }
}

impl Meter for EventMeter {
    fn signals(&self) -> Signals {
        Signals::Events
    }

    fn observe(&mut self, observation: Observation) {
        if let Observation::Switch(event) = observation
            && let Some(line) = self.engines.iter_mut().find(|e| e.engine == event.engine)
        {
            line.take(event, self.capacity, &mut self.anomalies);
        } else {
            self.anomalies.foreign += 1;
        }
    }

    fn close(&mut self, window: Window) -> Usage {
        Usage {
            window,
            signals: Signals::Events,
            engines: self
                .engines
                .iter_mut()
                .map(|line| line.close(window))
                .collect(),
            copied: None,
            anomalies: core::mem::take(&mut self.anomalies),
        }
    }
}

impl Timeline {
    fn new(engine: EngineId) -> Self {
        Self {
            engine,
            current: Mark {
                at: Moment(0),
                state: None,
            },
            closed: Moment(0),
            ahead: VecDeque::new(),
            next_seq: None,
            misplaced: Nanos::ZERO,
        }
    }

    fn take(&mut self, event: SwitchEvent, capacity: usize, anomalies: &mut Anomalies) {
        if self.ahead.len() >= capacity {
            return; // the next record that fits will show the hole
        }
        if let Some(expected) = self.next_seq {
            if event.seq < expected {
                anomalies.duplicates += 1;
                return;
            }
            if event.seq > expected {
                anomalies.lost += event.seq - expected;
                self.lose();
            }
        }
        self.next_seq = Some(event.seq.saturating_add(1));
        let earliest = self.ahead.back().map_or(self.closed, |last| last.at);
        if event.at < earliest {
            anomalies.out_of_order += 1;
            self.misplaced += earliest.since(event.at);
        }
        self.ahead.push_back(Mark {
            at: event.at.max(earliest),
            state: Some(event.state),
        });
    }

    /// The state that the latest record began has ended at an unknown moment.
    fn lose(&mut self) {
        match self.ahead.back_mut() {
            Some(last) => last.state = None,
            None if self.current.state.is_some() => {
                // Part of that state may have been charged in windows that are closed.
                self.misplaced += self.closed.since(self.current.at);
                self.current = Mark {
                    at: self.closed,
                    state: None,
                };
            }
            None => {}
        }
    }

    fn close(&mut self, window: Window) -> EngineUsage {
        let mut usage = EngineUsage::empty(self.engine);
        // What a window has before the end of the last one is unobserved.
        let mut now = self.closed.clamp(window.from(), window.to());
        usage.unobserved_ns += now.since(window.from());
        if self.closed < window.from() {
            self.advance(window.from());
            now = window.from();
        }
        while now < window.to() {
            let until = self
                .ahead
                .front()
                .map_or(window.to(), |next| next.at.min(window.to()));
            charge(&mut usage, self.current.state, until.since(now));
            now = now.max(until);
            if self
                .ahead
                .front()
                .is_some_and(|next| next.at <= now && now < window.to())
            {
                // PANIC: front() was Some.
                self.current = self.ahead.pop_front().unwrap();
                if let Some(EngineState::Running(tenant)) = self.current.state {
                    usage.entry(tenant).begun += 1;
                }
            }
        }
        self.advance(window.to());
        usage.error_bound_ns = usage.unobserved_ns + core::mem::take(&mut self.misplaced);
        usage
    }

    /// Drops the marks before `to`.
    fn advance(&mut self, to: Moment) {
        while let Some(next) = self.ahead.front().filter(|next| next.at < to).copied() {
            self.current = next;
            self.ahead.pop_front();
        }
        self.closed = self.closed.max(to);
    }
}

/// Charges `length` in `state`.
fn charge(usage: &mut EngineUsage, state: Option<EngineState>, length: Nanos) {
    match state {
        None => usage.unobserved_ns += length,
        Some(EngineState::Idle) => usage.idle_ns += length,
        Some(EngineState::Switching) => usage.switching_ns += length,
        Some(EngineState::Fault(tenant)) => usage.entry(tenant).fault_ns += length,
        Some(EngineState::Running(tenant)) => {
            let entry = usage.entry(tenant);
            entry.used_ns += length;
            entry.turns += u64::from(length > Nanos::ZERO);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::TenantId;
    use crate::usage::Metric;
    use EngineState::{Fault, Idle, Running, Switching};
    use proptest::prelude::*;

    const CE: EngineId = EngineId(1);
    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);

    fn meter(records: &[(u64, u64, EngineState)]) -> EventMeter {
        let mut meter = EventMeter::new([CE]);
        for &(seq, at, state) in records {
            meter.observe(Observation::Switch(SwitchEvent {
                at: Moment(at),
                engine: CE,
                seq,
                state,
            }));
        }
        meter
    }

    fn window(from: u64, to: u64) -> Window {
        Window::new(Moment(from), Moment(to)).unwrap()
    }

    #[test]
    fn a_complete_log_is_accounted_exactly() {
        let log = [
            (0, 0, Idle),
            (1, 10, Switching),
            (2, 13, Running(A)),
            (3, 40, Fault(A)),
            (4, 45, Running(B)),
        ];
        let mut meter = meter(&log);
        let first = meter.close(window(0, 30));
        let second = meter.close(window(30, 50));
        assert_eq!(first.tenant_ns(A, Metric::Total), Nanos(17));
        assert_eq!(
            (first.engines[0].idle_ns, first.engines[0].switching_ns),
            (Nanos(10), Nanos(3))
        );
        assert_eq!(second.tenant_ns(A, Metric::Total), Nanos(10));
        assert_eq!(second.engines[0].fault_ns(), Nanos(5));
        assert_eq!(second.tenant_ns(B, Metric::Total), Nanos(5));
        assert_eq!(second.engines[0].error_bound_ns, Nanos::ZERO);
    }

    #[test]
    fn records_beyond_the_window_wait_for_the_next() {
        let mut meter = meter(&[(0, 0, Running(A)), (1, 150, Running(B))]);
        assert_eq!(
            meter.close(window(0, 100)).tenant_ns(A, Metric::Total),
            Nanos(100)
        );
        let second = meter.close(window(100, 200));
        assert_eq!(second.tenant_ns(A, Metric::Total), Nanos(50));
        assert_eq!(second.tenant_ns(B, Metric::Total), Nanos(50));
    }

    #[test]
    fn a_residency_that_spans_windows_starts_once() {
        let mut meter = meter(&[(0, 0, Running(A)), (1, 250, Running(B))]);
        let parts: Vec<_> = (0..4)
            .flat_map(|n| meter.close(window(n * 100, n * 100 + 100)).engines)
            .flat_map(|engine| engine.tenants)
            .collect();
        let sum = |tenant, of: fn(&crate::usage::TenantUsage) -> u64| -> u64 {
            parts.iter().filter(|p| p.tenant == tenant).map(of).sum()
        };
        assert_eq!((sum(A, |p| p.begun), sum(B, |p| p.begun)), (1, 1));
        assert_eq!(sum(A, |p| p.turns), 3);
    }

    fn of(usage: &Usage, tenant: TenantId) -> (u64, u64, u64) {
        let mut tenants = usage.engines[0].tenants.iter();
        let of = tenants.find(|of| of.tenant == tenant);
        of.map_or((0, 0, 0), |of| (of.used_ns.0, of.begun, of.turns))
    }

    #[test]
    fn a_residency_begins_in_the_window_that_its_record_begins() {
        let mut meter = meter(&[(0, 0, Idle), (1, 100, Running(A)), (2, 130, Idle)]);
        assert_eq!(of(&meter.close(window(0, 100)), A), (0, 0, 0));
        assert_eq!(of(&meter.close(window(100, 200)), A), (30, 1, 1));
    }

    #[test]
    fn residencies_between_two_windows_are_in_neither() {
        let log = [
            (0, 0, Idle),
            (1, 110, Running(B)),
            (2, 120, Running(A)),
            (3, 200, Running(B)),
        ];
        let mut meter = meter(&log);
        meter.close(window(0, 100));
        // A is resident as the window begins, and B begins with it.
        let usage = meter.close(window(200, 300));
        assert_eq!((of(&usage, A), of(&usage, B)), ((0, 0, 0), (100, 1, 1)));
    }

    #[test]
    fn a_residency_without_length_is_no_turn() {
        let mut meter = meter(&[(0, 0, Idle), (1, 10, Running(A)), (2, 10, Idle)]);
        assert_eq!(of(&meter.close(window(0, 100)), A), (0, 1, 0));
    }

    #[test]
    fn a_state_that_was_lost_is_not_lost_again() {
        let mut meter = meter(&[(0, 0, Running(A))]);
        meter.close(window(0, 100));
        meter.restart(CE);
        // The state may have ended anywhere in the first window.
        let second = meter.close(window(100, 200));
        assert_eq!(second.engines[0].error_bound_ns, Nanos(200));
        meter.restart(CE);
        let third = meter.close(window(200, 300));
        assert_eq!(third.engines[0].error_bound_ns, Nanos(100));
    }

    #[test]
    fn observations_that_it_cannot_use_are_counted() {
        let mut meter = EventMeter::new([CE]);
        for engine in [EngineId(7), EngineId(8)] {
            meter.observe(Observation::Switch(SwitchEvent {
                at: Moment(0),
                engine,
                seq: 0,
                state: Idle,
            }));
        }
        assert_eq!(meter.close(window(0, 10)).anomalies.foreign, 2);
    }

    #[test]
    fn a_hole_in_the_log_is_unobserved_on_both_sides() {
        let mut meter = meter(&[(0, 0, Running(A)), (1, 10, Running(B)), (5, 60, Idle)]);
        let usage = meter.close(window(0, 100));
        assert_eq!(usage.tenant_ns(A, Metric::Total), Nanos(10));
        assert_eq!(usage.tenant_ns(B, Metric::Total), Nanos::ZERO);
        assert_eq!(usage.engines[0].unobserved_ns, Nanos(50));
        assert_eq!(usage.engines[0].error_bound_ns, Nanos(50));
        assert_eq!(usage.anomalies.lost, 3);
    }

    #[test]
    fn a_hole_found_after_its_window_widens_the_next_bound() {
        let mut meter = meter(&[(0, 0, Running(A))]);
        meter.close(window(0, 40));
        meter.observe(Observation::Switch(SwitchEvent {
            at: Moment(50),
            engine: CE,
            seq: 9,
            state: Idle,
        }));
        let usage = meter.close(window(40, 100));
        assert_eq!(usage.engines[0].unobserved_ns, Nanos(10));
        assert_eq!(usage.engines[0].error_bound_ns, Nanos(50));
    }

    #[test]
    fn old_records_are_clamped_and_repeated_ones_dropped() {
        let mut meter = meter(&[
            (0, 0, Running(A)),
            (1, 30, Running(B)),
            (2, 25, Idle),
            (2, 40, Running(A)),
        ]);
        let usage = meter.close(window(0, 50));
        assert_eq!(
            (usage.anomalies.out_of_order, usage.anomalies.duplicates),
            (1, 1)
        );
        assert_eq!(usage.engines[0].idle_ns, Nanos(20));
        assert_eq!(usage.engines[0].error_bound_ns, Nanos(5));
    }

    #[test]
    fn an_overflowing_log_becomes_a_hole() {
        let mut meter = EventMeter::with_capacity([CE], 2);
        let record = |seq, at| SwitchEvent {
            at: Moment(at),
            engine: CE,
            seq,
            state: Running(A),
        };
        for seq in 0..4 {
            meter.observe(Observation::Switch(record(seq, seq * 10)));
        }
        meter.close(window(0, 15));
        meter.observe(Observation::Switch(record(4, 40)));
        let usage = meter.close(window(15, 50));
        assert_eq!(usage.anomalies.lost, 2);
        assert_eq!(usage.engines[0].unobserved_ns, Nanos(25));
    }

    #[test]
    fn a_restarted_log_counts_from_anywhere() {
        let mut meter = meter(&[(7, 0, Running(A)), (8, 10, Idle)]);
        meter.restart(CE);
        let again = SwitchEvent {
            at: Moment(30),
            engine: CE,
            seq: 0,
            state: Running(B),
        };
        meter.observe(Observation::Switch(again));
        let usage = meter.close(window(0, 40));
        assert_eq!(usage.engines[0].unobserved_ns, Nanos(20));
        assert_eq!(usage.tenant_ns(B, Metric::Total), Nanos(10));
        assert_eq!(usage.anomalies.duplicates, 0);
    }

    fn any_state() -> impl Strategy<Value = EngineState> {
        prop_oneof![
            Just(Idle),
            Just(Switching),
            (0u32..3).prop_map(|t| Running(TenantId(t))),
            (0u32..3).prop_map(|t| Fault(TenantId(t))),
        ]
    }

    proptest! {
        /// Whatever the log and the windows are, every nanosecond is accounted once.
        #[test]
        fn conservation_under_any_log(
            records in prop::collection::vec((0u64..40, 0u64..2_000, any_state()), 0..50),
            windows in prop::collection::vec((0u64..2_000, 0u64..700), 1..6),
        ) {
            let mut meter = meter(&records);
            for (from, length) in windows {
                let usage = meter.close(window(from, from + length));
                prop_assert_eq!(usage.engines[0].accounted_ns(), Nanos(length));
            }
        }

        /// Cutting a stretch of time into windows does not change a tenant's sum.
        #[test]
        fn windows_add_up(
            steps in prop::collection::vec((0u64..50, any_state()), 1..60),
            cuts in prop::collection::vec(0u64..1_500, 0..8),
        ) {
            let mut at = 0;
            let log: Vec<_> = steps.iter().enumerate().map(|(seq, &(step, state))| {
                let record = (seq as u64, at, state);
                at += step;
                record
            }).collect();
            let mut cuts = cuts;
            cuts.extend([0, 1_500]);
            cuts.sort_unstable();
            let whole = meter(&log).close(window(0, 1_500));
            let mut parts = meter(&log);
            let mut sums = [Nanos::ZERO; 3];
            for cut in cuts.windows(2) {
                let usage = parts.close(window(cut[0], cut[1]));
                for (t, sum) in sums.iter_mut().enumerate() {
                    *sum += usage.tenant_ns(TenantId(t as u32), Metric::Total);
                }
            }
            for (t, &sum) in sums.iter().enumerate() {
                prop_assert_eq!(sum, whole.tenant_ns(TenantId(t as u32), Metric::Total));
            }
        }
    }
}
