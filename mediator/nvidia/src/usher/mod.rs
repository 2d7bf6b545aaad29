//! Another context takes the engine from who is to stop at once.
//!
//! ```text
//!   daemon                                 usher process                      GPU
//!                           <------ ready: a kernel is in its channel, but for the doorbell
//!   take: rings its doorbell --------------------------------------------> whoever is resident stops: his time slice
//!   the driver's call, which suspends                                      is over, and somebody waits
//!   the tenant's channels                                                  the usher's context is on the engine
//!   leave: the visit is over (a shared word) ----------------------------> its kernel ends: whoever may run
//!         --------------- again ------>    the next kernel
//! ```
//!
//! The hardware does that by itself, without the driver: who has been on the engine for a time slice stops some microseconds after another
//! context's doorbell rings. The driver's call that suspends takes effect after 345 us, and is on its way meanwhile: it finds the tenant off
//! the engine, and keeps him there (decision 065).
//!
//! The usher is a process of its own as the mover is, because the vendor's library is in it; but to wake a process takes 50 us, and 300 now
//! and then. So it prepares everything beforehand with its own doorbells muffled ([`super::sys::Muffled`]), and the daemon rings: one store.
//! Nothing rests on it, and nobody waits for it: an usher that is slow, refuses or is gone leaves it to the driver's call, and there is
//! another after a while. Its kernel is one thread, does nothing that was not asked for, and ends by itself if nobody tells it to.

mod board;
mod engine;
mod serve;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use turnstile_vmm::wire::{FrameReader, Read, WireError, send};

use super::line::{self, LineError};
use super::rm::{RmClient, RmError};
use board::{ASKED, Board, HERE, LEFT};

pub use engine::EngineFailure;
pub use serve::{ServeError, run};

/// From the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case", deny_unknown_fields)]
enum Order {
    /// First, and once. Descriptor: the board's.
    Start {},
    /// The visit is over: another is to be made ready.
    Again {},
}

/// From the usher: this visit only lacks its doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ready {
    visit: u64,
    /// What to ring.
    token: u32,
}

/// TIMEOUT: the vendor's library takes half a second, a visit some microseconds after it is over.
const READY_LIMIT: Duration = Duration::from_secs(30);

/// From one start of an usher to the next.
const PAUSE: Duration = Duration::from_secs(10);

/// What went wrong with an usher.
#[derive(Debug, thiserror::Error)]
enum UsherError {
    #[error("did not start: {0}")]
    Start(#[from] io::Error),
    #[error(transparent)]
    Line(#[from] LineError),
}

impl From<WireError> for UsherError {
    fn from(error: WireError) -> Self {
        Self::Line(error.into())
    }
}

/// A process that is an usher, or is about to be one.
#[derive(Debug)]
struct Process {
    child: Child,
    stream: UnixStream,
    reader: FrameReader,
    board: Board,
}

impl Process {
    fn start(command: Command) -> Result<Self, UsherError> {
        let (stream, theirs) = UnixStream::pair()?;
        Self::of(line::start(command, theirs.into())?, stream)
    }

    fn of(child: Child, stream: UnixStream) -> Result<Self, UsherError> {
        // One that does not read must not stop the daemon.
        stream.set_nonblocking(true)?;
        let board = Board::new()?;
        let file = OwnedFd::from(board.file().try_clone()?);
        send(&stream, &Order::Start {}, vec![file])?;
        Ok(Self {
            child,
            stream,
            reader: FrameReader::new(),
            board,
        })
    }

    /// What is ready, if it has said so; it is not waited for.
    fn ready(&mut self) -> Result<Option<Ready>, UsherError> {
        match self.reader.read(&self.stream)? {
            Read::Frame(frame) => Ok(Some(frame.message)),
            Read::End => Err(LineError::Ended.into()),
            Read::WouldBlock => Ok(None),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It keeps nothing, and may hang in the vendor's library. An error: it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What an usher is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It gets ready, since then.
    Coming(Instant),
    Ready(Ready),
    /// Its doorbell was rung for this visit.
    Taking(u64),
}

/// The daemon's end.
pub struct Usher {
    command: Box<dyn Fn() -> Command + Send>,
    ring: Box<dyn Fn(u32) + Send>,
    process: Option<Process>,
    /// One that did not keep to the protocol, and is to be ended.
    gone: Option<Process>,
    phase: Phase,
    started: Instant,
}

impl std::fmt::Debug for Usher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Usher")
            .field("process", &self.process)
            .field("phase", &self.phase)
            .finish_non_exhaustive()
    }
}

impl Usher {
    /// Starts `command`, which has to end up in [`run`], and does not wait for it. The GPU's doorbells are mapped by `client`,
    /// for as long.
    ///
    /// # Errors
    /// If they are not.
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

    /// Its process, if there is one.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(|process| process.child.id())
    }

    /// If it is gone, and was not started just now, another is started. Not every thread may ([`turnstile_host::confine`]).
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

    /// Takes the engine from whoever is resident, as soon as he has been for a time slice. False where it is not ready; else
    /// [`Self::leave`] has to follow.
    pub fn take(&mut self) -> bool {
        self.is_ready();
        let (Phase::Ready(ready), Some(process)) = (self.phase, &self.process) else {
            return false;
        };
        process.board.store(ASKED, ready.visit);
        (self.ring)(ready.token);
        self.phase = Phase::Taking(ready.visit);
        true
    }

    /// Lets go of the engine, or does not take it any more. Whether it had it; none if it was not told to take it.
    pub fn leave(&mut self) -> Option<bool> {
        let (Phase::Taking(visit), Some(process)) = (self.phase, &self.process) else {
            return None;
        };
        let had = process.board.load(HERE) == visit;
        process.board.store(LEFT, visit);
        self.phase = Phase::Coming(Instant::now());
        let told = send(&process.stream, &Order::Again {}, Vec::new());
        self.keep(told.map_err(UsherError::from));
        Some(had)
    }

    fn start_another(&mut self) {
        self.started = Instant::now();
        self.phase = Phase::Coming(self.started);
        let process = Process::start((self.command)());
        self.process = self.keep(process);
    }

    /// What came of something; a process that does not keep to the protocol is to be ended ([`Self::mend`]).
    fn keep<T>(&mut self, result: Result<T, UsherError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                log::warn!(
                    "The usher {error}; until there is another, who is to stop is stopped by the driver's call alone"
                );
                self.gone = self.process.take();
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
