//! kill -9 of the daemon at any moment, with working VMs that reconnect. The ledger opens, no
//! window is lost or counted twice, and its times equal the GPU's own record to the nanosecond.
//!
//! The GPU's own record is `gpu.soft.trace`: the software GPU appends each context switch to a file
//! before its log can be read. So the trace of a killed daemon has all that its accounting can have
//! known, and a little more.
//!
//! `TURNSTILE_KILLS=1000 cargo test --release -p turnstile-cli --test kill -- --nocapture`

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use common::{PATIENCE, Process, turnstile};
use turnstile_accounting::audit::Audit;
use turnstile_accounting::ids::tenant_id;
use turnstile_accounting::record::{Body, Digest, Entry, GapCause, GpuIdentity};
use turnstile_accounting::store::{Selection, SqliteStore, Store, StoreError};
use turnstile_accounting::{EngineId, EngineState, Nanos, SwitchEvent};
use uuid::Uuid;

const NODE: &str = "node-1";

/// A daemon lives for less than this, from the moment its process is made.
const LIFE: Duration = Duration::from_millis(900);

fn quiet(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null())
}

struct House {
    folder: tempfile::TempDir,
}

impl House {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn trace(&self, run: u64) -> PathBuf {
        self.path(&format!("switches-{run}"))
    }

    fn serve(&self, run: u64) -> Process {
        // The shortest windows: as many edges as possible for a kill to fall on.
        let trace = format!("gpu.soft.trace={}", self.trace(run).display());
        let mut command = turnstile();
        quiet(&mut command)
            .args(["serve", "--config", "/dev/null", "--node", NODE])
            .args(["--set", "ledger.window_ms=100", "--set", &trace])
            .arg("--socket")
            .arg(self.path("vmm.sock"))
            .arg("--ledger")
            .arg(self.path("ledger"))
            .stderr(fs::File::create(self.path("daemon-said")).unwrap());
        Process(command.spawn().unwrap())
    }

    /// A VM that reconnects to each new daemon, until its input ends.
    fn vm(&self, name: &str, kernel_us: &str, native: bool) -> Process {
        let mut command = turnstile();
        command
            .args(["vmm", "--reconnect", "--load-only", "--name", name])
            .args(["--kernel-us", kernel_us])
            .arg("--socket")
            .arg(self.path("vmm.sock"))
            .args(native.then_some("--native"))
            .stdin(Stdio::piped())
            .stdout(fs::File::create(self.path(name)).unwrap())
            .stderr(fs::File::create(self.path(&format!("{name}-error"))).unwrap());
        Process(command.spawn().unwrap())
    }

    fn output(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// The last entry's number and digest; none while there is no entry.
    fn tail(&self) -> Option<(u64, Digest)> {
        let mut store = match SqliteStore::read(&self.path("ledger")) {
            Ok(store) => store,
            // Killed before it had made its file, or the tables in it.
            Err(StoreError::NotFound { .. } | StoreError::Version { found: 0, .. }) => return None,
            Err(error) => panic!("the ledger does not open: {error}"),
        };
        let kept = store.gpus().unwrap();
        kept.first().map(|kept| (kept.tail.seq, kept.tail.digest))
    }
}

/// What the engines did in one run of the daemon, as the GPU wrote it.
struct Trace {
    /// By engine, from when on it was in which state; the last one's end is not known.
    engines: BTreeMap<EngineId, Vec<(u64, EngineState)>>,
}

impl Trace {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_default();
        let (mut engines, mut next) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::new());
        // A line without its end was being written.
        for line in text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'))
        {
            let event: SwitchEvent = serde_json::from_str(line).unwrap();
            let expected: &mut u64 = next.entry(event.engine).or_default();
            assert_eq!(event.seq, *expected, "the trace has a hole");
            *expected += 1;
            let states = engines.entry(event.engine).or_default();
            states.push((event.at.0, event.state));
        }
        Self { engines }
    }

    /// Adds what tenants used of an engine within `[from, to)`.
    fn add(&self, engine: EngineId, (from, to): (u64, u64), add: &mut dyn FnMut(EngineState, u64)) {
        let states = self.engines.get(&engine).map_or(&[][..], Vec::as_slice);
        for (index, (at, state)) in states.iter().enumerate() {
            let end = states.get(index + 1).map_or(u64::MAX, |(next, _)| *next);
            let part = end.min(to).saturating_sub((*at).max(from));
            if part > 0 {
                add(*state, part);
            }
        }
    }

    /// Use by tenant and class (true: compute) within `[from, to)`.
    fn used(&self, boot: Uuid, span: (u64, u64)) -> BTreeMap<(Uuid, bool), u64> {
        let mut used = BTreeMap::new();
        for engine in self.engines.keys() {
            self.add(*engine, span, &mut |state, ns| {
                if let EngineState::Running(tenant) = state {
                    let id = tenant_id(NODE, boot, tenant);
                    *used.entry((id, engine.0 == 0)).or_default() += ns;
                }
            });
        }
        used
    }

    /// Last switch, of any engine.
    fn end(&self) -> u64 {
        let last = |states: &Vec<(u64, EngineState)>| states.last().map_or(0, |(at, _)| *at);
        self.engines.values().map(last).max().unwrap_or(0)
    }
}

fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_nanos() as u64
}

/// Times of the tenants in an entry, with the keys of [`Trace::used`]; without zeros.
fn booked(entry: &Entry) -> BTreeMap<(Uuid, bool), u64> {
    let Body::Window { tenants, .. } = &entry.body else {
        return BTreeMap::new();
    };
    let both = |id, compute: Nanos, copy: Nanos| [((id, true), compute.0), ((id, false), copy.0)];
    let all = tenants
        .iter()
        .flat_map(|record| both(record.tenant.id, record.engine_ns, record.copy_ns));
    all.filter(|(_, ns)| *ns > 0).collect()
}

/// A run of the daemon: when it was there, by the calendar.
struct Run {
    number: u64,
    began: u64,
    ended: u64,
}

#[derive(Default, Debug)]
struct Sums {
    windows: u64,
    downs: u64,
    booked_ns: u64,
    /// Used after the last window of a killed daemon.
    lost_ns: u64,
    worst_lost_ns: u64,
    unobserved_ns: u64,
    runs_with_windows: u64,
}

/// Compares the whole ledger with the traces.
fn compare(house: &House, runs: &[Run], seen: &BTreeMap<u64, Digest>) -> Sums {
    let mut store = SqliteStore::read(&house.path("ledger")).unwrap();
    let kept = store.gpus().unwrap();
    let [kept] = &kept[..] else {
        panic!("one GPU, not {}", kept.len())
    };
    let gpu: GpuIdentity = kept.gpu.clone();
    let mut audit = Audit::new(&gpu, None);
    let mut sums = Sums::default();
    let mut digests = BTreeMap::new();
    // Boot, number of the run, its trace, and where its last window ended on the GPU's clock.
    let mut open: Option<(Uuid, Trace, u64)> = None;
    let visit = &mut |_: &GpuIdentity, entry: Entry| {
        audit.entry(&entry);
        let stretch = &entry.stretch;
        assert!(
            digests.insert(stretch.seq, entry.digest).is_none(),
            "counted twice"
        );
        let span = (stretch.from.0, stretch.from.0 + stretch.length_ns.0);
        match &entry.body {
            Body::Gap { cause } => {
                assert_eq!(*cause, GapCause::Down, "{stretch:?}");
                sums.downs += 1;
                if let Some((boot, trace, until)) = open.take() {
                    let lost: u64 = trace.used(boot, (until, trace.end())).values().sum();
                    // Three engines may have been at work in the gap.
                    assert!(
                        lost <= 3 * stretch.length_ns.0,
                        "{lost} ns used after the last window, and a gap of {} ns",
                        stretch.length_ns.0
                    );
                    sums.lost_ns += lost;
                    sums.worst_lost_ns = sums.worst_lost_ns.max(lost);
                }
            }
            Body::Window { engines, .. } => {
                if open.is_none() {
                    let within = |run: &&Run| (run.began..=run.ended).contains(&stretch.end.0);
                    let run = runs.iter().find(within).expect("a window of no run");
                    open = Some((stretch.boot, Trace::read(&house.trace(run.number)), span.0));
                    sums.runs_with_windows += 1;
                }
                let (boot, trace, until) = open.as_mut().unwrap();
                assert_eq!(*boot, stretch.boot, "two runs without a gap between them");
                assert_eq!(*until, span.0, "a hole within a run");
                *until = span.1;
                let holes = |engine: &turnstile_accounting::record::EngineRecord| {
                    engine.unobserved_ns.0 + engine.gap_ns.0
                };
                let holes: u64 = engines.iter().map(holes).sum();
                sums.unobserved_ns += holes;
                let (ours, truth) = (booked(&entry), trace.used(*boot, span));
                if holes == 0 {
                    assert_eq!(
                        ours, truth,
                        "window {} is not what the GPU did",
                        stretch.seq
                    );
                } else {
                    // Time that was not observed is no tenant's, and nothing else is missing.
                    let (ours, truth): (u64, u64) = (ours.values().sum(), truth.values().sum());
                    assert!(
                        ours <= truth && truth - ours <= holes,
                        "{ours} {truth} {holes}"
                    );
                }
                sums.windows += 1;
                sums.booked_ns += ours_total(&entry);
            }
        }
        Ok(true)
    };
    store.query(&Selection::default(), visit).unwrap();
    let report = audit.finish();
    assert_eq!(report.broken, 0, "{:?}", report.findings);
    for (seq, digest) in seen {
        assert_eq!(
            digests.get(seq),
            Some(digest),
            "entry {seq} was there before a kill, and is not now"
        );
    }
    sums
}

fn ours_total(entry: &Entry) -> u64 {
    booked(entry).values().sum()
}

#[test]
fn a_daemon_killed_at_any_moment_loses_no_window_and_counts_none_twice() {
    let kills: u64 = std::env::var("TURNSTILE_KILLS").map_or(12, |n| n.parse().unwrap());
    let house = House {
        folder: tempfile::tempdir().unwrap(),
    };
    let kvm = turnstile_vmm::vmm::kvm_available();
    if let Err(reason) = &kvm {
        println!("SKIPPED with a KVM guest: {reason}; threads stand in for both VMs");
    }
    let mut vms = [
        house.vm("native", "400", true),
        house.vm("second", "700", kvm.is_err()),
    ];
    let (mut runs, mut seen, mut before) = (Vec::new(), BTreeMap::new(), None);
    let (mut random, begin) = (1_u64, Instant::now());
    for number in 1..=kills {
        // An LCG is enough for moments. SOURCE: Knuth, MMIX.
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let life = Duration::from_nanos((random >> 33) % (LIFE.as_nanos() as u64));
        let began = unix_ns();
        let mut daemon = house.serve(number);
        // The moment of the kill is the point of the test, not a wait for something.
        std::thread::sleep(life);
        // What a reader has seen is closed.
        seen.extend(house.tail());
        daemon.0.kill().unwrap();
        let status = daemon.0.wait().unwrap();
        let output = house.output("daemon-said");
        assert_eq!(
            status.signal(),
            Some(9),
            "run {number} ended by itself: {output}"
        );
        runs.push(Run {
            number,
            began,
            ended: unix_ns(),
        });
        // In every other run the daemon itself is the first to open what the kill left.
        if number % 2 == 0 {
            let tail = house.tail();
            assert!(tail.map(|tail| tail.0) >= before, "entries are gone");
            before = tail.map(|tail| tail.0);
        }
    }
    let killed_for = begin.elapsed();
    // One more, which ends as it should, and so do the VMs.
    let began = unix_ns();
    let mut daemon = house.serve(kills + 1);
    let before = house.tail().map(|tail| tail.0);
    let begin = Instant::now();
    while house.tail().map(|tail| tail.0) <= before.map(|seq| seq + 3) {
        assert!(begin.elapsed() < PATIENCE, "no windows");
        std::thread::sleep(Duration::from_millis(20));
    }
    for (vm, name) in vms.iter_mut().zip(["native", "second"]) {
        drop(vm.0.stdin.take());
        let status = vm.end(PATIENCE).expect("a VM did not end");
        let (output, error) = (house.output(name), house.output(&format!("{name}-error")));
        assert!(status.success(), "{name}: {error}{output}");
    }
    daemon.signal(rustix::process::Signal::TERM);
    assert!(daemon.end(PATIENCE).is_some_and(|status| status.success()));
    runs.push(Run {
        number: kills + 1,
        began,
        ended: unix_ns(),
    });
    let sums = compare(&house, &runs, &seen);
    let lost = |name| house.output(name).matches("\"lost\"").count();
    println!(
        "{kills} kills in {:.0} s: {} windows of {} runs, {} gaps, {} entries seen before a kill, all there; {} ns booked, as the GPU \
         has them; {} ns (at most {} ns of a run) fell into gaps, {} ns of windows unobserved; VMs came back {} and {} times",
        killed_for.as_secs_f64(),
        sums.windows,
        sums.runs_with_windows,
        sums.downs,
        seen.len(),
        sums.booked_ns,
        sums.lost_ns,
        sums.worst_lost_ns,
        sums.unobserved_ns,
        lost("native"),
        lost("second"),
    );
    assert!(
        sums.windows >= kills / 2,
        "too few windows to show anything"
    );
    assert!(sums.booked_ns > 0, "nobody used anything");
}
