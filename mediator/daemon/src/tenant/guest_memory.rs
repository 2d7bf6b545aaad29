//! A VM's memory in the daemon: mapped from the VMM's memory file after all checks.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};
use turnstile_abi::PAGE_BYTES;
use turnstile_vmm::wire::Region;
use vm_memory::mmap::FromRangesError;
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestRegionCollectionError,
    GuestRegionMmap,
};

use turnstile_gpu::GuestMemory;
use turnstile_host::room::has_room;

/// Most regions of one VM's memory.
pub(crate) const REGIONS_MAX: usize = 16;
/// Most regions of a VM that maps its memory in parts. A process has 65,530 mappings
/// (vm.max_map_count), for all VMs.
pub(crate) const MAPPED_MAX: usize = 128;
/// Most memory of one VM.
pub(crate) const GUEST_BYTES_MAX: u64 = 4 << 40;

/// The file system of memory files in huge pages. SOURCE: linux/magic.h, HUGETLBFS_MAGIC.
const HUGETLBFS: i64 = 0x9584_58f6;

/// Why a VM's memory was not taken.
#[derive(Debug, thiserror::Error)]
pub enum GuestMemoryError {
    /// It is beyond a bound of the daemon's address space.
    #[error(transparent)]
    Limit(#[from] crate::limits::LimitError),
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
    /// The file ends before a region does.
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
    /// Its pages may be missing when they are touched, however it is sealed. Another process that
    /// takes huge pages or punches holes would kill the daemon.
    #[error(
        "The memory file is in huge pages of hugetlbfs, which may run out; transparent huge pages are taken (/sys/kernel/mm/transparent_hugepage/shmem_enabled)"
    )]
    HugePages,
    /// Pages of it would be made, and charged to the daemon's control group, when the GPU writes to
    /// them.
    #[error(
        "The memory file has {allocated} of {bytes} bytes allocated, and this daemon takes whole ones (safety.preallocated_memory): have the VMM allocate its memory (QEMU: prealloc=on; Cloud Hypervisor: prefault=on; turnstile vmm: --prealloc)"
    )]
    Holes {
        /// Bytes of its pages.
        allocated: u64,
        /// Its size.
        bytes: u64,
    },
    /// The kernel did not report its properties.
    #[error("Looking at the memory file failed")]
    Stat(#[source] io::Error),
    /// With it the daemon could have no memory of its own any more.
    #[error("The daemon has no address space left for it")]
    NoRoom,
    /// The kernel did not map it.
    #[error("Mapping the VM's memory failed")]
    Map(#[source] FromRangesError),
    /// Regions overlap, or one that is taken away is not there.
    #[error("The VM's memory regions overlap, or one is not there")]
    Overlap(#[source] GuestRegionCollectionError),
    /// As many regions as a VM may have.
    #[error("The VM has {MAPPED_MAX} memory regions mapped, which is the limit")]
    TooManyMapped,
}

/// Maps a VM's memory; without regions it has none yet, and needs no file.
///
/// # Errors
/// When the VMM's description and its file do not fit together, or the file could be shrunk.
pub(crate) fn map(
    fd: Option<OwnedFd>,
    regions: &[Region],
) -> Result<GuestMemory, GuestMemoryError> {
    let memory = GuestMemory::from(GuestMemoryMmap::new());
    let Some(fd) = fd else {
        return match regions.len() {
            0 => Ok(memory),
            count => Err(GuestMemoryError::RegionCount { count }),
        };
    };
    if regions.is_empty() || regions.len() > REGIONS_MAX {
        return Err(GuestMemoryError::RegionCount {
            count: regions.len(),
        });
    }
    let (file, file_bytes) = checked_file(fd)?;
    for (index, region) in regions.iter().enumerate() {
        let duplicate = file.try_clone().map_err(GuestMemoryError::Stat)?;
        let mapped = map_region(duplicate, file_bytes, index, *region)?;
        memory.add(mapped).map_err(GuestMemoryError::Overlap)?;
    }
    Ok(memory)
}

/// Maps one more region, which has a file of its own.
///
/// # Errors
/// As [`map`], or when the VM has [`MAPPED_MAX`] regions.
pub(crate) fn add(
    memory: &GuestMemory,
    fd: OwnedFd,
    region: Region,
) -> Result<(), GuestMemoryError> {
    let count = memory.now().num_regions();
    if count >= MAPPED_MAX {
        return Err(GuestMemoryError::TooManyMapped);
    }
    let (file, file_bytes) = checked_file(fd)?;
    let mapped = map_region(file, file_bytes, count, region)?;
    memory.add(mapped).map_err(GuestMemoryError::Overlap)
}

/// Whether all pages of a memory file are there, so that they are charged to the control group of
/// the process that made them.
///
/// # Errors
/// If some are not.
pub(crate) fn is_allocated(fd: &OwnedFd) -> Result<(), GuestMemoryError> {
    let stat = fstat(fd).map_err(|errno| GuestMemoryError::Stat(errno.into()))?;
    // SOURCE: stat(2): blocks are of 512 bytes, whatever the block size.
    let allocated = u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
    let bytes = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    if allocated < bytes {
        return Err(GuestMemoryError::Holes { allocated, bytes });
    }
    Ok(())
}

/// A file that cannot shrink and that has its pages when they are touched, and its size.
fn checked_file(fd: OwnedFd) -> Result<(File, u64), GuestMemoryError> {
    let seals = fcntl_get_seals(&fd).map_err(|_| GuestMemoryError::NotSealed)?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(GuestMemoryError::NotSealed);
    }
    let stat_error = |errno: rustix::io::Errno| GuestMemoryError::Stat(errno.into());
    if fstatfs(&fd).map_err(stat_error)?.f_type == HUGETLBFS {
        return Err(GuestMemoryError::HugePages);
    }
    let stat = fstat(&fd).map_err(stat_error)?;
    Ok((File::from(fd), u64::try_from(stat.st_size).unwrap_or(0)))
}

fn map_region(
    file: File,
    file_bytes: u64,
    index: usize,
    region: Region,
) -> Result<GuestRegionMmap<()>, GuestMemoryError> {
    let whole = |n: u64| n.is_multiple_of(PAGE_BYTES);
    let fits = region.gpa.checked_add(region.bytes).is_some()
        && (1..=GUEST_BYTES_MAX).contains(&region.bytes)
        && whole(region.gpa)
        && whole(region.bytes)
        && whole(region.file_offset);
    if !fits {
        return Err(GuestMemoryError::BadRegion { index, region });
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
    let file = FileOffset::new(file, region.file_offset);
    // CAST: at most 4 TiB on a 64-bit host
    let mapped =
        GuestRegionMmap::from_range(GuestAddress(region.gpa), region.bytes as usize, Some(file))
            .map_err(GuestMemoryError::Map)?;
    // Afterwards: a check of this many bytes would be one of memory, and not of addresses.
    has_room(0)
        .then_some(mapped)
        .ok_or(GuestMemoryError::NoRoom)
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnstile_host::memory_file::memory_file;

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
            Some(fd),
            &[region(0, 0x2000, 0), region(0x10_0000, 0x2000, 0x2000)],
        )
        .unwrap();
        memory
            .write_obj(0x1122_3344u32, GuestAddress(0x10_0ffc))
            .unwrap();
        let mut bytes = [0; 4];
        std::os::unix::fs::FileExt::read_at(&view, &mut bytes, 0x2ffc).unwrap();
        assert_eq!(u32::from_le_bytes(bytes), 0x1122_3344);
        assert_eq!(memory.now().num_regions(), 2);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        use GuestMemoryError as E;
        assert!(matches!(
            map(Some(file(0x1000)), &[]),
            Err(E::RegionCount { count: 0 })
        ));
        assert!(matches!(
            map(Some(file(0x1000)), &[region(0, 0, 0)]),
            Err(E::BadRegion { .. })
        ));
        assert!(matches!(
            map(Some(file(0x1000)), &[region(1, 0x1000, 0)]),
            Err(E::BadRegion { .. })
        ));
        assert!(matches!(
            map(Some(file(0x1000)), &[region(u64::MAX - 0xfff, 0x2000, 0)]),
            Err(E::BadRegion { .. })
        ));
        assert!(matches!(
            map(Some(file(0x1000)), &[region(0, 0x2000, 0)]),
            Err(E::BehindFile { .. })
        ));
        assert!(matches!(
            map(Some(file(0x1000)), &[region(0, 0x1000, !0xfff)]),
            Err(E::BehindFile { .. })
        ));
        assert!(matches!(
            map(
                Some(file(0x2000)),
                &[region(0, 0x2000, 0), region(0x1000, 0x1000, 0)]
            ),
            Err(E::Overlap(_))
        ));
    }

    #[test]
    fn a_file_that_could_shrink_is_refused() {
        let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, 0x1000).unwrap();
        assert!(matches!(
            map(Some(fd), &[region(0, 0x1000, 0)]),
            Err(GuestMemoryError::NotSealed)
        ));
        let (pipe, _other) = std::io::pipe().unwrap();
        assert!(matches!(
            map(Some(pipe.into()), &[region(0, 0x1000, 0)]),
            Err(GuestMemoryError::NotSealed)
        ));
    }

    /// A region that a front adds (vfio-user maps memory in parts) needs the same seal.
    #[test]
    fn added_region_is_mapped_only_if_its_file_cannot_shrink() {
        use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
        let memory = GuestMemory::from(GuestMemoryMmap::new());
        let with = |seals| {
            let fd = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
            ftruncate(&fd, 0x1000).unwrap();
            fcntl_add_seals(&fd, seals).unwrap();
            add(&memory, fd, region(0, 0x1000, 0))
        };
        for seals in [SealFlags::empty(), SealFlags::GROW, SealFlags::SEAL] {
            let refused = with(seals);
            assert!(matches!(refused, Err(GuestMemoryError::NotSealed)));
            assert_eq!(memory.now().num_regions(), 0);
        }
        with(SealFlags::SHRINK).unwrap();
        memory.write_obj(7u32, GuestAddress(0xffc)).unwrap();
    }

    #[test]
    fn file_with_a_hole_is_not_allocated() {
        let fd = file(0x4000);
        let allocate = |bytes| {
            let flags = rustix::fs::FallocateFlags::empty();
            rustix::fs::fallocate(&fd, flags, 0, bytes).unwrap();
        };
        for (bytes, all) in [(0, false), (0x3000, false), (0x4000, true)] {
            if bytes > 0 {
                allocate(bytes);
            }
            match is_allocated(&fd) {
                Ok(()) => assert!(all, "{bytes:#x}"),
                Err(GuestMemoryError::Holes {
                    allocated,
                    bytes: of,
                }) => {
                    assert_eq!((allocated, of, all), (bytes, 0x4000, false));
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Sealed as it may be, it has no page: the first touch would end this process.
    #[test]
    fn huge_pages_that_may_not_be_there_are_refused() {
        use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create};
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let Ok(fd) = memfd_create("test", flags) else {
            println!("SKIPPED: this kernel has no memory files in huge pages");
            return;
        };
        rustix::fs::ftruncate(&fd, 1 << 30).unwrap();
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        assert!(matches!(
            map(Some(fd), &[region(0, 0x20_0000, 0)]),
            Err(GuestMemoryError::HugePages)
        ));
    }
}
