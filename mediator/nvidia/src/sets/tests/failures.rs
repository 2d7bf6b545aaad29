//! Copies that fail, and owners that do not unmap or map their memory.

use super::*;

#[test]
fn a_copy_that_fails_leaves_memory_where_it_was_and_mapped() {
    let mut bench = Bench::new(4, 64, 1);
    bench.sets.allocate(A, 0, CHUNK_BYTES).unwrap();
    bench.of(A).write(0, 5);
    bench.events();
    let chunks = bench.chunks[&A].clone();
    bench.sets.held(A);
    let failed = [Err(MoveFailure::Copy)];
    assert_eq!(bench.moved(A, Direction::Out, &chunks), failed);
    assert_eq!(bench.of(A).read(0), 5);
    assert!(bench.sets.release(A) && !bench.of(A).ended.load(std::sync::atomic::Ordering::Relaxed));
}

#[test]
fn refused_unmap_keeps_memory_and_refused_map_ends_the_tenant() {
    let mut bench = Bench::new(4, 64, u64::MAX);
    bench.sets.allocate(A, 0, CHUNK_BYTES).unwrap();
    bench.of(A).write(0, 5);
    bench.events();
    let chunks = bench.chunks[&A].clone();
    bench.sets.held(A);
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    bench.of(A).refuses.store(true, relaxed);
    let failed = [Err(MoveFailure::Copy)];
    assert_eq!(bench.moved(A, Direction::Out, &chunks), failed);
    assert!(!bench.of(A).ended.load(relaxed));
    bench.of(A).refuses.store(false, relaxed);
    assert_eq!(bench.moved(A, Direction::Out, &chunks), [Ok(CHUNK_BYTES)]);
    bench.of(A).refuses.store(true, relaxed);
    assert_eq!(bench.moved(A, Direction::In, &chunks), [Ok(CHUNK_BYTES)]);
    assert!(bench.of(A).ended.load(relaxed), "it has no memory");
    // A successor maps it, with its content.
    let (place, handle) = bench.sets.again(A).unwrap().pop().unwrap();
    bench.of(A).refuses.store(false, relaxed);
    bench.of(A).map(vec![(place, handle)]).unwrap();
    assert_eq!(bench.of(A).read(0), 5);
}

#[test]
fn a_program_that_does_not_let_go_of_memory_is_the_watchdogs_again() {
    let copies = FakeCopies {
        free: AtomicU64::new(4 * CHUNK_BYTES),
        fail_every: u64::MAX,
        count: AtomicU64::new(0),
    };
    let pinned = Arc::<Mutex<Vec<bool>>>::default();
    let reported = pinned.clone();
    let pin_owner = Box::new(move |_: TenantId, on: bool| {
        reported.lock().unwrap().push(on);
        Ok(())
    });
    let sets = Sets::new(
        Arc::new(copies),
        pin_owner,
        4 * CHUNK_BYTES,
        64 * CHUNK_BYTES,
    )
    .unwrap();
    let owner = Arc::<FakeOwner>::default();
    owner
        .refuses
        .store(true, std::sync::atomic::Ordering::Relaxed);
    sets.add_program(A, owner);
    let file = memory_file("turnstile-fake", CHUNK_BYTES).unwrap();
    let memory = Resident::adopt(file.into(), CHUNK_BYTES);
    let (at, bytes) = (0, CHUNK_BYTES);
    sets.made(A, Place { at, bytes }, memory);
    sets.held(A);
    let order = MoveOrder {
        owner: A,
        cause: B,
        direction: Direction::Out,
        chunks: vec![ChunkId(0)],
    };
    sets.order(order).unwrap();
    let begin = Instant::now();
    while *pinned.lock().unwrap() != [true, false] {
        assert!(begin.elapsed() < LONG, "{:?}", pinned.lock().unwrap());
        std::thread::yield_now();
    }
}
