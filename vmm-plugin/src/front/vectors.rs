//! Interrupts: the daemon raises them on eventfds of this process, which forwards them to the
//! eventfds that the VMM sets and removes.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use turnstile_abi::pci::VECTORS;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use crate::vfio_user;

/// The device's vectors.
#[derive(Debug)]
pub(super) struct Vectors {
    own: Arc<[EventFd]>,
    table: vfio_user::Vectors,
    stop: AtomicBool,
    wake: EventFd,
}

impl Vectors {
    pub(super) fn new(own: Arc<[EventFd]>) -> io::Result<Self> {
        Ok(Self {
            own,
            table: vfio_user::Vectors::new(VECTORS),
            stop: AtomicBool::new(false),
            wake: EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)?,
        })
    }

    /// Ours.
    pub(super) fn own(&self) -> &Arc<[EventFd]> {
        &self.own
    }

    /// Those of the VMM.
    pub(super) const fn table(&self) -> &vfio_user::Vectors {
        &self.table
    }

    /// Passes on what is raised until the end.
    pub(super) fn pass_on(&self) -> io::Result<()> {
        let epoll = Epoll::new()?;
        let watched = self.own.iter().chain([&self.wake]);
        for (number, eventfd) in (0..).zip(watched) {
            let event = EpollEvent::new(EventSet::IN, number);
            epoll.ctl(ControlOperation::Add, eventfd.as_raw_fd(), event)?;
        }
        let mut events = [EpollEvent::default(); 32];
        while !self.stop.load(Ordering::Acquire) {
            let count = match epoll.wait(-1, &mut events) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                count => count?,
            };
            for event in &events[..count] {
                // CAST: a number given above.
                let number = event.data() as usize;
                if self.own.get(number).is_some_and(|own| own.read().is_ok()) {
                    self.table.raise(number);
                }
            }
        }
        Ok(())
    }

    /// Ends [`Self::pass_on`].
    pub(super) fn end(&self) {
        self.stop.store(true, Ordering::Release);
        let _ = self.wake.write(1);
    }
}
