//! Who may do what: viewers read, operators also write, everybody else gets nothing.

use std::fmt;
use std::str::FromStr;

/// What a caller may do; each role may what the ones before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Reads.
    Viewer,
    /// Reads and sets.
    Operator,
}

/// A user or a group of this host, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Principal {
    /// A user.
    User(u32),
    /// A group.
    Group(u32),
}

/// Not a principal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no user or group; uid:1000 and gid:1000 do")]
pub struct PrincipalError(String);

impl FromStr for Principal {
    type Err = PrincipalError;

    fn from_str(text: &str) -> Result<Self, PrincipalError> {
        let parsed = match text.split_once(':') {
            Some(("uid", number)) => number.parse().map(Self::User).ok(),
            Some(("gid", number)) => number.parse().map(Self::Group).ok(),
            _ => None,
        };
        parsed.ok_or_else(|| PrincipalError(text.to_owned()))
    }
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
    /// Other operators.
    pub operators: Vec<Principal>,
    /// Viewers.
    pub viewers: Vec<Principal>,
}

impl Access {
    /// Whether somebody besides root and the daemon's own user has a role.
    pub(super) fn is_shared(&self) -> bool {
        !self.operators.is_empty() || !self.viewers.is_empty()
    }

    pub(super) fn role(&self, peer: &Peer, own_uid: u32) -> Option<Role> {
        let among = |principals: &[Principal]| {
            principals.iter().any(|principal| match principal {
                Principal::User(uid) => *uid == peer.uid,
                Principal::Group(gid) => peer.gids.contains(gid),
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
        let access = Access {
            operators: vec!["uid:1000".parse().unwrap(), "gid:50".parse().unwrap()],
            viewers: vec![Principal::Group(60)],
        };
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
    fn what_names_nobody_is_refused() {
        for text in ["", "1000", "uid:", "uid:-1", "user:1", "gid:4294967296"] {
            assert!(text.parse::<Principal>().is_err(), "{text}");
        }
    }
}
