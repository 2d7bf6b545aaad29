//! The guest side of this process, and which descriptors are its.

use std::ffi::{CStr, c_char};
use std::io;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use turnstile_nvidia_guest::abi::Node;
use turnstile_nvidia_guest::proto::VARIABLE;

use crate::guest::Guest;

/// Descriptors that are distinguished; higher ones are never those of nodes.
const DESCRIPTORS_MAX: usize = 65_536;

/// Set bits: descriptors that stand for nodes.
static OURS: [AtomicU64; DESCRIPTORS_MAX / 64] =
    [const { AtomicU64::new(0) }; DESCRIPTORS_MAX / 64];
/// Descriptors of the library itself, which the program cannot close.
static OWN: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];
/// The process that connected. A child of vfork has its memory, and must leave it as it is.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// The guest side; another one in a forked child.
static GUEST: AtomicPtr<Mutex<Option<Guest>>> = AtomicPtr::new(std::ptr::null_mut());

/// The device process's socket; `None` if the program is not isolated.
fn socket() -> Option<&'static PathBuf> {
    static SOCKET: OnceLock<Option<PathBuf>> = OnceLock::new();
    let read = || {
        // Runs once, and for all later children.
        // SAFETY: the function makes no requirement of its own; `forked` is async-signal-safe as
        // far as the C library permits allocation after fork.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        std::env::var_os(VARIABLE).map(PathBuf::from)
    };
    SOCKET.get_or_init(read).as_ref()
}

/// The node of a path, if the program is isolated.
///
/// # Safety
/// `path` is null or a C string.
pub(super) unsafe fn node(path: *const c_char) -> Option<Node> {
    if path.is_null() {
        return None;
    }
    // SAFETY: by the caller's contract.
    let node = Node::of(unsafe { CStr::from_ptr(path) }.to_bytes())?;
    socket().map(|_| node)
}

/// Whether a descriptor stands for a node.
pub(super) fn is_ours(descriptor: RawFd) -> bool {
    bit(descriptor).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
        && OWNER.load(Ordering::Relaxed) == std::process::id()
}

/// Whether a descriptor is the library's.
pub(super) fn is_own(descriptor: RawFd) -> bool {
    descriptor >= 0
        && OWN
            .iter()
            .any(|own| own.load(Ordering::Relaxed) == descriptor)
}

/// Notes whether a descriptor stands for a node.
pub(super) fn mark(descriptor: RawFd, ours: bool) {
    if let Some((word, bit)) = bit(descriptor) {
        if ours {
            word.fetch_or(bit, Ordering::AcqRel);
        } else {
            word.fetch_and(!bit, Ordering::AcqRel);
        }
    }
}

fn bit(descriptor: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let at = usize::try_from(descriptor)
        .ok()
        .filter(|at| *at < DESCRIPTORS_MAX)?;
    Some((&OURS[at / 64], 1 << (at % 64)))
}

/// Calls a function with the guest side, which is connected at the first call.
///
/// # Errors
/// The function's; or that of connecting.
pub(super) fn with<T>(work: impl FnOnce(&mut Guest) -> io::Result<T>) -> io::Result<T> {
    let owner = OWNER.load(Ordering::Relaxed);
    if owner != 0 && owner != std::process::id() {
        return Err(io::Error::from_raw_os_error(libc::EIO));
    }
    let mut known = GUEST.load(Ordering::Acquire);
    if known.is_null() {
        let new = Box::into_raw(Box::new(Mutex::new(None)));
        let placed = GUEST.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire);
        // One that came second is lost, which is 200 bytes.
        known = placed.map_or_else(|first| first, |_| new);
    }
    // SAFETY: the box is never freed.
    let guest = unsafe { &*known };
    let mut guest = guest.lock().unwrap_or_else(PoisonError::into_inner);
    if guest.is_none() {
        let path = socket().ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
        let new = Guest::connect(path)?;
        for (own, number) in OWN.iter().zip(new.own()) {
            own.store(number, Ordering::Relaxed);
        }
        OWNER.store(std::process::id(), Ordering::Relaxed);
        *guest = Some(new);
    }
    match guest.as_mut() {
        Some(guest) => work(guest),
        None => Err(io::Error::from_raw_os_error(libc::ENODEV)),
    }
}

/// In a forked child: what stood for nodes does so no longer, and guest RAM is its own copy.
extern "C" fn forked() {
    for word in &OURS {
        word.store(0, Ordering::Release);
    }
    OWNER.store(0, Ordering::Relaxed);
    let known = GUEST.swap(std::ptr::null_mut(), Ordering::AcqRel);
    let own = OWN.each_ref().map(|own| own.swap(-1, Ordering::Relaxed));
    if !known.is_null() {
        // SAFETY: the box is never freed. A lock that another thread of the parent held stays held.
        let guest = unsafe { &*known };
        if let Ok(Some(guest)) = guest.try_lock().as_deref() {
            // One that cannot be mapped stays shared with the parent.
            let _ = guest.memory().forked();
        }
    }
    for number in own.into_iter().filter(|number| *number >= 0) {
        // SAFETY: descriptors of the library; the values that own them are never used again here.
        unsafe { libc::syscall(libc::SYS_close, number) };
    }
}

/// For measurements: number of calls that were forwarded.
///
/// # Safety
/// Takes and touches nothing of the caller's.
// SAFETY: no other library has this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn turnstile_guest_calls() -> u64 {
    if GUEST.load(Ordering::Acquire).is_null() {
        return 0;
    }
    with(|guest| Ok(guest.calls())).unwrap_or(0)
}
