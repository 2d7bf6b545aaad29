//! A VM's memory in the daemon: mapped from the VMM's memory file, after everything about it was checked.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use turnstile_abi::PAGE_BYTES;
use turnstile_vmm::wire::Region;
use vm_memory::{FileOffset, GuestAddress};

use crate::gpu::GuestMemory;

/// Most regions of one VM's memory.
pub const REGIONS_MAX: usize = 16;
/// Most memory of one VM.
pub const GUEST_BYTES_MAX: u64 = 4 << 40;

/// Why a VM's memory was not taken.
#[derive(Debug, thiserror::Error)]
pub enum GuestMemoryError {
    /// No or too many regions.
    #[error("The VM has {count} memory regions; 1 to {REGIONS_MAX} are taken")]
    RegionCount {
        /// How many it has.
        count: usize,
    },
    /// A region is no whole number of pages, or wraps, or is too large.
    #[error("Memory region {index} (gpa {:#x}, {} bytes at file offset {:#x}) is not made of whole pages within {GUEST_BYTES_MAX} bytes", region.gpa, region.bytes, region.file_offset)]
    BadRegion {
        /// Which.
        index: usize,
        /// The region.
        region: Region,
    },
    /// The file is shorter than a region says.
    #[error(
        "Memory region {index} ends at file offset {end:#x}, behind the file's {file_bytes:#x} bytes"
    )]
    BehindFile {
        /// Which.
        index: usize,
        /// Its end in the file.
        end: u64,
        /// The file's size.
        file_bytes: u64,
    },
    /// The file could be shrunk, which would kill the daemon at its next access.
    #[error(
        "The memory file is not sealed against shrinking (memfd_create with MFD_ALLOW_SEALING, then F_ADD_SEALS F_SEAL_SHRINK)"
    )]
    NotSealed,
    /// The kernel would not tell.
    #[error("Looking at the memory file failed")]
    Stat(#[source] io::Error),
    /// The kernel would not map it, or regions overlap.
    #[error("Mapping the VM's memory failed")]
    Map(#[source] vm_memory::mmap::FromRangesError),
}

/// Maps a VM's memory.
///
/// # Errors
/// When the VMM's description and its file do not fit together, or the file could be shrunk.
pub fn map(fd: OwnedFd, regions: &[Region]) -> Result<GuestMemory, GuestMemoryError> {
    if regions.is_empty() || regions.len() > REGIONS_MAX {
        return Err(GuestMemoryError::RegionCount {
            count: regions.len(),
        });
    }
    let seals = fcntl_get_seals(&fd).map_err(|_| GuestMemoryError::NotSealed)?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(GuestMemoryError::NotSealed);
    }
    let stat = fstat(&fd).map_err(|errno| GuestMemoryError::Stat(errno.into()))?;
    let file_bytes = u64::try_from(stat.st_size).unwrap_or(0);
    let file = File::from(fd);
    let mut ranges = Vec::with_capacity(regions.len());
    for (index, region) in regions.iter().enumerate() {
        let whole = |n: u64| n.is_multiple_of(PAGE_BYTES);
        let fits = region.gpa.checked_add(region.bytes).is_some()
            && (1..=GUEST_BYTES_MAX).contains(&region.bytes)
            && whole(region.gpa)
            && whole(region.bytes)
            && whole(region.file_offset);
        if !fits {
            return Err(GuestMemoryError::BadRegion {
                index,
                region: *region,
            });
        }
        match region.file_offset.checked_add(region.bytes) {
            Some(end) if end <= file_bytes => {}
            end => {
                let end = end.unwrap_or(u64::MAX);
                return Err(GuestMemoryError::BehindFile {
                    index,
                    end,
                    file_bytes,
                });
            }
        }
        let duplicate = file.try_clone().map_err(GuestMemoryError::Stat)?;
        // CAST: at most 4 TiB on a 64-bit host
        ranges.push((
            GuestAddress(region.gpa),
            region.bytes as usize,
            Some(FileOffset::new(duplicate, region.file_offset)),
        ));
    }
    GuestMemory::from_ranges_with_files(ranges).map_err(GuestMemoryError::Map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_file::memory_file;
    use vm_memory::{Bytes, GuestMemoryBackend};

    fn region(gpa: u64, bytes: u64, file_offset: u64) -> Region {
        Region {
            gpa,
            bytes,
            file_offset,
        }
    }

    fn file(bytes: u64) -> OwnedFd {
        memory_file("test", bytes).unwrap().into()
    }

    #[test]
    fn two_regions_of_one_file_are_one_memory() {
        let fd = file(0x4000);
        let view = File::from(fd.try_clone().unwrap());
        let memory = map(
            fd,
            &[region(0, 0x2000, 0), region(0x10_0000, 0x2000, 0x2000)],
        )
        .unwrap();
        memory
            .write_obj(0x1122_3344u32, GuestAddress(0x10_0ffc))
            .unwrap();
        let mut bytes = [0; 4];
        std::os::unix::fs::FileExt::read_at(&view, &mut bytes, 0x2ffc).unwrap();
        assert_eq!(u32::from_le_bytes(bytes), 0x1122_3344);
        assert_eq!(memory.num_regions(), 2);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        use GuestMemoryError as E;
        assert!(matches!(
            map(file(0x1000), &[]),
            Err(E::RegionCount { count: 0 })
        ));
        assert!(matches!(
            map(file(0x1000), &[region(0, 0, 0)]),
            Err(E::BadRegion { .. })
        ));
        assert!(matches!(
            map(file(0x1000), &[region(1, 0x1000, 0)]),
            Err(E::BadRegion { .. })
        ));
        assert!(matches!(
            map(file(0x1000), &[region(u64::MAX - 0xfff, 0x2000, 0)]),
            Err(E::BadRegion { .. })
        ));
        assert!(matches!(
            map(file(0x1000), &[region(0, 0x2000, 0)]),
            Err(E::BehindFile { .. })
        ));
        assert!(matches!(
            map(file(0x1000), &[region(0, 0x1000, !0xfff)]),
            Err(E::BehindFile { .. })
        ));
        assert!(matches!(
            map(
                file(0x2000),
                &[region(0, 0x2000, 0), region(0x1000, 0x1000, 0)]
            ),
            Err(E::Map(_))
        ));
    }

    #[test]
    fn a_file_that_could_shrink_is_refused() {
        let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, 0x1000).unwrap();
        assert!(matches!(
            map(fd, &[region(0, 0x1000, 0)]),
            Err(GuestMemoryError::NotSealed)
        ));
        let (pipe, _other) = std::io::pipe().unwrap();
        assert!(matches!(
            map(pipe.into(), &[region(0, 0x1000, 0)]),
            Err(GuestMemoryError::NotSealed)
        ));
    }
}
