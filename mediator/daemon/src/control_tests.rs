//! Connections that send nothing, or find no place.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::{self, JoinHandle};

use turnstile_vmm::wire::{FrameWriter, PROTOCOL, Read, ToDaemon, ToVmm};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK};

use super::*;
use crate::host::HostConfig;
use turnstile_soft::{SoftConfig, SoftGpu};

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
fn connection_without_a_complete_greeting_is_refused_after_a_timeout() {
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
fn vm_beyond_the_limit_of_starting_sessions_is_refused_with_a_reason() {
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
fn connection_beyond_the_session_limit_is_closed() {
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
