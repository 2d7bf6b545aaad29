use super::*;
use crate::gate::GateState;
use crate::wire::{
    CHANGES_MAX, Gpus, Metadata, ObjectChange, ProgramObject, Region, ToDaemon, ToVmm, Userd,
};
use proptest::prelude::*;
use std::fs::File;
use std::io::Write;

fn fds(count: usize) -> Vec<OwnedFd> {
    (0..count)
        .map(|_| File::open("/dev/null").unwrap().into())
        .collect()
}

fn gate(channel: u32) -> ToVmm {
    ToVmm::Gate {
        channel,
        seq: u64::from(channel) << 33,
        state: GateState::Watched,
    }
}

fn next<T: DeserializeOwned>(reader: &mut FrameReader, stream: &UnixStream) -> Frame<T> {
    match reader.read(stream).unwrap() {
        Read::Frame(frame) => frame,
        Read::WouldBlock => panic!("would block"),
        Read::End => panic!("end"),
    }
}

#[test]
fn frames_keep_their_order_and_their_descriptors() {
    let (a, b) = UnixStream::pair().unwrap();
    for (channel, count) in [(1, 0), (2, 4), (3, 0), (4, 1), (5, FRAME_FDS_MAX)] {
        send(&a, &gate(channel), fds(count)).unwrap();
    }
    drop(a);
    let mut reader = FrameReader::new();
    for (channel, count) in [(1, 0), (2, 4), (3, 0), (4, 1), (5, FRAME_FDS_MAX)] {
        let frame = next::<ToVmm>(&mut reader, &b);
        assert_eq!((frame.message, frame.fds.len()), (gate(channel), count));
    }
    assert!(matches!(reader.read::<ToVmm>(&b), Ok(Read::End)));
}

#[test]
fn a_frame_may_arrive_byte_by_byte() {
    let (a, b) = UnixStream::pair().unwrap();
    b.set_nonblocking(true).unwrap();
    let mut reader = FrameReader::new();
    let bytes = encode(&gate(7)).unwrap();
    for (i, byte) in bytes.iter().enumerate() {
        assert!(
            matches!(reader.read::<ToVmm>(&b), Ok(Read::WouldBlock)),
            "{i}"
        );
        (&a).write_all(&[*byte]).unwrap();
    }
    assert_eq!(next::<ToVmm>(&mut reader, &b).message, gate(7));
}

#[test]
fn a_writer_keeps_what_the_socket_does_not_take() {
    let (a, b) = UnixStream::pair().unwrap();
    a.set_nonblocking(true).unwrap();
    let mut writer = FrameWriter::new();
    let long = |id| ToVmm::MailboxDone {
        id,
        error: 0,
        text: "x".repeat(8000),
        results: [0; turnstile_abi::MAILBOX_RESULTS],
    };
    for id in 0..200 {
        writer.push(&long(id), fds(1)).unwrap();
    }
    assert!(!writer.flush(&a).unwrap());
    let mut reader = FrameReader::new();
    for id in 0..200 {
        let frame = next::<ToVmm>(&mut reader, &b);
        assert_eq!((frame.message, frame.fds.len()), (long(id), 1));
        writer.flush(&a).unwrap();
    }
    assert!(writer.is_empty());
}

#[test]
fn hostile_frames_are_errors() {
    let refused = |bytes: &[u8], count: usize| {
        let (a, b) = UnixStream::pair().unwrap();
        let owned = fds(count);
        let raw: Vec<RawFd> = owned.iter().map(AsRawFd::as_raw_fd).collect();
        a.send_with_fds(&[bytes], &raw).unwrap();
        drop((a, owned));
        let mut reader = FrameReader::new();
        loop {
            match reader.read::<ToDaemon>(&b) {
                Ok(Read::Frame(_)) => {}
                Ok(other) => panic!("{other:?}"),
                Err(error) => return error,
            }
        }
    };
    assert!(matches!(refused(&[0; 8], 0), WireError::Length(0)));
    assert!(matches!(refused(&[0xff; 8], 0), WireError::Length(_)));
    assert!(matches!(
        refused(&[2, 0, 0, 0, b'{'], 0),
        WireError::Truncated
    ));
    assert!(matches!(refused(&[2, 0], 1), WireError::Truncated));
    assert!(matches!(refused(b"\x02\0\0\0{}", 0), WireError::Format(_)));
    assert!(matches!(
        refused(b"\x02\0\0\0{}", FRAME_FDS_MAX + 1),
        WireError::TooManyFds
    ));
    assert!(matches!(
        refused(b"\x02\0\0\0{}", 200),
        WireError::TooManyFds
    ));
    let long = ToVmm::Refused {
        text: "x".repeat(FRAME_BYTES_MAX),
    };
    assert!(matches!(encode(&long), Err(WireError::Length(_))));
    let wrong = Frame {
        message: (),
        fds: fds(3),
    };
    assert!(matches!(
        wrong.with_fds::<4>(),
        Err(WireError::WrongFds {
            got: 3,
            expected: 4
        })
    ));
}

#[test]
fn descriptors_sent_in_pieces_are_counted_together() {
    let (a, b) = UnixStream::pair().unwrap();
    let owned = fds(FRAME_FDS_MAX);
    let raw: Vec<RawFd> = owned.iter().map(AsRawFd::as_raw_fd).collect();
    a.send_with_fds(&[&[9u8, 0][..]], &raw).unwrap();
    a.send_with_fds(&[&[0u8, 0][..]], &raw[..1]).unwrap();
    assert!(matches!(
        FrameReader::new().read::<ToVmm>(&b),
        Err(WireError::TooManyFds)
    ));
}

#[test]
fn launcher_messages_fit_a_frame_and_round_trip() {
    let made = ObjectChange::Made(ProgramObject {
        client: u32::MAX,
        handle: u32::MAX,
        class: u32::MAX,
        parent: u32::MAX,
        engine: u32::MAX,
        userd: Some(Userd {
            memory: u32::MAX,
            offset: u64::MAX,
            entries: u32::MAX,
        }),
    });
    let freed = ObjectChange::Freed {
        client: 1,
        handle: 2,
    };
    let program = ToDaemon::Program {
        protocol: crate::wire::PROTOCOL,
        name: "x".repeat(64),
        weight: None,
        memory_max_bytes: None,
        movable: true,
        memory_min_bytes: Some(u64::MAX),
        memory_high_bytes: None,
        gpus: Gpus::Kept(vec!["GPU-00000000-0000-0000-0000-000000000000".into(); 32]),
        metadata: full(),
    };
    let pid = u32::MAX;
    let mut changes = vec![made; CHANGES_MAX];
    changes[7] = freed;
    for message in [
        program,
        ToDaemon::Process { pid },
        ToDaemon::Objects { pid, changes },
        ToDaemon::Exited { pid },
    ] {
        let (a, b) = UnixStream::pair().unwrap();
        send(&a, &message, fds(1)).unwrap();
        assert_eq!(
            next::<ToDaemon>(&mut FrameReader::new(), &b).message,
            message
        );
    }
}

#[test]
fn peer_ids_are_those_of_the_creator_of_the_socket() {
    let (a, _b) = UnixStream::pair().unwrap();
    assert_eq!(crate::wire::peer_pid(&a).unwrap(), std::process::id());
    let own = rustix::process::geteuid().as_raw();
    assert_eq!(crate::wire::peer_uid(&a).unwrap(), own);
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), small in any::<bool>()) {
        let (a, b) = UnixStream::pair().unwrap();
        let mut bytes = bytes;
        if small && bytes.len() >= 4 { bytes[1..4].fill(0); }
        (&a).write_all(&bytes).unwrap();
        drop(a);
        let mut reader = FrameReader::new();
        while let Ok(Read::Frame(_)) = reader.read::<ToVmm>(&b) {}
    }
}

/// Metadata at their limits, each character of a value escaped.
fn full() -> Metadata {
    let label = |n: u32| (format!("{n:063}"), "\"".repeat(253));
    Metadata {
        instance_id: Some("6f1c2a9e-0d7b-4c55-9b1e-2f8f6f0a1b2c".into()),
        project: Some("\\".repeat(253)),
        labels: (0..32).map(label).collect(),
    }
}

/// Greetings of VMMs and launchers from before there were metadata, as they sent them.
#[test]
fn greetings_without_metadata_are_understood_and_sent_as_before() {
    let hello = r#"{"type":"hello","protocol":2,"name":"a","weight":7,"gpu_memory_bytes":null,"regions":[]}"#;
    let program =
        r#"{"type":"program","protocol":2,"name":"a","weight":null,"memory_max_bytes":null}"#;
    for text in [hello, program] {
        let read: ToDaemon = serde_json::from_str(text).unwrap();
        let (ToDaemon::Hello { metadata, .. } | ToDaemon::Program { metadata, .. }) = &read else {
            panic!("{read:?}");
        };
        assert!(metadata.is_empty());
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
    }
    let longest = ToDaemon::Hello {
        protocol: crate::wire::PROTOCOL,
        name: "x".repeat(253),
        weight: Some(10_000),
        gpu_memory_bytes: Some(u64::MAX),
        regions: vec![
            Region {
                gpa: u64::MAX,
                bytes: u64::MAX,
                file_offset: u64::MAX
            };
            32
        ],
        metadata: full(),
    };
    assert!(encode(&longest).is_ok());
}

/// Their form is the same in all versions: a change of it is no new version, but a mistake.
#[test]
fn offer_and_its_answer_keep_their_form() {
    let range = crate::wire::Protocols {
        newest: 9,
        oldest: 7,
    };
    let offer = serde_json::to_string(&ToDaemon::Offer(range)).unwrap();
    assert_eq!(offer, r#"{"type":"offer","newest":9,"oldest":7}"#);
    assert_eq!(
        serde_json::from_str::<ToDaemon>(&offer).unwrap(),
        ToDaemon::Offer(range)
    );
    let chosen = ToVmm::Chosen { protocol: 8 };
    let text = serde_json::to_string(&chosen).unwrap();
    assert_eq!(text, r#"{"type":"chosen","protocol":8}"#);
    assert_eq!(serde_json::from_str::<ToVmm>(&text).unwrap(), chosen);
}
