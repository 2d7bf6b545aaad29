//! The device in a VM of KVM: its memory as slots, its doorbell pages exchanged under running
//! vCPUs, its interrupts as irqfds.
//!
//! ```text
//!   KvmVm::new         a VM of the VMM's
//!   KvmVm::map_memory  its memory, if the VMM has no slots of its own
//!   KvmVm::attach      what the daemon gave, and the Place of it -> KvmDevice, KvmControl
//! ```
//!
//! In: the VMM's `VmFd`, guest addresses, and numbers of slots and interrupt lines. Out: what
//! [`crate::attach`] gives any VMM. The VMM runs its vCPUs, and passes on what traps.
//!
//! Invariants: a slot never outlives its mapping; no irqfd outlives the device. The device leaves
//! the VM when its [`KvmDevice`] and its [`KvmControl`] are dropped.

mod doorbells;
mod interrupts;

pub use doorbells::DoorbellMap;
pub use interrupts::IrqRouter;
pub use {kvm_bindings, kvm_ioctls};

use crate::attach::{Attached, Control, Welcome};
use crate::device::bar_bytes;
use crate::sys::fd::cannot_shrink;
use crate::sys::slots::{Piece, Slots};
use interrupts::Routes;
use kvm_bindings::{
    KVM_CAP_DISABLE_QUIRKS2, KVM_X86_QUIRK_SLOT_ZAP_ALL, kvm_enable_cap, kvm_irq_routing_entry,
};
use kvm_ioctls::{Cap, Kvm, VmFd};
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use turnstile_abi::pci::{BAR_APERTURE, BAR_DOORBELLS, BAR_REGS};
use turnstile_abi::regs;
use vm_memory::{FileOffset, MmapRegion};

/// A VM's device under KVM.
pub type KvmDevice = Attached<DoorbellMap, IrqRouter>;
/// The daemon's frames of such a device.
pub type KvmControl = Control<DoorbellMap, IrqRouter>;

/// Why a VM of KVM has no device, or no memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KvmError {
    /// This KVM lacks a capability.
    #[error("KVM has no {0}")]
    Lacks(&'static str),
    /// A call to KVM failed.
    #[error("KVM: {what}")]
    Call {
        /// During what.
        what: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Guest memory is not in a file that it can be shared by.
    #[error("Guest memory: {0}")]
    Memory(&'static str),
    /// A memory slot could not be made.
    #[error("Memory slot {slot} of the VM, for {what}")]
    Slot {
        /// Its number.
        slot: u32,
        /// What it is for.
        what: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Memory could not be mapped.
    #[error("Mapping guest memory")]
    Mapping(#[source] io::Error),
    /// The doorbell pages could not be mapped.
    #[error("Mapping the doorbell pages")]
    Window(#[source] io::Error),
}

/// Maps a whole mapping into the guest at `gpa`, as slot `slot`.
fn map_whole(
    slots: &Slots,
    (what, slot): (&'static str, u32),
    mapping: &Arc<MmapRegion<()>>,
    gpa: u64,
    readonly: bool,
) -> Result<(), KvmError> {
    let piece = Piece {
        gpa,
        offset: 0,
        bytes: mapping.size(),
        readonly,
    };
    let mapped = slots.map(slot, mapping, piece);
    mapped.map_err(|source| KvmError::Slot { slot, what, source })
}

/// Where the device is in a VM: guest addresses, and numbers that no other device of the VM uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Guest-physical address of BAR 0, below 4 GiB, a multiple of its size
    /// ([`bar_bytes`](crate::device::bar_bytes)).
    pub regs_gpa: u64,
    /// The same of BAR 1.
    pub doorbells_gpa: u64,
    /// The same of BAR 2, which may be above 4 GiB.
    pub aperture_gpa: u64,
    /// First of its memory slots: of three, or of two and one per channel if every write is to trap
    /// ([`Welcome::trap_every_write`]).
    pub first_slot: u32,
    /// First of its interrupt lines, one per vector: above the interrupt controller's pins.
    pub first_gsi: u32,
}

impl Place {
    /// The BAR that a trapped access to guest-physical address `gpa` reaches, and the offset in it.
    /// Of the aperture nothing traps.
    pub fn bar(&self, gpa: u64) -> Option<(usize, u64)> {
        let bars = [
            (BAR_REGS, self.regs_gpa),
            (BAR_DOORBELLS, self.doorbells_gpa),
        ];
        bars.into_iter().find_map(|(bar, base)| {
            let offset = gpa.checked_sub(base)?;
            (offset < bar_bytes(bar, 0)).then_some((bar, offset))
        })
    }
}

/// A VM of KVM that can have the device.
#[derive(Debug)]
pub struct KvmVm {
    memory: Slots,
    routes: Mutex<Routes>,
    vm: Arc<VmFd>,
}

impl KvmVm {
    /// Prepares a VM of `kvm`, before it has memory.
    ///
    /// Where KVM has a quirk by which the removal of one slot drops the translations of the whole
    /// VM, it is disabled. With it, a guest with 64 MiB in use was 370 times slower when a slot was
    /// removed and added every 2 ms.
    ///
    /// # Errors
    /// If KVM lacks what the device needs.
    pub fn new(kvm: &Kvm, vm: Arc<VmFd>) -> Result<Self, KvmError> {
        for (cap, name) in [
            (Cap::UserMemory, "memory slots"),
            (Cap::ReadonlyMem, "read-only memory slots"),
            (Cap::Irqfd, "irqfds"),
            (Cap::IrqRouting, "interrupt routes"),
        ] {
            if !kvm.check_extension(cap) {
                return Err(KvmError::Lacks(name));
            }
        }
        let known = kvm.check_extension_raw(KVM_CAP_DISABLE_QUIRKS2.into());
        // A kernel that does not know the quirk has nothing to disable.
        if known & KVM_X86_QUIRK_SLOT_ZAP_ALL.cast_signed() != 0 {
            let mut quirks = kvm_enable_cap {
                cap: KVM_CAP_DISABLE_QUIRKS2,
                ..Default::default()
            };
            quirks.args[0] = KVM_X86_QUIRK_SLOT_ZAP_ALL.into();
            vm.enable_cap(&quirks).map_err(|source| KvmError::Call {
                what: "disabling a quirk",
                source: source.into(),
            })?;
        }
        Ok(Self {
            memory: Slots::new(Arc::clone(&vm)),
            routes: Mutex::default(),
            vm,
        })
    }

    /// The VM.
    pub const fn vm(&self) -> &Arc<VmFd> {
        &self.vm
    }

    /// Maps the first `bytes` of `file` into the guest at `gpa`, as slot `slot`.
    ///
    /// # Errors
    /// If the file can shrink or is shorter, or KVM refuses the slot.
    pub fn map_memory(&self, slot: u32, gpa: u64, file: &File, bytes: u64) -> Result<(), KvmError> {
        if !cannot_shrink(file) {
            return Err(KvmError::Memory("its file is not sealed against shrinking"));
        }
        if file.metadata().map_err(KvmError::Mapping)?.len() < bytes {
            return Err(KvmError::Memory("its file is too short"));
        }
        let file = FileOffset::new(file.try_clone().map_err(KvmError::Mapping)?, 0);
        let mapping = MmapRegion::from_file(file, bytes as usize)
            .map_err(|error| KvmError::Mapping(io::Error::other(error)))?;
        let what = ("guest memory", slot);
        map_whole(&self.memory, what, &Arc::new(mapping), gpa, false)
    }

    fn routes(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the interrupt routes of the VMM's other devices. KVM has one table for a VM: a VMM with
    /// other routes sets them here, and the device's stay.
    ///
    /// # Errors
    /// If KVM refuses the routes.
    pub fn set_other_routes(&self, others: Vec<kvm_irq_routing_entry>) -> Result<(), KvmError> {
        let mut routes = self.routes();
        let before = std::mem::replace(&mut routes.others, others);
        routes.apply(&self.vm).map_err(|source| {
            routes.others = before;
            KvmError::Call {
                what: "setting interrupt routes",
                source,
            }
        })
    }

    /// Makes the device of a VM that the daemon has welcomed: status page, aperture and doorbells
    /// are in the guest when this returns, and the BARs have their addresses. The VM has an
    /// interrupt controller already.
    ///
    /// # Errors
    /// If KVM refuses a slot.
    pub fn attach(
        self: &Arc<Self>,
        welcome: Welcome,
        place: Place,
    ) -> Result<(Arc<KvmDevice>, KvmControl), KvmError> {
        let slots = Slots::new(Arc::clone(&self.vm));
        let status = ("the status page", place.first_slot);
        let status_gpa = place.regs_gpa + regs::status::PAGE;
        map_whole(&slots, status, &welcome.status, status_gpa, true)?;
        let aperture = ("the aperture", place.first_slot + 1);
        let aperture_gpa = place.aperture_gpa;
        map_whole(&slots, aperture, &welcome.aperture, aperture_gpa, false)?;
        let (gpa, slot) = (place.doorbells_gpa, place.first_slot + 2);
        let doorbells = if welcome.trap_every_write {
            DoorbellMap::exchanging_slots(slots, &welcome.pages, gpa, slot)?
        } else {
            let pages = (&welcome.pages, &welcome.parking);
            DoorbellMap::exchanging_pages(slots, pages, gpa, slot)?
        };
        let router = IrqRouter::new(self, &welcome.interrupts, place.first_gsi);
        let (device, control) = welcome.attach(doorbells, router);
        let mut gpu = device.gpu();
        gpu.config().place(BAR_REGS, place.regs_gpa);
        gpu.config().place(BAR_DOORBELLS, place.doorbells_gpa);
        gpu.config().place(BAR_APERTURE, place.aperture_gpa);
        drop(gpu);
        Ok((device, control))
    }
}
