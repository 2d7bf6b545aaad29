//! What is done with a device before it is used, at the start and when it is taken back.

use std::io;

use turnstile_abi::physical::{BAR_REGS, DEVICE_ID, regs, status};
use turnstile_abi::{PAGE_BYTES, pci};
use vm_memory::{FileOffset, MmapRegion};

use super::admin::Admin;
use super::bus::{Bus, BusError, Region};
use super::error::StartError;

/// Bits of the command register in configuration space: memory decoding, bus mastering.
const COMMAND_ENABLE: u16 = 0x0006;
/// Offset of that register.
const COMMAND: u64 = 0x04;

/// Checks that the device is a GPU of this contract, and enables it; returns its version.
pub(super) fn identify(bus: &dyn Bus, admin: &Admin) -> Result<u32, StartError> {
    let mut ids = [0; 4];
    bus.read(Region::Config, 0, &mut ids)?;
    let mut command = [0; 2];
    bus.read(Region::Config, COMMAND, &mut command)?;
    let enabled = u16::from_le_bytes(command) | COMMAND_ENABLE;
    bus.write(Region::Config, COMMAND, &enabled.to_le_bytes())?;
    let vendor = u16::from_le_bytes([ids[0], ids[1]]);
    let device = u16::from_le_bytes([ids[2], ids[3]]);
    let identity = admin.read32(regs::IDENTITY)?;
    let version = admin.read32(regs::VERSION)?;
    if (vendor, device) != (pci::VENDOR_ID, DEVICE_ID)
        || identity != regs::IDENTITY_VALUE
        || version >> 16 != regs::VERSION_VALUE >> 16
    {
        return Err(StartError::Foreign {
            vendor,
            device,
            version,
        });
    }
    Ok(version)
}

/// Maps the page of status registers.
pub(super) fn status_page(bus: &dyn Bus) -> Result<MmapRegion<()>, BusError> {
    let page = bus.file(Region::Bar(BAR_REGS), status::PAGE, PAGE_BYTES)?;
    let file = FileOffset::new(page.file, page.offset);
    let (read, shared) = (libc::PROT_READ, libc::MAP_SHARED);
    let map = MmapRegion::build(Some(file), PAGE_BYTES as usize, read, shared);
    map.map_err(|error| BusError::Map {
        region: Region::Bar(BAR_REGS),
        offset: status::PAGE,
        source: io::Error::other(error),
    })
}
