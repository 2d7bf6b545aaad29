//! Receives bytes together with file descriptors (SCM_RIGHTS), and identifies the peer process.
//!
//! `vmm_sys_util::sock_ctrl_msg` is not used here: it does not set close-on-exec at receipt.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::cmsg_space;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

/// Descriptors that one message may have. SOURCE: the kernel's `net/scm.h`, SCM_MAX_FD.
const DESCRIPTORS: usize = 253;

/// Receives up to `buffer.len()` bytes. Descriptors received with them are added to `fds`,
/// close-on-exec. Zero bytes is the end of the stream.
///
/// # Errors
/// As recvmsg(2); `InvalidData` if more than `fds_max` descriptors came at once. Those that did
/// arrive are closed.
pub(crate) fn receive(
    stream: &UnixStream,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
    fds_max: usize,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = recvmsg(
        stream,
        &mut [IoSliceMut::new(buffer)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let rights = |message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    };
    let mut received: Vec<OwnedFd> = control.drain().filter_map(rights).flatten().collect();
    if message.flags.contains(ReturnFlags::CTRUNC) || received.len() > fds_max {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "more descriptors than a frame may carry",
        ));
    }
    fds.append(&mut received);
    Ok(message.bytes)
}

/// The process at the other end of a socket, as it was when it connected, in the namespace of this
/// process.
///
/// # Errors
/// As getsockopt(2); `NotFound` for a process that has no number in this namespace.
pub fn peer_pid(stream: &UnixStream) -> io::Result<u32> {
    u32::try_from(peer(stream)?.pid)
        .ok()
        .filter(|pid| *pid != 0)
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The user at the other end of a socket, as it was when it connected.
///
/// # Errors
/// As getsockopt(2).
pub fn peer_uid(stream: &UnixStream) -> io::Result<u32> {
    peer(stream).map(|credentials| credentials.uid)
}

/// Credentials of the peer at connection. (rustix has no value for the process of another
/// namespace, which the kernel numbers 0.)
fn peer(stream: &UnixStream) -> io::Result<libc::ucred> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    // CAST: twelve bytes.
    let mut length = size_of_val(&credentials) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to the structure; both are borrowed for the
    // whole call.
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
    Ok(credentials)
}
