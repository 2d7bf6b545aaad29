//! A daemon for tests: it welcomes one VM, opens channels, runs NOPs and fences, and moves gates at
//! the test's request.
#![allow(dead_code, reason = "each test uses what it needs")]

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use turnstile_abi::{
    COMMAND_BYTES, ChannelStateBlock, ChannelStatus, Command, CopyDirection, ErrorCode,
    GPU_VA_BASE, PAGE_BYTES, Request,
};
use turnstile_images::{GUEST_ELF, Report, Workload};
use turnstile_vmm::gate::{GateState, PageWords, SharedPages};
use turnstile_vmm::vmm::{VmConfig, VmError, VmHandle, VmReport, kvm_available, native, spawn};
use turnstile_vmm::wire::{FrameReader, PROTOCOL, Protocols, Read, ToDaemon, ToVmm, send};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::tempdir::TempDir;

pub(crate) const CHANNELS: u32 = 8;
pub(crate) const APERTURE_BYTES: u64 = 2 << 20;

/// What the daemon is to do of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// State of a new channel's gate.
    pub(crate) first: GateState,
    /// Whether to run the commands in the ring.
    pub(crate) run: bool,
    /// Hangs up after this many requests.
    pub(crate) requests_max: usize,
}

impl Default for Manner {
    fn default() -> Self {
        Self {
            first: GateState::Open,
            run: true,
            requests_max: usize::MAX,
        }
    }
}

struct Ring {
    gpa: u64,
    entries: u32,
    state_gpa: u64,
    vector: usize,
    get: u32,
    faulted: bool,
}

pub(crate) struct Daemon {
    folder: TempDir,
    stream: Arc<Mutex<Option<UnixStream>>>,
    done: Mutex<Receiver<u64>>,
    seq: AtomicU32,
    pages: Arc<Mutex<Option<Arc<SharedPages>>>>,
    kick: File,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// A memory file as a daemon hands it out.
fn file(bytes: u64) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("test", flags).unwrap());
    file.set_len(bytes).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    file
}

impl Daemon {
    pub(crate) fn start(manner: Manner) -> Self {
        let folder = TempDir::new().unwrap();
        let listener = UnixListener::bind(folder.as_path().join("socket")).unwrap();
        let (tell, done) = channel();
        // Trapped doorbells are counted by the length of a file: each kick writes eight bytes.
        let kick = file(0);
        let mut daemon = Self {
            folder,
            stream: Arc::default(),
            done: Mutex::new(done),
            seq: AtomicU32::new(0),
            pages: Arc::default(),
            kick: kick.try_clone().unwrap(),
            over: Arc::default(),
            threads: Vec::new(),
        };
        let (stream, pages, over) = (
            Arc::clone(&daemon.stream),
            Arc::clone(&daemon.pages),
            Arc::clone(&daemon.over),
        );
        daemon.threads.push(std::thread::spawn(move || {
            serve(
                &listener,
                manner,
                kick.into(),
                &stream,
                &pages,
                &over,
                &tell,
            );
        }));
        daemon
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.as_path().join("socket")
    }

    /// Moves a gate and waits until that is done; returns the writes trapped so far.
    pub(crate) fn gate(&self, channel: u32, state: GateState) -> u64 {
        let seq = u64::from(self.seq.fetch_add(1, Ordering::Relaxed));
        let stream = self.stream.lock().unwrap();
        let message = ToVmm::Gate {
            channel,
            seq,
            state,
        };
        send(stream.as_ref().unwrap(), &message, Vec::new()).unwrap();
        let done = self.done.lock().unwrap();
        done.recv_timeout(Duration::from_secs(20)).unwrap()
    }

    pub(crate) fn page(&self, channel: u32) -> u32 {
        let pages = self.pages.lock().unwrap();
        pages.as_ref().map_or(0, |pages| pages.load(channel))
    }

    /// Number of trapped writes of which the daemon was notified.
    pub(crate) fn kicks(&self) -> u64 {
        self.kick.metadata().unwrap().len() / 8
    }

    /// Waits until `condition`; fails the test where that takes too long.
    pub(crate) fn until(&self, what: &str, condition: impl Fn() -> bool) {
        let since = std::time::Instant::now();
        while !condition() {
            assert!(
                since.elapsed() < Duration::from_secs(20),
                "waiting for {what}"
            );
            std::thread::yield_now();
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() && !std::thread::panicking() {
                panic!("the daemon panicked");
            }
        }
    }
}

fn serve(
    listener: &UnixListener,
    manner: Manner,
    kick: OwnedFd,
    stream_out: &Mutex<Option<UnixStream>>,
    pages_out: &Mutex<Option<Arc<SharedPages>>>,
    over: &Arc<AtomicBool>,
    tell: &Sender<u64>,
) {
    let (stream, _) = listener.accept().unwrap();
    let mut reader = FrameReader::new();
    let mut next = || match reader.read::<ToDaemon>(&stream) {
        Ok(Read::Frame(frame)) => frame,
        other => panic!("{other:?}"),
    };
    assert_eq!(next().message, ToDaemon::Offer(Protocols::SPOKEN));
    let chosen = ToVmm::Chosen { protocol: PROTOCOL };
    send(&stream, &chosen, Vec::new()).unwrap();
    let hello = next();
    assert_eq!(hello.message.protocol(), Some(PROTOCOL));
    let ToDaemon::Hello { regions, .. } = &hello.message else {
        panic!("{:?}", hello.message);
    };
    let mut fds = hello.fds.into_iter();
    let ram = FileOffset::new(File::from(fds.next().unwrap()), 0);
    let range = (GuestAddress(0), regions[0].bytes as usize, Some(ram));
    let ram: Arc<GuestMemoryMmap<()>> =
        Arc::new(GuestMemoryMmap::from_ranges_with_files([range]).unwrap());
    let interrupts: Vec<File> = fds.map(File::from).collect();
    assert_eq!(interrupts.len(), usize::from(turnstile_abi::pci::VECTORS));

    let doorbells = file(u64::from(CHANNELS) * PAGE_BYTES);
    let pages = SharedPages::from_file(doorbells.try_clone().unwrap(), CHANNELS).unwrap();
    let pages = Arc::new(pages);
    *pages_out.lock().unwrap() = Some(Arc::clone(&pages));
    let memory = file(APERTURE_BYTES);
    let vram = FileOffset::new(memory.try_clone().unwrap(), 0);
    let vram: GuestMemoryMmap<()> = GuestMemoryMmap::from_ranges_with_files([(
        GuestAddress(GPU_VA_BASE),
        APERTURE_BYTES as usize,
        Some(vram),
    )])
    .unwrap();
    let welcome = ToVmm::Welcome {
        tenant: 1,
        channels: CHANNELS,
        gpu_memory_bytes: APERTURE_BYTES,
        features: 0xf,
        doorbells_offset: 0,
    };
    let fds: Vec<OwnedFd> = vec![
        doorbells.into(),
        file(PAGE_BYTES).into(),
        memory.into(),
        kick,
    ];
    send(&stream, &welcome, fds).unwrap();
    *stream_out.lock().unwrap() = Some(stream.try_clone().unwrap());

    let rings: Arc<Mutex<Vec<Option<Ring>>>> =
        Arc::new(Mutex::new((0..CHANNELS).map(|_| None).collect()));
    let executor = manner.run.then(|| {
        let (rings, over) = (Arc::clone(&rings), Arc::clone(over));
        let pages = Arc::clone(&pages);
        std::thread::spawn(move || execute(&ram, &vram, &pages, &interrupts, &rings, &over))
    });
    let mut requests = 0;
    while let Ok(Read::Frame(frame)) = reader.read::<ToDaemon>(&stream) {
        match frame.message {
            ToDaemon::Mailbox { id, op, args } => {
                requests += 1;
                if requests > manner.requests_max {
                    let _ = stream.shutdown(std::net::Shutdown::Both);
                    break;
                }
                answer(&stream, manner, &rings, &pages, id, op, &args);
            }
            ToDaemon::GateDone { trapped, seq, .. } if seq < 1 << 32 => {
                let _ = tell.send(trapped);
            }
            _ => {}
        }
    }
    over.store(true, Ordering::Relaxed);
    if let Some(executor) = executor {
        executor.join().unwrap();
    }
}

fn answer(
    stream: &UnixStream,
    manner: Manner,
    rings: &Mutex<Vec<Option<Ring>>>,
    pages: &SharedPages,
    id: u64,
    op: u32,
    args: &[u64; 8],
) {
    let mut results = [0; 8];
    let mut error = ErrorCode::None;
    let mut rings = rings.lock().unwrap();
    match Request::decode(op, args) {
        Ok(Request::OpenChannel {
            ring_gpa,
            entries,
            state_gpa,
            vector,
        }) => {
            let channel = rings.iter().position(Option::is_none).unwrap();
            rings[channel] = Some(Ring {
                gpa: ring_gpa,
                entries,
                state_gpa,
                vector: vector.into(),
                get: 0,
                faulted: false,
            });
            results[0] = channel as u64;
            pages.store(channel as u32, 0);
            let gate = ToVmm::Gate {
                channel: channel as u32,
                seq: 1 << 32,
                state: manner.first,
            };
            let _ = send(stream, &gate, Vec::new());
        }
        Ok(Request::CloseChannel { channel }) => {
            rings[channel as usize] = None;
            let _ = send(stream, &ToVmm::ChannelClosed { channel }, Vec::new());
        }
        Ok(Request::Allocate { bytes }) if bytes <= APERTURE_BYTES => {
            results[..3].copy_from_slice(&[GPU_VA_BASE, 0, APERTURE_BYTES]);
        }
        Ok(Request::Allocate { .. }) => error = ErrorCode::OutOfGpuMemory,
        Ok(Request::FindFunction { .. }) => results[1] = 24,
        Ok(_) => {}
        Err(refused) => error = refused,
    }
    let done = ToVmm::MailboxDone {
        id,
        error: error as u32,
        text: String::new(),
        results,
    };
    let _ = send(stream, &done, Vec::new());
}

/// Moves bytes between two memories.
fn copy(
    from: (&GuestMemoryMmap<()>, u64),
    to: (&GuestMemoryMmap<()>, u64),
    bytes: u64,
) -> Option<()> {
    let mut buffer = vec![0; bytes as usize];
    from.0.read_slice(&mut buffer, GuestAddress(from.1)).ok()?;
    to.0.write_slice(&buffer, GuestAddress(to.1)).ok()
}

/// Runs a command of memory; the only kernel is one that leaves its token, like `spin`.
fn perform(ram: &GuestMemoryMmap<()>, vram: &GuestMemoryMmap<()>, command: &Command) -> Option<()> {
    match *command {
        Command::Copy {
            direction,
            source,
            destination,
            bytes,
        } => match direction {
            CopyDirection::GuestToGpu => copy((ram, source), (vram, destination), bytes),
            CopyDirection::GpuToGuest => copy((vram, source), (ram, destination), bytes),
            CopyDirection::GpuToGpu => copy((vram, source), (vram, destination), bytes),
        },
        Command::Fill { va, bytes, pattern } => {
            (0..bytes / 4).try_for_each(|i| vram.write_obj(pattern, GuestAddress(va + 4 * i)).ok())
        }
        Command::Launch(launch) => {
            let word = |at: u64| {
                ram.read_obj::<u32>(GuestAddress(launch.params_gpa + at))
                    .ok()
            };
            let out = u64::from(word(12)?) << 32 | u64::from(word(8)?);
            let at = out + 4 * u64::from(word(16)?);
            vram.write_obj(word(20)?, GuestAddress(at)).ok()
        }
        _ => Some(()),
    }
}

fn execute(
    ram: &GuestMemoryMmap<()>,
    vram: &GuestMemoryMmap<()>,
    pages: &SharedPages,
    interrupts: &[File],
    rings: &Mutex<Vec<Option<Ring>>>,
    over: &AtomicBool,
) {
    while !over.load(Ordering::Relaxed) {
        for (channel, ring) in rings.lock().unwrap().iter_mut().enumerate() {
            let Some(ring) = ring else { continue };
            let put = pages.load(channel as u32);
            while ring.get != put && !ring.faulted {
                let at = ring.gpa + u64::from(ring.get % ring.entries) * COMMAND_BYTES as u64;
                let mut bytes = [0; COMMAND_BYTES];
                ram.read_slice(&mut bytes, GuestAddress(at)).unwrap();
                ring.get = ring.get.wrapping_add(1);
                let store = |value: u32, at: u64| {
                    let gpa = GuestAddress(ring.state_gpa + at);
                    ram.store(value, gpa, Ordering::Release).unwrap();
                };
                let fault = |code: ErrorCode| {
                    store(code as u32, ChannelStateBlock::ERROR);
                    store(ChannelStatus::Faulted as u32, ChannelStateBlock::STATUS);
                };
                match Command::decode(&bytes) {
                    Ok(Command::Fence {
                        gpa,
                        value,
                        interrupt,
                    }) => {
                        ram.store(value, GuestAddress(gpa), Ordering::Release)
                            .unwrap();
                        store(ring.get, ChannelStateBlock::GET);
                        if interrupt {
                            (&interrupts[ring.vector])
                                .write_all(&1u64.to_ne_bytes())
                                .unwrap();
                        }
                    }
                    Ok(command) => match perform(ram, vram, &command) {
                        Some(()) => store(ring.get, ChannelStateBlock::GET),
                        None => {
                            fault(ErrorCode::PageFault);
                            ring.faulted = true;
                        }
                    },
                    Err(code) => {
                        fault(code);
                        ring.faulted = true;
                    }
                }
            }
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// The two kinds of guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Kvm,
    Native,
}

pub(crate) fn config(daemon: &Daemon, workload: Workload) -> VmConfig {
    VmConfig {
        guest_elf: GUEST_ELF.to_vec(),
        args: workload.encode().to_vec(),
        files: turnstile_images::files(),
        ..VmConfig::new("test", daemon.socket())
    }
}

impl Kind {
    /// The kinds that this host can run; prints the reason if it cannot run VMs.
    pub(crate) fn all() -> Vec<Self> {
        let built = |()| turnstile_images::guest_built().map_err(|error| error.to_string());
        match kvm_available()
            .map_err(|error| error.to_string())
            .and_then(built)
        {
            Ok(()) => vec![Self::Kvm, Self::Native],
            Err(reason) => {
                println!("skipped for VMs: {reason}");
                vec![Self::Native]
            }
        }
    }

    pub(crate) fn try_start(
        self,
        daemon: &Daemon,
        workload: Workload,
    ) -> Result<VmHandle, VmError> {
        let config = config(daemon, workload);
        match self {
            Self::Kvm => spawn(config),
            Self::Native => native::spawn(config, |platform| turnstile_images::run(platform)),
        }
    }

    pub(crate) fn start(self, daemon: &Daemon, workload: Workload) -> VmHandle {
        self.try_start(daemon, workload).unwrap()
    }

    /// Runs a workload to its end.
    pub(crate) fn run(self, daemon: &Daemon, workload: Workload) -> (VmReport, Report) {
        finish(self.start(daemon, workload))
    }
}

pub(crate) fn finish(vm: VmHandle) -> (VmReport, Report) {
    let limit = Duration::from_secs(60);
    let vm = vm.join_within(limit, Duration::from_secs(5)).unwrap();
    let report = Report::decode(&vm.report).expect("a report");
    (vm, report)
}
