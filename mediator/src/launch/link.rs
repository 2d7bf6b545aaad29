//! The launcher's connection to the daemon, which may go and come back.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use turnstile_vmm::wire::{FrameReader, FrameWriter, Read, ToDaemon, ToVmm, WireError};

use super::LaunchError;

/// TIMEOUT: a daemon answers within a period; ten seconds are the VMM's limit as well.
const ANSWER: Duration = Duration::from_secs(10);
/// First wait before connecting again; it doubles up to the last.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    reader: FrameReader,
    writer: FrameWriter,
}

#[derive(Debug)]
enum State {
    /// Not connected; to be tried again then.
    Down(Instant),
    /// Greeted, not answered; given up then.
    Greeted(Connection, Instant),
    Up(Connection),
}

/// What a turn of the link brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Nothing,
    /// A daemon took the program in that knows nothing of it.
    Admitted,
}

/// The connection.
#[derive(Debug)]
pub(super) struct Link {
    socket: PathBuf,
    greeting: ToDaemon,
    state: State,
    backoff: Duration,
    /// The last refusal that was printed; the same one is not printed again.
    said: Option<String>,
}

impl Link {
    /// Connects for the first time, and waits for the answer.
    ///
    /// # Errors
    /// If there is no daemon, or it refuses.
    pub(super) fn open(socket: PathBuf, greeting: ToDaemon) -> Result<Self, LaunchError> {
        let failed = |source| LaunchError::NoDaemon {
            path: socket.clone(),
            source,
        };
        let stream = UnixStream::connect(&socket).map_err(failed)?;
        stream
            .set_read_timeout(Some(ANSWER))
            .and_then(|()| stream.set_write_timeout(Some(ANSWER)))
            .map_err(failed)?;
        let mut connection = Connection::greet(stream, &greeting)?;
        match connection.reader.read(&connection.stream)? {
            Read::Frame(frame) => match frame.message {
                ToVmm::Admitted { .. } => {}
                ToVmm::Refused { text } => return Err(LaunchError::Refused(text)),
                _ => return Err(LaunchError::Silent),
            },
            Read::End | Read::WouldBlock => return Err(LaunchError::Silent),
        }
        connection.stream.set_nonblocking(true).map_err(failed)?;
        Ok(Self {
            socket,
            greeting,
            state: State::Up(connection),
            backoff: BACKOFF.0,
            said: None,
        })
    }

    /// What to wait for.
    pub(super) fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match &self.state {
            State::Down(_) => None,
            State::Greeted(connection, _) | State::Up(connection) => {
                let mut flags = PollFlags::IN;
                if !connection.writer.is_empty() {
                    flags |= PollFlags::OUT;
                }
                Some((connection.stream.as_fd(), flags))
            }
        }
    }

    /// When to take a turn at the latest.
    pub(super) fn until(&self) -> Option<Instant> {
        match self.state {
            State::Down(until) | State::Greeted(_, until) => Some(until),
            State::Up(_) => None,
        }
    }

    /// Whether what is said arrives.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.state, State::Up(_))
    }

    /// Says something to the daemon; nothing if there is none: whoever is admitted again says all of it again.
    pub(super) fn say(&mut self, message: &ToDaemon, fds: Vec<OwnedFd>) {
        let State::Up(connection) = &mut self.state else {
            return;
        };
        let said = connection.writer.push(message, fds);
        if let Err(error) = said.and_then(|()| connection.flush()) {
            self.lost(&error.to_string());
        }
    }

    /// Reads and writes what can be, connects if it is time to.
    pub(super) fn turn(&mut self) -> Turn {
        let now = Instant::now();
        match &mut self.state {
            State::Down(until) if now >= *until => {
                match open(&self.socket).and_then(|stream| {
                    Connection::greet(stream, &self.greeting).map_err(io::Error::other)
                }) {
                    Ok(connection) => self.state = State::Greeted(connection, now + ANSWER),
                    Err(_) => self.wait(now),
                }
                Turn::Nothing
            }
            State::Down(_) => Turn::Nothing,
            State::Greeted(_, until) if now >= *until => {
                self.lost("it does not answer");
                Turn::Nothing
            }
            State::Greeted(connection, _) | State::Up(connection) => {
                let heard = connection
                    .flush()
                    .and_then(|()| connection.reader.read::<ToVmm>(&connection.stream));
                match heard {
                    Ok(Read::Frame(frame)) => self.heard(frame.message),
                    Ok(Read::WouldBlock) => Turn::Nothing,
                    Ok(Read::End) => {
                        self.lost("it has ended");
                        Turn::Nothing
                    }
                    Err(error) => {
                        self.lost(&error.to_string());
                        Turn::Nothing
                    }
                }
            }
        }
    }

    fn heard(&mut self, message: ToVmm) -> Turn {
        let waiting = || State::Down(Instant::now());
        match (message, std::mem::replace(&mut self.state, waiting())) {
            (ToVmm::Admitted { .. }, State::Greeted(connection, _)) => {
                self.state = State::Up(connection);
                self.backoff = BACKOFF.0;
                self.said = None;
                log::warn!("A daemon is back: the program is its tenant again");
                return Turn::Admitted;
            }
            (ToVmm::Refused { text }, State::Greeted(..)) => {
                if self.said.as_ref() != Some(&text) {
                    log::warn!("The daemon does not take the program back: {text}");
                    self.said = Some(text);
                }
                self.wait(Instant::now());
            }
            (ToVmm::ProcessRefused { pid, text }, state @ State::Up(_)) => {
                log::warn!("The daemon does not account process {pid} to this program: {text}");
                self.state = state;
            }
            (_, state) => {
                self.state = state;
                self.lost("it says what does not belong here");
            }
        }
        Turn::Nothing
    }

    fn lost(&mut self, why: &str) {
        if self.is_up() {
            log::warn!(
                "The daemon is lost ({why}); the program runs on, unaccounted and never held, until it is back"
            );
        }
        self.wait(Instant::now());
    }

    fn wait(&mut self, now: Instant) {
        self.state = State::Down(now + self.backoff);
        self.backoff = (self.backoff * 2).min(BACKOFF.1);
    }
}

impl Connection {
    fn greet(stream: UnixStream, greeting: &ToDaemon) -> Result<Self, WireError> {
        let mut connection = Self {
            stream,
            reader: FrameReader::new(),
            writer: FrameWriter::new(),
        };
        connection.writer.push(greeting, Vec::new())?;
        connection.flush()?;
        Ok(connection)
    }

    fn flush(&mut self) -> Result<(), WireError> {
        self.writer.flush(&self.stream).map(|_| ())
    }
}

/// Connects without ever waiting: a program's calls must not wait for a daemon.
fn open(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}
