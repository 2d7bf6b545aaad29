//! What this host has for NVIDIA GPUs and programs.

use std::path::Path;

use turnstile_nvidia::observe::Signals;
use turnstile_nvidia::probe;
use turnstile_nvidia::rm::CONTROL_DEVICE;
use turnstile_nvidia::version::{self, DriverAbi};

use crate::finding::{Feature, Finding, with_causes};

/// The kernel's report of a program's calls.
pub(crate) fn notification() -> Option<Finding> {
    let feature = Feature {
        name: "System-call notification",
        needed_for: "programs",
        remedy: "A kernel of 5.5 or later with CONFIG_SECCOMP_FILTER; until then turnstile run preloads a library",
    };
    Some(feature.found(if turnstile_nvidia::notify::is_available() {
        Ok("seccomp: what the driver hands out is seen without a library".into())
    } else {
        Err("seccomp does not know it".into())
    }))
}

/// Lines of the NVIDIA backend; each depends on those above it.
pub(crate) fn findings(gpu: u32) -> Vec<Finding> {
    let device = Feature {
        name: "NVIDIA device files",
        needed_for: "a real GPU",
        remedy: "Load the vendor's driver; in a container, pass the device files in; without a GPU the software GPU serves",
    };
    let driver = Feature {
        name: "NVIDIA driver version",
        needed_for: "events, suspension",
        remedy: version::REMEDY,
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
            Ok(abi) => Ok(version::warning(abi.version).unwrap_or_else(|| abi.version.to_owned())),
            Err(error) => Err(error.leaves().unwrap_or_else(|| with_causes(error))),
        }),
    ];
    let probed = |feature: Feature, probe: &dyn Fn(&DriverAbi) -> Result<String, String>| match &abi
    {
        Ok(abi) => feature.found(probe(abi)),
        Err(_) => feature.not_probed("the driver version is not known"),
    };
    let root = rustix::process::geteuid().is_root();
    findings.push(probed(events, &|abi| {
        probe::events(gpu, abi).map_err(|error| with_causes(&error))?;
        if root {
            Ok("a log was made, bound for all users, and ended".into())
        } else {
            Err("a log was made, but for a user who is not root the driver may hide other users' processes".into())
        }
    }));
    findings.push(probed(suspension, &|abi| {
        probe::suspension_known(gpu, abi).map_err(|error| with_causes(&error))?;
        if root {
            Ok("the driver knows the call, and we are root (no channel was touched)".into())
        } else {
            Err("the driver knows the call, but this user is not root".into())
        }
    }));
    findings.push(preemptor.found(match probe::doorbells(gpu) {
        Ok(()) => Ok("mapped; none was rung".into()),
        Err(error) => Err(with_causes(&error)),
    }));
    findings.push(probed(status, &|abi| {
        let status = probe::engine_status(gpu, abi).map_err(|error| with_causes(&error))?;
        let how = status.unmapped.map_or_else(
            || "mapped, 1 us each".into(),
            |why| format!("by the driver, 0.2 ms each ({why})"),
        );
        let works = if status.works { "at work" } else { "idle" };
        Ok(format!("{works}; {how}"))
    }));
    let signals = Signals::of(gpu).map_err(|error| with_causes(&error));
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
        Err(error) => Err(with_causes(&error)),
    }));
    findings
}
