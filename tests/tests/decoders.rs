//! A bounded run of each decoder of foreign bytes over valid and over changed input. The fuzz
//! targets (`tests/fuzz`) run the same functions without a bound:
//!
//! `TURNSTILE_DECODER_RUNS=100000 cargo test --release -p turnstile-tests --test decoders`

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use turnstile_abi::{Command, MAILBOX_ARGS};
use turnstile_tests::decoders;
use turnstile_vmm::wire::{FrameWriter, Metadata, PROTOCOL, ToDaemon};

/// Runs of each decoder; a tenth for those that need a file or a connection.
fn runs() -> u64 {
    std::env::var("TURNSTILE_DECODER_RUNS").map_or(2_000, |n| n.parse().unwrap())
}

/// Changes a few bytes: other values, parts removed, repeated or moved.
fn spoil(bytes: &mut Vec<u8>, random: &mut SmallRng) {
    for _ in 0..random.random_range(0..6) {
        if bytes.is_empty() {
            bytes.push(random.random());
        }
        let (at, other) = (
            random.random_range(0..bytes.len()),
            random.random_range(0..bytes.len()),
        );
        let (from, to) = (at.min(other), (at.max(other)).min(at.min(other) + 64));
        match random.random_range(0..6) {
            0 => bytes[at] = random.random(),
            1 => bytes[at] ^= 1 << random.random_range(0..8),
            2 => {
                bytes[at] = *[0, 0xff, 0x7f, 0x80, b'"', b'{', b'\n']
                    .get(other % 7)
                    .unwrap_or(&0)
            }
            3 => drop(bytes.drain(from..to)),
            4 => {
                let part = bytes[from..to].to_vec();
                bytes.splice(at..at, part);
            }
            _ => bytes.truncate(at),
        }
    }
}

/// Passes each of `seeds`, and `runs` changed ones, to a decoder.
fn try_out(seeds: &[Vec<u8>], runs: u64, decode: impl Fn(&[u8])) {
    for seed in seeds {
        decode(seed);
    }
    for run in 0..runs {
        let mut random = SmallRng::seed_from_u64(run);
        let mut bytes = seeds[random.random_range(0..seeds.len())].clone();
        spoil(&mut bytes, &mut random);
        // The seed is the run's number, and is printed with a panic.
        let decoded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| decode(&bytes)));
        assert!(
            decoded.is_ok(),
            "run {run}: {:?}",
            String::from_utf8_lossy(&bytes)
        );
    }
}

fn text(decode: impl Fn(&str)) -> impl Fn(&[u8]) {
    move |bytes| decode(&String::from_utf8_lossy(bytes))
}

#[test]
fn commands() {
    let mut random = SmallRng::seed_from_u64(0);
    let mut seeds = vec![vec![0; 64]];
    // Random commands with small values, those that decode.
    while seeds.len() < 64 {
        let mut bytes = [0; 64];
        for at in [0, 8, 16, 24, 32] {
            bytes[at] = random.random_range(0..16);
        }
        if Command::decode(&bytes).is_ok() {
            seeds.push(bytes.to_vec());
        }
    }
    try_out(&seeds, 10 * runs(), decoders::command);
}

#[test]
fn mailbox_requests() {
    let seeds: Vec<Vec<u8>> = (0..32_u64)
        .map(|op| {
            let words = [op]
                .into_iter()
                .chain((1..=MAILBOX_ARGS as u64).map(|n| n * 4096));
            words.flat_map(u64::to_le_bytes).collect()
        })
        .collect();
    try_out(&seeds, 10 * runs(), decoders::mailbox);
}

#[test]
fn frames_of_a_vmm() {
    let hello = ToDaemon::Hello {
        protocol: PROTOCOL,
        name: "vm".into(),
        weight: Some(100),
        gpu_memory_bytes: None,
        regions: Vec::new(),
        metadata: Metadata::default(),
    };
    let gate = ToDaemon::GateDone {
        channel: 1,
        seq: 2,
        trapped: 3,
    };
    let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut writer = FrameWriter::new();
    for message in [&hello, &gate, &hello] {
        writer.push(message, Vec::new()).unwrap();
    }
    assert!(writer.flush(&one).unwrap());
    drop(one);
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut &other, &mut bytes).unwrap();
    try_out(&[bytes], 5 * runs(), decoders::wire);
}

#[test]
fn modules() {
    let seeds: Vec<Vec<u8>> = turnstile_images::KERNELS
        .iter()
        .map(|(_, text)| text.as_bytes().to_vec())
        .collect();
    try_out(&seeds, runs() / 4, text(decoders::ptx));
}

#[test]
fn a_ledgers_file() {
    try_out(&[Vec::new(), vec![0; 200]], runs() / 10, |changes| {
        decoders::ledger(changes);
    });
    let mut random = SmallRng::seed_from_u64(1);
    for _ in 0..runs() / 10 {
        let changes: Vec<u8> = (0..5 * random.random_range(1..40))
            .map(|_| random.random())
            .collect();
        decoders::ledger(&changes);
    }
}

#[test]
fn frames_of_a_programs_memory() {
    use turnstile_preload_wire::{ToDaemon, VERSION};
    let hello = ToDaemon::Hello { version: VERSION }.encode();
    let with = |descriptors: u8, frame: &[u8]| [&[descriptors], frame].concat();
    let mut seeds = vec![with(0, &hello), with(1, &hello)];
    // All possible kinds of messages, with zero words after the kind.
    for kind in 0..64_u8 {
        let mut frame = hello;
        for (at, byte) in frame.iter_mut().enumerate() {
            *byte = if at % 8 == 0 { kind } else { 0 };
        }
        seeds.extend((0..3).map(|descriptors| with(descriptors, &frame)));
    }
    try_out(&seeds, 10 * runs(), decoders::program_memory);
}

#[test]
fn context_switch_records() {
    // SOURCE: `RawRecord::decode`: type 2, tag 6 or 7, number at 10.
    let record = |seq: u16, tag: u8| {
        let mut bytes = [0_u8; turnstile_nvidia::events::RECORD_BYTES];
        (bytes[0], bytes[8]) = (2, tag);
        bytes[10..12].copy_from_slice(&seq.to_le_bytes());
        bytes
    };
    let log: Vec<u8> = (65_530_u16..=65_535)
        .chain(0..6)
        .flat_map(|seq| record(seq, 6 + (seq % 2) as u8))
        .collect();
    try_out(&[log], 10 * runs(), decoders::switch_records);
}

#[test]
fn calls_and_messages_of_guests() {
    use turnstile_nvidia_guest::proto::{Extent, Kind, Message};
    let mut random = SmallRng::seed_from_u64(1);
    let seeds: Vec<Vec<u8>> = (0..200)
        .map(|_| {
            (0..random.random_range(100..3_000))
                .map(|_| random.random())
                .collect()
        })
        .collect();
    try_out(&seeds, 10 * runs(), decoders::guest_calls);
    let message = Message {
        kind: Kind::Call,
        buffers: vec![vec![1; 48], vec![2; 128]],
        extents: vec![Extent {
            offset: 0,
            bytes: 4096,
        }],
        ..Message::default()
    };
    try_out(&[message.encode()], 10 * runs(), decoders::guest_messages);
}

#[test]
fn price_lists() {
    let seed = include_bytes!("../../accounting/tests/prices.toml").to_vec();
    try_out(
        &[seed, b"{\"billing\":{},\"sku\":[]}".to_vec()],
        runs(),
        text(decoders::prices),
    );
}

#[test]
fn configurations() {
    let packaged = include_str!("../../mediator/package/turnstile.toml");
    // With all keys.
    let shown: String = packaged
        .lines()
        .map(|line| {
            line.strip_prefix('#')
                .filter(|key| !key.starts_with(' '))
                .unwrap_or(line)
        })
        .flat_map(|line| [line, "\n"])
        .collect();
    let seeds = [
        packaged.into(),
        shown.into_bytes(),
        b"LEDGER_PATH=/x\nledger.window_ms=100\n".to_vec(),
    ];
    try_out(&seeds, runs() / 2, text(decoders::config));
}

#[test]
fn requests_to_the_api() {
    let request = |line: &str, headers: &str, body: &str| {
        let length = body.len();
        format!("{line} HTTP/1.1\r\nHost: a\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}").into_bytes()
    };
    let merge = "Content-Type: application/merge-patch+json\r\n";
    let json = "Content-Type: application/json\r\nIf-Match: \"1\"\r\n";
    let seeds = [
        request("GET /v1/vms?limit=2&cursor=x", "", ""),
        request("GET /v1/gpus", "Accept: */*\r\n", ""),
        request(
            "PUT /v1/vms/00000000-0000-0000-0000-000000000000/scheduling",
            json,
            "{\"weight\":200,\"quota_us\":25000,\"period_us\":100000}",
        ),
        request(
            "PATCH /v1/vms/00000000-0000-0000-0000-000000000000/scheduling",
            merge,
            "{\"quota_us\":null}",
        ),
        request("DELETE /v1/vms/x%00y", "", ""),
        request("GET /metrics", "", ""),
    ];
    try_out(&seeds, runs() / 10, decoders::http);
}

#[test]
fn vfio_user_messages() {
    let header = |id: u16, command: u16, bytes: u32| {
        let mut message = Vec::new();
        message.extend(id.to_le_bytes());
        message.extend(command.to_le_bytes());
        message.extend(bytes.to_le_bytes());
        message.extend([0; 8]);
        message
    };
    // SOURCE: vfio-user specification: commands 1 to 16, a header of 16 bytes.
    let seeds: Vec<Vec<u8>> = (1..=16)
        .map(|command| {
            let mut stream = vec![0];
            stream.extend(header(1, command, 48));
            stream.extend([0, 0, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0]);
            stream.extend([0; 16]);
            stream
        })
        .collect();
    try_out(&seeds, runs() / 10, decoders::vfio_user);
}
