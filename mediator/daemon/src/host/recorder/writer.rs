//! The thread that writes a ledger: closed entries and changes, in order, until each is on disk.
//!
//! In: batches of entries and changes of settings, from [`super::Recorder`]. Out: rows of the
//! store, and in [`Shared`] how the writing stands. A write that fails is repeated until it
//! succeeds or the daemon ends.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use turnstile_accounting::record::{
    Body, Digest, Entry, GapCause, GpuIdentity, Stretch, Tail, UnixNanos,
};
use turnstile_accounting::renumber::follow;
use turnstile_accounting::store::{Store, StoreError};
use turnstile_accounting::{Moment, Nanos};

use super::{Letter, Shared, SharedStore};
use crate::error::chain;

/// TIMEOUT: between two attempts on a disk that takes nothing; a window is many times longer.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// Attempts that are left when the daemon stops: it does not hang on a dead disk.
const LAST_ATTEMPTS: u32 = 3;

/// TIMEOUT: between two lines of the log about a ledger that is not written.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// TIMEOUT: another writer of the same entries has ended when it added none for this long, and for
/// two windows.
pub(super) const QUIET: Duration = Duration::from_secs(5);

/// How often what is too old is discarded, by the calendar of the entries.
const RETAIN_EVERY: Nanos = Nanos(3_600_000_000_000);

/// Where an entry ends on the GPU's clock; none of a gap between two runs.
fn end_of(entry: &Entry) -> Option<Moment> {
    let Stretch {
        from, length_ns, ..
    } = entry.stretch;
    let down = matches!(
        entry.body,
        Body::Gap {
            cause: GapCause::Down
        }
    );
    (!down).then(|| from + length_ns)
}

/// Writes something to the store; may be repeated.
type Attempt<'a> = dyn FnMut(&mut Writer) -> Result<(), StoreError> + 'a;

pub(super) struct Writer {
    pub(super) store: SharedStore,
    pub(super) gpu: GpuIdentity,
    pub(super) keep_ns: Option<Nanos>,
    /// End of the last entry at the latest discard of old entries, on both clocks.
    pub(super) retained: Option<(UnixNanos, Moment)>,
    /// The last entry of the ledger that this process knows.
    pub(super) tail: Option<Tail>,
    /// The last entry that another writer added, and when it was first read.
    pub(super) overtaken: Option<(Option<Tail>, Instant)>,
    /// Time after which another writer that added nothing has ended.
    pub(super) quiet: Duration,
    pub(super) shared: Arc<Shared>,
    pub(super) stop: Receiver<()>,
}

impl Writer {
    fn store(&self) -> MutexGuard<'_, Box<dyn Store>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn run(mut self, letters: &Receiver<Letter>) {
        let mut given_up = false;
        for letter in letters {
            match letter {
                Letter::Closed(batch) => {
                    for entry in &batch {
                        // After a lost entry no further ones can be written.
                        given_up = given_up || !self.write(entry);
                    }
                    self.shared.in_flight.fetch_sub(1, Ordering::AcqRel);
                    if let (Some(last), false) = (batch.last(), given_up)
                        && let Some(at) = end_of(last)
                    {
                        self.retain(last.stretch.end, at);
                    }
                }
                Letter::Draft(draft) => {
                    self.keep(&draft.0, &draft.1);
                    self.shared.drafting.store(false, Ordering::Release);
                }
                Letter::Changed(change) => {
                    let what = || format!("change {} is lost", change.request);
                    self.attempt(&mut |own| own.store().note(&change).map(drop), &what);
                    self.shared.noting.fetch_sub(1, Ordering::AcqRel);
                }
            }
        }
    }

    fn write(&mut self, entry: &Entry) -> bool {
        let seq = entry.stretch.seq;
        let what = || format!("entry {seq} is lost; it will be a gap");
        let written = self.attempt(&mut |writer| writer.put(entry), &what);
        if written {
            self.shared.written.fetch_add(1, Ordering::Relaxed);
            let to = end_of(entry).map_or(0, |to| to.0);
            self.shared.durable_to.fetch_max(to, Ordering::Relaxed);
        }
        written
    }

    /// Keeps the open window so far. It is not tried again: a later draft replaces it, and a store
    /// that fails is reported by the next entry.
    fn keep(&mut self, after: &Digest, window: &Entry) {
        let own = self.tail.map(|tail| tail.digest);
        // Behind another writer's entries its place is known when it is closed.
        if own.is_some_and(|own| own != *after) {
            return;
        }
        if let Err(error) = self.store().keep(&self.gpu, after, window) {
            log::info!("Ledger: the open window is not kept: {}", chain(&error));
        }
    }

    /// Writes an entry behind the last one of the ledger. The two follow each other, unless another
    /// writer added entries or the file was replaced by an older one.
    fn put(&mut self, entry: &Entry) -> Result<(), StoreError> {
        for entry in follow(&self.gpu, self.tail, entry) {
            let put = self.store().put(&self.gpu, &entry);
            match put {
                Ok(_) => self.tail = Some(Tail::of(&entry)),
                Err(error @ StoreError::Sequence { .. }) => {
                    self.overtaken(error)?;
                    return self.put(&entry);
                }
                Err(error) => return Err(error),
            }
        }
        self.overtaken = None;
        Ok(())
    }

    /// Takes the end that the ledger has now, once no other writer adds entries. Until then it is
    /// the error.
    fn overtaken(&mut self, error: StoreError) -> Result<(), StoreError> {
        let tail = self.store().tail(&self.gpu)?;
        let (seen, since) = *self.overtaken.get_or_insert((tail, Instant::now()));
        if seen != tail {
            self.overtaken = Some((tail, Instant::now()));
            return Err(error);
        }
        if since.elapsed() < self.quiet && !self.ending() {
            return Err(error);
        }
        log::error!("Ledger: another writer added entries; this daemon's follow them");
        self.tail = tail;
        Ok(())
    }

    /// Whether the daemon ends.
    fn ending(&self) -> bool {
        self.stop.try_recv() == Err(TryRecvError::Disconnected)
    }

    /// Retries a write until it succeeds; false if the daemon stops meanwhile and it cannot be
    /// written.
    fn attempt(&mut self, write: &mut Attempt<'_>, what: &dyn Fn() -> String) -> bool {
        let mut last_attempts = LAST_ATTEMPTS;
        let mut reported: Option<Instant> = None;
        loop {
            let error = match write(self) {
                Ok(()) => {
                    if self.shared.failing.swap(false, Ordering::Relaxed) {
                        log::warn!("Ledger: is written again");
                        *self.shared.reason() = None;
                    }
                    return true;
                }
                Err(error) => chain(&error),
            };
            if reported.is_none_or(|at| at.elapsed() >= REPORT_EVERY) {
                reported = Some(Instant::now());
                log::error!("Ledger: not written, trying again: {error}");
            }
            *self.shared.reason() = Some(error);
            self.shared.failing.store(true, Ordering::Relaxed);
            if self.stop.recv_timeout(RETRY) == Err(RecvTimeoutError::Disconnected) {
                self.store().ending();
                last_attempts -= 1;
                if last_attempts == 0 {
                    self.shared.lost.store(true, Ordering::Relaxed);
                    log::error!("Ledger: {}", what());
                    return false;
                }
            }
        }
    }

    /// Discards entries past their retention each hour of the GPU's clock. The first time is an
    /// hour after the start: a calendar that was wrong at the start has been set by then.
    fn retain(&mut self, now: UnixNanos, at: Moment) {
        let Some(keep) = self.keep_ns else { return };
        let (before, since) = *self.retained.get_or_insert((now, at));
        let passed = at.since(since);
        if passed < RETAIN_EVERY {
            return;
        }
        self.retained = Some((now, at));
        let labelled = now.0.saturating_sub(before.0);
        if labelled.saturating_sub(passed.0) > RETAIN_EVERY.0 {
            log::error!(
                "Ledger: nothing discarded: the calendar moved by {} s in {}; is the host's clock right?",
                labelled / 1_000_000_000,
                passed.0 / 1_000_000_000
            );
            return;
        }
        let before = UnixNanos(now.0.saturating_sub(keep.0));
        match self.store().retain(&self.gpu.node, before) {
            Ok(retained) => log::info!("Ledger: {} entries were too old", retained.entries),
            Err(error) => log::error!("Ledger: nothing discarded: {}", chain(&error)),
        }
    }
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
