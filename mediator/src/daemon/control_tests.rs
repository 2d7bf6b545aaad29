//! Connections that say nothing, or find no room; kicks.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use turnstile_vmm::wire::PROTOCOL;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK};

use super::*;
use crate::daemon::host::HostConfig;
use crate::gpu::soft::{SoftConfig, SoftGpu};

/// TIMEOUT: of a test on a machine that builds at the same time.
const PATIENCE: Duration = Duration::from_secs(60);

struct Bench {
    folder: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    wake: EventFd,
    thread: Option<JoinHandle<()>>,
}

impl Bench {
    fn new(bounds: Bounds) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("vmm.sock")).unwrap();
        let gpu = Arc::new(SoftGpu::new(SoftConfig::default()).unwrap());
        let host = Arc::new(Host::new(gpu, HostConfig::default()).unwrap());
        let wake = EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let own = wake.try_clone().unwrap();
        let control = ControlLoop::new(listener, own, host, stop.clone(), bounds).unwrap();
        let thread = Some(thread::spawn(|| control.run()));
        Self {
            folder,
            stop,
            wake,
            thread,
        }
    }

    fn connect(&self) -> UnixStream {
        let path: &Path = self.folder.path();
        let stream = UnixStream::connect(path.join("vmm.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = self.wake.write(1);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Why the other end was refused; the connection is then over.
fn refused(stream: &UnixStream) -> String {
    let mut reader = FrameReader::new();
    let Ok(Read::Frame(frame)) = reader.read::<ToVmm>(stream) else {
        panic!("hung up on without a word");
    };
    let ToVmm::Refused { text } = frame.message else {
        panic!("{:?}", frame.message);
    };
    assert!(matches!(reader.read::<ToVmm>(stream), Ok(Read::End)));
    text
}

#[test]
fn who_does_not_say_who_it_is_is_hung_up_on() {
    let bench = Bench::new(Bounds {
        greeting: Duration::from_millis(200),
        ..Bounds::of(256)
    });
    let silent = bench.connect();
    let mut half = bench.connect();
    half.write_all(&[9]).unwrap();
    for stream in [&silent, &half] {
        let text = refused(stream);
        assert_eq!(text, SessionError::Silent.to_string());
    }
}

#[test]
fn a_vm_that_finds_no_room_to_start_is_told_so() {
    let bench = Bench::new(Bounds {
        starting: 0,
        ..Bounds::of(256)
    });
    let stream = bench.connect();
    let mut writer = FrameWriter::new();
    let hello = ToDaemon::Hello {
        protocol: PROTOCOL,
        name: "a".into(),
        weight: None,
        gpu_memory_bytes: None,
        regions: Vec::new(),
    };
    writer.push(&hello, Vec::new()).unwrap();
    writer.flush(&stream).unwrap();
    let text = refused(&stream);
    assert!(text.contains("try again"), "{text}");
}

#[test]
fn who_finds_no_place_is_hung_up_on() {
    let bench = Bench::new(Bounds {
        sessions: 2,
        ..Bounds::of(256)
    });
    let (_first, _second) = (bench.connect(), bench.connect());
    let mut third = bench.connect();
    assert_eq!(third.read(&mut [0]).unwrap(), 0);
}

#[test]
fn one_user_leaves_places_to_others_and_all_of_them_some_to_root() {
    const OWN: u32 = 100;
    let bounds = Bounds::of(1);
    assert_eq!(bounds.sessions, 1_024);
    let mut others = vec![7; bounds.of_one - 1];
    let place = |uid, others: &[u32]| bounds.place(uid, OWN, others.iter().copied());
    assert!(place(7, &others));
    others.push(7);
    assert!(!place(7, &others) && place(8, &others));
    others.resize(bounds.of_others, 8);
    assert!(!place(9, &others) && place(0, &others) && place(OWN, &others));
    others.resize(bounds.sessions, OWN);
    assert!(!place(0, &others));
}

struct Counts {
    kick: File,
    kicked: Arc<std::sync::atomic::AtomicU32>,
}

impl MutEventSubscriber for Counts {
    fn init(&mut self, ops: &mut EventOps) {
        ops.add(kick_events(&self.kick, 7)).unwrap();
    }

    fn process(&mut self, events: Events, _: &mut EventOps) {
        assert_eq!(events.data(), 7);
        self.kicked.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn each_kick_is_heard_once_and_none_is_read() {
    // As its VMM may have it: whoever reads or writes waits.
    let kick = File::from(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
    let vmm = kick.try_clone().unwrap();
    let kicked = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let mut manager: EventManager<Counts> = EventManager::new().unwrap();
    let counts = kicked.clone();
    manager.add_subscriber(Counts {
        kick,
        kicked: counts,
    });
    for number in 0..5 {
        manager.run_with_timeout(0).unwrap();
        assert_eq!(kicked.load(Ordering::Relaxed), number);
        rustix::io::write(&vmm, &1u64.to_ne_bytes()).unwrap();
        manager.run_with_timeout(10_000).unwrap();
        assert_eq!(kicked.load(Ordering::Relaxed), number + 1);
    }
    // The VMM takes them back itself: the next one is heard all the same.
    rustix::io::read(&vmm, &mut [0; 8]).unwrap();
    manager.run_with_timeout(0).unwrap();
    assert_eq!(kicked.load(Ordering::Relaxed), 5);
    rustix::io::write(&vmm, &1u64.to_ne_bytes()).unwrap();
    manager.run_with_timeout(10_000).unwrap();
    assert_eq!(kicked.load(Ordering::Relaxed), 6);
}
