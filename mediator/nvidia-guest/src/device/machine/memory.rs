//! The VM's memory: what the VMM has mapped for the device now, and which of it is lent.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use rustix::fs::{SealFlags, fcntl_get_seals};
use turnstile_vmm::front::Seldom;
use turnstile_vmm::vfio_user::{DmaMap, DmaUnmap, Errno, Maps};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

use super::super::locked;
use super::super::ram::{GuestRam, Pieces, Pledge, end_of};
use crate::proto::Message;

/// Numbers of released memory that the guest has not fetched, at most: as many as it may have
/// objects.
const RELEASED_MAX: usize = 65_536;

/// An area of the VM's memory.
#[derive(Clone, Debug)]
struct Area {
    bytes: u64,
    file: Arc<File>,
    offset: u64,
    view: Arc<MmapRegion<()>>,
}

#[derive(Debug, Default)]
struct Areas {
    maps: Maps,
    by_address: BTreeMap<u64, Area>,
    /// The queue's block, which nothing else may be in.
    queue: Range<u64>,
}

/// The memory of one VM.
#[derive(Debug)]
pub(super) struct Memory {
    seldom: Arc<Seldom>,
    areas: RwLock<Areas>,
    released: Arc<Mutex<Vec<u64>>>,
    /// Memory of requests in flight, by its number.
    pledged: Mutex<BTreeMap<u64, Weak<Number>>>,
}

/// Part of an area, as this process maps it.
#[derive(Clone, Debug)]
pub(super) struct View {
    region: Arc<MmapRegion<()>>,
    at: usize,
}

/// The number of memory that is in use.
#[derive(Debug)]
pub(super) struct Number {
    number: u64,
    released: Arc<Mutex<Vec<u64>>>,
}

impl Pledge for Number {}

impl Drop for Number {
    fn drop(&mut self) {
        locked(&self.released).push(self.number);
    }
}

fn refused() -> io::Error {
    io::Error::from_raw_os_error(libc::EFAULT)
}

impl View {
    pub(super) fn read(&self, offset: usize, bytes: &mut [u8]) -> io::Result<()> {
        let slice = self.region.as_volatile_slice();
        slice
            .read_slice(bytes, self.at + offset)
            .map_err(io::Error::other)
    }

    pub(super) fn write(&self, offset: usize, bytes: &[u8]) -> io::Result<()> {
        let slice = self.region.as_volatile_slice();
        slice
            .write_slice(bytes, self.at + offset)
            .map_err(io::Error::other)
    }

    /// A word; what the guest wrote before it is seen then.
    pub(super) fn load(&self, offset: u64) -> io::Result<u32> {
        let slice = self.region.as_volatile_slice();
        // CAST: offsets within the queue.
        let at = self.at + offset as usize;
        slice
            .load(at, std::sync::atomic::Ordering::Acquire)
            .map_err(io::Error::other)
    }

    /// Sets a word; the guest sees what was written before it then.
    pub(super) fn store(&self, offset: u64, value: u32) -> io::Result<()> {
        let slice = self.region.as_volatile_slice();
        // CAST: as above.
        let at = self.at + offset as usize;
        slice
            .store(value, at, std::sync::atomic::Ordering::Release)
            .map_err(io::Error::other)
    }
}

impl Areas {
    /// The area that a range is in, and its offset there.
    fn find(&self, address: u64, bytes: u64) -> io::Result<(u64, &Area)> {
        let (at, area) = self
            .by_address
            .range(..=address)
            .next_back()
            .ok_or_else(refused)?;
        let end = address
            .checked_add(bytes)
            .filter(|end| *end <= at + area.bytes);
        let end = end.ok_or_else(refused)?;
        if address < self.queue.end && self.queue.start < end {
            return Err(refused());
        }
        Ok((*at, area))
    }

    fn view(&self, address: u64, bytes: u64) -> io::Result<View> {
        let (at, area) = self.find(address, bytes)?;
        Ok(View {
            region: Arc::clone(&area.view),
            at: usize::try_from(address - at).map_err(io::Error::other)?,
        })
    }
}

impl Memory {
    /// No memory. Lines about it are logged by `seldom`.
    pub(super) fn new(seldom: Arc<Seldom>) -> Self {
        Self {
            seldom,
            areas: RwLock::default(),
            released: Arc::default(),
            pledged: Mutex::default(),
        }
    }

    fn areas(&self) -> RwLockReadGuard<'_, Areas> {
        self.areas.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn areas_mut(&self) -> RwLockWriteGuard<'_, Areas> {
        self.areas.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes memory of the VM. What the device cannot use is noted as mapped, and not used.
    ///
    /// # Errors
    /// If it overlaps other memory, or there is too much.
    pub(super) fn add(&self, map: DmaMap) -> Result<(), Errno> {
        let mut areas = self.areas_mut();
        let Some(memory) = areas.maps.add(map)? else {
            return Ok(());
        };
        let place = memory.region;
        let area = memory.file.try_clone().and_then(|file| {
            // A file that can shrink could take pages from below a mapping.
            if !fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
                return Err(io::Error::other("its file is not sealed against shrinking"));
            }
            let offset = FileOffset::new(file.try_clone()?, place.file_offset);
            let bytes = usize::try_from(place.bytes).map_err(io::Error::other)?;
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
            let view = MmapRegion::build(Some(offset), bytes, protection, flags)
                .map_err(io::Error::other)?;
            Ok(Area {
                bytes: place.bytes,
                file: Arc::new(file),
                offset: place.file_offset,
                view: Arc::new(view),
            })
        });
        match area {
            Ok(area) => drop(areas.by_address.insert(place.gpa, area)),
            Err(error) => self.seldom.say(
                log::Level::Warn,
                format_args!("Memory of the VM at {:#x} is not used: {error}", place.gpa),
            ),
        }
        Ok(())
    }

    /// Removes memory of the VM, and returns its addresses. Later lookups in it fail.
    ///
    /// # Errors
    /// If the range cuts an area.
    pub(super) fn remove(&self, unmap: DmaUnmap) -> Result<Vec<u64>, Errno> {
        let mut areas = self.areas_mut();
        let gone = areas.maps.remove(unmap)?;
        let gone: Vec<u64> = gone.iter().map(|region| region.gpa).collect();
        for address in &gone {
            areas.by_address.remove(address);
        }
        Ok(gone)
    }

    /// Sets the queue's block, which must be within one area.
    ///
    /// # Errors
    /// EFAULT.
    pub(super) fn set_queue(&self, address: u64, bytes: u64) -> io::Result<View> {
        let mut areas = self.areas_mut();
        areas.queue = 0..0;
        let view = areas.view(address, bytes)?;
        areas.queue = address..address + bytes;
        Ok(view)
    }

    /// Whether the queue's block is there.
    pub(super) fn has_queue(&self) -> bool {
        let areas = self.areas();
        let inside = areas.by_address.range(..=areas.queue.start).next_back();
        inside.is_some_and(|(at, area)| areas.queue.end <= at + area.bytes)
    }

    /// There is no queue.
    pub(super) fn clear_queue(&self) {
        self.areas_mut().queue = 0..0;
    }

    /// A range, within one area and outside the queue.
    ///
    /// # Errors
    /// EFAULT.
    pub(super) fn view(&self, address: u64, bytes: u64) -> io::Result<View> {
        self.areas().view(address, bytes)
    }

    /// Begins a request with memory of this number, which is released at the latest when what is
    /// returned is dropped, unless it is lent then.
    ///
    /// # Errors
    /// ENOMEM while too many numbers are released and not fetched.
    pub(super) fn pledge(&self, number: u64) -> io::Result<Arc<Number>> {
        if locked(&self.released).len() >= RELEASED_MAX {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        let pledge = Arc::new(Number {
            number,
            released: Arc::clone(&self.released),
        });
        let mut pledged = locked(&self.pledged);
        pledged.retain(|_, pledge| pledge.strong_count() != 0);
        pledged.insert(number, Arc::downgrade(&pledge));
        Ok(pledge)
    }

    /// The request is answered: its number has no more meaning for requests.
    pub(super) fn end(&self, pledge: Arc<Number>) {
        locked(&self.pledged).remove(&pledge.number);
        drop(pledge);
    }

    /// Up to `most` released numbers, and how many are left.
    pub(super) fn released(&self, most: usize) -> (Vec<u64>, usize) {
        let mut released = locked(&self.released);
        let taken = most.min(released.len());
        (released.drain(..taken).collect(), released.len())
    }

    /// Drops the released numbers: the guest has started again.
    pub(super) fn forget_released(&self) {
        locked(&self.released).clear();
    }
}

impl GuestRam for Memory {
    fn pieces(&self, message: &Message) -> io::Result<Pieces> {
        let areas = self.areas();
        let mut pieces = Pieces::default();
        for extent in &message.extents {
            end_of(extent)?;
            let (at, area) = areas.find(extent.offset, extent.bytes)?;
            pieces.add(
                Arc::clone(&area.file),
                area.offset + (extent.offset - at),
                extent.bytes,
            );
            pieces.areas.insert(at);
        }
        if !message.extents.is_empty() {
            // CAST: the number's bits.
            let number = u64::from(message.result.cast_unsigned());
            let pledge = locked(&self.pledged).get(&number).and_then(Weak::upgrade);
            pieces.pledge = pledge.map(|pledge| pledge as Arc<dyn Pledge>);
        }
        Ok(pieces)
    }
}
