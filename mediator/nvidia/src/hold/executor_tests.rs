//! The executor as it runs in the daemon, over a simulated driver that records its calls.

use super::super::channels::tests::channels;
use super::super::resumed::Activity;
use super::*;
use crate::hold::watchdog::{LIMIT, Order};
use crate::rm::RmError;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};

const A: TenantId = TenantId(1);
const B: TenantId = TenantId(2);

/// Calls and callbacks, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    /// A call of the driver that suspends (`true`) or resumes.
    Call(bool, Vec<Channel>),
    /// A call that takes channels off the schedule.
    Off(Vec<Channel>),
    /// An order that the watchdog was given.
    Watchdog(Order),
    /// The preemptor takes the engine, and leaves it.
    Takes(TenantId),
    Leaves,
    Runs(TenantId),
    /// Its memory may be moved from then on.
    Held(TenantId),
}

/// Driver, watchdog and GPU around the executor.
#[derive(Debug, Default)]
struct Fake {
    events: Mutex<Vec<Event>>,
    changed: Condvar,
    channels: Mutex<BTreeMap<TenantId, Vec<Channel>>>,
    /// The driver refuses.
    refuses: AtomicBool,
    watchdog_gone: AtomicBool,
    /// Resident, whatever is ordered.
    resident: Mutex<Option<TenantId>>,
    watchdogs: AtomicU32,
    /// All tenants lack memory.
    lacks: AtomicBool,
    /// A request of each held tenant is served.
    serves: AtomicBool,
    /// No tenant may be released.
    keeps: AtomicBool,
    repaired_by: Mutex<Option<thread::ThreadId>>,
}

impl Fake {
    fn note(&self, event: Event) {
        lock(&self.events).push(event);
        self.changed.notify_all();
    }

    /// Waits until `done` holds for the events.
    fn until(&self, done: impl Fn(&[Event]) -> bool) -> Vec<Event> {
        // TIMEOUT: an event takes milliseconds, at most the watchdog's limit.
        let (events, timeout) = self
            .changed
            .wait_timeout_while(lock(&self.events), Duration::from_secs(20), |events| {
                !done(events)
            })
            .unwrap();
        assert!(!timeout.timed_out(), "{events:?}");
        events.clone()
    }
}

#[derive(Clone, Debug)]
struct Shared(Arc<Fake>);

impl ChannelSwitch for Shared {
    fn set(&self, channels: &[Channel], suspended: bool) -> Result<(), RmError> {
        if suspended && self.0.refuses.load(Ordering::SeqCst) {
            let (what, status) = ("suspend channels", 0x21);
            return Err(RmError::Refused { what, status });
        }
        self.0.note(Event::Call(suspended, channels.to_vec()));
        Ok(())
    }

    fn unschedule(&self, channels: &[Channel]) -> Result<(), RmError> {
        if self.0.refuses.load(Ordering::SeqCst) {
            return self.set(channels, true);
        }
        self.0.note(Event::Off(channels.to_vec()));
        Ok(())
    }
}

impl Announce for Shared {
    fn tell(&mut self, order: &Order) -> Result<(), WatchdogError> {
        if self.0.watchdog_gone.load(Ordering::SeqCst) {
            return Err(WatchdogError::Gone(std::io::ErrorKind::BrokenPipe.into()));
        }
        self.0.note(Event::Watchdog(order.clone()));
        Ok(())
    }
}

impl ActivityProbe for Shared {
    fn channel_activity(&self, _: TenantId) -> Option<Activity> {
        None
    }

    fn was_resident(&self, _: TenantId, _: Duration) -> bool {
        false
    }
}

impl Callbacks for Shared {
    fn channels_to_hold(&self, tenant: TenantId) -> Vec<Channel> {
        let channels = lock(&self.0.channels);
        channels.get(&tenant).cloned().unwrap_or_default()
    }

    fn take_engine(&self, tenant: TenantId) {
        self.0.note(Event::Takes(tenant));
    }

    fn leave_engine(&self) {
        self.0.note(Event::Leaves);
    }

    fn on_running(&self, tenant: TenantId) {
        self.0.note(Event::Runs(tenant));
    }

    fn on_held(&self, tenant: TenantId) -> bool {
        self.0.note(Event::Held(tenant));
        !self.0.serves.load(Ordering::SeqCst)
    }

    fn try_release(&self, _: TenantId) -> bool {
        !self.0.keeps.load(Ordering::SeqCst)
    }

    fn lacks_memory(&self, _: TenantId) -> bool {
        self.0.lacks.load(Ordering::SeqCst)
    }

    fn resident(&self) -> Option<TenantId> {
        *lock(&self.0.resident)
    }

    fn repair_preemptor(&self) {
        *lock(&self.0.repaired_by) = Some(thread::current().id());
    }
}

struct Rig {
    fake: Arc<Fake>,
    executor: Arc<SuspendExecutor>,
    holder: Arc<SharedHolder<Shared, Shared>>,
    thread: Option<JoinHandle<()>>,
}

impl Rig {
    /// A has channels 0 to 3, B 4 and 5.
    fn new() -> Self {
        let fake = Arc::new(Fake::default());
        let all = channels(6);
        *lock(&fake.channels) = BTreeMap::from([(A, all[..4].to_vec()), (B, all[4..].to_vec())]);
        let executor = Arc::new(SuspendExecutor {
            watchdog_pause: Duration::from_millis(5),
            ..SuspendExecutor::default()
        });
        let shared = Shared(fake.clone());
        let holder = Arc::new(SharedHolder::new(Holder::new(shared.clone(), shared)));
        Self {
            fake,
            executor,
            holder,
            thread: None,
        }
    }

    fn start(&mut self) {
        let (executor, shared) = (self.executor.clone(), Shared(self.fake.clone()));
        let holder = self.holder.clone();
        self.thread = Some(thread::spawn(move || {
            executor.run(&holder, &shared, || {
                shared.0.watchdogs.fetch_add(1, Ordering::SeqCst);
                shared.0.watchdog_gone.store(false, Ordering::SeqCst);
                Ok(shared.clone())
            });
        }));
    }

    /// Waits until the executor has nothing to do.
    fn settle(&self) {
        let begin = Instant::now();
        while self.executor.is_pending() {
            // TIMEOUT: as above.
            assert!(begin.elapsed() < Duration::from_secs(20));
            thread::yield_now();
        }
    }

    fn calls(&self) -> Vec<(bool, Vec<Channel>)> {
        let call = |event: &Event| match event {
            Event::Call(suspended, channels) => Some((*suspended, channels.clone())),
            _ => None,
        };
        lock(&self.fake.events).iter().filter_map(call).collect()
    }

    fn end(&mut self) {
        self.executor.end();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.end();
    }
}

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
fn a_tenant_that_does_not_run_is_resumed_again_and_then_restarted() {
    let mut rig = Rig::new();
    let own = channels(6).split_off(4);
    rig.start();
    rig.executor.submit(B, true);
    rig.settle();
    rig.executor.submit(B, false);
    let calls = [true, false, false, true, false].map(|suspended| (suspended, own.clone()));
    rig.fake.until(|events| {
        let made = |event: &&Event| matches!(event, Event::Call(..));
        events.iter().filter(made).count() == calls.len()
    });
    assert_eq!(rig.calls(), calls);
    assert!(!rig.executor.is_held(B));
}

/// A has one channel more.
fn made(rig: &Rig, count: u32) -> Vec<Channel> {
    let new = channels(count).split_off(count as usize - 1);
    lock(&rig.fake.channels).entry(A).or_default().extend(&new);
    rig.executor.channels_added(A);
    new
}

#[test]
fn a_tenant_held_without_an_order_runs_again() {
    let mut rig = Rig::new();
    rig.start();
    rig.executor.submit(A, true);
    rig.executor.submit(B, true);
    rig.settle();
    assert!(rig.executor.is_held(A) && rig.executor.is_held(B));
    // The order was lost.
    lock(&rig.executor.queue).lose(A);
    rig.fake.until(|events| events.contains(&Event::Runs(A)));
    assert!(rig.executor.is_held(B));
    // A tenant that lacks memory stays held for another reason, which is no bug.
    rig.fake.keeps.store(true, Ordering::SeqCst);
    rig.executor.submit(B, false);
    rig.settle();
    let renewals = |events: &[Event]| {
        let renewal = |event: &&Event| **event == Event::Watchdog(Order::Renew);
        events.iter().filter(renewal).count()
    };
    let before = renewals(&lock(&rig.fake.events));
    rig.fake.until(|events| renewals(events) >= before + 2);
    assert!(rig.executor.is_held(B) && !rig.executor.is_held(A));
    assert!(lock(&rig.executor.queue).is_ordered(B));
}

#[test]
fn new_channels_are_suspended_only_while_the_tenant_is_to_be_held() {
    let mut rig = Rig::new();
    rig.start();
    made(&rig, 7);
    rig.settle();
    assert!(rig.calls().is_empty() && !rig.executor.is_held(A));
    rig.executor.submit(A, true);
    rig.settle();
    let new = made(&rig, 8);
    rig.settle();
    assert_eq!(rig.calls().last(), Some(&(true, new)));
    // The tenant is still held, and the order to release it is not given again.
    rig.executor.submit(A, false);
    made(&rig, 9);
    rig.settle();
    assert!(!rig.executor.is_held(A));
    // A tenant that may not be released stays held, with its new channels.
    rig.executor.submit(A, true);
    rig.settle();
    rig.fake.keeps.store(true, Ordering::SeqCst);
    rig.executor.submit(A, false);
    rig.settle();
    assert!(rig.executor.is_held(A));
    let new = made(&rig, 10);
    rig.settle();
    assert!(rig.executor.is_held(A));
    assert_eq!(rig.calls().last(), Some(&(true, new)));
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

#[test]
fn new_channels_of_a_held_tenant_are_held_too() {
    let mut rig = Rig::new();
    let all = channels(8);
    rig.start();
    rig.executor.submit(A, true);
    rig.settle();
    lock(&rig.fake.channels).insert(A, [&all[..4], &all[6..]].concat());
    rig.executor.submit(A, true);
    rig.settle();
    assert_eq!(
        rig.calls(),
        [(true, all[..4].to_vec()), (true, all[6..].to_vec())]
    );
}

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

#[test]
fn a_tenant_that_cannot_be_held_runs() {
    let mut rig = Rig::new();
    rig.fake.refuses.store(true, Ordering::SeqCst);
    rig.start();
    rig.executor.submit(A, true);
    rig.fake.until(|events| events.contains(&Event::Runs(A)));
    assert!(!rig.executor.is_held(A));
    rig.settle();
    assert_eq!(rig.executor.calls().failed, 1);
}

#[test]
fn no_tenant_is_suspended_after_the_end() {
    let mut rig = Rig::new();
    let all = channels(6);
    rig.start();
    rig.executor.submit(A, true);
    rig.executor.submit(B, true);
    rig.settle();
    rig.end();
    let calls = rig.calls();
    assert!(calls.contains(&(false, all[..4].to_vec())), "{calls:?}");
    assert!(calls.contains(&(false, all[4..].to_vec())), "{calls:?}");
}

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

#[test]
fn channels_that_an_earlier_daemon_suspended_are_resumed_unless_held() {
    let mut rig = Rig::new();
    rig.start();
    rig.executor.inherit(A, channels(4));
    rig.fake
        .until(|events| events.contains(&Event::Call(false, channels(4))));
    rig.executor.submit(B, true);
    rig.fake.until(|events| events.contains(&Event::Held(B)));
    rig.settle();
    let before = rig.calls().len();
    rig.executor.inherit(B, channels(6)[4..].to_vec());
    rig.executor.inherit(A, channels(1));
    rig.fake
        .until(|events| events.contains(&Event::Call(false, channels(1))));
    assert_eq!(rig.calls().len(), before + 1);
}
