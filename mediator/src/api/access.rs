//! Who may do what: viewers read, operators also write, everybody else gets nothing.

use std::fmt;
use std::path::Path;

use crate::config::{ApiSection, Principal};

/// Accounts of this host, by name and number; those of a directory service are named by number.
const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";

/// What a caller may do; each role may what the ones before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// Reads.
    Viewer,
    /// Reads and sets.
    Operator,
}

/// A name that nobody has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{principal}: {file} has no such name; a number (uid:N, gid:N) does without")]
pub struct AccessError {
    principal: Principal,
    file: &'static str,
}

/// A process at the other end of a Unix socket, by the kernel's word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) uid: u32,
    /// Its own group, and those that it belongs to besides.
    pub(super) gids: Vec<u32>,
    pub(super) pid: Option<i32>,
}

/// Somebody who has a role.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Known {
    User(u32),
    Group(u32),
    Certificate(String),
}

/// Roles of users, groups and certificates. Root, and the user that the daemon runs as, are operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Access {
    operators: Vec<Known>,
    viewers: Vec<Known>,
}

impl Access {
    /// Looks names up, once: a number that is given to another name later keeps its role until a restart.
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

    /// Whether somebody on this host besides root and the daemon's own user has a role.
    pub(super) fn is_shared(&self) -> bool {
        let all = self.operators.iter().chain(&self.viewers);
        all.into_iter()
            .any(|known| !matches!(known, Known::User(0) | Known::Certificate(_)))
    }

    pub(super) fn role(&self, peer: &Peer, own_uid: u32) -> Option<Role> {
        if peer.uid == 0 || peer.uid == own_uid {
            return Some(Role::Operator);
        }
        self.among(|known| match known {
            Known::User(uid) => *uid == peer.uid,
            Known::Group(gid) => peer.gids.contains(gid),
            Known::Certificate(_) => false,
        })
    }

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

fn known(principal: &Principal) -> Result<Known, AccessError> {
    let (file, name) = match principal {
        Principal::Uid(uid) => return Ok(Known::User(*uid)),
        Principal::Gid(gid) => return Ok(Known::Group(*gid)),
        Principal::Certificate(name) => return Ok(Known::Certificate(name.clone())),
        Principal::User(name) => (USERS, name),
        Principal::Group(name) => (GROUPS, name),
    };
    let table = std::fs::read_to_string(Path::new(file)).unwrap_or_default();
    let number = number_of(&table, name).ok_or_else(|| AccessError {
        principal: principal.clone(),
        file,
    })?;
    Ok(match principal {
        Principal::User(_) => Known::User(number),
        _ => Known::Group(number),
    })
}

/// The third field of the line whose first is `name`: the number, in passwd(5) as in group(5).
fn number_of(table: &str, name: &str) -> Option<u32> {
    let mut lines = table.lines().map(|line| line.split(':'));
    let mut line = lines.find_map(|mut line| (line.next() == Some(name)).then_some(line))?;
    line.nth(1)?.parse().ok()
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
        let section = ApiSection {
            operators: vec![Principal::Uid(1000), Principal::Gid(50)],
            viewers: vec![Principal::Gid(60)],
            ..ApiSection::default()
        };
        let access = Access::of(&section).unwrap();
        let role = |uid, gids: &[u32]| access.role(&peer(uid, gids), 200);
        assert_eq!(role(0, &[0]), Some(Role::Operator));
        assert_eq!(role(200, &[200]), Some(Role::Operator), "the daemon's own");
        assert_eq!(role(1000, &[60]), Some(Role::Operator));
        assert_eq!(role(7, &[7, 50]), Some(Role::Operator));
        assert_eq!(role(7, &[7, 60]), Some(Role::Viewer));
        assert_eq!(role(7, &[7]), None);
        assert!(Role::Operator > Role::Viewer);
        assert!(access.is_shared());
        assert!(!Access::of(&ApiSection::default()).unwrap().is_shared());
    }

    #[test]
    fn names_are_looked_up_and_unknown_ones_refused() {
        let table = "root:x:0:0::/:/bin/sh\nturnstile:x:992:\nturn:x:7:\nbad\n";
        assert_eq!(number_of(table, "turnstile"), Some(992));
        assert_eq!(number_of(table, "turns"), None);
        assert_eq!(number_of(table, "bad"), None);
        assert_eq!(known(&Principal::User("root".into())), Ok(Known::User(0)));
        assert!(known(&Principal::Group("no such group".into())).is_err());
    }
}
