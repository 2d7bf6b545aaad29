//! Calls to VFIO in the kernel that are unsafe. The only place of this backend with `unsafe`.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_PCI_MSIX_IRQ_INDEX,
};
use vfio_ioctls::{VfioContainer, VfioDevice};
use vm_memory::MmapRegion;
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::ioctl::ioctl_with_ref;

/// SOURCE: linux/vfio.h, VFIO_DEVICE_SET_IRQS, `_IO(VFIO_TYPE, VFIO_BASE + 10)`.
const VFIO_DEVICE_SET_IRQS: u64 = 0x3b6e;

/// `struct vfio_irq_set` with one descriptor as its data.
#[repr(C)]
struct OneVector {
    argsz: u32,
    flags: u32,
    index: u32,
    start: u32,
    count: u32,
    fd: RawFd,
}

/// Another descriptor of the device.
///
/// # Errors
/// As dup(2).
pub(super) fn file_of(device: &VfioDevice) -> io::Result<File> {
    // SAFETY: the descriptor is the device's, which is borrowed for the whole call.
    let fd = unsafe { BorrowedFd::borrow_raw(device.as_raw_fd()) };
    Ok(File::from(fd.try_clone_to_owned()?))
}

/// An eventfd as a descriptor.
pub(super) fn borrow(eventfd: &EventFd) -> BorrowedFd<'_> {
    // SAFETY: the descriptor is the eventfd's, which is borrowed for as long as the result.
    unsafe { BorrowedFd::borrow_raw(eventfd.as_raw_fd()) }
}

/// Makes the kernel deliver one MSI-X vector by this eventfd from now on; all vectors are enabled.
///
/// # Errors
/// The kernel's.
pub(super) fn deliver_by(device: &File, vector: u16, eventfd: BorrowedFd<'_>) -> io::Result<()> {
    let set = OneVector {
        // CAST: 24 bytes.
        argsz: size_of::<OneVector>() as u32,
        flags: VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER,
        index: VFIO_PCI_MSIX_IRQ_INDEX,
        start: vector.into(),
        count: 1,
        fd: eventfd.as_raw_fd(),
    };
    // SAFETY: the kernel reads `argsz` bytes of `set`, which is as long and outlives the call. It
    // takes its own reference to the eventfd.
    let rc = unsafe { ioctl_with_ref(device, VFIO_DEVICE_SET_IRQS as _, &set) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Lets the device access this memory.
///
/// # Errors
/// The kernel's.
pub(super) fn map_dma(
    container: &VfioContainer,
    iova: u64,
    memory: &MmapRegion<()>,
) -> io::Result<()> {
    // SAFETY: the range is `memory`'s, which is mapped. It is shared with a guest or a device, and
    // only accessed as volatile. The kernel pins its pages, so that the device uses the same ones
    // even if it is unmapped here.
    unsafe { container.vfio_dma_map(iova, memory.size(), memory.as_ptr()) }
        .map_err(io::Error::other)
}
