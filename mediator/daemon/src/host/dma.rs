//! Guest memory that is mapped and unmapped while a VM runs: behind an IOMMU of the guest, or when
//! firmware moves it. Each such VM has a thread for it, as mapping gigabytes takes milliseconds.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread;

use turnstile_accounting::TenantId;
use turnstile_vmm::wire::{Region, ToVmm};
use vm_memory::GuestAddress;

use super::Host;
use super::peer::Tenant;
use crate::error::{HostError, chain};
use crate::tenant::guest_memory::{self, GuestMemoryError};
use turnstile_gpu::GuestMemory;

/// A change of a VM's memory.
#[derive(Debug)]
pub(crate) enum Change {
    Map { region: Region, fd: OwnedFd },
    Unmap { gpa: u64, bytes: u64 },
}

/// Takes a VM's changes.
#[derive(Debug)]
pub(crate) struct MemoryDesk {
    guest: Arc<GuestMemory>,
    /// To the thread, once there is one; it ends when this is dropped.
    changes: Option<SyncSender<(u64, Change)>>,
}

impl MemoryDesk {
    pub(crate) const fn new(guest: Arc<GuestMemory>) -> Self {
        let changes = None;
        Self { guest, changes }
    }
}

impl Host {
    /// A VM's memory at its start.
    pub(crate) fn guest_memory(
        &self,
        fd: Option<OwnedFd>,
        regions: &[Region],
    ) -> Result<Arc<GuestMemory>, HostError> {
        if regions.is_empty() && !self.gpu().capabilities().follows_guest_memory {
            return Err(HostError::MemoryOnce);
        }
        Ok(Arc::new(guest_memory::map(fd, regions)?))
    }

    /// Changes a VM's memory. Its VMM gets the answer when that is done. False if the VMM broke the
    /// rules.
    pub(crate) fn change_memory(
        self: &Arc<Self>,
        tenant: TenantId,
        id: u64,
        change: Change,
    ) -> bool {
        let follows = self.gpu().capabilities().follows_guest_memory;
        let mut state = self.lock();
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
            desk.changes = start(self, tenant, desk.guest.clone()).ok();
        }
        let Some(changes) = &desk.changes else {
            return false;
        };
        match changes.try_send((id, change)) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }

    fn memory_changed(&self, tenant: TenantId, id: u64, refused: Option<String>) {
        let mut state = self.lock();
        if let Some((_, vmm)) = state.tenants.get_mut(&tenant).and_then(Tenant::vm) {
            vmm.send(&ToVmm::MemoryDone { id, refused });
        }
    }
}

fn start(
    host: &Arc<Host>,
    tenant: TenantId,
    guest: Arc<GuestMemory>,
) -> std::io::Result<SyncSender<(u64, Change)>> {
    // One under way, and one that waits for it.
    let (sender, changes) = sync_channel(1);
    let host = Arc::downgrade(host);
    thread::Builder::new()
        .name(format!("turnstile-mem{}", tenant.0))
        .spawn(move || {
            while let Ok((id, change)) = changes.recv() {
                let refused = perform(&guest, change).err().map(|error| chain(&error));
                let Some(host) = host.upgrade() else { return };
                host.memory_changed(tenant, id, refused);
            }
        })?;
    Ok(sender)
}

fn perform(guest: &GuestMemory, change: Change) -> Result<(), GuestMemoryError> {
    match change {
        Change::Map { region, fd } => guest_memory::add(guest, fd, region),
        Change::Unmap { gpa, bytes } => guest
            .remove(GuestAddress(gpa), bytes)
            .map_err(GuestMemoryError::Overlap),
    }
}
