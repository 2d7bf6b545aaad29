//! The heap with a simulated driver: random programs, and a daemon that releases and restores.

mod fakes;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use proptest::prelude::*;
use turnstile_preload_wire::{Denial, Pin, ToDaemon, ToLibrary};

use self::fakes::{FakeDriver, FakeLine, null};
use super::*;
use crate::abi::{Location, NOT_SUPPORTED};

fn heap() -> (Heap<FakeDriver, FakeLine>, FakeDriver, FakeLine) {
    let (driver, line) = (FakeDriver::default(), FakeLine::default());
    (Heap::new(driver.clone(), line.clone()), driver, line)
}

const PROP: Prop = Prop::on(0);

/// Announces all memory to a new daemon; returns its chunks.
fn announced(heap: &Heap<FakeDriver, FakeLine>, line: &FakeLine) -> Vec<ChunkNumber> {
    heap.announce(|| line.up.store(true, Ordering::Relaxed));
    let made = line.take().into_iter().filter_map(|message| match message {
        ToDaemon::Made { chunk, .. } => Some(chunk),
        _ => None,
    });
    made.collect()
}

#[test]
fn a_chunk_is_restored_at_its_address() {
    let (heap, driver, line) = heap();
    let address = heap.alloc(5 << 20, PROP).unwrap();
    let chunks = announced(&heap, &line);
    assert_eq!(chunks.len(), 1);
    let chunk = chunks[0];
    assert!(heap.obey(ToLibrary::Release { chunk }, None));
    assert_eq!(line.take(), [ToDaemon::Released { chunk }]);
    assert!(driver.books().handles.is_empty() && driver.books().mapped.is_empty());
    assert!(heap.obey(ToLibrary::Release { chunk }, None));
    assert_eq!(line.take(), [ToDaemon::Failed { chunk, result: 0 }]);
    assert_eq!(heap.range(address + 7), Some((address, 6 << 20)));
    assert!(heap.obey(ToLibrary::Restore { chunk }, Some(null())));
    assert_eq!(line.take(), [ToDaemon::Restored { chunk }]);
    let mapped = driver.books().mapped[&address];
    assert_eq!((mapped.0, mapped.2), (6 << 20, true));
    assert!(heap.free(address) && !heap.free(address));
    assert_eq!(line.take(), [ToDaemon::Freed { chunk }]);
    assert!(driver.is_empty());
}

#[test]
fn a_large_allocation_is_several_chunks_at_one_address() {
    let (heap, driver, line) = heap();
    let address = heap.alloc((600 << 20) + 1, PROP).unwrap();
    let chunks = announced(&heap, &line);
    assert_eq!(chunks.len(), 3);
    let last = address + (600 << 20);
    assert_eq!(heap.range(last), Some((address, 602 << 20)));
    let all: Vec<(u64, u64)> = {
        let books = driver.books();
        books
            .mapped
            .iter()
            .map(|(at, mapped)| (at - address, mapped.0))
            .collect()
    };
    let mib = |at: u64, bytes: u64| (at << 20, bytes << 20);
    assert_eq!(all, [mib(0, 256), mib(256, 256), mib(512, 90)]);
    let chunk = chunks[1];
    heap.obey(ToLibrary::Release { chunk }, None);
    assert_eq!(driver.books().mapped.len(), 2);
    assert!(heap.free(address) && driver.is_empty());
    // The third of three chunks finds no room: nothing of the allocation is left.
    line.up.store(false, Ordering::Relaxed);
    driver.books().room = Some(2);
    assert_eq!(heap.alloc(600 << 20, PROP), Err(OUT_OF_MEMORY));
    assert!(driver.is_empty());
}

#[test]
fn memory_freed_while_away_is_not_restored() {
    let (heap, driver, line) = heap();
    let address = heap.alloc(2 << 20, PROP).unwrap();
    let chunk = announced(&heap, &line)[0];
    heap.obey(ToLibrary::Release { chunk }, None);
    assert!(heap.free(address));
    let sent = line.take();
    assert_eq!(
        sent,
        [ToDaemon::Released { chunk }, ToDaemon::Freed { chunk }]
    );
    heap.obey(ToLibrary::Restore { chunk }, Some(null()));
    assert_eq!(line.take(), [ToDaemon::Failed { chunk, result: 0 }]);
    assert!(driver.is_empty());
}

#[test]
fn daemon_may_grant_deny_or_supply_an_allocation() {
    let (heap, driver, line) = heap();
    line.up.store(true, Ordering::Relaxed);
    let heap = &heap;
    let answered = |answer: fn(ChunkNumber) -> (ToLibrary, Option<OwnedFd>)| {
        thread::scope(|scope| {
            let allocating = scope.spawn(|| heap.alloc(3 << 20, PROP));
            let chunk = loop {
                if let Some(ToDaemon::Ask { chunk, bytes }) = line.take().first() {
                    assert_eq!(*bytes, 4 << 20);
                    break *chunk;
                }
                thread::yield_now();
            };
            let (message, fd) = answer(chunk);
            assert!(heap.obey(message, fd));
            allocating.join().unwrap()
        })
    };
    let reason = Denial::Limit;
    let denied = answered(|chunk| {
        (
            ToLibrary::Denied {
                chunk,
                reason: Denial::Limit,
            },
            None,
        )
    });
    assert_eq!(denied, Err(OUT_OF_MEMORY), "{reason:?}");
    let granted = answered(|chunk| (ToLibrary::Granted { chunk }, None)).unwrap();
    assert!(matches!(line.take()[..], [ToDaemon::Made { .. }]));
    let restored = answered(|chunk| (ToLibrary::Restore { chunk }, Some(null()))).unwrap();
    assert!(matches!(line.take()[..], [ToDaemon::Restored { .. }]));
    driver.books().room = Some(0);
    let full = answered(|chunk| (ToLibrary::Granted { chunk }, None));
    assert_eq!(full, Err(OUT_OF_MEMORY));
    assert!(matches!(line.take()[..], [ToDaemon::Spared { .. }]));
    line.up.store(false, Ordering::Relaxed);
    assert!(heap.free(granted) && heap.free(restored));
    assert!(driver.is_empty());
}

#[test]
fn allocation_does_not_wait_for_a_lost_daemon() {
    let (heap, _, line) = heap();
    line.up.store(true, Ordering::Relaxed);
    thread::scope(|scope| {
        let allocating = scope.spawn(|| heap.alloc(3 << 20, PROP));
        while !matches!(line.take().first(), Some(ToDaemon::Ask { .. })) {
            thread::yield_now();
        }
        line.up.store(false, Ordering::Relaxed);
        heap.daemon_disconnected();
        assert!(allocating.join().unwrap().is_ok());
    });
}

#[test]
fn chunks_moved_by_an_ended_daemon_are_pinned_and_kept_chunks_are_away() {
    let (heap, driver, line) = heap();
    let moved = heap.alloc(2 << 20, PROP).unwrap();
    let kept = heap.alloc(4 << 20, PROP).unwrap();
    let chunks = announced(&heap, &line);
    for chunk in &chunks {
        heap.obey(ToLibrary::Release { chunk: *chunk }, None);
    }
    heap.obey(ToLibrary::Restore { chunk: chunks[0] }, Some(null()));
    line.up.store(false, Ordering::Relaxed);
    line.take();
    heap.announce(|| line.up.store(true, Ordering::Relaxed));
    let pinned = ToDaemon::Pinned {
        reason: Pin::Orphaned,
        bytes: 2 << 20,
    };
    assert!(line.take().contains(&pinned));
    assert!(heap.free(moved) && heap.free(kept));
    let bytes = 0;
    let none = ToDaemon::Pinned {
        reason: Pin::Orphaned,
        bytes,
    };
    assert_eq!(line.take(), [none], "the daemon knows neither");
    assert!(driver.is_empty());
}

#[test]
fn handles_of_the_programs_own_outlive_a_move() {
    let (heap, driver, line) = heap();
    let prop = Prop {
        handle_types: 0,
        ..PROP
    };
    let handle = heap.create(4 << 20, prop).unwrap();
    assert_eq!(
        heap.create(3 << 20, prop),
        Err(INVALID_VALUE),
        "no whole granules"
    );
    let at = driver.reserve(4 << 20).unwrap();
    heap.map(at, 4 << 20, handle).unwrap();
    let access = [Access::full(Location { kind: 1, id: 0 })];
    assert_eq!(heap.permit(at, 4 << 20, &access), Some(Ok(())));
    let chunk = announced(&heap, &line)[0];
    heap.obey(ToLibrary::Release { chunk }, None);
    assert!(driver.books().mapped.is_empty());
    assert_eq!(
        heap.export(handle).unwrap_err(),
        NOT_SUPPORTED,
        "it is away"
    );
    heap.obey(ToLibrary::Restore { chunk }, Some(null()));
    assert!(driver.books().mapped[&at].2, "with its rights");
    assert_eq!(heap.retain(at + 5), Some(handle));
    assert_eq!(heap.range(at + 5), Some((at, 4 << 20)));
    line.take();
    assert!(heap.export(handle).is_ok());
    let bytes = 4 << 20;
    let reason = Pin::Shared;
    assert_eq!(
        line.take(),
        [ToDaemon::Kept { chunk }, ToDaemon::Pinned { reason, bytes }]
    );
    heap.obey(ToLibrary::Release { chunk }, None);
    assert_eq!(line.take(), [ToDaemon::Failed { chunk, result: 0 }]);
    assert_eq!((heap.let_go(handle), heap.let_go(handle)), (Ok(()), Ok(())));
    assert_eq!(heap.let_go(handle), Err(INVALID_VALUE));
    assert_eq!(heap.unmap(at, 4 << 20), Some(Ok(())));
    assert_eq!(heap.unmap(at, 4 << 20), None);
    driver.unreserve(at, 4 << 20).unwrap();
    assert!(driver.is_empty());
}

#[test]
fn a_context_takes_its_memory_along() {
    let (heap, driver, _) = heap();
    for bytes in [100, 1 << 20, 9 << 20] {
        heap.alloc(bytes, PROP).unwrap();
    }
    heap.context_destroyed();
    assert!(driver.is_empty());
    assert_eq!(heap.range(1 << 40), None);
    assert!(heap.alloc(100, PROP).is_ok());
}

#[derive(Clone, Debug)]
enum Step {
    Alloc(u64),
    Free(prop::sample::Index),
    Release(prop::sample::Index),
    Restore(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let which = || any::<prop::sample::Index>();
    prop_oneof![
        (1_u64..3 << 20).prop_map(Step::Alloc),
        (1_u64..4096).prop_map(Step::Alloc),
        which().prop_map(Step::Free),
        which().prop_map(Step::Release),
        which().prop_map(Step::Restore),
    ]
}

proptest! {
    #[test]
    fn addresses_do_not_change_and_nothing_leaks(steps in prop::collection::vec(step(), 1..120)) {
        let (heap, driver, line) = heap();
        let mut held: BTreeMap<u64, u64> = BTreeMap::new();
        let mut away: BTreeSet<ChunkNumber> = BTreeSet::new();
        let mut there: BTreeSet<ChunkNumber> = BTreeSet::new();
        heap.announce(|| line.up.store(true, Ordering::Relaxed));
        let stop = Arc::new(AtomicUsize::new(0));
        let seen = Mutex::new(Vec::new());
        thread::scope(|scope| {
            // A daemon that grants everything.
            let (seen, granting, ended) = (&seen, &heap, stop.clone());
            let sent = line.clone();
            scope.spawn(move || {
                while ended.load(Ordering::Relaxed) == 0 {
                    let mut seen = seen.lock().unwrap();
                    for message in sent.take() {
                        match message {
                            ToDaemon::Ask { chunk, .. } => {
                                assert!(granting.obey(ToLibrary::Granted { chunk }, None));
                            }
                            other => seen.push(other),
                        }
                    }
                    drop(seen);
                    thread::yield_now();
                }
            });
            let settle = |there: &mut BTreeSet<_>, away: &mut BTreeSet<_>| {
                let all: Vec<ToDaemon> = {
                    let mut seen = seen.lock().unwrap();
                    let mut all = std::mem::take(&mut *seen);
                    all.extend(line.take());
                    all
                };
                for message in all {
                    match message {
                        ToDaemon::Made { chunk, .. } => { there.insert(chunk); }
                        ToDaemon::Released { chunk } => { there.remove(&chunk); away.insert(chunk); }
                        ToDaemon::Restored { chunk } => { away.remove(&chunk); there.insert(chunk); }
                        ToDaemon::Freed { chunk } => { away.remove(&chunk); there.remove(&chunk); }
                        other => panic!("{other:?}"),
                    }
                }
            };
            for step in steps {
                settle(&mut there, &mut away);
                match step {
                    Step::Alloc(bytes) => {
                        let at = heap.alloc(bytes, PROP).unwrap();
                        let before = held.range(..=at).next_back();
                        assert!(before.is_none_or(|(other, bytes)| other + bytes <= at));
                        assert!(held.range(at..).next().is_none_or(|(other, _)| at + bytes <= *other));
                        held.insert(at, bytes);
                    }
                    Step::Free(which) if !held.is_empty() => {
                        let at = *held.keys().nth(which.index(held.len())).unwrap();
                        held.remove(&at);
                        assert!(heap.free(at));
                    }
                    Step::Release(which) if !there.is_empty() => {
                        let chunk = *there.iter().nth(which.index(there.len())).unwrap();
                        heap.obey(ToLibrary::Release { chunk }, None);
                    }
                    Step::Restore(which) if !away.is_empty() => {
                        let chunk = *away.iter().nth(which.index(away.len())).unwrap();
                        heap.obey(ToLibrary::Restore { chunk }, Some(null()));
                    }
                    _ => {}
                }
            }
            stop.store(1, Ordering::Relaxed);
        });
        for (at, bytes) in &held {
            let (base, length) = heap.range(*at).unwrap();
            prop_assert!(base == *at && length >= *bytes);
        }
        line.up.store(false, Ordering::Relaxed);
        for at in held.keys() {
            prop_assert!(heap.free(*at));
        }
        heap.shrink();
        prop_assert!(driver.is_empty(), "{:?}", driver.books());
    }
}

#[test]
fn each_restored_extent_is_reported_before_the_next_is_requested() {
    let (heap, driver, line) = heap();
    line.up.store(true, Ordering::Relaxed);
    let bytes = 2 * EXTENT_BYTES;
    thread::scope(|scope| {
        let allocating = scope.spawn(|| heap.alloc(bytes, PROP));
        let mut sent = Vec::new();
        let mut until = |what: ToDaemon| {
            while !sent.contains(&what) {
                sent.extend(line.take());
                thread::yield_now();
            }
        };
        for chunk in [1, 2] {
            let bytes = EXTENT_BYTES;
            until(ToDaemon::Ask { chunk, bytes });
            assert!(heap.obey(ToLibrary::Restore { chunk }, Some(null())));
            // The daemon waits for this report, and gives nothing more until then.
            until(ToDaemon::Restored { chunk });
        }
        let address = allocating.join().unwrap().unwrap();
        heap.keep_all();
        assert!(heap.free(address));
        until(ToDaemon::Kept { chunk: 2 });
        let (reason, bytes) = (Pin::Ending, 0);
        until(ToDaemon::Pinned { reason, bytes });
        assert!(!sent.contains(&ToDaemon::Freed { chunk: 1 }));
    });
    assert!(driver.is_empty());
}
