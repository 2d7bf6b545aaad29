//! Order of the host's calls to a GPU and to VMMs: holds, trapped doorbells, gate answers, new
//! channels, tenants that leave, and memory that is away.

use turnstile_abi::CHUNK_BYTES;
use turnstile_accounting::{Moment, Nanos};
use turnstile_gpu::{ChunkId, MemoryEvent};

use super::recording_gpu::{GATES, MOVABLE};
use super::test_bench::{Bench, PERIOD, done, gate, show, usage};
use super::*;

#[test]
fn held_tenant_has_its_gates_closed_before_the_gpu_suspends_it() {
    let mut bench = Bench::new(GATES);
    let (a, b) = (bench.open("a", 100), bench.open("b", 100));
    bench.busy = vec![a, b];
    let calls = bench.period(&[(a, 9), (b, 1)]);
    let expected = ["gate 1 0 Closed", "any open 1 true", "gpu suspend 1"];
    assert_eq!(show(&calls), expected, "8 ms ahead");
    assert!(bench.anyone_held() && bench.host.polls_held());
    let answered = show(&bench.answer());
    // A write may have passed before the gate was closed.
    assert_eq!(answered, ["any open 1 false", "written 1"]);
    // What may run again is resumed before another tenant is suspended.
    let calls = bench.period(&[(b, 10)]);
    let expected = [
        "gate 1 0 Open",
        "any open 1 true",
        "gate 2 0 Closed",
        "any open 2 true",
        "gpu resume 1 suspend 2",
    ];
    assert_eq!(show(&calls), expected);
    bench.answer();
    bench.busy = vec![a];
    bench.period(&[(a, 10)]);
    let snapshot = bench.host.snapshot();
    let held: Vec<u64> = snapshot.tenants.iter().map(|one| one.held_ns.0).collect();
    assert_eq!(held, [PERIOD.0, PERIOD.0]);
}

#[test]
fn trapped_doorbell_is_read_by_the_gpu_before_the_gate_opens() {
    let mut bench = Bench::new(GATES);
    let a = bench.enter("a", 100);
    bench.channel(a, 0);
    bench.answer();
    assert!(bench.host.begins_idle() && bench.host.is_idle());
    bench.host.kicked(a);
    let expected = [
        "written 1",
        "any open 1 true",
        "gate 1 0 Open",
        "any open 1 true",
        "gpu resume 1",
        "wake",
    ];
    assert_eq!(show(&bench.take()), expected);
    assert!(!bench.host.is_idle());
    // The gate is opening: a second write needs no further move, and wakes no thread.
    bench.host.kicked(a);
    assert_eq!(show(&bench.take()), ["written 1", "any open 1 true"]);
    assert!(
        !bench.host.begins_idle(),
        "an open gate lets writes through"
    );
    bench.answer();
}

#[test]
fn answer_to_an_earlier_move_sends_the_gate_where_it_is_wanted_now() {
    let mut bench = Bench::new(GATES);
    let a = bench.enter("a", 100);
    bench.channel(a, 0);
    let made = bench.take();
    assert_eq!(
        show(&made),
        [
            "create 1",
            "gate 1 0 Watched",
            "any open 1 false",
            "done 1 0"
        ]
    );
    let (_, channel, seq) = made.iter().find_map(gate).unwrap();
    // Opened while the VMM still makes the gate.
    bench.host.kicked(a);
    bench.take();
    bench.host.gate_done(a, channel, seq + 7, 0);
    let ignored = ["any open 1 true", "written 1"];
    assert_eq!(show(&bench.take()), ignored, "of no request");
    bench.host.gate_done(a, channel, seq, 3);
    let expected = ["gate 1 0 Open", "any open 1 true", "written 1"];
    assert_eq!(show(&bench.take()), expected);
    assert_eq!(bench.host.snapshot().tenants[0].doorbells_trapped, 3);
    assert_eq!(bench.host.snapshot().tenants[0].gate_moves, 2);
}

#[test]
fn new_channel_of_a_held_tenant_has_a_closed_gate_before_its_guest_knows_it() {
    let mut bench = Bench::new(GATES);
    let (a, b) = (bench.open("a", 100), bench.open("b", 100));
    bench.busy = vec![a, b];
    bench.period(&[(a, 9), (b, 1)]);
    bench.answer();
    bench.host.begins_idle();
    bench.channel(a, 5);
    let expected = ["gate 1 5 Closed", "any open 1 false", "done 1 5"];
    assert_eq!(show(&bench.take()), expected);
    bench.host.mailbox_served(a, Effect::Closed(5), &done(6));
    assert_eq!(show(&bench.take()), ["closed 1 5", "done 1 6"]);
    bench.host.mailbox_served(a, Effect::None, &done(7));
    assert_eq!(show(&bench.take()), ["done 1 7"]);
    // The accounting thread may sleep for long: the gate of a channel may open.
    let mut bench = Bench::new(GATES);
    let a = bench.enter("a", 100);
    assert!(bench.host.begins_idle());
    bench.take();
    bench.channel(a, 0);
    let expected = ["gate 1 0 Watched", "any open 1 false", "wake", "done 1 0"];
    assert_eq!(show(&bench.take()), expected);
}

#[test]
fn tenant_that_leaves_is_gone_before_its_context_and_its_use_stays() {
    let mut bench = Bench::new(GATES);
    let (a, b) = (bench.open("a", 300), bench.open("b", 100));
    bench.busy = vec![a, b];
    bench.period(&[(a, 5), (b, 3)]);
    bench.answer();
    bench.host.leave(a);
    assert_eq!(show(&bench.take()), ["destroy 1"]);
    assert!(!bench.host.is_empty());
    assert_eq!(bench.host.lock().mediation.weight(a), None);
    let names = |host: &Host| {
        let snapshot = host.snapshot();
        let names = snapshot.tenants.iter().map(|one| one.name.clone());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&bench.host), ["b"]);
    let events = bench.host.journal().after(0, 10).0;
    let last = events.last().unwrap();
    assert_eq!((&*last.kind, &*last.vm), ("vm_left", "a"));
    // Work that ends later is its own, and its account's.
    bench.busy = vec![b];
    let at = bench.gpu.reported().now;
    bench.close(usage(at, [&[(a, 2), (b, 1)], &[(a, 3)], &[]]));
    let charged = |host: &Host| {
        let snapshot = host.snapshot();
        let departed = snapshot.departed[0].compute_ns;
        (departed, snapshot.accounts[0].compute_ns)
    };
    let (seven, eleven) = (Nanos::from_ms(7), Nanos::from_ms(11));
    assert_eq!(charged(&bench.host), (seven, eleven));
    let departed = bench.host.snapshot().departed;
    let shown = (departed[0].weight, departed[0].copy_ns);
    assert_eq!(shown, (300, Nanos::from_ms(3)));
    // After a minute it is settled: the sums are the same.
    bench.gpu.reported().now = Moment(0) + Nanos::from_ms(59_999);
    bench.period(&[(b, 1)]);
    assert_eq!(bench.host.lock().leaving.len(), 1);
    bench.period(&[(b, 1)]);
    assert!(bench.host.lock().leaving.is_empty());
    let thirteen = Nanos::from_ms(13);
    assert_eq!(charged(&bench.host), (seven, thirteen));
    // A name is free at once.
    let again = bench.enter("a", 100);
    assert_eq!(again, TenantId(3));
    bench.host.leave(b);
    bench.host.leave(again);
    assert!(bench.host.is_empty());
}

/// Six chunks of one tenant are on the GPU, five of another one are nowhere yet.
fn crowded() -> (Bench, TenantId, TenantId) {
    let mut bench = Bench::new(MOVABLE);
    let (a, b) = (bench.enter("a", 100), bench.enter("b", 100));
    bench.channel(a, 0);
    bench.channel(b, 0);
    bench.answer();
    bench.host.kicked(a);
    let resumed = show(&bench.answer());
    assert!(resumed.contains(&"gpu resume 1".to_owned()), "{resumed:?}");
    let allocated = |owner, first, count, resident| MemoryEvent::Allocated {
        owner,
        first: ChunkId(first),
        count,
        chunk_bytes: CHUNK_BYTES,
        resident,
    };
    bench.gpu.reported().now = Moment(1_000_000);
    bench.busy = vec![a];
    let events = [allocated(a, 0, 6, true), allocated(b, 100, 5, false)];
    bench.gpu.reported().events.extend(events);
    bench.period(&[(a, 5)]);
    (bench, a, b)
}

/// Memory of both does not fit: while one has it, the other waits for its own, resumed by no gate.
#[test]
fn tenant_is_resumed_only_when_its_memory_is_back_and_the_cause_pays_for_the_copies() {
    let (mut bench, _, b) = crowded();
    // Its doorbell opens its gate, and no way to the engine.
    bench.host.kicked(b);
    let expected = [
        "written 2",
        "any open 2 true",
        "gate 2 0 Open",
        "any open 2 true",
    ];
    assert_eq!(show(&bench.take()), expected);
    bench.answer();
    // The first one has no more work: its chunks make way, and only then the second one runs.
    bench.busy = vec![b];
    let (mut calls, mut was_busy) = (Vec::new(), false);
    for _ in 0..100 {
        calls.extend(bench.period(&[]));
        for _ in 0..4 {
            bench.host.memory_tick();
            was_busy |= bench.host.memory_is_busy();
        }
        calls.extend(bench.answer());
    }
    assert!(was_busy);
    let calls = show(&calls);
    let place = |text: &str| calls.iter().position(|call| call.contains(text));
    let (suspend, out) = (place("suspend 1"), place("move Out"));
    let home = calls.iter().rposition(|call| call.contains("move In"));
    let order = [suspend, out, home, place("resume 2")];
    assert!(order.iter().all(Option::is_some), "{order:?} {calls:?}");
    assert!(order.is_sorted(), "{order:?} {calls:?}");
    let mut moves = calls.iter().filter(|call| call.contains("move"));
    assert!(moves.all(|call| call.ends_with("for 2")));
    bench.gpu.reported().events.push(MemoryEvent::Fixed {
        owner: b,
        bytes: 17,
    });
    bench.host.memory_tick();
    let snapshot = bench.host.snapshot();
    let memory = |index: usize| snapshot.tenants[index].memory.unwrap();
    let out = memory(0).swapped_out_bytes;
    assert!(out >= 3 * CHUNK_BYTES && memory(0).swapped_in_bytes == 0);
    assert_eq!(memory(0).swapped_bytes, out);
    let both = out + memory(1).swapped_in_bytes;
    assert_eq!((memory(0).moved_bytes, memory(1).moved_bytes), (0, both));
    let took = Nanos(both / CHUNK_BYTES * 10_000);
    let moved = (memory(0).moved_ns, memory(1).moved_ns);
    assert_eq!(moved, (Nanos::ZERO, took));
    assert_eq!((memory(0).pinned_bytes, memory(1).pinned_bytes), (0, 17));
}

#[test]
fn tenant_that_waits_for_memory_is_entitled_to_no_time_of_the_engine() {
    let (mut bench, a, b) = crowded();
    bench.busy = vec![a, b];
    bench.period(&[(a, 5)]);
    let entitled = |bench: &Bench| bench.host.snapshot().tenants[1].entitled_ns;
    let before = entitled(&bench);
    for _ in 0..3 {
        bench.period(&[(a, 5)]);
    }
    assert!(!bench.host.lock().memory.as_ref().unwrap().may_run(b));
    assert_eq!(entitled(&bench), before);
}

/// The engine is idle for memory only while it executes nothing and no tenant may run.
#[test]
fn time_in_which_a_command_runs_is_not_idle_for_memory() {
    let (mut bench, a, b) = crowded();
    bench.busy = vec![b];
    let mut idle = [Nanos::ZERO; 2];
    for running in [Some(a), None] {
        bench.gpu.reported().running[0] = running;
        let (begin, mut stopped) = (bench.gpu.reported().now, false);
        while bench.gpu.reported().now.since(begin) < Nanos::from_ms(200) {
            let calls = show(&bench.period(&[]));
            stopped |= calls.iter().any(|call| call.contains("suspend"));
            let now = bench.gpu.reported().now;
            idle[usize::from(running.is_none())] += bench.host.memory_idle(now);
        }
        // The other way round: the first one's memory is away now.
        bench.busy = vec![a];
        assert!(stopped);
    }
    assert_eq!(idle[0], Nanos::ZERO);
    assert!(idle[1] >= PERIOD, "{idle:?}");
}

#[test]
fn reserve_ends_with_its_tenant() {
    let mut bench = Bench::new(MOVABLE);
    let a = bench.enter("a", 100);
    bench
        .host
        .set_settings(
            "a",
            Some(settings::Settings {
                memory: settings::MemoryLimits {
                    min_bytes: 6 * CHUNK_BYTES,
                    max_bytes: Some(6 * CHUNK_BYTES),
                    ..Default::default()
                },
                ..Default::default()
            }),
        )
        .unwrap();
    let room = |host: &Host| host.lock().memory.as_ref().unwrap().unreserved_bytes();
    assert_eq!(room(&bench.host), 2 * CHUNK_BYTES);
    bench.host.leave(a);
    assert_eq!(room(&bench.host), 8 * CHUNK_BYTES);
}
