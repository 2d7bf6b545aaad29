//! Notices of the device: one interrupt vector, and the thread that waits for it.
//!
//! The vector is raised once for each time that it is armed, so that the rate of interrupts is that
//! of the mediator's decisions, whatever guests do.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use turnstile_abi::physical::{VECTORS, regs};
use turnstile_accounting::Nanos;

use super::admin::Admin;
use super::bus::{Bus, BusError};
use super::error::StartError;

/// The vector of notices; those below are the tenants'.
pub(super) const VECTOR: u16 = VECTORS - 1;

/// Receiver of notices.
#[derive(Debug)]
pub(super) struct Notices {
    event: File,
}

impl Notices {
    /// Connects the vector and arms it.
    pub(super) fn new(bus: &dyn Bus, admin: &Admin) -> Result<Self, StartError> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let event = eventfd(0, flags).map_err(|errno| BusError::Vector {
            vector: VECTOR,
            source: errno.into(),
        })?;
        let notices = Self {
            event: File::from(event),
        };
        notices.connect(bus, admin)?;
        Ok(notices)
    }

    /// Connects the vector to a device that was reset, and arms it.
    pub(super) fn connect(&self, bus: &dyn Bus, admin: &Admin) -> Result<(), BusError> {
        bus.connect(VECTOR, Some(self.event.as_fd()))?;
        self.arm(admin)
    }

    /// Makes the device raise the vector at the next notice, or at once if it kept one.
    pub(super) fn arm(&self, admin: &Admin) -> Result<(), BusError> {
        admin.write32(regs::NOTICE, VECTOR.into())
    }

    /// Waits for `length`, or until there is a notice or [`Self::wake`]; returns whether there was
    /// one. Then the vector has to be armed, before the subject of the notice is read.
    pub(super) fn wait(&self, length: Nanos) -> bool {
        let second = 1_000_000_000;
        let timeout = Timespec {
            // CAST: both are below 2^63.
            tv_sec: (length.0 / second) as i64,
            tv_nsec: (length.0 % second) as i64,
        };
        let mut fds = [PollFd::new(&self.event, PollFlags::IN)];
        // A signal ends the wait, as the time does.
        poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0)
            && (&self.event).read(&mut [0; 8]).is_ok()
    }

    /// Ends the wait of another thread.
    pub(super) fn wake(&self) {
        // Full means that the wait ends anyway.
        let _ = (&self.event).write(&1u64.to_ne_bytes());
    }
}
