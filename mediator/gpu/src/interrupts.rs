//! A VM's interrupt vectors: eventfds of its VMM.
//!
//! Every process that has an eventfd open can make all writes to it wait, and can fill its counter.
//! O_NONBLOCK does not prevent this: it belongs to the open file, which these processes share. So
//! the daemon's threads write to no eventfd: they note what is raised, and a thread of the VM
//! passes it on.

use std::fs::File;
use std::io::IoSliceMut;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{ReadWriteFlags, preadv2};

use crate::Interrupts;

/// Why a descriptor was not taken as an interrupt vector.
#[derive(Debug, thiserror::Error)]
pub enum InterruptsError {
    /// It is another kind of file, on which a write might block or do harm.
    #[error("Descriptor for vector {vector} is {kind}, not an eventfd")]
    NotAnEventfd {
        /// Number of the vector.
        vector: usize,
        /// Kind of the file.
        kind: String,
    },
    /// The kernel refused to describe it.
    #[error("Looking at the descriptor for vector {vector} failed")]
    Inspect {
        /// Number of the vector.
        vector: usize,
        /// Error of the kernel.
        source: io::Error,
    },
    /// There is no thread to pass interrupts on.
    #[error("No thread for the VM's interrupts")]
    Thread(#[source] io::Error),
}

/// One eventfd per vector; the VMM has tied each to an interrupt of its VM. Raising a vector
/// writes, and may block: this is for a process or a thread that serves this VM alone.
#[derive(Debug)]
pub struct EventfdInterrupts {
    vectors: Vec<File>,
}

impl EventfdInterrupts {
    /// Takes the VMM's descriptors, in the order of vectors.
    ///
    /// # Errors
    /// When one of them is no eventfd.
    pub fn new(fds: Vec<OwnedFd>) -> Result<Self, InterruptsError> {
        let mut vectors = Vec::with_capacity(fds.len());
        for (vector, fd) in fds.into_iter().enumerate() {
            let inspect = |source: io::Error| InterruptsError::Inspect { vector, source };
            let kind =
                std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).map_err(inspect)?;
            if kind.as_os_str() != "anon_inode:[eventfd]" {
                let kind = kind.display().to_string();
                return Err(InterruptsError::NotAnEventfd { vector, kind });
            }
            let flags = fcntl_getfl(&fd).map_err(|errno| inspect(errno.into()))?;
            fcntl_setfl(&fd, flags | OFlags::NONBLOCK).map_err(|errno| inspect(errno.into()))?;
            vectors.push(File::from(fd));
        }
        Ok(Self { vectors })
    }
}

impl EventfdInterrupts {
    /// The eventfds, in the order of vectors. Writing to them does not block, unless the VMM
    /// changes that.
    pub fn into_files(self) -> Vec<File> {
        self.vectors
    }
}

impl Interrupts for EventfdInterrupts {
    fn raise(&self, vector: u16) {
        if let Some(mut file) = self.vectors.get(usize::from(vector)) {
            // Full (WouldBlock) means that many interrupts are pending: nothing is lost.
            let _ = file.write(&1u64.to_ne_bytes());
        }
    }

    fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        let copy = |file: &File| file.try_clone().map(OwnedFd::from);
        self.vectors.iter().map(copy).collect()
    }
}

/// Maximum number of times that the end releases a blocked write: a VMM may fill the counter again.
const LET_GO: usize = 64;

/// Vectors that were raised and have to be passed on.
#[derive(Debug)]
struct Raised {
    /// By vector.
    vectors: Vec<bool>,
    /// Vector of a write in progress.
    writing: Option<usize>,
    ended: bool,
}

#[derive(Debug)]
struct Passing {
    eventfds: EventfdInterrupts,
    raised: Mutex<Raised>,
    changed: Condvar,
}

impl Passing {
    fn raised(&self) -> MutexGuard<'_, Raised> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes on raised vectors until the end. Holds no lock while it writes.
    fn pass_on(&self) {
        let mut raised = self.raised();
        while !raised.ended {
            let Some(vector) = raised.vectors.iter().position(|raised| *raised) else {
                let waited = self.changed.wait(raised);
                raised = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            raised.vectors[vector] = false;
            raised.writing = Some(vector);
            drop(raised);
            // CAST: as many vectors as a VM has.
            self.eventfds.raise(vector as u16);
            raised = self.raised();
            raised.writing = None;
        }
    }
}

/// A VM's vectors as the daemon raises them: raising one never waits for the VMM.
#[derive(Debug)]
pub struct PassedInterrupts(Arc<Passing>);

impl PassedInterrupts {
    /// Takes the VMM's descriptors, in the order of vectors.
    ///
    /// # Errors
    /// When one of them is no eventfd, or there is no thread.
    pub fn new(fds: Vec<OwnedFd>) -> Result<Self, InterruptsError> {
        let eventfds = EventfdInterrupts::new(fds)?;
        let raised = Raised {
            vectors: vec![false; eventfds.vectors.len()],
            writing: None,
            ended: false,
        };
        let passing = Arc::new(Passing {
            eventfds,
            raised: Mutex::new(raised),
            changed: Condvar::new(),
        });
        let passes = passing.clone();
        // Not waited for at the end: it may be in a write.
        thread::Builder::new()
            .name("turnstile-irq".into())
            .spawn(move || passes.pass_on())
            .map_err(InterruptsError::Thread)?;
        Ok(Self(passing))
    }
}

impl Interrupts for PassedInterrupts {
    fn raise(&self, vector: u16) {
        if let Some(raised) = self.0.raised().vectors.get_mut(usize::from(vector)) {
            *raised = true;
            self.0.changed.notify_one();
        }
    }

    fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        self.0.eventfds.descriptors()
    }
}

impl Drop for PassedInterrupts {
    /// Ends the thread, also out of a write that the VMM blocks: each VMM would otherwise leave a
    /// thread behind.
    fn drop(&mut self) {
        self.0.raised().ended = true;
        self.0.changed.notify_one();
        for _ in 0..LET_GO {
            let Some(vector) = self.0.raised().writing else {
                return;
            };
            let file = &self.0.eventfds.vectors[vector];
            let mut count = [0; 8];
            // NOWAIT applies to this call alone; the offset means that there is none.
            let _ = preadv2(
                file,
                &mut [IoSliceMut::new(&mut count)],
                u64::MAX,
                ReadWriteFlags::NOWAIT,
            );
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn raising_signals_the_vector_and_no_other() {
        let event = || rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        let (a, b) = (event(), event());
        let mut views = [
            File::from(a.try_clone().unwrap()),
            File::from(b.try_clone().unwrap()),
        ];
        let interrupts = EventfdInterrupts::new(vec![a, b]).unwrap();
        interrupts.raise(1);
        interrupts.raise(1);
        interrupts.raise(9);
        let mut count = [0; 8];
        assert!(views[0].read(&mut count).is_err());
        views[1].read_exact(&mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 2);
    }

    fn blocking(fd: &OwnedFd) {
        let flags = fcntl_getfl(fd).unwrap();
        fcntl_setfl(fd, flags - OFlags::NONBLOCK).unwrap();
    }

    fn wait(what: &str, done: impl Fn() -> bool) {
        let begin = std::time::Instant::now();
        while !done() {
            let elapsed = begin.elapsed();
            assert!(elapsed < std::time::Duration::from_secs(20), "no {what}");
            thread::yield_now();
        }
    }

    fn event() -> OwnedFd {
        rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap()
    }

    #[test]
    fn what_is_raised_is_passed_on() {
        let (a, b) = (event(), event());
        let copies = vec![a.try_clone().unwrap(), b.try_clone().unwrap()];
        let interrupts = PassedInterrupts::new(copies).unwrap();
        interrupts.raise(9);
        for _ in 0..100 {
            interrupts.raise(1);
            wait("interrupt", || rustix::io::read(&b, &mut [0; 8]).is_ok());
        }
        assert!(rustix::io::read(&a, &mut [0; 8]).is_err());
        assert_eq!(interrupts.descriptors().unwrap().len(), 2);
    }

    #[test]
    fn blocked_eventfd_of_a_vmm_does_not_block_raise() {
        let (full, other) = (event(), event());
        let copies = vec![full.try_clone().unwrap(), other.try_clone().unwrap()];
        let interrupts = PassedInterrupts::new(copies).unwrap();
        blocking(&full);
        let most = u64::MAX - 1;
        rustix::io::write(&full, &most.to_ne_bytes()).unwrap();
        // In a thread of its own, so that the test fails and does not hang.
        let (done, ended) = std::sync::mpsc::channel();
        let passing = Arc::downgrade(&interrupts.0);
        let raising = thread::spawn(move || {
            interrupts.raise(0);
            wait("write", || interrupts.0.raised().writing == Some(0));
            interrupts.raise(0);
            interrupts.raise(1);
            drop(interrupts);
            done.send(()).unwrap();
        });
        let limit = std::time::Duration::from_secs(20);
        ended.recv_timeout(limit).unwrap();
        raising.join().unwrap();
        wait("end of the thread", || passing.strong_count() == 0);
    }

    #[test]
    fn other_descriptors_are_refused() {
        let (reader, _writer) = io::pipe().unwrap();
        let refused = EventfdInterrupts::new(vec![reader.into()]).unwrap_err();
        assert!(matches!(
            refused,
            InterruptsError::NotAnEventfd { vector: 0, .. }
        ));
    }
}
