//! Receiving bytes together with file descriptors (SCM_RIGHTS).
//!
//! `vmm_sys_util::sock_ctrl_msg` could do this but for one thing: it does not set close-on-exec at receipt.

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

/// Room for one SCM_RIGHTS message of up to 250 descriptors, aligned as a `cmsghdr` must be.
const CONTROL_WORDS: usize = 128;

/// Receives up to `buffer.len()` bytes; descriptors that came with them are added to `fds`, close-on-exec. Zero bytes
/// is the end of the stream.
///
/// # Errors
/// As recvmsg(2); `InvalidData` where more than `fds_max` descriptors came at once (those that did arrive are closed).
pub(crate) fn receive(
    stream: &UnixStream,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
    fds_max: usize,
) -> io::Result<usize> {
    let mut control = [const { MaybeUninit::<u64>::zeroed() }; CONTROL_WORDS];
    let mut vector = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: msghdr is a plain C structure for which all zeroes is a valid value.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // The C libraries differ in the type of lengths.
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: `message` points to `vector`, which covers `buffer` exactly, and to `control` with its own length; all
    // three outlive the call.
    let got =
        unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;

    let mut received = Vec::new();
    // SAFETY: the kernel filled `control` and set `msg_controllen`; the CMSG macros stay within that length.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return pointers to whole headers within `control`, or null.
        let (level, kind, length) = unsafe {
            (
                (*header).cmsg_level,
                (*header).cmsg_type,
                (*header).cmsg_len,
            )
        };
        if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
            // SAFETY: pure arithmetic on a length.
            let data_at = unsafe { libc::CMSG_LEN(0) } as usize;
            // CAST: the C libraries differ in the type of lengths.
            #[allow(clippy::unnecessary_cast)]
            let count = (length as usize).saturating_sub(data_at) / size_of::<RawFd>();
            for i in 0..count {
                // SAFETY: the message's data holds `count` descriptors (from `cmsg_len`, written by the kernel); each
                // was installed for this process by recvmsg and is owned by nobody else.
                let fd = unsafe {
                    let at = libc::CMSG_DATA(header).cast::<RawFd>().add(i);
                    OwnedFd::from_raw_fd(at.read_unaligned())
                };
                received.push(fd);
            }
        }
        // SAFETY: as for CMSG_FIRSTHDR; `header` is the one before.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 || received.len() > fds_max {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "more descriptors than a frame may carry",
        ));
    }
    fds.append(&mut received);
    Ok(got)
}

/// The process at the other end of a socket, as it was when it connected, in the namespace of this one.
///
/// # Errors
/// As getsockopt(2); `NotFound` for a process that has no number in this namespace.
pub fn peer_pid(stream: &UnixStream) -> io::Result<u32> {
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
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    u32::try_from(credentials.pid)
        .ok()
        .filter(|pid| *pid != 0)
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}
