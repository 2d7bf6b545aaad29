//! Anonymous files that are shared between processes.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use vm_memory::{AtomicAccess, Bytes, FileOffset, MmapRegion, VolatileMemory};

/// Makes a file of `bytes` zero bytes that lives in memory, closes on exec, and can neither shrink
/// nor grow any more: a peer that maps it cannot be killed by a truncation.
///
/// # Errors
/// The host's, when it has no descriptor or memory left.
pub fn memory_file(name: &str, bytes: u64) -> io::Result<File> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, bytes)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(File::from(fd))
}

/// Such a file, mapped: words that processes share.
#[derive(Debug)]
pub struct SharedWords {
    file: File,
    region: MmapRegion,
}

impl SharedWords {
    /// A new file of zeroes.
    ///
    /// # Errors
    /// As [`memory_file`], or if it cannot be mapped.
    pub fn new(name: &str, bytes: usize) -> io::Result<Self> {
        Self::of(memory_file(name, bytes as u64)?, bytes)
    }

    /// The words of a file that another process made.
    ///
    /// # Errors
    /// If it cannot be mapped.
    pub fn of(file: File, bytes: usize) -> io::Result<Self> {
        let offset = FileOffset::new(file.try_clone()?, 0);
        let region = MmapRegion::from_file(offset, bytes).map_err(io::Error::other)?;
        Ok(Self { file, region })
    }

    /// The file behind them.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The word at byte `at`. Zero outside, or if it is not aligned.
    pub fn load<T: AtomicAccess + Default>(&self, at: usize) -> T {
        let slice = self.region.as_volatile_slice();
        slice.load(at, Ordering::Acquire).unwrap_or_default()
    }

    /// Sets the word at byte `at`; does nothing outside, or if it is not aligned.
    pub fn store<T: AtomicAccess>(&self, at: usize, value: T) {
        let _ = self
            .region
            .as_volatile_slice()
            .store(value, at, Ordering::Release);
    }
}

/// A second descriptor of a file, with the number `number`, which stays open on exec.
///
/// # Errors
/// `AddrInUse` when the number is taken; else as fcntl(2).
pub fn inherited(file: &File, number: RawFd) -> io::Result<OwnedFd> {
    let fd = fcntl_dupfd_cloexec(file, number)?;
    if fd.as_raw_fd() != number {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    fcntl_setfd(&fd, FdFlags::empty())?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_keeps_its_length() {
        let file = memory_file("turnstile-test", 8192).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 8192);
        assert!(file.set_len(4096).is_err());
        assert!(file.set_len(16384).is_err());
    }

    #[test]
    fn a_used_descriptor_number_is_not_replaced() {
        let file = memory_file("turnstile-test", 4096).unwrap();
        let number = 700;
        let fd = inherited(&file, number).unwrap();
        assert_eq!(fd.as_raw_fd(), number);
        let flags = rustix::io::fcntl_getfd(&fd).unwrap();
        assert!(!flags.contains(FdFlags::CLOEXEC));
        let again = inherited(&file, number).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
    }
}
