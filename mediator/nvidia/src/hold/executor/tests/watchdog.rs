//! Holds and their leases while the watchdog is alive, gone, or replaced.

use super::*;

#[test]
fn without_a_watchdog_no_tenant_is_held() {
    let mut rig = Rig::new();
    let all = channels(6);
    rig.start();
    rig.executor.submit(A, true);
    rig.settle();
    rig.fake.watchdog_gone.store(true, Ordering::SeqCst);
    // Noticed at the next renewal.
    rig.fake.until(|events| events.contains(&Event::Runs(A)));
    assert!(rig.calls().contains(&(false, all[..4].to_vec())));
    // The rule gives no order again: its orders are changes.
    rig.fake.until(|events| {
        let hold = Event::Call(true, all[..4].to_vec());
        events.iter().filter(|event| **event == hold).count() == 2
    });
    assert_eq!(rig.fake.watchdogs.load(Ordering::SeqCst), 1);
    rig.settle();
    assert!(rig.executor.is_held(A));
}

#[test]
fn a_release_without_a_watchdog_stands_when_there_is_another() {
    let mut rig = Rig::new();
    Arc::get_mut(&mut rig.executor).unwrap().watchdog_pause = Duration::from_millis(300);
    rig.start();
    rig.executor.submit(A, true);
    rig.settle();
    rig.fake.watchdog_gone.store(true, Ordering::SeqCst);
    rig.fake.until(|events| events.contains(&Event::Runs(A)));
    rig.executor.submit(A, false);
    let begin = Instant::now();
    while rig.fake.watchdogs.load(Ordering::SeqCst) == 0 {
        assert!(begin.elapsed() < Duration::from_secs(20));
        thread::yield_now();
    }
    rig.end();
    let holds = rig.calls().into_iter().filter(|(hold, _)| *hold).count();
    assert_eq!(holds, 1);
    assert!(!rig.executor.is_held(A));
}

#[test]
fn a_hold_is_renewed_beyond_the_watchdogs_limit() {
    let mut rig = Rig::new();
    rig.start();
    rig.executor.submit(A, true);
    let begin = Instant::now();
    let enough = |events: &[Event]| {
        let renewals = events
            .iter()
            .filter(|event| **event == Event::Watchdog(Order::Renew));
        renewals.count() >= 8
    };
    rig.fake.until(enough);
    assert!(begin.elapsed().as_nanos() > u128::from(LIMIT.0));
    assert!(rig.executor.is_held(A));
    assert_eq!(rig.calls().len(), 1, "no tenant was held twice");
}
