//! Holds tenants: suspends and resumes their channels, under a lease that the watchdog knows.
//!
//! ```text
//!   hold(tenant, channels) -> announced -> suspended -> held -- renewed at every poll --> held
//!                                                        '-- release, or no watchdog --> resumed
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use turnstile_accounting::{Moment, TenantId};

use super::lease::Lease;
use super::watchdog::{LIMIT, Order, Watchdog, WatchdogError};
use super::{Channel, ChannelSwitch, HardwareSwitch, resume_all, suspend_all};
use crate::rm::{RmClient, RmError};
use crate::version::DriverAbi;

/// Why a tenant could not be held or released.
#[derive(Debug, thiserror::Error)]
pub enum HolderError {
    /// The driver refused.
    #[error("The driver refused to suspend channels")]
    Rm(#[from] RmError),
    /// There is no watchdog that would resume the channels if the daemon died.
    #[error("Nobody is held without a watchdog")]
    Watchdog(#[from] WatchdogError),
}

/// Calls that suspended or resumed channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HoldCalls {
    /// Number of calls.
    pub count: u64,
    /// Calls that the driver refused.
    pub failed: u64,
    /// Time in them, in nanoseconds.
    pub total_ns: u64,
    /// The longest, in nanoseconds.
    pub longest_ns: u64,
}

/// The hardware's switch, with a client of its own.
#[derive(Debug)]
pub struct OwnedSwitch {
    /// The client that makes the calls.
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

/// Receiver of the orders about suspensions.
pub trait Announce {
    /// Sends an order; after an error the receiver counts as gone.
    ///
    /// # Errors
    /// If the receiver is gone.
    fn send(&mut self, order: &Order) -> Result<(), WatchdogError>;
}

impl Announce for Watchdog {
    fn send(&mut self, order: &Order) -> Result<(), WatchdogError> {
        Self::send(self, order)
    }
}

/// The tenants that are held.
#[derive(Debug)]
pub struct Holder<S: ChannelSwitch, G: Announce> {
    switch: S,
    watchdog: Option<G>,
    /// The last watchdog, which is gone or does not read any more, until it is reaped.
    gone: Option<G>,
    lease: Lease,
    held: BTreeMap<TenantId, BTreeSet<Channel>>,
    /// Pinned tenants, of these: only the daemon may resume them.
    pinned: BTreeSet<TenantId>,
    /// Tenants, of these, that are off the schedule and were not preempted.
    unscheduled: BTreeSet<TenantId>,
    calls: HoldCalls,
    begin: Instant,
}

impl<S: ChannelSwitch, G: Announce> Holder<S, G> {
    /// A holder of no tenants.
    pub fn new(switch: S, watchdog: G) -> Self {
        Self {
            switch,
            watchdog: Some(watchdog),
            gone: None,
            lease: Lease::new(LIMIT),
            held: BTreeMap::new(),
            pinned: BTreeSet::new(),
            unscheduled: BTreeSet::new(),
            calls: HoldCalls::default(),
            begin: Instant::now(),
        }
    }

    /// Calls made so far.
    pub const fn calls(&self) -> HoldCalls {
        self.calls
    }

    /// Whether the watchdog is gone, so that no tenant can be held.
    pub(crate) const fn lacks_watchdog(&self) -> bool {
        self.watchdog.is_none()
    }

    /// Reaps a watchdog that is gone. Not every thread may wait for one
    /// ([`turnstile_host::confine`]).
    pub(crate) fn reap_watchdog(&mut self) {
        self.gone = None;
    }

    /// Sets another watchdog, after the last is gone.
    pub(crate) fn set_watchdog(&mut self, watchdog: G) {
        self.watchdog = Some(watchdog);
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

    /// Resumes channels of a tenant that is not held once more, which does not disturb running
    /// channels.
    pub(crate) fn resume_again(&mut self, channels: &[Channel]) {
        let begin = Instant::now();
        let resumed = resume_all(&self.switch, channels);
        self.count(begin, resumed < channels.len());
    }

    /// The lease's clock.
    fn now(&self) -> Moment {
        // CAST: 584 years.
        Moment(self.begin.elapsed().as_nanos() as u64)
    }

    /// Suspends the tenant's channels that are not suspended yet.
    ///
    /// # Errors
    /// If the tenant cannot be held; then it runs.
    pub fn hold(&mut self, tenant: TenantId, channels: &[Channel]) -> Result<(), HolderError> {
        self.hold_by(tenant, channels, Self::suspend)
    }

    /// The same, but running work continues until the engine switches to another tenant. If none
    /// becomes runnable, [`Self::stop`] ends it. Channels are suspended if the driver refuses this,
    /// or if the tenant is held already.
    ///
    /// # Errors
    /// If the tenant cannot be held; then it runs.
    pub(crate) fn hold_at_switch(
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
                    // Puts channels that the refused call took off the schedule back on it, see
                    // `stop`.
                    let _ = this.set(channels, false);
                    this.suspend(channels)
                }
            }
        })
    }

    /// Preempts a tenant that [`Self::hold_at_switch`] held. It may run for a moment before.
    ///
    /// # Errors
    /// The driver's refusal; then the tenant runs.
    pub fn stop(&mut self, tenant: TenantId) -> Result<(), HolderError> {
        if !self.unscheduled.remove(&tenant) {
            return Ok(());
        }
        let channels = self.channels(tenant);
        // SOURCE: measured on an H200: channels that are off the schedule and are then suspended as
        // well are not started by one call that resumes them.
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
            // A tenant without channels runs nothing; channels that it makes later are to be held.
            self.held.entry(tenant).or_default();
            return Ok(());
        }
        // The watchdog has to know before the channels are suspended.
        self.send(&Order::Hold(new.clone()))?;
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
            self.send(&Order::Release(refused))?;
        }
        if let Some(error) = error {
            self.release(tenant)?;
            return Err(error.into());
        }
        Ok(())
    }

    /// Pins a held tenant: it stays held until it is released, with or without a watchdog. Some of
    /// its memory will not be resident, so it could only fault. Its process must not outlive this
    /// one.
    ///
    /// # Errors
    /// If the tenant is not held, or the watchdog is gone, which may resume it.
    pub fn pin(&mut self, tenant: TenantId) -> Result<(), HolderError> {
        // First: if the lease has ended, the tenant runs.
        self.renew()?;
        // All of its memory is still resident.
        self.stop(tenant)?;
        let gone = || WatchdogError::Gone(io::ErrorKind::NotFound.into());
        let channels = self.held.get(&tenant).ok_or_else(gone)?;
        if self.pinned.contains(&tenant) {
            return Ok(());
        }
        let channels: Vec<Channel> = channels.iter().copied().collect();
        self.send(&Order::Release(channels.clone()))?;
        let now = self.now();
        self.lease.release(&channels, now);
        self.pinned.insert(tenant);
        Ok(())
    }

    /// Unpins a tenant: the watchdog resumes it again if the daemon is gone.
    ///
    /// # Errors
    /// If the watchdog is gone.
    pub(crate) fn unpin(&mut self, tenant: TenantId) -> Result<(), HolderError> {
        self.renew()?;
        let held = self.held.get(&tenant);
        let Some(channels) = held.filter(|_| self.pinned.contains(&tenant)) else {
            return Ok(());
        };
        let channels: Vec<Channel> = channels.iter().copied().collect();
        self.send(&Order::Hold(channels.clone()))?;
        let now = self.now();
        self.lease.hold(&channels, now);
        self.pinned.remove(&tenant);
        Ok(())
    }

    /// Resumes a tenant's channels.
    ///
    /// # Errors
    /// If the watchdog is gone; the tenant runs all the same.
    pub fn release(&mut self, tenant: TenantId) -> Result<(), HolderError> {
        let Some(channels) = self.held.remove(&tenant) else {
            return Ok(());
        };
        self.pinned.remove(&tenant);
        self.unscheduled.remove(&tenant);
        if channels.is_empty() {
            return Ok(());
        }
        let channels: Vec<Channel> = channels.into_iter().collect();
        if self.set(&channels, false).is_err() {
            // One of the channels may be gone.
            resume_all(&self.switch, &channels);
        }
        let now = self.now();
        self.lease.release(&channels, now);
        Ok(self.send(&Order::Release(channels))?)
    }

    /// Whether the lease was last renewed at least `after` ago: by a renewal, a hold or a release.
    pub fn is_due(&self, after: Duration) -> bool {
        self.lease.renewed_ago(self.now()).0 >= nanos(after)
    }

    /// Renews the lease. If it ended because the renewal was late, the watchdog has resumed the
    /// tenants that are not pinned: they are held again.
    ///
    /// # Errors
    /// If a tenant cannot be held again, or the watchdog is gone.
    pub fn renew(&mut self) -> Result<(), HolderError> {
        let now = self.now();
        if !self.lease.lapsed(now).is_empty() {
            log::warn!("The lease on held tenants ended; they are held again");
            let lapsed = self.take_loose();
            for (tenant, channels) in lapsed {
                let channels: Vec<Channel> = channels.into_iter().collect();
                // The watchdog may be about to resume them: one call would not start channels
                // stopped twice.
                resume_all(&self.switch, &channels);
                self.hold(tenant, &channels)?;
            }
        }
        let now = self.now();
        self.lease.renew(now);
        if !self.lease.is_empty() {
            self.send(&Order::Renew)?;
        }
        Ok(())
    }

    /// Removes and returns the held tenants that are not pinned.
    fn take_loose(&mut self) -> BTreeMap<TenantId, BTreeSet<Channel>> {
        let (kept, unpinned) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|(tenant, _)| self.pinned.contains(tenant));
        self.held = kept;
        self.unscheduled.clear();
        unpinned
    }

    /// Resumes all tenants but the pinned ones.
    pub(crate) fn release_all(&mut self) {
        let unpinned = |tenant: &&TenantId| !self.pinned.contains(tenant);
        for tenant in self
            .held
            .keys()
            .filter(unpinned)
            .copied()
            .collect::<Vec<_>>()
        {
            if let Err(error) = self.release(tenant) {
                log::warn!("Resuming {tenant}: {error}");
            }
        }
    }

    /// At the end: resumes those channels of pinned tenants that may run; the others stay
    /// suspended.
    pub(crate) fn resume_able(&mut self, able: impl Fn(TenantId) -> Vec<Channel>) {
        for tenant in self.pinned.clone() {
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

    fn send(&mut self, order: &Order) -> Result<(), WatchdogError> {
        let gone = || WatchdogError::Gone(io::ErrorKind::NotFound.into());
        let sent = self
            .watchdog
            .as_mut()
            .ok_or_else(gone)
            .and_then(|watchdog| watchdog.send(order));
        if sent.is_err() {
            // Without a watchdog only pinned tenants stay held: resumed, they would fault.
            self.gone = self.watchdog.take();
            let held = self.take_loose();
            let held: Vec<Channel> = held.into_values().flatten().collect();
            resume_all(&self.switch, &held);
            self.lease.end();
        }
        sent
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
mod tests;
