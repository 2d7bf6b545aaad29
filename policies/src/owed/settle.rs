//! Charges readings: for one stretch of time between two polls, when its readings are known.
//!
//! A stretch keeps the state at the poll that ended it. So late readings are charged against the
//! parts and the own turn of that time. A stretch with an unknown reading is left out: nothing is
//! owed for it and nothing is charged.

use super::Owed;
use super::account::{Account, Tenant};
use super::alone::{Alone, LOAD_WINDOW, Window};
use super::fraction::Fraction;
use super::look::Measured;
use super::node::{Node, Stretch, Worked, signed};
use super::turn::{Holder, LAG_MAX, LONG_TURN, Sums, TURN};
use std::collections::BTreeMap;
use turnstile_accounting::{AccountId, Moment, Nanos, Reading, TenantId};

/// Readings that are later than this are not waited for: their time is unknown.
const WAIT_MAX: Nanos = Nanos::from_ms(1_000);
/// Loads are compared in windows of which own turns took less than this.
/// SOURCE: simulation `lab corun`.
const CALM_FRACTION: Fraction = Fraction::percent(20);
/// Readings are limited to this multiple of the time that they cover.
const READING_MAX: u64 = 2;

/// Time between two polls.
#[derive(Debug)]
pub(super) struct Past {
    pub(super) since: Moment,
    pub(super) until: Moment,
    holder: Option<Holder>,
    accounts: Vec<AccountPast>,
}

#[derive(Debug)]
struct AccountPast {
    account: AccountId,
    part: Fraction,
    present: bool,
    /// Several of its tenants took part.
    several: bool,
    tenants: Vec<TenantPast>,
}

#[derive(Debug)]
struct TenantPast {
    tenant: TenantId,
    part: Fraction,
    present: bool,
    held: bool,
}

/// The window over which loads are compared.
#[derive(Debug, Default)]
pub(super) struct LoadWindow {
    length: Nanos,
    in_turns: Nanos,
}

impl AccountPast {
    fn of(id: AccountId, account: &Account) -> Self {
        let tenant_past = |(id, tenant): (&TenantId, &Tenant)| TenantPast {
            tenant: *id,
            part: tenant.state.part,
            present: account.is_present(tenant),
            held: tenant.held,
        };
        Self {
            account: id,
            part: account.part,
            present: account.any_present(),
            several: account.live() > 1,
            tenants: account.tenants.iter().map(tenant_past).collect(),
        }
    }
}

/// What one tenant did in a stretch, for its charge.
#[derive(Clone, Copy, Default)]
struct Used {
    worked: Nanos,
    resident: Nanos,
    waited: Nanos,
}

impl Used {
    /// None if neither source has it.
    fn of(reading: &Reading, length: Nanos) -> Option<Self> {
        let most = Nanos(length.0.saturating_mul(READING_MAX));
        let worked = reading.worked.or(reading.resident)?.min(most);
        Some(Self {
            worked,
            resident: reading.resident.unwrap_or(worked).min(most),
            waited: reading.waited.min(length),
        })
    }
}

impl Owed {
    /// Stores the stretch up to this poll until its readings are known.
    pub(super) fn note_past(&mut self, since: Moment, now: Moment) {
        let accounts = self.accounts.iter();
        self.past.push_back(Past {
            since,
            until: now,
            holder: self.turns.holder(),
            accounts: accounts
                .map(|(id, account)| AccountPast::of(*id, account))
                .collect(),
        });
    }

    /// Charges all stretches with known readings. Returns whether one will stay unknown.
    pub(super) fn settle(&mut self, now: Moment, measured: &[Measured<'_>]) -> bool {
        let mut unknown = false;
        for measured in measured {
            // Readings are in order: an older stretch has none.
            while let Some(past) = self.past.pop_front_if(|past| past.until <= measured.until) {
                let readings = (past.until == measured.until).then_some(measured.tenants);
                unknown |= !self.settle_one(&past, readings);
            }
        }
        while let Some(past) = self
            .past
            .pop_front_if(|past| now.since(past.until) > WAIT_MAX)
        {
            unknown |= !self.settle_one(&past, None);
        }
        unknown
    }

    /// Charges one stretch; false if it is unknown.
    fn settle_one(&mut self, past: &Past, readings: Option<&[Reading]>) -> bool {
        let length = past.until.since(past.since);
        self.settled = past.until;
        let Some(used) = readings.and_then(|readings| used(readings, length)) else {
            self.turns.note_unknown(past.until);
            self.restart_windows();
            self.learn_alone();
            return false;
        };
        let mut sums = Sums::default();
        for share in &past.accounts {
            self.settle_account(past, share, length, &used, &mut sums);
        }
        self.turns.add(past.until, sums);
        self.learn_alone();
        let in_turn = past.holder.is_some();
        self.window.length = Nanos(self.window.length.0.saturating_add(length.0));
        if in_turn {
            self.window.in_turns = Nanos(self.window.in_turns.0.saturating_add(length.0));
        }
        if self.window.length >= LOAD_WINDOW {
            self.close_windows();
        }
        true
    }

    fn settle_account(
        &mut self,
        past: &Past,
        share: &AccountPast,
        length: Nanos,
        all: &BTreeMap<TenantId, Used>,
        sums: &mut Sums,
    ) {
        let turn = self.turn_length();
        let Some(account) = self.accounts.get_mut(&share.account) else {
            return;
        };
        let in_turn_of_account = past.holder.is_some_and(|h| h.account() == share.account);
        let mut account_worked = Nanos::ZERO;
        for own in &share.tenants {
            let used = all.get(&own.tenant).copied().unwrap_or_default();
            let admitted = past
                .holder
                .is_some_and(|h| h.admits(share.account, own.tenant));
            add(&mut account_worked, used.worked);
            if admitted {
                add(&mut sums.worked, used.worked);
                add(&mut sums.resident, used.resident);
            } else {
                add(&mut sums.others, used.resident);
            }
            let Some(tenant) = account.tenants.get_mut(&own.tenant) else {
                continue;
            };
            let before = tenant.node.owed;
            let stretch = Stretch {
                length,
                part: own.part,
                present: own.present,
                in_own_turn: admitted,
                worked: Worked::Read(used.worked),
                turn,
            };
            charge(&mut tenant.node, &stretch, used.worked);
            tenant.node.load.add(used.worked, used.waited);
            let free = if own.held { Nanos::ZERO } else { length };
            tenant.usage.add(used.resident, free);
            if let Some(credit) = &mut tenant.kind.credit {
                credit.pass(length, own.part, used.resident);
            }
            let (change, successor) = (tenant.node.owed.saturating_sub(before), tenant.successor);
            pass_on(account, successor, change, turn);
        }
        let worked = if in_turn_of_account && share.several {
            Worked::Alone
        } else {
            Worked::Read(account_worked)
        };
        let stretch = Stretch {
            length,
            part: share.part,
            present: share.present,
            in_own_turn: in_turn_of_account,
            worked,
            turn,
        };
        let before = account.node.owed;
        charge(&mut account.node, &stretch, account_worked);
        if share.part == Fraction::ONE {
            // What the only account did not work was taken by changes between its own tenants.
            account.node.owed = account.node.owed.min(before.max(0));
        }
        account.node.load.add(account_worked, Nanos::ZERO);
    }

    /// Takes the measurements of own turns, once all their readings are known.
    pub(super) fn learn_alone(&mut self) {
        while let Some((holder, measured)) = self.turns.measured(self.settled) {
            if let Some(measured) = measured {
                self.learn(holder, measured);
            }
        }
    }

    fn learn(&mut self, holder: Holder, measured: Alone) {
        let Some(account) = self.accounts.get_mut(&holder.account()) else {
            return;
        };
        match holder {
            Holder::Tenant(_, id) => {
                if let Some(tenant) = account.tenants.get_mut(&id) {
                    tenant.node.learn(measured);
                }
            }
            Holder::Account(_) => {
                account.node.learn(measured);
                let mut tenants = account.tenants.values_mut().filter(|t| t.is_connected());
                if let (Some(only), None) = (tenants.next(), tenants.next()) {
                    only.node.learn(measured);
                }
            }
        }
    }

    fn close_windows(&mut self) {
        let window = Window {
            length: self.window.length,
            calm: self.window.in_turns < CALM_FRACTION.of(self.window.length),
        };
        for account in self.accounts.values_mut() {
            let waited = account.tenants.values().map(|t| t.node.load.waited).max();
            account.node.load.waited = waited.unwrap_or(Nanos::ZERO);
            account.node.close_window(window);
            for tenant in account.tenants.values_mut() {
                tenant.node.close_window(window);
                tenant.usage.close_window();
            }
        }
        self.window = LoadWindow::default();
    }

    fn restart_windows(&mut self) {
        for account in self.accounts.values_mut() {
            account.node.load.restart();
            account
                .tenants
                .values_mut()
                .for_each(|t| t.node.load.restart());
        }
        self.window = LoadWindow::default();
    }

    /// Length of an own turn: longer if readings are late.
    pub(super) fn turn_length(&self) -> Nanos {
        if self.lag > LAG_MAX { LONG_TURN } else { TURN }
    }
}

/// What each tenant did; none if one of them is unknown.
fn used(readings: &[Reading], length: Nanos) -> Option<BTreeMap<TenantId, Used>> {
    let used = |reading: &Reading| Some((reading.tenant, Used::of(reading, length)?));
    readings.iter().map(used).collect()
}

fn charge(node: &mut Node, stretch: &Stretch, worked: Nanos) {
    node.settle(stretch);
    if let Some(quota) = &mut node.quota {
        quota.charge(worked);
    }
}

/// Charges a tenant that returned under its name for what it did before it left.
fn pass_on(account: &mut Account, mut to: Option<TenantId>, change: i64, turn: Nanos) {
    while let Some(tenant) = to.and_then(|id| account.tenants.get_mut(&id)) {
        let owed = tenant.node.owed.saturating_add(change.min(0));
        tenant.node.owed = owed.max(-signed(turn)).min(tenant.node.owed);
        to = tenant.successor;
    }
}

fn add(sum: &mut Nanos, length: Nanos) {
    sum.0 = sum.0.saturating_add(length.0);
}
