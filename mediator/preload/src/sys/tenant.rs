//! The process as a tenant: its heap, its context, and the thread that carries out the daemon's
//! requests.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use turnstile_preload_wire::Pin;

use super::driver::{Real, call};
use super::link::{LINK, Link};
use crate::abi::{Prop, SUCCESS};
use crate::heap::{Heap, Line};
use crate::ordered::Ordered;

/// TIMEOUT: interval between two attempts to connect to a daemon.
const AGAIN: Duration = Duration::from_secs(1);

/// Exit status of a program that cannot go on. SOURCE: sysexits.h: EX_SOFTWARE.
const LOST_STATUS: c_int = 70;

/// Memory that the driver allocated by itself.
pub(super) type Natives = BTreeMap<u64, (Pin, u64)>;

/// The process.
#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) heap: Heap<Real, &'static Link>,
    pub(super) streams: Mutex<Ordered>,
    /// The context with movable memory: the first that allocates; zero once it is destroyed.
    context: AtomicUsize,
    pub(super) device: c_int,
    /// By address or handle.
    natives: Mutex<Natives>,
    /// Captures in progress.
    pub(super) captures: AtomicUsize,
    /// Kinds of refusal that were reported.
    pub(super) printed: AtomicU64,
    process: u32,
}

static TENANT: OnceLock<Tenant> = OnceLock::new();

/// Whether the launcher requests movable memory.
pub(super) fn is_on() -> bool {
    LINK.get().is_some()
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics under these locks; if it did, the program's own calls matter more.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The calling thread's context; zero if there is none.
fn current() -> usize {
    let mut context = 0;
    // SAFETY: the place is borrowed for the whole call.
    let result = unsafe { call::ctx_current(&mut context) };
    if result == SUCCESS { context } else { 0 }
}

/// The tenant, if this process has allocated memory.
pub(super) fn known() -> Option<&'static Tenant> {
    let tenant = TENANT.get()?;
    // A child of fork cannot use the GPU; the driver refuses its calls.
    (tenant.process == std::process::id()).then_some(tenant)
}

/// The tenant of this process or of the one that forked it, without a system call.
pub(super) fn any() -> Option<&'static Tenant> {
    TENANT.get()
}

/// The tenant for a call that allocates in the current context; None if the driver has to do it.
/// The first such call makes the tenant.
pub(super) fn here() -> Option<&'static Tenant> {
    let link = LINK.get()?;
    let context = current();
    if context == 0 {
        return None;
    }
    if TENANT.get().is_none() {
        begin(link, context);
    }
    known().filter(|tenant| tenant.context.load(Ordering::Relaxed) == context)
}

fn begin(link: &'static Link, context: usize) {
    let mut device = 0;
    // SAFETY: the place is borrowed for the whole call.
    if unsafe { call::ctx_device(&mut device) } != SUCCESS {
        return;
    }
    let tenant = Tenant {
        heap: Heap::new(Real, link),
        streams: Mutex::default(),
        context: AtomicUsize::new(context),
        device,
        natives: Mutex::default(),
        captures: AtomicUsize::new(0),
        printed: AtomicU64::new(0),
        process: std::process::id(),
    };
    let mut first = false;
    let tenant = TENANT.get_or_init(|| {
        first = true;
        tenant
    });
    if !first {
        return;
    }
    greet(link);
    // SAFETY: the function has no precondition. Registered after the driver's own, it is called
    // before that.
    unsafe { libc::atexit(leave) };
    without_signals(|| {
        let thread = thread::Builder::new().name("turnstile-memory".into());
        if thread.spawn(move || obey(tenant, link, context)).is_err() {
            eprintln!("turnstile: no thread; memory of this program does not move");
        }
    });
}

/// Connects for the first time.
pub(super) fn greet(link: &'static Link) {
    static GREETING: Mutex<()> = Mutex::new(());
    let _one = lock(&GREETING);
    if !link.is_up()
        && let Some(socket) = link.connect()
    {
        link.set(socket);
    }
}

/// The process is ending: its memory stays where it is from now on. The driver's last calls wait
/// for the GPU under locks for which the thread here would wait; and a tenant without movable
/// memory is let run. All chunks have to be resident: code that ends later may still copy from
/// them.
extern "C" fn leave() {
    if let Some(tenant) = known() {
        tenant.heap.gated(|| tenant.heap.keep_all(), |()| false);
    }
}

/// Threads that `start` makes get none of the program's signals.
fn without_signals(start: impl FnOnce()) {
    // SAFETY: sets of integers, which the calls fill in; all outlive the calls.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (zeroed(), zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
    }
}

/// The thread that carries out the daemon's requests.
fn obey(tenant: &'static Tenant, link: &'static Link, context: usize) {
    // SAFETY: the context of the first call; a destroyed one is refused.
    unsafe { call::ctx_set(context) };
    loop {
        while let Some((message, fd)) = link.next() {
            if !tenant.heap.obey(message, fd) {
                // An answer without a request, or a daemon that is gone: the next frame shows
                // which.
                continue;
            }
        }
        let lost_bytes = tenant.heap.daemon_disconnected();
        if lost_bytes > 0 {
            end(lost_bytes);
        }
        loop {
            thread::sleep(AGAIN);
            if let Some(socket) = link.connect() {
                tenant.heap.announce(|| link.set(socket));
                break;
            }
        }
    }
}

/// Ends the process, because memory was lost with the daemon. Its results without that memory would
/// be wrong, and its channels may stay suspended for ever.
fn end(lost_bytes: u64) -> ! {
    eprintln!(
        "turnstile: {lost_bytes} bytes of this program's GPU memory were at the host when the daemon ended, or let go of it, and are lost; the program is ended (docs/NVIDIA.md)"
    );
    // SAFETY: takes a number; no code of the program runs any more, which could wait for its GPU.
    unsafe { libc::_exit(LOST_STATUS) }
}

impl Tenant {
    /// Plain memory of the tenant's GPU.
    pub(super) const fn prop(&self) -> Prop {
        Prop::on(self.device)
    }

    /// Ends the heap, if its context is about to be destroyed.
    pub(super) fn ends(&self, context: Option<usize>, device: Option<c_int>) {
        let ours = self.context.load(Ordering::Relaxed);
        let ends = context == Some(ours) || device == Some(self.device);
        if ends && self.context.swap(0, Ordering::Relaxed) != 0 {
            *lock(&self.streams) = Ordered::default();
            self.heap.context_destroyed();
        }
    }

    /// Counts memory that the driver has allocated by itself.
    pub(super) fn native(&self, key: u64, pin: Pin, bytes: u64) {
        lock(&self.natives).insert(key, (pin, bytes));
        self.heap.pinned(pin, bytes, true);
    }

    /// Counts memory that the driver has freed by itself.
    pub(super) fn native_freed(&self, key: u64) {
        let known = lock(&self.natives).remove(&key);
        if let Some((pin, bytes)) = known {
            self.heap.pinned(pin, bytes, false);
        }
    }

    /// Prints a message on the program's standard error, once per kind.
    pub(super) fn print_once(&self, kind: u32, text: &str) {
        let bit = 1 << kind;
        if self.printed.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            eprintln!("turnstile: {text}");
        }
    }
}
