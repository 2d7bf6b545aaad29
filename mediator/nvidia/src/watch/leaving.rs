//! Who leaves the engine, and had begun or stopped unseen.

use turnstile_accounting::{Moment, Nanos, TenantId};

use super::Watch;
use crate::events::{Change, SwitchRecord};
use crate::progress::Said;

impl Watch {
    /// One who may have begun, or whose work may have ended, leaves for another. What his channels said was after that: he may have been there again.
    pub(super) fn leaves(&mut self, tenant: TenantId, at: Moment, later: &[SwitchRecord]) {
        let asked = self.asked.take_if(|(who, ..)| *who == tenant);
        let Some((_, mut said, asked_at)) = asked.filter(|_| !self.residency.is_held(tenant))
        else {
            return;
        };
        let Some(each) = self.progress.each(tenant) else {
            return;
        };
        if let Said::Moved { entries, .. } = &mut said {
            *entries = entries.saturating_sub(each.launched(self.stays(tenant, later, asked_at)));
        }
        let left = at.min(asked_at);
        if let Some(resident) = self.residency.works_since(tenant) {
            if let Some(ended) = self.located(tenant, said, resident, left)
                && left.since(ended.at) > ended.within
            {
                self.stops.moved(tenant, ended);
                self.residency.idle(tenant, ended.at, &mut self.events);
            }
        } else if let Said::Moved {
            since,
            entries: entries @ 1..,
        } = said
            && since < left
            && self.residency.is_idle()
            && !self.is_silent_until(tenant, left)
        {
            let began = each.began(since, left, entries);
            self.stops.moved(tenant, began);
            self.residency.busy(tenant, began.at, &mut self.events);
        }
    }

    /// For how long each a tenant is on the engine in these records, until then.
    fn stays<'a>(
        &'a self,
        tenant: TenantId,
        records: &'a [SwitchRecord],
        until: Moment,
    ) -> impl Iterator<Item = Nanos> + 'a {
        let mut came = None;
        let own = move |record: &&SwitchRecord| {
            self.residency.tenant(record.pid) == Some(tenant) && record.at < until
        };
        let end = std::iter::once((Change::Saved, until));
        let changes = records
            .iter()
            .filter(own)
            .map(|record| (record.change, record.at));
        changes
            .chain(end)
            .filter_map(move |(change, at)| match change {
                Change::Active => {
                    came = Some(at);
                    None
                }
                Change::Saved => came.take().map(|came| at.since(came)),
            })
    }
}
