//! Between the manager and a GPU: reads memory events and carries out the manager's actions.

use turnstile_accounting::{Moment, Nanos, TenantId};

use super::entitlement::{Entitlement, EntitlementError};
use super::manager::{Action, MemoryConfig, MemoryManager};
use turnstile_gpu::{Gpu, MemoryEvent, MoveError, MoveFailure, MoveReport, Order};

/// Tenants to be charged for copies, and tenants with refused allocations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeeperNews {
    /// Bytes copied because of a tenant, and the time that they took.
    pub charged: Vec<(TenantId, u64, Nanos)>,
    /// Bytes of refused allocations.
    pub refused: Vec<(TenantId, u64)>,
}

/// Keeps the memory of one GPU.
#[derive(Debug)]
pub struct MemoryKeeper {
    manager: MemoryManager,
    events: Vec<MemoryEvent>,
    news: KeeperNews,
}

impl MemoryKeeper {
    /// A keeper, if the GPU can move its memory.
    pub fn of(gpu: &dyn Gpu) -> Option<Self> {
        let capabilities = gpu.capabilities();
        let config = MemoryConfig {
            window_bytes: capabilities.move_window_bytes,
            ..MemoryConfig::new(capabilities.memory_bytes, capabilities.host_pool_bytes)
        };
        capabilities.moves_memory().then(|| Self::new(config))
    }

    /// A keeper for one card.
    pub fn new(config: MemoryConfig) -> Self {
        Self {
            manager: MemoryManager::new(config),
            events: Vec::new(),
            news: KeeperNews::default(),
        }
    }

    /// The manager.
    pub const fn manager(&self) -> &MemoryManager {
        &self.manager
    }

    /// The manager, which takes engine time, demand and weights.
    pub const fn manager_mut(&mut self) -> &mut MemoryManager {
        &mut self.manager
    }

    /// Adds a tenant. Call it before the tenant's first allocation.
    ///
    /// # Errors
    /// The manager's.
    pub fn add(
        &mut self,
        tenant: TenantId,
        entitlement: Entitlement,
    ) -> Result<(), EntitlementError> {
        self.manager.add(tenant, entitlement)
    }

    /// Reads the GPU's memory events, then runs the manager and its actions. `admitted` is true for
    /// tenants that only memory may keep from running.
    pub fn step(
        &mut self,
        gpu: &dyn Gpu,
        now: Moment,
        admitted: impl Fn(TenantId) -> bool,
    ) -> &KeeperNews {
        self.news.charged.clear();
        self.news.refused.clear();
        gpu.read_memory_events(&mut self.events);
        for event in self.events.drain(..) {
            match event {
                MemoryEvent::Moved(report) if report.copied_bytes > 0 => {
                    let copied = (report.cause, report.copied_bytes, report.took);
                    self.news.charged.push(copied);
                }
                MemoryEvent::Refused { owner, bytes } => self.news.refused.push((owner, bytes)),
                _ => {}
            }
            self.manager.observe(now, &event);
        }
        for tenant in self.manager.stopping().collect::<Vec<_>>() {
            if gpu.memory(tenant).is_quiet {
                self.manager.quiet(now, tenant);
            }
        }
        for action in self.manager.step(now).to_vec() {
            match action {
                Action::Hold(tenant) => gpu.carry_out(&[Order::Suspend(tenant)]),
                Action::Release(tenant) => {
                    if admitted(tenant) {
                        gpu.carry_out(&[Order::Resume(tenant)]);
                    }
                }
                Action::Move(order) => {
                    if let Err(error) = gpu.move_memory(order.clone()) {
                        if matches!(error, MoveError::MayRun(_)) {
                            // The tenant was resumed, because its suspension could not be kept.
                            gpu.carry_out(&[Order::Suspend(order.owner)]);
                        }
                        self.not_moved(now, &order, error);
                    }
                }
            }
        }
        &self.news
    }

    /// The GPU took nothing of an order: all chunks are where they were.
    fn not_moved(&mut self, now: Moment, order: &turnstile_gpu::MoveOrder, error: MoveError) {
        let failure = match error {
            MoveError::NoSuchTenant(_) => MoveFailure::Gone,
            MoveError::NoRoom(_) => MoveFailure::NoRoom,
            MoveError::Unsupported | MoveError::MayRun(_) => MoveFailure::Copy,
        };
        for chunk in &order.chunks {
            let report = MoveReport {
                owner: order.owner,
                cause: order.cause,
                direction: order.direction,
                chunk: *chunk,
                copied_bytes: 0,
                took: Nanos::ZERO,
                result: Err(failure),
            };
            self.manager.observe(now, &MemoryEvent::Moved(report));
        }
    }
}
