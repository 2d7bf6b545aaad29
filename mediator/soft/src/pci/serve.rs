//! The device as a vfio-user server, for a VMM to attach to a VM.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

use turnstile_abi::PAGE_BYTES;
use turnstile_abi::physical::{BAR_DOORBELLS, BAR_REGS, PAGES, VECTORS, regs, status};
use turnstile_vmm::vfio_user::{
    self, Area, Backend, DmaMap, DmaUnmap, Errno, Irq, IrqData, Layout, Mapping, SetIrqs,
};

use super::{PciGpu, Region};
use turnstile_gpu::interrupts::EventfdInterrupts;

/// One client's view of the device.
#[derive(Debug)]
struct Served<'a>(&'a PciGpu);

/// What the device consists of.
fn layout(device: &PciGpu) -> io::Result<Layout> {
    let mapped = |bytes, file: &File, area: Area| -> io::Result<vfio_user::Region> {
        let mut region = vfio_user::Region::trapped(bytes);
        region.mapping = Some(Mapping {
            file: Arc::new(file.try_clone()?),
            file_offset: 0,
            areas: vec![area],
        });
        Ok(region)
    };
    let mut layout = Layout::default();
    let page = Area {
        offset: status::PAGE,
        bytes: PAGE_BYTES,
    };
    layout.regions[BAR_REGS as usize] = mapped(regs::BAR_BYTES, device.status_file(), page)?;
    let pages = Area {
        offset: 0,
        bytes: u64::from(PAGES) * PAGE_BYTES,
    };
    layout.regions[BAR_DOORBELLS as usize] = mapped(pages.bytes, device.doorbells_file(), pages)?;
    layout.irqs[vfio_user::irq::MSIX as usize] = Irq {
        count: VECTORS.into(),
    };
    Ok(layout)
}

fn region(index: u32) -> Option<Region> {
    match index {
        vfio_user::region::CONFIG => Some(Region::Config),
        BAR_REGS => Some(Region::Regs),
        BAR_DOORBELLS => Some(Region::Doorbells),
        _ => None,
    }
}

impl Backend for Served<'_> {
    fn read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        let region = region(index).ok_or(Errno::INVALID)?;
        self.0.read(region, offset, data);
        Ok(())
    }

    fn write(&mut self, index: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let region = region(index).ok_or(Errno::INVALID)?;
        self.0.write(region, offset, data);
        Ok(())
    }

    fn dma_map(&mut self, map: DmaMap) -> Result<(), Errno> {
        // Mappings without a file or without write access (ROMs, other devices) are skipped: this
        // device never reaches them.
        let Some(file) = map.file.filter(|_| map.readable && map.writable) else {
            return Ok(());
        };
        self.0
            .dma_map(map.address, map.bytes, file, map.offset)
            .map_err(|error| {
                log::warn!("vfio-user client: {error}");
                Errno::INVALID
            })
    }

    fn dma_unmap(&mut self, unmap: DmaUnmap) -> Result<(), Errno> {
        match unmap {
            DmaUnmap::All => self.0.dma_unmap(0, u64::MAX),
            DmaUnmap::Range { address, bytes } => self.0.dma_unmap(address, bytes),
        }
        Ok(())
    }

    fn set_irqs(&mut self, set: SetIrqs) -> Result<(), Errno> {
        if set.index != vfio_user::irq::MSIX {
            return Err(Errno::INVALID);
        }
        // Vectors were found to be within what the device has.
        let vectors = (set.start..VECTORS.into()).filter_map(|vector| u16::try_from(vector).ok());
        match set.data {
            IrqData::Eventfds(files) if !files.is_empty() => {
                let fds = files.into_iter().map(OwnedFd::from).collect();
                let events = EventfdInterrupts::new(fds).map_err(|_| Errno::INVALID)?;
                for (vector, file) in vectors.zip(events.into_files()) {
                    self.0.connect(vector, Some(file));
                }
            }
            IrqData::Eventfds(_) => {
                let count = usize::try_from(set.count).unwrap_or(0);
                vectors
                    .take(count)
                    .for_each(|vector| self.0.connect(vector, None));
            }
            IrqData::None if set.count == 0 => {
                (0..VECTORS).for_each(|vector| self.0.connect(vector, None));
            }
            // The VMM masks vectors itself: it reads the mask from the table, not from the device.
            IrqData::None | IrqData::Bool(_) => {}
        }
        Ok(())
    }

    fn reset(&mut self) -> Result<(), Errno> {
        self.0.reset();
        Ok(())
    }
}

/// Serves the device to one client until it goes, which pulls the device out.
///
/// # Errors
/// When the host has no descriptors left.
pub fn serve_client(device: &PciGpu, stream: UnixStream) -> io::Result<()> {
    let layout = layout(device)?;
    if let Err(error) = vfio_user::serve(stream, &layout, &mut Served(device)) {
        log::warn!("vfio-user client: {error}");
    }
    device.unplug();
    Ok(())
}

/// Serves the device to one client after another, until the socket fails.
///
/// # Errors
/// When the socket accepts no more connections.
pub fn serve(device: &PciGpu, socket: &Path) -> io::Result<()> {
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket)?;
    loop {
        let (stream, _) = listener.accept()?;
        serve_client(device, stream)?;
    }
}
