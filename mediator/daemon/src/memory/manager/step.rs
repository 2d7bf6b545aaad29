//! A step of the manager: decides which tenants are held or may run, and what moves.
//!
//! In go the time and what the manager knows of its tenants; out go actions. The keeper calls
//! [`MemoryManager::step`] after each period, and more often while something moves.

use std::collections::BTreeMap;

use turnstile_accounting::{Moment, Nanos, TenantId};
use turnstile_gpu::{ChunkId, Direction, MoveOrder};

use super::{Action, MemoryManager};
use crate::memory::entitlement::shares;
use crate::memory::owner::{Owner, Run, weighed};
use crate::memory::turns::{Candidate, FORGET_AFTER, PAUSE_MIN, Turn, members, order};

/// What may begin to move in a direction.
struct Window {
    left: u64,
    /// Nothing moves: one chunk may, however long it is. A program's memory may be one chunk.
    is_idle: bool,
}

impl Window {
    const fn most(&self) -> u64 {
        if self.is_idle { u64::MAX } else { self.left }
    }

    const fn take(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
        self.is_idle = false;
    }
}

impl MemoryManager {
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

    /// The tenants that fit, in the order in which they are brought.
    pub(super) fn staying(&self) -> Vec<TenantId> {
        let of = |id: &TenantId| Some((*id, self.owners.get(id)?));
        let mut all: Vec<(TenantId, &Owner)> =
            self.ending.iter().flatten().filter_map(of).collect();
        all.sort_by_key(|(id, owner)| (!owner.is_whole(), owner.bytes().all(), *id));
        let mut staying: Vec<Candidate> = Vec::new();
        for (tenant, owner) in all {
            staying.push(Candidate {
                tenant,
                clock: owner.clock,
                set_bytes: owner.bytes().all(),
            });
            let sets: u64 = staying.iter().map(|one| one.set_bytes).sum();
            if sets > self.room_for(&staying) {
                staying.pop();
            }
        }
        staying.into_iter().map(|one| one.tenant).collect()
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
        let mut free = self.card_free();
        let mut window = self.window(Direction::In);
        let Some(owner) = self.owners.get_mut(&id) else {
            return true;
        };
        if owner.is_whole() {
            return true;
        }
        let mut chunks = Vec::new();
        while let Some((chunk, bytes)) = owner.begin_in(window.most().min(free)) {
            free -= bytes;
            window.take(bytes);
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

    fn window(&self, direction: Direction) -> Window {
        let bytes = self.owners.values().map(|owner| match direction {
            Direction::Out => owner.bytes().out,
            Direction::In => owner.bytes().into,
        });
        let moving: u64 = bytes.sum();
        Window {
            left: self.config.window_bytes.saturating_sub(moving),
            is_idle: moving == 0,
        }
    }

    /// Moves chunks of other tenants out, up to `need` bytes and as far as permitted.
    fn make_room(&mut self, cause: TenantId, need: u64, runners: &[TenantId], runs: bool) {
        let shares = self.shares();
        let mut need = need;
        let (mut window, mut free) = (self.window(Direction::Out), self.pool_free());
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
            let Some((chunk, bytes)) = owner.begin_out(window.most().min(free)) else {
                break;
            };
            free -= bytes;
            window.take(bytes);
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
}
