//! kill -9 at any moment: each window reported as closed is in the ledger, once, and the sums equal
//! what the engines did.
//!
//! ```text
//! TURNSTILE_CRASHES=1000 cargo test --release -p turnstile-accounting --features store \
//!   --test crash -- --nocapture
//! ```
#![cfg(feature = "store")]

mod common;

use common::{EVENTS, NAMES, SECOND_NS, config, gpu, label, standings};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use turnstile_accounting::audit::Audit;
use turnstile_accounting::ids::tenant_id;
use turnstile_accounting::record::{Body, Digest, Entry};
use turnstile_accounting::store::{Put, Selection, SqliteStore, Store};
use turnstile_accounting::synthetic::{COMPUTE, COPY};
use turnstile_accounting::{Nanos, Rollup, TenantId};

const LEDGER: &str = "TURNSTILE_CRASH_LEDGER";
const BOOT: &str = "TURNSTILE_CRASH_BOOT";

/// Periods that pass while no daemon runs.
const DOWN_PERIODS: u64 = 37;

/// The daemon's part, in a process that its parent kills: appends windows as fast as it can, and
/// prints each that is closed.
#[test]
fn child() {
    let (Ok(path), Ok(boot)) = (std::env::var(LEDGER), std::env::var(BOOT)) else {
        return;
    };
    let boot: u32 = boot.parse().unwrap();
    let mut store = SqliteStore::create(Path::new(&path)).unwrap();
    let tail = store.tail(&gpu()).unwrap();
    let mut config = config(0, SECOND_NS / 10);
    config.boot = uuid::Uuid::from_u128(boot.into());
    let mut rollup = Rollup::new(config, tail).unwrap();
    // Begins some time after the end of the last window of the last run.
    let mut period = tail.map_or(0, |tail| {
        (tail.end.0 - common::BEGIN) / EVENTS.period_ns.0 + DOWN_PERIODS
    });
    let (mut metered, mut closed) = (EVENTS.metered(), Vec::new());
    let mut out = std::io::stdout().lock();
    writeln!(out, "begun").unwrap();
    loop {
        rollup
            .period(
                &[&metered.usage(period)],
                label(&EVENTS, period),
                &standings(period),
            )
            .unwrap();
        rollup.take(&mut closed);
        for entry in closed.drain(..) {
            assert_eq!(store.put(&gpu(), &entry).unwrap(), Put::Written);
            writeln!(out, "closed {} {}", entry.stretch.seq, entry.digest).unwrap();
            out.flush().unwrap();
        }
        period += 1;
    }
}

/// Runs the child and kills it after `delay`; returns the entries that it reported as closed.
fn killed_after(ledger: &Path, boot: u64, delay: Duration) -> Vec<(u64, String)> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(LEDGER, ledger)
        .env(BOOT, boot.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let started = lines.by_ref().any(|line| line.unwrap().ends_with("begun"));
    assert!(started, "the child ended before it began");
    let reader = std::thread::spawn(move || {
        let mut output = Vec::new();
        for line in lines {
            let line = line.unwrap();
            let words: Vec<&str> = line.split(' ').collect();
            // The last line may be incomplete; a window counts as closed only if its line is
            // complete.
            if let ["closed", seq, digest] = words[..]
                && digest.len() == 64
            {
                output.push((seq.parse().unwrap(), digest.to_owned()));
            }
        }
        output
    });
    // The moment of the kill is random by intention; the sleep waits for no event.
    std::thread::sleep(delay);
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(
        status.signal(),
        Some(9),
        "it failed before it was killed: {status}"
    );
    reader.join().unwrap()
}

/// Engine time by tenant and class from the events, over the periods of an entry.
fn truth(entry: &Entry, sums: &mut BTreeMap<(uuid::Uuid, bool), Nanos>) {
    let period_ns = EVENTS.period_ns.0;
    let (from, length) = (entry.stretch.from.0, entry.stretch.length_ns.0);
    assert_eq!((from % period_ns, length % period_ns), (0, 0));
    for period in from / period_ns..(from + length) / period_ns {
        for tenant in 1..=NAMES.len() as u32 {
            let id = tenant_id(&gpu().node, entry.stretch.boot, TenantId(tenant));
            for engine in [COMPUTE, COPY] {
                *sums.entry((id, engine == COMPUTE)).or_default() +=
                    EVENTS.ran_ns(period, engine, TenantId(tenant));
            }
        }
    }
}

#[test]
fn a_ledger_survives_kill_9_at_any_moment() {
    let crashes: u64 = std::env::var("TURNSTILE_CRASHES").map_or(50, |n| n.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let mut random = 1_u64;
    let (mut acknowledged, mut before, mut fell_mid_write) = (Vec::new(), 0, 0);
    for boot in 1..=crashes {
        // An LCG is sufficient for random delays. SOURCE: Knuth, MMIX.
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let delay = Duration::from_micros((random >> 33) % 60_000);
        let output = killed_after(&path, boot, delay);
        let mut store = SqliteStore::read(&path).unwrap();
        let entries = store
            .gpus()
            .unwrap()
            .first()
            .map_or(0, |kept| kept.tail.seq + 1);
        let closed = output.len() as u64;
        let written = entries - before;
        assert!(
            (closed..=closed + 1).contains(&written),
            "run {boot}: {closed} entries were said to be closed, {written} are there"
        );
        fell_mid_write += written - closed;
        before = entries;
        acknowledged.extend(output);
    }
    let mut store = SqliteStore::read(&path).unwrap();
    let (gpu, mut seen) = (gpu(), BTreeMap::new());
    let mut audit = Audit::new(&gpu, None);
    let (mut booked, mut expected) = (BTreeMap::new(), BTreeMap::new());
    let mut downs = 0;
    store
        .query(&Selection::default(), &mut |_, entry| {
            audit.entry(&entry);
            assert!(
                seen.insert(entry.stretch.seq, entry.digest).is_none(),
                "counted twice"
            );
            match &entry.body {
                Body::Gap { .. } => downs += 1,
                Body::Window { tenants, .. } => {
                    truth(&entry, &mut expected);
                    for record in tenants {
                        *booked.entry((record.tenant.id, true)).or_default() += record.engine_ns;
                        *booked.entry((record.tenant.id, false)).or_default() += record.copy_ns;
                    }
                }
            }
            Ok(true)
        })
        .unwrap();
    let report = audit.finish();
    assert_eq!(report.broken, 0, "{:?}", report.findings);
    for (seq, digest) in &acknowledged {
        let found = seen.get(seq).map(Digest::to_string);
        assert_eq!(
            found.as_deref(),
            Some(digest.as_str()),
            "window {seq} was closed and is lost"
        );
    }
    assert_eq!(
        booked, expected,
        "the ledger is not the sum of the engines' events"
    );
    println!(
        "{crashes} kills: {} windows, {} records, {downs} gaps; {} closings acknowledged, all there; {fell_mid_write} kills fell \
         between writing and word; engine time {} ns as the events have it",
        report.windows,
        report.records,
        acknowledged.len(),
        report.engine_ns
    );
    assert!(
        report.windows >= crashes / 4,
        "too few windows to show anything"
    );
}
