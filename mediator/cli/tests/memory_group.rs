//! Guest memory and the memory control group of the process that is charged for it. Needs root.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{PATIENCE, Process, turnstile, until};

/// Guest memory of the reference VMM.
const GUEST_BYTES: u64 = 64 << 20;

/// A memory control group below the test's own.
struct Group {
    folder: PathBuf,
    /// The file of its charge.
    usage: &'static str,
    /// The file of its limit.
    limit: &'static str,
}

impl Group {
    /// None without the right to make one.
    fn new(name: &str) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let version_1 = own.lines().find_map(|line| line.split_once(":memory:"));
        let (root, own, usage, limit) = match version_1 {
            Some((_, own)) => (
                "/sys/fs/cgroup/memory",
                own.to_owned(),
                "memory.usage_in_bytes",
                "memory.limit_in_bytes",
            ),
            None => (
                "/sys/fs/cgroup",
                own.lines()
                    .find_map(|line| line.strip_prefix("0::"))?
                    .to_owned(),
                "memory.current",
                "memory.max",
            ),
        };
        let parent = Path::new(root).join(own.trim_start_matches('/'));
        let folder = parent.join(format!("turnstile-{name}-{}", std::process::id()));
        fs::create_dir(&folder).ok()?;
        let group = Self {
            folder,
            usage,
            limit,
        };
        fs::write(group.folder.join(limit), "1073741824").ok()?;
        Some(group)
    }

    fn used_bytes(&self) -> u64 {
        let text = fs::read_to_string(self.folder.join(self.usage)).unwrap();
        text.trim().parse().unwrap()
    }

    /// The kernel refuses a limit while pages of a VM that has ended are still charged.
    fn set_limit(&self, bytes: u64) {
        let at = self.folder.join(self.limit);
        until("the limit", || fs::write(&at, bytes.to_string()).ok());
    }

    /// The command under test, in this group from its first instruction on.
    fn command(&self) -> Command {
        let procs = self.folder.join("cgroup.procs");
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
            .arg(procs)
            .arg(turnstile().get_program())
            .stderr(Stdio::piped());
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes have ended; the kernel may still be at it.
        until("the end of the group", || fs::remove_dir(&self.folder).ok());
    }
}

#[test]
fn guest_pages_that_a_vmm_allocates_are_charged_to_its_own_group() {
    let groups = (Group::new("daemon"), Group::new("vm"));
    let (Some(daemon), Some(vm)) = groups else {
        println!("SKIPPED: no memory control group can be made here");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("vmm.sock");
    let serving = daemon
        .command()
        .args([
            "serve",
            "--set",
            "safety.preallocated_memory=true",
            "--socket",
        ])
        .arg(&socket)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _serving = Process(serving);
    until("the socket", || socket.exists().then_some(()));
    let starts = |prealloc: &[&str]| {
        let mut command = vm.command();
        command
            .args([
                "vmm",
                "--native",
                "--name",
                "a",
                "--kernel-us",
                "100",
                "--socket",
            ])
            .arg(&socket)
            .args(prealloc)
            .stdin(Stdio::piped());
        command
    };
    // Memory with holes would be the daemon's where the GPU writes first.
    let refused = starts(&[]).output().unwrap();
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(
        !refused.status.success() && error.contains("--prealloc"),
        "{error}"
    );
    let before = daemon.used_bytes();
    let mut running = Process(starts(&["--prealloc"]).spawn().unwrap());
    until("the guest's pages", || {
        (vm.used_bytes() >= GUEST_BYTES).then_some(())
    });
    until("its tenant", || {
        let mut list = turnstile();
        list.args(["vm", "list", "-o", "json", "--api"]);
        let output = list.arg(folder.path().join("api.sock")).output().unwrap();
        String::from_utf8_lossy(&output.stdout)
            .contains("\"a\"")
            .then_some(())
    });
    let grown = daemon.used_bytes().saturating_sub(before);
    assert!(grown < GUEST_BYTES / 2, "{grown} bytes of the daemon");
    drop(running.0.stdin.take());
    running.end(PATIENCE).unwrap();
    // The operator's bound of a VM's group bounds its guest memory, and ends that VM alone.
    vm.set_limit(GUEST_BYTES / 2);
    let mut bounded = starts(&["--prealloc"]).spawn().unwrap();
    assert!(!bounded.wait().unwrap().success());
    vm.set_limit(4 * GUEST_BYTES);
    let _after = Process(starts(&["--prealloc"]).spawn().unwrap());
    until("the daemon goes on", || {
        (vm.used_bytes() >= GUEST_BYTES).then_some(())
    });
}
