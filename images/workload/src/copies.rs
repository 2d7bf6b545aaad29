//! Copies from guest memory to the GPU, one after another, of which the last is compared.

use crate::report::Report;
use crate::session::{During, Fail, PATIENCE_NS, Session};
use turnstile_abi::CopyDirection;
use turnstile_abi::Platform;

/// Entries of the ring: a copy and a fence for each one in flight, and what is not reported yet.
const ENTRIES: u32 = 256;
/// The last word of what is copied.
const WORD: u64 = 0x5eed_0000_c0b1_ed00;

/// Copies `bytes` at a time until the VMM requests the end, then compares the last word.
pub(crate) fn run<P: Platform>(
    session: &mut Session<'_, P>,
    bytes: u64,
    depth: u32,
    report: &mut Report,
) -> Result<(), Fail> {
    let heap = session.heap;
    let mut channel = session.channel(ENTRIES, 1)?;
    let memory = session
        .device
        .allocate(bytes)
        .during("Allocating GPU memory")?;
    let from = session.heap.take(bytes, 64).during("Setting up copies")?;
    let back = session.heap.take(8, 8).during("Setting up copies")?;
    let word = bytes / 8 * 8 - 8;
    session.platform.write_u64(from + word, WORD);
    let mut copies = 0;
    while !session.stop() {
        channel
            .copy(CopyDirection::GuestToGpu, from, memory.va, bytes)
            .during("Adding a copy")?;
        let fence = channel.fence(true).during("Adding a fence")?;
        channel.ring();
        copies += 1;
        report.doorbells += 1;
        channel
            .wait_fence(fence.saturating_sub(u64::from(depth) - 1), PATIENCE_NS)
            .during("Waiting for a copy")?;
    }
    channel
        .copy(CopyDirection::GpuToGuest, memory.va + word, back, 8)
        .during("Adding a copy")?;
    channel.finish(PATIENCE_NS).during("Waiting for copies")?;
    report.count(copies == 0 || session.platform.read_u64(back) == WORD);
    let device = &session.device;
    device
        .close_channel(channel)
        .during("Closing the channel")?;
    session.heap = heap;
    session.device.free(memory).during("Freeing GPU memory")
}
