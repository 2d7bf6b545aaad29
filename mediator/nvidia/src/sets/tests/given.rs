//! Memory that the mover makes for an owner, as it allocates it.

use super::*;

const PLACE: Place = Place {
    at: 7,
    bytes: CHUNK_BYTES,
};

fn place(at: u64) -> Place {
    Place { at, ..PLACE }
}

#[test]
fn memory_is_entered_once_it_is_made_and_the_owner_has_a_handle_of_it() {
    let mut bench = Bench::new(2, 64, u64::MAX);
    let handle = bench.sets.give(A, PLACE).unwrap().unwrap();
    let events = bench.events();
    assert!(
        matches!(
            events[..],
            [MemoryEvent::Allocated {
                owner: A,
                count: 1,
                resident: true,
                ..
            }]
        ),
        "{events:?}"
    );
    // The daemon copies what the owner writes.
    let mapped = (PLACE, File::from(handle));
    bench.of(A).mapped.lock().unwrap().insert(PLACE.at, mapped);
    bench.of(A).write(PLACE.at, 0x5eed);
    let chunk = bench.chunks[&A][0];
    assert!(bench.sets.held(A));
    assert_eq!(bench.moved(A, Direction::Out, &[chunk]), [Ok(CHUNK_BYTES)]);
    assert_eq!(bench.moved(A, Direction::In, &[chunk]), [Ok(CHUNK_BYTES)]);
    assert_eq!(bench.of(A).read(PLACE.at), 0x5eed);
}

#[test]
fn memory_comes_later_where_the_card_is_full_and_is_refused_where_it_never_fits() {
    let mut bench = Bench::new(2, 64, u64::MAX);
    assert!(bench.sets.give(A, place(1)).unwrap().is_some());
    assert!(bench.sets.give(B, place(1)).unwrap().is_some());
    assert!(
        bench.sets.give(A, place(2)).unwrap().is_none(),
        "the card is full"
    );
    assert!(!bench.sets.is_whole(A) && bench.sets.is_whole(B));
    assert!(
        bench.sets.give(A, place(3)).is_none(),
        "three of a card of two"
    );
    bench.sets.fix(B, CHUNK_BYTES);
    assert!(
        bench.sets.give(B, place(2)).is_none(),
        "beside what never moves"
    );
    let allocated = |event: &MemoryEvent| matches!(event, MemoryEvent::Allocated { .. });
    assert_eq!(
        bench
            .events()
            .iter()
            .filter(|event| allocated(event))
            .count(),
        3
    );
}

#[test]
fn memory_that_the_card_refuses_leaves_no_room_taken() {
    let mut bench = Bench::new(3, 64, u64::MAX);
    // Less room than announced: another process has it.
    let taken = bench.sets.shared.copies.create(2 * CHUNK_BYTES).unwrap();
    assert!(bench.sets.give(A, place(1)).unwrap().is_some());
    assert!(bench.sets.give(A, place(2)).is_none());
    drop(taken);
    assert_eq!(bench.events().len(), 1);
    let long = Place {
        at: 9,
        bytes: 2 * CHUNK_BYTES,
    };
    assert_eq!(
        bench.sets.grant(B, long),
        Some(true),
        "two of three are free"
    );
}
