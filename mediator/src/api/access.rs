//! Who may do what: viewers read, operators also write, everybody else gets nothing.

use std::fmt;

use crate::config::Principal;

/// What a caller may do; each role may what the ones before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Reads.
    Viewer,
    /// Reads and sets.
    Operator,
}

/// Someone is named whom this host does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("This host knows no {0}; name one that it has, or a number (uid:1000, gid:1000)")]
pub struct UnknownPrincipal(Principal);

/// A name's number, so that no request has to wait for it.
fn by_number(principal: &Principal) -> Result<Principal, UnknownPrincipal> {
    let known = match principal {
        Principal::User(name) => {
            uzers::get_user_by_name(name).map(|user| Principal::Uid(user.uid()))
        }
        Principal::Group(name) => {
            uzers::get_group_by_name(name).map(|group| Principal::Gid(group.gid()))
        }
        Principal::Uid(_) | Principal::Gid(_) | Principal::Certificate(_) => {
            Some(principal.clone())
        }
    };
    known.ok_or_else(|| UnknownPrincipal(principal.clone()))
}

/// A process at the other end of a Unix socket, by the kernel's word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) uid: u32,
    /// Its own group, and those that it belongs to besides.
    pub(super) gids: Vec<u32>,
    pub(super) pid: Option<i32>,
}

/// Roles of users and groups. Root, and the user that the daemon runs as, are operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    operators: Vec<Principal>,
    viewers: Vec<Principal>,
}

impl Access {
    /// These operators besides root and the daemon's own user, and these viewers.
    ///
    /// # Errors
    /// If this host knows a name not.
    pub fn new(operators: &[Principal], viewers: &[Principal]) -> Result<Self, UnknownPrincipal> {
        let all =
            |named: &[Principal]| -> Result<Vec<_>, _> { named.iter().map(by_number).collect() };
        Ok(Self {
            operators: all(operators)?,
            viewers: all(viewers)?,
        })
    }

    /// Whether somebody besides root and the daemon's own user has a role.
    pub(super) fn is_shared(&self) -> bool {
        let other = |named: &Principal| *named != Principal::Uid(0);
        self.operators.iter().chain(&self.viewers).any(other)
    }

    pub(super) fn role(&self, peer: &Peer, own_uid: u32) -> Option<Role> {
        let among = |principals: &[Principal]| {
            principals.iter().any(|principal| match principal {
                Principal::Uid(uid) => *uid == peer.uid,
                Principal::Gid(gid) => peer.gids.contains(gid),
                // Names were made numbers; certificates are another way's.
                Principal::User(_) | Principal::Group(_) | Principal::Certificate(_) => false,
            })
        };
        if peer.uid == 0 || peer.uid == own_uid || among(&self.operators) {
            return Some(Role::Operator);
        }
        among(&self.viewers).then_some(Role::Viewer)
    }
}

/// Who sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) role: Role,
    /// As the audit names it.
    pub(super) name: String,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uid:{}", self.uid)?;
        match self.pid {
            Some(pid) => write!(f, " pid:{pid}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, gids: &[u32]) -> Peer {
        Peer {
            uid,
            gids: gids.to_vec(),
            pid: None,
        }
    }

    #[test]
    fn roles_are_by_user_and_group_and_strangers_have_none() {
        let operators = ["uid:1000".parse().unwrap(), "gid:50".parse().unwrap()];
        let access = Access::new(&operators, &[Principal::Gid(60)]).unwrap();
        assert!(access.is_shared());
        let role = |uid, gids: &[u32]| access.role(&peer(uid, gids), 200);
        assert_eq!(role(0, &[0]), Some(Role::Operator));
        assert_eq!(role(200, &[200]), Some(Role::Operator), "the daemon's own");
        assert_eq!(role(1000, &[60]), Some(Role::Operator));
        assert_eq!(role(7, &[7, 50]), Some(Role::Operator));
        assert_eq!(role(7, &[7, 60]), Some(Role::Viewer));
        assert_eq!(role(7, &[7]), None);
        assert!(Role::Operator > Role::Viewer);
    }

    #[test]
    fn names_become_numbers_and_unknown_ones_are_refused() {
        let access = Access::new(&["user:root".parse().unwrap()], &[]).unwrap();
        assert_eq!(access.operators, [Principal::Uid(0)]);
        assert!(!access.is_shared());
        let nobody = "user:no-such-user-here".parse().unwrap();
        assert!(Access::new(&[], &[nobody]).is_err());
    }
}
