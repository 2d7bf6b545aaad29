//! Memory that its owner makes itself if the card has room: that of programs. A program's
//! allocation call waits for the answer.
//!
//! Nothing here waits for a move: the thread that reports a program's memory also receives its
//! answers to the daemon's orders to unmap.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use turnstile_accounting::{Nanos, TenantId};

use super::table::{Owner, State, Table};
use super::{Mapper, Place, Sets, lock};
use crate::mover::{MoverError, Resident};
use turnstile_gpu::{ChunkId, Direction, MemoryEvent, MoveReport};

/// Time for which a program that got its memory because of work counts as busy; then the engine
/// shows it. SOURCE: of the former `demand.rs`, STEADY (8 ms) and an arrival (2 ms).
const GRACE: Duration = Duration::from_millis(12);
/// Time after which a program that lacks memory is made resident although it has not reported work:
/// work that it queued earlier is not visible. Doubles each time in a row, up to
/// [`PROBE_INTERVAL_MAX`].
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
const PROBE_INTERVAL_MAX: Duration = Duration::from_secs(640);

/// Whether a program wants the engine, from signs outside the engine. Pure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wishes {
    /// It has reported work since its memory was moved out.
    reported: bool,
    /// Since when it lacks memory.
    lacks_since: Option<Instant>,
    /// Time without a report of work after which it is made resident.
    patience: Duration,
    /// When it was last made resident.
    granted_at: Option<Instant>,
}

impl Wishes {
    const fn new() -> Self {
        Self {
            reported: false,
            lacks_since: None,
            patience: PROBE_INTERVAL,
            granted_at: None,
        }
    }

    pub(super) fn lacks(&mut self, now: Instant) {
        self.lacks_since.get_or_insert(now);
    }

    /// The owner may run with all of its memory.
    pub(super) fn granted(&mut self, now: Instant) {
        let Some(since) = self.lacks_since.take() else {
            return;
        };
        let probed = !self.reported && now.duration_since(since) >= self.patience;
        self.patience = if probed {
            (self.patience * 2).min(PROBE_INTERVAL_MAX)
        } else {
            PROBE_INTERVAL
        };
        self.reported = false;
        self.granted_at = Some(now);
    }

    pub(super) fn wants(&self, lacks: bool, now: Instant) -> bool {
        let since = |at: Option<Instant>| at.map(|at| now.duration_since(at));
        if lacks {
            self.reported || since(self.lacks_since).is_some_and(|long| long >= self.patience)
        } else {
            since(self.granted_at).is_some_and(|long| long < GRACE)
        }
    }
}

impl Sets {
    /// Adds an owner that makes its memory itself, and may run.
    pub(crate) fn add_program(&self, tenant: TenantId, mapper: Arc<dyn Mapper>) {
        self.insert(tenant, mapper, Some(Wishes::new()));
    }

    /// Whether memory for an owner can be made on the card now. `None` as in [`Sets::grant`].
    fn grants(&self, table: &mut Table, tenant: TenantId, bytes: u64) -> Option<bool> {
        if table.promised.saturating_add(bytes) > self.shared.room_bytes() {
            return None;
        }
        let fixed: u64 = table.owners.values().map(|owner| owner.fixed_bytes).sum();
        let own = table.owner(tenant).ok()?.chunks.values();
        let own: u64 = own.map(|chunk| chunk.place.bytes).sum();
        if own + bytes + fixed > self.shared.card_bytes {
            return None;
        }
        Some(table.on_card + bytes <= self.shared.card_bytes)
    }

    /// Requests memory at a place. True if the owner has to make it now ([`Self::made`]); false if
    /// it gets it later by a move. `None` if GPU and host have no room, or the owner's memory would
    /// not fit on the card as a whole: then it could not run any more.
    pub fn grant(&self, tenant: TenantId, place: Place) -> Option<bool> {
        let mut table = lock(&self.shared.table);
        let here = self.grants(&mut table, tenant, place.bytes)?;
        let first = ChunkId(table.next);
        let owner = table.owner(tenant).ok()?;
        let state = if here { State::Granted } else { State::Blank };
        owner.insert(first, place, state);
        if let Some(wishes) = owner.wishes.as_mut().filter(|_| !here) {
            wishes.reported = true;
            wishes.lacks(Instant::now());
        }
        table.entered(tenant, first, place.bytes, here);
        drop(table);
        self.shared.changed.notify_all();
        Some(here)
    }

    /// The same for memory that the mover makes: `send` passes a handle of it to the owner. True if
    /// it did; false if the owner gets the memory later by a move. The memory is entered behind
    /// that, so that no move of it comes before the handle.
    pub(crate) fn give(
        &self,
        tenant: TenantId,
        place: Place,
        send: &mut dyn FnMut(OwnedFd),
    ) -> Option<bool> {
        let mut table = lock(&self.shared.table);
        if !self.grants(&mut table, tenant, place.bytes)? {
            drop(table);
            return self.grant(tenant, place);
        }
        table.on_card += place.bytes;
        drop(table);
        let made = self.shared.copies.create(place.bytes);
        let failed = |error: &MoverError| log::debug!("Memory for {tenant} is not made: {error}");
        let given = made.inspect_err(failed).ok().and_then(|memory| {
            send(memory.share().ok()?);
            self.made(tenant, place, memory);
            Some(true)
        });
        // The room is the memory's now, or free again.
        lock(&self.shared.table).on_card -= place.bytes;
        given
    }

    /// Records memory that an owner has made: granted, or made before the owner was known.
    pub fn made(&self, tenant: TenantId, place: Place, memory: Resident) {
        let mut table = lock(&self.shared.table);
        let first = ChunkId(table.next);
        let Ok(owner) = table.owner(tenant) else {
            return;
        };
        let Some(id) = owner.by_place.get(&place.at).copied() else {
            owner.insert(first, place, State::Here(memory));
            return table.entered(tenant, first, place.bytes, true);
        };
        let late = owner.chunks.get(&id).is_some_and(Owner::is_absent);
        let gone = table.put(tenant, id, State::Here(memory));
        if late {
            // The chunk was not `Here`: this is reported as a move in.
            table.events.push(MemoryEvent::Moved(MoveReport {
                owner: tenant,
                cause: tenant,
                direction: Direction::In,
                chunk: id,
                copied_bytes: 0,
                took: Nanos::ZERO,
                result: Ok(()),
            }));
        }
        drop(table);
        drop(gone);
    }

    /// Drops memory at a place, wherever it is. The owner has unmapped it, or its process is gone.
    pub fn forget(&self, tenant: TenantId, place: Place) {
        self.shared.drop_places(tenant, &[place]);
    }

    /// Sets an owner's bytes on the card that are not in chunks and cannot move.
    pub fn fix(&self, tenant: TenantId, bytes: u64) {
        let mut table = lock(&self.shared.table);
        let Ok(owner) = table.owner(tenant) else {
            return;
        };
        let before = std::mem::replace(&mut owner.fixed_bytes, bytes);
        table.on_card = table.on_card - before + bytes;
        let owner = tenant;
        table.events.push(MemoryEvent::Fixed { owner, bytes });
    }

    /// A program that lacks memory reports work.
    pub fn wants(&self, tenant: TenantId) {
        if let Ok(owner) = lock(&self.shared.table).owner(tenant)
            && let Some(wishes) = &mut owner.wishes
        {
            wishes.reported = true;
            wishes.lacks(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_without_requests_is_polled_at_doubling_intervals() {
        let begin = Instant::now();
        let mut wishes = Wishes::new();
        assert!(!wishes.wants(true, begin) && !wishes.wants(false, begin));
        let mut now = begin;
        for nth in 0..3 {
            wishes.lacks(now);
            let patience = PROBE_INTERVAL * 2_u32.pow(nth);
            assert!(!wishes.wants(true, now + patience - GRACE));
            now += patience;
            assert!(wishes.wants(true, now));
            wishes.granted(now);
            assert!(
                wishes.wants(false, now),
                "it is seen at work, if it has some"
            );
            assert!(!wishes.wants(false, now + GRACE));
        }
        wishes.lacks(now);
        wishes.reported = true;
        assert!(wishes.wants(true, now), "at once");
        wishes.granted(now);
        wishes.lacks(now);
        assert!(wishes.wants(true, now + PROBE_INTERVAL), "as at first");
    }
}
