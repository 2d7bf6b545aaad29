//! Memory slots of a VM, tied to their mappings.

use kvm_bindings::{KVM_MEM_READONLY, kvm_userspace_memory_region};
use kvm_ioctls::VmFd;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vm_memory::MmapRegion;

/// A piece of a mapping that is mapped into a guest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// Guest-physical address, a multiple of the page size.
    pub(crate) gpa: u64,
    /// Where the piece begins in the mapping, a multiple of the page size.
    pub(crate) offset: usize,
    /// Bytes, a multiple of the page size, not zero.
    pub(crate) bytes: usize,
    /// Whether the guest's writes trap.
    pub(crate) readonly: bool,
}

/// Some slots of a VM. Each keeps its mapping until the slot is removed. A drop removes all, so
/// that vCPUs which still run reach nothing that is gone.
#[derive(Debug)]
pub(crate) struct Slots {
    vm: Arc<VmFd>,
    mapped: Mutex<BTreeMap<u32, Arc<MmapRegion<()>>>>,
}

impl Slots {
    pub(crate) fn new(vm: Arc<VmFd>) -> Self {
        Self {
            vm,
            mapped: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<MmapRegion<()>>>> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps a piece of `mapping` into the guest as a slot that the VM does not have.
    ///
    /// # Errors
    /// As KVM_SET_USER_MEMORY_REGION; `AlreadyExists` for one of these slots, `InvalidInput` for a
    /// piece that is not within the mapping.
    pub(crate) fn map(
        &self,
        slot: u32,
        mapping: &Arc<MmapRegion<()>>,
        piece: Piece,
    ) -> io::Result<()> {
        let end = piece.offset.checked_add(piece.bytes);
        if piece.bytes == 0 || end.is_none_or(|end| end > mapping.size()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut mapped = self.lock();
        if mapped.contains_key(&slot) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let region = kvm_userspace_memory_region {
            slot,
            flags: if piece.readonly { KVM_MEM_READONLY } else { 0 },
            guest_phys_addr: piece.gpa,
            memory_size: piece.bytes as u64,
            userspace_addr: mapping.as_ptr() as u64 + piece.offset as u64,
        };
        // SAFETY: the range is within `mapping` (checked above), which `mapped` keeps until the
        // slot is removed. It is memory shared with a guest, which this process accesses as
        // volatile only.
        unsafe { self.vm.set_user_memory_region(region) }?;
        mapped.insert(slot, Arc::clone(mapping));
        Ok(())
    }

    /// Removes a slot, if it is one of these. When this has returned, each access of the guest to
    /// its range traps.
    ///
    /// # Errors
    /// As KVM_SET_USER_MEMORY_REGION; the slot is then still there.
    pub(crate) fn unmap(&self, slot: u32) -> io::Result<()> {
        let mut mapped = self.lock();
        if mapped.contains_key(&slot) {
            remove(&self.vm, slot)?;
            mapped.remove(&slot);
        }
        Ok(())
    }
}

fn remove(vm: &VmFd, slot: u32) -> io::Result<()> {
    let region = kvm_userspace_memory_region {
        slot,
        ..Default::default()
    };
    // SAFETY: a size of zero removes the slot; no memory is named.
    unsafe { vm.set_user_memory_region(region) }.map_err(io::Error::from)
}

impl Drop for Slots {
    fn drop(&mut self) {
        for (slot, mapping) in std::mem::take(&mut *self.lock()) {
            if remove(&self.vm, slot).is_err() {
                // The guest still reaches it, so it stays for as long as this process lives.
                std::mem::forget(mapping);
            }
        }
    }
}
