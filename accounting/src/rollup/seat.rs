//! What a rollup keeps of a tenant between periods.
//!
//! In: the tenant's state at the end of each period, and its metadata. Out: its identity, weight
//! and cap for records, and whether one of them differs from before. The daemon's recorder
//! describes tenants; the rollup uses the rest.

use super::{READY_MAX, Rollup, RollupConfig, Standing};
use crate::ids::tenant_id;
use crate::metadata::Metadata;
use crate::record::{CapInForce, TenantIdentity};
use crate::units::{Nanos, TenantId};
use std::sync::Arc;
use uuid::Uuid;

/// What the rollup keeps of a tenant.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) identity: TenantIdentity,
    pub(super) weight: u32,
    pub(super) cap: Option<CapInForce>,
    pub(super) held_total_ns: Nanos,
    /// Windows closed since it was last listed.
    pub(super) absent: u8,
}

impl Seat {
    /// That of a tenant in its first period on a node, in a run of the daemon.
    pub(super) fn new(
        standing: &Standing<'_>,
        metadata: Arc<Metadata>,
        node: &str,
        boot: Uuid,
    ) -> Self {
        Self {
            identity: TenantIdentity {
                id: tenant_id(node, boot, standing.tenant),
                name: standing.name.to_owned(),
                kind: standing.kind,
                account: standing.account.map(str::to_owned),
                metadata,
            },
            weight: standing.weight,
            cap: standing.cap,
            held_total_ns: Nanos::ZERO,
            absent: 0,
        }
    }

    /// Whether the tenant got another weight or cap.
    pub(super) fn differs(&self, standing: &Standing<'_>) -> bool {
        (self.weight, self.cap) != (standing.weight, standing.cap)
    }

    /// Whether the tenant has other metadata than these.
    pub(super) fn is_described_otherwise(&self, metadata: &Arc<Metadata>) -> bool {
        let known = &self.identity.metadata;
        // In nearly all periods the metadata are the same ones.
        !Arc::ptr_eq(metadata, known) && metadata != known
    }

    /// Takes the state at the end of a period.
    pub(super) fn take(&mut self, standing: &Standing<'_>) {
        self.weight = standing.weight;
        self.cap = standing.cap;
        self.absent = 0;
    }
}

impl Rollup {
    /// Takes the metadata of tenants, in force from the last period on.
    pub fn describe<'a>(
        &mut self,
        tenants: impl Iterator<Item = (TenantId, &'a Arc<Metadata>)> + Clone,
    ) {
        let otherwise = |(tenant, metadata): (TenantId, &Arc<Metadata>)| {
            let seat = self.seats.get(&tenant);
            seat.is_some_and(|seat| seat.is_described_otherwise(metadata))
        };
        if self.ready.len() < READY_MAX && self.splits() && tenants.clone().any(otherwise) {
            self.close();
        }
        self.described.clear();
        for (tenant, metadata) in tenants {
            match self.seats.get_mut(&tenant) {
                Some(seat) if seat.is_described_otherwise(metadata) => {
                    seat.identity.metadata = metadata.clone();
                }
                Some(_) => {}
                None => {
                    self.described.insert(tenant, metadata.clone());
                }
            }
        }
    }

    pub(super) fn seat(&mut self, standing: &Standing<'_>) {
        let RollupConfig { gpu, boot, .. } = &self.config;
        let metadata = self.described.remove(&standing.tenant).unwrap_or_default();
        let made = || Seat::new(standing, metadata, &gpu.node, *boot);
        self.seats
            .entry(standing.tenant)
            .or_insert_with(made)
            .take(standing);
    }
}
