//! What the driver hands out to a program and its children, and what they may ask of it, without a library in them and
//! without tracing them.
//!
//! ```text
//!   program --ioctl RM_ALLOC, RM_FREE, RM_CONTROL--> seccomp filter --waits--> Listener: reads the arguments
//!      |                                                                          |-- goes on to the driver
//!      |                                                                          '-- is refused (police)
//!      '----every other call-----------------------------------------------------------------> kernel
//! ```
//!
//! The filter is laid on the command before it begins ([`Learning::lay_on`]) and is inherited by all that it starts, so
//! static binaries, libraries that bind the driver privately and other languages are seen alike. A running program makes
//! no calls of these kinds: launches and copies go by memory alone.
//!
//! What it does not promise. The arguments are read before the call is made, so that
//! - a call that the driver then refuses is reported all the same: a handle may name nothing;
//! - another thread of a hostile program can change them after they were read: it can hide a channel (its time is then
//!   found by the context-switch events, as untracked or as its process's), name a handle that is not its own (the
//!   daemon gives a client to the first process that names it; a client of a process that reported nothing can be named),
//!   or have a control made that is refused (decision 012 says what it gains);
//! - arguments that cannot be read are not looked at: the driver reads the same memory. A process that made itself unreadable
//!   to a launcher without CAP_SYS_PTRACE is neither learnt of nor policed.
//!
//! The kernel says who makes the call, in the supervisor's own namespace: that is not an allegation.
//!
//! Whoever holds the listener has to answer: when all of its holders are gone the calls fail with ENOSYS.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, poll};
use turnstile_vmm::wire::{ObjectChange, ProgramObject, Userd};

use super::handles::is_kept;
use super::police::{self, Control};
use super::sys::abi::{CLASS_CHANNEL_GROUP, escape};
use super::sys::notify::{self, Call, Pending, RawListener};

/// NVOS21 and NVOS64 begin alike: root, parent, new, class, then the address of the parameters. SOURCE: `nvos.h`.
const ALLOC_BYTES: usize = 24;
/// NVOS00: root, parent, old, status. SOURCE: `nvos.h`.
const FREE_BYTES: usize = 16;
/// NVOS54: client, object, command, flags, address and length of the parameters, status. SOURCE: `nvos.h`.
const CONTROL_BYTES: usize = 32;
/// Where NVOS54 has its status.
const CONTROL_STATUS_AT: u64 = 28;
/// nv_ioctl_xfer_t: number, length, address. SOURCE: `nv-ioctl.h`.
const XFER_BYTES: usize = 16;
/// Where NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS has its engine type. SOURCE: `alloc/alloc_channel.h`.
const GROUP_ENGINE_AT: u64 = 12;

/// Where NV_CHANNEL_ALLOC_PARAMS has, in words: the entries of its ring (gpFifoEntries), the memory of its USERD (hUserdMemory, of the first subdevice)
/// and the offset in it (userdOffset, 64 bits). SOURCE: `alloc/alloc_channel.h`; measured on an H200: what lies there moves with launches.
const CHANNEL_RING_AT: usize = 4;
const CHANNEL_USERD_AT: usize = 8;
const CHANNEL_OFFSET_AT: usize = 16;
/// What is read of them.
const CHANNEL_BYTES: usize = 72;

/// EPERM. SOURCE: `asm-generic/errno-base.h`.
const EPERM: i32 = 1;

/// Handles that the driver chooses, awaited at a time.
const UNNAMED_MAX: usize = 256;
/// Times that one is looked for.
const LOOKS_MAX: u32 = 1000;

/// What went wrong with the filter.
#[derive(Debug, thiserror::Error)]
pub enum NotifyError {
    /// The kernel cannot.
    #[error(
        "This kernel has no seccomp user notification (Linux 5.5 and CONFIG_SECCOMP_FILTER have)"
    )]
    Unavailable,
    /// The filter could not be laid on the command.
    #[error("The system-call filter was refused{}", if source.raw_os_error() == Some(16) { " (another one with a listener is there already)" } else { "" })]
    Refused {
        /// Why.
        source: io::Error,
    },
    /// The listener failed.
    #[error("Listening for the driver's calls failed")]
    Listen(#[source] io::Error),
}

/// Whether the kernel has what is needed.
pub fn is_available() -> bool {
    notify::available()
}

/// A change that a process is about to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The process, by the kernel's word, in the namespace of this one.
    pub pid: u32,
    /// What it asks the driver for.
    pub change: ObjectChange,
}

/// A filter laid on a command that has not begun.
#[derive(Debug)]
pub struct Learning(Pending);

impl Learning {
    /// Lays the filter on a command. It takes effect between fork and exec.
    ///
    /// Without CAP_SYS_ADMIN, setuid programs that the command starts gain nothing by it.
    ///
    /// # Errors
    /// If the kernel cannot.
    pub fn lay_on(command: &mut Command) -> Result<Self, NotifyError> {
        if !notify::available() {
            return Err(NotifyError::Unavailable);
        }
        notify::filter(command)
            .map(Self)
            .map_err(|source| NotifyError::Refused { source })
    }

    /// The listener; to be called when the command was started, or was not. None if it was not, for another reason than
    /// the filter.
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

/// An object that is being made, whose handle the driver chooses.
#[derive(Clone, Copy, Debug)]
struct Unnamed {
    pid: u32,
    /// Address of the call's arguments.
    argument: u64,
    object: ProgramObject,
    looks: u32,
}

/// The supervisor's end of the filter.
#[derive(Debug)]
pub struct Listener {
    raw: RawListener,
    unnamed: Vec<Unnamed>,
    counted: Counted,
}

/// Calls that a listener looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// All of them.
    pub calls: u64,
    /// Controls among them.
    pub controls: u64,
    /// Controls that were refused.
    pub refused: u64,
    /// The last one's number.
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

    /// Takes one call that waits (waits for one where there is none), lets it go on or refuses it, and adds what it means to
    /// `seen`.
    ///
    /// # Errors
    /// If the listener fails; it is of no more use then.
    pub fn next(&mut self, seen: &mut Vec<Seen>) -> Result<(), NotifyError> {
        let Some(call) = self.raw.receive().map_err(NotifyError::Listen)? else {
            return Ok(());
        };
        self.counted.calls += 1;
        let asked = match read(&call) {
            Some(Asked::Control { control, status_at }) => {
                self.counted.controls += 1;
                if !police::permits(&control) {
                    return self.refuse(&call, control.command, status_at);
                }
                None
            }
            asked => asked,
        };
        // Only if it still waits was the memory that was read that thread's, not that of a later one of its number.
        let genuine = asked.is_some() && self.raw.waits(call.id);
        let made = self.raw.proceed(call.id).map_err(NotifyError::Listen)?;
        match asked {
            Some(Asked::Change(change)) if genuine && made => seen.push(change),
            Some(Asked::Unnamed(unnamed))
                if genuine && made && self.unnamed.len() < UNNAMED_MAX =>
            {
                self.unnamed.push(unnamed);
            }
            _ => {}
        }
        Ok(())
    }

    /// Answers calls until no filtered process is left, or the listener fails; `changed` hears what they mean. Handles that
    /// the driver chooses are not waited for.
    pub fn serve(mut self, mut changed: impl FnMut(&Seen)) {
        let mut seen = Vec::new();
        loop {
            let mut fds = [PollFd::new(&self, PollFlags::IN)];
            // Interrupted, it looks once more than needed.
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

    /// Answers a control as the driver answers those without the right.
    fn refuse(&mut self, call: &Call, command: u32, status_at: u64) -> Result<(), NotifyError> {
        self.counted.refused += 1;
        self.counted.last_refused = Some(command);
        // The memory is that thread's if it still waits after it was opened.
        let memory = File::options()
            .write(true)
            .open(format!("/proc/{}/mem", call.thread))
            .ok()
            .filter(|_| self.raw.waits(call.id));
        let told = memory.is_some_and(|memory| {
            let status = police::REFUSED.to_ne_bytes();
            memory.write_all_at(&status, status_at).is_ok()
        });
        let errno = if told { 0 } else { EPERM };
        // A thread that was killed meanwhile needs no answer.
        self.raw
            .answer(call.id, errno)
            .map(|_| ())
            .map_err(NotifyError::Listen)
    }

    /// Calls that were looked at.
    pub const fn counted(&self) -> Counted {
        self.counted
    }

    /// Whether [`Self::settle`] is to be called again, in a millisecond or so.
    pub fn is_unsettled(&self) -> bool {
        !self.unnamed.is_empty()
    }

    /// Looks for handles that the driver was asked to choose: they appear in the arguments when the call is done.
    pub fn settle(&mut self, seen: &mut Vec<Seen>) {
        self.unnamed.retain_mut(|unnamed| {
            unnamed.looks += 1;
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
            new == 0 && unnamed.looks < LOOKS_MAX
        });
    }
}

enum Asked {
    Change(Seen),
    Unnamed(Unnamed),
    Control {
        control: Control,
        /// Address of its status.
        status_at: u64,
    },
}

/// What a call asks for, if it is of interest.
fn read(call: &Call) -> Option<Asked> {
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
                at if class == CLASS_CHANNEL_GROUP => {
                    let words = words::<4>(call.thread, at.wrapping_add(GROUP_ENGINE_AT));
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
                Asked::Unnamed(Unnamed {
                    pid,
                    argument,
                    object,
                    looks: 0,
                })
            } else {
                let change = ObjectChange::Made(object);
                Asked::Change(Seen { pid, change })
            })
        }
        escape::CONTROL => {
            let words = words::<CONTROL_BYTES>(call.thread, argument)?;
            let (command, flags) = (words[2], words[3]);
            let mut params = [0; police::PARAMS_BYTES];
            if police::looks_at_params(command) {
                let at = address(words[4], words[5]);
                let bytes = params.len().min(words[6] as usize);
                // What cannot be read is zero, and what the driver cannot read it refuses.
                let _ = notify::read_memory(call.thread, at, &mut params[..bytes]);
            }
            Some(Asked::Control {
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
            Some(Asked::Change(Seen { pid, change }))
        }
        _ => None,
    }
}

/// Where a channel made with these parameters says how far it is.
fn userd_of(params: &[u32]) -> Option<Userd> {
    let userd = Userd {
        memory: *params.get(CHANNEL_USERD_AT)?,
        offset: address(
            *params.get(CHANNEL_OFFSET_AT)?,
            *params.get(CHANNEL_OFFSET_AT + 1)?,
        ),
        entries: *params.get(CHANNEL_RING_AT)?,
    };
    // The driver may be asked to find the memory itself.
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

/// The process that a thread is of.
fn process_of(thread: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
#[path = "notify_tests.rs"]
mod tests;
