//! What accounts and tenants are ahead by, over a restart of the daemon.
//!
//! - In: debts of an earlier run, by name ([`Host::restore_debts`]).
//! - Out: debts of this run, and those that no tenant has come back for ([`Host::debts`]).
//! - Invariant: a debt is in force before the first decision about its tenant, once.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use turnstile_accounting::{AccountId, EngineId, Moment, Nanos};
use turnstile_policies::Debt;

use super::{Host, State};

/// Debts that are kept; a daemon has fewer names.
const DEBTS_MAX: usize = 16_384;

/// A debt by name, for a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptDebt {
    /// Identity of the GPU; none in files of a daemon that had one GPU.
    #[serde(default)]
    pub gpu: Option<String>,
    /// Engine.
    pub engine: u8,
    /// Account.
    pub account: String,
    /// Tenant; none for the account as a whole.
    pub tenant: Option<String>,
    /// Service at the default weight, in nanoseconds.
    pub ahead_ns: u64,
}

impl State {
    /// A tenant is about to be added: its debt, and its account's, are in force again.
    pub(crate) fn owe(&mut self, account: &(AccountId, String), tenant: &str, now: Moment) {
        let is_own = |debt: &KeptDebt| {
            let named = debt.tenant.as_deref().is_none_or(|name| name == tenant);
            debt.account == account.1 && named
        };
        for kept in self.debts.extract_if(.., |debt| is_own(debt)) {
            let debt = Debt {
                account: account.0,
                name: kept.tenant.map(Arc::from),
                ahead_ns: Nanos(kept.ahead_ns),
            };
            self.mediation.owe(EngineId(kept.engine), &debt, now);
        }
    }
}

impl Host {
    /// Takes debts over when the daemon begins and no tenant is there.
    pub(crate) fn restore_debts(&self, mut debts: Vec<KeptDebt>) {
        debts.truncate(DEBTS_MAX);
        self.lock().debts = debts;
    }

    /// Debts for the next run of the daemon.
    pub fn debts(&self) -> Vec<KeptDebt> {
        let state = self.lock();
        let used = state.accounts.book.used();
        let names: BTreeMap<AccountId, &str> = used.map(|row| (row.1, row.0)).collect();
        let mut debts = state.debts.clone();
        for (engine, debt) in state.mediation.debts() {
            if let Some(account) = names.get(&debt.account) {
                debts.push(KeptDebt {
                    gpu: None,
                    engine: engine.0,
                    account: (*account).to_owned(),
                    tenant: debt.name.map(|name| name.to_string()),
                    ahead_ns: debt.ahead_ns.0,
                });
            }
        }
        debts
    }
}
