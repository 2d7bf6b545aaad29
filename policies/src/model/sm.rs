//! Speed of a program by its number of SMs, from the number of its blocks alone.
//!
//! A kernel runs in rounds: as many blocks as fit at a time, then the next ones. All rounds take
//! the same time, so a kernel's time is proportional to its rounds. Contention for memory and
//! interconnect is not modelled. Source: Adriaens, chapters 4 and 6 (A3.2, A3.3).
//!
//! Laws: speed does not fall with the number of SMs, and is 1 with all of them.

/// A kernel of a program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kernel {
    /// Its part of the program's time on all SMs, in any unit.
    pub time: f64,
    /// Thread blocks.
    pub blocks: u32,
    /// Blocks that one SM holds at a time.
    pub resident: u32,
}

/// A program.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    kernels: Vec<Kernel>,
    /// Speed by number of SMs, from 1 on, against all of them.
    speeds: Vec<f64>,
    /// Blocks, weighted by the kernels' time.
    pub blocks: u32,
    /// Threads of a block, weighted likewise.
    pub threads: u32,
    /// Blocks that one SM holds, weighted likewise.
    pub resident: u32,
}

/// A program or a GPU that cannot run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SmError {
    /// A GPU without SMs.
    #[error("A GPU of 0 SMs runs nothing; it needs 1 or more")]
    NoSms,
    /// Each program needs an SM of its own.
    #[error("{programs} programs need {programs} SMs, {sms} exist")]
    TooFewSms {
        /// Programs.
        programs: usize,
        /// SMs.
        sms: u32,
    },
    /// A program without launches, or a kernel that takes no time or has no blocks.
    #[error("Kernel {0} has no blocks, no resident block or no time; a program has 1 or more")]
    EmptyKernel(usize),
}

/// Rounds of `blocks`, with `resident` on each of `sms`.
pub const fn rounds(blocks: u32, resident: u32, sms: u32) -> u32 {
    blocks.div_ceil(resident * sms)
}

impl Program {
    /// A program on a GPU of `sms`. Blocks, threads of a block and resident blocks are the values
    /// that heuristics see.
    ///
    /// # Errors
    /// If there is no SM, no kernel, or a kernel without time, blocks or room.
    pub fn new(
        kernels: &[Kernel],
        [blocks, threads, resident]: [u32; 3],
        sms: u32,
    ) -> Result<Self, SmError> {
        if sms == 0 {
            return Err(SmError::NoSms);
        }
        let empty = |kernel: &Kernel| {
            kernel.blocks == 0 || kernel.resident == 0 || kernel.time.is_nan() || kernel.time <= 0.0
        };
        if let Some(place) = kernels.iter().position(empty) {
            return Err(SmError::EmptyKernel(place));
        }
        if kernels.is_empty() || blocks == 0 || resident == 0 {
            return Err(SmError::EmptyKernel(0));
        }
        let all: f64 = kernels.iter().map(|kernel| kernel.time).sum();
        let time = |of: u32| -> f64 {
            let one = |kernel: &Kernel| {
                let own = |sms| f64::from(rounds(kernel.blocks, kernel.resident, sms));
                kernel.time * own(of) / own(sms)
            };
            kernels.iter().map(one).sum()
        };
        let speed = |of| if of == sms { 1.0 } else { all / time(of) };
        Ok(Self {
            kernels: kernels.to_vec(),
            speeds: (1..=sms).map(speed).collect(),
            blocks,
            threads,
            resident,
        })
    }

    /// Speed on `sms`, against all SMs; 0 on none.
    pub fn speed(&self, sms: u32) -> f64 {
        let place = (sms as usize).min(self.speeds.len());
        place.checked_sub(1).map_or(0.0, |place| self.speeds[place])
    }

    /// Rounds on `sms`, by the values that heuristics see.
    pub const fn rounds(&self, sms: u32) -> u32 {
        rounds(self.blocks, self.resident, sms)
    }

    /// The fewest SMs on which it has at least this part of its speed on all.
    pub fn fewest_for(&self, part: f64) -> u32 {
        let reaches = self.speeds.iter().position(|speed| *speed >= part);
        // CAST: a GPU has few SMs.
        reaches.map_or(self.speeds.len(), |place| place + 1) as u32
    }

    /// SMs of the GPU.
    pub fn sms(&self) -> u32 {
        // CAST: made from this type.
        self.speeds.len() as u32
    }

    /// Its kernels.
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }
}

/// Throughput of programs on parts of the SMs, against taking turns on all of them: the sum of
/// their speeds.
pub fn throughput(programs: &[&Program], split: &[u32]) -> f64 {
    let speeds = programs.iter().zip(split);
    speeds.map(|(program, sms)| program.speed(*sms)).sum()
}
