//! A VMM of this version with daemons of others. The frames of the daemon of protocol 2 are as its
//! last build sent them.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use turnstile_vmm::attach::{AttachError, NoRoutes, Request, Welcome, interrupts, sealed_memory};
use turnstile_vmm::gate::ThreadMap;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;
use vmm_sys_util::tempdir::TempDir;

const OFFER: &str = r#"{"type":"offer","newest":3,"oldest":2}"#;
const UNKNOWN: &str = r#"{"type":"refused","text":"Frame is not a message of the protocol: unknown variant `offer`, expected one of `owner`, `hello`, `mailbox`, `gate_done`, `map_memory`, `unmap_memory`, `program`, `memory`, `process`, `objects`, `exited` at line 1 column 15"}"#;
const WELCOME: &str = r#"{"type":"welcome","tenant":1,"channels":8,"gpu_memory_bytes":2097152,"features":15,"doorbells_offset":0}"#;

fn hello(protocol: u32) -> String {
    format!(
        r#"{{"type":"hello","protocol":{protocol},"name":"vm","weight":null,"gpu_memory_bytes":null,"regions":[{{"gpa":0,"bytes":1048576,"file_offset":0}}]}}"#
    )
}

/// The next frame's text. Its descriptors are closed.
fn receive(stream: &mut UnixStream) -> String {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut text = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

fn framed(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

fn send(stream: &mut UnixStream, text: &str) {
    stream.write_all(&framed(text)).unwrap();
}

/// Welcomes a VM with pages of its own.
fn welcome(stream: &mut UnixStream) {
    let file = |bytes| sealed_memory(c"test", bytes).unwrap();
    let files: [File; 4] = [8 << 12, 1 << 12, 2 << 20, 1 << 12].map(file);
    let fds = files.each_ref().map(|file| file.as_raw_fd());
    let bytes = framed(WELCOME);
    let sent = stream.send_with_fds(&[bytes.as_slice()], &fds).unwrap();
    assert_eq!(sent, bytes.len());
}

/// Requests a VM of a daemon that does this with its listening socket.
fn request(daemon: impl FnOnce(UnixListener) + Send + 'static) -> Result<Welcome, AttachError> {
    let folder = TempDir::new().unwrap();
    let socket = folder.as_path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let daemon = thread::spawn(move || daemon(listener));
    let memory = sealed_memory(c"ram", 1 << 20).unwrap();
    let path: &Path = &socket;
    let welcome = Welcome::request(
        Request::new(path, "vm", memory, 1 << 20),
        &interrupts().unwrap(),
    );
    daemon.join().unwrap();
    welcome
}

fn accept(listener: &UnixListener) -> UnixStream {
    listener.accept().unwrap().0
}

#[test]
fn daemon_without_offers_is_greeted_in_its_version() {
    let vm = request(|listener| {
        let mut first = accept(&listener);
        assert_eq!(receive(&mut first), OFFER);
        send(&mut first, UNKNOWN);
        drop(first);
        let mut second = accept(&listener);
        assert_eq!(receive(&mut second), hello(2));
        welcome(&mut second);
    });
    let vm = vm.unwrap();
    assert_eq!(
        (vm.identity.channels, vm.identity.memory_bytes),
        (8, 2 << 20)
    );
    // The daemon is gone: the frames end, and the device is lost.
    let (device, control) = vm.attach(ThreadMap::new(8), NoRoutes);
    control.run().unwrap();
    assert!(device.gpu().is_lost());
}

#[test]
fn vm_is_greeted_in_the_version_that_the_daemon_chose() {
    for chosen in [3, 2] {
        let vm = request(move |listener| {
            let mut stream = accept(&listener);
            assert_eq!(receive(&mut stream), OFFER);
            let answer = format!(r#"{{"type":"chosen","protocol":{chosen}}}"#);
            send(&mut stream, &answer);
            assert_eq!(receive(&mut stream), hello(chosen));
            welcome(&mut stream);
        });
        vm.unwrap();
    }
}

#[test]
fn version_that_was_not_offered_and_a_refusal_end_the_attempt() {
    for chosen in [1, 4] {
        let refused = request(move |listener| {
            let mut stream = accept(&listener);
            receive(&mut stream);
            let answer = format!(r#"{{"type":"chosen","protocol":{chosen}}}"#);
            send(&mut stream, &answer);
        });
        assert!(
            matches!(refused, Err(AttachError::Protocol(_))),
            "{refused:?}"
        );
    }
    let text = "The peer speaks protocol 2 to 3, this daemon 4 to 5: update the VMM or launcher";
    let refused = request(move |listener| {
        let mut stream = accept(&listener);
        receive(&mut stream);
        send(
            &mut stream,
            &format!(r#"{{"type":"refused","text":"{text}"}}"#),
        );
    });
    let Err(AttachError::Refused(found)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(found, text);
}
