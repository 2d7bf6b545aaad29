//! What a tenant brings beside its name, or an operator sets of it: the id of its instance, its
//! project and its labels.
//!
//! In: unchecked texts of a VMM, a launcher, a configuration or an API client. Out: values within
//! the limits, without control characters, which ids and exports carry as they are. The daemon and
//! the API make them; the rollup, the store and the exports read them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;
use uuid::Uuid;

/// Most labels of a tenant.
pub const LABELS_MAX: usize = 32;

/// Longest key of a label, in bytes.
pub const LABEL_KEY_BYTES_MAX: usize = 63;

/// Longest value of a label, and longest name of a project, in bytes. SOURCE: names of Kubernetes
/// are subdomains of DNS (RFC 1123), which have 253 at most.
pub const LABEL_VALUE_BYTES_MAX: usize = 253;

/// Instance id, project and labels of a tenant, checked; each may be absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Metadata {
    #[serde(skip_serializing_if = "Option::is_none")]
    instance_id: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    project: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
}

/// The same before it is checked.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Unchecked {
    instance_id: Option<String>,
    project: Option<String>,
    labels: BTreeMap<String, String>,
}

/// Why metadata are refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MetadataError {
    /// The instance id.
    #[error("{0:?} is no id of an instance: a UUID, neither all zeros nor all ones")]
    Instance(String),
    /// The project.
    #[error(
        "{0:?} is no project: 1 to {LABEL_VALUE_BYTES_MAX} bytes of text without control characters"
    )]
    Project(String),
    /// The key of a label.
    #[error(
        "{0:?} is no key of a label: 1 to {LABEL_KEY_BYTES_MAX} of A-Z a-z 0-9 . _ / -, with a letter or digit at both ends"
    )]
    Key(String),
    /// The value of a label.
    #[error(
        "The label {key} has a value that is none: at most {LABEL_VALUE_BYTES_MAX} bytes of text without control characters"
    )]
    Value {
        /// Its key.
        key: String,
    },
    /// Too many labels.
    #[error("{count} labels; {LABELS_MAX} are the limit")]
    TooMany {
        /// How many there are.
        count: usize,
    },
}

impl MetadataError {
    /// The part that is refused, as the fields are named.
    pub const fn part(&self) -> &'static str {
        match self {
            Self::Instance(_) => "instance_id",
            Self::Project(_) => "project",
            Self::Key(_) | Self::Value { .. } | Self::TooMany { .. } => "labels",
        }
    }
}

/// The beginning of a text, for messages.
fn shown(text: &str) -> String {
    text.chars().take(LABEL_VALUE_BYTES_MAX).collect()
}

fn is_text(text: &str) -> bool {
    text.len() <= LABEL_VALUE_BYTES_MAX && !text.chars().any(char::is_control)
}

fn is_key(key: &str) -> bool {
    let permitted = |c: char| c.is_ascii_alphanumeric() || "._/-".contains(c);
    let ends = key.chars().next().into_iter().chain(key.chars().last());
    (1..=LABEL_KEY_BYTES_MAX).contains(&key.len())
        && key.chars().all(permitted)
        && ends.into_iter().all(|c| c.is_ascii_alphanumeric())
}

impl Metadata {
    /// Checks metadata.
    ///
    /// # Errors
    /// The first value that is outside the limits.
    pub fn new(
        instance_id: Option<&str>,
        project: Option<String>,
        labels: BTreeMap<String, String>,
    ) -> Result<Self, MetadataError> {
        let instance = |text: &str| {
            let id = Uuid::try_parse(text).ok();
            let id = id.filter(|id| !id.is_nil() && !id.is_max());
            id.ok_or_else(|| MetadataError::Instance(shown(text)))
        };
        if let Some(project) = &project
            && (project.is_empty() || !is_text(project))
        {
            return Err(MetadataError::Project(shown(project)));
        }
        if labels.len() > LABELS_MAX {
            let count = labels.len();
            return Err(MetadataError::TooMany { count });
        }
        for (key, value) in &labels {
            if !is_key(key) {
                return Err(MetadataError::Key(shown(key)));
            }
            if !is_text(value) {
                return Err(MetadataError::Value { key: key.clone() });
            }
        }
        Ok(Self {
            instance_id: instance_id.map(instance).transpose()?,
            project,
            labels,
        })
    }

    /// All of it: instance id, project and labels.
    pub(crate) fn parts(&self) -> (Option<Uuid>, Option<&str>, &BTreeMap<String, String>) {
        let Self {
            instance_id,
            project,
            labels,
        } = self;
        (*instance_id, project.as_deref(), labels)
    }

    /// The id of the instance: of one VM from its creation to its end, on whatever host.
    pub const fn instance_id(&self) -> Option<Uuid> {
        self.instance_id
    }

    /// The project.
    pub fn project(&self) -> Option<&str> {
        self.project.as_deref()
    }

    /// The labels, by key.
    pub const fn labels(&self) -> &BTreeMap<String, String> {
        &self.labels
    }

    /// The same without labels.
    #[must_use]
    pub fn without_labels(&self) -> Self {
        Self {
            labels: BTreeMap::new(),
            ..self.clone()
        }
    }

    /// Bytes of the project and of the labels' keys and values.
    pub fn bytes(&self) -> usize {
        let labels = self
            .labels
            .iter()
            .map(|(key, value)| key.len() + value.len());
        self.project.as_ref().map_or(0, String::len) + labels.sum::<usize>()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What is in force of these, which a tenant brought, where an operator set `set`. What is set
    /// comes first; labels that were brought follow by key, up to [`LABELS_MAX`] in all.
    #[must_use]
    pub fn under(&self, set: &Self) -> Self {
        let mut labels = set.labels.clone();
        for (key, value) in &self.labels {
            if labels.len() == LABELS_MAX {
                break;
            }
            labels.entry(key.clone()).or_insert_with(|| value.clone());
        }
        Self {
            instance_id: set.instance_id.or(self.instance_id),
            project: set.project.clone().or_else(|| self.project.clone()),
            labels,
        }
    }
}

impl TryFrom<Unchecked> for Metadata {
    type Error = MetadataError;

    fn try_from(of: Unchecked) -> Result<Self, MetadataError> {
        Self::new(of.instance_id.as_deref(), of.project, of.labels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "6f1c2a9e-0d7b-4c55-9b1e-2f8f6f0a1b2c";

    fn labels(of: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = of
            .iter()
            .map(|(key, value)| ((*key).into(), (*value).into()));
        owned.collect()
    }

    fn refused(of: &[(&str, &str)]) -> MetadataError {
        Metadata::new(None, None, labels(of)).unwrap_err()
    }

    #[test]
    fn limits_are_those_of_the_constants_and_one_more_is_refused() {
        let key = "k".repeat(LABEL_KEY_BYTES_MAX);
        let value = "v".repeat(LABEL_VALUE_BYTES_MAX);
        let full = Metadata::new(Some(ID), Some(value.clone()), labels(&[(&key, &value)]));
        assert_eq!(full.unwrap().instance_id().unwrap().to_string(), ID);
        let longer = format!("{key}k");
        assert_eq!(
            refused(&[(&longer, "")]),
            MetadataError::Key(longer.clone())
        );
        assert_eq!(
            refused(&[(&key, &format!("{value}v"))]),
            MetadataError::Value { key }
        );
        let most: Vec<String> = (0..LABELS_MAX + 1).map(|n| n.to_string()).collect();
        let most: Vec<(&str, &str)> = most.iter().map(|key| (key.as_str(), "x")).collect();
        assert!(Metadata::new(None, None, labels(&most[1..])).is_ok());
        assert_eq!(
            refused(&most),
            MetadataError::TooMany {
                count: LABELS_MAX + 1
            }
        );
        for project in ["", "a\nb", &"p".repeat(LABEL_VALUE_BYTES_MAX + 1)] {
            let error = Metadata::new(None, Some(project.into()), BTreeMap::new()).unwrap_err();
            assert_eq!(error.part(), "project");
        }
    }

    #[test]
    fn keys_and_values_of_kubernetes_and_libvirt_are_labels() {
        let names = labels(&[
            ("app.kubernetes.io/name", "web"),
            ("pod", "shop/web-7d9f"),
            ("libvirt.name", "Windows 11 (Büro)"),
            ("empty", ""),
        ]);
        let metadata = Metadata::new(None, None, names.clone()).unwrap();
        assert_eq!(*metadata.labels(), names);
        for key in ["", "-a", "a/", "a b", "ä", "a=b"] {
            assert_eq!(
                refused(&[(key, "")]),
                MetadataError::Key(key.into()),
                "{key}"
            );
        }
        assert_eq!(refused(&[("a", "x\u{7}")]).part(), "labels");
        for id in ["", "1", "00000000-0000-0000-0000-000000000000"] {
            let error = Metadata::new(Some(id), None, BTreeMap::new()).unwrap_err();
            assert_eq!(error, MetadataError::Instance(id.into()));
        }
    }

    #[test]
    fn what_is_read_is_checked_as_what_is_made() {
        let metadata = Metadata::new(Some(ID), Some("shop".into()), labels(&[("a", "b")])).unwrap();
        let text = serde_json::to_string(&metadata).unwrap();
        assert_eq!(serde_json::from_str::<Metadata>(&text).unwrap(), metadata);
        assert_eq!(serde_json::to_string(&Metadata::default()).unwrap(), "{}");
        for text in [
            "{\"labels\":{\"\":\"\"}}",
            "{\"project\":\"\"}",
            "{\"x\":1}",
        ] {
            assert!(serde_json::from_str::<Metadata>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_an_operator_sets_comes_before_what_a_tenant_brought() {
        let brought = Metadata::new(
            Some(ID),
            Some("a".into()),
            labels(&[("k", "1"), ("l", "2")]),
        );
        let brought = brought.unwrap();
        let set = Metadata::new(None, Some("b".into()), labels(&[("k", "3"), ("m", "4")])).unwrap();
        let both = brought.under(&set);
        assert_eq!(both.instance_id(), brought.instance_id());
        assert_eq!(both.project(), Some("b"));
        assert_eq!(
            *both.labels(),
            labels(&[("k", "3"), ("l", "2"), ("m", "4")])
        );
        let most: Vec<String> = (0..LABELS_MAX).map(|n| format!("s{n}")).collect();
        let most: Vec<(&str, &str)> = most.iter().map(|key| (key.as_str(), "x")).collect();
        let full = Metadata::new(None, None, labels(&most)).unwrap();
        assert_eq!(brought.under(&full).labels(), full.labels());
        assert_eq!(brought.under(&Metadata::default()), brought);
        assert_eq!(brought.bytes(), "a".len() + "k1".len() + "l2".len());
        let bare = brought.without_labels();
        assert!(bare.labels().is_empty() && bare.project() == Some("a"));
        assert!(Metadata::default().is_empty() && !brought.is_empty() && !full.is_empty());
    }
}
