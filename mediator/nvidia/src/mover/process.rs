//! The mover's process: starting it, its connections, and the pages that it pins.
//!
//! In: orders, and descriptors of memory. Out: answers and results, one for each extent. A process
//! that breaks off is ended, and the next order starts another. Called by [`super::Mover`].

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use turnstile_accounting::Nanos;
use turnstile_vmm::wire::{FrameReader, send};

use super::config::MoverConfig;
use super::memory::{MoverError, host};
use super::pages::{Chore, Pool, Segment};
use super::protocol::{Answer, MORE_LINES, Moved, Order};
use crate::line::{self, answer};

/// What a connection is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lane {
    Tables = 0,
    Pins = 1,
    Out = 2,
    In = 3,
}

#[derive(Debug)]
pub(super) struct Line {
    stream: UnixStream,
    reader: FrameReader,
}

impl Line {
    pub(super) fn say(&self, order: &Order, fds: Vec<OwnedFd>) -> Result<(), MoverError> {
        send(&self.stream, order, fds).map_err(|error| MoverError::Gone(error.to_string()))
    }

    fn receive(&mut self, limit: Duration) -> Result<(Answer, Vec<OwnedFd>), MoverError> {
        let received = answer(&self.stream, &mut self.reader, limit, || false);
        match received.map_err(|error| MoverError::Gone(error.to_string()))? {
            (Answer::Refused { no_room: true, .. }, _) => Err(MoverError::NoRoom),
            (Answer::Refused { detail, .. }, _) => Err(MoverError::Refused(detail)),
            received => Ok(received),
        }
    }

    pub(super) fn ask(
        &mut self,
        order: &Order,
        fds: Vec<OwnedFd>,
        limit: Duration,
    ) -> Result<(Answer, Vec<OwnedFd>), MoverError> {
        self.say(order, fds)?;
        self.receive(limit)
    }

    /// Receives the result for the next extent.
    pub(super) fn moved(
        &mut self,
        limit: Duration,
    ) -> Result<(Nanos, Option<OwnedFd>), MoverError> {
        match self.receive(limit)? {
            (Answer::Moved { result }, mut fds) => Ok((outcome(result)?, fds.pop())),
            _ => Err(MoverError::Gone("answers another request".into())),
        }
    }
}

#[derive(Debug)]
pub(super) struct Running {
    pub(super) child: Mutex<Child>,
    lines: [Mutex<Line>; MORE_LINES + 1],
    lost: AtomicBool,
}

impl Running {
    /// Sends an order and waits for the answer. A mover that does not answer in time, or wrongly,
    /// is ended.
    fn ask(
        &self,
        lane: Lane,
        order: &Order,
        fds: Vec<OwnedFd>,
        limit: Duration,
    ) -> Result<(Answer, Vec<OwnedFd>), MoverError> {
        self.talk(lane, |line| line.ask(order, fds, limit))
    }

    /// Uses a connection exclusively. A mover that breaks off is ended.
    pub(super) fn talk<T>(
        &self,
        lane: Lane,
        about: impl FnOnce(&mut Line) -> Result<T, MoverError>,
    ) -> Result<T, MoverError> {
        let mut line = lock(&self.lines[lane as usize]);
        let result = about(&mut line);
        if matches!(result, Err(MoverError::Gone(_))) {
            self.end();
        }
        result
    }

    pub(super) fn end(&self) {
        if !self.lost.swap(true, Ordering::AcqRel) {
            let mut child = lock(&self.child);
            // Fails if the process has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves no update under these locks incomplete, except a connection's, which then
    // fails.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) struct Shared {
    pub(super) config: MoverConfig,
    pub(super) command: Box<dyn Fn() -> Command + Send + Sync>,
    pub(super) pool: Arc<Pool>,
    pub(super) process: Mutex<Option<(Arc<Running>, Instant)>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

fn outcome(moved: Moved) -> Result<Nanos, MoverError> {
    match moved {
        Moved::Done { took_ns } => Ok(Nanos(took_ns)),
        Moved::Not { no_room: true, .. } => Err(MoverError::NoRoom),
        Moved::Not { detail, .. } => Err(MoverError::Refused(detail)),
    }
}

impl Shared {
    /// The current process; starts another if the last one was lost.
    pub(super) fn running(&self) -> Result<Arc<Running>, MoverError> {
        let mut process = lock(&self.process);
        if let Some((running, since)) = &*process {
            if !running.lost.load(Ordering::Acquire) {
                return Ok(running.clone());
            }
            if since.elapsed() < self.config.restart_pause {
                return Err(MoverError::Gone(
                    "ended again just after it was started".into(),
                ));
            }
            log::error!("The mover was gone; another is started");
        }
        let running = Arc::new(self.start()?);
        *process = Some((running.clone(), Instant::now()));
        Ok(running)
    }

    fn start(&self) -> Result<Running, MoverError> {
        let config = &self.config;
        let mut mine = Vec::new();
        let mut theirs = Vec::new();
        for _ in 0..=MORE_LINES {
            let (one, other) = UnixStream::pair().map_err(host)?;
            one.set_nonblocking(true).map_err(host)?;
            mine.push(Mutex::new(Line {
                stream: one,
                reader: FrameReader::new(),
            }));
            theirs.push(OwnedFd::from(other));
        }
        let lines: [Mutex<Line>; MORE_LINES + 1] = mine.try_into().map_err(|_| host("no lines"))?;
        let rest = theirs.split_off(1);
        let child = line::start((self.command)(), theirs.remove(0));
        let child = child.map_err(|error| MoverError::Gone(format!("did not start: {error}")))?;
        let running = Running {
            child: Mutex::new(child),
            lines,
            lost: AtomicBool::new(false),
        };
        let device = config.device;
        running.ask(
            Lane::Tables,
            &Order::Start { device },
            rest,
            config.start_limit,
        )?;
        for (at, bytes, file) in self.pool.files().map_err(host)? {
            self.pin(&running, at, bytes, file)?;
        }
        Ok(running)
    }

    fn pin(&self, running: &Running, at: u64, bytes: u64, file: File) -> Result<(), MoverError> {
        let order = Order::Pin { at, bytes };
        let limit = self.config.order_limit;
        running.ask(Lane::Pins, &order, vec![file.into()], limit)?;
        Ok(())
    }

    pub(super) fn ask(
        &self,
        lane: Lane,
        order: &Order,
        fds: Vec<OwnedFd>,
    ) -> Result<(Answer, Vec<OwnedFd>), MoverError> {
        self.running()?
            .ask(lane, order, fds, self.config.order_limit)
    }

    /// Runs the tasks of the pool, in its own thread.
    pub(super) fn maintain_pool(&self) {
        loop {
            match self.pool.next_chore() {
                Chore::End => return,
                Chore::Scrub(span) => self.pool.scrub(span),
                Chore::Grow(at, bytes) => {
                    if let Err(error) = self.grow(at, bytes) {
                        log::error!("The host's pool stays at {} MiB: {error}", at >> 20);
                        self.pool.grow(None);
                    }
                }
            }
        }
    }

    fn grow(&self, at: u64, bytes: u64) -> Result<(), MoverError> {
        let segment = Segment::new(bytes).map_err(host)?;
        let file = || segment.file().map_err(host);
        let running = self.running()?;
        self.pin(&running, at, bytes, file()?)?;
        let again = file()?;
        self.pool.grow(Some(segment));
        // A mover started meanwhile may lack this file; a later one gets it from the pool.
        let now = self.running()?;
        if !Arc::ptr_eq(&running, &now) {
            let _ = self.pin(&now, at, bytes, again);
        }
        Ok(())
    }
}
