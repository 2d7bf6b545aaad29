//! The accounting thread beside a GPU that divides its engine by itself and falls silent.

use std::time::Instant;

use turnstile_accounting::record::{Body, GapCause};

use super::*;
use crate::host::ledger_tests::{config, entries, records};
use crate::host::recording_gpu::GATES;
use crate::host::test_bench::Bench;
use turnstile_gpu::{Capabilities, Contexts, Metering as _};

const MS: u64 = 1_000_000;
/// TIMEOUT: of a thread on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Lets the GPU's time pass, in steps of a period, until `done`.
fn pass(bench: &Bench, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < PATIENCE);
        bench.gpu.reported().now = bench.gpu.now() + Nanos::from_ms(5);
        bench.gpu.wake();
        thread::sleep(Duration::from_millis(1));
    }
}

/// Ends the thread also when a check has failed.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn silence_of_a_gpu_with_slices_is_a_gap_and_its_tenants_stay() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let sliced = Capabilities {
        time_slices: true,
        ..GATES
    };
    let mut bench = Bench::of_policy(sliced, "owed");
    bench.host.open_ledger(config(&path, 20)).unwrap();
    let tenant = bench.open("a", 100);
    bench.gpu.reported().running[0] = Some(tenant);
    bench.gpu.reported().taken_back = Contexts::Kept;
    let (stop, periods) = (AtomicBool::new(false), AtomicU64::new(0));
    let read_at = || bench.gpu.reported().read_at;
    let (silent_from, back_at) = thread::scope(|scope| {
        let (host, _stopping) = (&bench.host, Stopping(&stop));
        scope.spawn(|| run(host, MeterKind::Events, Timing::default(), &stop, &periods));
        pass(&bench, || read_at() >= Moment(100 * MS));
        bench.gpu.reported().silent = Some("off the bus".into());
        let silent_from = read_at();
        pass(&bench, || host.silence().is_some());
        assert_eq!(host.silence().as_deref(), Some("off the bus"));
        pass(&bench, || {
            bench.gpu.now() > silent_from + Nanos::from_ms(300)
        });
        assert_eq!(read_at(), silent_from, "a silent GPU is not read");
        bench.gpu.reported().silent = None;
        pass(&bench, || host.silence().is_none());
        let back_at = read_at().max(silent_from);
        pass(&bench, || read_at() > back_at + Nanos::from_ms(100));
        (silent_from, back_at)
    });
    assert!(!bench.gpu.hung_up(tenant), "its contexts are kept");
    let kinds = bench.host.journal().after(0, 100).0;
    let kinds: Vec<&str> = kinds.iter().map(|event| &*event.kind).collect();
    assert_eq!(kinds, ["vm_connected", "gpu_silent", "gpu_back"]);
    assert!(bench.host.close_ledger());
    let found = entries(&path);
    let cause = GapCause::Silent;
    let of_gap = |entry: &&turnstile_accounting::record::Entry| entry.body == Body::Gap { cause };
    let gap: u64 = found
        .iter()
        .filter(of_gap)
        .map(|one| one.stretch.length_ns.0)
        .sum();
    let charged: u64 = records(&found).map(|one| one.engine_ns.0).sum();
    let length = bench.gpu.reported().read_at.0;
    assert!(gap >= 300 * MS, "{gap} from {silent_from:?} to {back_at:?}");
    // The engine worked for the tenant in all of the time that is known.
    assert_eq!(charged + gap, length, "{gap} of {length}");
}
