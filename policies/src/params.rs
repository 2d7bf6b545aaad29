//! Parameters that an operator may set per tenant while it runs.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use turnstile_accounting::{AccountId, Nanos};

/// A share relative to the others' shares, as in cgroup `cpu.weight`: 1 to 10,000, 100 by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Weight(u32);

/// An upper limit, as in cgroup `cpu.max`: at most `quota` of engine time in each `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "RawCap")]
pub struct Cap {
    quota_ns: Nanos,
    period_ns: Nanos,
}

/// A cap before its values are checked.
#[derive(Deserialize)]
struct RawCap {
    quota_ns: Nanos,
    period_ns: Nanos,
}

/// The parameters of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantParams {
    /// Its share relative to others.
    pub weight: Weight,
    /// Its upper limit; `None` is `max`.
    pub cap: Option<Cap>,
}

/// The account and the name of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership<'a> {
    /// Its account.
    pub account: AccountId,
    /// Its name within the account: virtual time is kept under it when the tenant leaves.
    pub name: &'a str,
}

/// Why a parameter is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ParamsError {
    /// The weight is out of range.
    #[error("Weight {0} is not within 1 and 10000")]
    Weight(u32),
    /// The quota or the period is zero. A tenant that may never run has to be removed instead.
    #[error("Cap of {quota_ns} in {period_ns}: both have to be positive")]
    Cap {
        /// The quota that was passed.
        quota_ns: Nanos,
        /// The period that was passed.
        period_ns: Nanos,
    },
}

impl Weight {
    /// The default weight.
    pub const DEFAULT: Self = Self(100);

    /// The largest weight.
    pub const MAX: u32 = 10_000;

    /// A weight from 1 to [`Self::MAX`].
    pub const fn new(weight: u32) -> Result<Self, ParamsError> {
        match weight {
            1..=Self::MAX => Ok(Self(weight)),
            _ => Err(ParamsError::Weight(weight)),
        }
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl TryFrom<u32> for Weight {
    type Error = ParamsError;
    fn try_from(weight: u32) -> Result<Self, ParamsError> {
        Self::new(weight)
    }
}

impl From<Weight> for u32 {
    fn from(weight: Weight) -> Self {
        weight.0
    }
}

impl Cap {
    /// Shortest period, and least quota, that an operator may set.
    pub const PERIOD_MIN: Nanos = Nanos::from_ms(1);
    /// Longest period that an operator may set.
    pub const PERIOD_MAX: Nanos = Nanos::from_ms(1_000);

    /// At most `quota` in each `period`.
    pub const fn new(quota_ns: Nanos, period_ns: Nanos) -> Result<Self, ParamsError> {
        if quota_ns.0 == 0 || period_ns.0 == 0 {
            return Err(ParamsError::Cap {
                quota_ns,
                period_ns,
            });
        }
        Ok(Self {
            quota_ns,
            period_ns,
        })
    }

    /// Engine time per period.
    pub const fn quota_ns(self) -> Nanos {
        self.quota_ns
    }

    /// Length of the period.
    pub const fn period_ns(self) -> Nanos {
        self.period_ns
    }
}

impl TryFrom<RawCap> for Cap {
    type Error = ParamsError;
    fn try_from(raw: RawCap) -> Result<Self, ParamsError> {
        Self::new(raw.quota_ns, raw.period_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_weights_is_that_of_cgroups() {
        assert_eq!(Weight::new(0), Err(ParamsError::Weight(0)));
        assert_eq!(Weight::new(10_001), Err(ParamsError::Weight(10_001)));
        assert!(Weight::new(1).is_ok() && Weight::new(10_000).is_ok());
    }

    #[test]
    fn a_cap_of_nothing_is_refused() {
        assert!(Cap::new(Nanos(0), Nanos(1)).is_err());
        assert!(Cap::new(Nanos(1), Nanos(0)).is_err());
    }

    #[test]
    fn parameters_are_read_as_they_are_written_and_checked() {
        assert_eq!(Weight::default().get(), 100);
        assert_eq!(Weight::try_from(7).map(u32::from), Ok(7));
        assert!(Weight::try_from(0).is_err());
        let raw = |quota, period| RawCap {
            quota_ns: Nanos(quota),
            period_ns: Nanos(period),
        };
        assert_eq!(Cap::try_from(raw(1, 2)), Cap::new(Nanos(1), Nanos(2)));
        assert!(Cap::try_from(raw(0, 2)).is_err());
    }
}
