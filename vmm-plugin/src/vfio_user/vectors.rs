//! MSI-X vectors of a served device, and the eventfds that the VMM has set for them.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Errno, IrqAction, IrqData, SetIrqs, irq};
use crate::sys::fd::set_nonblocking;

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

/// The vectors of a device.
#[derive(Debug)]
pub struct Vectors(Mutex<Vec<Vector>>);

impl Vectors {
    /// This number of vectors, without eventfds.
    pub fn new(count: u16) -> Self {
        Self(Mutex::new((0..count).map(|_| Vector::default()).collect()))
    }

    fn table(&self) -> MutexGuard<'_, Vec<Vector>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Raises a vector, now or once the VMM takes it.
    pub fn raise(&self, vector: usize) {
        if let Some(vector) = self.table().get_mut(vector) {
            vector.deliver();
        }
    }

    /// Applies an IRQ message of the VMM; its range is within the vectors.
    ///
    /// # Errors
    /// If a descriptor is no eventfd, or the action is not served.
    pub fn set(&self, set: SetIrqs) -> Result<(), Errno> {
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
    pub fn reset(&self) {
        for vector in self.table().iter_mut() {
            vector.pending = false;
        }
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
