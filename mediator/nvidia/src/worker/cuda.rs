//! The executor on a real GPU: one context, one CUDA stream per channel.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use turnstile_abi::{CopyDirection, ErrorCode, GPU_VA_BASE, Launch};

use super::executor::{Executor, Failure, KernelInfo};
use super::protocol::Answer;
use super::serve::Resources;
use crate::sys::{
    Context, Cuda, CudaFailure, Function, GuestWindow, HostBuffer, LaunchShape, Limit, Mapping,
    ModuleFailure, Reservation, Stream,
};
use turnstile_gpu::Refusal;
use turnstile_gpu::ring::extents;

/// Words between two marks: a cache line, so that streams do not disturb each other.
const MARK_WORDS: usize = 8;
/// Bytes of the buffer for the device's printf, which is never read, and of the device's heap. The
/// vendor's defaults are 1 and 8 MiB (SOURCE: CUDA C programming guide).
const PRINTF_BYTES: usize = 64 << 10;
const HEAP_BYTES: usize = 1 << 20;
/// SOURCE: cuda.h, `CUdevice_attribute`.
const MULTIPROCESSORS: i32 = 16;
const SHARED_BYTES_OPTIN: i32 = 97;
/// Dynamic shared memory that needs no permission. SOURCE: CUDA C programming guide: 48 KiB.
const SHARED_BYTES_PLAIN: u32 = 48 << 10;

/// Free places for marks. A stream returns its place when dropped.
type Places = Arc<Mutex<Vec<usize>>>;

/// A GPU with one VM's context.
#[derive(Debug)]
pub(super) struct CudaExecutor {
    context: Context,
    guest: GuestWindow,
    addresses: Arc<Reservation>,
    /// Zeroes memory.
    scrubber: Stream,
    marks: Arc<HostBuffer>,
    places: Places,
    shared_bytes_max: u32,
}

/// A channel's stream, and the place where it writes its mark.
#[derive(Debug)]
pub(super) struct CudaStream {
    stream: Stream,
    place: usize,
    places: Places,
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.push(self.place);
    }
}

fn refused(failure: &CudaFailure) -> Refusal {
    Refusal {
        code: if failure.is_out_of_memory() {
            ErrorCode::OutOfGpuMemory
        } else {
            ErrorCode::HostLimit
        },
        detail: failure.to_string(),
    }
}

impl From<CudaFailure> for Failure {
    fn from(failure: CudaFailure) -> Self {
        let code = if failure.is_illegal_address() {
            ErrorCode::PageFault
        } else if failure.is_misaligned() {
            ErrorCode::MisalignedAccess
        } else if failure.is_timeout() {
            ErrorCode::KernelTimeout
        } else if failure.is_sticky() {
            ErrorCode::KernelTrap
        } else if failure.is_out_of_memory() {
            ErrorCode::OutOfGpuMemory
        } else {
            ErrorCode::BadLaunch
        };
        Self {
            is_fatal: failure.is_sticky(),
            // CAST: a code is positive.
            ..Self::of(code, failure.code().unwrap_or(0) as u64)
        }
    }
}

impl CudaExecutor {
    /// Makes the context, pins the VM's memory, reserves its addresses.
    pub(super) fn new(resources: &Resources) -> Result<(Self, Answer), Refusal> {
        Self::make(resources).map_err(|failure| refused(&failure))?
    }

    #[allow(
        clippy::type_complexity,
        reason = "the outer error is CUDA's, the inner one ours"
    )]
    fn make(resources: &Resources) -> Result<Result<(Self, Answer), Refusal>, CudaFailure> {
        let (cuda, device) = (Cuda::load()?, resources.device);
        let context = cuda.context(device)?;
        context.set_limit(Limit::PrintfBytes, PRINTF_BYTES)?;
        context.set_limit(Limit::HeapBytes, HEAP_BYTES)?;
        let bytes = usize::try_from(resources.memory_bytes).unwrap_or(usize::MAX);
        let addresses = context.reserve(bytes, GPU_VA_BASE)?;
        if addresses.address() != GPU_VA_BASE {
            return Ok(Err(Refusal {
                code: ErrorCode::HostLimit,
                detail: format!(
                    "The driver gave addresses at {:#x}, not at {GPU_VA_BASE:#x}",
                    addresses.address()
                ),
            }));
        }
        // Twice the number of channels: channels that the guest has closed may still have commands
        // in flight.
        let places = 2 * resources.doorbells.channels() as usize;
        let marks = context.host_buffer(places * MARK_WORDS * 8)?;
        let guest = context.guest_window(&resources.guest);
        let shared = cuda.attribute(device, SHARED_BYTES_OPTIN)?;
        let multiprocessors = cuda.attribute(device, MULTIPROCESSORS)?;
        let facts = Answer::Ready {
            multiprocessors: u32::try_from(multiprocessors).unwrap_or(0),
            shared_bytes_max: u32::try_from(shared).unwrap_or(0),
            memory_bytes: cuda.total_bytes(device)?,
            pinned: guest.is_pinned(),
        };
        let this = Self {
            scrubber: context.stream()?,
            context,
            guest,
            addresses,
            marks: Arc::new(marks),
            places: Arc::new(Mutex::new((0..places).rev().collect())),
            shared_bytes_max: u32::try_from(shared).unwrap_or(0),
        };
        this.warm_up()?;
        Ok(Ok((this, facts)))
    }

    /// Makes the library load now what it loads at first use: the process is not fully confined
    /// yet.
    fn warm_up(&self) -> Result<(), CudaFailure> {
        /// A kernel that does nothing.
        const NOTHING: &str =
            ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";
        let shape = LaunchShape {
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
        };
        let module = self
            .context
            .load_module(NOTHING)
            .map_err(|error| error.failure)?;
        let (_, function) = module.functions()?.swap_remove(0);
        let scratch = self.context.buffer(8 << 20)?;
        let host = self.context.host_buffer(64 << 10)?;
        self.scrubber.launch(&function, shape, &[])?;
        self.scrubber
            .fill(scratch.address(), 0, scratch.bytes() / 4)?;
        self.context
            .copy_in(&self.scrubber, &host, 0, scratch.address(), host.bytes())?;
        self.context
            .copy_out(&self.scrubber, scratch.address(), &host, 0, host.bytes())?;
        self.scrubber
            .copy(scratch.address(), scratch.address() + (4 << 20), 1 << 20)?;
        self.scrubber.write_word(self.marks.address(), 0)?;
        self.scrubber.synchronize()
    }

    fn map(&self, va: u64, chunk: crate::sys::Chunk) -> Result<Mapping, Refusal> {
        let offset = va
            .checked_sub(GPU_VA_BASE)
            .and_then(|offset| usize::try_from(offset).ok());
        let offset = offset.ok_or(ErrorCode::BadArgument)?;
        self.addresses
            .map(offset, chunk)
            .map_err(|failure| refused(&failure))
    }
}

/// The functions of a module, by name.
#[derive(Debug)]
pub(super) struct CudaModule(Vec<Function>);

impl Executor for CudaExecutor {
    type Stream = CudaStream;
    type Module = CudaModule;
    type Memory = Mapping;

    fn shared_bytes_max(&self) -> u32 {
        self.shared_bytes_max
    }

    fn load(&self, text: &str) -> Result<(CudaModule, Vec<KernelInfo>), Refusal> {
        let loaded = self.context.load_module(text);
        let module = loaded.map_err(|ModuleFailure { failure, log }| match failure {
            failure if failure.is_out_of_memory() || failure.is_sticky() => refused(&failure),
            failure => Refusal {
                code: ErrorCode::ModuleRefused,
                detail: if log.is_empty() {
                    failure.to_string()
                } else {
                    log
                },
            },
        })?;
        let described = module.functions().and_then(|mut functions| {
            functions.sort_by(|(a, _), (b, _)| a.cmp(b));
            let described = functions.into_iter().map(|(name, function)| {
                let info = KernelInfo {
                    name,
                    param_bytes: function.param_bytes()?,
                    shared_bytes: function.shared_bytes()?,
                    threads_max: function.threads_max()?,
                };
                let dynamic = self.shared_bytes_max.saturating_sub(info.shared_bytes);
                if dynamic > SHARED_BYTES_PLAIN {
                    function.permit_shared(dynamic)?;
                }
                Ok((function, info))
            });
            described.collect::<Result<Vec<_>, CudaFailure>>()
        });
        let (functions, infos) = described
            .map_err(|failure| refused(&failure))?
            .into_iter()
            .unzip();
        Ok((CudaModule(functions), infos))
    }

    fn allocate(&self, va: u64, bytes: u64) -> Result<(Mapping, OwnedFd), Refusal> {
        let bytes_here = usize::try_from(bytes).map_err(|_| ErrorCode::OutOfGpuMemory)?;
        let chunk = self
            .context
            .chunk(bytes_here)
            .map_err(|failure| refused(&failure))?;
        let fd = chunk.export().map_err(|failure| refused(&failure))?;
        let mapping = self.map(va, chunk)?;
        self.scrub(va, bytes)?;
        Ok((mapping, fd))
    }

    fn restore(&self, va: u64, bytes: u64, fd: OwnedFd) -> Result<Mapping, Refusal> {
        let bytes = usize::try_from(bytes).map_err(|_| ErrorCode::OutOfGpuMemory)?;
        let chunk = self
            .context
            .import(&fd, bytes)
            .map_err(|failure| refused(&failure))?;
        self.map(va, chunk)
    }

    fn scrub(&self, va: u64, bytes: u64) -> Result<(), Refusal> {
        let words = usize::try_from(bytes / 4).map_err(|_| ErrorCode::OutOfGpuMemory)?;
        let filled = self.scrubber.fill(va, 0, words);
        let done = filled.and_then(|()| self.scrubber.synchronize());
        done.map_err(|failure| refused(&failure))
    }

    fn stream(&self) -> Result<CudaStream, Refusal> {
        let stream = self.context.stream().map_err(|failure| refused(&failure))?;
        let place = self
            .places
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let place = place.ok_or(ErrorCode::HostLimit)?;
        // The previous stream of this place has finished.
        self.marks.store(place * MARK_WORDS, 0);
        Ok(CudaStream {
            stream,
            place,
            places: self.places.clone(),
        })
    }

    fn launch(
        &self,
        stream: &CudaStream,
        module: &CudaModule,
        function: usize,
        launch: &Launch,
        params: &[u8],
    ) -> Result<(), Failure> {
        let function = module.0.get(function);
        let function = function.ok_or(Failure::of(ErrorCode::NoSuchFunction, 0))?;
        let shape = LaunchShape {
            grid: extents(launch.grid),
            block: extents(launch.block),
            shared_bytes: launch.shared_bytes,
        };
        Ok(stream.stream.launch(function, shape, params)?)
    }

    fn copy(
        &self,
        stream: &CudaStream,
        direction: CopyDirection,
        source: u64,
        destination: u64,
        bytes: u64,
    ) -> Result<(), Failure> {
        let stream = &stream.stream;
        // CAST: the decoder bounds it to TRANSFER_BYTES_MAX.
        let bytes = bytes as usize;
        match direction {
            CopyDirection::GuestToGpu => self.guest.copy_in(stream, source, destination, bytes)?,
            CopyDirection::GpuToGuest => self.guest.copy_out(stream, source, destination, bytes)?,
            CopyDirection::GpuToGpu => stream.copy(source, destination, bytes)?,
        }
        Ok(())
    }

    fn fill(&self, stream: &CudaStream, va: u64, bytes: u64, pattern: u32) -> Result<(), Failure> {
        // CAST: the decoder bounds it to TRANSFER_BYTES_MAX.
        Ok(stream.stream.fill(va, pattern, bytes as usize / 4)?)
    }

    fn mark(&self, stream: &CudaStream, value: u64) -> Result<(), Failure> {
        let address = self.marks.address() + (stream.place * MARK_WORDS * 8) as u64;
        Ok(stream.stream.write_word(address, value)?)
    }

    fn marked(&self, stream: &CudaStream) -> u64 {
        self.marks.load(stream.place * MARK_WORDS)
    }

    fn check(&self, stream: &CudaStream) -> Result<(), Failure> {
        stream.stream.is_done()?;
        Ok(())
    }
}
