//! Who is held, by which channels: calls, lease and guardian together.
//!
//! ```text
//!   hold(tenant, channels) -> guardian knows -> suspended -> held -- renewed at every look --> held
//!                                                             '-- release, or the guardian is gone --> resumed
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use turnstile_accounting::{Moment, TenantId};

use super::guardian::{Guardian, GuardianError, LIMIT, Order};
use super::hold::{Channel, ChannelSwitch, HardwareSwitch, resume_all, suspend_all};
use super::lease::Lease;
use super::rm::{RmClient, RmError};
use super::version::DriverAbi;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum HolderError {
    /// The driver refused.
    #[error("The driver refused to suspend channels")]
    Rm(#[from] RmError),
    /// Nobody would resume in our stead.
    #[error("Nobody is held without a guardian")]
    Guardian(#[from] GuardianError),
}

/// Calls that suspended or resumed somebody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HoldCalls {
    /// How many.
    pub count: u64,
    /// Those that the driver refused.
    pub failed: u64,
    /// Time in them, in nanoseconds.
    pub total_ns: u64,
    /// The longest, in nanoseconds.
    pub longest_ns: u64,
}

/// The hardware's switch, with a client of its own.
#[derive(Debug)]
pub struct OwnedSwitch {
    /// What the calls are made with.
    pub client: Arc<RmClient>,
    /// The driver's numbers.
    pub driver: DriverAbi,
}

impl ChannelSwitch for OwnedSwitch {
    fn set(&self, channels: &[Channel], suspended: bool) -> Result<(), RmError> {
        HardwareSwitch::new(&self.client, &self.driver).set(channels, suspended)
    }

    fn unschedule(&self, channels: &[Channel]) -> Result<(), RmError> {
        HardwareSwitch::new(&self.client, &self.driver).unschedule(channels)
    }
}

/// Where suspensions are announced.
pub trait Announce {
    /// Tells it; after an error it is taken as gone.
    ///
    /// # Errors
    /// If it is gone.
    fn tell(&mut self, order: &Order) -> Result<(), GuardianError>;
}

impl Announce for Guardian {
    fn tell(&mut self, order: &Order) -> Result<(), GuardianError> {
        Self::tell(self, order)
    }
}

/// Who is held.
#[derive(Debug)]
pub struct Holder<S: ChannelSwitch, G: Announce> {
    switch: S,
    guardian: Option<G>,
    /// The last one, which is gone, or says nothing any more.
    gone: Option<G>,
    lease: Lease,
    held: BTreeMap<TenantId, BTreeSet<Channel>>,
    /// Of these, those that nobody but we may resume.
    fastened: BTreeSet<TenantId>,
    /// And those that are off the schedule and were not stopped.
    unscheduled: BTreeSet<TenantId>,
    calls: HoldCalls,
    begin: Instant,
}

impl<S: ChannelSwitch, G: Announce> Holder<S, G> {
    /// Nobody is held.
    pub fn new(switch: S, guardian: G) -> Self {
        Self {
            switch,
            guardian: Some(guardian),
            gone: None,
            lease: Lease::new(LIMIT),
            held: BTreeMap::new(),
            fastened: BTreeSet::new(),
            unscheduled: BTreeSet::new(),
            calls: HoldCalls::default(),
            begin: Instant::now(),
        }
    }

    /// Calls made so far.
    pub const fn calls(&self) -> HoldCalls {
        self.calls
    }

    /// Whether the guardian is gone, so that nobody can be held.
    pub const fn lacks_guardian(&self) -> bool {
        self.guardian.is_none()
    }

    /// Waits for the end of a guardian that is gone. Not every thread may ([`turnstile_host::confine`]).
    pub fn bury_guardian(&mut self) {
        self.gone = None;
    }

    /// Another guardian, after the last is gone.
    pub fn set_guardian(&mut self, guardian: G) {
        self.guardian = Some(guardian);
    }

    /// Whether a tenant is held.
    pub fn is_held(&self, tenant: TenantId) -> bool {
        self.held.contains_key(&tenant)
    }

    /// The channels of a tenant that is held.
    pub fn channels(&self, tenant: TenantId) -> Vec<Channel> {
        let held = self.held.get(&tenant).into_iter().flatten();
        held.copied().collect()
    }

    /// Resumes channels of a tenant that is not held once more. What runs is not disturbed by it.
    pub fn resume_again(&mut self, channels: &[Channel]) {
        let begin = Instant::now();
        let resumed = resume_all(&self.switch, channels);
        self.count(begin, resumed < channels.len());
    }

    /// The lease's clock.
    fn now(&self) -> Moment {
        // CAST: 584 years.
        Moment(self.begin.elapsed().as_nanos() as u64)
    }

    /// Suspends those of a tenant's channels that are not suspended yet.
    ///
    /// # Errors
    /// If it cannot be held; then it runs.
    pub fn hold(&mut self, tenant: TenantId, channels: &[Channel]) -> Result<(), HolderError> {
        self.hold_by(tenant, channels, Self::suspend)
    }

    /// The same, but what runs on them is left to run until the engine goes over to somebody else: [`Self::stop`] if nobody
    /// comes. Where the driver refuses that, and of one who is held already, they are suspended.
    ///
    /// # Errors
    /// If it cannot be held; then it runs.
    pub fn hold_at_switch(
        &mut self,
        tenant: TenantId,
        channels: &[Channel],
    ) -> Result<(), HolderError> {
        if self.is_held(tenant) {
            return self.hold(tenant, channels);
        }
        self.hold_by(tenant, channels, |this, channels| {
            let begin = Instant::now();
            let result = this.switch.unschedule(channels);
            this.count(begin, result.is_err());
            match result {
                Ok(()) => {
                    this.unscheduled.insert(tenant);
                    Ok(channels.to_vec())
                }
                Err(_) => {
                    // What the refused call took off would not be started by one call that resumes, see `stop`.
                    let _ = this.set(channels, false);
                    this.suspend(channels)
                }
            }
        })
    }

    /// Stops what a tenant still runs that was held by [`Self::hold_at_switch`]. It may run for a moment before.
    ///
    /// # Errors
    /// The driver's refusal; then it runs.
    pub fn stop(&mut self, tenant: TenantId) -> Result<(), HolderError> {
        if !self.unscheduled.remove(&tenant) {
            return Ok(());
        }
        let channels = self.channels(tenant);
        // SOURCE: measured on an H200: channels that are off the schedule and are then suspended as well are not started by one
        // call that resumes them.
        let resumed = self.set(&channels, false);
        let stopped = resumed.and_then(|()| self.suspend(&channels));
        if stopped.is_err() {
            self.release(tenant)?;
        }
        Ok(stopped.map(drop)?)
    }

    fn hold_by(
        &mut self,
        tenant: TenantId,
        channels: &[Channel],
        suspend: impl FnOnce(&mut Self, &[Channel]) -> Result<Vec<Channel>, RmError>,
    ) -> Result<(), HolderError> {
        let known = self.held.get(&tenant);
        let new: Vec<Channel> = channels
            .iter()
            .filter(|channel| !known.is_some_and(|known| known.contains(channel)))
            .copied()
            .collect();
        if new.is_empty() {
            // One that has no channels runs nothing; what it makes is to be held as well.
            self.held.entry(tenant).or_default();
            return Ok(());
        }
        // The guardian knows before it happens.
        self.tell(&Order::Hold(new.clone()))?;
        let now = self.now();
        self.lease.hold(&new, now);
        let (suspended, error) = match suspend(self, &new) {
            Ok(suspended) => (suspended, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let suspended: BTreeSet<Channel> = suspended.into_iter().collect();
        let refused: Vec<Channel> = new
            .into_iter()
            .filter(|channel| !suspended.contains(channel))
            .collect();
        if !suspended.is_empty() {
            self.held.entry(tenant).or_default().extend(suspended);
        }
        if !refused.is_empty() {
            let now = self.now();
            self.lease.release(&refused, now);
            self.tell(&Order::Release(refused))?;
        }
        if let Some(error) = error {
            self.release(tenant)?;
            return Err(error.into());
        }
        Ok(())
    }

    /// A tenant that is held stays so until it is released, guardian or not: memory of it is elsewhere, and it could only fault.
    /// Its process must not outlive this one.
    ///
    /// # Errors
    /// If it is not held, or the guardian is gone, which may resume it.
    pub fn fasten(&mut self, tenant: TenantId) -> Result<(), HolderError> {
        // First: if the lease has ended, it runs.
        self.renew()?;
        // Nothing of its memory is away yet.
        self.stop(tenant)?;
        let gone = || GuardianError::Gone(io::ErrorKind::NotFound.into());
        let channels = self.held.get(&tenant).ok_or_else(gone)?;
        if self.fastened.contains(&tenant) {
            return Ok(());
        }
        let channels: Vec<Channel> = channels.iter().copied().collect();
        self.tell(&Order::Release(channels.clone()))?;
        let now = self.now();
        self.lease.release(&channels, now);
        self.fastened.insert(tenant);
        Ok(())
    }

    /// A tenant that was fastened is resumed by the guardian again, when we are gone.
    ///
    /// # Errors
    /// If the guardian is gone.
    pub fn loosen(&mut self, tenant: TenantId) -> Result<(), HolderError> {
        self.renew()?;
        let held = self.held.get(&tenant);
        let Some(channels) = held.filter(|_| self.fastened.contains(&tenant)) else {
            return Ok(());
        };
        let channels: Vec<Channel> = channels.iter().copied().collect();
        self.tell(&Order::Hold(channels.clone()))?;
        let now = self.now();
        self.lease.hold(&channels, now);
        self.fastened.remove(&tenant);
        Ok(())
    }

    /// Resumes a tenant's channels.
    ///
    /// # Errors
    /// If the guardian is gone; the tenant runs all the same.
    pub fn release(&mut self, tenant: TenantId) -> Result<(), HolderError> {
        let Some(channels) = self.held.remove(&tenant) else {
            return Ok(());
        };
        self.fastened.remove(&tenant);
        self.unscheduled.remove(&tenant);
        if channels.is_empty() {
            return Ok(());
        }
        let channels: Vec<Channel> = channels.into_iter().collect();
        if self.set(&channels, false).is_err() {
            // One of them is gone perhaps.
            resume_all(&self.switch, &channels);
        }
        let now = self.now();
        self.lease.release(&channels, now);
        Ok(self.tell(&Order::Release(channels))?)
    }

    /// Whether the lease was last renewed so long ago: by a renewal, or as somebody was held or let go.
    pub fn is_due(&self, after: Duration) -> bool {
        self.lease.renewed_ago(self.now()).0 >= nanos(after)
    }

    /// Renews the lease. If it had ended because we were away for too long, the guardian has resumed everybody: they are
    /// held again.
    ///
    /// # Errors
    /// If somebody cannot be held again, or the guardian is gone.
    pub fn renew(&mut self) -> Result<(), HolderError> {
        let now = self.now();
        if !self.lease.lapsed(now).is_empty() {
            log::warn!("The lease on held tenants ended; they are held again");
            let lapsed = self.take_loose();
            for (tenant, channels) in lapsed {
                let channels: Vec<Channel> = channels.into_iter().collect();
                // The guardian may be about to: what is stopped twice would not be started by one call.
                resume_all(&self.switch, &channels);
                self.hold(tenant, &channels)?;
            }
        }
        let now = self.now();
        self.lease.renew(now);
        if !self.lease.is_empty() {
            self.tell(&Order::Renew)?;
        }
        Ok(())
    }

    /// Those who are held and not fastened; they are not held any more.
    fn take_loose(&mut self) -> BTreeMap<TenantId, BTreeSet<Channel>> {
        let (kept, loose) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|(tenant, _)| self.fastened.contains(tenant));
        self.held = kept;
        self.unscheduled.clear();
        loose
    }

    /// Resumes everybody but those who are fastened.
    pub fn release_all(&mut self) {
        let loose = |tenant: &&TenantId| !self.fastened.contains(tenant);
        for tenant in self.held.keys().filter(loose).copied().collect::<Vec<_>>() {
            if let Err(error) = self.release(tenant) {
                log::warn!("Resuming {tenant}: {error}");
            }
        }
    }

    /// The end: of tenants that are fastened, which stay suspended, resumes those channels that may run.
    pub fn resume_able(&mut self, able: impl Fn(TenantId) -> Vec<Channel>) {
        for tenant in self.fastened.clone() {
            let held = self.held.get(&tenant);
            let mut channels = able(tenant);
            channels.retain(|channel| held.is_some_and(|held| held.contains(channel)));
            if !channels.is_empty() {
                self.resume_again(&channels);
            }
        }
    }

    fn set(&mut self, channels: &[Channel], suspended: bool) -> Result<(), RmError> {
        let begin = Instant::now();
        let result = self.switch.set(channels, suspended);
        self.count(begin, result.is_err());
        result
    }

    fn suspend(&mut self, channels: &[Channel]) -> Result<Vec<Channel>, RmError> {
        let begin = Instant::now();
        let result = suspend_all(&self.switch, channels);
        self.count(begin, result.is_err());
        result
    }

    fn count(&mut self, begin: Instant, failed: bool) {
        let took_ns = nanos(begin.elapsed());
        self.calls.count += 1;
        self.calls.failed += u64::from(failed);
        self.calls.total_ns += took_ns;
        self.calls.longest_ns = self.calls.longest_ns.max(took_ns);
    }

    fn tell(&mut self, order: &Order) -> Result<(), GuardianError> {
        let gone = || GuardianError::Gone(io::ErrorKind::NotFound.into());
        let told = self
            .guardian
            .as_mut()
            .ok_or_else(gone)
            .and_then(|guardian| guardian.tell(order));
        if told.is_err() {
            // Without a guardian nobody stays held, but who would fault.
            self.gone = self.guardian.take();
            let held = self.take_loose();
            let held: Vec<Channel> = held.into_values().flatten().collect();
            resume_all(&self.switch, &held);
            self.lease.end();
        }
        told
    }
}

impl<S: ChannelSwitch, G: Announce> Drop for Holder<S, G> {
    fn drop(&mut self) {
        self.release_all();
    }
}

fn nanos(duration: Duration) -> u64 {
    // CAST: 584 years.
    duration.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::super::hold::tests::{FakeSwitch, channels};
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);

    /// Takes orders until it is told to be gone.
    #[derive(Clone, Default)]
    struct FakeGuardian {
        orders: Rc<RefCell<Vec<Order>>>,
        gone: Rc<RefCell<bool>>,
    }

    impl Announce for FakeGuardian {
        fn tell(&mut self, order: &Order) -> Result<(), GuardianError> {
            if *self.gone.borrow() {
                return Err(GuardianError::Gone(io::ErrorKind::BrokenPipe.into()));
            }
            self.orders.borrow_mut().push(order.clone());
            Ok(())
        }
    }

    fn holder() -> (Holder<FakeSwitch, FakeGuardian>, FakeGuardian) {
        let guardian = FakeGuardian::default();
        (
            Holder::new(FakeSwitch::default(), guardian.clone()),
            guardian,
        )
    }

    #[test]
    fn what_is_suspended_was_announced() {
        let (mut holder, guardian) = holder();
        holder.hold(A, &channels(3)).unwrap();
        holder.hold(A, &channels(5)).unwrap();
        holder.hold(A, &channels(5)).unwrap();
        let new = channels(5).split_off(3);
        let expected = [Order::Hold(channels(3)), Order::Hold(new)];
        assert_eq!(*guardian.orders.borrow(), expected);
        assert_eq!(holder.switch.suspended.borrow().len(), 5);
        holder.release(A).unwrap();
        assert!(holder.switch.suspended.borrow().is_empty());
        assert_eq!(
            guardian.orders.borrow().last(),
            Some(&Order::Release(channels(5)))
        );
        assert_eq!((holder.calls().count, holder.calls().failed), (3, 0));
    }

    #[test]
    fn a_handle_that_names_nothing_frees_no_tenant() {
        let (mut holder, guardian) = holder();
        holder.switch.gone.insert(channels(3)[1]);
        holder.hold(A, &channels(3)).unwrap();
        assert!(holder.is_held(A));
        assert_eq!(holder.switch.suspended.borrow().len(), 2);
        let released = Order::Release(channels(3)[1..2].to_vec());
        assert_eq!(guardian.orders.borrow().last(), Some(&released));
        // Made meanwhile.
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
    fn without_a_guardian_everybody_runs() {
        let (mut holder, guardian) = holder();
        holder.hold(A, &channels(3)).unwrap();
        *guardian.gone.borrow_mut() = true;
        assert!(holder.hold(B, &channels(1)).is_err());
        assert!(!holder.is_held(A) && holder.switch.suspended.borrow().is_empty());
        assert!(holder.hold(A, &channels(3)).is_err() && holder.lacks_guardian());
        *guardian.gone.borrow_mut() = false;
        holder.set_guardian(guardian);
        holder.hold(A, &channels(3)).unwrap();
        assert!(holder.is_held(A));
    }

    #[test]
    fn who_is_fastened_is_resumed_by_us_alone() {
        let (mut holder, guardian) = holder();
        assert!(holder.fasten(A).is_err(), "it is not held");
        holder.hold(A, &channels(3)).unwrap();
        holder.fasten(A).unwrap();
        holder.fasten(A).unwrap();
        let orders = [
            Order::Hold(channels(3)),
            Order::Renew,
            Order::Release(channels(3)),
        ];
        assert_eq!(*guardian.orders.borrow(), orders);
        holder.loosen(A).unwrap();
        holder.loosen(A).unwrap();
        let told: Vec<Order> = guardian.orders.borrow()[3..].to_vec();
        assert!(told.contains(&Order::Hold(channels(3))), "{told:?}");
        holder.fasten(A).unwrap();
        holder.hold(B, &channels(5)[3..]).unwrap();
        *guardian.gone.borrow_mut() = true;
        assert!(holder.renew().is_err());
        assert!(holder.is_held(A) && !holder.is_held(B));
        assert_eq!(holder.switch.suspended.borrow().len(), 3);
        assert!(holder.release(A).is_err(), "there is no guardian");
        assert!(holder.switch.suspended.borrow().is_empty());
    }

    #[test]
    fn one_who_is_held_at_the_next_switch_is_announced_and_can_be_stopped_at_once() {
        let guardian = FakeGuardian::default();
        let mut holder = Holder::new(FakeSwitch::default(), guardian.clone());
        holder.hold_at_switch(A, &channels(3)).unwrap();
        assert!(holder.is_held(A) && holder.switch.suspended.borrow().is_empty());
        assert_eq!(holder.switch.unscheduled.borrow().len(), 3);
        assert_eq!(*guardian.orders.borrow(), [Order::Hold(channels(3))]);
        holder.stop(A).unwrap();
        holder.stop(B).unwrap();
        assert_eq!(holder.switch.suspended.borrow().len(), 3);
        holder.release(A).unwrap();
        assert!(holder.switch.suspended.borrow().is_empty());
        holder.stop(A).unwrap();
        // Whose memory is to go is really stopped, once.
        holder.hold_at_switch(A, &channels(3)).unwrap();
        holder.fasten(A).unwrap();
        assert_eq!(holder.switch.suspended.borrow().len(), 3);
        let calls = holder.calls().count;
        // And never on the schedule again, whatever it makes.
        holder.hold_at_switch(A, &channels(4)).unwrap();
        holder.stop(A).unwrap();
        holder.fasten(A).unwrap();
        assert_eq!(holder.calls().count, calls + 1, "what is new alone");
        assert_eq!(holder.switch.suspended.borrow().len(), 4);
        holder.release(A).unwrap();
        // What the driver refuses as a whole is suspended as far as it can be.
        holder.switch.gone.insert(channels(3)[1]);
        holder.hold_at_switch(B, &channels(3)).unwrap();
        assert_eq!(holder.switch.suspended.borrow().len(), 2);
        holder.release(B).unwrap();
        assert!(holder.switch.all_run(), "{:?}", holder.switch);
    }

    #[test]
    fn who_is_held_again_after_the_lease_runs_when_it_is_released() {
        let (mut holder, _) = holder();
        holder.hold_at_switch(A, &channels(3)).unwrap();
        holder.begin -= Duration::from_nanos(LIMIT.0);
        holder.renew().unwrap();
        assert!(holder.is_held(A) && !holder.switch.all_run());
        holder.release(A).unwrap();
        assert!(holder.switch.all_run(), "{:?}", holder.switch);
    }

    #[test]
    fn who_is_fastened_and_lacks_nothing_runs_at_the_end() {
        let (mut holder, _) = holder();
        holder.hold(A, &channels(4)).unwrap();
        holder.fasten(A).unwrap();
        holder.hold(B, &channels(6)[4..]).unwrap();
        // One of them is another's, or new.
        holder.resume_able(|tenant| {
            assert_eq!(tenant, A);
            channels(5)[2..].to_vec()
        });
        let suspended: Vec<Channel> = holder.switch.suspended.borrow().iter().copied().collect();
        let expected = [&channels(2)[..], &channels(6)[4..]].concat();
        assert_eq!(suspended, expected);
    }

    #[test]
    fn a_holder_that_ends_leaves_nobody_suspended() {
        struct Shared(Rc<FakeSwitch>);
        impl ChannelSwitch for Shared {
            fn set(&self, channels: &[Channel], suspended: bool) -> Result<(), RmError> {
                self.0.set(channels, suspended)
            }
        }
        let switch = Rc::new(FakeSwitch::default());
        let mut holder = Holder::new(Shared(switch.clone()), FakeGuardian::default());
        holder.hold(A, &channels(3)).unwrap();
        drop(holder);
        assert!(switch.suspended.borrow().is_empty());
    }
}
