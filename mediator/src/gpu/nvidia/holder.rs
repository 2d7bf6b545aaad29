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
    lease: Lease,
    held: BTreeMap<TenantId, BTreeSet<Channel>>,
    calls: HoldCalls,
    begin: Instant,
}

impl<S: ChannelSwitch, G: Announce> Holder<S, G> {
    /// Nobody is held.
    pub fn new(switch: S, guardian: G) -> Self {
        Self {
            switch,
            guardian: Some(guardian),
            lease: Lease::new(LIMIT),
            held: BTreeMap::new(),
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

    /// Another guardian, after the last is gone.
    pub fn set_guardian(&mut self, guardian: G) {
        self.guardian = Some(guardian);
    }

    /// Whether a tenant is held.
    pub fn is_held(&self, tenant: TenantId) -> bool {
        self.held.contains_key(&tenant)
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
        self.hand_over(&[], &[(tenant, channels.to_vec())])
            .map_or(Ok(()), Err)
    }

    /// Resumes a tenant's channels.
    ///
    /// # Errors
    /// If the guardian is gone; the tenant runs all the same.
    pub fn release(&mut self, tenant: TenantId) -> Result<(), HolderError> {
        self.hand_over(&[tenant], &[]).map_or(Ok(()), Err)
    }

    /// Resumes those that may run, then suspends the channels of the others that are not suspended yet. The guardian hears
    /// of it before and after, so that nothing lies between the calls: the first wakes the GPU's own processor, and what
    /// comes behind it at once is served sooner. SOURCE: [`super::hands`].
    ///
    /// Returns the first thing that went wrong: a tenant that is not held by it ([`Self::is_held`]) runs.
    pub fn hand_over(
        &mut self,
        release: &[TenantId],
        hold: &[(TenantId, Vec<Channel>)],
    ) -> Option<HolderError> {
        let (mut released, mut error) = (Vec::new(), None);
        let new: Vec<(TenantId, Vec<Channel>)> = hold
            .iter()
            .map(|(tenant, channels)| (*tenant, self.not_held(*tenant, channels)))
            .filter(|(_, channels)| !channels.is_empty())
            .collect();
        let announced: Vec<Channel> = new.iter().flat_map(|(_, all)| all).copied().collect();
        if !announced.is_empty() {
            // The guardian knows before it happens.
            if let Err(gone) = self.tell(&Order::Hold(announced.clone())) {
                return Some(gone.into());
            }
            let now = self.now();
            self.lease.hold(&announced, now);
        }
        for tenant in release {
            released.extend(self.resume(*tenant));
        }
        for (tenant, channels) in new {
            let suspended = match self.suspend(&channels) {
                Ok(suspended) => suspended,
                Err(refusal) => {
                    error.get_or_insert(refusal.into());
                    // What it has of old is of no use alone.
                    released.extend(self.resume(tenant));
                    Vec::new()
                }
            };
            let suspended: BTreeSet<Channel> = suspended.into_iter().collect();
            released.extend(
                channels
                    .iter()
                    .filter(|channel| !suspended.contains(channel)),
            );
            if !suspended.is_empty() {
                self.held.entry(tenant).or_default().extend(suspended);
            }
        }
        if !released.is_empty() {
            let now = self.now();
            self.lease.release(&released, now);
            if let Err(gone) = self.tell(&Order::Release(released)) {
                error.get_or_insert(gone.into());
            }
        }
        error
    }

    /// Those of a tenant's channels that are not suspended.
    fn not_held(&self, tenant: TenantId, channels: &[Channel]) -> Vec<Channel> {
        let known = self.held.get(&tenant);
        let is_new = |channel: &&Channel| !known.is_some_and(|known| known.contains(channel));
        channels.iter().filter(is_new).copied().collect()
    }

    /// Resumes a tenant's channels; returns them.
    fn resume(&mut self, tenant: TenantId) -> Vec<Channel> {
        let channels = self.held.remove(&tenant).unwrap_or_default();
        let channels: Vec<Channel> = channels.into_iter().collect();
        if !channels.is_empty() && self.set(&channels, false).is_err() {
            // One of them is gone perhaps.
            resume_all(&self.switch, &channels);
        }
        channels
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
            for (tenant, channels) in std::mem::take(&mut self.held) {
                self.hold(tenant, &channels.into_iter().collect::<Vec<_>>())?;
            }
        }
        let now = self.now();
        self.lease.renew(now);
        if !self.lease.is_empty() {
            self.tell(&Order::Renew)?;
        }
        Ok(())
    }

    /// Resumes everybody.
    pub fn release_all(&mut self) {
        for tenant in self.held.keys().copied().collect::<Vec<_>>() {
            if let Err(error) = self.release(tenant) {
                log::warn!("Resuming {tenant}: {error}");
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
            // Without a guardian nobody stays held.
            self.guardian = None;
            let held = std::mem::take(&mut self.held);
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
