//! Memory slots of a VM, tied to their mappings.

use kvm_bindings::{KVM_MEM_READONLY, kvm_userspace_memory_region};
use kvm_ioctls::VmFd;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use vm_memory::MmapRegion;

/// A piece of a mapping that is mapped into a guest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// Number of the slot.
    pub(crate) slot: u32,
    /// Guest-physical address, a multiple of the page size.
    pub(crate) gpa: u64,
    /// Where the piece begins in the mapping, a multiple of the page size.
    pub(crate) offset: usize,
    /// Bytes, a multiple of the page size.
    pub(crate) bytes: usize,
    /// Whether the guest's writes trap.
    pub(crate) readonly: bool,
}

/// A VM and all mappings that were ever mapped into it. They live as long as this value, so a
/// thread that runs the VM's vCPUs must keep it.
#[derive(Debug)]
pub(crate) struct SlottedVm {
    // Dropped first: no slot outlives its mapping.
    vm: VmFd,
    mappings: Mutex<Vec<Arc<MmapRegion<()>>>>,
}

impl SlottedVm {
    pub(crate) fn new(vm: VmFd) -> Self {
        Self {
            vm,
            mappings: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn vm(&self) -> &VmFd {
        &self.vm
    }

    /// Maps a piece of `mapping` into the guest.
    ///
    /// # Errors
    /// As KVM_SET_USER_MEMORY_REGION; `InvalidInput` for a piece that is not within the mapping.
    pub(crate) fn map(&self, mapping: &Arc<MmapRegion<()>>, piece: Piece) -> io::Result<()> {
        if piece
            .offset
            .checked_add(piece.bytes)
            .is_none_or(|end| end > mapping.size())
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        {
            let mut kept = self.mappings.lock().unwrap_or_else(PoisonError::into_inner);
            if !kept.iter().any(|known| Arc::ptr_eq(known, mapping)) {
                kept.push(Arc::clone(mapping));
            }
        }
        let region = kvm_userspace_memory_region {
            slot: piece.slot,
            flags: if piece.readonly { KVM_MEM_READONLY } else { 0 },
            guest_phys_addr: piece.gpa,
            memory_size: piece.bytes as u64,
            userspace_addr: mapping.as_ptr() as u64 + piece.offset as u64,
        };
        // SAFETY: the range is within `mapping` (checked above), which `self.mappings` keeps as
        // long as the VM exists. It is memory shared with a guest, which this process accesses as
        // volatile only.
        unsafe { self.vm.set_user_memory_region(region) }.map_err(io::Error::from)
    }
}
