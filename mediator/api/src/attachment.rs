//! The socket of a declared VM: as a request has it, and as readers see it.
//!
//! In: the `attachment` of a body, and its author. Out: an attachment for the fleet; state and
//! socket of a VM. An administrator alone sets owner and group.

use axum::http::StatusCode;
use nix::unistd::{Group, User};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::access::{Caller, Role};
use super::problem::Problem;
use turnstile_daemon::declared::{Attachment, AttachmentKind, DeclaredVm, Life, MODE_DEFAULT};

/// The socket that a VM is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AttachmentBody {
    /// What connects.
    pub kind: AttachmentKind,
    /// User that owns the socket, by name or number; an administrator alone may set it.
    pub owner: Option<String>,
    /// Group of the socket, by name or number; an administrator alone may set it.
    pub group: Option<String>,
    /// Permissions of the socket, in octal digits; for all users by an administrator alone.
    #[schema(pattern = "^0?[0-7]{3}$", example = "0660")]
    pub mode: Option<String>,
}

/// The socket of a declared VM, and its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmAttachment {
    /// State of the VM.
    pub state: Life,
    /// What connects.
    pub kind: AttachmentKind,
    /// Path of the socket.
    pub socket: String,
    /// Number of the user that owns it; null for the daemon's.
    pub owner: Option<u32>,
    /// Number of its group; null for the daemon's.
    pub group: Option<u32>,
    /// Permissions of the socket.
    pub mode: String,
    /// GPU memory that it may own; null for the daemon's default.
    pub gpu_memory_bytes: Option<u64>,
}

impl AttachmentBody {
    /// The same, checked against what its author may set.
    pub(super) fn checked(&self, caller: &Caller) -> Result<Attachment, Problem> {
        let text = self.mode.as_deref();
        let mode = text.map_or(Ok(MODE_DEFAULT), |mode| u32::from_str_radix(mode, 8));
        let mode = mode.ok().filter(|mode| *mode <= 0o777);
        let mode = mode.ok_or_else(|| {
            Problem::field(
                "/attachment/mode",
                "Permissions are octal digits, as in 0660",
            )
        })?;
        let others = mode & 0o007 != 0;
        let gives = self.owner.is_some() || self.group.is_some() || others;
        if gives && caller.role < Role::Administrator {
            return Err(Problem::new(
                StatusCode::FORBIDDEN,
                "Owner, group and permissions for all users are set by root and the daemon's own user alone",
            ));
        }
        let user = |name: &str| {
            let found = User::from_name(name).ok().flatten();
            found.map(|user| user.uid.as_raw())
        };
        let group = |name: &str| {
            let found = Group::from_name(name).ok().flatten();
            found.map(|group| group.gid.as_raw())
        };
        Ok(Attachment {
            kind: self.kind,
            owner: number(self.owner.as_deref(), "/attachment/owner", user)?,
            group: number(self.group.as_deref(), "/attachment/group", group)?,
            mode,
        })
    }
}

/// The number of a user or group, given as one or by its name.
fn number(
    given: Option<&str>,
    pointer: &str,
    by_name: impl Fn(&str) -> Option<u32>,
) -> Result<Option<u32>, Problem> {
    let Some(text) = given else { return Ok(None) };
    let number = text.parse().ok().or_else(|| by_name(text));
    // The largest number stands for no user in the kernel's calls.
    let number = number.filter(|number| *number != u32::MAX);
    let unknown = || Problem::field(pointer, "The name service knows no such name");
    number.map(Some).ok_or_else(unknown)
}

impl VmAttachment {
    pub(super) fn of(vm: &DeclaredVm) -> Self {
        let Attachment {
            kind,
            owner,
            group,
            mode,
        } = vm.declared.attachment;
        Self {
            state: vm.life,
            kind,
            socket: vm.socket.display().to_string(),
            owner,
            group,
            mode: format!("{mode:04o}"),
            gpu_memory_bytes: vm.declared.gpu_memory_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_given_to_others_by_administrators_alone() {
        let may = |role: Role, owner: Option<&str>, group: Option<&str>, mode: &str| {
            let name = String::new();
            let body = AttachmentBody {
                owner: owner.map(str::to_owned),
                group: group.map(str::to_owned),
                mode: Some(mode.to_owned()),
                ..AttachmentBody::default()
            };
            body.checked(&Caller { role, name })
        };
        let (operator, root) = (Role::Operator, Role::Administrator);
        assert_eq!(may(operator, None, None, "0660").unwrap().mode, 0o660);
        for (owner, group, mode) in [
            (Some("0"), None, "0660"),
            (None, Some("0"), "0660"),
            (None, None, "0666"),
        ] {
            assert_eq!(may(operator, owner, group, mode).unwrap_err().status, 403);
            assert!(may(root, owner, group, mode).is_ok());
        }
        let given = may(root, Some("root"), Some("7"), "660").unwrap();
        assert_eq!(
            (given.owner, given.group, given.mode),
            (Some(0), Some(7), 0o660)
        );
        assert_eq!(may(root, None, None, "1777").unwrap_err().status, 422);
    }
}
