//! The traits of [`Gpu`] over the core: the same for real and for virtual time.

pub(crate) mod realtime;
pub(crate) mod virtual_time;

use std::fs::File;
use std::sync::Arc;

use turnstile_abi::ErrorCode;
use turnstile_accounting::{EngineId, Moment, Nanos, TenantId};

use self::realtime::SoftGpu;
use self::virtual_time::VirtualGpu;
use super::address_space::AddressSpace;
use super::address_space::swap::Swap;
use super::config::SoftConfig;
use super::core::{Core, demand, moves};
use super::execute::context::Context;
use super::memory::CardMemory;
use super::registers::Registers;
use turnstile_gpu::{
    Allocation, Ask, Capabilities, ChannelActivity, ChannelConfig, Channels, Contexts,
    DoorbellChange, EngineReading, EngineStatus, Gpu, Memory, MemoryEvent, Metering, MoveError,
    MoveOrder, Order, Refusal, Report, Suspend, Suspension, TenantMemory, TenantResources,
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
    /// The time within an `act` that began at `now`.
    fn later(&self, now: Moment) -> Moment;
    /// Lets `read` read the core.
    fn with_core<R>(&self, read: impl FnOnce(&mut Core) -> R) -> R;

    /// Waits for `length`, or until the core has a notice or the thread is woken; whether it had
    /// one.
    fn wait_for_notice(&self, length: Nanos) -> bool;

    /// As [`Gpu::answers`].
    fn answers(&self) -> Result<(), String> {
        Ok(())
    }

    /// As [`Gpu::take_back`].
    fn take_back(&self) -> Result<Contexts, String> {
        Ok(Contexts::Kept)
    }

    /// The context of a tenant.
    fn context(&self, tenant: TenantId) -> Result<Arc<Context>, Refusal> {
        self.with_core(|core| core.context(tenant))
    }
}

/// The traits are another crate's, so that they cannot be implemented for every driver at once.
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
                    worked: true,
                    multiprocessors: config.multiprocessors,
                    shared_bytes_max: config.shared_bytes_max,
                    memory_bytes: config.memory_bytes,
                    memory_held: true,
                    host_pool_bytes: self.swap().map_or(0, |swap| swap.pool.bytes()),
                    move_window_bytes: self.swap().map_or(0, |_| 64 << 20),
                    follows_guest_memory: true,
                    software: true,
                    aperture: self.swap().is_none(),
                }
            }

            fn report(&self) -> Report {
                Report {
                    faults: self.with_core(|core| core.faults()),
                    ..Report::default()
                }
            }

            fn ask(&self, ask: Ask) -> Result<Contexts, String> {
                match ask {
                    Ask::Answer => Driver::answers(self).map(|()| Contexts::Kept),
                    Ask::TakeBack => Driver::take_back(self),
                }
            }
        }

        impl Channels for $driver {
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
                self.with_core(|core| core.add_tenant(Arc::new(context), resources))?;
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

            fn doorbells_changed(&self, tenant: TenantId, change: DoorbellChange) {
                self.drive(|core, now| {
                    if let DoorbellChange::AnyOpen(open) = change {
                        core.set_unwatched(tenant, open);
                    }
                    if change != DoorbellChange::AnyOpen(false) {
                        core.ring(tenant, || self.later(now));
                    }
                });
            }
        }

        impl Suspension for $driver {
            fn carry_out(&self, orders: &[Order]) {
                for order in orders {
                    self.drive(|core, now| match *order {
                        Order::Hold(tenant, engine) => core.set_held(now, tenant, engine, true),
                        Order::Release(tenant, engine) => core.set_held(now, tenant, engine, false),
                        Order::Suspend(tenant) => core.set_suspended(now, tenant, true),
                        Order::Resume(tenant) => core.set_suspended(now, tenant, false),
                        // The dispatcher serves channels in turn.
                        Order::Slice(..) => {}
                    });
                }
            }
        }

        impl Memory for $driver {
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
                if self.with_core(|core| core.in_use(tenant, &range)) {
                    return Err(ErrorCode::AllocationInUse.into());
                }
                context.space.free(va)?;
                if self.swap().is_some() {
                    // It may have been what its tenant waited for.
                    self.drive(|core, _| core.settle_limbo(tenant));
                }
                Ok(())
            }

            fn memory(&self, tenant: TenantId) -> TenantMemory {
                let context = self.context(tenant);
                context.map_or_else(|_| TenantMemory::default(), |context| TenantMemory {
                    free_bytes: context.space.free_bytes(),
                    held_bytes: context.space.held_bytes(),
                    is_quiet: self.with_core(|core| core.is_quiet(tenant)),
                })
            }

            fn move_memory(&self, order: MoveOrder) -> Result<(), MoveError> {
                self.drive(|core, _| moves::order(core, order))
            }

            fn read_memory_events(&self, events: &mut Vec<MemoryEvent>) {
                if let Some(swap) = self.swap() {
                    swap.log.drain(events);
                }
            }
        }

        impl Metering for $driver {
            fn now(&self) -> Moment {
                self.clock()
            }

            fn engine_status(&self, engine: EngineId) -> EngineStatus {
                EngineStatus {
                    running: self.registers().running(usize::from(engine.0)),
                }
            }

            fn activity(&self, tenant: TenantId, channels: &mut Vec<ChannelActivity>) {
                self.with_core(|core| core.activity(tenant, channels));
            }

            fn read(&self, reading: &mut EngineReading) {
                self.with_core(|core| {
                    demand::read(core, &mut reading.demand);
                    core.read_events(&mut reading.switches);
                    reading.add_copied(std::mem::take(&mut core.copied));
                });
            }

            fn wait(&self, length: Nanos) -> bool {
                self.wait_for_notice(length)
            }
        }
    )+};
}

impl_gpu!(SoftGpu, VirtualGpu);
