//! The manager's laws, over random sequences against a GPU of a few lines.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;
use turnstile_accounting::{Moment, Nanos, TenantId};
use turnstile_policies::Weight;

use super::owner::Place;
use super::*;
use turnstile_gpu::{ChunkId, Direction, MemoryEvent, MoveFailure, MoveOrder, MoveReport};

const CHUNK: u64 = 1 << 20;
/// Time to copy a chunk over the link of this GPU.
const CHUNK_NS: u64 = 100_000;
/// From one step of the manager to the next.
const STEP: Nanos = Nanos::from_us(250);

/// What the GPU knows of a tenant.
#[derive(Debug, Default)]
struct Fact {
    chunks: BTreeMap<ChunkId, Place>,
    held: bool,
    /// A command of it executes until this time.
    executes_until: Moment,
    /// It is charged no engine time: a policy holds it back, or its engine is not metered.
    uncharged: bool,
    wants: bool,
    /// When it began to want something and was not permitted to run.
    waits_from: Option<Moment>,
    longest_wait: Nanos,
    used: Nanos,
}

/// A GPU of a few lines, and the manager.
#[derive(Debug)]
struct Bench {
    manager: MemoryManager,
    facts: BTreeMap<TenantId, Fact>,
    /// By direction: owner, cause, chunk.
    moves: [VecDeque<(TenantId, TenantId, ChunkId)>; 2],
    busy_until: [Moment; 2],
    card: u64,
    now: Moment,
    next: u64,
    fail_every: u64,
    moved: u64,
    weights: BTreeMap<TenantId, u32>,
    min: BTreeMap<TenantId, u64>,
}

impl Bench {
    fn new(card: u64, pool: u64) -> Self {
        let config = MemoryConfig {
            window_bytes: 8 * CHUNK,
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

    fn add(&mut self, id: u32, weight: u32, min: u64, max: u64) -> TenantId {
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

    fn on_card(&self) -> u64 {
        let chunks = self.facts.values().flat_map(|fact| fact.chunks.values());
        chunks.filter(|place| **place != Place::Swapped).count() as u64
    }

    fn allocate(&mut self, id: TenantId, count: u64) {
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

    fn free_one(&mut self, id: TenantId, nth: usize) {
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

    fn leave(&mut self, id: TenantId) {
        self.facts.remove(&id);
        self.moves.iter_mut().for_each(|q| q.retain(|m| m.0 != id));
        self.manager.remove(id);
    }

    /// Whether the GPU would run something of this tenant.
    fn runs(&self, id: TenantId) -> bool {
        let fact = &self.facts[&id];
        let there = |place: &Place| *place == Place::Resident;
        !fact.held && fact.chunks.values().all(there)
    }

    fn wants(&mut self, id: TenantId, wants: bool) {
        self.facts.get_mut(&id).unwrap().wants = wants;
    }

    fn take(&mut self, order: MoveOrder) {
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
    fn copy(&mut self) {
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
    fn step(&mut self) {
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

    fn check(&self) {
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

    fn pass(&mut self, time: Nanos) {
        let until = self.now + time;
        while self.now < until {
            self.step();
        }
    }
}

#[test]
fn nothing_is_done_where_everything_fits() {
    let mut bench = Bench::new(10, 10);
    for id in 1..=3 {
        let id = bench.add(id, 100, 0, 4);
        bench.allocate(id, 3);
        bench.wants(id, true);
    }
    for _ in 0..1_000 {
        bench.step();
        assert!(!bench.manager.is_busy());
    }
    assert!(bench.facts.values().all(|fact| !fact.held));
}

#[test]
fn who_wants_nothing_gives_way_and_finds_its_memory_again() {
    let mut bench = Bench::new(10, 20);
    let (idle, busy) = (bench.add(1, 100, 0, 8), bench.add(2, 100, 0, 8));
    bench.allocate(idle, 8);
    bench.allocate(busy, 8);
    bench.wants(busy, true);
    bench.pass(Nanos::from_ms(20));
    assert!(bench.runs(busy));
    let away = bench.manager.totals(idle).bytes.swapped;
    assert_eq!(away, 6 * CHUNK, "not more than was needed");
    bench.wants(busy, false);
    bench.wants(idle, true);
    bench.pass(Nanos::from_ms(20));
    assert!(bench.runs(idle));
}

#[test]
fn of_two_that_want_nothing_the_one_above_its_share_gives() {
    let mut bench = Bench::new(12, 24);
    let (above, below) = (bench.add(1, 100, 0, 12), bench.add(2, 100, 0, 12));
    bench.allocate(above, 8);
    bench.allocate(below, 2);
    // The one below ran longer ago.
    bench.wants(below, true);
    bench.pass(Nanos::from_ms(10));
    bench.wants(below, false);
    bench.wants(above, true);
    bench.pass(Nanos::from_ms(20));
    bench.wants(above, false);
    // Until then it might only have paused.
    bench.pass(Nanos::from_ms(20));
    let busy = bench.add(3, 100, 0, 12);
    bench.allocate(busy, 6);
    bench.wants(busy, true);
    bench.pass(Nanos::from_ms(20));
    assert!(bench.runs(busy));
    let swapped = |id| bench.manager.totals(id).bytes.swapped / CHUNK;
    assert_eq!((swapped(above), swapped(below)), (4, 0));
}

#[test]
fn a_pause_is_ridden_out_and_does_not_cost_the_set() {
    let mut bench = Bench::new(10, 20);
    let (a, b) = (bench.add(1, 100, 0, 8), bench.add(2, 100, 0, 8));
    bench.allocate(a, 8);
    bench.allocate(b, 8);
    for id in [a, b] {
        bench.wants(id, true);
    }
    bench.pass(Nanos::from_ms(40));
    let leader = if bench.runs(a) { a } else { b };
    let before = bench.manager.totals(leader).swapped_out_bytes;
    bench.wants(leader, false);
    bench.step();
    bench.wants(leader, true);
    bench.step();
    assert!(bench.runs(leader));
    assert_eq!(bench.manager.totals(leader).swapped_out_bytes, before);
}

#[test]
fn a_turn_ends_for_which_no_engine_time_is_charged() {
    let mut bench = Bench::new(10, 20);
    let ids = [1, 2].map(|id| bench.add(id, 100, 0, 8));
    for id in ids {
        bench.allocate(id, 8);
        bench.wants(id, true);
        bench.facts.get_mut(&id).unwrap().uncharged = true;
    }
    bench.pass(Nanos::from_ms(1_000));
    for id in ids {
        let fact = &bench.facts[&id];
        assert!(fact.longest_wait < Nanos::from_ms(100), "{id}: {fact:?}");
        assert!(fact.used > Nanos::from_ms(300), "{id}: {fact:?}");
    }
}

#[test]
fn while_one_runs_the_next_ones_memory_comes() {
    let mut bench = Bench::new(16, 40);
    let ids = [1, 2, 3].map(|id| bench.add(id, 100, 0, 8));
    for id in ids {
        bench.allocate(id, 8);
        bench.wants(id, true);
    }
    // Two sets fit at a time: once the rate is known, no tenant waits for copies.
    bench.pass(Nanos::from_ms(100));
    let idle = |bench: &Bench| !ids.iter().any(|id| bench.runs(*id));
    let mut waited = 0;
    for _ in 0..2_000 {
        bench.step();
        waited += u32::from(idle(&bench));
    }
    assert!(waited < 100, "the engine waited in {waited} of 2000 steps");
}

#[test]
fn reserves_that_leave_no_room_are_refused() {
    let mut bench = Bench::new(10, 10);
    bench.add(1, 100, 4, 8);
    let weight = Weight::DEFAULT;
    let large = Entitlement::by_weight(weight, 8 * CHUNK);
    assert!(matches!(
        bench.manager.add(TenantId(2), large),
        Err(EntitlementError::Crowded { .. })
    ));
    let disordered = Entitlement {
        min_bytes: 9 * CHUNK,
        ..large
    };
    assert!(matches!(
        bench.manager.add(TenantId(2), disordered),
        Err(EntitlementError::Order { .. })
    ));
    let fits = Entitlement::by_weight(weight, 6 * CHUNK);
    assert_eq!(bench.manager.add(TenantId(2), fits), Ok(()));
}

#[test]
fn before_the_end_memory_comes_back_as_far_as_it_fits() {
    let mut bench = Bench::new(100, 200);
    let ids = [60, 50, 30, 20].map(|chunks| (chunks, bench.add(chunks as u32, 100, 0, 100)));
    for (chunks, id) in ids {
        bench.allocate(id, chunks);
    }
    // The first and the second take turns, the third is brought in between; the last is a VM, say.
    for (_, id) in ids {
        bench.wants(id, true);
    }
    bench.pass(Nanos::from_ms(40));
    let whole = |bench: &Bench, id| bench.manager.totals(id).bytes.swapped == 0;
    assert!(ids.iter().any(|(_, id)| !whole(&bench, *id)));
    let kept: Vec<TenantId> = ids[..3].iter().map(|(_, id)| *id).collect();
    // From here on, demand does not matter.
    for (_, id) in ids {
        bench.wants(id, false);
    }
    bench.manager.bring_back(kept.clone());
    bench.pass(Nanos::from_ms(200));
    let (left, lost) = bench.manager.still_to_come();
    assert_eq!(left, 0);
    assert_eq!(lost.len(), 1, "60, 50 and 30 do not fit on 100");
    for id in kept {
        assert_eq!(
            whole(&bench, id) && bench.manager.may_run(id),
            !lost.contains(&id)
        );
    }
}

#[test]
fn what_is_pinned_stays() {
    let mut bench = Bench::new(10, 20);
    let (idle, busy) = (bench.add(1, 100, 0, 8), bench.add(2, 100, 0, 8));
    bench.allocate(idle, 8);
    bench.manager.pin(idle, ChunkId(0), 2, true);
    bench.allocate(busy, 8);
    bench.wants(busy, true);
    bench.pass(Nanos::from_ms(20));
    assert!(bench.runs(busy));
    let bytes = bench.manager.totals(idle).bytes;
    assert_eq!((bytes.resident, bytes.pinned), (2 * CHUNK, 2 * CHUNK));
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(usize, u64),
    Free(usize, usize),
    Wants(usize, bool),
    Leave(usize),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = 0usize..4;
    let step = prop_oneof![
        4 => (who.clone(), 1u64..6).prop_map(|(i, n)| Step::Allocate(i, n)),
        3 => (who.clone(), 0usize..12).prop_map(|(i, n)| Step::Free(i, n)),
        6 => (who.clone(), any::<bool>()).prop_map(|(i, on)| Step::Wants(i, on)),
        1 => who.prop_map(Step::Leave),
        8 => (1u64..60).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The laws of the module hold after every step, while some copies fail. In the end every
    /// tenant that wants to run does.
    #[test]
    fn the_laws_hold_over_random_sequences(
        steps in steps(),
        weights in prop::array::uniform4(1u32..1_000),
        mins in prop::array::uniform4(0u64..3),
        fail_every in prop_oneof![Just(u64::MAX), 3u64..20],
    ) {
        const MAX: u64 = 10;
        let (card, pool) = (20, 30);
        let mut bench = Bench::new(card, pool);
        bench.fail_every = fail_every;
        let mut ids: Vec<_> = (0..4)
            .map(|i| bench.add(i as u32 + 1, weights[i], mins[i], MAX))
            .collect();
        let mut fresh = 5;
        for step in steps {
            match step {
                Step::Allocate(i, count) => {
                    let own = bench.facts[&ids[i]].chunks.len() as u64;
                    let all: u64 = bench.facts.values().map(|f| f.chunks.len() as u64).sum();
                    if own + count <= MAX && all + count <= card + pool - 4 {
                        bench.allocate(ids[i], count);
                    }
                }
                Step::Free(i, nth) => bench.free_one(ids[i], nth),
                Step::Wants(i, wants) => bench.wants(ids[i], wants),
                Step::Leave(i) => {
                    bench.leave(ids[i]);
                    ids[i] = bench.add(fresh, weights[i], mins[i], MAX);
                    fresh += 1;
                }
                Step::Pass(steps) => bench.pass(Nanos(STEP.0 * steps)),
            }
            bench.check();
        }
        for id in &ids {
            let fact = bench.facts.get_mut(id).unwrap();
            fact.wants = true;
            fact.used = Nanos::ZERO;
        }
        for id in ids {
            let mut left = 200_000;
            while bench.facts[&id].used == Nanos::ZERO {
                bench.step();
                left -= 1;
                prop_assert!(left > 0, "{} never runs: {:?}", id, bench.manager);
            }
        }
    }

    /// All tenants always want the engine, and no two sets fit together. Each gets its share of the
    /// engine and waits a bounded time, and little of the time is lost.
    #[test]
    fn turns_are_fair_and_nobody_starves(weights in prop::collection::vec(50u32..400, 2..5)) {
        let mut bench = Bench::new(10, 60);
        let ids: Vec<_> = (1..)
            .zip(&weights)
            .map(|(id, weight)| bench.add(id, *weight, 0, 8))
            .collect();
        for id in &ids {
            bench.allocate(*id, 8);
            bench.wants(*id, true);
        }
        let length = Nanos::from_ms(4_000);
        bench.pass(length);
        let all: u64 = bench.facts.values().map(|fact| fact.used.0).sum();
        prop_assert!(all > length.0 / 10 * 6, "{} of {} ns were used", all, length.0);
        let sum: u64 = weights.iter().map(|w| u64::from(*w)).sum();
        // Time of a turn and its copies: five exchanges of a set of 8 chunks, out and in.
        let turn = 5 * 2 * 8 * CHUNK_NS;
        for (id, weight) in ids.iter().zip(&weights) {
            let fact = &bench.facts[id];
            let due = all as f64 * f64::from(*weight) / sum as f64;
            let off = (fact.used.0 as f64 - due).abs();
            prop_assert!(off < 3.0 * turn as f64, "{} got {} for {}", id, fact.used.0, due);
            let others = sum / u64::from(*weight) + weights.len() as u64;
            prop_assert!(fact.longest_wait.0 < 2 * turn * others, "{} waited {:?}", id, fact.longest_wait);
        }
    }
}
