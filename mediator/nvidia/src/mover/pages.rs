//! The host's pages: they hold the bytes that are not on the GPU.
//!
//! ```text
//!             grown, pinned            taken                  dropped
//!   (nothing) -------------> clean -------------> Pages in use ------> stale --scrubbed--> clean
//!                                   ^---- or taken while stale, and overwritten
//! ```
//!
//! The pages lie in memory files, made one after the other up to a limit, as pinning is slow. Pages
//! are read only after they were filled, so stale content is never read. It is zeroed all the same
//! when there is time, so that a tenant's bytes are gone soon after the tenant.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use turnstile_abi::CHUNK_BYTES;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

use super::protocol::Span;
use turnstile_host::memory_file::memory_file;

/// Bytes scrubbed at a time, and so the most that a taker of pages waits for.
const SCRUB_BYTES: u64 = CHUNK_BYTES;
/// Pause between two scrubs while pages are being taken: scrubbing uses host memory bandwidth that
/// the link's copies need. SOURCE: measured: with scrubbing at full speed, 1 GiB went out at 20
/// GB/s instead of 50.
const SCRUB_PAUSE: Duration = Duration::from_millis(4);
/// Time after the last taking of pages until scrubbing runs at full speed.
const SCRUB_REST: Duration = Duration::from_millis(300);

/// Ranges, each within a file, with adjacent ones merged.
#[derive(Debug, Default)]
struct Runs {
    by_start: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Runs {
    /// Adds a range. Ranges are not merged across multiples of `step`, where files end.
    fn insert(&mut self, (mut at, mut bytes): Span, step: u64) {
        self.bytes += bytes;
        if let Some((before, length)) = self.by_start.range(..at).next_back()
            && before + length == at
            && at % step != 0
        {
            (at, bytes) = (*before, bytes + length);
        }
        let end = at + bytes;
        if end % step != 0
            && let Some(after) = self.by_start.remove(&end)
        {
            bytes += after;
        }
        self.by_start.insert(at, bytes);
    }

    /// The shortest run of at least `bytes`, or the longest if all have less.
    fn best(&self, bytes: u64) -> Option<Span> {
        let runs = || self.by_start.iter().map(|(at, length)| (*at, *length));
        let enough = runs().filter(|run| run.1 >= bytes).min_by_key(|run| run.1);
        enough.or_else(|| runs().max_by_key(|run| run.1))
    }

    /// Takes at most `bytes` contiguous bytes.
    fn take(&mut self, bytes: u64) -> Option<Span> {
        let (at, length) = self.best(bytes)?;
        let taken = length.min(bytes);
        self.by_start.remove(&at);
        if length > taken {
            self.by_start.insert(at + taken, length - taken);
        }
        self.bytes -= taken;
        Some((at, taken))
    }
}

#[derive(Debug)]
pub(super) struct Segment {
    file: File,
    region: Arc<MmapRegion>,
}

impl Segment {
    /// A file of `bytes`, in huge pages if the host has enough reserved. Huge pages are all
    /// allocated at once.
    pub(super) fn new(bytes: u64) -> io::Result<Self> {
        let file = match huge_file(bytes) {
            Ok(file) => file,
            Err(_) => memory_file("turnstile-mover", bytes)?,
        };
        let mapped = FileOffset::new(file.try_clone()?, 0);
        let size = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let region = MmapRegion::from_file(mapped, size).map_err(io::Error::other)?;
        let region = Arc::new(region);
        Ok(Self { file, region })
    }

    /// A descriptor of the file, for pinning.
    pub(super) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }
}

#[derive(Debug, Default)]
struct Table {
    segments: Vec<Segment>,
    clean: Runs,
    stale: Runs,
    /// Bytes being scrubbed at this moment.
    scrubbing: u64,
    /// When pages were last taken, and when some were last scrubbed.
    taken_at: Option<Instant>,
    scrubbed_at: Option<Instant>,
    /// The pool does not grow: it has its maximum size, or growing failed.
    full: bool,
    ended: bool,
}

impl Table {
    /// Time until the next scrub, if there is something to scrub.
    fn rest(&self) -> Option<Duration> {
        let busy = self.taken_at.is_some_and(|at| at.elapsed() < SCRUB_REST);
        let since = self.scrubbed_at.map_or(SCRUB_PAUSE, |at| at.elapsed());
        let left = SCRUB_PAUSE.saturating_sub(since);
        (self.stale.bytes > 0 && busy && !left.is_zero()).then_some(left)
    }
}

/// All pages. Its lock is an innermost one.
#[derive(Debug)]
pub(super) struct Pool {
    step_bytes: u64,
    max_bytes: u64,
    table: Mutex<Table>,
    changed: Condvar,
}

/// Pages in use; stale when dropped.
#[derive(Debug)]
pub(super) struct Pages {
    pool: Arc<Pool>,
    spans: Vec<Span>,
}

/// The next task of the pool's own thread.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Chore {
    /// Enlarge the pool: offset in the pool and bytes of the next file.
    Grow(u64, u64),
    /// Zero these pages, which are in no list meanwhile.
    Scrub(Span),
    /// The pool has ended.
    End,
}

impl Pool {
    /// An empty pool that may grow to `max_bytes`, rounded down to chunks.
    pub(super) fn new(max_bytes: u64, step_bytes: u64) -> Self {
        Self {
            step_bytes: step_bytes.max(CHUNK_BYTES) / CHUNK_BYTES * CHUNK_BYTES,
            max_bytes: max_bytes / CHUNK_BYTES * CHUNK_BYTES,
            table: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // A panic leaves no update below incomplete.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes pages of `bytes`, a multiple of chunks, which the caller has to overwrite. Waits up to
    /// `limit` for the pool to grow, if it can.
    pub(super) fn take(self: &Arc<Self>, bytes: u64, limit: Duration) -> Option<Pages> {
        let deadline = Instant::now() + limit;
        let mut table = self.lock();
        while table.clean.bytes + table.stale.bytes < bytes {
            let left = deadline.saturating_duration_since(Instant::now());
            let soon = table.clean.bytes + table.stale.bytes + table.scrubbing >= bytes;
            if table.full && !soon || table.ended || left.is_zero() {
                return None;
            }
            let waited = self.changed.wait_timeout(table, left);
            table = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        table.taken_at = Some(Instant::now());
        let (mut spans, mut left) = (Vec::new(), bytes);
        while left > 0 {
            // Stale pages first: overwriting them saves their scrubbing.
            let span = table.stale.take(left);
            let span = span.or_else(|| table.clean.take(left))?;
            left -= span.1;
            spans.push(span);
        }
        let pool = self.clone();
        Some(Pages { pool, spans })
    }

    /// Bytes of the pool, and bytes in use.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let table = self.lock();
        let all = self.grown(&table);
        let free = table.clean.bytes + table.stale.bytes + table.scrubbing;
        (all, all - free)
    }

    /// Waits until the pool has `bytes`. False if it does not grow to that within `limit`.
    pub(super) fn wait_grown(&self, bytes: u64, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut table = self.lock();
        while self.grown(&table) < bytes {
            let left = deadline.saturating_duration_since(Instant::now());
            if table.full || table.ended || left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(table, left);
            table = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn grown(&self, table: &Table) -> u64 {
        (table.segments.len() as u64 * self.step_bytes).min(self.max_bytes)
    }

    /// For the pool's own thread: waits for the next task.
    pub(super) fn next_chore(&self) -> Chore {
        let mut table = self.lock();
        loop {
            if table.ended {
                return Chore::End;
            }
            let grown = self.grown(&table);
            if !table.full && grown < self.max_bytes {
                return Chore::Grow(grown, self.step_bytes.min(self.max_bytes - grown));
            }
            if let Some(wait) = table.rest() {
                let waited = self.changed.wait_timeout(table, wait);
                table = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            if let Some(span) = table.stale.take(SCRUB_BYTES) {
                table.scrubbed_at = Some(Instant::now());
                table.scrubbing += span.1;
                return Chore::Scrub(span);
            }
            let waited = self.changed.wait(table);
            table = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends a [`Chore::Grow`]: adds the pinned file, or marks the pool as full.
    pub(super) fn grow(&self, segment: Option<Segment>) {
        let mut table = self.lock();
        match segment {
            Some(segment) => {
                let span = (self.grown(&table), segment.region.size() as u64);
                table.segments.push(segment);
                table.clean.insert(span, self.step_bytes);
                table.full = self.grown(&table) >= self.max_bytes;
            }
            None => table.full = true,
        }
        drop(table);
        self.changed.notify_all();
    }

    /// Executes a [`Chore::Scrub`]. Overwrites the pages; a hole would free pinned pages of the
    /// file.
    pub(super) fn scrub(&self, span: Span) {
        const ZEROS: &[u8] = &[0; SCRUB_BYTES as usize];
        // CAST: the number of segments, which fit in memory.
        let index = (span.0 / self.step_bytes) as usize;
        let region = self.lock().segments.get(index).map(|s| s.region.clone());
        // CAST: within a mapping.
        let (at, bytes) = ((span.0 % self.step_bytes) as usize, span.1 as usize);
        if let Some(slice) = region.as_ref().and_then(|r| r.get_slice(at, bytes).ok()) {
            slice.copy_from(ZEROS);
        }
        let mut table = self.lock();
        table.scrubbing -= span.1;
        table.clean.insert(span, self.step_bytes);
        drop(table);
        self.changed.notify_all();
    }

    /// Ends the pool: [`Pool::take`] and [`Pool::next_chore`] return.
    pub(super) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    /// The pool's files for another process, each with its offset in the pool and bytes.
    pub(super) fn files(&self) -> io::Result<Vec<(u64, u64, File)>> {
        let table = self.lock();
        let files = table.segments.iter().zip(0u64..).map(|(segment, index)| {
            let file = segment.file.try_clone()?;
            Ok((index * self.step_bytes, segment.region.size() as u64, file))
        });
        files.collect()
    }
}

#[cfg(test)]
impl Pool {
    fn region(&self, at: u64) -> Arc<MmapRegion> {
        let index = (at / self.step_bytes) as usize;
        self.lock().segments[index].region.clone()
    }

    pub(super) fn read(&self, (at, bytes): Span) -> Vec<u8> {
        use vm_memory::Bytes;
        let mut out = vec![0; bytes as usize];
        let slice = self.region(at);
        let slice = slice.as_volatile_slice();
        let from = (at % self.step_bytes) as usize;
        slice.read_slice(&mut out, from).unwrap();
        out
    }

    pub(super) fn write(&self, at: u64, data: &[u8]) {
        use vm_memory::Bytes;
        let region = self.region(at);
        let to = (at % self.step_bytes) as usize;
        region.as_volatile_slice().write_slice(data, to).unwrap();
    }
}

/// A file in huge pages, all allocated now: access to a missing one later would kill the process.
fn huge_file(bytes: u64) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let fd: OwnedFd = memfd_create("turnstile-mover", flags)?;
    ftruncate(&fd, bytes)?;
    fallocate(&fd, FallocateFlags::empty(), 0, bytes)?;
    Ok(File::from(fd))
}

impl Pages {
    /// The pages in order.
    pub(super) fn spans(&self) -> &[Span] {
        &self.spans
    }
}

#[cfg(test)]
impl Pages {
    pub(super) fn content(&self) -> Vec<u8> {
        let spans = self.spans.iter();
        spans.flat_map(|span| self.pool.read(*span)).collect()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let mut table = self.pool.lock();
        for span in self.spans.drain(..) {
            table.stale.insert(span, self.pool.step_bytes);
        }
        drop(table);
        self.pool.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STEP: u64 = 4 * CHUNK_BYTES;
    const NOW: Duration = Duration::ZERO;

    /// Grows the pool as its own thread would, and scrubs nothing.
    fn grown(bytes: u64) -> Arc<Pool> {
        let pool = Arc::new(Pool::new(bytes, STEP));
        while pool.bytes().0 < bytes {
            let Chore::Grow(_, bytes) = pool.next_chore() else {
                panic!("it is to grow first");
            };
            pool.grow(Some(Segment::new(bytes).unwrap()));
        }
        pool
    }

    #[test]
    fn pages_that_were_given_back_are_zero_soon_and_taken_before_that() {
        let pool = grown(STEP);
        let pages = pool.take(CHUNK_BYTES, NOW).unwrap();
        let span = pages.spans()[0];
        pool.write(span.0, &[7; CHUNK_BYTES as usize]);
        drop(pages);
        let again = pool.take(CHUNK_BYTES, NOW).unwrap();
        assert_eq!(again.spans(), [span], "to be overwritten");
        drop(again);
        assert_eq!(pool.read(span)[0], 7);
        let Chore::Scrub(scrubbed) = pool.next_chore() else {
            panic!("there is something to scrub");
        };
        assert_eq!(pool.bytes(), (STEP, 0));
        assert!(pool.take(STEP, NOW).is_none(), "not at this moment");
        let waiting = pool.clone();
        let all = std::thread::spawn(move || {
            let all = waiting.take(STEP, Duration::from_secs(20));
            all.map(drop).is_some()
        });
        pool.scrub(scrubbed);
        assert!(all.join().unwrap(), "soon after");
        while pool.lock().stale.bytes > 0 {
            let Chore::Scrub(rest) = pool.next_chore() else {
                panic!("there is more to scrub");
            };
            pool.scrub(rest);
        }
        assert!(pool.read(span).iter().all(|byte| *byte == 0));
        pool.end();
        assert_eq!(pool.next_chore(), Chore::End);
    }

    #[test]
    fn take_waits_until_the_pool_has_grown_and_fails_at_its_limit() {
        let pool = Arc::new(Pool::new(2 * STEP, STEP));
        assert!(pool.take(CHUNK_BYTES, NOW).is_none(), "not grown yet");
        let waiting = pool.clone();
        let taken = std::thread::spawn(move || {
            let pages = waiting.take(2 * STEP, Duration::from_secs(20));
            pages.map(|pages| pages.spans().len())
        });
        for at in [0, STEP] {
            assert_eq!(pool.next_chore(), Chore::Grow(at, STEP));
            pool.grow(Some(Segment::new(STEP).unwrap()));
        }
        assert_eq!(taken.join().unwrap(), Some(2), "none spans two files");
        assert!(pool.wait_grown(2 * STEP, NOW));
        assert!(!pool.wait_grown(3 * STEP, NOW));
        let refused = pool.take(3 * STEP, Duration::from_secs(20));
        assert!(refused.is_none(), "it grows no more");
    }

    #[test]
    fn a_host_without_memory_makes_a_smaller_pool() {
        let pool = Arc::new(Pool::new(3 * STEP, STEP));
        pool.next_chore();
        pool.grow(Some(Segment::new(STEP).unwrap()));
        pool.next_chore();
        pool.grow(None);
        assert_eq!(pool.bytes(), (STEP, 0));
        assert!(pool.take(2 * STEP, Duration::from_secs(20)).is_none());
        assert!(pool.take(STEP, NOW).is_some());
    }

    proptest! {
        /// No page is given out twice, none is lost, and no span crosses two files.
        #[test]
        fn pages_are_conserved(steps in prop::collection::vec((1u64..6, any::<usize>(), any::<bool>()), 1..60)) {
            let pool = grown(3 * STEP);
            let mut held: Vec<Pages> = Vec::new();
            for (chunks, nth, back) in steps {
                if back && !held.is_empty() {
                    held.swap_remove(nth % held.len());
                } else if let Some(pages) = pool.take(chunks * CHUNK_BYTES, NOW) {
                    let sum: u64 = pages.spans().iter().map(|span| span.1).sum();
                    prop_assert_eq!(sum, chunks * CHUNK_BYTES);
                    held.push(pages);
                }
                let mut spans: Vec<Span> = held.iter().flat_map(Pages::spans).copied().collect();
                spans.sort_unstable();
                for pair in spans.windows(2) {
                    prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0);
                }
                for (at, bytes) in &spans {
                    prop_assert_eq!(at / STEP, (at + bytes - 1) / STEP);
                }
                let used: u64 = spans.iter().map(|span| span.1).sum();
                prop_assert_eq!(pool.bytes(), (3 * STEP, used));
            }
        }
    }
}
