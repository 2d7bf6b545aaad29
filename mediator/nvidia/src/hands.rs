//! Suspending and resuming: half a millisecond each, so that nobody waits for the calls who has something else to do.
//!
//! ```text
//!   want(tenant, hold or release) -> wanted -- taken whole --> handover, or hold alone
//!                                                              renew the lease; another guardian, if there is none
//!   handover: the others off the schedule --> who may run resumed --> the engine goes over; who stays on it is stopped
//! ```
//!
//! Who accounts orders most of it, and then sleeps: what is ordered while he is awake he carries out himself before he does ([`Hands::see_to`]), and he
//! renews the lease. A thread has the rest: what is ordered while he sleeps, what others wait for, another guardian, and the lease if he is not there. To
//! wake it is 40 us of processor time each time.
//!
//! Suspending preempts whoever is on the engine, also the one who has just come. So at a handover the holder is only taken
//! off the schedule, and runs until the engine goes over: it changes contexts once. SOURCE: measured on an H200: resuming the
//! one and then suspending the other is two changes of 150 to 230 us each, often four (decision 011).
//!
//! Where somebody has to be stopped, and nobody comes in his stead, the usher does ([`super::usher`]): 4 us after his
//! doorbell is rung (p99 6) nothing of the tenant runs. Without him, a call that follows another closely is served much sooner. SOURCE: measured on an H200:
//! from the suspending call to the last instruction 350 us (p50) after half a millisecond of rest, 223 us behind a resuming
//! call.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use turnstile_accounting::TenantId;

use super::arrivals::{self, Arrivals, Remedy};
use super::costs::{Cost, Work};
use super::guardian::GuardianError;
use super::hold::{Channel, ChannelSwitch};
use super::holder::{Announce, HoldCalls, Holder};

/// The lease is renewed so often while somebody is held. TIMEOUT: a fifth of the guardian's patience.
const RENEWAL: Duration = Duration::from_millis(100);

/// The thread sees to it so often while who accounts has been there since the last [`RENEWAL`]. TIMEOUT: half of the guardian's patience.
const BACKSTOP: Duration = Duration::from_millis(250);

/// The same while nobody is: it is looked whether all who were resumed came. Each wake is 25 us of processor time.
const IDLE: Duration = arrivals::FIRST_LOOK;

/// What is ordered while orders are carried out is the thread's after so many times.
const ROUNDS: u32 = 4;

/// From one attempt to start another guardian to the next.
const GUARDIAN_PAUSE: Duration = Duration::from_secs(1);

/// Who may run is on the engine so soon after the call. SOURCE: measured on an H200: 100 us.
const ARRIVAL_PAUSE: Duration = Duration::from_micros(250);
/// Looks before who is to be held is stopped: a time slice of the hardware and more.
const ARRIVAL_LOOKS: u32 = 8;

/// What is asked of the GPU that is worked for, and told it.
pub(super) trait Owner: arrivals::Eyes {
    /// A tenant is about to be held; returns its channels as of now.
    fn holding(&self, tenant: TenantId) -> Vec<Channel>;

    /// All channels of a tenant that is held, whose memory is about to be taken: those that copy as well.
    fn everything(&self, tenant: TenantId) -> Vec<Channel> {
        self.holding(tenant)
    }

    /// Its channels are suspended: what ran on them was stopped in the middle.
    fn suspended(&self, _tenant: TenantId) {}

    /// A tenant is about to be suspended: if it is on the engine, that is taken from it, which is sooner done.
    fn take_engine(&self, _tenant: TenantId) {}

    /// It is suspended: whoever took the engine lets go of it.
    fn leave_engine(&self) {}

    /// Sees to it that somebody can take the engine: the thread asks for it, as who accounts may start no process and wait for the end of none.
    fn mend(&self) {}

    /// A tenant runs again, or is not held after all.
    fn runs(&self, tenant: TenantId);

    /// Whether a tenant may be released; one that may not stays held, whoever wants what. From then on it runs.
    fn may_run(&self, _tenant: TenantId) -> bool {
        true
    }

    /// Whether something is being done for a tenant during which it is not to be held.
    fn is_served(&self, _tenant: TenantId) -> bool {
        false
    }

    /// A tenant was suspended, or has left the engine and does not come back. False if something was begun for it in between: it is
    /// resumed until that is done.
    fn held(&self, _tenant: TenantId) -> bool {
        true
    }

    /// Whether memory of a tenant is not all there: then it must not run for another moment.
    fn lacks_memory(&self, _tenant: TenantId) -> bool {
        false
    }

    /// Nobody is held any more, and memory of a tenant is away: channels of those of its processes that lack none.
    fn able(&self, _tenant: TenantId) -> Vec<Channel> {
        Vec::new()
    }

    /// Whose context is on the engine now.
    fn on_the_engine(&self) -> Option<TenantId>;

    /// What was ordered is done: from now on the engine says again who works.
    fn moved(&self) {}

    /// The same, where it was done behind the back of who accounts, who may sleep until then.
    fn tell_who_waits(&self) {}
}

/// Who is to stay held whatever happens, or is not any more, and who hears of it.
type Fasten = (TenantId, bool, SyncSender<Result<(), String>>);

/// TIMEOUT: a few calls that suspend others come before, half a millisecond each.
const FASTEN_LIMIT: Duration = Duration::from_secs(2);

/// What the thread is to do next.
#[derive(Debug, Default)]
struct Wanted {
    /// Hold (`true`) or release.
    tenants: BTreeMap<TenantId, bool>,
    /// Who is to be held by the last order, whether or not that was carried out.
    to_be_held: BTreeSet<TenantId>,
    /// To be held as soon as what is done for them is done.
    postponed: BTreeSet<TenantId>,
    fasten: Vec<Fasten>,
    /// Channels that may have been suspended by a daemon that is gone.
    inherited: Vec<(TenantId, Vec<Channel>)>,
    calls: HoldCalls,
    /// What was done because of orders: calls, and looking until the engine has gone over.
    work: Cost,
    /// Somebody is at it.
    moving: bool,
    ending: bool,
    /// Who accounts is awake: he sees to what is ordered.
    awake: bool,
    /// When he was there last.
    seen_to: Option<Instant>,
}

/// The holder, and what is remembered of it.
#[derive(Debug)]
struct Grip<S: ChannelSwitch, G: Announce> {
    holder: Holder<S, G>,
    /// When another guardian was looked for.
    tried: Instant,
    /// Who ought to be held, and is not for want of a guardian.
    owed: BTreeSet<TenantId>,
}

/// Has the holder, for one at a time; nothing when the thread has ended.
#[derive(Debug)]
pub(super) struct Holding<S: ChannelSwitch, G: Announce>(Mutex<Option<Grip<S, G>>>);

impl<S: ChannelSwitch, G: Announce> Holding<S, G> {
    pub(super) fn new(holder: Holder<S, G>) -> Self {
        Self(Mutex::new(Some(Grip {
            holder,
            tried: Instant::now(),
            owed: BTreeSet::new(),
        })))
    }
}

/// Both sides.
#[derive(Debug)]
pub(super) struct Hands {
    /// Who is held or about to be.
    wanted: Mutex<Wanted>,
    wake: Condvar,
    held: Mutex<BTreeSet<TenantId>>,
    /// Who runs again, and may not have come yet.
    arrivals: Mutex<Arrivals>,
    guardian_pause: Duration,
}

impl Default for Hands {
    fn default() -> Self {
        Self {
            wanted: Mutex::default(),
            wake: Condvar::new(),
            held: Mutex::default(),
            arrivals: Mutex::default(),
            guardian_pause: GUARDIAN_PAUSE,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic under a lock is a bug; the others' GPU goes on as well as it can.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hands {
    /// Has a tenant held (`true`) or released.
    pub(super) fn want(&self, tenant: TenantId, hold: bool) {
        self.want_all(&[(tenant, hold)]);
    }

    /// The same of all of whom one decision says so: they are taken together, and who is held makes room for who is released.
    pub(super) fn want_all(&self, orders: &[(TenantId, bool)]) {
        let mut wanted = lock(&self.wanted);
        for (tenant, hold) in orders {
            wanted.postponed.remove(tenant);
            wanted.tenants.insert(*tenant, *hold);
            if *hold {
                wanted.to_be_held.insert(*tenant);
            } else {
                wanted.to_be_held.remove(tenant);
            }
        }
        let seen_to = wanted.awake;
        drop(wanted);
        if !seen_to {
            self.wake.notify_one();
        }
    }

    /// A tenant has something new: that is stopped too if the tenant is to be held. (Not if it is held yet, and to be released: nobody would order that again.)
    pub(super) fn has_more(&self, tenant: TenantId) {
        let mut wanted = lock(&self.wanted);
        if !wanted.to_be_held.contains(&tenant) {
            return;
        }
        wanted.tenants.entry(tenant).or_insert(true);
        drop(wanted);
        self.wake.notify_one();
    }

    /// What was done for a tenant is done: it is held, if it was to be since.
    pub(super) fn served(&self, tenant: TenantId) {
        let mut wanted = lock(&self.wanted);
        if wanted.postponed.remove(&tenant) {
            wanted.tenants.entry(tenant).or_insert(true);
        }
        drop(wanted);
        self.wake.notify_one();
    }

    /// Sees to it that nobody else resumes a tenant that is held, the guardian neither (`on`); or that the guardian does again.
    ///
    /// # Errors
    /// If it is not held, or nobody is.
    pub(super) fn fasten(&self, tenant: TenantId, on: bool) -> Result<(), String> {
        let (done, wait) = sync_channel(1);
        lock(&self.wanted).fasten.push((tenant, on, done));
        self.wake.notify_one();
        let fastened = wait.recv_timeout(FASTEN_LIMIT);
        fastened.unwrap_or_else(|_| Err("Nobody holds tenants".into()))
    }

    /// Channels of a program that was there before this daemon: another may have suspended them, which nobody else would resume. They are, once, unless
    /// the tenant is held.
    pub(super) fn inherit(&self, tenant: TenantId, channels: Vec<Channel>) {
        lock(&self.wanted).inherited.push((tenant, channels));
        self.wake.notify_one();
    }

    /// Whether a tenant is held.
    #[cfg(test)]
    pub(super) fn is_held(&self, tenant: TenantId) -> bool {
        lock(&self.held).contains(&tenant)
    }

    pub(super) fn is_anyone_held(&self) -> bool {
        !lock(&self.held).is_empty()
    }

    /// Whether somebody is being held or released: what the engine does meanwhile says nothing.
    pub(super) fn is_moving(&self) -> bool {
        let wanted = lock(&self.wanted);
        wanted.moving || !wanted.tenants.is_empty()
    }

    /// Calls made so far.
    pub(super) fn calls(&self) -> HoldCalls {
        lock(&self.wanted).calls
    }

    /// What it took so far.
    pub(super) fn work(&self) -> Cost {
        lock(&self.wanted).work
    }

    /// Has the thread end.
    pub(super) fn end(&self) {
        lock(&self.wanted).ending = true;
        self.wake.notify_one();
    }

    /// The thread. Whoever is held when it ends is released with the holder. `guardian` starts another one.
    pub(super) fn run<S, G, O>(
        &self,
        holding: &Holding<S, G>,
        owner: &O,
        guardian: impl Fn() -> Result<G, GuardianError>,
    ) where
        S: ChannelSwitch,
        G: Announce,
        O: Owner,
    {
        let mend = |held: &mut Grip<S, G>| {
            self.find_guardian(held, &guardian);
            owner.mend();
        };
        loop {
            // Before it waits what it found broken itself, and after that what others did.
            if let Some(held) = &mut *lock(&holding.0) {
                mend(held);
            }
            self.wait();
            let mut grip = lock(&holding.0);
            let Some(held) = &mut *grip else { return };
            mend(held);
            let Some((tenants, fasten)) = self.next() else {
                held.holder.resume_able(|tenant| owner.able(tenant));
                *grip = None;
                return;
            };
            let moved = self.work_on(held, owner, tenants, fasten);
            drop(grip);
            if moved {
                owner.tell_who_waits();
            }
        }
    }

    /// Who accounts is there: carries out what was ordered, and renews the lease if it is time, unless the thread is at it. He `sleeps` now, or goes on. Whether anybody was moved.
    pub(super) fn see_to<S, G, O>(&self, holding: &Holding<S, G>, owner: &O, sleeps: bool) -> bool
    where
        S: ChannelSwitch,
        G: Announce,
        O: Owner,
    {
        let mut moved = false;
        for round in 0..ROUNDS {
            let mut wanted = lock(&self.wanted);
            wanted.seen_to = Some(Instant::now());
            wanted.awake = !sleeps;
            let ordered = !wanted.tenants.is_empty();
            drop(wanted);
            let mut grip = match holding.0.try_lock() {
                Ok(grip) => grip,
                Err(TryLockError::Poisoned(error)) => error.into_inner(),
                // The thread is at it, and takes what there is before it waits.
                Err(TryLockError::WouldBlock) => return moved,
            };
            let Some(held) = &mut *grip else {
                return moved;
            };
            if held.holder.lacks_guardian() {
                // To start one takes longer than he has.
                break;
            }
            let due = round == 0 && self.is_anyone_held() && held.holder.is_due(RENEWAL);
            if !ordered && !due {
                return moved;
            }
            let Some((tenants, fasten)) = self.next() else {
                return moved;
            };
            moved |= self.work_on(held, owner, tenants, fasten);
        }
        self.wake.notify_one();
        moved
    }

    /// Who accounts has slept.
    pub(super) fn awake(&self) {
        lock(&self.wanted).awake = true;
    }

    /// Starts another guardian where there is none.
    fn find_guardian<S: ChannelSwitch, G: Announce>(
        &self,
        Grip {
            holder,
            tried,
            owed,
        }: &mut Grip<S, G>,
        guardian: impl Fn() -> Result<G, GuardianError>,
    ) {
        if !holder.lacks_guardian() {
            return;
        }
        // Before another: it may resume whom it knows as it ends.
        holder.bury_guardian();
        if tried.elapsed() < self.guardian_pause {
            return;
        }
        *tried = Instant::now();
        match guardian() {
            Ok(guardian) => {
                log::warn!("The guardian was gone; there is another, and tenants are held again");
                holder.set_guardian(guardian);
                let mut wanted = lock(&self.wanted);
                for tenant in std::mem::take(owed) {
                    wanted.tenants.entry(tenant).or_insert(true);
                }
            }
            Err(error) => log::error!("{error}; nobody is held without one"),
        }
    }

    /// Does what is to be done, and what is due. Whether anybody was moved.
    fn work_on<S: ChannelSwitch, G: Announce>(
        &self,
        grip: &mut Grip<S, G>,
        owner: &impl Owner,
        tenants: BTreeMap<TenantId, bool>,
        fasten: Vec<Fasten>,
    ) -> bool {
        let Grip { holder, owed, .. } = grip;
        owed.retain(|tenant| tenants.get(tenant) != Some(&false));
        let asked = tenants.iter().filter(|(_, hold)| **hold);
        let asked: Vec<TenantId> = asked.map(|(tenant, _)| *tenant).collect();
        let moves = !tenants.is_empty();
        if moves {
            let work = Work::begin();
            self.carry_out(holder, owner, tenants);
            lock(&self.wanted).work.add(&work);
        } else {
            let inherited = std::mem::take(&mut lock(&self.wanted).inherited);
            for (tenant, channels) in inherited {
                if !holder.is_held(tenant) {
                    holder.resume_again(&channels);
                }
            }
            self.release_strays(holder, owner);
            self.look_for_arrivals(holder, owner);
        }
        for (tenant, on, done) in fasten {
            let fastened = if on {
                self.fasten_all(holder, owner, tenant)
            } else {
                let loosened = holder.loosen(tenant);
                loosened.map_err(|error| error.to_string())
            };
            // Whoever asked may have given up.
            let _ = done.send(fastened);
        }
        let mut wanted = lock(&self.wanted);
        wanted.calls = holder.calls();
        wanted.moving = false;
        drop(wanted);
        if moves {
            owner.moved();
        }
        // Each renewal wakes the guardian.
        if holder.is_due(RENEWAL)
            && let Err(error) = holder.renew()
        {
            log::error!("{error}");
        }
        if holder.lacks_guardian() {
            // The holder has let go of everybody who is not fastened.
            // Not within the loop's head, where its lock would be kept while another is taken.
            let held = std::mem::take(&mut *lock(&self.held));
            for tenant in held {
                if holder.is_held(tenant) {
                    lock(&self.held).insert(tenant);
                } else {
                    owner.runs(tenant);
                    owed.insert(tenant);
                }
            }
            owed.extend(asked.into_iter().filter(|tenant| !holder.is_held(*tenant)));
        }
        moves
    }

    /// Waits until there is something to do, or the lease is to be renewed.
    fn wait(&self) {
        let held = self.is_anyone_held();
        let wanted = lock(&self.wanted);
        let wait = match wanted.seen_to {
            Some(at) if held && at.elapsed() < RENEWAL => BACKSTOP,
            _ if held => RENEWAL,
            _ => IDLE,
        };
        if wanted.tenants.is_empty() && wanted.fasten.is_empty() && !wanted.ending {
            let waited = self.wake.wait_timeout(wanted, wait);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// What there is to do; none when it is to end.
    fn next(&self) -> Option<(BTreeMap<TenantId, bool>, Vec<Fasten>)> {
        let mut wanted = lock(&self.wanted);
        if wanted.ending {
            return None;
        }
        let tenants = std::mem::take(&mut wanted.tenants);
        wanted.moving = !tenants.is_empty();
        Some((tenants, std::mem::take(&mut wanted.fasten)))
    }

    /// Stops all of a tenant that is held, and sees to it that nobody else resumes it.
    fn fasten_all<S: ChannelSwitch, O: Owner>(
        &self,
        holder: &mut Holder<S, impl Announce>,
        owner: &O,
        tenant: TenantId,
    ) -> Result<(), String> {
        let stopped = if holder.is_held(tenant) {
            holder.hold(tenant, &owner.everything(tenant))
        } else {
            Ok(())
        };
        let fastened = stopped.and_then(|()| holder.fasten(tenant));
        if !holder.is_held(tenant) && lock(&self.held).remove(&tenant) {
            owner.runs(tenant);
        }
        fastened.map_err(|error| error.to_string())
    }

    fn carry_out<S: ChannelSwitch, O: Owner>(
        &self,
        holder: &mut Holder<S, impl Announce>,
        owner: &O,
        tenants: BTreeMap<TenantId, bool>,
    ) {
        let (hold, release): (Vec<_>, Vec<_>) = tenants.into_iter().partition(|(_, hold)| *hold);
        let handover = !release.is_empty();
        let mut leaving = Vec::new();
        for (tenant, _) in &hold {
            if self.hold(holder, owner, *tenant, handover) {
                leaving.push(*tenant);
            }
        }
        for (tenant, _) in release {
            self.release(holder, owner, tenant);
        }
        if handover && !hold.is_empty() {
            let held = hold.into_iter().map(|(tenant, _)| tenant).collect();
            self.see_off(holder, owner, &held);
        }
        for tenant in leaving {
            self.confirm(holder, owner, tenant);
        }
    }

    /// Waits until the engine has gone over to somebody else; stops who stays on it.
    fn see_off<S: ChannelSwitch, O: Owner>(
        &self,
        holder: &mut Holder<S, impl Announce>,
        owner: &O,
        held: &BTreeSet<TenantId>,
    ) {
        let mut stays = None;
        for _ in 0..ARRIVAL_LOOKS {
            thread::sleep(ARRIVAL_PAUSE);
            stays = owner.on_the_engine().filter(|tenant| held.contains(tenant));
            if stays.is_none() {
                return;
            }
        }
        let Some(tenant) = stays else { return };
        match holder.stop(tenant) {
            Ok(()) => owner.suspended(tenant),
            Err(error) => {
                log::warn!("{tenant} is not held: {error}");
                lock(&self.held).remove(&tenant);
                owner.runs(tenant);
            }
        }
    }

    fn release<S: ChannelSwitch, O: Owner>(
        &self,
        holder: &mut Holder<S, impl Announce>,
        owner: &O,
        tenant: TenantId,
    ) {
        if !owner.may_run(tenant) {
            // With what it made since that was ordered.
            lock(&self.wanted).to_be_held.insert(tenant);
            if let Err(error) = holder.hold(tenant, &owner.holding(tenant)) {
                log::warn!("{tenant} is not held: {error}");
            }
            return;
        }
        let channels = holder.channels(tenant);
        let released = holder.release(tenant);
        lock(&self.arrivals).resumed(tenant, channels, Instant::now());
        lock(&self.held).remove(&tenant);
        owner.runs(tenant);
        if let Err(error) = released {
            log::error!("{error}");
        }
    }

    /// Resumes once more who was resumed and does not come. Nobody is moved meanwhile.
    fn look_for_arrivals<S: ChannelSwitch, O: Owner>(
        &self,
        holder: &mut Holder<S, impl Announce>,
        owner: &O,
    ) {
        let remedies = lock(&self.arrivals).look(owner, Instant::now());
        for (tenant, remedy, mut channels) in remedies {
            let still = owner.everything(tenant);
            channels.retain(|channel| still.contains(channel));
            if channels.is_empty() || holder.is_held(tenant) {
                lock(&self.arrivals).forget(tenant);
                continue;
            }
            log::debug!("{tenant} does not come: {remedy:?}");
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

    /// Releases whoever is held and by no order ought to be: to the policy he runs, so that nobody else would. It is a bug if there is one.
    fn release_strays<S: ChannelSwitch, O: Owner>(
        &self,
        holder: &mut Holder<S, impl Announce>,
        owner: &O,
    ) {
        let held = lock(&self.held).clone();
        let wanted = lock(&self.wanted);
        let ordered = |tenant: &TenantId| {
            wanted.to_be_held.contains(tenant) || wanted.tenants.contains_key(tenant)
        };
        let strays: Vec<TenantId> = held.into_iter().filter(|of| !ordered(of)).collect();
        drop(wanted);
        for tenant in strays {
            log::error!(
                "{tenant} was held without an order: it runs again (this is a bug; please report it)"
            );
            self.release(holder, owner, tenant);
        }
    }

    /// Holds a tenant; true if it may be on the engine still, until it goes over to somebody else.
    fn hold<S: ChannelSwitch, O: Owner>(
        &self,
        holder: &mut Holder<S, impl Announce>,
        owner: &O,
        tenant: TenantId,
        handover: bool,
    ) -> bool {
        if owner.is_served(tenant) {
            self.postpone(owner, tenant);
            return false;
        }
        lock(&self.arrivals).forget(tenant);
        let channels = owner.holding(tenant);
        let leaving = handover && !owner.lacks_memory(tenant);
        let held = if leaving {
            holder.hold_at_switch(tenant, &channels)
        } else {
            // It leaves before the call returns.
            owner.suspended(tenant);
            owner.take_engine(tenant);
            let held = holder.hold(tenant, &channels);
            owner.leave_engine();
            held
        };
        if !holder.is_held(tenant) {
            owner.runs(tenant);
        } else if leaving {
            lock(&self.held).insert(tenant);
        } else {
            self.confirm(holder, owner, tenant);
        }
        // Without a guardian, that was said.
        if let Err(error) = held
            && !holder.lacks_guardian()
        {
            log::warn!("{tenant} is not held: {error}");
        }
        leaving
    }

    /// Nothing of a tenant that is held is on the engine any more: that is told, if it still is so.
    fn confirm<S: ChannelSwitch, O: Owner>(
        &self,
        holder: &mut Holder<S, impl Announce>,
        owner: &O,
        tenant: TenantId,
    ) {
        if !holder.is_held(tenant) {
            return;
        }
        if owner.held(tenant) {
            lock(&self.held).insert(tenant);
            return;
        }
        if let Err(error) = holder.release(tenant) {
            log::error!("{error}");
        }
        lock(&self.held).remove(&tenant);
        owner.runs(tenant);
        self.postpone(owner, tenant);
    }
}

impl Hands {
    /// A tenant is held as soon as what is done for it is done.
    fn postpone(&self, owner: &impl Owner, tenant: TenantId) {
        lock(&self.wanted).postponed.insert(tenant);
        // It may be done already.
        if !owner.is_served(tenant) {
            self.served(tenant);
        }
    }
}

#[cfg(test)]
#[path = "hands_tests.rs"]
mod tests;
