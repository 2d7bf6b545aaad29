//! Allocates and frees memory of owners, within what card and host have together.
//!
//! In: places and bytes of an owner. Out: chunks in the table, memory mapped by the owner if the
//! card has room, and events. Called by [`super::Sets`].

use std::sync::{Arc, Mutex};

use turnstile_abi::ErrorCode;
use turnstile_accounting::TenantId;

use super::table::State;
use super::{Mapper, Place, Shared, lock};
use crate::mover::{MoverError, Resident};
use turnstile_gpu::{ChunkId, MemoryEvent, Refusal};

impl Shared {
    pub(super) fn turn(&self, tenant: TenantId) -> Result<Arc<Mutex<()>>, Refusal> {
        let mut table = lock(&self.table);
        let owner = table.owner(tenant);
        let lost = |_| Refusal::from(ErrorCode::DeviceLost);
        Ok(owner.map_err(lost)?.turn.clone())
    }

    /// Bytes that all owners together may allocate.
    pub(super) fn room_bytes(&self) -> u64 {
        // Moves need some free pages in the pool.
        let reserve = 4 * self.extent_bytes;
        self.card_bytes + self.pool_bytes.saturating_sub(reserve)
    }

    /// Reserves room, if there is enough. Returns whether all of it is on the card.
    fn promise(&self, tenant: TenantId, bytes: u64) -> Result<bool, ErrorCode> {
        let room = self.room_bytes();
        let mut table = lock(&self.table);
        if table.promised + bytes > room {
            let owner = tenant;
            table.events.push(MemoryEvent::Refused { owner, bytes });
            return Err(ErrorCode::OutOfGpuMemory);
        }
        table.promised += bytes;
        let here = table.on_card + bytes <= self.card_bytes;
        if here {
            table.on_card += bytes;
        }
        Ok(here)
    }

    pub(super) fn allocate(&self, tenant: TenantId, at: u64, bytes: u64) -> Result<(), Refusal> {
        let turn = self.turn(tenant)?;
        let _turn = lock(&turn);
        let mut here = self.promise(tenant, bytes)?;
        let mut next = at;
        let place = |bytes| {
            let at = next;
            next += bytes;
            Place { at, bytes }
        };
        let parts = crate::mover::parts(bytes, self.extent_bytes);
        let places: Vec<Place> = parts.into_iter().map(place).collect();
        let made: Result<Vec<Resident>, MoverError> = if here {
            let make = |place: &Place| self.copies.create(place.bytes);
            places.iter().map(make).collect()
        } else {
            Ok(Vec::new())
        };
        let unpromise = |here: bool, detail: String| {
            let mut table = lock(&self.table);
            table.promised -= bytes;
            table.on_card -= if here { bytes } else { 0 };
            let code = ErrorCode::HostLimit;
            Refusal { code, detail }
        };
        let made = match made {
            Ok(made) => made,
            Err(MoverError::NoRoom) => {
                // The memory is used elsewhere. These chunks are moved in when there is room.
                lock(&self.table).on_card -= bytes;
                here = false;
                Vec::new()
            }
            Err(error) => return Err(unpromise(here, error.to_string())),
        };
        let shared: std::io::Result<Vec<_>> = if here {
            let with = places.iter().zip(&made);
            with.map(|(place, memory)| Ok((*place, Some(memory.share()?))))
                .collect()
        } else {
            Ok(places.iter().map(|place| (*place, None)).collect())
        };
        let shared = shared.map_err(|error| unpromise(here, error.to_string()))?;
        // Entered before it is mapped, so that an owner restarted meanwhile maps it. No command
        // uses the address yet.
        let mapper = self.enter(tenant, &places, made)?;
        mapper.map(shared).map_err(|detail| {
            self.drop_places(tenant, &places);
            let code = ErrorCode::HostLimit;
            Refusal { code, detail }
        })
    }

    /// Enters the chunks of an allocation, with one event for each run of equal lengths.
    fn enter(
        &self,
        tenant: TenantId,
        places: &[Place],
        made: Vec<Resident>,
    ) -> Result<Arc<dyn Mapper>, Refusal> {
        let mut table = lock(&self.table);
        let resident = !made.is_empty();
        let mut made = made.into_iter();
        let Ok(owner) = table.owner(tenant) else {
            // The owner left meanwhile: none of its chunks had this room.
            let bytes: u64 = places.iter().map(|place| place.bytes).sum();
            table.promised -= bytes;
            table.on_card -= if resident { bytes } else { 0 };
            return Err(ErrorCode::DeviceLost.into());
        };
        let mapper = owner.mapper.clone();
        for same in places.chunk_by(|a, b| a.bytes == b.bytes) {
            let first = table.next;
            let count = same.len() as u64;
            table.next += count;
            if let Ok(owner) = table.owner(tenant) {
                for (id, place) in (first..).map(ChunkId).zip(same) {
                    let state = made.next().map_or(State::Blank, State::Here);
                    owner.insert(id, *place, state);
                }
            }
            table.events.push(MemoryEvent::Allocated {
                owner: tenant,
                first: ChunkId(first),
                count,
                chunk_bytes: same[0].bytes,
                resident,
            });
        }
        Ok(mapper)
    }

    /// Drops memory that no process has mapped.
    pub(super) fn drop_places(&self, tenant: TenantId, places: &[Place]) {
        let mut gone = Vec::new();
        let mut table = lock(&self.table);
        for place in places {
            let Ok(owner) = table.owner(tenant) else {
                break;
            };
            let Some((first, chunk)) = owner.remove(place.at) else {
                continue;
            };
            table.forget(&chunk);
            gone.push(chunk);
            table.events.push(MemoryEvent::Freed {
                owner: tenant,
                first,
                count: 1,
            });
        }
        drop(table);
        // Closes or scrubs it without the lock.
        drop(gone);
    }
}
