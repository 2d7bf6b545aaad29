//! Source of the driver's objects for the launcher: the kernel, or a library in the program.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, io};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;
use tempfile::TempDir;

use super::sys;
use super::{LaunchError, Learn};
use turnstile_nvidia::handles;
use turnstile_nvidia::notify::{Learning, Listener, Seen};

/// The library, beside the binary.
const LIBRARY: &str = "libturnstile_preload.so";
/// Variable with the path of the launcher's socket.
const VARIABLE: &str = "TURNSTILE_HANDLES";
/// Longest line of the library, and more.
const LINE_BYTES: usize = 256;

/// A command that runs, and the source of its objects.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) pid: Pid,
    pub(super) learner: Learner,
}

/// The source.
#[derive(Debug)]
pub(super) enum Learner {
    /// The kernel reports each call, which waits for the launcher.
    Notify {
        listener: Listener,
        /// Its closing signals the keeper that the launcher has ended.
        _keeper: Option<OwnedFd>,
    },
    /// A preloaded library reports objects.
    Preload {
        socket: UnixDatagram,
        /// The socket's.
        _folder: TempDir,
    },
}

impl AsFd for Learner {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Notify { listener, .. } => listener.as_fd(),
            Self::Preload { socket, .. } => socket.as_fd(),
        }
    }
}

/// Starts `command` with the requested source of its objects.
///
/// # Errors
/// If it cannot be.
pub(super) fn start(
    learn: Option<Learn>,
    library: Option<&Path>,
    mut command: impl FnMut() -> Command,
) -> Result<Started, LaunchError> {
    match learn {
        Some(Learn::Notify) => notified(command()),
        Some(Learn::Preload) => preloaded(command(), library),
        None => match notified(command()) {
            Err(LaunchError::Notify(error)) => {
                log::warn!(
                    "{error}; using the preloaded library instead, which static programs and private copies of the driver's library escape"
                );
                preloaded(command(), library)
            }
            result => result,
        },
    }
}

fn notified(mut command: Command) -> Result<Started, LaunchError> {
    let learning = Learning::lay_on(&mut command)?;
    let started = command.spawn();
    // If the filter was refused, that is the reason for a failed start, whatever its own error is.
    let listener = learning.listener()?;
    let pid = pid_of(&started.map_err(|source| not_started(&command, source))?);
    let listener = listener.ok_or(LaunchError::NoListener)?;
    let keeper = keeper(&listener).unwrap_or_else(|error| {
        log::warn!("No keeper ({error}): if this launcher is killed, the program's calls to the driver fail");
        None
    });
    let learner = Learner::Notify {
        listener,
        _keeper: keeper,
    };
    Ok(Started { pid, learner })
}

/// Starts the process that answers calls after the launcher has ended.
fn keeper(listener: &Listener) -> io::Result<Option<OwnedFd>> {
    let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
    let mut command = Command::new(env::current_exe()?);
    command
        .arg("run-keeper")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::from(listener.as_fd().try_clone_to_owned()?));
    // Out of reach of the terminal's keys.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.spawn()?;
    Ok(Some(ours))
}

fn preloaded(mut command: Command, library: Option<&Path>) -> Result<Started, LaunchError> {
    let lines = Lines::open()?;
    preload(&mut command, &find(library)?);
    command.env(VARIABLE, lines.path());
    lines.spawn(command)
}

/// A socket for lines about objects.
#[derive(Debug)]
pub(super) struct Lines {
    socket: UnixDatagram,
    folder: TempDir,
}

impl Lines {
    /// Opens it.
    ///
    /// # Errors
    /// The host's.
    pub(super) fn open() -> Result<Self, LaunchError> {
        let folder = tempfile::tempdir().map_err(LaunchError::Host)?;
        let path = folder.path().join("handles");
        let socket = UnixDatagram::bind(&path).map_err(LaunchError::Host)?;
        socket
            .set_nonblocking(true)
            .and_then(|()| sys::want_senders(&socket))
            .map_err(LaunchError::Host)?;
        Ok(Self { socket, folder })
    }

    /// Its path.
    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().join("handles")
    }

    /// Starts a command that reports its objects there.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(super) fn spawn(self, mut command: Command) -> Result<Started, LaunchError> {
        let started = command.spawn();
        let pid = pid_of(&started.map_err(|source| not_started(&command, source))?);
        let learner = Learner::Preload {
            socket: self.socket,
            _folder: self.folder,
        };
        Ok(Started { pid, learner })
    }
}

/// The library, where it was named, beside this program, or where a package puts it.
///
/// # Errors
/// If it is not there.
pub(super) fn find(library: Option<&Path>) -> Result<PathBuf, LaunchError> {
    find_named(library, LIBRARY)
}

/// The same, of a library by its name.
///
/// # Errors
/// As [`find`].
pub(super) fn find_named(library: Option<&Path>, name: &str) -> Result<PathBuf, LaunchError> {
    let path = match library {
        Some(path) => path.to_owned(),
        None => {
            let own = env::current_exe().map_err(LaunchError::Host)?;
            let [beside, installed] = places(&own, name);
            if installed.is_file() && !beside.is_file() {
                installed
            } else {
                beside
            }
        }
    };
    if path.is_file() {
        Ok(path)
    } else {
        Err(LaunchError::NoLibrary { path })
    }
}

/// Has the command load the library before others, and before those that are preloaded already.
pub(super) fn preload(command: &mut Command, library: &Path) {
    let mut preload = library.as_os_str().to_owned();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    command.env("LD_PRELOAD", preload);
}

/// Places of the library: beside this program, as it is built, and in its own folder, as installed.
fn places(own: &Path, name: &str) -> [PathBuf; 2] {
    let beside = own.with_file_name(name);
    let prefix = own.parent().and_then(Path::parent);
    let installed = prefix.unwrap_or(Path::new("/")).join("lib/turnstile");
    [beside, installed.join(name)]
}

fn pid_of(child: &std::process::Child) -> Pid {
    Pid::from_child(child)
}

fn not_started(command: &Command, source: io::Error) -> LaunchError {
    LaunchError::NotStarted {
        program: command.get_program().to_owned(),
        source,
    }
}

impl Learner {
    /// Reads the reports, once it is readable.
    ///
    /// # Errors
    /// If no more reports will follow.
    pub(super) fn take(&mut self, seen: &mut Vec<Seen>) -> Result<(), LaunchError> {
        match self {
            Self::Notify { listener, .. } => Ok(listener.next(seen)?),
            Self::Preload { socket, .. } => {
                let mut line = [0; LINE_BYTES];
                let (bytes, sender) = match sys::receive(socket, &mut line) {
                    Ok(received) => received,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                    Err(error) => return Err(LaunchError::Host(error)),
                };
                let text = std::str::from_utf8(&line[..bytes]).unwrap_or_default();
                // The kernel names the sender; the number in the line does not matter.
                if let (Ok((_, change)), true) = (handles::parse(text), sender != 0) {
                    seen.push(Seen {
                        pid: sender,
                        change,
                    });
                }
                Ok(())
            }
        }
    }

    /// Reads handles that the driver has chosen; true if it is to be called again soon.
    pub(super) fn settle(&mut self, seen: &mut Vec<Seen>) -> bool {
        match self {
            Self::Notify { listener, .. } => {
                if listener.is_unsettled() {
                    listener.settle(seen);
                }
                listener.is_unsettled()
            }
            Self::Preload { .. } => false,
        }
    }

    /// Whether a hang-up means that no process of the program is left.
    pub(super) const fn knows_the_end(&self) -> bool {
        matches!(self, Self::Notify { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_found_where_it_is_built_and_where_it_is_installed() {
        let [beside, installed] = places(Path::new("/usr/bin/turnstile"), LIBRARY);
        assert_eq!(beside, Path::new("/usr/bin/libturnstile_preload.so"));
        let package = "/usr/lib/turnstile/libturnstile_preload.so";
        assert_eq!(installed, Path::new(package));
    }
}
