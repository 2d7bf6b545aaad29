//! Chunks and bytes of programs, as reported by their libraries and granted to them. Pure.

use std::collections::BTreeMap;

use turnstile_accounting::TenantId;
use turnstile_preload_wire::{CHUNKS_MAX, ChunkNumber, Denial, Pin};

/// Number of a connected process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ProcessNumber(pub(super) u64);

/// Where a chunk is, as reported by its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Granted, not made yet.
    Granted,
    /// The process has it.
    Here,
    /// The process has unmapped it.
    Away,
}

#[derive(Clone, Copy, Debug)]
struct Chunk {
    bytes: u64,
    state: State,
}

#[derive(Debug)]
struct Process {
    tenant: TenantId,
    chunks: BTreeMap<ChunkNumber, Chunk>,
    pinned_bytes: [u64; Pin::ALL.len()],
}

#[derive(Debug, Default)]
struct Owner {
    max_bytes: u64,
    chunk_bytes: u64,
    pinned_bytes: u64,
}

impl Owner {
    /// At most its limit: pinned bytes are only reported by its libraries, and beyond the limit
    /// they must not take room from others.
    fn used_bytes(&self) -> u64 {
        let claimed = self.chunk_bytes.saturating_add(self.pinned_bytes);
        claimed.min(self.max_bytes)
    }
}

/// A message that a library never sends; its connection is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Breach {
    /// The chunk exists already.
    #[error("chunk {0} is named a second time")]
    Twice(ChunkNumber),
    /// The chunk is unknown, or not in that state.
    #[error("chunk {0} is none, or not where it is reported to be")]
    NotThere(ChunkNumber),
    /// The size differs from the granted one.
    #[error("chunk {0} is of another size than was requested")]
    Size(ChunkNumber),
    /// The chunk exceeds its tenant's limit and was not granted.
    #[error("chunk {0} is more than its program may have")]
    Beyond(ChunkNumber),
    /// More chunks than the library ever has.
    #[error("a process has {CHUNKS_MAX} chunks at most")]
    TooMany,
    /// The connection is not known any more.
    #[error("its program is no tenant any more")]
    Gone,
}

/// Bytes of a tenant's program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ProgramBytes {
    /// In chunks, wherever they are.
    pub(super) chunks: u64,
    /// Pinned: they cannot move.
    pub(super) pinned: u64,
    /// The limit.
    pub(super) max: u64,
}

/// Chunks and bytes of all programs.
#[derive(Debug)]
pub(super) struct Book {
    /// Bytes that all tenants may have together, on GPU and host.
    room_bytes: u64,
    owners: BTreeMap<TenantId, Owner>,
    processes: BTreeMap<ProcessNumber, Process>,
    next: u64,
    denied: [u64; Denial::ALL.len()],
}

impl Book {
    pub(super) const fn new(room_bytes: u64) -> Self {
        Self {
            room_bytes,
            owners: BTreeMap::new(),
            processes: BTreeMap::new(),
            next: 0,
            denied: [0; Denial::ALL.len()],
        }
    }

    /// Adds a process of a tenant, and sets the tenant's limit.
    pub(super) fn connect(&mut self, tenant: TenantId, max_bytes: u64) -> ProcessNumber {
        let owner = self.owners.entry(tenant).or_default();
        owner.max_bytes = max_bytes.min(self.room_bytes);
        self.next += 1;
        let number = ProcessNumber(self.next);
        let process = Process {
            tenant,
            chunks: BTreeMap::new(),
            pinned_bytes: [0; Pin::ALL.len()],
        };
        self.processes.insert(number, process);
        number
    }

    /// Processes of a tenant.
    pub(super) fn processes(&self, tenant: TenantId) -> Vec<ProcessNumber> {
        let of = self.processes.iter().filter(|(_, p)| p.tenant == tenant);
        of.map(|(number, _)| *number).collect()
    }

    /// Whether a process has a chunk unmapped that it did not get back.
    pub(super) fn lacks(&self, number: ProcessNumber) -> bool {
        let chunks = self.processes.get(&number).into_iter();
        let mut chunks = chunks.flat_map(|process| process.chunks.values());
        chunks.any(|chunk| chunk.state == State::Away)
    }

    /// Removes a process. Returns its chunks, with their bytes.
    pub(super) fn disconnect(&mut self, number: ProcessNumber) -> Vec<(ChunkNumber, u64)> {
        let Some(process) = self.processes.remove(&number) else {
            return Vec::new();
        };
        let chunks: u64 = process.chunks.values().map(|chunk| chunk.bytes).sum();
        let pinned: u64 = process.pinned_bytes.iter().sum();
        let tenant = process.tenant;
        if let Some(owner) = self.owners.get_mut(&tenant) {
            owner.chunk_bytes = owner.chunk_bytes.saturating_sub(chunks);
            owner.pinned_bytes = owner.pinned_bytes.saturating_sub(pinned);
        }
        if self.processes.values().all(|other| other.tenant != tenant) {
            self.owners.remove(&tenant);
        }
        let had = process.chunks.into_iter();
        had.map(|(number, chunk)| (number, chunk.bytes)).collect()
    }

    fn process(&mut self, number: ProcessNumber) -> Result<(&mut Process, &mut Owner), Breach> {
        let process = self.processes.get_mut(&number).ok_or(Breach::Gone)?;
        let owner = self.owners.get_mut(&process.tenant).ok_or(Breach::Gone)?;
        Ok((process, owner))
    }

    fn used_bytes(&self) -> u64 {
        let used = self.owners.values().map(Owner::used_bytes);
        used.fold(0, u64::saturating_add)
    }

    /// Requests a chunk; denied beyond the tenant's limit or the room of all.
    pub(super) fn ask(
        &mut self,
        number: ProcessNumber,
        chunk: ChunkNumber,
        bytes: u64,
    ) -> Result<Result<(), Denial>, Breach> {
        let (room, used) = (self.room_bytes, self.used_bytes());
        let (process, owner) = self.process(number)?;
        if process.chunks.contains_key(&chunk) {
            return Err(Breach::Twice(chunk));
        }
        if process.chunks.len() >= CHUNKS_MAX {
            return Err(Breach::TooMany);
        }
        let denial = if bytes > owner.max_bytes.saturating_sub(owner.used_bytes()) {
            Some(Denial::Limit)
        } else if bytes > room.saturating_sub(used) {
            Some(Denial::Full)
        } else {
            None
        };
        if let Some(denial) = denial {
            self.denied[denial as usize] += 1;
            return Ok(Err(denial));
        }
        let state = State::Granted;
        process.chunks.insert(chunk, Chunk { bytes, state });
        owner.chunk_bytes += bytes;
        Ok(Ok(()))
    }

    /// Denies a granted chunk after all.
    pub(super) fn withdraw(&mut self, number: ProcessNumber, chunk: ChunkNumber, denial: Denial) {
        self.denied[denial as usize] += 1;
        let _ = self.forget(number, chunk);
    }

    /// Records a chunk that was made: granted, or present before the process connected.
    pub(super) fn made(
        &mut self,
        number: ProcessNumber,
        chunk: ChunkNumber,
        bytes: u64,
    ) -> Result<(), Breach> {
        let (process, owner) = self.process(number)?;
        let many = process.chunks.len() >= CHUNKS_MAX;
        match process.chunks.get_mut(&chunk) {
            Some(known) if known.bytes != bytes => return Err(Breach::Size(chunk)),
            Some(known) if known.state != State::Granted => return Err(Breach::Twice(chunk)),
            Some(known) => known.state = State::Here,
            None if many => return Err(Breach::TooMany),
            None if bytes > owner.max_bytes.saturating_sub(owner.chunk_bytes) => {
                return Err(Breach::Beyond(chunk));
            }
            None => {
                let state = State::Here;
                process.chunks.insert(chunk, Chunk { bytes, state });
                owner.chunk_bytes = owner.chunk_bytes.saturating_add(bytes);
            }
        }
        Ok(())
    }

    /// Removes a chunk and returns its bytes.
    pub(super) fn forget(
        &mut self,
        number: ProcessNumber,
        chunk: ChunkNumber,
    ) -> Result<u64, Breach> {
        let (process, owner) = self.process(number)?;
        let known = process.chunks.remove(&chunk);
        let bytes = known.ok_or(Breach::NotThere(chunk))?.bytes;
        owner.chunk_bytes = owner.chunk_bytes.saturating_sub(bytes);
        Ok(bytes)
    }

    /// The process has unmapped a chunk.
    pub(super) fn released(
        &mut self,
        number: ProcessNumber,
        chunk: ChunkNumber,
    ) -> Result<(), Breach> {
        self.turn(number, chunk, State::Away, |state| state == State::Here)
    }

    /// The process has mapped a chunk that it was given.
    pub(super) fn restored(
        &mut self,
        number: ProcessNumber,
        chunk: ChunkNumber,
    ) -> Result<(), Breach> {
        self.turn(number, chunk, State::Here, |state| state != State::Here)
    }

    fn turn(
        &mut self,
        number: ProcessNumber,
        chunk: ChunkNumber,
        to: State,
        from: impl Fn(State) -> bool,
    ) -> Result<(), Breach> {
        let (process, _) = self.process(number)?;
        let known = process.chunks.get_mut(&chunk);
        let known = known.filter(|known| from(known.state));
        known.ok_or(Breach::NotThere(chunk))?.state = to;
        Ok(())
    }

    /// Sets a process's pinned bytes for a reason.
    pub(super) fn pinned(
        &mut self,
        number: ProcessNumber,
        reason: Pin,
        bytes: u64,
    ) -> Result<(), Breach> {
        let (process, owner) = self.process(number)?;
        let before = std::mem::replace(&mut process.pinned_bytes[reason as usize], bytes);
        let sum = owner.pinned_bytes.saturating_sub(before);
        owner.pinned_bytes = sum.saturating_add(bytes);
        Ok(())
    }

    /// Bytes of a tenant, if a process of it is connected.
    pub(super) fn bytes(&self, tenant: TenantId) -> Option<ProgramBytes> {
        self.owners.get(&tenant).map(|owner| ProgramBytes {
            chunks: owner.chunk_bytes,
            pinned: owner.pinned_bytes,
            max: owner.max_bytes,
        })
    }

    /// Bytes of a tenant that count as pinned on the card: at most its limit.
    pub(super) fn fixed_bytes(&self, tenant: TenantId) -> u64 {
        let owner = self.owners.get(&tenant);
        owner.map_or(0, |owner| owner.pinned_bytes.min(owner.max_bytes))
    }

    /// Bytes that the tenant of a process may still request, and its limit.
    pub(super) fn info(&mut self, number: ProcessNumber) -> Result<(u64, u64), Breach> {
        let free = self.room_bytes.saturating_sub(self.used_bytes());
        let (_, owner) = self.process(number)?;
        let left = owner.max_bytes.saturating_sub(owner.used_bytes());
        Ok((left.min(free), owner.max_bytes))
    }

    /// Pinned bytes of all programs, by reason.
    pub(super) fn pinned_bytes(&self) -> [u64; Pin::ALL.len()] {
        let mut sums = [0_u64; Pin::ALL.len()];
        for process in self.processes.values() {
            for (sum, bytes) in sums.iter_mut().zip(process.pinned_bytes) {
                *sum = sum.saturating_add(bytes);
            }
        }
        sums
    }

    /// Number of denied chunks, by reason.
    pub(super) const fn denied(&self) -> [u64; Denial::ALL.len()] {
        self.denied
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);
    const MIB: u64 = 1 << 20;

    #[test]
    fn a_tenant_has_its_limit_and_all_have_the_room() {
        let mut book = Book::new(100 * MIB);
        let (first, second) = (book.connect(A, 60 * MIB), book.connect(A, 60 * MIB));
        let other = book.connect(B, u64::MAX);
        assert_eq!(book.info(other), Ok((100 * MIB, 100 * MIB)));
        assert_eq!(book.ask(first, 1, 40 * MIB), Ok(Ok(())));
        let denied = book.ask(second, 1, 22 * MIB);
        assert_eq!(denied, Ok(Err(Denial::Limit)), "of both processes together");
        assert_eq!(book.ask(second, 1, 20 * MIB), Ok(Ok(())));
        assert_eq!(book.ask(other, 9, 42 * MIB), Ok(Err(Denial::Full)));
        assert_eq!(book.pinned(other, Pin::Array, 30 * MIB), Ok(()));
        assert_eq!(book.info(other), Ok((10 * MIB, 100 * MIB)));
        assert_eq!(book.forget(second, 1), Ok(20 * MIB));
        assert_eq!(book.info(first), Ok((20 * MIB, 60 * MIB)));
        assert_eq!(book.denied(), [1, 1]);
        assert_eq!(book.pinned_bytes()[Pin::Array as usize], 30 * MIB);
        assert_eq!(book.disconnect(first), [(1, 40 * MIB)]);
        assert_eq!(book.bytes(A).unwrap().chunks, 0);
        book.disconnect(second);
        assert_eq!(book.bytes(A), None);
    }

    #[test]
    fn message_that_no_library_sends_is_a_breach() {
        let mut book = Book::new(100 * MIB);
        let process = book.connect(A, 60 * MIB);
        book.ask(process, 1, 4 * MIB).unwrap().unwrap();
        assert_eq!(book.ask(process, 1, 4 * MIB), Err(Breach::Twice(1)));
        assert_eq!(
            book.released(process, 1),
            Err(Breach::NotThere(1)),
            "not made"
        );
        assert_eq!(book.made(process, 1, 2 * MIB), Err(Breach::Size(1)));
        assert_eq!(book.made(process, 1, 4 * MIB), Ok(()));
        assert_eq!(book.made(process, 1, 4 * MIB), Err(Breach::Twice(1)));
        assert_eq!(
            book.restored(process, 1),
            Err(Breach::NotThere(1)),
            "not away"
        );
        assert_eq!(book.released(process, 1), Ok(()));
        assert_eq!(book.released(process, 1), Err(Breach::NotThere(1)));
        assert_eq!(book.restored(process, 1), Ok(()));
        assert_eq!(book.forget(process, 2), Err(Breach::NotThere(2)));
        book.disconnect(process);
        assert_eq!(book.forget(process, 1), Err(Breach::Gone));
    }

    #[test]
    fn a_process_has_no_more_chunks_than_its_library_makes() {
        let mut book = Book::new(u64::MAX);
        let process = book.connect(A, u64::MAX);
        let (chunks, beyond) = (0..CHUNKS_MAX as u64, CHUNKS_MAX as u64);
        chunks.for_each(|chunk| book.ask(process, chunk, 1).unwrap().unwrap());
        assert_eq!(book.ask(process, beyond, 1), Err(Breach::TooMany));
        assert_eq!(book.made(process, beyond, 1), Err(Breach::TooMany));
        assert_eq!(book.made(process, 0, 1), Ok(()), "one that was granted");
    }

    #[test]
    fn library_reports_cannot_exceed_the_limit_of_its_tenant() {
        let mut book = Book::new(100 * MIB);
        let (liar, other) = (book.connect(A, 60 * MIB), book.connect(B, 90 * MIB));
        assert_eq!(book.pinned(liar, Pin::Array, 1 << 42), Ok(()));
        assert_eq!(book.fixed_bytes(A), 60 * MIB);
        assert_eq!(book.info(other), Ok((40 * MIB, 90 * MIB)));
        assert_eq!(book.ask(other, 1, 40 * MIB), Ok(Ok(())));
        assert_eq!(book.ask(liar, 1, MIB), Ok(Err(Denial::Limit)));
        // Made before it connected: accepted up to the limit.
        assert_eq!(book.made(liar, 2, 60 * MIB), Ok(()));
        assert_eq!(book.made(liar, 3, 1), Err(Breach::Beyond(3)));
        let second = book.connect(A, 60 * MIB);
        assert_eq!(book.made(second, 3, 1 << 42), Err(Breach::Beyond(3)));
        assert_eq!(book.bytes(A).unwrap().chunks, 60 * MIB);
        book.disconnect(liar);
        assert_eq!(book.fixed_bytes(A), 0);
    }

    proptest! {
        #[test]
        fn sums_are_those_of_the_chunks(
            steps in prop::collection::vec((0_u8..6, 0_u64..3, 1_u64..6, 1_u64..40), 1..200),
        ) {
            let mut book = Book::new(100);
            let processes = [book.connect(A, 60), book.connect(A, 60), book.connect(B, 90)];
            for (step, which, chunk, bytes) in steps {
                let process = processes[which as usize];
                match step {
                    0 => drop(book.ask(process, chunk, bytes)),
                    1 => drop(book.made(process, chunk, bytes)),
                    2 => drop(book.forget(process, chunk)),
                    3 => drop(book.released(process, chunk)),
                    4 => drop(book.restored(process, chunk)),
                    _ => drop(book.pinned(process, Pin::ALL[chunk as usize], bytes)),
                }
                for tenant in [A, B] {
                    let of = book.processes.values().filter(|p| p.tenant == tenant);
                    let (mut chunks, mut pinned) = (0, 0);
                    for process in of {
                        chunks += process.chunks.values().map(|chunk| chunk.bytes).sum::<u64>();
                        pinned += process.pinned_bytes.iter().sum::<u64>();
                    }
                    let known = book.bytes(tenant).unwrap();
                    prop_assert_eq!((known.chunks, known.pinned), (chunks, pinned));
                }
            }
        }
    }
}
