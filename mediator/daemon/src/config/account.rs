//! An account as the configuration names it: which tenants belong to it, and its limits.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use turnstile_accounting::Nanos;
use turnstile_policies::{Cap, Weight};

use super::{Config, FrontVm};
use crate::accounts::{Entry, PATTERNS_MAX, Pattern};
use crate::{AccountsConfig, NAME_RULE, is_tenant_name};

/// The most accounts of a configuration.
const ACCOUNTS_MAX: usize = 256;

const PERIOD_MS: std::ops::RangeInclusive<u64> =
    Cap::PERIOD_MIN.0 / 1_000_000..=Cap::PERIOD_MAX.0 / 1_000_000;

/// An account; the first one that matches a tenant holds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct AccountSection {
    /// Its name: 1 to 253 of A-Z a-z 0-9 . _ + -. `uid-1000` is the own account of user 1000.
    pub name: String,
    /// Tenant names that belong to it; `*` stands for any text.
    #[serde(rename = "match")]
    pub patterns: Vec<Pattern>,
    /// Unix user, by name or number: its tenants belong to it. With `match`, both have to hold.
    pub user: Option<String>,
    /// Share relative to other accounts, 1 to 10000.
    pub weight: Weight,
    /// The largest weight that one of its tenants may claim.
    pub weight_max: Weight,
    /// The most of the engine that its tenants get together, as in "50%"; unset: no limit.
    pub quota: Option<String>,
    /// Length of the periods that the quota is counted in, in milliseconds.
    pub period_ms: u64,
    /// GPU memory that its tenants may claim together, in MiB; unset: no limit.
    pub memory_max_mib: Option<u64>,
    /// Tenants that it may have connected at a time; unset: no limit.
    pub tenants_max: Option<u32>,
}

impl Default for AccountSection {
    fn default() -> Self {
        let entry = Entry::default();
        Self {
            name: String::new(),
            patterns: entry.patterns,
            user: None,
            weight: entry.weight,
            weight_max: entry.weight_max,
            quota: None,
            period_ms: 100,
            memory_max_mib: None,
            tenants_max: None,
        }
    }
}

impl AccountSection {
    /// The entry for the book of accounts.
    ///
    /// # Errors
    /// What cannot be.
    pub fn entry(&self) -> Result<Entry, String> {
        if !is_tenant_name(&self.name) {
            return Err(format!("a name has {NAME_RULE}"));
        }
        if self.patterns.len() > PATTERNS_MAX {
            return Err(format!("match has at most {PATTERNS_MAX} patterns"));
        }
        let bytes = |mib: u64| {
            mib.checked_mul(1 << 20)
                .ok_or("memory_max_mib is too large")
        };
        Ok(Entry {
            patterns: self.patterns.clone(),
            user: self.user.clone(),
            weight: self.weight,
            weight_max: self.weight_max,
            cap: self.cap()?,
            memory_max_bytes: self.memory_max_mib.map(bytes).transpose()?,
            tenants_max: self.tenants_max,
        })
    }

    fn cap(&self) -> Result<Option<Cap>, String> {
        if !PERIOD_MS.contains(&self.period_ms) {
            let (least, most) = (PERIOD_MS.start(), PERIOD_MS.end());
            return Err(format!("period_ms is {least} to {most}"));
        }
        let Some(text) = &self.quota else {
            return Ok(None);
        };
        let percent = text.strip_suffix('%').and_then(|text| text.parse().ok());
        let percent = percent.filter(|percent: &f64| (0.0..=100.0).contains(percent));
        let percent = percent.ok_or_else(|| {
            format!("quota = {text:?} is no part of the engine; one is written as in \"50%\"")
        })?;
        let period_ns = self.period_ms * 1_000_000;
        // CAST: at most a second's nanoseconds
        let quota_ns = (period_ns as f64 * percent / 100.0).round() as u64;
        if quota_ns < Cap::PERIOD_MIN.0 {
            return Err(format!("quota = {text:?} is less than 1 ms in a period"));
        }
        let cap = Cap::new(Nanos(quota_ns), Nanos(period_ns));
        cap.map(Some).map_err(|error| error.to_string())
    }
}

/// Accounts, and which tenants belong to them. An account with a problem is left out.
impl From<&Config> for AccountsConfig {
    fn from(config: &Config) -> Self {
        let entry = |account: &AccountSection| Some((account.name.clone(), account.entry().ok()?));
        let front = |vm: &FrontVm| Some((vm.name.clone(), vm.account.clone()?));
        Self {
            entries: config.account.iter().filter_map(entry).collect(),
            fronts: config.vfio_user.vms.iter().filter_map(front).collect(),
            ..Self::default()
        }
    }
}

/// What cannot be in the accounts of a configuration, one text each.
pub(super) fn problems(accounts: &[AccountSection]) -> Vec<String> {
    let wrong =
        |account: &AccountSection| Some(format!("{:?}: {}", account.name, account.entry().err()?));
    let mut found: Vec<String> = accounts.iter().filter_map(wrong).collect();
    let mut names = BTreeSet::new();
    let twice = accounts.iter().find(|account| !names.insert(&account.name));
    found.extend(twice.map(|account| format!("{} is there twice", account.name)));
    let many = accounts.len() > ACCOUNTS_MAX;
    found.extend(many.then(|| format!("there are more than {ACCOUNTS_MAX}")));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(quota: &str, period_ms: u64) -> Result<Option<Cap>, String> {
        let section = AccountSection {
            name: "a".into(),
            quota: Some(quota.into()),
            period_ms,
            ..AccountSection::default()
        };
        section.entry().map(|entry| entry.cap)
    }

    #[test]
    fn quota_is_a_part_of_its_period() {
        let cap = Cap::new(Nanos::from_ms(25), Nanos::from_ms(50)).unwrap();
        assert_eq!(of("50%", 50), Ok(Some(cap)));
        for (quota, period_ms) in [("50", 50), ("101%", 50), ("0%", 50), ("1%", 50), ("50%", 0)] {
            assert!(of(quota, period_ms).is_err(), "{quota} {period_ms}");
        }
    }

    #[test]
    fn section_without_limits_is_the_default_entry() {
        let section = AccountSection {
            name: "uid-7".into(),
            ..AccountSection::default()
        };
        assert_eq!(section.entry(), Ok(Entry::default()));
        assert!(AccountSection::default().entry().is_err(), "no name");
    }
}
