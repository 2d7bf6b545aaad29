//! What a claim or its class configures beyond capacities: a cap, a latency target, and what a
//! container gets.
//!
//! In: the opaque parameters of a claim's allocation. Out: one configuration for each of its
//! results. The class's part comes first, and a claim's own wins, but for what belongs to the
//! class alone.

use serde::Deserialize;
use serde_json::Value;

use super::names::{CONFIG_KIND, CONFIG_VERSION, DRIVER};

/// What a container gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attachment {
    /// The folder of a socket for a stock VMM.
    #[default]
    VfioUser,
    /// The folder of a socket for a VMM with the plug-in.
    Vmm,
    /// The `turnstile` command for a CUDA program, and the vendor's own CDI device; of a class
    /// alone, as the container may then use all of the GPU.
    Program,
}

/// A configuration; what is absent is left as it is without.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GpuConfig {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    /// Engine time that it gets at most in each period, in microseconds.
    pub quota_microseconds: Option<u64>,
    /// Length of the period, in microseconds.
    pub period_microseconds: Option<u64>,
    /// Whether the slices of others are short while it is behind.
    pub latency_target: Option<bool>,
    /// Whether its turns on its GPUs coincide.
    pub gang: Option<bool>,
    /// What a container gets.
    pub attachment: Option<Attachment>,
    /// Number of the user that owns the socket; of a class alone.
    pub owner: Option<u32>,
    /// Number of the socket's group; of a class alone.
    pub group: Option<u32>,
    /// Permissions of the socket, in octal digits; of a class alone.
    pub mode: Option<String>,
}

/// Where a configuration is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
enum Source {
    FromClass,
    FromClaim,
}

/// An entry of a claim's allocation.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Entry {
    source: Source,
    /// Empty for all.
    #[serde(default)]
    requests: Vec<String>,
    #[serde(default)]
    opaque: Option<Opaque>,
}

#[derive(Clone, Debug, Deserialize)]
struct Opaque {
    driver: String,
    parameters: Value,
}

/// Why a claim's configuration is not taken.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It is no configuration of this driver.
    #[error(
        "The opaque parameters for {DRIVER} are no {CONFIG_KIND}; correct them in the claim or its class"
    )]
    Form(#[from] serde_json::Error),
    /// It is of another version or kind.
    #[error(
        "The opaque parameters for {DRIVER} are {version} {kind}; use {CONFIG_VERSION} {CONFIG_KIND}"
    )]
    Kind {
        /// Its version.
        version: String,
        /// Its kind.
        kind: String,
    },
    /// A claim configures what belongs to the class.
    #[error(
        "owner, group, mode and attachment: program are configured by a DeviceClass alone; remove them from the claim"
    )]
    Class,
}

impl GpuConfig {
    /// The configuration of one result of an allocation.
    ///
    /// # Errors
    /// If an entry for it is wrong.
    pub(crate) fn of(entries: &[Entry], request: &str) -> Result<Self, ConfigError> {
        // A subrequest is named with its request before it.
        let whole = request.split('/').next().unwrap_or(request);
        let is_for = |entry: &&Entry| {
            let names = &entry.requests;
            names.is_empty() || names.iter().any(|name| name == request || name == whole)
        };
        let mut config = Self::default();
        for source in [Source::FromClass, Source::FromClaim] {
            let entries = entries.iter().filter(|entry| entry.source == source);
            let opaque = entries
                .filter(is_for)
                .filter_map(|entry| entry.opaque.as_ref());
            for opaque in opaque.filter(|opaque| opaque.driver == DRIVER) {
                config.overlay(Self::read(&opaque.parameters, source)?);
            }
        }
        Ok(config)
    }

    fn read(parameters: &Value, source: Source) -> Result<Self, ConfigError> {
        let config = Self::deserialize(parameters)?;
        if (config.api_version.as_str(), config.kind.as_str()) != (CONFIG_VERSION, CONFIG_KIND) {
            return Err(ConfigError::Kind {
                version: config.api_version,
                kind: config.kind,
            });
        }
        let of_class = config.owner.is_some()
            || config.group.is_some()
            || config.mode.is_some()
            || config.attachment == Some(Attachment::Program);
        if of_class && source == Source::FromClaim {
            return Err(ConfigError::Class);
        }
        Ok(config)
    }

    fn overlay(&mut self, over: Self) {
        *self = Self {
            api_version: over.api_version,
            kind: over.kind,
            quota_microseconds: over.quota_microseconds.or(self.quota_microseconds),
            period_microseconds: over.period_microseconds.or(self.period_microseconds),
            latency_target: over.latency_target.or(self.latency_target),
            gang: over.gang.or(self.gang),
            attachment: over.attachment.or(self.attachment),
            owner: over.owner.or(self.owner),
            group: over.group.or(self.group),
            mode: over.mode.or_else(|| self.mode.take()),
        };
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(source: &str, requests: &[&str], mut parameters: Value) -> Entry {
        parameters["apiVersion"] = CONFIG_VERSION.into();
        parameters["kind"] = CONFIG_KIND.into();
        let entry = json!({
            "source": source,
            "requests": requests,
            "opaque": { "driver": DRIVER, "parameters": parameters },
        });
        serde_json::from_value(entry).unwrap()
    }

    #[test]
    fn claim_wins_over_its_class_and_a_request_has_its_own() {
        let class = json!({ "quotaMicroseconds": 5_000, "owner": 107, "attachment": "vmm" });
        let entries = [
            entry("FromClaim", &["a"], json!({ "quotaMicroseconds": 7_000 })),
            entry("FromClass", &[], class),
            entry("FromClaim", &["b/large"], json!({ "latencyTarget": true })),
        ];
        let of = |request| GpuConfig::of(&entries, request).unwrap();
        let (a, b) = (of("a"), of("b/large"));
        assert_eq!(
            (a.quota_microseconds, a.latency_target),
            (Some(7_000), None)
        );
        assert_eq!(
            (b.quota_microseconds, b.latency_target),
            (Some(5_000), Some(true))
        );
        assert_eq!(of("b/small").latency_target, None);
        assert_eq!(of("a/small").quota_microseconds, Some(7_000));
        assert_eq!((a.owner, a.attachment), (Some(107), Some(Attachment::Vmm)));
    }

    #[test]
    fn claim_sets_no_owner_and_unknown_members_are_refused() {
        let of = |entry| GpuConfig::of(&[entry], "a").unwrap_err().to_string();
        for member in [
            json!({ "owner": 0 }),
            json!({ "group": 0 }),
            json!({ "mode": "0666" }),
            json!({ "attachment": "program" }),
        ] {
            assert!(of(entry("FromClaim", &[], member)).contains("DeviceClass"));
        }
        assert!(of(entry("FromClass", &[], json!({ "cap": 1 }))).contains(CONFIG_KIND));
        let mut other = entry("FromClass", &[], json!({}));
        other.opaque.as_mut().unwrap().parameters["kind"] = "Other".into();
        assert!(of(other.clone()).contains("Other"));
        other.opaque.as_mut().unwrap().driver = "gpu.nvidia.com".into();
        assert_eq!(GpuConfig::of(&[other], "a").unwrap(), GpuConfig::default());
    }
}
