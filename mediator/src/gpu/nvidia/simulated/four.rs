//! Four tenants, three of which have a small part of the time.

use super::*;

/// Who launches and waits, and whose pauses are longer for a while and then shorter.
fn uneven(weight: u32, kernel_us: u64) -> Load {
    Load {
        // The step in which it launches is none.
        gap: 10 * US + STEP,
        uneven: 0.05,
        ..Load::busy(weight, kernel_us)
    }
}

/// Charged less executed, in percent of what was executed, from the third second to the seventh; and the worst second of their shares.
fn errors(loads: &[Load], lag: u64) -> (Vec<f64>, f64) {
    let mut daemon = Daemon::new(loads, "slices");
    daemon.engine.lag = lag;
    daemon.words = true;
    daemon.watch.measured(Nanos(lag));
    let found = daemon.run(8);
    let errors = (0..loads.len()).map(|tenant| found.charged_within_percent(tenant, 2, 7));
    (errors.collect(), found.worst(2, 8))
}

/// (Where short slices followed each other, up to 5 % too much or too little; root of the mean square 1.5 %.)
#[test]
fn small_tenants_are_told_apart() {
    let (mut squares, mut count, mut worst) = (0.0, 0.0, 0.0_f64);
    for kernels_us in [
        [200, 200, 200, 200],
        [50, 200, 2_000, 50_000],
        [50, 50, 200, 200],
    ] {
        for (large, lag) in [(900, 17), (900, 64), (900, 91), (300, 17)] {
            let weights = [large, 100, 100, 100];
            let loads = std::array::from_fn::<_, 4, _>(|i| uneven(weights[i], kernels_us[i]));
            let (errors, points) = errors(&loads, lag * MS);
            println!("{kernels_us:?} us, {large}: {errors:.2?} %, worst second {points:.2} points");
            squares += errors.iter().map(|error| error * error).sum::<f64>();
            count += errors.len() as f64;
            worst = worst.max(points);
        }
    }
    let mean = (squares / count).sqrt();
    println!("root of the mean square {mean:.2} %");
    assert!(mean <= 0.5, "{mean} %");
    assert!(worst <= 0.5, "{worst} points");
}
