//! The loads of guests: closed loops, open arrivals, bursts.

/// SplitMix64: small, seeded, sufficient for loads.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Load {
    /// Keeps `depth` commands submitted; `think_ns` pass between a command's end and the next one.
    Closed {
        depth: usize,
        command_ns: (u64, u64),
        think_ns: u64,
    },
    /// Has commands to submit from given moments on (at, length), but keeps at most `depth`
    /// submitted.
    Open { depth: usize, work: Vec<(u64, u64)> },
    /// A program that repeats lists of kernels and pauses.
    Program(Program),
}

/// Kernels and pauses of a program, in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) kernels_ns: Vec<u64>,
    pub(crate) pauses_ns: Vec<u64>,
    pub(crate) depth: usize,
    /// It waits until all of its commands have ended before it pauses.
    pub(crate) batch: bool,
    pub(crate) start_ns: u64,
    /// Pauses are longer by up to this.
    pub(crate) jitter_ns: u64,
}

/// Whether a guest leaves after each of its commands, and the time until it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    Never,
    /// Under the same name.
    Return(u64),
    /// Under a new name.
    Rename(u64),
}

#[derive(Clone, Debug)]
pub(crate) struct Guest {
    pub(crate) weight: u32,
    pub(crate) cap: Option<(u64, u64)>,
    /// None for an account of its own.
    pub(crate) account: Option<u32>,
    pub(crate) account_weight: u32,
    pub(crate) leave: Leave,
    pub(crate) load: Load,
}

impl Guest {
    /// A tenant with an account of its own, of the same weight.
    fn of(weight: u32, load: Load) -> Self {
        Self {
            weight,
            cap: None,
            account: None,
            account_weight: weight,
            leave: Leave::Never,
            load,
        }
    }

    /// A program of one kernel length and one pause, in microseconds.
    pub(crate) fn program(kernel_us: u64, depth: usize, pause_us: u64) -> Self {
        let program = Program {
            kernels_ns: vec![kernel_us * 1_000],
            pauses_ns: vec![pause_us * 1_000],
            depth,
            batch: false,
            start_ns: 0,
            jitter_ns: 0,
        };
        Self::of(100, Load::Program(program))
    }

    pub(crate) fn saturating(weight: u32, depth: usize, command_us: (u64, u64)) -> Self {
        let command_ns = (command_us.0 * 1_000, command_us.1 * 1_000);
        let load = Load::Closed {
            depth,
            command_ns,
            think_ns: 0,
        };
        Self::of(weight, load)
    }

    pub(crate) fn open(weight: u32, depth: usize, work: Vec<(u64, u64)>) -> Self {
        Self::of(weight, Load::Open { depth, work })
    }

    pub(crate) fn idle() -> Self {
        Self::open(100, 1, Vec::new())
    }

    /// On average every `every_us` a burst of commands with `work_us` of work.
    pub(crate) fn bursty(
        seed: u64,
        every_us: u64,
        commands: u64,
        command_us: (u64, u64),
        end_ns: u64,
    ) -> Self {
        let mut random = Random(seed);
        let (mut at, mut submissions) = (0, Vec::new());
        while at < end_ns {
            at += random.within(every_us * 500, every_us * 1_500);
            for _ in 0..random.within(1, 2 * commands - 1) {
                submissions.push((
                    at,
                    random.within(command_us.0 * 1_000, command_us.1 * 1_000),
                ));
            }
        }
        Self::open(100, 2, submissions)
    }
}

/// The guest, with its program changed.
pub(crate) fn with(guest: Guest, change: impl FnOnce(&mut Program)) -> Guest {
    let mut guest = guest;
    if let Load::Program(program) = &mut guest.load {
        change(program);
    }
    guest
}
