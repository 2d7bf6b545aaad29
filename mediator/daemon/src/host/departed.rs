//! Tenants that have left, for readers that poll: each keeps its totals for a grace period. Charges
//! that become known after a tenant left are added until the tenant is settled.

use std::collections::VecDeque;
use std::sync::Arc;

use turnstile_accounting::ledger::TenantSnapshot as Totals;
use turnstile_accounting::{Moment, Nanos, TenantId};

use super::snapshot::TenantSnapshot;
use super::split;

/// For how long a tenant that left is shown: several intervals of usual scrapers.
const GRACE: Nanos = Nanos::from_ms(300_000);
/// Tenants that are shown; the oldest make room.
const DEPARTED_MAX: usize = 4_096;

/// Tenants that left lately, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Departed(VecDeque<(Moment, Arc<TenantSnapshot>)>);

impl Departed {
    /// A tenant left.
    pub(super) fn add(&mut self, left: Moment, mut last: TenantSnapshot) {
        (last.backlogged, last.admitted) = (false, false);
        // The bound is on tenants: labels of as many would be tens of MB of metrics.
        if !last.metadata.labels().is_empty() {
            last.metadata = Arc::new(last.metadata.without_labels());
        }
        if self.0.len() == DEPARTED_MAX {
            self.0.pop_front();
        }
        self.0.push_back((left, Arc::new(last)));
    }

    /// Ends what was shown for long enough.
    pub(super) fn expire(&mut self, now: Moment) {
        while self
            .0
            .front()
            .is_some_and(|(left, _)| now.since(*left) >= GRACE)
        {
            self.0.pop_front();
        }
    }

    /// Takes the last totals of a tenant.
    pub(super) fn settle(&mut self, tenant: TenantId, totals: &Totals) {
        let mut shown = self.0.iter_mut().map(|(_, last)| last);
        if let Some(last) = shown.find(|last| last.tenant == tenant) {
            *last = Arc::new(with(last, totals));
        }
    }

    /// All, with the totals of those that are not settled as `unsettled` has them.
    pub(super) fn all(
        &self,
        unsettled: impl Fn(TenantId) -> Option<Totals>,
    ) -> Vec<Arc<TenantSnapshot>> {
        let now = |last: &Arc<TenantSnapshot>| {
            let totals = unsettled(last.tenant);
            totals.map_or_else(|| last.clone(), |totals| Arc::new(with(last, &totals)))
        };
        self.0.iter().map(|(_, last)| now(last)).collect()
    }
}

fn with(last: &TenantSnapshot, totals: &Totals) -> TenantSnapshot {
    let (compute, copy) = split(&totals.engines);
    TenantSnapshot {
        compute_ns: compute.used_ns,
        copy_ns: copy.used_ns,
        copy_bytes: totals.copy_bytes,
        ..last.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostConfig;
    use crate::host::Host;
    use turnstile_soft::{SoftConfig, SoftGpu};

    fn last(tenant: u32) -> TenantSnapshot {
        TenantSnapshot {
            tenant: TenantId(tenant),
            ..TenantSnapshot::of_name("a")
        }
    }

    fn tenants(departed: &Departed) -> Vec<u32> {
        let all = departed.all(|_| None);
        all.iter().map(|last| last.tenant.0).collect()
    }

    #[test]
    fn series_last_for_the_grace_period_and_the_oldest_make_room() {
        let mut departed = Departed::default();
        let at = |ms| Moment(0) + Nanos::from_ms(ms);
        departed.add(at(0), last(1));
        departed.add(at(1_000), last(2));
        departed.expire(at(299_999));
        assert_eq!(tenants(&departed), [1, 2]);
        departed.expire(at(300_000));
        assert_eq!(tenants(&departed), [2]);
        for tenant in 0..DEPARTED_MAX as u32 {
            departed.add(at(2_000), last(10 + tenant));
        }
        assert_eq!(tenants(&departed).len(), DEPARTED_MAX);
        assert_eq!(tenants(&departed)[0], 10);
    }

    #[test]
    fn use_that_becomes_known_after_a_tenant_left_is_shown() {
        let gpu = SoftGpu::new(SoftConfig::default()).unwrap();
        let host = Host::new(Arc::new(gpu), HostConfig::default()).unwrap();
        let mut totals = host.lock().mediation.ledger().tenant(TenantId(1));
        totals.copy_bytes = Some(77);
        let mut departed = Departed::default();
        departed.add(Moment(0), last(1));
        let late = departed.all(|tenant| (tenant == TenantId(1)).then(|| totals.clone()));
        assert_eq!(late[0].copy_bytes, Some(77));
        departed.settle(TenantId(1), &totals);
        assert_eq!(departed.all(|_| None)[0].copy_bytes, Some(77));
    }
}
