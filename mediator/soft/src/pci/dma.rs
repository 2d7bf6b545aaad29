//! What the device can reach: the IOMMU's mappings, and memory put together from pieces of them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use turnstile_abi::PAGE_BYTES;
use vm_memory::{FileOffset, GuestAddress};

use turnstile_gpu::GuestMemory;

/// Mappings at most: a fragmented VM of a few GiB in pages of 4 KiB.
const MAPPINGS_MAX: usize = 1 << 20;

/// Why a mapping was not taken, or memory cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum DmaError {
    /// Not whole pages, or too long, or over another one.
    #[error("Mapping {bytes:#x} bytes at {iova:#x} is not possible")]
    BadMapping {
        /// Where.
        iova: u64,
        /// How much.
        bytes: u64,
    },
    /// The file has no such range.
    #[error("The file behind {iova:#x} is too short, or cannot be looked at")]
    BadFile {
        /// Where.
        iova: u64,
    },
    /// Nothing is mapped there.
    #[error("Nothing is mapped at {iova:#x}")]
    Unmapped {
        /// Where.
        iova: u64,
    },
    /// The kernel would not map it.
    #[error("Mapping memory for the device failed")]
    Map(#[source] vm_memory::mmap::FromRangesError),
}

/// A piece of a file at an address.
#[derive(Clone, Debug)]
struct Mapping {
    bytes: u64,
    file: Arc<File>,
    offset: u64,
}

/// The IOMMU as the device sees it.
#[derive(Debug, Default)]
pub(super) struct Dma {
    mappings: BTreeMap<u64, Mapping>,
    /// Files by device and inode: a VMM sends a descriptor with every piece, all of the same file.
    files: BTreeMap<(u64, u64), Arc<File>>,
}

/// A range of IOMMU addresses, and the guest address at which it is to appear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) gpa: u64,
    pub(super) iova: u64,
    pub(super) bytes: u64,
}

impl Window {
    /// Whether the window overlaps a range.
    pub(super) fn touches(&self, iova: u64, bytes: u64) -> bool {
        self.iova < iova.saturating_add(bytes) && iova < self.iova.saturating_add(self.bytes)
    }
}

impl Dma {
    /// Takes a mapping.
    pub(super) fn map(
        &mut self,
        iova: u64,
        bytes: u64,
        file: File,
        offset: u64,
    ) -> Result<(), DmaError> {
        let whole = |n: u64| n.is_multiple_of(PAGE_BYTES);
        let bad = DmaError::BadMapping { iova, bytes };
        let end = iova.checked_add(bytes);
        if bytes == 0 || !whole(iova) || !whole(bytes) || !whole(offset) || end.is_none() {
            return Err(bad);
        }
        if self.mappings.len() >= MAPPINGS_MAX || self.overlapping(iova, bytes).next().is_some() {
            return Err(bad);
        }
        let known = file.metadata().map_err(|_| DmaError::BadFile { iova })?;
        if offset
            .checked_add(bytes)
            .is_none_or(|end| end > known.len())
        {
            return Err(DmaError::BadFile { iova });
        }
        let shared = self.files.entry((known.dev(), known.ino()));
        let file = shared.or_insert_with(|| Arc::new(file)).clone();
        let mapping = Mapping {
            bytes,
            file,
            offset,
        };
        self.mappings.insert(iova, mapping);
        Ok(())
    }

    fn overlapping(&self, iova: u64, bytes: u64) -> impl Iterator<Item = u64> {
        let before = self.mappings.range(..iova).next_back();
        let before = before.filter(|(at, mapping)| *at + mapping.bytes > iova);
        let within = self.mappings.range(iova..iova.saturating_add(bytes));
        before.into_iter().chain(within).map(|(at, _)| *at)
    }

    /// Removes all mappings that overlap the range.
    pub(super) fn unmap(&mut self, iova: u64, bytes: u64) {
        for at in self.overlapping(iova, bytes).collect::<Vec<_>>() {
            self.mappings.remove(&at);
        }
        // The table itself is one holder.
        let used = |file: &Arc<File>| Arc::strong_count(file) > 1;
        self.files.retain(|_, file| used(file));
    }

    /// Guest memory made of the windows, each at its guest address.
    pub(super) fn memory(&self, windows: &[Window]) -> Result<GuestMemory, DmaError> {
        let mut pieces: Vec<(u64, Mapping)> = Vec::new();
        for window in windows {
            let mut done = 0;
            while done < window.bytes {
                let iova = window.iova + done;
                let mut piece = self.piece(iova).ok_or(DmaError::Unmapped { iova })?;
                piece.bytes = piece.bytes.min(window.bytes - done);
                let gpa = window.gpa + done;
                done += piece.bytes;
                match pieces.last_mut() {
                    Some((at, last))
                        if *at + last.bytes == gpa
                            && last.offset + last.bytes == piece.offset
                            && Arc::ptr_eq(&last.file, &piece.file) =>
                    {
                        last.bytes += piece.bytes;
                    }
                    _ => pieces.push((gpa, piece)),
                }
            }
        }
        let ranges = pieces.into_iter().map(|(gpa, piece)| {
            let file = FileOffset::from_arc(piece.file, piece.offset);
            // CAST: a piece is a part of a file.
            (GuestAddress(gpa), piece.bytes as usize, Some(file))
        });
        GuestMemory::from_ranges_with_files(ranges).map_err(DmaError::Map)
    }

    /// What is mapped from `iova` on.
    fn piece(&self, iova: u64) -> Option<Mapping> {
        let (at, mapping) = self.mappings.range(..=iova).next_back()?;
        let skip = iova - at;
        let bytes = mapping.bytes.checked_sub(skip).filter(|left| *left > 0)?;
        Some(Mapping {
            bytes,
            file: mapping.file.clone(),
            offset: mapping.offset + skip,
        })
    }
}

impl From<DmaError> for io::Error {
    fn from(error: DmaError) -> Self {
        Self::other(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnstile_host::memory_file::memory_file;
    use vm_memory::GuestMemoryBackend;

    const PAGE: u64 = PAGE_BYTES;

    #[test]
    fn pieces_become_memory_and_neighbours_become_one() {
        let file = memory_file("test", 8 * PAGE).unwrap();
        let copy = || file.try_clone().unwrap();
        let mut dma = Dma::default();
        dma.map(0x10000, 2 * PAGE, copy(), 0).unwrap();
        dma.map(0x12000, PAGE, copy(), 2 * PAGE).unwrap();
        dma.map(0x13000, PAGE, copy(), 7 * PAGE).unwrap();
        let window = |gpa, iova, pages| Window {
            gpa,
            iova,
            bytes: pages * PAGE,
        };
        let memory = dma.memory(&[window(0, 0x11000, 3)]).unwrap();
        assert_eq!(memory.now().num_regions(), 2);
        memory.write_obj(5u32, GuestAddress(2 * PAGE)).unwrap();
        let mut bytes = [0; 4];
        std::os::unix::fs::FileExt::read_at(&file, &mut bytes, 7 * PAGE).unwrap();
        assert_eq!(bytes, [5, 0, 0, 0]);
        let beyond = dma.memory(&[window(0, 0x11000, 4)]);
        assert!(matches!(beyond, Err(DmaError::Unmapped { iova: 0x14000 })));
        dma.unmap(0x11000, PAGE);
        let gone = dma.memory(&[window(0, 0x10000, 1)]);
        assert!(matches!(gone, Err(DmaError::Unmapped { iova: 0x10000 })));
        drop(memory);
        dma.unmap(0, u64::MAX);
        assert!(dma.files.is_empty());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let file = memory_file("test", 2 * PAGE).unwrap();
        let mut dma = Dma::default();
        let mut map = |iova, bytes, offset| dma.map(iova, bytes, file.try_clone().unwrap(), offset);
        map(PAGE, PAGE, 0).unwrap();
        for (iova, bytes, offset) in [
            (0, 2 * PAGE, 0),
            (PAGE, PAGE, 0),
            (1, PAGE, 0),
            (8 * PAGE, 0, 0),
            (8 * PAGE, PAGE, 1),
            (8 * PAGE, PAGE, 2 * PAGE),
            (8 * PAGE, PAGE, !(PAGE - 1)),
            (!(PAGE - 1), PAGE, 0),
        ] {
            assert!(map(iova, bytes, offset).is_err(), "{iova:#x} {bytes:#x}");
        }
    }
}
