//! A VM of a stock VMM, as the configuration names it: `NAME[:WEIGHT][@ACCOUNT]`.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
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
}

impl FromStr for FrontVm {
    type Err = FrontVmError;

    fn from_str(text: &str) -> Result<Self, FrontVmError> {
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
        match &self.account {
            Some(account) => write!(f, "@{account}"),
            None => Ok(()),
        }
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
        for text in ["a", "web-1.x_y:300", "A:1", "a@gold", "a:3@uid-7"] {
            assert_eq!(text.parse::<FrontVm>().unwrap().to_string(), text);
        }
        for text in [
            "", ":3", "a/b", "..", ".a", "a:0", "a:10001", "a:x", "a:", "ä", "a@", "a@g/d", "a@b:3",
        ] {
            assert!(text.parse::<FrontVm>().is_err(), "{text}");
        }
    }
}
