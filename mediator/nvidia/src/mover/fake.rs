//! Stand-ins for moves of memory that is a file, without a mover.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use super::memory::{Away, Resident};
use super::pages::{Pool, Segment};

/// Moves memory to a host pool of its own.
pub(crate) fn away(memory: Resident) -> Away {
    let bytes = memory.bytes;
    let pool = Arc::new(Pool::new(bytes, bytes));
    pool.grow(Some(Segment::new(bytes).unwrap()));
    let mut data = vec![0; bytes as usize];
    let file = File::from(memory.handle);
    file.read_exact_at(&mut data, 0).unwrap();
    pool.write(0, &data);
    let pages = pool.take(bytes, Duration::ZERO).unwrap();
    Away { pages, bytes }
}

/// Fills memory as a move in does.
pub(crate) fn fill(copy: &Away, memory: &Resident) {
    let file = File::from(memory.share().unwrap());
    file.write_all_at(&copy.pages.content(), 0).unwrap();
}
