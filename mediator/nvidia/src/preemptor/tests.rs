use std::fs::File;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use super::engine::Engine;
use super::serve::serve;
use super::*;

const TOKEN: u32 = 0xb;

/// An engine on which an occupancy begins when the doorbell rings, and ends when it is over.
struct FakeEngine {
    page: SharedPage,
    rings: Receiver<u32>,
    visit: u64,
}

impl FakeEngine {
    fn new(page: &SharedPage, rings: Receiver<u32>) -> Result<Self, EngineFailure> {
        Ok(Self {
            page: SharedPage::of(page.file().try_clone()?)?,
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
        assert!(self.page.load(REQUESTED) >= self.visit && self.page.load(LEFT) >= self.visit);
        self.page.store(RESIDENT, self.visit);
        Ok(())
    }
}

/// The daemon's end of a connection. It needs a process: one that ends at once, without output.
fn preemptor_of(stream: UnixStream, rings: Sender<u32>) -> Preemptor {
    let child = Command::new("/bin/true").spawn().unwrap();
    let now = Instant::now();
    Preemptor {
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

/// Both ends, with the preemptor's in a thread, and the shared page.
fn both() -> (Preemptor, Serving, SharedPage) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (rings, received) = channel();
    let serving = thread::spawn(move || serve(theirs, |page| FakeEngine::new(page, received)));
    let preemptor = preemptor_of(ours, rings);
    let file = preemptor.process.as_ref().unwrap().page.file().try_clone();
    (preemptor, serving, SharedPage::of(file.unwrap()).unwrap())
}

fn until_ready(preemptor: &mut Preemptor) {
    let begin = Instant::now();
    while !preemptor.is_ready() {
        // TIMEOUT: it takes milliseconds.
        assert!(preemptor.pid().is_some() && begin.elapsed() < Duration::from_secs(20));
        thread::yield_now();
    }
}

/// Not at once: a process that another test starts has the connection too, until it executes its
/// program.
fn until_gone(preemptor: &mut Preemptor) {
    let begin = Instant::now();
    while preemptor.pid().is_some() {
        // TIMEOUT: as above.
        assert!(!preemptor.is_ready() && begin.elapsed() < Duration::from_secs(20));
        thread::yield_now();
    }
}

#[test]
fn it_takes_the_engine_and_lets_go_of_it() {
    let (mut preemptor, serving, page) = both();
    assert_eq!(preemptor.leave(), None, "it was not requested");
    for visit in 1..=3 {
        until_ready(&mut preemptor);
        assert_eq!(page.load(REQUESTED), visit - 1, "no request");
        assert!(preemptor.take());
        assert!(!preemptor.take() && !preemptor.is_ready(), "it is at it");
        assert_eq!((page.load(REQUESTED), page.load(LEFT)), (visit, visit - 1));
        page.store(RESIDENT, visit);
        assert_eq!((preemptor.leave(), preemptor.leave()), (Some(true), None));
        assert_eq!(page.load(LEFT), visit);
    }
    // An occupancy that was requested and never began is ended as well.
    until_ready(&mut preemptor);
    assert!(preemptor.take());
    assert_eq!(preemptor.leave(), Some(false));
    until_ready(&mut preemptor);
    drop(preemptor);
    assert!(serving.join().unwrap().is_ok());
}

#[test]
fn a_daemon_that_dies_leaves_the_engine_free() {
    let (mut preemptor, serving, page) = both();
    until_ready(&mut preemptor);
    assert!(preemptor.take());
    assert_eq!(page.load(LEFT), 0);
    drop(preemptor);
    assert!(serving.join().unwrap().is_ok());
    assert_eq!(page.load(LEFT), 1);
}

#[test]
fn orders_that_do_not_belong_there_end_it() {
    let orders = |orders: &[(Order, Option<File>)]| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        for (order, file) in orders {
            let file = file.iter().map(|file| file.try_clone().unwrap().into());
            send(&ours, order, file.collect()).unwrap();
        }
        let (_rings, received) = channel();
        serve(theirs, |page| FakeEngine::new(page, received))
    };
    let file = SharedPage::new().unwrap().file().try_clone().unwrap();
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
fn a_gpu_that_refuses_is_no_preemptor() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (rings, _received) = channel();
    let mut preemptor = preemptor_of(ours, rings);
    let refused = || EngineFailure::from(io::Error::other("no such GPU"));
    let ended = serve(theirs, |_| Err::<FakeEngine, _>(refused()));
    assert!(matches!(ended, Err(ServeError::Engine(_))));
    until_gone(&mut preemptor);
}

#[test]
fn one_that_is_silent_for_too_long_is_replaced_after_a_while() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let (rings, received) = channel();
    let mut preemptor = preemptor_of(ours, rings);
    assert!(!preemptor.is_ready() && !preemptor.take() && preemptor.pid().is_some());
    let long_ago = |limit: Duration| (Instant::now() - limit).checked_sub(Duration::from_secs(1));
    preemptor.phase = Phase::Coming(long_ago(READY_LIMIT).unwrap());
    assert!(!preemptor.is_ready() && preemptor.pid().is_none());
    assert!(preemptor.gone.is_some(), "nobody has waited for its end");
    assert!(!preemptor.take() && received.try_recv().is_err());
    // After the pause another process is started.
    preemptor.command = Box::new(|| Command::new("/bin/cat"));
    preemptor.mend();
    assert!(!preemptor.is_ready() && preemptor.pid().is_none() && preemptor.gone.is_none());
    preemptor.started = long_ago(PAUSE).unwrap();
    assert!(
        !preemptor.is_ready() && preemptor.pid().is_none(),
        "the caller may not"
    );
    preemptor.mend();
    assert!(!preemptor.is_ready() && preemptor.pid().is_some());
}

#[test]
fn a_process_that_ends_is_none() {
    let rung = Arc::new(Mutex::new(0));
    let ring = move |token| *rung.lock().unwrap() = token;
    let mut preemptor = Preemptor::with(|| Command::new("/bin/true"), ring.clone());
    until_gone(&mut preemptor);
    let preemptor = Preemptor::with(|| Command::new("/nowhere"), ring);
    assert!(preemptor.pid().is_none());
}
