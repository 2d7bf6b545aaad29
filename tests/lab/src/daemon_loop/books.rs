//! The ledger of a run, as the daemon keeps it: each period is added to the rollup at its end, and
//! windows close by the calendar.

use turnstile_accounting::record::{Entry, GpuIdentity, TenantKind, UnixNanos};
use turnstile_accounting::rollup::{RollupConfig, RollupError, Standing};
use turnstile_accounting::{EngineId, Moment, Nanos, Rollup, Usage};
use turnstile_mediation::{Activity, COMPUTE, Mediation};
use turnstile_policies::Weight;
use uuid::Uuid;

use super::laws::id;
use super::world::engines;

/// Configuration of a run's ledger.
#[derive(Clone, Debug)]
pub struct BookKeeping {
    /// The GPU.
    pub gpu: GpuIdentity,
    /// The run of the daemon that it represents.
    pub boot: Uuid,
    /// Calendar time of moment 0.
    pub begins: UnixNanos,
    /// Length of a window.
    pub window_ns: Nanos,
    /// Names of the tenants, in their order.
    pub names: Vec<String>,
}

/// The ledger of a run in progress.
#[derive(Debug)]
pub(super) struct Books {
    rollup: Rollup,
    begins: UnixNanos,
    names: Vec<String>,
    entries: Vec<Entry>,
}

impl Books {
    pub(super) fn new(keeping: BookKeeping) -> Result<Self, RollupError> {
        let compute = |engine: EngineId| (engine, engine == COMPUTE);
        let config = RollupConfig {
            gpu: keeping.gpu,
            boot: keeping.boot,
            window_ns: keeping.window_ns,
            engines: engines().map(compute).to_vec(),
        };
        Ok(Self {
            rollup: Rollup::new(config, None)?,
            begins: keeping.begins,
            names: keeping.names,
            entries: Vec::new(),
        })
    }

    /// Takes a period that ended and was charged.
    pub(super) fn period(
        &mut self,
        usages: &[&Usage],
        mediation: &Mediation,
        activity: &[Activity],
        now: Moment,
    ) -> Result<(), RollupError> {
        let standing = |(place, name): (usize, &'_ String)| {
            let tenant = id(place);
            let mut seen = activity.iter().filter(|seen| seen.tenant == tenant);
            (tenant, name.clone(), seen.any(|seen| seen.pending > 0))
        };
        let stand: Vec<_> = self.names.iter().enumerate().map(standing).collect();
        let standings: Vec<Standing<'_>> = stand
            .iter()
            .map(|(tenant, name, backlogged)| Standing {
                tenant: *tenant,
                name,
                kind: TenantKind::Vm,
                account: None,
                weight: mediation.weight(*tenant).map_or(0, Weight::get),
                cap: None,
                held_total_ns: mediation.ledger().held_ns(*tenant)
                    + mediation.held_now(*tenant, now),
                backlogged: *backlogged,
                memory_bytes: None,
            })
            .collect();
        let end = UnixNanos(self.begins.0 + now.0);
        self.rollup.period(usages, end, &standings)?;
        if self.rollup.due() {
            self.rollup.take(&mut self.entries);
        }
        Ok(())
    }

    /// All closed entries, and the open window.
    pub(super) fn close(mut self) -> Vec<Entry> {
        self.rollup.finish(&mut self.entries);
        self.entries
    }
}
