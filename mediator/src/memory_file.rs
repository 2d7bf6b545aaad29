//! Anonymous files that are shared between processes.

use std::fs::File;
use std::io;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

/// Makes a file of `bytes` zero bytes that lives in memory, closes on exec, and can neither shrink nor grow any more: a
/// peer that maps it cannot be killed by a truncation.
///
/// # Errors
/// The host's, when it has no descriptor or memory left.
pub(crate) fn memory_file(name: &str, bytes: u64) -> io::Result<File> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, bytes)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(File::from(fd))
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
}
