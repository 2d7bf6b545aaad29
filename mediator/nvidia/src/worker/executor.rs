//! What a worker needs of a GPU; tests put a stand-in here.

use std::fmt::Debug;
use std::os::fd::OwnedFd;

use turnstile_abi::{CopyDirection, ErrorCode, Launch};

use turnstile_gpu::Refusal;
use turnstile_gpu::ring::ChannelFault;

/// A function of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KernelInfo {
    /// Name.
    pub(super) name: String,
    /// Bytes of its parameters.
    pub(super) param_bytes: u32,
    /// Static shared memory of a block.
    pub(super) shared_bytes: u32,
    /// Most threads of a block.
    pub(super) threads_max: u32,
}

/// Why work was not accepted, or did not finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// The fault for the channel.
    pub(super) fault: ChannelFault,
    /// The context is gone, with everything in it.
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

/// A GPU with one VM's context. Work is submitted to streams in order and then runs without the
/// executor; its addresses were checked before.
pub(super) trait Executor: Send + Sync + Debug + 'static {
    /// A channel's work, in order.
    type Stream: Send + Debug;
    /// A loaded module.
    type Module: Send + Sync + Debug;
    /// Memory behind addresses, until it is dropped.
    type Memory: Send + Debug;

    /// Most shared memory of a block, in bytes.
    fn shared_bytes_max(&self) -> u32;

    /// Compiles and loads a module. Can take long.
    fn load(&self, text: &str) -> Result<(Self::Module, Vec<KernelInfo>), Refusal>;

    /// Maps zeroed memory from `va` on. The descriptor keeps the memory when this process ends.
    fn allocate(&self, va: u64, bytes: u64) -> Result<(Self::Memory, OwnedFd), Refusal>;

    /// Maps the memory of a descriptor from `va` on.
    fn restore(&self, va: u64, bytes: u64, fd: OwnedFd) -> Result<Self::Memory, Refusal>;

    /// Zeroes an allocation and waits until that is done.
    fn scrub(&self, va: u64, bytes: u64) -> Result<(), Refusal>;

    /// Makes a stream with mark zero.
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

    /// Submits a copy.
    fn copy(
        &self,
        stream: &Self::Stream,
        direction: CopyDirection,
        source: u64,
        destination: u64,
        bytes: u64,
    ) -> Result<(), Failure>;

    /// Submits a fill.
    fn fill(&self, stream: &Self::Stream, va: u64, bytes: u64, pattern: u32)
    -> Result<(), Failure>;

    /// Submits a write of `value` to the stream's mark, after all earlier work has finished and is
    /// visible.
    fn mark(&self, stream: &Self::Stream, value: u64) -> Result<(), Failure>;

    /// The last mark that the stream wrote; zero at first.
    fn marked(&self, stream: &Self::Stream) -> u64;

    /// Fails if the context is gone.
    fn check(&self, stream: &Self::Stream) -> Result<(), Failure>;
}
