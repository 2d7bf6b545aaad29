//! What a device consists of.

use super::{EXTENDED_CONFIG_BYTES, Errno, irq, region};
use std::fs::File;
use std::sync::Arc;

/// Part of a region that the client maps, in whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Where it begins in the region.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Memory of a region's areas, for the client to map. There is no message that takes a mapping
/// back.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// A memory file, which should be sealed against shrinking.
    pub file: Arc<File>,
    /// Where the region begins in the file.
    pub file_offset: u64,
    /// The areas; accesses elsewhere in the region are messages.
    pub areas: Vec<Area>,
}

/// A region.
#[derive(Clone, Debug, Default)]
pub struct Region {
    /// Bytes; a region without any is not there.
    pub bytes: u64,
    /// Whether it can be read.
    pub readable: bool,
    /// Whether it can be written.
    pub writable: bool,
    /// What the client maps of it.
    pub mapping: Option<Mapping>,
}

impl Region {
    /// A region with all accesses by message.
    pub fn trapped(bytes: u64) -> Self {
        Self {
            bytes,
            readable: true,
            writable: true,
            mapping: None,
        }
    }
}

/// A kind of interrupt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Irq {
    /// Vectors.
    pub count: u32,
}

/// A device: regions and interrupts by index.
#[derive(Clone, Debug)]
pub struct Layout {
    /// [`region::COUNT`] of them.
    pub regions: [Region; region::COUNT as usize],
    /// [`irq::COUNT`] of them.
    pub irqs: [Irq; irq::COUNT as usize],
}

impl Default for Layout {
    /// Nothing but configuration space.
    fn default() -> Self {
        let mut regions: [Region; region::COUNT as usize] = Default::default();
        regions[region::CONFIG as usize] = Region::trapped(256);
        Self {
            regions,
            irqs: Default::default(),
        }
    }
}

impl Layout {
    /// A region, if the index is one.
    ///
    /// # Errors
    /// [`Errno::INVALID`] where it is not.
    pub fn region(&self, index: u32) -> Result<&Region, Errno> {
        self.regions.get(index as usize).ok_or(Errno::INVALID)
    }

    /// An interrupt, if the index is one.
    ///
    /// # Errors
    /// [`Errno::INVALID`] where it is not.
    pub fn irq(&self, index: u32) -> Result<Irq, Errno> {
        let irq = self.irqs.get(index as usize);
        irq.copied().ok_or(Errno::INVALID)
    }

    /// Whether an access is to extended configuration space that the device does not have: reads
    /// are all ones, writes have no effect. Machines with ECAM let their guests access it, whatever
    /// the region's size. A refusal would stop them: the crate `vfio_user`, which is Cloud
    /// Hypervisor's client, waits endlessly for the data of a refused read.
    pub(super) fn is_beyond_config(&self, index: u32, offset: u64) -> bool {
        let config = &self.regions[region::CONFIG as usize];
        index == region::CONFIG && (config.bytes..EXTENDED_CONFIG_BYTES).contains(&offset)
    }

    /// Checks that an access is within a region and of a permitted kind.
    pub(super) fn check_access(
        &self,
        index: u32,
        offset: u64,
        bytes: usize,
        write: bool,
    ) -> Result<(), Errno> {
        let region = self.region(index)?;
        let permitted = if write {
            region.writable
        } else {
            region.readable
        };
        let size = match self.is_beyond_config(index, offset) {
            true => EXTENDED_CONFIG_BYTES,
            false => region.bytes,
        };
        let end = offset.checked_add(bytes as u64);
        if permitted && end.is_some_and(|end| end <= size) {
            Ok(())
        } else {
            Err(Errno::INVALID)
        }
    }
}
