//! A GPU of a few lines with the manager, in virtual time, for the manager's tests.
//!
//! In go a test's tenants, allocations and demand; out come the tenants that ran, for how long, and
//! where their memory is. The tests of the memory manager call it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use turnstile_accounting::{Moment, Nanos, TenantId};
use turnstile_gpu::{ChunkId, Direction, MemoryEvent, MoveFailure, MoveOrder, MoveReport};
use turnstile_policies::Weight;

use crate::memory::{Action, Entitlement, MemoryConfig, MemoryManager, Place};

pub(super) const CHUNK: u64 = 1 << 20;
/// Time to copy a chunk over the link of this GPU.
pub(super) const CHUNK_NS: u64 = 100_000;
/// From one step of the manager to the next.
pub(super) const STEP: Nanos = Nanos::from_us(250);

/// What the GPU knows of a tenant.
#[derive(Debug, Default)]
pub(super) struct Fact {
    pub(super) chunks: BTreeMap<ChunkId, Place>,
    pub(super) held: bool,
    /// A command of it executes until this time.
    executes_until: Moment,
    /// It is charged no engine time: a policy holds it back, or its engine is not metered.
    pub(super) uncharged: bool,
    pub(super) wants: bool,
    /// When it began to want something and was not permitted to run.
    waits_from: Option<Moment>,
    pub(super) longest_wait: Nanos,
    pub(super) used: Nanos,
}

/// A GPU of a few lines, and the manager.
#[derive(Debug)]
pub(super) struct Bench {
    pub(super) manager: MemoryManager,
    pub(super) facts: BTreeMap<TenantId, Fact>,
    /// By direction: owner, cause, chunk.
    moves: [VecDeque<(TenantId, TenantId, ChunkId)>; 2],
    busy_until: [Moment; 2],
    card: u64,
    now: Moment,
    next: u64,
    pub(super) fail_every: u64,
    moved: u64,
    weights: BTreeMap<TenantId, u32>,
    min: BTreeMap<TenantId, u64>,
}

impl Bench {
    pub(super) fn new(card: u64, pool: u64) -> Self {
        Self::with_window(card, pool, 8 * CHUNK)
    }

    pub(super) fn with_window(card: u64, pool: u64, window_bytes: u64) -> Self {
        let config = MemoryConfig {
            window_bytes,
            turn_min: Nanos::from_ms(2),
            ..MemoryConfig::new(card * CHUNK, pool * CHUNK)
        };
        Self {
            manager: MemoryManager::new(config),
            facts: BTreeMap::new(),
            moves: Default::default(),
            busy_until: [Moment(0); 2],
            card,
            now: Moment(0),
            next: 0,
            fail_every: u64::MAX,
            moved: 0,
            weights: BTreeMap::new(),
            min: BTreeMap::new(),
        }
    }

    pub(super) fn add(&mut self, id: u32, weight: u32, min: u64, max: u64) -> TenantId {
        let id = TenantId(id);
        let entitlement = Entitlement {
            min_bytes: min * CHUNK,
            ..Entitlement::by_weight(Weight::new(weight).unwrap(), max * CHUNK)
        };
        self.manager.add(id, entitlement).unwrap();
        self.facts.insert(id, Fact::default());
        self.weights.insert(id, weight);
        self.min.insert(id, min);
        id
    }

    pub(super) fn on_card(&self) -> u64 {
        let chunks = self.facts.values().flat_map(|fact| fact.chunks.values());
        chunks.filter(|place| **place != Place::Swapped).count() as u64
    }

    pub(super) fn allocate(&mut self, id: TenantId, count: u64) {
        let resident = self.on_card() + count <= self.card;
        let first = ChunkId(self.next);
        self.next += count;
        let place = if resident {
            Place::Resident
        } else {
            Place::Swapped
        };
        let fact = self.facts.get_mut(&id).unwrap();
        fact.chunks.extend(first.run(count).map(|id| (id, place)));
        let event = MemoryEvent::Allocated {
            owner: id,
            first,
            count,
            chunk_bytes: CHUNK,
            resident,
        };
        self.manager.observe(self.now, &event);
    }

    pub(super) fn free_one(&mut self, id: TenantId, nth: usize) {
        let fact = self.facts.get_mut(&id).unwrap();
        let Some(first) = fact.chunks.keys().nth(nth).copied() else {
            return;
        };
        fact.chunks.remove(&first);
        let event = MemoryEvent::Freed {
            owner: id,
            first,
            count: 1,
        };
        self.manager.observe(self.now, &event);
    }

    pub(super) fn leave(&mut self, id: TenantId) {
        self.facts.remove(&id);
        self.moves.iter_mut().for_each(|q| q.retain(|m| m.0 != id));
        self.manager.remove(id);
    }

    /// Whether the GPU would run something of this tenant.
    pub(super) fn runs(&self, id: TenantId) -> bool {
        let fact = &self.facts[&id];
        let there = |place: &Place| *place == Place::Resident;
        !fact.held && fact.chunks.values().all(there)
    }

    pub(super) fn wants(&mut self, id: TenantId, wants: bool) {
        self.facts.get_mut(&id).unwrap().wants = wants;
    }

    pub(super) fn take(&mut self, order: MoveOrder) {
        let fact = self.facts.get_mut(&order.owner).unwrap();
        assert!(
            fact.held && fact.executes_until <= self.now,
            "{} may run",
            order.owner
        );
        for chunk in order.chunks {
            let (from, to) = match order.direction {
                Direction::Out => (Place::Resident, Place::MovingOut),
                Direction::In => (Place::Swapped, Place::MovingIn),
            };
            let place = fact.chunks.get_mut(&chunk).expect("a chunk that there is");
            assert_eq!(std::mem::replace(place, to), from);
            let reserve = self.min[&order.owner];
            let kept = fact.chunks.values().filter(|p| **p == Place::Resident);
            if order.direction == Direction::Out {
                assert!(
                    kept.count() as u64 >= reserve,
                    "{} loses its reserve",
                    order.owner
                );
            }
            self.moves[order.direction as usize].push_back((order.owner, order.cause, chunk));
        }
    }

    /// Lets the copies end that have ended by now.
    pub(super) fn copy(&mut self) {
        for direction in [Direction::Out, Direction::In] {
            let (queue, until) = (direction as usize, &mut self.busy_until[direction as usize]);
            *until = (*until).max(Moment(self.now.0.saturating_sub(STEP.0)));
            let mut done = Vec::new();
            while until.0 + CHUNK_NS <= self.now.0
                && let Some(one) = self.moves[queue].pop_front()
            {
                *until = *until + Nanos(CHUNK_NS);
                done.push(one);
            }
            for (owner, cause, chunk) in done {
                self.moved += 1;
                let fails = self.moved.is_multiple_of(self.fail_every);
                let fact = self.facts.get_mut(&owner).unwrap();
                let result = match fact.chunks.get_mut(&chunk) {
                    None => Err(MoveFailure::Gone),
                    Some(place) => {
                        let out = (direction == Direction::Out) != fails;
                        *place = if out { Place::Swapped } else { Place::Resident };
                        if fails {
                            Err(MoveFailure::Copy)
                        } else {
                            Ok(())
                        }
                    }
                };
                let report = MoveReport {
                    owner,
                    cause,
                    direction,
                    chunk,
                    copied_bytes: CHUNK,
                    took: Nanos(CHUNK_NS),
                    result,
                };
                self.manager.observe(self.now, &MemoryEvent::Moved(report));
            }
        }
    }

    /// One step of time: commands run and end, copies end, the manager decides.
    pub(super) fn step(&mut self) {
        self.now = self.now + STEP;
        let running: BTreeSet<TenantId> = self.facts.keys().copied().collect();
        let running: Vec<TenantId> = running
            .into_iter()
            .filter(|id| self.runs(*id) && self.facts[id].wants)
            .collect();
        let weight: u64 = running.iter().map(|id| u64::from(self.weights[id])).sum();
        for id in &running {
            let part = Nanos(STEP.0 * u64::from(self.weights[id]) / weight);
            let fact = self.facts.get_mut(id).unwrap();
            fact.used += part;
            fact.executes_until = self.now + Nanos(STEP.0 / 2);
            if !fact.uncharged {
                self.manager.used(*id, part);
            }
        }
        self.copy();
        for (id, fact) in &mut self.facts {
            self.manager.wants(self.now, *id, fact.wants);
            let waits = fact.wants && !running.contains(id);
            let from = waits.then(|| fact.waits_from.unwrap_or(self.now));
            fact.waits_from = from;
            let waited = from.map_or(Nanos::ZERO, |from| self.now.since(from));
            fact.longest_wait = fact.longest_wait.max(waited);
        }
        for id in self.manager.stopping().collect::<Vec<_>>() {
            if self.facts[&id].executes_until <= self.now {
                self.manager.quiet(self.now, id);
            }
        }
        for action in self.manager.step(self.now).to_vec() {
            match action {
                Action::Hold(id) => self.facts.get_mut(&id).unwrap().held = true,
                Action::Release(id) => self.facts.get_mut(&id).unwrap().held = false,
                Action::Move(order) => self.take(order),
            }
        }
        self.check();
    }

    pub(super) fn check(&self) {
        self.manager.check();
        assert!(self.on_card() <= self.card);
        for (id, fact) in &self.facts {
            let bytes = self.manager.totals(*id).bytes;
            let at = |place| fact.chunks.values().filter(|p| **p == place).count() as u64;
            let facts = [
                Place::Resident,
                Place::Swapped,
                Place::MovingOut,
                Place::MovingIn,
            ]
            .map(|place| at(place) * CHUNK);
            let known = [bytes.resident, bytes.swapped, bytes.out, bytes.into];
            assert_eq!(known, facts, "{id}: every byte in one place");
        }
    }

    pub(super) fn pass(&mut self, time: Nanos) {
        let until = self.now + time;
        while self.now < until {
            self.step();
        }
    }
}
