//! State of tenants that left an account, kept under their names.
//!
//! A tenant that leaves keeps its virtual time under its name. A new tenant starts at least at the
//! highest virtual time that a tenant of the account had lately. Otherwise many names used in turn
//! could each start a first kernel at once. The number of names is bounded.

use super::pauses::Pauses;
use crate::virtual_time::VirtualTime;
use std::collections::BTreeMap;
use std::sync::Arc;
use turnstile_accounting::{Moment, Nanos};

/// A new name starts at the virtual time of the account's tenants that ran within this time.
pub(crate) const RENAME_WINDOW: Nanos = Nanos::from_ms(10_000);
/// Names of tenants that left, kept for each account. A name that is dropped counts as new.
const NAMES_MAX: usize = 1_024;

/// State of a tenant that left.
#[derive(Clone, Debug)]
pub(crate) struct Retired {
    pub(crate) at: VirtualTime,
    pub(crate) pauses: Pauses,
    /// When it last ran.
    pub(crate) ran_at: Option<Moment>,
}

/// The names of one account.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names(BTreeMap<Arc<str>, Retired>);

impl Names {
    /// Removes and returns the state of a name.
    pub(crate) fn take(&mut self, name: &str) -> Option<Retired> {
        self.0.remove(name)
    }

    /// Keeps the state of a tenant that left. Of tenants with one name, the virtual time of the one
    /// furthest ahead is kept.
    pub(crate) fn retire(&mut self, name: Arc<str>, mut retired: Retired) {
        if let Some(known) = self.0.remove(&name) {
            retired.at = retired.at.max(known.at);
            retired.ran_at = retired.ran_at.max(known.ran_at);
        }
        if self.0.len() == NAMES_MAX {
            // Drops the name with the least debt: as a new name it starts no earlier.
            let least = self.0.iter().min_by_key(|(_, retired)| retired.at);
            if let Some(name) = least.map(|(name, _)| name.clone()) {
                self.0.remove(&name);
            }
        }
        self.0.insert(name, retired);
    }

    /// Names and their virtual times.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, VirtualTime)> {
        self.0.iter().map(|(name, retired)| (name, retired.at))
    }

    /// The highest virtual time of tenants that ran lately: those in `here`, and those that left.
    pub(crate) fn highest_lately(
        &self,
        here: impl Iterator<Item = (VirtualTime, Option<Moment>)>,
        now: Moment,
    ) -> Option<VirtualTime> {
        let removed = self.0.values().map(|r| (r.at, r.ran_at));
        let lately = |(_, ran_at): &(VirtualTime, Option<Moment>)| {
            ran_at.is_some_and(|at| now.since(at) <= RENAME_WINDOW)
        };
        here.chain(removed).filter(lately).map(|(at, _)| at).max()
    }

    #[cfg(test)]
    pub(crate) fn known(&self) -> usize {
        self.0.len()
    }

    #[cfg(test)]
    pub(crate) fn knows(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}
