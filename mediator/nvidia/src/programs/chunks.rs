//! Movable memory of programs: connects the chunks of their libraries with [`crate::sets`].
//!
//! ```text
//!   library -- Ask, Made, Freed --> ProgramMemory --> ProgramChunks (Backing) --> Sets --> mover
//!   library <-- Release, Restore -- ProgramMemory <-- Processes (Mapper) <-------- Sets
//! ```
//!
//! Libraries number their own chunks. Here each chunk of each process has a unique number, which is
//! its place.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use turnstile_accounting::TenantId;
use turnstile_preload_wire::Denial;

use super::{Backing, Grant, ProgramMemory, ProgramPlace, WeakMemory};
use crate::mover::Resident;
use crate::sets::{Mapper, Place, Sets};

/// Maximum number of movable chunks: each takes a descriptor of the daemon, which may have 65,536
/// as packaged.
const CHUNKS_MAX: usize = 48 << 10;
/// The same for one tenant, so that others can have some.
const TENANT_CHUNKS_MAX: usize = CHUNKS_MAX / 2;

#[derive(Debug, Default)]
struct Numbers {
    last: u64,
    /// Number of chunks of each tenant.
    counts: BTreeMap<TenantId, usize>,
    by_chunk: BTreeMap<ProgramPlace, u64>,
    by_number: BTreeMap<u64, ProgramPlace>,
}

impl Numbers {
    /// The place of a chunk, numbered if it is new. `None` if a new one would exceed a limit.
    fn number(&mut self, tenant: TenantId, chunk: ProgramPlace) -> Option<Place> {
        let bytes = chunk.bytes;
        if let Some(at) = self.by_chunk.get(&chunk).copied() {
            return Some(Place { at, bytes });
        }
        let count = self.counts.get(&tenant).copied().unwrap_or_default();
        if count >= TENANT_CHUNKS_MAX || self.by_chunk.len() >= CHUNKS_MAX {
            return None;
        }
        self.counts.insert(tenant, count + 1);
        self.last += 1;
        let at = self.last;
        self.by_chunk.insert(chunk, at);
        self.by_number.insert(at, chunk);
        Some(Place { at, bytes })
    }

    fn forget(&mut self, tenant: TenantId, chunk: ProgramPlace) -> Option<Place> {
        let at = self.by_chunk.remove(&chunk)?;
        self.by_number.remove(&at);
        if let Some(count) = self.counts.get_mut(&tenant) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&tenant);
            }
        }
        let bytes = chunk.bytes;
        Some(Place { at, bytes })
    }
}

#[derive(Debug, Default)]
struct Shared {
    sets: OnceLock<Arc<Sets>>,
    numbers: Mutex<Numbers>,
}

impl Shared {
    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        // Updates under this lock are complete.
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memory of all programs of a GPU. It stays on the card until [`ProgramChunks::move_by`].
#[derive(Clone, Debug, Default)]
pub struct ProgramChunks(Arc<Shared>);

impl ProgramChunks {
    /// Makes memory movable. Called once, before there are programs.
    pub fn move_by(&self, sets: Arc<Sets>) {
        // Fails only if it is called twice.
        let _ = self.0.sets.set(sets);
    }

    /// Adds a program as a tenant; `memory` has the connections of its processes.
    pub fn add(&self, tenant: TenantId, memory: &ProgramMemory) {
        let Some(sets) = self.0.sets.get() else {
            return;
        };
        let processes = Processes {
            tenant,
            memory: WeakMemory(Arc::downgrade(&memory.0)),
            chunks: self.0.clone(),
        };
        sets.add_program(tenant, Arc::new(processes));
    }
}

impl Backing for ProgramChunks {
    fn allocate(&self, tenant: TenantId, chunk: ProgramPlace) -> Result<Grant, Denial> {
        let Some(sets) = self.0.sets.get() else {
            return Ok(Grant::Make);
        };
        let place = self.0.numbers().number(tenant, chunk);
        let place = place.ok_or(Denial::Full)?;
        match sets.grant(tenant, place) {
            Some(true) => Ok(Grant::Make),
            Some(false) => Ok(Grant::Given),
            None => {
                self.0.numbers().forget(tenant, chunk);
                Err(Denial::Full)
            }
        }
    }

    fn give(
        &self,
        tenant: TenantId,
        chunk: ProgramPlace,
        send: &mut dyn FnMut(OwnedFd),
    ) -> Result<(), Denial> {
        let sets = self.0.sets.get().ok_or(Denial::Full)?;
        let place = self.0.numbers().number(tenant, chunk);
        let given = sets.give(tenant, place.ok_or(Denial::Full)?, send);
        given.map(drop).ok_or_else(|| {
            self.0.numbers().forget(tenant, chunk);
            Denial::Full
        })
    }

    fn made(&self, tenant: TenantId, chunk: ProgramPlace, handle: OwnedFd) {
        // Without sets the handle is closed: it would keep the memory.
        if let Some(sets) = self.0.sets.get() {
            // Beyond the limits the chunk stays where it is, and its handle is closed.
            let place = self.0.numbers().number(tenant, chunk);
            if let Some(place) = place {
                sets.made(tenant, place, Resident::adopt(handle, chunk.bytes));
            }
        }
    }

    fn freed(&self, tenant: TenantId, chunk: ProgramPlace) {
        let place = self.0.numbers().forget(tenant, chunk);
        if let (Some(sets), Some(place)) = (self.0.sets.get(), place) {
            sets.forget(tenant, place);
        }
    }

    fn pinned(&self, tenant: TenantId, bytes: u64) {
        if let Some(sets) = self.0.sets.get() {
            sets.fix(tenant, bytes);
        }
    }

    fn wants(&self, tenant: TenantId) {
        if let Some(sets) = self.0.sets.get() {
            sets.wants(tenant);
        }
    }
}

/// The processes of a program, which map its memory.
#[derive(Debug)]
struct Processes {
    tenant: TenantId,
    memory: WeakMemory,
    chunks: Arc<Shared>,
}

impl Processes {
    fn memory(&self) -> Result<ProgramMemory, String> {
        let memory = self.memory.0.upgrade();
        memory
            .map(ProgramMemory)
            .ok_or("no library is connected".into())
    }
}

impl Mapper for Processes {
    fn unmap(&self, places: &[Place]) -> Result<(), String> {
        let chunks: Vec<ProgramPlace> = {
            let numbers = self.chunks.numbers();
            let chunk = |place: &Place| numbers.by_number.get(&place.at).copied();
            // Chunks freed meanwhile need no unmapping.
            places.iter().filter_map(chunk).collect()
        };
        self.memory()?.unmap(self.tenant, &chunks)
    }

    fn map(&self, memory: Vec<(Place, Option<OwnedFd>)>) -> Result<(), String> {
        let given: Vec<(ProgramPlace, OwnedFd)> = {
            let numbers = self.chunks.numbers();
            let chunk = |(place, handle): (Place, Option<OwnedFd>)| {
                Some((*numbers.by_number.get(&place.at)?, handle?))
            };
            memory.into_iter().filter_map(chunk).collect()
        };
        self.memory()?.map(self.tenant, given)
    }

    fn end(&self, _: &str) {
        if let Ok(memory) = self.memory() {
            memory.end(self.tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::book::ProcessNumber;
    use super::*;

    #[test]
    fn one_tenant_has_half_of_the_descriptors() {
        let [a, b, c] = [1, 2, 3].map(TenantId);
        let mut numbers = Numbers::default();
        let chunk = |process, chunk: usize| ProgramPlace {
            process: ProcessNumber(process),
            chunk: chunk as u64,
            bytes: 1,
        };
        for number in 0..TENANT_CHUNKS_MAX {
            assert!(
                numbers
                    .number(a, chunk(number as u64 % 4, number))
                    .is_some()
            );
        }
        assert_eq!(numbers.number(a, chunk(5, 0)), None);
        let known = numbers.number(a, chunk(1, 1)).unwrap();
        for number in 0..TENANT_CHUNKS_MAX {
            assert!(numbers.number(b, chunk(9, number)).is_some());
        }
        assert_eq!(numbers.number(c, chunk(10, 0)), None);
        assert_eq!(numbers.forget(a, chunk(1, 1)), Some(known));
        assert_eq!(numbers.forget(a, chunk(1, 1)), None);
        assert!(numbers.number(a, chunk(5, 0)).is_some());
        assert_eq!(numbers.number(a, chunk(1, 1)), None);
    }
}
