//! Guest memory that is mapped and unmapped while a VM runs: behind an IOMMU of the guest, or when
//! firmware moves it. Each such VM has a thread for it, as mapping gigabytes takes milliseconds.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use turnstile_accounting::TenantId;
use turnstile_vmm::wire::{Region, ToVmm};
use vm_memory::GuestAddress;

use super::Host;
use super::peer::Tenant;
use crate::error::{HostError, chain};
use crate::limits::{Held, Holder, Limits, Resource};
use crate::tenant::guest_memory::{self, GuestMemoryError};
use turnstile_gpu::GuestMemory;

/// A change of a VM's memory.
#[derive(Debug)]
pub(crate) enum Change {
    Map { region: Region, fd: OwnedFd },
    Unmap { gpa: u64, bytes: u64 },
}

/// A VM's memory, and what it takes of the daemon's address space.
#[derive(Debug)]
pub(crate) struct Mapped {
    guest: Arc<GuestMemory>,
    limits: Arc<Limits>,
    holder: Holder,
    /// By guest-physical address.
    held: Mutex<BTreeMap<u64, Held>>,
}

/// Takes a VM's changes.
#[derive(Debug)]
pub(crate) struct MemoryDesk {
    mapped: Arc<Mapped>,
    /// To the thread, once there is one; it ends when this is dropped.
    changes: Option<SyncSender<(u64, Change, Held)>>,
}

impl MemoryDesk {
    pub(crate) fn new(mapped: Mapped) -> Self {
        let mapped = Arc::new(mapped);
        let changes = None;
        Self { mapped, changes }
    }
}

impl Mapped {
    /// Maps a VM's memory at its start.
    pub(crate) fn map(
        fd: Option<OwnedFd>,
        regions: &[Region],
        limits: Arc<Limits>,
        holder: Holder,
    ) -> Result<Self, GuestMemoryError> {
        let take = |region: &Region| {
            let taken = limits.take(Resource::GuestMemory, &holder, region.bytes);
            Ok((region.gpa, taken?))
        };
        let held: Result<BTreeMap<u64, Held>, GuestMemoryError> =
            regions.iter().map(take).collect();
        let held = Mutex::new(held?);
        Ok(Self {
            guest: Arc::new(guest_memory::map(fd, regions)?),
            limits,
            holder,
            held,
        })
    }

    /// The memory.
    pub(crate) const fn guest(&self) -> &Arc<GuestMemory> {
        &self.guest
    }

    fn perform(&self, change: Change) -> Result<(), GuestMemoryError> {
        let held = || self.held.lock().unwrap_or_else(PoisonError::into_inner);
        match change {
            Change::Map { region, fd } => {
                let taken = self
                    .limits
                    .take(Resource::GuestMemory, &self.holder, region.bytes)?;
                guest_memory::add(&self.guest, fd, region)?;
                held().insert(region.gpa, taken);
            }
            Change::Unmap { gpa, bytes } => {
                let removed = self.guest.remove(GuestAddress(gpa), bytes);
                removed.map_err(GuestMemoryError::Overlap)?;
                held().remove(&gpa);
            }
        }
        Ok(())
    }
}

/// A VM's memory at its start.
pub(crate) fn guest_memory(
    host: &Host,
    fd: Option<OwnedFd>,
    regions: &[Region],
    holder: Holder,
) -> Result<Mapped, HostError> {
    if regions.is_empty() && !host.gpu().capabilities().follows_guest_memory {
        return Err(HostError::MemoryOnce);
    }
    check_pages(host, fd.as_ref())?;
    Ok(Mapped::map(fd, regions, host.limits().clone(), holder)?)
}

/// Changes a VM's memory. Its VMM gets the answer when that is done. False if the VMM broke the
/// rules.
pub(crate) fn change_memory(host: &Arc<Host>, tenant: TenantId, id: u64, change: Change) -> bool {
    let follows = host.gpu().capabilities().follows_guest_memory;
    let mut state = host.lock();
    let Some((vm, vmm)) = state.tenants.get_mut(&tenant).and_then(Tenant::vm) else {
        return true;
    };
    if !follows {
        let refused = Some(HostError::MemoryOnce.to_string());
        vmm.send(&ToVmm::MemoryDone { id, refused });
        return true;
    }
    let desk = &mut vm.desk;
    if desk.changes.is_none() {
        desk.changes = start(host, tenant, desk.mapped.clone()).ok();
    }
    let Some(changes) = &desk.changes else {
        return false;
    };
    let holder = &desk.mapped.holder;
    let Ok(held) = host.limits().take(Resource::Requests, holder, 1) else {
        return false;
    };
    match changes.try_send((id, change, held)) {
        Ok(()) => true,
        Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
    }
}

fn memory_changed(host: &Host, tenant: TenantId, id: u64, refused: Option<String>) {
    let mut state = host.lock();
    if let Some((_, vmm)) = state.tenants.get_mut(&tenant).and_then(Tenant::vm) {
        vmm.send(&ToVmm::MemoryDone { id, refused });
    }
}

/// Refuses a memory file that lacks pages, where the configuration has it so.
fn check_pages(host: &Host, fd: Option<&OwnedFd>) -> Result<(), GuestMemoryError> {
    match fd.filter(|_| host.config.preallocated_memory) {
        Some(fd) => guest_memory::is_allocated(fd),
        None => Ok(()),
    }
}

fn start(
    host: &Arc<Host>,
    tenant: TenantId,
    mapped: Arc<Mapped>,
) -> std::io::Result<SyncSender<(u64, Change, Held)>> {
    // One under way, and one that waits for it.
    let (sender, changes) = sync_channel(1);
    let host = Arc::downgrade(host);
    thread::Builder::new()
        .name(format!("turnstile-mem{}", tenant.0))
        .spawn(move || {
            while let Ok((id, change, _held)) = changes.recv() {
                let Some(host) = host.upgrade() else { return };
                let fd = match &change {
                    Change::Map { fd, .. } => Some(fd),
                    Change::Unmap { .. } => None,
                };
                let changed = check_pages(&host, fd).and_then(|()| mapped.perform(change));
                let refused = changed.err().map(|error| chain(&error));
                memory_changed(&host, tenant, id, refused);
            }
        })?;
    Ok(sender)
}
