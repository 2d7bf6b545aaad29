//! Carries out orders to hold and to release tenants, in the accounting thread or in a thread of
//! its own.
//!
//! A call of the driver takes 0.3 to 0.5 ms. The accounting thread submits most orders and carries
//! them out before it sleeps ([`SuspendExecutor::run_pending`]): waking a thread takes 40 us of
//! processor time. The executor's thread carries out what is submitted while the accounting thread
//! sleeps, starts another watchdog, and renews the lease if the accounting thread does not.
//!
//! # Locks
//! The holder first, then at most one of `queue`, `held` and `resumed`. Callbacks are called with
//! the holder and `resumed` locked, never with `queue` or `held`.

use std::collections::BTreeSet;
use std::sync::mpsc::sync_channel;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use turnstile_accounting::TenantId;

use super::channels::{Channel, ChannelSwitch};
use super::queue::{Batch, PinRequest, Queue};
use super::resumed::{ActivityProbe, FIRST_POLL, Resumed};
use crate::costs::{Cost, Work};
use crate::hold::holder::{Announce, HoldCalls, Holder};
use crate::hold::watchdog::WatchdogError;

/// From one renewal of the lease to the next. TIMEOUT: a fifth of the watchdog's limit.
pub(super) const RENEWAL: Duration = Duration::from_millis(100);

/// The thread wakes up so often while the accounting thread renews the lease. TIMEOUT: half of the
/// watchdog's limit.
const BACKSTOP: Duration = Duration::from_millis(250);

/// The thread wakes up so often while no tenant is held, to poll the tenants that were resumed.
/// A wake-up takes 25 us of processor time.
const IDLE: Duration = FIRST_POLL;

/// Rounds in which the accounting thread carries out orders that were submitted meanwhile.
const ROUNDS_MAX: u32 = 4;

/// From one attempt to start another watchdog to the next.
const WATCHDOG_PAUSE: Duration = Duration::from_secs(1);

/// TIMEOUT: a few calls that suspend other tenants come before.
const PIN_LIMIT: Duration = Duration::from_secs(2);

/// Callbacks from the executor to the GPU.
pub(crate) trait Callbacks: ActivityProbe {
    /// A tenant is about to be held. Its channels as of now.
    fn channels_to_hold(&self, tenant: TenantId) -> Vec<Channel>;

    /// All channels of a held tenant before its memory moves: those that copy as well.
    fn all_channels(&self, tenant: TenantId) -> Vec<Channel> {
        self.channels_to_hold(tenant)
    }

    /// The channels of a tenant are suspended: kernels on them were stopped.
    fn on_suspended(&self, _tenant: TenantId) {}

    /// A tenant is about to be suspended. If it is resident, the preemptor takes the engine.
    fn take_engine(&self, _tenant: TenantId) {}

    /// The tenant is suspended: the preemptor leaves the engine.
    fn leave_engine(&self) {}

    /// Restarts the preemptor if it is gone. Only the executor's thread calls this: the accounting
    /// thread may not start a process or wait for one.
    fn repair_preemptor(&self) {}

    /// A tenant runs again, or is not held after all.
    fn on_running(&self, tenant: TenantId);

    /// Whether a tenant may be released. From then on it runs; otherwise it stays held.
    fn try_release(&self, _tenant: TenantId) -> bool {
        true
    }

    /// Whether a request of a tenant is served, during which the tenant is not to be held.
    fn is_served(&self, _tenant: TenantId) -> bool {
        false
    }

    /// A tenant was suspended, or has left the engine for as long as it is held. False if a request
    /// of it is served since: the tenant is resumed until that is done.
    fn on_held(&self, _tenant: TenantId) -> bool {
        true
    }

    /// Whether memory of a tenant is missing: then it must not run for another moment.
    fn lacks_memory(&self, _tenant: TenantId) -> bool {
        false
    }

    /// The executor ends while memory of a tenant is away. Channels of its processes that lack
    /// none.
    fn runnable_channels(&self, _tenant: TenantId) -> Vec<Channel> {
        Vec::new()
    }

    /// The tenant that is resident now.
    fn resident(&self) -> Option<TenantId>;
}

/// The holder, and what the executor keeps beside it.
#[derive(Debug)]
pub(super) struct HolderState<S: ChannelSwitch, G: Announce> {
    pub(super) holder: Holder<S, G>,
    /// When another watchdog was last started.
    tried: Instant,
    /// Tenants that are to be held again when there is a watchdog.
    unprotected: BTreeSet<TenantId>,
}

/// The holder, for one thread at a time; empty when the executor has ended.
#[derive(Debug)]
pub(crate) struct SharedHolder<S: ChannelSwitch, G: Announce>(
    pub(super) Mutex<Option<HolderState<S, G>>>,
);

impl<S: ChannelSwitch, G: Announce> SharedHolder<S, G> {
    pub(crate) fn new(holder: Holder<S, G>) -> Self {
        Self(Mutex::new(Some(HolderState {
            holder,
            tried: Instant::now(),
            unprotected: BTreeSet::new(),
        })))
    }
}

/// Queue and results, for all threads.
#[derive(Debug)]
pub(crate) struct SuspendExecutor {
    pub(super) queue: Mutex<Queue>,
    wake: Condvar,
    pub(super) held: Mutex<BTreeSet<TenantId>>,
    /// Tenants that were resumed, and may not run yet.
    pub(super) resumed: Mutex<Resumed>,
    pub(super) watchdog_pause: Duration,
}

impl Default for SuspendExecutor {
    fn default() -> Self {
        Self {
            queue: Mutex::default(),
            wake: Condvar::new(),
            held: Mutex::default(),
            resumed: Mutex::default(),
            watchdog_pause: WATCHDOG_PAUSE,
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic under a lock is a bug; the other tenants' GPU goes on as well as it can.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SuspendExecutor {
    /// Orders that a tenant is held (`true`) or released.
    pub(crate) fn submit(&self, tenant: TenantId, hold: bool) {
        self.submit_all(&[(tenant, hold)]);
    }

    /// Orders of one decision: they are carried out together.
    pub(crate) fn submit_all(&self, orders: &[(TenantId, bool)]) {
        let mut queue = lock(&self.queue);
        for (tenant, hold) in orders {
            queue.submit(*tenant, *hold);
        }
        let awake = queue.caller_awake;
        drop(queue);
        if !awake {
            self.wake.notify_one();
        }
    }

    /// A tenant has new channels: they are held if the tenant is to be held.
    pub(crate) fn channels_added(&self, tenant: TenantId) {
        if lock(&self.queue).add_channels(tenant) {
            self.wake.notify_one();
        }
    }

    /// The request of a tenant is done: the tenant is held, if that was postponed.
    pub(crate) fn request_done(&self, tenant: TenantId) {
        lock(&self.queue).request_done(tenant);
        self.wake.notify_one();
    }

    /// Keeps the watchdog from resuming a held tenant (`on`), or ends that.
    ///
    /// # Errors
    /// If the tenant is not held, or the executor has ended.
    pub(crate) fn pin(&self, tenant: TenantId, on: bool) -> Result<(), String> {
        let (done, wait) = sync_channel(1);
        lock(&self.queue).pin(PinRequest { tenant, on, done });
        self.wake.notify_one();
        let pinned = wait.recv_timeout(PIN_LIMIT);
        pinned.unwrap_or_else(|_| Err("The executor of holds has ended".into()))
    }

    /// Channels of a program that is older than this daemon. A daemon before may have suspended
    /// them: they are resumed once, unless the tenant is held.
    pub(crate) fn inherit(&self, tenant: TenantId, channels: Vec<Channel>) {
        lock(&self.queue).inherit(tenant, channels);
        self.wake.notify_one();
    }

    /// Whether a tenant is held.
    #[cfg(test)]
    pub(crate) fn is_held(&self, tenant: TenantId) -> bool {
        lock(&self.held).contains(&tenant)
    }

    fn is_any_held(&self) -> bool {
        !lock(&self.held).is_empty()
    }

    /// Whether an order waits or is carried out.
    pub(crate) fn is_pending(&self) -> bool {
        let queue = lock(&self.queue);
        queue.executing || queue.has_orders()
    }

    /// Calls of the driver so far.
    pub(crate) fn calls(&self) -> HoldCalls {
        lock(&self.queue).calls
    }

    /// What orders took so far.
    pub(crate) fn work(&self) -> Cost {
        lock(&self.queue).work
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        lock(&self.queue).end();
        self.wake.notify_one();
    }

    /// The thread. Tenants that are held when it ends are released with the holder.
    /// `start_watchdog` starts another watchdog.
    pub(crate) fn run<S, G, C>(
        &self,
        holder: &SharedHolder<S, G>,
        callbacks: &C,
        start_watchdog: impl Fn() -> Result<G, WatchdogError>,
    ) where
        S: ChannelSwitch,
        G: Announce,
        C: Callbacks,
    {
        let repair = |state: &mut HolderState<S, G>| {
            self.replace_watchdog(state, &start_watchdog);
            callbacks.repair_preemptor();
        };
        loop {
            // Before the wait what this thread found broken, behind it what other threads did.
            if let Some(state) = &mut *lock(&holder.0) {
                repair(state);
            }
            self.wait();
            let mut holder = lock(&holder.0);
            let Some(state) = &mut *holder else { return };
            repair(state);
            let Some(batch) = lock(&self.queue).take() else {
                let runnable = |tenant| callbacks.runnable_channels(tenant);
                state.holder.resume_able(runnable);
                *holder = None;
                return;
            };
            self.execute(state, callbacks, batch);
        }
    }

    /// The accounting thread carries out what was submitted, and renews the lease if that is due,
    /// unless the executor's thread does. The caller `sleeps` next, or not.
    pub(crate) fn run_pending<S, G, C>(
        &self,
        holder: &SharedHolder<S, G>,
        callbacks: &C,
        sleeps: bool,
    ) where
        S: ChannelSwitch,
        G: Announce,
        C: Callbacks,
    {
        for round in 0..ROUNDS_MAX {
            let mut queue = lock(&self.queue);
            queue.caller_ran = Some(Instant::now());
            queue.caller_awake = !sleeps;
            let ordered = queue.has_orders();
            drop(queue);
            let mut holder = match holder.0.try_lock() {
                Ok(holder) => holder,
                Err(TryLockError::Poisoned(error)) => error.into_inner(),
                // The thread has it, and takes what there is before it waits.
                Err(TryLockError::WouldBlock) => return,
            };
            let Some(state) = &mut *holder else { return };
            if state.holder.lacks_watchdog() {
                // The thread has to start one.
                break;
            }
            let due = round == 0 && self.is_any_held() && state.holder.is_due(RENEWAL);
            if !ordered && !due {
                return;
            }
            let Some(batch) = lock(&self.queue).take() else {
                return;
            };
            self.execute(state, callbacks, batch);
        }
        self.wake.notify_one();
    }

    /// The accounting thread has slept.
    pub(crate) fn caller_awakes(&self) {
        lock(&self.queue).caller_awake = true;
    }

    /// Starts another watchdog where there is none.
    fn replace_watchdog<S: ChannelSwitch, G: Announce>(
        &self,
        state: &mut HolderState<S, G>,
        start: impl Fn() -> Result<G, WatchdogError>,
    ) {
        if !state.holder.lacks_watchdog() {
            return;
        }
        // Before another one: it may resume the tenants that it knows as it ends.
        state.holder.reap_watchdog();
        if state.tried.elapsed() < self.watchdog_pause {
            return;
        }
        state.tried = Instant::now();
        match start() {
            Ok(watchdog) => {
                log::warn!("The watchdog was gone; another one runs, and tenants are held again");
                state.holder.set_watchdog(watchdog);
                let mut queue = lock(&self.queue);
                for tenant in std::mem::take(&mut state.unprotected) {
                    queue.hold_again(tenant);
                }
            }
            Err(error) => log::error!("{error}; no tenant is held without a watchdog"),
        }
    }

    /// Carries out a batch, and does what is due.
    fn execute<S: ChannelSwitch, G: Announce>(
        &self,
        state: &mut HolderState<S, G>,
        callbacks: &impl Callbacks,
        (orders, pins): Batch,
    ) {
        let HolderState {
            holder,
            unprotected,
            ..
        } = state;
        unprotected.retain(|tenant| orders.get(tenant) != Some(&false));
        let holds = orders.iter().filter(|(_, hold)| **hold);
        let holds: Vec<TenantId> = holds.map(|(tenant, _)| *tenant).collect();
        if orders.is_empty() {
            self.resume_inherited(holder);
            self.release_strays(holder, callbacks);
            self.poll_resumed(holder, callbacks);
        } else {
            let work = Work::begin();
            self.carry_out(holder, callbacks, orders);
            lock(&self.queue).work.add(&work);
        }
        for PinRequest { tenant, on, done } in pins {
            let pinned = match on {
                true => self.pin_all(holder, callbacks, tenant),
                false => holder.unpin(tenant).map_err(|error| error.to_string()),
            };
            // The caller may have given up.
            let _ = done.send(pinned);
        }
        let mut queue = lock(&self.queue);
        queue.calls = holder.calls();
        queue.executing = false;
        drop(queue);
        // Each renewal wakes the watchdog.
        if holder.is_due(RENEWAL)
            && let Err(error) = holder.renew()
        {
            log::error!("{error}");
        }
        if holder.lacks_watchdog() {
            unprotected.extend(self.released_without_watchdog(holder, callbacks));
            unprotected.extend(holds.into_iter().filter(|tenant| !holder.is_held(*tenant)));
        }
    }

    /// Tenants that the holder has released for want of a watchdog: all that are not pinned.
    fn released_without_watchdog<S: ChannelSwitch, G: Announce>(
        &self,
        holder: &Holder<S, G>,
        callbacks: &impl Callbacks,
    ) -> Vec<TenantId> {
        let mut held = lock(&self.held);
        let released: Vec<TenantId> = held.extract_if(.., |of| !holder.is_held(*of)).collect();
        drop(held);
        for tenant in &released {
            callbacks.on_running(*tenant);
        }
        released
    }

    /// Waits for an order, or until the lease has to be renewed.
    fn wait(&self) {
        let any_held = self.is_any_held();
        let queue = lock(&self.queue);
        let wait = match queue.caller_ran {
            Some(at) if any_held && at.elapsed() < RENEWAL => BACKSTOP,
            _ if any_held => RENEWAL,
            _ => IDLE,
        };
        if queue.is_empty() {
            let waited = self.wake.wait_timeout(queue, wait);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }
}

#[cfg(test)]
mod tests;
