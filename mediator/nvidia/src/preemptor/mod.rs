//! The preemptor: a context that takes the engine from a tenant that has to stop at once.
//!
//! ```text
//!   daemon                       preemptor process     GPU
//!                     <--- ready: a kernel is in its channel, but for the doorbell
//!   take: rings the doorbell ------------------------> the resident tenant is preempted: its
//!   the driver's call suspends                         timeslice is over, a context is waiting
//!   the tenant's channels                              the preemptor's context is resident
//!   leave: writes a shared word ---------------------> the kernel ends: a runnable tenant runs
//!                     ---- again ---> the next kernel
//! ```
//!
//! The hardware preempts by itself, without the driver: a context that was resident for a timeslice
//! is preempted some microseconds after another context's doorbell rings. The driver's call that
//! suspends takes effect after 345 us. Its start overlaps with that preemption: it finds the tenant
//! off the engine, and keeps it off (decision 065).
//!
//! One residency of the preemptor is an occupancy (`visit`).
//!
//! The preemptor is a process of its own, as the mover is, because the vendor's library is in it.
//! But waking a process takes 50 us, and sometimes 300 us. So it prepares everything beforehand
//! with its own doorbells muffled ([`super::sys::Muffled`]), and the daemon rings: one store.
//! Nothing depends on it, and no thread waits for it: if a preemptor is slow, refuses or is gone,
//! the driver's call still suspends, and another one is started later. Its kernel is one thread. It
//! does nothing without a request, and has a time limit.

mod engine;
mod serve;
mod shared_page;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use turnstile_vmm::wire::{FrameReader, Read, WireError, send};

use super::line::{self, LineError};
use super::rm::{RmClient, RmError};
use shared_page::{LEFT, REQUESTED, RESIDENT, SharedPage};

pub use engine::EngineFailure;
pub use serve::{ServeError, run};

/// An order of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case", deny_unknown_fields)]
enum Order {
    /// The first order, sent once. Descriptor: the shared page's.
    Start {},
    /// The occupancy is over: the next has to be prepared.
    Again {},
}

/// The preemptor's report: this occupancy only lacks its doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ready {
    visit: u64,
    /// The token to ring.
    token: u32,
}

/// Time to become ready. TIMEOUT: the vendor's library takes half a second to start; an occupancy
/// that is over ends within microseconds.
const READY_LIMIT: Duration = Duration::from_secs(30);

/// Minimum interval between two starts of a preemptor.
const PAUSE: Duration = Duration::from_secs(10);

/// Why there is no preemptor.
#[derive(Debug, thiserror::Error)]
enum PreemptorError {
    #[error("did not start: {0}")]
    Start(#[from] io::Error),
    #[error(transparent)]
    Line(#[from] LineError),
}

impl From<WireError> for PreemptorError {
    fn from(error: WireError) -> Self {
        Self::Line(error.into())
    }
}

/// A process that is a preemptor, or becomes one.
#[derive(Debug)]
struct Process {
    child: Child,
    stream: UnixStream,
    reader: FrameReader,
    page: SharedPage,
}

impl Process {
    fn start(command: Command) -> Result<Self, PreemptorError> {
        let (stream, theirs) = UnixStream::pair()?;
        Self::of(line::start(command, theirs.into())?, stream)
    }

    fn of(child: Child, stream: UnixStream) -> Result<Self, PreemptorError> {
        // A preemptor that does not read must not block the daemon.
        stream.set_nonblocking(true)?;
        let page = SharedPage::new()?;
        let file = OwnedFd::from(page.file().try_clone()?);
        send(&stream, &Order::Start {}, vec![file])?;
        Ok(Self {
            child,
            stream,
            reader: FrameReader::new(),
            page,
        })
    }

    /// The report that an occupancy is ready, if it has arrived; does not wait.
    fn ready(&mut self) -> Result<Option<Ready>, PreemptorError> {
        match self.reader.read(&self.stream)? {
            Read::Frame(frame) => Ok(Some(frame.message)),
            Read::End => Err(LineError::Ended.into()),
            Read::WouldBlock => Ok(None),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It keeps no state, and may hang in the vendor's library. An error: it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Phase of a preemptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It prepares an occupancy, since then.
    Coming(Instant),
    Ready(Ready),
    /// Its doorbell was rung for this visit.
    Taking(u64),
}

/// The daemon's end.
pub struct Preemptor {
    command: Box<dyn Fn() -> Command + Send>,
    ring: Box<dyn Fn(u32) + Send>,
    process: Option<Process>,
    /// A process that violated the protocol, and has to be ended.
    gone: Option<Process>,
    phase: Phase,
    started: Instant,
}

impl std::fmt::Debug for Preemptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Preemptor")
            .field("process", &self.process)
            .field("phase", &self.phase)
            .finish_non_exhaustive()
    }
}

impl Preemptor {
    /// Starts `command`, which has to end up in [`run`], and does not wait for it. `client` maps
    /// the GPU's doorbells, and lives as long as this value.
    ///
    /// # Errors
    /// If the doorbells cannot be mapped.
    pub fn start(
        client: RmClient,
        command: impl Fn() -> Command + Send + 'static,
    ) -> Result<Self, RmError> {
        let doorbells = client.map_doorbells()?;
        let owned = (client, doorbells);
        Ok(Self::with(command, move |token| {
            let (_client, doorbells) = &owned;
            doorbells.ring(token);
        }))
    }

    fn with(
        command: impl Fn() -> Command + Send + 'static,
        ring: impl Fn(u32) + Send + 'static,
    ) -> Self {
        let now = Instant::now();
        let mut this = Self {
            command: Box::new(command),
            ring: Box::new(ring),
            process: None,
            gone: None,
            phase: Phase::Coming(now),
            started: now,
        };
        this.start_another();
        this
    }

    /// Its process id, if there is a process.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(|process| process.child.id())
    }

    /// Starts another process if there is none, and the last start was at least 10 s ago. Not every
    /// thread may ([`turnstile_host::confine`]).
    pub fn mend(&mut self) {
        self.gone = None;
        if self.process.is_none() && self.started.elapsed() >= PAUSE {
            self.start_another();
        }
    }

    /// Whether it can take the engine now.
    pub fn is_ready(&mut self) -> bool {
        let Some(process) = &mut self.process else {
            return false;
        };
        if let Phase::Coming(since) = self.phase {
            let ready = match process.ready() {
                Ok(None) if since.elapsed() > READY_LIMIT => Err(LineError::Silent.into()),
                ready => ready,
            };
            if let Some(ready) = self.keep(ready).flatten() {
                self.phase = Phase::Ready(ready);
            }
        }
        matches!(self.phase, Phase::Ready(_))
    }

    /// Takes the engine from the resident tenant, once that was resident for a timeslice. False if
    /// the preemptor is not ready; otherwise [`Self::leave`] has to follow.
    pub fn take(&mut self) -> bool {
        self.is_ready();
        let (Phase::Ready(ready), Some(process)) = (self.phase, &self.process) else {
            return false;
        };
        process.page.store(REQUESTED, ready.visit);
        (self.ring)(ready.token);
        self.phase = Phase::Taking(ready.visit);
        true
    }

    /// Leaves the engine, or does not take it any more. Returns whether it was resident. None if it
    /// was not requested.
    pub fn leave(&mut self) -> Option<bool> {
        let (Phase::Taking(visit), Some(process)) = (self.phase, &self.process) else {
            return None;
        };
        let had = process.page.load(RESIDENT) == visit;
        process.page.store(LEFT, visit);
        self.phase = Phase::Coming(Instant::now());
        let sent = send(&process.stream, &Order::Again {}, Vec::new());
        self.keep(sent.map_err(PreemptorError::from));
        Some(had)
    }

    fn start_another(&mut self) {
        self.started = Instant::now();
        self.phase = Phase::Coming(self.started);
        let process = Process::start((self.command)());
        self.process = self.keep(process);
    }

    /// Returns the value of a result. On an error the process violated the protocol, and has to be
    /// ended ([`Self::mend`]).
    fn keep<T>(&mut self, result: Result<T, PreemptorError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                log::warn!(
                    "The preemptor {error}; until there is another, tenants are stopped by the driver's call alone"
                );
                self.gone = self.process.take();
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
