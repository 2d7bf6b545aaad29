//! VMs that an operator declares before their VMMs connect: what was declared, and where each
//! stands.
//!
//! In: declarations of the API and of a state file. Out: the state of each VM, and what its VMM's
//! greeting may claim. [`life`] has the states and moves, [`doors`] the sockets. The fleet owns the
//! table and makes the moves.

pub(crate) mod doors;
mod life;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use turnstile_accounting::TenantId;
use turnstile_policies::place::Placed;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::host::settings::Settings;

pub use life::Life;
pub(crate) use life::Move;

/// Declared VMs at a time; each has a socket, which is a descriptor of the daemon.
pub(crate) const DECLARED_MAX: usize = 1_024;

/// Permissions of a VM's socket where none are declared.
pub const MODE_DEFAULT: u32 = 0o660;

/// What connects to a VM's socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AttachmentKind {
    /// A VMM with the plug-in in it.
    #[default]
    Vmm,
    /// A stock VMM, over vfio-user.
    VfioUser,
}

/// The socket of a declared VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attachment {
    /// What connects.
    pub kind: AttachmentKind,
    /// Its owner, by number; the daemon's user where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<u32>,
    /// Its group, by number; the daemon's where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// Its permissions.
    pub mode: u32,
}

/// What is declared of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declaration {
    /// Name of the tenant.
    pub name: String,
    /// Its instance: names its socket.
    pub instance: Uuid,
    /// The account that it belongs to; found by its VMM's user where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The GPU that takes it; the placement's choice where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// GPU memory that it may own; the daemon's default where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory_bytes: Option<u64>,
    /// Its socket.
    pub attachment: Attachment,
    /// Weight, cap, limits and metadata.
    pub settings: Settings,
}

/// A declared VM as a state file keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptVm {
    /// What was declared.
    pub declared: Declaration,
    /// The GPU on which it has a place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placed: Option<String>,
    /// Whether its VMM was connected.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub attached: bool,
}

/// A declared VM as readers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredVm {
    /// What was declared.
    pub declared: Declaration,
    /// Its state.
    pub life: Life,
    /// The GPU on which it has a place.
    pub placed: Option<String>,
    /// Where its VMM connects.
    pub socket: PathBuf,
}

/// A declared VM in the fleet's table.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) declared: Declaration,
    pub(crate) life: Life,
    pub(crate) placed: Option<Placed>,
    pub(crate) tenant: Option<TenantId>,
    /// Its VMM was connected at some time.
    pub(crate) was_attached: bool,
}

impl Entry {
    pub(crate) const fn new(declared: Declaration) -> Self {
        Self {
            declared,
            life: Life::Waiting,
            placed: None,
            tenant: None,
            was_attached: false,
        }
    }

    /// Makes a move if it is legal; returns the state then.
    pub(crate) fn make(&mut self, by: Move) -> Option<Life> {
        let next = self.life.after(by)?;
        self.was_attached = match by {
            Move::Attach => true,
            // It is placed anew.
            Move::Displace => false,
            Move::Detach => next == Life::Lost,
            _ => self.was_attached,
        };
        self.life = next;
        Some(next)
    }
}
