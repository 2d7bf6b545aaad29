//! Starting to share a GPU: facts of the GPU, what is opened of it, and why that fails.

use std::io;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use rustix::event::{EventfdFlags, eventfd};
use turnstile_abi::CHUNK_BYTES;
use turnstile_gpu::{Capabilities, Suspend};

use super::{EngineProbe, Moving, Shared, SharedGpu};
use crate::clock::GpuClock;
use crate::events::EventLog;
use crate::hold::holder::{Holder, OwnedSwitch};
use crate::hold::watchdog::{Watchdog, WatchdogError};
use crate::hold::{SharedHolder, SuspendExecutor};
use crate::models;
use crate::mover::MoverError;
use crate::observe::Signals;
use crate::preemptor::Preemptor;
use crate::probe::CudaError;
use crate::programs::{ProgramChunks, ProgramMemory};
use crate::rm::{RmClient, RmError};
use crate::sys::Cuda;
use crate::version::{self, DriverAbi, VersionError};
use crate::vms::Vms;
use crate::worker::{Facts, WorkerConfig};

/// Why the GPU cannot be shared.
#[derive(Debug, thiserror::Error)]
pub enum NvidiaError {
    /// The driver's version is not known.
    #[error("The driver's privileged calls are not used")]
    Version(#[from] VersionError),
    /// The driver refused something.
    #[error("The driver failed (turnstile doctor says what is missing)")]
    Rm(#[from] RmError),
    /// There is no watchdog, which resumes tenants when the daemon is gone.
    #[error("No tenant can be held without a watchdog")]
    Watchdog(#[from] WatchdogError),
    /// The CUDA driver library is needed for what VMs do.
    #[error(
        "The CUDA driver library cannot be used (install the vendor's user libraries, libcuda.so.1)"
    )]
    Cuda(#[from] CudaError),
    /// Memory is to move, and there is no mover.
    #[error("GPU memory cannot be moved to the host")]
    Mover(#[from] MoverError),
    /// There is no thread.
    #[error("Starting a thread failed")]
    Thread(#[source] io::Error),
    /// There is no event descriptor.
    #[error("Making an event descriptor failed")]
    Wake(#[from] rustix::io::Errno),
}

/// What the GPU is.
pub(crate) fn facts(index: u32) -> Result<Facts, CudaError> {
    /// SOURCE: cuda.h: CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK.
    const SHARED_BYTES: i32 = 8;
    /// SOURCE: cuda.h: CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT.
    const MULTIPROCESSORS: i32 = 16;
    let cuda = Cuda::load()?;
    let number = |attribute| {
        let number = cuda.attribute(index, attribute)?;
        Ok::<u32, CudaError>(number.try_into().unwrap_or(0))
    };
    Ok(Facts {
        multiprocessors: number(MULTIPROCESSORS)?,
        shared_bytes_max: number(SHARED_BYTES)?,
        memory_bytes: cuda.total_bytes(index)? / CHUNK_BYTES * CHUNK_BYTES,
        pinned: false,
    })
}

/// A context-switch log of GPU `index`, with the client that it ends with.
pub(super) fn open_log(index: u32, driver: &DriverAbi) -> Result<(RmClient, EventLog), RmError> {
    let client = RmClient::open(index)?;
    let log = EventLog::start(&client, driver)?;
    Ok((client, log))
}

impl SharedGpu {
    /// Shares the GPU that `config` names. `watchdog` starts a process that ends up in
    /// [`crate::hold::watchdog::serve`], `worker` one that ends up in [`crate::worker::run`]. With
    /// a preemptor, a tenant that is held stops sooner. With `moving`, tenants may together own
    /// more memory than there is. Without `registers` the context-switch log is the one signal.
    ///
    /// # Errors
    /// If the driver is not known or refuses, or there is no watchdog.
    pub fn start(
        config: WorkerConfig,
        registers: bool,
        watchdog: impl Fn() -> Command + Send + 'static,
        worker: impl Fn() -> Command + Send + Sync + 'static,
        preemptor: Option<Preemptor>,
        moving: Option<Moving>,
    ) -> Result<Self, NvidiaError> {
        let index = config.device;
        let vms = Vms::new(config, worker);
        let driver = version::detect()?;
        if let Some(warning) = version::warning(driver.version) {
            log::warn!("{warning}");
        }
        let client = Arc::new(RmClient::open(index)?);
        let facts = facts(index)?;
        let log = open_log(index, &driver)?;
        let clock = GpuClock::start(&client, &driver)?;
        let signals = if registers {
            Signals::of(index)?
        } else {
            Signals::none("no register is read, as gpu.registers is off")
        };
        let worked = signals.busy_counter().is_ok();
        // CAST: a GPU has some ten copy engines.
        let copy_engines = signals.copy_engines() as u8;
        let missing = [signals.busy_counter(), signals.channel_status()];
        for reason in missing.into_iter().filter_map(Result::err) {
            log::warn!("{reason}; resident time is charged, or work is assumed, in its place");
        }
        let mut probe = EngineProbe::new(log, signals, models::of(index).edges);
        probe.processes.handles.count_on(client.number());
        probe.set_preemptor(preemptor.as_ref().and_then(Preemptor::pid));
        let chunks = ProgramChunks::default();
        // What all programs may have together.
        let room_bytes = moving.as_ref().map_or(facts.memory_bytes, |moving| {
            moving.card_bytes(facts.memory_bytes) + moving.pool_bytes
        });
        let first = Watchdog::start(watchdog())?;
        let shared = Arc::new(Shared {
            client: client.clone(),
            driver,
            clock: Mutex::new(clock),
            probe: Mutex::new(probe),
            executor: SuspendExecutor::default(),
            holds: Mutex::default(),
            preemptor: Mutex::new(preemptor),
            wake: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            vms,
            programs: ProgramMemory::new(room_bytes, Arc::new(chunks.clone())),
            chunks,
            able: OnceLock::new(),
            sets: OnceLock::new(),
        });
        let (mut memory_bytes, mut host_pool_bytes) = (facts.memory_bytes, 0);
        if let Some(moving) = moving {
            memory_bytes = moving.card_bytes(facts.memory_bytes);
            host_pool_bytes = moving.pool_bytes;
            let sets = moving.start(index, memory_bytes, &shared)?;
            shared.chunks.move_by(sets.clone());
            // Empty until here.
            let _ = shared.sets.set(sets);
        }
        let switch = OwnedSwitch { client, driver };
        let holder = Arc::new(SharedHolder::new(Holder::new(switch, first)));
        let (owner, held) = (shared.clone(), holder.clone());
        let another = move || Watchdog::start(watchdog());
        let thread = thread::Builder::new()
            .name("gpu-hold".into())
            .spawn(move || owner.executor.run(&held, &*owner, another))
            .map_err(NvidiaError::Thread)?;
        let capabilities = Capabilities {
            compute_engines: 1,
            copy_engines,
            suspend: Suspend::MidKernel,
            engine_holds: true,
            demand: true,
            time_slices: true,
            worked,
            multiprocessors: facts.multiprocessors,
            shared_bytes_max: facts.shared_bytes_max,
            memory_bytes,
            memory_held: false,
            host_pool_bytes,
            move_window_bytes: shared.sets().map_or(0, |sets| 4 * sets.extent_bytes()),
            follows_guest_memory: false,
            software: false,
            aperture: false,
        };
        Ok(Self {
            shared,
            capabilities,
            holder,
            thread: Some(thread),
        })
    }
}
