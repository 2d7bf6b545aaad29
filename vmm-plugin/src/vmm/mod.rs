//! A small reference VMM, and a variant of it without KVM.
//!
//! ```text
//!   vCPU thread       runs the guest, passes its trapped accesses to the device and the gates
//!   control thread    reads the daemon's frames, moves gates, forwards answers
//! ```
//!
//! Locks: a vCPU takes the device's, then the link's; the control thread takes one at a time.

mod boot;
mod core;
mod kvm;
pub mod native;

pub use self::core::{VmEnd, VmHandle, VmReport};
pub use self::kvm::kvm_available;

use crate::attach::AttachError;
use crate::gate::PageMapError;
use crate::kvm::KvmError;
use crate::wire::Metadata;
use std::io;
use std::path::PathBuf;

/// Least guest memory.
pub(crate) const MEMORY_BYTES_MIN: u64 = 16 << 20;
/// Most guest memory: it must end below the BARs.
pub(crate) const MEMORY_BYTES_MAX: u64 = 3 << 30;
/// Console bytes that are kept.
pub(crate) const CONSOLE_BYTES_MAX: usize = 64 << 10;
/// Most bytes of a guest's arguments, and of its report.
pub(crate) const BLOB_BYTES_MAX: usize = 4096;

/// What a VM is to be.
#[derive(Clone, Debug)]
// FIELDS: settings, each of its own.
pub struct VmConfig {
    /// Name, unique on the host: 1 to 253 of `[A-Za-z0-9._+-]`.
    pub name: String,
    /// The daemon's socket.
    pub socket: PathBuf,
    /// Weight, 1 to 10000; the daemon's default where absent.
    pub weight: Option<u32>,
    /// GPU memory that the VM may own; the daemon's default where absent.
    pub gpu_memory_bytes: Option<u64>,
    /// Instance id, project and labels.
    pub metadata: Metadata,
    /// Guest memory, a multiple of the page size.
    pub memory_bytes: u64,
    /// Whether this process allocates all of it before it connects: then its pages are charged to
    /// the control group of this process.
    pub prealloc: bool,
    /// The guest program, a static ELF executable; not used by a native guest.
    pub guest_elf: Vec<u8>,
    /// The guest's arguments.
    pub args: Vec<u8>,
    /// Files for the guest's memory: name and contents.
    pub files: Vec<(String, Vec<u8>)>,
    /// Whether every doorbell write at a closed gate traps and is counted, not the first alone
    /// ([`crate::gate::GateControl::trapping_every_write`]).
    pub trap_every_write: bool,
}

impl VmConfig {
    /// A VM of 64 MiB with nothing in it.
    pub fn new(name: impl Into<String>, socket: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            socket: socket.into(),
            weight: None,
            gpu_memory_bytes: None,
            metadata: Metadata::default(),
            memory_bytes: 64 << 20,
            prealloc: false,
            guest_elf: Vec::new(),
            args: Vec::new(),
            files: Vec::new(),
            trap_every_write: false,
        }
    }
}

/// Why a VM could not be run, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// A part of the configuration is not permitted.
    #[error("Configuration of the VM: {0}")]
    Config(&'static str),
    /// It is no tenant of the daemon.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// Memory could not be set up.
    #[error("Setting up memory: {what}")]
    Memory {
        /// What for.
        what: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The guest program could not be loaded.
    #[error("Loading the guest program")]
    Load(#[source] linux_loader::loader::Error),
    /// KVM cannot be used.
    #[error("KVM is not available: {0}")]
    NoKvm(String),
    /// A call to KVM failed.
    #[error("KVM: {what}")]
    Kvm {
        /// During what.
        what: &'static str,
        /// KVM's error.
        #[source]
        source: kvm_ioctls::Error,
    },
    /// The VM has no memory, or no device.
    #[error(transparent)]
    Device(#[from] KvmError),
    /// A gate could not be moved.
    #[error("Moving a gate")]
    Gate(#[from] PageMapError),
    /// A thread could not be started, or an eventfd not be made.
    #[error("Setting up the VM's threads")]
    Thread(#[source] io::Error),
}

/// Starts a VM.
///
/// # Errors
/// When the daemon does not take it, or the host cannot run it.
pub fn spawn(config: VmConfig) -> Result<VmHandle, VmError> {
    kvm::spawn(config)
}

/// Runs a VM to its end.
///
/// # Errors
/// As [`spawn`], and where a gate could not be moved.
pub fn run(config: VmConfig) -> Result<VmReport, VmError> {
    spawn(config)?.join()
}
