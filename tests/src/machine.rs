//! Stock machines for the tests: QEMU without acceleration, a stock kernel, and the initramfs of
//! `images/lab/build`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// TIMEOUT: packages of 150 MB and a build of the guest; a second if they are cached.
const BUILD_TIMEOUT: Duration = Duration::from_secs(300);

/// Processor time of a process or thread, by its folder in /proc, in hundredths of a second.
pub fn ticks(folder: &Path) -> u64 {
    let stat = fs::read_to_string(folder.join("stat")).unwrap_or_default();
    // After the name, which may contain anything: utime and stime are fields 14 and 15.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let times = fields.split_whitespace().skip(11).take(2);
    times.filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// Busy time of this machine's processors since its start, stolen time included, in hundredths of a
/// second.
pub fn busy_ticks() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let all = stat.lines().next().unwrap_or_default();
    // SOURCE: proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal; a guest's time
    // is in the first two.
    let times = all.split_whitespace().skip(1).take(8).enumerate();
    times
        .filter(|(field, _)| !matches!(field, 3 | 4))
        .filter_map(|(_, time)| time.parse::<u64>().ok())
        .sum()
}

/// A process that ends with its test.
#[derive(Debug)]
pub struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl From<Child> for Ended {
    fn from(child: Child) -> Self {
        Self(child)
    }
}

impl Ended {
    /// The process.
    pub fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    /// Its status, if it ends within this time; 128 for a signal.
    pub fn ends(&mut self, within: Duration) -> Option<i32> {
        let until = Instant::now() + within;
        loop {
            if let Ok(Some(status)) = self.0.try_wait() {
                return Some(status.code().unwrap_or(128));
            }
            if Instant::now() > until {
                return None;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The files that machines boot.
#[derive(Debug)]
pub struct Lab {
    folder: PathBuf,
}

/// Why there are none.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A part is not available on this machine, which is no fault.
    #[error("{0}")]
    Skipped(String),
    /// The script failed.
    #[error("A script of the lab failed: {0}")]
    Failed(String),
}

/// Runs a script of `images/lab`.
fn made(mut script: Command) -> Result<(), LabError> {
    let failed = |error: std::io::Error| LabError::Failed(error.to_string());
    let out = tempfile::NamedTempFile::new().map_err(failed)?;
    let log = out.reopen().map_err(failed)?;
    let name = script.get_program().to_string_lossy().into_owned();
    let build = script
        .stdout(log.try_clone().map_err(failed)?)
        .stderr(log)
        .spawn();
    let mut build = Ended(build.map_err(failed)?);
    let ended = build.ends(BUILD_TIMEOUT);
    let output = fs::read_to_string(out.path()).unwrap_or_default();
    let last = output.trim().lines().last().unwrap_or_default();
    match ended {
        Some(0) => Ok(()),
        Some(77) => {
            let reason = last.trim_start_matches("SKIPPED: ");
            Err(LabError::Skipped(reason.to_owned()))
        }
        None => Err(LabError::Skipped(format!(
            "{name} did not end in {BUILD_TIMEOUT:?}: {last}"
        ))),
        // A fault of the script or the guest is no reason to skip.
        Some(_) => Err(LabError::Failed(format!("{name}: {output}"))),
    }
}

impl Lab {
    /// The files in an existing folder.
    pub fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Makes or finds the files in the folder that `TURNSTILE_LAB` names, or in `target/lab`.
    /// `nested` is the program for machines that are hosts themselves; `cloud` is Cloud Hypervisor,
    /// if there is one.
    ///
    /// # Errors
    /// [`LabError`].
    pub fn make(nested: &Path, cloud: Option<PathBuf>) -> Result<Self, LabError> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let folder = std::env::var_os("TURNSTILE_LAB");
        let folder = folder.map_or_else(|| root.join("target/lab"), PathBuf::from);
        let mut build = Command::new(root.join("images/lab/build"));
        build
            .arg(&folder)
            .env("LAB_NESTED", nested)
            .env("LAB_CLOUD", cloud.unwrap_or_default());
        made(build)?;
        Ok(Self { folder })
    }

    /// Builds the guest module for the kernels that it is tried on; a lab for each.
    ///
    /// # Errors
    /// [`LabError`].
    pub fn with_module(&self) -> Result<[Self; 2], LabError> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut build = Command::new(root.join("images/lab/module"));
        build.arg(&self.folder);
        made(build)?;
        let lab = |kernel| Self {
            folder: self.folder.join("cuda").join(kernel),
        };
        Ok(["6.12", "6.1"].map(lab))
    }

    /// The stock kernel.
    pub fn kernel(&self) -> PathBuf {
        self.folder.join("vmlinuz")
    }

    /// The initramfs of guests.
    pub fn initramfs(&self) -> PathBuf {
        self.folder.join("initramfs.gz")
    }

    /// Starts a machine.
    ///
    /// # Errors
    /// As fork(2) and exec.
    pub fn boot(&self, machine: &Machine<'_>) -> std::io::Result<Ended> {
        let console = File::create(machine.console)?;
        let memory = format!(
            "memory-backend-memfd,id=mem,size={}M,share=on",
            machine.memory_mib
        );
        // Without acceleration, on a busy host, the kernel's check of its timer fails.
        let append = format!(
            "console=ttyS0 quiet panic=-1 no_timer_check {} lab={}",
            machine.append, machine.commands
        );
        let mut qemu = Command::new(self.folder.join("qemu"));
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none"])
            .args(["-serial", "stdio", "-no-reboot", "-cpu", "max"])
            .args(["-machine", "q35,accel=tcg,memory-backend=mem"])
            .args(["-smp", &machine.processors.to_string()])
            .args(["-m", &machine.memory_mib.to_string(), "-object", &memory])
            .args(machine.options)
            .args(["-append", &append])
            .arg("-kernel")
            .arg(self.kernel())
            .arg("-initrd")
            .arg(self.folder.join(machine.initramfs));
        for (slot, socket) in machine.sockets {
            let device = format!(
                r#"{{"driver":"vfio-user-pci","addr":"{slot}","socket":{{"type":"unix","path":"{}"}}}}"#,
                socket.display()
            );
            qemu.args(["-device", &device]);
        }
        let spawned = qemu
            .stdin(Stdio::piped())
            .stdout(console.try_clone()?)
            .stderr(console)
            .spawn();
        Ok(Ended(spawned?))
    }
}

/// A machine to be started.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    /// The initramfs, a file in the lab's folder.
    pub initramfs: &'a str,
    /// Processors.
    pub processors: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Additional options of QEMU, before the devices.
    pub options: &'a [&'a str],
    /// Additions to the kernel's command line.
    pub append: &'a str,
    /// Commands for `images/lab/init`.
    pub commands: &'a str,
    /// Devices served over vfio-user: slot on the bus and socket.
    pub sockets: &'a [(u32, &'a Path)],
    /// File for the machine's console output.
    pub console: &'a Path,
}
