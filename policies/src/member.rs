//! A tenant of a policy that charges virtual time: what all such policies keep of it, and what is the policy's own.

use crate::cap::Quota;
use crate::params::{Cap, TenantParams, Weight};
use crate::virtual_time::{VirtualClock, VirtualTime};
use turnstile_accounting::Nanos;

/// One tenant.
#[derive(Debug)]
pub(crate) struct Member<T> {
    pub(crate) weight: Weight,
    pub(crate) quota: Option<Quota>,
    pub(crate) clock: VirtualClock,
    /// It wants the engine, as far as we were told.
    pub(crate) backlogged: bool,
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
            own,
        }
    }

    pub(crate) fn set_cap(&mut self, cap: Option<Cap>) {
        self.quota = cap.map(Quota::new);
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
