//! The connection to the daemon, through the launcher's socket.

use std::ffi::{CStr, c_int};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use turnstile_preload_wire::{FRAME_BYTES, ToDaemon, ToLibrary, VARIABLE, VERSION};

use crate::heap::Line;

/// TIMEOUT: a daemon answers within a period; a launcher that passes nothing on counts as none.
const ANSWER_S: i64 = 10;
/// TIMEOUT: the daemon has a thread that reads; one that does not for this long counts as lost.
const SEND_S: i64 = 2;

/// The connection to the daemon.
#[derive(Debug)]
pub(super) struct Link {
    address: libc::sockaddr_un,
    /// Held while a frame is sent.
    sending: Mutex<()>,
    /// The descriptor, -1 without one, and the inode of its socket: a program may close descriptors
    /// that it does not know.
    fd: AtomicI32,
    inode: AtomicU64,
    limit_bytes: AtomicU64,
}

/// The link, if the launcher named a socket.
pub(super) static LINK: OnceLock<Link> = OnceLock::new();

/// Reads the environment, before the program can change it.
pub(super) fn begin() {
    let mut name = [0_u8; 32];
    name[..VARIABLE.len()].copy_from_slice(VARIABLE.as_bytes());
    // SAFETY: the name is a C string; no other thread of the program runs yet that could change the
    // environment.
    let value = unsafe { libc::getenv(name.as_ptr().cast()) };
    if value.is_null() {
        return;
    }
    // SAFETY: a C string of the environment, which is not changed while it is copied (see above).
    let path = unsafe { CStr::from_ptr(value) }.to_bytes_with_nul();
    // SAFETY: a structure of integers, of which zero bytes are a value.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    // CAST: the constant is small.
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if path.len() > address.sun_path.len() {
        return;
    }
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        // CAST: the C library's character is signed or not.
        *to = *from as _;
    }
    let link = Link {
        address,
        sending: Mutex::new(()),
        fd: AtomicI32::new(-1),
        inode: AtomicU64::new(0),
        limit_bytes: AtomicU64::new(u64::MAX),
    };
    if LINK.set(link).is_ok() {
        // SAFETY: the function only closes a descriptor, which a child may do.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
}

/// In a child of fork: the connection is its parent's.
extern "C" fn in_child() {
    if let Some(link) = LINK.get() {
        link.close();
    }
}

/// The inode of a descriptor's socket; zero if there is none.
fn inode(fd: c_int) -> u64 {
    // SAFETY: a structure of integers, of which zero bytes are a value.
    let mut status: libc::stat = unsafe { zeroed() };
    // SAFETY: the structure is borrowed for the whole call.
    let found = unsafe { libc::fstat(fd, &raw mut status) } == 0;
    let socket = status.st_mode & libc::S_IFMT == libc::S_IFSOCK;
    if found && socket { status.st_ino } else { 0 }
}

fn limit(fd: c_int, option: c_int, seconds: i64) {
    let wait = libc::timeval {
        tv_sec: seconds,
        tv_usec: 0,
    };
    // SAFETY: the structure outlives the call; the length is its own.
    unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            option,
            (&raw const wait).cast(),
            // CAST: sixteen.
            size_of_val(&wait) as libc::socklen_t,
        );
    }
}

/// Room for one descriptor, aligned like its header.
#[repr(C, align(8))]
struct Control([u8; 32]);

/// Sends one frame.
fn send(fd: c_int, frame: &[u8], descriptor: Option<&OwnedFd>) -> bool {
    let mut control = Control([0; 32]);
    let mut part = libc::iovec {
        iov_base: frame.as_ptr().cast_mut().cast(),
        iov_len: frame.len(),
    };
    // SAFETY: a structure of integers and addresses, of which zero bytes are a value.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if let Some(descriptor) = descriptor {
        // CAST: a few bytes.
        let bytes = size_of::<c_int>() as u32;
        message.msg_control = (&raw mut control).cast();
        // SAFETY: the macros compute; the header is in `control`, which has room for a header and a
        // descriptor.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(bytes) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as _;
            let place = libc::CMSG_DATA(header).cast::<c_int>();
            place.write_unaligned(descriptor.as_raw_fd());
        }
    }
    loop {
        // SAFETY: all that the message names outlives the call.
        let sent = unsafe { libc::sendmsg(fd, &raw const message, libc::MSG_NOSIGNAL) };
        if sent >= 0 {
            // CAST: not negative.
            return sent as usize == frame.len();
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return false;
        }
    }
}

/// Waits for one frame. None at the end of the connection, after the time limit, or if the frame is
/// invalid.
fn receive(fd: c_int) -> Option<(ToLibrary, Option<OwnedFd>)> {
    // One byte more, to notice a longer frame.
    let mut frame = [0_u8; FRAME_BYTES + 1];
    let mut control = Control([0; 32]);
    let mut part = libc::iovec {
        iov_base: frame.as_mut_ptr().cast(),
        iov_len: frame.len(),
    };
    // SAFETY: a structure of integers and addresses, of which zero bytes are a value.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>() as _;
    let got = loop {
        // SAFETY: all that the message names outlives the call.
        let got = unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        if got >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            break got;
        }
    };
    let got = usize::try_from(got).ok().filter(|got| *got > 0)?;
    let mut descriptors = Vec::new();
    // SAFETY: the macros walk through what the kernel wrote into `control`.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: the kernel's header, within `control`.
        let (level, kind, bytes) = unsafe {
            let head = header.read_unaligned();
            // CAST: within `control`.
            (head.cmsg_level, head.cmsg_type, head.cmsg_len as usize)
        };
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: as above.
            let (data, empty) = unsafe { (libc::CMSG_DATA(header), libc::CMSG_LEN(0) as usize) };
            for at in 0..bytes.saturating_sub(empty) / size_of::<c_int>() {
                // SAFETY: the kernel wrote this many descriptors there, which have no other owner.
                descriptors.push(unsafe {
                    OwnedFd::from_raw_fd(data.cast::<c_int>().add(at).read_unaligned())
                });
            }
        }
        // SAFETY: as above.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    let decoded = ToLibrary::decode(&frame[..got], descriptors.len()).ok()?;
    Some((decoded, descriptors.pop()))
}

impl Link {
    /// The descriptor, if it is still the same socket.
    fn open(&self) -> Option<c_int> {
        let fd = self.fd.load(Ordering::Acquire);
        let ours = fd >= 0 && inode(fd) == self.inode.load(Ordering::Acquire);
        ours.then_some(fd)
    }

    /// The tenant's limit, as a daemon reported it last.
    pub(super) fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    fn close(&self) {
        let open = self.open();
        self.fd.store(-1, Ordering::Release);
        if let Some(fd) = open {
            // SAFETY: the descriptor is this connection's, by the inode of its socket.
            unsafe { libc::close(fd) };
        }
    }

    /// Ends the connection; the thread that reads notices, and closes it.
    pub(super) fn end(&self) {
        if let Some(fd) = self.open() {
            // SAFETY: takes numbers.
            unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
        }
    }

    /// Connects and greets. The caller makes the result the connection with [`Self::set`].
    pub(super) fn connect(&self) -> Option<OwnedFd> {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: takes numbers.
        let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
        if fd < 0 {
            return None;
        }
        // SAFETY: the descriptor is new and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        limit(fd, libc::SO_SNDTIMEO, SEND_S);
        limit(fd, libc::SO_RCVTIMEO, ANSWER_S);
        let address = (&raw const self.address).cast();
        // CAST: about a hundred.
        let length = size_of_val(&self.address) as libc::socklen_t;
        // SAFETY: the address and its length are of a structure that outlives the call.
        if unsafe { libc::connect(fd, address, length) } != 0 {
            return None;
        }
        let hello = ToDaemon::Hello { version: VERSION };
        if !send(fd, &hello.encode(), None) {
            return None;
        }
        match receive(fd)? {
            (
                ToLibrary::Welcome {
                    version: VERSION,
                    limit_bytes,
                },
                _,
            ) => {
                self.limit_bytes.store(limit_bytes, Ordering::Relaxed);
                limit(fd, libc::SO_RCVTIMEO, 0);
                Some(socket)
            }
            _ => None,
        }
    }

    /// Makes `socket` the connection.
    pub(super) fn set(&self, socket: OwnedFd) {
        let fd = socket.into_raw_fd();
        self.inode.store(inode(fd), Ordering::Release);
        self.fd.store(fd, Ordering::Release);
    }

    /// Waits for the next frame; None if the connection is gone.
    pub(super) fn next(&self) -> Option<(ToLibrary, Option<OwnedFd>)> {
        let received = self.open().and_then(receive);
        if received.is_none() {
            self.close();
        }
        received
    }
}

impl Line for &Link {
    fn is_up(&self) -> bool {
        self.fd.load(Ordering::Acquire) >= 0
    }

    fn send(&self, message: ToDaemon, fd: Option<OwnedFd>) -> bool {
        let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(socket) = self.open() else {
            return false;
        };
        let sent = send(socket, &message.encode(), fd.as_ref());
        if !sent {
            self.end();
        }
        sent
    }
}
