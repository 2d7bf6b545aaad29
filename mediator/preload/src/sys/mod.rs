//! The interposed calls, and the connections out of the program. The crate's only unsafe code.
#![allow(unsafe_code)]

#[macro_use]
mod forward;

mod calls;
mod copies;
mod driver;
mod launches;
mod link;
mod loader;
mod names;
mod streams;
mod tenant;
mod vmm;

use std::ffi::{CStr, c_int, c_ulong, c_void};
use std::mem::zeroed;
use std::sync::OnceLock;

use crate::handles::{WORDS_MAX, line, of_interest};

/// Destination of lines.
#[derive(Clone, Copy)]
enum Target {
    /// A datagram socket.
    Socket(libc::sockaddr_un),
    /// A file that is appended to.
    File(libc::sockaddr_un),
}

static TARGET: OnceLock<Target> = OnceLock::new();

/// Runs before the program's own code, which may change its environment.
#[used]
// SAFETY: the loader calls each address in this section once, with arguments that such a function
// may ignore.
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    link::begin();
    // SAFETY: the name is a C string; no other thread of the program runs yet that could change the
    // environment.
    let value = unsafe { libc::getenv(c"TURNSTILE_HANDLES".as_ptr()) };
    if value.is_null() {
        return;
    }
    // SAFETY: a C string of the environment, which is not changed while it is copied (see above).
    let path = unsafe { CStr::from_ptr(value) };
    // SAFETY: structures of integers, of which zero bytes are a value.
    let (mut address, mut status): (libc::sockaddr_un, libc::stat) =
        unsafe { (zeroed(), zeroed()) };
    // CAST: the constant is small.
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.to_bytes_with_nul();
    if bytes.len() > address.sun_path.len() {
        return;
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        // CAST: the C library's character is signed or not.
        *to = *from as _;
    }
    // SAFETY: a C string and a structure that outlive the call.
    let found = unsafe { libc::stat(path.as_ptr(), &raw mut status) } == 0;
    let socket = found && status.st_mode & libc::S_IFMT == libc::S_IFSOCK;
    let target = if socket {
        Target::Socket(address)
    } else {
        Target::File(address)
    };
    let _ = TARGET.set(target);
}

/// Interposes the C library's `ioctl`.
///
/// That takes any number of arguments after the request, the kernel exactly one. Integers and
/// addresses are passed alike in both forms on the machines of the driver (x86-64 and AArch64).
///
/// # Safety
/// As ioctl(2).
// SAFETY: this name is meant to come before the C library's, and this function keeps its contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's own call, unchanged.
    let result = unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) };
    // CAST: the kernel uses 32 bits of a request; a result of this call has 32 bits.
    if let (0, Some((number, count)), Some(target)) =
        (result, of_interest(request as u32), TARGET.get())
    {
        let mut words = [0_u32; WORDS_MAX];
        for (index, word) in words.iter_mut().take(count).enumerate() {
            // SAFETY: the driver has read and written an argument of this length there.
            *word = unsafe { argument.cast::<u32>().add(index).read_unaligned() };
        }
        // CAST: process numbers are positive.
        let pid = own_pid();
        // SAFETY: the driver has read a group's parameters there, which include the requested word.
        let parameter =
            |at: u64, word: usize| unsafe { (at as *const u32).add(word).read_unaligned() };
        if let Some(line) = line(number, &words[..count], pid, parameter) {
            send(target, line.text());
        }
    }
    result as c_int
}

fn own_pid() -> u32 {
    // SAFETY: the call takes and touches nothing.
    unsafe { libc::getpid() }.unsigned_abs()
}

/// Sends a line through a descriptor that is closed at once: programs close descriptors that they
/// do not know.
fn send(target: &Target, line: &[u8]) {
    // SAFETY: `errno` is a variable of this thread; the program finds in it what its own call left
    // there.
    let errno = unsafe { *libc::__errno_location() };
    match target {
        Target::Socket(address) => {
            let wait = libc::timeval {
                tv_sec: 1,
                tv_usec: 0,
            };
            // SAFETY: addresses and lengths are of structures and bytes that outlive the calls; the
            // descriptor is new and closed here. A launcher that does not read delays the program
            // for a second at most.
            unsafe {
                let socket = libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
                libc::setsockopt(
                    socket,
                    libc::SOL_SOCKET,
                    libc::SO_SNDTIMEO,
                    (&raw const wait).cast(),
                    size_of_val(&wait) as libc::socklen_t,
                );
                libc::sendto(
                    socket,
                    line.as_ptr().cast(),
                    line.len(),
                    libc::MSG_NOSIGNAL,
                    std::ptr::from_ref(address).cast(),
                    size_of_val(address) as libc::socklen_t,
                );
                libc::close(socket);
            }
        }
        Target::File(address) => {
            let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
            // SAFETY: the path is a C string (`begin`); the descriptor is new and closed here.
            unsafe {
                let file = libc::open(address.sun_path.as_ptr(), flags, 0o600);
                libc::write(file, line.as_ptr().cast(), line.len());
                libc::close(file);
            }
        }
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}
