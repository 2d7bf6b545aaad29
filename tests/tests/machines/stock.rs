//! Two stock Linux guests in stock QEMU, without acceleration, share the software GPU at weights 1 to 3.
//!
//! `images/lab/build` fetches and makes what is booted; where it cannot, this is skipped with its reason.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use turnstile_mediator::daemon::HostSnapshot;
use turnstile_tests::machine::{Ended, Lab, Machine};

use crate::{alone, charged, daemon, fronts, lab};

/// Length of the measurement, as the issue has it.
const MEASURED: Duration = Duration::from_secs(20);
/// How long guests are under load: the measurement, and what they may be apart in beginning.
const LOAD_S: u64 = 27;
/// Length of a launch.
const KERNEL_US: u64 = 2_000;
/// TIMEOUT: a guest is up after 2.5 s on an idle core, and after 20 s on one that eight share.
const BOOT_TIMEOUT: Duration = Duration::from_secs(120);
/// TIMEOUT: a second; some on a busy host.
const LOAD_TIMEOUT: Duration = Duration::from_secs(30);

fn boot(lab: &Lab, socket: &Path, commands: &str, console: &Path) -> Ended {
    let machine = Machine {
        initramfs: "initramfs.gz",
        processors: 1,
        memory_mib: 256,
        options: &[],
        append: "hugepages=16",
        commands,
        sockets: &[(3, socket)],
        console,
    };
    lab.boot(&machine).unwrap()
}

/// What a guest's console says in numbers: launches, verified, failed.
fn workloads(console: &str) -> Vec<[u64; 3]> {
    let lines = console
        .lines()
        .filter(|line| line.starts_with("workload: "));
    lines
        .map(|line| {
            let word = |name| {
                let mut words = line.split_whitespace().skip_while(|word| *word != name);
                words.nth(1).unwrap().parse().unwrap()
            };
            [word("launches"), word("verified"), word("failed")]
        })
        .collect()
}

#[test]
fn two_stock_linux_guests_share_at_one_to_three() {
    let _alone = alone();
    let begun = Instant::now();
    let Some(lab) = lab() else { return };
    let made = begun.elapsed();
    let folder = tempfile::tempdir().unwrap();
    let daemon = daemon(folder.path());
    let vms = [("one", 100), ("three", 300)];
    let _fronts = fronts(folder.path(), &vms);
    let commands = format!(
        "turnstile-guest_run_--ptx_/kernels/vecadd.ptx_--kernel_vecadd_--input_/ones_--output_/tmp/sums_in_in_out_words+cmp_/tmp/sums_/twos+turnstile-guest_workload_verify+hold+turnstile-guest_workload_load_--seconds_{LOAD_S}_--kernel-us_{KERNEL_US}+turnstile-guest_info"
    );
    let consoles = vms.map(|(name, _)| folder.path().join(format!("{name}.log")));
    let mut guests: Vec<Ended> = vms
        .iter()
        .zip(&consoles)
        .map(|((name, _), console)| {
            let socket = folder.path().join(format!("vm/{name}.sock"));
            boot(&lab, &socket, &commands, console)
        })
        .collect();
    let snapshot = || daemon.host().snapshot();
    let used = |snapshot: &HostSnapshot| vms.map(|(name, _)| charged(snapshot, name));
    let said = || {
        consoles
            .each_ref()
            .map(|path| fs::read_to_string(path).unwrap())
    };
    let within = |time: Duration, reached: &dyn Fn() -> bool| {
        let until = Instant::now() + time;
        while !reached() {
            let late = Instant::now() >= until;
            assert!(!late, "the guests did not get so far: {:#?}", said());
            thread::sleep(Duration::from_millis(20));
        }
    };
    within(BOOT_TIMEOUT, &|| {
        said().iter().all(|text| text.contains("LAB holds"))
    });
    let booted = begun.elapsed();
    for guest in &mut guests {
        let console = guest.child().stdin.as_mut().unwrap();
        console.write_all(b"go\n").unwrap();
    }
    // Both are under load when both were charged more than what came before takes.
    let first = used(&snapshot());
    within(LOAD_TIMEOUT, &|| {
        let more = used(&snapshot());
        (0..2).all(|vm| more[vm] > first[vm] + 2e8)
    });
    let before = snapshot();
    thread::sleep(MEASURED);
    let after = snapshot();
    let [one, three] = [0, 1].map(|vm| used(&after)[vm] - used(&before)[vm]);
    let share = three / (one + three);
    for (guest, console) in guests.iter_mut().zip(&consoles) {
        let status = guest.ends(Duration::from_secs(2 * LOAD_S));
        let said = fs::read_to_string(console).unwrap();
        assert_eq!(status, Some(0), "{said}");
        let results = workloads(&said);
        assert_eq!(results.len(), 2, "{said}");
        assert!(
            results
                .iter()
                .all(|[_, verified, failed]| *verified > 0 && *failed == 0),
            "{said}"
        );
        let statuses: Vec<&str> = said
            .lines()
            .filter(|line| line.starts_with("LAB status "))
            .collect();
        let good = statuses
            .iter()
            .all(|line| line.starts_with("LAB status 0 "));
        assert!(good && statuses.len() == 6, "{said}");
        // What the guest is told of its account covers what it has counted itself.
        let told = said.lines().find(|line| line.starts_with("compute used"));
        let told = told
            .and_then(|line| line.split_whitespace().nth(2))
            .unwrap();
        let (told, own) = (told.parse::<f64>().unwrap(), results[1][0] * KERNEL_US);
        // CAST: seconds of work in microseconds
        assert!(told * 1e6 >= own as f64, "{told} s charged for {own} us");
        println!("{results:?} (launches, verified, failed), {told} s charged");
    }
    assert_eq!((after.conservation_error_ns, after.ledger_errors), (0, 0));
    println!(
        "stock QEMU, two Linux guests at 1:3: share {share:.4} of 0.75 over {MEASURED:?}; lab made in {made:.1?}, guests up \
         after {booted:.1?}, all of it {:.1?}",
        begun.elapsed()
    );
    assert!((share - 0.75).abs() < 0.03, "{share}");
}
