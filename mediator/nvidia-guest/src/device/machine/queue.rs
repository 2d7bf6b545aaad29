//! The queue in guest memory ([`turnstile_abi::cuda::queue`]). The guest may write anything to it
//! at any time: each word is read once, and checked.

use std::io;
use std::sync::Mutex;

use turnstile_abi::cuda::queue;

use super::super::locked;
use super::memory::View;

const SLOTS: usize = queue::SLOTS as usize;

/// A submitted request: where it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) number: u32,
    pub(super) address: u64,
    pub(super) bytes: u32,
    pub(super) segments: u32,
    pub(super) room: u32,
}

/// Why a queue is served no longer.
#[derive(Debug, thiserror::Error)]
pub(super) enum QueueError {
    /// More is submitted than there are slots, or a slot that is in use or is none.
    #[error("The guest's queue has submissions that cannot be")]
    Submission,
    /// Its memory cannot be accessed.
    #[error("The guest's queue cannot be accessed")]
    Memory(#[from] io::Error),
}

#[derive(Debug)]
struct State {
    submitted: u32,
    completed: u32,
    events: u32,
    overflows: u32,
    in_use: [bool; SLOTS],
}

/// A queue that is served.
#[derive(Debug)]
pub(super) struct Queue {
    view: View,
    state: Mutex<State>,
}

impl Queue {
    /// The queue in a view of [`queue::BYTES`] bytes; its indices are zero.
    pub(super) const fn new(view: View) -> Self {
        Self {
            view,
            state: Mutex::new(State {
                submitted: 0,
                completed: 0,
                events: 0,
                overflows: 0,
                in_use: [false; SLOTS],
            }),
        }
    }

    /// What was submitted since.
    ///
    /// # Errors
    /// If the guest breaks the rules: the queue is then useless.
    pub(super) fn submissions(&self) -> Result<Vec<Slot>, QueueError> {
        let mut state = locked(&self.state);
        let to = self.view.load(queue::SUBMITTED)?;
        let count = to.wrapping_sub(state.submitted);
        if count > queue::SLOTS {
            return Err(QueueError::Submission);
        }
        let mut slots = Vec::new();
        for index in 0..count {
            let at = state.submitted.wrapping_add(index) % queue::SLOTS;
            let number = self.view.load(queue::SUBMIT_RING + 4 * u64::from(at))?;
            let in_use = state
                .in_use
                .get_mut(number as usize)
                .ok_or(QueueError::Submission)?;
            if std::mem::replace(in_use, true) {
                return Err(QueueError::Submission);
            }
            // CAST: below SLOTS.
            let at = (queue::SLOT_TABLE + u64::from(number) * queue::SLOT_BYTES) as usize;
            let mut bytes = [0; queue::SLOT_BYTES as usize];
            self.view.read(at, &mut bytes)?;
            slots.push(Slot {
                number,
                address: crate::abi::read_u64(&bytes, 0),
                bytes: crate::abi::read_u32(&bytes, 8),
                segments: crate::abi::read_u32(&bytes, 12),
                room: crate::abi::read_u32(&bytes, 16),
            });
        }
        state.submitted = to;
        Ok(slots)
    }

    /// Completes a request with an answer of this length.
    ///
    /// # Errors
    /// The memory's.
    pub(super) fn complete(&self, slot: u32, answer_bytes: u32) -> io::Result<()> {
        let mut state = locked(&self.state);
        let entry = queue::SLOT_TABLE + u64::from(slot) * queue::SLOT_BYTES;
        self.view.store(entry + queue::SLOT_ANSWER, answer_bytes)?;
        let at = state.completed % queue::SLOTS;
        self.view
            .store(queue::COMPLETE_RING + 4 * u64::from(at), slot)?;
        if let Some(in_use) = state.in_use.get_mut(slot as usize) {
            *in_use = false;
        }
        state.completed = state.completed.wrapping_add(1);
        self.view.store(queue::COMPLETED, state.completed)
    }

    /// Reports an event of a file.
    ///
    /// # Errors
    /// The memory's.
    pub(super) fn event(&self, file: u32) -> io::Result<()> {
        let mut state = locked(&self.state);
        let seen = self.view.load(queue::EVENTS_SEEN)?;
        if state.events.wrapping_sub(seen) >= queue::EVENTS {
            state.overflows = state.overflows.wrapping_add(1);
            return self.view.store(queue::OVERFLOWS, state.overflows);
        }
        let at = state.events % queue::EVENTS;
        self.view
            .store(queue::EVENT_RING + 4 * u64::from(at), file)?;
        state.events = state.events.wrapping_add(1);
        self.view.store(queue::EVENT_INDEX, state.events)
    }
}
