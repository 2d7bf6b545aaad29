//! The engine that a preemptor occupies: a trait for tests, and the implementation with CUDA.

use std::io;

use vm_memory::{FileOffset, GuestAddress};

use super::shared_page::{BYTES, LEFT, REQUESTED, RESIDENT, SharedPage};
use crate::sys::{Cuda, CudaFailure, Function, GuestWindow, LaunchShape, Muffled, Stream};
use turnstile_gpu::GuestMemory;

/// Why a request to the GPU failed.
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

/// An engine that the preemptor's context can occupy, one occupancy (`visit`) at a time.
pub(super) trait Engine {
    /// Prepares an occupancy except for the doorbell; returns the token to ring.
    fn arm(&mut self, visit: u64) -> Result<u32, EngineFailure>;

    /// Waits until the occupancy is over.
    fn wait(&mut self) -> Result<(), EngineFailure>;
}

const PREEMPTOR_PTX: &str = include_str!("preemptor.ptx");

const ONE_THREAD: LaunchShape = LaunchShape {
    grid: [1, 1, 1],
    block: [1, 1, 1],
    shared_bytes: 0,
};

/// Time after which an occupancy ends by itself. TIMEOUT: the driver's call takes 0.7 ms, 2 ms at
/// most (measured).
const VISIT_NS: u64 = 20_000_000;

/// The engine of a real GPU.
#[derive(Debug)]
pub(super) struct CudaEngine {
    stream: Stream,
    preemptor: Function,
    /// GPU addresses of the words of the shared page.
    words: [u64; 3],
    _shared: GuestWindow,
    muffled: Muffled,
}

impl CudaEngine {
    /// The engine of the GPU with CUDA's number `device`. Its doorbells are muffled from then on.
    /// It can only be leaked: the library would wait for an occupancy for which no process rings.
    pub(super) fn new(device: u32, page: &SharedPage) -> Result<&'static mut Self, EngineFailure> {
        let context = Cuda::load()?.context(device)?;
        let module = context.load_module(PREEMPTOR_PTX);
        let module = module.map_err(|failure| EngineFailure(failure.to_string()))?;
        let file = FileOffset::new(page.file().try_clone()?, 0);
        let memory = GuestMemory::from_ranges_with_files([(GuestAddress(0), BYTES, Some(file))]);
        let memory = memory.map_err(|error| EngineFailure(error.to_string()))?;
        let (stream, preemptor) = (context.stream()?, module.function("preemptor")?);
        let shared = context.guest_window(&memory);
        let words = [RESIDENT, REQUESTED, LEFT].map(|word| shared.address(word));
        let [here, requested, left] = words;
        let words = [here?, requested?, left?];
        // The first launch, at which the library initialises itself, needs doorbells that ring.
        launch(&stream, &preemptor, words, 0)?;
        stream.synchronize()?;
        let this = Self {
            muffled: Muffled::all()?,
            stream,
            preemptor,
            words,
            _shared: shared,
        };
        Ok(Box::leak(Box::new(this)))
    }
}

fn launch(
    stream: &Stream,
    preemptor: &Function,
    words: [u64; 3],
    visit: u64,
) -> Result<(), CudaFailure> {
    let [here, requested, left] = words;
    let params = [here, requested, left, visit, VISIT_NS];
    let params = params.map(u64::to_le_bytes).concat();
    stream.launch(preemptor, ONE_THREAD, &params)
}

impl Engine for &mut CudaEngine {
    fn arm(&mut self, visit: u64) -> Result<u32, EngineFailure> {
        // An older token, for which no process rings any more.
        self.muffled.rung();
        launch(&self.stream, &self.preemptor, self.words, visit)?;
        let silent = || EngineFailure("A launch rings no doorbell that is known".into());
        self.muffled.rung().ok_or_else(silent)
    }

    fn wait(&mut self) -> Result<(), EngineFailure> {
        Ok(self.stream.synchronize()?)
    }
}
