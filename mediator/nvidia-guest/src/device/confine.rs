//! What a device process gives up. Values of guests reach it, so it is treated as one that a guest
//! may control.
//!
//! | what | from when | how |
//! | --- | --- | --- |
//! | rights | before the driver is opened | a user of its own if it is root; no new privileges |
//! | files | before the driver is opened | writes the driver's nodes, executes nothing (Landlock) |
//! | system calls | before the first program | those of [`filter`]; others fail (seccomp) |
//!
//! The ioctls are those of the release's table. Without Landlock in the kernel, file access is not
//! restricted.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus,
};
use rustix::fs::{Gid, Uid};
use rustix::process::{Resource, Rlimit, geteuid, setrlimit};
use rustix::thread::{set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter_all_threads,
};

use crate::abi::Release;
use crate::abi::numbers::{ESCAPE_TYPE, uvm};

/// First user id, and number of ids: the second half of the range of systemd's dynamic service
/// users; workers use the first half. SOURCE: systemd, "Users, Groups, UIDs and GIDs".
const USERS_FROM: u32 = 63_352;
const USERS: u32 = 2_168;
/// Open descriptors: files of the VM, its RAM, sockets.
const FILES_MAX: u64 = 8_192;

/// Called while the process has one thread.
///
/// # Errors
/// The kernel's.
pub(super) fn before_driver() -> io::Result<()> {
    if geteuid().is_root() {
        let id = USERS_FROM + std::process::id() % USERS;
        let (user, group) = (Uid::from_raw(id), Gid::from_raw(id));
        set_thread_groups(&[])?;
        set_thread_res_gid(group, group, group)?;
        set_thread_res_uid(user, user, user)?;
    }
    set_no_new_privs(true)?;
    let limit = |most| Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    setrlimit(Resource::Core, limit(0))?;
    // Fails where the limit is lower already; the lower limit stays.
    let _ = setrlimit(Resource::Nofile, limit(FILES_MAX));
    restrict_files()
}

/// Called before the first program is served.
///
/// # Errors
/// The kernel's.
pub(super) fn before_programs(release: &Release) -> io::Result<()> {
    apply_filter_all_threads(&filter(release)?).map_err(io::Error::other)
}

fn restrict_files() -> io::Result<()> {
    let entries = std::fs::read_dir("/dev").into_iter().flatten().flatten();
    let nodes = entries.map(|entry| entry.path()).filter(|path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("nvidia") && !path.is_dir()
    });
    let rules = nodes.filter_map(|path| {
        let access = AccessFs::ReadFile | AccessFs::WriteFile;
        PathFd::new(path)
            .ok()
            .map(|fd| Ok(PathBeneath::new(fd, access)))
    });
    let restricted = Ruleset::default()
        .handle_access(AccessFs::from_all(ABI::V1))
        .and_then(Ruleset::create)
        .and_then(|ruleset| ruleset.add_rules(rules))
        .and_then(|ruleset| ruleset.restrict_self());
    let status = restricted.map_err(io::Error::other)?;
    if status.ruleset == RulesetStatus::NotEnforced {
        log::warn!("This kernel has no Landlock: the device process can read what its user can");
    }
    Ok(())
}

/// System calls with any arguments.
#[rustfmt::skip]
const CALLS: &[libc::c_long] = &[
    // descriptors, sockets, events
    libc::SYS_read, libc::SYS_write, libc::SYS_writev, libc::SYS_close, libc::SYS_fcntl, libc::SYS_sendmsg,
    libc::SYS_sendto, libc::SYS_recvmsg, libc::SYS_recvfrom, libc::SYS_shutdown, libc::SYS_accept4, libc::SYS_socketpair, libc::SYS_ppoll,
    libc::SYS_epoll_ctl, libc::SYS_epoll_pwait, libc::SYS_eventfd2, libc::SYS_fstat, libc::SYS_fstatfs, libc::SYS_statx,
    libc::SYS_newfstatat, libc::SYS_getsockopt, libc::SYS_setsockopt, libc::SYS_lseek, libc::SYS_readlinkat, libc::SYS_pread64, libc::SYS_pwrite64,
    #[cfg(target_arch = "x86_64")] libc::SYS_readlink, #[cfg(target_arch = "x86_64")] libc::SYS_poll, #[cfg(target_arch = "x86_64")] libc::SYS_epoll_wait,
    // the driver's nodes: Landlock decides which can be opened
    libc::SYS_openat,
    // memory
    libc::SYS_munmap, libc::SYS_mremap, libc::SYS_brk, libc::SYS_madvise,
    // threads and time
    libc::SYS_clone, libc::SYS_clone3, libc::SYS_futex, libc::SYS_sched_yield, libc::SYS_sched_getaffinity,
    libc::SYS_gettid, libc::SYS_getpid, libc::SYS_set_robust_list, libc::SYS_rseq, libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep, libc::SYS_restart_syscall, libc::SYS_getrandom,
    // own signals, and the end
    libc::SYS_rt_sigprocmask, libc::SYS_rt_sigaction, libc::SYS_rt_sigreturn, libc::SYS_sigaltstack, libc::SYS_exit,
    libc::SYS_exit_group,
];

fn filter(release: &Release) -> io::Result<BpfProgram> {
    let other = io::Error::other::<seccompiler::BackendError>;
    let when = |argument, operator, value: u64| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
            .and_then(|condition| SeccompRule::new(vec![condition]))
            .map_err(other)
    };
    const WORD: u64 = u32::MAX as u64;
    // CAST: constants of the kernel's interface, none negative.
    let exec = libc::PROT_EXEC as u64;
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        CALLS.iter().map(|call| (*call, Vec::new())).collect();
    // No mapping becomes executable.
    rules.insert(
        libc::SYS_mmap,
        vec![when(2, SeccompCmpOp::MaskedEq(exec), 0)?],
    );
    rules.insert(
        libc::SYS_mprotect,
        vec![when(2, SeccompCmpOp::MaskedEq(exec), 0)?],
    );
    let escapes = release.escapes.keys().map(|number| {
        let value = u64::from(ESCAPE_TYPE) << 8 | u64::from(*number);
        when(1, SeccompCmpOp::MaskedEq(0xffff), value)
    });
    let uvm = release.uvm.keys().chain([&uvm::DEINITIALIZE]);
    let uvm = uvm.map(|number| when(1, SeccompCmpOp::Eq, u64::from(*number)));
    rules.insert(
        libc::SYS_ioctl,
        escapes.chain(uvm).collect::<Result<_, _>>()?,
    );
    let name = when(0, SeccompCmpOp::MaskedEq(WORD), libc::PR_SET_NAME as u64)?;
    rules.insert(libc::SYS_prctl, vec![name]);
    let architecture = std::env::consts::ARCH.try_into().map_err(other)?;
    // CAST: a small number of the kernel's interface.
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let filter =
        SeccompFilter::new(rules, refuse, SeccompAction::Allow, architecture).map_err(other)?;
    filter.try_into().map_err(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_a_filter() {
        for release in crate::abi::releases() {
            assert!(!filter(release).unwrap().is_empty());
        }
    }
}
