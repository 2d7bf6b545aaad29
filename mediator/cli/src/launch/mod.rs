//! `turnstile run`: an unmodified program and its children as a tenant of a daemon.
//!
//! ```text
//!   daemon <--link-- launcher --starts--> program, its children      (a subreaper: orphans stay below it)
//!                     ^   |                   |
//!                     |   +-- keeper          | RM_ALLOC, RM_FREE wait for the launcher
//!                     +------learner <--------+
//! ```
//!
//! The launcher is one thread on poll. It answers the program's calls, reports objects to the
//! daemon, and passes signals on. It ends with the command's status once all started processes have
//! ended. Without a daemon the program runs on; a new daemon gets all reports again.

mod arrival;
mod door;
pub(crate) mod isolated;
mod keeper;
mod learner;
mod link;
mod supervisor;
mod sys;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) use keeper::serve as keep;
use turnstile_vmm::wire::{Gpus, Metadata, PROTOCOL, ToDaemon, WireError};

use door::Door;
use isolated::{Device, Isolation};
use link::Link;
use supervisor::Supervisor;
use turnstile_nvidia::notify::NotifyError;

/// How the driver's objects are learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learn {
    /// By seccomp user notification.
    Notify,
    /// By a preloaded library.
    Preload,
}

/// Where objects are reported to.
#[derive(Debug)]
pub(crate) enum Report {
    /// To the daemon at this socket.
    Daemon {
        /// Its socket.
        socket: PathBuf,
        /// Name of the tenant; that of the command and its number if absent.
        name: Option<String>,
        /// Weight; the daemon's default if absent.
        weight: Option<u32>,
        /// Instance id, project and labels.
        metadata: Box<Metadata>,
        /// GPU memory that it may have, as far as that can move; no limit of its own if absent.
        memory_max_bytes: Option<u64>,
        /// Bytes of it that are never taken from the program.
        memory_min_bytes: Option<u64>,
        /// Bytes above which its memory is taken first.
        memory_high_bytes: Option<u64>,
        /// The GPUs that it is to run on.
        gpus: Gpus,
    },
    /// To a file, in the preloaded library's lines.
    File(File),
}

/// A program to run.
#[derive(Debug)]
pub(crate) struct Launch {
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// Where to.
    pub report: Report,
    /// How; by notification where it works, else by the library, if absent.
    pub learn: Option<Learn>,
    /// The library; the one beside this binary if absent.
    pub library: Option<PathBuf>,
    /// Its memory can move: the library is preloaded for that as well.
    pub movable: bool,
    /// It has no NVIDIA node: a device process issues its calls.
    pub isolated: Option<Isolation>,
}

/// Why a program was not run, or not to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    /// No daemon listens.
    #[error(
        "No daemon listens on {}; start one (turnstile serve --gpu nvidia), or name its socket with --socket", path.display()
    )]
    NoDaemon {
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// It refused.
    #[error("The daemon did not take the program: {0}")]
    Refused(String),
    /// The daemon is of a build that shares one GPU.
    #[error("The daemon is older than this command and shares one GPU; leave --gpu out")]
    OneGpu,
    /// No answer, or one that is not valid.
    #[error("The daemon did not answer; it may be older than this command, and its log has more")]
    Silent,
    /// The connection failed.
    #[error("The daemon cannot be talked to")]
    Wire(#[from] WireError),
    /// No command.
    #[error("No command was named; turnstile run -- COMMAND")]
    NoCommand,
    /// It was not started.
    #[error("{} cannot be started", program.display())]
    NotStarted {
        /// Which.
        program: OsString,
        /// Why.
        source: io::Error,
    },
    /// The filter.
    #[error(transparent)]
    Notify(#[from] NotifyError),
    /// The filter's other end did not arrive.
    #[error("The command was started without its filter")]
    NoListener,
    /// The driver cannot be used for isolated programs.
    #[error(transparent)]
    Driver(#[from] turnstile_nvidia::version::VersionError),
    /// Its release has no table.
    #[error("{0}")]
    Release(String),
    /// The library is not there.
    #[error("{} is not there; it is built with turnstile and lies beside it, or in ../lib/turnstile; --preload names another place", path.display())]
    NoLibrary {
        /// Where it was expected.
        path: PathBuf,
    },
    /// Another device process serves it.
    #[error("{} is served already: each VM has a socket of its own", path.display())]
    Served {
        /// The socket.
        path: PathBuf,
    },
    /// The kernel's.
    #[error("The host is short of something")]
    Host(#[source] io::Error),
}

impl LaunchError {
    /// Exit status of the launcher: that of a shell where the command cannot be started, else one
    /// that commands seldom use. SOURCE: POSIX, 2.8.2; timeout(1), docker-run(1).
    pub(crate) fn exit_code(&self) -> i32 {
        match self {
            Self::NotStarted { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            Self::NotStarted { .. } => 126,
            _ => 125,
        }
    }
}

/// Runs a program to its end. Returns its exit status, or 128 and the number of the signal that
/// ended it.
///
/// # Errors
/// If it cannot be run as requested. Then it was not started.
pub(crate) fn run(launch: Launch) -> Result<i32, LaunchError> {
    let (program, arguments) = launch.command.split_first().ok_or(LaunchError::NoCommand)?;
    let own = || default_name(program.as_ref(), std::process::id());
    let (link, file) = greet(launch.report, launch.movable, own)?;
    let gpus = link.as_ref().map_or(&[][..], Link::gpus);
    let visible = visible_devices(gpus);
    let show = |command: &mut Command| {
        if let Some(visible) = &visible {
            command.env(VISIBLE_DEVICES, visible);
        }
    };
    let isolation = launch.isolated.as_ref().map(|isolation| isolation.on(gpus));
    let signals = above_all()?;
    let door = launch.movable.then(|| match launch.isolated {
        Some(_) => Door::for_device(),
        None => Door::open(launch.library.as_deref()),
    });
    let door = door.transpose()?;
    if let Some(isolation) = &isolation {
        let lines = learner::Lines::open()?;
        let device = Device::start(isolation, &lines.path(), door.as_ref())?;
        let mut command = device.command(program, arguments)?;
        show(&mut command);
        signals.give_back_in(&mut command);
        let started = lines.spawn(command)?;
        return Supervisor::new(started, signals, link, file, door, Some(device)).run();
    }
    let started = learner::start(launch.learn, launch.library.as_deref(), || {
        let mut command = Command::new(program);
        command.args(arguments);
        show(&mut command);
        signals.give_back_in(&mut command);
        if let Some(door) = &door {
            door.show(&mut command);
        }
        command
    })?;
    Supervisor::new(started, signals, link, file, door, None).run()
}

/// The vendor's variable with the GPUs that a program finds. SOURCE: CUDA programming guide,
/// "CUDA Environment Variables".
const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
/// Begin of an identity that the variable takes.
const UUID_PREFIX: &str = "GPU-";

/// Value of [`VISIBLE_DEVICES`] for a program on these GPUs; none unless all are NVIDIA's.
fn visible_devices(gpus: &[String]) -> Option<String> {
    let are_uuids = gpus.iter().all(|gpu| gpu.starts_with(UUID_PREFIX));
    (are_uuids && !gpus.is_empty()).then(|| gpus.join(","))
}

/// Greets the daemon, or takes the file, to which objects are reported.
fn greet(
    report: Report,
    movable: bool,
    own_name: impl FnOnce() -> String,
) -> Result<(Option<Link>, Option<File>), LaunchError> {
    Ok(match report {
        Report::Daemon {
            socket,
            name,
            weight,
            metadata,
            memory_max_bytes,
            memory_min_bytes,
            memory_high_bytes,
            gpus,
        } => {
            let greeting = ToDaemon::Program {
                protocol: PROTOCOL,
                name: name.unwrap_or_else(own_name),
                weight,
                memory_max_bytes,
                movable,
                memory_min_bytes,
                memory_high_bytes,
                gpus,
                metadata: *metadata,
            };
            (Some(Link::open(socket, greeting)?), None)
        }
        Report::File(file) => (None, Some(file)),
    })
}

/// Takes the signals. Whatever the command starts stays below this process, also when its parent
/// ends first.
fn above_all() -> Result<sys::Signals, LaunchError> {
    let signals = sys::Signals::take(&supervisor::TAKEN).map_err(LaunchError::Host)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|errno| LaunchError::Host(errno.into()))?;
    Ok(signals)
}

/// Serves the CUDA device of a VM on the socket `vm`, until its VMM closes it. Returns the exit
/// status of the device process. The device outlives the daemon, as a program does.
///
/// # Errors
/// If the socket cannot be served. Then no device process was started.
pub(crate) fn serve_vm(
    report: Report,
    isolation: &Isolation,
    movable: bool,
    vm: &Path,
) -> Result<i32, LaunchError> {
    isolation.check()?;
    free(vm)?;
    let own = || default_name(vm, std::process::id());
    let (link, file) = greet(report, movable, own)?;
    let isolation = isolation.on(link.as_ref().map_or(&[][..], Link::gpus));
    let signals = above_all()?;
    let lines = learner::Lines::open()?;
    let door = movable.then(Door::for_device).transpose()?;
    let mut command = isolated::device_command(&isolation, &lines.path(), door.as_ref())
        .map_err(LaunchError::Host)?;
    command.arg("--vm").arg(vm);
    signals.give_back_in(&mut command);
    let started = lines.spawn(command)?;
    Supervisor::new(started, signals, link, file, door, None).run()
}

/// Removes a socket that a killed device process left behind. One of another kind is refused by a
/// live listener without taking the place of its VMM. SOURCE: unix(7), EPROTOTYPE.
fn free(vm: &Path) -> Result<(), LaunchError> {
    let refused = UnixDatagram::unbound().and_then(|socket| socket.connect(vm));
    match refused.map_err(|error| error.raw_os_error()) {
        Err(Some(libc::ECONNREFUSED)) => std::fs::remove_file(vm).map_err(LaunchError::Host),
        Err(Some(libc::ENOENT)) => Ok(()),
        _ => Err(LaunchError::Served {
            path: vm.to_owned(),
        }),
    }
}

/// The command's own name, as far as a tenant's may have its letters, and the launcher's number.
fn default_name(program: &Path, pid: u32) -> String {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let permitted = |c: &char| c.is_ascii_alphanumeric() || "._-".contains(*c);
    // Of at most 64 letters, of which a number takes eleven.
    let name: String = name.chars().filter(permitted).take(48).collect();
    format!("{name}-{pid}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_made_of_the_commands() {
        let name = |text: &str| default_name(Path::new(text), 77);
        assert_eq!(name("/usr/bin/python3.12"), "python3.12-77");
        assert_eq!(name("a b/train me!.py"), "trainme.py-77");
        assert_eq!(name("/"), "-77");
        assert!(default_name(Path::new(&"x".repeat(500)), u32::MAX).len() <= 64);
    }

    #[test]
    fn a_program_finds_the_gpus_that_it_is_a_tenant_of() {
        let visible = |gpus: &[&str]| {
            let gpus: Vec<String> = gpus.iter().map(|gpu| (*gpu).to_owned()).collect();
            visible_devices(&gpus)
        };
        assert_eq!(visible(&["GPU-1"]).as_deref(), Some("GPU-1"));
        assert_eq!(visible(&["GPU-2", "GPU-1"]).as_deref(), Some("GPU-2,GPU-1"));
        assert_eq!(visible(&["software-0"]), None);
        assert_eq!(visible(&[]), None);
    }

    #[test]
    fn a_command_that_is_not_there_ends_as_in_a_shell() {
        let not_started = |kind: io::ErrorKind| LaunchError::NotStarted {
            program: "x".into(),
            source: kind.into(),
        };
        assert_eq!(not_started(io::ErrorKind::NotFound).exit_code(), 127);
        assert_eq!(
            not_started(io::ErrorKind::PermissionDenied).exit_code(),
            126
        );
        assert_eq!(LaunchError::Silent.exit_code(), 125);
    }
}
