//! Roles: viewers read, operators also write, administrators also give sockets to other users. All
//! other callers get nothing.

use std::fmt;

use nix::unistd::{Group, User};

use turnstile_daemon::config::{ApiSection, Principal};

/// What a caller may do; each role may what the ones before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// Reads.
    Viewer,
    /// Reads and sets.
    Operator,
    /// Also gives sockets to users and groups: root, and the daemon's own user.
    Administrator,
}

/// A name that no user or group has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{principal}: {why}; a number (uid:N, gid:N) does without")]
pub struct AccessError {
    principal: Principal,
    why: String,
}

/// A process at the other end of a Unix socket, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) uid: u32,
    /// Its own group, and those that it belongs to besides.
    pub(super) gids: Vec<u32>,
    pub(super) pid: Option<i32>,
}

/// A user, group or certificate that has a role.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Known {
    User(u32),
    Group(u32),
    Certificate(String),
}

/// Roles of users, groups and certificates. Root and the daemon's own user are administrators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Access {
    operators: Vec<Known>,
    viewers: Vec<Known>,
}

impl Access {
    /// Looks names up once: a number that gets another name later keeps its role until a reload.
    pub(super) fn of(section: &ApiSection) -> Result<Self, AccessError> {
        let known = |principals: &[Principal]| {
            let known = principals.iter().map(known);
            known.collect::<Result<Vec<_>, AccessError>>()
        };
        Ok(Self {
            operators: known(&section.operators)?,
            viewers: known(&section.viewers)?,
        })
    }

    /// Whether a user or group besides root has a role.
    pub(super) fn is_shared(&self) -> bool {
        let all = self.operators.iter().chain(&self.viewers);
        all.into_iter()
            .any(|known| !matches!(known, Known::User(0) | Known::Certificate(_)))
    }

    pub(super) fn role(&self, peer: &Peer, own_uid: u32) -> Option<Role> {
        if peer.uid == 0 || peer.uid == own_uid {
            return Some(Role::Administrator);
        }
        self.among(|known| match known {
            Known::User(uid) => *uid == peer.uid,
            Known::Group(gid) => peer.gids.contains(gid),
            Known::Certificate(_) => false,
        })
    }

    #[cfg(feature = "tls")]
    /// The role of a certificate that has these names.
    pub(super) fn role_of_names(&self, names: &[String]) -> Option<Role> {
        self.among(|known| matches!(known, Known::Certificate(name) if names.contains(name)))
    }

    fn among(&self, is: impl Fn(&Known) -> bool) -> Option<Role> {
        if self.operators.iter().any(&is) {
            return Some(Role::Operator);
        }
        self.viewers.iter().any(is).then_some(Role::Viewer)
    }
}

/// Queries the host's name service, which may be a directory's (nsswitch.conf).
fn known(principal: &Principal) -> Result<Known, AccessError> {
    let refused = |why: String| AccessError {
        principal: principal.clone(),
        why,
    };
    let failed = |errno: nix::Error| refused(format!("the name service failed ({errno})"));
    let unknown = || refused("the name service knows no such name".to_owned());
    match principal {
        Principal::Uid(uid) => Ok(Known::User(*uid)),
        Principal::Gid(gid) => Ok(Known::Group(*gid)),
        Principal::Certificate(name) => Ok(Known::Certificate(name.clone())),
        Principal::User(name) => {
            let user = User::from_name(name).map_err(failed)?.ok_or_else(unknown)?;
            Ok(Known::User(user.uid.as_raw()))
        }
        Principal::Group(name) => {
            let group = Group::from_name(name).map_err(failed)?;
            Ok(Known::Group(group.ok_or_else(unknown)?.gid.as_raw()))
        }
    }
}

/// The sender of a request.
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
        let section = ApiSection {
            operators: vec![Principal::Uid(1000), Principal::Gid(50)],
            viewers: vec![Principal::Gid(60)],
            ..ApiSection::default()
        };
        let access = Access::of(&section).unwrap();
        let role = |uid, gids: &[u32]| access.role(&peer(uid, gids), 200);
        assert_eq!(role(0, &[0]), Some(Role::Administrator));
        let own = role(200, &[200]);
        assert_eq!(own, Some(Role::Administrator), "the daemon's own");
        assert_eq!(role(1000, &[60]), Some(Role::Operator));
        assert_eq!(role(7, &[7, 50]), Some(Role::Operator));
        assert_eq!(role(7, &[7, 60]), Some(Role::Viewer));
        assert_eq!(role(7, &[7]), None);
        assert!(Role::Administrator > Role::Operator && Role::Operator > Role::Viewer);
        assert!(access.is_shared());
        assert!(!Access::of(&ApiSection::default()).unwrap().is_shared());
    }

    #[test]
    fn known_names_resolve_and_unknown_names_are_refused() {
        assert_eq!(known(&Principal::User("root".into())), Ok(Known::User(0)));
        assert_eq!(known(&Principal::Group("root".into())), Ok(Known::Group(0)));
        let error = known(&Principal::Group("no such group".into())).unwrap_err();
        assert!(error.to_string().contains("knows no such name"), "{error}");
    }
}
