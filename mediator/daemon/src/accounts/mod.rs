//! Book of accounts: maps each tenant to its account, and holds the limits of each account.
//!
//! In: the entries of the configuration and of the API; each tenant that connects, with its Unix
//! user and its claim. Out: the tenant's account and the weight that it gets there, or the reason
//! why the claim is refused.
//!
//! ```text
//! tenant name, user --> first entry that matches --> account   (no entry: the user's own account)
//! claim ------------------------------------------> limits of the account
//! ```
//!
//! Invariants: a connected tenant is in one account; a name belongs to at most one account; claims
//! of an account's tenants stay within its limits as of their admission; accounts and names are
//! bounded. The daemon's `Host` calls it under its lock. Pure: no clock, no I/O.

mod entry;
mod error;

use std::collections::BTreeMap;
use std::sync::Arc;

use turnstile_accounting::AccountId;
use turnstile_policies::{TenantParams, Weight};

pub use entry::{Entry, PATTERNS_MAX, Pattern, PatternError};
pub use error::AccountsError;

/// Accounts at a time, those of entries included.
pub(crate) const ACCOUNTS_MAX: usize = 1_024;

/// Names that belong to accounts. Twice as many as tenants can be connected.
pub(crate) const NAMES_MAX: usize = 8_192;

/// An entry with the number of its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The entry.
    pub entry: Entry,
    /// Number of `entry.user`.
    pub uid: Option<u32>,
}

/// What a VMM or launcher claims for its tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Weight within the account.
    pub weight: Option<Weight>,
    /// Weight of a tenant that claims none, if the account's limit is not below it.
    pub default_weight: Weight,
    /// GPU memory that the tenant may allocate, in bytes; none takes what the account has left.
    pub memory_bytes: Option<u64>,
}

/// What a tenant gets in its account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Number of the account in this run of the daemon.
    pub id: AccountId,
    /// Name of the account.
    pub account: Arc<str>,
    /// Weight within the account.
    pub weight: Weight,
    /// GPU memory that the tenant may allocate, in bytes; none where neither side limits it.
    pub memory_bytes: Option<u64>,
}

/// Where the terms of an account come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// No entry: the account of a Unix user.
    User,
    /// The configuration.
    Configuration,
    /// The API.
    Api,
}

/// An account as the book has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Its terms.
    pub entry: Entry,
    /// Where they come from.
    pub origin: Origin,
    /// Its number, once a tenant of it has connected.
    pub id: Option<AccountId>,
    /// Tenants connected.
    pub tenants: u32,
}

/// An account of which a tenant has connected.
#[derive(Debug)]
struct Account {
    id: AccountId,
    name: Arc<str>,
    /// What the policy was last given; none before the first time.
    in_force: Option<TenantParams>,
    /// Tenants connected, and GPU memory that they claim together.
    tenants: u32,
    claimed_bytes: u128,
    /// Names that belong to it.
    names: usize,
}

/// A name that belongs to an account.
#[derive(Debug)]
struct Owned {
    account: Arc<str>,
    /// Memory that its tenant claims, while it is connected.
    seat: Option<u64>,
    /// Counts up with each use of any name.
    used: u64,
}

/// The book.
#[derive(Debug, Default)]
pub struct Book {
    /// Entries of the configuration, and their order in it.
    configured: BTreeMap<String, Rule>,
    order: Vec<String>,
    /// Entries of the API, by account.
    made: BTreeMap<String, Rule>,
    /// Accounts that entries of vfio-user fronts name, by tenant, and the user of the fronts.
    fronts: BTreeMap<String, String>,
    fronts_uid: u32,
    /// Accounts of declared VMs, by tenant. No other VM can have such a name.
    pub(crate) declared: BTreeMap<String, String>,
    accounts: BTreeMap<Arc<str>, Account>,
    names: BTreeMap<String, Owned>,
    next_id: u32,
    uses: u64,
}

/// The name of a Unix user's own account.
pub(crate) fn of_user(uid: u32) -> String {
    format!("uid-{uid}")
}

impl Rule {
    /// Whether a tenant belongs to the account; if so, whether its name decides that.
    fn matches(&self, name: &str, uid: u32) -> Option<bool> {
        let patterns = &self.entry.patterns;
        let by_name = !patterns.is_empty();
        let named = patterns.iter().any(|pattern| pattern.matches(name));
        // A user that is not resolved matches no tenant.
        let user = match (&self.entry.user, self.uid) {
            (None, _) => by_name,
            (Some(_), known) => known == Some(uid),
        };
        (user && (named || !by_name)).then_some(by_name)
    }
}

impl Book {
    /// Takes the entries of the configuration, and the accounts of the fronts' tenants, in place of
    /// those before. `uid` is the user that serves the fronts.
    pub(crate) fn configure(
        &mut self,
        entries: Vec<(String, Rule)>,
        fronts: BTreeMap<String, String>,
        uid: u32,
    ) {
        self.order = entries.iter().map(|(name, _)| name.clone()).collect();
        self.configured = entries.into_iter().collect();
        self.fronts = fronts;
        self.fronts_uid = uid;
    }

    /// Takes the entries of the API, and names with their accounts, as a state file has them.
    pub fn restore(&mut self, made: BTreeMap<String, Rule>, names: BTreeMap<String, String>) {
        self.made = made;
        for (name, account) in names {
            self.learn(&name, &account);
        }
    }

    /// A name belongs to this account, unless it belongs to one, or there is no room.
    pub(crate) fn learn(&mut self, name: &str, account: &str) {
        if !self.names.contains_key(name)
            && self.names.len() < NAMES_MAX
            && let Ok(account) = self.account(account)
        {
            account.names += 1;
            let account = account.name.clone();
            let owned = Owned {
                account,
                seat: None,
                used: 0,
            };
            self.names.insert(name.to_owned(), owned);
        }
    }

    /// Entries of the API.
    pub fn made(&self) -> BTreeMap<String, Entry> {
        let entry = |(name, rule): (&String, &Rule)| (name.clone(), rule.entry.clone());
        self.made.iter().map(entry).collect()
    }

    /// Names, and the accounts that they belong to.
    pub fn names(&self) -> BTreeMap<String, String> {
        let owner = |(name, owned): (&String, &Owned)| (name.clone(), owned.account.to_string());
        self.names.iter().map(owner).collect()
    }

    /// The account that a name belongs to.
    pub fn owner(&self, name: &str) -> Option<&Arc<str>> {
        self.names.get(name).map(|owned| &owned.account)
    }

    /// Entries in the order in which they are tried: those that the API made, by account name, then
    /// those of the configuration. An entry of the API for an account of the configuration stands
    /// in place of the configuration's.
    fn rules(&self) -> impl Iterator<Item = (&str, &Rule)> {
        let made = self.made.iter();
        let made = made.filter(|(name, _)| !self.configured.contains_key(*name));
        let made = made.map(|(name, rule)| (name.as_str(), rule));
        let rule = |name: &String| self.made.get(name).or_else(|| self.configured.get(name));
        let rest = self.order.iter();
        made.chain(rest.filter_map(move |name| Some((name.as_str(), rule(name)?))))
    }

    /// Number of an account of which a tenant has connected.
    pub fn id(&self, account: &str) -> Option<AccountId> {
        self.accounts.get(account).map(|account| account.id)
    }

    /// Which account a tenant belongs to, and whether its name decides that.
    fn account_of(&self, name: &str, uid: u32) -> (String, bool) {
        if let Some(account) = self.declared.get(name) {
            return (account.clone(), true);
        }
        if let Some(account) = self.fronts.get(name)
            && uid == self.fronts_uid
        {
            return (account.clone(), true);
        }
        let found = self
            .rules()
            .find_map(|(account, rule)| Some((account.to_owned(), rule.matches(name, uid)?)));
        found.unwrap_or_else(|| (of_user(uid), false))
    }

    /// Terms of an account, and where they come from.
    fn terms(&self, account: &str) -> (&Entry, Origin) {
        if let Some(rule) = self.made.get(account) {
            return (&rule.entry, Origin::Api);
        }
        static UNSET: Entry = Entry::DEFAULT;
        match self.configured.get(account) {
            Some(rule) => (&rule.entry, Origin::Configuration),
            None => (&UNSET, Origin::User),
        }
    }

    /// The account of this name; made if there is none.
    fn account(&mut self, name: &str) -> Result<&mut Account, AccountsError> {
        if !self.accounts.contains_key(name) {
            if self.accounts.len() >= ACCOUNTS_MAX {
                return Err(AccountsError::TooManyAccounts);
            }
            self.next_id += 1;
            let account = Account {
                id: AccountId(self.next_id),
                name: name.into(),
                in_force: None,
                tenants: 0,
                claimed_bytes: 0,
                names: 0,
            };
            self.accounts.insert(account.name.clone(), account);
        }
        // PANIC: none; it was inserted
        self.accounts
            .get_mut(name)
            .ok_or(AccountsError::TooManyAccounts)
    }

    /// A tenant connects. The name belongs to the account from now on, and the claim counts until
    /// [`Self::leave`].
    ///
    /// # Errors
    /// If the name belongs to another account, or the claim is beyond the account's limits.
    /// Precondition: no tenant of this name is connected.
    pub fn join(&mut self, name: &str, uid: u32, claim: Claim) -> Result<Granted, AccountsError> {
        let (account, by_name) = self.account_of(name, uid);
        let owner = self.owner(name).filter(|owner| ***owner != *account);
        // The operator's mapping of a name outweighs an earlier use of the name.
        if owner.is_some() && !by_name {
            let name = name.to_owned();
            return Err(AccountsError::NameOwned { name });
        }
        let known = self.accounts.get(&*account);
        let (tenants, claimed_bytes) =
            known.map_or((0, 0), |known| (known.tenants, known.claimed_bytes));
        let account: Arc<str> = known.map_or_else(|| account.into(), |known| known.name.clone());
        let (terms, _) = self.terms(&account);
        if let Some(max) = terms.tenants_max.filter(|max| tenants >= *max) {
            return Err(AccountsError::Tenants { account, max });
        }
        if let Some(weight) = claim.weight.filter(|weight| *weight > terms.weight_max) {
            return Err(AccountsError::Weight {
                claimed: weight.get(),
                max: terms.weight_max.get(),
                account,
            });
        }
        let weight = claim
            .weight
            .unwrap_or(claim.default_weight.min(terms.weight_max));
        let mut memory_bytes = claim.memory_bytes;
        if let Some(max) = terms.memory_max_bytes {
            // CAST: at most `max`
            let left = u128::from(max).saturating_sub(claimed_bytes) as u64;
            let claimed = *memory_bytes.get_or_insert(left);
            if claimed > left || left == 0 {
                return Err(AccountsError::Memory {
                    account,
                    claimed,
                    left,
                    max,
                });
            }
        }
        self.account(&account)?;
        if self.owner(name).is_some_and(|owner| *owner != account) {
            self.forget(name);
        }
        if !self.names.contains_key(name) {
            self.make_room()?;
        }
        self.uses += 1;
        let seat = memory_bytes.unwrap_or(0);
        let owned = Owned {
            account: account.clone(),
            seat: Some(seat),
            used: self.uses,
        };
        let is_new = self.names.insert(name.to_owned(), owned).is_none();
        let row = self.account(&account)?;
        row.tenants += 1;
        row.claimed_bytes += u128::from(seat);
        row.names += usize::from(is_new);
        let id = row.id;
        Ok(Granted {
            id,
            account,
            weight,
            memory_bytes,
        })
    }

    /// A tenant has left, or was not taken in after all; its name stays with its account.
    pub fn leave(&mut self, name: &str) {
        let Some(owned) = self.names.get_mut(name) else {
            return;
        };
        let Some(bytes) = owned.seat.take() else {
            return;
        };
        if let Some(account) = self.accounts.get_mut(&owned.account) {
            account.tenants -= 1;
            account.claimed_bytes -= u128::from(bytes);
        }
    }

    /// Frees a name that is not connected; returns the account that it belonged to.
    pub fn forget(&mut self, name: &str) -> Option<AccountId> {
        if self.names.get(name)?.seat.is_some() {
            return None;
        }
        let owned = self.names.remove(name)?;
        let account = self.accounts.get_mut(&owned.account)?;
        account.names -= 1;
        Some(account.id)
    }

    /// Frees the name that was used the longest ago, of the account with the most names that are
    /// not connected, if there are [`NAMES_MAX`].
    fn make_room(&mut self) -> Result<(), AccountsError> {
        if self.names.len() < NAMES_MAX {
            return Ok(());
        }
        // CAST: usize is 64 bits here.
        let absent = |account: &Account| account.names - account.tenants as usize;
        let largest = self.accounts.values().max_by_key(|one| absent(one));
        let of_it = |owned: &Owned| largest.is_some_and(|one| one.name == owned.account);
        let free = self.names.iter().filter(|(_, owned)| owned.seat.is_none());
        let oldest = free
            .filter(|(_, owned)| of_it(owned))
            .min_by_key(|(_, owned)| owned.used)
            .map(|(name, _)| name.clone());
        match oldest {
            Some(name) => {
                self.forget(&name);
                Ok(())
            }
            None => Err(AccountsError::TooManyNames),
        }
    }

    /// Whether [`Self::set`] would take this.
    ///
    /// # Errors
    /// If there are too many accounts, or the account to be forgotten has tenants.
    pub fn check(&self, account: &str, rule: Option<&Rule>) -> Result<(), AccountsError> {
        let known = self.made.contains_key(account);
        match rule {
            Some(_) if !known && self.made.len() >= ACCOUNTS_MAX => {
                Err(AccountsError::TooManyAccounts)
            }
            None => match self.accounts.get(account) {
                Some(row) if row.tenants > 0 => Err(AccountsError::Occupied {
                    account: row.name.clone(),
                    tenants: row.tenants,
                }),
                _ => Ok(()),
            },
            Some(_) => Ok(()),
        }
    }

    /// Sets the entry of an account, in place of the configuration's. None removes it, and frees
    /// the account's names; the configuration's entry then holds again. Returns the names freed.
    ///
    /// # Errors
    /// As [`Self::check`]; then nothing is changed.
    pub fn set(
        &mut self,
        account: &str,
        rule: Option<Rule>,
    ) -> Result<Vec<(AccountId, String)>, AccountsError> {
        self.check(account, rule.as_ref())?;
        if let Some(rule) = rule {
            self.made.insert(account.to_owned(), rule);
            return Ok(Vec::new());
        }
        self.made.remove(account);
        let own = self
            .names
            .iter()
            .filter(|(_, owned)| *owned.account == *account);
        let own: Vec<String> = own.map(|(name, _)| name.clone()).collect();
        let freed = own
            .into_iter()
            .filter_map(|name| Some((self.forget(&name)?, name)))
            .collect();
        self.accounts.remove(account);
        Ok(freed)
    }

    /// Terms of an account that are not those which the policy was last given: it is given these.
    pub(crate) fn take_changed(&mut self, account: &str) -> Option<(AccountId, TenantParams)> {
        let params = self.terms(account).0.params();
        let row = self.accounts.get_mut(account)?;
        (row.in_force.replace(params) != Some(params)).then_some((row.id, params))
    }

    /// The same of all accounts.
    pub(crate) fn take_all_changed(&mut self) -> Vec<(AccountId, TenantParams)> {
        let names: Vec<Arc<str>> = self.accounts.keys().cloned().collect();
        let changed = names.iter().filter_map(|name| self.take_changed(name));
        changed.collect()
    }

    /// An account, if there is one of this name.
    pub fn view(&self, account: &str) -> Option<View> {
        let row = self.accounts.get(account);
        let (entry, origin) = self.terms(account);
        (row.is_some() || origin != Origin::User).then(|| View {
            entry: entry.clone(),
            origin,
            id: row.map(|row| row.id),
            tenants: row.map_or(0, |row| row.tenants),
        })
    }

    /// Accounts of which a tenant has connected, by name: number, terms, and tenants connected.
    pub fn used(&self) -> impl Iterator<Item = (&str, AccountId, &Entry, u32)> {
        let row = |(name, row)| -> (&str, AccountId, &Entry, u32) {
            let (name, row): (&Arc<str>, &Account) = (name, row);
            (name, row.id, self.terms(name).0, row.tenants)
        };
        self.accounts.iter().map(row)
    }

    /// All accounts, by name.
    pub fn views(&self) -> BTreeMap<String, View> {
        let rules = self.rules().map(|(name, _)| name.to_owned());
        let rows = self.accounts.keys().map(|name| name.to_string());
        rules
            .chain(rows)
            .filter_map(|name| Some((name.clone(), self.view(&name)?)))
            .collect()
    }
}

#[cfg(test)]
mod tests;
