//! Memory in use: a word of every page, then a doorbell, over and over.

use crate::report::Report;
use crate::session::{During, Fail, Session};
use turnstile_guest::Platform;

const PAGE_BYTES: u64 = 4096;

/// Touches `bytes` of memory and rings, round by round, for so long or until the VMM asks for the end.
pub(crate) fn run<P: Platform>(
    session: &mut Session<'_, P>,
    bytes: u64,
    duration_ns: u64,
    report: &mut Report,
) -> Result<(), Fail> {
    let channel = session.channel(8, 1)?;
    let first = session.heap.take(bytes, PAGE_BYTES);
    let first = first.during("Taking memory to touch")?;
    let platform = session.platform;
    let end = platform.now_ns().saturating_add(duration_ns);
    while platform.now_ns() < end && !session.stop() {
        report.doorbells += 1;
        for page in 0..bytes / PAGE_BYTES {
            platform.write_u64(first + page * PAGE_BYTES, report.doorbells);
        }
        // CAST: the value of a doorbell goes round.
        platform.ring_doorbell(channel.number(), report.doorbells as u32);
    }
    session
        .device
        .close_channel(channel)
        .during("Closing the channel")
}
