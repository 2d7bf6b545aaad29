//! The columns of a bill in FOCUS, and the value of each.

use super::super::calendar::{hour_after, month_of, show_second};
use super::super::prices::{Account, Detail, PriceList, Sku, Unit};
use super::super::rows::instance;
use super::super::table::{Cell, Column, Kind};
use super::{FocusVersion, Sums, billionths};
use crate::ids::{charge_id, resource_id, unknown_id};
use crate::record::{GpuIdentity, TenantIdentity, TenantKind, UnixNanos};
use rust_decimal::Decimal;
use std::collections::BTreeMap;
use uuid::Uuid;

/// The source of a row's cells.
// FIELDS: a row of a bill: one column each.
pub(super) struct Charge<'a> {
    pub(super) gpu: &'a GpuIdentity,
    pub(super) hour: UnixNanos,
    pub(super) sums: &'a Sums,
    pub(super) prices: &'a PriceList,
    pub(super) sku: &'a Sku,
    pub(super) account: Option<&'a Account>,
    pub(super) quantity: Decimal,
    pub(super) list_price: Decimal,
    pub(super) contracted_price: Decimal,
    pub(super) list_cost: Decimal,
    pub(super) contracted_cost: Decimal,
}

/// The versions that have a column.
#[derive(Clone, Copy, PartialEq, Eq)]
enum In {
    Both,
    V1_2,
    V1_4,
}

type Value = fn(&Charge<'_>) -> Cell;

/// The columns: those of FOCUS by name, then those of this project.
const COLUMNS: &[(&str, Kind, In, Value)] = &[
    ("BilledCost", Kind::Decimal, In::Both, |c| {
        Cell::Decimal(c.contracted_cost)
    }),
    ("BillingAccountId", Kind::Text, In::Both, |c| {
        Cell::text(&c.prices.billing.account_id)
    }),
    ("BillingAccountName", Kind::Text, In::Both, |c| {
        let billing = &c.prices.billing;
        Cell::text(billing.account_name.as_ref().unwrap_or(&billing.account_id))
    }),
    ("BillingCurrency", Kind::Text, In::Both, |c| {
        Cell::text(&c.prices.billing.currency)
    }),
    ("BillingPeriodEnd", Kind::Text, In::Both, |c| {
        Cell::text(show_second(month_of(c.hour).1))
    }),
    ("BillingPeriodStart", Kind::Text, In::Both, |c| {
        Cell::text(show_second(month_of(c.hour).0))
    }),
    ("ChargeCategory", Kind::Text, In::Both, |_| {
        Cell::text("Usage")
    }),
    ("ChargeClass", Kind::Text, In::Both, |_| Cell::Null),
    ("ChargeDescription", Kind::Text, In::Both, description),
    ("ChargeFrequency", Kind::Text, In::Both, |_| {
        Cell::text("Usage-Based")
    }),
    ("ChargePeriodEnd", Kind::Text, In::Both, |c| {
        Cell::text(show_second(hour_after(c.hour)))
    }),
    ("ChargePeriodStart", Kind::Text, In::Both, |c| {
        Cell::text(show_second(c.hour))
    }),
    // The validator requires it of a provider with unit prices, although there are no commitments.
    ("CommitmentDiscountStatus", Kind::Text, In::V1_2, |_| {
        Cell::Null
    }),
    ("ConsumedQuantity", Kind::Decimal, In::Both, |c| {
        Cell::Decimal(c.quantity)
    }),
    ("ConsumedUnit", Kind::Text, In::Both, |c| {
        Cell::text(c.sku.unit.as_str())
    }),
    ("ContractedCost", Kind::Decimal, In::Both, |c| {
        Cell::Decimal(c.contracted_cost)
    }),
    ("ContractedUnitPrice", Kind::Decimal, In::Both, |c| {
        Cell::Decimal(c.contracted_price)
    }),
    ("EffectiveCost", Kind::Decimal, In::Both, |c| {
        Cell::Decimal(c.contracted_cost)
    }),
    ("HostProviderName", Kind::Text, In::V1_4, |c| {
        Cell::text(
            c.prices
                .billing
                .host_provider
                .as_ref()
                .unwrap_or(&c.prices.billing.provider),
        )
    }),
    // There is no invoice yet; the biller fills it in.
    ("InvoiceId", Kind::Text, In::Both, |_| Cell::Null),
    ("InvoiceIssuerName", Kind::Text, In::Both, |c| {
        Cell::text(
            c.prices
                .billing
                .invoice_issuer
                .as_ref()
                .unwrap_or(&c.prices.billing.provider),
        )
    }),
    ("ListCost", Kind::Decimal, In::Both, |c| {
        Cell::Decimal(c.list_cost)
    }),
    ("ListUnitPrice", Kind::Decimal, In::Both, |c| {
        Cell::Decimal(c.list_price)
    }),
    ("PricingCategory", Kind::Text, In::Both, |_| {
        Cell::text("Standard")
    }),
    ("PricingCurrency", Kind::Text, In::V1_2, |c| {
        Cell::text(&c.prices.billing.currency)
    }),
    (
        "PricingCurrencyContractedUnitPrice",
        Kind::Decimal,
        In::V1_2,
        |c| Cell::Decimal(c.contracted_price),
    ),
    (
        "PricingCurrencyEffectiveCost",
        Kind::Decimal,
        In::V1_2,
        |c| Cell::Decimal(c.contracted_cost),
    ),
    (
        "PricingCurrencyListUnitPrice",
        Kind::Decimal,
        In::V1_2,
        |c| Cell::Decimal(c.list_price),
    ),
    ("PricingQuantity", Kind::Decimal, In::Both, |c| {
        Cell::Decimal(c.quantity)
    }),
    ("PricingUnit", Kind::Text, In::Both, |c| {
        Cell::text(c.sku.unit.as_str())
    }),
    ("ProviderName", Kind::Text, In::V1_2, |c| {
        Cell::text(&c.prices.billing.provider)
    }),
    ("PublisherName", Kind::Text, In::V1_2, |c| {
        Cell::text(
            c.prices
                .billing
                .publisher
                .as_ref()
                .unwrap_or(&c.prices.billing.provider),
        )
    }),
    ("RegionId", Kind::Text, In::Both, |c| {
        Cell::maybe(c.prices.billing.region_id.as_ref())
    }),
    ("RegionName", Kind::Text, In::Both, |c| {
        Cell::maybe(c.prices.billing.region_name.as_ref())
    }),
    ("ResourceId", Kind::Text, In::Both, |c| {
        let (node, kind) = (&c.gpu.node, c.sums.tenant.kind.as_str());
        let instance = c.sums.tenant.metadata.instance_id();
        Cell::text(match (&c.sums.unknown, instance) {
            (Some(_), _) => format!("turnstile://{node}/gpu/{}", c.gpu.gpu),
            (None, None) => format!("turnstile://{node}/{kind}/{}", c.resource()),
            // The same on each host.
            (None, Some(_)) => format!("turnstile:/instance/{}", c.resource()),
        })
    }),
    ("ResourceName", Kind::Text, In::Both, |c| {
        Cell::text(&c.sums.tenant.name)
    }),
    ("ResourceType", Kind::Text, In::Both, |c| {
        Cell::text(c.sums.unknown.as_ref().map_or("GPU Share", |_| "GPU"))
    }),
    ("ServiceCategory", Kind::Text, In::Both, |_| {
        Cell::text("Compute")
    }),
    ("ServiceName", Kind::Text, In::Both, |c| {
        Cell::text(&c.prices.billing.service_name)
    }),
    ("ServiceProviderName", Kind::Text, In::V1_4, |c| {
        Cell::text(&c.prices.billing.provider)
    }),
    ("ServiceSubcategory", Kind::Text, In::Both, |_| {
        Cell::text("Virtual Machines")
    }),
    ("SkuId", Kind::Text, In::Both, |c| Cell::text(&c.sku.id)),
    ("SkuMeter", Kind::Text, In::Both, |c| {
        Cell::text(c.sku.meter.as_deref().unwrap_or(c.sku.unit.meter()))
    }),
    ("SkuPriceDetails", Kind::Text, In::Both, |c| {
        json(&c.sku.details)
    }),
    ("SkuPriceId", Kind::Text, In::Both, |c| {
        Cell::text(&c.sku.price_id)
    }),
    ("SubAccountId", Kind::Text, In::Both, |c| {
        sub_account(c, |account| account.sub_account_id.as_ref(), project_id)
    }),
    ("SubAccountName", Kind::Text, In::Both, |c| {
        sub_account(
            c,
            |account| account.sub_account_name.as_ref(),
            |tenant| tenant.metadata.project().map(str::to_owned),
        )
    }),
    ("Tags", Kind::Text, In::Both, |c| tags(c)),
    ("x_GpuUuid", Kind::Text, In::Both, |c| {
        Cell::text(&c.gpu.gpu)
    }),
    ("x_GpuWeight", Kind::Integer, In::Both, |c| {
        match c.sums.unknown {
            Some(_) => Cell::Null,
            None => Cell::Integer(c.sums.weight.into()),
        }
    }),
    ("x_HeldSeconds", Kind::Decimal, In::Both, |c| {
        beside_time(c, c.sums.held_ns)
    }),
    ("x_InstanceId", Kind::Text, In::Both, |c| {
        instance(&c.sums.tenant)
    }),
    ("x_NodeId", Kind::Text, In::Both, |c| {
        Cell::text(&c.gpu.node)
    }),
    ("x_UnknownCauses", Kind::Text, In::Both, |c| {
        let causes = c.sums.unknown.iter().flat_map(|unknown| &unknown.1);
        Cell::text(causes.copied().collect::<Vec<_>>().join("+"))
    }),
    ("x_UnknownSeconds", Kind::Decimal, In::Both, |c| {
        let unknown = c
            .sums
            .unknown
            .as_ref()
            .and_then(|unknown| billionths(unknown.0));
        unknown.map_or(Cell::Null, Cell::Decimal)
    }),
    ("x_UsageEventId", Kind::Text, In::Both, |c| {
        let kind = match (&c.sums.unknown, c.sku.unit) {
            (Some(_), _) => return Cell::text(unknown_id("hour", c.gpu, c.hour).to_string()),
            (None, Unit::Seconds) => "charge",
            (None, Unit::Gigabytes) => "copies",
        };
        let of = (c.resource(), c.sums.weight, &*c.sums.tenant.metadata);
        Cell::text(charge_id(kind, c.gpu, of, c.hour).to_string())
    }),
    ("x_WaitSeconds", Kind::Decimal, In::Both, |c| {
        beside_time(c, c.sums.waiting_ns)
    }),
];

impl FocusVersion {
    fn has(self, place: In) -> bool {
        match place {
            In::Both => true,
            In::V1_2 => self == Self::V1_2,
            In::V1_4 => self == Self::V1_4,
        }
    }
}

/// The columns of a version, in order.
pub fn columns(version: FocusVersion) -> Vec<(&'static str, Kind)> {
    let chosen = COLUMNS.iter().filter(|column| version.has(column.2));
    chosen
        .map(|column| -> Column { (column.0, column.1) })
        .collect()
}

impl Charge<'_> {
    fn resource(&self) -> Uuid {
        resource_id(&self.gpu.node, &self.sums.tenant)
    }

    /// The row, in the columns of a version.
    pub(super) fn cells(&self, version: FocusVersion) -> Vec<Cell> {
        let chosen = COLUMNS.iter().filter(|column| version.has(column.2));
        chosen.map(|column| column.3(self)).collect()
    }
}

/// The sub-account that the price list has for the tenant, or the tenant's project, or its account.
fn sub_account(
    charge: &Charge<'_>,
    named: fn(&Account) -> Option<&String>,
    project: fn(&TenantIdentity) -> Option<String>,
) -> Cell {
    let tenant = &charge.sums.tenant;
    let named = charge.account.and_then(named).cloned();
    let named = named.or_else(|| project(tenant));
    Cell::maybe(named.as_ref().or(tenant.account.as_ref()))
}

/// The project as a sub-account, with the account before it: a tenant of another account that names
/// the same project has another one.
fn project_id(tenant: &TenantIdentity) -> Option<String> {
    let project = tenant.metadata.project()?;
    let account = tenant.account.as_deref().unwrap_or_default();
    Some(format!("{account}/{project}"))
}

/// The tenant's labels, and the tags that the price list has for it, which come first.
fn tags(charge: &Charge<'_>) -> Cell {
    let labels = charge.sums.tenant.metadata.labels().iter();
    let labels = labels.map(|(key, value)| (key.clone(), Detail::Text(value.clone())));
    let mut tags: BTreeMap<String, Detail> = labels.collect();
    if let Some(account) = charge.account {
        tags.extend(account.tags.clone());
    }
    json(&tags)
}

fn description(charge: &Charge<'_>) -> Cell {
    if let Some((_, causes)) = &charge.sums.unknown {
        let causes: Vec<_> = causes.iter().copied().collect();
        let causes = causes.join(", ");
        return Cell::text(format!(
            "Time without a record ({causes}), {}",
            charge.gpu.model
        ));
    }
    let kind = match charge.sums.tenant.kind {
        TenantKind::Vm => "VM",
        TenantKind::Program => "program",
        TenantKind::Untracked => "untracked",
    };
    Cell::text(format!(
        "Shared {}, {}, {kind} {}",
        charge.sku.unit.meter(),
        charge.gpu.model,
        charge.sums.tenant.name
    ))
}

/// A flat object, keys in order; null if it has no keys.
fn json(object: &BTreeMap<String, Detail>) -> Cell {
    if object.is_empty() {
        return Cell::Null;
    }
    // PANIC: none; texts, numbers and flags have a JSON each
    serde_json::to_string(object).map_or(Cell::Null, Cell::text)
}

/// Seconds that only the row of GPU time has, so that a sum over rows counts them once.
fn beside_time(charge: &Charge<'_>, ns: u128) -> Cell {
    let of_tenant = charge.sku.unit == Unit::Seconds && charge.sums.unknown.is_none();
    let seconds = billionths(ns).filter(|_| of_tenant);
    seconds.map_or(Cell::Null, Cell::Decimal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_focus_names_in_order_then_our_own() {
        for version in [FocusVersion::V1_2, FocusVersion::V1_4] {
            let names: Vec<_> = columns(version).iter().map(|column| column.0).collect();
            let own = names
                .iter()
                .position(|name| name.starts_with("x_"))
                .unwrap();
            assert!(
                names[..own].is_sorted() && names[own..].is_sorted(),
                "{names:?}"
            );
            assert!(names[own..].iter().all(|name| name.starts_with("x_")));
            assert!(names.iter().all(|name| name.len() <= 50));
        }
        let has = |version, name| columns(version).iter().any(|column| column.0 == name);
        assert!(
            has(FocusVersion::V1_2, "ProviderName") && !has(FocusVersion::V1_4, "ProviderName")
        );
        assert!(
            !has(FocusVersion::V1_2, "HostProviderName")
                && has(FocusVersion::V1_4, "HostProviderName")
        );
    }
}
