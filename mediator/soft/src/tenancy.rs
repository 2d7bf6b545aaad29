//! The [`Gpu`] trait over the core: the same for real and for virtual time.

pub(crate) mod realtime;
pub(crate) mod virtual_time;

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use turnstile_abi::ErrorCode;
use turnstile_accounting::{DemandEvent, EngineId, Moment, Nanos, SwitchEvent, TenantId};

use self::realtime::SoftGpu;
use self::virtual_time::VirtualGpu;
use super::address_space::AddressSpace;
use super::address_space::swap::Swap;
use super::config::SoftConfig;
use super::core::Core;
use super::execute::context::Context;
use super::memory::CardMemory;
use super::registers::Registers;
use turnstile_gpu::{
    Allocation, Capabilities, ChannelActivity, ChannelConfig, EngineStatus, Gpu, MemoryEvent,
    MoveError, MoveOrder, Refusal, Suspend, TenantResources,
};

/// The holder of the core and of the time.
pub(super) trait Driver: Send + Sync + std::fmt::Debug {
    /// What it was made from.
    fn config(&self) -> &SoftConfig;
    /// The card's memory.
    fn card(&self) -> &CardMemory;
    /// What memory needs to move, where it does.
    fn swap(&self) -> Option<&Swap>;
    /// The status registers.
    fn registers(&self) -> &Registers;
    /// The time.
    fn clock(&self) -> Moment;
    /// Lets `act` change the core, then sees to it that engines begin what they are to begin.
    fn drive<R>(&self, act: impl FnOnce(&mut Core, Moment) -> R) -> R;
    /// Lets `look` read the core.
    fn look<R>(&self, look: impl FnOnce(&mut Core) -> R) -> R;

    /// Waits for `length`, or until the core has a notice or the thread is woken; whether it had
    /// one.
    fn wait_for_notice(&self, length: Nanos) -> bool;

    /// The context of a tenant.
    fn context(&self, tenant: TenantId) -> Result<Arc<Context>, Refusal> {
        self.look(|core| core.context(tenant))
    }
}

/// The trait is another crate's, so that it cannot be implemented for every driver at once.
macro_rules! impl_gpu {
    ($($driver:ty),+) => {$(
        impl Gpu for $driver {
            fn capabilities(&self) -> Capabilities {
                let config = self.config();
                Capabilities {
                    compute_engines: 1,
                    copy_engines: 2,
                    suspend: config.suspend,
                    engine_holds: config.suspend != Suspend::Drains,
                    demand: true,
                    time_slices: false,
                    status_registers: true,
                    switch_events: true,
                    multiprocessors: config.multiprocessors,
                    shared_bytes_max: config.shared_bytes_max,
                    memory_bytes: config.memory_bytes,
                    movable_memory: self.swap().is_some(),
                    host_pool_bytes: self.swap().map_or(0, |swap| swap.pool.bytes()),
                    move_window_bytes: self.swap().map_or(0, |_| 64 << 20),
                    follows_guest_memory: true,
                    software: true,
                    aperture: self.swap().is_none(),
                }
            }

            fn now(&self) -> Moment {
                self.clock()
            }

            fn create_context(
                &self,
                tenant: TenantId,
                resources: TenantResources,
            ) -> Result<File, Refusal> {
                let refusal = |detail: String| Refusal {
                    code: ErrorCode::HostLimit,
                    detail,
                };
                let config = self.config();
                let (bytes, limit) = (resources.memory_bytes, config.allocations_max);
                let space = AddressSpace::new(
                    tenant,
                    self.card().clone(),
                    bytes,
                    limit,
                    self.swap().cloned(),
                )
                .map_err(|e| refusal(e.to_string()))?;
                let file = space.aperture().map_err(|e| refusal(e.to_string()))?;
                let context = Context::new(tenant, resources.guest.clone(), space, *config);
                self.look(|core| core.add_tenant(Arc::new(context), resources))?;
                Ok(file)
            }

            fn destroy_context(&self, tenant: TenantId) {
                // Held beyond the core's lock: giving memory back takes long.
                let _context = self.context(tenant);
                self.drive(|core, now| core.remove_tenant(now, tenant));
            }

            fn open_channel(&self, tenant: TenantId, config: ChannelConfig) -> Result<u32, Refusal> {
                self.drive(|core, now| core.open_channel(now, tenant, config))
            }

            fn close_channel(&self, tenant: TenantId, channel: u32) -> Result<(), Refusal> {
                self.drive(|core, now| core.close_channel(now, tenant, channel))
            }

            fn allocate(&self, tenant: TenantId, bytes: u64) -> Result<Allocation, Refusal> {
                let space = &self.context(tenant)?.space;
                space.allocate(bytes).map_err(|code| match code {
                    ErrorCode::OutOfGpuMemory if self.swap().is_some() => Refusal {
                        code,
                        detail: format!("{} bytes are left", space.free_bytes()),
                    },
                    code => code.into(),
                })
            }

            fn free(&self, tenant: TenantId, va: u64) -> Result<(), Refusal> {
                let context = self.context(tenant)?;
                if context.is_module_memory(va) {
                    return Err(ErrorCode::NoSuchAllocation.into());
                }
                let range = context.space.allocation(va)?;
                if self.look(|core| core.in_use(tenant, &range)) {
                    return Err(ErrorCode::AllocationInUse.into());
                }
                context.space.free(va)?;
                if self.swap().is_some() {
                    // It may have been what its tenant waited for.
                    self.drive(|core, _| core.settle_limbo(tenant));
                }
                Ok(())
            }

            fn memory_free_bytes(&self, tenant: TenantId) -> u64 {
                let context = self.context(tenant);
                context.map_or(0, |context| context.space.free_bytes())
            }

            fn faults(&self, tenant: TenantId) -> BTreeMap<ErrorCode, u64> {
                let context = self.context(tenant).ok();
                context.map_or_else(BTreeMap::new, |context| context.faults())
            }

            fn memory_held_bytes(&self, tenant: TenantId) -> Option<u64> {
                let context = self.context(tenant).ok()?;
                Some(context.space.held_bytes())
            }

            fn load_module(
                &self,
                tenant: TenantId,
                ptx: &str,
                max_bytes: Option<u64>,
            ) -> Result<(u32, u32), Refusal> {
                self.context(tenant)?.load_module(ptx, max_bytes)
            }

            fn unload_module(&self, tenant: TenantId, module: u32) -> Result<(), Refusal> {
                Ok(self.context(tenant)?.unload_module(module)?)
            }

            fn find_function(
                &self,
                tenant: TenantId,
                module: u32,
                name: &str,
            ) -> Result<(u32, u32), Refusal> {
                Ok(self.context(tenant)?.find_function(module, name)?)
            }

            fn engine_status(&self, engine: EngineId) -> EngineStatus {
                EngineStatus {
                    running: self.registers().running(usize::from(engine.0)),
                }
            }

            fn take_copied(&self) -> Option<BTreeMap<TenantId, u64>> {
                Some(self.look(|core| std::mem::take(&mut core.copied)))
            }

            fn read_events(&self, events: &mut Vec<SwitchEvent>) -> bool {
                self.look(|core| core.read_events(events));
                // It counts what it drops, and the next record shows it.
                true
            }

            fn read_demand(&self, events: &mut Vec<DemandEvent>) {
                self.look(|core| core.read_demand(events));
            }

            fn hold(&self, tenant: TenantId, engine: EngineId, held: bool) {
                self.drive(|core, now| core.set_held(now, tenant, usize::from(engine.0), held));
            }

            fn nap(&self, length: Nanos) -> Option<Nanos> {
                self.wait_for_notice(length).then_some(Nanos::ZERO)
            }

            fn activity(&self, tenant: TenantId, channels: &mut Vec<ChannelActivity>) {
                self.look(|core| core.activity(tenant, channels));
            }

            fn suspend(&self, tenant: TenantId) {
                self.drive(|core, now| core.set_suspended(now, tenant, true));
            }

            fn resume(&self, tenant: TenantId) {
                self.drive(|core, now| core.set_suspended(now, tenant, false));
            }

            fn is_quiet(&self, tenant: TenantId) -> bool {
                self.look(|core| core.is_quiet(tenant))
            }

            fn move_memory(&self, order: MoveOrder) -> Result<(), MoveError> {
                self.drive(|core, _| core.order_move(order))
            }

            fn read_memory_events(&self, events: &mut Vec<MemoryEvent>) {
                if let Some(swap) = self.swap() {
                    swap.log.drain(events);
                }
            }

            fn ring(&self, tenant: TenantId) {
                self.drive(|core, now| core.ring(now, tenant));
            }

            fn set_unwatched(&self, tenant: TenantId, open: bool) {
                self.drive(|core, now| {
                    core.set_unwatched(tenant, open);
                    if open {
                        core.ring(now, tenant);
                    }
                });
            }
        }
    )+};
}

impl_gpu!(SoftGpu, VirtualGpu);
