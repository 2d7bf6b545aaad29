//! What accounts and tenants are ahead by, over a restart of the daemon.
//!
//! - In: debts of an earlier run, by name ([`Debts::restore`]).
//! - Out: debts of this run, and those that no tenant has come back for ([`Debts::with_present`]).
//! - Invariant: a debt is in force before the first decision about its tenant, once.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use turnstile_accounting::{AccountId, EngineId, Moment, Nanos};
use turnstile_mediation::Mediation;
use turnstile_policies::Debt;

use crate::accounts::Book;

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

/// Debts of an earlier run that no tenant has come back for.
#[derive(Debug, Default)]
pub(crate) struct Debts(pub(super) Vec<KeptDebt>);

impl Debts {
    /// Takes debts over when the daemon begins and no tenant is there.
    pub(crate) fn restore(&mut self, mut debts: Vec<KeptDebt>) {
        debts.truncate(DEBTS_MAX);
        self.0 = debts;
    }

    /// A tenant is about to be added: its debt, and its account's, are in force again.
    pub(crate) fn owe(
        &mut self,
        mediation: &mut Mediation,
        account: &(AccountId, String),
        tenant: &str,
        now: Moment,
    ) {
        let is_own = |debt: &KeptDebt| {
            let named = debt.tenant.as_deref().is_none_or(|name| name == tenant);
            debt.account == account.1 && named
        };
        for kept in self.0.extract_if(.., |debt| is_own(debt)) {
            let debt = Debt {
                account: account.0,
                name: kept.tenant.map(Arc::from),
                ahead_ns: Nanos(kept.ahead_ns),
            };
            mediation.owe(EngineId(kept.engine), &debt, now);
        }
    }

    /// Those, and the debts of this run.
    pub(crate) fn with_present(&self, book: &Book, mediation: &Mediation) -> Vec<KeptDebt> {
        let names: BTreeMap<AccountId, &str> = book.used().map(|row| (row.1, row.0)).collect();
        let mut debts = self.0.clone();
        for (engine, debt) in mediation.debts() {
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
