//! Observes what the driver hands out to a program and its children, and filters what they may
//! request of it. Needs no library in the programs and does not trace them.
//!
//! ```text
//!   program --RM_ALLOC, RM_FREE, RM_CONTROL--> seccomp filter --waits--> Listener: reads arguments
//!      |                                                                   |-- lets it proceed
//!      |                                                                   '-- refuses it (police)
//!      '----every other call---------------------------------------------> kernel
//! ```
//!
//! [`Learning::lay_on`] installs the filter before the command begins, and everything that the
//! command starts inherits it. So static binaries, libraries that bind the driver privately and
//! other languages are seen alike. A running program makes no calls of these kinds: launches and
//! copies use memory alone.
//!
//! What this does not guarantee. The arguments are read before the call is made, so that:
//! - A call that the driver then refuses is reported all the same: a handle may name nothing.
//! - Another thread of a hostile program can change the arguments after they were read. It can hide
//!   a channel: the context-switch events then show its time, as untracked or as its process's. It
//!   can name a handle of another process: the daemon gives a client to the first process that
//!   names it, and a client of a process that reported nothing can be named. It can have a control
//!   made that is refused (decision 007 describes what that gains).
//! - Unreadable arguments are not checked, because the driver reads the same memory. A process that
//!   made itself unreadable to a launcher without CAP_SYS_PTRACE is neither observed nor filtered.
//!
//! The kernel reports the calling thread, in the supervisor's own namespace: this is not an
//! allegation.
//!
//! Each holder of the listener has to answer calls: when all holders are gone, the calls fail with
//! ENOSYS.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, poll};
use turnstile_vmm::wire::{ObjectChange, ProgramObject, Userd};

use super::handles::is_kept;
use super::police::{self, Control};
use super::sys::abi::{CLASS_CHANNEL_GROUP, CLASS_DEVICE, escape};
use super::sys::notify::{self, Call, Pending, RawListener};

/// NVOS21 and NVOS64 begin alike: root, parent, new, class, then the address of the parameters.
/// SOURCE: `nvos.h`.
const ALLOC_BYTES: usize = 24;
/// NVOS00: root, parent, old, status. SOURCE: `nvos.h`.
const FREE_BYTES: usize = 16;
/// NVOS54: client, object, command, flags, address and length of the parameters, status. SOURCE:
/// `nvos.h`.
const CONTROL_BYTES: usize = 32;
/// Offset of the status in NVOS54.
const CONTROL_STATUS_AT: u64 = 28;
/// nv_ioctl_xfer_t: number, length, address. SOURCE: `nv-ioctl.h`.
const XFER_BYTES: usize = 16;
/// Offset of the engine type in NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS. SOURCE:
/// `alloc/alloc_channel.h`.
const GROUP_ENGINE_AT: u64 = 12;
/// The GPU's number is the first word of a device's parameters. SOURCE: `class/cl0080.h`.
const DEVICE_NUMBER_AT: u64 = 0;

/// Offsets in NV_CHANNEL_ALLOC_PARAMS, in words: the entries of its ring (gpFifoEntries), the
/// memory of its USERD (hUserdMemory, of the first subdevice) and the offset in that memory
/// (userdOffset, 64 bits). SOURCE: `alloc/alloc_channel.h`; measured on an H200: the words at that
/// place change with launches.
const CHANNEL_RING_AT: usize = 4;
const CHANNEL_USERD_AT: usize = 8;
const CHANNEL_OFFSET_AT: usize = 16;
/// Bytes of these parameters that are read.
const CHANNEL_BYTES: usize = 72;

/// EPERM. SOURCE: `asm-generic/errno-base.h`.
const EPERM: i32 = 1;

/// Maximum number of pending handles that the driver chooses.
const UNNAMED_MAX: usize = 256;
/// Maximum number of polls for one of them.
const READS_MAX: u32 = 1000;

/// What went wrong with the filter.
#[derive(Debug, thiserror::Error)]
pub enum NotifyError {
    /// The kernel lacks user notification.
    #[error(
        "This kernel has no seccomp user notification (Linux 5.5 and CONFIG_SECCOMP_FILTER have)"
    )]
    Unavailable,
    /// The filter could not be installed on the command.
    #[error("The system-call filter was refused{}", if source.raw_os_error() == Some(16) { " (another one with a listener is there already)" } else { "" })]
    Refused {
        /// Error of the kernel.
        source: io::Error,
    },
    /// The listener failed.
    #[error("Listening for the driver's calls failed")]
    Listen(#[source] io::Error),
}

/// Whether the kernel has seccomp user notification.
pub fn is_available() -> bool {
    notify::available()
}

/// A change that a process requested of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The process as the kernel reports it, in the namespace of the supervisor.
    pub pid: u32,
    /// The requested change.
    pub change: ObjectChange,
}

/// A filter installed on a command that has not begun.
#[derive(Debug)]
pub struct Learning(Pending);

impl Learning {
    /// Installs the filter on a command. It takes effect between fork and exec.
    ///
    /// Without CAP_SYS_ADMIN, setuid programs that the command starts gain no rights.
    ///
    /// # Errors
    /// If the kernel lacks user notification or refuses the filter's socket.
    pub fn lay_on(command: &mut Command) -> Result<Self, NotifyError> {
        if !notify::available() {
            return Err(NotifyError::Unavailable);
        }
        notify::filter(command)
            .map(Self)
            .map_err(|source| NotifyError::Refused { source })
    }

    /// The listener; call this after the command was started, or failed to start. None if it failed
    /// before the filter was installed.
    ///
    /// # Errors
    /// If the filter was refused: then the command was not started.
    pub fn listener(self) -> Result<Option<Listener>, NotifyError> {
        match self.0.take() {
            None => Ok(None),
            Some(Ok(raw)) => Ok(Some(Listener {
                raw,
                unnamed: Vec::new(),
                counted: Counted::default(),
            })),
            Some(Err(source)) => Err(NotifyError::Refused { source }),
        }
    }
}

/// An object that is being made; the driver chooses its handle.
#[derive(Clone, Copy, Debug)]
struct Unnamed {
    pid: u32,
    /// Address of the call's arguments.
    argument: u64,
    object: ProgramObject,
    reads: u32,
}

/// The supervisor's end of the filter.
#[derive(Debug)]
pub struct Listener {
    raw: RawListener,
    unnamed: Vec<Unnamed>,
    counted: Counted,
}

/// Calls that a listener received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// All calls.
    pub calls: u64,
    /// Controls among them.
    pub controls: u64,
    /// Controls that were refused.
    pub refused: u64,
    /// Number of the last control that was refused.
    pub last_refused: Option<u32>,
}

impl AsFd for Listener {
    /// Readable when a call waits; hung up when no filtered process is left.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.raw.fd().as_fd()
    }
}

impl Listener {
    /// Takes over a listener that was made elsewhere.
    ///
    /// # Errors
    /// If the kernel has no user notification.
    pub fn from_fd(fd: std::os::fd::OwnedFd) -> Result<Self, NotifyError> {
        Ok(Self {
            raw: RawListener::new(fd).map_err(NotifyError::Listen)?,
            unnamed: Vec::new(),
            counted: Counted::default(),
        })
    }

    /// Receives one call, lets it proceed or refuses it, and appends the change that it makes to
    /// `seen`. Blocks while no call is pending.
    ///
    /// # Errors
    /// If the listener fails; it is unusable then.
    pub fn next(&mut self, seen: &mut Vec<Seen>) -> Result<(), NotifyError> {
        let Some(call) = self.raw.receive().map_err(NotifyError::Listen)? else {
            return Ok(());
        };
        self.counted.calls += 1;
        let decoded = match read(&call) {
            Some(Decoded::Control { control, status_at }) => {
                self.counted.controls += 1;
                if !police::permits(&control) {
                    return self.refuse(&call, control.command, status_at);
                }
                None
            }
            decoded => decoded,
        };
        // If the call still waits, the memory was that thread's, and not that of a later thread
        // with its number.
        let genuine = decoded.is_some() && self.raw.waits(call.id);
        let made = self.raw.proceed(call.id).map_err(NotifyError::Listen)?;
        match decoded {
            Some(Decoded::Change(change)) if genuine && made => seen.push(change),
            Some(Decoded::Unnamed(unnamed))
                if genuine && made && self.unnamed.len() < UNNAMED_MAX =>
            {
                self.unnamed.push(unnamed);
            }
            _ => {}
        }
        Ok(())
    }

    /// Answers calls until no filtered process is left, or the listener fails. Calls `changed` for
    /// each change. Does not wait for handles that the driver chooses.
    pub fn serve(mut self, mut changed: impl FnMut(&Seen)) {
        let mut seen = Vec::new();
        loop {
            let mut fds = [PollFd::new(&self, PollFlags::IN)];
            // An interrupted poll only costs one more iteration.
            let _ = poll(&mut fds, None);
            let ready = fds[0].revents();
            if ready.intersects(PollFlags::HUP | PollFlags::ERR) {
                return;
            }
            if ready.contains(PollFlags::IN) && self.next(&mut seen).is_err() {
                return;
            }
            seen.drain(..).for_each(|seen| changed(&seen));
        }
    }

    /// Refuses a control as the driver does for callers without the right.
    fn refuse(&mut self, call: &Call, command: u32, status_at: u64) -> Result<(), NotifyError> {
        self.counted.refused += 1;
        self.counted.last_refused = Some(command);
        // If the call still waits after the file was opened, the memory is that thread's.
        let memory = File::options()
            .write(true)
            .open(format!("/proc/{}/mem", call.thread))
            .ok()
            .filter(|_| self.raw.waits(call.id));
        let granted = memory.is_some_and(|memory| {
            let status = police::REFUSED.to_ne_bytes();
            memory.write_all_at(&status, status_at).is_ok()
        });
        let errno = if granted { 0 } else { EPERM };
        // A thread that was killed meanwhile needs no answer.
        self.raw
            .answer(call.id, errno)
            .map(|_| ())
            .map_err(NotifyError::Listen)
    }

    /// Counts of the received calls.
    pub const fn counted(&self) -> Counted {
        self.counted
    }

    /// Whether [`Self::settle`] has to be called again, in about a millisecond.
    pub fn is_unsettled(&self) -> bool {
        !self.unnamed.is_empty()
    }

    /// Polls for handles that the driver chooses: they appear in the arguments when the call is
    /// done.
    pub fn settle(&mut self, seen: &mut Vec<Seen>) {
        self.unnamed.retain_mut(|unnamed| {
            unnamed.reads += 1;
            let Some(now) = words::<ALLOC_BYTES>(unnamed.pid, unnamed.argument) else {
                return false;
            };
            let [root, parent, new, class, ..] = now[..] else {
                return false;
            };
            let object = unnamed.object;
            if (root, parent, class) != (object.client, object.parent, object.class) {
                return false; // the memory is used for something else
            }
            if new != 0 {
                seen.push(Seen {
                    pid: unnamed.pid,
                    change: ObjectChange::Made(ProgramObject {
                        handle: new,
                        ..object
                    }),
                });
            }
            new == 0 && unnamed.reads < READS_MAX
        });
    }
}

enum Decoded {
    Change(Seen),
    Unnamed(Unnamed),
    Control {
        control: Control,
        /// Address of its status.
        status_at: u64,
    },
}

/// The relevant request of a call, if it makes one.
fn read(call: &Call) -> Option<Decoded> {
    if call.thread == 0 {
        return None; // in a namespace from which it is not seen; a supervisor is above what it starts
    }
    // CAST: the driver takes the low byte.
    let mut number = call.request as u8;
    let mut argument = call.argument;
    if number == escape::XFER {
        let xfer = words::<XFER_BYTES>(call.thread, argument)?;
        number = xfer[0] as u8;
        argument = address(xfer[2], xfer[3]);
    }
    match number {
        escape::ALLOC => {
            let alloc = words::<ALLOC_BYTES>(call.thread, argument)?;
            let [client, parent, handle, class, low, high] = alloc[..] else {
                return None;
            };
            if !is_kept(class) {
                return None;
            }
            let (mut engine, mut userd) = (0, None);
            match address(low, high) {
                0 => {}
                at if class == CLASS_CHANNEL_GROUP || class == CLASS_DEVICE => {
                    let offset = match class {
                        CLASS_DEVICE => DEVICE_NUMBER_AT,
                        _ => GROUP_ENGINE_AT,
                    };
                    let words = words::<4>(call.thread, at.wrapping_add(offset));
                    engine = words.map_or(0, |words| words[0]);
                }
                at => {
                    userd =
                        words::<CHANNEL_BYTES>(call.thread, at).and_then(|words| userd_of(&words))
                }
            }
            let pid = process_of(call.thread)?;
            let object = ProgramObject {
                client,
                handle,
                class,
                parent,
                engine,
                userd,
            };
            Some(if handle == 0 {
                Decoded::Unnamed(Unnamed {
                    pid,
                    argument,
                    object,
                    reads: 0,
                })
            } else {
                let change = ObjectChange::Made(object);
                Decoded::Change(Seen { pid, change })
            })
        }
        escape::CONTROL => {
            let words = words::<CONTROL_BYTES>(call.thread, argument)?;
            let (command, flags) = (words[2], words[3]);
            let mut params = [0; police::PARAMS_BYTES];
            if police::needs_params(command) {
                let at = address(words[4], words[5]);
                let bytes = params.len().min(words[6] as usize);
                // Unreadable parameters count as zero; the driver refuses what it cannot read.
                let _ = notify::read_memory(call.thread, at, &mut params[..bytes]);
            }
            Some(Decoded::Control {
                control: Control {
                    command,
                    flags,
                    params,
                },
                status_at: argument.wrapping_add(CONTROL_STATUS_AT),
            })
        }
        escape::FREE => {
            let free = words::<FREE_BYTES>(call.thread, argument)?;
            let (client, handle) = (free[0], free[2]);
            let pid = process_of(call.thread)?;
            let change = ObjectChange::Freed { client, handle };
            Some(Decoded::Change(Seen { pid, change }))
        }
        _ => None,
    }
}

/// The USERD that a channel made with these parameters has.
fn userd_of(params: &[u32]) -> Option<Userd> {
    let userd = Userd {
        memory: *params.get(CHANNEL_USERD_AT)?,
        offset: address(
            *params.get(CHANNEL_OFFSET_AT)?,
            *params.get(CHANNEL_OFFSET_AT + 1)?,
        ),
        entries: *params.get(CHANNEL_RING_AT)?,
    };
    // Zero: the driver chooses the memory itself.
    (userd.memory != 0).then_some(userd)
}

const fn address(low: u32, high: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

/// `BYTES` bytes of a process's memory, as words.
fn words<const BYTES: usize>(process: u32, address: u64) -> Option<Vec<u32>> {
    let mut bytes = [0; BYTES];
    if !notify::read_memory(process, address, &mut bytes) {
        return None;
    }
    let word = |bytes: &[u8]| bytes.try_into().map(u32::from_ne_bytes).ok();
    bytes.chunks_exact(4).map(word).collect()
}

/// The process of a thread.
fn process_of(thread: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
#[path = "notify_tests.rs"]
mod tests;
