//! Allocations, writes, moves and failures in any order.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Allocate(bool, u64),
    Free(bool, usize),
    Write(bool, usize, u64),
    Move(bool, bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (any::<bool>(), 1u64..6).prop_map(|(owner, n)| Step::Allocate(owner, n)),
        2 => (any::<bool>(), any::<usize>()).prop_map(|(owner, n)| Step::Free(owner, n)),
        5 => (any::<bool>(), any::<usize>(), any::<u64>()).prop_map(|(owner, n, v)| Step::Write(owner, n, v)),
        6 => (any::<bool>(), any::<bool>()).prop_map(|(owner, out)| Step::Move(owner, out)),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// After any moves and failures, an owner that may run has all of its memory, with what it
    /// wrote.
    #[test]
    fn no_byte_is_lost(steps in steps(), fail_every in prop_oneof![Just(u64::MAX), 2u64..6]) {
        let mut bench = Bench::new(1_000, 64, fail_every);
        // By first chunk: number of chunks, and the word written.
        let mut model: BTreeMap<TenantId, BTreeMap<u64, (u64, u64)>> = BTreeMap::new();
        let mut next = 0;
        let owner = |a: bool| if a { A } else { B };
        for step in steps {
            match step {
                Step::Allocate(a, count) => {
                    if bench.sets.allocate(owner(a), at(next), at(count)).is_ok() {
                        model.entry(owner(a)).or_default().insert(next, (count, 0));
                        next += count;
                    }
                }
                Step::Free(a, nth) => {
                    let tenant = owner(a);
                    let mine = model.entry(tenant).or_default();
                    let Some(first) = mine.keys().nth(nth % mine.len().max(1)).copied() else { continue };
                    let (count, _) = mine.remove(&first).unwrap();
                    let owner = bench.owners[&tenant].clone();
                    bench.sets.free(tenant, at(first), at(count), |places| {
                        let mut mapped = owner.mapped.lock().unwrap();
                        for place in places {
                            mapped.remove(&place.at);
                        }
                        Ok(())
                    }).unwrap();
                }
                Step::Write(a, nth, value) => {
                    let tenant = owner(a);
                    if !bench.sets.release(tenant) {
                        continue;
                    }
                    let mine = model.entry(tenant).or_default();
                    let Some((first, (_, written))) = mine.iter_mut().nth(nth % 7) else { continue };
                    bench.of(tenant).write(at(*first), value);
                    *written = value;
                }
                Step::Move(a, out) => {
                    let tenant = owner(a);
                    bench.events();
                    bench.sets.held(tenant);
                    let chunks = bench.chunks.get(&tenant).cloned().unwrap_or_default();
                    let direction = if out { Direction::Out } else { Direction::In };
                    bench.moved(tenant, direction, &chunks);
                }
            }
            for tenant in [A, B] {
                if !bench.sets.is_whole(tenant) {
                    continue;
                }
                let mine = model.entry(tenant).or_default();
                for (first, (count, written)) in mine {
                    prop_assert_eq!(bench.of(tenant).read(at(*first)), *written);
                    let last = at(*first + *count) - 8;
                    prop_assert_eq!(bench.of(tenant).read(last), 0);
                }
            }
        }
        let promised: u64 = model.values().flat_map(BTreeMap::values).map(|(count, _)| at(*count)).sum();
        prop_assert_eq!(lock(&bench.sets.shared.table).promised, promised);
        for tenant in [A, B] {
            bench.sets.remove(tenant);
        }
        let table = lock(&bench.sets.shared.table);
        prop_assert_eq!((table.promised, table.on_card), (0, 0));
    }
}
