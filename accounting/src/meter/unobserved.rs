//! Estimates which tenants used the engines while the status registers were not polled.
//!
//! Input: the GPU's state at both ends of the unobserved part ([`ChannelSnapshot`]: occupants of
//! the engines, put and get of every channel), and the usage of the poll phase that follows.
//! Output: the usage of the unobserved part with its error bound.
//!
//! A tenant's engine time per finished command is measured in poll phases, as a ratio of two sums
//! that decay slowly. A tenant is charged this time for each command that it finished since the
//! last charge, whether it was admitted or not: what drains after a hold is charged to its owner
//! (LoGA 4.3). What was charged in advance for a command that still runs is subtracted when the
//! command finishes. Time in which no tenant was permitted to run ([`KnownIdle`]) is idle.
//!
//! # Invariants
//! - *Conservation* (law 1): the parts of an engine add up to the length.
//! - *Bound*: the error of each tenant's time is at most the error bound, which is at most the
//!   length. The bound is smaller where put and get leave only one tenant, and zero where they
//!   prove its time.
//!
//! A tenant with unknown put and get is charged its portion of recent poll phases.

use super::rate::Rates;
use crate::share::apportion;
use crate::units::{EngineId, Nanos, TenantId};
use crate::usage::{Anomalies, EngineUsage, Signals, Usage};
use crate::window::Window;

/// The counters of one channel at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelReading {
    /// Owner of the channel.
    pub tenant: TenantId,
    /// Number of the channel.
    pub channel: u32,
    /// Commands finished since the channel was opened, modulo 2^32; `None` if get is unknown.
    pub finished: Option<u32>,
    /// Changes between able and unable to use the compute engine: odd while the channel waits for a
    /// value or for another engine.
    pub stalls: u32,
    /// Commands announced and not yet finished.
    pub pending: u32,
}

/// The GPU's state at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChannelSnapshot {
    /// The tenant on each engine; `None` while the engine is idle or switches.
    pub occupants: Vec<(EngineId, Option<TenantId>)>,
    /// All channels.
    pub channels: Vec<ChannelReading>,
}

impl ChannelSnapshot {
    pub(super) fn occupant(&self, engine: EngineId) -> Option<TenantId> {
        let of = self.occupants.iter().find(|(id, _)| *id == engine);
        of.and_then(|(_, occupant)| *occupant)
    }

    /// Commands of all tenants that finished from this snapshot to a later one; `None` if unknown.
    pub fn finished_until(&self, later: &Self) -> Option<u64> {
        let parts = progress(self, later);
        parts.iter().map(|part| part.finished).sum()
    }
}

/// What one tenant did between two snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) tenant: TenantId,
    /// Commands finished; `None` if unknown.
    pub(super) finished: Option<u64>,
    /// Pending commands ended without being counted as finished.
    lost: bool,
    /// Commands were pending at the beginning or at the end.
    pending: bool,
    /// At every moment a command for the compute engine was pending.
    queued: bool,
}

/// The progress of each tenant that has a channel in either snapshot, by ascending id.
fn progress(begin: &ChannelSnapshot, end: &ChannelSnapshot) -> Vec<Progress> {
    let mut parts: Vec<Progress> = Vec::new();
    let mut add = |part: Progress| match parts.binary_search_by_key(&part.tenant, |p| p.tenant) {
        Err(index) => parts.insert(index, part),
        Ok(index) => {
            let sum = &mut parts[index];
            sum.finished = sum.finished.zip(part.finished).map(|(a, b)| a + b);
            sum.lost |= part.lost;
            sum.pending |= part.pending;
            sum.queued |= part.queued;
        }
    };
    let same =
        |a: &ChannelReading, b: &ChannelReading| (a.tenant, a.channel) == (b.tenant, b.channel);
    for now in &end.channels {
        let opened = ChannelReading {
            finished: Some(0),
            stalls: 0,
            pending: 0,
            ..*now
        };
        let before = begin.channels.iter().find(|before| same(before, now));
        let before = before.unwrap_or(&opened);
        let count = now.finished.zip(before.finished);
        let count = count.map(|(now, before)| now.wrapping_sub(before));
        // A count that decreases is of a channel that was reopened.
        let finished = count.filter(|count| *count <= u32::MAX / 2).map(u64::from);
        let stalled = now.stalls != before.stalls || now.stalls % 2 == 1;
        add(Progress {
            tenant: now.tenant,
            finished,
            lost: finished == Some(0) && before.pending > 0 && now.pending == 0,
            pending: before.pending > 0 || now.pending > 0,
            queued: !stalled && finished.is_some_and(|n| u64::from(before.pending) > n),
        });
    }
    let closed = |before: &&ChannelReading| !end.channels.iter().any(|now| same(before, now));
    for before in begin.channels.iter().filter(closed) {
        add(Progress {
            tenant: before.tenant,
            finished: None,
            lost: true,
            pending: true,
            queued: false,
        });
    }
    parts
}

/// Time in which the compute engine executed nothing, known without a reading: no tenant was
/// permitted to run. It is at most the length of its part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownIdle {
    /// In the unobserved part.
    pub unobserved: Nanos,
    /// In the poll phase after it.
    pub observed: Nanos,
}

/// The current unobserved part, and the rates of the tenants' commands.
#[derive(Debug)]
pub struct Unobserved {
    /// The engine of [`ChannelReading::stalls`].
    compute: EngineId,
    /// Whether a command can leave an engine before it has finished.
    preemptible: bool,
    begin: ChannelSnapshot,
    /// Tenants with pending commands that the GPU did not start, as of `begin`.
    suspended: Vec<TenantId>,
    end: ChannelSnapshot,
    rates: Rates,
}

impl Unobserved {
    /// The estimate for a GPU. `compute` is the engine to which `stalls` apply. `preemptible`: the
    /// GPU can stop a command and continue it later.
    pub fn new(compute: EngineId, preemptible: bool) -> Self {
        Self {
            compute,
            preemptible,
            begin: ChannelSnapshot::default(),
            suspended: Vec::new(),
            end: ChannelSnapshot::default(),
            rates: Rates::default(),
        }
    }

    /// An unobserved part began with `snapshot`; its occupants were read after its channels.
    /// `suspended`: the GPU starts no command of this tenant, although commands may be pending.
    pub fn begin(&mut self, snapshot: ChannelSnapshot, suspended: impl Fn(TenantId) -> bool) {
        self.suspended.clear();
        let owners = snapshot.channels.iter().map(|channel| channel.tenant);
        self.suspended
            .extend(owners.filter(|tenant| suspended(*tenant)));
        self.begin = snapshot;
    }

    /// The unobserved part ended, and a poll phase began, with `snapshot`; its occupants were read
    /// before its channels.
    pub fn end(&mut self, snapshot: ChannelSnapshot) {
        self.end = snapshot;
    }

    /// Commands finished in the poll phase that ends with `snapshot`; `None` if unknown.
    pub fn finished_in_phase(&self, snapshot: &ChannelSnapshot) -> Option<u64> {
        self.end.finished_until(snapshot)
    }

    /// The usage of the unobserved part `window`. `observed` is the usage of the poll phase after
    /// it, which ended with `snapshot`. `known` idle time is charged to no tenant.
    pub fn charge(
        &mut self,
        window: Window,
        observed: &Usage,
        snapshot: &ChannelSnapshot,
        known: KnownIdle,
    ) -> Usage {
        let seen = progress(&self.end, snapshot);
        let idle = (self.compute, known.observed);
        self.rates
            .learn(observed, &seen, [&self.end, snapshot], idle);
        let unseen = progress(&self.begin, &self.end);
        let engines = observed.engines.iter();
        let engines = engines
            .map(|engine| {
                let idle = match engine.engine == self.compute {
                    true => known.unobserved.min(window.length()),
                    false => Nanos::ZERO,
                };
                let rest = window.length().saturating_sub(idle);
                let mut usage = self.engine(engine.engine, rest, &unseen);
                usage.idle_ns += idle;
                usage
            })
            .collect();
        self.rates.charge_observed(observed, &seen);
        Usage {
            window,
            signals: Signals::Extrapolated,
            engines,
            copied: None,
            anomalies: Anomalies::default(),
        }
    }

    /// Divides a length of an engine's time, in which it may have been busy, among the tenants that
    /// may have used it.
    fn engine(&mut self, engine: EngineId, length: Nanos, parts: &[Progress]) -> EngineUsage {
        let (first, last) = (self.begin.occupant(engine), self.end.occupant(engine));
        let mut usage = EngineUsage::empty(engine);
        let resident = |part: &&Progress| {
            let still = part.finished == Some(0) && !part.lost && !self.preemptible;
            still && first == Some(part.tenant) && last == first
        };
        if let Some(part) = parts.iter().find(resident) {
            // One command ran for the whole length.
            usage.entry(part.tenant).used_ns = length;
            self.rates.charge(engine, part, length, length);
            return usage;
        }
        let absent = |part: &Progress| {
            let still = part.finished == Some(0) && !part.lost;
            let off = last != Some(part.tenant) && !self.preemptible;
            still && (off || !part.pending)
        };
        let able: Vec<&Progress> = parts.iter().filter(|part| !absent(part)).collect();
        let busy = |part: &Progress| {
            let suspended = self.suspended.contains(&part.tenant) || self.preemptible;
            engine == self.compute && part.queued && !suspended
        };
        let queued = able.iter().any(|part| busy(part));
        let full = queued || self.rates.is_busy(engine);
        let owed: Vec<u64> = able
            .iter()
            .map(|part| {
                let suspended = self.suspended.contains(&part.tenant);
                self.rates.owed(engine, part, length, suspended).0
            })
            .collect();
        let alone = match able[..] {
            [only] if queued && first == Some(only.tenant) => Some(length.0),
            _ => None,
        };
        let sum = owed.iter().map(|&owed| u128::from(owed)).sum::<u128>();
        let fits = sum <= u128::from(length.0);
        // CAST: it fits.
        let mut rest = if fits { length.0 - sum as u64 } else { 0 };
        let mut charges = if fits {
            owed
        } else {
            apportion(length.0, &owed)
        };
        let mut ahead = None;
        if let Some(index) = able.iter().position(|part| Some(part.tenant) == last) {
            // The command that still runs has on average half of its time in this part. One command
            // is half of a launch, as a launch and its fence are two.
            let part = self.rates.command(engine, able[index].tenant);
            let part = part.unwrap_or(if full { rest } else { 0 }).min(rest);
            charges[index] += part;
            rest -= part;
            ahead = Some((index, Nanos(part)));
        }
        if full && rest > 0 {
            // The engine was not idle: the rest belongs to the same commands.
            let more = apportion(rest, &charges);
            rest -= more.iter().sum::<u64>();
            charges
                .iter_mut()
                .zip(more)
                .for_each(|(sum, more)| *sum += more);
        }
        usage.idle_ns = Nanos(if alone.is_some() { 0 } else { rest });
        for (index, (part, charge)) in able.iter().zip(charges).enumerate() {
            let charge = Nanos(alone.unwrap_or(charge));
            if charge > Nanos::ZERO {
                usage.entry(part.tenant).used_ns = charge;
            }
            if alone.is_none() {
                let most = charge.max(Nanos(length.0 - charge.0));
                usage.error_bound_ns = usage.error_bound_ns.max(most);
            }
            let ahead = ahead.filter(|(running, _)| full && *running == index);
            let ahead = ahead.map_or(Nanos::ZERO, |(_, ahead)| ahead);
            if full && part.finished > Some(0) {
                self.rates.settle(engine, part.tenant, ahead);
            } else {
                self.rates.charge(engine, part, charge, length);
            }
        }
        usage
    }
}

#[cfg(test)]
mod tests;
