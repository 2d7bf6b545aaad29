//! Busy pairs whose hosts pause: many of them, since what is off by chance once in a hundred times is not seen in one run.
//!
//! `TURNSTILE_ROUNDS=40 cargo test --release -p turnstile-mediator --lib restless -- --nocapture` runs each pair forty times, and prints a line of each.

use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::*;

/// Kernels of the bench's matrix, the endless one as long as no run, and from the end of one to the next launch. SOURCE: as in `pauses.rs`: 17 % (50 us) to 0.1 % (50 ms) idle.
pub(super) const KERNELS_US: [(u64, u64); 5] = [
    (50, 15),
    (200, 15),
    (2_000, 20),
    (50_000, 45),
    (1_000_000_000, 45),
];
const WEIGHTS: [(u32, u32); 4] = [(1, 1), (3, 1), (1, 3), (9, 1)];
/// Loads begin then; the first second is not counted, as in the bench, and five are.
pub(super) const START: u64 = 600;
pub(super) const FROM: u64 = START + 1_000;
const TO: u64 = FROM + 5_000;
/// Standard deviation of how old the counters are found to be. SOURCE: decision 056.
const AGE_OFF: f64 = 100_000.0;

/// What is off in a pair by more than the bench allows, of one and of two.
#[derive(Debug, Default)]
struct Off {
    shares: u32,
    /// Where no host paused for 2 ms.
    unpaused: u32,
    charges: u32,
}

fn found(weights: (u32, u32), kernels: [(u64, u64); 2], seed: u64) -> Found {
    found_after(weights, kernels, seed, START, [(0, 0); 2])
}

/// The same of loads that begin at another time, and worked before that, in milliseconds.
fn found_after(
    weights: (u32, u32),
    kernels: [(u64, u64); 2],
    seed: u64,
    start: u64,
    warm: [(u64, u64); 2],
) -> Found {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut load = |weight, kernel, (from, to): (u64, u64)| Load {
        warm: (from * MS, to * MS),
        start: start * MS,
        ..load_of(weight, kernel, false, &mut random)
    };
    let loads = [
        load(weights.0, kernels[0], warm[0]),
        load(weights.1, kernels[1], warm[1]),
    ];
    found_of(&loads, random, (start + TO - START).div_ceil(1_000))
}

/// A load whose host pauses, with bursts or without.
pub(super) fn load_of(
    weight: u32,
    (kernel_us, gap_us): (u64, u64),
    bursts: bool,
    random: &mut SmallRng,
) -> Load {
    Load {
        bursts: bursts.then(|| random.random()),
        pauses: Some(random.random()),
        start: START * MS,
        gap: gap_us * US,
        ..Load::busy(weight * 100, kernel_us)
    }
}

/// The same of any loads, for so many seconds.
pub(super) fn found_of(loads: &[Load], random: SmallRng, seconds: u64) -> Found {
    daemon_of(loads, random).run(seconds)
}

/// A daemon that is to share the engine between them.
pub(super) fn daemon_of(loads: &[Load], mut random: SmallRng) -> Daemon {
    let mut daemon = Daemon::new(loads, "slices");
    daemon.words = true;
    daemon.engine.lag = random.random_range(0..100 * MS);
    let age = daemon.engine.lag as f64 + AGE_OFF * pauses::normal(&mut random);
    daemon.watch.measured(Nanos(age.max(0.0) as u64));
    daemon.engine.counts = Some(random);
    daemon
}

/// How often each cell is run.
pub(super) fn rounds_or(usual: u32) -> u32 {
    std::env::var("TURNSTILE_ROUNDS").map_or(usual, |rounds| rounds.parse().unwrap())
}

pub(super) fn rms(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let count = values.clone().count().max(1) as f64;
    (values.map(|value| value * value).sum::<f64>() / count).sqrt()
}

/// Says how wrong charges are, in percent, and returns the root of the mean square.
pub(super) fn sum_up(all: &[f64]) -> f64 {
    let off = all.iter().filter(|percent| percent.abs() > 0.5).count();
    let rms = rms(all.iter().copied());
    println!("{off} of {} off, {rms:.3} % in the mean square", all.len());
    rms
}

fn run(weights: (u32, u32), kernels: [(u64, u64); 2], seed: u64, off: &mut Off) {
    let found = found(weights, kernels, seed);
    let points = found.worst_ms(FROM, TO);
    let unpaused = found.worst_unpaused_ms(FROM, TO);
    let percent = [0, 1].map(|tenant| found.charged_within_percent_ms(tenant, FROM, TO));
    println!(
        "{}+{} us {}:{}: worst second {points:.2} points, {unpaused:.2?} where no host paused, charged {:.2}, {:.2} %",
        kernels[0].0, kernels[1].0, weights.0, weights.1, percent[0], percent[1]
    );
    off.shares += u32::from(points > 0.5);
    off.unpaused += u32::from(unpaused.is_some_and(|points| points > 0.5));
    off.charges += percent
        .iter()
        .map(|own| u32::from(own.abs() > 0.5))
        .sum::<u32>();
}

#[test]
fn pairs_whose_hosts_pause_get_and_pay_their_shares() {
    let rounds = rounds_or(20);
    let mut seeds = SmallRng::seed_from_u64(1);
    let mut off = Off::default();
    for _ in 0..rounds {
        for (index, one) in KERNELS_US.iter().enumerate() {
            for other in &KERNELS_US[index..] {
                for (own, others) in WEIGHTS {
                    if one != other || own >= others {
                        run((own, others), [*one, *other], seeds.random(), &mut off);
                    }
                }
            }
        }
    }
    println!("{off:?} of {} and {}", 55 * rounds, 110 * rounds);
    // SOURCE: this engine, forty rounds: 0.8 (0.3 where no host paused) and 0.6 a round; an H200, two rounds without `watch/lately.rs`: 1 and 1.5.
    assert!(
        off.shares <= rounds && off.unpaused <= rounds / 2 && off.charges <= rounds,
        "{off:?}"
    );
}

/// What one pauses more or less in a turn is evened out by the next, and not when the counters have told of it.
#[test]
fn turns_of_short_kernels_are_planned_by_what_was_launched_in_the_last() {
    let worst = (0..12).filter_map(|seed| {
        let found = found((1, 1), [KERNELS_US[0], KERNELS_US[0]], seed);
        found.worst_unpaused_ms(FROM, TO)
    });
    let worst: Vec<f64> = worst.collect();
    let mean = worst.iter().sum::<f64>() / worst.len() as f64;
    println!("{worst:.2?}: {mean:.3} points in the mean");
    // SOURCE: this engine: 0.32; without, 0.39.
    assert!(worst.len() > 6 && mean <= 0.35, "{worst:?}");
}

/// Whose turn ends a moment after a latch, at which he was asked, and who launches nothing in between, goes on: he is not taken to have stopped.
#[test]
fn who_pauses_between_a_latch_and_the_end_of_his_turn_has_not_stopped() {
    let cases = [
        (
            (3, 1),
            [KERNELS_US[0], KERNELS_US[2]],
            15_108_456_959_523_133_132,
        ),
        (
            (9, 1),
            [KERNELS_US[1], KERNELS_US[1]],
            10_340_877_695_226_236_869,
        ),
    ];
    for (weights, kernels, seed) in cases {
        let found = found(weights, kernels, seed);
        let worst = found.worst_unpaused_ms(FROM, TO).unwrap();
        println!("{kernels:?} {weights:?}: {worst:.2} points");
        // SOURCE: this engine; 1.70 and 1.14 if he is looked at, and both share the engine for 10 ms.
        assert!(worst <= 0.5, "{worst}");
    }
}

/// One with a tenth of the time, whose turns are too short for three looks, runs longer kernels than he did before: that he launches less is no rest, which would be paid back
/// to him by the other one.
#[test]
fn whose_kernels_are_longer_than_they_were_does_not_rest() {
    let mut seeds = SmallRng::seed_from_u64(1);
    for kernel in [KERNELS_US[2], KERNELS_US[3]] {
        let worst = (0..12).map(|round| {
            let start = 850 + 4 * round;
            let warm = [0, 1].map(|_| {
                let to = start - seeds.random_range(1..300);
                (to - 200, to)
            });
            let found = found_after((9, 1), [kernel, kernel], seeds.random(), start, warm);
            found.worst_ms(start + 1_000, start + 2_200)
        });
        let worst: Vec<f64> = worst.collect();
        println!("{} us: {worst:.2?} points", kernel.0);
        // SOURCE: this engine: 0.16 and 0.13; 1.92 of 2 ms where that was told as a rest.
        assert!(worst.iter().all(|worst| *worst <= 0.5), "{worst:?}");
    }
}
