//! The groups of a process at the other end of a Unix socket, which neither std nor rustix
//! provides.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

/// Groups that the first call has room for; the kernel reports if there are more.
const GROUPS: usize = 64;

/// Groups of a process at most.
/// SOURCE: include/uapi/linux/limits.h, NGROUPS_MAX
const GROUPS_MAX: usize = 65_536;

/// The supplementary groups that the peer had when it connected.
pub(super) fn peer_groups(socket: &impl AsRawFd) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; GROUPS];
    loop {
        // CAST: at most GROUPS_MAX numbers of four bytes
        let mut bytes = size_of_val(groups.as_slice()) as libc::socklen_t;
        // SAFETY: `groups` has room for `bytes` bytes. The kernel fills no more, and stores their
        // number in `bytes`.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / size_of::<u32>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() || count > GROUPS_MAX
        {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn peer_groups_are_those_of_this_process() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut reported = peer_groups(&ours).unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
        let groups = line.unwrap().split_whitespace();
        let mut known: Vec<u32> = groups.map(|group| group.parse().unwrap()).collect();
        reported.sort_unstable();
        known.sort_unstable();
        assert_eq!(reported, known);
    }
}
