//! A bill in FOCUS: one row for each resource, weight, metadata, GPU, UTC hour and priced quantity.
//! Time without a record is a row of the GPU, for nothing.
//!
//! Nothing is rounded: quantities are nanoseconds and bytes with the point moved by nine digits,
//! costs are exact products or an error. SOURCE: focus.finops.org, versions 1.2 (ratified
//! 2025-05-29) and 1.4 (2026-06-04). `docs/LEDGER.md` lists what is left out.

mod columns;

pub use columns::columns;

use super::calendar::hour_of;
use super::prices::{PriceList, Sku, Unit};
use super::table::{Table, show_decimal};
use super::unknown::Unknown;
use super::{ExportError, Exported, Request, Writer};
use crate::ids::resource_id;
use crate::metadata::Metadata;
use crate::record::{Entry, GpuIdentity, TenantIdentity, TenantKind, TenantRecord, UnixNanos};
use columns::Charge;
use rust_decimal::Decimal;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

/// Version of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FocusVersion {
    /// 1.2, which the official validator supports.
    V1_2,
    /// 1.4, the newest.
    V1_4,
}

/// What one resource used of one GPU in one hour under one weight and with the same metadata.
#[derive(Clone, Debug)]
struct Sums {
    tenant: TenantIdentity,
    engine_ns: u128,
    /// None where the GPU does not count them.
    copy_bytes: Option<u128>,
    waiting_ns: u128,
    held_ns: u128,
    weight: u32,
    /// Time of the GPU without a record, and its causes. The other sums are empty then.
    unknown: Option<(u128, BTreeSet<&'static str>)>,
}

impl Sums {
    /// Of a tenant, or of a GPU for time without a record.
    const fn of(tenant: TenantIdentity, weight: u32) -> Self {
        Self {
            tenant,
            engine_ns: 0,
            copy_bytes: None,
            waiting_ns: 0,
            held_ns: 0,
            weight,
            unknown: None,
        }
    }
}

/// A number of billionths, exactly.
fn billionths(count: u128) -> Option<Decimal> {
    let count = i128::try_from(count).ok()?;
    let whole = Decimal::try_from_i128_with_scale(count, 9).ok()?;
    Some(whole.normalize())
}

/// A product without rounding; none where decimals cannot represent it.
fn exact_product(quantity: Decimal, price: Decimal) -> Option<Decimal> {
    let product = quantity.checked_mul(price)?;
    let exact = product.is_zero() == (quantity.is_zero() || price.is_zero())
        && (product.is_zero() || product.scale() == quantity.scale() + price.scale());
    exact.then(|| product.normalize())
}

/// Sums up a GPU's windows hour by hour; the sums of one hour are in memory.
pub(super) struct Focus<'a> {
    request: &'a Request,
    version: FocusVersion,
    prices: &'a PriceList,
    table: Box<dyn Table + 'a>,
    under_way: Option<(GpuIdentity, UnixNanos)>,
    /// By resource, weight and metadata.
    sums: BTreeMap<(Uuid, u32, Arc<Metadata>), Sums>,
    /// Time of the hour without a record, and its causes.
    unknown: (u128, BTreeSet<&'static str>),
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
            unknown: Default::default(),
            exported: Exported::default(),
        }
    }

    fn add(&mut self, gpu: &GpuIdentity, record: &TenantRecord) {
        let resource = resource_id(&gpu.node, &record.tenant);
        let weight = record.weight;
        let made = || Sums::of(record.tenant.clone(), weight);
        let key = (resource, weight, record.tenant.metadata.clone());
        let sums = self.sums.entry(key).or_insert_with(made);
        sums.engine_ns += u128::from(record.engine_ns.0);
        if let Some(bytes) = record.copy_bytes {
            *sums.copy_bytes.get_or_insert_default() += u128::from(bytes);
        }
        sums.waiting_ns += u128::from(record.waiting_ns.0);
        sums.held_ns += u128::from(record.held_ns.0);
    }

    /// Goes on to an hour of a GPU, which may be the present one.
    fn enter(&mut self, gpu: &GpuIdentity, hour: UnixNanos) -> Result<(), ExportError> {
        let now = self.under_way.as_ref();
        if now.is_none_or(|(own, at)| own != gpu || *at != hour) {
            self.flush()?;
            self.under_way = Some((gpu.clone(), hour));
        }
        Ok(())
    }

    /// Writes the rows of the current hour.
    fn flush(&mut self) -> Result<(), ExportError> {
        let Some((gpu, hour)) = self.under_way.take() else {
            return Ok(());
        };
        let no_sku = || ExportError::NoSku {
            model: gpu.model.clone(),
        };
        let priced = Unit::ALL.map(|unit| (unit, self.prices.sku(&gpu, unit)));
        let (unknown_ns, causes) = std::mem::take(&mut self.unknown);
        if unknown_ns > 0 {
            let sku = priced[0].1.ok_or_else(no_sku)?;
            let identity = TenantIdentity {
                id: Uuid::nil(),
                name: gpu.gpu.clone(),
                kind: TenantKind::Untracked,
                account: None,
                metadata: Arc::default(),
            };
            let sums = Sums {
                unknown: Some((unknown_ns, causes)),
                ..Sums::of(identity, 0)
            };
            self.charge(&gpu, hour, &sums, 0, sku)?;
            self.exported.unknown_ns += unknown_ns;
        }
        for sums in std::mem::take(&mut self.sums).values() {
            self.exported.engine_ns += sums.engine_ns;
            for (unit, sku) in priced {
                let (count, sku) = match (unit, sums.copy_bytes, sku) {
                    (Unit::Seconds, _, None) => return Err(no_sku()),
                    (Unit::Seconds, _, Some(sku)) => (sums.engine_ns, sku),
                    (Unit::Gigabytes, Some(bytes), Some(sku)) => (bytes, sku),
                    // Not counted, or not billed.
                    (Unit::Gigabytes, ..) => continue,
                };
                self.charge(&gpu, hour, sums, count, sku)?;
            }
        }
        Ok(())
    }

    /// Writes a row: `count` billionths of the SKU's unit.
    fn charge(
        &mut self,
        gpu: &GpuIdentity,
        hour: UnixNanos,
        sums: &Sums,
        count: u128,
        sku: &Sku,
    ) -> Result<(), ExportError> {
        let list_price = sku.list_unit_price.0;
        let contracted = sku.contracted_unit_price;
        let contracted_price = contracted.map_or(list_price, |price| price.0);
        let inexact = |price: Decimal| ExportError::Inexact {
            quantity: format!("{count} {}", sku.unit.counted()),
            price: show_decimal(price),
        };
        let quantity = billionths(count).ok_or_else(|| inexact(list_price))?;
        let cost = |price| exact_product(quantity, price).ok_or_else(|| inexact(price));
        let charge = Charge {
            gpu,
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
        self.table.row(&charge.cells(self.version))?;
        self.exported.rows += 1;
        Ok(())
    }
}

impl Writer for Focus<'_> {
    fn unknown(&mut self, gpu: &GpuIdentity, unknown: Unknown<'_>) -> Result<(), ExportError> {
        for (hour, unknown_ns) in unknown.by_hour() {
            self.enter(gpu, hour)?;
            self.unknown.0 += unknown_ns;
            self.unknown.1.insert(unknown.cause);
        }
        Ok(())
    }

    fn window(
        &mut self,
        gpu: &GpuIdentity,
        entry: &Entry,
        tenants: &[TenantRecord],
    ) -> Result<(), ExportError> {
        // A window belongs to the hour in which it begins.
        self.enter(gpu, hour_of(entry.stretch.start))?;
        let billed = |record: &&TenantRecord| record.tenant.kind != TenantKind::Untracked;
        for record in tenants.iter().filter(billed) {
            if self.request.wants(record.tenant.id, &record.tenant.name) {
                self.add(gpu, record);
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
