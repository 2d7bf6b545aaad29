//! Cells of the bench's matrix in which somebody rests between bursts, beside who does not.
//!
//! `TURNSTILE_ROUNDS=60 cargo test --release -p turnstile-mediator --lib who_rests -- --nocapture` runs each cell sixty times, and prints a line of each.

use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::restless::{FROM, KERNELS_US, daemon_of, load_of, rms, rounds_or, sum_up};
use super::*;

/// Charges are compared until then.
const TO: u64 = FROM + 11_000;

/// A tenant: its kernels, by their place in [`KERNELS_US`], and whether it has bursts.
type Kind = (usize, bool);

/// The bursty cells of `mediator/figures/src/matrix.rs`.
fn cells() -> Vec<(Vec<Kind>, Vec<u32>)> {
    let pair = |kind| [1, 3, 9].map(|weight| (vec![(kind, true), (2, false)], vec![weight, 1]));
    let four = |weight| {
        let kinds = vec![(1, true), (2, true), (1, false), (2, false)];
        (kinds, vec![weight, 1, 1, 1])
    };
    let pairs = (0..4).flat_map(pair);
    pairs.chain([1, 9].map(four)).collect()
}

/// How wrongly each is charged, in percent; and readings of the register, periods and readings of the log in a second, useful work, wakes in a second, and by how many points a second is off at most.
fn run(
    kinds: &[Kind],
    weights: &[u32],
    (mapped, hears): (bool, bool),
    seed: u64,
) -> (Vec<f64>, [f64; 6]) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut load = |((kernel, bursts), weight): (&Kind, &u32)| {
        load_of(*weight, KERNELS_US[*kernel], *bursts, &mut random)
    };
    let loads: Vec<Load> = kinds.iter().zip(weights).map(&mut load).collect();
    let seconds = TO.div_ceil(1_000);
    let mut daemon = daemon_of(&loads, random);
    (daemon.mapped, daemon.hears) = (mapped, hears);
    let found = daemon.run(seconds);
    let charged = |tenant| found.charged_within_percent_ms(tenant, FROM, TO);
    let each = |count: u64| count as f64 / seconds as f64;
    let costs = [
        each(found.readings.iter().sum()),
        each(found.periods),
        each(found.reads),
        found.useful_percent(FROM.div_ceil(1_000), seconds),
        each(found.wakes),
        found.worst_ms(FROM, TO),
    ];
    ((0..loads.len()).map(charged).collect(), costs)
}

/// Who has one kernel of 50 ms in a burst works now and then without a rest for so long that nobody looks, and rests then for 25 ms. Whose that was the others' launches say.
#[test]
fn who_rests_and_who_runs_beside_him_pay_for_what_they_executed() {
    let rounds = rounds_or(6);
    let mut seeds = SmallRng::seed_from_u64(1);
    let mut all = Vec::new();
    let is_short = |(kernel, bursts): &Kind| !bursts || *kernel < 2;
    let of = |kind: (bool, bool)| {
        let cells = cells().into_iter();
        cells.map(move |(kinds, weights)| (kinds, weights, kind))
    };
    let (heard, deaf, read) = ((true, true), (true, false), (false, false));
    // What words say spares readings where the driver reads the register.
    let read = of(read).filter(|(kinds, ..)| kinds.iter().all(is_short));
    for (kinds, weights, (mapped, hears)) in of(heard).chain(of(deaf)).chain(read) {
        let runs: Vec<_> = (0..rounds)
            .map(|_| run(&kinds, &weights, (mapped, hears), seeds.random()))
            .collect();
        let of = |tenant: usize| runs.iter().map(move |(charged, _)| charged[tenant]);
        let mean =
            |which: usize| runs.iter().map(|(_, costs)| costs[which]).sum::<f64>() / rounds as f64;
        let own: Vec<f64> = (0..kinds.len()).map(|tenant| rms(of(tenant))).collect();
        let short = kinds.iter().all(is_short);
        let kinds = kinds.iter().map(|(kernel, bursts)| {
            let bursts = if *bursts { " bursty" } else { "" };
            format!("{} us{bursts}", KERNELS_US[*kernel].0)
        });
        println!(
            "{} {weights:?}, mapped {mapped}, heard {hears}: charged {own:.2?} % wrongly; {:.0} readings, {:.0} periods, {:.0} wakes, the log {:.0} times a second, useful {:.1} %, a second off by {:.1} points",
            kinds.collect::<Vec<_>>().join(", "),
            mean(0),
            mean(1),
            mean(4),
            mean(2),
            mean(3),
            mean(5),
        );
        if short {
            // SOURCE: this engine: where hosts are heard 21 to 23 readings, 29 periods, 30 readings of the log, 56 wakes; where they are not 40 to 42, 27, 44, 147 to 156; and where
            // the driver reads the register 14 to 16, 27, 52 to 55, and as many. (47 periods, 68 and 182 before decision 060.)
            let most = match (mapped, hears) {
                (_, true) => [30.0, 33.0, 35.0, 65.0],
                (true, false) => [60.0, 30.0, 48.0, 170.0],
                (false, false) => [21.0, 33.0, 60.0, 170.0],
            };
            let found = [mean(0), mean(1), mean(2), mean(4)];
            let within = found.iter().zip(most).all(|(found, most)| *found <= most);
            assert!(within, "{found:.0?} of {most:?}");
        }
        all.extend(runs.into_iter().flat_map(|(charged, _)| charged));
    }
    let rms = sum_up(&all);
    // SOURCE: this engine, 60 rounds: 0.19, and 0.24 if it is not asked whose pause it was.
    assert!(rms <= 0.22, "{rms}");
}
