use std::fs::File;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use super::engine::Engine;
use super::serve::serve;
use super::*;

const TOKEN: u32 = 0xb;

/// An engine whose visits begin when it is rung and end when they are over.
struct FakeEngine {
    board: Board,
    rings: Receiver<u32>,
    visit: u64,
}

impl FakeEngine {
    fn new(board: &Board, rings: Receiver<u32>) -> Result<Self, EngineFailure> {
        Ok(Self {
            board: Board::of(board.file().try_clone()?)?,
            rings,
            visit: 0,
        })
    }
}

impl Engine for FakeEngine {
    fn arm(&mut self, visit: u64) -> Result<u32, EngineFailure> {
        self.visit = visit;
        Ok(TOKEN)
    }

    fn wait(&mut self) -> Result<(), EngineFailure> {
        assert_eq!(self.rings.try_recv(), Ok(TOKEN), "nobody rang");
        assert!(self.board.load(ASKED) >= self.visit && self.board.load(LEFT) >= self.visit);
        self.board.store(HERE, self.visit);
        Ok(())
    }
}

/// The daemon's end of a connection. A process there has to be: it ends at once, and says nothing.
fn usher_of(stream: UnixStream, rings: Sender<u32>) -> Usher {
    let child = Command::new("/bin/true").spawn().unwrap();
    let now = Instant::now();
    Usher {
        command: Box::new(|| Command::new("/nowhere")),
        ring: Box::new(move |token| {
            // The other end may be gone.
            let _ = rings.send(token);
        }),
        process: Some(Process::of(child, stream).unwrap()),
        gone: None,
        phase: Phase::Coming(now),
        started: now,
    }
}

type Serving = JoinHandle<Result<(), ServeError>>;

/// Both ends, the usher's in a thread, and the board.
fn both() -> (Usher, Serving, Board) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (rings, heard) = channel();
    let serving = thread::spawn(move || serve(theirs, |board| FakeEngine::new(board, heard)));
    let usher = usher_of(ours, rings);
    let file = usher.process.as_ref().unwrap().board.file().try_clone();
    (usher, serving, Board::of(file.unwrap()).unwrap())
}

fn until_ready(usher: &mut Usher) {
    let begin = Instant::now();
    while !usher.is_ready() {
        // TIMEOUT: it takes milliseconds.
        assert!(usher.pid().is_some() && begin.elapsed() < Duration::from_secs(20));
        thread::yield_now();
    }
}

/// Not at once: a process that another test starts has the connection too, until it is another program.
fn until_gone(usher: &mut Usher) {
    let begin = Instant::now();
    while usher.pid().is_some() {
        // TIMEOUT: as above.
        assert!(!usher.is_ready() && begin.elapsed() < Duration::from_secs(20));
        thread::yield_now();
    }
}

#[test]
fn it_takes_the_engine_and_lets_go_of_it() {
    let (mut usher, serving, board) = both();
    assert_eq!(usher.leave(), None, "it was not told to come");
    for visit in 1..=3 {
        until_ready(&mut usher);
        assert_eq!(board.load(ASKED), visit - 1, "nobody asked");
        assert!(usher.take());
        assert!(!usher.take() && !usher.is_ready(), "it is at it");
        assert_eq!((board.load(ASKED), board.load(LEFT)), (visit, visit - 1));
        board.store(HERE, visit);
        assert_eq!((usher.leave(), usher.leave()), (Some(true), None));
        assert_eq!(board.load(LEFT), visit);
    }
    // One that does not come while it is asked for leaves as well.
    until_ready(&mut usher);
    assert!(usher.take());
    assert_eq!(usher.leave(), Some(false));
    until_ready(&mut usher);
    drop(usher);
    assert!(serving.join().unwrap().is_ok());
}

#[test]
fn a_daemon_that_dies_leaves_the_engine_free() {
    let (mut usher, serving, board) = both();
    until_ready(&mut usher);
    assert!(usher.take());
    assert_eq!(board.load(LEFT), 0);
    drop(usher);
    assert!(serving.join().unwrap().is_ok());
    assert_eq!(board.load(LEFT), 1);
}

#[test]
fn orders_that_do_not_belong_there_end_it() {
    let orders = |orders: &[(Order, Option<File>)]| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        for (order, file) in orders {
            let file = file.iter().map(|file| file.try_clone().unwrap().into());
            send(&ours, order, file.collect()).unwrap();
        }
        let (_rings, heard) = channel();
        serve(theirs, |board| FakeEngine::new(board, heard))
    };
    let file = Board::new().unwrap().file().try_clone().unwrap();
    let start = (Order::Start {}, Some(file));
    for wrong in [
        vec![(Order::Again {}, None)],
        vec![(Order::Start {}, None)],
        vec![start, (Order::Start {}, None)],
    ] {
        assert!(matches!(orders(&wrong), Err(ServeError::Order(_))));
    }
}

#[test]
fn a_gpu_that_refuses_is_no_usher() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (rings, _heard) = channel();
    let mut usher = usher_of(ours, rings);
    let refused = || EngineFailure::from(io::Error::other("no such GPU"));
    let ended = serve(theirs, |_| Err::<FakeEngine, _>(refused()));
    assert!(matches!(ended, Err(ServeError::Engine(_))));
    until_gone(&mut usher);
}

#[test]
fn one_that_is_silent_for_too_long_is_replaced_after_a_while() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let (rings, heard) = channel();
    let mut usher = usher_of(ours, rings);
    assert!(!usher.is_ready() && !usher.take() && usher.pid().is_some());
    let long_ago = |limit: Duration| (Instant::now() - limit).checked_sub(Duration::from_secs(1));
    usher.phase = Phase::Coming(long_ago(READY_LIMIT).unwrap());
    assert!(!usher.is_ready() && usher.pid().is_none());
    assert!(usher.gone.is_some(), "nobody has waited for its end");
    assert!(!usher.take() && heard.try_recv().is_err());
    // After the pause there is another.
    usher.command = Box::new(|| Command::new("/bin/cat"));
    usher.mend();
    assert!(!usher.is_ready() && usher.pid().is_none() && usher.gone.is_none());
    usher.started = long_ago(PAUSE).unwrap();
    assert!(
        !usher.is_ready() && usher.pid().is_none(),
        "who asks may not"
    );
    usher.mend();
    assert!(!usher.is_ready() && usher.pid().is_some());
}

#[test]
fn a_process_that_ends_is_none() {
    let rung = Arc::new(Mutex::new(0));
    let ring = move |token| *rung.lock().unwrap() = token;
    let mut usher = Usher::with(|| Command::new("/bin/true"), ring.clone());
    until_gone(&mut usher);
    let usher = Usher::with(|| Command::new("/nowhere"), ring);
    assert!(usher.pid().is_none());
}
