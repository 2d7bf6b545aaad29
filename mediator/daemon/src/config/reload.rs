//! Which keys of a changed configuration a running daemon takes over, and which wait for a restart.

use super::Effective;

/// Keys that a reload takes over. Files that these name are read again even if the key is
/// unchanged.
pub const LIVE: [&str; 10] = [
    "account",
    "api.operators",
    "api.require_if_match",
    "api.tls.certificate",
    "api.tls.client_ca",
    "api.tls.key",
    "api.viewers",
    "ledger.prices",
    "metrics.dcgm_compat",
    "scheduling.default_weight",
];

/// Keys that have another value than before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Those that are in force now.
    pub taken: Vec<&'static str>,
    /// Those that are in force after a restart.
    pub waiting: Vec<&'static str>,
}

/// What differs between two configurations.
pub fn changed(before: &Effective, after: &Effective) -> Reloaded {
    let differs = |key: &&'static str| {
        let value = |of: &Effective| of.settings.get(key).map(|setting| setting.value.clone());
        value(before) != value(after)
    };
    let keys = after.settings.keys().copied().filter(differs);
    let (taken, waiting) = keys.partition(|key| LIVE.contains(key));
    Reloaded { taken, waiting }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Layers, known_keys};

    fn read(text: &str) -> Effective {
        let mut layers = Layers::new();
        layers.text(Path::new("file"), text);
        layers.finish().unwrap()
    }

    #[test]
    fn what_is_live_is_known_and_everything_else_waits() {
        for key in LIVE {
            assert!(known_keys().contains_key(key), "{key}");
        }
        let before = read("[scheduling]\ndefault_weight = 100\n[gpu]\nkind = \"soft\"\n");
        assert_eq!(changed(&before, &before), Reloaded::default());
        let after = read(
            "[scheduling]\ndefault_weight = 300\n[api]\nviewers = [\"uid:7\"]\n[ledger]\nwindow_ms = 500\n",
        );
        let reloaded = changed(&before, &after);
        assert_eq!(reloaded.taken, ["api.viewers", "scheduling.default_weight"]);
        assert_eq!(reloaded.waiting, ["ledger.window_ms"]);
    }
}
