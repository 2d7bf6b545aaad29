//! The script of a seed: which guest does what, step by step.
//!
//! In goes a seed; out come pairs of a guest and its act. [`super::play`] performs them on both
//! cards.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use turnstile_abi::CHUNK_BYTES;

use super::GUESTS;

/// Steps of a script.
pub(super) const ACTS: usize = 64;

/// The next step of a guest; numbers are taken modulo the number of choices.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    Allocate(u64),
    Free(usize),
    Fill(usize, u64, u32),
    Upload(usize, u64, u64),
    Copy([usize; 2], [u64; 2], u64),
    Kernel([usize; 3], [u64; 3]),
    Read(usize, u64),
    Gate(bool),
    Pass(u64),
}

pub(super) fn script(seed: u64) -> Vec<(usize, Act)> {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut draw = || {
        let any = |random: &mut SmallRng| random.random::<u32>() as usize;
        let act = match random.random_range(0..24) {
            0..5 => Act::Allocate(random.random_range(1..4)),
            5 => Act::Free(any(&mut random)),
            6..9 => Act::Fill(any(&mut random), random.random(), random.random()),
            9..12 => Act::Upload(any(&mut random), random.random(), random.random()),
            12..14 => Act::Copy(
                [any(&mut random), any(&mut random)],
                random.random(),
                random.random_range(1..CHUNK_BYTES),
            ),
            14..17 => Act::Kernel(
                [any(&mut random), any(&mut random), any(&mut random)],
                random.random(),
            ),
            17..20 => Act::Read(any(&mut random), random.random()),
            20 => Act::Gate(random.random()),
            _ => Act::Pass(random.random_range(1..30)),
        };
        (random.random_range(0..GUESTS), act)
    };
    (0..ACTS).map(|_| draw()).collect()
}
