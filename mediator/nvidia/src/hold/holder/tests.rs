//! The holder over a simulated driver and a watchdog that records its orders.

use super::super::channels::tests::{FakeSwitch, channels};
use super::*;
use std::cell::RefCell;
use std::rc::Rc;

const A: TenantId = TenantId(1);
const B: TenantId = TenantId(2);

/// Takes orders until it is set to be gone.
#[derive(Clone, Default)]
struct FakeWatchdog {
    orders: Rc<RefCell<Vec<Order>>>,
    gone: Rc<RefCell<bool>>,
}

impl Announce for FakeWatchdog {
    fn send(&mut self, order: &Order) -> Result<(), WatchdogError> {
        if *self.gone.borrow() {
            return Err(WatchdogError::Gone(io::ErrorKind::BrokenPipe.into()));
        }
        self.orders.borrow_mut().push(order.clone());
        Ok(())
    }
}

fn holder() -> (Holder<FakeSwitch, FakeWatchdog>, FakeWatchdog) {
    let watchdog = FakeWatchdog::default();
    (
        Holder::new(FakeSwitch::default(), watchdog.clone()),
        watchdog,
    )
}

#[test]
fn what_is_suspended_was_announced() {
    let (mut holder, watchdog) = holder();
    holder.hold(A, &channels(3)).unwrap();
    holder.hold(A, &channels(5)).unwrap();
    holder.hold(A, &channels(5)).unwrap();
    let new = channels(5).split_off(3);
    let expected = [Order::Hold(channels(3)), Order::Hold(new)];
    assert_eq!(*watchdog.orders.borrow(), expected);
    assert_eq!(holder.switch.suspended.borrow().len(), 5);
    holder.release(A).unwrap();
    assert!(holder.switch.suspended.borrow().is_empty());
    assert_eq!(
        watchdog.orders.borrow().last(),
        Some(&Order::Release(channels(5)))
    );
    assert_eq!((holder.calls().count, holder.calls().failed), (3, 0));
}

#[test]
fn a_handle_that_names_nothing_frees_no_tenant() {
    let (mut holder, watchdog) = holder();
    holder.switch.gone.insert(channels(3)[1]);
    holder.hold(A, &channels(3)).unwrap();
    assert!(holder.is_held(A));
    assert_eq!(holder.switch.suspended.borrow().len(), 2);
    let released = Order::Release(channels(3)[1..2].to_vec());
    assert_eq!(watchdog.orders.borrow().last(), Some(&released));
    // The handles exist now.
    holder.switch.gone.clear();
    holder.hold(A, &channels(3)).unwrap();
    assert_eq!(holder.switch.suspended.borrow().len(), 3);
    holder.release(A).unwrap();
    assert!(holder.switch.suspended.borrow().is_empty());
}

#[test]
fn a_tenant_that_cannot_be_stopped_at_all_runs() {
    let (mut holder, _) = holder();
    holder.switch.gone.extend(channels(3));
    assert!(holder.hold(A, &channels(3)).is_err());
    assert!(!holder.is_held(A) && holder.switch.suspended.borrow().is_empty());
}

#[test]
fn without_a_watchdog_all_tenants_run() {
    let (mut holder, watchdog) = holder();
    holder.hold(A, &channels(3)).unwrap();
    *watchdog.gone.borrow_mut() = true;
    assert!(holder.hold(B, &channels(1)).is_err());
    assert!(!holder.is_held(A) && holder.switch.suspended.borrow().is_empty());
    assert!(holder.hold(A, &channels(3)).is_err() && holder.lacks_watchdog());
    *watchdog.gone.borrow_mut() = false;
    holder.set_watchdog(watchdog);
    holder.hold(A, &channels(3)).unwrap();
    assert!(holder.is_held(A));
}

#[test]
fn pinned_tenant_is_resumed_only_by_the_holder() {
    let (mut holder, watchdog) = holder();
    assert!(holder.pin(A).is_err(), "it is not held");
    holder.hold(A, &channels(3)).unwrap();
    holder.pin(A).unwrap();
    holder.pin(A).unwrap();
    let orders = [
        Order::Hold(channels(3)),
        Order::Renew,
        Order::Release(channels(3)),
    ];
    assert_eq!(*watchdog.orders.borrow(), orders);
    holder.unpin(A).unwrap();
    holder.unpin(A).unwrap();
    let sent: Vec<Order> = watchdog.orders.borrow()[3..].to_vec();
    assert!(sent.contains(&Order::Hold(channels(3))), "{sent:?}");
    holder.pin(A).unwrap();
    holder.hold(B, &channels(5)[3..]).unwrap();
    *watchdog.gone.borrow_mut() = true;
    assert!(holder.renew().is_err());
    assert!(holder.is_held(A) && !holder.is_held(B));
    assert_eq!(holder.switch.suspended.borrow().len(), 3);
    assert!(holder.release(A).is_err(), "there is no watchdog");
    assert!(holder.switch.suspended.borrow().is_empty());
}

#[test]
fn hold_at_switch_is_announced_and_stop_suspends_at_once() {
    let watchdog = FakeWatchdog::default();
    let mut holder = Holder::new(FakeSwitch::default(), watchdog.clone());
    holder.hold_at_switch(A, &channels(3)).unwrap();
    assert!(holder.is_held(A) && holder.switch.suspended.borrow().is_empty());
    assert_eq!(holder.switch.unscheduled.borrow().len(), 3);
    assert_eq!(*watchdog.orders.borrow(), [Order::Hold(channels(3))]);
    holder.stop(A).unwrap();
    holder.stop(B).unwrap();
    assert_eq!(holder.switch.suspended.borrow().len(), 3);
    holder.release(A).unwrap();
    assert!(holder.switch.suspended.borrow().is_empty());
    holder.stop(A).unwrap();
    // A tenant is preempted before it is pinned, once.
    holder.hold_at_switch(A, &channels(3)).unwrap();
    holder.pin(A).unwrap();
    assert_eq!(holder.switch.suspended.borrow().len(), 3);
    let calls = holder.calls().count;
    // It never gets on the schedule again, nor do its new channels.
    holder.hold_at_switch(A, &channels(4)).unwrap();
    holder.stop(A).unwrap();
    holder.pin(A).unwrap();
    assert_eq!(holder.calls().count, calls + 1, "what is new alone");
    assert_eq!(holder.switch.suspended.borrow().len(), 4);
    holder.release(A).unwrap();
    // Channels that the driver refuses as a whole are suspended as far as possible.
    holder.switch.gone.insert(channels(3)[1]);
    holder.hold_at_switch(B, &channels(3)).unwrap();
    assert_eq!(holder.switch.suspended.borrow().len(), 2);
    holder.release(B).unwrap();
    assert!(holder.switch.all_run(), "{:?}", holder.switch);
}

#[test]
fn tenant_held_again_after_the_lease_runs_when_released() {
    let (mut holder, _) = holder();
    holder.hold_at_switch(A, &channels(3)).unwrap();
    holder.begin -= Duration::from_nanos(LIMIT.0);
    holder.renew().unwrap();
    assert!(holder.is_held(A) && !holder.switch.all_run());
    holder.release(A).unwrap();
    assert!(holder.switch.all_run(), "{:?}", holder.switch);
}

#[test]
fn resume_able_resumes_only_the_named_channels_of_pinned_tenants() {
    let (mut holder, _) = holder();
    holder.hold(A, &channels(4)).unwrap();
    holder.pin(A).unwrap();
    holder.hold(B, &channels(6)[4..]).unwrap();
    // One of them is new, or of another tenant.
    holder.resume_able(|tenant| {
        assert_eq!(tenant, A);
        channels(5)[2..].to_vec()
    });
    let suspended: Vec<Channel> = holder.switch.suspended.borrow().iter().copied().collect();
    let expected = [&channels(2)[..], &channels(6)[4..]].concat();
    assert_eq!(suspended, expected);
}

#[test]
fn dropped_holder_leaves_no_channel_suspended() {
    struct Shared(Rc<FakeSwitch>);
    impl ChannelSwitch for Shared {
        fn set(&self, channels: &[Channel], suspended: bool) -> Result<(), RmError> {
            self.0.set(channels, suspended)
        }
    }
    let switch = Rc::new(FakeSwitch::default());
    let mut holder = Holder::new(Shared(switch.clone()), FakeWatchdog::default());
    holder.hold(A, &channels(3)).unwrap();
    drop(holder);
    assert!(switch.suspended.borrow().is_empty());
}
