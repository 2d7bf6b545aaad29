//! An operator's settings of a tenant, by its name. They stay when the tenant leaves, and apply
//! when it is back.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use turnstile_accounting::Metadata;
use turnstile_policies::{Cap, POLICIES, PolicyRow, TenantParams, Weight, policy_by_name};
use utoipa::ToSchema;

use crate::memory::{Entitlement, EntitlementError};

/// Tenants of which something may be set, connected or not.
pub(crate) const NAMES_MAX: usize = 4_096;

/// Settings of one tenant; a field that is not set is as the tenant brought it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Its share relative to others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<Weight>,
    /// Its upper limit of engine time; none is `max`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap: Option<Cap>,
    /// It has a latency target: slices of its neighbours are short while it is owed residency.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub latency_target: bool,
    /// Its turns on its GPUs coincide.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gang: bool,
    /// Its GPU memory.
    #[serde(default)]
    pub memory: MemoryLimits,
    /// Instance id, project and labels; they come before what it brings.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub metadata: Arc<Metadata>,
}

/// Limits of GPU memory, in the words of control groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MemoryLimits {
    /// Bytes that are never taken from it.
    #[schema(maximum = 1_125_899_906_842_624_u64)]
    pub min_bytes: u64,
    /// Bytes above which its memory is taken first; none is no such bound.
    #[schema(maximum = 1_125_899_906_842_624_u64)]
    pub high_bytes: Option<u64>,
    /// Bytes that it may allocate; none is what it brought.
    #[schema(maximum = 1_125_899_906_842_624_u64)]
    pub max_bytes: Option<u64>,
}

/// What a tenant brought; in force where nothing was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Brought {
    pub(crate) weight: Weight,
    /// GPU memory that it may own, as far as it moves; zero for a program of which none does.
    pub(crate) memory_bytes: u64,
    /// Bytes of it that are never taken, and bytes above which it is taken first.
    pub(crate) min_bytes: u64,
    pub(crate) high_bytes: Option<u64>,
}

/// Why settings are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The policy has no such thing.
    #[error("The policy {policy} has no {what}; these have: {others}")]
    Policy {
        /// The policy.
        policy: String,
        /// Weights, caps, latency targets, or gangs.
        what: &'static str,
        /// Policies that have it.
        others: String,
    },
    /// The GPU's memory does not move.
    #[error("Memory of this GPU does not move, so memory.min and memory.high mean nothing here")]
    Immovable,
    /// memory.max cannot be enforced.
    #[error("This GPU does not tell how much memory a tenant has, so memory.max cannot be set")]
    UnknownHeld,
    /// The limits do not fit.
    #[error(transparent)]
    Memory(#[from] EntitlementError),
    /// Too many names.
    #[error("Something is set of {NAMES_MAX} tenants, which is the limit; forget some")]
    TooMany,
}

impl MemoryLimits {
    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The entitlement of a tenant that brought `brought`; limits above it are cut to it.
    pub(crate) fn entitlement(&self, brought: Brought, weight: Weight) -> Entitlement {
        let max_bytes = self
            .max_bytes
            .map_or(brought.memory_bytes, |max| max.min(brought.memory_bytes));
        let high_bytes = self.high_bytes.or(brought.high_bytes);
        let high_bytes = high_bytes.map_or(max_bytes, |high| high.min(max_bytes));
        let min_bytes = if self.min_bytes > 0 {
            self.min_bytes
        } else {
            brought.min_bytes
        };
        Entitlement {
            weight,
            min_bytes: min_bytes.min(high_bytes),
            high_bytes,
            max_bytes,
        }
    }

    /// Whether the limits that are set rise.
    fn check(&self) -> Result<(), EntitlementError> {
        let max = self.max_bytes.unwrap_or(u64::MAX);
        let high = self.high_bytes.unwrap_or(max);
        if self.min_bytes <= high && high <= max {
            return Ok(());
        }
        let min = self.min_bytes;
        Err(EntitlementError::Order { min, high, max })
    }
}

fn is_empty(metadata: &Metadata) -> bool {
    metadata.is_empty()
}

impl Settings {
    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn weight(&self, brought: Brought) -> Weight {
        self.weight.unwrap_or(brought.weight)
    }

    /// Whether a policy knows what is set, and the limits of memory rise.
    pub(crate) fn check(&self, policy: &str) -> Result<(), SettingsError> {
        check_policy(policy, self.weight, self.cap)?;
        if self.latency_target {
            check_row(policy, "latency targets", |row| row.targets)?;
        }
        if self.gang {
            check_row(policy, "gangs", |row| row.gangs)?;
        }
        Ok(self.memory.check()?)
    }

    pub(crate) fn params(&self, brought: Brought) -> TenantParams {
        TenantParams {
            weight: self.weight(brought),
            cap: self.cap,
        }
    }
}

/// Whether a policy knows weights, if there is one, and caps, if there is one.
pub(crate) fn check_policy(
    policy: &str,
    weight: Option<Weight>,
    cap: Option<Cap>,
) -> Result<(), SettingsError> {
    if weight.is_some() {
        check_row(policy, "weights", |row| row.weights)?;
    }
    if cap.is_some() {
        check_row(policy, "caps", |row| row.caps)?;
    }
    Ok(())
}

/// Whether a policy has this.
fn check_row(
    policy: &str,
    what: &'static str,
    has: fn(&PolicyRow) -> bool,
) -> Result<(), SettingsError> {
    if policy_by_name(policy).is_some_and(has) {
        return Ok(());
    }
    let others = POLICIES.iter().filter(|row| has(row)).map(|row| row.name);
    Err(SettingsError::Policy {
        policy: policy.to_owned(),
        what,
        others: others.collect::<Vec<_>>().join(", "),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::Host;
    use crate::HostConfig;
    use crate::host::recording_gpu::{GATES, MOVABLE};
    use crate::host::test_bench::Bench;
    use turnstile_abi::CHUNK_BYTES;
    use turnstile_gpu::Capabilities;
    use turnstile_soft::{SoftConfig, SoftGpu};

    #[test]
    fn limits_that_do_not_fit_a_tenant_are_cut_down() {
        let brought = Brought {
            weight: Weight::DEFAULT,
            memory_bytes: 100,
            min_bytes: 0,
            high_bytes: None,
        };
        let limits = MemoryLimits {
            min_bytes: 80,
            high_bytes: Some(200),
            max_bytes: Some(60),
        };
        let entitlement = limits.entitlement(brought, Weight::DEFAULT);
        assert_eq!(
            (
                entitlement.min_bytes,
                entitlement.high_bytes,
                entitlement.max_bytes
            ),
            (60, 60, 60)
        );
        assert!(matches!(
            limits.check(),
            Err(EntitlementError::Order { .. })
        ));
        let none = MemoryLimits::default().entitlement(brought, Weight::DEFAULT);
        assert_eq!(none, Entitlement::by_weight(Weight::DEFAULT, 100));
        let brought = Brought {
            min_bytes: 30,
            high_bytes: Some(70),
            ..brought
        };
        let own = MemoryLimits::default().entitlement(brought, Weight::DEFAULT);
        assert_eq!((own.min_bytes, own.high_bytes), (30, 70), "what it brought");
        let set = limits.entitlement(brought, Weight::DEFAULT);
        assert_eq!((set.min_bytes, set.high_bytes), (60, 60), "what was set");
    }

    #[test]
    fn a_latency_target_or_a_gang_needs_a_policy_that_has_them() {
        let host = |policy: &str| {
            let config = HostConfig {
                policy: policy.into(),
                ..HostConfig::default()
            };
            let gpu = SoftGpu::new(SoftConfig::default()).unwrap();
            Host::new(Arc::new(gpu), config).unwrap()
        };
        let target = Settings {
            latency_target: true,
            ..Settings::default()
        };
        let gang = Settings {
            gang: true,
            ..Settings::default()
        };
        let owed = host("owed");
        for (what, set) in [("latency targets", target), ("gangs", gang)] {
            let refused = host("dfq").set_settings("a", Some(set.clone()));
            let text = format!("The policy dfq has no {what}; these have: owed");
            assert_eq!(refused.unwrap_err().to_string(), text);
            owed.set_settings("a", Some(set.clone())).unwrap();
            assert_eq!(owed.settings()["a"], set);
        }
    }

    #[test]
    fn settings_are_empty_where_nothing_is_set() {
        let weight = Weight::new(300).ok();
        let limits = MemoryLimits {
            max_bytes: Some(1),
            ..MemoryLimits::default()
        };
        assert!(Settings::default().is_empty() && MemoryLimits::default().is_empty());
        assert!(!limits.is_empty());
        let memory = limits;
        for set in [
            Settings {
                weight,
                ..Settings::default()
            },
            Settings {
                memory,
                ..Settings::default()
            },
        ] {
            assert!(!set.is_empty());
        }
    }

    #[test]
    fn settings_of_an_earlier_run_are_in_force_for_a_tenant_of_the_name() {
        let mut bench = Bench::new(GATES);
        let set = Settings {
            weight: Weight::new(42).ok(),
            ..Settings::default()
        };
        let kept = BTreeMap::from([("a".to_owned(), set)]);
        bench.host.lock().settings.clone_from(&kept);
        assert_eq!(bench.host.settings(), kept);
        bench.enter("a", 100);
        bench.enter("b", 100);
        let shown = bench.host.snapshot().tenants;
        assert_eq!([shown[0].weight, shown[1].weight], [42, 100]);
    }

    #[test]
    fn settings_that_cannot_be_in_force_are_refused() {
        let memory = |min_chunks: u64, high_bytes: Option<u64>, max_bytes: Option<u64>| {
            Some(Settings {
                memory: MemoryLimits {
                    min_bytes: min_chunks * CHUNK_BYTES,
                    high_bytes,
                    max_bytes,
                },
                ..Settings::default()
            })
        };
        let host = |capabilities| {
            let mut bench = Bench::new(capabilities);
            bench.enter("a", 100);
            bench.enter("b", 100);
            bench.host
        };
        let refused = |host: &Host, set| host.set_settings("a", set).unwrap_err();
        let fixed = host(GATES);
        for set in [memory(1, None, None), memory(0, Some(1), None)] {
            assert_eq!(refused(&fixed, set), SettingsError::Immovable);
        }
        fixed.set_settings("a", memory(0, None, Some(1))).unwrap();
        let unknown = host(Capabilities {
            memory_held: false,
            ..GATES
        });
        let set = memory(0, None, Some(1));
        assert_eq!(refused(&unknown, set), SettingsError::UnknownHeld);
        let moves = host(MOVABLE);
        // The other one may have the whole card.
        let set = memory(1, None, None);
        assert!(moves.check_settings("a", set.as_ref()).is_err());
        let crowded = refused(&moves, set);
        let expected = EntitlementError::Crowded {
            reserved: CHUNK_BYTES,
            set: 8 * CHUNK_BYTES,
            card: 8 * CHUNK_BYTES,
        };
        assert_eq!(crowded, SettingsError::Memory(expected));
        assert!(moves.settings().is_empty(), "nothing is changed");
        let none = Bench::of_policy(GATES, "none").host;
        let weight = Settings {
            weight: Weight::new(300).ok(),
            ..Settings::default()
        };
        let error = refused(&none, Some(weight));
        assert!(matches!(
            error,
            SettingsError::Policy {
                what: "weights",
                ..
            }
        ));
    }

    #[test]
    fn names_are_bounded_whatever_is_set_of_them() {
        let gpu = SoftGpu::new(SoftConfig::default()).unwrap();
        let host = Host::new(Arc::new(gpu), HostConfig::default()).unwrap();
        let empty = Some(Settings::default());
        for number in 0..NAMES_MAX {
            host.set_settings(&number.to_string(), empty.clone())
                .unwrap();
        }
        let more = host.set_settings("more", empty.clone()).unwrap_err();
        assert_eq!(more, SettingsError::TooMany);
        host.set_settings("0", empty.clone()).unwrap();
        host.set_settings("more", None).unwrap();
        host.set_settings("0", None).unwrap();
        host.set_settings("more", empty).unwrap();
    }
}
