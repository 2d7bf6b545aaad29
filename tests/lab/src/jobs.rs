//! Jobs on several GPUs (CASE, A5): a queue, workers, placement, and contention on each GPU.
//!
//! In: jobs that all wait from 0 on, GPUs, workers, a rule. Out: when each job has ended, which
//! crashed, and how much its kernels were slowed down. Jobs on one GPU advance at one rate: fully
//! while their loads fit, in proportion beyond that, and a little slower for each other's load.

use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use turnstile_policies::place::{Fleet, GpuSize, Job, PlaceError, Placed, Rule};

use crate::result::Failure;

const GIB: u64 = 1 << 30;
/// Part by which the load of others slows a job down. Fitted, so that kernels lose 1 to 4 %.
const INTERFERENCE: f64 = 0.08;
/// Memory of large jobs in GiB, and of small ones. SOURCE: 10 and 7 sizes within the printed
/// ranges; the sizes themselves are chosen.
const LARGE_GIB: [f64; 10] = [4.2, 4.5, 5.0, 5.5, 6.0, 6.5, 7.5, 9.0, 11.0, 13.0];
const SMALL_GIB: [f64; 7] = [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0];

/// A job.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// What it needs of a GPU.
    pub job: Job,
    /// Its time alone, in seconds.
    pub seconds: f64,
    /// Part of the GPU that it uses on average.
    pub load: f64,
}

/// How jobs are placed.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// The GPUs.
    pub gpus: &'a [GpuSize],
    /// Jobs that are placed or wait for a place at a time.
    pub workers: usize,
    /// The rule.
    pub rule: Rule,
}

/// What came of all jobs.
#[derive(Clone, Debug, Default)]
pub struct Result {
    /// End of each job that did not crash, in seconds.
    pub ends: Vec<f64>,
    /// Jobs that crashed for lack of memory.
    pub crashed: usize,
    /// Mean time from 0 until a job is placed, in seconds.
    pub wait: f64,
    /// Mean time of a job on its GPU over its time alone, less 1, in percent.
    pub slowdown_percent: f64,
}

impl Result {
    /// Jobs that ended, per second.
    pub fn throughput(&self) -> f64 {
        let last = self.ends.iter().copied().fold(0.0, f64::max);
        self.ends.len() as f64 / last.max(f64::MIN_POSITIVE)
    }

    /// Mean end of a job.
    pub fn turnaround(&self) -> f64 {
        self.ends.iter().sum::<f64>() / self.ends.len().max(1) as f64
    }
}

/// Jobs of a mix: `large` to 1 by size, in random order.
pub fn mix(random: &mut SmallRng, count: usize, large: u32, size: &GpuSize) -> Vec<Work> {
    let work = |_| {
        let is_large = random.random_range(0..=large) < large;
        let sizes: &[f64] = if is_large { &LARGE_GIB } else { &SMALL_GIB };
        let gib = sizes.choose(random).copied().unwrap_or(1.0);
        let occupancy = random.random_range(0.2..0.7);
        let slots = f64::from(size.sms * size.warps / 8);
        Work {
            // CAST: sizes are small and positive.
            job: Job {
                memory_bytes: (gib * GIB as f64) as u64,
                blocks: (slots * occupancy) as u32,
                threads: 256,
            },
            seconds: random.random_range(20.0..60.0),
            load: occupancy * random.random_range(0.3..0.6),
        }
    };
    (0..count).map(work).collect()
}

#[derive(Debug)]
struct Running {
    work: Work,
    placed: Placed,
    left: f64,
    began: f64,
}

/// Runs all jobs.
///
/// # Errors
/// If a job can never be placed.
pub fn run(jobs: &[Work], plan: &Plan<'_>) -> std::result::Result<Result, Failure> {
    let mut fleet = Fleet::new(plan.gpus);
    let mut queue = jobs.iter().copied();
    let (mut waiting, mut running): (Vec<Work>, Vec<Running>) = (Vec::new(), Vec::new());
    let (mut now, mut result, mut slowdowns) = (0.0, Result::default(), Vec::new());
    let failed = |error: PlaceError| Failure(error.to_string());
    loop {
        // A job that crashes makes room for the next one at once.
        loop {
            let room = plan.workers.saturating_sub(waiting.len() + running.len());
            waiting.extend(queue.by_ref().take(room));
            let crashed = result.crashed;
            // Jobs that wait are tried in their order; those that fit do not wait for larger ones.
            for work in std::mem::take(&mut waiting) {
                match fleet.place(plan.rule, work.job).map_err(failed)? {
                    None => waiting.push(work),
                    Some(placed) if fleet.memory(placed.gpu).1 => {
                        fleet.release(&placed);
                        result.crashed += 1;
                    }
                    Some(placed) => running.push(Running {
                        work,
                        placed,
                        left: work.seconds,
                        began: now,
                    }),
                }
            }
            if result.crashed == crashed {
                break;
            }
        }
        if running.is_empty() {
            // All have ended, or there is no worker.
            break;
        }
        let loads: Vec<f64> = (0..plan.gpus.len())
            .map(|gpu| {
                let on_it = running.iter().filter(|one| one.placed.gpu == gpu);
                on_it.map(|one| one.work.load).sum()
            })
            .collect();
        let rate = |one: &Running| {
            let all = loads[one.placed.gpu];
            1.0 / (all.max(1.0) * (1.0 + INTERFERENCE * (all - one.work.load)))
        };
        let step = running
            .iter()
            .map(|one| one.left / rate(one))
            .fold(f64::MAX, f64::min);
        now += step;
        for one in &mut running {
            one.left -= step * rate(one);
        }
        running.retain(|one| {
            if one.left > 1e-9 {
                return true;
            }
            fleet.release(&one.placed);
            result.ends.push(now);
            result.wait += one.began;
            slowdowns.push(((now - one.began) / one.work.seconds - 1.0) * 100.0);
            false
        });
    }
    let ended = slowdowns.len().max(1) as f64;
    result.slowdown_percent = slowdowns.iter().sum::<f64>() / ended;
    result.wait /= ended;
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    const GPU: GpuSize = GpuSize {
        sms: 80,
        blocks: 32,
        warps: 64,
        memory_bytes: 16 * GIB,
    };

    fn work(gib: u64, load: f64) -> Work {
        Work {
            job: Job {
                memory_bytes: gib * GIB,
                blocks: 80,
                threads: 256,
            },
            seconds: 10.0,
            load,
        }
    }

    #[test]
    fn one_after_another_alone_and_side_by_side_together() {
        let jobs = [work(4, 0.4); 4];
        let end = |rule, workers| {
            let plan = Plan {
                gpus: &[GPU],
                workers,
                rule,
            };
            run(&jobs, &plan).unwrap()
        };
        assert_eq!(end(Rule::Alone, 1).ends, [10.0, 20.0, 30.0, 40.0]);
        let together = end(Rule::Fewest, 4);
        // Four loads of 0.4, each slowed by the others' 1.2.
        let expected = 10.0 * 1.6 * (1.0 + INTERFERENCE * 1.2);
        assert!(
            together
                .ends
                .iter()
                .all(|end| (end - expected).abs() < 1e-6)
        );
    }

    #[test]
    fn jobs_without_memory_checks_crash_and_the_others_end() {
        let jobs = [work(10, 0.1); 4];
        let plan = |rule| Plan {
            gpus: &[GPU],
            workers: 2,
            rule,
        };
        let crashed = run(&jobs, &plan(Rule::RoundRobin(2))).unwrap();
        assert!(crashed.crashed > 0 && crashed.crashed + crashed.ends.len() == 4);
        let checked = run(&jobs, &plan(Rule::Fewest)).unwrap();
        assert_eq!((checked.crashed, checked.ends.len()), (0, 4));
        let large = [work(17, 0.1)];
        assert!(
            run(&large, &plan(Rule::Fewest)).is_err(),
            "for ever without a place"
        );
        // Blind to memory, it crashes.
        assert_eq!(run(&large, &plan(Rule::RoundRobin(2))).unwrap().crashed, 1);
    }

    #[test]
    fn all_jobs_of_a_mix_end() {
        for seed in 0..20 {
            let mut random = SmallRng::seed_from_u64(seed);
            let jobs = mix(&mut random, 32, 3, &GPU);
            for rule in [Rule::Exact, Rule::Fewest, Rule::Alone, Rule::RoundRobin(3)] {
                let plan = Plan {
                    gpus: &[GPU; 2],
                    workers: 6,
                    rule,
                };
                let result = run(&jobs, &plan).unwrap();
                assert_eq!(result.ends.len() + result.crashed, 32, "{rule:?}");
            }
        }
    }
}
