//! Li et al.: what the three experiments share. The paper prints neither blocks nor stages of its
//! programs but EP's one block and MG's 4K: the others are chosen for the scenario that it names.

use turnstile_policies::model::processes::{Fit, Stages};

/// SMs of the paper's GPU.
pub const SMS: u32 = 14;
/// Blocks that an SM holds.
pub const RESIDENT_MAX: u32 = 8;
/// Most processes.
pub const PROCESSES: u32 = 8;

/// A program.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Name.
    pub name: &'static str,
    /// Printed deviation of the model from the measurement, in percent.
    pub printed_percent: f64,
    /// Its kernel on the GPU.
    pub fit: Fit,
    /// Its stages, in milliseconds.
    pub stages: Stages,
    /// Whether its processes are pipelines, as it copies more than it computes.
    pub pipelines: bool,
}

const fn program(
    name: &'static str,
    printed_percent: f64,
    blocks: u32,
    [init, input, round, stretch, output]: [f64; 5],
    pipelines: bool,
) -> Program {
    let Ok(fit) = Fit::new(blocks, SMS, RESIDENT_MAX) else {
        panic!("each program has blocks");
    };
    Program {
        name,
        printed_percent,
        fit,
        stages: Stages {
            init,
            input,
            round,
            stretch,
            output,
            switch: 0.2,
        },
        pipelines,
    }
}

/// EP, BlackScholes, ES, MG and VecMul.
pub const PROGRAMS: [Program; 5] = [
    program("EP", 0.42, 1, [1_500.0, 0.1, 2_000.0, 0.0, 0.1], false),
    program(
        "BlackScholes",
        14.29,
        14,
        [1_500.0, 1.0, 800.0, 120.0, 1.0],
        false,
    ),
    program("ES", 1.92, 70, [1_500.0, 0.1, 100.0, 60.0, 0.1], false),
    program("MG", 4.10, 4_096, [1_500.0, 2.0, 8.0, 4.0, 2.0], false),
    program("VecMul", 4.76, 400, [1_500.0, 60.0, 3.0, 1.0, 30.0], true),
];

impl Program {
    /// Time of all processes by the formula.
    pub fn total(&self, processes: u32) -> f64 {
        match self.pipelines {
            true => self.stages.pipelined(&self.fit, processes),
            false => self.stages.shared(&self.fit, processes),
        }
    }
}
