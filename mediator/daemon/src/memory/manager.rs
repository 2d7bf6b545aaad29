//! The manager: takes memory events, decides which tenants are held or may run, and what moves.

mod step;

use std::collections::{BTreeMap, BTreeSet};

use turnstile_accounting::{Moment, Nanos, TenantId};

use super::entitlement::{Entitlement, EntitlementError, all_fit};
use super::link::LinkRate;
use super::owner::{Bytes, Owner, Run};
use super::turns::Turn;
use turnstile_gpu::{ChunkId, Direction, MemoryEvent, MoveFailure, MoveOrder, MoveReport};

/// A card and the host memory behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// Bytes of the card.
    pub card_bytes: u64,
    /// Bytes that the host takes in.
    pub pool_bytes: u64,
    /// Shortest length of a turn.
    pub turn_min: Nanos,
    /// A turn lasts at least this many times as long as its copies keep the engine waiting. Copies
    /// therefore cost at most one part in `turn_factor + 1`.
    pub turn_factor: u32,
    /// Most bytes in transfer in one direction, unless it is one chunk.
    pub window_bytes: u64,
}

impl MemoryConfig {
    /// A card with a pool.
    pub const fn new(card_bytes: u64, pool_bytes: u64) -> Self {
        Self {
            card_bytes,
            pool_bytes,
            turn_min: Nanos::from_ms(10),
            turn_factor: 5,
            window_bytes: 64 << 20,
        }
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Suspend this tenant, and call [`MemoryManager::quiet`] when nothing of it executes any more.
    Hold(TenantId),
    /// As far as memory goes, it may run.
    Release(TenantId),
    /// Have the GPU move these.
    Move(MoveOrder),
}

/// What a tenant has and what was moved of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryTotals {
    /// Where its bytes are now.
    pub bytes: Bytes,
    /// Bytes of it that were copied to the host.
    pub swapped_out_bytes: u64,
    /// Bytes of it that were copied to the card.
    pub swapped_in_bytes: u64,
    /// Bytes that were copied because of it, its own or another's.
    pub caused_bytes: u64,
}

/// The memory of one GPU.
#[derive(Debug)]
pub struct MemoryManager {
    config: MemoryConfig,
    owners: BTreeMap<TenantId, Owner>,
    turn: Option<Turn>,
    /// Time of the latest turn.
    turn_at: Option<Moment>,
    /// Tenants that want a turn and have none, in the order in which they get it.
    queue: Vec<TenantId>,
    links: [LinkRate; 2],
    refused: u64,
    /// Set at the end: tenants that are to have their memory on the card.
    ending: Option<BTreeSet<TenantId>>,
    actions: Vec<Action>,
}

impl MemoryManager {
    /// A card without tenants.
    pub fn new(config: MemoryConfig) -> Self {
        Self {
            config,
            owners: BTreeMap::new(),
            turn: None,
            turn_at: None,
            queue: Vec::new(),
            links: Default::default(),
            refused: 0,
            ending: None,
            actions: Vec::new(),
        }
    }

    /// Adds a tenant, or replaces the entitlement of one that is known.
    ///
    /// # Errors
    /// If the entitlement is invalid, or a tenant's whole set would not fit beside the others'
    /// reserves.
    pub fn add(
        &mut self,
        tenant: TenantId,
        entitlement: Entitlement,
    ) -> Result<(), EntitlementError> {
        self.check_entitlement(tenant, &entitlement)?;
        let clock = self.system_clock();
        let new = || Owner::new(entitlement, clock);
        let owner = self.owners.entry(tenant).or_insert_with(new);
        owner.entitlement = entitlement;
        Ok(())
    }

    /// Whether a tenant could be entitled to this beside all others.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub(crate) fn check_entitlement(
        &self,
        tenant: TenantId,
        entitlement: &Entitlement,
    ) -> Result<(), EntitlementError> {
        entitlement.check()?;
        let others = self.owners.iter().filter(|(id, _)| **id != tenant);
        let all = others
            .map(|(_, owner)| &owner.entitlement)
            .chain([entitlement]);
        all_fit(self.config.card_bytes, all)
    }

    /// Bytes of the card outside all reserves: the largest set that a new tenant without a reserve
    /// can have.
    pub(crate) fn unreserved_bytes(&self) -> u64 {
        let reserves = self.owners.values().map(|o| o.entitlement.min_bytes);
        self.config.card_bytes.saturating_sub(reserves.sum())
    }

    /// Removes a tenant and its memory.
    pub fn remove(&mut self, tenant: TenantId) {
        self.owners.remove(&tenant);
        self.queue.retain(|id| *id != tenant);
        if let Some(turn) = &mut self.turn {
            turn.members.retain(|id| *id != tenant);
        }
        self.turn = self.turn.take().filter(|turn| turn.leader != tenant);
    }

    /// Takes in a memory event.
    pub fn observe(&mut self, now: Moment, event: &MemoryEvent) {
        match *event {
            MemoryEvent::Allocated {
                owner,
                first,
                count,
                chunk_bytes,
                resident,
            } => {
                if let Some(owner) = self.owners.get_mut(&owner) {
                    first
                        .run(count)
                        .for_each(|id| owner.add(now, id, chunk_bytes, resident));
                }
            }
            MemoryEvent::Freed {
                owner,
                first,
                count,
            } => {
                if let Some(owner) = self.owners.get_mut(&owner) {
                    first.run(count).for_each(|id| owner.forget(id));
                }
            }
            MemoryEvent::Moved(report) => self.moved(now, &report),
            MemoryEvent::Fixed { owner, bytes } => {
                if let Some(owner) = self.owners.get_mut(&owner) {
                    owner.fix(bytes);
                }
            }
            MemoryEvent::Refused { .. } => self.refused += 1,
        }
    }

    fn moved(&mut self, now: Moment, report: &MoveReport) {
        let copied = report.copied_bytes;
        self.links[report.direction as usize].observe(copied, report.took);
        if let Some(cause) = self.owners.get_mut(&report.cause) {
            cause.caused_bytes += copied;
        }
        let Some(owner) = self.owners.get_mut(&report.owner) else {
            return;
        };
        match report.direction {
            Direction::Out => owner.swapped_out_bytes += copied,
            Direction::In => owner.swapped_in_bytes += copied,
        }
        let moved = match report.result {
            Ok(()) | Err(MoveFailure::There) => true,
            Err(MoveFailure::NoRoom | MoveFailure::Copy) => false,
            Err(MoveFailure::Gone) => return owner.forget(report.chunk),
        };
        owner.arrived(now, report.chunk, report.direction, moved, copied > 0);
    }

    /// Pins or unpins chunks that are on the card; chunks elsewhere are left as they are.
    pub fn pin(&mut self, tenant: TenantId, first: ChunkId, count: u64, pinned: bool) {
        if let Some(owner) = self.owners.get_mut(&tenant) {
            first.run(count).for_each(|id| {
                owner.pin(id, pinned);
            });
        }
    }

    /// Charges engine time to a tenant.
    pub fn used(&mut self, tenant: TenantId, used: Nanos) {
        if let Some(owner) = self.owners.get_mut(&tenant) {
            owner.charge(used);
        }
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.leader == tenant) {
            turn.used += used;
        }
    }

    /// Sets whether this tenant has something to execute, or would have if it were permitted to
    /// run.
    pub fn wants(&mut self, now: Moment, tenant: TenantId, wants: bool) {
        let system = self.system_clock();
        if let Some(owner) = self.owners.get_mut(&tenant) {
            if wants && !owner.wants {
                owner.clock = owner.clock.max(system);
            }
            owner.wants = wants;
            if wants {
                owner.wanted_at = now;
            }
        }
    }

    /// The smallest clock of the tenants that want the engine; without such, the largest clock of
    /// all.
    fn system_clock(&self) -> u128 {
        let clocks = |wanting: bool| {
            let owners = self.owners.values();
            owners
                .filter(move |owner| owner.wants || !wanting)
                .map(|owner| owner.clock)
        };
        let ahead = || clocks(false).max().unwrap_or(0);
        clocks(true).min().unwrap_or_else(ahead)
    }

    /// Reports that nothing of a stopping tenant executes any more.
    pub fn quiet(&mut self, now: Moment, tenant: TenantId) {
        if let Some(owner) = self.owners.get_mut(&tenant) {
            owner.quiet(now);
        }
    }

    /// Tenants that are to stop and of which a command may still execute.
    pub fn stopping(&self) -> impl Iterator<Item = TenantId> + '_ {
        let stops = |owner: &Owner| owner.run() == Run::Stopping;
        self.owners
            .iter()
            .filter_map(move |(id, owner)| stops(owner).then_some(*id))
    }

    /// Whether a tenant may run, as far as memory goes.
    pub fn may_run(&self, tenant: TenantId) -> bool {
        self.owners
            .get(&tenant)
            .is_none_or(|owner| owner.run() == Run::Running)
    }

    /// Whether a tenant waits for its turn or its memory.
    pub fn waits(&self, tenant: TenantId) -> bool {
        self.owners
            .get(&tenant)
            .is_some_and(|owner| owner.wants && owner.run() != Run::Running)
    }

    /// Whether no tenant executes anything until one is released.
    pub(crate) fn all_still(&self) -> bool {
        self.owners.values().all(|owner| owner.run() == Run::Still)
    }

    /// Whether something is under way that needs another [`Self::step`] soon.
    pub(crate) fn is_busy(&self) -> bool {
        let under_way = |owner: &Owner| {
            owner.run() == Run::Stopping || owner.bytes().out + owner.bytes().into > 0
        };
        self.turn.is_some() || self.owners.values().any(under_way)
    }

    /// What a tenant has.
    pub fn totals(&self, tenant: TenantId) -> MemoryTotals {
        self.owners
            .get(&tenant)
            .map_or_else(MemoryTotals::default, |owner| MemoryTotals {
                bytes: owner.bytes(),
                swapped_out_bytes: owner.swapped_out_bytes,
                swapped_in_bytes: owner.swapped_in_bytes,
                caused_bytes: owner.caused_bytes,
            })
    }

    /// Measured rates of the link, out and in.
    pub const fn links(&self) -> [LinkRate; 2] {
        self.links
    }

    /// Allocations that were refused for want of room on card and host.
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// Ends all turns. As many of these tenants as fit get all of their memory: first those that
    /// have it, then the smallest. The memory of all other tenants makes way.
    pub(crate) fn bring_back(&mut self, whose: impl IntoIterator<Item = TenantId>) {
        self.ending = Some(whose.into_iter().collect());
        self.turn = None;
        self.queue.clear();
    }

    /// After [`Self::bring_back`], has the memory of this newer tenant brought back as well.
    pub(crate) fn bring_back_too(&mut self, tenant: TenantId) {
        if let Some(ending) = &mut self.ending {
            ending.insert(tenant);
        }
    }

    /// Bytes that are still to move for the tenants that fit, and the tenants that do not fit.
    pub(crate) fn still_to_come(&self) -> (u64, Vec<TenantId>) {
        let staying = self.staying();
        let missing = |id: &TenantId| {
            let owner = self.owners.get(id);
            owner.map_or(0, |owner| {
                owner.bytes().swapped + owner.bytes().into + owner.bytes().out
            })
        };
        let all = self.ending.iter().flatten();
        let lost = all.filter(|id| !staying.contains(id) && self.owners.contains_key(id));
        let bytes = staying.iter().map(missing).sum();
        (bytes, lost.copied().collect())
    }

    /// Laws that hold after every step.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let on_card: u64 = self.owners.values().map(|o| o.bytes().on_card()).sum();
        assert!(
            on_card <= self.config.card_bytes,
            "{on_card} bytes on the card"
        );
        for (id, owner) in &self.owners {
            owner.check();
            let moves = owner.bytes().out + owner.bytes().into > 0;
            assert!(
                !moves || owner.run() == Run::Still,
                "{id} runs while it moves"
            );
        }
    }
}
