//! The user at the other end of a Unix socket. The standard library does not tell it, and rustix has no value for the process of
//! another namespace, which the kernel numbers 0.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

/// The user that the peer was when it connected.
pub(super) fn peer_uid(socket: &impl AsRawFd) -> io::Result<u32> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    // CAST: twelve bytes.
    let mut length = size_of_val(&credentials) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to the structure; both are borrowed for the whole call.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    if rc == 0 {
        Ok(credentials.uid)
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_its_user() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(peer_uid(&ours).unwrap(), own);
        assert!(peer_uid(&std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
