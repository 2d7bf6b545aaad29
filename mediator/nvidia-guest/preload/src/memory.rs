//! Guest RAM of this process: the file, what of it is mapped, and moving memory there.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use turnstile_nvidia_guest::abi::numbers::PAGE_BYTES;
use turnstile_nvidia_guest::proto::Extent;

use crate::maps::{self, Mapping};
use crate::ram::Space;
use crate::sys;

/// Bytes that are handed out between two searches for pieces that are no longer used.
const COLLECT_EVERY_BYTES: u64 = 256 << 20;

/// Memory of the program that the driver may have.
#[derive(Debug, Default)]
pub(crate) struct Registered {
    pub(crate) extents: Vec<Extent>,
    /// Their file, if that is not guest RAM but one that other processes have too.
    pub(crate) shared: Option<File>,
}

/// Guest RAM.
#[derive(Debug)]
pub(crate) struct Memory {
    file: File,
    inode: u64,
    space: Space,
    since_collected: u64,
    /// Objects of the driver in it: client and handle -> parent, and where they are.
    pub(crate) objects: BTreeMap<(u32, u32), (u32, Vec<Extent>)>,
}

impl Memory {
    /// An empty file as large as the host's memory.
    ///
    /// # Errors
    /// As memfd_create(2).
    pub(crate) fn new() -> io::Result<Self> {
        let info = rustix::system::sysinfo();
        let bytes = u64::from(info.mem_unit.max(1)) * info.totalram;
        let bytes = bytes & !(PAGE_BYTES - 1);
        let file = memfd_create("guest-ram", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let file = File::from(sys::high(file));
        Ok(Self {
            inode: file.metadata()?.ino(),
            file,
            space: Space::new(bytes),
            since_collected: 0,
            objects: BTreeMap::new(),
        })
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn is_own(&self, mapping: &Mapping) -> bool {
        mapping.shared && mapping.inode == self.inode
    }

    /// A piece that nothing uses.
    ///
    /// # Errors
    /// `OutOfMemory` if there is no room.
    pub(crate) fn take(&mut self, bytes: u64) -> io::Result<Extent> {
        if self.since_collected >= COLLECT_EVERY_BYTES {
            self.collect()?;
        }
        self.since_collected += bytes;
        if let Some(piece) = self.space.take(bytes) {
            return Ok(piece);
        }
        self.collect()?;
        self.space
            .take(bytes)
            .ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Frees what is neither mapped nor an object's.
    fn collect(&mut self) -> io::Result<()> {
        let mapped = maps::all()?
            .into_iter()
            .filter(|mapping| self.is_own(mapping));
        let mapped = mapped.map(|mapping| Extent {
            offset: mapping.offset,
            bytes: mapping.to - mapping.from,
        });
        let objects = self
            .objects
            .values()
            .flat_map(|(_, extents)| extents.iter().copied());
        let live: Vec<Extent> = mapped.chain(objects).collect();
        for piece in self.space.collect(&live) {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&self.file, flags, piece.offset, piece.bytes)?;
        }
        self.since_collected = 0;
        Ok(())
    }

    /// Makes a range of addresses guest RAM, without its content.
    ///
    /// # Errors
    /// As mmap(2).
    pub(crate) fn lay(&mut self, address: u64, bytes: u64, protection: i32) -> io::Result<Extent> {
        let piece = self.take(bytes)?;
        let extent = Extent { bytes, ..piece };
        sys::lay(address, bytes, protection, self.file.as_fd(), extent.offset)?;
        Ok(extent)
    }

    /// Makes memory of the program guest RAM, with its content; what is so already stays. A file
    /// that other processes have too stays where it is: CUDA's events between processes are one.
    ///
    /// # Errors
    /// If it is not mapped, or is of several files of which one is shared.
    pub(crate) fn moved(&mut self, from: u64, to: u64) -> io::Result<Registered> {
        let all = maps::all()?;
        let parts = maps::within(&all, from, to)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EFAULT))?;
        let foreign = |part: &Mapping| part.is_shared_file() && !self.is_own(part);
        if parts.iter().any(foreign) {
            let [part] = &parts[..] else {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            };
            let whole = all.iter().find(|mapping| mapping.to > from);
            return Ok(Registered {
                extents: vec![Extent {
                    offset: part.offset,
                    bytes: part.to - part.from,
                }],
                shared: Some(whole.unwrap_or(part).open()?),
            });
        }
        let mut extents: Vec<Extent> = Vec::new();
        for part in parts {
            let bytes = part.to - part.from;
            let extent = if self.is_own(&part) {
                Extent {
                    offset: part.offset,
                    bytes,
                }
            } else {
                let piece = self.take(bytes)?;
                sys::copy_out(
                    part.from,
                    bytes,
                    part.protection,
                    self.file.as_fd(),
                    piece.offset,
                )?;
                sys::lay(
                    part.from,
                    bytes,
                    part.protection,
                    self.file.as_fd(),
                    piece.offset,
                )?;
                Extent { bytes, ..piece }
            };
            match extents.last_mut() {
                Some(last) if last.offset + last.bytes == extent.offset => {
                    last.bytes += extent.bytes
                }
                _ => extents.push(extent),
            }
        }
        Ok(Registered {
            extents,
            shared: None,
        })
    }

    /// Removes an object and those below it. A client is its own handle.
    pub(crate) fn freed(&mut self, client: u32, handle: u32) {
        self.objects.retain(|(of, own), (parent, _)| {
            *of != client || !(handle == client || *own == handle || *parent == handle)
        });
    }

    /// In a forked child: its memory is its own from now on.
    ///
    /// # Errors
    /// As mmap(2).
    pub(crate) fn forked(&self) -> io::Result<()> {
        for mapping in maps::all()?.iter().filter(|mapping| self.is_own(mapping)) {
            let bytes = mapping.to - mapping.from;
            sys::lay_private(
                mapping.from,
                bytes,
                mapping.protection,
                self.file.as_fd(),
                mapping.offset,
            )?;
        }
        Ok(())
    }
}
