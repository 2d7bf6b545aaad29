//! The protocol between a VMM, or the launcher of a program, and the daemon, over the daemon's Unix
//! stream socket.
//!
//! A frame is a little-endian u32 length and that many bytes of JSON. File descriptors arrive with
//! the frame's first bytes (SCM_RIGHTS). The VMM sends [`ToDaemon::Offer`] first, and reads the
//! version of the protocol from [`ToVmm::Chosen`]. Then it sends [`ToDaemon::Hello`]; the daemon
//! answers [`ToVmm::Welcome`]. A daemon that refuses either sends [`ToVmm::Refused`] and closes.
//! The end of the connection ends the tenant, whatever other process has a copy of the socket. So
//! does the end of the process that connected, or of the one that [`ToDaemon::Owner`] names.
//!
//! The launcher of a program sends [`ToDaemon::Program`] for Hello; the answer is
//! [`ToVmm::Admitted`]. From then on it reports the program's processes, the objects that the
//! driver makes for them, and their end. When the connection is lost, the program continues without
//! a tenant. The launcher then connects again and repeats its reports.
//!
//! Neither side trusts the other's lengths, numbers or descriptors: both check them once, on
//! receipt.

mod frame;
mod metadata;
mod protocols;

pub use crate::sys::scm::{peer_pid, peer_uid};
pub use frame::{Frame, FrameReader, FrameWriter, Read, WireError, encode, send};

pub use metadata::Metadata;
pub use protocols::{Agreed, GPUS_SINCE, NoCommonProtocol, PROTOCOL, Protocols};

use crate::gate::GateState;
use serde::{Deserialize, Serialize};

/// Longest frame, without its length: all labels at their limits fit, each character escaped.
pub const FRAME_BYTES_MAX: usize = 32 << 10;
/// Most descriptors with one frame: guest memory and one eventfd per interrupt vector.
pub(crate) const FRAME_FDS_MAX: usize = 1 + turnstile_abi::pci::VECTORS as usize;

/// Most changes in one [`ToDaemon::Objects`].
pub const CHANGES_MAX: usize = 64;

/// A range of guest-physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Region {
    /// First guest-physical address.
    pub gpa: u64,
    /// Bytes.
    pub bytes: u64,
    /// Where the range begins in the memory file.
    pub file_offset: u64,
}

/// An object that the GPU's driver made for a program, by the driver's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramObject {
    /// The driver's client that owns it.
    pub client: u32,
    /// Its handle there.
    pub handle: u32,
    /// Its class.
    pub class: u32,
    /// Handle of its parent object.
    pub parent: u32,
    /// Engine that a channel group was made for; zero for others.
    pub engine: u32,
    /// The channel's USERD, if its location was observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub userd: Option<Userd>,
}

/// Location of a channel's USERD, which holds GP_GET and GP_PUT: how far the host engine has read
/// the ring, and how far the program has filled it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Userd {
    /// Handle of the memory that contains it, of the same client.
    pub memory: u32,
    /// Offset in that memory, in bytes.
    pub offset: u64,
    /// Entries of the ring.
    pub entries: u32,
}

/// A change of a program's object. Reported by the program, so not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case", deny_unknown_fields)]
pub enum ObjectChange {
    /// It was made.
    Made(ProgramObject),
    /// It, and all that was below it, was freed.
    Freed {
        /// The driver's client.
        client: u32,
        /// Its handle there.
        handle: u32,
    },
}

// Serde passes fields by address.
#[allow(clippy::trivially_copy_pass_by_ref)]
const fn is_not(flag: &bool) -> bool {
    !*flag
}

/// The GPUs that a program is to run on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gpus {
    /// One, which the daemon chooses.
    #[default]
    Placed,
    /// All that take tenants.
    All,
    /// These: each an identity, or a place in the list of the daemon's GPUs, from 0.
    Named(Vec<String>),
    /// Those of an earlier admission, by identity: the program is on them.
    Kept(Vec<String>),
}

impl Gpus {
    fn is_placed(&self) -> bool {
        *self == Self::Placed
    }
}

/// From a VMM or a launcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum ToDaemon {
    /// First frame: the versions that the peer speaks. Its form is the same in all versions. A peer
    /// that sends a greeting at once speaks the greeting's version alone.
    Offer(Protocols),
    /// The tenant ends with this process, a pidfd, and no longer with the one that connected. For a
    /// process that connects and passes the socket on.
    Owner {},
    /// Greeting of a VM. Descriptors: the guest memory's memfd, sealed against shrinking; then one
    /// eventfd per vector, which the daemon signals to raise the interrupt. Without regions there
    /// is no memfd: the memory follows in [`Self::MapMemory`], if the GPU supports that.
    Hello {
        /// The version that the daemon chose, or without an offer one that it speaks.
        protocol: u32,
        /// Name of the VM, unique on the host: 1 to 253 of `[A-Za-z0-9._+-]`.
        name: String,
        /// Weight, 1 to 10000; the daemon's default where absent.
        weight: Option<u32>,
        /// GPU memory the VM may own; the daemon's default where absent.
        gpu_memory_bytes: Option<u64>,
        /// The guest memory.
        regions: Vec<Region>,
        /// Instance id, project and labels.
        #[serde(default, skip_serializing_if = "Metadata::is_empty")]
        metadata: Metadata,
    },
    /// A request from the guest's mailbox; one at a time.
    Mailbox {
        /// Number of the request, for the answer.
        id: u64,
        /// Operation, unchecked.
        op: u32,
        /// Arguments, unchecked.
        args: [u64; turnstile_abi::MAILBOX_ARGS],
    },
    /// A gate has been moved as requested: no write reaches the page any more (closed, watched), or
    /// all do (open).
    GateDone {
        /// Channel.
        channel: u32,
        /// Number of the request.
        seq: u64,
        /// Trapped doorbell writes of this channel since it was opened. Writes through an open
        /// gate, and those parked at a closed one after the first, do not trap and are not counted.
        trapped: u64,
    },
    /// Guest memory that the device may use from now on; one change at a time. Descriptor: a memfd
    /// as in Hello.
    MapMemory {
        /// Number of the change, for the answer.
        id: u64,
        /// The memory.
        region: Region,
    },
    /// Guest memory that the device may use no longer: a region, as it was mapped. An access in
    /// progress when this is answered may still end.
    UnmapMemory {
        /// Number of the change, for the answer.
        id: u64,
        /// First guest-physical address.
        gpa: u64,
        /// Bytes.
        bytes: u64,
    },
    /// Greeting of a launcher: the tenant consists of the descendants of the process that
    /// connected.
    Program {
        /// As in Hello.
        protocol: u32,
        /// Name of the tenant, as in Hello.
        name: String,
        /// Weight, as in Hello.
        weight: Option<u32>,
        /// Limit for the GPU memory of its processes together, as far as they let it move (see
        /// [`ToDaemon::Memory`]); no limit of its own where absent.
        memory_max_bytes: Option<u64>,
        /// Its memory moves.
        #[serde(default, skip_serializing_if = "is_not")]
        movable: bool,
        /// Bytes of its memory that are never moved out; none where absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memory_min_bytes: Option<u64>,
        /// Bytes above which its memory is moved first; no such bound where absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memory_high_bytes: Option<u64>,
        /// The GPUs that it is to run on. Since [`GPUS_SINCE`].
        #[serde(default, skip_serializing_if = "Gpus::is_placed")]
        gpus: Gpus,
        /// As in Hello.
        #[serde(default, skip_serializing_if = "Metadata::is_empty")]
        metadata: Metadata,
    },
    /// A process of the program has memory that can move. Descriptor: the connection of its
    /// library, of the protocol `turnstile-preload-wire`; the kernel reports the process at its
    /// other end.
    Memory {},
    /// A process of the program uses the GPU. Descriptor: its pidfd, which identifies it to the
    /// daemon whatever its number in the daemon's namespace.
    Process {
        /// Its number in the launcher's namespace, by which later frames name it.
        pid: u32,
    },
    /// Changes that the driver made for such a process, at most [`CHANGES_MAX`], oldest first.
    Objects {
        /// The process.
        pid: u32,
        /// What happened.
        changes: Vec<ObjectChange>,
    },
    /// Such a process is gone.
    Exited {
        /// The process.
        pid: u32,
    },
}

impl ToDaemon {
    /// The greeting of a launcher that claims nothing but a name, in the newest version.
    pub fn program(name: &str) -> Self {
        Self::Program {
            protocol: PROTOCOL,
            name: name.to_owned(),
            weight: None,
            memory_max_bytes: None,
            movable: false,
            memory_min_bytes: None,
            memory_high_bytes: None,
            gpus: Gpus::Placed,
            metadata: Metadata::default(),
        }
    }

    /// The version that a greeting names; none for another message.
    pub const fn protocol(&self) -> Option<u32> {
        match self {
            Self::Hello { protocol, .. } | Self::Program { protocol, .. } => Some(*protocol),
            _ => None,
        }
    }

    /// A greeting in another version; other messages stay.
    pub const fn set_protocol(&mut self, version: u32) {
        if let Self::Hello { protocol, .. } | Self::Program { protocol, .. } = self {
            *protocol = version;
        }
    }
}

/// From the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum ToVmm {
    /// Answer to [`ToDaemon::Offer`]. Its form is the same in all versions.
    Chosen {
        /// The newest version that both speak.
        protocol: u32,
    },
    /// Answer to Hello. Descriptors, in order:
    ///
    /// 1. memfd of the doorbell pages (one page per channel), or the device that VFIO has opened if
    ///    they are a physical GPU's own;
    /// 2. memfd of the status page (one page, to be mapped read-only);
    /// 3. memfd of the VM's GPU memory (the aperture; one unused page if the features have no
    ///    aperture);
    /// 4. an eventfd that the VMM signals when a write trapped at a watched gate, or as the first
    ///    at a closed one.
    ///
    /// All memfds are sealed against shrinking.
    Welcome {
        /// Number of the tenant.
        tenant: u32,
        /// Channels that the VM may have open.
        channels: u32,
        /// GPU memory that the VM may own, and bytes of the aperture's memfd, if the features have
        /// an aperture.
        gpu_memory_bytes: u64,
        /// Feature bits of the device ([`turnstile_abi::regs::features`]).
        features: u64,
        /// Offset of channel 0's page in the file of the doorbell pages.
        doorbells_offset: u64,
    },
    /// No GPU has room for this VM. It waits in the daemon's queue: Welcome or Refused follows.
    Waiting {},
    /// The daemon does not take this VM.
    Refused {
        /// Why, and what to do.
        text: String,
    },
    /// Answer to [`ToDaemon::Mailbox`].
    MailboxDone {
        /// Number of the request.
        id: u64,
        /// [`turnstile_abi::ErrorCode`].
        error: u32,
        /// More detail than the code's own text; empty if there is none.
        text: String,
        /// Results.
        results: [u64; turnstile_abi::MAILBOX_RESULTS],
    },
    /// Answer to [`ToDaemon::MapMemory`] and [`ToDaemon::UnmapMemory`].
    MemoryDone {
        /// Number of the change.
        id: u64,
        /// Why it was refused; absent where it was made.
        refused: Option<String>,
    },
    /// Move a gate. The first for a channel makes its gate; a channel without one drops doorbell
    /// writes.
    Gate {
        /// Channel.
        channel: u32,
        /// Number of the request, for [`ToDaemon::GateDone`].
        seq: u64,
        /// The new state.
        state: GateState,
    },
    /// The channel is closed: remove its gate; its doorbell writes are dropped from now on.
    ChannelClosed {
        /// Channel.
        channel: u32,
    },
    /// Answer to [`ToDaemon::Program`].
    Admitted {
        /// Number of the tenant.
        tenant: u32,
        /// Identities of the GPUs that the program is to use. Since [`GPUS_SINCE`].
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        gpus: Vec<String>,
    },
    /// A process is not accepted as the program's: its time is not accounted to it.
    ProcessRefused {
        /// The process, as the launcher named it.
        pid: u32,
        /// Why.
        text: String,
    },
}
