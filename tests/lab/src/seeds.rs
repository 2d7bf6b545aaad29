//! The seeds of an experiment, and work over them on all cores.

use std::num::NonZero;
use std::ops::Range;
use std::thread;

/// Consecutive seeds, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds(Range<u64>);

impl Seeds {
    /// `count` seeds from `first` on; none without a seed, or beyond the largest number.
    pub fn new(first: u64, count: u64) -> Option<Self> {
        let end = first.checked_add(count)?;
        (count > 0).then_some(Self(first..end))
    }

    /// How many.
    pub const fn count(&self) -> u64 {
        self.0.end - self.0.start
    }

    /// The first one.
    pub const fn first(&self) -> u64 {
        self.0.start
    }
}

/// That many seeds, from 0 on.
impl From<u64> for Seeds {
    fn from(count: u64) -> Self {
        Self(0..count.max(1))
    }
}

impl From<&Seeds> for Seeds {
    fn from(seeds: &Seeds) -> Self {
        seeds.clone()
    }
}

/// Calls `work` for each seed, on all cores; results are in the order of the seeds.
///
/// # Errors
/// The error of the lowest seed that failed.
pub fn over_seeds<R: Send, E: Send>(
    seeds: impl Into<Seeds>,
    work: impl Fn(u64) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let Seeds(seeds) = seeds.into();
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let share = |core: usize| {
        let own = seeds.clone().skip(core).step_by(cores);
        own.map(|seed| (seed, work(seed))).collect::<Vec<_>>()
    };
    let mut results: Vec<(u64, Result<R, E>)> = thread::scope(|scope| {
        let share = &share;
        let workers: Vec<_> = (0..cores)
            .map(|core| scope.spawn(move || share(core)))
            .collect();
        workers
            .into_iter()
            // PANIC: a worker's panic is passed on.
            .flat_map(|worker| worker.join().expect("a worker"))
            .collect()
    });
    results.sort_by_key(|(seed, _)| *seed);
    results.into_iter().map(|(_, result)| result).collect()
}
