//! The launcher's connection to the daemon, which may be lost and made again.
//!
//! A daemon that starts makes its socket, and inotify reports that ([`super::arrival`]). Where it
//! does not (no folder to watch, or a socket that was there before), the launcher retries.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use turnstile_vmm::wire::{
    Agreed, FrameReader, FrameWriter, GPUS_SINCE, Gpus, Protocols, Read, ToDaemon, ToVmm, WireError,
};

use super::LaunchError;
use super::arrival::{Arrival, SocketEvent};

/// TIMEOUT: a daemon answers within a period; ten seconds are the VMM's limit as well.
const ANSWER: Duration = Duration::from_secs(10);
/// First and longest wait before connecting again; each wait is double the one before. A try
/// without a daemon is one call of some microseconds.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// The same after a socket was made: for some microseconds it has no listener.
const QUICK: Duration = Duration::from_millis(10);
/// Launchers that learn of a daemon at the same moment spread their connections over this time.
const SPREAD_MS: u32 = 32;

#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    reader: FrameReader,
    writer: FrameWriter,
}

#[derive(Debug)]
enum State {
    /// Not connected; tried again at this time, or when an event arrives.
    Down(Instant, Option<Arrival>),
    /// Offered versions of the protocol, without an answer; given up at this time.
    Offered(Connection, Instant),
    /// Greeted, without an answer; given up at this time.
    Greeted(Connection, Instant),
    Up(Connection),
}

/// Result of a turn of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Nothing,
    /// A daemon admitted the program; it knows none of its objects yet.
    Admitted,
}

/// The connection.
#[derive(Debug)]
pub(super) struct Link {
    socket: PathBuf,
    greeting: ToDaemon,
    /// Identities of the GPUs that the program is on; empty where the daemon did not report them.
    gpus: Vec<String>,
    /// The daemon knows no offer: it is greeted in this version at once at the next try, and at
    /// that one alone.
    without_offer: Option<u32>,
    state: State,
    backoff: Duration,
    /// The last refusal that was printed; the same one is not printed again.
    reported_refusal: Option<String>,
}

impl Link {
    /// Connects for the first time, and waits for the answer.
    ///
    /// # Errors
    /// If there is no daemon, or it refuses.
    pub(super) fn open(socket: PathBuf, mut greeting: ToDaemon) -> Result<Self, LaunchError> {
        let failed = |source| LaunchError::NoDaemon {
            path: socket.clone(),
            source,
        };
        let connect = || {
            let stream = UnixStream::connect(&socket).map_err(failed)?;
            stream
                .set_read_timeout(Some(ANSWER))
                .and_then(|()| stream.set_write_timeout(Some(ANSWER)))
                .map_err(failed)?;
            Ok::<_, LaunchError>(Connection::new(stream))
        };
        let mut connection = connect()?;
        connection.send(&ToDaemon::Offer(Protocols::SPOKEN))?;
        let answer = connection.answer()?;
        let protocol = match Protocols::SPOKEN.agreed(&answer) {
            Some(Agreed::Here(protocol)) => protocol,
            Some(Agreed::Anew(protocol)) => {
                connection = connect()?;
                protocol
            }
            None => return Err(refusal(answer)),
        };
        greeting.set_protocol(protocol);
        if protocol < GPUS_SINCE && gpus_of(&mut greeting).is_some_and(|gpus| *gpus != Gpus::Placed)
        {
            return Err(LaunchError::OneGpu);
        }
        connection.send(&greeting)?;
        let gpus = match connection.answer()? {
            ToVmm::Admitted { gpus, .. } => gpus,
            other => return Err(refusal(other)),
        };
        connection.stream.set_nonblocking(true).map_err(failed)?;
        // A later daemon has to take the program where it runs. One that reports no GPU has one.
        if let Some(named) = gpus_of(&mut greeting) {
            let kept = if gpus.is_empty() {
                vec!["0".to_owned()]
            } else {
                gpus.clone()
            };
            *named = Gpus::Kept(kept);
        }
        Ok(Self {
            socket,
            greeting,
            gpus,
            without_offer: None,
            state: State::Up(connection),
            backoff: BACKOFF.0,
            reported_refusal: None,
        })
    }

    /// Identities of the GPUs that the program is to use; empty where that is not known.
    pub(super) fn gpus(&self) -> &[String] {
        &self.gpus
    }

    /// The greeting in the version that was agreed. A daemon before [`GPUS_SINCE`] gets no GPUs.
    fn greeting_in(&self, protocol: u32) -> ToDaemon {
        let mut greeting = self.greeting.clone();
        greeting.set_protocol(protocol);
        if let Some(gpus) = gpus_of(&mut greeting).filter(|_| protocol < GPUS_SINCE) {
            *gpus = Gpus::Placed;
        }
        greeting
    }

    /// What to wait for.
    pub(super) fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match &self.state {
            State::Down(_, arrival) => Some((arrival.as_ref()?.as_fd(), PollFlags::IN)),
            State::Offered(connection, _)
            | State::Greeted(connection, _)
            | State::Up(connection) => {
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
            State::Down(until, _) | State::Offered(_, until) | State::Greeted(_, until) => {
                Some(until)
            }
            State::Up(_) => None,
        }
    }

    /// Whether messages arrive.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.state, State::Up(_))
    }

    /// Sends a message, if a daemon is connected. After a new admission the caller sends everything
    /// again.
    pub(super) fn send(&mut self, message: &ToDaemon, fds: Vec<OwnedFd>) {
        let State::Up(connection) = &mut self.state else {
            return;
        };
        let queued = connection.writer.push(message, fds);
        if let Err(error) = queued.and_then(|()| connection.flush()) {
            self.lost(&error.to_string());
        }
    }

    /// Reads and writes what can be, connects if it is time to.
    pub(super) fn turn(&mut self) -> Turn {
        let now = Instant::now();
        self.poll_arrival(now);
        match &mut self.state {
            State::Down(until, _) if now >= *until => {
                self.connect(now);
                Turn::Nothing
            }
            State::Down(..) => Turn::Nothing,
            State::Offered(_, until) | State::Greeted(_, until) if now >= *until => {
                self.lost("it does not answer");
                Turn::Nothing
            }
            State::Offered(connection, _)
            | State::Greeted(connection, _)
            | State::Up(connection) => {
                let received = connection
                    .flush()
                    .and_then(|()| connection.reader.read::<ToVmm>(&connection.stream));
                match received {
                    Ok(Read::Frame(frame)) => self.receive(frame.message),
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

    /// Connects, and sends what is to be sent first.
    fn connect(&mut self, now: Instant) {
        let until = now + ANSWER;
        let without_offer = self.without_offer.take();
        let offer = || ToDaemon::Offer(Protocols::SPOKEN);
        let first = without_offer.map_or_else(offer, |protocol| self.greeting_in(protocol));
        let connected = open(&self.socket).and_then(|stream| {
            let mut connection = Connection::new(stream);
            let sent = connection.send(&first).map_err(io::Error::other);
            sent.map(|()| connection)
        });
        match connected {
            Ok(connection) if without_offer.is_some() => {
                self.state = State::Greeted(connection, until)
            }
            Ok(connection) => self.state = State::Offered(connection, until),
            Err(_) => self.wait(now),
        }
    }

    /// Greets the daemon in the version that it chose. One that knows no offer has closed the
    /// connection: it is greeted at the next try, which is due.
    fn agreed(&mut self, agreed: Agreed, mut connection: Connection, until: Instant) {
        match agreed {
            Agreed::Here(protocol) => match connection.send(&self.greeting_in(protocol)) {
                Ok(()) => self.state = State::Greeted(connection, until),
                Err(_) => self.wait(Instant::now()),
            },
            Agreed::Anew(protocol) => self.without_offer = Some(protocol),
        }
    }

    fn receive(&mut self, message: ToVmm) -> Turn {
        let waiting = || State::Down(Instant::now(), None);
        let agreed = Protocols::SPOKEN.agreed(&message);
        let state = std::mem::replace(&mut self.state, waiting());
        match (message, agreed, state) {
            (_, Some(agreed), State::Offered(connection, until)) => {
                self.agreed(agreed, connection, until);
            }
            (ToVmm::Admitted { .. }, _, State::Greeted(connection, _)) => {
                self.state = State::Up(connection);
                self.backoff = BACKOFF.0;
                self.reported_refusal = None;
                log::warn!("A daemon is back: the program is its tenant again");
                return Turn::Admitted;
            }
            (ToVmm::Refused { text }, _, State::Offered(..) | State::Greeted(..)) => {
                if self.reported_refusal.as_ref() != Some(&text) {
                    log::warn!("The daemon does not take the program back: {text}");
                    self.reported_refusal = Some(text);
                }
                self.wait(Instant::now());
            }
            (ToVmm::ProcessRefused { pid, text }, _, state @ State::Up(_)) => {
                log::warn!("The daemon does not account process {pid} to this program: {text}");
                self.state = state;
            }
            (_, _, state) => {
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

    /// Takes in events: after a daemon has made its socket, the next try is soon.
    fn poll_arrival(&mut self, now: Instant) {
        let State::Down(until, arrival) = &mut self.state else {
            return;
        };
        match arrival.as_ref().map(Arrival::read_events) {
            Some(SocketEvent::Created) => {
                *until = (*until).min(now + spread(std::process::id()));
                self.backoff = QUICK;
            }
            // From the next try on.
            Some(SocketEvent::Unwatched) => *arrival = None,
            Some(SocketEvent::Nothing) | None => {}
        }
    }

    fn wait(&mut self, now: Instant) {
        let arrival = match std::mem::replace(&mut self.state, State::Down(now, None)) {
            State::Down(_, arrival) => arrival,
            State::Offered(..) | State::Greeted(..) | State::Up(_) => None,
        };
        let arrival = arrival.or_else(|| Arrival::of(&self.socket).ok());
        self.state = State::Down(now + self.backoff, arrival);
        self.backoff = (self.backoff * 2).min(BACKOFF.1);
    }
}

/// This launcher's wait, spread by its process number.
fn spread(pid: u32) -> Duration {
    Duration::from_millis(u64::from(pid % SPREAD_MS))
}

impl Connection {
    fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            reader: FrameReader::new(),
            writer: FrameWriter::new(),
        }
    }

    fn send(&mut self, message: &ToDaemon) -> Result<(), WireError> {
        self.writer.push(message, Vec::new())?;
        self.flush()
    }

    /// Waits for the daemon's answer.
    fn answer(&mut self) -> Result<ToVmm, LaunchError> {
        match self.reader.read(&self.stream)? {
            Read::Frame(frame) => Ok(frame.message),
            Read::End | Read::WouldBlock => Err(LaunchError::Silent),
        }
    }

    fn flush(&mut self) -> Result<(), WireError> {
        self.writer.flush(&self.stream).map(|_| ())
    }
}

/// The GPUs that a greeting names.
const fn gpus_of(greeting: &mut ToDaemon) -> Option<&mut Gpus> {
    match greeting {
        ToDaemon::Program { gpus, .. } => Some(gpus),
        _ => None,
    }
}

/// Why a daemon that answered so did not admit the program.
fn refusal(answer: ToVmm) -> LaunchError {
    match answer {
        ToVmm::Refused { text } => LaunchError::Refused(text),
        _ => LaunchError::Silent,
    }
}

/// Connects without ever waiting: a program's calls must not wait for a daemon.
fn open(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
