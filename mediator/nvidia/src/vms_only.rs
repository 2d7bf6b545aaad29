//! An NVIDIA GPU under a driver version without a table: the commands of VMs, and nothing else.
//!
//! - In: what VMs announced at their doorbells, and what their workers have finished of it.
//! - Out: the VM that the engine may be executing. Of several with commands each is named in turn,
//!   so that samples divide the engine's time among them.
//! - No privileged call is made. A VM that is to wait is held at its doorbells, and its running
//!   kernel goes on. Programs and CUDA in guests are refused with what the GPU lacks.

use std::fs::File;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use turnstile_accounting::{EngineId, Moment, Nanos, TenantId};
use turnstile_gpu::{
    Allocation, COMPUTE, Capabilities, ChannelActivity, ChannelConfig, Channels, DoorbellChange,
    EngineReading, EngineStatus, Gpu, Memory, Metering, Order, ProgramEvent, ProgramRefusal,
    Refusal, Report, Suspend, Suspension, TenantMemory, TenantResources,
};

use crate::sharing::{NvidiaError, facts};
use crate::vms::Vms;
use crate::worker::{Facts, WorkerConfig, wall_clock};

/// A GPU that VMs alone share.
#[derive(Debug)]
pub struct VmsOnly {
    vms: Vms,
    facts: Facts,
    /// What it cannot do, and the remedy.
    lacks: String,
    /// Two clocks at its start: the wall clock, and one that never goes back.
    started: (Moment, Instant),
    /// Counts questions for the VM on the engine.
    samples: AtomicUsize,
}

impl VmsOnly {
    /// Shares the GPU that `config` names. `worker` starts a process that ends up in
    /// [`crate::worker::run`]. `lacks` is [`crate::version::VersionError::lacks`].
    ///
    /// # Errors
    /// If the CUDA driver library cannot be used.
    pub fn start(
        config: WorkerConfig,
        worker: impl Fn() -> Command + Send + Sync + 'static,
        lacks: String,
    ) -> Result<Self, NvidiaError> {
        let facts = facts(config.device)?;
        Ok(Self::of(config, worker, facts, lacks))
    }

    /// As [`Self::start`], on a GPU of these properties.
    pub(crate) fn of(
        config: WorkerConfig,
        worker: impl Fn() -> Command + Send + Sync + 'static,
        facts: Facts,
        lacks: String,
    ) -> Self {
        // What the driver hands out cannot be read without a table.
        let config = WorkerConfig {
            learn: false,
            ..config
        };
        Self {
            vms: Vms::new(config, worker),
            facts,
            lacks,
            started: (wall_clock(), Instant::now()),
            samples: AtomicUsize::new(0),
        }
    }
}

impl Gpu for VmsOnly {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            compute_engines: 1,
            copy_engines: 0,
            suspend: Suspend::Drains,
            engine_holds: false,
            demand: false,
            time_slices: false,
            worked: false,
            multiprocessors: self.facts.multiprocessors,
            shared_bytes_max: self.facts.shared_bytes_max,
            memory_bytes: self.facts.memory_bytes,
            memory_held: false,
            host_pool_bytes: 0,
            move_window_bytes: 0,
            follows_guest_memory: false,
            software: false,
            aperture: false,
        }
    }

    fn report(&self) -> Report {
        Report {
            lacks: Some(self.lacks.clone()),
            ..Report::default()
        }
    }
}

impl Channels for VmsOnly {
    fn create_context(
        &self,
        tenant: TenantId,
        resources: TenantResources,
    ) -> Result<File, Refusal> {
        let file = self.vms.start(tenant, resources, |_, _| {})?;
        self.vms.set_clock(self.now());
        Ok(file)
    }

    fn destroy_context(&self, tenant: TenantId) {
        self.vms.end(tenant);
    }

    fn open_channel(&self, tenant: TenantId, config: ChannelConfig) -> Result<u32, Refusal> {
        self.vms.of(tenant)?.open_channel(config)
    }

    fn close_channel(&self, tenant: TenantId, channel: u32) -> Result<(), Refusal> {
        self.vms.of(tenant)?.close_channel(channel)
    }

    fn load_module(
        &self,
        tenant: TenantId,
        ptx: &str,
        _max_bytes: Option<u64>,
    ) -> Result<(u32, u32), Refusal> {
        self.vms.of(tenant)?.load_module(ptx)
    }

    fn unload_module(&self, tenant: TenantId, module: u32) -> Result<(), Refusal> {
        self.vms.of(tenant)?.unload_module(module)
    }

    fn find_function(
        &self,
        tenant: TenantId,
        module: u32,
        name: &str,
    ) -> Result<(u32, u32), Refusal> {
        self.vms.of(tenant)?.find_function(module, name)
    }

    fn doorbells_changed(&self, tenant: TenantId, change: DoorbellChange) {
        self.vms.doorbells_changed(tenant, change);
    }

    fn program(&self, _: TenantId, event: ProgramEvent<'_>) -> Result<(), ProgramRefusal> {
        match event {
            ProgramEvent::Started { .. } | ProgramEvent::Memory(_) => {
                Err(ProgramRefusal::Refused(self.lacks.clone()))
            }
            ProgramEvent::Changed { .. } | ProgramEvent::Exited { .. } => Ok(()),
        }
    }
}

impl Suspension for VmsOnly {
    /// Gates hold a VM; what it announced before runs.
    fn carry_out(&self, _: &[Order]) {}
}

impl Memory for VmsOnly {
    fn allocate(&self, tenant: TenantId, bytes: u64) -> Result<Allocation, Refusal> {
        self.vms.of(tenant)?.allocate(bytes)
    }

    fn free(&self, tenant: TenantId, va: u64) -> Result<(), Refusal> {
        self.vms.of(tenant)?.free(va)
    }

    fn memory(&self, tenant: TenantId) -> TenantMemory {
        let worker = self.vms.of(tenant);
        TenantMemory {
            free_bytes: worker.map_or(0, |worker| worker.memory_free_bytes()),
            ..TenantMemory::default()
        }
    }
}

impl Metering for VmsOnly {
    fn now(&self) -> Moment {
        let (wall, begin) = self.started;
        // CAST: 584 years.
        wall + Nanos(begin.elapsed().as_nanos() as u64)
    }

    fn engine_status(&self, engine: EngineId) -> EngineStatus {
        let pending = match engine {
            COMPUTE => self.vms.with_commands(),
            _ => Vec::new(),
        };
        let sample = self.samples.fetch_add(1, Ordering::Relaxed);
        let running = sample.checked_rem(pending.len());
        EngineStatus {
            running: running.map(|place| pending[place]),
        }
    }

    fn activity(&self, tenant: TenantId, channels: &mut Vec<ChannelActivity>) {
        if let Ok(worker) = self.vms.of(tenant) {
            worker.activity(channels);
        }
    }

    fn read(&self, _: &mut EngineReading) {
        self.vms.set_clock(self.now());
    }
}
