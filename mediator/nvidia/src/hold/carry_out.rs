//! How the executor carries orders out.
//!
//! A call that suspends preempts the resident tenant, also the one that was just scheduled in. So
//! where one tenant is released as another is held, the latter is only taken off the schedule, and
//! runs until the engine changes contexts by itself: one change instead of two to four of 150 to
//! 230 us each. SOURCE: measured on an H200.
//!
//! Where no tenant is released, the preemptor takes the engine first ([`crate::preemptor`]): 4 us
//! (p50; p99 6) after its doorbell is rung nothing of the tenant runs. Without a preemptor that
//! takes 350 us after half a millisecond of rest, 223 us right behind another call.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use turnstile_accounting::TenantId;

use super::channels::ChannelSwitch;
use super::executor::{Callbacks, SuspendExecutor, lock};
use super::resumed::Remedy;
use crate::hold::holder::{Announce, Holder};

/// A tenant that was released is resident so soon after the call. SOURCE: measured on an H200:
/// 100 us.
const POLL_INTERVAL: Duration = Duration::from_micros(250);
/// Polls before a tenant that stays resident is suspended: a time slice of the hardware and more.
const POLLS_MAX: u32 = 8;

impl SuspendExecutor {
    pub(super) fn carry_out<S: ChannelSwitch>(
        &self,
        holder: &mut Holder<S, impl Announce>,
        callbacks: &impl Callbacks,
        orders: BTreeMap<TenantId, bool>,
    ) {
        let (holds, releases): (Vec<_>, Vec<_>) = orders.into_iter().partition(|(_, hold)| *hold);
        let handover = !releases.is_empty();
        let mut leaving = BTreeSet::new();
        for (tenant, _) in holds {
            if self.hold(holder, callbacks, tenant, handover) {
                leaving.insert(tenant);
            }
        }
        for (tenant, _) in releases {
            self.release(holder, callbacks, tenant);
        }
        if !leaving.is_empty() {
            self.await_change(holder, callbacks, &leaving);
        }
        for tenant in leaving {
            self.confirm(holder, callbacks, tenant);
        }
    }

    /// Holds a tenant. True if it may still be resident, until the engine changes contexts.
    fn hold<S: ChannelSwitch>(
        &self,
        holder: &mut Holder<S, impl Announce>,
        callbacks: &impl Callbacks,
        tenant: TenantId,
        handover: bool,
    ) -> bool {
        if callbacks.is_served(tenant) {
            self.postpone(callbacks, tenant);
            return false;
        }
        lock(&self.resumed).forget(tenant);
        let channels = callbacks.channels_to_hold(tenant);
        let leaving = handover && !callbacks.lacks_memory(tenant);
        let held = if leaving {
            holder.hold_at_switch(tenant, &channels)
        } else {
            // The tenant has left the engine when the call returns.
            callbacks.on_suspended(tenant);
            callbacks.take_engine(tenant);
            let held = holder.hold(tenant, &channels);
            callbacks.leave_engine();
            held
        };
        if !holder.is_held(tenant) {
            callbacks.on_running(tenant);
        } else if leaving {
            lock(&self.held).insert(tenant);
        } else {
            self.confirm(holder, callbacks, tenant);
        }
        // Without a watchdog, that was logged.
        if let Err(error) = held
            && !holder.lacks_watchdog()
        {
            log::warn!("{tenant} is not held: {error}");
        }
        leaving
    }

    fn release<S: ChannelSwitch>(
        &self,
        holder: &mut Holder<S, impl Announce>,
        callbacks: &impl Callbacks,
        tenant: TenantId,
    ) {
        if !callbacks.try_release(tenant) {
            // With the channels that it made since the order.
            lock(&self.queue).keep_held(tenant);
            if let Err(error) = holder.hold(tenant, &callbacks.channels_to_hold(tenant)) {
                log::warn!("{tenant} is not held: {error}");
            }
            return;
        }
        let channels = holder.channels(tenant);
        let released = holder.release(tenant);
        lock(&self.resumed).add(tenant, channels, Instant::now());
        lock(&self.held).remove(&tenant);
        callbacks.on_running(tenant);
        if let Err(error) = released {
            log::error!("{error}");
        }
    }

    /// Waits until the engine has changed to another tenant; suspends one that stays resident.
    fn await_change<S: ChannelSwitch>(
        &self,
        holder: &mut Holder<S, impl Announce>,
        callbacks: &impl Callbacks,
        leaving: &BTreeSet<TenantId>,
    ) {
        let mut stays = None;
        for _ in 0..POLLS_MAX {
            thread::sleep(POLL_INTERVAL);
            stays = callbacks.resident().filter(|of| leaving.contains(of));
            if stays.is_none() {
                return;
            }
        }
        let Some(tenant) = stays else { return };
        match holder.stop(tenant) {
            Ok(()) => callbacks.on_suspended(tenant),
            Err(error) => {
                log::warn!("{tenant} is not held: {error}");
                lock(&self.held).remove(&tenant);
                callbacks.on_running(tenant);
            }
        }
    }

    /// A held tenant is not resident any more: reports it held, if it still is to be.
    fn confirm<S: ChannelSwitch>(
        &self,
        holder: &mut Holder<S, impl Announce>,
        callbacks: &impl Callbacks,
        tenant: TenantId,
    ) {
        if !holder.is_held(tenant) {
            return;
        }
        if callbacks.on_held(tenant) {
            lock(&self.held).insert(tenant);
            return;
        }
        if let Err(error) = holder.release(tenant) {
            log::error!("{error}");
        }
        lock(&self.held).remove(&tenant);
        callbacks.on_running(tenant);
        self.postpone(callbacks, tenant);
    }

    /// A tenant is held as soon as its request is done.
    fn postpone(&self, callbacks: &impl Callbacks, tenant: TenantId) {
        lock(&self.queue).postpone(tenant);
        // It may be done already.
        if !callbacks.is_served(tenant) {
            self.request_done(tenant);
        }
    }

    /// Suspends all channels of a held tenant, and keeps the watchdog from resuming them.
    pub(super) fn pin_all<S: ChannelSwitch>(
        &self,
        holder: &mut Holder<S, impl Announce>,
        callbacks: &impl Callbacks,
        tenant: TenantId,
    ) -> Result<(), String> {
        let suspended = match holder.is_held(tenant) {
            true => holder.hold(tenant, &callbacks.all_channels(tenant)),
            false => Ok(()),
        };
        let pinned = suspended.and_then(|()| holder.pin(tenant));
        if !holder.is_held(tenant) && lock(&self.held).remove(&tenant) {
            callbacks.on_running(tenant);
        }
        pinned.map_err(|error| error.to_string())
    }

    /// Resumes channels that a daemon before this one may have suspended.
    pub(super) fn resume_inherited<S: ChannelSwitch>(&self, holder: &mut Holder<S, impl Announce>) {
        let inherited = lock(&self.queue).take_inherited();
        for (tenant, channels) in inherited {
            if !holder.is_held(tenant) {
                holder.resume_again(&channels);
            }
        }
    }

    /// Releases tenants that are held without an order: the rule takes them to run. That is a bug.
    pub(super) fn release_strays<S: ChannelSwitch>(
        &self,
        holder: &mut Holder<S, impl Announce>,
        callbacks: &impl Callbacks,
    ) {
        let held = lock(&self.held).clone();
        let queue = lock(&self.queue);
        let strays = held.into_iter().filter(|of| !queue.is_ordered(*of));
        let strays: Vec<TenantId> = strays.collect();
        drop(queue);
        for tenant in strays {
            log::error!(
                "{tenant} was held without an order: it runs again (this is a bug; please report it)"
            );
            self.release(holder, callbacks, tenant);
        }
    }

    /// Resumes once more the tenants that were resumed and do not run.
    pub(super) fn poll_resumed<S: ChannelSwitch>(
        &self,
        holder: &mut Holder<S, impl Announce>,
        callbacks: &impl Callbacks,
    ) {
        let remedies = lock(&self.resumed).poll(callbacks, Instant::now());
        for (tenant, remedy, mut channels) in remedies {
            let still = callbacks.all_channels(tenant);
            channels.retain(|channel| still.contains(channel));
            if channels.is_empty() || holder.is_held(tenant) {
                lock(&self.resumed).forget(tenant);
                continue;
            }
            log::debug!("{tenant} does not run: {remedy:?}");
            match remedy {
                Remedy::Resume => holder.resume_again(&channels),
                Remedy::Restart => {
                    let restarted = holder.hold(tenant, &channels);
                    if let Err(error) = restarted.and_then(|()| holder.release(tenant)) {
                        log::warn!("{tenant} is not restarted: {error}");
                    }
                }
            }
        }
    }
}
