//! Between the manager and a GPU: reads what happened, carries out what is decided.

use turnstile_accounting::{Moment, Nanos, TenantId};

use super::entitlement::{Entitlement, EntitlementError};
use super::manager::{Action, MemoryConfig, MemoryManager};
use turnstile_gpu::{Gpu, MemoryEvent, MoveError, MoveFailure, MoveReport};

/// Who is to be charged for copies, and whose allocations were refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeeperNews {
    /// Bytes copied because of a tenant, and the time that they took.
    pub charged: Vec<(TenantId, u64, Nanos)>,
    /// Bytes asked for in vain.
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
    /// A keeper, if the GPU's memory moves.
    pub fn of(gpu: &dyn Gpu) -> Option<Self> {
        let capabilities = gpu.capabilities();
        let config = MemoryConfig {
            window_bytes: gpu.move_window_bytes(),
            ..MemoryConfig::new(capabilities.memory_bytes, capabilities.host_pool_bytes)
        };
        capabilities.movable_memory.then(|| Self::new(config))
    }

    /// A keeper of a card whose memory moves.
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

    /// The manager, to be told of engine time, wishes and weights.
    pub const fn manager_mut(&mut self) -> &mut MemoryManager {
        &mut self.manager
    }

    /// A tenant appears. Tell it before its first allocation.
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

    /// Looks at what happened and has done what is to be done. `admitted` says whom nothing but memory holds back.
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
            if gpu.is_quiet(tenant) {
                self.manager.quiet(now, tenant);
            }
        }
        for action in self.manager.step(now).to_vec() {
            match action {
                Action::Hold(tenant) => gpu.suspend(tenant),
                Action::Release(tenant) => {
                    if admitted(tenant) {
                        gpu.resume(tenant);
                    }
                }
                Action::Move(order) => {
                    if let Err(error) = gpu.move_memory(order.clone()) {
                        if matches!(error, MoveError::MayRun(_)) {
                            // It was let go, because it could not be held on to.
                            gpu.suspend(order.owner);
                        }
                        self.not_moved(now, &order, error);
                    }
                }
            }
        }
        &self.news
    }

    /// The GPU took nothing of an order: all is where it was.
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
