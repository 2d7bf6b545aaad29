//! A launcher's link to daemons that end, start again, and are of another version.

use super::*;
use rustix::event::{PollFd, Timespec, poll};
use std::os::unix::net::UnixListener;
use std::thread;
use turnstile_vmm::wire::PROTOCOL;

/// TIMEOUT: what takes milliseconds, on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(20);
/// No retry happens by time alone.
const LATER: Duration = Duration::from_secs(3_600);

/// The next connection: its frame, and a daemon's answer to it.
fn accepts(listener: &UnixListener) -> Connection {
    Connection::new(listener.accept().unwrap().0)
}

fn answers(connection: &mut Connection, message: &ToVmm) -> ToDaemon {
    let Read::Frame(frame) = connection.reader.read(&connection.stream).unwrap() else {
        panic!("no frame");
    };
    connection.writer.push(message, Vec::new()).unwrap();
    connection.flush().unwrap();
    frame.message
}

const GPU: &str = "GPU-1";

/// A daemon that takes one program in on a GPU; its end of the connection, and the GPUs that were
/// named.
fn admits(listener: &UnixListener) -> (Connection, Gpus) {
    let mut connection = accepts(listener);
    let chosen = ToVmm::Chosen { protocol: PROTOCOL };
    let offer = answers(&mut connection, &chosen);
    assert_eq!(offer, ToDaemon::Offer(Protocols::SPOKEN));
    let admitted = ToVmm::Admitted {
        tenant: 1,
        gpus: vec![GPU.into()],
    };
    let mut greeting = answers(&mut connection, &admitted);
    assert_eq!(greeting.protocol(), Some(PROTOCOL));
    let gpus = gpus_of(&mut greeting).unwrap().clone();
    (connection, gpus)
}

/// The same of protocol 2, which has no offers.
fn admits_without_offer(listener: &UnixListener) -> Connection {
    let text = "Frame is not a message of the protocol: unknown variant `offer`".into();
    answers(&mut accepts(listener), &ToVmm::Refused { text });
    let mut connection = accepts(listener);
    let admitted = ToVmm::Admitted {
        tenant: 1,
        gpus: Vec::new(),
    };
    let mut greeting = answers(&mut connection, &admitted);
    assert_eq!(greeting.protocol(), Some(2));
    assert_eq!(gpus_of(&mut greeting), Some(&mut Gpus::Placed));
    connection
}

#[test]
fn daemon_of_the_version_before_admits_the_program_and_admits_it_again() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("d.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let path = socket.clone();
    let opening = thread::spawn(move || Link::open(path, ToDaemon::program("train")).unwrap());
    let daemon = admits_without_offer(&listener);
    let mut link = opening.join().unwrap();
    drop((daemon, listener));
    std::fs::remove_file(&socket).unwrap();
    until("down", &mut link, |link| {
        matches!(link.state, State::Down(..))
    });
    let listener = UnixListener::bind(&socket).unwrap();
    let again = thread::spawn(move || (admits_without_offer(&listener), listener));
    until("up", &mut link, Link::is_up);
    let (daemon, listener) = again.join().unwrap();

    // The daemon is upgraded under the program.
    drop((daemon, listener));
    std::fs::remove_file(&socket).unwrap();
    until("down", &mut link, |link| {
        matches!(link.state, State::Down(..))
    });
    let listener = UnixListener::bind(&socket).unwrap();
    let upgraded = thread::spawn(move || admits(&listener));
    until("up", &mut link, Link::is_up);
    let (_, gpus) = upgraded.join().unwrap();
    assert_eq!(gpus, Gpus::Kept(vec!["0".into()]), "that daemon had one");
}

#[test]
fn daemon_of_the_version_before_shares_one_gpu() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("d.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut greeting = ToDaemon::program("train");
    *gpus_of(&mut greeting).unwrap() = Gpus::All;
    let opening = thread::spawn(move || Link::open(socket, greeting));
    let text = "Frame is not a message of the protocol: unknown variant `offer`".into();
    answers(&mut accepts(&listener), &ToVmm::Refused { text });
    let refused = opening.join().unwrap().unwrap_err();
    assert!(matches!(refused, LaunchError::OneGpu), "{refused}");
}

/// A link to a daemon that has ended.
fn widowed(socket: &Path) -> Link {
    let listener = UnixListener::bind(socket).unwrap();
    let path = socket.to_owned();
    let opening = thread::spawn(move || Link::open(path, ToDaemon::program("train")).unwrap());
    let (daemon, gpus) = admits(&listener);
    assert_eq!(gpus, Gpus::Placed);
    let mut link = opening.join().unwrap();
    assert!(link.is_up());
    assert_eq!(link.gpus(), [GPU]);
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
    until("offered", &mut link, |link| {
        matches!(link.state, State::Offered(..))
    });
    let daemon = thread::spawn(move || admits(&listener));
    until("up", &mut link, Link::is_up);
    assert_eq!(link.backoff, BACKOFF.0);
    let (_, gpus) = daemon.join().unwrap();
    assert_eq!(gpus, Gpus::Kept(vec![GPU.into()]), "the program runs there");
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
    until("offered", &mut link, |link| {
        matches!(link.state, State::Offered(..))
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
