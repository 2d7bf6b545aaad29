//! A tenant of `turnstile bench swap`: a process that unmaps and maps its memory under a kernel
//! that does not end.
//!
//! The tenant maps memory by handles that it is given, fills it, and starts a kernel that counts in
//! its first word. The bench, which moves the memory, has the tenant unmap it and map it again at
//! the same addresses. At the end the tenant checks every word.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use turnstile_images::SWAP_PTX;
use turnstile_vmm::wire::{FrameReader, Read, WireError, send};

use super::line::answer;
use super::sys::{
    Checkpoint, Context, Cuda, CudaFailure, DeviceBuffer, HostBuffer, LaunchShape, Mapping, Module,
    Reservation, Stream,
};

/// Enough threads to fill any GPU.
const MANY: LaunchShape = LaunchShape {
    grid: [2112, 1, 1],
    block: [256, 1, 1],
    shared_bytes: 0,
};
const ONE: LaunchShape = LaunchShape {
    grid: [1, 1, 1],
    block: [1, 1, 1],
    shared_bytes: 0,
};
const SEED: u64 = 0x5eed;
/// Indices of words in the memory shared with the kernels.
const COUNT: usize = 0;
const STOP: usize = 8;
/// TIMEOUT: the vendor's library takes 0.3 s, filling 32 GiB some 20 ms (measured).
const LIMIT: Duration = Duration::from_secs(30);
/// Handles in one order.
pub(crate) const HANDLES_MAX: usize = 32;

/// Why the tenant or its process failed.
#[derive(Debug, thiserror::Error)]
pub enum SwappedError {
    /// CUDA refused a call.
    #[error("CUDA refused")]
    Cuda(#[from] CudaFailure),
    /// The other side is gone, or does not keep to the protocol.
    #[error("The tenant of the bench does not report: {0}")]
    Line(String),
    /// The tenant refused an order.
    #[error("The tenant of the bench: {0}")]
    Refused(String),
}

impl From<WireError> for SwappedError {
    fn from(error: WireError) -> Self {
        Self::Line(error.to_string())
    }
}

impl From<io::Error> for SwappedError {
    fn from(error: io::Error) -> Self {
        Self::Line(error.to_string())
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
enum Order {
    /// Reserve addresses for `bytes`, until the end.
    Reserve { device: u32, bytes: u64 },
    /// Allocate memory with the driver's own allocator instead, and fill it.
    Plain { device: u32, bytes: u64 },
    /// Map memory from `offset` on, after the mapped parts. Descriptors: a handle for each part.
    Map { offset: u64, parts: Vec<u64> },
    /// Fill the memory, and start the kernel.
    Begin {},
    /// Unmap the first mapped part.
    Unmap {},
    /// Read the kernel's count.
    Count {},
    /// End the kernel, and check every word.
    End {},
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
enum Answer {
    /// With the number that the order returns, else 0.
    Done {
        pid: u32,
        number: u64,
    },
    Refused {
        detail: String,
    },
}

/// Memory of a tenant.
#[derive(Debug)]
enum Memory {
    Mapped(Arc<Reservation>, VecDeque<Mapping>),
    Plain(DeviceBuffer),
}

/// State of the process once it has a GPU.
#[derive(Debug)]
struct Tenant {
    context: Context,
    module: Module,
    stream: Stream,
    shared: HostBuffer,
    memory: Memory,
}

/// Kernel parameters that are all words.
fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

impl Tenant {
    fn new(device: u32, bytes: u64, plain: bool) -> Result<Self, SwappedError> {
        let context = Cuda::load()?.context(device)?;
        let module = context.load_module(SWAP_PTX);
        let module = module.map_err(|failure| SwappedError::Refused(failure.to_string()))?;
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        let memory = if plain {
            Memory::Plain(context.buffer(length)?)
        } else {
            Memory::Mapped(context.reserve(length, 0)?, VecDeque::new())
        };
        let tenant = Self {
            module,
            stream: context.stream()?,
            shared: context.host_buffer(4096)?,
            memory,
            context,
        };
        if plain {
            tenant.fill()?;
        }
        Ok(tenant)
    }

    /// First address, and number of words.
    fn range(&self) -> (u64, u64) {
        match &self.memory {
            Memory::Plain(buffer) => (buffer.address(), buffer.bytes() as u64 / 8),
            Memory::Mapped(addresses, _) => (addresses.address(), addresses.bytes() as u64 / 8),
        }
    }

    fn launch(&self, name: &str, shape: LaunchShape, params: &[u64]) -> Result<(), SwappedError> {
        let function = self.module.function(name)?;
        Ok(self.stream.launch(&function, shape, &words(params))?)
    }

    /// Fills all but the first word, in which the kernel counts.
    fn fill(&self) -> Result<(), SwappedError> {
        let (base, count) = self.range();
        self.stream.fill(base, 0, 2)?;
        self.launch("swap_fill", MANY, &[base + 8, count - 1, SEED])?;
        Ok(self.stream.synchronize()?)
    }

    fn begin(&self) -> Result<(), SwappedError> {
        self.fill()?;
        let (base, _) = self.range();
        let shared = self.shared.address();
        let params = [base, shared + 8 * COUNT as u64, shared + 8 * STOP as u64];
        self.launch("swap_endless", ONE, &params)
    }

    fn map(
        &mut self,
        mut offset: u64,
        parts: &[u64],
        handles: Vec<OwnedFd>,
    ) -> Result<(), SwappedError> {
        let Memory::Mapped(addresses, mappings) = &mut self.memory else {
            return Err(SwappedError::Refused("plain memory is not mapped".into()));
        };
        // CAST: within a reservation.
        for (handle, bytes) in handles.into_iter().zip(parts) {
            let chunk = self.context.import(&handle, *bytes as usize)?;
            drop(handle);
            mappings.push_back(addresses.map(offset as usize, chunk)?);
            offset += bytes;
        }
        Ok(())
    }

    /// Returns the number of changed words, plus one if the memory does not have the kernel's
    /// count.
    fn end(&self) -> Result<u64, SwappedError> {
        self.shared.store(STOP, 1);
        self.stream.synchronize()?;
        let (base, count) = self.range();
        let wrong = self.context.buffer(4096)?;
        self.stream.fill(wrong.address(), 0, 2)?;
        self.launch(
            "swap_check",
            MANY,
            &[base + 8, count - 1, SEED, wrong.address()],
        )?;
        let result = self.context.host_buffer(4096)?;
        self.context
            .copy_out(&self.stream, wrong.address(), &result, 0, 8)?;
        self.context.copy_out(&self.stream, base, &result, 8, 8)?;
        self.stream.synchronize()?;
        let lost = result.load(1) != self.shared.load(COUNT);
        Ok(result.load(0) + u64::from(lost))
    }
}

/// Runs the tenant's process on the connection `stream`.
///
/// # Errors
/// If the bench does not keep to the protocol.
pub fn run(stream: UnixStream) -> Result<(), SwappedError> {
    let mut reader = FrameReader::new();
    let mut tenant = None;
    loop {
        let frame = match reader.read::<Order>(&stream)? {
            Read::Frame(frame) => frame,
            Read::WouldBlock => continue,
            // Without the vendor library's exit handlers, which would wait for the kernel.
            Read::End => {
                let _ = kill_process(getpid(), Signal::KILL);
                return Ok(());
            }
        };
        let answer = match obey(&mut tenant, frame.message, frame.fds) {
            Ok(number) => Answer::Done {
                pid: std::process::id(),
                number,
            },
            Err(error) => Answer::Refused {
                detail: causes(&error),
            },
        };
        send(&stream, &answer, Vec::new())?;
    }
}

/// An error with its causes.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn obey(tenant: &mut Option<Tenant>, order: Order, fds: Vec<OwnedFd>) -> Result<u64, SwappedError> {
    match order {
        Order::Reserve { device, bytes } => *tenant = Some(Tenant::new(device, bytes, false)?),
        Order::Plain { device, bytes } => *tenant = Some(Tenant::new(device, bytes, true)?),
        other => {
            let missing = || SwappedError::Refused("it has no memory".into());
            let tenant = tenant.as_mut().ok_or_else(missing)?;
            match other {
                Order::Map { offset, parts } => tenant.map(offset, &parts, fds)?,
                Order::Unmap {} => {
                    if let Memory::Mapped(_, mappings) = &mut tenant.memory {
                        drop(mappings.pop_front());
                    }
                }
                Order::Begin {} => tenant.begin()?,
                Order::Count {} => return Ok(tenant.shared.load(COUNT)),
                _ => return tenant.end(),
            }
        }
    }
    Ok(0)
}

/// The bench's side of the connection.
#[derive(Debug)]
pub struct Swapped {
    stream: UnixStream,
    reader: FrameReader,
    /// Process id of the tenant.
    pub pid: u32,
}

impl Swapped {
    /// Has the process at the other end reserve addresses for `bytes`, or allocate `plain` memory.
    ///
    /// # Errors
    /// If it cannot, or is gone.
    pub fn new(
        stream: UnixStream,
        device: u32,
        bytes: u64,
        plain: bool,
    ) -> Result<Self, SwappedError> {
        stream.set_nonblocking(true)?;
        let mut this = Self {
            stream,
            reader: FrameReader::new(),
            pid: 0,
        };
        let order = if plain {
            Order::Plain { device, bytes }
        } else {
            Order::Reserve { device, bytes }
        };
        this.ask(&order, Vec::new())?;
        Ok(this)
    }

    fn ask(&mut self, order: &Order, fds: Vec<OwnedFd>) -> Result<u64, SwappedError> {
        send(&self.stream, order, fds)?;
        let answered = answer(&self.stream, &mut self.reader, LIMIT, || false);
        let (answer, _) = answered.map_err(|error| SwappedError::Line(format!("it {error}")))?;
        match answer {
            Answer::Done { pid, number } => {
                self.pid = pid;
                Ok(number)
            }
            Answer::Refused { detail } => Err(SwappedError::Refused(detail)),
        }
    }

    /// Has the tenant map memory from `offset` on: bytes and handle of each part.
    ///
    /// # Errors
    /// If it cannot, or is gone.
    pub fn map(&mut self, offset: u64, memory: Vec<(u64, OwnedFd)>) -> Result<(), SwappedError> {
        let (mut offset, mut memory) = (offset, memory.into_iter());
        loop {
            let some = memory.by_ref().take(HANDLES_MAX);
            let (parts, handles): (Vec<u64>, Vec<OwnedFd>) = some.unzip();
            if parts.is_empty() {
                return Ok(());
            }
            let next = offset + parts.iter().sum::<u64>();
            self.ask(&Order::Map { offset, parts }, handles)?;
            offset = next;
        }
    }

    /// Has the tenant unmap the first mapped part, of which it keeps no handle.
    ///
    /// # Errors
    /// If it cannot, or is gone.
    pub fn unmap(&mut self) -> Result<(), SwappedError> {
        self.ask(&Order::Unmap {}, Vec::new()).map(drop)
    }

    /// Has the tenant fill its memory and start its kernel.
    ///
    /// # Errors
    /// If it cannot, or is gone.
    pub fn begin(&mut self) -> Result<(), SwappedError> {
        self.ask(&Order::Begin {}, Vec::new()).map(drop)
    }

    /// Reads the kernel's count.
    ///
    /// # Errors
    /// If the tenant is gone.
    pub fn count(&mut self) -> Result<u64, SwappedError> {
        self.ask(&Order::Count {}, Vec::new())
    }

    /// Has the tenant end the kernel; returns the number of words that are not as they were.
    ///
    /// # Errors
    /// If it cannot, or is gone.
    pub fn end(&mut self) -> Result<u64, SwappedError> {
        self.ask(&Order::End {}, Vec::new())
    }
}

/// Bytes per second of plain copies of `bytes` between pinned memory and the GPU, out and in: the
/// best of 5 rounds.
///
/// # Errors
/// If the GPU refuses.
pub fn link_rates(device: u32, bytes: usize) -> Result<[u64; 2], SwappedError> {
    const ROUNDS: usize = 5;
    let context = Cuda::load()?.context(device)?;
    let (stream, there) = (context.stream()?, context.buffer(bytes)?);
    let here = context.host_buffer(bytes)?;
    let mut best = [Duration::MAX; 2];
    for _ in 0..ROUNDS {
        for (direction, best) in best.iter_mut().enumerate() {
            let begin = Instant::now();
            if direction == 0 {
                context.copy_out(&stream, there.address(), &here, 0, bytes)?;
            } else {
                context.copy_in(&stream, &here, 0, there.address(), bytes)?;
            }
            stream.synchronize()?;
            *best = begin.elapsed().min(*best);
        }
    }
    // CAST: about 10^10.
    Ok(best.map(|took| (bytes as f64 / took.as_secs_f64()) as u64))
}

/// Durations of the vendor's checkpoint of a process: lock, out, back, unlock.
///
/// # Errors
/// If the driver refuses.
pub fn checkpoint(pid: u32) -> Result<[Duration; 4], SwappedError> {
    let cuda = Cuda::load()?;
    let mut took = [Duration::ZERO; 4];
    let steps = [
        Checkpoint::Lock,
        Checkpoint::Out,
        Checkpoint::Back,
        Checkpoint::Unlock,
    ];
    for (step, took) in steps.into_iter().zip(&mut took) {
        let begin = Instant::now();
        cuda.checkpoint(pid, step)?;
        *took = begin.elapsed();
    }
    Ok(took)
}
