//! Names of users, groups and certificates with a role in the admin API.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A caller's identity that the kernel or a certificate proves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum Principal {
    /// `uid:N`, a user by number.
    Uid(u32),
    /// `gid:N`, the members of a group by number.
    Gid(u32),
    /// `user:NAME`.
    User(String),
    /// `group:NAME`.
    Group(String),
    /// `cert:NAME`, a client certificate by one of its subject's alternative names (DNS or URI), as
    /// in `cert:ops.example` or `cert:spiffe://example/ops`.
    Certificate(String),
}

/// The text has none of the forms of a principal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no principal; write uid:N, gid:N, user:NAME, group:NAME and cert:NAME do")]
pub struct PrincipalError {
    text: String,
}

impl FromStr for Principal {
    type Err = PrincipalError;

    fn from_str(text: &str) -> Result<Self, PrincipalError> {
        let wrong = || PrincipalError {
            text: text.chars().take(80).collect(),
        };
        let (kind, name) = text.split_once(':').ok_or_else(wrong)?;
        // All but the certificates' are numbers or names as passwd(5) has them.
        let named = || Some(name.to_owned()).filter(|name| !name.is_empty() && !name.contains(':'));
        let found = match kind {
            "uid" => name.parse().ok().map(Self::Uid),
            "gid" => name.parse().ok().map(Self::Gid),
            "user" => named().map(Self::User),
            "group" => named().map(Self::Group),
            "cert" if !name.is_empty() => Some(Self::Certificate(name.to_owned())),
            _ => None,
        };
        found.ok_or_else(wrong)
    }
}

impl TryFrom<String> for Principal {
    type Error = PrincipalError;

    fn try_from(text: String) -> Result<Self, PrincipalError> {
        text.parse()
    }
}

impl From<Principal> for String {
    fn from(principal: Principal) -> Self {
        principal.to_string()
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uid(id) => write!(f, "uid:{id}"),
            Self::Gid(id) => write!(f, "gid:{id}"),
            Self::User(name) => write!(f, "user:{name}"),
            Self::Group(name) => write!(f, "group:{name}"),
            Self::Certificate(name) => write!(f, "cert:{name}"),
        }
    }
}
