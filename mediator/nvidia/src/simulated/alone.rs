//! One who is alone, and at work now and then.

use super::*;

/// What he is charged less what he executed, and that, in ns, over so many seconds.
fn error(load: Load, lag_ms: u64, seconds: u64, words: bool) -> (f64, f64) {
    let mut daemon = Daemon::new(&[load], "slices");
    daemon.engine.lag = lag_ms * 1_000_000;
    daemon.words = words;
    daemon.watch.measured(Nanos(daemon.engine.lag));
    let found = daemon.run(seconds);
    let executed = found.engine.tenants[0].executed as f64;
    (found.charged[0] as f64 - executed, executed)
}

/// Before the counters have told of him he is charged as if he never paused; and what he did last is not known yet. Neither grows with how long he runs: what was told
/// wrongly is made good.
#[test]
fn who_is_alone_and_pauses_pays_what_he_executed() {
    let mut worst = 0.0_f64;
    let cases = [
        (50, 7, false),
        (200, 64, false),
        (2_000, 91, false),
        (50_000, 17, false),
        (2_000, 91, true),
        (50_000, 17, true),
    ];
    for (kernel_us, lag_ms, words) in cases {
        let load = Load::bursty(100, kernel_us, 1);
        let after = |seconds| error(load, lag_ms, seconds, words);
        let (short, long) = (after(10), after(40));
        let percent = 100.0 * (long.0 - short.0) / (long.1 - short.1);
        println!(
            "{kernel_us} us: {:.1} ms after 10 s, {:.1} after 40, {percent:.2} % in between",
            short.0 / 1e6,
            long.0 / 1e6
        );
        worst = worst.max(percent.abs());
    }
    assert!(worst <= 0.5, "{worst} %");
}

/// Each latch of the counters says something new of him, which can wait; nothing else does.
#[test]
fn while_one_is_alone_periods_are_as_long_as_they_may_be() {
    let found = Daemon::new(&[Load::busy(100, 200)], "slices").run(10);
    let most = 10 * SECOND / QUIET.0;
    assert!(
        (most - 3..=most + 3).contains(&found.periods),
        "{}",
        found.periods
    );
}

/// Whose words stand still has not come; who begins after a while has, and both are charged what they execute.
#[test]
fn who_begins_beside_one_who_was_alone_is_seen_by_his_words() {
    let late = Load {
        start: 3_000 * MS,
        ..Load::busy(100, 200)
    };
    let charged = [false, true].map(|words| {
        let mut daemon = Daemon::new(&[Load::busy(100, 200), late], "slices");
        (daemon.engine.lag, daemon.words) = (LAGS[3], words);
        daemon.watch.measured(Nanos(LAGS[3]));
        let found = daemon.run(9);
        let percent = [0, 1].map(|tenant| found.charged_within_percent(tenant, 4, 9));
        println!(
            "words {words}: charged {percent:.2?} %, worst {:.2} points",
            found.worst(4, 9)
        );
        assert!(found.worst(4, 9) <= 0.5);
        percent
    });
    assert!(
        charged.as_flattened().iter().all(|own| own.abs() <= 0.5),
        "{charged:?}"
    );
}

#[test]
fn nobody_has_come_whose_words_stand_still() {
    let idle = Load {
        start: 60 * SECOND,
        ..Load::busy(100, 200)
    };
    let mut daemon = Daemon::new(&[Load::busy(100, 200), idle], "slices");
    // Nobody has said anything: anybody may.
    assert!(look::may_have_come(&mut daemon));
    daemon.words = true;
    assert!(look::may_have_come(&mut daemon), "asked for the first time");
    assert!(look::may_have_come(&mut daemon), "and the other one");
    assert!(!look::may_have_come(&mut daemon));
    daemon.engine.tenants[1].taken += 1;
    assert!(look::may_have_come(&mut daemon), "he launched");
    look::Eyes::ask(&mut daemon, id(1));
    assert!(!look::may_have_come(&mut daemon));
}
