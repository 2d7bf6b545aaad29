//! Whole programs: the repository's kernels and hand-written PTX.

mod control;
#[path = "../../tests/common/flat.rs"]
mod flat;
mod functions;
mod hostile;
mod instructions;
mod kernels;
mod refusals;

use flat::{BASE, Flat};

use super::*;
use std::sync::atomic::AtomicBool;

impl Flat {
    pub(super) fn words(&self, offset: usize, count: usize) -> Vec<u32> {
        let memory = self.0.borrow();
        let bytes = memory[offset..offset + 4 * count].as_chunks::<4>().0;
        bytes.iter().map(|b| u32::from_le_bytes(*b)).collect()
    }

    pub(super) fn floats(&self, offset: usize, count: usize) -> Vec<f32> {
        self.words(offset, count)
            .into_iter()
            .map(f32::from_bits)
            .collect()
    }

    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        self.0.borrow_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn write_words(&self, offset: usize, words: impl IntoIterator<Item = u32>) {
        for (i, word) in words.into_iter().enumerate() {
            self.write(offset + 4 * i, &word.to_le_bytes());
        }
    }
}

/// Virtual time: one nanosecond per warp instruction, and what was slept.
#[derive(Default)]
pub(super) struct Virtual {
    pub(super) now: u64,
}

impl Timer for Virtual {
    fn now_ns(&mut self) -> u64 {
        self.now
    }

    fn sleep(&mut self, ns: u64) {
        self.now += ns;
    }

    fn executed(&mut self, warp_instructions: u64) {
        self.now += warp_instructions;
    }
}

/// A parameter block built by appending aligned values.
#[derive(Default)]
pub(super) struct Params(pub(super) Vec<u8>);

impl Params {
    pub(super) fn u64(mut self, value: u64) -> Self {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn u32(mut self, value: u32) -> Self {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn f32(self, value: f32) -> Self {
        self.u32(value.to_bits())
    }
}

pub(super) fn load(text: &str) -> Module {
    Module::load(text, &Limits::default()).unwrap_or_else(|e| panic!("{e}"))
}

/// All blocks of a launch, one after another, each stopped as often as it can be; sums what they
/// did.
pub(super) fn run_grid(launch: &Launch<'_>, memory: &Flat) -> Result<BlockOutcome, ExecError> {
    run_timed(launch, memory, &mut Virtual::default(), 1 << 32)
}

pub(super) fn run_timed(
    launch: &Launch<'_>,
    memory: &Flat,
    timer: &mut Virtual,
    budget: u64,
) -> Result<BlockOutcome, ExecError> {
    let abort = AtomicBool::new(false);
    let control = Control {
        abort: &abort,
        pause: &AtomicBool::new(true),
        budget,
    };
    let mut scratch = Scratch::new();
    let mut sum = BlockOutcome::default();
    let [x, y, z] = launch.grid;
    for at in 0..x * y * z {
        let index = [at % x, at / x % y, at / x / y];
        let mut run = || run_block(launch, index, memory, timer, &control, &mut scratch);
        let outcome = loop {
            match run() {
                Err(ExecError::Paused) => {}
                ended => break ended?,
            }
        };
        sum.warp_instructions += outcome.warp_instructions;
        sum.lane_instructions += outcome.lane_instructions;
        sum.global_sectors += outcome.global_sectors;
        sum.atomics += outcome.atomics;
        sum.barriers += outcome.barriers;
        sum.slept_ns += outcome.slept_ns;
    }
    Ok(sum)
}

/// Wraps a body into an entry `k(u64 out)` with plenty of registers.
pub(super) fn program(body: &str) -> String {
    format!(
        ".version 9.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 out)\n{{\n\
         .reg .pred %p<16>; .reg .b16 %rs<16>; .reg .b32 %r<64>; .reg .f32 %f<16>;\n\
         .reg .b64 %rd<32>; .reg .f64 %fd<16>;\n\
         ld.param.u64 %rd1, [out];\n{body}\nret;\n}}\n"
    )
}

/// Runs a body in one block and gives the first `count` words at `out` (address in `%rd1`).
pub(super) fn run_body(body: &str, threads: u32, count: usize) -> Vec<u32> {
    let text = program(body);
    let module = load(&text);
    let memory = Flat::new(1 << 16);
    let params = Params::default().u64(BASE).0;
    let mut launch = Launch::new(&module, 0, &params);
    launch.block = [threads, 1, 1];
    run_grid(&launch, &memory).unwrap_or_else(|e| panic!("{e}"));
    memory.words(0, count)
}

/// Text that stores `%r9` of each thread at `out[tid]`.
pub(super) const STORE: &str = "mov.u32 %r60, %tid.x; mul.wide.u32 %rd30, %r60, 4;\n\
     add.s64 %rd31, %rd1, %rd30; st.global.u32 [%rd31], %r9;\n";
