//! The device process: alone opens the driver's nodes, and issues the calls of its VM's programs.
//!
//! ```text
//!   program --socket--> thread per program --> check::Vm (one per VM, locked) --> driver
//!                              |                                                    |
//!                              +-- guest RAM, registered with the driver <----------+
//! ```
//!
//! A program's memory that the driver would map is guest RAM instead, so that the doorbell windows
//! are the only pages of the device that a program gets. They are made at start, of a client of the
//! device process. A program that ends, in any way, closes its socket: its files are closed, and
//! the driver frees its clients with them.
//!
//! Locks, outermost first: `flight`, then `vm`, `files`, `lending`, movable memory, each alone.
//! `flight` is read while a call is issued, and written while a client is freed: the driver may
//! give a freed client's handle to another VM. It is written too while memory moves.

mod calls;
mod confine;
mod driver;
mod events;
mod machine;
mod movable;
mod program;
mod ram;
mod ranges;
mod stand_in;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use crate::abi::numbers::class as known;
use crate::abi::{AbiError, Parts, Release};
use crate::check::{Freed, Limits, Made, Vm};
pub use driver::{Driver, Nvidia};
use events::Events;
pub use machine::serve_machine;
use movable::Movable;
use ram::Lending;
pub use stand_in::StandIn;

/// Programs of a VM at a time.
const PROGRAMS_MAX: u64 = 128;

/// Why a device process ends.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The driver's release has no table.
    #[error(transparent)]
    Release(#[from] AbiError),
    /// The driver gives no doorbell windows.
    #[error("The driver gives no doorbell windows")]
    Windows(#[source] io::Error),
    /// Rights could not be given up.
    #[error("The device process cannot be confined")]
    Confine(#[source] io::Error),
    /// The host is short of something.
    #[error("The host is short of something")]
    Host(#[source] io::Error),
}

/// How a device process serves.
#[derive(Debug)]
pub struct Options {
    /// Version of the driver.
    pub version: String,
    /// Limits of the VM.
    pub limits: Limits,
    /// Gets a line for each device, channel and channel group that is made or freed.
    pub report: Option<UnixDatagram>,
    /// Becomes this user if it is the superuser, and gives up files and system calls.
    pub confined: bool,
    /// Takes connections for the daemon, which moves the VM's memory; without it none moves.
    pub memory: Option<OwnedFd>,
}

/// A node that is open.
#[derive(Debug)]
struct Opened {
    file: Option<OwnedFd>,
    driver: Arc<dyn Driver>,
}

impl Opened {
    fn file(&self) -> io::Result<&OwnedFd> {
        self.file
            .as_ref()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.driver.close(file);
        }
    }
}

/// What all programs of a VM share.
#[derive(Debug)]
// FIELDS: what the programs of a VM share, each behind a lock of its own.
pub struct Device {
    release: &'static Release,
    driver: Arc<dyn Driver>,
    vm: Mutex<Vm>,
    flight: RwLock<()>,
    files: Mutex<BTreeMap<u32, Arc<Opened>>>,
    lending: Mutex<Lending>,
    /// By the GPU's number.
    windows: BTreeMap<u8, [OwnedFd; 2]>,
    events: Arc<Events>,
    report: Option<UnixDatagram>,
    next_handle: AtomicU32,
    movable: Option<Movable>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves the programs that connect to `listener`, until `life` is closed and none is connected.
///
/// # Errors
/// If the driver's release is not known, or the host lacks something.
pub fn serve(
    listener: &UnixListener,
    life: &impl AsFd,
    driver: Arc<dyn Driver>,
    options: Options,
) -> Result<(), DeviceError> {
    let device = Device::prepare(driver, options)?;
    // Counts the programs that have ended.
    let ended = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let ended = Arc::new(ended.map_err(|errno| DeviceError::Host(errno.into()))?);
    let mut programs = 0;
    let mut number = 0;
    let mut orphaned = false;
    while !orphaned || programs > 0 {
        let mut fds = vec![
            PollFd::new(&listener, PollFlags::IN),
            PollFd::from_borrowed_fd(ended.as_fd(), PollFlags::IN),
        ];
        if !orphaned {
            fds.push(PollFd::from_borrowed_fd(life.as_fd(), PollFlags::IN));
        }
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(DeviceError::Host(errno.into())),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        orphaned |= ready.get(2) == Some(&true);
        let mut count = [0; 8];
        if ready[1] && rustix::io::read(&*ended, &mut count).is_ok() {
            programs -= u64::from_ne_bytes(count);
        }
        if ready[0]
            && let Ok((socket, _)) = listener.accept()
            && programs < PROGRAMS_MAX
        {
            number += 1;
            programs += 1;
            let (device, over) = (Arc::clone(&device), Ended(Arc::clone(&ended)));
            let name = thread::Builder::new().name("guest-program".to_owned());
            let started = name.spawn(move || {
                // Dropped last, also by a panic.
                let _over = over;
                program::Program::new(&device, number).serve(&socket);
                drop(device);
            });
            if let Err(error) = started {
                log::warn!("A program of the VM has no thread: {error}");
            }
        }
    }
    Ok(())
}

/// Counts a program's thread as ended when it is dropped.
struct Ended(Arc<OwnedFd>);

impl Drop for Ended {
    fn drop(&mut self) {
        // The counter is far from full.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

impl Device {
    /// The driver's windows are made, and rights given up.
    fn prepare(driver: Arc<dyn Driver>, options: Options) -> Result<Arc<Self>, DeviceError> {
        let release = crate::abi::release(&options.version)?;
        if let Some(warning) = release.warning() {
            log::warn!("{warning}");
        }
        if options.confined {
            confine::before_driver().map_err(DeviceError::Confine)?;
        }
        let mut device = Self::new(release, driver, options.limits, options.report)?;
        // The daemon's mover has one GPU: memory of another could not come from it.
        let one = device.windows.len() == 1;
        device.movable = options.memory.filter(|_| one).map(Movable::new);
        if options.confined {
            confine::before_programs(release).map_err(DeviceError::Confine)?;
        }
        let device = Arc::new(device);
        if device.movable.is_some() {
            let own = Arc::downgrade(&device);
            let thread = thread::Builder::new().name("guest-memory".to_owned());
            let started = thread.spawn(move || movable::serve(&own));
            started.map_err(DeviceError::Host)?;
        }
        Ok(device)
    }

    fn new(
        release: &'static Release,
        driver: Arc<dyn Driver>,
        limits: Limits,
        report: Option<UnixDatagram>,
    ) -> Result<Self, DeviceError> {
        let mut windows = BTreeMap::new();
        let mut refused = io::Error::from(io::ErrorKind::NotFound);
        for gpu in driver.gpus() {
            // A container may have nodes that it must not open.
            match driver.windows(gpu) {
                Ok(pair) => drop(windows.insert(gpu, pair)),
                Err(error) => refused = error,
            }
        }
        if windows.is_empty() {
            return Err(DeviceError::Windows(refused));
        }
        Ok(Self {
            release,
            vm: Mutex::new(Vm::new(release, limits)),
            flight: RwLock::new(()),
            files: Mutex::new(BTreeMap::new()),
            lending: Mutex::default(),
            windows,
            events: Events::start().map_err(DeviceError::Host)?,
            driver,
            report,
            // Beyond the handles that libcuda counts up from 0x5c000001.
            next_handle: AtomicU32::new(0x5cf0_0001),
            movable: None,
        })
    }

    fn opened(&self, file: u32) -> io::Result<Arc<Opened>> {
        let files = locked(&self.files);
        files
            .get(&file)
            .cloned()
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    /// Number of a file's descriptor in this process.
    fn descriptor(&self, file: u32, keep: &mut Vec<Arc<Opened>>) -> io::Result<i32> {
        let opened = self.opened(file)?;
        let number = opened.file()?.as_raw_fd();
        keep.push(opened);
        Ok(number)
    }

    /// Takes movable memory from the list that is no longer there, while no call is in flight that
    /// could see it.
    /// Closes a file. The driver frees the clients that were made on it; none of their calls is in
    /// flight then.
    pub(super) fn close(&self, file: u32) {
        let flight = self.flight.write().unwrap_or_else(PoisonError::into_inner);
        let freed = locked(&self.vm).close(file);
        self.events.remove(file);
        let opened = locked(&self.files).remove(&file);
        drop(opened);
        if let Some(movable) = &self.movable {
            movable.closed(file);
        }
        self.forget_memory(&freed);
        drop(flight);
        self.forget(&freed);
        let unmapped = locked(&self.lending).closed(file);
        drop(unmapped);
    }

    fn forget_memory(&self, freed: &[Freed]) {
        let Some(movable) = &self.movable else { return };
        for one in freed {
            if let Freed::Gone { client, handle, .. } = *one {
                movable.freed(client, handle);
            }
        }
    }

    /// Takes note of what is no longer there.
    fn forget(&self, freed: &[Freed]) {
        for one in freed {
            match *one {
                Freed::Gone {
                    client,
                    handle,
                    class,
                } => {
                    self.freed(client, handle);
                    if is_reported(class) {
                        self.report(&format!("- {} {client:x} {handle:x}\n", std::process::id()));
                    }
                }
                Freed::Object { client, handle } => {
                    ranges::free_own(self, client, handle);
                    let below = locked(&self.vm).freed(client, handle);
                    for one in below {
                        if let Freed::Gone { client, handle, .. } = one {
                            self.freed(client, handle);
                        }
                    }
                }
            }
        }
    }

    /// An object is gone, and what its memory was is unmapped without a lock.
    fn freed(&self, client: u32, handle: u32) {
        let gone = locked(&self.lending).freed(client, handle);
        drop(gone);
    }

    fn made(&self, made: &Made, parts: &Parts) {
        if known::is_channel(made.object.class) {
            locked(&self.lending).channel(made, parts.params().unwrap_or_default());
        }
        let Made {
            client,
            handle,
            object,
        } = made;
        if is_reported(object.class) {
            let pid = std::process::id();
            let (class, parent, engine) = (object.class, object.parent, object.detail);
            self.report(&format!(
                "+ {pid} {client:x} {handle:x} {class:x} {parent:x} {engine:x}\n"
            ));
        }
    }

    /// A launcher that does not read loses lines, and delays nothing.
    fn report(&self, line: &str) {
        if let Some(report) = &self.report {
            let _ = report.send(line.as_bytes());
        }
    }
}

/// Whether the launcher gets lines about objects of this class.
fn is_reported(class: u32) -> bool {
    matches!(class, known::ROOT | known::DEVICE | known::CHANNEL_GROUP) || known::is_channel(class)
}
