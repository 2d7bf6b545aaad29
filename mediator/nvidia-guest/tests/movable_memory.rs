//! Memory of a program moves out and in behind its back: a program at the device process's socket,
//! the stand-in driver, and a daemon that is played by the test.
#![allow(missing_docs)]

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use turnstile_nvidia_guest::abi::{Node, read_u32, read_u64, write_u32, write_u64};
use turnstile_nvidia_guest::check::Limits;
use turnstile_nvidia_guest::device::{Options, StandIn, serve};
use turnstile_nvidia_guest::proto::{Kind, Message, VERSION, node_word, receive, send};
use turnstile_preload_wire::socket::DaemonLine;
use turnstile_preload_wire::{self as wire, Denial, ToDaemon, ToLibrary};

const MIB: u64 = 1 << 20;
const BASE: u64 = 0x7000_0000_0000;
/// TIMEOUT: what takes microseconds, on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(10);
const DEVICE: u32 = 0x5c00_0001;
const MEMORY: u32 = 0x5c00_0010;

fn request(number: u32, bytes: usize) -> u32 {
    3 << 30 | (bytes as u32) << 16 | u32::from(b'F') << 8 | number
}

fn file(bytes: u64) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("memory", flags).unwrap();
    ftruncate(&file, bytes).unwrap();
    file.into()
}

/// A program, its device process and the daemon's end of its memory.
struct Rig {
    program: Program,
    driver: Arc<StandIn>,
    /// Never closed: a device process ends if memory is away then.
    daemon: ManuallyDrop<DaemonLine>,
    launcher: OwnedFd,
    life: Option<UnixStream>,
    device: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

/// The next connection for the daemon, which is greeted.
fn accept(launcher: &OwnedFd) -> DaemonLine {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [std::io::IoSliceMut::new(&mut byte)];
    recvmsg(launcher, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let line = DaemonLine::new(fd.unwrap()).unwrap();
    let (hello, _) = line.next().unwrap().unwrap();
    assert_eq!(
        hello,
        ToDaemon::Hello {
            version: wire::VERSION
        }
    );
    let welcome = ToLibrary::Welcome {
        version: wire::VERSION,
        limit_bytes: 64 * MIB,
    };
    assert!(line.say(&welcome, None));
    line
}

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device");
        let listener = UnixListener::bind(&path).unwrap();
        let flags = SocketFlags::CLOEXEC;
        let (launcher, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let (life, alive) = UnixStream::pair().unwrap();
        let driver = StandIn::new().unwrap();
        let copy = Arc::new(Arc::clone(&driver));
        let options = Options {
            version: "580.159.04".into(),
            limits: Limits::default(),
            report: None,
            confined: false,
            memory: Some(theirs),
        };
        let device = thread::spawn(move || serve(&listener, &alive, copy, options).unwrap());
        let daemon = accept(&launcher);
        Self {
            program: Program::new(&path),
            driver,
            daemon: ManuallyDrop::new(daemon),
            launcher,
            life: Some(life),
            device: Some(device),
            _folder: folder,
        }
    }

    /// The next message that is no report of pinned memory.
    fn hear(&self) -> ToDaemon {
        loop {
            assert!(self.daemon.has_message(LIMIT), "nothing is said");
            match self.daemon.next().unwrap().unwrap().0 {
                ToDaemon::Pinned { .. } => {}
                message => return message,
            }
        }
    }

    /// The same, without those that ask for memory that is away: they come at any time.
    fn answer(&self) -> ToDaemon {
        loop {
            let message = self.hear();
            if message != (ToDaemon::Wants {}) {
                return message;
            }
        }
    }

    /// Answers the next request for memory.
    fn give(&self, memory: &File) -> u64 {
        let ToDaemon::Take { chunk, .. } = self.hear() else {
            panic!("no request for memory");
        };
        self.restore(chunk, memory);
        chunk
    }

    fn restore(&self, chunk: u64, memory: &File) {
        let fd = memory.as_fd().try_clone_to_owned().unwrap();
        assert!(self.daemon.say(&ToLibrary::Restore { chunk }, Some(&fd)));
        assert_eq!(self.answer(), ToDaemon::Restored { chunk });
    }

    fn release(&self, chunk: u64) {
        assert!(self.daemon.say(&ToLibrary::Release { chunk }, None));
        assert_eq!(self.answer(), ToDaemon::Released { chunk });
    }

    /// A call of the program that waits, and what the daemon does meanwhile. Returns both results.
    fn beside<A: Send, B>(
        &self,
        call: impl FnOnce(&Program) -> A + Send,
        daemon: impl FnOnce() -> B,
    ) -> (A, B) {
        thread::scope(|scope| {
            let call = scope.spawn(|| call(&self.program));
            let done = catch_unwind(AssertUnwindSafe(daemon));
            if done.is_err() {
                // Else the call would wait on.
                self.program.end();
            }
            let done = done.unwrap_or_else(|panic| resume_unwind(panic));
            (call.join().unwrap(), done)
        })
    }

    /// A program with memory of 4 MiB that is mapped; its chunk.
    fn with_memory(&self, memory: &File) -> u64 {
        let (status, chunk) = self.beside(
            |program| program.allocate(MEMORY, 4 * MIB),
            || self.give(memory),
        );
        assert_eq!(status, 0);
        assert_eq!(self.program.map(MEMORY, BASE, 4 * MIB), 0);
        chunk
    }

    /// Whether the object has this memory, and is mapped.
    fn has(&self, memory: &File) -> bool {
        let client = self.program.client;
        let own = self.driver.imported(client, MEMORY).map(File::from);
        let same = own.is_some_and(|own| {
            let (own, memory) = (own.metadata().unwrap(), memory.metadata().unwrap());
            std::os::unix::fs::MetadataExt::ino(&own)
                == std::os::unix::fs::MetadataExt::ino(&memory)
        });
        same && self.driver.mappings() == [(BASE, client, MEMORY)]
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        drop(self.life.take());
        self.program.end();
        let device = self.device.take().unwrap();
        if !thread::panicking() {
            device.join().unwrap();
        }
    }
}

struct Program {
    socket: UnixStream,
    talking: std::sync::Mutex<()>,
    control: u32,
    memory: u32,
    client: u32,
}

impl Program {
    fn new(path: &std::path::Path) -> Self {
        let mut program = Self {
            socket: UnixStream::connect(path).unwrap(),
            talking: std::sync::Mutex::default(),
            control: 0,
            memory: 0,
            client: 0,
        };
        let ram = file(MIB);
        fcntl_add_seals(&ram, SealFlags::SHRINK).unwrap();
        let hello = Message {
            kind: Kind::Hello,
            a: VERSION.into(),
            ..Message::default()
        };
        program.ask(&hello, &[ram.as_fd()]);
        let open = |program: &Self, node| {
            let open = Message {
                kind: Kind::Open,
                a: node_word(node),
                ..Message::default()
            };
            program.ask(&open, &[]).file
        };
        program.control = open(&program, Node::Control);
        program.memory = open(&program, Node::Uvm);
        let root = program.escape(0x2b, vec![0; 48], None);
        program.client = read_u32(&root[0], 8);
        assert_eq!(
            program.alloc(DEVICE, program.client, 0x80, vec![0; 56]).0,
            0
        );
        program
    }

    fn end(&self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    fn ask(&self, message: &Message, fds: &[std::os::fd::BorrowedFd<'_>]) -> Message {
        let _talking = self.talking.lock().unwrap();
        send(&self.socket, message, fds).unwrap();
        receive(&self.socket).unwrap().unwrap().message
    }

    fn call(&self, file: u32, request: u32, buffers: Vec<Vec<u8>>) -> Message {
        let call = Message {
            kind: Kind::Call,
            file,
            request,
            buffers,
            ..Message::default()
        };
        self.ask(&call, &[])
    }

    fn escape(&self, number: u32, mut top: Vec<u8>, params: Option<Vec<u8>>) -> Vec<Vec<u8>> {
        write_u64(&mut top, 16, params.is_some().into());
        let request = request(number, top.len());
        let buffers = std::iter::once(top).chain(params).collect();
        let answer = self.call(self.control, request, buffers);
        assert_eq!(answer.result, 0, "{answer:?}");
        answer.buffers
    }

    /// RM_ALLOC: status and parameters.
    fn alloc(&self, handle: u32, parent: u32, class: u32, params: Vec<u8>) -> (u32, Vec<u8>) {
        let mut top = vec![0; 48];
        for (at, word) in [(0, self.client), (4, parent), (8, handle), (12, class)] {
            write_u32(&mut top, at, word);
        }
        let mut answer = self.escape(0x2b, top, Some(params));
        (read_u32(&answer[0], 40), answer.pop().unwrap())
    }

    fn allocate(&self, handle: u32, bytes: u64) -> u32 {
        let mut params = vec![0; 128];
        write_u64(&mut params, 64, bytes);
        let (status, filled) = self.alloc(handle, DEVICE, 0x40, params);
        if status == 0 {
            let rounded = bytes.next_multiple_of(0x1_0000);
            let filled = [64, 88].map(|at| read_u64(&filled, at));
            assert_eq!(filled, [rounded, rounded - 1], "as the driver fills it in");
        }
        status
    }

    fn free(&self, handle: u32) -> u32 {
        let mut top = vec![0; 16];
        write_u32(&mut top, 0, self.client);
        write_u32(&mut top, 4, DEVICE);
        write_u32(&mut top, 8, handle);
        let request = request(0x29, 16);
        read_u32(&self.call(self.control, request, vec![top]).buffers[0], 12)
    }

    fn map(&self, handle: u32, base: u64, bytes: u64) -> u32 {
        let mut create = vec![0; 24];
        write_u64(&mut create, 0, base);
        write_u64(&mut create, 8, bytes);
        assert_eq!(self.call(self.memory, 73, vec![create]).result, 0);
        let mut map = vec![0; 9264];
        write_u64(&mut map, 0, base);
        write_u64(&mut map, 8, bytes);
        write_u32(&mut map, 9240, 1);
        write_u32(&mut map, 9248, self.control);
        write_u32(&mut map, 9252, self.client);
        write_u32(&mut map, 9256, handle);
        read_u32(&self.call(self.memory, 33, vec![map]).buffers[0], 9260)
    }

    fn duplicate(&self, new: u32, handle: u32) -> u32 {
        let mut top = vec![0; 28];
        for (at, word) in [
            (0, self.client),
            (4, DEVICE),
            (8, new),
            (12, self.client),
            (16, handle),
        ] {
            write_u32(&mut top, at, word);
        }
        let request = request(0x34, 28);
        read_u32(&self.call(self.control, request, vec![top]).buffers[0], 24)
    }
}

fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < LIMIT, "{what}");
        thread::yield_now();
    }
}

#[test]
fn memory_goes_and_comes_back_at_the_same_handle_and_addresses() {
    let rig = Rig::new();
    let (first, second) = (file(4 * MIB), file(4 * MIB));
    let chunk = rig.with_memory(&first);
    assert!(rig.has(&first));
    for memory in [&second, &first, &second] {
        rig.release(chunk);
        assert!(rig.driver.imported(rig.program.client, MEMORY).is_none());
        assert!(
            rig.driver.mappings().is_empty(),
            "no copy while something is mapped"
        );
        rig.restore(chunk, memory);
        assert!(rig.has(memory));
    }
    assert_eq!(rig.program.free(MEMORY), 0);
    assert_eq!(rig.hear(), ToDaemon::Freed { chunk });
}

#[test]
fn calls_wait_while_memory_is_away_and_the_daemon_is_told_once() {
    let rig = Rig::new();
    let memory = file(4 * MIB);
    let chunk = rig.with_memory(&memory);
    rig.release(chunk);
    let calls = rig.driver.calls();
    let meanwhile = || {
        assert_eq!(rig.hear(), ToDaemon::Wants {});
        assert!(!rig.daemon.has_message(Duration::from_millis(50)));
        assert_eq!(rig.driver.calls(), calls, "nothing reaches the driver");
        rig.restore(chunk, &memory);
    };
    let (status, ()) = rig.beside(|program| program.free(MEMORY), meanwhile);
    assert_eq!(status, 0, "its handle is there again");
    assert_eq!(rig.hear(), ToDaemon::Freed { chunk });
}

#[test]
fn memory_that_leaves_before_it_is_imported_is_brought_by_the_daemon() {
    let rig = Rig::new();
    let (first, second) = (file(4 * MIB), file(4 * MIB));
    let other = file(2 * MIB);
    let chunk = rig.with_memory(&first);
    rig.release(chunk);
    let meanwhile = || {
        // The request waits behind the memory that is away.
        assert_eq!(rig.hear(), ToDaemon::Wants {});
        rig.restore(chunk, &first);
        let ToDaemon::Take { chunk: new, .. } = rig.answer() else {
            panic!("no request");
        };
        // Another chunk leaves while the program waits for its memory.
        rig.release(chunk);
        rig.restore(new, &other);
        rig.release(new);
        rig.restore(new, &second);
        rig.restore(chunk, &first);
    };
    let (status, ()) = rig.beside(|program| program.allocate(MEMORY + 1, 2 * MIB), meanwhile);
    assert_eq!(status, 0);
    let client = rig.program.client;
    assert!(rig.driver.imported(client, MEMORY + 1).is_some() && rig.has(&first));
}

#[test]
fn memory_that_is_no_whole_granules_moves_too() {
    let rig = Rig::new();
    let (status, ()) = rig.beside(
        |program| program.allocate(MEMORY, 3 * MIB + 4096),
        || {
            let take = rig.hear();
            assert_eq!(
                take,
                ToDaemon::Take {
                    chunk: 1,
                    bytes: 4 * MIB
                }
            );
            rig.restore(1, &file(4 * MIB));
        },
    );
    assert_eq!(status, 0);
}

#[test]
fn refused_memory_is_a_full_gpu_and_leaves_nothing() {
    let rig = Rig::new();
    let objects = rig.driver.count();
    let meanwhile = || {
        let ToDaemon::Take { chunk, .. } = rig.hear() else {
            panic!("no request");
        };
        let reason = Denial::Full;
        assert!(rig.daemon.say(&ToLibrary::Denied { chunk, reason }, None));
    };
    let (status, ()) = rig.beside(|program| program.allocate(MEMORY, 4 * MIB), meanwhile);
    assert_eq!(status, 0x51);
    assert_eq!(rig.driver.count(), objects);
    rig.with_memory(&file(4 * MIB));
}

#[test]
fn memory_that_another_handle_shares_stays() {
    let rig = Rig::new();
    let chunk = rig.with_memory(&file(4 * MIB));
    assert_eq!(rig.program.duplicate(MEMORY + 1, MEMORY), 0);
    assert_eq!(rig.hear(), ToDaemon::Kept { chunk });
    assert!(rig.daemon.say(&ToLibrary::Release { chunk }, None));
    assert_eq!(rig.hear(), ToDaemon::Failed { chunk, result: 0 });
    assert_eq!(rig.driver.mappings().len(), 1);
}

#[test]
fn program_that_ends_while_its_memory_is_away_gives_it_back() {
    let rig = Rig::new();
    let chunk = rig.with_memory(&file(4 * MIB));
    rig.release(chunk);
    rig.program.end();
    assert_eq!(rig.hear(), ToDaemon::Freed { chunk });
    until("its objects are freed", || rig.driver.count() == (0, 0));
}

#[test]
fn next_daemon_is_connected_and_the_memory_of_the_last_one_stays() {
    let mut rig = Rig::new();
    let memory = file(4 * MIB);
    rig.with_memory(&memory);
    rig.daemon.end();
    rig.daemon = ManuallyDrop::new(accept(&rig.launcher));
    assert!(rig.has(&memory));
    assert!(rig.daemon.has_message(LIMIT));
    let pinned = ToDaemon::Pinned {
        reason: wire::Pin::Driver,
        bytes: 4 * MIB,
    };
    assert_eq!(rig.daemon.next().unwrap().unwrap().0, pinned);
    let (status, _) = rig.beside(
        |program| program.allocate(MEMORY + 1, 2 * MIB),
        || rig.give(&file(2 * MIB)),
    );
    assert_eq!(status, 0);
}
