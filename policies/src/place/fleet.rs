//! GPUs, what is in use of them, and the rules that choose one.

use thiserror::Error;

/// Size of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuSize {
    /// SMs.
    pub sms: u32,
    /// Blocks that an SM holds.
    pub blocks: u32,
    /// Warps that an SM holds.
    pub warps: u32,
    /// Memory.
    pub memory_bytes: u64,
}

/// What a job needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Memory.
    pub memory_bytes: u64,
    /// Blocks of its largest kernel.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
}

impl Job {
    /// Warps of a block: 32 threads each.
    const fn warps_of_block(&self) -> u32 {
        self.threads.div_ceil(32)
    }

    /// Warps of all blocks.
    pub fn warps(&self) -> u64 {
        u64::from(self.blocks) * u64::from(self.warps_of_block())
    }
}

/// A rule that chooses a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Algorithm 2: the first GPU with memory, and with slots for all blocks.
    Exact,
    /// Algorithm 3, repaired: of the GPUs with memory the one with the fewest warps in use.
    Fewest,
    /// Algorithm 3 as printed: it takes the most loaded GPU, and never an idle one.
    FewestPrinted,
    /// CG: in turn, at most so many jobs on each, blind to memory.
    RoundRobin(u32),
    /// SA: a GPU without another job.
    Alone,
    /// schedGPU: one GPU, by memory alone.
    MemoryOnly,
    /// Of the GPUs with memory the one with the least of it free.
    Pack,
    /// Of the GPUs with memory the one with the fewest jobs, then with the most memory free.
    Spread,
}

/// A rule that a daemon offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleRow {
    /// Its name in a configuration.
    pub name: &'static str,
    /// The rule.
    pub rule: Rule,
    /// One line for help.
    pub help: &'static str,
}

/// All rules that a daemon offers; the first one is the default. Printed forms that differ from
/// their repair are in the lab alone.
pub const RULES: [RuleRow; 7] = {
    const fn row(name: &'static str, rule: Rule, help: &'static str) -> RuleRow {
        RuleRow { name, rule, help }
    }
    [
        row("spread", Rule::Spread, "the GPU with the fewest tenants"),
        row("pack", Rule::Pack, "the GPU with the least memory free"),
        row("alone", Rule::Alone, "a GPU without another tenant (SA)"),
        row(
            "turns",
            Rule::RoundRobin(u32::MAX),
            "in turn, whatever the memory (CG)",
        ),
        row("memory", Rule::MemoryOnly, "the first GPU alone (schedGPU)"),
        row(
            "exact",
            Rule::Exact,
            "the first GPU with memory and block slots (CASE, Alg 2)",
        ),
        row(
            "fewest",
            Rule::Fewest,
            "the GPU with the fewest warps (CASE, Alg 3)",
        ),
    ]
};

/// The row of this name.
pub fn rule_by_name(name: &str) -> Option<&'static RuleRow> {
    RULES.iter().find(|row| row.name == name)
}

/// Why a job is refused or cannot be placed at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlaceError {
    /// No GPU is large enough, now or later.
    #[error("A job of {0} bytes fits no GPU of this fleet")]
    TooLarge(u64),
    /// A job without blocks or threads, or a block that no SM holds.
    #[error("A job needs 1 or more blocks, of threads that one SM holds")]
    NoBlocks,
}

/// A job on a GPU, for its release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The GPU.
    pub gpu: usize,
    job: Job,
    /// Blocks on each SM, by [`Rule::Exact`].
    on_sms: Vec<u32>,
    /// Whether it is a task of a job that is there.
    is_task: bool,
}

#[derive(Clone, Debug)]
struct Gpu {
    size: GpuSize,
    /// It takes no further jobs.
    closed: bool,
    used_bytes: u64,
    used_warps: u64,
    jobs: u32,
    tasks: u32,
    /// Blocks and warps on each SM.
    on_sms: Vec<(u32, u32)>,
    next_sm: usize,
}

/// The GPUs of a host.
#[derive(Clone, Debug)]
pub struct Fleet {
    gpus: Vec<Gpu>,
    next_gpu: usize,
}

impl Fleet {
    /// Idle GPUs of these sizes.
    pub fn new(sizes: &[GpuSize]) -> Self {
        let gpu = |size: &GpuSize| Gpu {
            size: *size,
            closed: false,
            used_bytes: 0,
            used_warps: 0,
            jobs: 0,
            tasks: 0,
            on_sms: vec![(0, 0); size.sms as usize],
            next_sm: 0,
        };
        Self {
            gpus: sizes.iter().map(gpu).collect(),
            next_gpu: 0,
        }
    }

    /// Closes a GPU to further jobs, or opens it again. Jobs on it stay.
    pub fn close(&mut self, gpu: usize, closed: bool) {
        self.gpus[gpu].closed = closed;
    }

    /// Places a job; none if it has to wait.
    ///
    /// # Errors
    /// If it can never be placed. [`Rule::RoundRobin`] does not look at memory.
    pub fn place(&mut self, rule: Rule, job: Job) -> Result<Option<Placed>, PlaceError> {
        if !self.gpus.iter().any(|gpu| gpu.holds(&job)) {
            return Err(PlaceError::NoBlocks);
        }
        let fits = |gpu: &Gpu| gpu.holds(&job) && job.memory_bytes <= gpu.size.memory_bytes;
        let candidates = match rule {
            Rule::MemoryOnly => &self.gpus[..1],
            _ => &self.gpus[..],
        };
        if !matches!(rule, Rule::RoundRobin(_)) && !candidates.iter().any(fits) {
            return Err(PlaceError::TooLarge(job.memory_bytes));
        }
        let has_memory = |gpu: &Gpu| {
            fits(gpu)
                && !gpu.closed
                && job.memory_bytes <= gpu.size.memory_bytes.saturating_sub(gpu.used_bytes)
        };
        let with_memory = || (0..self.gpus.len()).filter(|place| has_memory(&self.gpus[*place]));
        let warps = |place: &usize| self.gpus[*place].used_warps;
        let mut on_sms = Vec::new();
        let chosen = match rule {
            Rule::Exact => with_memory().find(|place| {
                let (slots, whole) = self.gpus[*place].slots(&job);
                on_sms = slots;
                whole
            }),
            Rule::Fewest => with_memory().min_by_key(warps),
            Rule::FewestPrinted => {
                let (mut chosen, mut least) = (None, 0);
                for place in with_memory() {
                    if least < warps(&place) {
                        (chosen, least) = (Some(place), warps(&place));
                    }
                }
                chosen
            }
            Rule::RoundRobin(most) => {
                let all = self.gpus.len();
                let turn = (0..all).map(|offset| (self.next_gpu + offset) % all);
                let chosen = turn.into_iter().find(|place| {
                    let gpu = &self.gpus[*place];
                    !gpu.closed && gpu.jobs < most
                });
                self.next_gpu = chosen.map_or(self.next_gpu, |place| (place + 1) % all);
                chosen
            }
            Rule::Alone => with_memory().find(|place| self.gpus[*place].jobs == 0),
            Rule::MemoryOnly => with_memory().next().filter(|place| *place == 0),
            Rule::Pack => with_memory().min_by_key(|place| self.free_bytes(*place)),
            Rule::Spread => with_memory().min_by_key(|place| {
                let free = self.free_bytes(*place);
                (self.gpus[*place].jobs, std::cmp::Reverse(free))
            }),
        };
        Ok(chosen.map(|gpu| {
            let placed = Placed {
                gpu,
                job,
                on_sms,
                is_task: false,
            };
            self.gpus[gpu].commit(&placed);
            placed
        }))
    }

    /// Commits a job to this GPU, whatever is in use there and whether it is closed.
    pub fn put(&mut self, gpu: usize, job: Job) -> Placed {
        let placed = Placed {
            gpu,
            job,
            on_sms: Vec::new(),
            is_task: false,
        };
        self.gpus[gpu].commit(&placed);
        placed
    }

    /// Commits a task of a job that is on this GPU: its warps, and by [`Rule::Exact`] its blocks.
    /// Its memory is the job's. None if it has to wait, which it never has to on a GPU without
    /// another task: it takes the blocks that are there.
    ///
    /// # Errors
    /// [`PlaceError::NoBlocks`].
    pub fn place_task(
        &mut self,
        rule: Rule,
        gpu: usize,
        task: Job,
    ) -> Result<Option<Placed>, PlaceError> {
        let of = &mut self.gpus[gpu];
        if !of.holds(&task) {
            return Err(PlaceError::NoBlocks);
        }
        let on_sms = match rule {
            Rule::Exact => match of.slots(&task) {
                (_, false) if of.tasks > 0 => return Ok(None),
                (slots, _) => slots,
            },
            _ => Vec::new(),
        };
        let placed = Placed {
            gpu,
            job: Job {
                memory_bytes: 0,
                ..task
            },
            on_sms,
            is_task: true,
        };
        of.commit(&placed);
        Ok(Some(placed))
    }

    /// Memory that no job has.
    pub fn free_bytes(&self, gpu: usize) -> u64 {
        let of = &self.gpus[gpu];
        of.size.memory_bytes.saturating_sub(of.used_bytes)
    }

    /// Gives back what a job had.
    pub fn release(&mut self, placed: &Placed) {
        let gpu = &mut self.gpus[placed.gpu];
        gpu.used_bytes -= placed.job.memory_bytes;
        gpu.used_warps -= placed.job.warps();
        gpu.jobs -= u32::from(!placed.is_task);
        gpu.tasks -= u32::from(placed.is_task);
        let warps = placed.job.warps_of_block();
        for (sm, blocks) in gpu.on_sms.iter_mut().zip(&placed.on_sms) {
            *sm = (sm.0 - blocks, sm.1 - blocks * warps);
        }
    }

    /// Memory in use, and whether it is more than the GPU has.
    pub fn memory(&self, gpu: usize) -> (u64, bool) {
        let of = &self.gpus[gpu];
        (of.used_bytes, of.used_bytes > of.size.memory_bytes)
    }

    /// Warps in use of each GPU.
    pub fn warps(&self) -> Vec<u64> {
        self.gpus.iter().map(|gpu| gpu.used_warps).collect()
    }

    /// Whether a GPU takes no further jobs.
    pub fn is_closed(&self, gpu: usize) -> bool {
        self.gpus[gpu].closed
    }

    /// The most blocks and warps on one SM of a GPU, by [`Rule::Exact`].
    pub fn fullest_sm(&self, gpu: usize) -> (u32, u32) {
        let on_sms = self.gpus[gpu].on_sms.iter();
        on_sms.fold((0, 0), |most, sm| (most.0.max(sm.0), most.1.max(sm.1)))
    }
}

impl Gpu {
    /// Whether an SM holds a block of the job, which has some.
    fn holds(&self, job: &Job) -> bool {
        let size = &self.size;
        let warps = job.warps_of_block();
        job.blocks > 0 && (1..=size.warps).contains(&warps) && size.sms > 0 && size.blocks > 0
    }

    /// Blocks on each SM, one by one in turn over SMs with room, and whether they all fit. A
    /// kernel that is larger than the GPU needs all of its slots.
    fn slots(&self, job: &Job) -> (Vec<u32>, bool) {
        let warps = job.warps_of_block();
        let of_sm = self.size.blocks.min(self.size.warps / warps);
        let blocks = job.blocks.min(of_sm.saturating_mul(self.size.sms));
        let room = |(in_use, used_warps): &(u32, u32)| {
            let by_warps = self.size.warps.saturating_sub(*used_warps) / warps;
            by_warps.min(self.size.blocks.saturating_sub(*in_use))
        };
        let rooms: Vec<u32> = self.on_sms.iter().map(room).collect();
        let mut slots = vec![0; rooms.len()];
        let mut left = blocks;
        while left > 0 {
            let before = left;
            for place in (self.next_sm..rooms.len()).chain(0..self.next_sm) {
                if left > 0 && slots[place] < rooms[place] {
                    slots[place] += 1;
                    left -= 1;
                }
            }
            if left == before {
                return (slots, false);
            }
        }
        (slots, true)
    }

    fn commit(&mut self, placed: &Placed) {
        self.used_bytes += placed.job.memory_bytes;
        self.used_warps += placed.job.warps();
        self.jobs += u32::from(!placed.is_task);
        self.tasks += u32::from(placed.is_task);
        let warps = placed.job.warps_of_block();
        for (sm, blocks) in self.on_sms.iter_mut().zip(&placed.on_sms) {
            *sm = (sm.0 + blocks, sm.1 + blocks * warps);
        }
        let last = placed.on_sms.iter().rposition(|blocks| *blocks > 0);
        self.next_sm = last.map_or(self.next_sm, |last| (last + 1) % self.on_sms.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The rule as the paper prints it: block by block, in turn over SMs with room.
    fn block_by_block(gpu: &Gpu, job: &Job) -> (Vec<u32>, bool) {
        let warps = job.warps_of_block();
        let of_sm = gpu.size.blocks.min(gpu.size.warps / warps);
        let all = gpu.on_sms.len();
        let (mut slots, mut next) = (vec![0; all], gpu.next_sm);
        for _ in 0..job.blocks.min(of_sm * gpu.size.sms) {
            let room = |place: &usize| {
                let ((in_use, used), own) = (gpu.on_sms[*place], slots[*place]);
                in_use + own < gpu.size.blocks && used + (own + 1) * warps <= gpu.size.warps
            };
            let mut turn = (0..all).map(|offset| (next + offset) % all);
            let Some(place) = turn.find(room) else {
                return (slots, false);
            };
            slots[place] += 1;
            next = (place + 1) % all;
        }
        (slots, true)
    }

    proptest! {
        #[test]
        fn slots_are_those_of_block_by_block(
            (blocks, warps) in (1_u32..6, 1_u32..12),
            on_sms in prop::collection::vec((0_u32..6, 0_u32..12), 1..6),
            (next, job_blocks, threads) in (0_usize..6, 1_u32..40, 1_u32..300),
        ) {
            let sms = on_sms.len();
            let size = GpuSize { sms: u32::try_from(sms).unwrap(), blocks, warps, memory_bytes: 1 };
            let mut gpu = Fleet::new(&[size]).gpus.remove(0);
            gpu.on_sms = on_sms;
            gpu.next_sm = next % sms;
            let job = Job { memory_bytes: 0, blocks: job_blocks, threads };
            prop_assert_eq!(gpu.slots(&job), block_by_block(&gpu, &job));
        }
    }
}
