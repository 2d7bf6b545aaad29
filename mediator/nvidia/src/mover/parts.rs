//! Divides memory into handles, so that copies overlap with mapping and freeing.
//!
//! In: bytes that move as a whole. Out: the bytes behind each handle. Called by `sets.rs`, which
//! makes memory, and by the bench.

use turnstile_abi::CHUNK_BYTES;

/// Maximum memory behind one handle: it is moved at once, and is in both places meanwhile. SOURCE:
/// measured: a copy of 1 GiB takes 19.4 ms; importing and mapping a handle takes 1 ms, freeing its
/// memory 0.3 ms.
pub const EXTENT_BYTES_MAX: u64 = 1 << 30;

/// Minimum memory behind one handle, if there is that much. SOURCE: measured: the work that follows
/// the last copy (freeing or mapping) takes 1.3 ms for 1 GiB, as long as copying 70 MiB.
const EXTENT_BYTES_MIN: u64 = 128 << 20;

/// Memory behind the first and the last of many handles. SOURCE: measured: with 64 MiB, 1 GiB goes
/// out at 96.1 to 97.3 % of the link and comes in at 95.4 to 95.7 %; with 32 MiB, 97.5 % and 94.7
/// %.
const EDGE_BYTES: u64 = 64 << 20;
/// Memory of at least this size has small first and last handles.
const EDGED_BYTES: u64 = 4 * EXTENT_BYTES_MIN;

/// Splits memory of `bytes` that moves as a whole into the bytes behind each handle, each at most
/// `most`. With several handles, one is copied while the next is mapped and the last freed. Nothing
/// is copied while the first is mapped and the last freed: in large memory, these two are small.
pub fn parts(bytes: u64, most: u64) -> Vec<u64> {
    parts_from(bytes, most, EDGE_BYTES)
}

/// As [`parts`], with `edge_bytes` behind the first and the last handle.
pub fn parts_from(bytes: u64, most: u64, edge_bytes: u64) -> Vec<u64> {
    let part = bytes / 8 / CHUNK_BYTES * CHUNK_BYTES;
    let part = part.clamp(EXTENT_BYTES_MIN, EXTENT_BYTES_MAX).min(most);
    let doubled = |before: &u64| Some(before * 2).filter(|next| *next < part);
    let mut edge: Vec<u64> = std::iter::successors(Some(edge_bytes), doubled).collect();
    if bytes < EDGED_BYTES || part <= edge_bytes {
        edge.clear();
    }
    let middle = bytes - 2 * edge.iter().sum::<u64>();
    let mut parts = edge.clone();
    parts.extend(std::iter::repeat_n(part, (middle / part) as usize));
    parts.extend(Some(middle % part).filter(|rest| *rest > 0));
    parts.extend(edge.into_iter().rev());
    parts
}
