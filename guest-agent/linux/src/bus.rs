//! The device as the kernel shows it: in /sys/bus/pci, or through vfio-pci.

use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use turnstile_abi::Platform;
use turnstile_abi::pci::{BAR_DOORBELLS, BAR_REGS, DEVICE_ID, MSIX_PBA, MSIX_TABLE, VENDOR_ID};
use turnstile_abi::{CHANNELS_MAX, PAGE_BYTES, regs};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

use crate::vfio::Vfio;
use crate::{Dma, GuestError};

/// Addresses below this belong to the program, not to a device: the reference VMM places its boot
/// block for guests there.
pub(crate) const LOCAL_BYTES: u64 = 64 << 10;
/// Standard header of configuration space. Capabilities behind it are the kernel's to use.
const HEADER_BYTES: u8 = 0x40;
/// Poll interval: short while an answer may be near, then longer.
const POLL_INTERVAL_MIN: Duration = Duration::from_micros(50);
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(1);

/// A device, mapped, with memory for it.
#[derive(Debug)]
pub struct Bus {
    address: String,
    /// Through which it is driven, if not by sysfs. Dropped before the memory that it maps.
    vfio: Option<Vfio>,
    config: File,
    /// Offset of configuration space in that file.
    config_at: u64,
    registers: MmapRegion<()>,
    doorbells: MmapRegion<()>,
    dma: Dma,
    local: MmapRegion<()>,
    since: Instant,
}

fn file_error(path: &Path) -> impl FnOnce(std::io::Error) -> GuestError {
    let path = path.to_owned();
    move |source| GuestError::File { path, source }
}

fn open(path: &Path) -> Result<File, GuestError> {
    let mut options = OpenOptions::new();
    let opened = options.read(true).write(true).open(path);
    opened.map_err(file_error(path))
}

fn map(path: PathBuf, bytes: u64) -> Result<MmapRegion<()>, GuestError> {
    let file = FileOffset::new(open(&path)?, 0);
    MmapRegion::from_file(file, bytes as usize)
        .map_err(|error| file_error(&path)(std::io::Error::other(error)))
}

/// The folder of the first device that is one.
fn find() -> Result<PathBuf, GuestError> {
    let devices = Path::new("/sys/bus/pci/devices");
    let entries = fs::read_dir(devices).map_err(file_error(devices))?;
    let is = |folder: &Path, file: &str, id: u16| {
        fs::read_to_string(folder.join(file)).is_ok_and(|text| text.trim() == format!("{id:#06x}"))
    };
    entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|folder| is(folder, "vendor", VENDOR_ID) && is(folder, "device", DEVICE_ID))
        .ok_or(GuestError::NoDevice)
}

impl Bus {
    /// Opens the device, with at least `dma_bytes` bytes of memory for it.
    ///
    /// # Errors
    /// When there is no device, a driver of the kernel has it, or there is no memory.
    pub fn open(dma_bytes: u64) -> Result<Self, GuestError> {
        let folder = find()?;
        let name = |path: &Path| {
            let name = path.file_name().unwrap_or_default();
            name.to_string_lossy().into_owned()
        };
        let driver = fs::read_link(folder.join("driver")).ok();
        let vfio = match driver.as_deref().map(name).as_deref() {
            Some("vfio-pci") => Some(Vfio::open(&folder)?),
            Some(other) => return Err(GuestError::Bound(other.to_owned())),
            None => None,
        };
        let local = MmapRegion::new(LOCAL_BYTES as usize)
            .map_err(|_| GuestError::Memory("none for the program itself"))?;
        let doorbells_bytes = u64::from(CHANNELS_MAX) * PAGE_BYTES;
        let ((config, config_at), registers, doorbells, dma) = match &vfio {
            Some(vfio) => (
                vfio.config()?,
                vfio.map(BAR_REGS as u32, regs::BAR_BYTES)?,
                vfio.map(BAR_DOORBELLS as u32, doorbells_bytes)?,
                vfio.memory(dma_bytes)?,
            ),
            None => {
                let enable = folder.join("enable");
                fs::write(&enable, "1").map_err(file_error(&enable))?;
                (
                    (open(&folder.join("config"))?, 0),
                    map(folder.join("resource0"), regs::BAR_BYTES)?,
                    map(folder.join("resource1"), doorbells_bytes)?,
                    Dma::take(dma_bytes)?,
                )
            }
        };
        Ok(Self {
            address: name(&folder),
            vfio,
            config,
            config_at,
            registers,
            doorbells,
            dma,
            local,
            since: Instant::now(),
        })
    }

    /// Interrupts observed so far; `None` without interrupts, if the program polls.
    pub fn interrupts(&self) -> Option<u64> {
        self.vfio.as_ref().map(Vfio::interrupts)
    }

    /// Where the device is on the bus.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Memory that the device can use.
    pub fn dma(&self) -> &Dma {
        &self.dma
    }

    /// The region and the offset in it of a driver's memory address, and the bytes that follow
    /// there in one piece.
    fn memory(&self, at: u64) -> (&MmapRegion<()>, usize, usize) {
        if at < LOCAL_BYTES {
            // CAST: below 64 KiB
            return (&self.local, at as usize, (LOCAL_BYTES - at) as usize);
        }
        // PANIC: the driver uses what it was given; anything else is a fault in it.
        self.dma.at(at).expect("an address of the driver's")
    }

    /// Calls `act` for each piece of a range of driver memory: region, offset in it, and the bytes
    /// of the range that it covers.
    fn pieces(
        &self,
        at: u64,
        bytes: usize,
        mut act: impl FnMut(&MmapRegion<()>, usize, Range<usize>),
    ) {
        let mut done = 0;
        while done < bytes {
            let (region, offset, length) = self.memory(at + done as u64);
            let end = bytes.min(done + length);
            act(region, offset, done..end);
            done = end;
        }
    }
}

/// PANIC: offsets are the driver's own, and checked against the mapping.
const WITHIN: &str = "an access within the mapping";

impl Platform for Bus {
    fn config_read(&self, offset: u8) -> u32 {
        let mut word = [0xff; 4];
        // A device that is gone reads as ones.
        let at = self.config_at + u64::from(offset);
        let _ = self.config.read_exact_at(&mut word, at);
        u32::from_le_bytes(word)
    }

    fn config_write(&self, offset: u8, value: u32) {
        // MSI-X belongs to the kernel: enabled by this program, it would make the device write to
        // unset addresses.
        if offset < HEADER_BYTES {
            let at = self.config_at + u64::from(offset);
            let _ = self.config.write_all_at(&value.to_le_bytes(), at);
        }
    }

    fn reg_read32(&self, offset: u64) -> u32 {
        let slice = self.registers.as_volatile_slice();
        slice
            .load(offset as usize, Ordering::Acquire)
            .expect(WITHIN)
    }

    fn reg_read64(&self, offset: u64) -> u64 {
        let slice = self.registers.as_volatile_slice();
        slice
            .load(offset as usize, Ordering::Acquire)
            .expect(WITHIN)
    }

    fn reg_write32(&self, offset: u64, value: u32) {
        if (MSIX_TABLE..MSIX_PBA).contains(&offset) {
            return;
        }
        let slice = self.registers.as_volatile_slice();
        let stored = slice.store(value, offset as usize, Ordering::Release);
        stored.expect(WITHIN);
    }

    fn reg_write64(&self, offset: u64, value: u64) {
        if (MSIX_TABLE..MSIX_PBA).contains(&offset) {
            return;
        }
        let slice = self.registers.as_volatile_slice();
        let stored = slice.store(value, offset as usize, Ordering::Release);
        stored.expect(WITHIN);
    }

    fn ring_doorbell(&self, channel: u32, put: u32) {
        fence(Ordering::SeqCst);
        let at = u64::from(channel) * PAGE_BYTES;
        let slice = self.doorbells.as_volatile_slice();
        let stored = slice.store(put, at as usize, Ordering::Release);
        stored.expect(WITHIN);
    }

    fn aperture_read(&self, _: u64) -> u64 {
        u64::MAX
    }

    fn aperture_write(&self, _: u64, _: u64) {}

    fn read_u32(&self, at: u64) -> u32 {
        let (region, offset, _) = self.memory(at);
        let slice = region.as_volatile_slice();
        slice.load(offset, Ordering::Acquire).expect(WITHIN)
    }

    fn read_u64(&self, at: u64) -> u64 {
        let (region, offset, _) = self.memory(at);
        let slice = region.as_volatile_slice();
        slice.load(offset, Ordering::Acquire).expect(WITHIN)
    }

    fn write_u32(&self, at: u64, value: u32) {
        let (region, offset, _) = self.memory(at);
        let slice = region.as_volatile_slice();
        slice.store(value, offset, Ordering::Release).expect(WITHIN);
    }

    fn write_u64(&self, at: u64, value: u64) {
        let (region, offset, _) = self.memory(at);
        let slice = region.as_volatile_slice();
        slice.store(value, offset, Ordering::Release).expect(WITHIN);
    }

    fn read_bytes(&self, at: u64, bytes: &mut [u8]) {
        self.pieces(at, bytes.len(), |region, offset, range| {
            let slice = region.as_volatile_slice();
            slice.read_slice(&mut bytes[range], offset).expect(WITHIN);
        });
    }

    fn write_bytes(&self, at: u64, bytes: &[u8]) {
        self.pieces(at, bytes.len(), |region, offset, range| {
            let slice = region.as_volatile_slice();
            slice.write_slice(&bytes[range], offset).expect(WITHIN);
        });
    }

    fn msi(&self, _: u16) -> (u64, u32) {
        (0, 0)
    }

    fn wait(&self, at_most_ns: u64) {
        if let Some(vfio) = &self.vfio {
            return vfio.wait(at_most_ns);
        }
        // The driver calls repeatedly while it waits: each call is a short sleep.
        let interval = match at_most_ns {
            0..1_000_000 => POLL_INTERVAL_MIN,
            _ => POLL_INTERVAL_MAX,
        };
        thread::sleep(interval.min(Duration::from_nanos(at_most_ns)));
    }

    fn now_ns(&self) -> u64 {
        // CAST: 584 years
        self.since.elapsed().as_nanos() as u64
    }
}
