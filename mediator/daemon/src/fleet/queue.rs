//! VMs that wait for a place: in the order in which they connected, as many as are configured.
//!
//! In: a VM that fits on no GPU now, by its connection. Out: its connection's number, once the rule
//! has a place for it. One that does not fit delays no other. A place is held for a VM from then on
//! until it is admitted or its connection ends.
//!
//! Invariants: at most `places_max` VMs wait, at most half of them of one account. All of it is
//! under the lock of places.

use std::sync::Arc;

use turnstile_policies::place::{self, Job, Placed, Rule};

/// A VM in the queue.
#[derive(Debug)]
struct Queued {
    /// Number of its connection.
    session: u32,
    name: String,
    account: Arc<str>,
    job: Job,
    /// Its place, once it has one; none while it waits.
    placed: Option<Placed>,
}

/// VMs that wait for a place.
#[derive(Debug, Default)]
pub(super) struct Queue {
    places_max: usize,
    queued: Vec<Queued>,
}

/// A connection that may be answered later.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    /// Number of the connection.
    pub(crate) session: u32,
    /// The account for which it counts.
    pub(crate) account: Arc<str>,
    /// Whether its VMM can wait: it knows the message.
    pub(crate) can_wait: bool,
}

/// A VM that waits, as readers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingVm {
    /// Name of the tenant.
    pub name: String,
    /// Its account, where that is known.
    pub account: Option<String>,
    /// GPU memory that it needs.
    pub gpu_memory_bytes: u64,
    /// Its place in line, from 1.
    pub place: u32,
    /// Why it has no GPU.
    pub reason: String,
}

impl Queue {
    pub(super) const fn of(places_max: usize) -> Self {
        Self {
            places_max,
            queued: Vec::new(),
        }
    }

    /// Whether any VM can ever wait.
    pub(super) const fn is_on(&self) -> bool {
        self.places_max > 0
    }

    /// Adds a VM at the end; false if there is no room for it.
    pub(super) fn add(&mut self, waiter: &Waiter, name: &str, job: Job) -> bool {
        let of_account = |one: &&Queued| one.account == waiter.account;
        let own = self.queued.iter().filter(of_account).count();
        let room = self.queued.len() < self.places_max && own < self.places_max.div_ceil(2);
        if room && waiter.can_wait {
            self.queued.push(Queued {
                session: waiter.session,
                name: name.to_owned(),
                account: waiter.account.clone(),
                job,
                placed: None,
            });
        }
        room && waiter.can_wait
    }

    /// Places those that fit, the first first. True if there are any.
    pub(super) fn place(&mut self, gpus: &mut place::Fleet, rule: Rule) -> bool {
        let mut any = false;
        for one in self.queued.iter_mut().filter(|one| one.placed.is_none()) {
            // Memory that no GPU has was refused when it connected.
            one.placed = gpus.place(rule, one.job).ok().flatten();
            any |= one.placed.is_some();
        }
        any
    }

    /// Connections of VMs with a place.
    pub(super) fn placed(&self) -> Vec<u32> {
        let placed = self.queued.iter().filter(|one| one.placed.is_some());
        placed.map(|one| one.session).collect()
    }

    /// Whether a connection's VM is in the queue.
    pub(super) fn has(&self, session: u32) -> bool {
        self.queued.iter().any(|one| one.session == session)
    }

    /// Takes a VM out if it has a place: its name, and the place.
    pub(super) fn take_placed(&mut self, session: u32) -> Option<(String, Placed)> {
        let mut all = self.queued.iter_mut();
        let one = all.find(|one| one.session == session)?;
        let placed = one.placed.take()?;
        let (name, _) = self.take(session)?;
        Some((name, placed))
    }

    /// Takes a VM out: its name, and its place if it has one.
    pub(super) fn take(&mut self, session: u32) -> Option<(String, Option<Placed>)> {
        let mut all = self.queued.iter();
        let index = all.position(|one| one.session == session)?;
        let one = self.queued.remove(index);
        Some((one.name, one.placed))
    }

    /// Takes the places on a GPU back: their VMs wait again.
    pub(super) fn displace(&mut self, gpus: &mut place::Fleet, gpu: usize) {
        for one in &mut self.queued {
            if let Some(placed) = one.placed.take_if(|placed| placed.gpu == gpu) {
                gpus.release(&placed);
            }
        }
    }

    /// Those without a place: name, account and memory.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (&str, &str, u64)> {
        let waits = self.queued.iter().filter(|one| one.placed.is_none());
        waits.map(|one| (&*one.name, &*one.account, one.job.memory_bytes))
    }
}

#[cfg(test)]
mod tests {
    use turnstile_policies::place::GpuSize;

    use super::*;

    fn waiter(session: u32, account: &str) -> Waiter {
        Waiter {
            session,
            account: account.into(),
            can_wait: true,
        }
    }

    fn job(memory_bytes: u64) -> Job {
        Job {
            memory_bytes,
            blocks: 1,
            threads: 32,
        }
    }

    fn gpus(sizes: &[u64]) -> place::Fleet {
        let size = |memory_bytes: &u64| GpuSize {
            sms: 1,
            blocks: 32,
            warps: 64,
            memory_bytes: *memory_bytes,
        };
        place::Fleet::new(&sizes.iter().map(size).collect::<Vec<_>>())
    }

    #[test]
    fn first_that_fits_is_placed_and_one_that_does_not_delays_no_other() {
        let (mut queue, mut gpus) = (Queue::of(8), gpus(&[8, 4]));
        let all = gpus.place(Rule::Spread, job(8)).unwrap().unwrap();
        for (session, bytes) in [(1, 8), (2, 3), (3, 4), (4, 1)] {
            let account = format!("user-{}", session % 2);
            assert!(queue.add(&waiter(session, &account), "a", job(bytes)));
        }
        assert!(queue.place(&mut gpus, Rule::Spread));
        assert_eq!(queue.placed(), [2, 4]);
        let left: Vec<u64> = queue.waiting().map(|(_, _, bytes)| bytes).collect();
        assert_eq!(left, [8, 4]);
        assert!(!queue.place(&mut gpus, Rule::Spread));
        gpus.release(&all);
        assert!(queue.place(&mut gpus, Rule::Spread));
        assert_eq!(queue.placed(), [1, 2, 4]);
        // One that leaves gives its place to the next.
        let (_, placed) = queue.take(1).unwrap();
        gpus.release(&placed.unwrap());
        assert!(queue.place(&mut gpus, Rule::Spread));
        assert_eq!(queue.placed(), [2, 3, 4]);
        // A GPU that is removed gives none.
        queue.displace(&mut gpus, 1);
        gpus.close(1, true);
        assert_eq!(queue.placed(), [3]);
        assert!(queue.take(9).is_none());
    }

    #[test]
    fn places_are_bounded_in_all_and_for_an_account() {
        let mut queue = Queue::of(3);
        assert!(queue.add(&waiter(1, "a"), "1", job(1)));
        assert!(queue.add(&waiter(2, "a"), "2", job(1)));
        assert!(!queue.add(&waiter(3, "a"), "3", job(1)), "half of them");
        let old = Waiter {
            can_wait: false,
            ..waiter(4, "b")
        };
        assert!(!queue.add(&old, "4", job(1)), "its VMM would not wait");
        assert!(queue.add(&waiter(5, "b"), "5", job(1)));
        assert!(!queue.add(&waiter(6, "c"), "6", job(1)), "all of them");
        assert!(!Queue::of(0).is_on());
    }
}
