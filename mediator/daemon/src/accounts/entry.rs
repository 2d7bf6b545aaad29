//! One entry of the book: which tenants belong to an account, and the limits of the account.

use std::fmt;
use std::str::FromStr;

use crate::names::{NAME_BYTES_MAX, NAME_RULE};
use serde::{Deserialize, Serialize};
use turnstile_policies::{Cap, TenantParams, Weight};

/// The longest pattern, in bytes: as long as the longest tenant name.
const PATTERN_BYTES_MAX: usize = NAME_BYTES_MAX;

/// The most patterns of one entry.
pub const PATTERNS_MAX: usize = 64;

/// What a tenant may claim inside its account where no limit is set: all of [`Weight`]'s range, as
/// a claim divides nothing but its own account.
const WEIGHT_MAX: Weight = match Weight::new(10_000) {
    Ok(weight) => weight,
    Err(_) => Weight::DEFAULT,
};

/// Terms of an account, and which tenants belong to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Entry {
    /// Tenant names that belong to the account. Without a pattern, `user` alone decides.
    #[serde(rename = "match")]
    pub patterns: Vec<Pattern>,
    /// Unix user, by name or number: its tenants belong to the account. With `match`, both have to
    /// hold.
    pub user: Option<String>,
    /// Share of the account relative to other accounts.
    pub weight: Weight,
    /// The largest weight that a tenant of the account may claim.
    pub weight_max: Weight,
    /// Upper limit of engine time of all its tenants together.
    pub cap: Option<Cap>,
    /// GPU memory that its tenants may claim together, in bytes.
    pub memory_max_bytes: Option<u64>,
    /// Tenants that it may have connected at a time.
    pub tenants_max: Option<u32>,
}

/// A tenant name in which each `*` stands for any text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern(String);

/// Why a text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} matches no tenant name; a pattern has {NAME_RULE} and *")]
pub struct PatternError(String);

impl Default for Entry {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Entry {
    /// Terms of an account of which nothing is set.
    pub(crate) const DEFAULT: Self = Self {
        patterns: Vec::new(),
        user: None,
        weight: Weight::DEFAULT,
        weight_max: WEIGHT_MAX,
        cap: None,
        memory_max_bytes: None,
        tenants_max: None,
    };

    /// What the policy gets of it.
    pub const fn params(&self) -> TenantParams {
        TenantParams {
            weight: self.weight,
            cap: self.cap,
        }
    }
}

impl Pattern {
    /// Whether a tenant name matches, in time linear in the name for each `*`.
    pub fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        // PANIC: none; a split has at least one part
        let Some(mut rest) = name.strip_prefix(parts.next().unwrap_or("")) else {
            return false;
        };
        let Some(last) = parts.next_back() else {
            return rest.is_empty();
        };
        for part in parts {
            match rest.find(part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        rest.ends_with(last)
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let permitted = |c: char| c.is_ascii_alphanumeric() || "._+-*".contains(c);
        if (1..=PATTERN_BYTES_MAX).contains(&text.len()) && text.chars().all(permitted) {
            return Ok(Self(text.to_owned()));
        }
        Err(PatternError(text.chars().take(PATTERN_BYTES_MAX).collect()))
    }
}

impl TryFrom<String> for Pattern {
    type Error = PatternError;

    fn try_from(text: String) -> Result<Self, PatternError> {
        text.parse()
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.0
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
