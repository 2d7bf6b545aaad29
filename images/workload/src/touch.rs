//! Memory in use: writes words at a fixed distance, then a doorbell, repeatedly.

use crate::report::Report;
use crate::session::{During, Fail, Session};
use turnstile_abi::Platform;

const PAGE_BYTES: u64 = 4096;

/// Writes a word every `step_bytes` in `bytes` of memory, and rings, round by round, until the VMM
/// requests the end.
pub(crate) fn run<P: Platform>(
    session: &mut Session<'_, P>,
    bytes: u64,
    step_bytes: u64,
    report: &mut Report,
) -> Result<(), Fail> {
    let channel = session.channel(8, 1)?;
    let first = session.heap.take(bytes, PAGE_BYTES);
    let first = first.during("Taking memory to touch")?;
    let platform = session.platform;
    while !session.stop() {
        report.doorbells += 1;
        for step in 0..bytes / step_bytes {
            platform.write_u64(first + step * step_bytes, report.doorbells);
        }
        // CAST: the value of a doorbell goes round.
        platform.ring_doorbell(channel.number(), report.doorbells as u32);
    }
    session
        .device
        .close_channel(channel)
        .during("Closing the channel")
}
