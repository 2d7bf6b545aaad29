//! Why a tenant or an entry of an account is refused.

use std::sync::Arc;

use super::{ACCOUNTS_MAX, NAMES_MAX};

/// Why a tenant or an entry is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountsError {
    /// The name belongs to another account.
    #[error(
        "The name {name} belongs to another account; choose another --name, or the operator runs `turnstile vm forget {name}`"
    )]
    NameOwned {
        /// The name.
        name: String,
    },
    /// The claimed weight is beyond the account's limit.
    #[error("Weight {claimed} is beyond the {max} that a tenant of account {account} may claim")]
    Weight {
        /// The account.
        account: Arc<str>,
        /// What was claimed.
        claimed: u32,
        /// The limit.
        max: u32,
    },
    /// The claimed memory is beyond the account's limit.
    #[error(
        "{claimed} bytes of GPU memory are beyond the {left} bytes that account {account} has left of {max}"
    )]
    Memory {
        /// The account.
        account: Arc<str>,
        /// Bytes claimed.
        claimed: u64,
        /// Bytes that no other tenant of the account claims.
        left: u64,
        /// The limit.
        max: u64,
    },
    /// The account has as many tenants as it may have.
    #[error("Account {account} has {max} tenants, which is its limit")]
    Tenants {
        /// The account.
        account: Arc<str>,
        /// The limit.
        max: u32,
    },
    /// The host has too many accounts.
    #[error("The host has {ACCOUNTS_MAX} accounts, which is the limit; forget some")]
    TooManyAccounts,
    /// All names are in use.
    #[error("The host keeps {NAMES_MAX} tenant names, and all are in use")]
    TooManyNames,
    /// The account cannot be forgotten now.
    #[error(
        "Account {account} has {tenants} tenants connected; it is forgotten when they have left"
    )]
    Occupied {
        /// The account.
        account: Arc<str>,
        /// Tenants connected.
        tenants: u32,
    },
}
