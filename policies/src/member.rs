//! A tenant of a policy that charges virtual time: what all such policies keep of it, and what is the policy's own.

use crate::cap::Quota;
use crate::params::{Cap, TenantParams, Weight};
use crate::roster::Roster;
use crate::virtual_time::{VirtualClock, VirtualTime};
use turnstile_accounting::{Moment, Nanos, TenantId};

/// One tenant.
#[derive(Debug)]
pub(crate) struct Member<T> {
    pub(crate) weight: Weight,
    pub(crate) quota: Option<Quota>,
    pub(crate) clock: VirtualClock,
    /// It wants the engine, as far as we were told.
    pub(crate) backlogged: bool,
    /// It was let in then, as the engine ran dry, and has used nothing since.
    let_in: Option<Moment>,
    /// What the policy keeps beside.
    pub(crate) own: T,
}

impl<T> Member<T> {
    /// One that appears, without work.
    pub(crate) fn new(params: TenantParams, at: VirtualTime, own: T) -> Self {
        Self {
            weight: params.weight,
            quota: params.cap.map(Quota::new),
            clock: VirtualClock::at(at),
            backlogged: false,
            let_in: None,
            own,
        }
    }

    pub(crate) fn set_cap(&mut self, cap: Option<Cap>) {
        self.quota = cap.map(Quota::new);
    }

    /// It used so much.
    pub(crate) fn charge(&mut self, used: Nanos) {
        self.clock.charge(used, self.weight);
        if used > Nanos::ZERO {
            self.let_in = None;
        }
    }

    /// Time passed in which it used `used`, for its cap.
    pub(crate) fn pass(&mut self, length: Nanos, used: Nanos) {
        if let Some(quota) = &mut self.quota {
            quota.pass(length, used);
        }
    }

    pub(crate) fn capped(&self) -> bool {
        self.quota.is_some_and(|quota| quota.exhausted())
    }

    /// It wants the engine and may have it.
    pub(crate) fn waits(&self) -> bool {
        self.backlogged && !self.capped()
    }

    /// Where it stands, and its weight, for `pour`.
    pub(crate) fn standing(&self) -> (VirtualTime, u64) {
        (self.clock.now(), self.weight.get().into())
    }
}

impl<T> Roster<Member<T>> {
    /// The engine ran dry: whom to let in of those who wait, the one furthest behind. Who was let in before, and had no use for it, goes behind all others: what is told of him may be wrong, and
    /// he would keep the engine from those who do.
    pub(crate) fn let_in(&mut self, waiting: &[TenantId], now: Moment) -> Option<TenantId> {
        let known = waiting
            .iter()
            .filter_map(|&id| Some((id, self.get(id).ok()?)));
        let (id, _) = known
            .filter(|(_, tenant)| !tenant.capped())
            .min_by_key(|(id, tenant)| (tenant.let_in, tenant.clock.now(), *id))?;
        self.get_mut(id).ok()?.let_in = Some(now);
        Some(id)
    }
}
