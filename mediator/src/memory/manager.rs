//! The manager: takes memory events, decides which tenants are held or may run, and what moves.

mod ending;

use std::collections::{BTreeMap, BTreeSet};

use turnstile_accounting::{Moment, Nanos, TenantId};

use super::entitlement::{Entitlement, EntitlementError, all_fit, shares};
use super::link::LinkRate;
use super::owner::{Bytes, Owner, Run, weighed};
use super::turns::{Candidate, FORGET_AFTER, PAUSE_MIN, Turn, members, order};
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
    /// Most bytes in transfer in one direction.
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
    pub fn check_entitlement(
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
    pub fn unreserved_bytes(&self) -> u64 {
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

    /// Sets the weight by which a tenant's share is computed.
    pub fn set_weight(&mut self, tenant: TenantId, weight: turnstile_policies::Weight) {
        if let Some(owner) = self.owners.get_mut(&tenant) {
            owner.entitlement.weight = weight;
        }
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

    /// Whether something is under way that needs another [`Self::step`] soon.
    pub fn is_busy(&self) -> bool {
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

    /// Bytes of the card that no chunk is on, or on its way from or to.
    fn card_free(&self) -> u64 {
        let taken: u64 = self.owners.values().map(|o| o.bytes().on_card()).sum();
        self.config.card_bytes.saturating_sub(taken)
    }

    fn pool_free(&self) -> u64 {
        let taken: u64 = self.owners.values().map(|o| o.bytes().at_host()).sum();
        self.config.pool_bytes.saturating_sub(taken)
    }

    /// Decides. Call it after each period, and soon again while [`Self::is_busy`].
    pub fn step(&mut self, now: Moment) -> &[Action] {
        self.actions.clear();
        let runners = self.runners(now);
        self.hold_and_release(&runners);
        let next: Vec<TenantId> = self.queue.first().copied().into_iter().collect();
        let mut settled = true;
        for (place, id) in runners.iter().chain(&next).enumerate() {
            let first = place < runners.len();
            if !first && !settled {
                break;
            }
            settled &= self.bring(*id, &runners, first);
        }
        if let Some(turn) = &mut self.turn
            && turn.since.is_none()
            && self
                .owners
                .get(&turn.leader)
                .is_some_and(|owner| owner.run() == Run::Running)
        {
            turn.since = Some(now);
        }
        &self.actions
    }

    /// Tenants that may run, in the order in which their memory is brought to the card.
    fn runners(&mut self, now: Moment) -> Vec<TenantId> {
        if self.ending.is_some() {
            return self.staying();
        }
        let bytes = self.owners.values().map(|o| o.bytes());
        let all: u64 = bytes.map(|bytes| bytes.all() + bytes.fixed).sum();
        let mut wanting: Vec<Candidate> = self
            .owners
            .iter()
            .filter(|(_, owner)| owner.bytes().all() > 0 && self.counts(now, owner))
            .map(|(id, owner)| Candidate {
                tenant: *id,
                clock: owner.clock,
                set_bytes: owner.bytes().all(),
            })
            .collect();
        order(&mut wanting);
        let sets: u64 = wanting.iter().map(|one| one.set_bytes).sum();
        if all <= self.config.card_bytes || sets <= self.room_for(&wanting) {
            self.turn = None;
            self.queue.clear();
            let wanting = wanting.iter().map(|one| one.tenant);
            if all > self.config.card_bytes {
                return wanting.collect();
            }
            let mut runners: Vec<TenantId> = wanting.collect();
            let others = self.owners.keys().filter(|id| !runners.contains(id));
            let others: Vec<TenantId> = others.copied().collect();
            runners.extend(others);
            return runners;
        }
        self.take_turns(now, &mut wanting)
    }

    /// Whether a tenant counts as wanting the engine: see `turns.rs`.
    fn counts(&self, now: Moment, owner: &Owner) -> bool {
        let pause = || {
            let set = owner.bytes().all();
            let cost = self.links[0].time_for(set) + self.links[1].time_for(set);
            cost.max(PAUSE_MIN)
        };
        let here = owner.run() == Run::Running && owner.is_whole();
        owner.wants || here && owner.wanted_at > Moment(0) && now.since(owner.wanted_at) < pause()
    }

    /// Bytes of the card that these can have: the others' reserves stay, and what cannot move.
    fn room_for(&self, these: &[Candidate]) -> u64 {
        let other = |id: &TenantId| !these.iter().any(|one| one.tenant == *id);
        let kept = |owner: &Owner| {
            let bytes = owner.bytes();
            let stays = bytes.pinned + bytes.fixed;
            stays.max(owner.entitlement.min_bytes.min(bytes.on_card()))
        };
        let kept = self.owners.iter().map(|(id, owner)| match other(id) {
            true => kept(owner),
            false => owner.bytes().fixed,
        });
        self.config.card_bytes.saturating_sub(kept.sum())
    }

    fn take_turns(&mut self, now: Moment, wanting: &mut [Candidate]) -> Vec<TenantId> {
        let long_ago = self.turn_at.is_none_or(|at| now.since(at) >= FORGET_AFTER);
        if long_ago {
            // Until now the scheduling policy kept the shares even.
            let clock = self.system_clock();
            self.owners.values_mut().for_each(|o| o.clock = clock);
        }
        self.turn_at = Some(now);
        let under_way = self.turn.as_ref().is_some_and(|turn| {
            let wanted = wanting.iter().any(|one| one.tenant == turn.leader);
            wanted && !turn.is_spent(now)
        });
        if !under_way {
            self.charge_unused(now, wanting);
            let first = wanting[0].tenant;
            if self.turn.as_ref().is_none_or(|turn| turn.leader != first) {
                self.begin_turn(wanting);
            }
        }
        let members = self.members(wanting);
        let waiting = wanting.iter().map(|one| one.tenant);
        self.queue = waiting.filter(|id| !members.contains(id)).collect();
        members
    }

    /// The turn's members, without the last ones if sets have grown and no longer fit.
    fn members(&mut self, wanting: &[Candidate]) -> Vec<TenantId> {
        let leader = self.turn.as_ref().map(|turn| turn.leader);
        let leading = |one: &Candidate| Some(one.tenant) == leader;
        let place = wanting.iter().position(leading).unwrap_or(0);
        let room = self.room_for(&wanting[place..=place]);
        let Some(turn) = &mut self.turn else {
            return Vec::new();
        };
        let set = |id: &TenantId| self.owners.get(id).map_or(0, |o| o.bytes().all());
        while turn.members.len() > 1 && turn.members.iter().map(set).sum::<u64>() > room {
            turn.members.pop();
        }
        turn.members.clone()
    }

    /// Charges the leader for the unused part of its turn and moves its candidate to the new place.
    /// This precedes the choice of the next leader. Otherwise a tenant without charged engine time
    /// would lead for ever.
    fn charge_unused(&mut self, now: Moment, wanting: &mut [Candidate]) {
        let Some(turn) = &mut self.turn else { return };
        let unused = turn.unused(now);
        turn.used += unused;
        if let Some(leader) = self.owners.get_mut(&turn.leader) {
            leader.charge(unused);
            let leading = wanting.iter_mut().filter(|one| one.tenant == turn.leader);
            leading.for_each(|one| one.clock = leader.clock);
        }
        order(wanting);
    }

    fn begin_turn(&mut self, wanting: &[Candidate]) {
        let leader = wanting[0].tenant;
        let bytes = self.owners.get(&leader).map(Owner::bytes);
        let absent = bytes.map_or(0, |bytes| bytes.swapped + bytes.into);
        let go = self.dirty_to_go(leader, absent.saturating_sub(self.card_free()));
        let held_up = self.links[0].time_for(go) + self.links[1].time_for(absent);
        // Share-a-GPU, eq. 1, for the next turn, in the worst case: its whole set is copied in, and
        // as many bytes out.
        let next = wanting.get(1).map_or(Nanos::ZERO, |next| {
            self.links[0].time_for(next.set_bytes) + self.links[1].time_for(next.set_bytes)
        });
        let length = Nanos(held_up.0.saturating_mul(u64::from(self.config.turn_factor)))
            .max(next)
            .max(self.config.turn_min);
        let ahead = self
            .owners
            .get(&leader)
            .map_or(0, |owner| weighed(length, owner.entitlement.weight.get()));
        let room = self.room_for(&wanting[..1]);
        self.turn = Some(Turn {
            leader,
            members: members(wanting, room, ahead),
            since: None,
            length,
            used: Nanos::ZERO,
        });
    }

    /// Estimates how many of `bytes` that others give up are copied: at most all their dirty bytes.
    fn dirty_to_go(&self, leader: TenantId, bytes: u64) -> u64 {
        let others = self.owners.iter().filter(|(id, _)| **id != leader);
        let dirty: u64 = others.map(|(_, owner)| owner.dirty_bytes(bytes)).sum();
        dirty.min(bytes)
    }

    fn hold_and_release(&mut self, runners: &[TenantId]) {
        // While memory of a runner is on its way, tenants that want nothing may be stopped to give
        // theirs.
        let due = runners.iter().chain(self.queue.first());
        let whole = |id: &TenantId| self.owners.get(id).is_none_or(Owner::is_whole);
        let settled = due.into_iter().all(whole);
        for (id, owner) in &mut self.owners {
            if owner.bytes().all() == 0 {
                if owner.release() {
                    self.actions.push(Action::Release(*id));
                }
                continue;
            }
            let runs = runners.contains(id);
            let must_wait = !owner.is_whole() || owner.wants && !runs;
            if must_wait {
                if owner.hold() {
                    self.actions.push(Action::Hold(*id));
                }
            } else if (runs || settled) && owner.release() {
                self.actions.push(Action::Release(*id));
            }
        }
    }

    /// Brings a tenant's set: orders what there is room for, and has room made for the rest. `runs`
    /// is true if the tenant may run now, false if it is the next one. Returns true once the set is
    /// whole.
    fn bring(&mut self, id: TenantId, runners: &[TenantId], runs: bool) -> bool {
        let free = self.card_free();
        let window = self.window_left(Direction::In);
        let Some(owner) = self.owners.get_mut(&id) else {
            return true;
        };
        if owner.is_whole() {
            return true;
        }
        let mut left = free.min(window);
        let mut chunks = Vec::new();
        while let Some((chunk, bytes)) = owner.begin_in(left) {
            left -= bytes;
            chunks.push(chunk);
        }
        let missing = owner.bytes().swapped;
        self.order(id, id, Direction::In, chunks);
        let going: u64 = self.owners.values().map(|o| o.bytes().out).sum();
        let need = missing.saturating_sub(self.card_free() + going);
        self.make_room(id, need, runners, runs);
        false
    }

    fn order(
        &mut self,
        owner: TenantId,
        cause: TenantId,
        direction: Direction,
        chunks: Vec<ChunkId>,
    ) {
        if !chunks.is_empty() {
            self.actions.push(Action::Move(MoveOrder {
                owner,
                cause,
                direction,
                chunks,
            }));
        }
    }

    fn window_left(&self, direction: Direction) -> u64 {
        let bytes = self.owners.values().map(|owner| match direction {
            Direction::Out => owner.bytes().out,
            Direction::In => owner.bytes().into,
        });
        self.config.window_bytes.saturating_sub(bytes.sum())
    }

    /// Moves chunks of other tenants out, up to `need` bytes and as far as permitted.
    fn make_room(&mut self, cause: TenantId, need: u64, runners: &[TenantId], runs: bool) {
        let shares = self.shares();
        let mut need = need;
        let mut left = self.window_left(Direction::Out).min(self.pool_free());
        let mut orders: BTreeMap<TenantId, Vec<ChunkId>> = BTreeMap::new();
        while need > 0 {
            let Some(victim) = self.victim(cause, &shares, runners, runs) else {
                break;
            };
            let Some(owner) = self.owners.get_mut(&victim) else {
                break;
            };
            if owner.run() != Run::Still {
                if owner.hold() {
                    self.actions.push(Action::Hold(victim));
                }
                break;
            }
            let Some((chunk, bytes)) = owner.begin_out(left) else {
                break;
            };
            left -= bytes;
            need = need.saturating_sub(bytes);
            orders.entry(victim).or_default().push(chunk);
        }
        for (victim, chunks) in orders {
            self.order(victim, cause, Direction::Out, chunks);
        }
    }

    fn shares(&self) -> BTreeMap<TenantId, u64> {
        let claims: Vec<_> = self
            .owners
            .values()
            .map(|owner| (owner.entitlement, owner.bytes().all()))
            .collect();
        let shares = shares(self.config.card_bytes, &claims);
        self.owners.keys().copied().zip(shares).collect()
    }

    /// The tenant that loses a chunk for `cause`: see the module. A tenant that is due next takes
    /// only from tenants that are due after it.
    fn victim(
        &self,
        cause: TenantId,
        shares: &BTreeMap<TenantId, u64>,
        runners: &[TenantId],
        runs: bool,
    ) -> Option<TenantId> {
        let turn = |id: &TenantId| self.queue.iter().position(|other| other == id);
        let eligible = self.owners.iter().filter(|(id, owner)| {
            let later = runs || turn(id) > turn(&cause) || turn(id).is_none();
            **id != cause && !runners.contains(id) && later && owner.coldest().is_some()
        });
        eligible
            .min_by_key(|(id, owner)| {
                let share = shares.get(id).copied().unwrap_or(0);
                let over = owner.bytes().resident > share;
                // Tenants that are not in the queue do not want the engine.
                let distance = turn(id).map_or(usize::MAX, |place| place);
                let idle = distance == usize::MAX;
                let furthest = std::cmp::Reverse(if over || idle { distance } else { 0 });
                (!idle, !over, furthest, owner.last_ran, **id)
            })
            .map(|(id, _)| *id)
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
