//! Memory that a tenant's request may take, so that an allocation that fails ends the request and
//! not the process.
//!
//! In: bytes. Out: whether the process can have them, or a buffer of them. The allocations that
//! follow a check are small beside [`RESERVE_BYTES`], which each check leaves free.

use std::hint::black_box;

/// What requests leave free, for what the process itself allocates: messages, lists, answers.
pub const RESERVE_BYTES: usize = 64 << 20;

/// Whether the process can have this much memory now, and the reserve beside it.
pub fn has_room(bytes: u64) -> bool {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut room = Vec::<u8>::new();
    let reserved = room.try_reserve_exact(bytes.saturating_add(RESERVE_BYTES));
    // An allocation that nothing uses may be left out, with its failure.
    black_box(room.as_mut_ptr());
    reserved.is_ok()
}

/// So many zero bytes; none where the process cannot have them.
pub fn zeroed(bytes: usize) -> Option<Vec<u8>> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes).ok()?;
    buffer.resize(bytes, 0);
    Some(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_refused_beyond_the_address_space() {
        assert!(has_room(0));
        assert!(!has_room(1 << 60) && !has_room(u64::MAX));
        assert_eq!(zeroed(3), Some(vec![0; 3]));
        assert_eq!(zeroed(isize::MAX as usize), None);
    }
}
