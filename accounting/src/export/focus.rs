//! A bill in FOCUS: one row for each tenant, GPU and UTC hour.
//!
//! Nothing is rounded: quantities are nanoseconds with the point moved by nine, costs are exact products or an error.
//! SOURCE: focus.finops.org, versions 1.2 (ratified 2025-05-29) and 1.4 (2026-06-04). What we leave out is in `docs/LEDGER.md`.

use super::calendar::{hour_after, hour_of, month_of, show_second};
use super::prices::{Account, Detail, PriceList, Sku, UNIT};
use super::table::{Cell, Column, Kind, Table, show_decimal};
use super::{ExportError, Exported, Request, Writer};
use crate::ids::charge_id;
use crate::record::{
    Body, Entry, GpuIdentity, TenantIdentity, TenantKind, TenantRecord, UnixNanos,
};
use rust_decimal::Decimal;
use std::collections::BTreeMap;
use uuid::Uuid;

/// Version of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FocusVersion {
    /// 1.2, the one that the official validator knows.
    V1_2,
    /// 1.4, the newest.
    V1_4,
}

/// What one tenant used of one GPU in one hour.
#[derive(Clone, Debug)]
struct Sums {
    tenant: TenantIdentity,
    engine_ns: u128,
    waiting_ns: u128,
    held_ns: u128,
    weight: u32,
}

/// A row before it is cells.
struct Charge<'a> {
    gpu: &'a GpuIdentity,
    hour: UnixNanos,
    sums: &'a Sums,
    prices: &'a PriceList,
    sku: &'a Sku,
    account: Option<&'a Account>,
    quantity: Decimal,
    list_price: Decimal,
    contracted_price: Decimal,
    list_cost: Decimal,
    contracted_cost: Decimal,
}

/// In which versions a column stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum In {
    Both,
    V1_2,
    V1_4,
}

type Value = fn(&Charge<'_>) -> Cell;

/// The columns: FOCUS's by name, then our own.
const COLUMNS: &[(&str, Kind, In, Value)] = &[
    ("BilledCost", Kind::Decimal, In::Both, |c| {
        Cell::Decimal(c.contracted_cost)
    }),
    ("BillingAccountId", Kind::Text, In::Both, |c| {
        Cell::text(&c.prices.billing.account_id)
    }),
    ("BillingAccountName", Kind::Text, In::Both, |c| {
        Cell::maybe(c.prices.billing.account_name.as_ref())
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
    // Wanted by the validator of a provider with unit prices, although there are no commitments.
    ("CommitmentDiscountStatus", Kind::Text, In::V1_2, |_| {
        Cell::Null
    }),
    ("ConsumedQuantity", Kind::Decimal, In::Both, |c| {
        Cell::Decimal(c.quantity)
    }),
    ("ConsumedUnit", Kind::Text, In::Both, |_| Cell::text(UNIT)),
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
    // No invoice yet; who bills fills it in.
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
    ("PricingUnit", Kind::Text, In::Both, |_| Cell::text(UNIT)),
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
        Cell::text(format!(
            "turnstile://{}/{}/{}",
            c.gpu.node,
            c.sums.tenant.kind.as_str(),
            c.sums.tenant.id
        ))
    }),
    ("ResourceName", Kind::Text, In::Both, |c| {
        Cell::text(&c.sums.tenant.name)
    }),
    ("ResourceType", Kind::Text, In::Both, |_| {
        Cell::text("GPU Share")
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
        Cell::text(c.sku.meter.as_deref().unwrap_or("GPU time"))
    }),
    ("SkuPriceDetails", Kind::Text, In::Both, |c| {
        json(&c.sku.details)
    }),
    ("SkuPriceId", Kind::Text, In::Both, |c| {
        Cell::text(&c.sku.price_id)
    }),
    ("SubAccountId", Kind::Text, In::Both, |c| {
        sub_account(c, |account| account.sub_account_id.as_ref())
    }),
    ("SubAccountName", Kind::Text, In::Both, |c| {
        sub_account(c, |account| account.sub_account_name.as_ref())
    }),
    ("Tags", Kind::Text, In::Both, |c| {
        c.account.map_or(Cell::Null, |account| json(&account.tags))
    }),
    ("x_GpuUuid", Kind::Text, In::Both, |c| {
        Cell::text(&c.gpu.gpu)
    }),
    ("x_GpuWeight", Kind::Integer, In::Both, |c| {
        Cell::Integer(c.sums.weight.into())
    }),
    ("x_HeldSeconds", Kind::Decimal, In::Both, |c| {
        seconds(c.sums.held_ns).map_or(Cell::Null, Cell::Decimal)
    }),
    ("x_NodeId", Kind::Text, In::Both, |c| {
        Cell::text(&c.gpu.node)
    }),
    ("x_UsageEventId", Kind::Text, In::Both, |c| {
        Cell::text(charge_id(c.gpu, c.sums.tenant.id, c.hour).to_string())
    }),
    ("x_WaitSeconds", Kind::Decimal, In::Both, |c| {
        seconds(c.sums.waiting_ns).map_or(Cell::Null, Cell::Decimal)
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

/// The sub-account that the price list names for the tenant, or the tenant's account.
fn sub_account(charge: &Charge<'_>, named: fn(&Account) -> Option<&String>) -> Cell {
    let named = charge.account.and_then(named);
    Cell::maybe(named.or(charge.sums.tenant.account.as_ref()))
}

fn description(charge: &Charge<'_>) -> Cell {
    let kind = match charge.sums.tenant.kind {
        TenantKind::Vm => "VM",
        TenantKind::Program => "program",
    };
    Cell::text(format!(
        "Shared GPU time, {}, {kind} {}",
        charge.gpu.model, charge.sums.tenant.name
    ))
}

/// A flat object, keys in order; none without keys.
fn json(object: &BTreeMap<String, Detail>) -> Cell {
    if object.is_empty() {
        return Cell::Null;
    }
    // PANIC: none; texts, numbers and flags have a JSON each
    serde_json::to_string(object).map_or(Cell::Null, Cell::text)
}

/// Nanoseconds as seconds, exactly.
fn seconds(ns: u128) -> Option<Decimal> {
    let ns = i128::try_from(ns).ok()?;
    Decimal::try_from_i128_with_scale(ns, 9)
        .ok()
        .map(|seconds| seconds.normalize())
}

/// A product without rounding; none where the decimals do not hold it.
fn exact_product(quantity: Decimal, price: Decimal) -> Option<Decimal> {
    let product = quantity.checked_mul(price)?;
    let exact = product.is_zero() == (quantity.is_zero() || price.is_zero())
        && (product.is_zero() || product.scale() == quantity.scale() + price.scale());
    exact.then(|| product.normalize())
}

/// Sums a GPU's windows up, hour by hour: those of one hour are in memory.
pub(super) struct Focus<'a> {
    request: &'a Request,
    version: FocusVersion,
    prices: &'a PriceList,
    table: Box<dyn Table + 'a>,
    under_way: Option<(GpuIdentity, UnixNanos)>,
    sums: BTreeMap<Uuid, Sums>,
    exported: Exported,
}

impl<'a> Focus<'a> {
    pub(super) fn new(
        request: &'a Request,
        version: FocusVersion,
        prices: &'a PriceList,
        table: Box<dyn Table + 'a>,
    ) -> Self {
        Self {
            request,
            version,
            prices,
            table,
            under_way: None,
            sums: BTreeMap::new(),
            exported: Exported::default(),
        }
    }

    fn add(&mut self, record: &TenantRecord) {
        let sums = self.sums.entry(record.tenant.id).or_insert_with(|| Sums {
            tenant: record.tenant.clone(),
            engine_ns: 0,
            waiting_ns: 0,
            held_ns: 0,
            weight: 0,
        });
        sums.engine_ns += u128::from(record.engine_ns.0);
        sums.waiting_ns += u128::from(record.waiting_ns.0);
        sums.held_ns += u128::from(record.held_ns.0);
        sums.weight = record.weight;
    }

    /// Writes the rows of the hour under way.
    fn flush(&mut self) -> Result<(), ExportError> {
        let Some((gpu, hour)) = self.under_way.take() else {
            return Ok(());
        };
        let no_sku = || ExportError::NoSku {
            model: gpu.model.clone(),
        };
        let sku = self.prices.sku(&gpu).ok_or_else(no_sku)?;
        let list_price = sku.list_unit_price.0;
        let contracted_price = sku
            .contracted_unit_price
            .map_or(list_price, |price| price.0);
        for sums in std::mem::take(&mut self.sums).values() {
            let inexact = |price: Decimal| ExportError::Inexact {
                quantity: format!("{} ns", sums.engine_ns),
                price: show_decimal(price),
            };
            let quantity = seconds(sums.engine_ns).ok_or_else(|| inexact(list_price))?;
            let cost = |price| exact_product(quantity, price).ok_or_else(|| inexact(price));
            let charge = Charge {
                gpu: &gpu,
                hour,
                sums,
                prices: self.prices,
                sku,
                account: self.prices.account(&sums.tenant.name),
                quantity,
                list_price,
                contracted_price,
                list_cost: cost(list_price)?,
                contracted_cost: cost(contracted_price)?,
            };
            let chosen = COLUMNS.iter().filter(|column| self.version.has(column.2));
            let cells: Vec<Cell> = chosen.map(|column| column.3(&charge)).collect();
            self.table.row(&cells)?;
            self.exported.rows += 1;
            self.exported.engine_ns += sums.engine_ns;
        }
        Ok(())
    }
}

impl Writer for Focus<'_> {
    fn entry(&mut self, gpu: &GpuIdentity, entry: &Entry) -> Result<(), ExportError> {
        let Body::Window { tenants, .. } = &entry.body else {
            return Ok(());
        };
        // A window belongs to the hour in which it begins.
        let hour = hour_of(entry.stretch.start);
        let same = self
            .under_way
            .as_ref()
            .is_some_and(|(own, at)| own == gpu && *at == hour);
        if !same {
            self.flush()?;
            self.under_way = Some((gpu.clone(), hour));
        }
        for record in tenants {
            if self.request.wants(record.tenant.id, &record.tenant.name) {
                self.add(record);
            }
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Exported, ExportError> {
        self.flush()?;
        self.table.finish()?;
        Ok(self.exported)
    }
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

    #[test]
    fn products_are_exact_or_refused() {
        let product = |a: &str, b: &str| {
            exact_product(a.parse().unwrap(), b.parse().unwrap()).map(show_decimal)
        };
        assert_eq!(product("1512.25", "0.00058").as_deref(), Some("0.877105"));
        assert_eq!(product("0", "0.00058").as_deref(), Some("0.0"));
        assert_eq!(
            product("3600.123456789", "0.000000001").as_deref(),
            Some("0.000003600123456789")
        );
        assert_eq!(product("3600.123456789", "0.00000000000000000001"), None);
        assert_eq!(
            product("79228162514264337593", "79228162514264337593"),
            None
        );
    }
}
