//! A VM as a tenant of the daemon: the part that any VMM embeds (docs/EMBEDDING.md).
//!
//! ```text
//!   Welcome::request   greeting      -> device identity, doorbell pages, status page, aperture
//!   Welcome::attach    page map, router of interrupts -> Attached, Control
//!   vCPU threads       trapped accesses -> Attached
//!   one thread         Control::run: the daemon's frames -> gates and device
//! ```
//!
//! In: a VM's memory file, its interrupts as eventfds, and what it may move in the guest's view of
//! the doorbell pages ([`PageMap`]). Out: a device that the vCPUs access.
//!
//! Locks: a vCPU takes the device's, then the connection's; the control thread takes one at a time.

mod link;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::VirtualGpu;
use crate::gate::{GateControl, PageMap, PageMapError, SharedPages};
use crate::wire::{ToDaemon, ToVmm, WireError};

pub use crate::sys::fd::sealed_memory;
#[cfg(feature = "vfio-user")]
pub(crate) use link::parking;
pub use link::{LinkHost, NoRoutes, Request, Router, Welcome, interrupts};
use link::{Receiver, Sender};
pub use vm_memory::MmapRegion;
pub use vmm_sys_util::eventfd::EventFd;

/// Why a VM is no tenant.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The daemon could not be reached.
    #[error("Connecting to the daemon at {} failed; start one (turnstile serve), or name its socket with --socket", path.display())]
    Connect {
        /// Its socket.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The daemon does not take the VM.
    #[error("The daemon refused the VM: {0}")]
    Refused(String),
    /// The daemon closed the connection before it answered.
    #[error("The daemon closed the connection without an answer")]
    Closed,
    /// The daemon answered with something that it must not.
    #[error("The daemon broke the protocol: {0}")]
    Protocol(&'static str),
    /// The connection to the daemon failed.
    #[error("Talking to the daemon")]
    Wire(#[from] WireError),
    /// Memory could not be mapped.
    #[error("Setting up memory: {what}")]
    Memory {
        /// What for.
        what: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// An eventfd or a descriptor could not be made.
    #[error("Making a descriptor")]
    Descriptor(#[source] io::Error),
}

/// A VM that is a tenant: its device and its gates.
pub struct Attached<M, R> {
    gpu: Mutex<VirtualGpu<LinkHost<R>>>,
    /// The gates of its channels.
    pub gates: GateControl<M, Arc<SharedPages>>,
    aperture: Arc<MmapRegion<()>>,
    sender: Arc<Sender>,
}

impl<M, R> fmt::Debug for Attached<M, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attached").finish_non_exhaustive()
    }
}

impl<M: PageMap, R: Router> Attached<M, R> {
    /// The device: accesses to its configuration space and registers.
    pub fn gpu(&self) -> MutexGuard<'_, VirtualGpu<LinkHost<R>>> {
        self.gpu.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The GPU memory that the aperture shows: one page if the device has none.
    pub const fn aperture(&self) -> &Arc<MmapRegion<()>> {
        &self.aperture
    }

    /// Ends the connection: the device is lost, and [`Control::run`] returns.
    pub fn detach(&self) {
        self.sender.shut_down();
    }

    #[cfg(feature = "vfio-user")]
    pub(crate) const fn sender(&self) -> &Arc<Sender> {
        &self.sender
    }

    /// Channels that have a gate.
    #[cfg(feature = "vfio-user")]
    pub(crate) fn open_channels(&self, channels: &mut Vec<u32>) {
        channels.clear();
        channels.extend((0..self.gates.channels()).filter(|c| self.gates.state(*c).is_some()));
    }
}

/// Why a frame of the daemon's was not executed.
#[derive(Debug)]
pub(crate) enum Disobedience {
    /// The connection is of no more use.
    Over,
    /// The VM must not go on.
    Gate(PageMapError),
}

impl From<PageMapError> for Disobedience {
    fn from(error: PageMapError) -> Self {
        Self::Gate(error)
    }
}

/// The daemon's frames, for one thread of the VMM.
pub struct Control<M, R> {
    attached: Arc<Attached<M, R>>,
    receiver: Receiver,
}

impl<M, R> fmt::Debug for Control<M, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

impl<M: PageMap, R: Router> Control<M, R> {
    /// Executes the daemon's frames until the connection ends. Then the device is lost, and no
    /// channel has a gate.
    ///
    /// # Errors
    /// If a doorbell page could not be moved: the guest must not go on.
    pub fn run(mut self) -> Result<(), PageMapError> {
        let mut failed = None;
        while let Some(message) = self.receive() {
            match self.execute(message) {
                Ok(None) => {}
                Ok(Some(_)) => {
                    log::warn!(
                        "the daemon sent a message of another kind of tenant, or one that it had sent before"
                    );
                    break;
                }
                Err(Disobedience::Over) => break,
                Err(Disobedience::Gate(error)) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        let ended = self.end();
        failed.map_or(ended, Err)
    }

    /// The next frame; none at the end of the connection.
    pub(crate) fn receive(&mut self) -> Option<ToVmm> {
        self.receiver.receive().unwrap_or_else(|error| {
            log::warn!("connection to the daemon: {error}");
            None
        })
    }

    /// Executes a frame about gates or the mailbox; returns any other frame.
    pub(crate) fn execute(&self, message: ToVmm) -> Result<Option<ToVmm>, Disobedience> {
        let gates = &self.attached.gates;
        match message {
            ToVmm::Gate {
                channel,
                seq,
                state,
            } => {
                let Some(trapped) = gates.set(channel, state)? else {
                    log::warn!("the daemon moved the gate of channel {channel}, which cannot be");
                    return Err(Disobedience::Over);
                };
                let done = ToDaemon::GateDone {
                    channel,
                    seq,
                    trapped,
                };
                let sent = self.attached.sender.send(&done);
                sent.map_err(|_| Disobedience::Over)?;
            }
            ToVmm::ChannelClosed { channel } => gates.remove(channel)?,
            ToVmm::MailboxDone {
                id,
                error,
                text,
                results,
            } => self.attached.gpu().mailbox_done(id, error, &text, results),
            other => return Ok(Some(other)),
        }
        Ok(None)
    }

    /// Ends the connection: a daemon that broke the protocol learns of it.
    pub(crate) fn end(self) -> Result<(), PageMapError> {
        self.attached.detach();
        self.attached.gpu().lose();
        self.attached.gates.remove_all()
    }
}

impl Welcome {
    /// Makes the VM's device. `map` moves doorbell pages in the guest's view; `router` delivers
    /// interrupt messages.
    pub fn attach<M: PageMap, R: Router>(
        self,
        map: M,
        router: R,
    ) -> (Arc<Attached<M, R>>, Control<M, R>) {
        let host = LinkHost {
            sender: Arc::clone(&self.sender),
            interrupts: self.interrupts,
            status: self.status,
            router,
        };
        let channels = self.identity.channels;
        let gates = GateControl::new(channels, map, self.pages, self.parking, self.kick);
        let attached = Arc::new(Attached {
            gpu: Mutex::new(VirtualGpu::new(self.identity, host)),
            gates: gates.trapping_every_write(self.trap_every_write),
            aperture: self.aperture,
            sender: self.sender,
        });
        let control = Control {
            attached: Arc::clone(&attached),
            receiver: self.receiver,
        };
        (attached, control)
    }
}
