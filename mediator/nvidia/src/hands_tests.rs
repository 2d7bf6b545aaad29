//! The thread as it runs in the daemon, over a driver that writes down what it is asked for.

use super::super::guardian::{LIMIT, Order};
use super::super::hold::tests::channels;
use super::super::rm::RmError;
use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};

const A: TenantId = TenantId(1);
const B: TenantId = TenantId(2);

/// What happened, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    /// A call of the driver: suspends or resumes.
    Call(bool, Vec<Channel>),
    /// One that takes channels off the schedule.
    Off(Vec<Channel>),
    Told(Order),
    /// The usher takes the engine, and leaves it.
    Takes(TenantId),
    Leaves,
    Runs(TenantId),
    /// Its memory may go from then on.
    Held(TenantId),
}

/// The driver, the guardian and the GPU around the thread.
#[derive(Debug, Default)]
struct Fake {
    events: Mutex<Vec<Event>>,
    changed: Condvar,
    channels: Mutex<BTreeMap<TenantId, Vec<Channel>>>,
    /// The driver refuses.
    refuses: AtomicBool,
    guardian_gone: AtomicBool,
    /// On the engine, whatever is asked for.
    stays: Mutex<Option<TenantId>>,
    guardians: AtomicU32,
    /// Memory of everybody is away.
    lacks: AtomicBool,
    /// Something was begun for whoever is held.
    serves: AtomicBool,
    /// Nobody may run.
    keeps: AtomicBool,
    /// So often all that was ordered was done.
    moved: AtomicU32,
    mended_by: Mutex<Option<thread::ThreadId>>,
}

impl Fake {
    fn note(&self, event: Event) {
        lock(&self.events).push(event);
        self.changed.notify_all();
    }

    /// Waits until `done` is true of what happened.
    fn until(&self, done: impl Fn(&[Event]) -> bool) -> Vec<Event> {
        // TIMEOUT: what is waited for takes milliseconds, a guardian's patience at most.
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
    fn tell(&mut self, order: &Order) -> Result<(), GuardianError> {
        if self.0.guardian_gone.load(Ordering::SeqCst) {
            return Err(GuardianError::Gone(std::io::ErrorKind::BrokenPipe.into()));
        }
        self.0.note(Event::Told(order.clone()));
        Ok(())
    }
}

impl arrivals::Eyes for Shared {
    fn rung(&self, _: TenantId) -> Option<arrivals::Rung> {
        None
    }

    fn was_there(&self, _: TenantId, _: Duration) -> bool {
        false
    }
}

impl Owner for Shared {
    fn holding(&self, tenant: TenantId) -> Vec<Channel> {
        let channels = lock(&self.0.channels);
        channels.get(&tenant).cloned().unwrap_or_default()
    }

    fn take_engine(&self, tenant: TenantId) {
        self.0.note(Event::Takes(tenant));
    }

    fn leave_engine(&self) {
        self.0.note(Event::Leaves);
    }

    fn runs(&self, tenant: TenantId) {
        self.0.note(Event::Runs(tenant));
    }

    fn held(&self, tenant: TenantId) -> bool {
        self.0.note(Event::Held(tenant));
        !self.0.serves.load(Ordering::SeqCst)
    }

    fn may_run(&self, _: TenantId) -> bool {
        !self.0.keeps.load(Ordering::SeqCst)
    }

    fn lacks_memory(&self, _: TenantId) -> bool {
        self.0.lacks.load(Ordering::SeqCst)
    }

    fn on_the_engine(&self) -> Option<TenantId> {
        *lock(&self.0.stays)
    }

    fn mend(&self) {
        *lock(&self.0.mended_by) = Some(thread::current().id());
    }

    fn moved(&self) {
        self.0.moved.fetch_add(1, Ordering::SeqCst);
    }
}

struct Rig {
    fake: Arc<Fake>,
    hands: Arc<Hands>,
    holding: Arc<Holding<Shared, Shared>>,
    thread: Option<JoinHandle<()>>,
}

impl Rig {
    /// A has channels 0 to 3, B 4 and 5.
    fn new() -> Self {
        let fake = Arc::new(Fake::default());
        let all = channels(6);
        *lock(&fake.channels) = BTreeMap::from([(A, all[..4].to_vec()), (B, all[4..].to_vec())]);
        let hands = Arc::new(Hands {
            guardian_pause: Duration::from_millis(5),
            ..Hands::default()
        });
        let shared = Shared(fake.clone());
        let holding = Arc::new(Holding::new(Holder::new(shared.clone(), shared)));
        Self {
            fake,
            hands,
            holding,
            thread: None,
        }
    }

    fn start(&mut self) {
        let (hands, shared) = (self.hands.clone(), Shared(self.fake.clone()));
        let holding = self.holding.clone();
        self.thread = Some(thread::spawn(move || {
            hands.run(&holding, &shared, || {
                shared.0.guardians.fetch_add(1, Ordering::SeqCst);
                shared.0.guardian_gone.store(false, Ordering::SeqCst);
                Ok(shared.clone())
            });
        }));
    }

    /// Waits until the thread has nothing to do.
    fn settle(&self) {
        let begin = Instant::now();
        while self.hands.is_moving() {
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
        self.hands.end();
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
fn at_a_handover_the_holder_is_off_the_schedule_before_the_next_runs() {
    let mut rig = Rig::new();
    let all = channels(6);
    rig.start();
    rig.hands.want(B, true);
    rig.settle();
    assert!(rig.hands.is_held(B));
    let expected = [
        Event::Takes(B),
        Event::Told(Order::Hold(all[4..].to_vec())),
        Event::Call(true, all[4..].to_vec()),
        Event::Leaves,
        Event::Held(B),
    ];
    assert_eq!(*lock(&rig.fake.events), expected, "nobody else comes");
    rig.hands.want_all(&[(B, false), (A, true)]);
    rig.settle();
    let events = lock(&rig.fake.events).clone();
    let expected = [
        Event::Told(Order::Hold(all[..4].to_vec())),
        Event::Off(all[..4].to_vec()),
        Event::Call(false, all[4..].to_vec()),
        Event::Told(Order::Release(all[4..].to_vec())),
        Event::Runs(B),
        Event::Held(A),
    ];
    let from = events.iter().position(|event| *event == expected[0]);
    assert!(
        from.is_some_and(|from| events[from..].starts_with(&expected)),
        "the guardian knows before it happens: {events:?}"
    );
    assert!(rig.hands.is_held(A) && !rig.hands.is_held(B));
    // Whoever sleeps until it is known who works hears of each.
    let begin = Instant::now();
    while rig.fake.moved.load(Ordering::SeqCst) < 2 {
        // TIMEOUT: as above.
        assert!(begin.elapsed() < Duration::from_secs(20));
        thread::yield_now();
    }
    assert_eq!(rig.hands.calls().failed, 0);
    assert!(rig.hands.work().count >= 2);
}

#[test]
fn who_does_not_come_is_resumed_again_and_then_stopped_and_resumed() {
    let mut rig = Rig::new();
    let own = channels(6).split_off(4);
    rig.start();
    rig.hands.want(B, true);
    rig.settle();
    rig.hands.want(B, false);
    let calls = [true, false, false, true, false].map(|suspended| (suspended, own.clone()));
    rig.fake.until(|events| {
        let made = |event: &&Event| matches!(event, Event::Call(..));
        events.iter().filter(made).count() == calls.len()
    });
    assert_eq!(rig.calls(), calls);
    assert!(!rig.hands.is_held(B));
}

/// A has one channel more.
fn made(rig: &Rig, count: u32) -> Vec<Channel> {
    let new = channels(count).split_off(count as usize - 1);
    lock(&rig.fake.channels).entry(A).or_default().extend(&new);
    rig.hands.has_more(A);
    new
}

#[test]
fn who_is_held_and_was_not_ordered_to_be_runs_again() {
    let mut rig = Rig::new();
    rig.start();
    rig.hands.want(A, true);
    rig.hands.want(B, true);
    rig.settle();
    assert!(rig.hands.is_held(A) && rig.hands.is_held(B));
    // An order was undone on its way.
    lock(&rig.hands.wanted).to_be_held.remove(&A);
    rig.fake.until(|events| events.contains(&Event::Runs(A)));
    assert!(rig.hands.is_held(B));
    // Whose memory is away stays held for another reason, and that is no bug.
    rig.fake.keeps.store(true, Ordering::SeqCst);
    rig.hands.want(B, false);
    rig.settle();
    let renewals = |events: &[Event]| {
        let renewal = |event: &&Event| **event == Event::Told(Order::Renew);
        events.iter().filter(renewal).count()
    };
    let before = renewals(&lock(&rig.fake.events));
    rig.fake.until(|events| renewals(events) >= before + 2);
    assert!(rig.hands.is_held(B) && !rig.hands.is_held(A));
    assert!(lock(&rig.hands.wanted).to_be_held.contains(&B));
}

#[test]
fn what_one_makes_is_stopped_if_he_is_to_be_held_and_not_if_he_is_to_run() {
    let mut rig = Rig::new();
    rig.start();
    made(&rig, 7);
    rig.settle();
    assert!(rig.calls().is_empty() && !rig.hands.is_held(A));
    rig.hands.want(A, true);
    rig.settle();
    let new = made(&rig, 8);
    rig.settle();
    assert_eq!(rig.calls().last(), Some(&(true, new)));
    // He is held yet, and nobody orders that he is to run another time.
    rig.hands.want(A, false);
    made(&rig, 9);
    rig.settle();
    assert!(!rig.hands.is_held(A));
    // Who may not run stays held, with what he makes.
    rig.hands.want(A, true);
    rig.settle();
    rig.fake.keeps.store(true, Ordering::SeqCst);
    rig.hands.want(A, false);
    rig.settle();
    assert!(rig.hands.is_held(A));
    let new = made(&rig, 10);
    rig.settle();
    assert!(rig.hands.is_held(A));
    assert_eq!(rig.calls().last(), Some(&(true, new)));
}

#[test]
fn who_stays_on_the_engine_at_a_handover_is_stopped() {
    let mut rig = Rig::new();
    let all = channels(6);
    *lock(&rig.fake.stays) = Some(A);
    // Before the thread is there, so that it takes both at once.
    rig.hands.want(A, true);
    rig.hands.want(B, false);
    assert!(rig.hands.is_moving());
    rig.start();
    rig.fake
        .until(|events| events.contains(&Event::Call(true, all[..4].to_vec())));
    rig.settle();
    assert!(rig.hands.is_held(A));
    let own = [(false, all[..4].to_vec()), (true, all[..4].to_vec())];
    assert_eq!(rig.calls(), own, "on the schedule again, then suspended");
}

#[test]
fn memory_goes_when_its_owner_has_left_the_engine() {
    let mut rig = Rig::new();
    let all = channels(6);
    *lock(&rig.fake.stays) = Some(A);
    rig.hands.want(A, true);
    rig.hands.want(B, false);
    rig.start();
    let events = rig.fake.until(|events| events.contains(&Event::Held(A)));
    let at = |event| events.iter().position(|other| *other == event);
    let stopped = at(Event::Call(true, all[..4].to_vec()));
    assert!(
        stopped.is_some() && stopped < at(Event::Held(A)),
        "{events:?}"
    );
    // It is fastened: stopped already, and not by another call.
    rig.settle();
    let before = rig.calls().len();
    rig.hands.fasten(A, true).unwrap();
    assert_eq!(rig.calls().len(), before);
}

#[test]
fn who_lacks_memory_is_stopped_at_a_handover_too() {
    let mut rig = Rig::new();
    let all = channels(6);
    rig.fake.lacks.store(true, Ordering::SeqCst);
    rig.hands.want(A, true);
    rig.hands.want(B, false);
    rig.start();
    rig.settle();
    assert_eq!(rig.calls(), [(true, all[..4].to_vec())]);
}

#[test]
fn one_off_the_schedule_is_stopped_before_its_memory_goes() {
    let mut rig = Rig::new();
    let all = channels(6);
    rig.hands.want(A, true);
    rig.hands.want(B, false);
    rig.start();
    rig.settle();
    assert!(rig.calls().is_empty(), "off the schedule alone");
    rig.hands.fasten(A, true).unwrap();
    let own = [(false, all[..4].to_vec()), (true, all[..4].to_vec())];
    assert_eq!(rig.calls(), own);
}

#[test]
fn one_for_whom_something_was_begun_at_a_handover_runs_until_it_is_done() {
    let mut rig = Rig::new();
    rig.fake.serves.store(true, Ordering::SeqCst);
    rig.hands.want(A, true);
    rig.hands.want(B, false);
    rig.start();
    rig.fake.until(|events| events.contains(&Event::Runs(A)));
    rig.fake.serves.store(false, Ordering::SeqCst);
    // Nothing is served by now: it is held at once.
    let held = |events: &[Event]| {
        events
            .iter()
            .filter(|event| **event == Event::Held(A))
            .count()
    };
    rig.fake.until(|events| held(events) >= 2);
    rig.settle();
    assert!(rig.hands.is_held(A));
}

#[test]
fn what_a_held_tenant_makes_anew_is_held_too() {
    let mut rig = Rig::new();
    let all = channels(8);
    rig.start();
    rig.hands.want(A, true);
    rig.settle();
    lock(&rig.fake.channels).insert(A, [&all[..4], &all[6..]].concat());
    rig.hands.want(A, true);
    rig.settle();
    assert_eq!(
        rig.calls(),
        [(true, all[..4].to_vec()), (true, all[6..].to_vec())]
    );
}

#[test]
fn a_lost_guardian_frees_everybody_until_there_is_another() {
    let mut rig = Rig::new();
    let all = channels(6);
    rig.start();
    rig.hands.want(A, true);
    rig.settle();
    rig.fake.guardian_gone.store(true, Ordering::SeqCst);
    // Noticed at the next renewal.
    rig.fake.until(|events| events.contains(&Event::Runs(A)));
    assert!(rig.calls().contains(&(false, all[..4].to_vec())));
    // Nobody asks again: the policy's orders are of changes alone.
    rig.fake.until(|events| {
        let hold = Event::Call(true, all[..4].to_vec());
        events.iter().filter(|event| **event == hold).count() == 2
    });
    assert_eq!(rig.fake.guardians.load(Ordering::SeqCst), 1);
    rig.settle();
    assert!(rig.hands.is_held(A));
}

#[test]
fn who_is_released_while_there_is_no_guardian_is_not_held_by_the_next() {
    let mut rig = Rig::new();
    Arc::get_mut(&mut rig.hands).unwrap().guardian_pause = Duration::from_millis(300);
    rig.start();
    rig.hands.want(A, true);
    rig.settle();
    rig.fake.guardian_gone.store(true, Ordering::SeqCst);
    rig.fake.until(|events| events.contains(&Event::Runs(A)));
    rig.hands.want(A, false);
    let begin = Instant::now();
    while rig.fake.guardians.load(Ordering::SeqCst) == 0 {
        assert!(begin.elapsed() < Duration::from_secs(20));
        thread::yield_now();
    }
    rig.end();
    let holds = rig.calls().into_iter().filter(|(hold, _)| *hold).count();
    assert_eq!(holds, 1);
    assert!(!rig.hands.is_held(A));
}

#[test]
fn a_hold_outlasts_the_guardians_patience() {
    let mut rig = Rig::new();
    rig.start();
    rig.hands.want(A, true);
    let begin = Instant::now();
    let enough = |events: &[Event]| {
        let renewals = events
            .iter()
            .filter(|event| **event == Event::Told(Order::Renew));
        renewals.count() >= 8
    };
    rig.fake.until(enough);
    assert!(begin.elapsed().as_nanos() > u128::from(LIMIT.0));
    assert!(rig.hands.is_held(A));
    assert_eq!(rig.calls().len(), 1, "nobody was held twice");
}

#[test]
fn who_cannot_be_held_runs() {
    let mut rig = Rig::new();
    rig.fake.refuses.store(true, Ordering::SeqCst);
    rig.start();
    rig.hands.want(A, true);
    rig.fake.until(|events| events.contains(&Event::Runs(A)));
    assert!(!rig.hands.is_held(A));
    rig.settle();
    assert_eq!(rig.hands.calls().failed, 1);
}

#[test]
fn an_end_leaves_nobody_suspended() {
    let mut rig = Rig::new();
    let all = channels(6);
    rig.start();
    rig.hands.want(A, true);
    rig.hands.want(B, true);
    rig.settle();
    rig.end();
    let calls = rig.calls();
    assert!(calls.contains(&(false, all[..4].to_vec())), "{calls:?}");
    assert!(calls.contains(&(false, all[4..].to_vec())), "{calls:?}");
}

impl Rig {
    /// Who accounts is there, and sleeps then.
    fn see_to(&self) -> bool {
        let shared = Shared(self.fake.clone());
        self.hands.see_to(&self.holding, &shared, true)
    }
}

#[test]
fn who_is_awake_carries_out_what_is_ordered_before_he_sleeps() {
    // There is no thread: nobody else does it.
    let rig = Rig::new();
    rig.hands.awake();
    rig.hands.want_all(&[(A, true), (B, false)]);
    assert!(rig.hands.is_moving());
    assert!(rig.see_to(), "somebody was moved");
    assert!(!rig.hands.is_moving() && rig.hands.is_held(A));
    let all = channels(6);
    let off = Event::Off(all[..4].to_vec());
    assert!(rig.fake.until(|_| true).contains(&off));
    assert_eq!(rig.fake.moved.load(Ordering::SeqCst), 1);
    assert_eq!(rig.hands.work().count, 1);
    assert!(!rig.see_to(), "there is nothing left");
}

#[test]
fn what_is_ordered_while_he_sleeps_is_done_by_the_thread() {
    let mut rig = Rig::new();
    rig.start();
    rig.hands.awake();
    assert!(!rig.see_to());
    rig.hands.want(A, true);
    rig.fake.until(|events| events.contains(&Event::Held(A)));
    rig.settle();
    rig.end();
    rig.hands.want(B, true);
    assert!(!rig.see_to() && !rig.hands.is_held(B), "it has ended");
}

#[test]
fn what_is_ordered_while_the_thread_is_at_it_is_left_to_it() {
    let rig = Rig::new();
    rig.hands.awake();
    rig.hands.want(A, true);
    {
        let _at_it = lock(&rig.holding.0);
        assert!(!rig.see_to());
    }
    assert!(rig.hands.is_moving() && !rig.hands.is_held(A));
}

#[test]
fn who_has_no_guardian_waits_for_the_thread_to_find_one() {
    let mut rig = Rig::new();
    rig.fake.guardian_gone.store(true, Ordering::SeqCst);
    rig.hands.awake();
    rig.hands.want(A, true);
    assert!(rig.see_to(), "he tried");
    assert!(!rig.hands.is_held(A) && rig.calls().iter().all(|(suspended, _)| !suspended));
    rig.hands.awake();
    rig.hands.want(B, true);
    assert!(!rig.see_to());
    let nobody_mended = lock(&rig.fake.mended_by).is_none();
    assert!(
        nobody_mended,
        "he may start no process, and wait for the end of none"
    );
    rig.start();
    let both = |events: &[Event]| [A, B].iter().all(|of| events.contains(&Event::Held(*of)));
    rig.fake.until(both);
    let mended_by = *lock(&rig.fake.mended_by);
    assert!(mended_by.is_some_and(|by| by != thread::current().id()));
    assert_eq!(rig.fake.guardians.load(Ordering::SeqCst), 1);
    rig.settle();
    rig.end();
}

#[test]
fn he_renews_the_lease_as_well() {
    let rig = Rig::new();
    rig.hands.want(A, true);
    assert!(rig.see_to());
    let told = |events: &[Event]| {
        let renewed = |event: &&Event| **event == Event::Told(Order::Renew);
        events.iter().filter(renewed).count()
    };
    let begin = Instant::now();
    while told(&rig.fake.until(|_| true)) == 0 {
        // TIMEOUT: as above.
        assert!(begin.elapsed() < Duration::from_secs(20));
        assert!(!rig.see_to(), "nobody is moved by it");
        thread::yield_now();
    }
    assert!(begin.elapsed() >= RENEWAL / 2, "not each time");
}

#[test]
fn what_a_daemon_that_is_gone_suspended_is_resumed_unless_the_tenant_is_held() {
    let mut rig = Rig::new();
    rig.start();
    rig.hands.inherit(A, channels(4));
    rig.fake
        .until(|events| events.contains(&Event::Call(false, channels(4))));
    rig.hands.want(B, true);
    rig.fake.until(|events| events.contains(&Event::Held(B)));
    rig.settle();
    let before = rig.calls().len();
    rig.hands.inherit(B, channels(6)[4..].to_vec());
    rig.hands.inherit(A, channels(1));
    rig.fake
        .until(|events| events.contains(&Event::Call(false, channels(1))));
    assert_eq!(rig.calls().len(), before + 1);
}
