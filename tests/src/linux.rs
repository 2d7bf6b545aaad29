//! Linux guests of a stock VMM under the software GPU, on this machine or in the lab's.

#[path = "../../mediator/cli/tests/common/fronts.rs"]
mod soft;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use turnstile_daemon::HostSnapshot;
use turnstile_vmm::front::Doorbells;

use crate::cloud::{Cloud, Payload};
use crate::e2e::wait_for;
use crate::machine::{Ended, Lab};
pub use soft::{charged, daemon, fronts};

/// Length of the measurement, as in docs/SPECIFICATION.md.
const MEASURED: Duration = Duration::from_secs(20);
/// Time for which guests are under load: the measurement, and the difference of their starts.
const LOAD_S: u64 = 27;
/// Length of a launch.
pub const KERNEL_US: u64 = 2_000;
/// Length of a launch if a guest's processor is emulated twice over. Between two launches such a
/// guest needs milliseconds, and its queue has to last meanwhile, so that it wants its share at
/// each moment.
pub const LONG_KERNEL_US: u64 = 20_000;
/// TIMEOUT: a guest boots in 2.5 s on an idle core, and in 20 s on one that eight share.
const BOOT_TIMEOUT: Duration = Duration::from_secs(120);
/// TIMEOUT: a second; longer on a busy host.
const LOAD_TIMEOUT: Duration = Duration::from_secs(30);

/// A machine, and the input of its console.
#[allow(missing_debug_implementations)]
pub struct Guest {
    /// Its VMM.
    pub process: Ended,
    /// Its console.
    pub input: Box<dyn Write>,
}

/// Starts a machine: its name, the socket of its device, its commands, the file for its output.
pub type Start<'a> = &'a dyn Fn(&str, &Path, &str, &Path) -> Guest;

/// Numbers that a guest's console shows: launches, verified, failed.
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

/// Runs two Linux guests at weights 1 to 3 under the software GPU. Each result is verified in the
/// guests, shares are measured over 20 seconds, and the ledger is compared with the engine.
///
/// # Panics
/// If a check fails.
pub fn share(what: &str, kernel_us: u64, started: Instant, start: Start<'_>) {
    let made = started.elapsed();
    let folder = tempfile::tempdir().unwrap();
    let daemon = daemon(folder.path());
    let vms = [("one", 100), ("three", 300)];
    let _fronts = fronts(folder.path(), &vms, Doorbells::Trapped);
    let commands = format!(
        "turnstile-guest_run_--ptx_/kernels/vecadd.ptx_--kernel_vecadd_--input_/ones_--output_/tmp/sums_in_in_out_words+cmp_/tmp/sums_/twos+turnstile-guest_workload_verify+hold+turnstile-guest_workload_load_--seconds_{LOAD_S}_--kernel-us_{kernel_us}+turnstile-guest_info"
    );
    let consoles = vms.map(|(name, _)| folder.path().join(format!("{name}.log")));
    let mut guests: Vec<Guest> = vms
        .iter()
        .zip(&consoles)
        .map(|((name, _), console)| {
            let socket = folder.path().join(format!("vm/{name}.sock"));
            start(name, &socket, &commands, console)
        })
        .collect();
    let snapshot = || daemon.host().snapshot();
    let used = |snapshot: &HostSnapshot| vms.map(|(name, _)| charged(snapshot, name));
    let output = || {
        consoles
            .each_ref()
            .map(|path| fs::read_to_string(path).unwrap())
    };
    let within = |time: Duration, reached: &dyn Fn() -> bool| {
        let until = Instant::now() + time;
        while !reached() {
            let late = Instant::now() >= until;
            assert!(!late, "the guests did not get so far: {:#?}", output());
            thread::sleep(Duration::from_millis(20));
        }
    };
    within(BOOT_TIMEOUT, &|| {
        output().iter().all(|text| text.contains("LAB holds"))
    });
    let booted = started.elapsed();
    for guest in &mut guests {
        guest.input.write_all(b"go\n").unwrap();
    }
    // Both are under load once both were charged more than the load's start can take.
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
        let status = guest.process.ends(Duration::from_secs(2 * LOAD_S));
        let output = fs::read_to_string(console).unwrap();
        assert_eq!(status, Some(0), "{output}");
        let results = workloads(&output);
        assert_eq!(results.len(), 2, "{output}");
        assert!(
            results
                .iter()
                .all(|[_, verified, failed]| *verified > 0 && *failed == 0),
            "{output}"
        );
        let statuses: Vec<&str> = output
            .lines()
            .filter(|line| line.starts_with("LAB status "))
            .collect();
        let good = statuses
            .iter()
            .all(|line| line.starts_with("LAB status 0 "));
        assert!(good && statuses.len() == 6, "{output}");
        // The charge that the guest reads is at least what it has counted itself.
        let charged_s = output.lines().find(|line| line.starts_with("compute used"));
        let charged_s = charged_s
            .and_then(|line| line.split_whitespace().nth(2))
            .unwrap();
        let (charged_s, own) = (charged_s.parse::<f64>().unwrap(), results[1][0] * kernel_us);
        // CAST: seconds of work in microseconds
        assert!(
            charged_s * 1e6 >= own as f64,
            "{charged_s} s charged for {own} us"
        );
        println!("{results:?} (launches, verified, failed), {charged_s} s charged");
    }
    assert_eq!((after.conservation_error_ns, after.ledger_errors), (0, 0));
    println!(
        "{what}, two Linux guests at 1:3: share {share:.4} of 0.75 over {MEASURED:?}; begun after {made:.1?}, guests up after \
         {booted:.1?}, all of it {:.1?}",
        started.elapsed()
    );
    assert!((share - 0.75).abs() < 0.03, "{share}");
}

/// As [`share`], in Cloud Hypervisor.
///
/// # Panics
/// As [`share`].
pub fn share_in_cloud(what: &str, kernel_us: u64, started: Instant, cloud: &Cloud, lab: &Lab) {
    share(
        what,
        kernel_us,
        started,
        &|name, socket, commands, console| {
            let payload = Payload::Linux(lab, commands);
            let running = cloud.start(name, &payload, 256, Some(socket), console);
            let running = running.unwrap();
            Guest {
                process: running.process,
                input: Box::new(running.input.unwrap()),
            }
        },
    );
}

/// A guest in Cloud Hypervisor boots before its device is plugged in. The daemon ends while the
/// front continues, as if in another process. Then both end, as if in one process, and the device
/// is unplugged and plugged in again.
///
/// # Panics
/// If the guest does not verify its results each time.
pub fn device_returns(cloud: &Cloud, lab: &Lab) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("vm/vm.sock");
    let console = folder.path().join("vm.log");
    let first = daemon(folder.path());
    let front = fronts(folder.path(), &[("vm", 100)], Doorbells::Trapped);
    const VERIFY: &str = "turnstile-guest_workload_verify";
    let commands = format!("plugged+{VERIFY}+hold+{VERIFY}+hold+unplugged+plugged+{VERIFY}");
    let payload = Payload::Linux(lab, &commands);
    let mut guest = cloud.start("vm", &payload, 256, None, &console).unwrap();
    let until = |what: &str, reached: &dyn Fn() -> bool| {
        assert!(
            wait_for(BOOT_TIMEOUT, reached),
            "{what}: {}",
            read(&console)
        );
    };
    let holds = |count| read(&console).matches("LAB holds").count() == count;
    until("it runs", &|| read(&console).contains("LAB up"));
    guest.plug(&socket).unwrap();
    until("first", &|| holds(1));

    drop(first);
    let second = daemon(folder.path());
    let back = || second.host().snapshot().tenants.len() == 1;
    until("the device is there again", &back);
    guest.input.as_mut().unwrap().write_all(b"go\n").unwrap();
    until("second", &|| holds(2));

    drop(front);
    drop(second);
    let third = daemon(folder.path());
    let _fronts = fronts(folder.path(), &[("vm", 100)], Doorbells::Trapped);
    guest.input.as_mut().unwrap().write_all(b"go\n").unwrap();
    guest.unplug().unwrap();
    until("the device is out", &|| !guest.has_device());
    guest.plug(&socket).unwrap();
    let status = guest.process.ends(BOOT_TIMEOUT);
    let output = read(&console);
    assert_eq!(status, Some(0), "{output}");
    assert_eq!(output.matches("LAB status 0 of ").count(), 8, "{output}");
    drop(third);
    println!("{output}");
}

fn read(console: &Path) -> String {
    fs::read_to_string(console).unwrap_or_default()
}
