//! The virtual GPU for stock VMMs: serves the device of [`crate::device`] over vfio-user, as a VM
//! of the daemon.
//!
//! ```text
//! VMM --vfio-user--> serving thread: BAR 0 to the device, BAR 1 to the gates, memory, vectors
//!                    link thread:    Hello, gates, answers of the daemon    <--wire--> daemon
//!                    vectors thread: forwards interrupts to the VMM's eventfds
//! ```
//!
//! To the daemon this is an ordinary VMM. It runs as a thread of the daemon's process, or as a
//! process of its own, which then survives restarts of the daemon. The VM becomes a tenant when its
//! driver first touches the device: by then its memory layout is final. While the daemon is gone,
//! the device reports itself lost; it works again when the daemon is back.
//!
//! Locks: memory before link; neither while the device's is held.

mod device;
mod doorbells;
mod link;
mod seldom;
mod vectors;

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::vfio_user::serve;
use crate::wire::Metadata;
use device::Device;
use link::Session;
use log::Level;
pub use seldom::Seldom;

/// How a guest's doorbell writes reach the gates. No message takes a mapping back from a stock VMM,
/// so the gate cannot be in the guest's page tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Doorbells {
    /// Each write is a message.
    #[default]
    Trapped,
    /// Writes go to a page that is polled: no exit, but later notice, and polling costs CPU time.
    Mapped,
}

/// A VM that a stock VMM brings.
#[derive(Clone, Debug)]
pub struct FrontConfig {
    /// Name, unique on the host: 1 to 253 of `[A-Za-z0-9._+-]`.
    pub name: String,
    /// The daemon's socket.
    pub daemon: PathBuf,
    /// Weight; the daemon's default where absent.
    pub weight: Option<u32>,
    /// GPU memory that the VM may own; the daemon's default where absent.
    pub gpu_memory_bytes: Option<u64>,
    /// Instance id, project and labels.
    pub metadata: Metadata,
    /// How doorbell writes reach the gates.
    pub doorbells: Doorbells,
}

/// Serves one VM's device on a socket; stops when dropped.
#[derive(Debug)]
pub struct Front {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    address: Option<PathBuf>,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    /// The connection being served.
    serving: Mutex<Option<UnixStream>>,
}

impl Front {
    /// Serves what connects to `listener`, one VMM at a time.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn start(config: FrontConfig, listener: UnixListener) -> io::Result<Self> {
        let address = listener
            .local_addr()?
            .as_pathname()
            .map(|path| path.to_owned());
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            serving: Mutex::new(None),
        });
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name(format!("vfu-{}", config.name))
            .spawn(move || accept(&config, &listener, &of_thread))?;
        Ok(Self {
            shared,
            thread: Some(thread),
            address,
        })
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        let serving = self.shared.serving.lock();
        if let Some(stream) = &*serving.unwrap_or_else(PoisonError::into_inner) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        if let Some(address) = &self.address {
            // Wakes the accepting thread.
            let _ = UnixStream::connect(address);
            let _ = std::fs::remove_file(address);
        }
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
        if self.thread.take().is_some_and(|t| t.join().is_err()) {
            log::error!("A vfio-user thread panicked");
        }
    }
}

/// Interval between two VMMs on one socket. Limits how fast reconnecting makes and ends tenants.
const PACE: Duration = Duration::from_secs(1);

fn accept(config: &FrontConfig, listener: &UnixListener, shared: &Shared) {
    let seldom = Arc::new(Seldom::default());
    let say = |level, what: fmt::Arguments<'_>| {
        seldom.say(level, format_args!("{}: {what}", config.name));
    };
    let pause = |since: Instant| {
        while !shared.stop.load(Ordering::Acquire) {
            let left = PACE.saturating_sub(since.elapsed());
            if left.is_zero() {
                return;
            }
            thread::park_timeout(left);
        }
    };
    let set = |stream: Option<UnixStream>| {
        let serving = shared.serving.lock();
        *serving.unwrap_or_else(PoisonError::into_inner) = stream;
    };
    for stream in listener.incoming() {
        let since = Instant::now();
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        match stream.and_then(|stream| Ok((stream.try_clone()?, stream))) {
            Ok((copy, stream)) => {
                set(Some(copy));
                say(Level::Info, format_args!("a VMM has connected"));
                match one(config, &seldom, stream) {
                    Ok(()) => say(Level::Info, format_args!("the VMM has left")),
                    Err(error) => {
                        let ended = format_args!("the VMM's connection is ended: {error}");
                        say(Level::Warn, ended);
                    }
                }
                set(None);
            }
            // Too many open files, for one: that may pass.
            Err(error) => {
                say(
                    Level::Error,
                    format_args!("accepting a VMM failed: {error}"),
                );
            }
        }
        pause(since);
    }
}

/// Serves one VMM to its end.
fn one(
    config: &FrontConfig,
    seldom: &Arc<Seldom>,
    stream: UnixStream,
) -> Result<(), Box<dyn std::error::Error>> {
    let session = Session::start(config.clone(), Arc::clone(seldom))?;
    let mut device = Device::new(&session);
    let served = serve(stream, &session.layout(), &mut device);
    session.end();
    Ok(served?)
}
