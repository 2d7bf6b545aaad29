//! Calls that look at addresses on the CPU wait while memory is away.
//!
//! The driver checks the addresses of copies and fills when they are called, not when they run: of memory that is away it would
//! say that there is none, or take it for the host's. Launches name no addresses to the driver and pass.
//!
//! A stopped program's work is seen by nobody: who waits here, submits while memory is away, or has submitted since it was last
//! all there, has it said that the memory is wanted, once for each time that it goes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// TIMEOUT: so long a call that is under way may take to look at its addresses: the driver does that first. A call that takes
/// longer waits for the GPU.
const LOOKS: Duration = Duration::from_millis(5);
const PAUSE: Duration = Duration::from_micros(50);

/// The gate.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// Something was submitted since everything was last there.
    used: AtomicBool,
    /// While something is away: it was said that it is wanted.
    said: AtomicBool,
    /// Chunks that are away.
    away: AtomicU64,
    /// Counts up with each that goes.
    gone: AtomicU64,
    /// Calls that are under way.
    inside: AtomicU64,
    waiting: Mutex<()>,
    home: Condvar,
}

impl Gate {
    /// Makes a call, once everything is there. What the driver refuses, as `is_refused` says, while something left is called
    /// again: it has done nothing. `wants` is called if it has to wait and nobody has said so.
    pub(crate) fn call<R: Copy>(
        &self,
        call: impl Fn() -> R,
        is_refused: impl Fn(R) -> bool,
        wants: impl Fn(),
    ) -> R {
        loop {
            self.enter(&wants);
            let before = self.gone.load(Ordering::SeqCst);
            let result = call();
            self.inside.fetch_sub(1, Ordering::SeqCst);
            if !is_refused(result) || self.gone.load(Ordering::SeqCst) == before {
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
            if self.says() {
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

    /// Whether it is to be said that what is away is wanted.
    fn says(&self) -> bool {
        !self.said.swap(true, Ordering::SeqCst)
    }

    /// Something is submitted that need not wait. True if it is to be said that what is away is wanted.
    pub(crate) fn submits(&self) -> bool {
        // Before the look: who takes memory away at this moment sees one of both.
        self.uses();
        self.away.load(Ordering::SeqCst) > 0 && !self.said.load(Ordering::SeqCst) && self.says()
    }

    /// A chunk is about to go. True if it is to be said at once that it is wanted: something that was submitted may not have
    /// ended.
    pub(crate) fn leaves(&self) -> bool {
        self.gone.fetch_add(1, Ordering::SeqCst);
        if self.away.fetch_add(1, Ordering::SeqCst) > 0 {
            return false;
        }
        let until = Instant::now() + LOOKS;
        while self.inside.load(Ordering::SeqCst) > 0 && Instant::now() < until {
            thread::sleep(PAUSE);
        }
        self.used.load(Ordering::SeqCst) && self.says()
    }

    /// A chunk is back, or of no interest any more.
    pub(crate) fn returns(&self) {
        let less = |away: u64| Some(away.saturating_sub(1));
        let before = self
            .away
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        if before.is_ok_and(|before| before <= 1) {
            self.open();
        }
    }

    /// What is away does not come back: calls are not to wait for it. Returns how many chunks were.
    pub(crate) fn give_up(&self) -> u64 {
        let away = self.away.swap(0, Ordering::SeqCst);
        self.open();
        away
    }

    fn open(&self) {
        // What was submitted before is over by the time that its owner is taken for idle; the daemon looks in on the others.
        self.used.store(false, Ordering::SeqCst);
        self.said.store(false, Ordering::SeqCst);
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
        let (made, said) = (AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            let calling = scope.spawn(|| {
                gate.call(
                    || {
                        if made.fetch_add(1, Ordering::SeqCst) == 0 {
                            // It leaves while this call is under way, and is back before the next.
                            gate.leaves();
                            gate.returns();
                            return 1;
                        }
                        0
                    },
                    |result| result == 1,
                    || {
                        said.fetch_add(1, Ordering::SeqCst);
                    },
                )
            });
            gate.returns();
            assert_eq!(made.load(Ordering::SeqCst), 0, "one is still away");
            gate.returns();
            assert_eq!(calling.join().unwrap(), 0);
        });
        assert_eq!(made.load(Ordering::SeqCst), 2);
        let nobody = || unreachable!();
        let refused = gate.call(|| 1, |result| result == 1, nobody);
        assert_eq!(refused, 1, "for good");
        assert!(said.load(Ordering::SeqCst) <= 1, "it may have come late");
    }

    #[test]
    fn what_is_submitted_is_said_once_for_each_time_that_memory_goes() {
        let gate = Gate::default();
        assert!(!gate.submits(), "all is there");
        assert!(gate.leaves(), "it may not have ended");
        assert!(!gate.submits(), "that was said");
        gate.returns();
        assert!(!gate.leaves(), "nothing came since");
        assert!(gate.submits() && !gate.submits());
        gate.returns();
        assert!(!gate.leaves());
        assert_eq!(gate.give_up(), 1);
    }

    #[test]
    fn a_call_that_waits_for_the_gpu_delays_nobody_for_long() {
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
