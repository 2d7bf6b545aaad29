//! What an operator sets, on each GPU of a fleet: settings, accounts, names, debts.
//!
//! In: a configuration, a state file, writes of the API. Out: the same on each [`Host`], or an
//! error of the first that refuses, and then nothing is changed.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::Ordering;

use turnstile_policies::Weight;

use super::{Fleet, Member};
use crate::accounts::{AccountsError, Entry as Terms, Rule as AccountRule, View};
use crate::error::UserError;
use crate::host::accounts::AccountsConfig;
use crate::host::debts::KeptDebt;
use crate::host::settings::{Settings, SettingsError};

impl Fleet {
    /// Takes accounts over when the daemon begins and no tenant is there.
    ///
    /// # Errors
    /// If a user of the configuration is not known on this host.
    pub(crate) fn begin_accounts(&self, config: &AccountsConfig) -> Result<(), UserError> {
        self.hosts()
            .try_for_each(|host| host.begin_accounts(config.clone()))
    }

    /// Takes settings over when the daemon begins and no tenant is there.
    pub(crate) fn restore_settings(&self, settings: &BTreeMap<String, Settings>) {
        self.hosts()
            .for_each(|host| host.lock().settings.clone_from(settings));
    }

    /// Takes debts over when the daemon begins: each where its GPU is, or on the first.
    pub(crate) fn restore_debts(&self, debts: Vec<KeptDebt>) {
        let mut of: Vec<Vec<KeptDebt>> = vec![Vec::new(); self.members.len()];
        for debt in debts {
            let is = |member: &Member| Some(&member.identity.gpu) == debt.gpu.as_ref();
            let gpu = self.members.iter().position(is).unwrap_or(0);
            of[gpu].push(debt);
        }
        for (host, debts) in self.hosts().zip(of) {
            host.lock().accounts.debts.restore(debts);
        }
    }

    /// Debts for the next run of the daemon.
    pub fn debts(&self) -> Vec<KeptDebt> {
        let of = |member: &Member| {
            let gpu = Some(member.identity.gpu.clone());
            let debts = member.host.debts().into_iter();
            debts.map(move |debt| KeptDebt {
                gpu: gpu.clone(),
                ..debt
            })
        };
        self.members.iter().flat_map(of).collect()
    }

    /// Takes accounts of a configuration in place of those before: see
    /// [`Host::configure_accounts`].
    pub fn configure_accounts(
        &self,
        entries: &[(String, AccountRule)],
        fronts: &BTreeMap<String, String>,
    ) {
        for host in self.hosts() {
            host.configure_accounts(entries.to_vec(), fronts.clone());
        }
    }

    /// Sets the weight of tenants that name none and connect from now on.
    pub fn set_default_weight(&self, weight: Weight) {
        self.hosts()
            .for_each(|host| host.set_default_weight(weight));
    }

    /// Whether [`Self::set_settings`] would take this.
    ///
    /// # Errors
    /// Why not, on the first GPU that refuses.
    pub fn check_settings(
        &self,
        name: &str,
        settings: Option<&Settings>,
    ) -> Result<(), SettingsError> {
        self.hosts()
            .try_for_each(|host| host.check_settings(name, settings))
    }

    /// Sets what is set of a tenant, on the GPU that it is on or will be placed on.
    ///
    /// # Errors
    /// As [`Self::check_settings`]; then nothing is changed.
    pub fn set_settings(
        &self,
        name: &str,
        settings: Option<Settings>,
    ) -> Result<(), SettingsError> {
        self.check_settings(name, settings.as_ref())?;
        self.hosts()
            .try_for_each(|host| host.set_settings(name, settings.clone()))
    }

    /// Frees a tenant's name, unless it is connected.
    pub fn forget_name(&self, name: &str) {
        self.hosts().for_each(|host| host.forget_name(name));
    }

    /// All accounts by name, with their tenants on all GPUs.
    pub fn accounts(&self) -> BTreeMap<String, View> {
        let mut all = BTreeMap::new();
        for (name, view) in self.hosts().flat_map(|host| host.accounts()) {
            match all.entry(name) {
                Entry::Vacant(free) => {
                    free.insert(view);
                }
                Entry::Occupied(mut first) => first.get_mut().tenants += view.tenants,
            }
        }
        all
    }

    /// Whether the policies know what an entry of an account sets.
    ///
    /// # Errors
    /// If one knows no weights, or no caps.
    pub fn check_terms(&self, entry: &Terms) -> Result<(), SettingsError> {
        self.hosts().try_for_each(|host| host.check_terms(entry))
    }

    /// Whether [`Self::set_account`] would take this.
    ///
    /// # Errors
    /// Why not, on the first GPU that refuses.
    pub fn check_account(
        &self,
        name: &str,
        rule: Option<&AccountRule>,
    ) -> Result<(), AccountsError> {
        self.hosts()
            .try_for_each(|host| host.check_account(name, rule))
    }

    /// Sets the entry of an account on each GPU: see [`Host::set_account`].
    ///
    /// # Errors
    /// As [`Self::check_account`]; then nothing is changed.
    pub fn set_account(&self, name: &str, rule: Option<&AccountRule>) -> Result<(), AccountsError> {
        self.check_account(name, rule)?;
        self.hosts()
            .try_for_each(|host| host.set_account(name, rule.cloned()))
    }

    /// Counts up when [`Host::kept_accounts`] of a GPU changes, or [`Self::kept_vms`].
    pub fn kept_changes(&self) -> u64 {
        let accounts: u64 = self
            .hosts()
            .map(|host| host.lock().accounts.changes())
            .sum();
        accounts + self.declared_changes.load(Ordering::Relaxed)
    }
}
