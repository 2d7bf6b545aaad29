//! A GPU that executes nothing, for tests of the host.
//!
//! In: what a test sets it to report. Out: [`Call`]s in their order. Each call first takes what
//! VMMs were sent before it, so that gate moves have their place among the calls.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard};

use turnstile_abi::{CHUNK_BYTES, ErrorCode};
use turnstile_accounting::meter::Worked;
use turnstile_accounting::{EngineId, Moment, Nanos, TenantId};
use turnstile_gpu::{
    Allocation, Ask, Capabilities, ChannelActivity, ChannelConfig, Channels, ChunkId, Contexts,
    DoorbellChange, EngineReading, EngineStatus, Gpu, Memory, MemoryEvent, Metering, MoveError,
    MoveOrder, MoveReport, Order, Refusal, Report, Suspend, Suspension, TenantMemory,
    TenantResources,
};
use turnstile_host::memory_file::memory_file;
use turnstile_vmm::wire::{FrameReader, Read, ToVmm};

use super::test_bench::usage_over;

/// What the GPU was ordered, or a VMM was sent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    Created(TenantId),
    Destroyed(TenantId),
    Doorbells(TenantId, DoorbellChange),
    Orders(Vec<Order>),
    Move(MoveOrder),
    Woken,
    Sent(TenantId, ToVmm),
}

/// What the GPU reports, as a test sets it.
#[derive(Debug)]
// FIELDS: what a simulated GPU reports, each set by tests.
pub(crate) struct Reported {
    pub(crate) now: Moment,
    /// On the compute engine, and on each copy engine.
    pub(crate) running: [Option<TenantId>; 3],
    pub(crate) activity: Vec<(TenantId, ChannelActivity)>,
    /// Bytes that each tenant holds, and may still allocate.
    pub(crate) held_bytes: Vec<(TenantId, u64)>,
    pub(crate) report: Report,
    /// End of the last reading of a GPU with slices. Its engine works all the time.
    pub(crate) read_at: Moment,
    pub(crate) silent: Option<String>,
    pub(crate) taken_back: Contexts,
    /// Engine time of each chunk that moves, and bytes copied for it.
    pub(crate) move_takes: Nanos,
    pub(crate) move_copies: u64,
    pub(crate) events: Vec<MemoryEvent>,
}

impl Reported {
    /// A window since the last reading, or since the GPU was silent.
    fn read_slices(&mut self, reading: &mut EngineReading) {
        let from = std::mem::replace(&mut self.read_at, self.now);
        let length = self.now.since(from);
        let goes_on = reading.at == from;
        reading.at = self.now;
        let tenant = self.running[0].filter(|_| goes_on && length > Nanos::ZERO);
        reading.windows.extend(tenant.map(|tenant| Worked {
            usage: usage_over(from, length, [&[(tenant, length.0 / 1_000_000)], &[], &[]]),
            readings: Vec::new(),
            split: false,
        }));
    }
}

#[derive(Debug)]
struct Vmm {
    tenant: TenantId,
    stream: UnixStream,
    reader: FrameReader,
}

/// The GPU.
#[derive(Debug)]
pub(crate) struct RecordingGpu {
    capabilities: Capabilities,
    reported: Mutex<Reported>,
    calls: Mutex<Vec<Call>>,
    vmms: Mutex<Vec<Vmm>>,
}

/// A GPU of one compute and two copy engines. Gates stop its tenants.
pub(crate) const GATES: Capabilities = Capabilities {
    compute_engines: 1,
    copy_engines: 2,
    suspend: Suspend::BetweenCommands,
    engine_holds: false,
    demand: false,
    time_slices: false,
    worked: true,
    multiprocessors: 1,
    shared_bytes_max: 1 << 10,
    memory_bytes: 8 * CHUNK_BYTES,
    memory_held: true,
    host_pool_bytes: 0,
    move_window_bytes: 0,
    follows_guest_memory: true,
    software: true,
    aperture: false,
};

/// The same, with memory that moves.
pub(crate) const MOVABLE: Capabilities = Capabilities {
    host_pool_bytes: 32 * CHUNK_BYTES,
    move_window_bytes: 64 << 20,
    ..GATES
};

impl RecordingGpu {
    pub(crate) fn new(capabilities: Capabilities) -> Arc<Self> {
        let reported = Reported {
            now: Moment(0),
            running: [None; 3],
            activity: Vec::new(),
            held_bytes: Vec::new(),
            report: Report::default(),
            read_at: Moment(0),
            silent: None,
            taken_back: Contexts::Gone,
            move_takes: Nanos::from_us(10),
            move_copies: CHUNK_BYTES,
            events: Vec::new(),
        };
        Arc::new(Self {
            capabilities,
            reported: Mutex::new(reported),
            calls: Mutex::default(),
            vmms: Mutex::default(),
        })
    }

    /// Takes the VMM's end of a tenant's connection.
    pub(crate) fn connect(&self, tenant: TenantId, stream: UnixStream, reader: FrameReader) {
        stream.set_nonblocking(true).unwrap();
        let vmm = Vmm {
            tenant,
            stream,
            reader,
        };
        self.vmms.lock().unwrap().push(vmm);
    }

    /// What the GPU reports from now on.
    pub(crate) fn reported(&self) -> MutexGuard<'_, Reported> {
        self.reported.lock().unwrap()
    }

    /// Calls since the last one of this.
    pub(crate) fn take(&self) -> Vec<Call> {
        let mut calls = self.calls.lock().unwrap();
        self.receive(&mut calls);
        std::mem::take(&mut calls)
    }

    /// Whether the connection to a tenant's VMM was shut down.
    pub(crate) fn hung_up(&self, tenant: TenantId) -> bool {
        self.take();
        let mut vmms = self.vmms.lock().unwrap();
        let mut own = vmms.iter_mut().filter(|vmm| vmm.tenant == tenant);
        own.any(|vmm| matches!(vmm.reader.read::<ToVmm>(&vmm.stream), Ok(Read::End)))
    }

    fn receive(&self, calls: &mut Vec<Call>) {
        for vmm in self.vmms.lock().unwrap().iter_mut() {
            while let Ok(Read::Frame(frame)) = vmm.reader.read::<ToVmm>(&vmm.stream) {
                calls.push(Call::Sent(vmm.tenant, frame.message));
            }
        }
    }

    fn record(&self, call: Call) {
        let mut calls = self.calls.lock().unwrap();
        self.receive(&mut calls);
        calls.push(call);
    }
}

impl Channels for RecordingGpu {
    fn create_context(&self, tenant: TenantId, _: TenantResources) -> Result<File, Refusal> {
        self.record(Call::Created(tenant));
        memory_file("aperture", 4_096).map_err(|_| ErrorCode::HostLimit.into())
    }
    fn destroy_context(&self, tenant: TenantId) {
        self.record(Call::Destroyed(tenant));
    }
    fn open_channel(&self, _: TenantId, _: ChannelConfig) -> Result<u32, Refusal> {
        Ok(0)
    }
    fn close_channel(&self, _: TenantId, _: u32) -> Result<(), Refusal> {
        Ok(())
    }
    fn load_module(&self, _: TenantId, _: &str, _: Option<u64>) -> Result<(u32, u32), Refusal> {
        Err(ErrorCode::HostLimit.into())
    }
    fn unload_module(&self, _: TenantId, _: u32) -> Result<(), Refusal> {
        Ok(())
    }
    fn find_function(&self, _: TenantId, _: u32, _: &str) -> Result<(u32, u32), Refusal> {
        Err(ErrorCode::HostLimit.into())
    }
    fn doorbells_changed(&self, tenant: TenantId, change: DoorbellChange) {
        self.record(Call::Doorbells(tenant, change));
    }
}

impl Suspension for RecordingGpu {
    fn carry_out(&self, orders: &[Order]) {
        self.record(Call::Orders(orders.to_vec()));
    }
}

impl Memory for RecordingGpu {
    /// Tests add [`MemoryEvent::Allocated`] to what is reported.
    fn allocate(&self, _: TenantId, _: u64) -> Result<Allocation, Refusal> {
        Err(ErrorCode::OutOfGpuMemory.into())
    }
    fn free(&self, _: TenantId, _: u64) -> Result<(), Refusal> {
        Ok(())
    }
    fn memory(&self, tenant: TenantId) -> TenantMemory {
        let held = &self.reported().held_bytes;
        let held = held.iter().find(|(of, _)| *of == tenant);
        TenantMemory {
            free_bytes: 0,
            held_bytes: held.map_or(0, |(_, bytes)| *bytes),
            is_quiet: true,
        }
    }
    fn move_memory(&self, order: MoveOrder) -> Result<(), MoveError> {
        let mut reported = self.reported();
        let report = |chunk: &ChunkId| MoveReport {
            owner: order.owner,
            cause: order.cause,
            direction: order.direction,
            chunk: *chunk,
            copied_bytes: reported.move_copies,
            took: reported.move_takes,
            result: Ok(()),
        };
        let moved: Vec<_> = order.chunks.iter().map(report).collect();
        let moved = moved.into_iter().map(MemoryEvent::Moved);
        reported.events.extend(moved);
        drop(reported);
        self.record(Call::Move(order));
        Ok(())
    }
    fn read_memory_events(&self, events: &mut Vec<MemoryEvent>) {
        events.append(&mut self.reported().events);
    }
}

impl Metering for RecordingGpu {
    fn now(&self) -> Moment {
        self.reported().now
    }
    fn engine_status(&self, engine: EngineId) -> EngineStatus {
        let running = self.reported().running[usize::from(engine.0)];
        EngineStatus { running }
    }
    fn activity(&self, tenant: TenantId, channels: &mut Vec<ChannelActivity>) {
        let reported = self.reported();
        let own = reported.activity.iter().filter(|(of, _)| *of == tenant);
        channels.extend(own.map(|(_, activity)| *activity));
    }
    fn read(&self, reading: &mut EngineReading) {
        if self.capabilities.time_slices {
            self.reported().read_slices(reading);
        }
    }
    fn wake(&self) {
        self.record(Call::Woken);
    }
}

impl Gpu for RecordingGpu {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
    fn report(&self) -> Report {
        self.reported().report.clone()
    }
    fn ask(&self, ask: Ask) -> Result<Contexts, String> {
        match ask {
            Ask::Answer => self.answers().map(|()| Contexts::Kept),
            Ask::TakeBack => self.take_back(),
        }
    }
}

impl RecordingGpu {
    fn answers(&self) -> Result<(), String> {
        self.reported().silent.clone().map_or(Ok(()), Err)
    }
    fn take_back(&self) -> Result<Contexts, String> {
        self.answers().map(|()| self.reported().taken_back)
    }
}
