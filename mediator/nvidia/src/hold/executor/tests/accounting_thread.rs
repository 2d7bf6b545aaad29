//! Orders that the accounting thread carries out, and those that it leaves to the executor.

use super::*;

impl Rig {
    /// The accounting thread carries out orders before it sleeps. Whether there were any.
    fn run_pending(&self) -> bool {
        let before = self.executor.work().count;
        let shared = Shared(self.fake.clone());
        self.executor.run_pending(&self.holder, &shared, true);
        self.executor.work().count > before
    }
}

#[test]
fn the_accounting_thread_carries_out_orders_before_it_sleeps() {
    // There is no thread that would do it.
    let rig = Rig::new();
    rig.executor.caller_awakes();
    rig.executor.submit_all(&[(A, true), (B, false)]);
    assert!(rig.executor.is_pending());
    assert!(rig.run_pending(), "orders were carried out");
    assert!(!rig.executor.is_pending() && rig.executor.is_held(A));
    let all = channels(6);
    let off = Event::Off(all[..4].to_vec());
    assert!(rig.fake.until(|_| true).contains(&off));
    assert_eq!(rig.executor.work().count, 1);
    assert!(!rig.run_pending(), "no order is left");
}

#[test]
fn orders_given_while_it_sleeps_are_carried_out_by_the_executor() {
    let mut rig = Rig::new();
    rig.start();
    rig.executor.caller_awakes();
    assert!(!rig.run_pending());
    rig.executor.submit(A, true);
    rig.fake.until(|events| events.contains(&Event::Held(A)));
    rig.settle();
    rig.end();
    rig.executor.submit(B, true);
    assert!(
        !rig.run_pending() && !rig.executor.is_held(B),
        "it has ended"
    );
}

#[test]
fn orders_given_while_the_executor_works_are_left_to_it() {
    let rig = Rig::new();
    rig.executor.caller_awakes();
    rig.executor.submit(A, true);
    {
        let _at_it = lock(&rig.holder.0);
        assert!(!rig.run_pending());
    }
    assert!(rig.executor.is_pending() && !rig.executor.is_held(A));
}

#[test]
fn without_a_watchdog_the_accounting_thread_leaves_orders_to_the_executor() {
    let mut rig = Rig::new();
    rig.fake.watchdog_gone.store(true, Ordering::SeqCst);
    rig.executor.caller_awakes();
    rig.executor.submit(A, true);
    assert!(rig.run_pending(), "it tried");
    assert!(!rig.executor.is_held(A) && rig.calls().iter().all(|(suspended, _)| !suspended));
    rig.executor.caller_awakes();
    rig.executor.submit(B, true);
    assert!(!rig.run_pending());
    let not_repaired = lock(&rig.fake.repaired_by).is_none();
    assert!(not_repaired, "it may not start a process or wait for one");
    rig.start();
    let both = |events: &[Event]| [A, B].iter().all(|of| events.contains(&Event::Held(*of)));
    rig.fake.until(both);
    let repaired_by = *lock(&rig.fake.repaired_by);
    assert!(repaired_by.is_some_and(|by| by != thread::current().id()));
    assert_eq!(rig.fake.watchdogs.load(Ordering::SeqCst), 1);
    rig.settle();
    rig.end();
}

#[test]
fn the_accounting_thread_renews_the_lease() {
    let rig = Rig::new();
    rig.executor.submit(A, true);
    assert!(rig.run_pending());
    let renewals = |events: &[Event]| {
        let renewed = |event: &&Event| **event == Event::Watchdog(Order::Renew);
        events.iter().filter(renewed).count()
    };
    let begin = Instant::now();
    while renewals(&rig.fake.until(|_| true)) == 0 {
        // TIMEOUT: as above.
        assert!(begin.elapsed() < Duration::from_secs(20));
        assert!(!rig.run_pending(), "no order is carried out");
        thread::yield_now();
    }
    assert!(begin.elapsed() >= RENEWAL / 2, "not each time");
}
