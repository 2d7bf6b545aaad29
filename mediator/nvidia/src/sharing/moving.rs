//! Memory of tenants beyond what the card has: the mover, and what each tenant has.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use turnstile_accounting::TenantId;
use turnstile_vmm::wire::ObjectChange;

use super::{NvidiaError, Shared, lock};
use crate::handles::is_channel;
use crate::hold::Channel;
use crate::mover::{Mover, MoverConfig};
use crate::sets::{Served, Sets};
use crate::worker::Worker;
use turnstile_gpu::{Allocation, Refusal};
use turnstile_host::process::Identity;

/// Time for which a request that needs the GPU waits until its VM may run. TIMEOUT: some turns of
/// seconds.
const TURN_LIMIT: Duration = Duration::from_secs(60);
/// GPU memory left to contexts by default: about 520 MiB each (measured), of 15 VMs.
const CONTEXTS_BYTES: u64 = 8 << 30;

/// How memory of VMs is to move.
pub struct Moving {
    /// Bytes that the host takes in.
    pub pool_bytes: u64,
    /// Bytes of the card that VMs have together; by default all but 8 GiB.
    pub card_bytes: Option<u64>,
    /// Starts a process that ends up in [`crate::mover::run`].
    pub mover: Box<dyn Fn() -> Command + Send + Sync>,
}

impl std::fmt::Debug for Moving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Moving").finish_non_exhaustive()
    }
}

impl Moving {
    /// Bytes of a card of so many that VMs have.
    pub(super) fn card_bytes(&self, all_bytes: u64) -> u64 {
        let most = all_bytes.saturating_sub(CONTEXTS_BYTES);
        self.card_bytes.map_or(most, |bytes| bytes.min(all_bytes))
    }

    /// Starts the mover.
    pub(super) fn start(
        self,
        device: u32,
        card_bytes: u64,
        shared: &Arc<Shared>,
    ) -> Result<Arc<Sets>, NvidiaError> {
        let config = MoverConfig::new(device, self.pool_bytes);
        let mover = Mover::start(config, self.mover)?;
        let weak: Weak<Shared> = Arc::downgrade(shared);
        let pin_owner = move |tenant, on| {
            let shared = weak.upgrade().ok_or("the GPU is given up")?;
            shared.executor.pin(tenant, on)
        };
        let (pool_bytes, pin_owner) = (self.pool_bytes, Box::new(pin_owner));
        let sets = Sets::new(Arc::new(mover), pin_owner, card_bytes, pool_bytes);
        Ok(Arc::new(sets.map_err(NvidiaError::Thread)?))
    }
}

/// A request that needs the GPU is served: its VM is not held until this is dropped.
pub(super) struct Pass<'a> {
    shared: &'a Shared,
    tenant: TenantId,
    served: Option<Served<'a>>,
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.served.take().is_some() {
            self.shared.executor.request_done(self.tenant);
        }
    }
}

/// Whether a process began before this one.
fn was_before(pid: u32) -> bool {
    static OWN: OnceLock<Option<u64>> = OnceLock::new();
    let began = |pid| Identity::of(pid).map(|process| process.started);
    let own = *OWN.get_or_init(|| began(std::process::id()));
    own.zip(began(pid)).is_some_and(|(own, began)| began < own)
}

impl Shared {
    /// The daemon ends. Of each program with a process that lacks memory, the channels of the other
    /// processes; the process that lacks memory ends itself.
    pub(super) fn able_channels(&self) -> BTreeMap<TenantId, Vec<Channel>> {
        let lacking = self.programs.lacking();
        let probe = lock(&self.probe);
        let able = |(tenant, pids)| (tenant, probe.processes.all_channels_but(tenant, &pids));
        lacking.into_iter().map(able).collect()
    }

    /// Objects of a process that is older than this daemon: a daemon that was killed may have left
    /// its channels suspended.
    pub(super) fn inherit(&self, tenant: TenantId, pid: u32, changes: &[ObjectChange]) {
        let made = changes.iter().filter_map(|change| match change {
            ObjectChange::Made(object) if is_channel(object.class) => Some(Channel {
                client: object.client,
                handle: object.handle,
            }),
            _ => None,
        });
        let channels: Vec<Channel> = made.collect();
        if self.sets().is_some() && !channels.is_empty() && was_before(pid) {
            self.executor.inherit(tenant, channels);
        }
    }

    /// Where memory is, if it moves.
    pub(super) fn sets(&self) -> Option<&Arc<Sets>> {
        self.sets.get()
    }

    /// A VM's worker has been started: its memory moves from now on.
    pub(super) fn moves(&self, tenant: TenantId, worker: &Arc<Worker>) {
        let Some(sets) = self.sets() else { return };
        let weak = Arc::downgrade(sets);
        worker.remap_from(move || {
            let sets = weak.upgrade();
            sets.map_or_else(|| Ok(Vec::new()), |sets| sets.again(tenant))
        });
        sets.add(tenant, worker.clone());
    }

    /// A request of a VM needs the GPU: waits for the VM's turn, where memory moves.
    pub(super) fn pass(&self, tenant: TenantId) -> Result<Pass<'_>, Refusal> {
        let served = self.sets().map(|sets| sets.serve(tenant, TURN_LIMIT));
        Ok(Pass {
            shared: self,
            tenant,
            served: served.transpose()?,
        })
    }

    /// Memory for a VM, where it moves.
    pub(super) fn allocate_moving(
        &self,
        sets: &Sets,
        tenant: TenantId,
        bytes: u64,
    ) -> Result<Allocation, Refusal> {
        let worker = self.vms.of(tenant)?;
        // Another process is to be started: that needs the GPU.
        let _pass = worker.is_lost().then(|| self.pass(tenant)).transpose()?;
        let allocation = worker.reserve(bytes)?;
        let placed = sets.allocate(tenant, allocation.va, allocation.bytes);
        if placed.is_err() {
            worker.unreserve(allocation.va);
        }
        placed.map(|()| allocation)
    }

    /// Takes it back, wherever it is.
    pub(super) fn free_moving(
        &self,
        sets: &Sets,
        tenant: TenantId,
        va: u64,
    ) -> Result<(), Refusal> {
        let worker = self.vms.of(tenant)?;
        let bytes = worker.reserved_bytes(va)?;
        let _pass = worker.is_lost().then(|| self.pass(tenant)).transpose()?;
        sets.free(tenant, va, bytes, |places| worker.drop_places(places))?;
        worker.unreserve(va);
        Ok(())
    }
}
