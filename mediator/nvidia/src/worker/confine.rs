//! What a worker gives up. A VM's kernels can write to the vendor library's own memory in this
//! process, so the process is treated as controlled by the VM.
//!
//! | what | from when | how |
//! | --- | --- | --- |
//! | rights | before the library loads | own user if the daemon is root; no new privileges. |
//! | files | before the library loads | read system, write GPU, execute nothing (Landlock). |
//! | files | after the set-up | the GPU's device files alone, for this crate's threads. |
//! | system calls | after the set-up, all threads | those of [`filter`]; others fail (seccomp). |
//!
//! Without Landlock in the kernel, file access is not restricted.
//!
//! What is left: everything that the driver's device files offer to an ordinary user, memory and
//! processor time of the host, and the daemon's socket.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use landlock::{
    ABI, Access, AccessFs, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus,
};
use rustix::process::{Resource, Rlimit, setrlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter_all_threads,
};

use crate::sys::{become_user, is_superuser, no_new_privileges};

/// First user id for workers, and number of ids: the range of systemd's dynamic service users.
/// SOURCE: systemd, "Users, Groups, UIDs and GIDs on systemd systems".
const USERS_FROM: u32 = 61_184;
const USERS: u32 = 4_336;
/// Maximum number of open descriptors: the VM's, the vendor library's, one for each allocation.
const FILES_MAX: u64 = 4_096;
/// Folders of libraries, their configuration, and the kernel's files about the GPU.
const READABLE: [&str; 9] = [
    "/usr",
    "/lib",
    "/lib64",
    "/opt",
    "/nix",
    "/etc",
    "/proc",
    "/sys",
    "/run/opengl-driver",
];

/// User id for a VM's worker: different ids, so that workers can neither trace nor signal each
/// other.
pub(super) fn user_of(tenant: u32) -> u32 {
    USERS_FROM + tenant % USERS
}

/// Ends the process at once. The vendor library's exit handlers do not run: they may wait for the
/// GPU.
pub(super) fn exit() -> ! {
    // A signal to the own process cannot fail.
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}

/// Called first, before the vendor's library is loaded. The driver ties its objects to the user
/// that made them, and the library's threads inherit the restrictions of the process.
pub(super) fn before_library(user: Option<u32>) -> io::Result<()> {
    if let Some(user) = user.filter(|_| is_superuser()) {
        become_user(user)?;
    }
    no_new_privileges()?;
    let limit = |most| Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    setrlimit(Resource::Core, limit(0))?;
    // Fails where the limit is lower already; the lower limit stays.
    let _ = setrlimit(Resource::Nofile, limit(FILES_MAX));
    let mut readable: Vec<PathBuf> = READABLE.iter().map(PathBuf::from).collect();
    for variable in ["LD_LIBRARY_PATH", "LD_PRELOAD"] {
        let value = std::env::var_os(variable).unwrap_or_default();
        readable.extend(std::env::split_paths(&value).filter(|path| path.is_absolute()));
    }
    restrict_files(&readable)
}

/// Called once everything is set up, in the thread that starts the others.
pub(super) fn before_threads() -> io::Result<()> {
    restrict_files(&[])
}

/// Called last, when all threads exist: restricts their system calls.
pub(super) fn before_work() -> io::Result<()> {
    apply_filter_all_threads(&filter()?).map_err(io::Error::other)
}

/// The GPU's device files. Listed once: the folder cannot be read afterwards.
fn device_files() -> &'static [PathBuf] {
    static FILES: OnceLock<Vec<PathBuf>> = OnceLock::new();
    FILES.get_or_init(|| {
        let entries = std::fs::read_dir("/dev").into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        files.retain(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("nvidia") && !path.is_dir()
        });
        files.push("/dev/null".into());
        files
    })
}

/// Permits reading `readable` and writing the GPU's device files, and nothing else. A kernel
/// without Landlock is logged and not an error.
fn restrict_files(readable: &[PathBuf]) -> io::Result<()> {
    let all = AccessFs::from_all(ABI::V1);
    let rule = |path: &Path, mut access: BitFlags<AccessFs>| {
        if !path.is_dir() {
            access &= AccessFs::ReadFile | AccessFs::WriteFile;
        }
        // A path that does not exist needs no rule.
        PathFd::new(path)
            .ok()
            .map(|fd| Ok(PathBeneath::new(fd, access)))
    };
    let read = readable
        .iter()
        .filter_map(|path| rule(path, AccessFs::ReadFile | AccessFs::ReadDir));
    let mut writable = device_files().to_vec();
    if !readable.is_empty() {
        // The vendor's library names its threads there, and gives up if it cannot (measured).
        writable.push("/proc/self/task".into());
    }
    let write = writable
        .iter()
        .filter_map(|path| rule(path, AccessFs::ReadFile | AccessFs::WriteFile));
    let restricted = Ruleset::default()
        .handle_access(all)
        .and_then(Ruleset::create)
        .and_then(|ruleset| ruleset.add_rules(read.chain(write)))
        .and_then(|ruleset| ruleset.restrict_self());
    let status = restricted.map_err(io::Error::other)?;
    if status.ruleset == RulesetStatus::NotEnforced {
        log::warn!("This kernel has no Landlock: a worker can read what its user can read");
    }
    Ok(())
}

/// System calls that a working worker may make with any arguments. SOURCE: the calls seen on an
/// H200, driver 580.159.04, from the first command on, over all kernels, misbehaviours and
/// restarts; and the calls that the C library makes instead on other systems.
#[rustfmt::skip]
const CALLS: &[libc::c_long] = &[
    // descriptors, socket and eventfds
    libc::SYS_read, libc::SYS_write, libc::SYS_close, libc::SYS_lseek, libc::SYS_fcntl, libc::SYS_sendmsg,
    libc::SYS_recvmsg, libc::SYS_shutdown, libc::SYS_ppoll, libc::SYS_eventfd2, libc::SYS_fstat,
    #[cfg(target_arch = "x86_64")] libc::SYS_poll,
    // the GPU's device files: Landlock decides which can be opened
    libc::SYS_openat,
    // memory
    libc::SYS_munmap, libc::SYS_mremap, libc::SYS_brk, libc::SYS_madvise,
    // existing threads, and time
    libc::SYS_futex, libc::SYS_sched_yield, libc::SYS_sched_getaffinity, libc::SYS_gettid, libc::SYS_getpid,
    libc::SYS_set_robust_list, libc::SYS_rseq, libc::SYS_clock_gettime, libc::SYS_clock_nanosleep, libc::SYS_nanosleep,
    libc::SYS_restart_syscall, libc::SYS_getrandom,
    // own signals, and the end
    libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_sigaltstack, libc::SYS_exit, libc::SYS_exit_group,
];

fn filter() -> io::Result<BpfProgram> {
    let other = io::Error::other::<seccompiler::BackendError>;
    let when = |argument, mask: u64, value: u64| {
        let operator = SeccompCmpOp::MaskedEq(mask);
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
            .and_then(|condition| SeccompRule::new(vec![condition]))
            .map_err(other)
    };
    const WORD: u64 = u32::MAX as u64;
    // CAST: constants of the kernel's interface, none negative; a process id is positive.
    let exec = libc::PROT_EXEC as u64;
    let own = rustix::process::getpid().as_raw_nonzero().get() as u64;
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        CALLS.iter().map(|call| (*call, Vec::new())).collect();
    // No mapping becomes executable.
    rules.insert(libc::SYS_mmap, vec![when(2, exec, 0)?]);
    rules.insert(libc::SYS_mprotect, vec![when(2, exec, 0)?]);
    // RM's ioctls have type 'F', those of unified memory have none. SOURCE:
    // open-gpu-kernel-modules, `nv-ioctl-numbers.h`, `uvm_linux_ioctl.h`.
    rules.insert(
        libc::SYS_ioctl,
        vec![when(1, 0xff00, 0x4600)?, when(1, 0xffff_ff00, 0)?],
    );
    rules.insert(
        libc::SYS_prctl,
        vec![when(0, WORD, libc::PR_SET_NAME as u64)?],
    );
    rules.insert(libc::SYS_kill, vec![when(0, WORD, own)?]);
    let architecture = std::env::consts::ARCH.try_into().map_err(other)?;
    // CAST: a small number of the kernel's interface.
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let filter =
        SeccompFilter::new(rules, refuse, SeccompAction::Allow, architecture).map_err(other)?;
    filter.try_into().map_err(other)
}
