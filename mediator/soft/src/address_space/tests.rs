//! Limits, faults and scrubbing of an address space, without memory that moves.

use super::*;
use proptest::prelude::*;

const A: TenantId = TenantId(1);

fn space(pages: u64, card: u64) -> AddressSpace {
    let card = CardMemory::new(card * CHUNK_BYTES);
    AddressSpace::new(A, card, pages * CHUNK_BYTES, 16, None).unwrap()
}

#[test]
fn allocated_memory_is_zero_after_earlier_writes_by_tenant_or_vmm() {
    let space = space(4, 4);
    let mine = space.allocate(1).unwrap();
    space
        .slice(mine.va, 8)
        .unwrap()
        .write_slice(&[7; 8], 0)
        .unwrap();
    space.free(mine.va).unwrap();
    assert_eq!(
        space.slice(mine.va, 1).unwrap_err(),
        PageFault { va: mine.va }
    );
    // The VMM writes where nothing is allocated.
    space
        .region
        .get_slice(0, 8)
        .unwrap()
        .write_slice(&[9; 8], 0)
        .unwrap();
    let again = space.allocate(1).unwrap();
    assert_eq!(again.va, mine.va);
    let mut bytes = [1; 8];
    space
        .slice(again.va, 8)
        .unwrap()
        .read_slice(&mut bytes, 0)
        .unwrap();
    assert_eq!(bytes, [0; 8]);
}

#[test]
fn memory_in_holes_is_allocated_to_the_last_chunk() {
    let card = CardMemory::new(16 * CHUNK_BYTES);
    let space = AddressSpace::new(A, card.clone(), 16 * CHUNK_BYTES, 32, None).unwrap();
    let all: Vec<_> = (0..16).map(|_| space.allocate(1).unwrap().va).collect();
    for (index, va) in all.iter().enumerate() {
        space.store_u64(*va, index as u64).unwrap();
    }
    for va in all.iter().step_by(2) {
        space.free(*va).unwrap();
    }
    let holes = space.allocate(8 * CHUNK_BYTES).unwrap();
    assert_eq!(space.free_bytes(), 0);
    assert_eq!(space.allocate(1), Err(ErrorCode::OutOfGpuMemory));
    // It is zero, and no byte of it is one of the others'.
    let words: Vec<u64> = (0..8 * CHUNK_BYTES / 8).map(|i| holes.va + 8 * i).collect();
    for va in &words {
        assert_eq!(space.load_u64(*va), Ok(0));
    }
    let pattern: Vec<u8> = (0..8 * CHUNK_BYTES).map(|i| (i % 251) as u8).collect();
    space.store(holes.va, &pattern).unwrap();
    let mut read = vec![0; pattern.len()];
    space.load(holes.va, &mut read).unwrap();
    assert!(read == pattern);
    for (index, va) in all.iter().enumerate().skip(1).step_by(2) {
        assert_eq!(space.load_u64(*va), Ok(index as u64));
    }
    // A freed address without an allocation faults, lent or not.
    assert!(space.load_u64(all[0]).is_err());
    space.free(holes.va).unwrap();
    assert_eq!(card.free_chunks(), 8);
    for _ in 0..8 {
        space.allocate(1).unwrap();
    }
    drop(space);
    assert_eq!(card.free_chunks(), 16);
}

#[test]
fn limits_of_tenant_card_and_table() {
    let card = CardMemory::new(6 * CHUNK_BYTES);
    let a = AddressSpace::new(A, card.clone(), 4 * CHUNK_BYTES, 2, None).unwrap();
    let b = AddressSpace::new(TenantId(2), card.clone(), 4 * CHUNK_BYTES, 9, None).unwrap();
    assert_eq!(a.allocate(5 * CHUNK_BYTES), Err(ErrorCode::OutOfGpuMemory));
    assert_eq!(a.allocate(u64::MAX), Err(ErrorCode::OutOfGpuMemory));
    assert_eq!(a.allocate(0), Err(ErrorCode::BadArgument));
    a.allocate(CHUNK_BYTES + 1).unwrap();
    a.allocate(1).unwrap();
    assert_eq!(a.allocate(1), Err(ErrorCode::HostLimit));
    assert_eq!(b.free_bytes(), 3 * CHUNK_BYTES);
    assert_eq!(b.allocate(4 * CHUNK_BYTES), Err(ErrorCode::OutOfGpuMemory));
    drop(a);
    b.allocate(4 * CHUNK_BYTES).unwrap();
    assert_eq!(card.free_chunks(), 2);
    assert_eq!(b.free(GPU_VA_BASE + 1), Err(ErrorCode::NoSuchAllocation));
    assert_eq!(b.free(0), Err(ErrorCode::NoSuchAllocation));
    assert_eq!(
        b.allocation(GPU_VA_BASE),
        Ok(GPU_VA_BASE..GPU_VA_BASE + 4 * CHUNK_BYTES)
    );
}

#[test]
fn ranges_fault_at_the_first_address_without_memory() {
    let space = space(4, 4);
    let va = space.allocate(2 * CHUNK_BYTES).unwrap().va;
    assert!(space.slice(va, 2 * CHUNK_BYTES as usize).is_ok());
    let end = va + 2 * CHUNK_BYTES;
    for (from, bytes, fault) in [
        (va, 2 * CHUNK_BYTES as usize + 1, end),
        (va + 5, usize::MAX, end),
        (end, 1, end),
        (0, 1, 0),
        (u64::MAX, 9, u64::MAX),
    ] {
        assert_eq!(
            space.slice(from, bytes).unwrap_err(),
            PageFault { va: fault }
        );
    }
    assert!(space.atomic::<AtomicU64>(end - 8).is_ok());
    assert!(space.atomic::<AtomicU64>(end - 4).is_err());
}

proptest! {
    #[test]
    fn allocations_never_overlap_and_nothing_leaks(steps in proptest::collection::vec((any::<bool>(), 1u64..6), 1..60)) {
        let space = space(12, 10);
        let mut live: Vec<Allocation> = Vec::new();
        for (allocate, size) in steps {
            if allocate {
                if let Ok(new) = space.allocate(size * CHUNK_BYTES) {
                    let apart = |a: &Allocation| a.va + a.bytes <= new.va || new.va + new.bytes <= a.va;
                    prop_assert!(live.iter().all(apart));
                    live.push(new);
                }
            } else if !live.is_empty() {
                let gone = live.swap_remove(size as usize % live.len());
                prop_assert_eq!(space.free(gone.va), Ok(()));
            }
            let used: u64 = live.iter().map(|a| a.bytes / CHUNK_BYTES).sum();
            prop_assert_eq!(space.card.free_chunks() as u64, 10 - used);
            prop_assert_eq!(space.card.owned_chunks(A) as u64, used);
        }
    }
}
