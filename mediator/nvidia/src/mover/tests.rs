//! A mover in a process of its own, with GPU memory in files.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use turnstile_abi::CHUNK_BYTES;

use super::copier::{Copier, CopyFailure};
use super::protocol::Span;
use super::serve::run_with;
use super::{Away, Back, EXTENT_BYTES_MAX, Mover, MoverConfig, MoverError, Resident, parts};
use turnstile_gpu::Direction;
use turnstile_host::memory_file::memory_file;

const AS_MOVER: &str = "TURNSTILE_TEST_MOVER";
/// Memory of the "GPU", besides what other processes made.
const CARD_BYTES: u64 = 16 * CHUNK_BYTES;

/// Memory that begins with this is refused for copying.
const POISON: [u8; 8] = *b"no copy!";

struct Fake {
    pinned: Mutex<Vec<(u64, File)>>,
    made: AtomicU64,
}

impl Copier for Fake {
    type Lane = ();
    type Mapped = (File, u64);
    type Rest = ();
    type Mark = ();

    fn lane(&self) -> Result<(), CopyFailure> {
        Ok(())
    }

    fn pin(&self, at: u64, _: u64, file: File) -> Result<(), CopyFailure> {
        self.pinned.lock().unwrap().push((at, file));
        Ok(())
    }

    fn adopt(&self, handle: OwnedFd, bytes: u64) -> Result<(File, u64), CopyFailure> {
        let file = File::from(handle);
        let length = file.metadata().unwrap().len();
        if length < bytes {
            return Err(CopyFailure::of("shorter than was announced"));
        }
        Ok((file, bytes))
    }

    fn create(&self, bytes: u64) -> Result<(File, u64), CopyFailure> {
        if self.made.fetch_add(bytes, Ordering::Relaxed) + bytes > CARD_BYTES {
            self.made.fetch_sub(bytes, Ordering::Relaxed);
            return Err(CopyFailure {
                no_room: true,
                ..CopyFailure::of("full")
            });
        }
        Ok((memory_file("turnstile-fake", bytes).unwrap(), bytes))
    }

    fn release(&self, _: (File, u64)) {}

    fn export(&self, memory: &(File, u64)) -> Result<OwnedFd, CopyFailure> {
        Ok(memory.0.try_clone().unwrap().into())
    }

    fn zero(&self, (): &(), memory: &(File, u64)) -> Result<(), CopyFailure> {
        let zeros = vec![0; memory.1 as usize];
        memory.0.write_all_at(&zeros, 0).unwrap();
        Ok(())
    }

    fn copy(
        &self,
        (): &(),
        memory: &(File, u64),
        offset: u64,
        (at, bytes): Span,
        direction: Direction,
    ) -> Result<(), CopyFailure> {
        let pinned = self.pinned.lock().unwrap();
        let (from, pages) = pinned.iter().rfind(|(from, _)| *from <= at).unwrap();
        let mut data = vec![0; bytes as usize];
        match direction {
            Direction::Out => {
                memory.0.read_exact_at(&mut data, offset).unwrap();
                if data.starts_with(&POISON) {
                    return Err(CopyFailure::of("poisoned"));
                }
                pages.write_all_at(&data, at - from).unwrap();
            }
            Direction::In => {
                pages.read_exact_at(&mut data, at - from).unwrap();
                memory.0.write_all_at(&data, offset).unwrap();
            }
        }
        Ok(())
    }

    fn mark(&self, (): &()) -> Result<(), CopyFailure> {
        Ok(())
    }

    fn wait(&self, (): &()) -> Result<(), CopyFailure> {
        Ok(())
    }
}

/// Not a test by itself: the entry point of the tests' mover processes.
#[test]
fn acts_as_a_mover() {
    if std::env::var_os(AS_MOVER).is_none() {
        return;
    }
    let stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let ended = run_with(stream, |device| {
        if device != 0 {
            return Err(CopyFailure::of("no such GPU"));
        }
        Ok(Fake {
            pinned: Mutex::default(),
            made: AtomicU64::new(0),
        })
    });
    std::process::exit(i32::from(ended.is_err()));
}

fn command() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = "mover::tests::acts_as_a_mover";
    command
        .args(["--exact", name, "--nocapture"])
        .env(AS_MOVER, "1");
    command
}

fn config(pool_chunks: u64) -> MoverConfig {
    MoverConfig {
        step_bytes: 4 * CHUNK_BYTES,
        restart_pause: Duration::ZERO,
        ..MoverConfig::new(0, pool_chunks * CHUNK_BYTES)
    }
}

fn mover(pool_chunks: u64) -> Mover {
    let mover = Mover::start(config(pool_chunks), command).unwrap();
    assert!(mover.wait_grown(pool_chunks * CHUNK_BYTES, Duration::from_secs(20)));
    mover
}

/// Memory of another process: chunk `n` is filled with the byte `seed + n`.
fn memory(seed: u8, chunks: u64) -> Resident {
    let file = memory_file("turnstile-theirs", chunks * CHUNK_BYTES).unwrap();
    file.write_all_at(&bytes(seed, chunks), 0).unwrap();
    Resident::adopt(file.into(), chunks * CHUNK_BYTES)
}

fn bytes(seed: u8, chunks: u64) -> Vec<u8> {
    let chunk = |nth| vec![seed.wrapping_add(nth as u8); CHUNK_BYTES as usize];
    (0..chunks).flat_map(chunk).collect()
}

fn content(memory: &Resident) -> Vec<u8> {
    let mut out = vec![0; memory.bytes() as usize];
    let file = File::from(memory.share().unwrap());
    file.read_exact_at(&mut out, 0).unwrap();
    out
}

fn out(mover: &Mover, memory: Vec<Resident>) -> Vec<Away> {
    let all = mover.out(memory).into_iter();
    all.map(|moved| moved.unwrap().0).collect()
}

#[test]
fn bytes_go_and_come_back_in_order_however_many_orders_that_takes() {
    let mover = mover(16);
    let lengths = [1, 3, 1, 1, 2, 1, 1, 1, 1, 2];
    let all = lengths.iter().zip(1u8..).map(|(n, i)| memory(i * 20, *n));
    let away = out(&mover, all.collect());
    let sum: u64 = lengths.iter().sum();
    assert_eq!(mover.pool_bytes(), (16 * CHUNK_BYTES, sum * CHUNK_BYTES));
    let back = mover.back(away);
    assert_eq!(back.len(), lengths.len());
    for ((length, seed), moved) in lengths.iter().zip(1u8..).zip(back) {
        let Back { memory, .. } = moved.unwrap();
        assert!(
            content(&memory) == bytes(seed * 20, *length),
            "number {seed}"
        );
    }
    assert_eq!(mover.pool_bytes().1, 0);
}

#[test]
fn what_does_not_move_stays_where_it_was_and_the_others_go() {
    let mover = mover(8);
    let file = memory_file("turnstile-theirs", CHUNK_BYTES).unwrap();
    file.write_all_at(&POISON, 0).unwrap();
    let poisoned = Resident::adopt(file.into(), CHUNK_BYTES);
    let short = memory_file("turnstile-theirs", CHUNK_BYTES).unwrap();
    let lie = Resident::adopt(short.into(), 2 * CHUNK_BYTES);
    let large = memory(9, 6);
    let mut moved = mover.out(vec![memory(1, 1), poisoned, lie, large, memory(5, 1)]);
    let last = moved.pop().unwrap().unwrap().0;
    let stayed = moved.pop().unwrap().unwrap_err();
    assert_eq!(stayed.error, MoverError::PoolFull);
    assert!(content(&stayed.memory) == bytes(9, 6));
    let lie = moved.pop().unwrap().unwrap_err();
    assert!(matches!(lie.error, MoverError::Refused(_)));
    let poisoned = moved.pop().unwrap().unwrap_err();
    assert_eq!(poisoned.error, MoverError::Refused("poisoned".into()));
    assert!(content(&poisoned.memory).starts_with(&POISON));
    let first = moved.pop().unwrap().unwrap().0;
    assert_eq!(
        mover.pool_bytes().1,
        2 * CHUNK_BYTES,
        "pages of the others are free"
    );
    // The GPU is full but for one chunk: one comes back, the other is kept.
    let filler = mover.create(CARD_BYTES - CHUNK_BYTES).unwrap();
    assert!(content(&filler).iter().all(|byte| *byte == 0));
    let mut back = mover.back(vec![first, last]);
    let kept = back.pop().unwrap().unwrap_err();
    assert_eq!(kept.error, MoverError::NoRoom);
    assert!(content(&back.pop().unwrap().unwrap().memory) == bytes(1, 1));
    assert_eq!(mover.create(CHUNK_BYTES).unwrap_err(), MoverError::NoRoom);
    assert_eq!(kept.copy.bytes(), CHUNK_BYTES);
}

#[test]
fn each_goes_as_soon_as_its_owner_has_let_it_go() {
    let mover = mover(8);
    let all = vec![memory(1, 1), memory(3, 2), memory(5, 1)];
    let (mut requested, mut done) = (Vec::new(), Vec::new());
    mover.out_each(
        all,
        |nth| {
            requested.push(nth);
            nth != 1
        },
        |moved| done.push(moved),
    );
    assert_eq!(requested, [0, 1, 2]);
    let kept = done.remove(1).unwrap_err();
    assert!(matches!(kept.error, MoverError::Refused(_)), "{kept}");
    assert!(content(&kept.memory) == bytes(3, 2));
    let away: Vec<Away> = done.into_iter().map(|moved| moved.unwrap().0).collect();
    assert_eq!(mover.pool_bytes().1, 2 * CHUNK_BYTES);
    for (moved, seed) in mover.back(away).into_iter().zip([1, 5]) {
        assert!(content(&moved.unwrap().memory) == bytes(seed, 1));
    }
}

#[test]
fn parts_of_large_memory_are_small_at_both_ends() {
    for mib in [2, 60, 510, 512, 1024, 8192, 8194, 32768, 61952] {
        let bytes = mib << 20;
        let parts = parts(bytes, EXTENT_BYTES_MAX);
        assert_eq!(parts.iter().sum::<u64>(), bytes, "{mib}");
        assert!(
            parts
                .iter()
                .all(|part| part % CHUNK_BYTES == 0 && *part <= EXTENT_BYTES_MAX)
        );
        let ends = [parts[0], parts[parts.len() - 1]];
        let small = mib >= 512;
        assert_eq!(
            ends.iter().all(|end| *end == 64 << 20),
            small,
            "{mib}: {parts:?}"
        );
        assert!(parts.len() as u64 <= 24 + mib / 1024, "{mib}: {parts:?}");
    }
    assert_eq!(parts(1 << 30, 64 << 20).iter().max(), Some(&(64 << 20)));
    assert_eq!(parts(6 << 20, 4 << 20), [4 << 20, 2 << 20]);
}

#[test]
fn another_mover_goes_on_with_what_the_host_has() {
    let mover = mover(8);
    let away = out(&mover, vec![memory(3, 2)]);
    let first = mover.pid().unwrap();
    let pid = Pid::from_raw(first as i32).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    // The call that meets the end of the process fails, and loses nothing.
    let stays = memory(7, 1);
    let (stays, away) = match mover.out(vec![stays]).pop().unwrap() {
        Ok(_) => panic!("there is no mover"),
        Err(stayed) => {
            assert!(matches!(stayed.error, MoverError::Gone(_)), "{stayed}");
            (stayed.memory, away)
        }
    };
    let back = mover.back(away).pop().unwrap().unwrap().memory;
    assert!(content(&back) == bytes(3, 2));
    assert_ne!(mover.pid().unwrap(), first);
    let again = out(&mover, vec![stays]).pop().unwrap();
    let back = mover.back(vec![again]).pop().unwrap().unwrap().memory;
    assert!(content(&back) == bytes(7, 1));
}

#[test]
fn memory_is_made_zero() {
    let mover = mover(4);
    let dirty = memory(1, 2);
    mover.scrub(&dirty).unwrap();
    assert!(content(&dirty).iter().all(|byte| *byte == 0));
}

#[test]
fn start_with_an_unusable_gpu_is_refused() {
    let config = MoverConfig {
        device: 7,
        ..config(4)
    };
    let refused = Mover::start(config, command).unwrap_err();
    assert_eq!(refused, MoverError::Refused("no such GPU".into()));
}
