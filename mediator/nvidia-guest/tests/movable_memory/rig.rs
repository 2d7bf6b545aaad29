//! A program at the device process's socket, the stand-in driver, and the daemon's end of memory.

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};
use turnstile_nvidia_guest::abi::{Node, read_u32, read_u64, write_u32, write_u64};
use turnstile_nvidia_guest::check::Limits;
use turnstile_nvidia_guest::device::{Options, StandIn, serve};
use turnstile_nvidia_guest::proto::{Kind, Message, VERSION, node_word, receive, send};
use turnstile_preload_wire::descriptors;
use turnstile_preload_wire::socket::DaemonLine;
use turnstile_preload_wire::{self as wire, ToDaemon, ToLibrary};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const BASE: u64 = 0x7000_0000_0000;
/// TIMEOUT: what takes microseconds, on a machine that does much else.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);
pub(crate) const DEVICE: u32 = 0x5c00_0001;
pub(crate) const MEMORY: u32 = 0x5c00_0010;

pub(crate) fn request(number: u32, bytes: usize) -> u32 {
    3 << 30 | (bytes as u32) << 16 | u32::from(b'F') << 8 | number
}

pub(crate) fn file(bytes: u64) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("memory", flags).unwrap();
    ftruncate(&file, bytes).unwrap();
    file.into()
}

/// A program, its device process and the daemon's end of its memory.
pub(crate) struct Rig {
    pub(crate) program: Program,
    pub(crate) driver: Arc<StandIn>,
    /// Never closed: a device process ends if memory is away then.
    pub(crate) daemon: ManuallyDrop<DaemonLine>,
    pub(crate) launcher: OwnedFd,
    life: Option<UnixStream>,
    device: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

/// The next connection for the daemon, which is greeted.
pub(crate) fn accept(launcher: &OwnedFd) -> DaemonLine {
    let received = descriptors::receive(launcher, &mut [0], RecvFlags::empty());
    let fd = received.unwrap().1.pop();
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
    pub(crate) fn new() -> Self {
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
    pub(crate) fn hear(&self) -> ToDaemon {
        loop {
            assert!(self.daemon.has_message(LIMIT), "nothing is said");
            match self.daemon.next().unwrap().unwrap().0 {
                ToDaemon::Pinned { .. } => {}
                message => return message,
            }
        }
    }

    /// The same, without those that ask for memory that is away: they come at any time.
    pub(crate) fn answer(&self) -> ToDaemon {
        loop {
            let message = self.hear();
            if message != (ToDaemon::Wants {}) {
                return message;
            }
        }
    }

    /// Answers the next request for memory.
    pub(crate) fn give(&self, memory: &File) -> u64 {
        let ToDaemon::Take { chunk, .. } = self.hear() else {
            panic!("no request for memory");
        };
        self.restore(chunk, memory);
        chunk
    }

    pub(crate) fn restore(&self, chunk: u64, memory: &File) {
        let fd = memory.as_fd().try_clone_to_owned().unwrap();
        assert!(self.daemon.say(&ToLibrary::Restore { chunk }, Some(&fd)));
        assert_eq!(self.answer(), ToDaemon::Restored { chunk });
    }

    pub(crate) fn release(&self, chunk: u64) {
        assert!(self.daemon.say(&ToLibrary::Release { chunk }, None));
        assert_eq!(self.answer(), ToDaemon::Released { chunk });
    }

    /// A call of the program that waits, and what the daemon does meanwhile. Returns both results.
    pub(crate) fn beside<A: Send, B>(
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
    pub(crate) fn with_memory(&self, memory: &File) -> u64 {
        let (status, chunk) = self.beside(
            |program| program.allocate(MEMORY, 4 * MIB),
            || self.give(memory),
        );
        assert_eq!(status, 0);
        assert_eq!(self.program.map(MEMORY, BASE, 4 * MIB), 0);
        chunk
    }

    /// Whether the object has this memory, and is mapped.
    pub(crate) fn has(&self, memory: &File) -> bool {
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

pub(crate) struct Program {
    socket: UnixStream,
    talking: std::sync::Mutex<()>,
    control: u32,
    memory: u32,
    pub(crate) client: u32,
}

impl Program {
    pub(crate) fn new(path: &std::path::Path) -> Self {
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

    pub(crate) fn end(&self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    pub(crate) fn ask(&self, message: &Message, fds: &[std::os::fd::BorrowedFd<'_>]) -> Message {
        let _talking = self.talking.lock().unwrap();
        send(&self.socket, message, fds).unwrap();
        receive(&self.socket).unwrap().unwrap().message
    }

    pub(crate) fn call(&self, file: u32, request: u32, buffers: Vec<Vec<u8>>) -> Message {
        let call = Message {
            kind: Kind::Call,
            file,
            request,
            buffers,
            ..Message::default()
        };
        self.ask(&call, &[])
    }

    pub(crate) fn escape(
        &self,
        number: u32,
        mut top: Vec<u8>,
        params: Option<Vec<u8>>,
    ) -> Vec<Vec<u8>> {
        write_u64(&mut top, 16, params.is_some().into());
        let request = request(number, top.len());
        let buffers = std::iter::once(top).chain(params).collect();
        let answer = self.call(self.control, request, buffers);
        assert_eq!(answer.result, 0, "{answer:?}");
        answer.buffers
    }

    /// RM_ALLOC: status and parameters.
    pub(crate) fn alloc(
        &self,
        handle: u32,
        parent: u32,
        class: u32,
        params: Vec<u8>,
    ) -> (u32, Vec<u8>) {
        let mut top = vec![0; 48];
        for (at, word) in [(0, self.client), (4, parent), (8, handle), (12, class)] {
            write_u32(&mut top, at, word);
        }
        let mut answer = self.escape(0x2b, top, Some(params));
        (read_u32(&answer[0], 40), answer.pop().unwrap())
    }

    pub(crate) fn allocate(&self, handle: u32, bytes: u64) -> u32 {
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

    pub(crate) fn control(&self, number: u32, params: Vec<u8>) -> u32 {
        let mut top = vec![0; 32];
        write_u32(&mut top, 0, self.client);
        write_u32(&mut top, 4, DEVICE);
        write_u32(&mut top, 8, number);
        write_u32(&mut top, 24, params.len() as u32);
        read_u32(&self.escape(0x2a, top, Some(params))[0], 28)
    }

    pub(crate) fn free(&self, handle: u32) -> u32 {
        let mut top = vec![0; 16];
        write_u32(&mut top, 0, self.client);
        write_u32(&mut top, 4, DEVICE);
        write_u32(&mut top, 8, handle);
        let request = request(0x29, 16);
        read_u32(&self.call(self.control, request, vec![top]).buffers[0], 12)
    }

    pub(crate) fn map(&self, handle: u32, base: u64, bytes: u64) -> u32 {
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

    pub(crate) fn duplicate(&self, new: u32, handle: u32) -> u32 {
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
