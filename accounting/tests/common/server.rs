//! A PostgreSQL server for one test: from the distribution's packages, in its own folder, on a Unix
//! socket.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// TIMEOUT: a first start takes one or two seconds on two busy cores.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running server; it ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    folder: tempfile::TempDir,
    process: Child,
}

/// Where Debian and others install the server's programs, which are often not on the path.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<PathBuf> = versions
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .filter(|path| path.join("postgres").exists() && path.join("initdb").exists())
        .collect();
    found.sort();
    found.pop()
}

/// User and group of `postgres`: the server does not run as root.
fn account() -> Option<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.starts_with("postgres:"))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

fn is_root() -> bool {
    // The owner of this process's own folder is its effective user.
    fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

/// A command that runs as the account that the server requires.
fn command(program: &Path) -> Result<Command, String> {
    if !is_root() {
        return Ok(Command::new(program));
    }
    let (uid, gid) =
        account().ok_or("there is no user postgres, and its server does not run as root")?;
    let mut command = Command::new("setpriv");
    command
        .arg(format!("--reuid={uid}"))
        .arg(format!("--regid={gid}"))
        .args(["--clear-groups", "--"])
        .arg(program);
    Ok(command)
}

impl Server {
    /// Starts a server; none, with the reason printed, if it cannot be started.
    pub(crate) fn or_skip() -> Option<Self> {
        let started = Self::start();
        started
            .inspect_err(|reason| println!("SKIPPED: {reason}"))
            .ok()
    }

    /// Starts a server.
    ///
    /// # Errors
    /// The reason, if it cannot be started.
    fn start() -> Result<Self, String> {
        let programs = programs().ok_or("PostgreSQL is not installed (apt install postgresql)")?;
        let text = |error: std::io::Error| error.to_string();
        let folder = tempfile::Builder::new()
            .prefix("turnstile-pg")
            .tempdir()
            .map_err(text)?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).map_err(text)?;
        if is_root() {
            let (uid, gid) = account().ok_or("there is no user postgres")?;
            chown(folder.path(), Some(uid), Some(gid)).map_err(text)?;
        }
        let data = folder.path().join("data");
        let made = command(&programs.join("initdb"))?
            .arg("--pgdata")
            .arg(&data)
            .args([
                "--username=turnstile",
                "--auth=trust",
                "--no-locale",
                "--encoding=UTF8",
                "--no-sync",
            ])
            .current_dir(folder.path())
            .output()
            .map_err(text)?;
        if !made.status.success() {
            return Err(format!(
                "initdb failed: {}",
                String::from_utf8_lossy(&made.stderr)
            ));
        }
        let process = command(&programs.join("postgres"))?
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(folder.path())
            .args(["-c", "listen_addresses="])
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(text)?;
        let server = Self { folder, process };
        let begin = Instant::now();
        while postgres::Client::connect(&server.address("postgres"), postgres::NoTls).is_err() {
            if begin.elapsed() > PATIENCE {
                return Err("the server does not come up".into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    fn address(&self, database: &str) -> String {
        format!(
            "host={} user=turnstile dbname={database}",
            self.folder.path().display()
        )
    }

    /// Creates an empty database of this name; returns its address.
    pub(crate) fn database(&self, name: &str) -> String {
        let mut client =
            postgres::Client::connect(&self.address("postgres"), postgres::NoTls).unwrap();
        client
            .batch_execute(&format!("CREATE DATABASE {name}"))
            .unwrap();
        self.address(name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGQUIT is the immediate shutdown, which the postmaster passes on to its children.
        let _ = Command::new("kill")
            .args(["-QUIT", &self.process.id().to_string()])
            .status();
        let _ = self.process.wait();
    }
}
