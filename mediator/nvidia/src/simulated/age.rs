//! How old the counters are, told while tenants of the simulated daemon take turns.

use super::{Daemon, Found, LAGS, Load, MS};

/// It is known after five latches of a daemon's start.
const KNOWN: u64 = 450 * MS;

/// Two tenants that are there when the daemon begins, as after the end of the one before.
fn returning(weights: (u32, u32), kernels_us: (u64, u64)) -> [Load; 2] {
    let load = |weight, kernel_us| Load {
        start: 150 * MS,
        ..Load::busy(weight, kernel_us)
    };
    [load(weights.0, kernels_us.0), load(weights.1, kernels_us.1)]
}

fn run(loads: &[Load], lag: u64, begin: impl FnOnce(&mut Daemon)) -> Found {
    let mut daemon = Daemon::new(loads, "slices");
    daemon.engine.lag = lag;
    begin(&mut daemon);
    daemon.run(4)
}

#[test]
fn tenants_that_return_before_it_is_known_get_their_weights() {
    let pairs = [
        ((100, 100), (50, 2_000)),
        ((100, 300), (200, 2_000)),
        ((300, 100), (50, 50_000)),
        ((100, 100), (200, 2_000)),
        ((900, 100), (200, 50_000)),
        ((100, 100), (50, 200)),
    ];
    for ((weights, kernels), lag) in pairs.into_iter().zip(LAGS) {
        let loads = returning(weights, kernels);
        let known = run(&loads, lag, |daemon| daemon.age_at = Some(0));
        let never = run(&loads, lag, |_| {});
        let beside = run(&loads, lag, |daemon| daemon.age_at = Some(KNOWN));
        println!(
            "{weights:?} {kernels:?}, {} ms: worst second after the first {:.2} points told meanwhile, {:.2} known from the start, {:.2} never told",
            lag / MS,
            beside.worst(1, 4),
            known.worst(1, 4),
            never.worst(1, 4),
        );
        let worst = beside.worst(1, 4);
        // SOURCE: this engine: 0.53, for 50 and 200 us; 0.40 if readings of its status took no time.
        assert!(worst <= 0.55, "{worst}");
    }
}
