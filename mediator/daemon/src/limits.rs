//! Bounds of what a tenant, an account and all accounts together can make the daemon hold.
//!
//! In: a [`Holder`] and an amount of a [`Resource`]. Out: a [`Held`] until it is dropped, or a
//! [`LimitError`] that names the bound. [`rows`] is the one table: each resource is one row.
//!
//! Invariants: what is in use never exceeds a bound. A row's bound for one account is at most half
//! of the bound for all. The last quarter of each row is for root and the daemon's own user. A row
//! with a rate is emptied each minute; what was taken of it is never given back before.
//!
//! Callers: admission, mailboxes, memory, connections and log lines of the daemon; the API for its
//! connections and streams. The lock is an innermost one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use turnstile_accounting::TenantId;
use utoipa::ToSchema;

/// What can be held: an index into the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// Bytes of the daemon's address space that map guest memory.
    GuestMemory,
    /// Bytes of module text, with what its compiled form can take.
    Modules,
    /// Channels, allocations and modules; processes and clients of programs.
    Objects,
    /// Connections of VMMs and launchers.
    Connections,
    /// VMs that are being admitted, each on a thread.
    Admissions,
    /// Mailbox requests and changes of memory that wait or are served.
    Requests,
    /// Lines in the daemon's log, a minute.
    LogLines,
    /// Connections to the API.
    ApiConnections,
    /// Streams of events and samples.
    EventStreams,
}

/// Number of rows.
const ROWS: usize = 9;

/// Bytes that a module can take for each byte of its text: the text, and its compiled form.
/// `cargo test -p turnstile-ptx --test memory` measures the largest factor of dense texts.
pub const MODULE_EXPANSION: u64 = 24;

/// Bytes that a module can take beside that while it is loaded: the image of its variables, which
/// then moves to GPU memory.
pub const MODULE_IMAGE_BYTES: u64 = 16 << 20;

/// Interval after which rows with a rate are emptied.
const RATE_INTERVAL: Duration = Duration::from_secs(60);

/// One resource and its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The resource.
    pub resource: Resource,
    /// Its name in metrics and in the API.
    pub name: &'static str,
    /// What is counted, as an error text has it.
    pub unit: &'static str,
    /// Bounds for one tenant, one account or API client, and all.
    pub tenant: u64,
    /// For one account or API client.
    pub account: u64,
    /// For all.
    pub all: u64,
    /// Whether the bounds are for a minute.
    pub per_minute: bool,
}

/// The table, for a host of `tenants_max` tenants.
pub fn rows(tenants_max: u64) -> [Row; ROWS] {
    use Resource as R;
    const MIB: u64 = 1 << 20;
    const TIB: u64 = 1 << 40;
    let row = |resource, name, unit, tenant, account, all| Row {
        resource,
        name,
        unit,
        tenant,
        account,
        all,
        per_minute: false,
    };
    let connections = (4 * tenants_max).max(1_024);
    let requests = (4 * tenants_max).max(1_024);
    [
        // A process has 128 TiB of addresses.
        row(
            R::GuestMemory,
            "guest_memory_bytes",
            "bytes of mapped guest memory",
            4 * TIB,
            16 * TIB,
            64 * TIB,
        ),
        row(
            R::Modules,
            "module_bytes",
            "bytes of modules and their compiled form",
            512 * MIB,
            1_024 * MIB,
            4_096 * MIB,
        ),
        row(
            R::Objects,
            "objects",
            "channels, allocations, modules and driver clients",
            16_384,
            65_536,
            262_144,
        ),
        row(
            R::Connections,
            "connections",
            "connections",
            connections / 2,
            connections / 2,
            connections,
        ),
        row(R::Admissions, "admissions", "VMs in admission", 1, 32, 64),
        row(
            R::Requests,
            "requests",
            "queued requests",
            4,
            requests / 2,
            requests,
        ),
        Row {
            per_minute: true,
            ..row(R::LogLines, "log_lines", "log lines a minute", 10, 60, 240)
        },
        row(
            R::ApiConnections,
            "api_connections",
            "API connections",
            32,
            32,
            128,
        ),
        row(
            R::EventStreams,
            "event_streams",
            "event streams",
            16,
            16,
            64,
        ),
    ]
}

/// The account and the tenant for which an amount counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Name of the account, or of the API client.
    pub account: Arc<str>,
    /// The tenant, if the amount is a tenant's.
    pub tenant: Option<TenantId>,
    /// Whether it is of root or of the daemon's own user, for which the last quarter is kept.
    pub trusted: bool,
}

/// Whether a Unix user is root or the daemon's own.
pub fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// A bound that a request would pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{scope} has {used} {unit} and requests {wanted} more; the bound is {max}")]
pub struct LimitError {
    /// Which bound: the tenant's, the account's, or the host's.
    pub scope: String,
    /// In use.
    pub used: u64,
    /// Requested.
    pub wanted: u64,
    /// The bound.
    pub max: u64,
    /// What is counted.
    pub unit: &'static str,
}

/// What is in use of each row.
type Counts = [u64; ROWS];

#[derive(Debug, Default)]
struct Used {
    tenants: BTreeMap<TenantId, Counts>,
    accounts: BTreeMap<Arc<str>, Counts>,
    all: Counts,
    refused: Counts,
    /// When the rows with a rate are emptied.
    emptied: Option<Instant>,
}

/// Counts what is held, and refuses what is beyond a bound.
#[derive(Debug)]
pub struct Limits {
    rows: [Row; ROWS],
    used: Mutex<Used>,
}

/// An amount that is held; dropping it gives the amount back.
#[derive(Debug)]
pub struct Held {
    limits: Arc<Limits>,
    holder: Holder,
    row: usize,
    amount: u64,
}

/// What is in use of a row, and its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Amount {
    /// In use.
    pub used: u64,
    /// The bound.
    pub max: u64,
}

/// Amounts by the name of the resource.
pub type Amounts = BTreeMap<&'static str, Amount>;

/// What all hold.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LimitsSnapshot {
    /// All together.
    pub all: Amounts,
    /// Each account or API client that holds something.
    pub accounts: BTreeMap<Arc<str>, Amounts>,
    /// Requests that were refused so far.
    pub refused: BTreeMap<&'static str, u64>,
}

impl Limits {
    /// Nothing is held.
    pub fn new(rows: [Row; ROWS]) -> Arc<Self> {
        let used = Mutex::default();
        Arc::new(Self { rows, used })
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an amount for a holder, until the result is dropped.
    ///
    /// # Errors
    /// The bound of the tenant, of the account or of all that it would pass.
    pub fn take(
        self: &Arc<Self>,
        resource: Resource,
        holder: &Holder,
        amount: u64,
    ) -> Result<Held, LimitError> {
        let row = resource as usize;
        self.used().add(&self.rows[row], holder, amount)?;
        Ok(Held {
            limits: self.clone(),
            holder: holder.clone(),
            row,
            amount,
        })
    }

    /// Takes one of a row with a rate; false if this minute's are used up.
    pub fn permits(&self, resource: Resource, holder: &Holder, now: Instant) -> bool {
        let mut used = self.used();
        if used
            .emptied
            .is_none_or(|at| now.saturating_duration_since(at) >= RATE_INTERVAL)
        {
            used.emptied = Some(now);
            for row in self.rows.iter().filter(|row| row.per_minute) {
                used.empty(row.resource as usize);
            }
        }
        used.add(&self.rows[resource as usize], holder, 1).is_ok()
    }

    /// What a tenant holds.
    pub fn of_tenant(&self, tenant: TenantId) -> Amounts {
        let used = self.used();
        let counts = used.tenants.get(&tenant).copied().unwrap_or_default();
        self.amounts(&counts, |row| row.tenant)
    }

    /// What all hold.
    pub fn snapshot(&self) -> LimitsSnapshot {
        let used = self.used();
        let accounts = used.accounts.iter();
        let account = |(name, counts): (&Arc<str>, &Counts)| {
            (name.clone(), self.amounts(counts, |row| row.account))
        };
        let refused = self.rows.iter().zip(used.refused);
        LimitsSnapshot {
            all: self.amounts(&used.all, |row| row.all),
            accounts: accounts.map(account).collect(),
            refused: refused.map(|(row, count)| (row.name, count)).collect(),
        }
    }

    fn amounts(&self, counts: &Counts, max: impl Fn(&Row) -> u64) -> Amounts {
        let amount = |(row, used): (&Row, &u64)| {
            let (used, max) = (*used, max(row));
            (row.name, Amount { used, max })
        };
        self.rows.iter().zip(counts).map(amount).collect()
    }
}

impl Used {
    fn add(&mut self, row: &Row, holder: &Holder, wanted: u64) -> Result<(), LimitError> {
        let at = row.resource as usize;
        let all = match holder.trusted {
            true => row.all,
            false => row.all / 4 * 3,
        };
        let of_tenant = holder.tenant.map(|tenant| {
            let counts = self.tenants.get(&tenant);
            (counts.map_or(0, |counts| counts[at]), row.tenant, tenant)
        });
        let of_account = self.accounts.get(&holder.account);
        let of_account = of_account.map_or(0, |counts| counts[at]);
        let beyond = |used: u64, max: u64| used.saturating_add(wanted) > max;
        let (scope, used, max) = match of_tenant {
            Some((used, max, tenant)) if beyond(used, max) => (tenant.to_string(), used, max),
            _ if beyond(of_account, row.account) => {
                let scope = format!("Account {}", holder.account);
                (scope, of_account, row.account)
            }
            _ if beyond(self.all[at], all) => ("The host".to_owned(), self.all[at], all),
            _ => {
                if let Some(tenant) = holder.tenant {
                    self.tenants.entry(tenant).or_default()[at] += wanted;
                }
                let account = self.accounts.entry(holder.account.clone());
                account.or_default()[at] += wanted;
                self.all[at] += wanted;
                return Ok(());
            }
        };
        self.refused[at] += 1;
        Err(LimitError {
            scope,
            used,
            wanted,
            max,
            unit: row.unit,
        })
    }

    fn subtract(&mut self, row: usize, holder: &Holder, amount: u64) {
        self.all[row] -= amount;
        if let Some(counts) = self.accounts.get_mut(&holder.account) {
            counts[row] -= amount;
        }
        if let Some(counts) = holder.tenant.and_then(|one| self.tenants.get_mut(&one)) {
            counts[row] -= amount;
        }
        self.forget_empty();
    }

    fn empty(&mut self, row: usize) {
        self.all[row] = 0;
        for counts in self.accounts.values_mut().chain(self.tenants.values_mut()) {
            counts[row] = 0;
        }
        self.forget_empty();
    }

    /// The maps are as large as the number of those that hold something.
    fn forget_empty(&mut self) {
        self.accounts
            .retain(|_, counts| *counts != Counts::default());
        self.tenants
            .retain(|_, counts| *counts != Counts::default());
    }
}

impl Held {
    /// Gives a part back, so that `amount` is held.
    pub fn shrink(&mut self, amount: u64) {
        let part = self.amount.saturating_sub(amount);
        self.amount -= part;
        self.limits.used().subtract(self.row, &self.holder, part);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Self {
            limits,
            holder,
            row,
            amount,
        } = self;
        limits.used().subtract(*row, holder, *amount);
    }
}

#[cfg(test)]
#[path = "limits_tests.rs"]
mod tests;
