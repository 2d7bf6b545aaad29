//! The device through vfio-pci: interrupts as eventfds, and an IOMMU that limits the device to its
//! mapped memory.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use turnstile_abi::pci::VECTORS;
use vfio_bindings::bindings::vfio::{VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX};
use vfio_ioctls::{VfioContainer, VfioDevice, VfioOps};
use vm_memory::{FileOffset, MmapRegion};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::{Dma, GuestError, sys};

/// Start of the device's memory in its address space: any address that the platform does not use
/// itself; those are below 4 GiB.
const DMA_AT: u64 = 1 << 32;

/// A device that vfio-pci has, opened.
pub(crate) struct Vfio {
    // The descriptor before the device, the device before its container.
    file: File,
    device: VfioDevice,
    container: Arc<VfioContainer>,
    vectors: Vec<EventFd>,
    epoll: Epoll,
    interrupts: AtomicU64,
}

impl std::fmt::Debug for Vfio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vfio").finish_non_exhaustive()
    }
}

fn failed<E>(what: &'static str) -> impl FnOnce(E) -> GuestError
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    move |source| GuestError::Vfio {
        what,
        source: io::Error::other(source),
    }
}

impl Vfio {
    /// Opens the device of a folder in /sys/bus/pci/devices.
    ///
    /// # Errors
    /// When VFIO does not give it, or it has no MSI-X.
    pub(crate) fn open(folder: &Path) -> Result<Self, GuestError> {
        let container = VfioContainer::new(None).map_err(failed(
            "opening /dev/vfio/vfio (is the module vfio_iommu_type1 loaded, and may you?)",
        ))?;
        let container = Arc::new(container);
        let ops: Arc<dyn VfioOps> = container.clone();
        let device = VfioDevice::new(folder, ops, false).map_err(failed(
            "opening the device (is access permitted, and does no other process use its IOMMU group?)",
        ))?;
        let file = sys::file_of(&device).map_err(failed("duplicating the device"))?;
        let count = device.get_irq_info(VFIO_PCI_MSIX_IRQ_INDEX);
        let count = count.map_or(0, |irq| irq.count).min(VECTORS.into());
        let vectors = (0..count).map(|_| EventFd::new(EFD_NONBLOCK));
        let vectors: Vec<EventFd> = vectors
            .collect::<Result<_, _>>()
            .map_err(failed("making eventfds"))?;
        let epoll = Epoll::new().map_err(failed("making an epoll"))?;
        for (number, vector) in (0..).zip(&vectors) {
            let event = EpollEvent::new(EventSet::IN, number);
            epoll
                .ctl(ControlOperation::Add, vector.as_raw_fd(), event)
                .map_err(failed("watching an eventfd"))?;
        }
        device
            .enable_msix(vectors.iter().collect())
            .map_err(failed("enabling MSI-X"))?;
        Ok(Self {
            file,
            device,
            container,
            vectors,
            epoll,
            interrupts: AtomicU64::new(0),
        })
    }

    /// The file of the device, and the offset of configuration space in it.
    ///
    /// # Errors
    /// As dup(2).
    pub(crate) fn config(&self) -> Result<(File, u64), GuestError> {
        let file = self.file.try_clone();
        let at = self.device.get_region_offset(VFIO_PCI_CONFIG_REGION_INDEX);
        Ok((file.map_err(failed("duplicating the device"))?, at))
    }

    /// Maps the beginning of a BAR.
    ///
    /// # Errors
    /// When it is not as long, or as mmap(2).
    pub(crate) fn map(&self, bar: u32, bytes: u64) -> Result<MmapRegion<()>, GuestError> {
        if self.device.get_region_size(bar) < bytes {
            let short = io::Error::from(io::ErrorKind::InvalidData);
            return Err(failed("a BAR is too short")(short));
        }
        let file = self.file.try_clone();
        let file = file.map_err(failed("duplicating the device"))?;
        let at = FileOffset::new(file, self.device.get_region_offset(bar));
        // CAST: 64-bit hosts alone.
        MmapRegion::from_file(at, bytes as usize).map_err(failed("mapping a BAR"))
    }

    /// Takes memory and lets the device reach it.
    ///
    /// # Errors
    /// When there are no huge pages, or the kernel does not map them for the device.
    pub(crate) fn memory(&self, bytes: u64) -> Result<Dma, GuestError> {
        let dma = Dma::anywhere(DMA_AT, bytes)?;
        for (iova, page) in dma.pages() {
            sys::map_dma(&self.container, iova, page)
                .map_err(failed("mapping memory for the device"))?;
        }
        Ok(dma)
    }

    /// Sleeps until a new interrupt, or for about `at_most_ns`.
    pub(crate) fn wait(&self, at_most_ns: u64) {
        let timeout_ms = i32::try_from(at_most_ns.div_ceil(1_000_000)).unwrap_or(i32::MAX);
        let mut events = [EpollEvent::default(); VECTORS as usize];
        // A signal may end it early, which is permitted.
        let count = self.epoll.wait(timeout_ms, &mut events).unwrap_or(0);
        for event in &events[..count] {
            // CAST: a number given above.
            let vector = self.vectors.get(event.data() as usize);
            if vector.is_some_and(|vector| vector.read().is_ok()) {
                self.interrupts.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Interrupts seen so far.
    pub(crate) fn interrupts(&self) -> u64 {
        self.interrupts.load(Ordering::Relaxed)
    }
}
