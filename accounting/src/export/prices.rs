//! The price list: prices and names from the operator, which the ledger does not have.
//!
//! Prices are strings, as most parsers read a number in TOML or JSON as a binary fraction. A list
//! is checked as a whole before it is used for an export. `docs/LEDGER.md` has an example.

use crate::record::GpuIdentity;
use rust_decimal::Decimal;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a price list is not usable.
#[derive(Debug, Error)]
pub enum PriceListError {
    /// The file cannot be read.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Not TOML, or not a price list.
    #[error("Not a price list in TOML")]
    Toml(#[source] Box<toml::de::Error>),
    /// Not JSON, or not a price list.
    #[error("Not a price list in JSON")]
    Json(#[from] serde_json::Error),
    /// A value that FOCUS does not permit.
    #[error("{what} {value:?} {rule}")]
    Value {
        /// The name of the value.
        what: &'static str,
        /// The value in the list.
        value: String,
        /// The rule that it breaks.
        rule: &'static str,
    },
}

/// An exact price, not below zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Price(pub(super) Decimal);

/// The part of a bill that the ledger does not have.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceList {
    pub(super) billing: Billing,
    #[serde(rename = "sku")]
    pub(super) skus: Vec<Sku>,
    #[serde(default, rename = "tenant")]
    pub(super) tenants: Vec<Account>,
}

/// The parties of the bill, and its currency.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Billing {
    pub(super) account_id: String,
    pub(super) account_name: Option<String>,
    pub(super) currency: String,
    pub(super) provider: String,
    pub(super) publisher: Option<String>,
    pub(super) host_provider: Option<String>,
    pub(super) invoice_issuer: Option<String>,
    pub(super) service_name: String,
    pub(super) region_id: Option<String>,
    pub(super) region_name: Option<String>,
}

/// Price of one unit of a quantity on a model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sku {
    pub(super) id: String,
    pub(super) price_id: String,
    pub(super) gpu_model: String,
    pub(super) meter: Option<String>,
    pub(super) unit: Unit,
    pub(super) list_unit_price: Price,
    pub(super) contracted_unit_price: Option<Price>,
    #[serde(default)]
    pub(super) details: BTreeMap<String, Detail>,
}

/// A value of a SKU's details; FOCUS requires them to be flat.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(untagged)]
pub(super) enum Detail {
    Flag(bool),
    Number(i64),
    Text(String),
}

/// The sub-account and the tags of a tenant, by the tenant's name.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Account {
    pub(super) name: String,
    pub(super) sub_account_id: Option<String>,
    pub(super) sub_account_name: Option<String>,
    #[serde(default)]
    pub(super) tags: BTreeMap<String, Detail>,
}

impl TryFrom<String> for Price {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let plain = text
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.');
        match Decimal::from_str_exact(&text) {
            Ok(price) if plain => Ok(Self(price.normalize())),
            _ => Err(format!(
                "{text:?} is not a price: digits and one point, as in \"0.00058\""
            )),
        }
    }
}

/// A quantity that is priced and billed, by its unit in FOCUS. The ledger counts in an exact part
/// of the unit, a billionth, so that nothing is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(super) enum Unit {
    /// Time on the compute engines, counted in nanoseconds.
    #[serde(rename = "GPU-Seconds")]
    Seconds,
    /// Data that copy engines moved, counted in bytes.
    #[serde(rename = "GB")]
    Gigabytes,
}

impl Unit {
    /// All of them, in the order of a bill's rows.
    pub(super) const ALL: [Self; 2] = [Self::Seconds, Self::Gigabytes];

    /// FOCUS's name of the unit.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Seconds => "GPU-Seconds",
            Self::Gigabytes => "GB",
        }
    }

    /// The quantity's name where the price list has none.
    pub(super) const fn meter(self) -> &'static str {
        match self {
            Self::Seconds => "GPU time",
            Self::Gigabytes => "GPU copies",
        }
    }

    /// The billionth of the unit, in which the ledger counts.
    pub(super) const fn counted(self) -> &'static str {
        match self {
            Self::Seconds => "ns",
            Self::Gigabytes => "bytes",
        }
    }
}

impl PriceList {
    /// Reads a file: JSON if its extension is `json`, else TOML.
    ///
    /// # Errors
    /// If it cannot be read, is no price list, or has a value that FOCUS does not permit.
    pub fn read(path: &Path) -> Result<Self, PriceListError> {
        let text = std::fs::read_to_string(path).map_err(|source| PriceListError::Read {
            path: path.to_owned(),
            source,
        })?;
        if path.extension().is_some_and(|ending| ending == "json") {
            Self::from_json(&text)
        } else {
            Self::from_toml(&text)
        }
    }

    /// The sub-accounts by the tenants' names.
    pub fn sub_accounts(&self) -> BTreeMap<String, String> {
        let named = |tenant: &Account| Some((tenant.name.clone(), tenant.sub_account_id.clone()?));
        self.tenants.iter().filter_map(named).collect()
    }

    /// Reads a list in TOML.
    ///
    /// # Errors
    /// If it is no price list, or has a value that FOCUS does not permit.
    pub fn from_toml(text: &str) -> Result<Self, PriceListError> {
        let list: Self =
            toml::from_str(text).map_err(|error| PriceListError::Toml(Box::new(error)))?;
        list.checked()
    }

    /// Reads a list in JSON.
    ///
    /// # Errors
    /// If it is no price list, or has a value that FOCUS does not permit.
    pub fn from_json(text: &str) -> Result<Self, PriceListError> {
        let list: Self = serde_json::from_str(text)?;
        list.checked()
    }

    fn checked(self) -> Result<Self, PriceListError> {
        let wrong = |what, value: &str, rule| {
            Err(PriceListError::Value {
                what,
                value: value.chars().take(80).collect(),
                rule,
            })
        };
        let billing = &self.billing;
        if billing.currency.len() != 3
            || !billing
                .currency
                .bytes()
                .all(|byte| byte.is_ascii_uppercase())
        {
            return wrong(
                "billing.currency",
                &billing.currency,
                "has to be three capital letters (ISO 4217)",
            );
        }
        for (what, text) in [
            ("billing.account_id", Some(&billing.account_id)),
            ("billing.account_name", billing.account_name.as_ref()),
            ("billing.provider", Some(&billing.provider)),
            ("billing.publisher", billing.publisher.as_ref()),
            ("billing.host_provider", billing.host_provider.as_ref()),
            ("billing.invoice_issuer", billing.invoice_issuer.as_ref()),
            ("billing.service_name", Some(&billing.service_name)),
            ("billing.region_id", billing.region_id.as_ref()),
            ("billing.region_name", billing.region_name.as_ref()),
        ] {
            if text.is_some_and(|text| text.trim().is_empty()) {
                return wrong(what, "", "has to say something, or be left out");
            }
        }
        if billing.region_id.is_some() != billing.region_name.is_some() {
            let region = billing.region_id.as_deref().unwrap_or_default();
            return wrong(
                "billing.region_id",
                region,
                "needs a region_name, and that one it",
            );
        }
        if self.skus.is_empty() {
            return wrong("sku", "", "has to be there at least once");
        }
        let (mut models, mut price_ids) = (BTreeSet::new(), BTreeMap::new());
        for sku in &self.skus {
            for (what, text) in [
                ("sku.id", &sku.id),
                ("sku.price_id", &sku.price_id),
                ("sku.gpu_model", &sku.gpu_model),
            ] {
                if text.trim().is_empty() {
                    return wrong(what, text, "has to say something");
                }
            }
            if !models.insert((&sku.gpu_model, sku.unit)) {
                return wrong("sku.gpu_model", &sku.gpu_model, "has a SKU of this unit");
            }
            if price_ids
                .insert(&sku.price_id, &sku.id)
                .is_some_and(|before| *before != sku.id)
            {
                return wrong("sku.price_id", &sku.price_id, "belongs to one SKU alone");
            }
            let defined = ["GpuCount", "InstanceType", "InstanceSeries"];
            for key in sku.details.keys() {
                if !defined.contains(&key.as_str()) && !key.starts_with("x_") {
                    return wrong(
                        "sku.details key",
                        key,
                        "is not one of FOCUS's, so it has to begin with x_",
                    );
                }
            }
        }
        let mut names = BTreeSet::new();
        for account in &self.tenants {
            if account.name.trim().is_empty() || !names.insert(&account.name) {
                return wrong("tenant.name", &account.name, "has to be there once");
            }
            if account.sub_account_id.is_some() != account.sub_account_name.is_some() {
                return wrong(
                    "tenant.sub_account_id",
                    &account.name,
                    "needs a sub_account_name, and that one it",
                );
            }
            let empty =
                |text: &Option<String>| text.as_ref().is_some_and(|text| text.trim().is_empty());
            if empty(&account.sub_account_id) || empty(&account.sub_account_name) {
                return wrong(
                    "tenant.sub_account_id",
                    &account.name,
                    "has to say something, or be left out",
                );
            }
        }
        Ok(self)
    }

    /// A GPU's SKU of this unit: that of its model, or the one for `*`.
    pub(super) fn sku(&self, gpu: &GpuIdentity, unit: Unit) -> Option<&Sku> {
        let has = |sku: &Sku, model: &str| sku.unit == unit && sku.gpu_model == model;
        let of = |model: &str| self.skus.iter().find(|sku| has(sku, model));
        of(&gpu.model).or_else(|| of("*"))
    }

    /// The list's entry for a tenant.
    pub(super) fn account(&self, tenant: &str) -> Option<&Account> {
        self.tenants.iter().find(|account| account.name == tenant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        [billing]
        account_id = "acct-0042"
        currency = "USD"
        provider = "Example Cloud"
        service_name = "Turnstile Shared GPU"
        [[sku]]
        id = "gpu"
        price_id = "gpu-std"
        gpu_model = "*"
        unit = "GPU-Seconds"
        list_unit_price = "0.00058"
    "#;

    #[test]
    fn a_list_is_read_from_either_language() {
        let list = PriceList::from_toml(GOOD).unwrap();
        assert_eq!(list.skus[0].list_unit_price.0.to_string(), "0.00058");
        let json = r#"{"billing": {"account_id": "a", "currency": "EUR", "provider": "p", "service_name": "s"},
            "sku": [{"id": "i", "price_id": "p", "gpu_model": "H200", "unit": "GPU-Seconds", "list_unit_price": "1"}]}"#;
        assert_eq!(PriceList::from_json(json).unwrap().billing.currency, "EUR");
    }

    #[test]
    fn list_in_a_file_is_of_the_language_that_its_ending_names() {
        let folder = tempfile::tempdir().unwrap();
        let json = r#"{"billing": {"account_id": "a", "currency": "EUR", "provider": "p", "service_name": "s"},
            "sku": [{"id": "i", "price_id": "p", "gpu_model": "H200", "unit": "GB", "list_unit_price": "1"}]}"#;
        for (name, text) in [("list.toml", GOOD), ("list", GOOD), ("list.json", json)] {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            assert_eq!(PriceList::read(&path).unwrap().skus.len(), 1, "{name}");
        }
        let units = [Unit::Seconds, Unit::Gigabytes].map(Unit::counted);
        assert_eq!(units, ["ns", "bytes"]);
    }

    #[test]
    fn tenant_of_a_list_has_its_sub_account_or_none() {
        let tenant = |name: &str, id: &str, title: &str| {
            let sub = format!("sub_account_id = \"{id}\"\nsub_account_name = \"{title}\"");
            format!("{GOOD}\n[[tenant]]\nname = \"{name}\"\n{sub}\n")
        };
        let both = tenant("vm-a", "proj-9", "Project 9") + "[[tenant]]\nname = \"vm-b\"\n";
        let list = PriceList::from_toml(&both).unwrap();
        let named = BTreeMap::from([("vm-a".to_owned(), "proj-9".to_owned())]);
        assert_eq!(list.sub_accounts(), named);
        let account = |name| list.account(name).map(|account| account.name.clone());
        assert_eq!(account("vm-b").as_deref(), Some("vm-b"));
        assert_eq!(account("vm-c"), None);
        for bad in [
            tenant("", "proj-9", "Project 9"),
            tenant("vm-a", "", "Project 9"),
            tenant("vm-a", "proj-9", " "),
            both.clone() + "[[tenant]]\nname = \"vm-b\"\n",
        ] {
            assert!(PriceList::from_toml(&bad).is_err(), "{bad}");
        }
        // One price is of one SKU.
        let sku = GOOD.split_once("[[sku]]").unwrap().1;
        let other = sku
            .replace("GPU-Seconds", "GB")
            .replace("\"gpu\"", "\"other\"");
        assert!(PriceList::from_toml(&format!("{GOOD}\n[[sku]]{other}")).is_err());
    }

    #[test]
    fn what_would_make_a_bad_bill_is_refused() {
        for (good, bad) in [
            ("\"USD\"", "\"usd\""),
            ("\"USD\"", "\"US\""),
            ("\"0.00058\"", "0.00058"),
            ("\"0.00058\"", "\"-0.1\""),
            ("\"0.00058\"", "\"1e-3\""),
            ("\"0.00058\"", "\"\""),
            ("\"0.00058\"", "\"0.00000000000000000000000000000000001\""),
            ("GPU-Seconds", "GPU-Hours"),
            ("GPU-Seconds", "GiB"),
            ("\"acct-0042\"", "\"\""),
            ("\"gpu-std\"", "\" \""),
            ("currency =", "curency ="),
            ("[[sku]]", "[[sku]]\ndetails = { Color = \"red\" }"),
            ("[billing]", "[billing]\nregion_id = \"eu\""),
        ] {
            assert!(GOOD.contains(good));
            assert!(
                PriceList::from_toml(&GOOD.replace(good, bad)).is_err(),
                "{bad}"
            );
        }
        let sku = GOOD.split_once("[[sku]]").unwrap().1;
        let copies = sku
            .replace("GPU-Seconds", "GB")
            .replace("gpu-std", "copies");
        let both = format!("{GOOD}\n[[sku]]{copies}");
        assert_eq!(PriceList::from_toml(&both).unwrap().skus.len(), 2);
        let twice = format!("{both}\n[[sku]]{copies}");
        assert!(PriceList::from_toml(&twice).is_err());
        let half = format!("{GOOD}\n[[tenant]]\nname = \"vm-a\"\nsub_account_id = \"p\"");
        assert!(PriceList::from_toml(&half).is_err());
    }
}
