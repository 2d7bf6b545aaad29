use super::writer::RETRY;
use super::*;
use std::sync::Mutex;
use std::time::Instant;
use turnstile_accounting::Moment;
use turnstile_accounting::audit::{Audit, Report};
use turnstile_accounting::record::{
    Body, Digest, EngineRecord, GapCause, Stretch, Tail, TenantRecord,
};
use turnstile_accounting::renumber::follow;
use turnstile_accounting::store::{
    Kept, Put, Retained, Selection, SqliteStore, Visit, VisitChanges,
};
use turnstile_accounting::synthetic::Synthetic;

use turnstile_soft::{ENGINES, SoftConfig, SoftGpu};

const EVENTS: Synthetic = Synthetic {
    seed: 5,
    tenants: 2,
    period_ns: Nanos::from_ms(100),
};
const BEGIN: u64 = 1_795_000_000_000_000_000;
/// TIMEOUT: fsyncs on a busy disk.
const PATIENCE: Duration = Duration::from_secs(60);

/// A store on a disk that can be full.
#[derive(Debug)]
struct Disk {
    store: Arc<Mutex<SqliteStore>>,
    full: Arc<AtomicBool>,
}

impl Disk {
    fn room(&self) -> Result<(), StoreError> {
        if self.full.load(Ordering::Acquire) {
            return Err(StoreError::Output(std::io::ErrorKind::StorageFull.into()));
        }
        Ok(())
    }
}

impl Store for Disk {
    fn tail(&mut self, gpu: &GpuIdentity) -> Result<Option<Tail>, StoreError> {
        self.store.lock().unwrap().tail(gpu)
    }
    fn open_window(&mut self, gpu: &GpuIdentity, stretch: &Stretch) -> Result<(), StoreError> {
        self.room()?;
        self.store.lock().unwrap().open_window(gpu, stretch)
    }
    fn append(&mut self, records: &[TenantRecord]) -> Result<(), StoreError> {
        self.store.lock().unwrap().append(records)
    }
    fn close_window(
        &mut self,
        engines: &[EngineRecord],
        digest: &Digest,
    ) -> Result<(), StoreError> {
        self.store.lock().unwrap().close_window(engines, digest)
    }
    fn keep(
        &mut self,
        gpu: &GpuIdentity,
        after: &Digest,
        window: &Entry,
    ) -> Result<(), StoreError> {
        self.room()?;
        self.store.lock().unwrap().keep(gpu, after, window)
    }
    fn kept_window(&mut self, gpu: &GpuIdentity) -> Result<Vec<Entry>, StoreError> {
        self.store.lock().unwrap().kept_window(gpu)
    }
    fn abandon(&mut self) {
        self.store.lock().unwrap().abandon();
    }
    fn append_gap(
        &mut self,
        gpu: &GpuIdentity,
        stretch: &Stretch,
        cause: GapCause,
        digest: &Digest,
    ) -> Result<(), StoreError> {
        self.room()?;
        self.store
            .lock()
            .unwrap()
            .append_gap(gpu, stretch, cause, digest)
    }
    fn gpus(&mut self) -> Result<Vec<Kept>, StoreError> {
        self.store.lock().unwrap().gpus()
    }
    fn query(&mut self, selection: &Selection, visit: &mut Visit<'_>) -> Result<(), StoreError> {
        self.store.lock().unwrap().query(selection, visit)
    }
    fn note(&mut self, change: &Change) -> Result<Put, StoreError> {
        self.room()?;
        self.store.lock().unwrap().note(change)
    }
    fn changes(
        &mut self,
        selection: &Selection,
        visit: &mut VisitChanges<'_>,
    ) -> Result<(), StoreError> {
        self.store.lock().unwrap().changes(selection, visit)
    }
    fn knows(&mut self, tenant: &str) -> Result<bool, StoreError> {
        self.store.lock().unwrap().knows(tenant)
    }
    fn retain(&mut self, node: &str, before: UnixNanos) -> Result<Retained, StoreError> {
        self.store.lock().unwrap().retain(node, before)
    }
}

/// A daemon's ledger without the daemon.
struct Bench {
    store: Arc<Mutex<SqliteStore>>,
    full: Arc<AtomicBool>,
    gpu: SoftGpu,
    next: u64,
    /// Time by which the calendar was set forward.
    ahead_ns: u64,
}

fn identity() -> GpuIdentity {
    GpuIdentity {
        node: "node-1".into(),
        gpu: "soft".into(),
        model: "Software GPU".into(),
    }
}

impl Bench {
    fn new() -> Self {
        Self {
            store: Arc::new(Mutex::new(SqliteStore::in_memory().unwrap())),
            full: Arc::new(AtomicBool::new(false)),
            gpu: SoftGpu::new(SoftConfig::default()).unwrap(),
            next: 0,
            ahead_ns: 0,
        }
    }

    fn start(&self, keep_ns: Option<Nanos>) -> Recorder {
        self.start_with(Nanos::from_ms(1_000), keep_ns)
    }

    /// End, on the GPU's clock, of what a daemon that starts now would find.
    fn adopted_ns(&self) -> u64 {
        let mut store = self.store.lock().unwrap();
        let kept = store.kept_window(&identity()).unwrap();
        let end = |entry: &Entry| entry.stretch.end.0 - BEGIN;
        let tail = store.tail(&identity()).unwrap();
        kept.last().map_or_else(|| tail.unwrap().end.0 - BEGIN, end)
    }

    fn start_with(&self, window_ns: Nanos, keep_ns: Option<Nanos>) -> Recorder {
        let disk = Disk {
            store: self.store.clone(),
            full: self.full.clone(),
        };
        let config = LedgerConfig {
            store: Arc::new(Mutex::new(Box::new(disk))),
            gpu: identity(),
            window_ns,
            keep_ns,
        };
        Recorder::start(config, Uuid::new_v4(), &self.gpu).unwrap()
    }

    /// Periods by hand: the GPU has more engines than the synthetic meter, so usages are extended.
    fn periods(&mut self, recorder: &mut Recorder, count: u64) {
        let standing = |tenant| Standing {
            tenant: TenantId(tenant),
            name: "vm",
            kind: TenantKind::Vm,
            account: None,
            weight: 100,
            cap: None,
            held_total_ns: Nanos::ZERO,
            backlogged: true,
            memory_bytes: None,
        };
        for _ in 0..count {
            let mut usage = EVENTS.metered().usage(self.next);
            let last = usage.engines.last().unwrap().clone();
            for index in usage.engines.len()..ENGINES {
                let mut more = last.clone();
                // CAST: a GPU has few engines
                more.engine = turnstile_accounting::EngineId(index as u8);
                usage.engines.push(more);
            }
            let since = (self.next + 1) * EVENTS.period_ns.0;
            let end = UnixNanos(BEGIN + since + self.ahead_ns);
            recorder.add(&[&usage], end, &[standing(1), standing(2)]);
            self.next += 1;
        }
    }

    fn until(&self, recorder: &Recorder, done: impl Fn(LedgerHealth) -> bool) {
        let begin = Instant::now();
        while !done(recorder.health()) {
            assert!(begin.elapsed() < PATIENCE, "{:?}", recorder.health());
            thread::yield_now();
        }
    }

    fn report(&self) -> (Report, Vec<Entry>) {
        let (gpu, mut entries) = (identity(), Vec::new());
        let mut store = self.store.lock().unwrap();
        let anchor = store.gpus().unwrap().first().map(|kept| kept.anchor);
        let mut audit = Audit::new(&gpu, anchor);
        store
            .query(&Selection::default(), &mut |_, entry| {
                audit.entry(&entry);
                entries.push(entry);
                Ok(true)
            })
            .unwrap();
        let report = audit.finish();
        assert_eq!(report.broken, 0, "{:?}", report.findings);
        (report, entries)
    }
}

#[test]
fn full_disk_does_not_delay_periods_and_loses_no_time() {
    let mut bench = Bench::new();
    let mut recorder = bench.start(None);
    bench.periods(&mut recorder, 25);
    bench.until(&recorder, |health| health.written == 2);
    assert!(recorder.can_note());
    bench.full.store(true, Ordering::Release);
    let begin = Instant::now();
    bench.periods(&mut recorder, 600);
    assert!(
        begin.elapsed() < RETRY * 60,
        "a minute of windows was not waited for"
    );
    bench.until(&recorder, |health| health.failing);
    assert!(recorder.reason().unwrap().contains("no storage space"));
    assert!(!recorder.can_note(), "a change that may be lost");
    bench.full.store(false, Ordering::Release);
    bench.until(&recorder, |health| !health.failing);
    assert!(recorder.can_note());
    bench.periods(&mut recorder, 30);
    assert_eq!(recorder.reason(), None);
    assert!(recorder.close(), "nothing is lost");
    let (report, entries) = bench.report();
    assert_eq!(report.window_ns, 655 * u128::from(EVENTS.period_ns.0));
    assert_eq!(report.gaps, 0);
    let longest = entries
        .iter()
        .map(|entry| entry.stretch.length_ns)
        .max()
        .unwrap();
    assert!(
        longest > Nanos::from_ms(10_000),
        "windows grew instead: {longest}"
    );
}

#[test]
fn a_daemon_that_stops_writes_its_last_window_and_the_next_one_goes_on() {
    let mut bench = Bench::new();
    let mut first = bench.start(None);
    bench.periods(&mut first, 13);
    drop(first);
    bench.next += 50;
    let mut second = bench.start(None);
    bench.periods(&mut second, 13);
    drop(second);
    let (report, entries) = bench.report();
    assert_eq!(
        (report.gaps, report.gap_ns),
        (1, 50 * u128::from(EVENTS.period_ns.0))
    );
    assert_eq!(report.window_ns, 26 * u128::from(EVENTS.period_ns.0));
    assert_ne!(
        entries.first().unwrap().stretch.boot,
        entries.last().unwrap().stretch.boot
    );
}

#[test]
fn a_daemon_stops_although_its_disk_is_dead() {
    let mut bench = Bench::new();
    let mut recorder = bench.start(None);
    bench.periods(&mut recorder, 15);
    bench.until(&recorder, |health| health.written == 1);
    bench.full.store(true, Ordering::Release);
    bench.periods(&mut recorder, 100);
    let begin = Instant::now();
    assert!(!recorder.close(), "what is lost is reported");
    assert!(begin.elapsed() < PATIENCE);
    bench.full.store(false, Ordering::Release);
    let mut recorder = bench.start(None);
    bench.periods(&mut recorder, 15);
    drop(recorder);
    let (report, _) = bench.report();
    assert_eq!(report.gaps, 1, "what was not written is a gap");
}

/// The store as a killed daemon leaves it: nothing closes its open window.
#[test]
fn killed_daemon_loses_at_most_five_seconds_of_its_open_window() {
    let mut bench = Bench::new();
    let mut recorder = bench.start_with(Nanos::from_ms(60_000), None);
    // To the next minute of the calendar, and 47 s into it.
    let into_ns = BEGIN % 60_000_000_000;
    let first = (60_000_000_000 - into_ns) / EVENTS.period_ns.0 + 1;
    bench.periods(&mut recorder, first);
    bench.until(&recorder, |health| health.written == 1);
    let mut most_ns = 0;
    for _ in 0..470 {
        bench.periods(&mut recorder, 1);
        // The writer takes what it is handed: the test does not measure the disk.
        while recorder.shared.drafting.load(Ordering::Acquire) {
            thread::yield_now();
        }
        let killed = bench.next * EVENTS.period_ns.0;
        let known = bench.adopted_ns();
        most_ns = most_ns.max(killed - known);
    }
    assert!(most_ns <= 5_000_000_000, "{most_ns}");
    assert!(most_ns > 0, "drafts are not written each period");
    std::mem::forget(recorder);
    let used = |entry: &Entry| match &entry.body {
        Body::Window { engines, .. } => engines[0].used_ns,
        Body::Gap { .. } => Nanos::ZERO,
    };
    let mut second = bench.start(None);
    bench.next += 50;
    bench.periods(&mut second, 10);
    assert!(second.close());
    let (report, entries) = bench.report();
    let down: u64 = entries
        .iter()
        .filter(|entry| matches!(entry.body, Body::Gap { .. }))
        .map(|entry| entry.stretch.length_ns.0)
        .sum();
    assert!(down <= 50 * EVENTS.period_ns.0 + 5_000_000_000, "{down}");
    assert_eq!(report.gaps, 1);
    let adopted = &entries[1];
    assert!(used(adopted) > Nanos::ZERO, "its use is in the bill");
    assert_eq!(adopted.stretch.boot, entries[0].stretch.boot);
}

/// Another writer adds an entry, as one of an older version does that takes no lock.
#[test]
fn writer_that_was_overtaken_keeps_its_windows_and_writes_them_behind_the_others() {
    let mut bench = Bench::new();
    let mut recorder = bench.start(None);
    bench.periods(&mut recorder, 25);
    bench.until(&recorder, |health| health.written == 2);
    let tail = bench.store.lock().unwrap().tail(&identity()).unwrap();
    let other = Entry {
        stretch: Stretch {
            seq: 7,
            boot: Uuid::from_u128(9),
            start: tail.unwrap().end,
            end: UnixNanos(tail.unwrap().end.0 + 300_000_000),
            from: Moment(0),
            length_ns: Nanos::from_ms(300),
        },
        body: Body::Gap {
            cause: GapCause::Down,
        },
        digest: Digest([0; 32]),
    };
    for entry in follow(&identity(), tail, &other) {
        let mut store = bench.store.lock().unwrap();
        assert_eq!(store.put(&identity(), &entry).unwrap(), Put::Written);
    }
    bench.periods(&mut recorder, 40);
    bench.until(&recorder, |health| health.failing);
    let reason = recorder.reason().unwrap();
    assert!(reason.contains("another daemon"), "{reason}");
    assert_eq!(
        recorder.health().written,
        2,
        "nothing while the other may write"
    );
    bench.until(&recorder, |health| !health.failing);
    assert_eq!(recorder.reason(), None);
    bench.periods(&mut recorder, 30);
    assert!(recorder.close());
    let (report, _) = bench.report();
    assert_eq!(report.window_ns, 95 * u128::from(EVENTS.period_ns.0));
    assert_eq!((report.gaps, report.gap_ns), (1, 300_000_000));
}

#[test]
fn what_is_too_old_is_discarded() {
    let mut bench = Bench::new();
    let mut recorder = bench.start(Some(Nanos::from_ms(5_000)));
    bench.periods(&mut recorder, 15);
    bench.until(&recorder, |health| health.written == 1);
    // An hour later, by the calendar.
    bench.next += 36_000;
    bench.periods(&mut recorder, 100);
    drop(recorder);
    let (_, entries) = bench.report();
    // The two windows of the first hour ended more than 5 s before; the hour between ended within.
    let first = entries.first().unwrap();
    let missed = GapCause::Missed;
    assert!(matches!(first.body, Body::Gap { cause } if cause == missed));
    assert_eq!(first.stretch.seq, 2);
    // A slow disk makes windows longer, and none missing.
    let seqs = entries.iter().map(|entry| entry.stretch.seq);
    assert!(seqs.eq((2..).take(entries.len())) && entries.len() > 2);
    let windows: u64 = entries[1..]
        .iter()
        .map(|entry| entry.stretch.length_ns.0)
        .sum();
    assert_eq!(windows, 100 * EVENTS.period_ns.0, "all windows since");
    assert!(
        entries
            .iter()
            .any(|entry| matches!(entry.body, Body::Window { .. }))
    );
}

/// Windows are closed although the calendar is long before their end. `behind_ns` reports how far
/// they are on the disk.
#[test]
fn a_calendar_that_jumps_discards_nothing_and_windows_are_written_on() {
    let mut bench = Bench::new();
    let mut recorder = bench.start(Some(Nanos::from_ms(5_000)));
    bench.periods(&mut recorder, 15);
    bench.until(&recorder, |health| health.written == 1);
    // Ten years, for a moment; an hour later a daemon looks for what is too old.
    bench.ahead_ns = 315_360_000_000_000_000;
    bench.next += 36_000;
    bench.periods(&mut recorder, 15);
    bench.ahead_ns = 0;
    bench.until(&recorder, |health| health.written >= 3);
    bench.periods(&mut recorder, 100);
    bench.until(&recorder, |health| {
        health.behind_ns <= Nanos(3 * health.window_ns.0)
    });
    drop(recorder);
    let (report, entries) = bench.report();
    assert_eq!(entries.first().unwrap().stretch.seq, 0, "all is there");
    assert_eq!(report.window_ns, 130 * u128::from(EVENTS.period_ns.0));
}

#[test]
fn each_period_that_does_not_balance_is_counted() {
    let mut bench = Bench::new();
    let mut recorder = bench.start(None);
    for refused in 1..=3 {
        recorder.add(&[&EVENTS.metered().usage(0)], UnixNanos(BEGIN), &[]);
        assert_eq!(recorder.health().refused, refused, "of too few engines");
    }
    bench.periods(&mut recorder, 1);
    assert_eq!(recorder.health().refused, 3);
}

/// The disk neither takes nor refuses: what waits for it is bounded, and the open window grows.
#[test]
fn disk_that_does_not_answer_has_bounded_queues() {
    let mut bench = Bench::new();
    let mut recorder = bench.start(None);
    let store = bench.store.clone();
    let blocked = store.lock().unwrap();
    bench.periods(&mut recorder, 100 * QUEUE as u64);
    let waiting = |recorder: &Recorder| recorder.shared.in_flight.load(Ordering::Acquire);
    assert_eq!(waiting(&recorder), QUEUE);
    // The open window would be written behind those that wait.
    assert!(!recorder.shared.drafting.load(Ordering::Acquire));
    let changed = Changed {
        by: "uid:0 pid:1".into(),
        request: Uuid::nil(),
        part: "scheduling".into(),
        old: serde_json::Value::Null,
        new: serde_json::Value::Null,
    };
    for noted in 0..CHANGES {
        assert!(recorder.can_note(), "{noted}");
        recorder.note("vm", &changed);
    }
    assert!(!recorder.can_note());
    drop(blocked);
    assert!(recorder.close());
    let (report, _) = bench.report();
    let all = 100 * QUEUE as u64 * EVENTS.period_ns.0;
    assert_eq!(report.window_ns, u128::from(all));
}
