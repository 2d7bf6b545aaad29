//! Calls to VFIO that are unsafe.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use vfio_ioctls::{VfioContainer, VfioDevice};
use vm_memory::MmapRegion;

/// Another descriptor of the device.
///
/// # Errors
/// As dup(2).
pub(crate) fn file_of(device: &VfioDevice) -> io::Result<File> {
    // SAFETY: the descriptor is the device's, which is borrowed for the whole call.
    let fd = unsafe { BorrowedFd::borrow_raw(device.as_raw_fd()) };
    fd.try_clone_to_owned().map(File::from)
}

/// Lets the device reach this memory at `iova`.
///
/// # Errors
/// The kernel's.
pub(crate) fn map_dma(
    container: &VfioContainer,
    iova: u64,
    memory: &MmapRegion<()>,
) -> io::Result<()> {
    // SAFETY: the range is `memory`'s, which is mapped, and which this program accesses as volatile
    // only. The kernel pins its pages, so that the device reaches no others if it is unmapped here.
    let mapped = unsafe { container.vfio_dma_map(iova, memory.size(), memory.as_ptr()) };
    mapped.map_err(io::Error::other)
}
