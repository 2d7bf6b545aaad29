//! A mutex with a rank: the order of a crate's locks, asserted in debug builds.
//!
//! In: ranks, the outermost lock's first. Out: guards. A thread takes a lock only while all ranked
//! locks that it holds have lower ranks, or a debug build panics where it would take the lock.
//! Locks that no other lock is taken under need no rank.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

thread_local! {
    /// Ranks of the locks that the thread holds; of debug builds.
    static HELD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

const ASSERTED: bool = cfg!(any(debug_assertions, test));

/// A mutex with a rank. A panic under it is no reason to give up what it protects.
#[derive(Debug)]
pub struct Ranked<T> {
    rank: u8,
    inner: Mutex<T>,
}

impl<T> Ranked<T> {
    /// A lock that may be taken under all locks of lower ranks.
    pub const fn new(rank: u8, value: T) -> Self {
        let inner = Mutex::new(value);
        Self { rank, inner }
    }

    /// Takes the lock.
    pub fn lock(&self) -> RankedGuard<'_, T> {
        // Before it waits, or a wrong order could be a deadlock instead.
        let held = Held::new(self.rank);
        let guard = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        RankedGuard { guard, _held: held }
    }
}

/// A lock that is held.
#[derive(Debug)]
pub struct RankedGuard<'a, T> {
    guard: MutexGuard<'a, T>,
    _held: Held,
}

impl<T> RankedGuard<'_, T> {
    /// Waits for a notice; the lock is free meanwhile.
    pub fn wait(self, notice: &Condvar) -> Self {
        let guard = notice.wait(self.guard);
        Self {
            guard: guard.unwrap_or_else(PoisonError::into_inner),
            ..self
        }
    }
}

impl<T> Deref for RankedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for RankedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// The rank of a lock, on the thread's list while it is held.
#[derive(Debug)]
struct Held(u8);

impl Held {
    fn new(rank: u8) -> Self {
        if ASSERTED {
            HELD.with_borrow_mut(|held| {
                let outer = held.iter().all(|outer| *outer < rank);
                assert!(outer, "a lock of rank {rank} is taken under {held:?}");
                held.push(rank);
            });
        }
        Self(rank)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if ASSERTED {
            HELD.with_borrow_mut(|held| {
                let at = held.iter().rposition(|rank| *rank == self.0);
                at.map(|at| held.remove(at));
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_in_their_order_whatever_the_order_of_release() {
        let (outer, inner) = (Ranked::new(1, 'o'), Ranked::new(2, 'i'));
        let first = outer.lock();
        let second = inner.lock();
        drop(first);
        drop(second);
        assert_eq!((*outer.lock(), *inner.lock()), ('o', 'i'));
    }

    #[test]
    #[should_panic(expected = "a lock of rank 1 is taken under [2]")]
    fn wrong_order_panics_before_it_waits() {
        let (outer, inner) = (Ranked::new(1, ()), Ranked::new(2, ()));
        let _inner = inner.lock();
        let _outer = outer.lock();
    }
}
