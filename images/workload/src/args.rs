//! What the guest is to do: eight little-endian words.

use turnstile_abi::TRANSFER_BYTES_MAX;

/// Bytes of the arguments.
pub const ARGS_BYTES: usize = 64;

/// A stream of launches of a given length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Duration of the load, in nanoseconds of the guest's clock; 0 until the VMM requests the end.
    pub duration_ns: u64,
    /// Length of each launch, in nanoseconds of the GPU's clock.
    pub kernel_ns: u64,
    /// Launches in the queue at most, 1 to 256.
    pub depth: u32,
    /// Launches per fence with interrupt, 1 to `depth`.
    pub fence_every: u32,
    /// Launches between two pauses; 0 for no pauses.
    pub burst: u32,
    /// Length of a pause, in nanoseconds of the guest's clock. A pause begins when the burst has
    /// finished.
    pub pause_ns: u64,
    /// Thread blocks of a launch.
    pub blocks: u32,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            duration_ns: 1_000_000_000,
            kernel_ns: 1_000_000,
            depth: 4,
            fence_every: 1,
            burst: 0,
            pause_ns: 0,
            blocks: 1,
        }
    }
}

macro_rules! misbehaviours {
    ($($name:ident = $number:literal, $doc:literal;)*) => {
        /// A way for a guest to misbehave.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Misbehaviour { $(#[doc = $doc] $name = $number,)* }

        impl Misbehaviour {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The one of this number, if there is one.
            pub const fn from_u64(number: u64) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }
        }
    };
}

misbehaviours! {
    UnknownCommand = 1, "A command of an opcode that does not exist.";
    ReservedField = 2, "A command with a reserved field that is not zero.";
    BadModule = 3, "A launch of a module that was never loaded.";
    BadFunction = 4, "A launch of a function that the module does not have.";
    WildCopy = 5, "A copy to a GPU address where nothing is.";
    WildGuestCopy = 6, "A copy from beyond guest memory.";
    WildFence = 7, "A fence beyond guest memory.";
    WildKernel = 8, "A kernel that writes to a GPU address where nothing is.";
    PutOutOfRange = 9, "A doorbell that announces more than the ring holds.";
    BadLaunch = 10, "A launch with more threads than a block may have.";
    MillionRings = 11, "A million doorbell writes that announce nothing.";
    MailboxGarbage = 12, "Requests that do not exist, with wild arguments.";
    BadText = 13, "A module that is no PTX.";
    TooMuchMemory = 14, "More GPU memory than there can be.";
    TooManyChannels = 15, "Channels until the device refuses.";
    SpinForever = 16, "A kernel that never ends; passes once the host has ended it.";
}

/// What the guest is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Runs every kernel and every command and compares with its own computation.
    Verify {
        /// Number of rounds; 0 until the VMM requests the end.
        rounds: u32,
    },
    /// Keeps the GPU busy.
    Load(Load),
    /// Runs every kernel once, keeps the GPU busy, and runs every kernel once more.
    Demo(Load),
    /// The same with all permitted GPU memory allocated and filled. Random blocks are read and
    /// rewritten meanwhile, and all are compared at the end.
    Filled(Load),
    /// Writes the doorbell of one channel with a value that rises by one.
    Doorbells {
        /// Last value; 0 to continue until the VMM requests the end.
        count: u64,
        /// Whether to stay within the ring: each doorbell announces one NOP. For a device that
        /// checks.
        paced: bool,
    },
    /// Writes words spread over memory, and rings after each round, until the VMM requests the end.
    /// For a device that does not read them.
    Touch {
        /// Bytes of memory to cover.
        bytes: u64,
        /// From one word to the next; a multiple of 8.
        step_bytes: u64,
    },
    /// Runs every kernel once, copies from guest memory to the GPU until the VMM requests the end,
    /// and runs every kernel once more.
    Copies {
        /// Bytes of a copy, at least 8.
        bytes: u64,
        /// Copies in the queue at most, 1 to 64.
        depth: u32,
    },
    /// Misbehaves, expects the documented error, and checks that the device still works.
    Bad(Misbehaviour),
}

impl Workload {
    /// The arguments that say this.
    pub fn encode(&self) -> [u8; ARGS_BYTES] {
        let words: [u64; 8] = match *self {
            Self::Verify { rounds } => [1, rounds.into(), 0, 0, 0, 0, 0, 0],
            Self::Load(load) | Self::Demo(load) | Self::Filled(load) => [
                match self {
                    Self::Demo(_) => 5,
                    Self::Filled(_) => 6,
                    _ => 2,
                },
                load.duration_ns,
                load.kernel_ns,
                load.depth.into(),
                load.fence_every.into(),
                load.burst.into(),
                load.pause_ns,
                load.blocks.into(),
            ],
            Self::Doorbells { count, paced } => [3, count, paced.into(), 0, 0, 0, 0, 0],
            Self::Touch { bytes, step_bytes } => [7, bytes, step_bytes, 0, 0, 0, 0, 0],
            Self::Copies { bytes, depth } => [8, bytes, depth.into(), 0, 0, 0, 0, 0],
            Self::Bad(kind) => [4, kind as u64, 0, 0, 0, 0, 0, 0],
        };
        let mut bytes = [0; ARGS_BYTES];
        for (room, word) in bytes.chunks_exact_mut(8).zip(words) {
            room.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// What the arguments say, if anything.
    pub fn decode(bytes: &[u8; ARGS_BYTES]) -> Option<Self> {
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().ok()?);
        }
        let small = |word: u64| u32::try_from(word).ok();
        match words {
            [1, rounds, ..] => Some(Self::Verify {
                rounds: small(rounds)?,
            }),
            [
                kind @ (2 | 5 | 6),
                duration_ns,
                kernel_ns,
                depth,
                fence_every,
                burst,
                pause_ns,
                blocks,
            ] => {
                let load = Load {
                    duration_ns,
                    kernel_ns,
                    depth: small(depth)?,
                    fence_every: small(fence_every)?,
                    burst: small(burst)?,
                    pause_ns,
                    blocks: small(blocks)?,
                };
                let fits = (1..=256).contains(&load.depth)
                    && (1..=load.depth).contains(&load.fence_every)
                    && load.blocks > 0;
                let workload = match kind {
                    5 => Self::Demo(load),
                    6 => Self::Filled(load),
                    _ => Self::Load(load),
                };
                fits.then_some(workload)
            }
            [3, count, paced, ..] => Some(Self::Doorbells {
                count,
                paced: paced != 0,
            }),
            [7, bytes, step_bytes, ..] => {
                let fits = step_bytes > 0 && step_bytes.is_multiple_of(8);
                fits.then_some(Self::Touch { bytes, step_bytes })
            }
            [8, bytes, depth, ..] => {
                let depth = small(depth)?;
                let fits = (8..=TRANSFER_BYTES_MAX).contains(&bytes) && (1..=64).contains(&depth);
                fits.then_some(Self::Copies { bytes, depth })
            }
            [4, kind, ..] => Misbehaviour::from_u64(kind).map(Self::Bad),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_survive_encoding() {
        let load = Load {
            burst: 7,
            pause_ns: u64::MAX,
            ..Load::default()
        };
        let doorbells = Workload::Doorbells {
            count: 1 << 40,
            paced: true,
        };
        let all = [
            Workload::Verify { rounds: 3 },
            Workload::Load(load),
            Workload::Demo(load),
            Workload::Filled(load),
            doorbells,
            Workload::Touch {
                bytes: 64 << 20,
                step_bytes: 4096,
            },
            Workload::Copies {
                bytes: 8 << 20,
                depth: 4,
            },
        ];
        let bad = Misbehaviour::ALL.iter().map(|kind| Workload::Bad(*kind));
        for workload in all.into_iter().chain(bad) {
            assert_eq!(Workload::decode(&workload.encode()), Some(workload));
        }
        assert_eq!(Workload::decode(&[0; ARGS_BYTES]), None);
        assert_eq!(Workload::decode(&[0xff; ARGS_BYTES]), None);
    }
}
