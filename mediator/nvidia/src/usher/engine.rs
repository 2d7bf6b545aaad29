//! What an usher needs of a GPU: the seam at which tests put another one in. And the real one.

use std::io;

use vm_memory::{FileOffset, GuestAddress};

use super::board::{ASKED, BYTES, Board, HERE, LEFT};
use crate::sys::{Cuda, CudaFailure, Function, GuestWindow, LaunchShape, Muffled, Stream};
use turnstile_gpu::GuestMemory;

/// Why the GPU did not do it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct EngineFailure(String);

impl From<CudaFailure> for EngineFailure {
    fn from(failure: CudaFailure) -> Self {
        Self(failure.to_string())
    }
}

impl From<io::Error> for EngineFailure {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// An engine that a context of ours can take, one visit at a time.
pub(super) trait Engine {
    /// Makes everything ready for a visit but for the doorbell; returns what to ring.
    fn arm(&mut self, visit: u64) -> Result<u32, EngineFailure>;

    /// Waits until the visit is over.
    fn wait(&mut self) -> Result<(), EngineFailure>;
}

const USHER_PTX: &str = include_str!("usher.ptx");

const ONE_THREAD: LaunchShape = LaunchShape {
    grid: [1, 1, 1],
    block: [1, 1, 1],
    shared_bytes: 0,
};

/// A visit ends by itself after so long. TIMEOUT: the driver's call takes 0.7 ms, 2 ms at most (measured).
const VISIT_NS: u64 = 20_000_000;

/// A real GPU's.
#[derive(Debug)]
pub(super) struct CudaEngine {
    stream: Stream,
    usher: Function,
    /// Addresses of the board's words, as the GPU has them.
    words: [u64; 3],
    _shared: GuestWindow,
    muffled: Muffled,
}

impl CudaEngine {
    /// Of the GPU with CUDA's number `device`. Its doorbells are muffled from then on: it can only be leaked, since the library would wait for
    /// a visit that nobody rings for.
    pub(super) fn new(device: u32, board: &Board) -> Result<&'static mut Self, EngineFailure> {
        let context = Cuda::load()?.context(device)?;
        let module = context.load_module(USHER_PTX);
        let module = module.map_err(|failure| EngineFailure(failure.to_string()))?;
        let file = FileOffset::new(board.file().try_clone()?, 0);
        let memory = GuestMemory::from_ranges_with_files([(GuestAddress(0), BYTES, Some(file))]);
        let memory = memory.map_err(|error| EngineFailure(error.to_string()))?;
        let (stream, usher) = (context.stream()?, module.function("usher")?);
        let shared = context.guest_window(&memory);
        let words = [HERE, ASKED, LEFT].map(|word| shared.address(word));
        let [here, asked, left] = words;
        let words = [here?, asked?, left?];
        // What the library does at the first launch is done with doorbells that ring.
        launch(&stream, &usher, words, 0)?;
        stream.synchronize()?;
        let this = Self {
            muffled: Muffled::all()?,
            stream,
            usher,
            words,
            _shared: shared,
        };
        Ok(Box::leak(Box::new(this)))
    }
}

fn launch(
    stream: &Stream,
    usher: &Function,
    words: [u64; 3],
    visit: u64,
) -> Result<(), CudaFailure> {
    let [here, asked, left] = words;
    let params = [here, asked, left, visit, VISIT_NS];
    let params = params.map(u64::to_le_bytes).concat();
    stream.launch(usher, ONE_THREAD, &params)
}

impl Engine for &mut CudaEngine {
    fn arm(&mut self, visit: u64) -> Result<u32, EngineFailure> {
        // Of before: nobody rings it any more.
        self.muffled.rung();
        launch(&self.stream, &self.usher, self.words, visit)?;
        let silent = || EngineFailure("A launch rings no doorbell that is known".into());
        self.muffled.rung().ok_or_else(silent)
    }

    fn wait(&mut self) -> Result<(), EngineFailure> {
        Ok(self.stream.synchronize()?)
    }
}
