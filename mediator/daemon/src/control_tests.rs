//! Connections that send nothing, or find no place.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::{self, JoinHandle};

use turnstile_vmm::wire::{FrameWriter, Metadata, PROTOCOL, Read, ToDaemon, ToVmm};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK};

use super::*;
use crate::host::{Host, HostConfig};
use crate::limits;
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
    fn new(row: impl FnOnce(&mut [limits::Row]), greeting: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("vmm.sock")).unwrap();
        let gpu = Arc::new(SoftGpu::new(SoftConfig::default()).unwrap());
        let mut host = Host::new(gpu, HostConfig::default()).unwrap();
        let mut rows = limits::rows(256);
        row(&mut rows);
        host.common.limits = limits::Limits::new(rows);
        let fleet = Arc::new(Fleet::of_one(crate::fleet::unnamed(), Arc::new(host)));
        let wake = EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let own = wake.try_clone().unwrap();
        let mut control = ControlLoop::new(
            listener,
            std::sync::mpsc::channel().1,
            own,
            fleet,
            stop.clone(),
        )
        .unwrap();
        let inner = control.manager.subscriber_mut(control.control).unwrap();
        inner.greeting = greeting;
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
    let bench = Bench::new(|_| {}, Duration::from_millis(200));
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
    let none = |rows: &mut [limits::Row]| rows[Resource::Admissions as usize].account = 0;
    let bench = Bench::new(none, GREETING);
    let stream = bench.connect();
    let mut writer = FrameWriter::new();
    let hello = ToDaemon::Hello {
        protocol: PROTOCOL,
        name: "a".into(),
        weight: None,
        gpu_memory_bytes: None,
        regions: Vec::new(),
        metadata: Metadata::default(),
    };
    writer.push(&hello, Vec::new()).unwrap();
    writer.flush(&stream).unwrap();
    let text = refused(&stream);
    assert!(text.contains("try again"), "{text}");
}

#[test]
fn connection_beyond_the_session_limit_is_closed() {
    let two = |rows: &mut [limits::Row]| rows[Resource::Connections as usize].account = 2;
    let bench = Bench::new(two, GREETING);
    let (_first, _second) = (bench.connect(), bench.connect());
    let mut third = bench.connect();
    assert_eq!(third.read(&mut [0]).unwrap(), 0);
}

#[test]
fn connection_ends_with_its_owner_though_its_socket_is_open() {
    let bench = Bench::new(|_| {}, GREETING);
    let mut stream = bench.connect();
    let mut owner = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .unwrap();
    let pid = Pid::from_child(&owner);
    let mut writer = FrameWriter::new();
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    writer.push(&ToDaemon::Owner {}, vec![pidfd]).unwrap();
    writer.flush(&stream).unwrap();
    // No answer while the owner lives.
    stream
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    assert!(stream.read(&mut [0]).is_err());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let begin = Instant::now();
    owner.kill().unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    assert!(begin.elapsed() < GREETING);
    owner.wait().unwrap();
}
