//! Adds the periods of a few milliseconds, in which policies decide, up into billing windows.
//!
//! A window closes at the end of the first period that reaches the next multiple of the window's
//! length on the calendar. So a window begins at most one period after such a multiple. Time is
//! charged by the GPU's clock; the calendar only labels windows. If the calendar is set, or drifts
//! against the GPU's clock, charges do not change.
//!
//! While the store accepts nothing, the open window grows beyond its length. Memory grows with the
//! tenants in it, up to [`TENANTS_MAX`].

mod input;
mod open;
mod seat;

pub use input::{RollupConfig, RollupError, Standing};

use self::open::{Open, Sums, ran_ns};
use self::seat::Seat;
use crate::ids::{event_id, unnamed_id};
use crate::metadata::Metadata;
use crate::record::{
    Body, Digest, EngineRecord, Entry, GapCause, GpuIdentity, Stretch, Tail, TenantIdentity,
    TenantKind, TenantRecord, UnixNanos,
};
use crate::units::{EngineId, Moment, Nanos, TenantId};
use crate::usage::{Signals, Usage};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most tenants in one window. A window with more is closed early, or, if `READY_MAX` entries wait
/// for the disk, dropped as [`GapCause::Overflow`].
pub const TENANTS_MAX: usize = 16_384;

/// Most entries that wait to be taken. While they do, missed time is added to the open window, and
/// a window of too many tenants is dropped.
const READY_MAX: usize = 16;

/// A window that is at least as long ends where a weight, a cap or metadata change.
const SPLIT_MIN: Nanos = Nanos::from_ms(1_000);

/// Windows for which a tenant that left is remembered: its last commands may end after it left.
const REMEMBERED_WINDOWS: u8 = 2;

/// Adds periods up into windows; numbers the entries and calculates their digests.
#[derive(Debug)]
pub struct Rollup {
    config: RollupConfig,
    next_seq: u64,
    digest: Digest,
    /// End of the last entry on the calendar; none before the first.
    end: Option<UnixNanos>,
    /// The same on the GPU's clock; none before this run's first period.
    to: Option<Moment>,
    seats: BTreeMap<TenantId, Seat>,
    /// Metadata of tenants of which no period was taken.
    described: BTreeMap<TenantId, Arc<Metadata>>,
    open: Option<Open>,
    ready: Vec<Entry>,
}

impl Rollup {
    /// A rollup that continues after the last entry of the GPU's ledger.
    ///
    /// # Errors
    /// If node or GPU have no usable name, or windows no length.
    pub fn new(config: RollupConfig, tail: Option<Tail>) -> Result<Self, RollupError> {
        for name in [&config.gpu.node, &config.gpu.gpu] {
            if name.is_empty() || name.chars().any(char::is_control) {
                return Err(RollupError::Name(name.clone()));
            }
        }
        if config.window_ns == Nanos::ZERO {
            return Err(RollupError::WindowLength);
        }
        let genesis = Digest::genesis(&config.gpu);
        Ok(Self {
            next_seq: tail.map_or(0, |tail| tail.seq + 1),
            digest: tail.map_or(genesis, |tail| tail.digest),
            end: tail.map(|tail| tail.end),
            to: None,
            seats: BTreeMap::new(),
            described: BTreeMap::new(),
            open: None,
            ready: Vec::new(),
            config,
        })
    }

    /// The GPU.
    pub const fn gpu(&self) -> &GpuIdentity {
        &self.config.gpu
    }

    /// Takes a period that ended at `end` on the calendar: its usages in order of time, and the
    /// tenants' states.
    ///
    /// # Errors
    /// If a usage does not balance, or does not follow the one before. It is not taken, and its
    /// time becomes a gap.
    pub fn period(
        &mut self,
        usages: &[&Usage],
        end: UnixNanos,
        standings: &[Standing<'_>],
    ) -> Result<(), RollupError> {
        if standings.iter().any(|standing| self.changes(standing)) && self.ready.len() < READY_MAX {
            self.close();
        }
        for standing in standings {
            self.seat(standing);
        }
        let mut taken = Ok(());
        for usage in usages {
            taken = taken.and(self.add(usage, end, standings));
        }
        let Some(open) = &mut self.open else {
            return taken;
        };
        open.end = open.end.max(end);
        for standing in standings {
            // PANIC: none; every standing has a seat
            let Some(seat) = self.seats.get_mut(&standing.tenant) else {
                continue;
            };
            let sums = open.tenants.entry(standing.tenant).or_default();
            sums.held_ns += standing.held_total_ns.saturating_sub(seat.held_total_ns);
            seat.held_total_ns = standing.held_total_ns;
        }
        if open.tenants.len() <= TENANTS_MAX {
            return taken;
        }
        if self.ready.len() < READY_MAX {
            self.close();
        } else {
            open.tenants.clear();
            open.overflow = true;
            let here = |tenant: &TenantId| standings.iter().any(|s| s.tenant == *tenant);
            self.seats.retain(|tenant, _| here(tenant));
        }
        taken
    }

    /// The open window as if it were closed now; none if none is open, or if it has no records.
    pub fn draft(&self) -> Option<Entry> {
        let open = self.open.as_ref().filter(|open| !open.overflow)?;
        let (stretch, body) = self.closed(open.clone());
        let digest = self.digest.follow(&stretch, &body);
        Some(Entry {
            stretch,
            body,
            digest,
        })
    }

    /// The digest that the open window follows.
    pub const fn digest(&self) -> Digest {
        self.digest
    }

    /// Whether a tenant got another weight or cap, and the open window is long enough to end with
    /// the old one.
    fn changes(&self, standing: &Standing<'_>) -> bool {
        let other = |seat: &Seat| seat.differs(standing);
        self.splits() && self.seats.get(&standing.tenant).is_some_and(other)
    }

    /// Whether the open window is long enough to end where something changes.
    fn splits(&self) -> bool {
        let long = |open: &Open| open.to.since(open.from) >= SPLIT_MIN;
        self.open.as_ref().is_some_and(long)
    }

    fn check(&self, usage: &Usage) -> Result<(), RollupError> {
        let engines = &self.config.engines;
        if !usage
            .engines
            .iter()
            .map(|e| e.engine)
            .eq(engines.iter().map(|e| e.0))
        {
            let expected = engines.len();
            return Err(RollupError::Engines { expected });
        }
        let (from, period_ns) = (usage.window.from(), usage.window.length());
        if let Some(reached) = self.to.filter(|&to| from < to) {
            return Err(RollupError::Overlap { from, reached });
        }
        for seen in &usage.engines {
            let accounted_ns = seen.accounted_ns();
            if accounted_ns != period_ns {
                let engine = seen.engine;
                return Err(RollupError::Unbalanced {
                    engine,
                    accounted_ns,
                    period_ns,
                });
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        usage: &Usage,
        end: UnixNanos,
        standings: &[Standing<'_>],
    ) -> Result<(), RollupError> {
        self.check(usage)?;
        let (from, to) = (usage.window.from(), usage.window.to());
        let missed = self.to.map_or(Nanos::ZERO, |reached| from.since(reached));
        if missed >= self.config.window_ns && self.ready.len() < READY_MAX {
            self.gap(
                GapCause::Missed,
                missed,
                UnixNanos(end.0.saturating_sub(to.since(from).0)),
            );
        }
        if self.open.is_none() {
            self.begin(from, UnixNanos(end.0.saturating_sub(to.since(from).0)));
        }
        // PANIC: none; it has just been opened
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        let (length, gap) = (usage.window.length(), from.since(open.to));
        let estimated = usage.signals == Signals::Extrapolated;
        let mut bound_ns = Nanos::ZERO;
        for ((seen, sums), (_, compute)) in usage
            .engines
            .iter()
            .zip(&mut open.engines)
            .zip(&self.config.engines)
        {
            sums.used_ns += seen.used_ns();
            sums.fault_ns += seen.fault_ns();
            sums.switching_ns += seen.switching_ns;
            sums.idle_ns += seen.idle_ns;
            sums.unobserved_ns += seen.unobserved_ns;
            sums.gap_ns += gap;
            sums.error_bound_ns += seen.error_bound_ns;
            bound_ns = bound_ns.max(seen.error_bound_ns);
            for part in &seen.tenants {
                let own = open.tenants.entry(part.tenant).or_default();
                if *compute {
                    own.engine_ns += part.used_ns;
                    if estimated {
                        own.estimated_ns += part.used_ns;
                    }
                } else {
                    own.copy_ns += part.used_ns;
                }
                own.fault_ns += part.fault_ns;
                own.turns += part.turns;
                own.signals = own.signals.with(usage.signals);
            }
        }
        open.counts_bytes |= usage.copied.is_some();
        for (tenant, bytes) in usage.copied.iter().flatten() {
            let own = open.tenants.entry(*tenant).or_default();
            own.copy_bytes = own.copy_bytes.saturating_add(*bytes);
        }
        for standing in standings {
            let own = open.tenants.entry(standing.tenant).or_default();
            own.signals = own.signals.with(usage.signals);
            own.error_bound_ns += bound_ns;
            if standing.backlogged {
                own.waiting_ns +=
                    length.saturating_sub(ran_ns(usage, standing.tenant, &self.config.engines));
            }
            if let Some(bytes) = standing.memory_bytes {
                let integral = own.memory_byte_ns.get_or_insert(0);
                *integral = integral.saturating_add(u128::from(bytes) * u128::from(length.0));
            }
        }
        open.to = to;
        self.to = Some(to);
        Ok(())
    }

    /// Begins a window at `from`, which was `label` on the calendar.
    fn begin(&mut self, from: Moment, label: UnixNanos) {
        // Within a run a window begins where the one before ended, on both clocks.
        let from = self.to.unwrap_or(from);
        let start = match self.end {
            Some(end) if self.to.is_some() => end,
            Some(end) if end < label => {
                let length = Nanos(label.0 - end.0);
                let stretch = self.stretch(end, label, Moment(0), length);
                self.seal(
                    stretch,
                    Body::Gap {
                        cause: GapCause::Down,
                    },
                );
                label
            }
            Some(end) => end,
            None => label,
        };
        let empty = |&(engine, compute): &(EngineId, bool)| EngineRecord::empty(engine, compute);
        self.open = Some(Open {
            start,
            end: start,
            from,
            to: from,
            engines: self.config.engines.iter().map(empty).collect(),
            tenants: BTreeMap::new(),
            counts_bytes: false,
            overflow: false,
        });
    }

    /// Nothing is known from the last period on until `to`, which is `label` on the calendar: the
    /// GPU was silent. Adds a gap, unless it would be shorter than a window and more may follow.
    pub fn silent(&mut self, to: Moment, label: UnixNanos, ends: bool) {
        let Some(reached) = self.to else { return };
        let length = to.since(reached);
        let whole = ends || length >= self.config.window_ns;
        if whole && length > Nanos::ZERO && self.ready.len() < READY_MAX {
            self.gap(GapCause::Silent, length, label);
        }
    }

    /// Closes the open window and adds a gap of `length` that ends at `label`.
    fn gap(&mut self, cause: GapCause, length: Nanos, label: UnixNanos) {
        self.close();
        let (Some(end), Some(to)) = (self.end, self.to) else {
            return;
        };
        let stretch = self.stretch(end, label.max(end), to, length);
        self.seal(stretch, Body::Gap { cause });
        self.to = Some(to + length);
    }

    const fn stretch(
        &self,
        start: UnixNanos,
        end: UnixNanos,
        from: Moment,
        length_ns: Nanos,
    ) -> Stretch {
        Stretch {
            seq: self.next_seq,
            boot: self.config.boot,
            start,
            end,
            from,
            length_ns,
        }
    }

    fn seal(&mut self, stretch: Stretch, body: Body) {
        let digest = self.digest.follow(&stretch, &body);
        self.next_seq += 1;
        self.digest = digest;
        self.end = Some(stretch.end);
        self.ready.push(Entry {
            stretch,
            body,
            digest,
        });
    }

    fn close(&mut self) {
        let Some(open) = self.open.take() else {
            return;
        };
        let (stretch, body) = self.closed(open);
        self.seal(stretch, body);
        self.seats.retain(|_, seat| {
            seat.absent += 1;
            seat.absent <= REMEMBERED_WINDOWS
        });
    }

    /// An open window as an entry.
    fn closed(&self, open: Open) -> (Stretch, Body) {
        let length_ns = open.to.since(open.from);
        let stretch = self.stretch(open.start, open.end, open.from, length_ns);
        let body = if open.overflow {
            Body::Gap {
                cause: GapCause::Overflow,
            }
        } else {
            let records = open.tenants.into_iter();
            let mut tenants: Vec<TenantRecord> = records
                .map(|(tenant, sums)| self.record(&stretch, tenant, sums, open.counts_bytes))
                .collect();
            tenants.sort_unstable_by_key(|record| record.tenant.id);
            Body::Window {
                tenants,
                engines: open.engines,
            }
        };
        (stretch, body)
    }

    fn record(
        &self,
        stretch: &Stretch,
        tenant: TenantId,
        sums: Sums,
        counts_bytes: bool,
    ) -> TenantRecord {
        let gpu = &self.config.gpu;
        let seat = self.seats.get(&tenant);
        let identity = seat.map_or_else(
            // Not the id that the tenant has once it is named: in the ledger an id has one name.
            || {
                let (name, kind) = match tenant {
                    TenantId::UNTRACKED => ("untracked".to_owned(), TenantKind::Untracked),
                    _ => (format!("tenant-{}", tenant.0), TenantKind::Vm),
                };
                TenantIdentity {
                    id: unnamed_id(&gpu.node, self.config.boot, tenant),
                    name,
                    kind,
                    account: None,
                    metadata: Arc::default(),
                }
            },
            |seat| seat.identity.clone(),
        );
        TenantRecord {
            id: event_id(gpu, identity.id, stretch),
            tenant: identity,
            engine_ns: sums.engine_ns,
            estimated_ns: sums.estimated_ns,
            fault_ns: sums.fault_ns,
            copy_ns: sums.copy_ns,
            copy_bytes: counts_bytes.then_some(sums.copy_bytes),
            held_ns: sums.held_ns,
            waiting_ns: sums.waiting_ns,
            memory_byte_ns: sums.memory_byte_ns,
            weight: seat.map_or(0, |seat| seat.weight),
            cap: seat.and_then(|seat| seat.cap),
            signals: sums.signals,
            error_bound_ns: sums.error_bound_ns,
            turns: sums.turns,
        }
    }

    /// Whether the open window has reached its end, or an entry is ready to be taken.
    pub fn due(&self) -> bool {
        !self.ready.is_empty() || self.is_over()
    }

    /// Whether the open window has reached the next multiple of its length; or is twice as long,
    /// which happens where the calendar was set back.
    fn is_over(&self) -> bool {
        let window_ns = self.config.window_ns.0;
        let number = |at: UnixNanos| at.0 / window_ns;
        let over = |open: &Open| {
            let long = open.to.since(open.from).0 / 2 >= window_ns;
            long || number(open.end) > number(open.start)
        };
        self.open.as_ref().is_some_and(over)
    }

    /// Closes the open window if it has reached its end; moves all closed entries, oldest first, to
    /// the end of `entries`.
    pub fn take(&mut self, entries: &mut Vec<Entry>) {
        if self.is_over() {
            self.close();
        }
        entries.append(&mut self.ready);
    }

    /// Closes the open window at the end of a run; moves all closed entries to the end of
    /// `entries`.
    pub fn finish(&mut self, entries: &mut Vec<Entry>) {
        self.close();
        entries.append(&mut self.ready);
    }
}

#[cfg(test)]
#[path = "rollup_tests.rs"]
mod tests;
