//! Interrupts: the daemon raises them on eventfds of this process, which forwards them to the
//! eventfds that the VMM sets and removes.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use turnstile_abi::pci::VECTORS;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use crate::sys::fd::set_nonblocking;
use crate::vfio_user::{Errno, IrqAction, IrqData, SetIrqs, irq};

#[derive(Debug, Default)]
struct Vector {
    /// The VMM's.
    eventfd: Option<File>,
    masked: bool,
    /// Raised while it could not be delivered.
    pending: bool,
}

impl Vector {
    fn deliver(&mut self) {
        self.pending = false;
        match &self.eventfd {
            // A full counter means that it is pending already.
            Some(eventfd) if !self.masked => drop((&*eventfd).write(&1u64.to_ne_bytes())),
            _ => self.pending = true,
        }
    }
}

/// The device's vectors.
#[derive(Debug)]
pub(super) struct Vectors {
    own: Arc<[EventFd]>,
    table: Mutex<Vec<Vector>>,
    stop: AtomicBool,
    wake: EventFd,
}

impl Vectors {
    pub(super) fn new(own: Arc<[EventFd]>) -> io::Result<Self> {
        Ok(Self {
            own,
            table: Mutex::new((0..VECTORS).map(|_| Vector::default()).collect()),
            stop: AtomicBool::new(false),
            wake: EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)?,
        })
    }

    /// Ours.
    pub(super) fn own(&self) -> &Arc<[EventFd]> {
        &self.own
    }

    fn table(&self) -> MutexGuard<'_, Vec<Vector>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies an IRQ message of the VMM; its range is within the vectors.
    pub(super) fn set(&self, set: SetIrqs) -> Result<(), Errno> {
        if set.index != irq::MSIX {
            return Ok(());
        }
        let fds = match &set.data {
            IrqData::Eventfds(files) => files.as_slice(),
            _ => &[],
        };
        for file in fds {
            check(file)?;
        }
        let mut table = self.table();
        let range = match (set.action, &set.data) {
            // All of them.
            (IrqAction::Trigger, IrqData::None) if set.count == 0 => {
                table
                    .iter_mut()
                    .for_each(|vector| *vector = Vector::default());
                return Ok(());
            }
            _ => set.start as usize..(set.start + set.count) as usize,
        };
        let vectors = table.get_mut(range).ok_or(Errno::INVALID)?;
        let mut files = match set.data {
            IrqData::Eventfds(files) if set.action == IrqAction::Trigger => {
                let mut files = files.into_iter();
                for vector in vectors {
                    vector.eventfd = files.next();
                    if vector.pending {
                        vector.deliver();
                    }
                }
                return Ok(());
            }
            // Masking by eventfd is for interrupts that the device keeps asserted until they are
            // acknowledged.
            IrqData::Eventfds(_) => return Err(Errno::UNSUPPORTED),
            IrqData::None => vec![true; vectors.len()],
            IrqData::Bool(which) => which,
        }
        .into_iter();
        for vector in vectors {
            if !files.next().unwrap_or(false) {
                continue;
            }
            match set.action {
                IrqAction::Trigger => vector.deliver(),
                IrqAction::Mask => vector.masked = true,
                IrqAction::Unmask => {
                    vector.masked = false;
                    if vector.pending {
                        vector.deliver();
                    }
                }
            }
        }
        Ok(())
    }

    /// Nothing is pending any more.
    pub(super) fn reset(&self) {
        for vector in self.table().iter_mut() {
            vector.pending = false;
        }
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
                let Some(own) = self.own.get(number) else {
                    continue;
                };
                if own.read().is_ok() {
                    self.table()[number].deliver();
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

/// On anything else than an eventfd a write might block or do harm.
fn check(file: &File) -> Result<(), Errno> {
    let kind = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    if kind.as_os_str() != "anon_inode:[eventfd]" {
        return Err(Errno::INVALID);
    }
    Ok(set_nonblocking(file)?)
}
