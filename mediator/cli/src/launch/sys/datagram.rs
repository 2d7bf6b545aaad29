//! Datagrams with the sender's process number from the kernel.

use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

/// Words of control data: room for one header and one ucred (16 + 12 bytes, aligned), and more.
const CONTROL_WORDS: usize = 8;

/// Has the kernel add the sender's credentials to each datagram.
///
/// # Errors
/// As setsockopt(2).
pub(in crate::launch) fn want_senders(socket: &UnixDatagram) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the kernel reads the integer, which is borrowed for the whole call. CAST: four bytes.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PASSCRED,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A datagram's bytes and the process that sent it, zero for one that has no number here.
///
/// # Errors
/// As recvmsg(2).
pub(in crate::launch) fn receive(
    socket: &UnixDatagram,
    buffer: &mut [u8],
) -> io::Result<(usize, u32)> {
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
    // CAST: the C libraries differ in the type of lengths.
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: `message` points to `vector`, which covers `buffer` exactly, and to `control` with
    // its own length. All three outlive the call.
    let got =
        unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel filled `control` and set `msg_controllen`; the macro stays within that
    // length. The first header is enough: credentials come before descriptors. There is hardly room
    // for those, and nothing here owns them.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if header.is_null() {
        return Ok((got, 0));
    }
    // SAFETY: a whole header within `control`.
    let (level, kind) = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
    if (level, kind) != (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) {
        return Ok((got, 0));
    }
    // SAFETY: such a header is followed by a ucred, of integers.
    let credentials = unsafe {
        libc::CMSG_DATA(header)
            .cast::<libc::ucred>()
            .read_unaligned()
    };
    Ok((got, u32::try_from(credentials.pid).unwrap_or(0)))
}
