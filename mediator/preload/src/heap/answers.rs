//! Requests to the daemon that threads of the process wait for.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};

use turnstile_preload_wire::{ChunkNumber, ToDaemon};

use super::{Answer, Line, lock};

/// Requests without an answer, and answers that no thread has taken yet.
#[derive(Debug, Default)]
pub(super) struct Answers {
    slots: Mutex<BTreeMap<ChunkNumber, Option<Answer>>>,
    answered: Condvar,
}

impl Answers {
    /// Sends a request and waits for the answer while there is a daemon: memory is granted in the
    /// program's turn.
    pub(super) fn request(
        &self,
        line: &impl Line,
        number: ChunkNumber,
        question: ToDaemon,
    ) -> Answer {
        lock(&self.slots).insert(number, None);
        if !line.send(question, None) {
            lock(&self.slots).remove(&number);
            return Answer::NoDaemon;
        }
        let mut slots = lock(&self.slots);
        loop {
            match slots.remove(&number) {
                Some(Some(answer)) => return answer,
                Some(None) => slots.insert(number, None),
                None => return Answer::NoDaemon,
            };
            slots = self
                .answered
                .wait(slots)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Passes an answer to the caller that waits for it; returns it if there is none.
    pub(super) fn answer(&self, number: ChunkNumber, answer: Answer) -> Result<(), Answer> {
        let mut slots = lock(&self.slots);
        let Some(slot @ None) = slots.get_mut(&number) else {
            return Err(answer);
        };
        *slot = Some(answer);
        self.answered.notify_all();
        Ok(())
    }

    /// The daemon is gone: no request is answered any more.
    pub(super) fn daemon_disconnected(&self) {
        for slot in lock(&self.slots).values_mut().filter(|slot| slot.is_none()) {
            *slot = Some(Answer::NoDaemon);
        }
        self.answered.notify_all();
    }
}
