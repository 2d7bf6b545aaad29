//! Total time of equal processes that share a GPU (Li et al., A4).
//!
//! In: a kernel's blocks, the GPU's SMs, the lengths of a process's stages, the number of
//! processes. Out: the scenario, and the time until all have ended, by formula and by recursion.
//!
//! Laws: formulas equal the recursion; sharing takes no longer than one after another where a block
//! more on an SM costs at most its time alone.

use super::sm::SmError;

/// The kernel of a process, and the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    pub(super) blocks: u32,
    pub(super) sms: u32,
    pub(super) resident_max: u32,
}

/// How equal processes share the SMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Each block has an SM of its own: eq. 1.
    ExclusiveSpace,
    /// All blocks are resident, some on one SM: eq. 2, 3.
    SharedSpace,
    /// All blocks of one kernel are resident, but not those of all: eq. 4, 5.
    SpaceTime,
    /// One kernel fills the GPU: eq. 4, 6.
    Time,
}

impl Fit {
    /// A kernel of `blocks` on a GPU of `sms`, each of which holds at most `resident_max` blocks.
    ///
    /// # Errors
    /// If one of them is 0.
    pub const fn new(blocks: u32, sms: u32, resident_max: u32) -> Result<Self, SmError> {
        if sms == 0 {
            return Err(SmError::NoSms);
        }
        if blocks == 0 || resident_max == 0 {
            return Err(SmError::EmptyKernel(0));
        }
        Ok(Self {
            blocks,
            sms,
            resident_max,
        })
    }

    /// The scenario of `processes` equal processes.
    pub fn scenario(&self, processes: u32) -> Scenario {
        let blocks = u64::from(self.blocks) * u64::from(processes);
        let slots = u64::from(self.sms) * u64::from(self.resident_max);
        if blocks <= u64::from(self.sms) {
            Scenario::ExclusiveSpace
        } else if blocks <= slots {
            Scenario::SharedSpace
        } else if u64::from(self.blocks) < slots {
            Scenario::SpaceTime
        } else {
            Scenario::Time
        }
    }

    /// Blocks on the fullest SM in each round of `processes` kernels; all but the last are full.
    fn rounds(&self, processes: u32) -> (u32, u32) {
        let (blocks, slots) = (self.blocks * processes, self.sms * self.resident_max);
        let full = (blocks - 1) / slots;
        (full, (blocks - full * slots).div_ceil(self.sms))
    }
}

/// Lengths of a process's stages, in any unit of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stages {
    /// Initialisation; once for all if they share.
    pub init: f64,
    /// Copy of the input.
    pub input: f64,
    /// A round of blocks with one on each SM.
    pub round: f64,
    /// What each further block on an SM adds to a round.
    pub stretch: f64,
    /// Copy of the output.
    pub output: f64,
    /// A switch of contexts between processes that do not share.
    pub switch: f64,
}

impl Stages {
    /// Time of rounds that are full, and of a last one with this many blocks on the fullest SM.
    fn kernels(&self, fit: &Fit, (full, last): (u32, u32)) -> f64 {
        let round = |resident: u32| self.round + f64::from(resident - 1) * self.stretch;
        f64::from(full) * round(fit.resident_max) + round(last)
    }

    /// Time of one kernel alone.
    pub fn kernel(&self, fit: &Fit) -> f64 {
        self.kernels(fit, fit.rounds(1))
    }

    /// One process after another.
    pub fn native(&self, fit: &Fit, processes: u32) -> f64 {
        let one = self.init + self.input + self.kernel(fit) + self.output;
        f64::from(processes) * one + f64::from(processes - 1) * self.switch
    }

    /// The formula of the scenario: all inputs, all kernels, all outputs. Valid in
    /// [`Scenario::Time`] if an input takes at most as long as a kernel.
    pub fn shared(&self, fit: &Fit, processes: u32) -> f64 {
        let n = f64::from(processes);
        let (alone, residency) = (self.kernel(fit), |blocks: u32| blocks.div_ceil(fit.sms));
        match fit.scenario(processes) {
            Scenario::ExclusiveSpace => self.init + n * self.input + alone + n * self.output,
            Scenario::SharedSpace => {
                let more = residency(fit.blocks * processes) - residency(fit.blocks);
                let stretch = self.stretch * f64::from(more);
                self.init + n * self.input + alone + stretch + n * self.output
            }
            Scenario::SpaceTime => {
                let fill = f64::from(fit.resident_max - residency(fit.blocks));
                let (full, last) = fit.rounds(processes);
                // The first full round is the kernel alone, and what fills it up.
                let rest = self.kernels(fit, (full - 1, last));
                self.init + n * self.input + alone + self.stretch * fill + rest + n * self.output
            }
            Scenario::Time => {
                let others = (n - 1.0) * alone;
                self.init + self.input + alone + others + n * self.output
            }
        }
    }

    /// The formula of processes that copy more than they compute: pipelines of input, kernel and
    /// output.
    pub fn pipelined(&self, fit: &Fit, processes: u32) -> f64 {
        let alone = self.kernel(fit);
        let longest = self.input.max(alone).max(self.output);
        self.init + self.input + alone + self.output + f64::from(processes - 1) * longest
    }

    /// The same by recursion over the processes. Outputs wait for all kernels unless the processes
    /// are pipelines.
    pub fn by_recursion(&self, fit: &Fit, processes: u32, pipelines: bool) -> f64 {
        let together = !pipelines && fit.scenario(processes) != Scenario::Time;
        let mut kernel = self.kernel(fit);
        if together {
            kernel = self.kernels(fit, fit.rounds(processes));
        }
        let (mut inputs, mut kernels) = (self.init, 0.0_f64);
        let mut ends = Vec::new();
        for _ in 0..processes {
            inputs += self.input;
            let begin = if together {
                inputs
            } else {
                inputs.max(kernels)
            };
            kernels = begin + kernel;
            ends.push(kernels);
        }
        let mut outputs = 0.0_f64;
        for end in ends {
            let ready = if pipelines { end } else { kernels };
            outputs = outputs.max(ready) + self.output;
        }
        outputs
    }
}
