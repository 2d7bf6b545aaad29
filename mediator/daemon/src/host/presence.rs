//! Whether a GPU is there: it answers, it does not, or an operator has removed it. While it is not
//! there, nothing is known of its engines, and nothing is charged.
//!
//! In: what the accounting thread finds at the end of a period, and orders of an operator. Out: a
//! gap in the ledger, an event, and the reason that `/readyz` shows ([`super::periods`]). Where the
//! GPU was reset to take it back, its contexts are gone, so all VMs are notified and end; their
//! VMMs may connect again.
//!
//! ```text
//!   Answers ---- fail ----> Silent
//!    |  ^ <--- answer ------ | ^
//!    +- remove -> Removed <--+ |   remove
//!                    +---------+   restore
//! ```

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whether the GPU is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Presence {
    /// It answers.
    #[default]
    Answers,
    /// It does not answer, and is taken back when it does.
    Silent,
    /// An operator has taken it out of service. It is not accessed.
    Removed,
}

/// What changes that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Fail,
    Answer,
    Remove,
    Restore,
}

/// The legal changes. A GPU that is restored is taken back as a silent one.
const CHANGES: [(Presence, Change, Presence); 5] = [
    (Presence::Answers, Change::Fail, Presence::Silent),
    (Presence::Answers, Change::Remove, Presence::Removed),
    (Presence::Silent, Change::Answer, Presence::Answers),
    (Presence::Silent, Change::Remove, Presence::Removed),
    (Presence::Removed, Change::Restore, Presence::Silent),
];

impl Presence {
    fn after(self, by: Change) -> Option<Self> {
        let mut changes = CHANGES.iter();
        let row = changes.find(|(from, with, _)| (*from, *with) == (self, by));
        row.map(|(_, _, to)| *to)
    }
}

/// Whether a GPU is there, and why not. An innermost lock.
#[derive(Debug, Default)]
pub(super) struct GpuPresence(Mutex<(Presence, String)>);

impl GpuPresence {
    fn lock(&self) -> MutexGuard<'_, (Presence, String)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a change; false if it is not legal now.
    pub(super) fn change(&self, by: Change, reason: &str) -> bool {
        let mut presence = self.lock();
        let next = presence.0.after(by);
        if let Some(next) = next {
            *presence = (next, reason.to_owned());
        }
        next.is_some()
    }

    /// Why nothing is known of the GPU now: see [`super::Host::silence`].
    pub(super) fn silence(&self) -> Option<String> {
        let presence = self.lock();
        (presence.0 == Presence::Silent).then(|| presence.1.clone())
    }

    /// Whether an operator has removed the GPU.
    pub(super) fn is_removed(&self) -> bool {
        self.lock().0 == Presence::Removed
    }

    /// Whether the GPU answers, for all that is known.
    pub(super) fn is_there(&self) -> bool {
        self.lock().0 == Presence::Answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_each_change_of_a_presence_once_and_all_lead_back() {
        for (index, (from, by, _)) in CHANGES.iter().enumerate() {
            let again = CHANGES[index + 1..].iter();
            assert!(!again.into_iter().any(|row| (row.0, row.1) == (*from, *by)));
        }
        for presence in [Presence::Answers, Presence::Silent, Presence::Removed] {
            let removed = presence.after(Change::Remove).unwrap_or(presence);
            assert_eq!(removed, Presence::Removed);
            let restored = removed.after(Change::Restore).unwrap();
            assert_eq!(restored.after(Change::Answer), Some(Presence::Answers));
            assert_eq!(removed.after(Change::Answer), None, "{presence:?}");
        }
    }
}
