//! Memory that the mover makes for an owner, as it allocates it.

use super::*;

const PLACE: Place = Place {
    at: 7,
    bytes: CHUNK_BYTES,
};

fn give(bench: &Bench, tenant: TenantId, place: Place) -> Option<bool> {
    bench.sets.give(tenant, place, &mut drop)
}

fn place(at: u64) -> Place {
    Place { at, ..PLACE }
}

#[test]
fn memory_is_entered_once_it_is_made_and_the_owner_has_a_handle_of_it() {
    let mut bench = Bench::new(2, 64, u64::MAX);
    let mut handle = None;
    let given = bench.sets.give(A, PLACE, &mut |it| {
        // A move that comes before the handle would find nothing to unmap.
        let mut events = Vec::new();
        bench.sets.read_events(&mut events);
        assert!(events.is_empty(), "not entered yet: {events:?}");
        handle = Some(it);
    });
    assert_eq!(given, Some(true));
    let handle = handle.unwrap();
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
    assert!(give(&bench, A, place(1)) == Some(true));
    assert!(give(&bench, B, place(1)) == Some(true));
    assert!(give(&bench, A, place(2)) == Some(false), "the card is full");
    assert!(!bench.sets.is_whole(A) && bench.sets.is_whole(B));
    assert!(
        give(&bench, A, place(3)).is_none(),
        "three of a card of two"
    );
    bench.sets.fix(B, CHUNK_BYTES);
    assert!(
        give(&bench, B, place(2)).is_none(),
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
    assert!(give(&bench, A, place(1)) == Some(true));
    assert!(give(&bench, A, place(2)).is_none());
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
