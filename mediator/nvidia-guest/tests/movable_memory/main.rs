//! Memory of a program moves out and in behind its back: a program at the device process's socket,
//! the stand-in driver, and a daemon that is played by the test.
#![allow(missing_docs)]

mod rig;

use std::mem::ManuallyDrop;
use std::thread;
use std::time::{Duration, Instant};

use turnstile_nvidia_guest::abi::write_u32;
use turnstile_preload_wire::{self as wire, Denial, ToDaemon, ToLibrary};

use rig::{LIMIT, MEMORY, MIB, Rig, accept, file};

fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < LIMIT, "{what}");
        thread::yield_now();
    }
}

#[test]
fn memory_goes_and_comes_back_at_the_same_handle_and_addresses() {
    let rig = Rig::new();
    let (first, second) = (file(4 * MIB), file(4 * MIB));
    let chunk = rig.with_memory(&first);
    assert!(rig.has(&first));
    for memory in [&second, &first, &second] {
        rig.release(chunk);
        assert!(rig.driver.imported(rig.program.client, MEMORY).is_none());
        assert!(
            rig.driver.mappings().is_empty(),
            "no copy while something is mapped"
        );
        rig.restore(chunk, memory);
        assert!(rig.has(memory));
    }
    assert_eq!(rig.program.free(MEMORY), 0);
    assert_eq!(rig.hear(), ToDaemon::Freed { chunk });
}

#[test]
fn calls_wait_while_memory_is_away_and_the_daemon_is_told_once() {
    let rig = Rig::new();
    let memory = file(4 * MIB);
    let chunk = rig.with_memory(&memory);
    rig.release(chunk);
    let calls = rig.driver.calls();
    let meanwhile = || {
        assert_eq!(rig.hear(), ToDaemon::Wants {});
        assert!(!rig.daemon.has_message(Duration::from_millis(50)));
        assert_eq!(rig.driver.calls(), calls, "nothing reaches the driver");
        rig.restore(chunk, &memory);
    };
    let (status, ()) = rig.beside(|program| program.free(MEMORY), meanwhile);
    assert_eq!(status, 0, "its handle is there again");
    assert_eq!(rig.hear(), ToDaemon::Freed { chunk });
}

#[test]
fn memory_that_leaves_before_it_is_imported_is_brought_by_the_daemon() {
    let rig = Rig::new();
    let (first, second) = (file(4 * MIB), file(4 * MIB));
    let other = file(2 * MIB);
    let chunk = rig.with_memory(&first);
    rig.release(chunk);
    let meanwhile = || {
        // The request waits behind the memory that is away.
        assert_eq!(rig.hear(), ToDaemon::Wants {});
        rig.restore(chunk, &first);
        let ToDaemon::Take { chunk: new, .. } = rig.answer() else {
            panic!("no request");
        };
        // Another chunk leaves while the program waits for its memory.
        rig.release(chunk);
        rig.restore(new, &other);
        rig.release(new);
        rig.restore(new, &second);
        rig.restore(chunk, &first);
    };
    let (status, ()) = rig.beside(|program| program.allocate(MEMORY + 1, 2 * MIB), meanwhile);
    assert_eq!(status, 0);
    let client = rig.program.client;
    assert!(rig.driver.imported(client, MEMORY + 1).is_some() && rig.has(&first));
}

#[test]
fn memory_that_is_registered_for_peers_moves_all_the_same() {
    let rig = Rig::new();
    let memory = file(4 * MIB);
    let chunk = rig.with_memory(&memory);
    for (control, bytes) in [(0x503c_0104, 32), (0x503c_0105, 4)] {
        let mut params = vec![0; bytes];
        write_u32(&mut params, 0, MEMORY);
        assert_eq!(rig.program.control(control, params), 0);
    }
    rig.release(chunk);
    rig.restore(chunk, &memory);
    assert!(rig.has(&memory));
}

#[test]
fn memory_that_is_no_whole_granules_moves_too() {
    let rig = Rig::new();
    let (status, ()) = rig.beside(
        |program| program.allocate(MEMORY, 3 * MIB + 4096),
        || {
            let take = rig.hear();
            assert_eq!(
                take,
                ToDaemon::Take {
                    chunk: 1,
                    bytes: 4 * MIB
                }
            );
            rig.restore(1, &file(4 * MIB));
        },
    );
    assert_eq!(status, 0);
}

#[test]
fn refused_memory_is_a_full_gpu_and_leaves_nothing() {
    let rig = Rig::new();
    let objects = rig.driver.count();
    let meanwhile = || {
        let ToDaemon::Take { chunk, .. } = rig.hear() else {
            panic!("no request");
        };
        let reason = Denial::Full;
        assert!(rig.daemon.say(&ToLibrary::Denied { chunk, reason }, None));
    };
    let (status, ()) = rig.beside(|program| program.allocate(MEMORY, 4 * MIB), meanwhile);
    assert_eq!(status, 0x51);
    assert_eq!(rig.driver.count(), objects);
    rig.with_memory(&file(4 * MIB));
}

#[test]
fn memory_that_another_handle_shares_stays() {
    let rig = Rig::new();
    let chunk = rig.with_memory(&file(4 * MIB));
    assert_eq!(rig.program.duplicate(MEMORY + 1, MEMORY), 0);
    assert_eq!(rig.hear(), ToDaemon::Kept { chunk });
    assert!(rig.daemon.say(&ToLibrary::Release { chunk }, None));
    assert_eq!(rig.hear(), ToDaemon::Failed { chunk, result: 0 });
    assert_eq!(rig.driver.mappings().len(), 1);
}

#[test]
fn program_that_ends_while_its_memory_is_away_gives_it_back() {
    let rig = Rig::new();
    let chunk = rig.with_memory(&file(4 * MIB));
    rig.release(chunk);
    rig.program.end();
    assert_eq!(rig.hear(), ToDaemon::Freed { chunk });
    until("its objects are freed", || rig.driver.count() == (0, 0));
}

#[test]
fn next_daemon_is_connected_and_the_memory_of_the_last_one_stays() {
    let mut rig = Rig::new();
    let memory = file(4 * MIB);
    rig.with_memory(&memory);
    rig.daemon.end();
    rig.daemon = ManuallyDrop::new(accept(&rig.launcher));
    assert!(rig.has(&memory));
    assert!(rig.daemon.has_message(LIMIT));
    let pinned = ToDaemon::Pinned {
        reason: wire::Pin::Driver,
        bytes: 4 * MIB,
    };
    assert_eq!(rig.daemon.next().unwrap().unwrap().0, pinned);
    let (status, _) = rig.beside(
        |program| program.allocate(MEMORY + 1, 2 * MIB),
        || rig.give(&file(2 * MIB)),
    );
    assert_eq!(status, 0);
}
