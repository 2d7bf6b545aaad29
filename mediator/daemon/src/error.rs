//! Why a host or a VM was refused.

use std::io;

use turnstile_abi::{CHUNK_BYTES, pci};
use turnstile_vmm::wire::{NoCommonProtocol, WireError};

use crate::names::NAME_RULE;
use crate::tenant::guest_memory::GuestMemoryError;
use crate::tenant::pages::PagesError;
use turnstile_gpu::interrupts::InterruptsError;
use turnstile_gpu::{ProgramRefusal, Refusal};
use turnstile_policies::place;

/// A Unix user of an entry is not known on this host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("User {user:?} of an account: {why}")]
pub struct UserError {
    pub(crate) user: String,
    pub(crate) why: String,
}

/// Why a tenant is placed on no GPU.
#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    /// No GPU of this host is large enough.
    #[error(transparent)]
    Never(#[from] place::PlaceError),
    /// All GPUs are full or closed.
    #[error("No GPU has room for {bytes} bytes now ({gpus}); end a VM, or name less memory")]
    Full {
        /// GPU memory that the tenant needs.
        bytes: u64,
        /// Bytes free on each GPU.
        gpus: String,
    },
    /// A launcher names a GPU that is not there.
    #[error("This daemon has no GPU {name:?}; it has {has}")]
    NoGpu {
        /// The name.
        name: String,
        /// Identities of all GPUs.
        has: String,
    },
    /// A launcher names a GPU that takes no tenants now.
    #[error("GPU {gpu} takes no further tenants now (turnstile gpu uncordon {gpu})")]
    Closed {
        /// Its identity.
        gpu: String,
    },
}

/// Why a host or a tenant was refused.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// No such policy.
    #[error("There is no policy named {name:?}; there are: {}", turnstile_policies::POLICIES.iter().map(|row| row.name).collect::<Vec<_>>().join(", "))]
    UnknownPolicy {
        /// The name in the request.
        name: String,
    },
    /// The VMM or launcher speaks another protocol.
    #[error(transparent)]
    Protocol(#[from] NoCommonProtocol),
    /// Not a usable name.
    #[error("{name:?} is no name for a tenant; a name has {NAME_RULE}")]
    BadName {
        /// The name.
        name: String,
    },
    /// Not usable metadata.
    #[error("The tenant is refused for its metadata")]
    Metadata(#[from] turnstile_accounting::MetadataError),
    /// Two tenants of one name.
    #[error("A tenant named {name} is connected already; choose another --name")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// Full.
    #[error("The host has {max} tenants, which is its limit")]
    TooManyTenants {
        /// The limit.
        max: usize,
    },
    /// The daemon could not serve it.
    #[error("The daemon has no memory left for a tenant; end another one, or raise its limit")]
    NoMemory,
    /// Its account does not take it, or not what it claims.
    #[error(transparent)]
    Account(#[from] crate::accounts::AccountsError),
    /// Accounts of the configuration cannot be used.
    #[error(transparent)]
    User(#[from] UserError),
    /// Weight out of range.
    #[error(transparent)]
    Params(#[from] turnstile_policies::ParamsError),
    /// GPU memory out of range.
    #[error(
        "{bytes} bytes of GPU memory: a positive multiple of {CHUNK_BYTES} up to the GPU's {max} is taken"
    )]
    GpuMemory {
        /// Bytes in the request.
        bytes: u64,
        /// Bytes of the GPU.
        max: u64,
    },
    /// It cannot be entitled to this much GPU memory.
    #[error(transparent)]
    Entitlement(#[from] crate::memory::EntitlementError),
    /// Too few descriptors with Hello.
    #[error(
        "Hello came with {got} descriptors; guest memory and 1 to {} interrupt vectors are needed",
        pci::VECTORS
    )]
    Descriptors {
        /// Number of descriptors.
        got: usize,
    },
    /// The memory was not taken.
    #[error("The VM's memory was not taken")]
    Memory(#[from] GuestMemoryError),
    /// A change of memory on a GPU that takes it only once.
    #[error("This GPU takes a VM's memory once, when the VM starts; it does not change afterwards")]
    MemoryOnce,
    /// The vectors were not taken.
    #[error("The VM's interrupt vectors were not taken")]
    Interrupts(#[from] InterruptsError),
    /// The kernel gave no pages.
    #[error("The VM's pages could not be made")]
    Pages(#[from] PagesError),
    /// The kernel gave something else not.
    #[error("The host is short of descriptors (ulimit -n, LimitNOFILE) or threads")]
    Host(#[source] io::Error),
    /// The GPU refused.
    #[error("The GPU did not take the VM")]
    Gpu(#[source] Refusal),
    /// The GPU takes no programs, or not this one.
    #[error("The GPU did not take the program")]
    Program(#[from] ProgramRefusal),
    /// Its memory moves, and on several GPUs it cannot.
    #[error("Memory of a program on {gpus} GPUs cannot move; name one GPU, or leave --movable out")]
    Movable {
        /// GPUs that were chosen.
        gpus: usize,
    },
    /// Memory of its GPU moves for no tenant.
    #[error(
        "Memory of {gpu} does not move: give it room at the host (memory.host_pool_mib, or \
         --host-pool-mib), or leave --movable out"
    )]
    Immovable {
        /// The GPU.
        gpu: String,
    },
    /// The process that connected is not known.
    #[error("The process that connected cannot be seen from here (another process namespace?)")]
    Peer(#[source] io::Error),
    /// A launcher within a program.
    #[error("It runs within {name}, which is a tenant already; start it outside")]
    Nested {
        /// The outer one.
        name: String,
    },
    /// The answer could not be sent.
    #[error("The VMM could not be answered")]
    Wire(#[from] WireError),
    /// No GPU takes it.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// The name is that of a declared VM.
    #[error(
        "{name} is a declared VM, which connects to a socket of its own: turnstile vm get {name}"
    )]
    Declared {
        /// The name.
        name: String,
    },
    /// A declared VM takes no VMM in its state.
    #[error("VM {name} is {state}, and takes no VMM now")]
    NotNow {
        /// The VM.
        name: String,
        /// Its state.
        state: &'static str,
    },
    /// More memory than was declared.
    #[error("The VMM claims {claimed} bytes of GPU memory; {most} were declared of its VM")]
    Beyond {
        /// Bytes in the request.
        claimed: u64,
        /// Bytes declared.
        most: u64,
    },
    /// The VM or its GPU was removed, or the VM moved, while its VMM connected.
    #[error("The VM or its GPU was removed, or the VM was placed on another GPU")]
    Removed,
    /// Hello was expected.
    #[error("The VMM did not say Hello first")]
    NoHello,
}

/// An error and its sources on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
