//! What a mover needs of a GPU; tests put a stand-in here. [`CudaCopier`] is the real one.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError, RwLock};

use vm_memory::{FileOffset, GuestAddress};

use super::protocol::Span;
use crate::sys::{
    Chunk, Context, Cuda, CudaFailure, Event, GuestWindow, Mapping, Reservation, Stream,
};
use turnstile_gpu::{Direction, GuestMemory};

/// Why the GPU refused or failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CopyFailure {
    /// The GPU has no memory for it.
    pub(super) no_room: bool,
    /// The context is gone.
    pub(super) is_fatal: bool,
    pub(super) detail: String,
}

impl CopyFailure {
    pub(super) fn of(detail: impl Into<String>) -> Self {
        Self {
            no_room: false,
            is_fatal: false,
            detail: detail.into(),
        }
    }
}

/// A GPU that copies between memory named by handles and the host's pages.
pub(super) trait Copier: Send + Sync + 'static {
    /// A queue of copies, executed in order.
    type Lane: Send;
    /// GPU memory mapped at addresses of this process. Dropped, it is unmapped and its handle
    /// closed.
    type Mapped: Send;
    /// What is left of it without the memory.
    type Rest: Send;
    /// A point in a queue.
    type Mark: Send;

    /// Makes another queue.
    fn lane(&self) -> Result<Self::Lane, CopyFailure>;

    /// Pins a file as the pool's bytes from `at` on.
    fn pin(&self, at: u64, bytes: u64, file: File) -> Result<(), CopyFailure>;

    /// Maps the memory of a handle.
    fn adopt(&self, handle: OwnedFd, bytes: u64) -> Result<Self::Mapped, CopyFailure>;

    /// Makes memory with undefined content: it is filled before any other process gets it.
    fn create(&self, bytes: u64) -> Result<Self::Mapped, CopyFailure>;

    /// Unmaps and frees memory; the rest can be dropped later.
    fn release(&self, memory: Self::Mapped) -> Self::Rest;

    /// Exports a handle for other processes.
    fn export(&self, memory: &Self::Mapped) -> Result<OwnedFd, CopyFailure>;

    /// Queues zeroing the memory.
    fn zero(&self, lane: &Self::Lane, memory: &Self::Mapped) -> Result<(), CopyFailure>;

    /// Queues a copy between the memory from `offset` on and the host's pages.
    fn copy(
        &self,
        lane: &Self::Lane,
        memory: &Self::Mapped,
        offset: u64,
        span: Span,
        direction: Direction,
    ) -> Result<(), CopyFailure>;

    /// Marks the end of what is queued.
    fn mark(&self, lane: &Self::Lane) -> Result<Self::Mark, CopyFailure>;

    /// Waits until a mark is reached.
    fn wait(&self, mark: &Self::Mark) -> Result<(), CopyFailure>;
}

impl From<CudaFailure> for CopyFailure {
    fn from(failure: CudaFailure) -> Self {
        Self {
            no_room: failure.is_out_of_memory(),
            is_fatal: failure.is_sticky(),
            detail: failure.to_string(),
        }
    }
}

/// Pinned files: offset of the start and the end in the pool, and the pinned window.
type Pinned = Vec<(u64, u64, GuestWindow)>;

/// A real GPU.
#[derive(Debug)]
pub(super) struct CudaCopier {
    context: Context,
    pinned: RwLock<Pinned>,
    _anchor: Anchor,
}

/// Memory that stays exported while this process runs. SOURCE: measured on an H200: of all handles
/// on the GPU, the first to be exported and the last to be closed take 0.6 to 0.8 ms. The driver
/// then makes and frees what it exports handles with. Others take 0.02 to 0.1 ms.
#[derive(Debug)]
struct Anchor {
    _chunk: Chunk,
    _handle: OwnedFd,
}

impl Anchor {
    /// SOURCE: the driver's granule.
    const BYTES: usize = 2 << 20;

    fn new(context: &Context) -> Result<Self, CudaFailure> {
        let chunk = context.chunk(Self::BYTES)?;
        Ok(Self {
            _handle: chunk.export()?,
            _chunk: chunk,
        })
    }
}

impl CudaCopier {
    pub(super) fn new(device: u32) -> Result<Self, CopyFailure> {
        let context = Cuda::load()?.context(device)?;
        Ok(Self {
            _anchor: Anchor::new(&context)?,
            context,
            pinned: RwLock::default(),
        })
    }

    fn mapped(
        &self,
        bytes: u64,
        chunk: impl FnOnce(usize) -> Result<Chunk, CudaFailure>,
    ) -> Result<Mapping, CopyFailure> {
        let bytes = usize::try_from(bytes).map_err(|_| CopyFailure::of("Too long"))?;
        let chunk = chunk(bytes)?;
        Ok(self.context.reserve(bytes, 0)?.map(0, chunk)?)
    }
}

impl Copier for CudaCopier {
    type Lane = Stream;
    type Mapped = Mapping;
    type Rest = Arc<Reservation>;
    type Mark = Event;

    fn lane(&self) -> Result<Stream, CopyFailure> {
        Ok(self.context.stream()?)
    }

    fn pin(&self, at: u64, bytes: u64, file: File) -> Result<(), CopyFailure> {
        let length = usize::try_from(bytes).map_err(|_| CopyFailure::of("Too long"))?;
        let range = (GuestAddress(at), length, Some(FileOffset::new(file, 0)));
        let memory = GuestMemory::from_ranges_with_files([range]);
        let memory = memory.map_err(|error| CopyFailure::of(error.to_string()))?;
        let window = self.context.guest_window(&memory);
        if !window.is_pinned() {
            return Err(CopyFailure::of(
                "The driver does not pin memory of the host",
            ));
        }
        let mut pinned = self.pinned.write().unwrap_or_else(PoisonError::into_inner);
        pinned.push((at, at.saturating_add(bytes), window));
        Ok(())
    }

    fn adopt(&self, handle: OwnedFd, bytes: u64) -> Result<Mapping, CopyFailure> {
        self.mapped(bytes, |bytes| self.context.import(&handle, bytes))
    }

    fn create(&self, bytes: u64) -> Result<Mapping, CopyFailure> {
        self.mapped(bytes, |bytes| self.context.chunk(bytes))
    }

    fn release(&self, memory: Mapping) -> Arc<Reservation> {
        memory.unmap()
    }

    fn export(&self, memory: &Mapping) -> Result<OwnedFd, CopyFailure> {
        Ok(memory.chunk().export()?)
    }

    fn zero(&self, lane: &Stream, memory: &Mapping) -> Result<(), CopyFailure> {
        let words = memory.chunk().bytes() / 4;
        Ok(lane.fill(memory.address(), 0, words)?)
    }

    fn copy(
        &self,
        lane: &Stream,
        memory: &Mapping,
        offset: u64,
        (at, bytes): Span,
        direction: Direction,
    ) -> Result<(), CopyFailure> {
        let pinned = self.pinned.read().unwrap_or_else(PoisonError::into_inner);
        let end = at.checked_add(bytes);
        let holds =
            |(from, to, _): &&(u64, u64, _)| *from <= at && end.is_some_and(|end| end <= *to);
        let found = pinned.iter().find(holds);
        let (_, _, window) = found.ok_or_else(|| CopyFailure::of("No such pages"))?;
        // CAST: within a pinned range, the length of which is a usize.
        let (address, bytes) = (memory.address() + offset, bytes as usize);
        match direction {
            Direction::Out => window.copy_out(lane, address, at, bytes)?,
            Direction::In => window.copy_in(lane, at, address, bytes)?,
        }
        Ok(())
    }

    fn mark(&self, lane: &Stream) -> Result<Event, CopyFailure> {
        let event = self.context.event(false)?;
        event.record(lane)?;
        Ok(event)
    }

    fn wait(&self, mark: &Event) -> Result<(), CopyFailure> {
        Ok(mark.synchronize()?)
    }
}
