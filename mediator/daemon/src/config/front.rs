//! A VM of a stock VMM, as the configuration names it:
//! `NAME[:WEIGHT][@ACCOUNT][,instance-id=UUID][,project=NAME][,label=KEY=VALUE]`. A comma in a
//! value is written twice.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use turnstile_accounting::{Metadata, MetadataError};
use turnstile_policies::Weight;

use crate::{NAME_BYTES_MAX, NAME_RULE, is_tenant_name};

/// How doorbell writes of a stock VMM's guest reach the daemon. No message can revoke a mapping
/// from the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum DoorbellKind {
    /// Each as a message
    #[default]
    Trapped,
    /// To a page that the daemon polls
    Mapped,
}

/// A VM that a stock VMM brings.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct FrontVm {
    /// Name of the tenant, and of the socket.
    pub name: String,
    /// Weight; the default where absent.
    pub weight: Option<Weight>,
    /// Account; that of the daemon's user where absent.
    pub account: Option<String>,
    /// Instance id, project and labels.
    pub metadata: Metadata,
}

/// Why a text names no VM.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrontVmError {
    /// The name.
    #[error("{0:?} is no name of a VM; a name has {NAME_RULE}, and does not begin with a dot")]
    Name(String),
    /// The account.
    #[error("{0:?} is no name of an account; a name has {NAME_RULE}")]
    Account(String),
    /// The weight.
    #[error("{0:?} is no weight: 1 to 10000")]
    Weight(String),
    /// A part after a comma.
    #[error("{0:?} is none of instance-id=UUID, project=NAME and label=KEY=VALUE")]
    Part(String),
    /// Instance id, project or labels.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

/// What stands between commas; two commas are one of the text.
fn parts(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        if c == ',' && rest.next_if_eq(&',').is_none() {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    parts
}

fn metadata(parts: impl Iterator<Item = String>) -> Result<Metadata, FrontVmError> {
    let (mut instance, mut project, mut labels) = (None, None, BTreeMap::new());
    for part in parts {
        match part.split_once('=') {
            Some(("instance-id", id)) => instance = Some(id.to_owned()),
            Some(("project", name)) => project = Some(name.to_owned()),
            Some(("label", label)) if label.contains('=') => {
                let (key, value) = label.split_once('=').unwrap_or_default();
                labels.insert(key.to_owned(), value.to_owned());
            }
            _ => {
                let part = part.chars().take(NAME_BYTES_MAX).collect();
                return Err(FrontVmError::Part(part));
            }
        }
    }
    Ok(Metadata::new(instance.as_deref(), project, labels)?)
}

impl FromStr for FrontVm {
    type Err = FrontVmError;

    fn from_str(text: &str) -> Result<Self, FrontVmError> {
        let mut parts = parts(text).into_iter();
        let first = parts.next().unwrap_or_default();
        let (metadata, text) = (metadata(parts)?, first.as_str());
        let (text, account) = match text.split_once('@') {
            Some((text, account)) => (text, Some(account)),
            None => (text, None),
        };
        if let Some(account) = account.filter(|account| !is_tenant_name(account)) {
            return Err(FrontVmError::Account(
                account.chars().take(NAME_BYTES_MAX).collect(),
            ));
        }
        let (name, weight) = match text.split_once(':') {
            Some((name, weight)) => (name, Some(weight)),
            None => (text, None),
        };
        // It becomes the name of a file.
        if !is_tenant_name(name) || name.starts_with('.') {
            return Err(FrontVmError::Name(
                name.chars().take(NAME_BYTES_MAX).collect(),
            ));
        }
        let weight = weight.map(|text| {
            let weight = text.parse().ok().and_then(|n| Weight::new(n).ok());
            weight.ok_or_else(|| FrontVmError::Weight(text.chars().take(NAME_BYTES_MAX).collect()))
        });
        Ok(Self {
            name: name.to_owned(),
            weight: weight.transpose()?,
            account: account.map(str::to_owned),
            metadata,
        })
    }
}

impl TryFrom<String> for FrontVm {
    type Error = FrontVmError;

    fn try_from(text: String) -> Result<Self, FrontVmError> {
        text.parse()
    }
}

impl fmt::Display for FrontVm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(weight) = self.weight {
            write!(f, ":{}", weight.get())?;
        }
        if let Some(account) = &self.account {
            write!(f, "@{account}")?;
        }
        if let Some(id) = self.metadata.instance_id() {
            write!(f, ",instance-id={id}")?;
        }
        if let Some(project) = self.metadata.project() {
            write!(f, ",project={}", project.replace(',', ",,"))?;
        }
        for (key, value) in self.metadata.labels() {
            write!(f, ",label={key}={}", value.replace(',', ",,"))?;
        }
        Ok(())
    }
}

impl From<FrontVm> for String {
    fn from(vm: FrontVm) -> Self {
        vm.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_weights_are_checked() {
        let id = "6f1c2a9e-0d7b-4c55-9b1e-2f8f6f0a1b2c";
        let full = format!("a:3@gold,instance-id={id},project=a,,b = c,label=a/b=,label=c=d,,=@:");
        let vm: FrontVm = full.parse().unwrap();
        assert_eq!(vm.metadata.project(), Some("a,b = c"));
        assert_eq!(vm.metadata.labels()["c"], "d,=@:");
        for text in [
            "a",
            "web-1.x_y:300",
            "A:1",
            "a@gold",
            "a:3@uid-7",
            "a,label=b=c",
            &full,
        ] {
            assert_eq!(text.parse::<FrontVm>().unwrap().to_string(), text);
        }
        for text in [
            "",
            ":3",
            "a/b",
            "..",
            ".a",
            "a:0",
            "a:10001",
            "a:x",
            "a:",
            "ä",
            "a@",
            "a@g/d",
            "a@b:3",
            "a,",
            "a,b",
            "a,label=b",
            "a,label==b",
            "a,project=",
            "a,instance-id=7",
            ",project=x",
        ] {
            assert!(text.parse::<FrontVm>().is_err(), "{text}");
        }
    }
}
