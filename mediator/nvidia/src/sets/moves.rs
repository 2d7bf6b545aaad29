//! Carries out orders: one thread for each direction, one move of an owner at a time.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use turnstile_accounting::{Nanos, TenantId};

use super::table::{Chunk, State};
use super::{Mapper, Place, Shared, lock};
use crate::mover::{Away, Back, Kept, MoverError, Resident, Stayed};
use turnstile_gpu::{ChunkId, Direction, MemoryEvent, MoveFailure, MoveOrder, MoveReport};

/// Bytes copied for a chunk and their link time, or the failure.
type Outcome = Result<(u64, Nanos), MoveFailure>;

/// A chunk taken by the thread that holds its owner's `turn`.
struct Taken {
    id: ChunkId,
    place: Place,
    state: State,
    /// Host copy of a chunk on the card.
    spare: Option<Away>,
}

/// A chunk that its owner has to map, with its host copy.
type Given = (ChunkId, Place, Resident, Option<Away>);

impl Shared {
    /// Logs a failed move. Failed moves are repeated, so at most one line per interval is logged.
    fn complain(&self, tenant: TenantId, error: &str) {
        const LOG_INTERVAL: Duration = Duration::from_secs(10);
        let mut logged_at = lock(&self.logged_at);
        if logged_at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            *logged_at = Some(Instant::now());
            log::error!("Memory of {tenant} stays where it is: {error}");
        }
    }

    /// The thread of a direction.
    pub(super) fn work(&self, direction: Direction) {
        let mut table = lock(&self.table);
        loop {
            if table.ended {
                return;
            }
            if let Some(order) = table.queues[direction as usize].pop_front() {
                drop(table);
                self.carry_out(&order);
                table = lock(&self.table);
                continue;
            }
            let waited = self.changed.wait(table);
            table = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn carry_out(&self, order: &MoveOrder) {
        let owner = {
            let mut table = lock(&self.table);
            let owner = table.owner(order.owner);
            owner.map(|owner| (owner.turn.clone(), owner.mapper.clone()))
        };
        let mut outcomes: BTreeMap<ChunkId, Outcome> = BTreeMap::new();
        if let Ok((turn, mapper)) = owner {
            let _turn = lock(&turn);
            match order.direction {
                Direction::Out => self.move_out(order, &*mapper, &mut outcomes),
                Direction::In => self.move_in(order, &*mapper, &mut outcomes),
            }
            self.settle(order);
        }
        let mut table = lock(&self.table);
        for chunk in &order.chunks {
            let outcome = outcomes.get(chunk).copied();
            let outcome = outcome.unwrap_or(Err(MoveFailure::Gone));
            let (copied_bytes, took) = outcome.unwrap_or((0, Nanos::ZERO));
            table.events.push(MemoryEvent::Moved(MoveReport {
                owner: order.owner,
                cause: order.cause,
                direction: order.direction,
                chunk: *chunk,
                copied_bytes,
                took,
                result: outcome.map(|_| ()),
            }));
        }
        drop(table);
        self.changed.notify_all();
    }

    /// After an order: chunks that did not arrive use no room on the card.
    fn settle(&self, order: &MoveOrder) {
        let mut table = lock(&self.table);
        let mut freed = 0;
        if let Ok(owner) = table.owner(order.owner) {
            for id in &order.chunks {
                owner.put(*id, |chunk| {
                    chunk.ordered = false;
                    let here = chunk.state.is_here();
                    freed += u64::from(chunk.on_card && !here) * chunk.place.bytes;
                    chunk.on_card = here;
                });
            }
        }
        table.on_card -= freed;
    }

    /// Takes the chunks of an order. Sets the outcome of those that need no move.
    fn take(&self, order: &MoveOrder, outcomes: &mut BTreeMap<ChunkId, Outcome>) -> Vec<Taken> {
        let mut taken = Vec::new();
        let mut table = lock(&self.table);
        let Ok(owner) = table.owner(order.owner) else {
            return taken;
        };
        for id in &order.chunks {
            owner.put(*id, |chunk| {
                if chunk.state.is_here() == (order.direction == Direction::In) {
                    outcomes.insert(*id, Err(MoveFailure::There));
                    return;
                }
                if matches!(chunk.state, State::Granted) {
                    // Not made yet: nothing to copy. If its owner makes it later, it is `Here`
                    // again.
                    chunk.state = State::Blank;
                    outcomes.insert(*id, Ok((0, Nanos::ZERO)));
                    return;
                }
                taken.push(Taken {
                    id: *id,
                    place: chunk.place,
                    state: std::mem::replace(&mut chunk.state, State::Taken),
                    spare: chunk.spare.take(),
                });
            });
        }
        taken
    }

    fn put(&self, tenant: TenantId, id: ChunkId, state: State) {
        let gone = lock(&self.table).put(tenant, id, state);
        drop(gone);
    }

    fn move_out(
        &self,
        order: &MoveOrder,
        mapper: &dyn Mapper,
        outcomes: &mut BTreeMap<ChunkId, Outcome>,
    ) {
        let tenant = order.owner;
        let taken = self.take(order, outcomes);
        if taken.is_empty() {
            return;
        }
        let places: Vec<Place> = taken.iter().map(|one| one.place).collect();
        let pinned = (self.pin_owner)(tenant, true);
        let unmapped = pinned.clone().and_then(|()| mapper.unmap(&places));
        if let Err(error) = unmapped {
            self.complain(tenant, &error);
            for one in taken {
                self.put(tenant, one.id, one.state);
                outcomes.insert(one.id, Err(MoveFailure::Copy));
            }
            if pinned.is_ok() {
                self.unpin(tenant);
            }
            return;
        }
        let (mut ids, mut memory) = (Vec::new(), Vec::new());
        for one in taken {
            match (one.state, one.spare) {
                // The host has a copy: dropping the memory frees it.
                (State::Here(_), Some(spare)) => {
                    self.put(tenant, one.id, State::Away(spare));
                    outcomes.insert(one.id, Ok((0, Nanos::ZERO)));
                }
                (State::Here(resident), None) => {
                    ids.push((one.id, one.place));
                    memory.push(resident);
                }
                _ => {}
            }
        }
        self.make_pool_room(memory.iter().map(Resident::bytes).sum());
        let mut stayed = Vec::new();
        for ((id, place), moved) in ids.into_iter().zip(self.copies.out(memory)) {
            match moved {
                Ok((away, took)) => {
                    self.put(tenant, id, State::Away(away));
                    outcomes.insert(id, Ok((place.bytes, took)));
                }
                Err(Stayed { memory, error }) => {
                    self.complain(tenant, &error.to_string());
                    let failure = match error {
                        MoverError::PoolFull => {
                            self.drop_spares();
                            MoveFailure::NoRoom
                        }
                        _ => MoveFailure::Copy,
                    };
                    outcomes.insert(id, Err(failure));
                    stayed.push((id, place, memory, None));
                }
            }
        }
        self.give(tenant, mapper, stayed);
        self.went(tenant);
    }

    /// Drops host copies that are not needed if `bytes` would not fit in the pool.
    fn make_pool_room(&self, bytes: u64) {
        let at_host: u64 = {
            let table = lock(&self.table);
            let chunks = table.owners.values().flat_map(|o| o.chunks.values());
            let there = chunks
                .filter(|chunk| chunk.spare.is_some() || matches!(chunk.state, State::Away(_)));
            there.map(|chunk| chunk.place.bytes).sum()
        };
        // Pages may be fragmented: as much free room is left as moves at a time.
        if at_host + bytes + 4 * self.extent_bytes > self.pool_bytes {
            self.drop_spares();
        }
    }

    /// Drops host copies that are not needed: the pool's room is needed for other bytes.
    fn drop_spares(&self) {
        let mut table = lock(&self.table);
        let owners = table.owners.values_mut();
        let spares: Vec<_> = owners.map(|owner| owner.take_spares()).collect();
        drop(table);
        drop(spares);
    }

    /// Whether a program has nothing at the host, nor on its way.
    fn is_last(&self, tenant: TenantId) -> bool {
        let there = |chunk: &Chunk| !matches!(chunk.state, State::Away(_) | State::Taken);
        let mut table = lock(&self.table);
        let owner = table.owner(tenant);
        owner.is_ok_and(|owner| owner.wishes.is_some() && owner.chunks.values().all(there))
    }

    /// Unpins a program that has nothing at the host: the watchdog resumes it if the daemon ends.
    fn unpin(&self, tenant: TenantId) {
        if self.is_last(tenant)
            && let Err(error) = (self.pin_owner)(tenant, false)
        {
            log::error!("{tenant} would stay suspended without the daemon: {error}");
        }
    }

    /// Records that an owner lacks memory now.
    fn went(&self, tenant: TenantId) {
        if let Ok(owner) = lock(&self.table).owner(tenant)
            && owner.absent > 0
            && let Some(wishes) = &mut owner.wishes
        {
            wishes.lacks(Instant::now());
        }
    }

    fn move_in(
        &self,
        order: &MoveOrder,
        mapper: &dyn Mapper,
        outcomes: &mut BTreeMap<ChunkId, Outcome>,
    ) {
        let tenant = order.owner;
        let (mut given, mut ids, mut copies) = (Vec::new(), Vec::new(), Vec::new());
        let failure = |error: &MoverError| match error {
            MoverError::NoRoom => MoveFailure::NoRoom,
            _ => MoveFailure::Copy,
        };
        for Taken {
            id, place, state, ..
        } in self.take(order, outcomes)
        {
            if let State::Away(copy) = state {
                ids.push((id, place));
                copies.push(copy);
                continue;
            }
            match self.copies.create(place.bytes) {
                Ok(memory) => {
                    outcomes.insert(id, Ok((0, Nanos::ZERO)));
                    given.push((id, place, memory, None));
                }
                Err(error) => {
                    self.put(tenant, id, State::Blank);
                    outcomes.insert(id, Err(failure(&error)));
                }
            }
        }
        for ((id, place), moved) in ids.into_iter().zip(self.copies.back(copies)) {
            match moved {
                Ok(Back { memory, copy, took }) => {
                    outcomes.insert(id, Ok((place.bytes, took)));
                    given.push((id, place, memory, Some(copy)));
                }
                Err(Kept { copy, error }) => {
                    self.complain(tenant, &error.to_string());
                    self.put(tenant, id, State::Away(copy));
                    outcomes.insert(id, Err(failure(&error)));
                }
            }
        }
        self.give(tenant, mapper, given);
    }

    /// Gives an owner memory that is on the card. An owner that cannot map it is ended; the memory
    /// stays valid for its successor.
    fn give(&self, tenant: TenantId, mapper: &dyn Mapper, given: Vec<Given>) {
        if given.is_empty() {
            return;
        }
        let shared: std::io::Result<Vec<_>> = given
            .iter()
            .map(|(_, place, memory, _)| Ok((*place, Some(memory.share()?))))
            .collect();
        // Entered before it is mapped, so that an owner restarted meanwhile maps it. The chunks are
        // still ordered, so the owner does not run.
        for (id, _, memory, copy) in given {
            self.put(tenant, id, State::Here(memory));
            if let Ok(owner) = lock(&self.table).owner(tenant) {
                owner.put(id, |chunk| chunk.spare = copy);
            }
        }
        self.unpin(tenant);
        let mapped = shared.map_err(|error| error.to_string());
        if let Err(error) = mapped.and_then(|shared| mapper.map(shared)) {
            log::error!("{tenant} cannot have its memory and is ended: {error}");
            mapper.end(&error);
        }
    }
}
