//! Events of the driver's files, passed on to the guest's eventfds by one thread.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::event::epoll;
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Events per turn.
const EVENTS_MAX: usize = 16;

/// Files that are waited for, and where their events go.
#[derive(Debug)]
pub(super) struct Events {
    epoll: OwnedFd,
    targets: Mutex<BTreeMap<u32, OwnedFd>>,
}

impl Events {
    /// Starts the thread, which ends with the process.
    ///
    /// # Errors
    /// The host's.
    pub(super) fn start() -> io::Result<Arc<Self>> {
        let events = Arc::new(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            targets: Mutex::new(BTreeMap::new()),
        });
        let own = Arc::clone(&events);
        let thread = thread::Builder::new().name("guest-events".to_owned());
        thread.spawn(move || own.pass_on())?;
        Ok(events)
    }

    fn pass_on(&self) {
        let mut buffer = Vec::with_capacity(EVENTS_MAX);
        loop {
            buffer.clear();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut buffer),
                None,
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            let targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
            for event in &buffer {
                // CAST: numbers of files have 32 bits.
                if let Some(target) = targets.get(&(event.data.u64() as u32)) {
                    // One that is full has an event already.
                    let _ = rustix::io::write(target, &1_u64.to_ne_bytes());
                }
            }
        }
    }

    /// Passes events of a driver's file on. A target that could block is refused.
    ///
    /// # Errors
    /// As fcntl(2); `InvalidInput`.
    pub(super) fn add(&self, number: u32, file: BorrowedFd<'_>, target: OwnedFd) -> io::Result<()> {
        if !rustix::fs::fcntl_getfl(&target)?.contains(OFlags::NONBLOCK) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.targets
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(number, target);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::PRI | epoll::EventFlags::ET;
        match epoll::add(
            &self.epoll,
            file,
            epoll::EventData::new_u64(number.into()),
            flags,
        ) {
            // A file without events.
            Ok(()) | Err(Errno::PERM) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Ends that. The kernel takes a closed file off the list by itself.
    pub(super) fn remove(&self, number: u32) {
        self.targets
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&number);
    }
}
