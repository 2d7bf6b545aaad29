//! From one tenant to the next: the order of the calls, and what is suspended besides.

use super::*;

#[test]
fn at_a_handover_one_tenant_is_off_the_schedule_before_the_next_runs() {
    let mut rig = Rig::new();
    let all = channels(6);
    rig.start();
    rig.executor.submit(B, true);
    rig.settle();
    assert!(rig.executor.is_held(B));
    let expected = [
        Event::Takes(B),
        Event::Watchdog(Order::Hold(all[4..].to_vec())),
        Event::Call(true, all[4..].to_vec()),
        Event::Leaves,
        Event::Held(B),
    ];
    assert_eq!(
        *lock(&rig.fake.events),
        expected,
        "no other tenant is released"
    );
    rig.executor.submit_all(&[(B, false), (A, true)]);
    rig.settle();
    let events = lock(&rig.fake.events).clone();
    let expected = [
        Event::Watchdog(Order::Hold(all[..4].to_vec())),
        Event::Off(all[..4].to_vec()),
        Event::Call(false, all[4..].to_vec()),
        Event::Watchdog(Order::Release(all[4..].to_vec())),
        Event::Runs(B),
        Event::Held(A),
    ];
    let from = events.iter().position(|event| *event == expected[0]);
    assert!(
        from.is_some_and(|from| events[from..].starts_with(&expected)),
        "the watchdog has the order before the call: {events:?}"
    );
    assert!(rig.executor.is_held(A) && !rig.executor.is_held(B));
    assert_eq!(rig.executor.calls().failed, 0);
    assert!(rig.executor.work().count >= 2);
}

#[test]
fn a_tenant_that_stays_resident_at_a_handover_is_suspended() {
    let mut rig = Rig::new();
    let all = channels(6);
    *lock(&rig.fake.resident) = Some(A);
    // Before the thread starts, so that it takes both together.
    rig.executor.submit(A, true);
    rig.executor.submit(B, false);
    assert!(rig.executor.is_pending());
    rig.start();
    rig.fake
        .until(|events| events.contains(&Event::Call(true, all[..4].to_vec())));
    rig.settle();
    assert!(rig.executor.is_held(A));
    let own = [(false, all[..4].to_vec()), (true, all[..4].to_vec())];
    assert_eq!(rig.calls(), own, "on the schedule again, then suspended");
}

#[test]
fn memory_moves_after_its_owner_has_left_the_engine() {
    let mut rig = Rig::new();
    let all = channels(6);
    *lock(&rig.fake.resident) = Some(A);
    rig.executor.submit(A, true);
    rig.executor.submit(B, false);
    rig.start();
    let events = rig.fake.until(|events| events.contains(&Event::Held(A)));
    let at = |event| events.iter().position(|other| *other == event);
    let stopped = at(Event::Call(true, all[..4].to_vec()));
    assert!(
        stopped.is_some() && stopped < at(Event::Held(A)),
        "{events:?}"
    );
    // It is suspended already: pinning makes no call.
    rig.settle();
    let before = rig.calls().len();
    rig.executor.pin(A, true).unwrap();
    assert_eq!(rig.calls().len(), before);
}

#[test]
fn a_tenant_that_lacks_memory_is_suspended_at_a_handover_too() {
    let mut rig = Rig::new();
    let all = channels(6);
    rig.fake.lacks.store(true, Ordering::SeqCst);
    rig.executor.submit(A, true);
    rig.executor.submit(B, false);
    rig.start();
    rig.settle();
    assert_eq!(rig.calls(), [(true, all[..4].to_vec())]);
}

#[test]
fn a_tenant_off_the_schedule_is_suspended_before_its_memory_moves() {
    let mut rig = Rig::new();
    let all = channels(6);
    rig.executor.submit(A, true);
    rig.executor.submit(B, false);
    rig.start();
    rig.settle();
    assert!(rig.calls().is_empty(), "off the schedule alone");
    rig.executor.pin(A, true).unwrap();
    let own = [(false, all[..4].to_vec()), (true, all[..4].to_vec())];
    assert_eq!(rig.calls(), own);
}

#[test]
fn a_tenant_with_a_request_at_a_handover_runs_until_it_is_done() {
    let mut rig = Rig::new();
    rig.fake.serves.store(true, Ordering::SeqCst);
    rig.executor.submit(A, true);
    rig.executor.submit(B, false);
    rig.start();
    rig.fake.until(|events| events.contains(&Event::Runs(A)));
    rig.fake.serves.store(false, Ordering::SeqCst);
    // No request is served any more: it is held at once.
    let held = |events: &[Event]| {
        events
            .iter()
            .filter(|event| **event == Event::Held(A))
            .count()
    };
    rig.fake.until(|events| held(events) >= 2);
    rig.settle();
    assert!(rig.executor.is_held(A));
}
