//! VFIO in the kernel: a device that is bound to vfio-pci, in a container of its own.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use turnstile_abi::physical::VECTORS;
use vfio_bindings::bindings::vfio::{
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX, VFIO_REGION_INFO_FLAG_MMAP,
};
use vfio_ioctls::{VfioContainer, VfioDevice, VfioOps};
use vm_memory::MmapRegion;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use super::bus::{Bus, BusError, Region, RegionFile};
use super::sys;

/// Where the kernel lists PCI devices.
const DEVICES: &str = "/sys/bus/pci/devices";

/// A device of this host.
pub struct KernelBus {
    address: String,
    // Dropped in this order: the descriptor, the device, its container.
    file: File,
    device: VfioDevice,
    container: Arc<VfioContainer>,
    /// Eventfd for vectors that are not in use.
    spare: EventFd,
}

impl std::fmt::Debug for KernelBus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelBus")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

fn refused(what: String, source: io::Error) -> BusError {
    BusError::Open { what, source }
}

/// Whether the device is bound to vfio-pci.
fn check_driver(address: &str, path: &Path) -> Result<(), BusError> {
    let driver = std::fs::read_link(path.join("driver"));
    let driver = match &driver {
        Ok(link) => link.file_name().map(|name| name.to_string_lossy()),
        Err(_) if path.exists() => None,
        Err(_) => {
            let what =
                format!("There is no PCI device {address} (as in 0000:65:00.0; see lspci -D)");
            return Err(refused(what, io::ErrorKind::NotFound.into()));
        }
    };
    if driver.as_deref() == Some("vfio-pci") {
        return Ok(());
    }
    let what = format!(
        "PCI device {address} is bound to {}; bind it to vfio-pci (driverctl set-override {address} vfio-pci)",
        driver.as_deref().unwrap_or("no driver")
    );
    Err(refused(what, io::ErrorKind::Unsupported.into()))
}

impl KernelBus {
    /// Opens the device at a PCI address.
    ///
    /// # Errors
    /// If it does not exist, is not bound to vfio-pci, or is in use.
    pub fn open(address: &str) -> Result<Self, BusError> {
        let path = PathBuf::from(DEVICES).join(address);
        check_driver(address, &path)?;
        let failed = |what: &'static str| {
            move |error: vfio_ioctls::VfioError| refused(what.to_owned(), io::Error::other(error))
        };
        let container = VfioContainer::new(None).map_err(failed(
            "Opening /dev/vfio/vfio failed (is the module vfio_iommu_type1 loaded, and may you?)",
        ))?;
        let container = Arc::new(container);
        let ops: Arc<dyn VfioOps> = container.clone();
        let device = VfioDevice::new(&path, ops, false).map_err(failed(
            "Opening the device failed (does another process use its IOMMU group?)",
        ))?;
        let file = sys::file_of(&device)
            .map_err(|source| refused("Duplicating the device".to_owned(), source))?;
        let unowned = EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)
            .map_err(|source| refused("Making an eventfd".to_owned(), source))?;
        let bus = Self {
            address: address.to_owned(),
            file,
            device,
            container,
            spare: unowned,
        };
        let vectors = bus.device.get_irq_info(VFIO_PCI_MSIX_IRQ_INDEX);
        let vectors = vectors.map_or(0, |irq| irq.count).min(VECTORS.into());
        bus.device
            .enable_msix((0..vectors).map(|_| &bus.spare).collect())
            .map_err(failed("Enabling MSI-X failed"))?;
        Ok(bus)
    }

    /// Offset of an access of `bytes` bytes in the device's file.
    fn place(&self, region: Region, offset: u64, bytes: u64) -> io::Result<(u32, u64)> {
        let index = match region {
            Region::Config => VFIO_PCI_CONFIG_REGION_INDEX,
            Region::Bar(bar) if bar < 6 => bar,
            Region::Bar(_) => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let end = offset.checked_add(bytes);
        if end.is_none_or(|end| end > self.device.get_region_size(index)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok((index, self.device.get_region_offset(index) + offset))
    }
}

impl Bus for KernelBus {
    fn read(&self, region: Region, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        self.place(region, offset, data.len() as u64)
            .and_then(|(_, at)| self.file.read_exact_at(data, at))
            .map_err(|source| BusError::Access {
                region,
                offset,
                source,
            })
    }

    fn write(&self, region: Region, offset: u64, data: &[u8]) -> Result<(), BusError> {
        self.place(region, offset, data.len() as u64)
            .and_then(|(_, at)| self.file.write_all_at(data, at))
            .map_err(|source| BusError::Access {
                region,
                offset,
                source,
            })
    }

    fn file(&self, region: Region, offset: u64, bytes: u64) -> Result<RegionFile, BusError> {
        let failed = |source| BusError::Map {
            region,
            offset,
            source,
        };
        let (index, at) = self.place(region, offset, bytes).map_err(failed)?;
        if self.device.get_region_flags(index) & VFIO_REGION_INFO_FLAG_MMAP == 0 {
            return Err(failed(io::ErrorKind::Unsupported.into()));
        }
        let file = self.file.try_clone().map_err(failed)?;
        Ok(RegionFile { file, offset: at })
    }

    fn connect(&self, vector: u16, eventfd: Option<BorrowedFd<'_>>) -> Result<(), BusError> {
        let eventfd = eventfd.unwrap_or(sys::borrow(&self.spare));
        sys::deliver_by(&self.file, vector, eventfd)
            .map_err(|source| BusError::Vector { vector, source })
    }

    fn dma_map(&self, iova: u64, memory: &MmapRegion<()>) -> Result<(), BusError> {
        sys::map_dma(&self.container, iova, memory).map_err(|source| BusError::Dma {
            iova,
            bytes: memory.size() as u64,
            source,
        })
    }

    fn dma_unmap(&self, iova: u64, bytes: u64) -> Result<(), BusError> {
        // CAST: 64-bit hosts alone.
        self.container
            .vfio_dma_unmap(iova, bytes as usize)
            .map_err(|error| BusError::Dma {
                iova,
                bytes,
                source: io::Error::other(error),
            })
    }

    fn describe(&self) -> String {
        format!("PCI device {} (vfio-pci)", self.address)
    }
}
