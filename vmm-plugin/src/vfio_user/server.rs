//! The device's side.

use super::layout::{Layout, Region};
use super::message::{Capabilities, Kind, MINOR, Payload, encode_version};
use super::request::{DmaMap, DmaUnmap, REGION_INFO_BYTES, Request, SetIrqs};
use super::socket::{ProtocolError, Socket};
use super::{Errno, irq, region};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

/// Reset is served, and it is a PCI device. SOURCE: linux/vfio.h, VFIO_DEVICE_FLAGS_*.
const DEVICE_FLAGS: u32 = 0b11;
/// SOURCE: linux/vfio.h, VFIO_REGION_INFO_FLAG_*.
pub(super) mod region_flag {
    pub(in super::super) const READ: u32 = 1;
    pub(in super::super) const WRITE: u32 = 2;
    pub(in super::super) const MMAP: u32 = 4;
    pub(in super::super) const CAPS: u32 = 8;
}
/// SOURCE: linux/vfio.h, VFIO_REGION_INFO_CAP_SPARSE_MMAP, and bytes of its header.
pub(super) const SPARSE_MMAP: u32 = 1;
pub(super) const SPARSE_BYTES: usize = 16;
/// Bytes of a sparse area.
pub(super) const AREA_BYTES: usize = 16;
/// Interrupts are delivered by eventfd, and the number of vectors does not change. SOURCE:
/// linux/vfio.h, VFIO_IRQ_INFO_*.
const IRQ_FLAGS: u32 = 1 | 8;

/// What is behind a device that is served. No call may wait for the client.
pub trait Backend {
    /// A read, within a region that can be read. `data` may hold anything.
    ///
    /// # Errors
    /// What the client is answered.
    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno>;

    /// A write, within a region that can be written.
    ///
    /// # Errors
    /// What the client is answered.
    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno>;

    /// Memory that the device may use from now on. The backend checks that it does not overlap
    /// other mappings, and that there is room for it.
    ///
    /// # Errors
    /// What the client is answered.
    fn dma_map(&mut self, map: DmaMap) -> Result<(), Errno>;

    /// Memory that the device does not use any more once this has returned.
    ///
    /// # Errors
    /// What the client is answered.
    fn dma_unmap(&mut self, unmap: DmaUnmap) -> Result<(), Errno>;

    /// A change of interrupts. A descriptor need not be an eventfd: writing to it may block or do
    /// harm.
    ///
    /// # Errors
    /// What the client is answered.
    fn set_irqs(&mut self, set: SetIrqs) -> Result<(), Errno>;

    /// The device as after power-on; mappings stay.
    ///
    /// # Errors
    /// What the client is answered.
    fn reset(&mut self) -> Result<(), Errno>;
}

/// An answer: payload and descriptors.
type Answer = (Vec<u8>, Vec<RawFd>);

/// Serves one connection to its end. What the client does wrong ends at most this.
///
/// # Errors
/// Why the connection was ended from this side.
pub fn serve(
    stream: UnixStream,
    layout: &Layout,
    backend: &mut impl Backend,
) -> Result<(), ProtocolError> {
    let mut socket = Socket::new(stream).map_err(ProtocolError::Socket)?;
    let mut agreed = false;
    while let Some(mut raw) = socket.receive()? {
        let header = raw.header;
        if header.kind() != Some(Kind::Command) {
            return Err(ProtocolError::Kind(header.flags));
        }
        let answer = Request::check(&mut raw, layout, agreed).and_then(|request| {
            agreed |= matches!(request, Request::Version { .. });
            perform(request, layout, backend)
        });
        if header.no_reply() {
            continue;
        }
        match answer {
            Ok((payload, fds)) => {
                socket.send(header.reply(payload.len(), None), &payload, &fds)?;
            }
            Err(Errno(errno)) => socket.send(header.reply(0, Some(errno)), &[], &[])?,
        }
    }
    Ok(())
}

fn perform(
    request: Request<'_>,
    layout: &Layout,
    backend: &mut impl Backend,
) -> Result<Answer, Errno> {
    let answer = match request {
        Request::Version { minor, .. } => encode_version(minor.min(MINOR), Capabilities::OWN),
        Request::DmaMap(map) => {
            backend.dma_map(map)?;
            Vec::new()
        }
        Request::DmaUnmap(unmap) => {
            backend.dma_unmap(unmap)?;
            let (flags, address, bytes) = match unmap {
                DmaUnmap::All => (2, 0, 0),
                DmaUnmap::Range { address, bytes } => (0, address, bytes),
            };
            let payload = Payload::default().words(&[24, flags]);
            payload.longs(&[address, bytes]).0
        }
        Request::DeviceInfo => {
            let words = [16, DEVICE_FLAGS, region::COUNT, irq::COUNT];
            Payload::default().words(&words).0
        }
        Request::RegionInfo { index, argsz } => {
            let known = layout.region(index)?;
            return Ok(region_info(index, argsz, known));
        }
        Request::IrqInfo { index } => {
            let count = layout.irq(index)?.count;
            let flags = if count == 0 { 0 } else { IRQ_FLAGS };
            Payload::default().words(&[16, flags, index, count]).0
        }
        Request::SetIrqs(set) => {
            backend.set_irqs(set)?;
            Vec::new()
        }
        Request::Read {
            region,
            offset,
            count,
        } => {
            let mut data = Vec::new();
            let reserved = data.try_reserve_exact(count);
            reserved.map_err(|_| Errno(libc::ENOMEM))?;
            data.resize(count, 0xff);
            if !layout.is_beyond_config(region, offset) {
                backend.read(region, offset, &mut data)?;
            }
            // CAST: at most DATA_BYTES_MAX
            let payload = Payload::default().longs(&[offset]);
            payload.words(&[region, count as u32]).bytes(&data).0
        }
        Request::Write {
            region,
            offset,
            data,
        } => {
            if !layout.is_beyond_config(region, offset) {
                backend.write(region, offset, data)?;
            }
            // CAST: at most DATA_BYTES_MAX
            let payload = Payload::default().longs(&[offset]);
            payload.words(&[region, data.len() as u32]).0
        }
        Request::Reset => {
            backend.reset()?;
            Vec::new()
        }
    };
    Ok((answer, Vec::new()))
}

/// Clients take a region's descriptor only with its areas, so areas are reported even for a region
/// that is mapped whole. A client without room for them gets the needed size and requests again.
fn region_info(index: u32, argsz: u32, region: &Region) -> Answer {
    let areas = region.mapping.as_ref().map_or(&[][..], |map| &map.areas);
    let needed = match areas {
        [] => REGION_INFO_BYTES,
        areas => REGION_INFO_BYTES + SPARSE_BYTES + AREA_BYTES * areas.len(),
    };
    let mut flags = 0;
    let mut set = |condition, flag| flags |= if condition { flag } else { 0 };
    set(region.readable, region_flag::READ);
    set(region.writable, region_flag::WRITE);
    set(!areas.is_empty(), region_flag::MMAP | region_flag::CAPS);
    let capability_at = if areas.is_empty() {
        0
    } else {
        REGION_INFO_BYTES as u32
    };
    let file_offset = region.mapping.as_ref().map_or(0, |map| map.file_offset);
    // CAST: a device has a few areas
    let mut payload = Payload::default()
        .words(&[needed as u32, flags, index, capability_at])
        .longs(&[region.bytes, file_offset]);
    let mut fds = Vec::new();
    if let Some(mapping) = &region.mapping
        && !areas.is_empty()
        && argsz as usize >= needed
    {
        // Id and version in one word, no next capability, areas, reserved.
        payload = payload.words(&[SPARSE_MMAP | 1 << 16, 0, areas.len() as u32, 0]);
        for area in areas {
            payload = payload.longs(&[area.offset, area.bytes]);
        }
        fds.push(mapping.file.as_raw_fd());
    }
    (payload.0, fds)
}
