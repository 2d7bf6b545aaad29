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
use turnstile_vmm::wire::{FrameReader, FrameWriter, Read, ToDaemon, ToVmm, WireError};

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
            reported_refusal: None,
        })
    }

    /// What to wait for.
    pub(super) fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match &self.state {
            State::Down(_, arrival) => Some((arrival.as_ref()?.as_fd(), PollFlags::IN)),
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
            State::Down(until, _) | State::Greeted(_, until) => Some(until),
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
                match open(&self.socket).and_then(|stream| {
                    Connection::greet(stream, &self.greeting).map_err(io::Error::other)
                }) {
                    Ok(connection) => self.state = State::Greeted(connection, now + ANSWER),
                    Err(_) => self.wait(now),
                }
                Turn::Nothing
            }
            State::Down(..) => Turn::Nothing,
            State::Greeted(_, until) if now >= *until => {
                self.lost("it does not answer");
                Turn::Nothing
            }
            State::Greeted(connection, _) | State::Up(connection) => {
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

    fn receive(&mut self, message: ToVmm) -> Turn {
        let waiting = || State::Down(Instant::now(), None);
        match (message, std::mem::replace(&mut self.state, waiting())) {
            (ToVmm::Admitted { .. }, State::Greeted(connection, _)) => {
                self.state = State::Up(connection);
                self.backoff = BACKOFF.0;
                self.reported_refusal = None;
                log::warn!("A daemon is back: the program is its tenant again");
                return Turn::Admitted;
            }
            (ToVmm::Refused { text }, State::Greeted(..)) => {
                if self.reported_refusal.as_ref() != Some(&text) {
                    log::warn!("The daemon does not take the program back: {text}");
                    self.reported_refusal = Some(text);
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
            State::Greeted(..) | State::Up(_) => None,
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, Timespec, poll};
    use std::os::unix::net::UnixListener;
    use std::thread;
    use turnstile_vmm::wire::{Metadata, PROTOCOL};

    /// TIMEOUT: what takes milliseconds, on a machine that does much else.
    const LIMIT: Duration = Duration::from_secs(20);
    /// No retry happens by time alone.
    const LATER: Duration = Duration::from_secs(3_600);

    fn greeting() -> ToDaemon {
        ToDaemon::Program {
            protocol: PROTOCOL,
            name: "train".into(),
            weight: None,
            memory_max_bytes: None,
            movable: false,
            memory_min_bytes: None,
            memory_high_bytes: None,
            metadata: Metadata::default(),
        }
    }

    /// A daemon that takes one program in; its end of the connection.
    fn admits(listener: &UnixListener) -> Connection {
        let (stream, _) = listener.accept().unwrap();
        let mut connection = Connection {
            stream,
            reader: FrameReader::new(),
            writer: FrameWriter::new(),
        };
        let read = connection.reader.read::<ToDaemon>(&connection.stream);
        assert!(matches!(read, Ok(Read::Frame(_))), "{read:?}");
        let admitted = ToVmm::Admitted { tenant: 1 };
        connection.writer.push(&admitted, Vec::new()).unwrap();
        connection.flush().unwrap();
        connection
    }

    /// A link to a daemon that has ended.
    fn widowed(socket: &Path) -> Link {
        let listener = UnixListener::bind(socket).unwrap();
        let path = socket.to_owned();
        let opening = thread::spawn(move || Link::open(path, greeting()).unwrap());
        let daemon = admits(&listener);
        let mut link = opening.join().unwrap();
        assert!(link.is_up());
        drop((daemon, listener));
        std::fs::remove_file(socket).unwrap();
        until("down", &mut link, |link| {
            matches!(link.state, State::Down(..))
        });
        link
    }

    /// As the supervisor does, until something is so.
    fn until(what: &str, link: &mut Link, mut so: impl FnMut(&Link) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !so(link) {
            let now = Instant::now();
            assert!(now < deadline, "not {what}: {link:?}");
            let next = link.until().map_or(deadline, |until| until.min(deadline));
            let left = next.saturating_duration_since(now);
            let timeout = Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: left.subsec_nanos().into(),
            };
            let mut fds: Vec<PollFd<'_>> = link
                .interest()
                .map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags))
                .into_iter()
                .collect();
            poll(&mut fds, Some(&timeout)).unwrap();
            link.turn();
        }
    }

    fn postpone(link: &mut Link) {
        let State::Down(until, arrival) = &mut link.state else {
            panic!("{link:?}");
        };
        assert!(arrival.is_some());
        *until = Instant::now() + LATER;
    }

    #[test]
    fn restarted_daemon_is_connected_before_the_backoff_expires() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("d.sock");
        let mut link = widowed(&socket);
        postpone(&mut link);
        let listener = UnixListener::bind(&socket).unwrap();
        until("greeted", &mut link, |link| {
            matches!(link.state, State::Greeted(..))
        });
        let _daemon = admits(&listener);
        until("up", &mut link, Link::is_up);
        assert_eq!(link.backoff, BACKOFF.0);
    }

    #[test]
    fn socket_without_listener_is_retried_soon_then_with_growing_backoff() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("d.sock");
        let mut link = widowed(&socket);
        postpone(&mut link);
        // Made, and not listened on.
        drop(UnixListener::bind(&socket).unwrap());
        let mut waits = Vec::new();
        until("tried again and again", &mut link, |link| {
            if waits.last() != Some(&link.backoff) {
                waits.push(link.backoff);
            }
            link.backoff == BACKOFF.1
        });
        assert!(waits.contains(&(QUICK * 2)), "{waits:?}");
        assert!(waits.iter().all(|wait| *wait <= BACKOFF.1));
    }

    #[test]
    fn without_a_folder_to_watch_the_connection_is_retried() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("run");
        std::fs::create_dir(&inner).unwrap();
        let socket = inner.join("d.sock");
        let mut link = widowed(&socket);
        std::fs::remove_dir(&inner).unwrap();
        until("deaf", &mut link, |link| {
            matches!(link.state, State::Down(_, None))
        });
        std::fs::create_dir(&inner).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        until("greeted", &mut link, |link| {
            matches!(link.state, State::Greeted(..))
        });
        drop(listener);
    }

    #[test]
    fn reconnect_delays_are_spread_across_processes() {
        let mut spreads: Vec<Duration> = (7_000..7_000 + SPREAD_MS).map(spread).collect();
        spreads.sort();
        spreads.dedup();
        assert_eq!(spreads.len(), SPREAD_MS as usize);
        assert!(spreads.iter().all(|spread| *spread < BACKOFF.0));
    }
}
