//! Owners, their memory, and copies, all in memory.

mod failures;
mod given;
mod random_moves;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::*;
use crate::mover::fake;
use turnstile_gpu::{ChunkId, MoveFailure};
use turnstile_host::memory_file::memory_file;

const A: TenantId = TenantId(1);
const B: TenantId = TenantId(2);
const LONG: Duration = Duration::from_secs(20);

/// An owner that records and checks what it has mapped.
#[derive(Debug, Default)]
struct FakeOwner {
    mapped: Mutex<BTreeMap<u64, (Place, File)>>,
    known: Mutex<BTreeSet<u64>>,
    ended: AtomicBool,
    refuses: AtomicBool,
}

impl FakeOwner {
    fn write(&self, at: u64, value: u64) {
        let mapped = self.mapped.lock().unwrap();
        let (from, (_, file)) = mapped.range(..=at).next_back().unwrap();
        file.write_all_at(&value.to_le_bytes(), at - from).unwrap();
    }

    fn read(&self, at: u64) -> u64 {
        let mapped = self.mapped.lock().unwrap();
        let (from, (_, file)) = mapped.range(..=at).next_back().unwrap();
        let mut word = [0; 8];
        file.read_exact_at(&mut word, at - from).unwrap();
        u64::from_le_bytes(word)
    }
}

impl Mapper for FakeOwner {
    fn unmap(&self, places: &[Place]) -> Result<(), String> {
        if self.refuses.load(std::sync::atomic::Ordering::Relaxed) {
            return Err("refused".into());
        }
        let mut mapped = self.mapped.lock().unwrap();
        for place in places {
            let gone = mapped.remove(&place.at);
            assert!(gone.is_some(), "{place:?} was not mapped");
        }
        Ok(())
    }

    fn map(&self, memory: Vec<(Place, Option<OwnedFd>)>) -> Result<(), String> {
        if self.refuses.load(std::sync::atomic::Ordering::Relaxed) {
            return Err("refused".into());
        }
        for (place, handle) in memory {
            self.known.lock().unwrap().insert(place.at);
            if let Some(handle) = handle {
                let mut mapped = self.mapped.lock().unwrap();
                let before = mapped.insert(place.at, (place, File::from(handle)));
                assert!(before.is_none(), "{place:?} was mapped");
            }
        }
        Ok(())
    }

    fn end(&self, _: &str) {
        self.ended.store(true, std::sync::atomic::Ordering::Relaxed);
        self.mapped.lock().unwrap().clear();
    }
}

/// Copies between files, on a card that may have less than announced. Every `fail_every`th copy
/// fails.
#[derive(Debug)]
struct FakeCopies {
    free: AtomicU64,
    fail_every: u64,
    count: AtomicU64,
}

impl FakeCopies {
    fn fails(&self) -> bool {
        let count = self
            .count
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed)
            + 1;
        count.is_multiple_of(self.fail_every)
    }

    fn error() -> MoverError {
        MoverError::Refused("by the test".into())
    }
}

impl Copies for FakeCopies {
    fn create(&self, bytes: u64) -> Result<Resident, MoverError> {
        use std::sync::atomic::Ordering::Relaxed;
        let taken = self
            .free
            .fetch_update(Relaxed, Relaxed, |free| free.checked_sub(bytes));
        taken.map_err(|_| MoverError::NoRoom)?;
        let file = memory_file("turnstile-fake", bytes).unwrap();
        Ok(Resident::adopt(file.into(), bytes))
    }

    fn out(&self, memory: Vec<Resident>) -> Vec<Result<(Away, Nanos), Stayed>> {
        let one = |memory: Resident| {
            if self.fails() {
                let error = Self::error();
                return Err(Stayed { memory, error });
            }
            let bytes = memory.bytes();
            self.free
                .fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
            Ok((fake::away(memory), Nanos(bytes)))
        };
        memory.into_iter().map(one).collect()
    }

    fn back(&self, copies: Vec<Away>) -> Vec<Result<Back, Kept>> {
        let one = |copy: Away| {
            if self.fails() {
                let error = Self::error();
                return Err(Kept { copy, error });
            }
            let bytes = copy.bytes();
            match self.create(bytes) {
                Ok(memory) => {
                    fake::fill(&copy, &memory);
                    let took = Nanos(bytes);
                    Ok(Back { memory, copy, took })
                }
                Err(error) => Err(Kept { copy, error }),
            }
        };
        copies.into_iter().map(one).collect()
    }
}

struct Bench {
    sets: Sets,
    owners: BTreeMap<TenantId, Arc<FakeOwner>>,
    chunks: BTreeMap<TenantId, Vec<ChunkId>>,
    pinned: Arc<Mutex<Vec<TenantId>>>,
}

impl Bench {
    /// A card of `card` chunks and a pool of `pool` chunks.
    fn new(card: u64, pool: u64, fail_every: u64) -> Self {
        let copies = FakeCopies {
            free: AtomicU64::new(card * CHUNK_BYTES),
            fail_every,
            count: AtomicU64::new(0),
        };
        let pinned = Arc::<Mutex<Vec<TenantId>>>::default();
        let reported = pinned.clone();
        let pin_owner = Box::new(move |tenant: TenantId, on: bool| {
            assert!(on, "of VMs nothing is unpinned");
            reported.lock().unwrap().push(tenant);
            Ok(())
        });
        let (card, pool) = (card * CHUNK_BYTES, pool * CHUNK_BYTES);
        let sets = Sets::new(Arc::new(copies), pin_owner, card, pool).unwrap();
        let mut bench = Self {
            sets,
            owners: BTreeMap::new(),
            chunks: BTreeMap::new(),
            pinned,
        };
        for tenant in [A, B] {
            let owner = Arc::<FakeOwner>::default();
            bench.sets.add(tenant, owner.clone());
            bench.owners.insert(tenant, owner);
        }
        bench
    }

    fn of(&self, tenant: TenantId) -> &FakeOwner {
        &self.owners[&tenant]
    }

    /// Reads the events, and records allocated chunks.
    fn events(&mut self) -> Vec<MemoryEvent> {
        let mut events = Vec::new();
        self.sets.read_events(&mut events);
        for event in &events {
            if let MemoryEvent::Allocated {
                owner,
                first,
                count,
                ..
            } = event
            {
                let chunks = self.chunks.entry(*owner).or_default();
                chunks.extend(first.run(*count));
            }
        }
        events
    }

    /// Moves chunks of a tenant and waits for the results.
    fn moved(
        &mut self,
        owner: TenantId,
        direction: Direction,
        chunks: &[ChunkId],
    ) -> Vec<Result<u64, MoveFailure>> {
        let order = MoveOrder {
            owner,
            cause: B,
            direction,
            chunks: chunks.to_vec(),
        };
        self.sets.order(order).unwrap();
        let (mut found, begin) = (Vec::new(), Instant::now());
        while found.len() < chunks.len() {
            assert!(begin.elapsed() < LONG, "nothing came of a move");
            for event in self.events() {
                if let MemoryEvent::Moved(report) = event {
                    assert_eq!((report.cause, report.direction), (B, direction));
                    found.push(report.result.map(|()| report.copied_bytes));
                }
            }
            std::thread::yield_now();
        }
        found
    }
}

fn at(chunk: u64) -> u64 {
    chunk * CHUNK_BYTES
}

#[test]
fn memory_goes_and_comes_back_to_the_same_place() {
    let mut bench = Bench::new(4, 64, u64::MAX);
    bench.sets.allocate(A, 0, 3 * CHUNK_BYTES).unwrap();
    let at = |nth: u64| nth * CHUNK_BYTES;
    // With a pool of 64 chunks, an extent has four.
    bench.of(A).write(at(2) + 8, 7);
    bench.events();
    let chunks = bench.chunks[&A].clone();
    assert_eq!(chunks.len(), 1);
    let order = MoveOrder {
        owner: A,
        cause: A,
        direction: Direction::Out,
        chunks: chunks.clone(),
    };
    assert_eq!(bench.sets.order(order), Err(MoveError::MayRun(A)));
    assert!(bench.sets.held(A));
    let all = vec![Ok(3 * CHUNK_BYTES)];
    assert_eq!(bench.moved(A, Direction::Out, &chunks), all);
    assert_eq!(*bench.pinned.lock().unwrap(), [A]);
    assert!(bench.of(A).mapped.lock().unwrap().is_empty());
    assert!(!bench.sets.release(A), "its memory is away");
    assert!(bench.sets.is_still(A));
    // The room belongs to B meanwhile, and is zero.
    bench.sets.allocate(B, 0, 2 * CHUNK_BYTES).unwrap();
    assert_eq!(bench.of(B).read(8), 0);
    let order = MoveOrder {
        owner: A,
        cause: A,
        direction: Direction::In,
        chunks: chunks.clone(),
    };
    assert_eq!(bench.sets.order(order), Err(MoveError::NoRoom(A)));
    let unmap = |places: &[Place]| bench.of(B).unmap(places).map_err(|_| unreachable!());
    bench.sets.free(B, 0, 2 * CHUNK_BYTES, unmap).unwrap();
    // The stand-in for the card does not see that descriptors are closed.
    bench.sets.shared.copies.out(vec![Resident::adopt(
        memory_file("turnstile-fake", 2 * CHUNK_BYTES)
            .unwrap()
            .into(),
        2 * CHUNK_BYTES,
    )]);
    assert_eq!(bench.moved(A, Direction::In, &chunks), all);
    assert_eq!(bench.of(A).read(at(2) + 8), 7);
    assert!(bench.sets.release(A));
}

#[test]
fn what_came_back_is_not_copied_again_until_its_owner_may_run() {
    let mut bench = Bench::new(4, 64, u64::MAX);
    bench.sets.allocate(A, 0, 3 * CHUNK_BYTES).unwrap();
    bench.of(A).write(8, 7);
    bench.events();
    let chunks = bench.chunks[&A].clone();
    let copied = vec![Ok(3 * CHUNK_BYTES)];
    assert!(bench.sets.held(A));
    assert_eq!(bench.moved(A, Direction::Out, &chunks), copied);
    assert_eq!(bench.moved(A, Direction::In, &chunks), copied);
    // It has not run: the host copy is still valid.
    bench.sets.shared.copies.out(vec![Resident::adopt(
        memory_file("turnstile-fake", 3 * CHUNK_BYTES)
            .unwrap()
            .into(),
        3 * CHUNK_BYTES,
    )]);
    assert_eq!(bench.moved(A, Direction::Out, &chunks), [Ok(0)]);
    assert_eq!(bench.moved(A, Direction::In, &chunks), copied);
    assert_eq!(bench.of(A).read(8), 7);
    assert!(bench.sets.release(A));
    bench.of(A).write(8, 9);
    assert!(bench.sets.held(A));
    assert_eq!(bench.moved(A, Direction::Out, &chunks), copied);
    assert_eq!(bench.moved(A, Direction::In, &chunks), copied);
    assert_eq!(bench.of(A).read(8), 9);
}

#[test]
fn what_finds_no_room_is_blank_and_comes_as_zeros() {
    let mut bench = Bench::new(2, 64, u64::MAX);
    bench.sets.allocate(A, 0, 2 * CHUNK_BYTES).unwrap();
    bench.sets.allocate(B, 0, CHUNK_BYTES).unwrap();
    assert_eq!(bench.of(B).known.lock().unwrap().len(), 1);
    assert!(bench.of(B).mapped.lock().unwrap().is_empty());
    assert!(!bench.sets.release(B));
    let refused = bench.sets.allocate(B, at(8), 48 * CHUNK_BYTES).unwrap_err();
    assert_eq!(refused.code, ErrorCode::OutOfGpuMemory);
    let events = bench.events();
    let reported = MemoryEvent::Refused {
        owner: B,
        bytes: 48 * CHUNK_BYTES,
    };
    assert_eq!(events.last(), Some(&reported));
    let again = bench.sets.again(B).unwrap();
    assert!(again.len() == 1 && again[0].1.is_none());
    assert!(bench.sets.held(A) && bench.sets.held(B));
    let (of_a, of_b) = (bench.chunks[&A].clone(), bench.chunks[&B].clone());
    bench.moved(A, Direction::Out, &of_a);
    assert_eq!(bench.moved(B, Direction::In, &of_b), [Ok(0)]);
    assert_eq!(bench.of(B).read(0), 0);
    assert!(bench.sets.release(B));
    assert!(bench.sets.again(B).unwrap()[0].1.is_some());
}

#[test]
fn a_request_waits_for_the_turn_and_is_not_interrupted() {
    let bench = Bench::new(4, 64, u64::MAX);
    let served = bench.sets.serve(A, LONG).unwrap();
    assert!(bench.sets.is_served(A) && bench.sets.has_request(A));
    assert!(!bench.sets.held(A), "not while it is served");
    assert!(!bench.sets.is_still(A));
    drop(served);
    assert!(bench.sets.held(A) && bench.sets.is_still(A));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| bench.sets.serve(A, LONG).map(drop));
        let begin = Instant::now();
        while !bench.sets.has_request(A) {
            assert!(begin.elapsed() < LONG);
            std::thread::yield_now();
        }
        assert!(!bench.sets.is_served(A));
        assert!(bench.sets.release(A));
        waiting.join().unwrap().unwrap();
    });
    assert!(!bench.sets.has_request(A));
    bench.sets.held(A);
    let late = bench.sets.serve(A, Duration::ZERO).unwrap_err();
    assert_eq!(late.code, ErrorCode::HostLimit);
    bench.sets.remove(A);
    let gone = bench.sets.serve(A, LONG).unwrap_err();
    assert_eq!(gone.code, ErrorCode::DeviceLost);
}
