//! A program that has no NVIDIA node, and the device process that issues its calls.
//!
//! ```text
//!   launcher --life (a pipe)--> device process <--socket-- program, its children
//!      ^                              |
//!      +-- lines of channels ---------+    the daemon sees the device process as the program's
//! ```
//!
//! The device process ends once the launcher has closed the pipe and no program is connected. The
//! program gets a mount namespace of its own, in which `/dev` has no NVIDIA node.

use std::collections::BTreeSet;
use std::ffi::{CString, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::{env, fs, io};

use anyhow::Context;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{getgid, getuid};
use tempfile::TempDir;
use turnstile_nvidia::identity::{self, Identity};
use turnstile_nvidia::version;
use turnstile_nvidia_guest::check::Limits;
use turnstile_nvidia_guest::device::{Driver, Nvidia, Options, StandIn, serve, serve_machine};
use turnstile_nvidia_guest::proto::VARIABLE;

use super::door::{Door, connect_device};
use super::{LaunchError, learner, sys};

/// The library, beside the binary.
const LIBRARY: &str = "libturnstile_isolated.so";
/// Version that the stand-in driver has.
const STAND_IN_VERSION: &str = "580.159.04";

/// Has NCCL pass memory between processes by descriptors, which do not arrive, in place of handles.
const NCCL_BY_DESCRIPTORS: &str = "NCCL_CUMEM_ENABLE";

/// How a program is isolated.
#[derive(Clone, Debug, Default)]
pub(crate) struct Isolation {
    /// The library; the one beside this binary if absent.
    pub(crate) library: Option<PathBuf>,
    /// GPU memory that the program may have; all if absent.
    pub(crate) gpu_bytes: Option<u64>,
    /// Nodes of the GPUs that it may use, by number; all if empty.
    pub(crate) nodes: BTreeSet<u8>,
    /// The driver is the stand-in, for tests without a GPU.
    pub(crate) stand_in: bool,
}

impl Isolation {
    /// The same on these GPUs alone, by their identities. Identities of no NVIDIA GPU do not
    /// count.
    pub(super) fn on(&self, gpus: &[String]) -> Self {
        let all = identity::all().unwrap_or_default();
        let named = |(_, identity): &(u32, Identity)| gpus.contains(&identity.uuid);
        let nodes = all.iter().filter(|one| named(one));
        let nodes = nodes.filter_map(|(node, _)| u8::try_from(*node).ok());
        Self {
            nodes: nodes.collect(),
            ..self.clone()
        }
    }

    /// Checks that the driver's release has a table.
    pub(super) fn check(&self) -> Result<(), LaunchError> {
        if !self.stand_in {
            version::detect().map_err(|error| match error.lacks() {
                Some(lacks) => LaunchError::Release(lacks),
                None => error.into(),
            })?;
        }
        Ok(())
    }
}

/// The command of a device process, with `lines` as the socket for its channels, and `door` for its
/// memory if that moves.
pub(super) fn device_command(
    isolation: &Isolation,
    lines: &Path,
    door: Option<&Door>,
) -> io::Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.arg("guest-device").arg("--report").arg(lines);
    if let Some(door) = door {
        command.arg("--memory").arg(door.path());
    }
    if let Some(bytes) = isolation.gpu_bytes {
        command.arg("--gpu-memory").arg(bytes.to_string());
    }
    for node in &isolation.nodes {
        command.arg("--node").arg(node.to_string());
    }
    if isolation.stand_in {
        command.arg("--stand-in");
    }
    Ok(command)
}

/// A device process that runs.
#[derive(Debug)]
pub(super) struct Device {
    /// Open while the launcher needs it.
    _life: OwnedFd,
    socket: PathBuf,
    library: PathBuf,
    /// The socket's.
    _folder: TempDir,
}

impl Device {
    /// Starts it. Lines about its channels go to `lines`.
    ///
    /// # Errors
    /// If there is no library, the driver's release has no table, or the host has no room.
    pub(super) fn start(
        isolation: &Isolation,
        lines: &Path,
        door: Option<&Door>,
    ) -> Result<Self, LaunchError> {
        isolation.check()?;
        let library = learner::find_named(isolation.library.as_deref(), LIBRARY)?;
        let begin = || {
            let folder = tempfile::tempdir()?;
            let socket = folder.path().join("device");
            let listener = UnixListener::bind(&socket)?;
            let (theirs, life) = pipe_with(PipeFlags::CLOEXEC)?;
            let mut command = device_command(isolation, lines, door)?;
            command
                .stdin(OwnedFd::from(listener))
                .stdout(theirs)
                .process_group(0);
            command.spawn()?;
            Ok((folder, socket, life))
        };
        let (folder, socket, life) = begin().map_err(LaunchError::Host)?;
        Ok(Self {
            _life: life,
            socket,
            library,
            _folder: folder,
        })
    }

    /// The command that runs a program without the nodes.
    pub(super) fn command(
        &self,
        program: &OsString,
        arguments: &[OsString],
    ) -> Result<Command, LaunchError> {
        let own = env::current_exe().map_err(LaunchError::Host)?;
        let mut command = Command::new(own);
        command
            .arg("guest-program")
            .arg("--library")
            .arg(&self.library);
        command.arg("--").arg(program).args(arguments);
        command.env(VARIABLE, &self.socket);
        Ok(command)
    }
}

/// The device process: serves the VMM that connects to the socket `vm`, or the programs of the
/// socket on standard input until standard output is hung up. Its memory moves if it has the
/// launcher's socket `memory`.
///
/// # Errors
/// If the driver's release is not known, or the host lacks something.
pub(crate) fn device(
    isolation: &Isolation,
    lines: Option<&Path>,
    memory: Option<&Path>,
    vm: Option<&Path>,
) -> anyhow::Result<()> {
    let report = lines.map(|path| {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        socket.set_nonblocking(true)?;
        Ok::<_, io::Error>(socket)
    });
    let (driver, version): (Arc<dyn Driver>, String) = if isolation.stand_in {
        (Arc::new(StandIn::new()?), STAND_IN_VERSION.to_owned())
    } else {
        let nodes = &isolation.nodes;
        let driver = match nodes.is_empty() {
            true => Nvidia::default(),
            false => Nvidia::with_gpus(nodes.clone()),
        };
        (Arc::new(driver), version::loaded()?)
    };
    let limits = Limits {
        gpu_bytes: isolation.gpu_bytes,
        ..Limits::default()
    };
    let options = Options {
        version,
        limits,
        report: report.transpose()?,
        confined: true,
        memory: memory.map(connect_device).transpose()?,
    };
    if let Some(vm) = vm {
        let listener =
            UnixListener::bind(vm).with_context(|| format!("{} cannot be made", vm.display()))?;
        let (stream, _) = listener.accept()?;
        // It serves this VMM alone; the next device process makes the name anew.
        drop(listener);
        let _ = fs::remove_file(vm);
        return Ok(serve_machine(stream, driver, options)?);
    }
    let listener = UnixListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    let life = io::stdout().as_fd().try_clone_to_owned()?;
    Ok(serve(&listener, &life, driver, options)?)
}

/// Becomes the program, in a mount namespace without NVIDIA nodes where the kernel permits one.
///
/// # Errors
/// The status of a shell: 127 if there is no such command, else 126.
pub(crate) fn program(library: &Path, command: &[OsString]) -> anyhow::Result<u8> {
    if let Err(error) = hide() {
        log::warn!(
            "The NVIDIA nodes stay in the program's /dev ({error:#}): the library alone keeps it from them"
        );
    }
    let (name, arguments) = command.split_first().context("No command was named")?;
    let mut command = Command::new(name);
    command.args(arguments);
    learner::preload(&mut command, library);
    if env::var_os(NCCL_BY_DESCRIPTORS).is_none() {
        command.env(NCCL_BY_DESCRIPTORS, "0");
    }
    let error = command.exec();
    eprintln!(
        "turnstile run: {} cannot be started: {error}",
        name.display()
    );
    Ok(if error.kind() == io::ErrorKind::NotFound {
        127
    } else {
        126
    })
}

/// Mounts another `/dev`, which has all but the NVIDIA nodes.
fn hide() -> anyhow::Result<()> {
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    if sys::own_mounts(false).is_err() {
        sys::own_mounts(true).context("No mount namespace")?;
        // SOURCE: user_namespaces(7): a group's map needs setgroups to be denied first.
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
        fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    }
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?;
    let folder = tempfile::tempdir()?;
    let mode = CString::new("mode=755")?;
    mount(
        "tmpfs",
        folder.path(),
        "tmpfs",
        MountFlags::NOSUID,
        Some(mode.as_c_str()),
    )?;
    for entry in fs::read_dir("/dev")? {
        let entry = entry?;
        if entry.file_name().as_bytes().starts_with(b"nvidia") {
            continue;
        }
        let (from, to) = (entry.path(), folder.path().join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&from)?, &to)?;
        } else {
            if kind.is_dir() {
                fs::create_dir(&to)?;
            } else {
                fs::File::create(&to)?;
            }
            rustix::mount::mount_bind_recursive(&from, &to)?;
        }
    }
    mount_bind_all(folder.path())
}

/// Lays the folder over `/dev`.
fn mount_bind_all(folder: &Path) -> anyhow::Result<()> {
    rustix::mount::mount_move(folder, "/dev").or_else(|_| mount_bind(folder, "/dev"))?;
    Ok(())
}
