//! Stand-ins for libraries, over socket pairs.

use std::fs::File;
use std::os::fd::AsFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use turnstile_preload_wire::descriptors;
use turnstile_preload_wire::{FRAME_BYTES, ToDaemon, VERSION};

use super::*;

const A: TenantId = TenantId(1);
const MIB: u64 = 1 << 20;
/// TIMEOUT: milliseconds on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// Records calls. Refuses chunks if `full`; with `gives` it grants them as [`Grant::Given`].
#[derive(Debug, Default)]
struct Recorder {
    made: Mutex<Vec<ProgramPlace>>,
    freed: Mutex<Vec<ProgramPlace>>,
    given: Mutex<Vec<ProgramPlace>>,
    full: Mutex<bool>,
    gives: bool,
}

impl Backing for Recorder {
    fn allocate(&self, _: TenantId, place: ProgramPlace) -> Result<Grant, Denial> {
        if *self.full.lock().unwrap() {
            return Err(Denial::Full);
        }
        if self.gives {
            self.given.lock().unwrap().push(place);
            return Ok(Grant::Given);
        }
        Ok(Grant::Make)
    }

    fn give(
        &self,
        _: TenantId,
        place: ProgramPlace,
        send: &mut dyn FnMut(OwnedFd),
    ) -> Result<(), Denial> {
        if *self.full.lock().unwrap() {
            return Err(Denial::Full);
        }
        self.made.lock().unwrap().push(place);
        send(null());
        Ok(())
    }

    fn made(&self, _: TenantId, place: ProgramPlace, _: OwnedFd) {
        self.made.lock().unwrap().push(place);
    }

    fn freed(&self, _: TenantId, place: ProgramPlace) {
        self.freed.lock().unwrap().push(place);
    }
}

struct Library(OwnedFd);

impl Library {
    fn raw(&self, frame: &[u8], fd: Option<OwnedFd>) {
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        descriptors::send(&self.0, frame, &fds, SendFlags::empty()).unwrap();
    }

    fn say(&self, message: ToDaemon) {
        let fd = (message.descriptors() > 0).then(null);
        self.raw(&message.encode(), fd);
    }

    fn receive(&self) -> Option<ToLibrary> {
        let mut frame = [0; FRAME_BYTES];
        let received = descriptors::receive(&self.0, &mut frame, RecvFlags::empty());
        let (got, fds) = received.ok()?;
        (got > 0).then(|| ToLibrary::decode(&frame, fds.len()).unwrap())
    }
}

fn null() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

fn connect(memory: &ProgramMemory, max_bytes: u64) -> Library {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let receive = rustix::net::sockopt::Timeout::Recv;
    rustix::net::sockopt::set_socket_timeout(&ours, receive, Some(LIMIT)).unwrap();
    memory.add(A, Some(max_bytes));
    memory.connect(A, theirs).unwrap();
    let library = Library(ours);
    let version = VERSION;
    library.say(ToDaemon::Hello { version });
    assert!(
        matches!(library.receive(), Some(ToLibrary::Welcome { limit_bytes, .. }) if limit_bytes <= max_bytes)
    );
    library
}

fn until(what: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !what() {
        assert!(Instant::now() < end);
        thread::yield_now();
    }
}

fn memory(gives: bool) -> (ProgramMemory, Arc<Recorder>) {
    let recorder = Arc::new(Recorder {
        gives,
        ..Recorder::default()
    });
    (ProgramMemory::new(100 * MIB, recorder.clone()), recorder)
}

#[test]
fn allocation_within_the_limit_is_granted_and_its_memory_moves() {
    let (memory, recorder) = memory(false);
    let library = connect(&memory, 40 * MIB);
    let bytes = 20 * MIB;
    for chunk in [1, 2] {
        library.say(ToDaemon::Ask { chunk, bytes });
        assert_eq!(library.receive(), Some(ToLibrary::Granted { chunk }));
        library.say(ToDaemon::Made { chunk, bytes });
    }
    let reason = Denial::Limit;
    library.say(ToDaemon::Ask { chunk: 3, bytes });
    assert_eq!(
        library.receive(),
        Some(ToLibrary::Denied { chunk: 3, reason })
    );
    library.say(ToDaemon::Info { question: 4 });
    let answer = ToLibrary::Memory {
        question: 4,
        free_bytes: 0,
        total_bytes: 40 * MIB,
    };
    assert_eq!(library.receive(), Some(answer));
    until(|| recorder.made.lock().unwrap().len() == 2);
    let places = recorder.made.lock().unwrap().clone();
    thread::scope(|scope| {
        let moving = scope.spawn(|| memory.unmap(A, &places));
        for chunk in [1, 2] {
            assert_eq!(library.receive(), Some(ToLibrary::Release { chunk }));
            library.say(ToDaemon::Released { chunk });
        }
        assert_eq!(moving.join().unwrap(), Ok(()));
        let lacking = BTreeSet::from([std::process::id()]);
        assert_eq!(memory.lacking(), BTreeMap::from([(A, lacking)]));
        // A chunk freed while it is away is not waited for.
        library.say(ToDaemon::Freed { chunk: 2 });
        until(|| recorder.freed.lock().unwrap().len() == 1);
        let back = places.iter().map(|place| (*place, null())).collect();
        let moving = scope.spawn(|| memory.map(A, back));
        assert_eq!(library.receive(), Some(ToLibrary::Restore { chunk: 1 }));
        library.say(ToDaemon::Restored { chunk: 1 });
        assert_eq!(library.receive(), Some(ToLibrary::Restore { chunk: 2 }));
        library.say(ToDaemon::Failed {
            chunk: 2,
            result: 0,
        });
        assert_eq!(moving.join().unwrap(), Ok(()));
    });
    let nobody = BTreeSet::new();
    assert_eq!(memory.lacking(), BTreeMap::from([(A, nobody)]));
    assert_eq!(memory.held_bytes(A), Some((20 * MIB, 0)));
    assert_eq!(memory.figures()["program_memory_denied_limit"], 1);
    drop(library);
    until(|| recorder.freed.lock().unwrap().len() == 2);
    assert_eq!(memory.held_bytes(A), None);
}

#[test]
fn what_is_given_is_waited_for_and_what_cannot_be_is_denied() {
    let (memory, recorder) = memory(true);
    let library = connect(&memory, 90 * MIB);
    let bytes = 20 * MIB;
    library.say(ToDaemon::Ask { chunk: 1, bytes });
    until(|| recorder.given.lock().unwrap().len() == 1);
    let place = recorder.given.lock().unwrap()[0];
    thread::scope(|scope| {
        let giving = scope.spawn(|| memory.map(A, vec![(place, null())]));
        assert_eq!(library.receive(), Some(ToLibrary::Restore { chunk: 1 }));
        library.say(ToDaemon::Restored { chunk: 1 });
        assert_eq!(giving.join().unwrap(), Ok(()));
    });
    *recorder.full.lock().unwrap() = true;
    library.say(ToDaemon::Ask { chunk: 2, bytes });
    let reason = Denial::Full;
    assert_eq!(
        library.receive(),
        Some(ToLibrary::Denied { chunk: 2, reason })
    );
    assert_eq!(memory.held_bytes(A), Some((20 * MIB, 0)));
    let (reason, bytes) = (Pin::Managed, 7);
    library.say(ToDaemon::Pinned { reason, bytes });
    until(|| memory.figures()["program_pinned_managed_bytes"] == 7);
}

#[test]
fn breach_ends_the_connection_and_frees_its_chunks() {
    let (memory, recorder) = memory(false);
    let bytes = 20 * MIB;
    let breaches: [fn(&Library); 5] = [
        |library| library.raw(&[1, 2, 3], None),
        |library| library.raw(&[0; 64], None),
        |library| library.say(ToDaemon::Released { chunk: 7 }),
        |library| library.say(ToDaemon::Hello { version: VERSION }),
        |library| library.raw(&ToDaemon::Freed { chunk: 1 }.encode(), Some(null())),
    ];
    for breach in breaches {
        let library = connect(&memory, 40 * MIB);
        library.say(ToDaemon::Made { chunk: 1, bytes });
        breach(&library);
        assert_eq!(library.receive(), None);
        until(|| memory.held_bytes(A).is_none());
    }
    // No chunk is kept.
    until(|| recorder.freed.lock().unwrap().len() == 5);
    let silent = connect(&memory, 40 * MIB);
    silent.say(ToDaemon::Made { chunk: 1, bytes });
    until(|| recorder.made.lock().unwrap().len() == 6);
    let place = recorder.made.lock().unwrap()[5];
    thread::scope(|scope| {
        let moving = scope.spawn(|| memory.unmap(A, &[place]));
        assert_eq!(silent.receive(), Some(ToLibrary::Release { chunk: 1 }));
        silent.say(ToDaemon::Failed {
            chunk: 1,
            result: 1,
        });
        assert!(moving.join().unwrap().is_err());
    });
    assert_eq!(silent.receive(), None, "it gets no more messages");
}

#[test]
fn chunk_that_the_daemon_makes_comes_with_its_handle_or_is_denied() {
    let (memory, recorder) = memory(false);
    let library = connect(&memory, 40 * MIB);
    let bytes = turnstile_preload_wire::GRANULE_BYTES;
    library.say(ToDaemon::Take { chunk: 1, bytes });
    assert_eq!(library.receive(), Some(ToLibrary::Restore { chunk: 1 }));
    assert_eq!(recorder.made.lock().unwrap().len(), 1);
    library.say(ToDaemon::Restored { chunk: 1 });
    until(|| memory.held_bytes(A) == Some((bytes, 0)));
    *recorder.full.lock().unwrap() = true;
    library.say(ToDaemon::Take { chunk: 2, bytes });
    let reason = Denial::Full;
    assert_eq!(
        library.receive(),
        Some(ToLibrary::Denied { chunk: 2, reason })
    );
    assert_eq!(
        memory.held_bytes(A),
        Some((bytes, 0)),
        "nothing is kept of it"
    );
}

#[test]
fn a_process_has_one_connection() {
    let (memory, _) = memory(false);
    let library = connect(&memory, 40 * MIB);
    let pair = || {
        let flags = SocketFlags::CLOEXEC;
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    };
    let (_ours, theirs) = pair();
    let refused = memory.connect(A, theirs).unwrap_err();
    assert!(refused.contains("already"), "{refused}");
    drop(library);
    until(|| memory.held_bytes(A).is_none());
    drop(connect(&memory, 40 * MIB));
}

#[test]
fn connections_of_a_tenant_are_limited() {
    let (memory, _) = memory(false);
    let line = || {
        let flags = SocketFlags::CLOEXEC;
        let (_, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        DaemonLine::new(theirs).unwrap()
    };
    let mut state = memory.0.lock();
    for pid in 1..=PROCESSES_MAX as u32 {
        let mut line = line();
        line.pid = pid;
        assert_eq!(state.admit(A, &line), Ok(()));
        let number = state.book.connect(A, MIB);
        state.lines.insert(number, Arc::new(line));
    }
    assert!(state.admit(A, &line()).is_err());
    assert_eq!(state.admit(TenantId(2), &line()), Ok(()));
}

#[test]
fn removed_tenant_is_disconnected_and_cannot_connect() {
    let (memory, _) = memory(false);
    let library = connect(&memory, 40 * MIB);
    memory.remove(A);
    assert_eq!(library.receive(), None);
    until(|| memory.held_bytes(A).is_none());
    let stream = || std::os::unix::net::UnixStream::pair().unwrap().0;
    assert!(memory.connect(A, stream().into()).is_err(), "no tenant");
    memory.add(A, None);
    assert!(
        memory.connect(A, stream().into()).is_err(),
        "of another kind"
    );
}
