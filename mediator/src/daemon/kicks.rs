//! One VM's kick: an eventfd that its VMM writes after a doorbell write, and the bound on its cost.
//!
//! In: events of the control loop's epoll. Out: when to read the VM's doorbells. At most
//! [`KICKS_MAX`] events in [`WINDOW`] are taken (one in 50 us); then the kick is muted until the
//! window ends, so that a storm of kicks takes no more of the control loop. The kick stays readable
//! once it was written, so that watching it again yields an event: the last kick is never lost.
//!
//! The daemon never reads a kick: its VMM has it open as well, and could make the read block the
//! loop. The count overflows after 2^64 kicks.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use event_manager::{EventOps, Events};
use vmm_sys_util::epoll::EventSet;

/// Kicks of a VM in one [`WINDOW`].
const KICKS_MAX: u32 = 20;
/// The timeouts of the control loop are whole milliseconds.
const WINDOW: Duration = Duration::from_millis(1);

/// A VM's kick in the control loop.
#[derive(Debug)]
pub(super) struct Kick {
    file: File,
    data: u32,
    window_begins: Instant,
    kicks: u32,
    /// When it is watched again, if it is muted.
    muted_until: Option<Instant>,
}

impl Kick {
    /// A kick with events that carry `data`.
    pub(super) fn new(file: File, data: u32, now: Instant) -> Self {
        Self {
            file,
            data,
            window_begins: now,
            kicks: 0,
            muted_until: None,
        }
    }

    fn events(&self, events: EventSet) -> Events {
        // Each write is an event of its own, without a read.
        Events::with_data(&self.file, self.data, events | EventSet::EDGE_TRIGGERED)
    }

    /// Begins to watch it.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn watch(&self, ops: &mut EventOps) -> event_manager::Result<()> {
        ops.add(self.events(EventSet::IN))
    }

    /// Ends watching it.
    pub(super) fn forget(&self, ops: &mut EventOps) {
        let _ = ops.remove(Events::empty_raw(self.file.as_raw_fd()));
    }

    /// Counts an event, and mutes the kick at the last of its window.
    pub(super) fn kicked(&mut self, now: Instant, ops: &mut EventOps) {
        if now.saturating_duration_since(self.window_begins) >= WINDOW {
            (self.window_begins, self.kicks) = (now, 0);
        }
        self.kicks += 1;
        // One that cannot be muted is served as it comes.
        if self.kicks >= KICKS_MAX && ops.modify(self.events(EventSet::empty())).is_ok() {
            self.muted_until = Some(self.window_begins + WINDOW);
        }
    }

    /// When [`Self::tick`] is due, if it is muted.
    pub(super) fn due(&self) -> Option<Instant> {
        self.muted_until
    }

    /// Watches a muted kick again, if that is due; it then yields an event.
    pub(super) fn tick(&mut self, now: Instant, ops: &mut EventOps) {
        if self.muted_until.is_some_and(|until| until <= now)
            && ops.modify(self.events(EventSet::IN)).is_ok()
        {
            self.muted_until = None;
        }
    }
}

#[cfg(test)]
#[path = "kicks_tests.rs"]
mod tests;
