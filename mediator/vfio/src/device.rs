//! The backend: [`Gpu`] over a device on a [`Bus`].

mod again;

use std::fs::File;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use turnstile_abi::physical::{AdminOp, RESULTS, VECTORS, regs, status};
use turnstile_abi::{ErrorCode, PAGE_BYTES};
use turnstile_accounting::{EngineId, Moment, Nanos, TenantId};
use vm_memory::{Bytes, GuestMemoryBackend, MmapRegion, VolatileMemory};

use super::admin::Admin;
use super::area::{self, HostArea};
use super::begin::{identify, status_page};
use super::bus::{Bus, BusError};
use super::clock::Clock;
use super::demand::DemandReader;
use super::error::StartError;
use super::features::capabilities;
use super::notices::{self, Notices};
use super::pages::DevicePages;
use super::tenants::{Tenants, Windows};
use turnstile_gpu::{
    Allocation, Ask, Capabilities, ChannelActivity, ChannelConfig, Channels, Contexts,
    DoorbellChange, Doorbells, EngineReading, EngineStatus, Gpu, Memory, Metering, Order, Refusal,
    Report, Suspension, TenantMemory, TenantResources,
};
use turnstile_host::memory_file::memory_file;

/// Address of the host area for the device; the demand area follows it. One access of 4 bytes can
/// pass it, and it is outside of the addresses that x86 hosts reserve for interrupts.
const AREA_IOVA: u32 = 0x1000_0000;

/// A GPU behind a bus.
#[derive(Debug)]
// FIELDS: parts of a device, which threads use without a common lock.
pub struct VfioGpu {
    bus: Arc<dyn Bus>,
    admin: Admin,
    capabilities: Capabilities,
    /// The page of status registers; another one after the device was taken back.
    status: RwLock<MmapRegion<()>>,
    clock: Clock,
    log_get: Mutex<u64>,
    /// None where the device does not report demand.
    demand: Option<Mutex<DemandReader>>,
    /// None where the device has no holds.
    notices: Option<Notices>,
    tenants: Mutex<Tenants>,
    /// Number of failed accesses.
    errors: AtomicU64,
    /// Faults as of the last reading.
    dma_faults: AtomicU32,
    /// Why the device does not answer, if so: its first failure.
    lost: Mutex<Option<String>>,
}

impl VfioGpu {
    /// Takes the device on a bus: resets it and gives it a host area.
    ///
    /// # Errors
    /// If it is another device, or violates the contract.
    pub fn new(bus: Arc<dyn Bus>) -> Result<Self, StartError> {
        let area = HostArea::new().map_err(StartError::Memory)?;
        let admin = Admin::new(bus.clone(), area);
        let version = identify(&*bus, &admin)?;
        let capabilities = capabilities(&admin, version)?;
        admin.write32(regs::RESET, 1)?;
        let map = status_page(&*bus)?;
        let engines = capabilities.compute_engines + capabilities.copy_engines;
        let reader = capabilities.demand.then(|| DemandReader::new(engines));
        let notices = capabilities
            .engine_holds
            .then(|| Notices::new(&*bus, &admin));
        let notices = notices.transpose()?;
        let vectors = notices.as_ref().map_or(VECTORS, |_| notices::VECTOR);
        let clock = Clock::new(Moment(admin.read64(regs::TIME)?));
        // Last: from here on a failure drops the backend, which ends the mapping.
        bus.dma_map(AREA_IOVA.into(), admin.area.region())?;
        let gpu = Self {
            capabilities,
            clock,
            bus,
            admin,
            status: RwLock::new(map),
            log_get: Mutex::new(0),
            demand: reader.map(Mutex::new),
            notices,
            tenants: Mutex::new(Tenants::new(vectors)),
            errors: AtomicU64::new(0),
            dma_faults: AtomicU32::new(0),
            lost: Mutex::default(),
        };
        gpu.take_areas()?;
        log::info!("GPU: {}", gpu.bus.describe());
        Ok(gpu)
    }

    fn lost(&self) -> MutexGuard<'_, Option<String>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bus of the device.
    pub fn bus(&self) -> &Arc<dyn Bus> {
        &self.bus
    }

    #[cfg(test)]
    pub(super) fn admin(&self) -> &Admin {
        &self.admin
    }

    /// Accesses beyond what contexts may reach, as the device counts them.
    pub fn dma_faults(&self) -> u32 {
        self.logged(self.admin.read32(regs::DMA_FAULTS))
            .unwrap_or(0)
    }

    fn demand(&self) -> Option<MutexGuard<'_, DemandReader>> {
        let reader = self.demand.as_ref()?;
        Some(reader.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn tenants(&self) -> MutexGuard<'_, Tenants> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a failure. A failed access means that the device is lost, which is logged once.
    fn logged<T>(&self, result: Result<T, BusError>) -> Option<T> {
        let error = match result {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        self.errors.fetch_add(1, Ordering::Relaxed);
        if matches!(error, BusError::Access { .. }) {
            self.lose(&error.to_string());
        }
        None
    }

    fn lose(&self, reason: &str) {
        let mut lost = self.lost();
        if lost.is_none() {
            log::error!("GPU: {reason}");
            *lost = Some(reason.to_owned());
        }
    }

    fn command(
        &self,
        op: AdminOp,
        tenant: TenantId,
        args: &[u64],
    ) -> Result<[u64; RESULTS], Refusal> {
        let words: Vec<u64> = [u64::from(tenant.0)].iter().chain(args).copied().collect();
        self.admin.command(op, &words)
    }

    /// Maps a tenant's memory and makes its context.
    fn enter(
        &self,
        tenant: TenantId,
        first: u32,
        resources: &TenantResources,
    ) -> Result<(), Refusal> {
        let windows = self.tenants().place(tenant, &resources.guest)?;
        for (region, [_, iova, _]) in resources.guest.now().iter().zip(&windows) {
            self.bus.dma_map(*iova, region)?;
        }
        let turn = self.admin.turn();
        self.admin.area.leave_windows(&windows);
        let args = [
            tenant.0.into(),
            first.into(),
            resources.channels.into(),
            resources.memory_bytes,
            windows.len() as u64,
        ];
        turn.command(AdminOp::CreateContext, &args)?;
        Ok(())
    }

    /// Ends the device's access to a tenant's memory, and frees the tenant's resources.
    fn clear_away(&self, tenant: TenantId) {
        let windows: Option<Windows> = self.tenants().remove(&*self.bus, tenant);
        let Some(windows) = windows else { return };
        let mut free = true;
        for [_, iova, bytes] in &windows.list {
            free &= self.logged(self.bus.dma_unmap(*iova, *bytes)).is_some();
        }
        // Memory that may still be mapped is kept, and its addresses are not used again.
        if free {
            self.tenants().unplace(&windows);
        } else {
            std::mem::forget(windows);
        }
    }

    fn read_clock(&self) {
        let begin = Instant::now();
        match self.logged(self.admin.read64(regs::TIME)) {
            // SOURCE: PCI Express Base Specification, 2.3.2: reads of a device that is gone.
            Some(u64::MAX) => self.lose("Its registers read as all ones: it is off the bus"),
            Some(time) => self.clock.set(begin, Moment(time)),
            None => {}
        }
    }

    /// Reads the clock: a device that answers knows until then.
    pub(crate) fn answers(&self) -> Result<(), String> {
        if self.lost().is_none() {
            self.read_clock();
            self.dma_faults.store(self.dma_faults(), Ordering::Relaxed);
        }
        self.lost().clone().map_or(Ok(()), Err)
    }

    pub(crate) fn take_back(&self) -> Result<Contexts, String> {
        self.take_again().map_err(|error| error.to_string())?;
        self.lost().take();
        self.answers().map(|()| Contexts::Gone)
    }
}

impl Gpu for VfioGpu {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn report(&self) -> Report {
        let losses = self.demand().map_or(0, |reader| reader.losses());
        let figures = [
            ("dma_faults", self.dma_faults.load(Ordering::Relaxed).into()),
            ("bus_errors", self.errors.load(Ordering::Relaxed)),
            ("demand_losses", losses),
        ];
        Report {
            figures: figures.into(),
            ..Report::default()
        }
    }

    fn ask(&self, ask: Ask) -> Result<Contexts, String> {
        match ask {
            Ask::Answer => self.answers().map(|()| Contexts::Kept),
            Ask::TakeBack => self.take_back(),
        }
    }
}

impl Channels for VfioGpu {
    fn doorbells(
        &self,
        tenant: TenantId,
        channels: u32,
    ) -> Result<Option<Arc<dyn Doorbells>>, Refusal> {
        let first = self.tenants().promise(tenant, channels)?;
        match DevicePages::map(&*self.bus, first, channels) {
            Ok(pages) => Ok(Some(Arc::new(pages))),
            Err(refusal) => {
                self.clear_away(tenant);
                Err(refusal)
            }
        }
    }

    fn create_context(
        &self,
        tenant: TenantId,
        resources: TenantResources,
    ) -> Result<File, Refusal> {
        let first = self.tenants().promised(tenant)?;
        let entered = self.enter(tenant, first, &resources).and_then(|()| {
            memory_file("turnstile-no-aperture", PAGE_BYTES).map_err(|error| Refusal {
                code: ErrorCode::HostLimit,
                detail: error.to_string(),
            })
        });
        match &entered {
            Ok(_) => self.tenants().insert(tenant, first, &resources),
            Err(_) => {
                // The context may not exist yet.
                let _ = self.command(AdminOp::DestroyContext, tenant, &[]);
                self.clear_away(tenant);
            }
        }
        entered
    }

    fn destroy_context(&self, tenant: TenantId) {
        if !self.tenants().known.contains_key(&tenant) {
            return;
        }
        if let Err(refusal) = self.command(AdminOp::DestroyContext, tenant, &[]) {
            log::error!("GPU: {tenant} could not be ended: {refusal}");
        }
        self.clear_away(tenant);
    }

    fn open_channel(&self, tenant: TenantId, config: ChannelConfig) -> Result<u32, Refusal> {
        let vector = self.tenants().vector(&*self.bus, tenant, config.vector)?;
        let args = [
            config.ring_gpa,
            config.entries.into(),
            config.state_gpa,
            vector.into(),
        ];
        let opened = self.command(AdminOp::OpenChannel, tenant, &args)?;
        // CAST: the device has a thousand.
        let channel = opened[0] as u32;
        self.tenants().tenant(tenant)?.open.insert(channel);
        Ok(channel)
    }

    fn close_channel(&self, tenant: TenantId, channel: u32) -> Result<(), Refusal> {
        self.command(AdminOp::CloseChannel, tenant, &[channel.into()])?;
        self.tenants().tenant(tenant)?.open.remove(&channel);
        Ok(())
    }

    fn load_module(
        &self,
        tenant: TenantId,
        ptx: &str,
        _max_bytes: Option<u64>,
    ) -> Result<(u32, u32), Refusal> {
        let turn = self.admin.turn();
        self.admin.area.leave_text(ptx);
        let args = [tenant.0.into(), ptx.len() as u64];
        let loaded = turn.command(AdminOp::LoadModule, &args)?;
        // CAST: both are numbers of 4 bytes.
        Ok((loaded[0] as u32, loaded[1] as u32))
    }

    fn unload_module(&self, tenant: TenantId, module: u32) -> Result<(), Refusal> {
        self.command(AdminOp::UnloadModule, tenant, &[module.into()])
            .map(|_| ())
    }

    fn find_function(
        &self,
        tenant: TenantId,
        module: u32,
        name: &str,
    ) -> Result<(u32, u32), Refusal> {
        let turn = self.admin.turn();
        self.admin.area.leave_text(name);
        let args = [tenant.0.into(), module.into(), name.len() as u64];
        let found = turn.command(AdminOp::FindFunction, &args)?;
        // CAST: both are numbers of 4 bytes.
        Ok((found[0] as u32, found[1] as u32))
    }

    /// Does nothing: the device sees its doorbells.
    fn doorbells_changed(&self, _: TenantId, _: DoorbellChange) {}
}

impl Suspension for VfioGpu {
    /// Writes of 4 bytes, for which no thread waits on a hardware bus.
    fn carry_out(&self, orders: &[Order]) {
        let can = self.capabilities;
        let engines = if can.engine_holds {
            can.compute_engines + can.copy_engines
        } else {
            0
        };
        for order in orders {
            let (register, tenant) = match *order {
                Order::Hold(tenant, engine) if engine.0 < engines => {
                    (regs::HOLD + u64::from(engine.0) * regs::HOLD_STRIDE, tenant)
                }
                Order::Release(tenant, engine) if engine.0 < engines => (
                    regs::RELEASE + u64::from(engine.0) * regs::HOLD_STRIDE,
                    tenant,
                ),
                Order::Suspend(tenant) => (regs::SUSPEND, tenant),
                Order::Resume(tenant) => (regs::RESUME, tenant),
                // The device lacks the engine, or serves channels in turn.
                Order::Hold(..) | Order::Release(..) | Order::Slice(..) => continue,
            };
            self.logged(self.admin.write32(register, tenant.0));
        }
    }
}

impl Memory for VfioGpu {
    fn allocate(&self, tenant: TenantId, bytes: u64) -> Result<Allocation, Refusal> {
        let given = self.command(AdminOp::Allocate, tenant, &[bytes])?;
        Ok(Allocation {
            va: given[0],
            aperture_offset: given[1],
            bytes: given[2],
        })
    }

    fn free(&self, tenant: TenantId, va: u64) -> Result<(), Refusal> {
        self.command(AdminOp::Free, tenant, &[va]).map(|_| ())
    }

    fn memory(&self, tenant: TenantId) -> TenantMemory {
        let words = self.command(AdminOp::Memory, tenant, &[]);
        TenantMemory {
            free_bytes: words.map_or(0, |words| words[0]),
            ..TenantMemory::default()
        }
    }
}

impl Metering for VfioGpu {
    fn now(&self) -> Moment {
        self.clock.now()
    }

    fn engine_status(&self, engine: EngineId) -> EngineStatus {
        let at = status::engine(engine.0) as usize;
        let status = self.status.read().unwrap_or_else(PoisonError::into_inner);
        let word = status.as_volatile_slice();
        let word = u64::from_le(word.load(at, Ordering::Acquire).unwrap_or(0));
        EngineStatus {
            // CAST: the context is in the low half.
            running: (word & status::BUSY != 0).then_some(TenantId(word as u32)),
        }
    }

    fn activity(&self, tenant: TenantId, channels: &mut Vec<ChannelActivity>) {
        let mut tenants = self.tenants();
        let Ok(known) = tenants.tenant(tenant) else {
            return;
        };
        for channel in &known.open {
            let shown = self.admin.area.channel(known.first + channel, tenant.0);
            let none = ChannelActivity {
                channel: *channel,
                pending: 0,
                finished: None,
                stalls: 0,
                last_active: Moment(0),
            };
            channels.push(shown.map_or(none, |shown| ChannelActivity {
                channel: *channel,
                last_active: self.clock.shifted(shown.last_active),
                ..shown
            }));
        }
    }

    /// Overwritten records of the log show as a gap before the next ones.
    fn read(&self, reading: &mut EngineReading) {
        if self.clock.is_stale() {
            self.read_clock();
        }
        let tenants = self.tenants();
        if let Some(mut reader) = self.demand() {
            let known = tenants.known.iter();
            let known = known.map(|(tenant, known)| (*tenant, known.first));
            let (area, now) = (&self.admin.area, self.clock.now());
            reader.read(area, now, known, &mut reading.demand);
        }
        drop(tenants);
        let mut get = self.log_get.lock().unwrap_or_else(PoisonError::into_inner);
        let first = reading.switches.len();
        self.admin.area.read_log(&mut get, &mut reading.switches);
        for event in &mut reading.switches[first..] {
            event.at = self.clock.shifted(event.at);
        }
    }

    fn wait(&self, length: Nanos) -> bool {
        let Some(notices) = &self.notices else {
            thread::park_timeout(Duration::from_nanos(length.0));
            return false;
        };
        let noticed = notices.wait(length);
        if noticed {
            self.logged(notices.arm(&self.admin));
        }
        noticed
    }

    fn wake(&self) {
        self.notices.iter().for_each(Notices::wake);
    }
}

impl Drop for VfioGpu {
    /// Resets the device, so that it stops using its contexts' memory before that is freed.
    fn drop(&mut self) {
        self.logged(self.admin.write32(regs::RESET, 1));
        let tenants: Vec<TenantId> = self.tenants().known.keys().copied().collect();
        for tenant in tenants {
            self.clear_away(tenant);
        }
        self.logged(self.bus.dma_unmap(AREA_IOVA.into(), area::BYTES));
    }
}
