//! Tenants that work now and then beside others.

use turnstile_accounting::TenantId;

use super::{Daemon, LAGS, Load, MS, SECOND, US};

/// Bounds are in points from the fluid server: a burst is served in turns of tens of milliseconds, and a second has ten.
#[test]
fn bursts_are_served_as_they_come_and_what_is_not_used_goes_to_the_others() {
    let steady = Load::busy(100, 2_000);
    let cases: [(&[Load], f64, f64); 5] = [
        (&[Load::bursty(100, 200, 1), steady], 3.0, 93.0),
        (&[steady, Load::bursty(100, 200, 1)], 3.0, 93.0),
        (&[steady, Load::bursty(300, 50_000, 1)], 3.0, 94.0),
        // SOURCE: this engine, six seeds at six ages: 5.7 to 8.9, 7.3 in the mean; with words 6.0 to 9.1, 7.4.
        (&[steady, steady, Load::bursty(200, 200, 1)], 9.5, 93.0),
        (
            &[
                Load::busy(300, 2_000),
                Load::bursty(100, 2_000, 1),
                Load::bursty(300, 200, 2),
            ],
            // SOURCE: this engine, four seeds at six ages, with words and without: 10.4 in the mean, 14.1 the most.
            14.5,
            93.0,
        ),
    ];
    let cases = cases.into_iter().zip(LAGS);
    let cases = cases.flat_map(|case| [false, true].map(|words| (case, words)));
    for (((loads, points, percent), lag), words) in cases {
        let mut daemon = Daemon::new(loads, "slices");
        daemon.engine.lag = lag;
        daemon.words = words;
        let found = daemon.run(8);
        let (worst, useful) = (found.worst(2, 8), found.useful_percent(2, 8));
        println!(
            "{:?}, words {words}: worst {worst:.2} points, useful {useful:.1} %, calls {:.1} %",
            loads
                .iter()
                .map(|load| (load.weight, load.kernel / US, load.bursts))
                .collect::<Vec<_>>(),
            found.calls as f64 / (8 * SECOND) as f64 * 100.0,
        );
        assert!(
            worst <= points && useful >= percent,
            "{loads:?}: {worst} {useful}"
        );
    }
}

/// What tenants are charged more than they executed, in percent, from the third second on, and readings of the status register, over 23 s.
fn charges(loads: &[Load], lag: u64, words: bool, hears: bool) -> (Vec<f64>, u64) {
    let mut daemon = Daemon::new(loads, "slices");
    daemon.engine.lag = lag;
    daemon.age_at = Some(0);
    (daemon.words, daemon.hears) = (words, hears);
    let found = daemon.run(23);
    let charges = (0..loads.len()).map(|tenant| found.charged_within_percent(tenant, 3, 23));
    let (charges, readings) = (charges.collect(), found.readings.iter().sum());
    println!(
        "{:?}, {} ms, words {words}: charged {charges:.2?} %, {readings} readings, worst {:.2} points, useful {:.1} %",
        loads
            .iter()
            .map(|load| (load.kernel / US, load.bursts.is_some()))
            .collect::<Vec<_>>(),
        lag / 1_000_000,
        found.worst(3, 23),
        found.useful_percent(3, 23),
    );
    (charges, readings)
}

/// Counters tell of all together, and too late to know which of two has stopped; what channels say tells it.
#[test]
fn two_bursty_tenants_are_charged_what_they_executed_by_their_channels_words() {
    // SOURCE: this engine: 1.08 % at most. (An H200: within 0.5 % in 12 s.)
    for (kernel_us, most) in [(200, 1.1), (2_000, 1.6)] {
        let loads = [
            Load::bursty(100, kernel_us, 1),
            Load::bursty(100, kernel_us, 2),
        ];
        for (lag, hears) in [(LAGS[0], true), (LAGS[3], true), (LAGS[3], false)] {
            let (charged, _) = charges(&loads, lag, true, hears);
            let worst = charged
                .iter()
                .fold(0.0_f64, |worst, own| worst.max(own.abs()));
            assert!(worst <= most, "{kernel_us} us: {charged:?}");
        }
    }
}

#[test]
fn words_spare_readings_of_the_register_where_hosts_are_not_heard_and_charge_no_worse() {
    for kernel_us in [50, 200] {
        let loads = [Load::bursty(100, kernel_us, 1), Load::busy(100, 2_000)];
        let (_, without) = charges(&loads, LAGS[3], false, false);
        let (charged, with) = charges(&loads, LAGS[3], true, false);
        assert!(2 * with < without, "{with} of {without}");
        assert!(charged.iter().all(|own| own.abs() <= 0.5), "{charged:?}");
    }
}

/// Who shows fewer launches than he makes at times seems to rest then; what is learnt of his launches, when he is heard, the register and the counters say otherwise.
#[test]
fn who_hides_launches_pays_all_the_same() {
    // SOURCE: this engine, 20 s, 32 seeds: 0.20 % (root of the mean square), 0.59 at most, and 0.49 of these; where he is heard, who is looked at less often then, 0.47, 1.25 at most, and 0.82 of
    // these.
    for (hears, most) in [(false, 0.5), (true, 1.3)] {
        let loads = (1..=12).map(|seed| Load::bursty(100, 200, seed));
        for load in loads.chain([Load::busy(100, 200)]) {
            let mut daemon = Daemon::new(&[load, Load::busy(100, 2_000)], "slices");
            (daemon.engine.lag, daemon.age_at) = (LAGS[3], Some(0));
            (daemon.words, daemon.liar) = (true, Some(TenantId(1)));
            daemon.hears = hears;
            let found = daemon.run(23);
            let charged = found.charged_within_percent(0, 3, 23);
            println!("{load:?}, hears {hears}: {charged:.2} %");
            assert!(charged.abs() <= most, "{charged}");
        }
    }
}

/// A look finds that he has stopped, and what he launched says when.
#[test]
fn who_is_not_heard_when_he_stops_pays_for_what_he_executed() {
    // (With 50 us, one who worked for a moment may as well have gone once round his ring until a look finds him.)
    for kernel_us in [100, 200] {
        let mut all = Vec::new();
        for (seed, weight) in (1..=8).flat_map(|seed| [(seed, 100), (seed, 900)]) {
            let load = Load {
                unheard: 5,
                ..Load::bursty(weight, kernel_us, seed)
            };
            let mut daemon = Daemon::new(&[load, Load::busy(100, 2_000)], "slices");
            (daemon.engine.lag, daemon.age_at) = (LAGS[3], Some(0));
            daemon.words = true;
            let found = daemon.run(13);
            all.push(found.charged_within_percent(0, 3, 13));
        }
        println!("{kernel_us} us: {all:.2?}");
        assert!(all.iter().all(|own| own.abs() <= 0.5), "{all:?}");
    }
}

/// Who rings without work between his bursts has a period end now and then, and nothing else.
#[test]
fn who_rings_without_work_keeps_the_engine_from_nobody() {
    let useful = |rings: u64| {
        let load = Load {
            rings,
            ..Load::bursty(100, 200, 1)
        };
        let mut daemon = Daemon::new(&[load, Load::busy(100, 2_000)], "slices");
        (daemon.words, daemon.age_at) = (true, Some(0));
        let found = daemon.run(13);
        let charged = [0, 1].map(|tenant| found.charged_within_percent(tenant, 3, 13));
        (found.useful_percent(3, 13), charged, found.wakes / 13)
    };
    let (honest, ..) = useful(0);
    for ms in [3, 7, 23, 41, 1_100] {
        let (percent, charged, wakes) = useful(ms * MS);
        println!(
            "each {ms} ms: {percent:.1} instead of {honest:.1} %, charged {charged:.2?} %, {wakes} wakes"
        );
        assert!(percent >= honest - 6.0, "{percent} instead of {honest}");
        assert!(charged.iter().all(|own| own.abs() <= 1.0), "{charged:?}");
        assert!(wakes <= 200, "{wakes}");
    }
}
