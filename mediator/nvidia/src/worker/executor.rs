//! What a worker needs of a GPU, and no more: the seam at which tests put another one in.

use std::fmt::Debug;
use std::os::fd::OwnedFd;

use turnstile_abi::{CopyDirection, ErrorCode, Launch};

use turnstile_gpu::Refusal;
use turnstile_gpu::ring::ChannelFault;

/// A function of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KernelInfo {
    /// Its name.
    pub(super) name: String,
    /// Bytes of its parameters.
    pub(super) param_bytes: u32,
    /// Static shared memory of a block.
    pub(super) shared_bytes: u32,
    /// Most threads of a block.
    pub(super) threads_max: u32,
}

/// Why work was not taken, or did not end as it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// What the channel ends with.
    pub(super) fault: ChannelFault,
    /// The context is gone, and whatever else was in it.
    pub(super) is_fatal: bool,
}

impl Failure {
    /// A failure that concerns one command.
    pub(super) fn of(code: ErrorCode, info: u64) -> Self {
        Self {
            fault: ChannelFault { code, info },
            is_fatal: false,
        }
    }
}

/// A GPU with one VM's context. Work is handed over in order to streams and runs by itself; addresses were checked before.
pub(super) trait Executor: Send + Sync + Debug + 'static {
    /// A channel's work, in order.
    type Stream: Send + Debug;
    /// A loaded module.
    type Module: Send + Sync + Debug;
    /// Memory behind addresses, until it is dropped.
    type Memory: Send + Debug;

    /// Most shared memory of a block, in bytes.
    fn shared_bytes_max(&self) -> u32;

    /// Compiles and loads a module. May take long.
    fn load(&self, text: &str) -> Result<(Self::Module, Vec<KernelInfo>), Refusal>;

    /// Puts zeroed memory behind the addresses from `va` on; the descriptor keeps it when this process ends.
    fn allocate(&self, va: u64, bytes: u64) -> Result<(Self::Memory, OwnedFd), Refusal>;

    /// Puts the memory of a descriptor behind addresses.
    fn restore(&self, va: u64, bytes: u64, fd: OwnedFd) -> Result<Self::Memory, Refusal>;

    /// Makes the bytes of an allocation zero, and waits for it.
    fn scrub(&self, va: u64, bytes: u64) -> Result<(), Refusal>;

    /// Makes a stream whose mark is zero.
    fn stream(&self) -> Result<Self::Stream, Refusal>;

    /// Launches function number `function` of a module.
    fn launch(
        &self,
        stream: &Self::Stream,
        module: &Self::Module,
        function: usize,
        launch: &Launch,
        params: &[u8],
    ) -> Result<(), Failure>;

    /// Copies.
    fn copy(
        &self,
        stream: &Self::Stream,
        direction: CopyDirection,
        source: u64,
        destination: u64,
        bytes: u64,
    ) -> Result<(), Failure>;

    /// Fills.
    fn fill(&self, stream: &Self::Stream, va: u64, bytes: u64, pattern: u32)
    -> Result<(), Failure>;

    /// Has the stream's mark become `value` once everything before has finished and is visible.
    fn mark(&self, stream: &Self::Stream, value: u64) -> Result<(), Failure>;

    /// The stream's mark; zero at first.
    fn marked(&self, stream: &Self::Stream) -> u64;

    /// Whether the context still lives.
    fn check(&self, stream: &Self::Stream) -> Result<(), Failure>;
}
