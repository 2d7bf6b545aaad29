//! CASE: the eight workloads on both machines, and the figures of one of them.

use rand::SeedableRng;
use rand::rngs::SmallRng;
use turnstile_policies::place::{GpuSize, Rule};

use super::case_fig1::P100;
use crate::jobs::{Plan, Result as Outcome, Work, mix, run};
use crate::result::{Failure, Parameters};

/// 80 SMs and 16 GB.
pub const V100: GpuSize = GpuSize { sms: 80, ..P100 };

/// A machine of the paper: its name, GPUs, MGB's workers, and those of CG.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Name.
    pub name: &'static str,
    /// GPUs.
    pub gpus: &'static [GpuSize],
    /// Workers of MGB.
    pub workers: usize,
    /// Workers of CG in table II.
    pub cg_workers: [usize; 4],
}

/// Both machines.
pub const MACHINES: [Machine; 2] = [
    Machine {
        name: "two P100",
        gpus: &[P100; 2],
        workers: 10,
        cg_workers: [3, 4, 5, 6],
    },
    Machine {
        name: "four V100",
        gpus: &[V100; 4],
        workers: 16,
        cg_workers: [6, 8, 10, 12],
    },
];

/// Workloads W1 to W8: jobs, and large ones to one small one.
pub const WORKLOADS: [(usize, u32); 8] = [
    (16, 1),
    (16, 2),
    (16, 3),
    (16, 5),
    (32, 1),
    (32, 2),
    (32, 3),
    (32, 5),
];

impl Machine {
    /// The jobs of a seed.
    pub fn jobs(&self, seed: u64, (count, large): (usize, u32)) -> Vec<Work> {
        let mut random =
            SmallRng::seed_from_u64(seed ^ (count as u64) << 32 ^ u64::from(large) << 40);
        mix(&mut random, count, large, &self.gpus[0])
    }

    /// Runs jobs under MGB's rule: algorithm 2 or 3.
    ///
    /// # Errors
    /// If a job can never be placed.
    pub fn mgb(&self, jobs: &[Work], rule: Rule) -> Result<Outcome, Failure> {
        self.run(jobs, rule, self.workers)
    }

    /// Runs jobs one on each GPU.
    ///
    /// # Errors
    /// If a job can never be placed.
    pub fn alone(&self, jobs: &[Work]) -> Result<Outcome, Failure> {
        self.run(jobs, Rule::Alone, self.gpus.len())
    }

    /// Runs jobs under CG.
    ///
    /// # Errors
    /// If a job has no blocks.
    pub fn cg(&self, jobs: &[Work], workers: usize) -> Result<Outcome, Failure> {
        // CAST: a machine has few workers.
        let most = workers.div_ceil(self.gpus.len()) as u32;
        self.run(jobs, Rule::RoundRobin(most), workers)
    }

    /// Runs jobs under a rule with so many workers.
    ///
    /// # Errors
    /// If a job can never be placed.
    pub fn run(&self, jobs: &[Work], rule: Rule, workers: usize) -> Result<Outcome, Failure> {
        let plan = Plan {
            gpus: self.gpus,
            workers,
            rule,
        };
        run(jobs, &plan)
    }
}

/// Where the parameters are from.
pub const PARAMETERS: Parameters = Parameters {
    paper: "GPUs, numbers of jobs, mixes, ranges of sizes, workers",
    fitted: "compute shares of jobs and an interference of 8 % of the others' load, to the means of table IV (1 to 4 %)",
    chosen: "sizes within the ranges, lengths of 20 to 60 s",
};
