//! Stock Cloud Hypervisor. With the freestanding guest it starts by the PVH protocol, which needs
//! no KVM that boots a kernel; with Linux the device is plugged and unplugged.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use turnstile_abi::boot::PVH_REPORT_GPA;
use turnstile_images::{Load, Outcome, REPORT_BYTES, Report, Workload};
use turnstile_tests::cloud::{Cloud, Payload, Running, module};
use turnstile_tests::e2e::wait_for;
use turnstile_tests::linux::{KERNEL_US, charged, daemon, device_returns, fronts, share_in_cloud};
use turnstile_tests::machine::{Lab, Machine};
use turnstile_vmm::front::Doorbells;

use crate::{alone, cloud, lab};

/// Length of the measurement.
const MEASURED: Duration = Duration::from_secs(8);
/// Time for which guests are under load: the measurement, and the difference of their starts.
const LOAD: Duration = Duration::from_secs(11);
/// TIMEOUT: each kernel is verified in under a second; longer on a busy host.
const BEGIN: Duration = Duration::from_secs(60);
/// TIMEOUT: a minute and a half; docs/SPECIFICATION.md has five minutes for the whole lab.
const BUDGET: Duration = Duration::from_secs(300);

/// The report that a guest has left in its memory.
fn report(guest: &Running) -> Report {
    let mut bytes = [0; REPORT_BYTES];
    guest
        .memory
        .read_exact_at(&mut bytes, PVH_REPORT_GPA)
        .unwrap();
    Report::decode(&bytes).expect("a report")
}

/// Writes the freestanding guest and its first module into a folder.
fn payload(folder: &Path, workload: &Workload) -> [PathBuf; 2] {
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    [
        write("guest.elf", turnstile_images::GUEST_ELF),
        write("module", &module(workload)),
    ]
}

fn output(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn share(doorbells: Doorbells) {
    let _alone = alone();
    let Some(cloud) = cloud() else { return };
    let start = Instant::now();
    let folder = tempfile::tempdir().unwrap();
    let daemon = daemon(folder.path());
    let vms = [("one", 100), ("three", 300)];
    let _fronts = fronts(folder.path(), &vms, doorbells);
    // All kernels verified, a load, all kernels verified once more.
    let workload = Workload::Demo(Load {
        // CAST: seconds
        duration_ns: LOAD.as_nanos() as u64,
        kernel_ns: 500_000,
        ..Load::default()
    });
    let [kernel, module] = payload(folder.path(), &workload);
    let console = |name: &str| folder.path().join(format!("{name}.log"));
    let mut guests = vms.map(|(name, _)| {
        let socket = folder.path().join(format!("vm/{name}.sock"));
        let payload = Payload::Pvh(&kernel, &module);
        let started = cloud.start(name, &payload, 64, Some(&socket), &console(name));
        started.unwrap()
    });
    let used = || {
        let snapshot = daemon.host().snapshot();
        vms.map(|(name, _)| charged(&snapshot, name))
    };
    let all_outputs = || vms.map(|(name, _)| output(&console(name)));
    let verified = |guest: &Running| report(guest).verified > 0;
    assert!(
        wait_for(BEGIN, || guests.iter().all(verified)),
        "{:?}",
        all_outputs()
    );
    let first = used();
    let more = || {
        used()
            .iter()
            .zip(first)
            .all(|(now, first)| *now > first + 2e8)
    };
    assert!(wait_for(BEGIN, more), "{:?}", all_outputs());
    let before = used();
    thread::sleep(MEASURED);
    let after = used();
    let [one, three] = [0, 1].map(|vm| after[vm] - before[vm]);
    let share = three / (one + three);
    for (guest, (name, _)) in guests.iter_mut().zip(vms) {
        let status = guest.process.ends(LOAD + BEGIN);
        let report = report(guest);
        let text = (report.text(), output(&console(name)));
        assert_eq!(
            (status, report.outcome),
            (Some(0), Outcome::Passed),
            "{text:?}"
        );
        assert!(report.verified > 0 && report.failed == 0, "{text:?}");
        println!(
            "{name}: {} launches, {} verified, {} failed; a fence after {} us",
            report.launches,
            report.verified,
            report.failed,
            report.turnaround_ns_sum / report.fences.max(1) / 1000
        );
    }
    let end = daemon.host().snapshot();
    assert_eq!((end.conservation_error_ns, end.ledger_errors), (0, 0));
    println!(
        "stock Cloud Hypervisor, two freestanding guests at 1:3, doorbells {doorbells:?}: share {share:.4} of 0.75 over {MEASURED:?}, \
         all of it {:.1?}",
        start.elapsed()
    );
    assert!((share - 0.75).abs() < 0.03, "{share}");
}

#[test]
fn two_guests_in_cloud_hypervisor_share_with_trapped_doorbells() {
    share(Doorbells::Trapped);
}

#[test]
fn two_guests_in_cloud_hypervisor_share_with_mapped_doorbells() {
    share(Doorbells::Mapped);
}

#[test]
fn a_device_is_plugged_into_a_running_guest() {
    let _alone = alone();
    let Some(cloud) = cloud() else { return };
    let folder = tempfile::tempdir().unwrap();
    let daemon = daemon(folder.path());
    let _fronts = fronts(folder.path(), &[("vm", 100)], Doorbells::Trapped);
    let [kernel, module] = payload(folder.path(), &Workload::Verify { rounds: 1 });
    let console = folder.path().join("vm.log");
    let started = cloud.start("vm", &Payload::Pvh(&kernel, &module), 64, None, &console);
    let mut guest = started.unwrap();
    assert!(wait_for(BEGIN, || guest.runs()), "{}", output(&console));
    assert_eq!(report(&guest), Report::default(), "there is no device yet");
    guest.plug(&folder.path().join("vm/vm.sock")).unwrap();
    let status = guest.process.ends(BEGIN);
    let report = report(&guest);
    let seen = (status, report.outcome);
    let text = (report.text(), output(&console));
    assert_eq!(seen, (Some(0), Outcome::Passed), "{text:?}");
    let removed = || daemon.host().snapshot().tenants.is_empty();
    assert!(wait_for(BEGIN, removed));
}

#[test]
fn a_linux_guest_s_device_returns_after_the_daemon_s_restart() {
    let _alone = alone();
    if let Some((cloud, lab)) = boots() {
        device_returns(&cloud, &lab);
    }
}

#[test]
fn two_linux_guests_in_cloud_hypervisor_share_at_one_to_three() {
    let _alone = alone();
    let start = Instant::now();
    if let Some((cloud, lab)) = boots() {
        share_in_cloud("stock Cloud Hypervisor", KERNEL_US, start, &cloud, &lab);
    }
}

/// Cloud Hypervisor and the lab, if this machine's KVM boots it.
fn boots() -> Option<(Cloud, Lab)> {
    let cloud = cloud()?;
    let lab = lab()?;
    let folder = tempfile::tempdir().unwrap();
    match cloud.boots(&lab, folder.path()) {
        Ok(()) => Some((cloud, lab)),
        Err(reason) => {
            println!("SKIPPED: {reason}");
            None
        }
    }
}

/// Most machines that are tried. The emulator loses this machine in one to three of four runs,
/// after seconds or a minute: QEMU reports "Triple fault" of the machine's own kernel
/// (`-d cpu_reset`) and ends with 0. No program in the machine can cause that. (With one thread for
/// both processors its guests do not boot.)
const MACHINES_MAX: u32 = 6;

/// The machine's output. None if its kernel did not panic and its programs neither ended nor
/// failed: then the emulator lost it.
fn in_the_lab(lab: &Lab) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let console = folder.path().join("console");
    let machine = Machine {
        initramfs: "cloud.gz",
        processors: 2,
        memory_mib: 2048,
        options: &[],
        append: "",
        commands: "nested_--linux-guests_/lab",
        sockets: &[],
        console: &console,
    };
    let mut qemu = lab.boot(&machine).unwrap();
    let ended = qemu.ends(BUDGET);
    let output = output(&console);
    println!("{output}");
    assert_eq!(ended, Some(0), "the lab did not end in time");
    let words = ["of nested --linux-guests /lab", "Kernel panic"];
    let lost = !words.iter().any(|told| output.contains(told));
    if lost {
        println!("LOST: the emulator reset the machine; another is started");
    }
    (!lost).then_some(output)
}

/// The last two tests in a stock Linux machine in stock QEMU, with the KVM of an emulated processor
/// with nested paging: so they also run where they are skipped on this machine.
#[test]
fn linux_guests_in_cloud_hypervisor_in_the_nested_lab() {
    let _alone = alone();
    let start = Instant::now();
    if cloud().is_none() {
        return;
    }
    let Some(lab) = lab() else { return };
    let output = (0..MACHINES_MAX).find_map(|_| in_the_lab(&lab));
    let output = output.expect("a machine that the emulator does not lose");
    println!(
        "Cloud Hypervisor in the lab: all of it {:.1?}",
        start.elapsed()
    );
    let status = "LAB status 0 of nested --linux-guests /lab";
    assert!(output.contains(status) && !output.contains("SKIPPED"));
}
