//! Rights that the daemon gives up. Guests and API clients reach its threads through their input;
//! an attacker that runs code in one of them finds few rights there.
//!
//! - *Capabilities*, before any thread begins: none are kept, nor can be regained; no new
//!   privileges.
//! - *Files*, before any thread begins (Landlock): the daemon reads system folders, writes the
//!   folders of ledger, state and sockets, and executes nothing.
//! - *System calls*, before any thread begins and again as each begins (seccomp): a thread keeps
//!   the list of its [`Role`], and one without a role the process's list; others fail with EPERM.
//!
//! With a GPU in hardware the process as a whole keeps the first two. NVIDIA's driver gives its
//! records and suspensions to the superuser alone. The daemon starts and ends workers, which become
//! users of their own (`CAP_SETUID`), and reads `/proc` about programs. There each thread gives up
//! what it can. The API's thread, which serves the most distant clients, has its own Landlock
//! rules, its list, and the capabilities for files in those folders alone. The ledger's writer and
//! the accounting thread have their lists, the latter with the device's calls. Threads that start
//! workers, and those that serve the driver's objects, keep all.
//!
//! Without a [`plan`] all threads stay as they are: tests and `demo` share a process with what they
//! measure.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use landlock::{
    ABI, Access, AccessFs, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};
use serde::{Deserialize, Serialize};

/// What happens to system calls that are not on a thread's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Seccomp {
    /// They fail with EPERM
    Enforce,
    /// They are done, and the kernel's audit log has them
    Log,
    /// There are no lists
    Off,
}

/// Rights that threads of this process give up.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Whether calls that are not on a list are refused.
    pub seccomp: Seccomp,
    /// The GPU is the software GPU: no device files, no worker processes.
    pub software: bool,
    /// Files that the API's thread keeps, if it gives up the others by itself.
    pub api_files: Option<Files>,
    /// Whether threads keep all capabilities that the process has.
    pub keep_capabilities: bool,
}

/// Folders that are kept, in addition to reading the system's.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// Folders that can be read.
    pub readable: Vec<PathBuf>,
    /// Folders that can be read and written.
    pub writable: Vec<PathBuf>,
}

/// Task of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The main thread, and each thread without a role of its own.
    Process,
    /// Reads engine state, decides, moves gates and memory.
    Accounting,
    /// Serves VMMs; accepts VMs and serves their mailboxes in threads that it begins.
    Control,
    /// An engine of the software GPU, or its watcher: runs guests' kernels.
    Engine,
    /// Writes the ledger.
    Writer,
    /// Serves the admin API.
    Api,
}

static PLAN: OnceLock<Plan> = OnceLock::new();

/// Folders of libraries, names and the kernel's data about processes.
const READABLE: [&str; 7] = ["/usr", "/lib", "/lib64", "/etc", "/proc", "/sys", "/dev"];

/// Makes threads that begin from now on give up what their role does not need.
pub fn plan(plan: Plan) {
    // A process has one daemon; a second plan changes nothing.
    let _ = PLAN.set(plan);
}

/// Gives up every capability, now and for good, for this thread and those that it begins.
///
/// # Errors
/// The kernel's.
pub fn give_up_capabilities() -> io::Result<()> {
    keep_capabilities(CapabilitySet::empty())
}

/// Gives up all capabilities but these, which are kept if the process has them.
fn keep_capabilities(kept: CapabilitySet) -> io::Result<()> {
    set_no_new_privs(true)?;
    for capability in CapabilitySet::all().difference(kept).iter() {
        // Capabilities that this kernel does not know, or that a process without capabilities may
        // not remove.
        let _ = remove_capability_from_bounding_set(capability);
    }
    let kept = capabilities(None)?.permitted.intersection(kept);
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    Ok(set_capabilities(None, sets)?)
}

/// Restricts this thread and those that it begins to reading system folders and `readable` ones,
/// and to writing `writable` ones. Returns whether this kernel has Landlock.
///
/// # Errors
/// When the kernel has it and refuses.
pub fn restrict_files(files: &Files) -> io::Result<bool> {
    let Files { readable, writable } = files;
    let all = AccessFs::from_all(ABI::V1);
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let system = READABLE.iter().map(Path::new);
    let rules = (system.chain(readable.iter().map(PathBuf::as_path)))
        .map(|path| (path, read))
        .chain(
            writable
                .iter()
                .map(|path| (path.as_path(), all & !AccessFs::Execute)),
        );
    let rules = rules.filter_map(|(path, access)| {
        // A missing folder need not be permitted.
        let fd = PathFd::new(path).ok()?;
        Some(Ok(PathBeneath::new(fd, access)))
    });
    let restricted = Ruleset::default()
        .handle_access(all)
        .and_then(Ruleset::create)
        .and_then(|ruleset| ruleset.add_rules(rules))
        .and_then(|ruleset| ruleset.restrict_self());
    let status = restricted.map_err(io::Error::other)?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

/// Tests in a short-lived thread whether lists of system calls are available.
///
/// # Errors
/// Why they are not.
pub fn probe_seccomp() -> io::Result<()> {
    let refused = std::thread::spawn(|| -> io::Result<bool> {
        let filter = filter(Role::Engine, Seccomp::Enforce, true)?;
        apply_filter(&filter).map_err(|error| io::Error::other(error.to_string()))?;
        // This call is on no list, and is otherwise permitted to all.
        Ok(rustix::fs::statvfs("/").is_err())
    });
    match refused.join() {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => Err(io::Error::other("a list was taken and is not kept to")),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(io::Error::other("the thread that tried it ended")),
    }
}

/// Tests in a short-lived thread whether this kernel has Landlock.
///
/// # Errors
/// When it has it and refuses.
pub fn probe_landlock() -> io::Result<bool> {
    let probed = std::thread::spawn(|| restrict_files(&Files::default())).join();
    probed.unwrap_or_else(|_| Err(io::Error::other("the thread that tried it ended")))
}

/// The folder of a file.
pub fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// First call of a thread: gives up the rights that its role does not need.
pub fn enter(role: Role) {
    let Some(plan) = PLAN.get() else { return };
    if role == Role::Api && !plan.software {
        give_up_alone(plan);
    }
    if plan.seccomp == Seccomp::Off || !role.is_confined(plan.software) {
        return;
    }
    let confined = filter(role, plan.seccomp, plan.software).and_then(|filter| {
        apply_filter(&filter).map_err(|error| io::Error::other(error.to_string()))
    });
    if let Err(error) = confined {
        log::error!("A thread ({role:?}) keeps all system calls: {error}");
    }
}

/// Makes the API's thread, and those that it begins, give up files and capabilities that the
/// process keeps.
fn give_up_alone(plan: &Plan) {
    if !plan.keep_capabilities {
        // The folder of the state file may be another user's; Landlock limits these capabilities to
        // its folders.
        let files = CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER | CapabilitySet::CHOWN;
        let kept = if plan.api_files.is_some() {
            files
        } else {
            CapabilitySet::empty()
        };
        if let Err(error) = keep_capabilities(kept) {
            log::error!("The API's thread keeps its capabilities: {error}");
        }
    }
    let Some(files) = &plan.api_files else { return };
    match restrict_files(files) {
        Ok(true) => {}
        Ok(false) => {
            log::info!("This kernel has no Landlock: the API's thread can reach all files")
        }
        Err(error) => log::error!("The API's thread can reach all files: {error}"),
    }
}

/// Calls of every thread: memory, time, waiting, its end.
#[rustfmt::skip]
const EVERY: &[libc::c_long] = &[
    libc::SYS_munmap, libc::SYS_mremap, libc::SYS_brk, libc::SYS_madvise, libc::SYS_futex, libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity, libc::SYS_gettid, libc::SYS_getpid, libc::SYS_set_robust_list, libc::SYS_rseq,
    libc::SYS_clock_gettime, libc::SYS_clock_nanosleep, libc::SYS_nanosleep, libc::SYS_restart_syscall, libc::SYS_getrandom,
    libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_sigaltstack, libc::SYS_exit, libc::SYS_exit_group,
    libc::SYS_tgkill, libc::SYS_getcpu,
    // its descriptors, among them standard error
    libc::SYS_read, libc::SYS_preadv2, libc::SYS_write, libc::SYS_writev, libc::SYS_close, libc::SYS_fcntl,
];

/// Starting threads.
#[rustfmt::skip]
const THREADS: &[libc::c_long] = &[libc::SYS_clone, libc::SYS_clone3];

/// Using open sockets.
#[rustfmt::skip]
const SOCKETS: &[libc::c_long] = &[
    libc::SYS_sendmsg, libc::SYS_recvmsg, libc::SYS_sendto, libc::SYS_recvfrom, libc::SYS_shutdown, libc::SYS_accept4,
    libc::SYS_getsockopt, libc::SYS_setsockopt, libc::SYS_getsockname, libc::SYS_getpeername, libc::SYS_ppoll,
    libc::SYS_epoll_ctl, libc::SYS_epoll_pwait, libc::SYS_eventfd2, libc::SYS_readv,
    #[cfg(target_arch = "x86_64")] libc::SYS_epoll_wait, #[cfg(target_arch = "x86_64")] libc::SYS_poll,
];

/// Memory that is shared with guests, and moving it.
#[rustfmt::skip]
const SHARED_MEMORY: &[libc::c_long] = &[
    libc::SYS_memfd_create, libc::SYS_ftruncate, libc::SYS_fallocate, libc::SYS_fstat, libc::SYS_fstatfs, libc::SYS_lseek, libc::SYS_pread64,
    libc::SYS_pwrite64, libc::SYS_statx, libc::SYS_newfstatat,
];

/// Files of the ledger and of the state, and the kernel's data about processes. Landlock limits
/// which files.
#[rustfmt::skip]
const FILES: &[libc::c_long] = &[
    libc::SYS_openat, libc::SYS_fstat, libc::SYS_statx, libc::SYS_newfstatat, libc::SYS_lseek, libc::SYS_pread64,
    libc::SYS_pwrite64, libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_ftruncate, libc::SYS_fallocate, libc::SYS_unlinkat,
    libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_faccessat, libc::SYS_faccessat2, libc::SYS_fchmod, libc::SYS_fchown,
    libc::SYS_geteuid, libc::SYS_getuid, libc::SYS_readlinkat, libc::SYS_getcwd, libc::SYS_getdents64, libc::SYS_flock,
    #[cfg(target_arch = "x86_64")] libc::SYS_open, #[cfg(target_arch = "x86_64")] libc::SYS_stat,
    #[cfg(target_arch = "x86_64")] libc::SYS_lstat, #[cfg(target_arch = "x86_64")] libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")] libc::SYS_rename, #[cfg(target_arch = "x86_64")] libc::SYS_access,
    #[cfg(target_arch = "x86_64")] libc::SYS_readlink,
];

/// Connections to a server of the ledger.
#[rustfmt::skip]
const CONNECTIONS: &[libc::c_long] =
    &[libc::SYS_socket, libc::SYS_connect, libc::SYS_bind, libc::SYS_epoll_create1, libc::SYS_sendmmsg, libc::SYS_uname];

/// What the main thread needs to begin: sockets, limits, signals, folders; what fronts need to
/// notice doorbell writes.
#[rustfmt::skip]
const BEGINNING: &[libc::c_long] = &[
    libc::SYS_listen, libc::SYS_socketpair, libc::SYS_pipe2, libc::SYS_dup, libc::SYS_dup3, libc::SYS_prlimit64,
    libc::SYS_rt_sigaction, libc::SYS_rt_sigtimedwait, libc::SYS_fchmodat, libc::SYS_fchownat, libc::SYS_mkdirat,
    libc::SYS_umask, libc::SYS_statfs, libc::SYS_fstatfs, libc::SYS_utimensat, libc::SYS_linkat, libc::SYS_getuid,
    libc::SYS_getgid, libc::SYS_getegid, libc::SYS_getppid, libc::SYS_sysinfo, libc::SYS_pselect6, libc::SYS_ioctl,
    libc::SYS_userfaultfd, libc::SYS_mlock, libc::SYS_munlock, libc::SYS_mincore, libc::SYS_msync, libc::SYS_fadvise64,
    libc::SYS_get_robust_list, libc::SYS_sched_setaffinity, libc::SYS_wait4, libc::SYS_waitid, libc::SYS_pread64,
    // Landlock and capabilities, which a thread may only give up further.
    libc::SYS_landlock_create_ruleset, libc::SYS_landlock_add_rule, libc::SYS_landlock_restrict_self,
    libc::SYS_capget, libc::SYS_capset, libc::SYS_getgroups,
    #[cfg(target_arch = "x86_64")] libc::SYS_mkdir, #[cfg(target_arch = "x86_64")] libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")] libc::SYS_chown, #[cfg(target_arch = "x86_64")] libc::SYS_rmdir,
    #[cfg(target_arch = "x86_64")] libc::SYS_link, #[cfg(target_arch = "x86_64")] libc::SYS_pipe,
    #[cfg(target_arch = "x86_64")] libc::SYS_dup2, #[cfg(target_arch = "x86_64")] libc::SYS_eventfd,
    #[cfg(target_arch = "x86_64")] libc::SYS_select,
];

/// Identity of the peer of a socket.
#[rustfmt::skip]
const PEERS: &[libc::c_long] = &[libc::SYS_pidfd_open, libc::SYS_pidfd_send_signal];

/// A GPU in hardware: its driver, and the processes that use it.
#[rustfmt::skip]
const DEVICE: &[libc::c_long] =
    &[libc::SYS_ioctl, libc::SYS_pidfd_open, libc::SYS_pidfd_send_signal, libc::SYS_pidfd_getfd];

/// By which the standard library makes a socket nonblocking. SOURCE: asm-generic/ioctls.h; the type
/// of libc's constant depends on the C library.
const FIONBIO: u64 = 0x5421;

impl Role {
    /// Whether its threads have a list: those that start workers have none.
    fn is_confined(self, software: bool) -> bool {
        software || matches!(self, Self::Accounting | Self::Writer | Self::Api)
    }

    fn lists(self, software: bool) -> &'static [&'static [libc::c_long]] {
        match self {
            Self::Process => &[
                EVERY,
                THREADS,
                SOCKETS,
                SHARED_MEMORY,
                FILES,
                CONNECTIONS,
                PEERS,
                BEGINNING,
            ],
            // It connects again to a device that failed.
            Self::Accounting if !software => {
                &[EVERY, SOCKETS, SHARED_MEMORY, FILES, CONNECTIONS, DEVICE]
            }
            Self::Engine => &[EVERY, SHARED_MEMORY],
            // It starts the engines of a software GPU anew that fell silent.
            Self::Accounting => &[EVERY, THREADS, SOCKETS, SHARED_MEMORY],
            Self::Control => &[EVERY, THREADS, SOCKETS, SHARED_MEMORY, FILES, PEERS],
            Self::Writer => &[EVERY, THREADS, SOCKETS, FILES, CONNECTIONS],
            Self::Api => &[EVERY, THREADS, SOCKETS, SHARED_MEMORY, FILES],
        }
    }
}

fn filter(role: Role, seccomp: Seccomp, software: bool) -> io::Result<BpfProgram> {
    let other = io::Error::other::<seccompiler::BackendError>;
    let when = |argument, mask: u64, value: u64| {
        let operator = SeccompCmpOp::MaskedEq(mask);
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
            .and_then(|condition| SeccompRule::new(vec![condition]))
            .map_err(other)
    };
    let calls = role.lists(software).iter().flat_map(|list| list.iter());
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        calls.map(|call| (*call, Vec::new())).collect();
    // CAST: constants of the kernel's interface, none negative.
    let exec = libc::PROT_EXEC as u64;
    // Memory that is not code cannot become code.
    rules.insert(libc::SYS_mmap, vec![when(2, exec, 0)?]);
    rules.insert(libc::SYS_mprotect, vec![when(2, exec, 0)?]);
    const WORD: u64 = u32::MAX as u64;
    // CAST: as above. Threads name themselves and the purpose of their memory, and give up
    // privileges as a further filter requires; all else is refused.
    let permitted = [
        libc::PR_SET_NAME,
        libc::PR_SET_VMA,
        libc::PR_SET_NO_NEW_PRIVS,
    ];
    let permitted = permitted.map(|what| when(0, WORD, what as u64));
    rules.insert(
        libc::SYS_prctl,
        permitted.into_iter().collect::<Result<_, _>>()?,
    );
    let nonblocking = when(1, WORD, FIONBIO)?;
    rules.entry(libc::SYS_ioctl).or_insert(vec![nonblocking]);
    // Another filter, for threads of another role that it begins.
    rules.insert(libc::SYS_seccomp, Vec::new());
    let refuse = match seccomp {
        // CAST: a small number of the kernel's interface.
        Seccomp::Enforce => SeccompAction::Errno(libc::EPERM as u32),
        Seccomp::Log | Seccomp::Off => SeccompAction::Log,
    };
    let architecture = std::env::consts::ARCH.try_into().map_err(other)?;
    let filter =
        SeccompFilter::new(rules, refuse, SeccompAction::Allow, architecture).map_err(other)?;
    filter.try_into().map_err(other)
}

#[cfg(test)]
mod tests;
