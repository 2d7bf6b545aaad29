//! Measurements of a run: progress against running alone, worst windows, latencies.

use crate::engine::{BIN, Native, Poller};
use crate::{MS, Ns, Program, SEC, Sim, program};
use std::cell::RefCell;
use std::collections::HashMap;

/// The figures of a run, by tenant unless noted.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Rate over rate alone; for an open loop median latency alone over median latency.
    pub progress: Vec<f64>,
    /// 99th percentile of a step, in milliseconds.
    pub p99_ms: Vec<f64>,
    /// Resident time, as a fraction of the engine's.
    pub resident: Vec<f64>,
    /// Worked time, likewise.
    pub worked: Vec<f64>,
    /// Worked time in the worst 2 s over that alone.
    pub worst_2s: Vec<f64>,
    /// The longest hold of each.
    pub longest_hold: Vec<Ns>,
    /// Of the whole run.
    pub polls_per_s: f64,
}

impl Outcome {
    /// The sum of all progress.
    pub fn sum(&self) -> f64 {
        self.progress.iter().sum()
    }
}

/// The figures of a program alone.
#[derive(Clone, Copy, Debug)]
pub struct Alone {
    rate: f64,
    p50_ms: f64,
    pub p99_ms: f64,
    pub worked: f64,
}

thread_local! {
    static ALONE: RefCell<HashMap<&'static str, Alone>> = RefCell::default();
}

fn percentile_ms(sorted: &[Ns], percentile: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let index = (last as f64 * percentile).round() as usize;
    sorted
        .get(index)
        .map_or(f64::NAN, |&length| length as f64 / MS as f64)
}

fn sorted_latencies(sim: &Sim, index: usize) -> Vec<Ns> {
    let mut latencies = sim.groups[index].host.latencies.clone();
    latencies.sort_unstable();
    latencies
}

/// Runs the program without others, for 20 s.
pub fn alone(name: &'static str) -> Alone {
    if let Some(known) = ALONE.with_borrow(|known| known.get(name).copied()) {
        return known;
    }
    let mut sim = Sim::new(&[program(name)], 5);
    sim.run(20 * SEC, &mut Native);
    let latencies = sorted_latencies(&sim, 0);
    let alone = Alone {
        rate: sim.groups[0].host.steps as f64 / 20.0,
        p50_ms: percentile_ms(&latencies, 0.5),
        p99_ms: percentile_ms(&latencies, 0.99),
        worked: sim.groups[0].worked as f64 / (20 * SEC) as f64,
    };
    ALONE.with_borrow_mut(|known| known.insert(name, alone));
    alone
}

/// Runs the programs for `warm` and then `length`, and measures the latter.
pub fn observe(
    programs: &[Program],
    poller: &mut dyn Poller,
    warm: Ns,
    length: Ns,
    seed: u64,
) -> Outcome {
    let mut sim = Sim::new(programs, seed);
    sim.run(warm, poller);
    let groups = sim.groups.iter();
    let before: Vec<_> = groups
        .map(|g| (g.host.steps, g.resident, g.worked))
        .collect();
    for group in &mut sim.groups {
        group.host.latencies.clear();
        group.longest_hold = 0;
    }
    sim.run(warm + length, poller);
    let mut outcome = Outcome {
        polls_per_s: sim.polls as f64 / (warm + length) as f64 * SEC as f64,
        ..Outcome::default()
    };
    for (index, (steps, resident, worked)) in before.into_iter().enumerate() {
        let latencies = sorted_latencies(&sim, index);
        let group = &sim.groups[index];
        let alone = alone(group.host.program.name);
        let rate = (group.host.steps - steps) as f64 / length as f64 * SEC as f64;
        let latency = alone.p50_ms / percentile_ms(&latencies, 0.5);
        let open_loop = group.host.program.is_open_loop();
        let progress = if open_loop {
            latency.min(1.2)
        } else {
            rate / alone.rate
        };
        outcome.progress.push(progress);
        outcome.p99_ms.push(percentile_ms(&latencies, 0.99));
        let fraction = |after: Ns, before: Ns| (after - before) as f64 / length as f64;
        outcome.resident.push(fraction(group.resident, resident));
        outcome.worked.push(fraction(group.worked, worked));
        outcome
            .worst_2s
            .push(worst_2s(&group.bins, warm, warm + length) / alone.worked);
        outcome.longest_hold.push(group.longest_hold);
    }
    outcome
}

/// The least worked time of 2 s, as a fraction.
fn worst_2s(bins: &[Ns], from: Ns, to: Ns) -> f64 {
    let wide = (2 * SEC / BIN) as usize;
    let at = |bin: usize| bins.get(bin).copied().unwrap_or(0);
    let (from, to) = ((from / BIN) as usize, (to / BIN) as usize);
    let windows = (from..to.saturating_sub(wide)).map(|bin| (bin..bin + wide).map(at).sum::<Ns>());
    windows
        .min()
        .map_or(0.0, |worked| worked as f64 / (2 * SEC) as f64)
}

/// The programs on the hardware alone.
pub fn native(programs: &[Program]) -> Outcome {
    observe(programs, &mut Native, SEC, 15 * SEC, 1)
}
