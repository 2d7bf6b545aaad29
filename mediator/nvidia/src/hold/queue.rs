//! Orders that wait for the executor. Pure.
//!
//! # Invariants
//! - The last order of a tenant stands; what is taken is taken whole.
//! - A tenant in `to_be_held` is held, is about to be, or cannot be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::SyncSender;
use std::time::Instant;

use turnstile_accounting::TenantId;

use super::channels::Channel;
use crate::costs::Cost;
use crate::hold::holder::HoldCalls;

/// A request to pin a held tenant (`on`), or to end that, and where its result goes.
#[derive(Debug)]
pub(super) struct PinRequest {
    pub(super) tenant: TenantId,
    pub(super) on: bool,
    pub(super) done: SyncSender<Result<(), String>>,
}

/// Hold (`true`) or release, by tenant, and requests to pin.
pub(super) type Batch = (BTreeMap<TenantId, bool>, Vec<PinRequest>);

/// What the executor is to do next.
#[derive(Debug, Default)]
// FIELDS: the state of one queue; its parts change together.
pub(super) struct Queue {
    /// Hold (`true`) or release.
    orders: BTreeMap<TenantId, bool>,
    /// Tenants with a last order to hold, carried out or not.
    to_be_held: BTreeSet<TenantId>,
    /// Tenants to be held as soon as their request is done.
    postponed: BTreeSet<TenantId>,
    pins: Vec<PinRequest>,
    /// Channels that a daemon before this one may have suspended.
    inherited: Vec<(TenantId, Vec<Channel>)>,
    pub(super) calls: HoldCalls,
    /// What orders took: calls, and polling until the engine has changed contexts.
    pub(super) work: Cost,
    /// Orders are being carried out.
    pub(super) executing: bool,
    ending: bool,
    /// The accounting thread is awake: it carries out orders before it sleeps.
    pub(super) caller_awake: bool,
    /// When the accounting thread last carried out orders.
    pub(super) caller_ran: Option<Instant>,
}

impl Queue {
    /// An order for a tenant.
    pub(super) fn submit(&mut self, tenant: TenantId, hold: bool) {
        self.postponed.remove(&tenant);
        self.orders.insert(tenant, hold);
        if hold {
            self.to_be_held.insert(tenant);
        } else {
            self.to_be_held.remove(&tenant);
        }
    }

    /// A tenant has new channels. Whether they are to be held. A tenant that is still held and is
    /// to be released keeps that order: it is not given a second time.
    pub(super) fn add_channels(&mut self, tenant: TenantId) -> bool {
        let held = self.to_be_held.contains(&tenant);
        if held {
            self.orders.entry(tenant).or_insert(true);
        }
        held
    }

    /// A tenant is to be held when its request is done.
    pub(super) fn postpone(&mut self, tenant: TenantId) {
        self.postponed.insert(tenant);
    }

    /// The request of a tenant is done.
    pub(super) fn request_done(&mut self, tenant: TenantId) {
        if self.postponed.remove(&tenant) {
            self.hold_again(tenant);
        }
    }

    /// A tenant is to be held, unless another order came.
    pub(super) fn hold_again(&mut self, tenant: TenantId) {
        self.orders.entry(tenant).or_insert(true);
    }

    /// A tenant stays held although it was to be released.
    pub(super) fn keep_held(&mut self, tenant: TenantId) {
        self.to_be_held.insert(tenant);
    }

    pub(super) fn pin(&mut self, request: PinRequest) {
        self.pins.push(request);
    }

    pub(super) fn inherit(&mut self, tenant: TenantId, channels: Vec<Channel>) {
        self.inherited.push((tenant, channels));
    }

    pub(super) fn take_inherited(&mut self) -> Vec<(TenantId, Vec<Channel>)> {
        std::mem::take(&mut self.inherited)
    }

    pub(super) fn end(&mut self) {
        self.ending = true;
    }

    pub(super) fn has_orders(&self) -> bool {
        !self.orders.is_empty()
    }

    /// Whether there is nothing that the executor has to wake up for.
    pub(super) fn is_empty(&self) -> bool {
        self.orders.is_empty() && self.pins.is_empty() && !self.ending
    }

    /// Whether an order of a tenant stands by which it is held, or waits.
    pub(super) fn is_ordered(&self, tenant: TenantId) -> bool {
        self.to_be_held.contains(&tenant) || self.orders.contains_key(&tenant)
    }

    /// What is to be done now; none when the executor is to end.
    pub(super) fn take(&mut self) -> Option<Batch> {
        if self.ending {
            return None;
        }
        let orders = std::mem::take(&mut self.orders);
        self.executing = !orders.is_empty();
        Some((orders, std::mem::take(&mut self.pins)))
    }

    /// An order was lost.
    #[cfg(test)]
    pub(super) fn lose(&mut self, tenant: TenantId) {
        self.to_be_held.remove(&tenant);
    }
}
