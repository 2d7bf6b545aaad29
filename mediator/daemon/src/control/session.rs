//! One connection: its socket, its tenant, and the reasons for which the daemon ends it.
//!
//! In goes an error that ends a connection; out comes its text, which a refused peer receives. The
//! control loop owns the connections and calls this.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use turnstile_accounting::TenantId;
use turnstile_vmm::wire::{FrameReader, NoCommonProtocol, WireError};
use uuid::Uuid;

use crate::fleet::Greeting;
use crate::host::{Host, refuse};
use crate::kicks::Kick;
use crate::limits::{Held, Holder, LimitError};
use crate::programs::Program;

/// One connection.
pub(super) struct Session {
    pub(super) stream: UnixStream,
    /// User id of the peer.
    pub(super) uid: u32,
    /// Instance of the declared VM that owns the socket where it connected.
    pub(super) door: Option<Uuid>,
    /// The account of that user, for which the connection and its log lines count.
    pub(super) holder: Holder,
    /// Its place.
    pub(super) _place: Held,
    /// When it was accepted.
    pub(super) since: Instant,
    pub(super) reader: FrameReader,
    /// The process with which the tenant ends (a pidfd), if it can be seen.
    pub(super) owner: Option<OwnedFd>,
    /// Version of the protocol that was chosen for it, if the peer offered a range.
    pub(super) protocol: Option<u32>,
    /// What it is, once its greeting was accepted.
    pub(super) role: Option<Role>,
}

/// What a connection's tenant is.
pub(super) enum Role {
    /// A VM during admission, on another thread. Nothing is read from the VMM meanwhile.
    Starting,
    /// A VM in the queue, with its greeting.
    Waiting(Greeting),
    Vm {
        host: Arc<Host>,
        tenant: TenantId,
        kick: Kick,
    },
    Program {
        program: Program,
        /// Process id in the launcher's namespace -> on this host.
        processes: BTreeMap<u32, u32>,
    },
}

impl Role {
    /// The GPUs that the tenant is on.
    pub(super) fn hosts(&self) -> &[Arc<Host>] {
        match self {
            Self::Starting | Self::Waiting(_) => &[],
            Self::Vm { host, .. } => std::slice::from_ref(host),
            Self::Program { program, .. } => program.hosts(),
        }
    }

    pub(super) const fn tenant(&self) -> Option<TenantId> {
        match self {
            Self::Starting | Self::Waiting(_) => None,
            Self::Vm { tenant, .. } => Some(*tenant),
            Self::Program { program, .. } => Some(program.tenant()),
        }
    }
}

/// Why the daemon ends a connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(
        "it sent another message before its greeting, greeted twice, or sent a message of the other kind of tenant"
    )]
    OutOfOrder,
    #[error(transparent)]
    Protocol(#[from] NoCommonProtocol),
    #[error("it greeted in another version of the protocol than was chosen for it")]
    OtherProtocol,
    #[error("the launcher sent too many changes at once")]
    TooManyChanges,
    #[error("the VMM sent a mailbox request before the last one was answered")]
    MailboxBusy,
    #[error("the VMM changed the VM's memory before the last change was answered")]
    MemoryBusy,
    #[error("{0}; try again in a second")]
    Starting(#[from] LimitError),
    #[error("the descriptor of its owner is no process that this daemon can see")]
    NoOwner,
    #[error("it did not identify itself in time")]
    Silent,
    /// The kernel drops descriptors that exceed a limit, and reports only that some are missing.
    #[error(
        "it sent more descriptors than are permitted, or the daemon may not open so many more files (ulimit -n, LimitNOFILE)"
    )]
    Descriptors,
    /// Already reported to the peer where it was found.
    #[error("{0}")]
    Refused(String),
}

/// Sends a refused peer the reason, if the socket takes it.
pub(super) fn tell(stream: &UnixStream, error: &SessionError) {
    // It was reported where it was found.
    if matches!(error, SessionError::Refused(_)) {
        return;
    }
    refuse(error, stream);
}
