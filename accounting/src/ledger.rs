//! The ledger: the sum of all usages, each of which has to balance.
//!
//! Windows are appended in order of time, each once. Time between two windows is a gap, kept as a
//! record of its own. So for each engine, from the first window to the last:
//!
//! ```text
//! VM time + fault + switching + idle + unobserved + gaps = wall time
//! ```
//!
//! Totals are kept for ever, records for the last `keep` windows and gaps; memory grows with
//! tenants, not time.

use crate::units::{EngineId, Moment, Nanos, TenantId};
use crate::usage::{EngineUsage, Signals, Usage};
use crate::window::Window;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use thiserror::Error;

/// Why a usage was not appended; the ledger is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LedgerError {
    /// Time was lost or counted twice (law 1).
    #[error("Engine {} accounts for {accounted_ns} of a window of {window_ns}", engine.0)]
    Unbalanced {
        /// The engine.
        engine: EngineId,
        /// Sum of its parts.
        accounted_ns: Nanos,
        /// The window's length, which the sum has to equal.
        window_ns: Nanos,
    },
    /// The window begins before the last one ended.
    #[error("Window begins at {} ns, but the ledger is closed until {} ns", from.0, closed.0)]
    Overlap {
        /// Beginning of the window refused.
        from: Moment,
        /// End of the last window.
        closed: Moment,
    },
    /// The usage does not list exactly the ledger's engines in ascending order.
    #[error("Usage lists other engines than the ledger's {expected}")]
    Engines {
        /// How many engines the ledger has.
        expected: usize,
    },
}

/// What a tenant used of one engine (or of all) since it was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TenantTotals {
    /// Engine time, all of it.
    pub used_ns: Nanos,
    /// The part of `used_ns` that was extrapolated rather than observed.
    pub estimated_ns: Nanos,
    /// Time stalled on its faults; not part of `used_ns`.
    pub fault_ns: Nanos,
    /// Observed residencies, counted again in each window that they reach into.
    pub turns: u64,
    /// Observed residencies, each counted once.
    pub begun: u64,
}

/// Where one engine's time went since the ledger began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EngineTotals {
    /// Time of all tenants, removed ones included.
    pub used_ns: Nanos,
    /// Stalls on faults.
    pub fault_ns: Nanos,
    /// Time between contexts.
    pub switching_ns: Nanos,
    /// Time with nothing to execute.
    pub idle_ns: Nanos,
    /// Time in a window that no signal covers.
    pub unobserved_ns: Nanos,
    /// Time between windows.
    pub gap_ns: Nanos,
    /// Sum of the windows' error bounds.
    pub error_bound_ns: Nanos,
    /// Observed residencies of tenants.
    pub begun: u64,
}

/// A record of the recent past.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum Record {
    /// A window and what it was used for.
    Window(Usage),
    /// A stretch of time that no window covers.
    Gap {
        /// The stretch.
        window: Window,
    },
}

/// Running totals per tenant and engine.
#[derive(Debug)]
pub struct Ledger {
    engines: Vec<(EngineId, EngineTotals)>,
    tenants: BTreeMap<(TenantId, EngineId), TenantTotals>,
    held: BTreeMap<TenantId, Nanos>,
    moved: BTreeMap<TenantId, (u64, Nanos)>,
    /// None until a usage counts copied bytes.
    copied: Option<BTreeMap<TenantId, u64>>,
    recent: VecDeque<Record>,
    keep: usize,
    opened: Option<Moment>,
    closed: Option<Moment>,
}

/// A copy of the ledger's totals, for the API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// From the first window's beginning to the last one's end; `None` before the first.
    pub window: Option<Window>,
    /// Totals per engine.
    pub engines: Vec<EngineSnapshot>,
    /// Totals per tenant, by ascending id.
    pub tenants: Vec<TenantSnapshot>,
}

/// One engine in a [`Snapshot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct EngineSnapshot {
    /// Which engine.
    pub engine: EngineId,
    /// Where its time went.
    #[serde(flatten)]
    pub totals: EngineTotals,
}

/// One tenant in a [`Snapshot`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TenantSnapshot {
    /// Which tenant.
    pub tenant: TenantId,
    /// Over all engines.
    #[serde(flatten)]
    pub totals: TenantTotals,
    /// Time for which it was held back.
    pub held_ns: Nanos,
    /// Bytes of GPU memory, its own or others', that were copied to or from the host for it.
    pub moved_bytes: u64,
    /// Time of the link that these copies took.
    pub moved_ns: Nanos,
    /// Bytes that copy engines moved in its time; none where the GPU does not count them.
    pub copy_bytes: Option<u64>,
    /// Per engine that it used.
    pub engines: Vec<(EngineId, TenantTotals)>,
}

impl TenantTotals {
    fn add(&mut self, other: &Self) {
        self.used_ns += other.used_ns;
        self.estimated_ns += other.estimated_ns;
        self.fault_ns += other.fault_ns;
        self.turns += other.turns;
        self.begun += other.begun;
    }
}

impl EngineTotals {
    fn add(&mut self, usage: &EngineUsage) {
        self.used_ns += usage.used_ns();
        self.fault_ns += usage.fault_ns();
        self.switching_ns += usage.switching_ns;
        self.idle_ns += usage.idle_ns;
        self.unobserved_ns += usage.unobserved_ns;
        self.error_bound_ns += usage.error_bound_ns;
        self.begun += usage.tenants.iter().map(|part| part.begun).sum::<u64>();
    }

    /// All time that is accounted for; equals the wall time since the ledger began (law 1).
    pub fn accounted_ns(&self) -> Nanos {
        self.used_ns
            + self.fault_ns
            + self.switching_ns
            + self.idle_ns
            + self.unobserved_ns
            + self.gap_ns
    }
}

impl Ledger {
    /// An empty ledger of `engines` that keeps the last `keep` records.
    pub fn new(engines: impl IntoIterator<Item = EngineId>, keep: usize) -> Self {
        let mut engines: Vec<_> = engines
            .into_iter()
            .map(|e| (e, EngineTotals::default()))
            .collect();
        engines.sort_by_key(|e| e.0);
        engines.dedup_by_key(|e| e.0);
        Self {
            engines,
            tenants: BTreeMap::new(),
            held: BTreeMap::new(),
            moved: BTreeMap::new(),
            copied: None,
            recent: VecDeque::new(),
            keep,
            opened: None,
            closed: None,
        }
    }

    /// Adds a usage; time since the window before it becomes a gap.
    pub fn append(&mut self, usage: Usage) -> Result<(), LedgerError> {
        let window = usage.window;
        self.check(&usage)?;
        let closed = self.closed.unwrap_or(window.from());
        if closed < window.from() {
            let gap = Window::starting(closed, window.from().since(closed));
            for (_, totals) in &mut self.engines {
                totals.gap_ns += gap.length();
            }
            self.remember(Record::Gap { window: gap });
        }
        let estimated = usage.signals == Signals::Extrapolated;
        for (seen, (engine, totals)) in usage.engines.iter().zip(&mut self.engines) {
            totals.add(seen);
            for part in &seen.tenants {
                self.tenants
                    .entry((part.tenant, *engine))
                    .or_default()
                    .add(&TenantTotals {
                        used_ns: part.used_ns,
                        estimated_ns: if estimated { part.used_ns } else { Nanos::ZERO },
                        fault_ns: part.fault_ns,
                        turns: part.turns,
                        begun: part.begun,
                    });
            }
        }
        if let Some(copied) = &usage.copied {
            let sums = self.copied.get_or_insert_default();
            for (tenant, bytes) in copied {
                let sum = sums.entry(*tenant).or_default();
                *sum = sum.saturating_add(*bytes);
            }
        }
        self.opened.get_or_insert(window.from());
        self.closed = Some(window.to());
        self.remember(Record::Window(usage));
        Ok(())
    }

    fn check(&self, usage: &Usage) -> Result<(), LedgerError> {
        let window = usage.window;
        if let Some(closed) = self.closed.filter(|&closed| window.from() < closed) {
            return Err(LedgerError::Overlap {
                from: window.from(),
                closed,
            });
        }
        if !usage
            .engines
            .iter()
            .map(|e| e.engine)
            .eq(self.engines.iter().map(|e| e.0))
        {
            return Err(LedgerError::Engines {
                expected: self.engines.len(),
            });
        }
        for seen in &usage.engines {
            let (accounted_ns, window_ns) = (seen.accounted_ns(), window.length());
            if accounted_ns != window_ns {
                return Err(LedgerError::Unbalanced {
                    engine: seen.engine,
                    accounted_ns,
                    window_ns,
                });
            }
        }
        Ok(())
    }

    fn remember(&mut self, record: Record) {
        self.recent.push_back(record);
        while self.recent.len() > self.keep {
            self.recent.pop_front();
        }
    }

    /// Adds time for which `tenant` was held back.
    pub fn add_held(&mut self, tenant: TenantId, held_ns: Nanos) {
        *self.held.entry(tenant).or_default() += held_ns;
    }

    /// Time for which `tenant` was held back, as added by [`Self::add_held`].
    pub fn held_ns(&self, tenant: TenantId) -> Nanos {
        self.held.get(&tenant).copied().unwrap_or_default()
    }

    /// Adds bytes of GPU memory that were copied to or from the host for `tenant`, and the time of
    /// the link that this took.
    pub fn add_moved(&mut self, tenant: TenantId, bytes: u64, took: Nanos) {
        let (all_bytes, all_took) = self.moved.entry(tenant).or_default();
        *all_bytes = all_bytes.saturating_add(bytes);
        *all_took += took;
    }

    /// Settles a tenant that has left: removes its totals and returns them.
    ///
    /// The engines' totals keep its time. Precondition: its last window has been appended;
    /// otherwise that window adds the tenant again, as a new one.
    pub fn settle(&mut self, tenant: TenantId) -> TenantSnapshot {
        let settled = self.tenant(tenant);
        for &(engine, _) in &settled.engines {
            self.tenants.remove(&(tenant, engine));
        }
        self.held.remove(&tenant);
        self.moved.remove(&tenant);
        if let Some(copied) = &mut self.copied {
            copied.remove(&tenant);
        }
        settled
    }

    /// Bytes that copy engines moved in the tenant's time; none where the GPU does not count them.
    fn copy_bytes(&self, tenant: TenantId) -> Option<u64> {
        let copied = self.copied.as_ref()?;
        Some(copied.get(&tenant).copied().unwrap_or_default())
    }

    /// One tenant's totals; zero if it never ran.
    pub fn tenant(&self, tenant: TenantId) -> TenantSnapshot {
        let own = (tenant, EngineId(0))..=(tenant, EngineId(u8::MAX));
        let engines: Vec<_> = self
            .tenants
            .range(own)
            .map(|(key, totals)| (key.1, *totals))
            .collect();
        let mut totals = TenantTotals::default();
        engines.iter().for_each(|(_, part)| totals.add(part));
        let held_ns = self.held_ns(tenant);
        let (moved_bytes, moved_ns) = self.moved.get(&tenant).copied().unwrap_or_default();
        TenantSnapshot {
            tenant,
            totals,
            held_ns,
            moved_bytes,
            moved_ns,
            copy_bytes: self.copy_bytes(tenant),
            engines,
        }
    }

    /// The latest records, oldest first.
    pub fn recent(&self) -> impl DoubleEndedIterator<Item = &Record> + ExactSizeIterator {
        self.recent.iter()
    }

    /// A copy of all totals.
    pub fn snapshot(&self) -> Snapshot {
        let mut ids: Vec<_> = self
            .tenants
            .keys()
            .map(|key| key.0)
            .chain(self.held.keys().copied())
            .chain(self.moved.keys().copied())
            .chain(self.copied.iter().flat_map(BTreeMap::keys).copied())
            .collect();
        ids.sort_unstable();
        ids.dedup();
        Snapshot {
            window: self
                .opened
                .zip(self.closed)
                .map(|(from, to)| Window::starting(from, to.since(from))),
            engines: self
                .engines
                .iter()
                .map(|&(engine, totals)| EngineSnapshot { engine, totals })
                .collect(),
            tenants: ids.into_iter().map(|id| self.tenant(id)).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
