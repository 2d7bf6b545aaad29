//! The object of `mbarrier` (PTX ISA 9.7.13.15), a word of 64 bits.
//!
//! Bits 0 to 19 are the arrivals that are still expected in this phase, 20 to 39 those of each
//! phase. Bits 40 to 61 are the bytes that are expected. Bit 63 is the phase.

const COUNT: u64 = (1 << 20) - 1;
const BYTES: u64 = (1 << 22) - 1;
const PHASE: u64 = 1 << 63;

/// Begins the first phase.
pub(crate) fn init(count: u64) -> u64 {
    let count = count & COUNT;
    count | (count << 20)
}

/// Ends a phase in which nothing is expected any more.
fn settle(state: u64) -> u64 {
    if state & COUNT == 0 && (state >> 40) & BYTES == 0 {
        let each = (state >> 20) & COUNT;
        ((state ^ PHASE) & !COUNT) | each
    } else {
        state
    }
}

pub(crate) fn arrive(state: u64, count: u64) -> u64 {
    let left = (state & COUNT).saturating_sub(count & COUNT);
    settle((state & !COUNT) | left)
}

/// As [`arrive`], also from the phases that follow.
pub(crate) fn arrive_drop(state: u64, count: u64) -> u64 {
    let each = ((state >> 20) & COUNT).saturating_sub(count & COUNT);
    arrive((state & !(COUNT << 20)) | (each << 20), count)
}

/// More bytes are expected.
pub(crate) fn expect(state: u64, bytes: u64) -> u64 {
    let sum = ((state >> 40) & BYTES).wrapping_add(bytes) & BYTES;
    (state & !(BYTES << 40)) | (sum << 40)
}

/// Bytes have come.
pub(crate) fn complete(state: u64, bytes: u64) -> u64 {
    settle(expect(state, bytes.wrapping_neg()))
}
