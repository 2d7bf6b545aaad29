//! Accounts of the host: the book, what the policy gets of it, and the totals of each account.

use std::collections::BTreeMap;

use serde::Serialize;
use turnstile_accounting::{AccountId, Ledger, Nanos, TenantId, ledger};
use turnstile_mediation::Mediation;
use turnstile_policies::Cap;

use super::debts::Debts;
use super::split;
use crate::accounts::{AccountsError, Book, Claim, Entry, Granted, Rule, of_user};
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
    pub(crate) debts: Debts,
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

    /// A tenant is about to be admitted: its account grants its claim, or refuses it.
    pub(crate) fn join(
        &mut self,
        mediation: &mut Mediation,
        name: &str,
        uid: u32,
        claim: Claim,
    ) -> Result<Granted, AccountsError> {
        let known = self.book.owner(name).cloned();
        let granted = self.book.join(name, uid, claim)?;
        if known.as_ref() != Some(&granted.account) {
            self.changes += 1;
        }
        if let Some((id, params)) = self.book.take_changed(&granted.account) {
            mediation.set_account(id, params);
        }
        Ok(granted)
    }

    /// What a tenant was charged in all stays with its account.
    pub(crate) fn settle(&mut self, account: AccountId, totals: &ledger::TenantSnapshot) {
        self.past.entry(account).or_default().add(totals);
    }

    /// Gives the policy the terms that have changed.
    fn apply_terms(&mut self, mediation: &mut Mediation) {
        for (id, params) in self.book.take_all_changed() {
            mediation.set_account(id, params);
        }
    }

    /// Takes the accounts of a configuration in place of those before. Tenants that are connected
    /// stay in their accounts; new terms apply at the next decision.
    pub(crate) fn configure(
        &mut self,
        mediation: &mut Mediation,
        entries: Vec<(String, Rule)>,
        fronts: BTreeMap<String, String>,
    ) {
        let uid = rustix::process::geteuid().as_raw();
        self.book.configure(entries, fronts, uid);
        self.apply_terms(mediation);
    }

    /// What a state file keeps: entries of the API, and names with their accounts.
    pub(crate) fn kept(&self) -> (BTreeMap<String, Entry>, BTreeMap<String, String>) {
        (self.book.made(), self.book.names())
    }

    /// Counts up when [`Self::kept`] changes.
    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// A VM of this name was declared with an account; without one, the declaration is gone.
    pub(crate) fn declare(&mut self, name: &str, account: Option<&String>) {
        let declared = &mut self.book.declared;
        match account {
            Some(account) => declared.insert(name.to_owned(), account.clone()),
            None => declared.remove(name),
        };
    }

    /// Frees a tenant's name, unless it is connected.
    pub(crate) fn forget_name(&mut self, mediation: &mut Mediation, name: &str) {
        if let Some(account) = self.book.forget(name) {
            mediation.forget_name(account, name);
            self.changes += 1;
        }
    }

    /// Sets the entry of an account, or removes it: see [`super::Host::set_account`].
    pub(crate) fn set(
        &mut self,
        mediation: &mut Mediation,
        name: &str,
        rule: Option<Rule>,
    ) -> Result<(), AccountsError> {
        let id = self.book.view(name).and_then(|view| view.id);
        let forgotten = rule.is_none();
        for (account, name) in self.book.set(name, rule)? {
            mediation.forget_name(account, &name);
        }
        if let Some(id) = id.filter(|_| forgotten) {
            self.past.remove(&id);
        }
        self.changes += 1;
        self.apply_terms(mediation);
        Ok(())
    }

    /// Accounts of which a tenant has connected, and what they were charged: in the past, and those
    /// of `tenants` in `ledger`.
    pub(crate) fn snapshots(
        &self,
        ledger: &Ledger,
        tenants: impl Iterator<Item = (TenantId, AccountId)>,
    ) -> Vec<AccountSnapshot> {
        let mut charged = self.past.clone();
        for (tenant, account) in tenants {
            let totals = ledger.tenant(tenant);
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
        self.book.used().map(shown).collect()
    }
}

/// Finds the numbers of the users of a state file's entries. An entry of an unknown user matches
/// no tenant.
pub(crate) fn resolve_made(made: BTreeMap<String, Entry>) -> BTreeMap<String, Rule> {
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
    made.into_iter().map(rule).collect()
}

#[cfg(test)]
#[path = "accounts_tests.rs"]
mod tests;
