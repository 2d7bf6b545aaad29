//! Whether a GPU is there: it answers, it does not, or an operator has removed it. While it is not
//! there, nothing is known of its engines, and nothing is charged.
//!
//! In: what the accounting thread finds at the end of a period, and orders of an operator. Out: a
//! gap in the ledger, an event, and the reason that `/readyz` shows. Where the GPU was reset to
//! take it back, its contexts are gone, so all VMs are notified and end; their VMMs may connect
//! again.
//!
//! ```text
//!   Answers ---- fail ----> Silent
//!    |  ^ <--- answer ------ | ^
//!    +- remove -> Removed <--+ |   remove
//!                    +---------+   restore
//! ```

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

use turnstile_accounting::Moment;
use turnstile_gpu::Contexts;
use turnstile_vmm::wire::ToVmm;

use super::Host;
use super::peer::Kind;

/// Whether the GPU is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Presence {
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
enum Change {
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

/// Why tenants end, and the line of the log.
const REMOVED: &str = "The GPU was taken out of service";

impl Host {
    fn presence_lock(&self) -> MutexGuard<'_, (Presence, String)> {
        self.presence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a change; false if it is not legal now.
    fn change(&self, by: Change, reason: &str) -> bool {
        let mut presence = self.presence_lock();
        let next = presence.0.after(by);
        if let Some(next) = next {
            *presence = (next, reason.to_owned());
        }
        next.is_some()
    }

    /// Why nothing is known of the GPU now; none while it answers, and while it is removed. Waits
    /// for no device.
    pub fn silence(&self) -> Option<String> {
        let presence = self.presence_lock();
        (presence.0 == Presence::Silent).then(|| presence.1.clone())
    }

    /// Whether an operator has removed the GPU.
    pub fn is_removed(&self) -> bool {
        self.presence_lock().0 == Presence::Removed
    }

    /// Whether the GPU answers, for all that is known.
    pub(crate) fn is_there(&self) -> bool {
        self.presence_lock().0 == Presence::Answers
    }

    /// Takes the GPU out of service: its tenants end at once, and it takes no other. False if it
    /// was removed before.
    pub(crate) fn remove(&self) -> bool {
        if !self.change(Change::Remove, "") {
            return false;
        }
        self.journal().report("gpu_removed", "", REMOVED);
        log::warn!("GPU: {REMOVED}");
        let mut state = self.lock();
        for tenant in state.tenants.values_mut() {
            let text = format!("{REMOVED}; connect again");
            tenant.peer.send(&ToVmm::Refused { text });
            tenant.peer.give_up();
        }
        drop(state);
        // The accounting thread may be in a long sleep.
        self.end_idle();
        self.gpu.wake();
        true
    }

    /// Brings a removed GPU back into service: the accounting thread takes it back. False if it was
    /// not removed.
    pub(crate) fn restore(&self) -> bool {
        self.change(Change::Restore, "It was removed, and is not taken back yet")
    }

    /// The GPU does not answer since `from`.
    pub(crate) fn silent(&self, from: Moment, reason: &str) {
        if self.change(Change::Fail, reason) {
            log::error!(
                "GPU: silent: {reason}; its time is charged to no tenant, and it is taken back when it answers"
            );
            self.journal().report("gpu_silent", "", reason);
        }
        self.unknown(from);
    }

    /// Nothing is known of the engines until `to`.
    pub(crate) fn unknown(&self, to: Moment) {
        if let Some(recorder) = &mut self.lock().records.recorder {
            recorder.silent(to);
        }
    }

    /// A GPU that was removed, and had not failed, is back in service.
    pub(crate) fn is_back(&self) {
        self.unknown(self.gpu.now());
        if self.change(Change::Answer, "") {
            let text = "The GPU is back in service";
            self.journal().report("gpu_back", "", text);
            log::warn!("GPU: {text}");
        }
    }

    /// Takes the GPU back. Its VMs are notified and end if it was reset.
    ///
    /// # Errors
    /// Why it does not answer yet; its time since is a gap.
    pub(crate) fn retake(&self) -> Result<(), String> {
        let taken = self.gpu.take_back();
        let mut state = self.lock();
        let now = self.gpu.now();
        if let Some(recorder) = &mut state.records.recorder {
            recorder.silent(now);
        }
        let contexts = taken?;
        let ending = (contexts == Contexts::Gone).then_some(&mut state.tenants);
        for tenant in ending.into_iter().flat_map(BTreeMap::values_mut) {
            if matches!(tenant.kind, Kind::Vm(_)) {
                let text = "The GPU was reset after it had not answered; connect again".to_owned();
                tenant.peer.send(&ToVmm::Refused { text });
                tenant.peer.give_up();
            }
        }
        drop(state);
        let text = match contexts {
            Contexts::Kept => "The GPU answers again, with its contexts",
            Contexts::Gone => "The GPU answers again and was reset; its VMs have to connect again",
        };
        // Unless it was removed meanwhile.
        if self.change(Change::Answer, "") {
            self.journal().report("gpu_back", "", text);
        }
        log::warn!("GPU: {text}");
        Ok(())
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
