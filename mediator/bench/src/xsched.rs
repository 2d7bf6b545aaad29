//! XSched for comparison: the same loads under its library and its server, if they are installed.
//!
//! XSched is no part of this repository; an option names its library, which replaces CUDA's. The
//! loads open CUDA's library by name, so XSched's is first in the search path under that name:
//! preloaded, it would not be used.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tempfile::TempDir;
use turnstile_figures::matrix::Tenant;

use super::ending::end;

/// TIMEOUT: its server listens within some ten milliseconds.
const LISTEN_LIMIT: Duration = Duration::from_secs(5);
/// Where its server listens for tools; only the loads talk to it here.
const PORT: u16 = 50_077;

/// Where XSched is.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct XschedArgs {
    /// Run the cells under XSched as well, by its library in front of CUDA's (libshimcuda.so)
    #[arg(long, value_name = "LIBRARY")]
    pub(super) xsched: Option<PathBuf>,
    /// Its server; bin/xserver beside the library's folder if absent
    #[arg(long, value_name = "PROGRAM", requires = "xsched")]
    xsched_server: Option<PathBuf>,
}

/// One of its policies, at its Level 1 (the host stops launching).
#[derive(Clone, Debug)]
pub(super) struct Xsched {
    library: PathBuf,
    server: PathBuf,
    policy: Policy,
}

/// SOURCE: XSched, `protocol/def.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    /// Process utilization partition: each has its percentage.
    Pup,
    /// Completely fair scheduling.
    Cfs,
}

/// CUDA's name, and the variable in which XSched expects the real library when it has that name.
const CUDA: &str = "libcuda.so.1";
const REAL_CUDA: &str = "XSCHED_CUDA_LIB";
/// Usual folders of the real library. SOURCE: distributions, the vendor's packages, its container
/// runtime.
const FOLDERS: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
];

fn real_cuda(search: Option<&OsStr>) -> Option<PathBuf> {
    let first = search.map(|search| std::env::split_paths(search).collect::<Vec<_>>());
    let folders = first.into_iter().flatten();
    let candidates = folders.chain(FOLDERS.map(PathBuf::from));
    candidates
        .map(|folder| folder.join(CUDA))
        .find(|library| library.is_file())
}

impl XschedArgs {
    /// Its two policies, if it is there.
    pub(super) fn policies(&self) -> anyhow::Result<Vec<Xsched>> {
        let Some(library) = &self.xsched else {
            return Ok(Vec::new());
        };
        let library =
            fs::canonicalize(library).with_context(|| format!("--xsched {}", library.display()))?;
        let server = match &self.xsched_server {
            Some(server) => server.clone(),
            None => folder(&library).with_file_name("bin").join("xserver"),
        };
        if !server.is_file() {
            bail!("XSched's server is not at {}", server.display());
        }
        let of = |policy| Xsched {
            library: library.clone(),
            server: server.clone(),
            policy,
        };
        Ok([Policy::Pup, Policy::Cfs].map(of).to_vec())
    }
}

fn folder(library: &Path) -> PathBuf {
    library.parent().map(Path::to_owned).unwrap_or_default()
}

impl Xsched {
    pub(super) const fn name(&self) -> &'static str {
        match self.policy {
            Policy::Pup => "xsched PUP",
            Policy::Cfs => "xsched CFS",
        }
    }

    /// Starts its server.
    pub(super) fn start(&self) -> anyhow::Result<Server> {
        let policy = match self.policy {
            Policy::Pup => "PUP",
            Policy::Cfs => "CFS",
        };
        let child = Command::new(&self.server)
            .args([policy, &PORT.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("{} cannot be run", self.server.display()))?;
        let names = tempfile::Builder::new()
            .prefix("turnstile-bench")
            .tempdir()?;
        symlink(&self.library, names.path().join(CUDA))?;
        let mut server = Server { child, names };
        server.wait()?;
        Ok(server)
    }

    /// Makes a load the server's client, which is to have this percentage.
    pub(super) fn adopt(&self, server: &Server, command: &mut Command, percent: u32) {
        let mut libraries = server.names.path().as_os_str().to_owned();
        libraries.push(":");
        libraries.push(folder(&self.library));
        let others = std::env::var_os("LD_LIBRARY_PATH").filter(|path| !path.is_empty());
        if let Some(others) = &others {
            libraries.push(":");
            libraries.push(others);
        }
        if std::env::var_os(REAL_CUDA).is_none()
            && let Some(real) = real_cuda(others.as_deref())
        {
            command.env(REAL_CUDA, real);
        }
        command
            .env("LD_LIBRARY_PATH", libraries)
            .env("XSCHED_SCHEDULER", "GLB")
            .env("XSCHED_AUTO_XQUEUE", "ON")
            .env("XSCHED_AUTO_XQUEUE_LEVEL", "1");
        if self.policy == Policy::Pup {
            command.env("XSCHED_AUTO_XQUEUE_UTILIZATION", percent.to_string());
        }
    }
}

/// The percentage of each tenant by weights.
pub(super) fn percentages(tenants: &[Tenant]) -> Vec<u32> {
    let all: u32 = tenants.iter().map(|tenant| tenant.weight).sum();
    let of = |tenant: &Tenant| (100 * tenant.weight + all / 2) / all.max(1);
    tenants.iter().map(of).collect()
}

/// Its server's process; interrupted, then killed after a second.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    /// Folder in which its library has CUDA's name.
    names: TempDir,
}

impl Server {
    fn wait(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + LISTEN_LIMIT;
        while std::net::TcpStream::connect(("127.0.0.1", PORT)).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("XSched's server ended with {status}");
            }
            if Instant::now() > deadline {
                bail!("XSched's server does not listen");
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        end(&mut self.child, Duration::from_secs(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnstile_figures::matrix::{Length, Pattern};

    fn args(xsched: Option<PathBuf>) -> XschedArgs {
        XschedArgs {
            xsched,
            xsched_server: None,
        }
    }

    #[test]
    fn percentages_are_of_the_weights() {
        let of = |weights: &[u32]| {
            let tenant = |weight: &u32| Tenant {
                weight: *weight,
                kernel: Length::Us(200),
                pattern: Pattern::Busy,
                seed: 1,
            };
            percentages(&weights.iter().map(tenant).collect::<Vec<_>>())
        };
        assert_eq!(of(&[100, 100]), [50, 50]);
        assert_eq!(of(&[300, 100]), [75, 25]);
        assert_eq!(of(&[900, 100]), [90, 10]);
    }

    #[test]
    fn a_library_without_its_server_is_an_error() {
        assert!(args(None).policies().unwrap().is_empty());
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("lib").join("libshimcuda.so");
        assert!(args(Some(library.clone())).policies().is_err());
        fs::create_dir_all(library.parent().unwrap()).unwrap();
        fs::write(&library, "").unwrap();
        let error = args(Some(library.clone())).policies().unwrap_err();
        assert!(error.to_string().contains("bin/xserver"), "{error}");
        fs::create_dir_all(folder.path().join("bin")).unwrap();
        fs::write(folder.path().join("bin").join("xserver"), "").unwrap();
        let policies = args(Some(library)).policies().unwrap();
        let names: Vec<_> = policies.iter().map(Xsched::name).collect();
        assert_eq!(names, ["xsched PUP", "xsched CFS"]);
        // The library of this test cannot be loaded, its server not be run: a stand-in for it.
        let server = Server {
            child: Command::new("true").spawn().unwrap(),
            names: tempfile::tempdir().unwrap(),
        };
        let mut command = Command::new("true");
        policies[0].adopt(&server, &mut command, 50);
        let set = |name: &str| command.get_envs().find(|(key, _)| *key == name).unwrap().1;
        let path = set("LD_LIBRARY_PATH").unwrap().to_str().unwrap().to_owned();
        let first = server.names.path().to_str().unwrap();
        assert!(
            path.starts_with(&format!("{first}:")) && path.contains("/lib"),
            "{path}"
        );
        assert_eq!(
            set("XSCHED_AUTO_XQUEUE_UTILIZATION"),
            Some(OsStr::new("50"))
        );
    }
}
