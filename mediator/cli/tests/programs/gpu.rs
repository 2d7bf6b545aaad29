//! A GPU that takes programs and records its calls; VMs go to a software GPU. Memory of programs
//! moves if it has [`Moves`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use turnstile_accounting::meter::{Case, WorkedMeter};
use turnstile_accounting::{EngineId, Moment, Nanos, Seen, TenantId, Window};
use turnstile_gpu::{
    Allocation, COMPUTE, Capabilities, ChannelActivity, ChannelConfig, Channels, DoorbellChange,
    EngineReading, EngineStatus, Gpu, Memory, MemoryEvent, Metering, MoveError, MoveOrder, Order,
    ProgramEvent, ProgramRefusal, Refusal, Report, Suspension, TenantMemory, TenantResources,
    Untracked,
};
use turnstile_nvidia::programs::{Backing, Grant, ProgramMemory, ProgramPlace};
use turnstile_nvidia::sharing::{Holds, Reason};
use turnstile_preload_wire::Denial;
use turnstile_soft::{SoftConfig, SoftGpu};
use turnstile_vmm::wire::ObjectChange;

use super::moving::Moves;

/// A call of the GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GpuCall {
    Program(TenantId, u32),
    Changed(TenantId, u32, ObjectChange),
    Exited(TenantId, u32),
    Left(TenantId),
}

/// Handles of what programs have made.
#[derive(Debug, Default)]
pub(crate) struct Handles(pub(crate) Mutex<BTreeMap<ProgramPlace, (TenantId, OwnedFd)>>);

impl Backing for Handles {
    fn allocate(&self, _: TenantId, _: ProgramPlace) -> Result<Grant, Denial> {
        Ok(Grant::Make)
    }
    fn give(&self, _: TenantId, _: ProgramPlace, _: &mut dyn FnMut(OwnedFd)) -> Result<(), Denial> {
        Err(Denial::Full)
    }
    fn made(&self, tenant: TenantId, place: ProgramPlace, handle: OwnedFd) {
        self.0.lock().unwrap().insert(place, (tenant, handle));
    }
    fn freed(&self, _: TenantId, place: ProgramPlace) {
        self.0.lock().unwrap().remove(&place);
    }
}

#[derive(Debug)]
pub(crate) struct FakeGpu {
    soft: SoftGpu,
    calls: Mutex<Vec<GpuCall>>,
    pub(crate) memory: ProgramMemory,
    pub(crate) backing: Arc<Handles>,
    pub(crate) moves: Option<Moves>,
    pool_bytes: u64,
    tenants: Mutex<BTreeSet<TenantId>>,
    holds: Mutex<Holds>,
}

impl FakeGpu {
    /// Memory of programs moves.
    pub(crate) fn moving(moves: Moves) -> Arc<Self> {
        Arc::new(Self {
            soft: SoftGpu::new(SoftConfig::default()).unwrap(),
            calls: Mutex::default(),
            memory: ProgramMemory::new(1 << 40, Arc::new(moves.chunks.clone())),
            backing: Arc::default(),
            pool_bytes: moves.pool_bytes(),
            moves: Some(moves),
            tenants: Mutex::default(),
            holds: Mutex::default(),
        })
    }

    pub(crate) fn new() -> Arc<Self> {
        Self::with_pool(0)
    }

    /// The host has room for so much memory of its programs; the test moves it.
    pub(crate) fn with_pool(pool_bytes: u64) -> Arc<Self> {
        let backing = Arc::new(Handles::default());
        Arc::new(Self {
            soft: SoftGpu::new(SoftConfig::default()).unwrap(),
            calls: Mutex::default(),
            memory: ProgramMemory::new(1 << 30, backing.clone()),
            backing,
            moves: None,
            pool_bytes,
            tenants: Mutex::default(),
            holds: Mutex::default(),
        })
    }

    pub(crate) fn calls(&self) -> Vec<GpuCall> {
        self.calls.lock().unwrap().clone()
    }

    /// Objects made, as (process, client, handle).
    pub(crate) fn made(&self) -> Vec<(u32, u32, u32)> {
        let made = |call: &GpuCall| match call {
            GpuCall::Changed(_, pid, ObjectChange::Made(object)) => {
                Some((*pid, object.client, object.handle))
            }
            _ => None,
        };
        self.calls().iter().filter_map(made).collect()
    }

    fn hold_for(&self, tenant: TenantId, reason: Reason, on: bool) {
        let held = self.holds.lock().unwrap().set(tenant, reason, on);
        match (&self.moves, held) {
            (Some(moves), Some(true)) => moves.suspend(tenant),
            (Some(moves), Some(false)) => moves.resume(tenant),
            (None, Some(true)) => self.soft.carry_out(&[Order::Suspend(tenant)]),
            (None, Some(false)) => self.soft.carry_out(&[Order::Resume(tenant)]),
            (_, None) => {}
        }
    }

    fn record(&self, call: GpuCall) {
        self.calls.lock().unwrap().push(call);
    }
}

impl Drop for FakeGpu {
    fn drop(&mut self) {
        if let Some(moves) = &self.moves {
            moves.end();
        }
        self.memory.end_all();
    }
}

impl Gpu for FakeGpu {
    fn capabilities(&self) -> Capabilities {
        // It divides its engine by itself, as an NVIDIA GPU does.
        let capabilities = Capabilities {
            engine_holds: true,
            demand: true,
            time_slices: true,
            memory_held: false,
            move_window_bytes: 16 << 20,
            follows_guest_memory: false,
            host_pool_bytes: self.pool_bytes,
            ..self.soft.capabilities()
        };
        let moves = self.moves.as_ref();
        moves.map_or(capabilities, |moves| moves.capabilities(capabilities))
    }
    fn report(&self) -> Report {
        let init = Untracked {
            pid: 1,
            name: "init".into(),
            switches: 3,
        };
        Report {
            untracked: vec![init],
            ..Report::default()
        }
    }
}

impl Channels for FakeGpu {
    fn program(&self, tenant: TenantId, event: ProgramEvent<'_>) -> Result<(), ProgramRefusal> {
        match event {
            ProgramEvent::Started {
                root,
                memory_max_bytes,
            } => {
                self.memory.add(tenant, memory_max_bytes);
                if let Some(moves) = &self.moves {
                    moves.add(tenant, root, &self.memory);
                }
                self.tenants.lock().unwrap().insert(tenant);
                self.record(GpuCall::Program(tenant, root));
            }
            ProgramEvent::Memory(connection) => {
                let connected = self.memory.connect(tenant, connection);
                connected.map_err(ProgramRefusal::Refused)?;
            }
            ProgramEvent::Changed { pid, changes } => {
                for change in changes {
                    self.record(GpuCall::Changed(tenant, pid, *change));
                }
            }
            ProgramEvent::Exited { pid } => self.record(GpuCall::Exited(tenant, pid)),
        }
        Ok(())
    }
    fn create_context(
        &self,
        tenant: TenantId,
        resources: TenantResources,
    ) -> Result<File, Refusal> {
        self.soft.create_context(tenant, resources)
    }
    fn destroy_context(&self, tenant: TenantId) {
        self.record(GpuCall::Left(tenant));
        self.tenants.lock().unwrap().remove(&tenant);
        self.holds.lock().unwrap().forget(tenant);
        self.memory.remove(tenant);
        if let Some(moves) = &self.moves {
            moves.remove(tenant);
        }
        self.soft.destroy_context(tenant);
    }
    fn open_channel(&self, tenant: TenantId, config: ChannelConfig) -> Result<u32, Refusal> {
        self.soft.open_channel(tenant, config)
    }
    fn close_channel(&self, tenant: TenantId, channel: u32) -> Result<(), Refusal> {
        self.soft.close_channel(tenant, channel)
    }
    fn load_module(
        &self,
        tenant: TenantId,
        ptx: &str,
        max_bytes: Option<u64>,
    ) -> Result<(u32, u32), Refusal> {
        self.soft.load_module(tenant, ptx, max_bytes)
    }
    fn unload_module(&self, tenant: TenantId, module: u32) -> Result<(), Refusal> {
        self.soft.unload_module(tenant, module)
    }
    fn find_function(
        &self,
        tenant: TenantId,
        module: u32,
        name: &str,
    ) -> Result<(u32, u32), Refusal> {
        self.soft.find_function(tenant, module, name)
    }
    fn doorbells_changed(&self, tenant: TenantId, change: DoorbellChange) {
        self.soft.doorbells_changed(tenant, change);
    }
}

impl Suspension for FakeGpu {
    fn carry_out(&self, orders: &[Order]) {
        for order in orders {
            match *order {
                Order::Hold(tenant, _) => self.hold_for(tenant, Reason::Rule, true),
                Order::Release(tenant, _) => self.hold_for(tenant, Reason::Rule, false),
                Order::Suspend(tenant) => self.hold_for(tenant, Reason::Memory, true),
                Order::Resume(tenant) => self.hold_for(tenant, Reason::Memory, false),
                Order::Slice(..) => {}
            }
        }
    }
}

impl Memory for FakeGpu {
    fn allocate(&self, tenant: TenantId, bytes: u64) -> Result<Allocation, Refusal> {
        self.soft.allocate(tenant, bytes)
    }
    fn free(&self, tenant: TenantId, va: u64) -> Result<(), Refusal> {
        self.soft.free(tenant, va)
    }
    fn memory(&self, tenant: TenantId) -> TenantMemory {
        let moves = self.moves.as_ref();
        TenantMemory {
            is_quiet: moves.is_some_and(|moves| moves.sets.is_still(tenant)),
            ..self.soft.memory(tenant)
        }
    }
    fn move_memory(&self, order: MoveOrder) -> Result<(), MoveError> {
        let moves = self.moves.as_ref().ok_or(MoveError::Unsupported)?;
        moves.sets.order(order)
    }
    fn read_memory_events(&self, events: &mut Vec<MemoryEvent>) {
        if let Some(moves) = &self.moves {
            moves.sets.read_events(events);
        }
    }
}

impl Metering for FakeGpu {
    fn now(&self) -> Moment {
        self.soft.now()
    }
    fn engine_status(&self, engine: EngineId) -> EngineStatus {
        self.soft.engine_status(engine)
    }
    fn activity(&self, tenant: TenantId, channels: &mut Vec<ChannelActivity>) {
        match &self.moves {
            Some(moves) => moves.activity(tenant, channels),
            None => self.soft.activity(tenant, channels),
        }
    }
    fn read(&self, reading: &mut EngineReading) {
        let last = std::mem::replace(&mut reading.at, self.soft.now());
        reading.tenants.clear();
        for tenant in &*self.tenants.lock().unwrap() {
            let mut channels = Vec::new();
            self.activity(*tenant, &mut channels);
            reading.tenants.push(Seen {
                tenant: *tenant,
                has_work: channels.iter().any(|channel| channel.pending > 0),
                blocks: false,
                idle: Nanos::ZERO,
            });
        }
        let mut meter = WorkedMeter::new(COMPUTE);
        if last > Moment(0) && reading.at > last {
            let window = Window::starting(last, reading.at.since(last));
            reading
                .windows
                .push(meter.close(window, None, Case::default()));
        }
    }
}
