//! What shares the GPU among the programs while they run: nothing, a daemon, or the vendor's MPS.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::json;
use turnstile_api::client::Client;

use super::super::daemon::Daemon;
use super::super::ending::{end, ended_within};
use super::super::messages::tail;
use super::super::scheduler::{DaemonArgs, charge, spawn, tenant_of};
use super::rows::{Mode, Program, Row, WEIGHT_UNIT};
use super::runs::Figures;

/// The vendor's control daemon.
const MPS_CONTROL: &str = "nvidia-cuda-mps-control";
/// Folders in which a CUDA program finds MPS, and in which the control daemon logs.
const MPS_PIPES: &str = "CUDA_MPS_PIPE_DIRECTORY";
const MPS_LOGS: &str = "CUDA_MPS_LOG_DIRECTORY";
/// TIMEOUT: the control daemon makes its pipe within some ten milliseconds.
const MPS_START_LIMIT: Duration = Duration::from_secs(10);
/// TIMEOUT: it ends its server, which takes down contexts.
const MPS_END_LIMIT: Duration = Duration::from_secs(10);

/// A mode, as it runs.
#[derive(Debug)]
pub(super) struct Running {
    /// Of its sockets, pipes and messages.
    folder: PathBuf,
    device: u32,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Native,
    Turnstile {
        daemon: Box<Daemon>,
        socket: PathBuf,
        api: Client,
    },
    Mps(Mps),
}

impl Running {
    /// Starts what the mode has besides the programs.
    pub(super) fn start(
        mode: Mode,
        args: &DaemonArgs,
        device: u32,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let folder = folder.join(mode.to_string());
        fs::create_dir_all(&folder)?;
        let kind = match mode {
            Mode::Native => Kind::Native,
            Mode::Turnstile => {
                let (daemon, socket) = spawn(args, device, &folder)?;
                Kind::Turnstile {
                    daemon: Box::new(daemon),
                    // SOURCE: `serve --api-socket`: beside the other one, unless it is named.
                    api: Client::new(&socket.with_file_name("api.sock")),
                    socket,
                }
            }
            Mode::Mps => Kind::Mps(Mps::start(Path::new(MPS_CONTROL), device, &folder)?),
        };
        Ok(Self {
            folder,
            device,
            kind,
        })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The command that runs a program's file.
    pub(super) fn command(
        &self,
        python: &Path,
        files: &Path,
        program: &Program,
    ) -> anyhow::Result<Command> {
        let mut command = match &self.kind {
            Kind::Native | Kind::Mps(_) => Command::new(python),
            Kind::Turnstile { socket, .. } => {
                tenant_of(socket, program.name(), WEIGHT_UNIT, &[], python)?
            }
        };
        let (file, arguments) = program.words();
        command.arg(files.join(file)).args(arguments);
        // The control daemon of MPS gives its clients the one device that it has itself.
        let (device, pipes) = match &self.kind {
            Kind::Mps(mps) => (0, mps.pipes.clone()),
            // Without a pipe there CUDA uses no MPS, even if the host runs one.
            Kind::Native | Kind::Turnstile { .. } => (self.device, self.folder.join("no-mps")),
        };
        command
            .env("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
            .env("CUDA_VISIBLE_DEVICES", device.to_string())
            .env(MPS_PIPES, pipes);
        Ok(command)
    }

    /// Sets the weights of a row.
    pub(super) fn weigh(&self, row: &Row) -> anyhow::Result<()> {
        let Kind::Turnstile { api, .. } = &self.kind else {
            return Ok(());
        };
        for (program, weight) in row.members() {
            let name = program.name();
            let changes = [("weight".to_owned(), json!(WEIGHT_UNIT * weight))];
            let path = format!("/v1/vms/{name}/scheduling");
            api.patch(&path, changes.into_iter().collect(), None)
                .map_err(|error| anyhow::anyhow!("{error}"))
                .with_context(|| format!("Setting the weight of {name} failed"))?;
        }
        Ok(())
    }

    /// A window begins.
    pub(super) fn begin(&mut self) -> anyhow::Result<()> {
        if let Kind::Turnstile { daemon, .. } = &mut self.kind {
            daemon.clear_marks();
            daemon.mark()?;
        }
        Ok(())
    }

    /// The window ends.
    pub(super) fn end(&mut self) -> anyhow::Result<()> {
        match &mut self.kind {
            Kind::Turnstile { daemon, .. } => daemon.mark(),
            Kind::Native | Kind::Mps(_) => Ok(()),
        }
    }

    /// What the daemon charged in the last window, of its time. Returns its processor time.
    pub(super) fn charge(&self, programs: &mut [Figures]) -> Option<f64> {
        let Kind::Turnstile { daemon, .. } = &self.kind else {
            return None;
        };
        if let [first, .., last] = daemon.marks() {
            let (first, last) = (&first.snapshot, &last.snapshot);
            for figures in programs {
                let length = || Some(last["at"].as_u64()?.saturating_sub(first["at"].as_u64()?));
                let charged = charge(first, last, figures.program.name());
                figures.charged_percent = charged
                    .zip(length())
                    .filter(|(_, length)| *length > 0)
                    .map(|(charge, length)| 100.0 * charge.compute_ns as f64 / length as f64);
            }
        }
        daemon.cpu_percent()
    }
}

/// The control daemon of MPS; it ends with this.
#[derive(Debug)]
struct Mps {
    child: Child,
    program: PathBuf,
    pipes: PathBuf,
    logs: PathBuf,
}

impl Mps {
    fn start(program: &Path, device: u32, folder: &Path) -> anyhow::Result<Self> {
        let (pipes, logs) = (folder.join("pipes"), folder.join("logs"));
        fs::create_dir_all(&pipes)?;
        fs::create_dir_all(&logs)?;
        let messages = folder.join("messages");
        let child = Command::new(program)
            .arg("-f")
            .env(MPS_PIPES, &pipes)
            .env(MPS_LOGS, &logs)
            .env("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
            .env("CUDA_VISIBLE_DEVICES", device.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&messages)?)
            .spawn()
            .with_context(|| format!("{} cannot be run", program.display()))?;
        let mut mps = Self {
            child,
            program: program.to_owned(),
            pipes,
            logs,
        };
        let deadline = Instant::now() + MPS_START_LIMIT;
        // SOURCE: the vendor's manual of MPS: the control daemon reads this pipe.
        while !mps.pipes.join("control").exists() {
            if let Some(status) = mps.child.try_wait()? {
                bail!("{MPS_CONTROL} ended with {status}: {}", tail(&messages));
            }
            if Instant::now() > deadline {
                bail!("{MPS_CONTROL} is not ready: {}", tail(&messages));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(mps)
    }

    /// Orders it to end, and its server.
    fn quit(&self) -> anyhow::Result<()> {
        let mut child = Command::new(&self.program)
            .env(MPS_PIPES, &self.pipes)
            .env(MPS_LOGS, &self.logs)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        // Its input closes behind the order.
        let ordered = child
            .stdin
            .take()
            .map(|mut orders| orders.write_all(b"quit\n"));
        end(&mut child, MPS_END_LIMIT);
        Ok(ordered.unwrap_or(Ok(()))?)
    }
}

impl Drop for Mps {
    fn drop(&mut self) {
        if !matches!(ended_within(&mut self.child, Duration::ZERO), Ok(Some(_))) {
            let _ = self.quit();
        }
        end(&mut self.child, MPS_END_LIMIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn native(folder: &Path) -> Running {
        let args = DaemonArgs::default();
        Running::start(Mode::Native, &args, 3, folder).unwrap()
    }

    #[test]
    fn a_native_program_has_its_device_and_no_mps() {
        let folder = tempfile::tempdir().unwrap();
        let running = native(folder.path());
        let program: Program = "kernels-50-1".parse().unwrap();
        let command = running
            .command(Path::new("python3"), Path::new("/p"), &program)
            .unwrap();
        let words: Vec<_> = command.get_args().collect();
        assert_eq!(words, ["/p/kernels.py", "50", "1"]);
        let set = |name: &str| command.get_envs().find(|(key, _)| *key == name).unwrap().1;
        assert_eq!(set("CUDA_VISIBLE_DEVICES").unwrap(), "3");
        assert!(!Path::new(set(MPS_PIPES).unwrap()).exists());
    }

    /// A stand-in that makes its pipe, or ends at once, and takes orders to end.
    fn control(folder: &Path, starts: bool) -> PathBuf {
        let file = folder.join("control.sh");
        let fails = if starts {
            ""
        } else {
            "echo no device >&2; exit 1"
        };
        let script = format!(
            "#!/bin/sh\nif [ \"$1\" = -f ]; then\n{fails}\nmkfifo \"${MPS_PIPES}/control\"\n\
             read -r order < \"${MPS_PIPES}/control\"\necho \"$order\" > \"${MPS_LOGS}/order\"\n\
             else cat > \"${MPS_PIPES}/control\"; fi\n"
        );
        // By another process: this one may fork meanwhile, and a file open for writing cannot run.
        let write = "printf %s \"$1\" > \"$2\" && chmod 700 \"$2\"";
        let mut command = Command::new("sh");
        command.args(["-c", write, "sh", &script]).arg(&file);
        assert!(command.status().unwrap().success());
        file
    }

    #[test]
    fn the_control_daemon_of_mps_is_started_and_ordered_to_quit() {
        let folder = tempfile::tempdir().unwrap();
        let program = control(folder.path(), true);
        let mps = Mps::start(&program, 0, folder.path()).unwrap();
        let logs = mps.logs.clone();
        drop(mps);
        assert_eq!(fs::read_to_string(logs.join("order")).unwrap(), "quit\n");
    }

    #[test]
    fn a_control_daemon_that_does_not_start_is_an_error_with_its_messages() {
        let folder = tempfile::tempdir().unwrap();
        let program = control(folder.path(), false);
        let error = Mps::start(&program, 0, folder.path())
            .unwrap_err()
            .to_string();
        assert!(error.ends_with("no device"), "{error}");
        let missing = folder.path().join("missing");
        assert!(Mps::start(&missing, 0, folder.path()).is_err());
    }
}
