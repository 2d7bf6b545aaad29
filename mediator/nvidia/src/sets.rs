//! Working sets: the location of each owner's memory, and its moves.
//!
//! ```text
//!            unmapped by its owner, copied, handles closed
//!   Here ----------------------------------------------------> Away ----.
//!    ^                                                                  |
//!    '--- made, filled, mapped by its owner at the same place <--- Blank (not yet written)
//! ```
//!
//! An owner is a tenant with memory mapped, behind [`Mapper`]: a VM's worker, or a program's
//! processes. Programs make memory themselves if the card has room (`grants.rs`). Invariants:
//!
//! - Memory is copied only while no process has it mapped: its owner unmaps first and maps last. An
//!   owner that ran by mistake would fault; no byte could change behind a copy.
//! - An owner does not run while a chunk of it is not `Here`, or is to move ([`Sets::release`]).
//!   Chunks change their state in one function, which counts these.
//! - An owner with memory away or moving is *pinned* ([`PinOwner`]): suspended, and not resumed by
//!   the watchdog either, since it could only fault. A pinned owner ends with the daemon: a VM's
//!   worker, or a program, which its library ends. A program is unpinned just before its last
//!   memory is mapped again. If the daemon ends then, the library ends a process that lacks memory,
//!   and the watchdog resumes the others.
//! - A move that fails leaves the bytes where they were. An owner that cannot map its memory is
//!   ended with a reason.
//! - The host keeps its copy of memory that was moved in until the owner may run. Until then the
//!   memory moves out without a copy.
//! - Freed memory, or that of an owner that is gone, is closed, or scrubbed at the host. An owner
//!   gets only memory that is zero or completely overwritten.
//!
//! Locks, outermost first: an owner's `turn` (held over a move or a change of its memory), the
//! locks of its mapper, the table.

mod allocations;
mod grants;
mod moves;
mod table;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use turnstile_abi::{CHUNK_BYTES, ErrorCode};
use turnstile_accounting::{Nanos, TenantId};

use super::mover::{Away, Back, EXTENT_BYTES_MAX, Kept, MoverError, Resident, Stayed};
use grants::Wishes;
use table::{Owner, State, Table};
use turnstile_gpu::{Direction, MemoryEvent, MoveError, MoveOrder, Refusal};

/// Where an owner has memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// First address, or another number by which the owner knows it.
    pub at: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Maps an owner's memory. `unmap` is called only while the owner is suspended, and must work then;
/// `map` also while it runs.
pub trait Mapper: Send + Sync + Debug {
    /// Unmaps places. When this returns the owner has nothing mapped there, and no handle. An owner
    /// that is gone has neither.
    ///
    /// # Errors
    /// If it may still have either.
    fn unmap(&self, places: &[Place]) -> Result<(), String>;

    /// Maps memory by its handle, which the owner then closes; without a handle, records it as
    /// absent. An owner that is gone and will be restarted maps its memory at the restart.
    ///
    /// # Errors
    /// If it does not.
    fn map(&self, memory: Vec<(Place, Option<OwnedFd>)>) -> Result<(), String>;

    /// Ends the owner for `reason`: it cannot have its memory.
    fn end(&self, reason: &str);
}

/// Copies memory: the mover, or a stand-in for tests.
pub trait Copies: Send + Sync + Debug {
    /// As [`super::mover::Mover::create`].
    ///
    /// # Errors
    /// As there.
    fn create(&self, bytes: u64) -> Result<Resident, MoverError>;
    /// As [`super::mover::Mover::out`].
    fn out(&self, memory: Vec<Resident>) -> Vec<Result<(Away, Nanos), Stayed>>;
    /// As [`super::mover::Mover::back`].
    fn back(&self, copies: Vec<Away>) -> Vec<Result<Back, Kept>>;
}

impl Copies for super::mover::Mover {
    fn create(&self, bytes: u64) -> Result<Resident, MoverError> {
        Self::create(self, bytes)
    }

    fn out(&self, memory: Vec<Resident>) -> Vec<Result<(Away, Nanos), Stayed>> {
        Self::out(self, memory)
    }

    fn back(&self, copies: Vec<Away>) -> Vec<Result<Back, Kept>> {
        Self::back(self, copies)
    }
}

/// Pins a suspended owner (`true`): it stays suspended even if this process ends. Or unpins it
/// (`false`): the watchdog resumes it when this process ends.
pub type PinOwner = Box<dyn Fn(TenantId, bool) -> Result<(), String> + Send + Sync>;

struct Shared {
    copies: Arc<dyn Copies>,
    pin_owner: PinOwner,
    card_bytes: u64,
    pool_bytes: u64,
    extent_bytes: u64,
    table: Mutex<Table>,
    changed: Condvar,
    /// When a failure was last logged.
    logged_at: Mutex<Option<Instant>>,
}

impl Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Updates under these locks are complete, or concern one owner, which a panic leaves suspended.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The memory of all owners. One thread for each direction carries out orders.
#[derive(Debug)]
pub struct Sets {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// A request in service that needs the GPU: its owner is not suspended until this is dropped.
#[derive(Debug)]
pub struct Served<'a> {
    shared: &'a Shared,
    tenant: TenantId,
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        if let Ok(owner) = lock(&self.shared.table).owner(self.tenant) {
            owner.served -= 1;
            owner.requests -= 1;
        }
        self.shared.changed.notify_all();
    }
}

impl Sets {
    /// No owners yet. The card has `card_bytes`, the host takes up to `pool_bytes`.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn new(
        copies: Arc<dyn Copies>,
        pin_owner: PinOwner,
        card_bytes: u64,
        pool_bytes: u64,
    ) -> std::io::Result<Self> {
        // Chunks are small against the pool, so that a few of them do not fill it.
        let extent_bytes =
            (pool_bytes / 16 / CHUNK_BYTES * CHUNK_BYTES).clamp(CHUNK_BYTES, EXTENT_BYTES_MAX);
        let shared = Arc::new(Shared {
            copies,
            pin_owner,
            card_bytes,
            pool_bytes,
            extent_bytes,
            table: Mutex::default(),
            changed: Condvar::new(),
            logged_at: Mutex::default(),
        });
        let thread = |direction| {
            let own = shared.clone();
            let name = format!("gpu-move-{direction:?}").to_lowercase();
            thread::Builder::new()
                .name(name)
                .spawn(move || own.work(direction))
        };
        let threads = vec![thread(Direction::Out)?, thread(Direction::In)?];
        Ok(Self { shared, threads })
    }

    /// Bytes of the longest chunk.
    pub fn extent_bytes(&self) -> u64 {
        self.shared.extent_bytes
    }

    /// Adds an owner, which may run.
    pub fn add(&self, tenant: TenantId, mapper: Arc<dyn Mapper>) {
        self.insert(tenant, mapper, None);
    }

    fn insert(&self, tenant: TenantId, mapper: Arc<dyn Mapper>, wishes: Option<Wishes>) {
        let owner = Owner {
            mapper,
            turn: Arc::default(),
            chunks: BTreeMap::new(),
            by_place: BTreeMap::new(),
            absent: 0,
            spares: 0,
            fixed_bytes: 0,
            wishes,
            still: false,
            served: 0,
            requests: 0,
        };
        lock(&self.shared.table).owners.insert(tenant, owner);
    }

    /// Removes an owner and its memory; what is at the host is scrubbed.
    pub fn remove(&self, tenant: TenantId) {
        let mut table = lock(&self.shared.table);
        let gone = table.owners.remove(&tenant);
        for chunk in gone.iter().flat_map(|owner| owner.chunks.values()) {
            table.forget(chunk);
        }
        table.on_card -= gone.as_ref().map_or(0, |owner| owner.fixed_bytes);
        drop(table);
        self.shared.changed.notify_all();
        // Closing many descriptors takes a while.
        drop(gone);
    }

    /// Whether the tenant's memory is movable.
    pub fn knows(&self, tenant: TenantId) -> bool {
        lock(&self.shared.table).owners.contains_key(&tenant)
    }

    /// Puts zeroed memory at an owner's places from `at` on, or none yet if the card has no room.
    /// Locks the owner's `turn`: waits for a move of its memory.
    ///
    /// # Errors
    /// The refusal for the guest; nothing is allocated then.
    pub fn allocate(&self, tenant: TenantId, at: u64, bytes: u64) -> Result<(), Refusal> {
        self.shared.allocate(tenant, at, bytes)
    }

    /// The places in a range, for [`Sets::free`] once the owner has unmapped them.
    pub fn places(&self, tenant: TenantId, at: u64, bytes: u64) -> Vec<Place> {
        let table = lock(&self.shared.table);
        let owner = table.owners.get(&tenant);
        let within = |owner: &Owner| -> Vec<Place> {
            let ids = owner.by_place.range(at..at.saturating_add(bytes));
            ids.filter_map(|(_, id)| Some(owner.chunks.get(id)?.place))
                .collect()
        };
        owner.map(within).unwrap_or_default()
    }

    /// Frees an owner's memory, wherever it is. `unmap` has the owner unmap it, and may refuse.
    ///
    /// # Errors
    /// That of `unmap`; nothing is freed then.
    pub fn free(
        &self,
        tenant: TenantId,
        at: u64,
        bytes: u64,
        unmap: impl FnOnce(&[Place]) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let turn = self.shared.turn(tenant)?;
        let _turn = lock(&turn);
        let places = self.places(tenant, at, bytes);
        unmap(&places)?;
        self.shared.drop_places(tenant, &places);
        Ok(())
    }

    /// What a restarted owner has to map: handles of memory on the card, `None` for the rest.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn again(&self, tenant: TenantId) -> std::io::Result<Vec<(Place, Option<OwnedFd>)>> {
        let table = lock(&self.shared.table);
        let chunks = table.owners.get(&tenant).into_iter();
        let chunks = chunks.flat_map(|owner| owner.chunks.values());
        chunks
            .map(|chunk| match &chunk.state {
                State::Here(memory) => Ok((chunk.place, Some(memory.share()?))),
                _ => Ok((chunk.place, None)),
            })
            .collect()
    }

    /// The owner was suspended: its memory may move. False if a request of it is in service: the
    /// caller has to resume it until the request is served.
    pub fn held(&self, tenant: TenantId) -> bool {
        match lock(&self.shared.table).owner(tenant) {
            Ok(owner) => {
                owner.still = owner.served == 0;
                owner.still
            }
            Err(_) => true,
        }
    }

    /// The owner runs although it was not released.
    pub fn runs(&self, tenant: TenantId) {
        if let Ok(owner) = lock(&self.shared.table).owner(tenant) {
            owner.still = false;
        }
        self.shared.changed.notify_all();
    }

    /// Whether the owner may be resumed: all of its memory is on the card. None of it then moves
    /// until the owner is held again. An unknown owner may always be resumed.
    pub fn release(&self, tenant: TenantId) -> bool {
        let mut table = lock(&self.shared.table);
        let (whole, spares) = match table.owner(tenant) {
            Ok(owner) if owner.absent > 0 => (false, Vec::new()),
            Ok(owner) => {
                owner.still = false;
                if let Some(wishes) = &mut owner.wishes {
                    wishes.granted(Instant::now());
                }
                (true, owner.take_spares())
            }
            Err(_) => (true, Vec::new()),
        };
        drop(table);
        self.shared.changed.notify_all();
        drop(spares);
        whole
    }

    /// Whether the owner is suspended and has no request in service, so that its memory can move.
    pub fn is_still(&self, tenant: TenantId) -> bool {
        lock(&self.shared.table)
            .owner(tenant)
            .is_ok_and(|owner| owner.still && owner.served == 0)
    }

    /// Whether the owner is fully resident.
    pub fn is_whole(&self, tenant: TenantId) -> bool {
        lock(&self.shared.table)
            .owner(tenant)
            .is_ok_and(|owner| owner.absent == 0)
    }

    /// Whether a request of the owner is in service, during which the owner must not be suspended.
    pub(crate) fn is_served(&self, tenant: TenantId) -> bool {
        lock(&self.shared.table)
            .owner(tenant)
            .is_ok_and(|owner| owner.served > 0)
    }

    /// Whether a request of the owner waits or is in service, or the owner is a program that lacks
    /// memory and may have work.
    pub fn has_request(&self, tenant: TenantId) -> bool {
        lock(&self.shared.table).owner(tenant).is_ok_and(|owner| {
            let lacks = owner.absent > 0;
            let wishes = owner.wishes.as_ref();
            owner.requests > 0 || wishes.is_some_and(|it| it.wants(lacks, Instant::now()))
        })
    }

    /// Starts a request of the owner that needs the GPU: waits until the owner runs fully resident,
    /// and keeps it so until the result is dropped.
    ///
    /// # Errors
    /// If the owner is gone, or does not run within `limit`.
    pub fn serve(&self, tenant: TenantId, limit: Duration) -> Result<Served<'_>, Refusal> {
        let deadline = Instant::now() + limit;
        let lost = |_| Refusal::from(ErrorCode::DeviceLost);
        let mut table = lock(&self.shared.table);
        table.owner(tenant).map_err(lost)?.requests += 1;
        loop {
            let owner = table.owner(tenant).map_err(lost)?;
            if !owner.still && owner.absent == 0 {
                owner.served += 1;
                let shared = &self.shared;
                return Ok(Served { shared, tenant });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                owner.requests -= 1;
                return Err(Refusal {
                    code: ErrorCode::HostLimit,
                    detail: "the VM did not get its memory in time".into(),
                });
            }
            let waited = self.shared.changed.wait_timeout(table, left);
            table = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Queues an order.
    ///
    /// # Errors
    /// If nothing of it will be done.
    pub fn order(&self, order: MoveOrder) -> Result<(), MoveError> {
        let mut table = lock(&self.shared.table);
        let tenant = order.owner;
        let room = self.shared.card_bytes.saturating_sub(table.on_card);
        let owner = table.owner(tenant)?;
        if !owner.still || owner.served > 0 {
            return Err(MoveError::MayRun(tenant));
        }
        let mut coming = 0;
        if order.direction == Direction::In {
            let chunks = order.chunks.iter().filter_map(|id| owner.chunks.get(id));
            coming = chunks
                .filter(|chunk| !chunk.on_card)
                .map(|chunk| chunk.place.bytes)
                .sum();
            if coming > room {
                return Err(MoveError::NoRoom(tenant));
            }
        }
        for id in &order.chunks {
            owner.put(*id, |chunk| {
                chunk.ordered = true;
                chunk.on_card |= order.direction == Direction::In;
            });
        }
        // Reserves this room.
        table.on_card += coming;
        table.queues[order.direction as usize].push_back(order);
        drop(table);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Moves the events to the end of `events`.
    pub fn read_events(&self, events: &mut Vec<MemoryEvent>) {
        events.append(&mut lock(&self.shared.table).events);
    }
}

impl Sets {
    /// Ends all moves and waits.
    pub fn end(&self) {
        let mut table = lock(&self.shared.table);
        table.ended = true;
        let owners = std::mem::take(&mut table.owners);
        drop(table);
        self.shared.changed.notify_all();
        drop(owners);
    }
}

impl Drop for Sets {
    fn drop(&mut self) {
        self.end();
        for thread in self.threads.drain(..) {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
