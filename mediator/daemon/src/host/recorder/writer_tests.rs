//! The writer beside another writer, on a disk that fails, and at the hours of retention.

use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use turnstile_accounting::store::{Selection, SqliteStore};
use uuid::Uuid;

use super::*;

const HOUR_NS: u64 = RETAIN_EVERY.0;
/// In the year 2026.
const BEGIN: u64 = 1_795_000_000_000_000_000;

fn gpu() -> GpuIdentity {
    GpuIdentity {
        node: "node".into(),
        gpu: "gpu".into(),
        model: "model".into(),
    }
}

/// An entry of a second, that is the first of a ledger.
fn entry(boot: u128, second: u64) -> Entry {
    let at = |second: u64| UnixNanos(BEGIN + second * 1_000_000_000);
    Entry {
        stretch: Stretch {
            seq: 0,
            boot: Uuid::from_u128(boot),
            start: at(second),
            end: at(second + 1),
            from: Moment(second * 1_000_000_000),
            length_ns: Nanos(1_000_000_000),
        },
        body: Body::Gap {
            cause: GapCause::Missed,
        },
        digest: Digest([0; 32]),
    }
}

fn writer(quiet: Duration) -> (Writer, Sender<()>) {
    let (running, stop) = channel();
    let writer = Writer {
        store: Arc::new(Mutex::new(Box::new(SqliteStore::in_memory().unwrap()))),
        gpu: gpu(),
        keep_ns: Some(Nanos(1_000_000_000)),
        retained: None,
        tail: None,
        overtaken: None,
        quiet,
        shared: Arc::default(),
        stop,
    };
    (writer, running)
}

/// Another writer adds an entry behind the last one.
fn another_adds(writer: &mut Writer, second: u64) {
    let tail = writer.store().tail(&gpu()).unwrap();
    for placed in follow(&gpu(), tail, &entry(2, second)) {
        writer.store().put(&gpu(), &placed).unwrap();
    }
}

fn boots(writer: &mut Writer) -> Vec<u128> {
    let mut found = Vec::new();
    let mut visit = |_: &_, entry: Entry| {
        found.push(entry.stretch.boot.as_u128());
        Ok(true)
    };
    writer
        .store()
        .query(&Selection::default(), &mut visit)
        .unwrap();
    found
}

#[test]
fn entries_wait_while_another_writer_adds_some_and_follow_when_it_is_quiet() {
    let (mut writer, _running) = writer(Duration::from_secs(3_600));
    writer.put(&entry(1, 0)).unwrap();
    another_adds(&mut writer, 1);
    for _ in 0..2 {
        assert!(matches!(
            writer.put(&entry(1, 2)),
            Err(StoreError::Sequence { .. })
        ));
    }
    // It goes on: the time of quiet begins anew.
    writer.quiet = Duration::ZERO;
    another_adds(&mut writer, 2);
    assert!(writer.put(&entry(1, 3)).is_err());
    writer.put(&entry(1, 3)).unwrap();
    assert_eq!(boots(&mut writer), [1, 2, 2, 1]);
    assert_eq!(writer.overtaken, None);
}

#[test]
fn writer_of_a_daemon_that_ends_waits_for_no_other() {
    let (mut writer, running) = writer(Duration::from_secs(3_600));
    writer.put(&entry(1, 0)).unwrap();
    another_adds(&mut writer, 1);
    drop(running);
    writer.put(&entry(1, 2)).unwrap();
    assert_eq!(boots(&mut writer), [1, 2, 1]);
}

#[test]
fn write_that_fails_at_the_end_is_tried_three_times() {
    let (mut writer, running) = writer(Duration::ZERO);
    drop(running);
    let mut attempts = 0;
    let mut fails = |_: &mut Writer| {
        attempts += 1;
        Err(StoreError::Order)
    };
    assert!(!writer.attempt(&mut fails, &|| "an entry".to_owned()));
    assert_eq!(attempts, LAST_ATTEMPTS);
    assert!(writer.shared.lost.load(Ordering::Relaxed));
}

#[test]
fn old_entries_are_discarded_each_hour_unless_the_calendar_leaps() {
    let (mut writer, _running) = writer(Duration::ZERO);
    for second in 0..4 {
        let placed = writer.tail;
        for entry in follow(&gpu(), placed, &entry(1, second)) {
            writer.put(&entry).unwrap();
        }
    }
    let mut left = |calendar_ns: u64, clock_ns: u64| {
        writer.retain(UnixNanos(BEGIN + calendar_ns), Moment(clock_ns));
        boots(&mut writer).len()
    };
    let second = 1_000_000_000;
    assert_eq!(left(3 * second, 0), 4, "an hour after the start");
    assert_eq!(left(3 * second, HOUR_NS - 1), 4);
    // More than an hour ahead of the clock.
    assert_eq!(left(3 * second + 2 * HOUR_NS + 1, HOUR_NS), 4);
    // Set back to where entries of more than a second ago are the first two.
    assert_eq!(left(3 * second, 2 * HOUR_NS), 2);
    let ahead = HOUR_NS + 3 * second;
    assert_eq!(
        left(ahead + HOUR_NS, 3 * HOUR_NS),
        1,
        "an hour ahead, and no more"
    );
}
