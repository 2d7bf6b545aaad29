//! The executor as it runs in the daemon, over a simulated driver that records its calls.

mod accounting_thread;
mod handover;
mod watchdog;

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
    fn send(&mut self, order: &Order) -> Result<(), WatchdogError> {
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
