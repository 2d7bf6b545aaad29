//! Anonymous files that are shared between processes.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};

/// Makes a file of `bytes` zero bytes that lives in memory, closes on exec, and can neither shrink nor grow any more: a
/// peer that maps it cannot be killed by a truncation.
///
/// # Errors
/// The host's, when it has no descriptor or memory left.
pub(crate) fn memory_file(name: &CStr, bytes: u64) -> io::Result<File> {
    // SAFETY: `name` is a NUL-terminated string that outlives the call; the kernel copies it.
    let fd =
        unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was returned just now and nobody else knows it, so the file owns it alone.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(bytes)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: the descriptor is open for the whole call; this command takes an integer and touches no memory of ours.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_keeps_its_length() {
        let file = memory_file(c"turnstile-test", 8192).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 8192);
        assert!(file.set_len(4096).is_err());
        assert!(file.set_len(16384).is_err());
    }
}
