//! The host's part of a period: observes the engines, decides, charges, and carries out the orders.
//!
//! In go engine events, polls and the usage of a period; out go orders to gates and to the GPU, and
//! entries of the ledger. The accounting thread calls this.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use turnstile_accounting::meter::ChannelReading;
use turnstile_accounting::{
    DemandEvent, Ledger, LedgerError, Moment, Nanos, SwitchEvent, TenantId, Usage,
};
use turnstile_gpu::{ChannelActivity, Contexts, EngineReading, READINGS, Suspend};
use turnstile_mediation::{Activity, Control, GateOrder};
use turnstile_policies::policy_by_name;

use super::memory::{Homecoming, Memory};
use super::peer::{Kind, Tenant};
use super::presence::Change;
use super::recorder::{LedgerConfig, LedgerHealth, LedgerStartError, Recorder};
use super::state::{Leaving, SETTLE_AFTER};
use super::{Host, engines};
use crate::journal::Changed;

/// Why tenants end, and the line of the log.
const REMOVED: &str = "The GPU was taken out of service";

impl Host {
    /// Takes what was logged of the engines and of tenants' demand. The policy does not get the
    /// switches where a meter polls.
    pub(crate) fn observe(&self, switches: &[SwitchEvent], demand: &[DemandEvent]) {
        if !(switches.is_empty() && demand.is_empty()) {
            self.lock().mediation.observe(switches, demand);
        }
    }

    /// Decides anew from what was observed, and carries it out.
    pub(crate) fn decide(&self) {
        let mut state = self.lock();
        let orders = state.mediation.decide(self.gpu.now());
        state.carry_out(&*self.gpu, &orders);
    }

    /// Takes a reading of an engine that divides its time by itself, and carries out the orders of
    /// the rule. Returns when the next reading is due.
    pub(crate) fn poll(
        &self,
        reading: &mut EngineReading,
        channels: &mut Vec<ChannelActivity>,
    ) -> Moment {
        let mut state = self.lock();
        let polled = state.mediation.poll(reading);
        if log::log_enabled!(target: READINGS, log::Level::Trace) {
            for seen in &reading.tenants {
                let owed = state.mediation.owed(seen.tenant);
                let admitted = state.mediation.admitted(seen.tenant);
                let (at, tenant) = (reading.at.0, seen.tenant.0);
                let work = u8::from(seen.has_work);
                log::trace!(target: READINGS, "state {at} {tenant} {work} {admitted} {owed:?}");
            }
            for window in &reading.windows {
                let to = window.usage.window.to().0;
                for reading in &window.readings {
                    let tenant = reading.tenant.0;
                    let (worked, resident) = (reading.worked, reading.resident);
                    log::trace!(target: READINGS, "window {to} {tenant} {worked:?} {resident:?}");
                }
            }
        }
        state.carry_out(&*self.gpu, &polled.gates);
        drop(state);
        reading.exact = polled.exact;
        for window in reading.windows.drain(..) {
            self.period_end(None, window.usage, None, channels);
        }
        polled.next
    }

    /// Whether the policy takes what the engines do, and not only the usage of periods.
    pub(crate) fn schedules_by_events(&self) -> bool {
        policy_by_name(&self.config.policy).is_some_and(|row| row.every_engine)
            || self.gpu.capabilities().demand
    }

    /// Whether no tenant can get work without [`Self::end_idle`]: no gate is open or opening. Then
    /// [`Self::is_idle`] holds until a tenant may have work.
    pub(crate) fn begins_idle(&self) -> bool {
        let state = self.lock();
        let mut gates = state.tenants.values().filter_map(Tenant::gates);
        let idle = !gates.any(|gates| gates.any_open() || gates.any_opening());
        self.idle.store(idle, Ordering::Release);
        idle
    }

    /// Whether any tenant has work.
    pub(crate) fn any_wants(&self) -> bool {
        self.lock().mediation.any_wants()
    }

    /// Whether held tenants have to be polled within a period: the GPU gives no notice of them.
    pub(crate) fn polls_held(&self) -> bool {
        let state = self.lock();
        state.mediation.control() == Control::Gates && state.mediation.held().next().is_some()
    }

    /// Whether there is no tenant.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().tenants.is_empty()
    }

    /// When the next decision is due, if before the end of the period.
    pub(crate) fn decide_at(&self) -> Option<Moment> {
        self.lock().mediation.decide_at()
    }

    /// Whether memory is moving or its turns are under way, so that it needs a step within a
    /// period.
    pub(crate) fn memory_is_busy(&self) -> bool {
        self.lock().memory.as_ref().is_some_and(Memory::is_busy)
    }

    /// Runs a step of the memory manager.
    pub(crate) fn memory_tick(&self) {
        let mut state = self.lock();
        let state = &mut *state;
        if let Some(memory) = &mut state.memory {
            memory.step(&mut state.mediation, &*self.gpu, self.gpu.now());
        }
    }

    /// How long the compute engine executed nothing because memory moved, until `now` and since the
    /// last call.
    pub(crate) fn memory_idle(&self, now: Moment) -> Nanos {
        let mut state = self.lock();
        let memory = state.memory.as_mut();
        memory.map_or(Nanos::ZERO, |memory| memory.take_idle(now))
    }

    /// Before the end, brings memory of programs to the GPU: see [`Memory::bring_back`].
    /// [`Self::homecoming`] returns the progress.
    pub fn bring_memory_back(&self) {
        let state = &mut *self.lock();
        if let Some(memory) = &mut state.memory {
            memory.bring_back(&state.tenants);
        }
    }

    /// Progress of [`Self::bring_memory_back`].
    pub fn homecoming(&self) -> Homecoming {
        let state = self.lock();
        let memory = state.memory.as_ref();
        memory.map_or_else(Homecoming::default, |memory| {
            memory.homecoming(&state.tenants)
        })
    }

    /// Commands of a tenant that were announced and have not finished.
    pub(super) fn pending(&self, tenant: TenantId) -> u64 {
        let mut channels = Vec::new();
        self.gpu.activity(tenant, &mut channels);
        channels
            .iter()
            .map(|channel| u64::from(channel.pending))
            .sum()
    }

    /// A period ended: charges it, decides, moves gates, writes status pages.
    pub(crate) fn period_end(
        &self,
        extrapolated: Option<Usage>,
        observed: Usage,
        truth: Option<Usage>,
        channels: &mut Vec<ChannelActivity>,
    ) {
        let mut state = self.lock();
        let state = &mut *state;
        let end = observed.window.to();
        if let Some(usage) = truth {
            let kept = 1;
            let ledger = state
                .records
                .truth
                .get_or_insert_with(|| Ledger::new(engines(&*self.gpu), kept));
            if let Err(error) = ledger.append(usage) {
                count(&mut state.records.errors, error);
            }
        }
        let activity: Vec<Activity> = state
            .tenants
            .keys()
            .map(|tenant| {
                channels.clear();
                self.gpu.activity(*tenant, channels);
                Activity {
                    tenant: *tenant,
                    pending: channels
                        .iter()
                        .map(|channel| u64::from(channel.pending))
                        .sum(),
                    last_active: channels.iter().map(|channel| channel.last_active).max(),
                }
            })
            .collect();
        if let Some(memory) = &mut state.memory {
            memory.period(&mut state.mediation, &observed);
        }
        let recording = state.records.recorder.is_some();
        let charged = recording.then(|| (extrapolated.clone(), observed.clone()));
        let orders = match state
            .mediation
            .period_end(extrapolated, observed, &activity)
        {
            Ok(orders) => {
                let orders = orders.to_vec();
                if let (Some(recorder), Some((extrapolated, observed))) =
                    (&mut state.records.recorder, &charged)
                {
                    let usages: Vec<&Usage> = extrapolated.iter().chain([observed]).collect();
                    let (tenants, starting) = (&state.tenants, &state.starting);
                    let (mediation, book) = (&state.mediation, &state.accounts.book);
                    recorder.describe(state.described.all());
                    recorder.period(&*self.gpu, mediation, tenants, starting, book, &usages);
                }
                orders
            }
            Err(error) => {
                count(&mut state.records.errors, error);
                Vec::new()
            }
        };
        // Opening orders first: the engine switches to an opened tenant as soon as another stops.
        let closes = |order: &GateOrder| order.state == turnstile_vmm::gate::GateState::Closed;
        let (close, mut orders): (Vec<GateOrder>, Vec<GateOrder>) =
            orders.into_iter().partition(closes);
        orders.extend(close);
        state.carry_out(&*self.gpu, &orders);
        if let Some(memory) = &mut state.memory {
            memory.wishes(&state.mediation, state.tenants.keys(), end);
            memory.step(&mut state.mediation, &*self.gpu, self.gpu.now());
        }
        state.write_status(&*self.gpu, end);
        for tenant in state.tenants.values_mut() {
            tenant.peer.flush();
        }
        state
            .records
            .untracked
            .check(end, || self.gpu.report().untracked);
        state.departed.expire(end);
        let due = |gone: &mut Leaving| end.since(gone.left) >= SETTLE_AFTER;
        let settled: Vec<Leaving> = state.leaving.extract_if(.., due).collect();
        settled.into_iter().for_each(|gone| state.settle(gone));
    }

    /// Reads put and get of all channels.
    pub(crate) fn read_channels(&self) -> Vec<ChannelReading> {
        let (mut readings, mut channels) = (Vec::new(), Vec::new());
        for tenant in self.lock().tenants.keys() {
            channels.clear();
            self.gpu.activity(*tenant, &mut channels);
            readings.extend(channels.iter().map(|channel| channel.reading(*tenant)));
        }
        readings
    }

    /// Whether the GPU may leave commands of a tenant pending: the tenant is held, or its memory
    /// moves.
    pub(crate) fn is_suspended(&self, tenant: TenantId) -> bool {
        let state = self.lock();
        self.gpu.capabilities().suspend != Suspend::Drains
            && (state.memory.is_some() || !state.mediation.admitted(tenant))
    }

    /// Channels in use and open, for the lengths of poll phases.
    pub(crate) fn channel_counts(&self) -> (u32, u32) {
        let state = self.lock();
        let mut counts = (0, 0);
        let mut channels = Vec::new();
        for (tenant, entry) in &state.tenants {
            channels.clear();
            self.gpu.activity(*tenant, &mut channels);
            // CAST: at most 1,024 channels a tenant
            counts.0 += channels
                .iter()
                .filter(|channel| channel.last_active.0 > 0)
                .count() as u32;
            counts.1 += entry.gates().map_or(0, |gates| gates.channels().count()) as u32;
        }
        counts
    }

    /// Whether the GPU answers, for all that is known.
    pub(crate) fn is_there(&self) -> bool {
        self.presence.is_there()
    }

    /// Takes the GPU out of service: its tenants end at once, and it takes no other. False if it
    /// was removed before.
    pub(crate) fn remove(&self) -> bool {
        if !self.presence.change(Change::Remove, "") {
            return false;
        }
        self.journal().report("gpu_removed", "", REMOVED);
        log::warn!("GPU: {REMOVED}");
        let mut state = self.lock();
        for tenant in state.tenants.values_mut() {
            tenant.peer.end(&format!("{REMOVED}; connect again"));
        }
        drop(state);
        // The accounting thread may be in a long sleep.
        self.end_idle();
        self.gpu.wake();
        true
    }

    /// Brings a removed GPU back into service: the accounting thread takes it back. False if it was
    /// not removed.
    pub(crate) fn restore(&self) -> bool {
        self.presence
            .change(Change::Restore, "It was removed, and is not taken back yet")
    }

    /// The GPU does not answer since `from`.
    pub(crate) fn silent(&self, from: Moment, reason: &str) {
        if self.presence.change(Change::Fail, reason) {
            log::error!(
                "GPU: silent: {reason}; its time is charged to no tenant, and it is taken back when it answers"
            );
            self.journal().report("gpu_silent", "", reason);
        }
        self.unknown(from);
    }

    /// Nothing is known of the engines until `to`.
    pub(crate) fn unknown(&self, to: Moment) {
        if let Some(recorder) = &mut self.lock().records.recorder {
            recorder.silent(to);
        }
    }

    /// A GPU that was removed, and had not failed, is back in service.
    pub(crate) fn is_back(&self) {
        self.unknown(self.gpu.now());
        if self.presence.change(Change::Answer, "") {
            let text = "The GPU is back in service";
            self.journal().report("gpu_back", "", text);
            log::warn!("GPU: {text}");
        }
    }

    /// Takes the GPU back. Its VMs are notified and end if it was reset.
    ///
    /// # Errors
    /// Why it does not answer yet; its time since is a gap.
    pub(crate) fn retake(&self) -> Result<(), String> {
        let taken = self.gpu.take_back();
        let mut state = self.lock();
        let now = self.gpu.now();
        if let Some(recorder) = &mut state.records.recorder {
            recorder.silent(now);
        }
        let contexts = taken?;
        let ending = (contexts == Contexts::Gone).then_some(&mut state.tenants);
        for tenant in ending.into_iter().flat_map(BTreeMap::values_mut) {
            if matches!(tenant.kind, Kind::Vm(_)) {
                let text = "The GPU was reset after it had not answered; connect again";
                tenant.peer.end(text);
            }
        }
        drop(state);
        let text = match contexts {
            Contexts::Kept => "The GPU answers again, with its contexts",
            Contexts::Gone => "The GPU answers again and was reset; its VMs have to connect again",
        };
        // Unless it was removed meanwhile.
        if self.presence.change(Change::Answer, "") {
            self.journal().report("gpu_back", "", text);
        }
        log::warn!("GPU: {text}");
        Ok(())
    }

    /// Begins to make what is charged durable.
    pub(crate) fn open_ledger(&self, config: LedgerConfig) -> Result<(), LedgerStartError> {
        self.lock().records.recorder = Some(Recorder::start(config, self.common.boot, &*self.gpu)?);
        Ok(())
    }

    /// Writes the last window; false if the ledger lacks something of this run. No period may end
    /// after this.
    pub(crate) fn close_ledger(&self) -> bool {
        let mut recorder = self.lock().records.recorder.take();
        if let Some(recorder) = recorder.as_mut().filter(|_| !self.presence.is_there()) {
            recorder.ends_silent(self.gpu.now());
        }
        recorder.is_none_or(Recorder::close)
    }

    /// Why the durable ledger is not written now; none while it is, and without one.
    pub fn ledger_reason(&self) -> Option<String> {
        self.lock()
            .records
            .recorder
            .as_ref()
            .and_then(Recorder::reason)
    }

    /// How the durable ledger stands; none without one.
    pub fn ledger_health(&self) -> Option<LedgerHealth> {
        self.lock().records.recorder.as_ref().map(Recorder::health)
    }

    /// Whether a change can be noted in the ledger now; always without one.
    pub fn can_note(&self) -> bool {
        self.lock()
            .records
            .recorder
            .as_ref()
            .is_none_or(Recorder::can_note)
    }

    /// Notes a change that was made, in the journal (as an event of this kind) and in the ledger.
    /// `name` is the tenant's or the account's.
    pub fn note(&self, kind: &str, name: &str, changed: Changed) {
        if let Some(recorder) = &self.lock().records.recorder {
            recorder.note(name, &changed);
        }
        self.common.journal.add(kind, name, Some(changed));
    }
}

fn count(errors: &mut u64, error: LedgerError) {
    // Once a period at most, and only if law 1 is broken: worth every line.
    *errors += 1;
    log::error!("Ledger: {error}");
}
