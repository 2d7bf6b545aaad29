//! What tenants were charged too much since the counters last told of them, by what they launched. Pure.
//!
//! A turn is told by the fraction of its tenant that was idle before; that it was more or less in this one the counters say 0.1 to 0.2 s later. How often he launched in it is known as it ends.

use turnstile_accounting::{Moment, Nanos, TenantId};

use super::Watch;

/// No more is foretold: more than one who launches and waits pauses more or less in a turn.
const FORETOLD_MAX_NS: f64 = 3_000_000.0;

impl Watch {
    /// How much too much a tenant was charged, as far as is known: what is to be made good, and what will be when the counters tell of his last turn. Negative: too little.
    pub(crate) fn overcharged_ns(&self, tenant: TenantId) -> i64 {
        let foretold_ns = self.foretold_ns(tenant).unwrap_or(0.0);
        // CAST: within its bound.
        let foretold_ns = foretold_ns.clamp(-FORETOLD_MAX_NS, FORETOLD_MAX_NS) as i64;
        self.residency.owed_ns(tenant).saturating_add(foretold_ns)
    }

    fn foretold_ns(&self, tenant: TenantId) -> Option<f64> {
        let until = self.counted_until.filter(|_| self.idle.is_measured())?;
        let from = Moment(until.0.saturating_sub(self.idle.lag().0));
        let launch_ns = self.idle.launch_ns(tenant)?;
        let resident = |from, to| self.residency.resident_of(tenant, from, to);
        let expected = |resident| self.launches.expected(tenant, resident);
        let ends = (from, self.settled);
        let since = self
            .latches
            .launched_since(tenant, ends, resident, expected);
        let (count, to) = since?;
        let half = |at: Moment| {
            let at = self.residency.resident_at(Moment(at.0.saturating_sub(1)));
            if at == Some(tenant) { 0.5 } else { 0.0 }
        };
        let Nanos(resident_ns) = resident(from, to);
        let worked_ns = launch_ns * (count + half(from) - half(to));
        let told = self.residency.told_idle_within(from, to);
        let told_ns = told.get(&tenant).copied().unwrap_or(0.0);
        Some(resident_ns as f64 - worked_ns - told_ns)
    }
}
