//! Events of the driver's files, passed on to the guest by one thread.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::event::epoll;
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Events per turn.
const EVENTS_MAX: usize = 16;

/// Gets events of files. It must not block.
pub(super) trait Notify: Debug + Send + Sync {
    /// A file has an event.
    fn notify(&self, file: u32);
}

/// A program's eventfd.
#[derive(Debug)]
pub(super) struct Eventfd(OwnedFd);

impl Eventfd {
    /// An eventfd; its writes must not block.
    ///
    /// # Errors
    /// As fcntl(2); `InvalidInput`.
    pub(super) fn target(file: OwnedFd) -> io::Result<Arc<dyn Notify>> {
        if !rustix::fs::fcntl_getfl(&file)?.contains(OFlags::NONBLOCK) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Arc::new(Self(file)))
    }
}

impl Notify for Eventfd {
    fn notify(&self, _file: u32) {
        // One that is full has an event already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// Files that are waited for, and where their events go.
#[derive(Debug)]
pub(super) struct Events {
    epoll: OwnedFd,
    targets: Mutex<BTreeMap<u32, Arc<dyn Notify>>>,
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
                let file = event.data.u64() as u32;
                if let Some(target) = targets.get(&file) {
                    target.notify(file);
                }
            }
        }
    }

    /// Passes events of a driver's file on.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub(super) fn add(
        &self,
        number: u32,
        file: BorrowedFd<'_>,
        target: Arc<dyn Notify>,
    ) -> io::Result<()> {
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
