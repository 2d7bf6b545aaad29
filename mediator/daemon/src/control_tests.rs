//! Connections that send nothing, or find no place.

use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};
use turnstile_vmm::attach::{interrupts, sealed_memory};
use turnstile_vmm::wire::{FrameWriter, Metadata, PROTOCOL, Protocols, Read, ToDaemon, ToVmm};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

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

fn send(stream: &UnixStream, message: &ToDaemon) {
    let mut writer = FrameWriter::new();
    writer.push(message, Vec::new()).unwrap();
    writer.flush(stream).unwrap();
}

fn framed(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

/// The next frame's text. Its descriptors are closed.
fn text_of(stream: &mut UnixStream) -> String {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut text = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

/// The frames are as the last VMM of protocol 2 sent and received them.
#[test]
fn vm_of_the_version_before_is_admitted_and_answered_in_its_version() {
    let bench = Bench::new(|_| {}, GREETING);
    let mut stream = bench.connect();
    let hello = r#"{"type":"hello","protocol":2,"name":"old","weight":null,"gpu_memory_bytes":null,"regions":[{"gpa":0,"bytes":1048576,"file_offset":0}]}"#;
    let memory = sealed_memory(c"ram", 1 << 20).unwrap();
    let vectors = interrupts().unwrap();
    let vectors = vectors.iter().map(AsRawFd::as_raw_fd);
    let fds: Vec<_> = [memory.as_raw_fd()].into_iter().chain(vectors).collect();
    stream
        .send_with_fds(&[framed(hello).as_slice()], &fds)
        .unwrap();
    let form = |text: String| text.replace(|c: char| c.is_ascii_digit(), "");
    assert_eq!(
        form(text_of(&mut stream)),
        r#"{"type":"welcome","tenant":,"channels":,"gpu_memory_bytes":,"features":,"doorbells_offset":}"#
    );
    let open = r#"{"type":"mailbox","id":1,"op":1,"args":[4096,64,32768,1,0,0,0,0]}"#;
    stream.write_all(&framed(open)).unwrap();
    let mut answers = [text_of(&mut stream), text_of(&mut stream)];
    answers.sort();
    let [gate, done] = answers;
    assert_eq!(
        gate,
        r#"{"type":"gate","channel":0,"seq":1,"state":"watched"}"#
    );
    assert!(
        done.starts_with(r#"{"type":"mailbox_done","id":1,"error":0,"#),
        "{done}"
    );
}

#[test]
fn newest_common_version_is_chosen_for_an_offer() {
    let bench = Bench::new(|_| {}, GREETING);
    for (oldest, newest, chosen) in [
        (PROTOCOL - 1, PROTOCOL, PROTOCOL),
        (PROTOCOL, PROTOCOL + 7, PROTOCOL),
        (1, PROTOCOL - 1, PROTOCOL - 1),
    ] {
        let mut stream = bench.connect();
        send(&stream, &ToDaemon::Offer(Protocols { newest, oldest }));
        let text = text_of(&mut stream);
        assert_eq!(text, format!(r#"{{"type":"chosen","protocol":{chosen}}}"#));
        // The greeting has to be of that version.
        let mut other = ToDaemon::program("a");
        other.set_protocol(2 * PROTOCOL - 1 - chosen);
        send(&stream, &other);
        let text = refused(&stream);
        assert_eq!(text, SessionError::OtherProtocol.to_string());
    }
    let stream = bench.connect();
    send(&stream, &ToDaemon::Offer(Protocols::only(PROTOCOL - 1)));
    let hello = ToDaemon::Hello {
        protocol: PROTOCOL - 1,
        name: "a".into(),
        weight: None,
        gpu_memory_bytes: None,
        regions: Vec::new(),
        metadata: Metadata::default(),
    };
    let vector = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let mut writer = FrameWriter::new();
    writer.push(&hello, vec![vector]).unwrap();
    writer.flush(&stream).unwrap();
    let mut reader = FrameReader::new();
    let mut answer = || match reader.read::<ToVmm>(&stream) {
        Ok(Read::Frame(frame)) => frame.message,
        other => panic!("{other:?}"),
    };
    assert!(matches!(answer(), ToVmm::Chosen { .. }));
    let welcome = answer();
    assert!(matches!(welcome, ToVmm::Welcome { .. }), "{welcome:?}");
}

#[test]
fn offer_and_greeting_without_a_common_version_are_refused_with_both_ranges() {
    let bench = Bench::new(|_| {}, GREETING);
    let newer = Protocols::only(PROTOCOL + 1);
    let mut greeting = ToDaemon::program("a");
    greeting.set_protocol(PROTOCOL + 1);
    for message in [ToDaemon::Offer(newer), greeting] {
        let stream = bench.connect();
        send(&stream, &message);
        assert_eq!(
            refused(&stream),
            "The peer speaks protocol 4, this daemon 2 to 3: update the daemon"
        );
    }
    // One offer is all there is.
    let mut stream = bench.connect();
    let offer = ToDaemon::Offer(Protocols::SPOKEN);
    send(&stream, &offer);
    text_of(&mut stream);
    send(&stream, &offer);
    assert_eq!(refused(&stream), SessionError::OutOfOrder.to_string());
}
