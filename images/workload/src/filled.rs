//! A guest that owns all GPU memory that it may. The memory is filled with a pattern that depends
//! on the address. Random blocks are read and rewritten during the work, and all are read at the
//! end.

use crate::report::Report;
use crate::session::{During, Fail, PATIENCE_NS, Session};
use turnstile_abi::Platform;
use turnstile_abi::{CopyDirection, Dim3, QueryItem};
use turnstile_guest::{Allocation, Channel, Kernel, Params};

/// Bytes of one pattern.
const BLOCK_BYTES: u64 = 64 << 10;
/// Blocks that are kept account of.
const BLOCKS_MAX: usize = 4096;
/// Bytes of an allocation.
const PART_BYTES: u64 = 8 << 20;
const PARTS_MAX: usize = 64;
/// Words that a check of a block sums up.
const CHECK_WORDS: u32 = 2048;
/// Blocks that are read together at the end.
const BATCH: usize = 32;
/// Bytes of guest memory that [`Filled::verify`] needs, and of GPU memory.
pub(crate) const SUMS_BYTES: u64 = 4 * BATCH as u64;

/// All the GPU memory that there was.
pub(crate) struct Filled {
    parts: [Option<Allocation>; PARTS_MAX],
    blocks: usize,
    /// How often each block was written.
    versions: [u8; BLOCKS_MAX],
    random: u32,
    module: u32,
    sum: Kernel,
}

fn pattern(va: u64, version: u8) -> u32 {
    let block = (va / BLOCK_BYTES) as u32;
    (block.wrapping_mul(0x9e37_79b1) ^ u32::from(version).wrapping_mul(0x85eb_ca6b)) | 1
}

impl Filled {
    /// Allocates all that is left.
    pub(crate) fn new<P: Platform>(session: &Session<'_, P>) -> Result<Self, Fail> {
        let module = session.module("reduce.ptx")?;
        let mut filled = Self {
            parts: [None; PARTS_MAX],
            blocks: 0,
            versions: [0; BLOCKS_MAX],
            random: 0x2545_f491,
            module,
            sum: session.kernel(module, "reduce_sum")?,
        };
        let device = &session.device;
        for part in &mut filled.parts {
            let left = device
                .query(QueryItem::MemoryFreeBytes)
                .during("Asking for free GPU memory")?;
            let room = (BLOCKS_MAX - filled.blocks) as u64 * BLOCK_BYTES;
            let bytes = left.min(PART_BYTES).min(room);
            if bytes < BLOCK_BYTES {
                break;
            }
            let given = device.allocate(bytes).during("Allocating all GPU memory")?;
            filled.blocks += (bytes / BLOCK_BYTES) as usize;
            *part = Some(given);
        }
        Ok(filled)
    }

    /// GPU address of a block.
    fn va(&self, block: usize) -> u64 {
        let mut offset = block as u64 * BLOCK_BYTES;
        for part in self.parts.iter().flatten() {
            if offset < part.bytes {
                return part.va + offset;
            }
            offset -= part.bytes;
        }
        0
    }

    fn write<P: Platform>(&self, channel: &mut Channel<'_, P>, block: usize) -> Result<(), Fail> {
        let va = self.va(block);
        channel
            .fill(va, BLOCK_BYTES, pattern(va, self.versions[block]))
            .during("Adding a fill")
    }

    /// Writes all blocks.
    pub(crate) fn fill<P: Platform>(&self, channel: &mut Channel<'_, P>) -> Result<(), Fail> {
        for block in 0..self.blocks {
            channel
                .wait_room(2, PATIENCE_NS)
                .during("Waiting for room in the ring")?;
            self.write(channel, block)?;
            channel.ring();
        }
        channel
            .finish(PATIENCE_NS)
            .during("Waiting for the memory to be filled")
    }

    /// Adds the launch that sums up the first `words` words of a block into the word at `out_va`;
    /// returns the expected sum.
    fn add_up<P: Platform>(
        &self,
        channel: &mut Channel<'_, P>,
        block: usize,
        words: u32,
        out_va: u64,
    ) -> Result<u32, Fail> {
        let va = self.va(block);
        let params = Params::new().u64(va).u64(out_va).u32(words);
        channel
            .launch(self.sum, Dim3::line(2), Dim3::line(128), 0, &params)
            .during("Adding a look at a block")?;
        Ok(pattern(va, self.versions[block]).wrapping_mul(words))
    }

    fn any(&mut self) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.random as usize % self.blocks.max(1)
    }

    /// Adds a check of a random block, and every second time a rewrite of another: at most four
    /// commands.
    pub(crate) fn check<P: Platform>(
        &mut self,
        channel: &mut Channel<'_, P>,
        out_va: u64,
    ) -> Result<u32, Fail> {
        let block = self.any();
        if block.is_multiple_of(2) {
            let other = self.any();
            self.versions[other] = self.versions[other].wrapping_add(1);
            self.write(channel, other)?;
        }
        channel.fill(out_va, 4, 0).during("Adding a fill")?;
        self.add_up(channel, block, CHECK_WORDS, out_va)
    }

    /// Reads every word of every block.
    pub(crate) fn verify<P: Platform>(
        &self,
        platform: &P,
        channel: &mut Channel<'_, P>,
        out_va: u64,
        back_gpa: u64,
        report: &mut Report,
    ) -> Result<(), Fail> {
        let words = (BLOCK_BYTES / 4) as u32;
        let mut from = 0;
        while from < self.blocks {
            let batch = (self.blocks - from).min(BATCH);
            let mut expected = [0; BATCH];
            channel
                .wait_room(BATCH as u32 / 4, PATIENCE_NS)
                .during("Waiting for room in the ring")?;
            channel
                .fill(out_va, SUMS_BYTES, 0)
                .during("Adding a fill")?;
            for (nth, sum) in expected[..batch].iter_mut().enumerate() {
                channel
                    .wait_room(4, PATIENCE_NS)
                    .during("Waiting for room in the ring")?;
                let out = out_va + 4 * nth as u64;
                *sum = self.add_up(channel, from + nth, words, out)?;
                channel.ring();
            }
            channel
                .copy(CopyDirection::GpuToGuest, out_va, back_gpa, SUMS_BYTES)
                .during("Adding a copy")?;
            channel
                .finish(PATIENCE_NS)
                .during("Waiting for the last look")?;
            for (nth, sum) in expected[..batch].iter().enumerate() {
                report.count(platform.read_u32(back_gpa + 4 * nth as u64) == *sum);
            }
            from += batch;
        }
        Ok(())
    }

    /// Gives everything back.
    pub(crate) fn free<P: Platform>(self, session: &Session<'_, P>) -> Result<(), Fail> {
        for part in self.parts.into_iter().flatten() {
            session.device.free(part).during("Freeing GPU memory")?;
        }
        let unloaded = session.device.unload_module(self.module);
        unloaded.during("Unloading the module")
    }
}
