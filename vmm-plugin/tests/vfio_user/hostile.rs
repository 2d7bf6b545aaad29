//! Clients that are broken or hostile end their own connection and nothing else.

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use turnstile_vmm::vfio_user::{Client, Command, DATA_BYTES_MAX, Header, Kind, irq};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use crate::eventfd;
use crate::fake::served;
use crate::messages::{HEADER_BYTES, message, payload, random, whole, words};

/// The next answer: its number and errno; `None` at the end of the connection.
fn answer(mut stream: &UnixStream) -> Option<(u16, u32)> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).ok()?;
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
    let mut rest = vec![0; word(4) as usize - HEADER_BYTES];
    stream.read_exact(&mut rest).unwrap();
    assert_eq!(word(8) & 0xf, 1, "a reply");
    assert_eq!(word(8) & 0x20 != 0, word(12) != 0, "a refusal has an errno");
    Some((u16::from_le_bytes([header[0], header[1]]), word(12)))
}

fn agreed(stream: &UnixStream) {
    let version = whole(1, Command::Version, &payload(Command::Version));
    (&*stream).write_all(&version).unwrap();
    assert_eq!(answer(stream), Some((1, 0)));
}

/// A read that must be answered: the stream is in step.
fn in_step(stream: &UnixStream) {
    let read = whole(999, Command::RegionRead, &payload(Command::RegionRead));
    (&*stream).write_all(&read).unwrap();
    assert_eq!(answer(stream), Some((999, 0)));
}

#[test]
fn every_command_truncated_within_its_message() {
    for command in Command::ALL {
        let (stream, thread) = served();
        agreed(&stream);
        let full = payload(*command);
        // Each is a whole message with a payload of other length: refused or served, and the next
        // message is understood.
        for length in 0..=full.len() + 9 {
            let mut cut = full.clone();
            cut.resize(length, 0);
            let sent = whole(2, *command, &cut);
            (&stream).write_all(&sent).unwrap();
            assert_eq!(answer(&stream).unwrap().0, 2, "{command:?} of {length}");
            in_step(&stream);
        }
        drop(stream);
        thread.join().unwrap().0.unwrap();
    }
}

#[test]
fn every_command_cut_off_by_the_end_of_the_stream() {
    for command in Command::ALL {
        let sent = whole(2, *command, &payload(*command));
        for length in 1..sent.len() {
            let (stream, thread) = served();
            agreed(&stream);
            (&stream).write_all(&sent[..length]).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(answer(&stream), None);
            assert!(thread.join().unwrap().0.is_err(), "{command:?} at {length}");
        }
    }
}

#[test]
fn every_command_oversized() {
    let sizes = [0, 1, 15, 16 + 16 + DATA_BYTES_MAX as u32 + 1, 1 << 20];
    for command in Command::ALL {
        for size in sizes
            .into_iter()
            .chain([0x7fff_ffff, 0xf000_0000, u32::MAX])
        {
            let (stream, thread) = served();
            agreed(&stream);
            let mut header = Header::command(2, *command, 0);
            header.size = size;
            (&stream).write_all(&header.encode()).unwrap();
            assert_eq!(answer(&stream), None, "{command:?} of {size} bytes");
            assert!(thread.join().unwrap().0.is_err());
        }
    }
    // Counts that are larger than their message, or than anything.
    for count in [5, 64 << 10, 0xf000_0000, u32::MAX] {
        let (stream, thread) = served();
        agreed(&stream);
        for command in [Command::RegionRead, Command::RegionWrite] {
            let request = whole(3, command, &words(&[0, 0, 0, count, 7]));
            (&stream).write_all(&request).unwrap();
            let (id, errno) = answer(&stream).unwrap();
            let served = command == Command::RegionRead && count == 5;
            assert_eq!((id, errno == 0), (3, served), "{command:?} of {count}");
        }
        let irqs = whole(3, Command::SetIrqs, &words(&[20, 34, irq::MSIX, 1, count]));
        (&stream).write_all(&irqs).unwrap();
        assert_ne!(answer(&stream).unwrap().1, 0);
        in_step(&stream);
        drop(stream);
        thread.join().unwrap().0.unwrap();
    }
}

#[test]
fn every_command_before_the_version_and_a_version_twice() {
    for command in Command::ALL.iter().filter(|c| **c != Command::Version) {
        let (stream, thread) = served();
        let sent = whole(7, *command, &payload(*command));
        (&stream).write_all(&sent).unwrap();
        let (id, errno) = answer(&stream).unwrap();
        assert!(id == 7 && errno != 0, "{command:?}");
        agreed(&stream);
        let version = whole(8, Command::Version, &payload(Command::Version));
        (&stream).write_all(&version).unwrap();
        let (id, errno) = answer(&stream).unwrap();
        assert!(id == 8 && errno != 0);
        in_step(&stream);
        drop(stream);
        thread.join().unwrap().0.unwrap();
    }
}

#[test]
fn texts_that_are_no_version() {
    let texts: [&[u8]; 9] = [
        b"",
        b"\0",
        b"\0\0\x01",
        b"\x09\0\0\0{}\0",
        b"\0\0\x01\0{}",
        b"\0\0\x01\0{x\0",
        b"\0\0\x01\0\xff\xfe\0",
        b"\0\0\x01\0{\"capabilities\":7}\0",
        b"\0\0\x01\0{\"capabilities\":{\"max_msg_fds\":-1}}\0",
    ];
    let deep = [b"\0\0\x01\0".as_slice(), &[b'['; 16_000], b"\0"].concat();
    for text in texts.into_iter().chain([deep.as_slice()]) {
        let (stream, thread) = served();
        (&stream)
            .write_all(&whole(1, Command::Version, text))
            .unwrap();
        let (_, errno) = answer(&stream).unwrap();
        assert_ne!(errno, 0, "{text:?}");
        agreed(&stream);
        drop(stream);
        thread.join().unwrap().0.unwrap();
    }
}

#[test]
fn unknown_commands_are_consumed_and_unexpected_replies_end_the_connection() {
    let (stream, thread) = served();
    agreed(&stream);
    for number in [0, 15, 16, 999, u16::MAX] {
        let mut header = Header::command(4, Command::Reset, 5);
        header.command = number;
        (&stream).write_all(&message(header, b"12345")).unwrap();
        assert_ne!(answer(&stream).unwrap().1, 0);
        in_step(&stream);
    }
    let mut header = Header::command(4, Command::Reset, 0);
    header.flags = 1;
    assert_eq!(header.kind(), Some(Kind::Reply));
    (&stream).write_all(&header.encode()).unwrap();
    assert_eq!(answer(&stream), None);
    assert!(thread.join().unwrap().0.is_err());
}

fn rss_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Sends random messages over connections of their own until `count` are sent; connections used.
fn storm(rng: &mut SmallRng, count: u64) -> u64 {
    let gifts = [eventfd(), eventfd()];
    let (mut sent, mut connections) = (0, 0);
    while sent < count {
        let (stream, thread) = served();
        connections += 1;
        let reader = stream.try_clone().unwrap();
        let drain = thread::spawn(move || {
            let _ = std::io::copy(&mut &reader, &mut std::io::sink());
        });
        if rng.random_ratio(9, 10) {
            let version = whole(1, Command::Version, &payload(Command::Version));
            (&stream).write_all(&version).unwrap();
        }
        for _ in 0..rng.random_range(1..2000) {
            let bytes = random(rng, true);
            let fds: Vec<RawFd> = gifts.iter().map(AsRawFd::as_raw_fd).collect();
            let with = if rng.random_ratio(1, 10) {
                rng.random_range(0..=2)
            } else {
                0
            };
            // The server may have ended the connection.
            if stream.send_with_fds(&[&bytes[..]], &fds[..with]).is_err() {
                break;
            }
            sent += 1;
        }
        let _ = stream.shutdown(Shutdown::Write);
        let _ended = thread.join().expect("no message makes the server panic");
        drain.join().unwrap();
    }
    connections
}

#[test]
fn random_messages_do_not_disturb_another_vm() {
    // More of them: TURNSTILE_VFIO_USER_RANDOM=100000000.
    let count = std::env::var("TURNSTILE_VFIO_USER_RANDOM")
        .map_or(1_000_000, |text| text.parse().expect("a number"));
    let stop = AtomicBool::new(false);
    let mut rng = SmallRng::seed_from_u64(6);
    let since = Instant::now();
    thread::scope(|scope| {
        // Another VM goes on meanwhile.
        let other = scope.spawn(|| {
            let (stream, thread) = served();
            let mut client = Client::over(stream).unwrap();
            let (mut rounds, mut worst) = (0_u64, Duration::ZERO);
            while !stop.load(Ordering::Acquire) {
                let begun = Instant::now();
                let mut back = [0; 8];
                client.write(0, 0x200, &rounds.to_le_bytes()).unwrap();
                client.read(0, 0x200, &mut back).unwrap();
                assert_eq!(u64::from_le_bytes(back), rounds);
                rounds += 1;
                worst = worst.max(begun.elapsed());
            }
            drop(client);
            thread.join().unwrap().0.unwrap();
            (rounds, worst)
        });
        // What allocators and threads keep is there after the first part.
        storm(&mut rng, count / 4);
        let (rss, fds) = (rss_bytes(), descriptors());
        let connections = storm(&mut rng, count - count / 4);
        let (grown, left) = (rss_bytes().saturating_sub(rss), descriptors());
        stop.store(true, Ordering::Release);
        let (rounds, worst) = other.join().unwrap();
        println!(
            "{count} random messages over {connections} connections in {:?}: memory grew by {} KiB; \
             another VM made {rounds} round trips meanwhile, the longest took {worst:?}",
            since.elapsed(),
            grown >> 10,
        );
        assert!(grown < 8 << 20, "memory grew by {grown} bytes");
        // Other tests of this process have some too.
        assert!(left < fds + 200, "{fds} descriptors became {left}");
        assert!(rounds > 100);
    });
}
