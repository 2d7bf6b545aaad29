//! `turnstile doctor`: what this host supports, and a remedy for what it lacks.

use std::error::Error;
use std::fs;
use std::path::Path;

use rustix::fs::{MemfdFlags, SealFlags};
use serde::Serialize;
use turnstile_host::confine;
use turnstile_nvidia::observe::Signals;
use turnstile_nvidia::probe;
use turnstile_nvidia::rm::CONTROL_DEVICE;
use turnstile_nvidia::version::{self, DriverAbi, VersionError};

/// Arguments of `doctor`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// GPU
    #[arg(long, default_value_t = 0)]
    gpu: u32,
    /// JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// State of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Ok,
    Missing,
    /// A feature that it depends on is missing.
    NotProbed,
}

/// One line.
#[derive(Debug, Serialize)]
struct Finding {
    feature: &'static str,
    /// The use that needs it.
    needed_for: &'static str,
    state: State,
    found: String,
    /// Empty if nothing is missing.
    remedy: String,
}

/// A feature before its probe.
#[derive(Clone, Copy)]
struct Feature {
    name: &'static str,
    needed_for: &'static str,
    remedy: &'static str,
}

impl Feature {
    fn found(self, result: Result<String, String>) -> Finding {
        let (state, found, remedy) = match result {
            Ok(found) => (State::Ok, found, String::new()),
            Err(reason) => (State::Missing, reason, self.remedy.to_owned()),
        };
        Finding {
            feature: self.name,
            needed_for: self.needed_for,
            state,
            found,
            remedy,
        }
    }

    fn not_probed(self, because: &str) -> Finding {
        Finding {
            feature: self.name,
            needed_for: self.needed_for,
            state: State::NotProbed,
            found: because.to_owned(),
            remedy: String::new(),
        }
    }
}

/// An error with its causes.
fn told(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let findings = examine(args.gpu);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&findings)?);
    } else {
        print(&findings);
    }
    Ok(())
}

fn examine(gpu: u32) -> Vec<Finding> {
    let mut findings = vec![kvm(), sealing(), huge_pages()];
    findings.push(notification());
    findings.extend([system_calls(), landlock()]);
    findings.extend(nvidia(gpu));
    findings.push(mps());
    findings
}

fn kvm() -> Finding {
    Feature {
        name: "KVM",
        needed_for: "VMs",
        remedy: "Load kvm_intel or kvm_amd (in a VM: turn nested virtualisation on), and let this user open /dev/kvm",
    }
    .found(match turnstile_vmm::vmm::kvm_available() {
        Ok(()) => Ok("memory slots, irqfd, all that is needed".into()),
        Err(error) => Err(told(&error)),
    })
}

fn sealing() -> Finding {
    let sealed = || -> rustix::io::Result<()> {
        let file = rustix::fs::memfd_create(
            "turnstile-doctor",
            MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC,
        )?;
        rustix::fs::ftruncate(&file, 4096)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)
    };
    Feature {
        name: "Sealed memory files",
        needed_for: "VMs",
        remedy: "A kernel of 3.17 or later, and no sandbox that forbids memfd_create",
    }
    .found(match sealed() {
        Ok(()) => Ok("memfd_create and seals".into()),
        Err(error) => Err(error.to_string()),
    })
}

fn notification() -> Finding {
    Feature {
        name: "System-call notification",
        needed_for: "programs",
        remedy: "A kernel of 5.5 or later with CONFIG_SECCOMP_FILTER; until then turnstile run preloads a library",
    }
    .found(if turnstile_nvidia::notify::is_available() {
        Ok("seccomp: what the driver hands out is seen without a library".into())
    } else {
        Err("seccomp does not know it".into())
    })
}

fn system_calls() -> Finding {
    Feature {
        name: "Lists of system calls",
        needed_for: "confining the daemon's threads and workers",
        remedy: "A kernel with CONFIG_SECCOMP_FILTER, and no sandbox that forbids seccomp",
    }
    .found(match confine::probe_seccomp() {
        Ok(()) => Ok("seccomp: a thread refused itself a call".into()),
        Err(error) => Err(told(&error)),
    })
}

fn landlock() -> Finding {
    Feature {
        name: "Landlock",
        needed_for: "confining the daemon and workers to their files",
        remedy: "A kernel of 5.13 or later with CONFIG_SECURITY_LANDLOCK and landlock among lsm=; without, nothing else fails",
    }
    .found(match confine::probe_landlock() {
        Ok(true) => Ok("a thread gave all files up".into()),
        Ok(false) => Err("this kernel does not have it".into()),
        Err(error) => Err(told(&error)),
    })
}

fn huge_pages() -> Finding {
    let read = |path: &str| fs::read_to_string(path).ok();
    let free = read("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
        .and_then(|text| text.trim().parse::<u64>().ok())
        .unwrap_or(0);
    let transparent = read("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
        .and_then(|text| Some(text.split_once('[')?.1.split_once(']')?.0.to_owned()))
        .unwrap_or_else(|| "not there".into());
    let found = format!("{free} free of 2 MiB; transparent for shared memory: {transparent}");
    let usable = free > 0
        || matches!(
            transparent.as_str(),
            "always" | "within_size" | "advise" | "force"
        );
    Feature {
        name: "Huge pages",
        needed_for: "fast guest memory (optional)",
        remedy: "sysctl vm.nr_hugepages=N, or \"advise\" in /sys/kernel/mm/transparent_hugepage/shmem_enabled",
    }
    .found(if usable { Ok(found) } else { Err(found) })
}

/// Lines of the NVIDIA backend; each depends on those above it.
fn nvidia(gpu: u32) -> Vec<Finding> {
    let device = Feature {
        name: "NVIDIA device files",
        needed_for: "a real GPU",
        remedy: "Load the vendor's driver; in a container, pass the device files in; without a GPU the software GPU serves",
    };
    let driver = Feature {
        name: "NVIDIA driver version",
        needed_for: "events, suspension",
        remedy: "Install a driver version that is known, or add a row for this one (docs/NVIDIA.md)",
    };
    let events = Feature {
        name: "Context-switch events",
        needed_for: "accounting of a real GPU",
        remedy: "Run as root",
    };
    let suspension = Feature {
        name: "Suspension of channels",
        needed_for: "scheduling of a real GPU",
        remedy: "Run as root",
    };
    let preemptor = Feature {
        name: "Doorbells of our own",
        needed_for: "stopping a kernel within 10 us instead of 400 (optional)",
        remedy: "A Hopper GPU or later; without, the driver's call alone stops it",
    };
    let status = Feature {
        name: "Engine status register",
        needed_for: "letting another in when a tenant goes idle",
        remedy: "Run as root",
    };
    let busy = Feature {
        name: "Busy counter",
        needed_for: "knowing when engines work (optional)",
        remedy: "Run as root on a GPU model that docs/NVIDIA.md names",
    };
    let channels = Feature {
        name: "Channel status",
        needed_for: "knowing what a held tenant has queued (optional)",
        remedy: "Run as root on a GPU model that docs/NVIDIA.md names",
    };
    let memory = Feature {
        name: "Exportable GPU memory",
        needed_for: "swapping on a real GPU",
        remedy: "Install the vendor's user libraries (libcuda.so.1)",
    };
    let path = format!("/dev/nvidia{gpu}");
    let missing = [CONTROL_DEVICE, &path]
        .into_iter()
        .find(|path| !Path::new(path).exists());
    if let Some(missing) = missing {
        let because = "there is no NVIDIA GPU";
        return vec![
            device.found(Err(format!("no {missing}"))),
            driver.not_probed(because),
            events.not_probed(because),
            suspension.not_probed(because),
            preemptor.not_probed(because),
            status.not_probed(because),
            busy.not_probed(because),
            channels.not_probed(because),
            memory.not_probed(because),
        ];
    }
    let abi = version::detect();
    let mut findings = vec![
        device.found(Ok(format!("{CONTROL_DEVICE}, {path}"))),
        driver.found(match &abi {
            Ok(abi) => Ok(abi.version.to_owned()),
            Err(error @ VersionError::Unknown(_)) => Err(error.to_string()),
            Err(error) => Err(told(error)),
        }),
    ];
    let probed = |feature: Feature, probe: &dyn Fn(&DriverAbi) -> Result<String, String>| match &abi
    {
        Ok(abi) => feature.found(probe(abi)),
        Err(_) => feature.not_probed("the driver version is not known"),
    };
    let root = rustix::process::geteuid().is_root();
    findings.push(probed(events, &|abi| {
        probe::events(gpu, abi).map_err(|error| told(&error))?;
        if root {
            Ok("a log was made, bound for all users, and ended".into())
        } else {
            Err("a log was made, but for a user who is not root the driver may hide other users' processes".into())
        }
    }));
    findings.push(probed(suspension, &|abi| {
        probe::suspension_known(gpu, abi).map_err(|error| told(&error))?;
        if root {
            Ok("the driver knows the call, and we are root (no channel was touched)".into())
        } else {
            Err("the driver knows the call, but this user is not root".into())
        }
    }));
    findings.push(preemptor.found(match probe::doorbells(gpu) {
        Ok(()) => Ok("mapped; none was rung".into()),
        Err(error) => Err(told(&error)),
    }));
    findings.push(probed(status, &|abi| {
        let status = probe::engine_status(gpu, abi).map_err(|error| told(&error))?;
        let how = status.unmapped.map_or_else(
            || "mapped, 1 us each".into(),
            |why| format!("by the driver, 0.2 ms each ({why})"),
        );
        let works = if status.works { "at work" } else { "idle" };
        Ok(format!("{works}; {how}"))
    }));
    let signals = Signals::of(gpu).map_err(|error| told(&error));
    let tested = |test: fn(&Signals) -> Result<(), &str>| match &signals {
        Ok(signals) => match test(signals) {
            Ok(()) => Ok("mapped, and passes its self-test".into()),
            Err(reason) => Err(reason.to_owned()),
        },
        Err(error) => Err(error.clone()),
    };
    findings.push(busy.found(tested(Signals::busy_counter)));
    findings.push(channels.found(tested(Signals::channel_status)));
    findings.push(memory.found(match probe::exportable_memory(gpu) {
        Ok(true) => Ok("as file descriptors".into()),
        Ok(false) => Err("this GPU cannot".into()),
        Err(error) => Err(told(&error)),
    }));
    findings
}

fn mps() -> Finding {
    let name = "nvidia-cuda-mps-control";
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file());
    Feature {
        name: "MPS",
        needed_for: "sharing within one tenant (optional)",
        remedy: "Install the vendor's MPS control daemon, if tenants share among their own processes",
    }
    .found(match found {
        Some(file) => Ok(file.display().to_string()),
        None => Err(format!("no {name} on the path")),
    })
}

fn print(findings: &[Finding]) {
    let width =
        |text: fn(&Finding) -> &str| findings.iter().map(|f| text(f).len()).max().unwrap_or(0);
    let (feature, needed) = (width(|f| f.feature), width(|f| f.needed_for));
    for finding in findings {
        let state = match finding.state {
            State::Ok => "ok",
            State::Missing => "missing",
            State::NotProbed => "not probed",
        };
        println!(
            "{:<feature$}  {state:<10}  {:<needed$}  {}",
            finding.feature, finding.needed_for, finding.found
        );
        if !finding.remedy.is_empty() {
            println!("{:<feature$}  -> {}", "", finding.remedy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_gets_every_line_and_what_is_missing_a_remedy() {
        // No host has a GPU of this number.
        let findings = examine(4_000_000);
        assert_eq!(findings.len(), 16);
        for finding in &findings {
            let has_remedy = !finding.remedy.is_empty();
            assert_eq!(has_remedy, finding.state == State::Missing, "{finding:?}");
            assert!(!finding.found.is_empty());
        }
        let of = |name| findings.iter().find(|f| f.feature == name).unwrap().state;
        assert_eq!(of("NVIDIA device files"), State::Missing);
        assert_eq!(of("Context-switch events"), State::NotProbed);
    }
}
