//! The table of owners and chunks, with the counts and sums over them. Pure.
//!
//! In: chunks that are entered, taken, put back and removed. Out: what an owner lacks, and the
//! bytes on the card and in all. Called by [`super::Sets`] and its threads, which lock the table.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use turnstile_accounting::TenantId;

use super::grants::Wishes;
use super::{Mapper, Place};
use crate::mover::{Away, Resident};
use turnstile_gpu::{ChunkId, MemoryEvent, MoveError, MoveOrder};

#[derive(Debug)]
pub(super) enum State {
    Here(Resident),
    Away(Away),
    Blank,
    /// To be made by its owner, which then reports it.
    Granted,
    /// Taken by the thread that holds the owner's `turn`.
    Taken,
}

impl State {
    /// Whether it uses room on the card and the owner does not lack it.
    pub(super) const fn is_here(&self) -> bool {
        matches!(self, Self::Here(_) | Self::Granted)
    }
}

#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) place: Place,
    pub(super) state: State,
    /// It uses room on the card, or room is reserved for it.
    pub(super) on_card: bool,
    /// A move of it is ordered.
    pub(super) ordered: bool,
    /// Host copy since it was moved in; kept until the owner runs.
    pub(super) spare: Option<Away>,
}

#[derive(Debug)]
// FIELDS: facts of an owner that change at different times.
pub(super) struct Owner {
    pub(super) mapper: Arc<dyn Mapper>,
    pub(super) turn: Arc<Mutex<()>>,
    pub(super) chunks: BTreeMap<ChunkId, Chunk>,
    pub(super) by_place: BTreeMap<u64, ChunkId>,
    /// Chunks that are not `Here`, or are to move.
    pub(super) absent: usize,
    /// Chunks that have a spare.
    pub(super) spares: usize,
    /// Bytes on the card besides the chunks.
    pub(super) fixed_bytes: u64,
    /// For a program, which submits work without the daemon: the known signs of its demand.
    pub(super) wishes: Option<Wishes>,
    /// It is suspended.
    pub(super) still: bool,
    /// Requests of it that need the GPU: those in service, which keep it from being suspended, and
    /// all.
    pub(super) served: usize,
    pub(super) requests: usize,
}

impl Owner {
    pub(super) fn is_absent(chunk: &Chunk) -> bool {
        chunk.ordered || !chunk.state.is_here()
    }

    /// Changes a chunk, and keeps the counts; chunks change nowhere else.
    pub(super) fn put(&mut self, id: ChunkId, change: impl FnOnce(&mut Chunk)) {
        if let Some(chunk) = self.chunks.get_mut(&id) {
            self.absent -= usize::from(Self::is_absent(chunk));
            self.spares -= usize::from(chunk.spare.is_some());
            change(chunk);
            self.absent += usize::from(Self::is_absent(chunk));
            self.spares += usize::from(chunk.spare.is_some());
        }
    }

    /// Takes the host copies that are not needed, to be dropped without the lock.
    pub(super) fn take_spares(&mut self) -> Vec<Away> {
        if self.spares == 0 {
            return Vec::new();
        }
        self.spares = 0;
        let chunks = self.chunks.values_mut();
        chunks.filter_map(|chunk| chunk.spare.take()).collect()
    }

    pub(super) fn insert(&mut self, id: ChunkId, place: Place, state: State) {
        let chunk = Chunk {
            place,
            on_card: state.is_here(),
            state,
            ordered: false,
            spare: None,
        };
        self.absent += usize::from(Self::is_absent(&chunk));
        self.by_place.insert(place.at, id);
        self.chunks.insert(id, chunk);
    }

    pub(super) fn remove(&mut self, at: u64) -> Option<(ChunkId, Chunk)> {
        let id = self.by_place.remove(&at)?;
        let chunk = self.chunks.remove(&id)?;
        self.absent -= usize::from(Self::is_absent(&chunk));
        self.spares -= usize::from(chunk.spare.is_some());
        Some((id, chunk))
    }
}

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) owners: BTreeMap<TenantId, Owner>,
    pub(super) events: Vec<MemoryEvent>,
    pub(super) next: u64,
    /// Bytes on the card, and bytes allocated in all.
    pub(super) on_card: u64,
    pub(super) promised: u64,
    pub(super) queues: [VecDeque<MoveOrder>; 2],
    pub(super) ended: bool,
}

impl Table {
    pub(super) fn owner(&mut self, tenant: TenantId) -> Result<&mut Owner, MoveError> {
        let none = MoveError::NoSuchTenant(tenant);
        self.owners.get_mut(&tenant).ok_or(none)
    }

    /// Records a chunk for which nothing was reserved before.
    pub(super) fn entered(
        &mut self,
        owner: TenantId,
        first: ChunkId,
        chunk_bytes: u64,
        resident: bool,
    ) {
        self.next = first.0 + 1;
        self.promised += chunk_bytes;
        self.on_card += u64::from(resident) * chunk_bytes;
        self.events.push(MemoryEvent::Allocated {
            owner,
            first,
            count: 1,
            chunk_bytes,
            resident,
        });
    }

    /// Removes a chunk from the sums.
    pub(super) fn forget(&mut self, chunk: &Chunk) {
        self.promised -= chunk.place.bytes;
        if chunk.on_card {
            self.on_card -= chunk.place.bytes;
        }
    }

    /// Puts a taken chunk back. Returns its state if the chunk or its owner is gone, to be dropped
    /// (closed or scrubbed) without the lock.
    pub(super) fn put(&mut self, tenant: TenantId, id: ChunkId, state: State) -> Option<State> {
        let Some(owner) = self.owners.get_mut(&tenant) else {
            return Some(state);
        };
        let (mut left, mut before, mut after) = (Some(state), 0, 0);
        owner.put(id, |chunk| {
            let Some(state) = left.take() else { return };
            before = u64::from(chunk.on_card) * chunk.place.bytes;
            chunk.on_card = state.is_here();
            after = u64::from(chunk.on_card) * chunk.place.bytes;
            chunk.state = state;
        });
        self.on_card = self.on_card - before + after;
        left
    }
}
