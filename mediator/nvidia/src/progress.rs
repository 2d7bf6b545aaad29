//! How far tenants' channels are, by their own words. Pure.
//!
//! The host engine advances a channel's GP_GET as it takes entries: one for a launch, as it begins. So words that moved are work, and who was seen without work and
//! whose words stand still has none. What they cannot say is when the last kernel ends, and whether one that begins by itself (a graph's, or after a
//! semaphore) runs: that says the engine's status register.
//!
//! A tenant can write its words. So they are hints: nothing is charged by them alone, and who worked more often than [`MISTAKES_MAX`] while they stood still, or for
//! longer by the counters than they said, is not asked again.

use std::collections::BTreeMap;

use turnstile_accounting::{Moment, Nanos, TenantId};

use super::RECORD;

/// Who works while his words stand still may do so now and then: what he runs may have begun by itself.
const MISTAKES_MAX: u32 = 3;
/// Whose words stand still, and who was seen without work, is looked at by the register all the same after so long, at first; then after a quarter of the time for which he rests,
/// and so long at most.
const CHECKED_AFTER: (Nanos, Nanos) = (Nanos::from_ms(100), Nanos::from_ms(1_000));
/// The engine works for no more than so much of an interval of the counters in which somebody rested by his words, beyond what is told, or he lies: half of how far that may be off by
/// chance, but not less, and not more, than this.
const SLACK_NS: (f64, f64) = (500_000.0, 1_000_000.0);
/// What exceeds that is summed up; so much is a mistake.
const CONTRADICTED_NS: f64 = 20_000_000.0;
/// Launches of the last such a number of looks say how long one takes.
const REMEMBERED: f64 = 32.0;
/// Whose words have stood still for a launch, and so much longer, has no work, if the status register said the same so often in a row; it is asked again each so many times.
const STANDS: Nanos = Nanos::from_us(250);
const AGREED_MIN: u32 = 8;
const ASKED_AGAIN: u32 = 8;
/// He has launched so many between two looks just before: his kernels are as short as they were.
const LAUNCHED_MIN: u64 = 4;
/// Of longer launches it is known later than by the register, whose readings take half a millisecond.
const STANDS_MAX_NS: f64 = 400_000.0;
/// Looks that are not known to be of one who worked without a break.
const PENDING_MAX: usize = 64;
/// Whose channels stand still is looked at once or twice at first, and then after twice the longest time that it worked so.
const LOOKED_AT: Nanos = Nanos::from_ms(15);
/// No less says how long launches take.
const SHORT: Nanos = Nanos::from_ms(1);
/// Launches of one who works, and of an interval between two looks, differ by so much of it.
const UNEVEN: f64 = 0.1;
/// Standard deviation of when one stopped or began whose launches are known, for all else: edges of residencies, launches that a stay is taken to have had.
/// SOURCE: what counters said of two bursty tenants with kernels of 200 us on an H200: 0.6 ms an interval, with two to four such moments in each.
const SEEN_NS: f64 = 300_000.0;
/// An interval that is off by more than so many standard deviations counts as one that is off by so many: one in which a rest was missed says nothing of the others.
const OFF_MAX: f64 = 4.0;
/// Of what one launched in stays before the last one it is not known to one launch each: that is nothing beside so many of them. SOURCE: a recording of an H200: one with kernels of 50 us came
/// for 0.1 ms before a stay of 41 ms; taken for unknown, its end was told as its middle.
const VISITS_DOUBT: f64 = 4.0;
/// A longer one says how long launches take only if they did not take the whole ring meanwhile.
const LONG: Nanos = Nanos::from_ms(15);
/// A channel that moved within so long is read at each look, the others only where none of these has moved.
const LIVELY: Nanos = Nanos::from_ms(1_000);

/// The words of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entries {
    /// Entries taken by the host engine, modulo those of the ring.
    pub(super) get: u32,
    /// Entries that the program has added, modulo the same.
    pub(super) put: u32,
}

impl Entries {
    /// As they stand in a channel's USERD, one after the other. SOURCE: `clc86f.h`: GP_GET at 0x88, GP_PUT at 0x8c.
    pub(super) const fn of(word: u64) -> Self {
        // CAST: its halves.
        let (get, put) = (word as u32, (word >> 32) as u32);
        Self { get, put }
    }

    /// Entries taken since then, of a ring of so many.
    pub(super) const fn since(self, before: Self, ring: u32) -> u32 {
        if self.get >= before.get {
            self.get - before.get
        } else {
            // What is no ring's index is the tenant's own doing.
            (ring.saturating_sub(before.get)).saturating_add(self.get)
        }
    }
}

/// Channels of a tenant, to be read.
pub(super) trait Words {
    /// Another one if these are not those of before.
    fn generation(&self) -> u64;
    /// How many they are.
    fn count(&self) -> usize;
    /// The words of one, and the entries of its ring.
    fn read(&self, index: usize) -> (Entries, u32);
}

/// What channels said when they were last read.
pub(super) struct Known {
    generation: u64,
    said: Vec<(Entries, u32)>,
}

impl Words for Known {
    fn generation(&self) -> u64 {
        self.generation
    }

    fn count(&self) -> usize {
        self.said.len()
    }

    fn read(&self, index: usize) -> (Entries, u32) {
        self.said.get(index).copied().unwrap_or_default()
    }
}

/// What a tenant's channels say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// Nothing yet.
    Nothing,
    /// They took so many entries since the last look, which was then.
    Moved { since: Moment, entries: u64 },
    /// They stand still since the look at `moved_at`, or before: until then they took so many from the look before it, at `since`.
    Still {
        since: Moment,
        entries: u64,
        moved_at: Moment,
    },
}

#[derive(Clone, Copy, Debug)]
struct Channel {
    entries: Entries,
    /// Entries of its ring.
    ring: u32,
    moved_at: Moment,
}

/// An interval between two looks, and the entries taken in it.
#[derive(Clone, Copy, Debug)]
struct Interval {
    from: Moment,
    to: Moment,
    entries: u64,
}

/// How long one takes from entry to entry while he works: sums over intervals in which he did.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    intervals: f64,
    ns: f64,
    entries: f64,
    /// Squares of how far intervals were off.
    squares: f64,
}

impl Pace {
    fn learn(&mut self, interval: &Interval) {
        let (ns, entries) = (
            interval.to.since(interval.from).0 as f64,
            interval.entries as f64,
        );
        let off = self.each().map_or(0.0, |each| {
            let most = OFF_MAX * (each.off_ns + each.entry_ns);
            (ns - entries * each.entry_ns).clamp(-most, most)
        });
        let keep = 1.0 - 1.0 / REMEMBERED;
        for (sum, more) in [
            (&mut self.intervals, 1.0),
            (&mut self.ns, ns),
            (&mut self.entries, entries),
            (&mut self.squares, off * off),
        ] {
            *sum = *sum * keep + more;
        }
    }

    fn each(&self) -> Option<Each> {
        // Of a few launches it is not known.
        (self.intervals >= 2.0 && self.entries >= 4.0).then(|| Each {
            entry_ns: self.ns / self.entries,
            off_ns: (self.squares / self.intervals).sqrt(),
        })
    }
}

/// How long one takes from entry to entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Each {
    pub(super) entry_ns: f64,
    /// Standard deviation of how far intervals between looks are off.
    pub(super) off_ns: f64,
}

/// When something happened, as far as launches tell: within so long around that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Located {
    pub(super) at: Moment,
    pub(super) within: Nanos,
}

impl Located {
    /// At some time from one to the other.
    pub(super) fn between(from: Moment, to: Moment) -> Self {
        let within = to.since(from);
        Self {
            at: from + Nanos(within.0 / 2),
            within,
        }
    }
}

impl Each {
    fn of(self, entries: f64) -> Nanos {
        // CAST: not negative; saturates.
        Nanos((entries.max(0.0) * self.entry_ns) as u64)
    }

    /// Who launched nothing for so long has ended what he launched.
    fn stands_after(self) -> Option<Nanos> {
        let after = self.of(1.0 + UNEVEN) + STANDS;
        (self.entry_ns <= STANDS_MAX_NS).then_some(after)
    }

    /// What is known of a moment of which launches tell up to so long, and which lies in an interval of `whole`.
    fn within(self, width_ns: f64, whole: Nanos) -> Nanos {
        // How far intervals are off says where in a kernel they begin and end, and how even kernels are.
        let uneven = (self.off_ns * self.off_ns - self.entry_ns * self.entry_ns / 6.0).max(0.0);
        let within = (width_ns * width_ns + 12.0 * (uneven + SEEN_NS * SEEN_NS)).sqrt();
        // CAST: not negative; saturates.
        Nanos(within as u64).min(whole)
    }

    /// Whether one who took so many entries from `since` to `at` may have had no work for some of that; one who is trusted, for longer than an entry takes.
    pub(super) fn may_have_rested(
        self,
        since: Moment,
        at: Moment,
        entries: u64,
        trusted: bool,
    ) -> bool {
        let entries = entries + u64::from(trusted);
        let whole = at.since(since).0 as f64;
        entries as f64 * self.entry_ns < (1.0 - UNEVEN) * whole
    }

    /// How many were taken in so long, of which it is known how many there were modulo those of a ring: as many as there may have been.
    fn unwrapped(self, taken: u64, ring: u32, whole: Nanos) -> u64 {
        let most = (1.0 + UNEVEN) * whole.0 as f64 / self.entry_ns + 1.0;
        // CAST: not negative; saturates.
        let rounds = (most as u64).saturating_sub(taken) / u64::from(ring.max(1));
        taken + rounds * u64::from(ring)
    }

    /// What one launched in stays of such lengths: one at least in each, or he would not have come.
    pub(super) fn launched(self, stays: impl Iterator<Item = Nanos>) -> u64 {
        // CAST: not negative; saturates.
        let of = |stay: Nanos| ((stay.0 as f64 / self.entry_ns) as u64).max(1);
        stays.map(of).sum()
    }

    /// How many of the entries taken since one was asked are of a stay of such a length, before which he had been there so often and so long, if what those launched says little about when
    /// in it he stopped.
    fn of_stay(self, taken: u64, (visits, before): (u64, Nanos), stay: Nanos) -> Option<u64> {
        let doubt = self.of(VISITS_DOUBT * visits as f64);
        // CAST: not negative; saturates.
        let launched = ((before.0 as f64 / self.entry_ns) as u64).max(visits);
        let entries = taken.checked_sub(launched).filter(|entries| *entries > 0);
        entries.filter(|_| doubt.0.max(before.0.saturating_mul(4)) <= stay.0)
    }

    /// When one stopped, and began again, of whom it is known that he worked at `since` and at `at`, if the entries that he took in between leave time for a rest: where in
    /// between it was is not known.
    pub(super) fn rested(
        self,
        since: Moment,
        at: Moment,
        entries: u64,
    ) -> Option<(Located, Moment)> {
        let whole = at.since(since);
        let worked = self.of(entries as f64);
        let sure = self.of(2.0).0.max((3.0 * self.off_ns) as u64).max(SHORT.0);
        (whole.0.saturating_sub(worked.0) > sure).then(|| {
            let stopped = Located {
                at: since + Nanos(worked.0 / 2),
                within: self.within(self.entry_ns, whole),
            };
            (stopped, Moment(at.0 - worked.0 / 2))
        })
    }

    /// When he stopped, of whom it is known that he worked at `since` and not at `at`, and took so many entries in between, the last until `moved_at`.
    pub(super) fn stopped(
        self,
        since: Moment,
        moved_at: Moment,
        at: Moment,
        entries: u64,
    ) -> Located {
        let entries = entries as f64;
        // What was left of the kernel that ran at `since`: no more than lets the last one begin until `moved_at`, and end until `at`.
        let begins = moved_at.since(since).0 as f64 - (entries - 1.0) * self.entry_ns;
        let ends = at.since(since).0 as f64 - entries * self.entry_ns;
        let most = self.entry_ns.min(begins).min(ends).max(0.0);
        let worked = Nanos(self.of(entries).0 + (most / 2.0) as u64);
        Located {
            at: (since + worked).min(at),
            within: self.within(most, at.since(since)),
        }
    }

    /// When he began, of whom it is known that he did not work at `since`, and does at `at`.
    pub(super) fn began(self, since: Moment, at: Moment, entries: u64) -> Located {
        let before = self.of(entries as f64 - 1.0);
        // For so long the kernel runs that runs at `at`.
        let begins = at.since(since).0 as f64 - before.0 as f64;
        let most = self.entry_ns.min(begins).max(0.0);
        let worked = before.0 + (most / 2.0) as u64;
        Located {
            at: Moment(at.0.saturating_sub(worked)).max(since),
            within: self.within(most, at.since(since)),
        }
    }
}

#[derive(Debug)]
struct Heard {
    generation: u64,
    channels: Vec<Channel>,
    /// When they were last read, and at the latest when they last moved.
    at: Moment,
    still_since: Moment,
    /// The tenant's context left the engine after they were last read; it came after it had, and after they were read.
    left: bool,
    came: Option<Moment>,
    /// How often it left since they were last read, and how long it was there before that.
    visits: (u64, Nanos),
    /// When it had come, and about how many entries were taken since, where it had left and come before they were last read.
    of_stay: Option<(Moment, u64)>,
    /// When they had last been read before that, and the entries taken in between.
    moved_before: (Moment, u64),
    /// When the register last said that there is no work.
    checked: Moment,
    mistakes: u32,
    /// So often in a row the register said that it has no work when its words did; and so often it was not asked since.
    agreed: u32,
    unasked: u32,
    /// By the counters it worked for so much longer than its words said, beyond chance.
    contradicted_ns: f64,
    /// It was seen at work after its channels had stood still for so long.
    worked_still: Nanos,
    /// Entries taken so far, of those that were seen.
    taken: u64,
    /// It worked then, when so many had been; and what lies before that, if it worked throughout.
    worked: Option<(Moment, u64)>,
    /// It launched as fast as it can from one look to another, or was seen without work, and since then was not taken to rest by its launches.
    kept_pace: bool,
    last: Option<Interval>,
    pending: Vec<Interval>,
    pace: Pace,
}

impl Heard {
    /// Entries of its smallest ring.
    fn ring(&self) -> u32 {
        let rings = self.channels.iter().map(|channel| channel.ring);
        rings.min().unwrap_or(0)
    }

    fn note_mistake(&mut self, tenant: TenantId) {
        self.mistakes += 1;
        if self.mistakes == MISTAKES_MAX + 1 {
            log::info!(
                "{tenant} works while its channels say that it does not: they are not asked any more"
            );
        }
    }
}

/// What the channels of all tenants said.
#[derive(Debug, Default)]
pub(super) struct Progress {
    tenants: BTreeMap<TenantId, Heard>,
}

impl Progress {
    /// What a tenant's channels said when they were last read, and of which they are; nothing if they are not believed.
    pub(super) fn heard(
        &self,
        tenant: TenantId,
    ) -> Option<(u64, impl Iterator<Item = (Entries, u32)> + '_)> {
        let heard = self.tenants.get(&tenant)?;
        let channels = heard.channels.iter();
        let said = channels.map(|channel| (channel.entries, channel.ring));
        (heard.mistakes <= MISTAKES_MAX).then_some((heard.generation, said))
    }

    /// What a tenant's channels said when they were last read, if that was not before.
    pub(super) fn said_since(&self, tenant: TenantId, at: Moment) -> Option<Known> {
        let heard = self.tenants.get(&tenant).filter(|heard| heard.at >= at)?;
        let (generation, said) = self.heard(tenant)?;
        let said = said.collect();
        let known = Known { generation, said };
        (heard.checked >= at).then_some(known)
    }

    /// Reads a tenant's channels.
    pub(super) fn look(&mut self, tenant: TenantId, words: &impl Words, at: Moment) -> Said {
        let read = |index| {
            let (entries, ring) = words.read(index);
            log::trace!(target: RECORD, "channel {} {index} {ring} {} {}", tenant.0, entries.get, entries.put);
            Channel {
                entries,
                ring,
                moved_at: Moment(0),
            }
        };
        let new = |(mistakes, contradicted_ns), pace| Heard {
            generation: words.generation(),
            channels: (0..words.count()).map(read).collect(),
            at,
            still_since: at,
            left: true,
            came: None,
            visits: (0, Nanos::ZERO),
            of_stay: None,
            moved_before: (at, 0),
            checked: Moment(0),
            mistakes,
            agreed: 0,
            unasked: 0,
            contradicted_ns,
            worked_still: Nanos::ZERO,
            taken: 0,
            worked: None,
            kept_pace: false,
            last: None,
            pending: Vec::new(),
            pace,
        };
        let anew =
            || log::trace!(target: RECORD, "channels {} {} {}", tenant.0, at.0, words.count());
        let Some(heard) = self.tenants.get_mut(&tenant) else {
            anew();
            self.tenants.insert(tenant, new((0, 0.0), Pace::default()));
            return Said::Nothing;
        };
        if heard.generation != words.generation() {
            anew();
            *heard = new((heard.mistakes, heard.contradicted_ns), heard.pace);
            return Said::Nothing;
        }
        if heard.mistakes > MISTAKES_MAX {
            return Said::Nothing;
        }
        let since = std::mem::replace(&mut heard.at, at);
        let (mut taken, mut moved, mut read) = (0, 0, String::new());
        for lively in [true, false] {
            for (index, channel) in heard.channels.iter_mut().enumerate() {
                let moved_at = channel.moved_at;
                let is_lively = moved_at != Moment(0) && since.since(moved_at) <= LIVELY;
                if is_lively != lively {
                    continue;
                }
                let (entries, ring) = words.read(index);
                if log::log_enabled!(target: RECORD, log::Level::Trace) {
                    read.push_str(&format!(" {index} {} {}", entries.get, entries.put));
                }
                if entries.get != channel.entries.get {
                    taken += u64::from(entries.since(channel.entries, ring));
                    channel.moved_at = at;
                    moved += 1;
                }
                channel.entries = entries;
            }
            if taken > 0 {
                break;
            }
        }
        log::trace!(target: RECORD, "asked {} {}{read}", tenant.0, at.0);
        let came = heard.came.take();
        let visits = std::mem::take(&mut heard.visits);
        let since = came.map_or(since, |came| since.max(came));
        if let (Some(each), 1) = (heard.pace.each(), moved) {
            taken = each.unwrapped(taken, heard.ring(), at.since(since));
        }
        heard.taken += taken;
        if std::mem::take(&mut heard.left) {
            // Some of it may have been before.
            (heard.still_since, heard.moved_before) = (at, (at, 0));
            heard.of_stay = came.zip(heard.pace.each()).and_then(|(came, each)| {
                let entries = each.of_stay(taken, visits, at.since(came))?;
                Some((came, entries))
            });
            return Said::Nothing;
        }
        heard.of_stay = None;
        if let (Some(came), 0) = (came, taken) {
            (heard.still_since, heard.moved_before) = (came, (came, 0));
        }
        if taken == 0 {
            let (since, entries) = heard.moved_before;
            return Said::Still {
                since,
                entries,
                moved_at: heard.still_since,
            };
        }
        heard.still_since = at;
        heard.moved_before = (since, taken);
        Said::Moved {
            since,
            entries: taken,
        }
    }

    /// Whether channels have moved since the last look, which this is not; none if there was none, or they are not believed.
    pub(super) fn has_moved(&self, tenant: TenantId, words: &impl Words) -> Option<bool> {
        let heard = self.tenants.get(&tenant)?;
        let same = heard.generation == words.generation() && heard.mistakes <= MISTAKES_MAX;
        let mut channels = heard.channels.iter().enumerate();
        same.then(|| {
            channels.any(|(index, channel)| words.read(index).0.get != channel.entries.get)
        })
    }

    /// A tenant has work at a look. What it launched since the one before it that found that, if none in between found another, and one more does after it, says
    /// how long a launch takes.
    pub(super) fn works(&mut self, tenant: TenantId, at: Moment) {
        let Some(heard) = self.tenants.get_mut(&tenant) else {
            return;
        };
        let Some((from, taken)) = heard.worked else {
            heard.worked = Some((at, heard.taken));
            return;
        };
        let whole = at.since(from);
        if whole < SHORT {
            return;
        }
        let wraps = heard
            .pace
            .each()
            .is_none_or(|each| each.entry_ns * f64::from(heard.ring()) < 2.0 * whole.0 as f64);
        if whole > LONG && wraps {
            (heard.worked, heard.last) = (Some((at, heard.taken)), None);
            return;
        }
        let interval = Interval {
            from,
            to: at,
            entries: heard.taken - taken,
        };
        heard.worked = Some((at, heard.taken));
        let before = heard.last.replace(interval);
        if heard.pending.len() < PENDING_MAX {
            heard.pending.extend(before);
        }
    }

    /// When one stopped, and began again, who took so many entries from one look at which he worked to another, if that leaves time for a rest. Of one who is slower twice, and
    /// neither as fast as before in between nor without work, it is not known whether he rests, or runs longer kernels than he did; nor is how long they are any more.
    pub(super) fn rested(
        &mut self,
        tenant: TenantId,
        since: Moment,
        at: Moment,
        entries: u64,
    ) -> Option<(Located, Moment)> {
        let heard = self.tenants.get_mut(&tenant)?;
        let each = heard.pace.each()?;
        let rest = each.rested(since, at, entries);
        if rest.is_none() {
            heard.kept_pace |=
                at.since(since) >= SHORT && !each.may_have_rested(since, at, entries, false);
            return None;
        }
        if !std::mem::take(&mut heard.kept_pace) {
            heard.pace = Pace::default();
            return None;
        }
        rest
    }

    /// A tenant has none.
    pub(super) fn stops(&mut self, tenant: TenantId) {
        if let Some(heard) = self.tenants.get_mut(&tenant) {
            (heard.worked, heard.last, heard.kept_pace) = (None, None, true);
        }
    }

    /// A tenant's context came, or is held or let go: what it launched around then says nothing of its pace.
    pub(super) fn broke(&mut self, tenant: TenantId, at: Moment) {
        if let Some(heard) = self.tenants.get_mut(&tenant) {
            (heard.worked, heard.last) = (None, None);
            heard.pending.retain(|interval| interval.to < at);
        }
    }

    /// The same of one whose context came to the engine.
    pub(super) fn came(&mut self, tenant: TenantId, at: Moment) {
        self.broke(tenant, at);
        if let Some(heard) = self.tenants.get_mut(&tenant) {
            heard.came = Some(at);
        }
    }

    /// The same of one whose context left it.
    pub(super) fn left(&mut self, tenant: TenantId, at: Moment) {
        self.broke(tenant, at);
        if let Some(heard) = self.tenants.get_mut(&tenant) {
            let there = at.since(heard.came.unwrap_or(heard.at));
            let (visits, before) = heard.visits;
            heard.visits = (visits + 1, before + there);
            heard.left = true;
        }
    }

    /// Those who left, and were not asked since.
    pub(super) fn to_be_asked(&self) -> impl Iterator<Item = TenantId> + '_ {
        let left = self.tenants.iter().filter(|(_, heard)| heard.left);
        left.map(|(tenant, _)| *tenant)
    }

    /// All that broke something until then is known.
    pub(super) fn settle(&mut self, until: Moment) {
        for heard in self.tenants.values_mut() {
            let settled = heard
                .pending
                .extract_if(.., |interval| interval.to <= until);
            settled.for_each(|interval| heard.pace.learn(&interval));
        }
    }

    /// How long a tenant takes from entry to entry while it works, if that is known.
    pub(super) fn each(&self, tenant: TenantId) -> Option<Each> {
        self.tenants.get(&tenant)?.pace.each()
    }

    /// Since when one is on the engine whose channels said nothing when they were last read, as he had been away since the time before, and about how many entries they took since then.
    pub(super) fn of_stay(&self, tenant: TenantId) -> Option<(Moment, u64)> {
        self.tenants.get(&tenant)?.of_stay
    }

    /// Whether one who was seen without work, and whose words stand still since, need not be looked at.
    pub(super) fn rests(&self, tenant: TenantId, now: Moment) -> bool {
        self.tenants.get(&tenant).is_some_and(|heard| {
            let (least, most) = CHECKED_AFTER;
            let part = Nanos(heard.checked.since(heard.still_since).0 / 4);
            let again = part.min(most).max(least);
            heard.checked >= heard.still_since && now.since(heard.checked) < again
        })
    }

    /// Whether one whose channels stand still, and for whom nobody waits, may have no work: he may run kernels as long as before.
    pub(super) fn may_rest(&self, tenant: TenantId, now: Moment) -> bool {
        self.tenants
            .get(&tenant)
            .is_some_and(|heard| now.since(heard.still_since).0 > 2 * heard.worked_still.0)
    }

    /// The register said whether a tenant works whose words stood still around that.
    pub(super) fn checked(&mut self, tenant: TenantId, works: bool, at: Moment) {
        let Some(heard) = self.tenants.get_mut(&tenant) else {
            return;
        };
        let still = at.since(heard.still_since);
        if !works {
            heard.checked = at;
            heard.worked_still = Nanos(heard.worked_still.0 / 2);
            return;
        }
        if still > LOOKED_AT {
            heard.worked_still = heard.worked_still.max(still);
        }
        if heard.checked >= heard.still_since {
            // It had none, and nothing was launched since.
            heard.checked = Moment(0);
            heard.note_mistake(tenant);
        }
    }

    /// After which time without a launch one whose channels say this has no work, if that is known well enough; now and then the register is to be asked all the same.
    pub(super) fn stands_after(&mut self, tenant: TenantId, said: Said) -> Option<Nanos> {
        let (Said::Moved { entries, .. } | Said::Still { entries, .. }) = said else {
            return None;
        };
        let heard = self.tenants.get_mut(&tenant)?;
        let each = heard.pace.each()?;
        let waits = |channel: &Channel| channel.entries.get != channel.entries.put;
        if entries < LAUNCHED_MIN || heard.agreed < AGREED_MIN || heard.channels.iter().any(waits) {
            return None;
        }
        let after = each.stands_after()?;
        (!self.is_asked_again(tenant)).then_some(after)
    }

    /// Whether the register is to be asked this time although something else says as much: each [`ASKED_AGAIN`] times.
    pub(super) fn is_asked_again(&mut self, tenant: TenantId) -> bool {
        self.tenants.get_mut(&tenant).is_none_or(|heard| {
            heard.unasked = (heard.unasked + 1) % ASKED_AGAIN;
            heard.unasked == 0
        })
    }

    /// The register said whether one works whose channels have not moved since they were last read.
    pub(super) fn stood(&mut self, tenant: TenantId, works: bool, now: Moment) {
        let Some(heard) = self.tenants.get_mut(&tenant) else {
            return;
        };
        let after = heard.pace.each().and_then(Each::stands_after);
        if after.is_some_and(|after| now.since(heard.still_since) >= after) {
            heard.agreed = if works {
                0
            } else {
                heard.agreed.saturating_add(1)
            };
        }
    }

    /// Of an interval in which a tenant rested by its words the counters say that the engine worked for so much longer than was told (negative: less), which
    /// may be off by `deviation_ns` by chance.
    pub(super) fn contradicted(&mut self, tenant: TenantId, more_ns: f64, deviation_ns: f64) {
        let Some(heard) = self.tenants.get_mut(&tenant) else {
            return;
        };
        let (least, most) = SLACK_NS;
        let slack_ns = (deviation_ns / 2.0).clamp(least, most);
        heard.contradicted_ns = (heard.contradicted_ns + more_ns - slack_ns).max(0.0);
        if heard.contradicted_ns > CONTRADICTED_NS {
            heard.contradicted_ns = 0.0;
            heard.note_mistake(tenant);
        }
    }

    /// A tenant is gone.
    pub(super) fn forget(&mut self, tenant: TenantId) {
        self.tenants.remove(&tenant);
    }
}

#[cfg(test)]
mod tests;
