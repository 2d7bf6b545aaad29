//! What one window of time was used for.

use crate::units::{EngineId, Nanos, TenantId};
use crate::window::Window;
use serde::Serialize;
use std::collections::BTreeMap;

/// The signals that a usage is based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Signals {
    /// Status registers were polled throughout the window.
    Polled,
    /// Every context switch of the window was logged.
    Events,
    /// Every context switch was logged, and counters of the whole engine give the idle part of the
    /// residencies.
    EventsAndCounters,
    /// The engine was not observed. The time is extrapolated from finished commands and their mean
    /// length in poll phases.
    Extrapolated,
}

/// The measure of a tenant's time in a policy's formulas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Time on the engine (LoGA).
    #[default]
    Total,
    /// Mean time per residency (LoGA-CL, A1.6); for comparison, never for a bill.
    PerTurn,
}

/// One tenant's part of one engine's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TenantUsage {
    /// The tenant.
    pub tenant: TenantId,
    /// Time executing.
    pub used_ns: Nanos,
    /// Time stalled on this tenant's faults; not part of `used_ns`.
    pub fault_ns: Nanos,
    /// Residencies that lie at least partly in the window.
    pub turns: u64,
    /// Residencies that began in the window: over all windows, each residency once.
    pub begun: u64,
}

/// One engine's window: tenants, overhead, and unknown time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EngineUsage {
    /// Which engine.
    pub engine: EngineId,
    /// The tenants that used it, by ascending id.
    pub tenants: Vec<TenantUsage>,
    /// Time between contexts.
    pub switching_ns: Nanos,
    /// Time with nothing to execute.
    pub idle_ns: Nanos,
    /// Time that no signal covers.
    pub unobserved_ns: Nanos,
    /// Bound on the error of any tenant's time, as far as the signals show.
    pub error_bound_ns: Nanos,
}

/// Faults of the observations; counted, since a guest may cause them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Anomalies {
    /// Records missing from the log.
    pub lost: u64,
    /// Observations older than one before them; taken as of the newer time.
    pub out_of_order: u64,
    /// Records seen before; dropped.
    pub duplicates: u64,
    /// Observations that this meter cannot use: of another form, or of an unknown engine.
    pub foreign: u64,
}

/// What one window of one GPU was used for.
///
/// A polled usage covers its poll phase and nothing else: [`crate::meter::Unobserved`] makes the
/// separate usage of the part that was not polled, marked in [`Usage::signals`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// The time it covers.
    pub window: Window,
    /// The signals that it is based on.
    pub signals: Signals,
    /// All engines of the meter, by ascending id.
    pub engines: Vec<EngineUsage>,
    /// Bytes that copy engines moved, by the tenant to which their time is charged. A command
    /// counts as a whole, in the window in which it finished. None where the GPU does not count
    /// them. Meters report none; the daemon adds what the GPU counted in the period.
    pub copied: Option<BTreeMap<TenantId, u64>>,
    /// Faults of the observations since the window before.
    pub anomalies: Anomalies,
}

impl TenantUsage {
    /// The tenant's time in `metric`.
    pub fn metric_ns(&self, metric: Metric) -> Nanos {
        match metric {
            Metric::Total => self.used_ns,
            Metric::PerTurn => Nanos(self.used_ns.0.checked_div(self.turns).unwrap_or(0)),
        }
    }
}

impl EngineUsage {
    /// The usage of an engine that was read once in `window`, at work for this tenant or for none:
    /// the reading stands for the window.
    pub fn read(engine: EngineId, window: Window, tenant: Option<TenantId>) -> Self {
        let mut usage = Self::empty(engine);
        match tenant {
            Some(tenant) => usage.tenants.push(TenantUsage {
                tenant,
                used_ns: window.length(),
                fault_ns: Nanos::ZERO,
                turns: 0,
                begun: 0,
            }),
            None => usage.idle_ns = window.length(),
        }
        usage.error_bound_ns = usage.used_ns();
        usage
    }

    /// The usage of an engine, with no time yet.
    pub(crate) const fn empty(engine: EngineId) -> Self {
        Self {
            engine,
            tenants: Vec::new(),
            switching_ns: Nanos::ZERO,
            idle_ns: Nanos::ZERO,
            unobserved_ns: Nanos::ZERO,
            error_bound_ns: Nanos::ZERO,
        }
    }

    /// The entry of `tenant`, made if absent.
    pub(crate) fn entry(&mut self, tenant: TenantId) -> &mut TenantUsage {
        let index = match self.tenants.binary_search_by_key(&tenant, |t| t.tenant) {
            Ok(index) => index,
            Err(index) => {
                let none = TenantUsage {
                    tenant,
                    used_ns: Nanos::ZERO,
                    fault_ns: Nanos::ZERO,
                    turns: 0,
                    begun: 0,
                };
                self.tenants.insert(index, none);
                index
            }
        };
        &mut self.tenants[index]
    }

    /// Time of all tenants.
    pub fn used_ns(&self) -> Nanos {
        self.tenants.iter().map(|t| t.used_ns).sum()
    }

    /// Time stalled on faults of any tenant.
    pub fn fault_ns(&self) -> Nanos {
        self.tenants.iter().map(|t| t.fault_ns).sum()
    }

    /// Sum of all its time; equals the window's length (law 1).
    pub fn accounted_ns(&self) -> Nanos {
        self.used_ns() + self.fault_ns() + self.switching_ns + self.idle_ns + self.unobserved_ns
    }
}

impl Usage {
    /// The usage of one engine.
    pub fn engine(&self, engine: EngineId) -> Option<&EngineUsage> {
        self.engines.iter().find(|e| e.engine == engine)
    }

    /// One tenant's time on all engines, in `metric`.
    pub fn tenant_ns(&self, tenant: TenantId, metric: Metric) -> Nanos {
        let part = |e: &EngineUsage| {
            let index = e.tenants.binary_search_by_key(&tenant, |t| t.tenant).ok()?;
            Some(e.tenants[index].metric_ns(metric))
        };
        self.engines.iter().filter_map(part).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Moment;

    #[test]
    fn time_per_turn_is_the_mean() {
        let turn = TenantUsage {
            tenant: TenantId(1),
            used_ns: Nanos(90),
            fault_ns: Nanos::ZERO,
            turns: 3,
            begun: 3,
        };
        assert_eq!(turn.metric_ns(Metric::PerTurn), Nanos(30));
    }

    #[test]
    fn reading_of_an_engine_stands_for_its_window() {
        let window = Window::starting(Moment(7), Nanos::from_ms(20));
        let read = |tenant| EngineUsage::read(EngineId(2), window, tenant);
        let (busy, idle) = (read(Some(TenantId(4))), read(None));
        assert_eq!(
            (busy.tenants[0].tenant, busy.used_ns()),
            (TenantId(4), window.length())
        );
        assert_eq!(
            (busy.idle_ns, busy.error_bound_ns),
            (Nanos::ZERO, window.length())
        );
        assert_eq!(
            (idle.used_ns(), idle.idle_ns),
            (Nanos::ZERO, window.length())
        );
        assert_eq!(idle.error_bound_ns, Nanos::ZERO);
    }
}
