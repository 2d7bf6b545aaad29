//! The manager's laws, over random sequences against a GPU of a few lines.

mod bench;

use proptest::prelude::*;
use turnstile_accounting::{Nanos, TenantId};
use turnstile_policies::Weight;

use super::*;
use bench::{Bench, CHUNK, CHUNK_NS, STEP};
use turnstile_gpu::ChunkId;

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
fn idle_tenant_yields_memory_and_gets_it_back_when_it_runs() {
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
fn chunk_that_is_longer_than_the_window_moves_alone() {
    let mut bench = Bench::with_window(4, 8, CHUNK / 2);
    let (idle, busy) = (bench.add(1, 100, 0, 4), bench.add(2, 100, 0, 4));
    bench.allocate(idle, 3);
    bench.allocate(busy, 3);
    bench.wants(busy, true);
    bench.pass(Nanos::from_ms(20));
    assert!(bench.runs(busy));
    assert_eq!(bench.manager.totals(idle).bytes.swapped, 2 * CHUNK);
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
    let index = 0usize..4;
    let step = prop_oneof![
        4 => (index.clone(), 1u64..6).prop_map(|(i, n)| Step::Allocate(i, n)),
        3 => (index.clone(), 0usize..12).prop_map(|(i, n)| Step::Free(i, n)),
        6 => (index.clone(), any::<bool>()).prop_map(|(i, on)| Step::Wants(i, on)),
        1 => index.prop_map(Step::Leave),
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
    fn turns_are_weighted_fairly_with_bounded_waiting(weights in prop::collection::vec(50u32..400, 2..5)) {
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
