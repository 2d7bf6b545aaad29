//! What is known of the engine and its tenants: residency, demand, idle time and handles together. Pure; the log and the
//! counters are read by its owner.

use std::collections::{BTreeMap, BTreeSet};

use turnstile_accounting::meter::{LaggedShares, Stay};
use turnstile_accounting::{Moment, Nanos, Signals, SwitchEvent, TenantId, TenantUsage, Usage};

use super::RECORD;
use super::begun::{Begun, Look};
use super::demand::Demand;
use super::events::{Change, SwitchRecord};
use super::handles::Handles;
use super::hosts::{Hosts, Listens};
use super::latches::Latches;
use super::launches::Launches;
use super::models::{H200, Model};
use super::progress::{Located, Progress, Said, Words};
use super::residency::{Residency, UNTRACKED};
use super::stops::Stops;
use super::utilisation::Busy;
use heard::{HEARD, TOLD};
use moves::Moves;
use turnstile_gpu::COMPUTE;
use turnstile_host::process;

/// Residency is told up to here before the end of what was read: it may turn out to be the end of a residency, and
/// the GPU may yet deliver a record of a little earlier.
///
/// SOURCE: the log is flushed before it is read; a switch takes 80 us (facts sheet section 1); [`Edges`](super::residency::Edges) for the rest.
pub(super) const SETTLED: Nanos = Nanos::from_us(600);

/// Processes whose ancestors were looked at without finding a tenant, that are remembered.
const STRANGERS_MAX: usize = 4096;

/// Who has worked is looked at again after such a part of that time, and within so long. SOURCE: the simulated engine at twelve frames a second: 80 to 127 readings of pairs in
/// the first second where there were 256 to 316 with one look in 3 ms; shares and useful work are the same. With an eighth, one that works for 30 ms
/// at a time costs 2 % of useful work.
const LOOKED_AFTER: u64 = 32;
const LOOK_MAX: Nanos = Nanos::from_ms(12);

/// Who launched nothing since the last look may still be at his last kernel, but is looked at after so long. SOURCE: two looks of [`super::device::TICK`].
const DOUBTED_AFTER: Nanos = Nanos::from_ms(6);

/// Whoever is idle for so much of his residency has stopped, or pauses for long.
const STOPPED: f64 = 0.5;

/// The engine's occupancy and whom it belongs to.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) residency: Residency,
    pub(super) demand: Demand,
    pub(super) handles: Handles,
    pub(super) progress: Progress,
    changes: u64,
    /// Who was told to have too many channels.
    crowded: BTreeSet<TenantId>,
    idle: LaggedShares,
    pub(super) latches: Latches,
    launches: Launches,
    stops: Stops,
    begun: Begun,
    pub(super) hosts: Hosts,
    /// Who is on the engine, as far as the log was read, and what his channels said then, which leaves a doubt whether he has work.
    asked: Option<(TenantId, Said, Moment)>,
    /// Pauses between readings so far.
    pauses: u32,
    /// Whether there are counters.
    counters: bool,
    /// The GPU's registers are mapped: to read them is no launch.
    mapped: bool,
    moves: Moves,
    /// Until then another reading of the log would say nothing new.
    confirmed: Moment,
    /// Who was looked at last, and when.
    seen: Option<(TenantId, Moment)>,
    /// End of the last interval that they told of, by their stamps.
    counted_until: Option<Moment>,
    /// Residency was told up to there.
    settled: Moment,
    strangers: BTreeSet<u32>,
    events: Vec<SwitchEvent>,
    /// A part of the log was lost since the events were last taken.
    lost: bool,
}

/// Whom the engine works for, as far as it is known without looking at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Runner {
    /// Somebody who has work.
    Working(TenantId),
    /// This one, if it has work.
    Perhaps(TenantId),
    /// Nobody of those who may run.
    Nobody,
}

impl Watch {
    /// Of an H200.
    pub(super) fn new(counters: bool) -> Self {
        Self {
            residency: Residency::new(COMPUTE, H200.edges),
            demand: Demand::default(),
            handles: Handles::default(),
            changes: 0,
            crowded: BTreeSet::new(),
            progress: Progress::default(),
            idle: LaggedShares::default(),
            latches: Latches::default(),
            launches: Launches::new(H200.launch),
            stops: Stops::default(),
            begun: Begun::default(),
            hosts: Hosts::default(),
            asked: None,
            pauses: 0,
            counters,
            mapped: false,
            moves: Moves::default(),
            confirmed: Moment(0),
            seen: None,
            counted_until: None,
            settled: Moment(0),
            strangers: BTreeSet::new(),
            events: Vec::new(),
            lost: false,
        }
    }

    /// The GPU is of this model. Before anybody is added.
    pub(super) fn is_of(&mut self, model: Model) {
        log::trace!(target: RECORD, "model {}", model.name);
        self.residency = Residency::new(COMPUTE, model.edges);
        self.launches = Launches::new(model.launch);
    }

    /// The GPU's registers are mapped: the driver reads none for us, which it would have the GPU launch something for.
    pub(super) fn registers_are_mapped(&mut self) {
        log::trace!(target: RECORD, "mapped");
        self.mapped = true;
    }

    /// The counters are so much older than they say.
    pub(super) fn measured(&mut self, lag: Nanos) {
        log::trace!(target: RECORD, "measured {}", lag.0);
        self.idle.measured(lag);
        self.believe();
    }

    pub(super) fn add(&mut self, tenant: TenantId, pid: u32, now: Moment) {
        log::trace!(target: RECORD, "add {} {pid} {}", tenant.0, now.0);
        self.demand.add(tenant, now);
        self.assign(pid, tenant);
    }

    /// A process, and what it starts, is a tenant's.
    pub(super) fn assign(&mut self, pid: u32, tenant: TenantId) {
        log::trace!(target: RECORD, "assign {} {pid}", tenant.0);
        self.residency.assign(pid, tenant);
        self.strangers.clear();
        self.changes += 1;
    }

    pub(super) fn exited(&mut self, pid: u32) {
        self.handles.forget(pid);
        self.residency.forget(pid);
        self.changes += 1;
    }

    pub(super) fn remove(&mut self, tenant: TenantId) {
        self.demand.remove(tenant);
        self.progress.forget(tenant);
        self.idle.forget(tenant);
        self.latches.forget(tenant);
        self.launches.forget(tenant);
        self.stops.forget(tenant);
        self.begun.forget(tenant);
        self.hosts.forget(tenant);
        self.crowded.remove(&tenant);
        for pid in self.residency.forget_tenant(tenant) {
            self.handles.forget(pid);
        }
        self.changes += 1;
    }

    /// A tenant is being held.
    pub(super) fn held(&mut self, tenant: TenantId, at: Moment) {
        log::trace!(target: RECORD, "held {} {}", tenant.0, at.0);
        let off = |other| self.demand.is_held(other) || self.hosts.is_silent(other, at);
        let alone = self
            .demand
            .tenants()
            .all(|other| other == tenant || off(other));
        self.moves.held(tenant, at, alone);
        self.demand.held(tenant, at);
        self.progress.broke(tenant, at);
        self.residency.set_held(tenant, Some(at));
    }

    /// A tenant that is being held was stopped wherever it was.
    pub(super) fn suspended(&mut self, tenant: TenantId) {
        log::trace!(target: RECORD, "suspended {}", tenant.0);
        self.residency.suspend(tenant);
    }

    /// A tenant may run again.
    pub(super) fn released(&mut self, tenant: TenantId, at: Moment) {
        log::trace!(target: RECORD, "released {} {}", tenant.0, at.0);
        self.moves.released(tenant, at);
        self.demand.released(tenant, at);
        self.hosts.released(tenant, at);
        self.progress.broke(tenant, at);
        self.residency.set_held(tenant, None);
    }

    /// What was learnt of a tenant's pauses is not true any more. Where it is not known of which time the counters tell, it may have been of this one.
    fn unlearn(&mut self, tenant: TenantId) {
        self.launches.unlearn(tenant);
        self.residency.owe_nothing(tenant);
        if self.idle.is_measured() {
            self.idle.unlearn(tenant);
        }
    }

    /// Asks a tenant's channels.
    pub(super) fn ask(&mut self, tenant: TenantId, words: &impl Words, at: Moment) -> Said {
        let said = self.progress.look(tenant, words, at);
        if let Some((generation, channels)) = self.progress.heard(tenant) {
            self.latches.heard(tenant, generation, channels, at);
        }
        said
    }

    /// Takes what was logged; `complete` if nothing was lost behind it. Whether somebody was there who is no tenant.
    pub(super) fn read(
        &mut self,
        records: impl IntoIterator<Item = SwitchRecord>,
        complete: bool,
    ) -> bool {
        let records: Vec<SwitchRecord> = records.into_iter().collect();
        let mut any_strange = false;
        for (index, record) in records.iter().enumerate() {
            let SwitchRecord { seq, at, pid, .. } = *record;
            let words = |change| match change {
                Change::Active => "active",
                Change::Saved => "saved",
            };
            log::trace!(target: RECORD, "{} {seq} {} {pid} {}", words(record.change), at.0, record.context);
            let tenant = self.residency.tenant(pid).unwrap_or(UNTRACKED);
            any_strange |= tenant == UNTRACKED && !self.residency.is_own(pid);
            if record.change == Change::Saved {
                self.leaves(tenant, at, &records[index + 1..]);
            }
            self.residency.take(record, &mut self.events);
            match record.change {
                Change::Active => {
                    self.hosts.came(tenant, record.at);
                    self.progress.came(tenant, record.at);
                    self.demand.active(tenant, record.at);
                }
                Change::Saved => {
                    self.progress.left(tenant, record.at);
                    self.demand.saved(tenant, record.at);
                }
            }
        }
        if !complete {
            log::trace!(target: RECORD, "lost");
            self.residency.lose();
            self.lost = true;
        }
        any_strange
    }

    /// Whether the work of one that is resident ended long ago, by his launches.
    pub(super) fn has_ended(&self, tenant: TenantId, now: Moment) -> bool {
        let Some((_, said, at)) = self.asked.filter(|(who, ..)| *who == tenant) else {
            return false;
        };
        let resident = self.residency.works_since(tenant);
        let ended = resident.and_then(|resident| self.located(tenant, said, resident, at));
        ended.is_some_and(|ended| now.since(ended.at) > ended.within)
    }

    /// Whom the engine works for, where those in `held` may not run.
    pub(super) fn runner(&self, now: Moment, held: impl Fn(TenantId) -> bool) -> Runner {
        match self.residency.resident().filter(|tenant| !held(*tenant)) {
            Some(tenant) if self.trusted(tenant, now) => Runner::Working(tenant),
            Some(tenant) => Runner::Perhaps(tenant),
            // Whoever may run and has work comes at once.
            None => self
                .demand
                .wanting(now)
                .find(|tenant| !held(*tenant))
                .map_or(Runner::Nobody, Runner::Working),
        }
    }

    /// How soon it is worth looking whether the engine works, `tick` at the soonest; `None` if that is known.
    pub(super) fn look_within(
        &self,
        now: Moment,
        tick: Nanos,
        held: impl Fn(TenantId) -> bool,
    ) -> Option<Nanos> {
        let wanting = self.demand.wanting(now);
        let mut running = wanting.filter(|tenant| !held(*tenant)).peekable();
        if running.peek().is_none() {
            return Some(tick);
        }
        let within = |tenant| {
            if self.hosts.is_presumed(tenant) {
                return Some(tick);
            }
            if self.hosts.tells(tenant, Listens::Stop) {
                return Some(TOLD);
            }
            if self.residency.resident() != Some(tenant) {
                return Some(tick);
            }
            // Of those who never stop it is known.
            let doubted = !self.trusted(tenant, now);
            doubted.then(|| self.pace(tenant, now, tick))
        };
        running.filter_map(within).min()
    }

    /// Whether it need not be looked whether a tenant works: it did for long, and the counters do not say that it has stopped since. Whoever is held and
    /// wanted nothing then would wait for it for ever.
    pub(super) fn trusted(&self, tenant: TenantId, now: Moment) -> bool {
        self.demand.trusted(tenant, now)
            && !self.has_stopped(tenant)
            && !self.hosts.has_stopped_again(tenant)
    }

    fn has_stopped(&self, tenant: TenantId) -> bool {
        self.idle.shares().fraction(tenant) >= STOPPED
    }

    /// From one look at a tenant to the next: the longer it has worked, the less is lost, in parts of it, if its end is seen later. Who is believed to have stopped,
    /// and may have begun, is charged wrongly until that is known.
    pub(super) fn pace(&self, tenant: TenantId, now: Moment, tick: Nanos) -> Nanos {
        if self.has_stopped(tenant) && !self.begun.has(tenant) {
            return tick;
        }
        let part = Nanos(self.demand.busy_for(tenant, now).0 / LOOKED_AFTER);
        let expected = self.demand.works_on(tenant, now);
        part.max(expected).min(LOOK_MAX).max(tick)
    }

    /// The engine was seen at work, or without, in so many readings that began at `at`, while this tenant was resident. All of them were without work but, if it
    /// works, the last.
    pub(super) fn seen(
        &mut self,
        tenant: TenantId,
        works: bool,
        readings: u32,
        at: Moment,
        said: Said,
    ) {
        let told = if said == Said::Nothing { "" } else { " told" };
        log::trace!(target: RECORD, "seen {} {works} {} {readings}{told}", tenant.0, at.0);
        if !self.mapped {
            self.launches.read(at);
        }
        self.seen = Some((tenant, at));
        let idle = self.idle.shares().fraction(tenant);
        let look = Look::of(works, readings);
        if self.begun.seen(tenant, look, at, idle) {
            self.unlearn(tenant);
            self.believe();
        }
        let rested = self.residency.is_idle();
        if let (true, Said::Moved { since, entries }) = (rested, said) {
            let each = self.progress.each(tenant);
            let heard = self.hosts.may_have_begun(tenant);
            // Who is heard again may have begun when he was heard before.
            let by_words = each.is_some() && self.hosts.is_heard_again(tenant);
            let heard = heard.filter(|heard| *heard > since && !by_words);
            let located = match (heard, each) {
                (Some(at), _) => Located { at, within: HEARD },
                (None, Some(each)) => each.began(since, at, entries),
                (None, None) => Located::between(since, at),
            };
            self.stops.moved(tenant, located);
            self.residency.busy(tenant, located.at, &mut self.events);
            if !works {
                // He has stopped again.
                self.demand.busy(tenant, at);
                self.demand.idle(tenant, at);
                return self.residency.idle(tenant, at, &mut self.events);
            }
        }
        self.asked = None;
        if works {
            if !rested {
                self.rested(tenant, said, at);
            }
            self.stops.works(tenant, at);
            self.hosts.works(tenant, at);
            self.progress.works(tenant, at);
            self.demand.busy(tenant, at);
            self.residency.busy(tenant, at, &mut self.events);
        } else {
            self.progress.stops(tenant);
            self.demand.idle(tenant, at);
            if let Some(resident) = self.residency.works_since(tenant) {
                let located = self.located(tenant, said, resident, at);
                let (located, by_words) = self.heard_to_stop(tenant, located, (resident, at));
                let stopped = (self.stops).idle(tenant, resident, at, located, by_words);
                self.residency.idle(tenant, stopped, &mut self.events);
            }
        }
    }

    /// One who works at both of two looks launched less between them than he could: he rested for the rest of the time, which is told as its middle.
    fn rested(&mut self, tenant: TenantId, said: Said, at: Moment) {
        let (Some(resident), Said::Moved { since, entries }) =
            (self.residency.works_since(tenant), said)
        else {
            return;
        };
        let since = since.max(resident);
        if let Some((stopped, began)) = self.progress.rested(tenant, since, at, entries) {
            self.stops.moved(tenant, stopped);
            self.residency.idle(tenant, stopped.at, &mut self.events);
            self.residency.busy(tenant, began, &mut self.events);
        }
    }

    /// When one stopped who was seen without work, by his launches since he was last known to work, or since he came.
    fn located(
        &self,
        tenant: TenantId,
        said: Said,
        resident: Moment,
        at: Moment,
    ) -> Option<Located> {
        let each = self.progress.each(tenant)?;
        match said {
            Said::Nothing => {
                let (since, entries) = self.progress.of_stay(tenant)?;
                let since = since.max(resident);
                // About: the counters tell whether it was elsewhere in that time.
                Some(Located {
                    within: at.since(since),
                    ..each.stopped(since, at, at, entries)
                })
            }
            Said::Moved { since, entries } => {
                Some(each.stopped(since.max(resident), at, at, entries))
            }
            Said::Still {
                since,
                entries,
                moved_at,
            } => Some(each.stopped(since.max(resident), moved_at, at, entries)),
        }
    }

    /// Whether what its channels say of a tenant that is resident leaves no doubt that it has work as before. One that is believed to have stopped may launch now and then, and one
    /// that launched less than it could may have stopped.
    pub(super) fn goes_on(&mut self, tenant: TenantId, said: Said, at: Moment) -> bool {
        self.asked = None;
        if said == Said::Nothing {
            return false;
        }
        self.asked = Some((tenant, said, at));
        log::trace!(target: RECORD, "doubts {} {}", tenant.0, at.0);
        let (since, entries, moved) = match said {
            Said::Nothing => return false,
            Said::Moved { since, entries } => (since, entries, true),
            // His last kernel may be that long, or not.
            Said::Still { since, .. } if at.since(since) > DOUBTED_AFTER => return false,
            Said::Still { since, entries, .. } => (since, entries, false),
        };
        let rests = self.residency.is_idle();
        let heard = self.hosts.may_have_stopped(tenant).is_some();
        if rests || heard || self.has_stopped(tenant) && !self.begun.has(tenant) {
            return false;
        }
        let each = self.progress.each(tenant);
        let trusted = self.trusted(tenant, at);
        if each.is_none_or(|each| each.may_have_rested(since, at, entries, trusted)) {
            return false;
        }
        self.asked = None;
        if moved {
            // He was at work until then at least.
            self.stops.works(tenant, since);
            self.progress.works(tenant, at);
            self.demand.busy(tenant, at);
        }
        true
    }

    /// Whether one that is resident, and whose channels stand still, was seen without work since.
    pub(super) fn rests(&self, tenant: TenantId, now: Moment) -> bool {
        self.residency.is_idle() && self.progress.rests(tenant, now)
    }

    /// Moves what the engine did until `now` to the end of `events`; whether nothing of it was lost.
    pub(super) fn take(&mut self, now: Moment, events: &mut Vec<SwitchEvent>) -> bool {
        log::trace!(target: RECORD, "take {}", now.0);
        let settled = Moment(now.0.saturating_sub(SETTLED.0));
        self.settled = settled;
        self.progress.settle(settled);
        self.residency.settle(settled, &mut self.events);
        events.append(&mut self.events);
        !std::mem::take(&mut self.lost)
    }

    /// There are no counters any more: all residency counts as work.
    pub(super) fn no_counters(&mut self) {
        self.counters = false;
    }

    /// Learns from the engine's counters how much of each residency was idle.
    pub(super) fn counted(&mut self, busy: Busy) {
        if self.counted_until.is_some_and(|until| until != busy.from) {
            self.idle.restart();
        }
        self.counted_until = Some(busy.to);
        let length = busy.to.since(busy.from);
        let (begins, _) = busy.span(self.idle.lag());
        for tenant in self.begun.counted(begins) {
            // What they told since then was of before.
            self.unlearn(tenant);
        }
        let measured = self.idle.is_measured();
        let launched = measured.then(|| {
            let span = busy.span(self.idle.lag());
            self.latches
                .all_launched(span, &self.residency, &self.launches)
        });
        let launched = launched.unwrap_or_default();
        let (residency, stops) = (&self.residency, &self.stops);
        let earlier = |lag: Nanos| {
            let (from, to) = busy.span(lag);
            let mut resident = residency.resident_within(from, to);
            let nobody = resident.remove(&None).unwrap_or_default();
            let handovers = residency.handovers_within(from, to);
            let unpaused = residency.unpaused_within(from, to);
            let stopped = stops.within(from, to);
            // What was told to make good is as it would have been told without.
            let later_ns: i64 = stopped.values().map(|stopped| stopped.later_ns).sum();
            let nobody = Nanos(nobody.0.saturating_add_signed(later_ns));
            let stay = |tenant: TenantId, resident: Nanos| {
                let stopped = stopped.get(&tenant).copied().unwrap_or_default();
                Stay {
                    resident: Nanos(resident.0.saturating_add_signed(-stopped.later_ns)),
                    unpaused: unpaused.get(&tenant).copied().unwrap_or_default(),
                    handovers: handovers.get(&tenant).copied().unwrap_or(0),
                    // CAST: not negative; less than the interval.
                    doubt: Nanos(stopped.variance.sqrt() as u64),
                    launched: launched.get(&tenant).copied(),
                }
            };
            let stays: BTreeMap<TenantId, Stay> = resident
                .into_iter()
                .filter_map(|(tenant, time)| Some((tenant?, stay(tenant?, time))))
                .collect();
            (nobody, stays)
        };
        let Busy { from, to, .. } = busy;
        let words = |count| format!(" {count}");
        log::trace!(
            target: RECORD, "busy {} {} {}{}", from.0, to.0, busy.busy_ns.0,
            busy.launches.map(words).unwrap_or_default()
        );
        let idle = length.saturating_sub(busy.busy_ns);
        let (nobody, stays) = if measured {
            let told = earlier(self.idle.lag());
            self.idle.observe(length, idle, |_| told.clone());
            told
        } else {
            self.idle.observe(length, idle, earlier);
            earlier(self.idle.lag())
        };
        log::trace!(
            "{length:?} until {:?}, {:?} earlier: {idle:?} idle, {nobody:?} nobody, {stays:?}",
            busy.to,
            self.idle.lag()
        );
        let span = busy.span(self.idle.lag());
        if self.idle.is_measured() {
            self.contradict(span, idle, nobody, &stays);
        }
        let less_ns = self.idle.misplaced() * length.0 as f64;
        self.stops.found(span.0, span.1, less_ns);
        if let Some(count) = busy.launches {
            let shares = self.idle.shares();
            let at_handover = |tenant| shares.at_handover(tenant);
            self.launches.observe(span, count, &stays, at_handover);
        }
        if measured {
            self.make_good(span, idle.0 as f64 - nobody.0 as f64, &stays);
        }
        // The counters told of them for the last time.
        let gone = |tenant: &TenantId| !self.minds(*tenant) && !stays.contains_key(tenant);
        for tenant in self
            .idle
            .shares()
            .tenants()
            .filter(gone)
            .collect::<Vec<_>>()
        {
            self.idle.forget(tenant);
            self.launches.forget(tenant);
        }
        self.believe();
    }

    /// What channels said of rests is held against the counters: the engine was idle for so long in an interval, and by what was told, nobody had work for `nobody`.
    fn contradict(
        &mut self,
        (from, to): (Moment, Moment),
        idle: Nanos,
        nobody: Nanos,
        stays: &BTreeMap<TenantId, Stay>,
    ) {
        let shares = self.idle.shares();
        let paused = stays
            .iter()
            .map(|(tenant, stay)| shares.usual_ns(*tenant, stay));
        let paused_ns: f64 = paused.sum();
        let more_ns = nobody.0 as f64 + paused_ns - idle.0 as f64;
        let variance = stays.values().map(|stay| (stay.doubt.0 as f64).powi(2));
        let deviation_ns = variance.sum::<f64>().sqrt();
        for tenant in self.stops.by_words(from, to) {
            self.progress.contradicted(tenant, more_ns, deviation_ns);
        }
    }

    /// What was told of an interval, in which residents were idle for so long, is owed as far as it is known better now.
    fn make_good(
        &mut self,
        (from, to): (Moment, Moment),
        idle_ns: f64,
        stays: &BTreeMap<TenantId, Stay>,
    ) {
        let told = self.residency.told_idle_within(from, to);
        if let (1, Some((alone, _))) = (stays.len(), stays.first_key_value()) {
            if !self.minds(*alone) {
                return;
            }
            let more_ns = more(&told, *alone, idle_ns);
            return self.residency.owe_idle_alone(*alone, more_ns);
        }
        for idled in self.idle.tell(self.launches.confirmed()) {
            if self.begun.has(idled.tenant) || !self.minds(idled.tenant) {
                continue; // it tells of before
            }
            let more_ns = more(&told, idled.tenant, idled.idle_ns);
            // CAST: saturates.
            let sure_ns = idled.paused_ns as i64;
            self.residency.owe_idle(idled.tenant, more_ns, sure_ns);
        }
    }

    /// Tells residency as what is believed now: of those as well who were not there lately, since another lag may be believed than before.
    fn believe(&mut self) {
        let shares = self.idle.shares();
        for tenant in shares.tenants() {
            if !self.minds(tenant) {
                continue;
            }
            let at_handover = shares.at_handover(tenant);
            let fraction = if self.begun.has(tenant) {
                0.0
            } else {
                self.idle.fraction(tenant)
            };
            self.residency.set_idle_fraction(tenant, fraction);
            self.residency.set_idle_at_handover(tenant, at_handover);
            let by_words = self.idle.by_launches();
            let launching = self.launches.fraction(tenant, fraction, by_words);
            self.residency.set_launching_fraction(tenant, launching);
            log::trace!(
                "{tenant} is idle for {fraction:.4}, {at_handover:?} at handovers, launches for {launching:.4}"
            );
        }
    }

    /// Fraction of its residency in which a tenant is believed to be idle.
    #[cfg(test)]
    pub(super) fn idle_fraction(&self, tenant: TenantId) -> f64 {
        self.idle.shares().fraction(tenant)
    }

    /// Which signals a usage rests on, and how far its idle time may be in the wrong place.
    pub(super) fn qualify(&self, usage: &mut Usage) {
        if !self.counters {
            return;
        }
        usage.signals = Signals::EventsAndCounters;
        for engine in &mut usage.engines {
            let doubt = |part: &TenantUsage| {
                let (idle, tenant) = (self.idle.shares(), part.tenant);
                let launching = self.launches.uncertainty(tenant, idle.fraction(tenant));
                let doubt = idle.uncertainty(tenant) + launching;
                // CAST: a part of the tenant's time.
                Nanos((part.used_ns.0 as f64 * doubt) as u64)
            };
            let doubt = engine.tenants.iter().map(doubt).max();
            engine.error_bound_ns += doubt.unwrap_or(Nanos::ZERO);
        }
    }

    /// Processes that came up in the log and are children of a tenant are its own.
    pub(super) fn adopt(&mut self, parent: impl Fn(u32) -> Option<u32>) {
        let unknown = self.residency.untracked().keys();
        let new: Vec<u32> = unknown
            .filter(|pid| !self.strangers.contains(pid))
            .copied()
            .collect();
        for pid in new {
            match process::nearest(pid, &parent, |pid| self.residency.tenant(pid)) {
                Some(tenant) => self.assign(pid, tenant),
                None if self.strangers.len() < STRANGERS_MAX => {
                    self.strangers.insert(pid);
                }
                None => {}
            }
        }
    }
}

/// For how much longer a tenant was idle than was told, in ns.
fn more(told: &BTreeMap<TenantId, f64>, tenant: TenantId, known_ns: f64) -> i64 {
    let told_ns = told.get(&tenant).copied().unwrap_or_default();
    log::trace!("{tenant} told {told_ns:.0} known {known_ns:.0}");
    // CAST: saturates.
    (known_ns - told_ns) as i64
}

mod channels;
mod current;
pub(super) mod heard;
mod lately;
mod leaving;
mod moves;
pub(super) mod readings;
#[cfg(test)]
mod tests;
