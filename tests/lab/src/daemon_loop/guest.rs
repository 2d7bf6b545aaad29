//! Simulated guests: they write real commands into a ring and decide when to write the doorbell.
//!
//! Each piece of work is two commands: a LAUNCH of a given length, and a FENCE with an interrupt.
//! The launch's parameters contain tenant and number, so that [`Execution`] records what was
//! executed, in order.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use turnstile_abi::{ChannelStatus, Command, Dim3, Launch};
use turnstile_accounting::{AccountId, Moment, Nanos, TenantId};
use turnstile_gpu::plain::{PlainChannel, PlainVm};
use turnstile_gpu::{Gpu, Refusal};
use turnstile_soft::KernelCost;
use vm_memory::GuestAddress;

use super::laws::BrokenLaw;

/// Entries of a guest's ring.
pub const RING_ENTRIES: u32 = 64;
/// Launches that a guest can have submitted at a time: each takes two entries.
pub const DEPTH_MAX: u32 = RING_ENTRIES / 2;
/// Vector of all fences.
const VECTOR: u16 = 1;
/// Memory of a guest.
const MEMORY_BYTES: usize = 64 << 10;
/// GPU memory that it may own; it owns none.
const GPU_MEMORY_BYTES: u64 = 2 << 20;
/// Parameters of a launch: length, tenant, number.
const PARAM_BYTES: u32 = 24;

/// Lengths of a guest's kernels: uniform between two lengths, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// The shortest.
    pub shortest_ns: Nanos,
    /// The longest.
    pub longest_ns: Nanos,
}

impl Lengths {
    /// All of the same length.
    pub const fn of(length_ns: Nanos) -> Self {
        Self {
            shortest_ns: length_ns,
            longest_ns: length_ns,
        }
    }

    /// Between two lengths in microseconds.
    pub const fn between_us(shortest: u64, longest: u64) -> Self {
        Self {
            shortest_ns: Nanos::from_us(shortest),
            longest_ns: Nanos::from_us(longest),
        }
    }

    fn draw(self, random: &mut SmallRng) -> Nanos {
        Nanos(random.random_range(self.shortest_ns.0..=self.longest_ns.0))
    }
}

/// A load that no guest can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("A load keeps 1 to {DEPTH_MAX} kernels submitted, of 1 ns or more")]
pub struct BadLoad;

/// Load of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Load {
    /// Keeps `depth` kernels submitted; submits the next one `think` after one has ended.
    Closed {
        /// Lengths of its kernels.
        kernels: Lengths,
        /// Kernels submitted at a time.
        depth: u32,
        /// From the end of a kernel to the next submission.
        think: Lengths,
    },
    /// Has kernels to submit from given moments on, in order of time, and keeps at most `depth`
    /// submitted.
    Open {
        /// When each is available, and its length.
        work: Vec<(Moment, Nanos)>,
        /// Kernels submitted at a time.
        depth: u32,
    },
    /// From `start` on keeps `depth` kernels submitted; their lengths repeat a list. The next one
    /// is submitted a pause after one has ended.
    Program {
        /// Lengths of its kernels, in turn.
        kernels_ns: Vec<Nanos>,
        /// Kernels submitted at a time.
        depth: u32,
        /// From the end of a kernel to the next submission.
        pauses: Lengths,
        /// When it begins.
        start: Moment,
    },
}

impl Load {
    /// Always has work; at depth 1 it launches and waits.
    pub const fn saturating(kernels: Lengths, depth: u32) -> Self {
        Self::Closed {
            kernels,
            depth,
            think: Lengths::of(Nanos::ZERO),
        }
    }

    /// LoGA's throttle (A1.6): a kernel of `kernel_ns`, a wait for it, a sleep of `sleep_ns`,
    /// repeated for ever.
    pub const fn throttle(kernel_ns: Nanos, sleep_ns: Nanos) -> Self {
        Self::Closed {
            kernels: Lengths::of(kernel_ns),
            depth: 1,
            think: Lengths::of(sleep_ns),
        }
    }

    /// Kernels of one length in microseconds, and a pause of `pause_us` before each next one.
    pub fn program(kernel_us: u64, depth: u32, pause_us: u64) -> Self {
        Self::Program {
            kernels_ns: vec![Nanos::from_us(kernel_us)],
            depth,
            pauses: Lengths::of(Nanos::from_us(pause_us)),
            start: Moment(0),
        }
    }

    /// Never submits anything.
    pub const fn idle() -> Self {
        Self::Open {
            work: Vec::new(),
            depth: 1,
        }
    }

    /// An open loop until `end`: every `every` on average (0.5 to 1.5 of it) a burst of 1 to
    /// `2 * kernels_mean - 1` kernels.
    pub fn bursty(
        seed: u64,
        every: Nanos,
        kernels_mean: u64,
        kernels: Lengths,
        depth: u32,
        end: Moment,
    ) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let (mut at, mut work) = (Moment(0), Vec::new());
        loop {
            at = at + Nanos(random.random_range(every.0 / 2..=every.0 / 2 * 3));
            if at >= end {
                return Self::Open { work, depth };
            }
            for _ in 0..random.random_range(1..=2 * kernels_mean - 1) {
                work.push((at, kernels.draw(&mut random)));
            }
        }
    }

    /// Kernels submitted at a time.
    pub const fn depth(&self) -> u32 {
        match self {
            Self::Closed { depth, .. } | Self::Open { depth, .. } | Self::Program { depth, .. } => {
                *depth
            }
        }
    }

    /// Whether it has work at every moment.
    pub fn is_saturating(&self) -> bool {
        match self {
            Self::Closed { think: pauses, .. } | Self::Program { pauses, .. } => {
                pauses.longest_ns == Nanos::ZERO
            }
            Self::Open { .. } => false,
        }
    }

    /// The moment before which it has no work.
    pub fn start(&self) -> Moment {
        match self {
            Self::Program { start, .. } => *start,
            Self::Closed { .. } | Self::Open { .. } => Moment(0),
        }
    }

    /// Its shortest and its longest kernel; none if it has no kernel.
    pub fn lengths(&self) -> Option<Lengths> {
        let of = |lengths: &mut dyn Iterator<Item = Nanos>| {
            lengths.fold(None, |known: Option<Lengths>, length| {
                let known = known.unwrap_or(Lengths::of(length));
                Some(Lengths {
                    shortest_ns: known.shortest_ns.min(length),
                    longest_ns: known.longest_ns.max(length),
                })
            })
        };
        match self {
            Self::Closed { kernels, .. } => Some(*kernels),
            Self::Open { work, .. } => of(&mut work.iter().map(|(_, length)| *length)),
            Self::Program { kernels_ns, .. } => of(&mut kernels_ns.iter().copied()),
        }
    }

    /// Whether a guest can have it.
    ///
    /// # Errors
    /// If it keeps no kernel submitted, more than a ring has, or one of 0 ns. A load that has no
    /// kernel by its list of moments submits nothing.
    pub fn check(&self) -> Result<(), BadLoad> {
        let takes_time = match self.lengths() {
            Some(lengths) => lengths.shortest_ns > Nanos::ZERO,
            None => matches!(self, Self::Open { .. }),
        };
        let fits = (1..=DEPTH_MAX).contains(&self.depth());
        (fits && takes_time).then_some(()).ok_or(BadLoad)
    }

    /// The longest that its queued kernels can take.
    pub fn queued_ns_max(&self) -> Nanos {
        let longest = self.lengths().map_or(0, |lengths| lengths.longest_ns.0);
        Nanos(u64::from(self.depth()) * longest)
    }
}

/// A launch that the GPU has begun to execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Executed {
    /// The tenant.
    pub tenant: TenantId,
    /// Number of the launch: 0, 1, 2, and so on.
    pub number: u64,
    /// Its length.
    pub length_ns: Nanos,
}

/// The launches that the GPU has executed, in this order.
#[derive(Clone, Debug, Default)]
pub struct Execution(Arc<Mutex<Vec<Executed>>>);

impl Execution {
    /// Moves the launches since the last call to `list`.
    pub fn drain(&self, list: &mut Vec<Executed>) {
        list.append(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl KernelCost for Execution {
    fn length(&mut self, _: &Launch, params: &[u8]) -> Nanos {
        let word = |index: usize| {
            let bytes = params.get(index * 8..index * 8 + 8);
            bytes
                .and_then(|bytes| bytes.try_into().ok())
                .map_or(u64::MAX, u64::from_le_bytes)
        };
        let executed = Executed {
            tenant: TenantId(u32::try_from(word(1)).unwrap_or(u32::MAX)),
            number: word(2),
            length_ns: Nanos(word(0)),
        };
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.push(executed);
        executed.length_ns
    }
}

/// A guest with one channel.
#[derive(Debug)]
// FIELDS: a guest's identity, its device, its load, and the course of its launches.
pub struct Guest {
    /// Its id.
    pub id: TenantId,
    /// Its memory, doorbells and interrupts.
    pub vm: Arc<PlainVm>,
    load: Load,
    channel: PlainChannel,
    params_gpa: u64,
    random: SmallRng,
    /// Work not submitted yet: when it is available, and its length.
    ready: VecDeque<(Moment, Nanos)>,
    submitted: u64,
    completed: u64,
    /// When each launch that has not ended was submitted.
    sent: VecDeque<Moment>,
    /// When each launch ended, and its time from the submission on.
    waits: Vec<(Moment, Nanos)>,
    stopped: bool,
}

impl Guest {
    /// Starts a guest: its context and its channel.
    ///
    /// # Errors
    /// The GPU's refusal.
    pub fn start(
        gpu: &dyn Gpu,
        id: TenantId,
        account: AccountId,
        load: Load,
        seed: u64,
    ) -> Result<Self, Refusal> {
        let vm = Arc::new(PlainVm::new(MEMORY_BYTES));
        gpu.create_context(id, vm.resources(account, GPU_MEMORY_BYTES, 1))?;
        let channel = vm.open_channel(gpu, id, RING_ENTRIES, VECTOR)?;
        let params_gpa = vm.take(u64::from(DEPTH_MAX) * 64);
        let mut random = SmallRng::seed_from_u64(seed ^ u64::from(id.0).rotate_left(32));
        let ready = match &load {
            Load::Closed { kernels, depth, .. } => (0..*depth)
                .map(|_| (Moment(0), kernels.draw(&mut random)))
                .collect(),
            Load::Open { work, .. } => work.iter().copied().collect(),
            Load::Program {
                kernels_ns,
                depth,
                start,
                ..
            } => {
                let kernels_ns = kernels_ns.iter().cycle().take(*depth as usize);
                kernels_ns.map(|length| (*start, *length)).collect()
            }
        };
        Ok(Self {
            id,
            vm,
            load,
            channel,
            params_gpa,
            random,
            ready,
            submitted: 0,
            completed: 0,
            sent: VecDeque::new(),
            waits: Vec::new(),
            stopped: false,
        })
    }

    /// Its load.
    pub const fn load(&self) -> &Load {
        &self.load
    }

    /// Number of its channel.
    pub const fn channel(&self) -> u32 {
        self.channel.number
    }

    /// Launches written into the ring so far.
    pub const fn submitted(&self) -> u64 {
        self.submitted
    }

    /// Launches with completed fences.
    pub const fn completed(&self) -> u64 {
        self.completed
    }

    /// When each launch ended, and its time from the submission on.
    pub fn waits(&self) -> &[(Moment, Nanos)] {
        &self.waits
    }

    /// Reads its fence, and prepares the launches that follow the ended ones.
    ///
    /// # Errors
    /// If the fence's value decreased, or appeared without a launch or without its interrupt, or if
    /// the channel has ended.
    pub fn poll(&mut self, now: Moment) -> Result<(), BrokenLaw> {
        let fence = self.channel.fence();
        if fence.value == self.completed {
            return Ok(());
        }
        let interrupts = self.vm.interrupts.count(VECTOR);
        let state = self.channel.state();
        let in_order = (self.completed..=self.submitted).contains(&fence.value)
            && interrupts == fence.value
            && state.status == ChannelStatus::Running as u32
            && fence.at_ns <= now.0;
        if !in_order {
            return Err(BrokenLaw::Fence {
                tenant: self.id,
                seen: fence.value,
                before: self.completed,
                submitted: self.submitted,
                interrupts,
            });
        }
        for number in self.completed..fence.value {
            let sent = self.sent.pop_front().unwrap_or(now);
            self.waits.push((now, now.since(sent)));
            if !self.stopped {
                self.follow(number, now);
            }
        }
        self.completed = fence.value;
        Ok(())
    }

    /// Prepares the launch that follows the end of a launch.
    fn follow(&mut self, number: u64, now: Moment) {
        let random = &mut self.random;
        let (pause, length) = match &self.load {
            Load::Closed { kernels, think, .. } => (think.draw(random), kernels.draw(random)),
            Load::Program {
                kernels_ns,
                depth,
                pauses,
                ..
            } => {
                let next = (number + u64::from(*depth)) as usize % kernels_ns.len();
                (pauses.draw(random), kernels_ns[next])
            }
            Load::Open { .. } => return,
        };
        self.ready.push_back((now + pause, length));
    }

    fn has_room(&self) -> bool {
        self.submitted - self.completed < u64::from(self.load.depth())
    }

    /// Writes the launches that are due; returns the put index if there were any.
    pub fn submit(&mut self, now: Moment) -> Option<u32> {
        let before = self.submitted;
        while self.has_room()
            && let Some((_, length)) = self.ready.pop_front_if(|(at, _)| *at <= now)
        {
            self.push(length);
            self.sent.push_back(now);
        }
        (self.submitted > before).then_some(self.channel.put)
    }

    /// When it will submit a launch if none ends before.
    pub fn next_due(&self) -> Option<Moment> {
        let front = self.ready.front().filter(|_| self.has_room());
        front.map(|(at, _)| *at)
    }

    /// Stops submitting.
    pub fn stop(&mut self) {
        self.stopped = true;
        self.ready.clear();
    }

    fn push(&mut self, length: Nanos) {
        let number = self.submitted;
        let params_gpa = self.params_gpa + number % u64::from(DEPTH_MAX) * 64;
        for (index, word) in [length.0, u64::from(self.id.0), number]
            .into_iter()
            .enumerate()
        {
            let at = GuestAddress(params_gpa + 8 * index as u64);
            // The area was allocated from this memory when the guest started.
            let _ = self.vm.guest.write_obj(word.to_le(), at);
        }
        self.channel.push(&Command::Launch(Launch {
            module: 0,
            function: 0,
            grid: Dim3::line(1),
            block: Dim3::line(1),
            shared_bytes: 0,
            param_bytes: PARAM_BYTES,
            params_gpa,
        }));
        self.submitted = self.channel.push_fence(true);
    }
}
