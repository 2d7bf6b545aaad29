//! Accounts of the host: the book, what the policy gets of it, and the totals of each account.

use std::collections::BTreeMap;

use serde::Serialize;
use turnstile_accounting::{AccountId, Nanos, TenantId, ledger};
use turnstile_policies::{Cap, Weight};

use super::settings::SettingsError;
use super::{Host, State, split};
use crate::accounts::{AccountsError, Book, Claim, Entry, Granted, Rule, View, of_user};
use crate::error::UserError;

/// Account of a tenant that the book does not know: one that a test makes.
const UNKNOWN: AccountId = AccountId(0);

/// Entries of the configuration and of a state file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountsConfig {
    /// Accounts of the configuration, in its order.
    pub entries: Vec<(String, Entry)>,
    /// Accounts of vfio-user fronts' tenants, by tenant.
    pub fronts: BTreeMap<String, String>,
    /// Accounts that the API made, as a state file has them.
    pub made: BTreeMap<String, Entry>,
    /// Names that belong to accounts, as a state file has them.
    pub names: BTreeMap<String, String>,
}

/// What tenants were charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Charged {
    compute_ns: Nanos,
    copy_ns: Nanos,
    copy_bytes: Option<u64>,
}

impl Charged {
    fn add(&mut self, totals: &ledger::TenantSnapshot) {
        let (compute, copy) = split(&totals.engines);
        self.compute_ns += compute.used_ns;
        self.copy_ns += copy.used_ns;
        if let Some(bytes) = totals.copy_bytes {
            *self.copy_bytes.get_or_insert_default() += bytes;
        }
    }
}

/// The book, and what tenants that have left were charged.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    pub(crate) book: Book,
    past: BTreeMap<AccountId, Charged>,
    /// Counts up when a state file has to be written anew.
    changes: u64,
}

/// An account in a [`super::HostSnapshot`]: one of which a tenant has connected.
#[derive(Clone, Debug, Serialize)]
pub struct AccountSnapshot {
    /// Number in this run of the daemon.
    pub id: AccountId,
    /// Name.
    pub name: String,
    /// Share relative to other accounts.
    pub weight: u32,
    /// Upper limit of its tenants together.
    pub cap: Option<Cap>,
    /// Tenants connected.
    pub tenants: u32,
    /// Compute time charged since the daemon began, tenants that have left included.
    pub compute_ns: Nanos,
    /// Copy time charged, likewise.
    pub copy_ns: Nanos,
    /// Bytes that copy engines moved in that time, where the GPU counts them.
    pub copy_bytes: Option<u64>,
}

/// Finds the number of the entry's user; calls the host's name service, which may block.
///
/// # Errors
/// If the name service knows no such user, or fails.
pub fn resolve(entry: Entry) -> Result<Rule, UserError> {
    let Some(user) = &entry.user else {
        return Ok(Rule { entry, uid: None });
    };
    let refused = |why: String| UserError {
        user: user.clone(),
        why,
    };
    let uid = match user.parse() {
        Ok(uid) => uid,
        Err(_) => nix::unistd::User::from_name(user)
            .map_err(|errno| refused(format!("the name service failed ({errno})")))?
            .ok_or_else(|| refused("the name service knows no such user".to_owned()))?
            .uid
            .as_raw(),
    };
    let uid = Some(uid);
    Ok(Rule { entry, uid })
}

/// Finds the numbers of the users of all entries.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_all(entries: Vec<(String, Entry)>) -> Result<Vec<(String, Rule)>, UserError> {
    let rule = |(name, entry)| Ok((name, resolve(entry)?));
    entries.into_iter().map(rule).collect()
}

impl Accounts {
    /// Number and name of the account that a tenant's name belongs to.
    pub(crate) fn of(&self, name: &str) -> (AccountId, String) {
        let owner = self.book.owner(name);
        let id = owner.and_then(|owner| self.book.id(owner));
        match (id, owner) {
            (Some(id), Some(owner)) => (id, owner.to_string()),
            _ => (UNKNOWN, of_user(rustix::process::geteuid().as_raw())),
        }
    }
}

impl State {
    /// A tenant is about to be admitted: its account grants its claim, or refuses it.
    pub(crate) fn join(
        &mut self,
        name: &str,
        uid: u32,
        claim: Claim,
    ) -> Result<Granted, AccountsError> {
        let known = self.accounts.book.owner(name).cloned();
        let granted = self.accounts.book.join(name, uid, claim)?;
        if known.as_ref() != Some(&granted.account) {
            self.accounts.changes += 1;
        }
        if let Some((id, params)) = self.accounts.book.take_changed(&granted.account) {
            self.mediation.set_account(id, params);
        }
        Ok(granted)
    }

    /// A tenant's last window is closed: what it was charged stays with its account.
    pub(crate) fn settle(&mut self, tenant: TenantId, account: AccountId) {
        let totals = self.mediation.ledger().tenant(tenant);
        self.accounts.past.entry(account).or_default().add(&totals);
        self.departed.settle(tenant, &totals);
        self.mediation.settle(tenant);
    }

    /// Gives the policy the terms that have changed.
    fn apply_terms(&mut self) {
        for (id, params) in self.accounts.book.take_all_changed() {
            self.mediation.set_account(id, params);
        }
    }

    /// Accounts of which a tenant has connected, and what they were charged.
    pub(crate) fn account_snapshots(&self) -> Vec<AccountSnapshot> {
        let mut charged = self.accounts.past.clone();
        let leaving = self.leaving.iter().map(|gone| (gone.tenant, gone.account));
        let present = self
            .tenants
            .iter()
            .map(|(id, tenant)| (*id, tenant.account.0));
        for (tenant, account) in leaving.chain(present) {
            let totals = self.mediation.ledger().tenant(tenant);
            charged.entry(account).or_default().add(&totals);
        }
        let shown = |(name, id, entry, tenants): (&str, AccountId, &Entry, u32)| {
            let charged = charged.get(&id).copied().unwrap_or_default();
            AccountSnapshot {
                id,
                name: name.to_owned(),
                weight: entry.weight.get(),
                cap: entry.cap,
                tenants,
                compute_ns: charged.compute_ns,
                copy_ns: charged.copy_ns,
                copy_bytes: charged.copy_bytes,
            }
        };
        self.accounts.book.used().map(shown).collect()
    }
}

impl Host {
    /// Takes accounts over when the daemon begins and no tenant is there.
    ///
    /// # Errors
    /// If a user of the configuration is not known on this host.
    pub(crate) fn begin_accounts(&self, config: AccountsConfig) -> Result<(), UserError> {
        let AccountsConfig {
            entries,
            fronts,
            made,
            names,
        } = config;
        let rule = |(name, entry): (String, Entry)| {
            let unknown = Rule {
                entry: entry.clone(),
                uid: None,
            };
            let rule = resolve(entry).unwrap_or_else(|error| {
                log::warn!("Account {name} of the state file matches no tenant: {error}");
                unknown
            });
            (name, rule)
        };
        let made = made.into_iter().map(rule).collect();
        self.configure_accounts(resolve_all(entries)?, fronts);
        self.lock().accounts.book.restore(made, names);
        Ok(())
    }

    /// Takes the accounts of a configuration in place of those before. Tenants that are connected
    /// stay in their accounts; new terms apply at the next decision.
    pub fn configure_accounts(
        &self,
        entries: Vec<(String, Rule)>,
        fronts: BTreeMap<String, String>,
    ) {
        let uid = rustix::process::geteuid().as_raw();
        let mut state = self.lock();
        state.accounts.book.configure(entries, fronts, uid);
        state.apply_terms();
    }

    /// All accounts by name: those of entries, and those of which a tenant has connected.
    pub fn accounts(&self) -> BTreeMap<String, View> {
        self.lock().accounts.book.views()
    }

    /// What a state file keeps of accounts: entries of the API, and names with their accounts.
    pub fn kept_accounts(&self) -> (BTreeMap<String, Entry>, BTreeMap<String, String>) {
        let state = self.lock();
        (state.accounts.book.made(), state.accounts.book.names())
    }

    /// Counts up when [`Self::kept_accounts`] changes.
    pub fn account_changes(&self) -> u64 {
        self.lock().accounts.changes
    }

    /// The account that a tenant's name belongs to, if it belongs to one.
    pub fn owner(&self, name: &str) -> Option<String> {
        let state = self.lock();
        state
            .accounts
            .book
            .owner(name)
            .map(|owner| owner.to_string())
    }

    /// A tenant of this name is on another GPU: here the name belongs to its account as well.
    pub(crate) fn learn_name(&self, name: &str, account: &str) {
        self.lock().accounts.book.learn(name, account);
    }

    /// A VM of this name was declared with an account; without one, the declaration is gone.
    pub(crate) fn declare_account(&self, name: &str, account: Option<&String>) {
        let declared = &mut self.lock().accounts.book.declared;
        match account {
            Some(account) => declared.insert(name.to_owned(), account.clone()),
            None => declared.remove(name),
        };
    }

    /// Frees a tenant's name, unless it is connected.
    pub fn forget_name(&self, name: &str) {
        let mut state = self.lock();
        if let Some(account) = state.accounts.book.forget(name) {
            state.mediation.forget_name(account, name);
            state.accounts.changes += 1;
        }
    }

    /// Whether the policy knows what an entry sets.
    ///
    /// # Errors
    /// If it knows no weights, or no caps.
    pub fn check_terms(&self, entry: &Entry) -> Result<(), SettingsError> {
        let weight = (entry.weight != Weight::DEFAULT).then_some(entry.weight);
        self.check_policy(weight, entry.cap)
    }

    /// Whether [`Self::set_account`] would take this.
    ///
    /// # Errors
    /// Why not.
    pub fn check_account(&self, name: &str, rule: Option<&Rule>) -> Result<(), AccountsError> {
        self.lock().accounts.book.check(name, rule)
    }

    /// Sets the entry of an account in place of the configuration's; its terms apply at the next
    /// decision, its matches to tenants that connect from now on. None removes the entry, and frees
    /// the names of the account.
    ///
    /// # Errors
    /// As [`Self::check_account`]; then nothing is changed.
    pub fn set_account(&self, name: &str, rule: Option<Rule>) -> Result<(), AccountsError> {
        let mut state = self.lock();
        let id = state.accounts.book.view(name).and_then(|view| view.id);
        let forgotten = rule.is_none();
        for (account, name) in state.accounts.book.set(name, rule)? {
            state.mediation.forget_name(account, &name);
        }
        if let Some(id) = id.filter(|_| forgotten) {
            state.accounts.past.remove(&id);
        }
        state.accounts.changes += 1;
        state.apply_terms();
        Ok(())
    }
}

#[cfg(test)]
#[path = "accounts_tests.rs"]
mod tests;
