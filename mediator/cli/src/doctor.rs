//! `turnstile doctor`: what this host supports, what is configured, and a remedy for what lacks.
//! It fails where something that is configured cannot work.

mod configured;

use std::fs;
use std::process::ExitCode;

use rustix::fs::{MemfdFlags, SealFlags};
use turnstile_figures::output::OutputArgs;
use turnstile_host::confine;

#[cfg(not(feature = "nvidia"))]
use self::no_nvidia as nvidia;
use super::exit::Exit;
use super::finding::{Feature, Finding, State, with_causes};
#[cfg(feature = "nvidia")]
use super::nvidia::doctor as nvidia;
use super::options::Files;

/// Arguments of `doctor`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// GPU
    #[arg(long, default_value_t = 0)]
    gpu: u32,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    files: Files,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut findings = configured::findings(&args.files);
    findings.extend(examine(args.gpu));
    args.output.print(&findings, |findings| print(findings))?;
    let broken = findings
        .iter()
        .any(|finding| finding.state == State::Broken);
    Ok(if broken { Exit::Failed } else { Exit::Done }.into())
}

fn examine(gpu: u32) -> Vec<Finding> {
    let mut findings = vec![kvm(), sealing(), huge_pages()];
    findings.extend(nvidia::notification());
    findings.extend([system_calls(), landlock()]);
    findings.extend(nvidia::findings(gpu));
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
        Err(error) => Err(with_causes(&error)),
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

fn system_calls() -> Finding {
    Feature {
        name: "Lists of system calls",
        needed_for: "confining the daemon's threads and workers",
        remedy: "A kernel with CONFIG_SECCOMP_FILTER, and no sandbox that forbids seccomp",
    }
    .found(match confine::probe_seccomp() {
        Ok(()) => Ok("seccomp: a thread refused itself a call".into()),
        Err(error) => Err(with_causes(&error)),
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
        Err(error) => Err(with_causes(&error)),
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

/// The NVIDIA backend in a build without it.
#[cfg(not(feature = "nvidia"))]
mod no_nvidia {
    use crate::absent::absent;
    use crate::finding::{Feature, Finding};

    pub(super) fn notification() -> Option<Finding> {
        None
    }

    pub(super) fn findings(_: u32) -> [Finding; 1] {
        let backend = Feature {
            name: "NVIDIA backend",
            needed_for: "a real GPU, programs",
            remedy: "",
        };
        [backend.not_probed(&absent("NVIDIA", "nvidia").to_string())]
    }
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
            State::Broken => "broken",
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
        let count = if cfg!(feature = "nvidia") { 16 } else { 7 };
        assert_eq!(findings.len(), count);
        for finding in &findings {
            let has_remedy = !finding.remedy.is_empty();
            assert_eq!(has_remedy, finding.state == State::Missing, "{finding:?}");
            assert!(!finding.found.is_empty());
        }
        let of = |name| findings.iter().find(|f| f.feature == name).unwrap().state;
        if cfg!(feature = "nvidia") {
            assert_eq!(of("NVIDIA device files"), State::Missing);
            assert_eq!(of("Context-switch events"), State::NotProbed);
        } else {
            assert_eq!(of("NVIDIA backend"), State::NotProbed);
        }
    }
}
