//! Processes as `/proc` shows them.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};

/// Maximum number of ancestors that are examined.
const ANCESTORS_MAX: u32 = 64;

/// A process, distinguished from a later one of its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// Its number.
    pub pid: u32,
    /// When it began, in the kernel's clock ticks since boot.
    pub started: u64,
}

impl Identity {
    /// The process that has this number now.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = stat(pid)?;
        let started = field(&stat, 22)?;
        Some(Self { pid, started })
    }

    /// Whether it still exists, and no other has its number.
    pub fn is_there(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Whether it is `root` or descends from it.
    pub fn descends_from(self, root: Self) -> bool {
        let found = nearest(self.pid, parent, |pid| (pid == root.pid).then_some(()));
        // In this order: if one of them ended meanwhile, its number could belong to another
        // process.
        found.is_some() && self.is_there() && root.is_there()
    }
}

/// The process of a pidfd, in the namespace of this one.
pub fn of_pidfd(pidfd: &impl AsFd) -> Option<u32> {
    let number = pidfd.as_fd().as_raw_fd();
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).ok()?;
    // SOURCE: `fs/pidfs.c`, pidfd_show_fdinfo: -1 once it has ended, 0 if it has no number here.
    let line = info.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    line.trim().parse().ok().filter(|pid| *pid != 0)
}

/// The name that a process gave itself; empty if it is gone.
pub fn name(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end()
        .chars()
        .filter(|c| !c.is_control())
        .collect()
}

/// The result of `wanted` for a process, or for its nearest ancestor that has one.
pub fn nearest<T>(
    pid: u32,
    parent: impl Fn(u32) -> Option<u32>,
    wanted: impl Fn(u32) -> Option<T>,
) -> Option<T> {
    let mut at = pid;
    for _ in 0..ANCESTORS_MAX {
        if let Some(found) = wanted(at) {
            return Some(found);
        }
        at = parent(at).filter(|parent| *parent > 1)?;
    }
    None
}

/// The parent of a process.
pub fn parent(pid: u32) -> Option<u32> {
    field(&stat(pid)?, 4)
}

fn stat(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/stat")).ok()
}

/// A field of `/proc/PID/stat`, counted from 1 as in proc(5). It is after the name, which may
/// contain anything.
fn field<T: std::str::FromStr>(stat: &str, number: usize) -> Option<T> {
    const FIRST_BEHIND_NAME: usize = 3;
    stat.rsplit_once(')')?
        .1
        .split_ascii_whitespace()
        .nth(number.checked_sub(FIRST_BEHIND_NAME)?)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{PidfdFlags, getpid, pidfd_open};
    use std::collections::BTreeMap;
    use std::process::Command;

    #[test]
    fn a_name_with_brackets_hides_nothing() {
        assert_eq!(field("12 (a) b) c) S 7 12 12 0", 4), Some(7));
        assert_eq!(field::<u32>("12 (a", 4), None);
        assert_eq!(field::<u32>("12 (a) S 7", 2), None);
        let own = parent(std::process::id());
        assert_eq!(own, Some(std::os::unix::process::parent_id()));
    }

    #[test]
    fn the_nearest_ancestor_counts() {
        let parents = BTreeMap::from([(30, 20), (20, 10), (40, 1)]);
        let of = |pid| {
            nearest(
                pid,
                |pid| parents.get(&pid).copied(),
                |pid| (pid == 10).then_some(pid),
            )
        };
        assert_eq!((of(30), of(10), of(40)), (Some(10), Some(10), None));
        let ring = |pid| Some(if pid == 5 { 6 } else { 5 });
        assert_eq!(nearest(5, ring, |_| None::<()>), None);
    }

    #[test]
    fn a_child_descends_and_a_stranger_does_not() {
        let own = Identity::of(std::process::id()).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let of_child = Identity::of(child.id()).unwrap();
        assert!(of_child.descends_from(own));
        assert!(own.descends_from(own));
        assert!(!own.descends_from(of_child));
        let earlier = Identity {
            started: own.started - 1,
            ..own
        };
        assert!(!of_child.descends_from(earlier), "another of that number");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!of_child.is_there());
        assert!(!of_child.descends_from(own));
    }

    #[test]
    fn a_pidfd_names_its_process() {
        let pidfd = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        assert_eq!(of_pidfd(&pidfd), Some(std::process::id()));
        assert_eq!(of_pidfd(&std::io::stdin()), None);
    }
}
