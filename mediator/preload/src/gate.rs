//! Calls that check addresses on the CPU wait while chunks are missing.
//!
//! The driver checks the addresses of copies and fills at the call, not when they run. It would
//! refuse the address of a missing chunk, or take it for a host address. Launches pass no addresses
//! to the driver, so that they need not wait.
//!
//! The work of a suspended program is not visible elsewhere. So this reports that missing memory is
//! wanted, once for each time that chunks leave. It does so if a call waits here, or if work is
//! submitted while chunks are missing. It also does so when a chunk leaves, if work was submitted
//! since none was missing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// TIMEOUT: time for a call in progress to check its addresses, which the driver does first. A call
/// that takes longer waits for the GPU.
const CALLS_WAIT_MAX: Duration = Duration::from_millis(5);
const PAUSE: Duration = Duration::from_micros(50);

/// Counts of missing chunks and of calls in progress.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// Work was submitted since all chunks were last resident.
    used: AtomicBool,
    /// While chunks are missing: it was reported that they are wanted.
    reported: AtomicBool,
    /// Number of missing chunks.
    away: AtomicU64,
    /// Number of chunks that ever left.
    departures: AtomicU64,
    /// Number of calls in progress.
    inside: AtomicU64,
    waiting: Mutex<()>,
    home: Condvar,
}

impl Gate {
    /// Makes a call once all chunks are resident. A call that the driver refused (`is_refused`) is
    /// repeated if a chunk left meanwhile: it had no effect. Calls `wants` if the call has to wait
    /// and that was not reported yet.
    pub(crate) fn call<R: Copy>(
        &self,
        call: impl Fn() -> R,
        is_refused: impl Fn(R) -> bool,
        wants: impl Fn(),
    ) -> R {
        loop {
            self.enter(&wants);
            let before = self.departures.load(Ordering::SeqCst);
            let result = call();
            self.inside.fetch_sub(1, Ordering::SeqCst);
            if !is_refused(result) || self.departures.load(Ordering::SeqCst) == before {
                return result;
            }
        }
    }

    fn enter(&self, wants: impl Fn()) {
        loop {
            self.inside.fetch_add(1, Ordering::SeqCst);
            if self.away.load(Ordering::SeqCst) == 0 {
                self.uses();
                return;
            }
            self.inside.fetch_sub(1, Ordering::SeqCst);
            if self.needs_report() {
                wants();
            }
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            while self.away.load(Ordering::SeqCst) > 0 {
                waiting = self
                    .home
                    .wait(waiting)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn uses(&self) {
        // Usually set, so that nothing is written.
        if !self.used.load(Ordering::SeqCst) {
            self.used.store(true, Ordering::SeqCst);
        }
    }

    /// Whether the caller has to report that missing memory is wanted.
    fn needs_report(&self) -> bool {
        !self.reported.swap(true, Ordering::SeqCst)
    }

    /// Notes work that need not wait. True if the caller has to report that missing memory is
    /// wanted.
    pub(crate) fn submits(&self) -> bool {
        // Before `away` is read: a thread that releases a chunk now sees `used`, or this one sees
        // `away`.
        self.uses();
        self.away.load(Ordering::SeqCst) > 0
            && !self.reported.load(Ordering::SeqCst)
            && self.needs_report()
    }

    /// Notes that a chunk is about to leave. True if the caller has to report at once that it is
    /// wanted: submitted work may not have ended.
    pub(crate) fn leaves(&self) -> bool {
        self.departures.fetch_add(1, Ordering::SeqCst);
        if self.away.fetch_add(1, Ordering::SeqCst) > 0 {
            return false;
        }
        let until = Instant::now() + CALLS_WAIT_MAX;
        while self.inside.load(Ordering::SeqCst) > 0 && Instant::now() < until {
            thread::sleep(PAUSE);
        }
        self.used.load(Ordering::SeqCst) && self.needs_report()
    }

    /// Notes that a chunk is back, or was freed.
    pub(crate) fn returns(&self) {
        let less = |away: u64| Some(away.saturating_sub(1));
        let before = self
            .away
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        if before.is_ok_and(|before| before <= 1) {
            self.open();
        }
    }

    /// Missing chunks do not return: calls must not wait for them. Returns how many were missing.
    pub(crate) fn give_up(&self) -> u64 {
        let away = self.away.swap(0, Ordering::SeqCst);
        self.open();
        away
    }

    fn open(&self) {
        // Earlier work has ended by the time that its tenant counts as idle; the daemon polls the
        // others.
        self.used.store(false, Ordering::SeqCst);
        self.reported.store(false, Ordering::SeqCst);
        let _waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        self.home.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn calls_wait_while_something_is_away_and_are_made_again_if_it_left_meanwhile() {
        let gate = Gate::default();
        assert!(!gate.leaves() && !gate.leaves(), "nothing was submitted");
        let (made, reports) = (AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            let calling = scope.spawn(|| {
                gate.call(
                    || {
                        if made.fetch_add(1, Ordering::SeqCst) == 0 {
                            // It leaves during this call, and is back before the next.
                            gate.leaves();
                            gate.returns();
                            return 1;
                        }
                        0
                    },
                    |result| result == 1,
                    || {
                        reports.fetch_add(1, Ordering::SeqCst);
                    },
                )
            });
            gate.returns();
            assert_eq!(made.load(Ordering::SeqCst), 0, "one is still away");
            gate.returns();
            assert_eq!(calling.join().unwrap(), 0);
        });
        assert_eq!(made.load(Ordering::SeqCst), 2);
        let not_reported = || unreachable!();
        let refused = gate.call(|| 1, |result| result == 1, not_reported);
        assert_eq!(refused, 1, "for good");
        assert!(reports.load(Ordering::SeqCst) <= 1, "it may have come late");
    }

    #[test]
    fn submission_is_reported_once_per_release_of_memory() {
        let gate = Gate::default();
        assert!(!gate.submits(), "all is there");
        assert!(gate.leaves(), "it may not have ended");
        assert!(!gate.submits(), "reported already");
        gate.returns();
        assert!(!gate.leaves(), "nothing came since");
        assert!(gate.submits() && !gate.submits());
        gate.returns();
        assert!(!gate.leaves());
        assert_eq!(gate.give_up(), 1);
    }

    #[test]
    fn call_that_waits_for_the_gpu_does_not_block_a_release() {
        let gate = Gate::default();
        let end = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                gate.call(
                    || {
                        while !end.load(Ordering::SeqCst) {
                            thread::yield_now();
                        }
                    },
                    |()| false,
                    || {},
                );
            });
            while gate.inside.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            gate.leaves();
            gate.give_up();
            end.store(true, Ordering::SeqCst);
        });
        gate.returns();
        assert_eq!(gate.away.load(Ordering::SeqCst), 0);
    }
}
