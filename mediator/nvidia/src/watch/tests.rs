use turnstile_accounting::{EventMeter, Meter, Metric, Observation, Window};

use super::super::progress::{Entries, Words};
use super::*;

const A: TenantId = TenantId(1);

#[test]
fn who_worked_for_long_is_trusted_until_the_counters_say_that_he_stopped() {
    let at = |ms: u64| Moment(ms * 1_000_000);
    let mut watch = Watch::new(true);
    watch.measured(Nanos::ZERO);
    watch.add(A, 10, at(0));
    let active = SwitchRecord {
        seq: 0,
        at: at(0),
        pid: 10,
        context: 1,
        change: Change::Active,
    };
    watch.read([active], true);
    let tick = Nanos::from_ms(3);
    let looked_at = |watch: &Watch, ms| watch.look_within(at(ms), tick, |_| false).is_some();
    assert!(looked_at(&watch, 500) && !looked_at(&watch, 1_100));
    for interval in 10..13 {
        watch.take(at(100 * (interval + 1) + 1), &mut Vec::new());
        watch.counted(Busy {
            from: at(100 * interval),
            to: at(100 * (interval + 1)),
            busy_ns: Nanos::ZERO,
            launches: None,
        });
    }
    assert!(looked_at(&watch, 1_310));
    assert_eq!(watch.runner(at(1_310), |_| false), Runner::Perhaps(A));
}

/// Who waited for the engine when he was taken off the schedule comes once more.
#[test]
fn the_log_is_read_anew_until_who_was_held_is_where_he_is_to_be() {
    let at = |ms: u64| Moment(ms * 1_000_000);
    let mut watch = Watch::new(true);
    for (tenant, pid) in [(A, 10), (TenantId(2), 20)] {
        watch.add(tenant, pid, at(0));
    }
    assert!(watch.is_still());
    watch.held(A, at(100));
    for (read, still) in [(101, false), (109, false), (110, true)] {
        watch.caught_up(at(read));
        assert_eq!(watch.is_still(), still, "{read}");
    }
    watch.released(A, at(200));
    assert!(!watch.is_still());
    watch.caught_up(at(250));
    assert!(watch.is_still());
    let stranger = SwitchRecord {
        seq: 0,
        at: at(260),
        pid: 99,
        context: 1,
        change: Change::Active,
    };
    assert!(watch.read([stranger], true));
    assert!(!watch.is_still(), "nobody's channels are asked");
}

#[test]
fn who_works_alone_for_a_time_slice_can_be_ushered_out() {
    const B: TenantId = TenantId(2);
    let at = |ms: u64| Moment(ms * 1_000_000);
    let record = |seq, ms, pid, change| SwitchRecord {
        seq,
        at: at(ms),
        pid,
        context: pid,
        change,
    };
    let mut watch = Watch::new(true);
    for (tenant, pid) in [(A, 10), (B, 20)] {
        watch.add(tenant, pid, at(0));
    }
    assert!(!watch.is_to_be_ushered(A, at(5)), "it is not there");
    watch.read([record(0, 10, 10, Change::Active)], true);
    assert!(!watch.is_to_be_ushered(A, at(12)), "its time slice");
    assert!(watch.is_to_be_ushered(A, at(13)) && !watch.is_to_be_ushered(B, at(13)));
    // The usher is no stranger, and nobody has to read the log because of him.
    watch.set_own(Some(40));
    watch.own(true, at(13));
    watch.held(A, at(13));
    let usher = [
        record(1, 14, 10, Change::Saved),
        record(2, 14, 40, Change::Active),
    ];
    assert!(!watch.read(usher, true));
    watch.own(false, at(15));
    assert!(!watch.is_to_be_ushered(A, at(16)), "it is gone");
    watch.released(A, at(20));
    let both = [
        record(3, 20, 40, Change::Saved),
        record(4, 20, 10, Change::Active),
    ];
    watch.read(both, true);
    assert!(watch.is_to_be_ushered(A, at(30)));
    // B comes, and A does once more: B would follow.
    let turns = [
        record(5, 31, 10, Change::Saved),
        record(6, 31, 20, Change::Active),
        record(7, 231, 20, Change::Saved),
        record(8, 231, 10, Change::Active),
    ];
    watch.read(turns, true);
    assert!(!watch.is_to_be_ushered(A, at(234)));
    watch.held(B, at(234));
    assert!(watch.is_to_be_ushered(A, at(235)));
}

/// A and B take turns of 100 ms from latch to latch; A pauses for 10 ms of each, but once.
#[test]
fn a_pause_is_charged_less_as_soon_as_the_counters_have_told_of_it() {
    let at = |ms: u64| Moment(ms * 1_000_000);
    let charged = |pause_ms: u64| {
        let mut watch = Watch::new(true);
        watch.measured(Nanos::ZERO);
        let mut meter = EventMeter::new([COMPUTE]);
        let mut sums = Vec::new();
        for (tenant, pid) in [(A, 10), (TenantId(2), 20)] {
            watch.add(tenant, pid, at(0));
        }
        for turn in 0..40 {
            let begin = 100 * turn;
            let pid = [10, 20][turn as usize % 2];
            let record = |seq, at, change| SwitchRecord {
                seq,
                at,
                pid,
                context: pid,
                change,
            };
            watch.read([record(2 * turn, at(begin), Change::Active)], true);
            let mut events = Vec::new();
            (1..10).for_each(|part| {
                watch.take(at(begin + 10 * part), &mut events);
            });
            watch.read([record(2 * turn + 1, at(begin + 100), Change::Saved)], true);
            watch.take(at(begin + 101), &mut events);
            for event in events {
                meter.observe(Observation::Switch(event));
            }
            let idle = match (pid, turn) {
                (10, 30) => 10 + pause_ms,
                (10, _) => 10,
                _ => 0,
            };
            watch.counted(Busy {
                from: at(begin),
                to: at(begin + 100),
                busy_ns: Nanos::from_ms(100 - idle),
                launches: None,
            });
            let window = Window::starting(at(begin), Nanos::from_ms(100));
            let usage = meter.close(window);
            let own = usage.tenant_ns(A, Metric::Total);
            sums.push(own.0 as f64 / 1e6);
        }
        sums
    };
    let (without, with) = (charged(0), charged(2));
    let less = |turn: usize| without[turn] - with[turn];
    assert_eq!(less(30), 0.0, "it is not known yet");
    assert!((less(32) - 2.0).abs() < 0.1, "{with:?}");
    let later: f64 = (33..40).map(less).sum();
    assert!(later.abs() < 0.2, "{later}: it said nothing of what comes");
}

/// A, who launches every 200 us while he works, is resident from 1 s on; B comes in between, and A again, before the log is read.
#[test]
fn who_began_or_stopped_before_he_left_did_so_when_his_launches_say() {
    let at = |us: u64| Moment(us * 1_000);
    // What A is charged from 1.1 s on, who works until then, then rests, and is asked then; and is asked again after B came.
    let charged = |idle: bool, entries: u32| {
        let mut watch = Watch::new(true);
        let mut meter = EventMeter::new([COMPUTE]);
        let mut seq = 0;
        let mut record = |pid, us, change| {
            seq += 1;
            SwitchRecord {
                seq,
                at: at(us),
                pid,
                context: pid,
                change,
            }
        };
        watch.add(A, 10, at(0));
        watch.add(TenantId(2), 20, at(0));
        watch.read([record(10, 1_000_000, Change::Active)], true);
        let mut taken = 0;
        let mut ask = |watch: &mut Watch, us, more| {
            taken += more;
            watch.progress.look(A, &Ring(taken), at(us))
        };
        let mut events = Vec::new();
        for us in (1_000_000..=1_100_000).step_by(5_000) {
            let said = ask(&mut watch, us, 25);
            watch.goes_on(A, said, at(us));
            watch.seen(A, true, 1, at(us), said);
            watch.take(at(us), &mut events);
        }
        if idle {
            let said = ask(&mut watch, 1_103_000, 0);
            watch.seen(A, false, 2, at(1_103_000), said);
        }
        watch.take(at(1_103_000), &mut events);
        let said = ask(&mut watch, 1_112_000, entries);
        assert!(!watch.goes_on(A, said, at(1_112_000)));
        let records = [
            record(10, 1_110_000, Change::Saved),
            record(20, 1_110_080, Change::Active),
            record(20, 1_111_000, Change::Saved),
            record(10, 1_111_080, Change::Active),
            record(10, 1_111_500, Change::Saved),
            record(20, 1_111_580, Change::Active),
        ];
        watch.read(records, true);
        watch.take(at(1_120_000), &mut events);
        for event in events {
            meter.observe(Observation::Switch(event));
        }
        let window = Window::starting(at(1_100_000), Nanos::from_us(10_001));
        let usage = meter.close(window);
        usage.tenant_ns(A, Metric::Total).0 as f64 / 1e6
    };
    // Two of 12 were launched when he was there again.
    let began = charged(true, 12);
    assert!((began - 2.0).abs() < 0.3, "{began}");
    let stopped = charged(false, 12);
    assert!((stopped - 2.1).abs() < 0.3, "{stopped}");
    let rested = charged(true, 2);
    assert!(rested < 0.3, "{rested}");
}

/// A tenant's channel that took so many.
struct Ring(u32);

impl Words for Ring {
    fn generation(&self) -> u64 {
        1
    }

    fn count(&self) -> usize {
        1
    }

    fn read(&self, _: usize) -> (Entries, u32) {
        let (get, put) = (self.0 % 1024, self.0 % 1024);
        (Entries { get, put }, 1024)
    }
}

#[test]
fn readings_are_in_step_with_nothing() {
    let mut watch = Watch::new(true);
    for kernel in [59_000, 120_000, 210_000, 262_000] {
        // Readings that fall between launches, the first of which does: a twentieth of the time.
        let mut at = 0;
        let alone = (0..10_000).filter(|_| {
            at += watch.reading_pause().0 + 112_000;
            at % kernel < kernel / 20
        });
        let found = alone.count();
        assert!((300..700).contains(&found), "{kernel}: {found}");
    }
    for kernel in (50_000..450_000).step_by(1_000) {
        let (mut at, mut row, mut longest) = (0, 0, 0);
        for _ in 0..3_000 {
            at += watch.reading_pause().0 + 112_000;
            row = if at % kernel < kernel / 20 {
                row + 1
            } else {
                0
            };
            longest = longest.max(row);
        }
        assert!(longest <= 3, "{kernel}: {longest} in a row");
    }
}

#[test]
fn who_is_gone_is_not_learnt_again_from_what_counters_tell_of_before() {
    let at = |ms: u64| Moment(ms * 1_000_000);
    let mut watch = Watch::new(true);
    watch.measured(Nanos::ZERO);
    let b = TenantId(2);
    watch.add(A, 10, at(0));
    watch.add(b, 20, at(0));
    let record = |seq, ms, pid, change| SwitchRecord {
        seq,
        at: at(ms),
        pid,
        context: 1,
        change,
    };
    let counted = |watch: &mut Watch, interval: u64| {
        watch.take(at(100 * (interval + 1) + 1), &mut Vec::new());
        watch.counted(Busy {
            from: at(100 * interval),
            to: at(100 * (interval + 1)),
            busy_ns: Nanos::from_ms(50),
            launches: Some(100),
        });
    };
    let change = |seq, ms, from, to| {
        let saved = record(seq, ms, from, Change::Saved);
        [saved, record(seq + 1, ms + 1, to, Change::Active)]
    };
    watch.read([record(0, 0, 10, Change::Active)], true);
    watch.read(change(1, 50, 10, 20), true);
    watch.read(change(3, 150, 20, 10), true);
    counted(&mut watch, 0);
    assert!(watch.residency.remembers(A) && watch.residency.remembers(b));
    watch.read(change(5, 180, 10, 20), true);
    watch.remove(A);
    assert!(!watch.residency.remembers(A));
    for interval in 1..5 {
        counted(&mut watch, interval);
        assert!(!watch.residency.remembers(A), "{interval}");
        assert!(watch.residency.remembers(b));
    }
    assert!(watch.idle.shares().tenants().all(|tenant| tenant != A));
}
