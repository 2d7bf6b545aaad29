//! Logs of a few records, and any.

use super::*;
use EngineState::{Idle, Running, Switching};
use proptest::prelude::*;
use turnstile_accounting::{EventMeter, Meter, Metric, Observation, Window};

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
    residency.forget_gone(|_| true);
    assert_eq!(residency.untracked().get(&30), Some(&1), "it is there");
    residency.take(&record(5, 500, 30, Change::Saved), &mut events);
    residency.forget_gone(|_| false);
    assert_eq!(residency.untracked().get(&30), Some(&1));
    residency.forget_gone(|pid| pid == 30);
    assert!(residency.untracked().is_empty());
    residency.take(&record(6, 600, 30, Change::Active), &mut events);
    residency.assign(30, B);
    assert!(residency.untracked().is_empty());
}

#[test]
fn who_makes_others_leave_is_nobody() {
    let mut residency = residency();
    residency.set_own(Some(40));
    let mut events = Vec::new();
    // It makes its context; nobody has told it anything.
    residency.take(&record(0, 20, 40, Change::Active), &mut events);
    residency.settle(Moment(40_000), &mut events);
    residency.take(&record(1, 50, 40, Change::Saved), &mut events);
    assert_eq!(
        states(&events),
        [(20, Switching), (20, Idle), (50, Switching)]
    );
    events.clear();
    residency.take(&record(2, 100, 10, Change::Active), &mut events);
    residency.own_takes(Moment(2_900_000));
    residency.take(&record(3, 3_000, 10, Change::Saved), &mut events);
    residency.take(&record(4, 3_080, 40, Change::Active), &mut events);
    assert_eq!(residency.resident(), None);
    residency.settle(Moment(3_200_000), &mut events);
    // The driver's call preempts it; it is told that it is over a moment later.
    residency.take(&record(5, 3_300, 40, Change::Saved), &mut events);
    residency.take(&record(6, 3_380, 40, Change::Active), &mut events);
    residency.own_leaves(Moment(3_500_000));
    residency.settle(Moment(5_000_000), &mut events);
    residency.settle(Moment(6_000_000), &mut events);
    residency.take(&record(7, 7_000, 40, Change::Saved), &mut events);
    residency.take(&record(8, 7_080, 20, Change::Active), &mut events);
    residency.settle(Moment(7_100_000), &mut events);
    let expected = [
        (100, Running(A)),
        (3_000, Switching),
        (3_500, Idle),
        (7_000, Switching),
        (7_080, Running(B)),
    ];
    assert_eq!(states(&events), expected);
    assert!(residency.untracked().is_empty(), "it is known");
    // For the counters the engine worked meanwhile, and then had nobody.
    let (us, all) = (Nanos::from_us, Moment(8_000_000));
    let resident = residency.resident_within(Moment(0), all);
    let expected = [
        (Some(A), us(2_900)),
        (None, us(30 + 3_500)),
        (Some(B), us(20)),
    ];
    assert_eq!(resident, expected.into());
    // Another with its number may come later.
    residency.set_own(None);
    residency.take(&record(9, 8_000, 20, Change::Saved), &mut events);
    residency.take(&record(10, 8_080, 40, Change::Active), &mut events);
    assert_eq!(residency.untracked().get(&40), Some(&1));
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

/// As the daemon charges: at the end of each period it is known what was until a little before.
#[test]
fn who_is_idle_for_a_part_of_his_stay_is_charged_for_the_rest_whatever_the_part() {
    const PERIOD: u64 = 10_000_000;
    const LATE: u64 = 600_000;
    for idle in [0.0, 0.05, 0.5, 0.9, 0.97, 1.0] {
        let mut residency = residency();
        residency.set_idle_fraction(A, idle);
        let mut meter = EventMeter::new([ENGINE]);
        let mut events = Vec::new();
        residency.take(&record(0, 0, 10, Change::Active), &mut events);
        let mut charged = 0;
        for period in 0..100 {
            let (from, to) = (period * PERIOD, (period + 1) * PERIOD);
            residency.settle(Moment(to - LATE), &mut events);
            for event in events.drain(..) {
                meter.observe(Observation::Switch(event));
            }
            let window = Window::starting(Moment(from), Nanos(PERIOD));
            let usage = meter.close(window);
            charged += usage.tenant_ns(A, turnstile_accounting::Metric::Total).0;
        }
        let part = charged as f64 / (100 * PERIOD) as f64;
        assert!((part - (1.0 - idle)).abs() < 0.002, "{idle}: {part}");
    }
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

/// A is resident from 0 to `ms`, told each 10 ms; how long it ran.
fn ran_ms(residency: &mut Residency, ms: u64) -> f64 {
    let mut events = Vec::new();
    residency.take(&record(0, 0, 10, Change::Active), &mut events);
    (1..=ms / 10).for_each(|times| residency.settle(Moment(times * 10_000_000), &mut events));
    let mut meter = EventMeter::new([ENGINE]);
    for event in events {
        meter.observe(Observation::Switch(event));
    }
    let usage = meter.close(Window::starting(Moment(0), Nanos::from_ms(ms)));
    usage.tenant_ns(A, Metric::Total).0 as f64 / 1e6
}

#[test]
fn what_was_told_wrongly_is_made_good_in_what_is_told_next() {
    let ran = |owed_us: i64| {
        let mut residency = residency();
        residency.set_idle_fraction(A, 0.1);
        residency.owe_idle(A, owed_us * 1000, 0);
        let owed_ns = residency.owed_ns(A);
        let ran = ran_ms(&mut residency, 50);
        let made_good_ns = owed_ns - residency.owed_ns(A);
        assert_eq!(ran, 45.0 - made_good_ns as f64 / 1e6);
        let told = residency.told_idle_within(Moment(0), Moment(50_000_000));
        assert!((told[&A] - 5e6).abs() < 10.0, "what was believed: {told:?}");
        let half = residency.told_idle_within(Moment(5_000_000), Moment(15_000_000));
        assert!((half[&A] - 1e6).abs() < 10.0, "{half:?}");
        ran
    };
    assert_eq!(ran(0), 45.0);
    assert_eq!(ran(1_500), 43.5);
    assert_eq!(ran(-1_500), 46.5, "in the pauses of two stretches");
    assert_eq!(ran(900_000), 43.0, "no more than that");
    assert_eq!(ran(-900_000), 47.0);
    let mut residency = residency();
    residency.owe_idle(A, -1_000_000, 0);
    assert_eq!(
        ran_ms(&mut residency, 50),
        50.0,
        "who never pauses runs for no longer than he is there"
    );
    residency.owe_nothing(A);
    residency.set_idle_fraction(A, 0.1);
    let mut events = Vec::new();
    residency.settle(Moment(60_000_000), &mut events);
    assert_eq!(events.len(), 2, "{events:?}");
}

#[test]
fn of_one_who_is_alone_all_that_was_told_wrongly_is_made_good_until_another_comes() {
    let mut residency = residency();
    residency.owe_idle_alone(A, 20_000_000);
    assert_eq!(ran_ms(&mut residency, 50), 30.0);
    for (owed_ns, left_ns) in [(-40_000_000, -2_000_000), (40_000_000, 2_000_000)] {
        residency.owe_nothing(A);
        residency.owe_idle_alone(A, owed_ns);
        assert_eq!(residency.owed[&A].ns, owed_ns);
        assert_eq!(residency.owed_ns(A), left_ns, "what counts beside others");
        let seq = residency.next_record.unwrap_or_default();
        let comes = SwitchRecord {
            seq,
            at: Moment(60_000_000),
            pid: 20,
            context: 20,
            change: Change::Active,
        };
        residency.take(&comes, &mut Vec::new());
        assert_eq!(residency.owed[&A].ns, left_ns, "he is not alone any more");
    }
}

#[test]
fn a_pause_that_was_certainly_his_is_made_good_whoever_comes() {
    let mut residency = residency();
    residency.owe_idle(A, 9_000_000, 8_000_000);
    let comes = SwitchRecord {
        seq: residency.next_record.unwrap_or_default(),
        at: Moment(1_000_000),
        pid: 20,
        context: 20,
        change: Change::Active,
    };
    residency.take(&comes, &mut Vec::new());
    assert_eq!(residency.owed[&A].ns, 9_000_000);
    // More of the other kind is owed no further.
    residency.owe_idle(A, 5_000_000, 0);
    assert_eq!(residency.owed[&A].ns, 10_000_000);
    residency.owe_nothing(A);
    residency.owe_idle(A, 9_000_000, 0);
    assert_eq!(residency.owed[&A].ns, 2_000_000);
    residency.owe_idle(A, 300_000_000, 300_000_000);
    assert_eq!(residency.owed[&A].ns, 22_000_000);
}

#[test]
fn who_came_and_stopped_at_once_is_idle_from_when_he_came() {
    let mut residency = residency();
    residency.edges = Edges::H200;
    let mut events = Vec::new();
    residency.take(&record(0, 100, 10, Change::Active), &mut events);
    // Looked at before anything of it was told; he stopped earlier than that, as far as can be known.
    residency.idle(A, Moment(101_000), &mut events);
    assert!(residency.is_idle());
    residency.settle(Moment(900_000), &mut events);
    residency.take(&record(1, 1000, 10, Change::Saved), &mut events);
    let expected = [
        (100, Switching),
        (104, Running(A)),
        (104, Idle),
        (941, Switching),
    ];
    assert_eq!(states(&events), expected);
    let nobody = residency.resident_within(Moment(0), Moment(1_000_000));
    assert_eq!(nobody, BTreeMap::from([(None, Nanos::from_us(837))]));
}

#[test]
fn work_that_is_seen_before_the_log_is_read_tells_nothing_of_who_was_there() {
    let mut residency = residency();
    let mut events = Vec::new();
    residency.take(&record(0, 100, 10, Change::Active), &mut events);
    residency.settle(Moment(200_000), &mut events);
    // A has left, which has not been read; what worked then was B.
    residency.busy(A, Moment(5_000_000), &mut events);
    residency.take(&record(1, 1000, 10, Change::Saved), &mut events);
    residency.take(&record(2, 1080, 20, Change::Active), &mut events);
    residency.settle(Moment(6_000_000), &mut events);
    let expected = [(100, Running(A)), (1000, Switching), (1080, Running(B))];
    assert_eq!(states(&events), expected);
}

/// Whose kernels are long is stopped in the middle of them; not so if he was seen to have nothing to do.
#[test]
fn who_had_stopped_before_he_left_is_not_resumed_when_he_comes() {
    let mut residency = residency();
    residency.edges = Edges::H200;
    let mut events = Vec::new();
    residency.take(&record(0, 100, 10, Change::Active), &mut events);
    residency.settle(Moment(4_000_000), &mut events);
    residency.idle(A, Moment(5_000_000), &mut events);
    residency.take(&record(1, 6_000, 10, Change::Saved), &mut events);
    residency.take(&record(2, 9_000, 10, Change::Active), &mut events);
    residency.settle(Moment(12_000_000), &mut events);
    residency.take(&record(3, 15_000, 10, Change::Saved), &mut events);
    residency.take(&record(4, 18_000, 10, Change::Active), &mut events);
    residency.settle(Moment(20_000_000), &mut events);
    let runs: Vec<_> = states(&events)
        .into_iter()
        .filter(|(_, state)| *state == Running(A))
        .map(|(at, _)| at)
        .collect();
    // 4 us after he came, and 44 after he was stopped.
    assert_eq!(runs, [104, 9_004, 18_044]);
}

/// Others are idle for a hundredth, and leave between two kernels.
#[test]
fn who_is_suspended_is_stopped_in_the_middle_of_a_kernel() {
    let mut residency = residency();
    residency.edges = Edges::H200;
    residency.set_idle_fraction(A, 0.01);
    let mut events = Vec::new();
    for (at, suspended) in [(0, false), (10_000, true), (20_000, false)] {
        let seq = at / 5_000;
        residency.take(&record(seq, at, 10, Change::Active), &mut events);
        residency.settle(Moment((at + 1_000) * 1000), &mut events);
        residency.set_held(A, Some(Moment((at + 1_500) * 1000)));
        if suspended {
            residency.suspend(A);
        }
        residency.take(&record(seq + 1, at + 2_000, 10, Change::Saved), &mut events);
        residency.set_held(A, None);
    }
    residency.take(&record(6, 30_000, 10, Change::Active), &mut events);
    residency.settle(Moment(31_000_000), &mut events);
    let of = |wanted: EngineState| {
        let mut at: Vec<u64> = states(&events)
            .into_iter()
            .filter(|(_, state)| *state == wanted)
            .map(|(at, _)| at)
            .collect();
        at.dedup();
        at
    };
    let ends = of(Switching);
    // 59 us before he was saved where he left, 101 where he was stopped.
    assert!(
        ends.contains(&1_941) && ends.contains(&11_899) && ends.contains(&21_941),
        "{ends:?}"
    );
    let begins = of(Running(A));
    // And 44 us after he came where he had been stopped, 4 where he had left.
    assert!(
        begins.contains(&10_004) && begins.contains(&20_044) && begins.contains(&30_004),
        "{begins:?}"
    );
}

/// Beside one with kernels of 2 ms, one of 200 us leaves after each.
#[test]
fn who_leaves_in_his_first_pause_was_there() {
    let mut residency = residency();
    residency.edges = Edges::H200;
    let mut events = Vec::new();
    residency.take(&record(0, 100, 10, Change::Active), &mut events);
    residency.take(&record(1, 363, 10, Change::Saved), &mut events);
    residency.take(&record(2, 443, 20, Change::Active), &mut events);
    residency.settle(Moment(1_000_000), &mut events);
    let within = residency.resident_within(Moment(0), Moment(443_000));
    // 4 us after he came until 59 before he was saved.
    assert_eq!(within, [(Some(A), Nanos::from_us(200))].into());
}
