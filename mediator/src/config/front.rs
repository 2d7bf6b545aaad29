//! A VM of a stock VMM, as the configuration names it: `NAME` or `NAME:WEIGHT`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use turnstile_policies::Weight;

/// A VM that a stock VMM brings.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct FrontVm {
    /// Name of the tenant, and of the socket.
    pub name: String,
    /// Weight; the default where absent.
    pub weight: Option<Weight>,
}

/// Why a text names no VM.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrontVmError {
    /// The name.
    #[error("{0:?} is no name of a VM: 1 to 64 of A-Z a-z 0-9 . _ -, not beginning with a dot")]
    Name(String),
    /// The weight.
    #[error("{0:?} is no weight: 1 to 10000")]
    Weight(String),
}

impl FromStr for FrontVm {
    type Err = FrontVmError;

    fn from_str(text: &str) -> Result<Self, FrontVmError> {
        let (name, weight) = match text.split_once(':') {
            Some((name, weight)) => (name, Some(weight)),
            None => (text, None),
        };
        let permitted = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        // It becomes the name of a file.
        let good =
            (1..=64).contains(&name.len()) && name.chars().all(permitted) && !name.starts_with('.');
        if !good {
            return Err(FrontVmError::Name(name.chars().take(64).collect()));
        }
        let weight = weight.map(|text| {
            let weight = text.parse().ok().and_then(|n| Weight::new(n).ok());
            weight.ok_or_else(|| FrontVmError::Weight(text.chars().take(64).collect()))
        });
        Ok(Self {
            name: name.to_owned(),
            weight: weight.transpose()?,
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
        match self.weight {
            Some(weight) => write!(f, "{}:{}", self.name, weight.get()),
            None => f.write_str(&self.name),
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
        for text in ["a", "web-1.x_y:300", "A:1"] {
            assert_eq!(text.parse::<FrontVm>().unwrap().to_string(), text);
        }
        for text in [
            "", ":3", "a/b", "..", ".a", "a:0", "a:10001", "a:x", "a:", "ä",
        ] {
            assert!(text.parse::<FrontVm>().is_err(), "{text}");
        }
    }
}
