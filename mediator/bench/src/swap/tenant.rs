//! The tenant of `bench swap`: a process with an endless kernel and memory that can be moved.
//!
//! In go a folder, a GPU and a size; out come the process, its channels and the pace of its kernel.
//! The bench starts one for each size, and one for the vendor's checkpoint.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use turnstile_nvidia::handles::Handles;
use turnstile_nvidia::hold::Channel;
use turnstile_nvidia::swapped::Swapped;

/// How long the kernel's counter is observed, running and suspended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A tenant's process, behind one that learns its channels.
pub(super) struct Tenant {
    child: Child,
    swapped: Option<Swapped>,
    pub(super) channels: Vec<Channel>,
}

impl Tenant {
    pub(super) fn start(
        folder: &Path,
        device: u32,
        bytes: u64,
        plain: bool,
    ) -> anyhow::Result<Self> {
        let program = std::env::current_exe()?;
        let handles = folder.join(format!("handles-{plain}-{bytes}"));
        File::create(&handles)?;
        let (mine, theirs) = UnixStream::pair()?;
        let mut command = Command::new(&program);
        if !plain {
            command
                .args(["run", "--learn-only"])
                .arg(&handles)
                .arg("--");
            command.arg(&program);
        }
        let child = command
            .arg("nvidia-swap-load")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()?;
        drop(command);
        let mut this = Self {
            child,
            swapped: None,
            channels: Vec::new(),
        };
        let swapped = Swapped::new(mine, device, bytes, plain)?;
        let mut learnt = Handles::default();
        for line in fs::read_to_string(&handles)?.lines() {
            learnt.take(line)?;
        }
        this.channels = learnt.all_channels(swapped.pid);
        this.swapped = Some(swapped);
        ensure!(
            plain || !this.channels.is_empty(),
            "Nothing was learnt of the tenant's channels"
        );
        Ok(this)
    }

    pub(super) fn process(&mut self) -> anyhow::Result<&mut Swapped> {
        self.swapped.as_mut().context("the tenant is gone")
    }

    /// Counts of its kernel in a millisecond.
    pub(super) fn pace(&mut self) -> anyhow::Result<f64> {
        let swapped = self.process()?;
        let (begin, first) = (Instant::now(), swapped.count()?);
        thread::sleep(POLL_INTERVAL);
        let last = swapped.count()?;
        Ok((last - first) as f64 / (begin.elapsed().as_secs_f64() * 1e3))
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        // It ends with its connection.
        drop(self.swapped.take());
        let _ = self.child.wait();
    }
}
