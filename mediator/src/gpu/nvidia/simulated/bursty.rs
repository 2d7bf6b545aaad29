//! Tenants that work now and then beside others.

use super::{Daemon, LAGS, Load, SECOND, US};

/// Bounds are in points from the fluid server: a burst is served in turns of tens of milliseconds, and a second has ten.
#[test]
fn bursts_are_served_as_they_come_and_what_is_not_used_goes_to_the_others() {
    let steady = Load::busy(100, 2_000);
    let cases: [(&[Load], f64, f64); 5] = [
        (&[Load::bursty(100, 200, 1), steady], 3.0, 93.0),
        (&[steady, Load::bursty(100, 200, 1)], 3.0, 93.0),
        (&[steady, Load::bursty(300, 50_000, 1)], 3.0, 94.0),
        (&[steady, steady, Load::bursty(200, 200, 1)], 8.5, 93.0),
        (
            &[
                Load::busy(300, 2_000),
                Load::bursty(100, 2_000, 1),
                Load::bursty(300, 200, 2),
            ],
            9.5,
            93.0,
        ),
    ];
    for ((loads, points, percent), lag) in cases.into_iter().zip(LAGS) {
        let mut daemon = Daemon::new(loads, "slices");
        daemon.engine.lag = lag;
        let found = daemon.run(8);
        let (worst, useful) = (found.worst(2, 8), found.useful_percent(2, 8));
        println!(
            "{:?}: worst {worst:.2} points, useful {useful:.1} %, calls {:.1} %",
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
