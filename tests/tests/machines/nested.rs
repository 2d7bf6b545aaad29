//! The nested lab: the host is a stock Linux machine in stock QEMU, with an IOMMU, VFIO and KVM. On
//! its bus are two GPUs. `nested` drives the PCI GPU, *simulated hardware* behind vfio-user, with
//! its own guests. The other one is the GPU that the host itself has as a VM.

use std::fs;
use std::path::PathBuf;
use std::process::{self, Command, Stdio};
use std::time::{Duration, Instant};

use turnstile_daemon::HostSnapshot;
use turnstile_tests::e2e::wait_for;
use turnstile_tests::linux::{daemon, fronts};
use turnstile_tests::machine::{Ended, Lab, Machine, busy_ticks, ticks};
use turnstile_vmm::front::Doorbells;

use crate::{alone, lab};

/// Time limit of the whole lab, as in docs/SPECIFICATION.md.
const BUDGET: Duration = Duration::from_secs(300);
/// Slots of the physical GPU on the bus, and of the VM's own.
const PHYSICAL: u32 = 4;
const OWN: u32 = 5;
/// Processors of this machine that other programs may use. With more, the lab's two are stopped too
/// often for a guest's throughput to show the effect of its gate. MEASURED: 54 to 97 % of the
/// throughput beside builds; 98 % if the builds have lower priority.
const BUSY: f64 = 0.25;
/// Least number of lines with a verdict that `nested` prints.
const LINES: usize = 23;

/// Commands that the machine runs before it is a host. They use the GPU that it has as a VM, with
/// the guest driver through vfio-pci.
const GUEST: [&str; 5] = [
    "turnstile-guest_info",
    "turnstile-guest_run_--ptx_/kernels/vecadd.ptx_--kernel_vecadd_--input_/ones_--output_/tmp/sums_in_in_out_words",
    "cmp_/tmp/sums_/twos",
    "turnstile-guest_workload_verify",
    "turnstile-guest_workload_load_--seconds_3",
];

/// The largest number after a word at the beginning of a line.
fn number(output: &str, word: &str) -> u64 {
    let behind = output.lines().filter_map(|line| line.strip_prefix(word));
    let numbers = behind.filter_map(|rest| rest.trim().parse().ok());
    numbers.max().unwrap_or(0)
}

/// Most machines that are tried. The emulator loses a machine in some of ten runs, in ways that no
/// program in the machine can cause.
const MACHINES_MAX: u32 = 4;

/// The emulator's fault, if the machine's kernel reports one.
fn lost(output: &str) -> Option<&'static str> {
    let stalled = ["self-detected stall on CPU", "BUG: soft lockup"];
    if stalled.iter().any(|stalled| output.contains(stalled)) {
        return Some("a processor of the emulator takes no interrupts, of its own timer neither");
    }
    // The byte before the marked one was executed.
    let oops = output.split("Oops: int3").nth(1)?;
    let code = oops.lines().find_map(|line| line.split_once("Code: "))?.1;
    let executed = code.split_once(" <")?.0;
    (!executed.ends_with("cc")).then_some("the emulator executed a breakpoint that is not there")
}

/// Longest time without output: each part of the lab prints earlier. One machine without output,
/// from the kernel neither, counts as the emulator's fault; a second one fails the test.
const SILENT: Duration = Duration::from_secs(100);

/// Result of a machine, before it was switched off.
struct Ran {
    output: String,
    took: Duration,
    /// Processors of this machine that other programs used meanwhile.
    others: f64,
    snapshot: HostSnapshot,
}

/// Counts as the emulator's fault once; a second one fails the test.
fn lost_without_a_word(what: &str, silent: &mut u32) {
    println!("LOST: the machine {what}; another is started");
    *silent += 1;
    assert_eq!(*silent, 1, "the second machine that is lost without a word");
}

/// None if the emulator lost the machine.
fn in_the_lab(lab: &Lab, silent: &mut u32) -> Option<Ran> {
    let start = Instant::now();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("gpu.sock");
    let served = Command::new(env!("CARGO_BIN_EXE_nested"))
        .arg("--serve")
        .arg(&socket)
        .stdout(Stdio::null())
        .spawn();
    let mut gpu = Ended::from(served.unwrap());
    assert!(wait_for(Duration::from_secs(10), || socket.exists()));
    let daemon = daemon(folder.path());
    let _fronts = fronts(folder.path(), &[("own", 100)], Doorbells::Trapped);

    let console = folder.path().join("console");
    let nested = format!("nested_--emulated_--seconds_8_--device_0000:00:{PHYSICAL:02x}.0");
    let machine = Machine {
        initramfs: "nested.gz",
        processors: 2,
        memory_mib: 1024,
        options: &["-device", "intel-iommu,intremap=on,caching-mode=on"],
        append: "intel_iommu=on hugepages=16",
        commands: &format!("{}+{nested}", GUEST.join("+")),
        sockets: &[
            (PHYSICAL, &socket),
            (OWN, &folder.path().join("vm/own.sock")),
        ],
        console: &console,
    };
    let mut qemu = lab.boot(&machine).unwrap();
    let processes = [process::id(), gpu.child().id(), qemu.child().id()];
    let own = || {
        let folders = processes.map(|process| PathBuf::from(format!("/proc/{process}")));
        folders.map(|folder| ticks(&folder)).iter().sum::<u64>()
    };
    let (all_before, own_before, since) = (busy_ticks(), own(), Instant::now());
    let output = || String::from_utf8_lossy(&fs::read(&console).unwrap_or_default()).into_owned();
    let mut others = 0.0;
    let (mut read_bytes, mut read_at) = (0, Instant::now());
    let ended = loop {
        // While all processes exist.
        let ours = own().saturating_sub(own_before);
        let all = busy_ticks().saturating_sub(all_before);
        let ended = qemu.ends(Duration::from_millis(200));
        let so_far = output();
        if let Some(why) = lost(&so_far) {
            println!("{so_far}");
            println!("LOST: {why}; another machine is started");
            return None;
        }
        if ended.is_some() || since.elapsed() > BUDGET {
            break ended;
        }
        others = 0.01 * all.saturating_sub(ours) as f64 / since.elapsed().as_secs_f64();
        if so_far.len() != read_bytes {
            (read_bytes, read_at) = (so_far.len(), Instant::now());
        } else if read_at.elapsed() > SILENT {
            println!("{so_far}");
            lost_without_a_word("says nothing, its kernel neither", silent);
            return None;
        }
    };
    let (output, took) = (output(), start.elapsed());
    println!("{output}");
    println!(
        "nested lab: all of it {took:.1?} of {BUDGET:?}; others used {others:.2} processors meanwhile"
    );
    assert_eq!(ended, Some(0), "the lab did not end in time");
    // A program that fails, or is killed, has a status. SOURCE: in 3 of 8 runs on one day the
    // machine reset itself while a guest touched its pages.
    if !output.contains(" of nested") {
        lost_without_a_word("went off without a word", silent);
        return None;
    }
    Some(Ran {
        output,
        took,
        others,
        snapshot: daemon.host().snapshot(),
    })
}

#[test]
fn a_machine_is_lost_only_by_what_nothing_in_it_can_do() {
    let oops = |code: &str| format!("[ 6.4] Oops: int3: 0000 [#1]\n[ 6.5] Code: 00 {code} 4d 85\n");
    assert!(lost("[ 26.0] rcu: rcu_preempt self-detected stall on CPU\n").is_some());
    assert!(lost(&oops("eb <3c>")).is_some());
    assert_eq!(lost(&oops("cc <3c>")), None);
    assert_eq!(lost("[ 6.4] Oops: int3: 0000 [#1]\n"), None);
    assert_eq!(
        lost("[ 6.4] Oops: invalid opcode\n[ 6.5] Code: eb <3c>\n"),
        None
    );
}

#[test]
fn a_pci_gpu_behind_vfio_is_shared_by_guests_under_real_page_tables() {
    let _alone = alone();
    let start = Instant::now();
    let Some(lab) = lab() else { return };
    let made = start.elapsed();
    println!("nested lab: made in {made:.1?}");
    let mut silent = 0;
    let ran = (0..MACHINES_MAX).find_map(|_| in_the_lab(&lab, &mut silent));
    let Ran {
        output,
        took,
        others,
        snapshot,
    } = ran.expect("a machine that the emulator does not lose");

    // The machine as a VM.
    for command in GUEST.map(|command| command.replace('_', " ")) {
        assert!(
            output.contains(&format!("LAB status 0 of {command}")),
            "{command}"
        );
    }
    assert!(output.contains("interrupts (vfio-pci)"));
    assert!(number(&output, "interrupts ") > 100);
    assert_eq!(
        (snapshot.conservation_error_ns, snapshot.ledger_errors),
        (0, 0)
    );

    // The machine as a host.
    let lines = |begin| {
        output
            .lines()
            .filter(move |line: &&str| line.starts_with(begin))
    };
    let broken: Vec<&str> = lines("FAILED").collect();
    let throughput = |line: &&str| line.contains("throughput of a guest");
    if !broken.is_empty() && broken.iter().all(throughput) && others > BUSY {
        println!("SKIPPED: this machine is too busy to judge a guest's throughput: {broken:?}");
    } else {
        assert!(broken.is_empty(), "{broken:#?}");
        assert!(output.contains("LAB status 0 of nested"), "nested failed");
    }
    let kept = lines("ok ").count() + broken.len();
    assert!(kept >= LINES && !output.contains("SKIPPED"), "{kept} lines");
    assert!(made + took < BUDGET);
}
