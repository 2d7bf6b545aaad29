//! Doorbell writes, one after another.

use crate::report::Report;
use crate::session::{During, Fail, PATIENCE_NS, Session};
use turnstile_abi::Command;
use turnstile_abi::Platform;

const ENTRIES: u32 = 256;

/// Rings `count` times with a value that rises by one, or until the VMM requests the end.
pub(crate) fn run<P: Platform>(
    session: &mut Session<'_, P>,
    count: u64,
    paced: bool,
    report: &mut Report,
) -> Result<(), Fail> {
    let mut channel = session.channel(ENTRIES, 1)?;
    let until = if count == 0 { u64::MAX } else { count };
    let mut value = 0;
    while value < until {
        if paced {
            if channel.room() == 0 {
                channel
                    .wait_until(PATIENCE_NS, 1_000_000, |channel| {
                        channel.put().wrapping_sub(channel.state().get) < ENTRIES
                    })
                    .during("Waiting for room in the ring")?;
            }
            channel.submit(&Command::Nop).during("Adding a NOP")?;
        }
        value += 1;
        session
            .platform
            .ring_doorbell(channel.number(), value as u32);
        // At full speed the value would wrap within seconds, and a test could not distinguish
        // backward from forward.
        if count == 0 && (0..64).any(|_| session.stop()) {
            break;
        }
    }
    if paced {
        channel.finish(PATIENCE_NS).during("Waiting for the NOPs")?;
    }
    report.doorbells = value;
    session
        .device
        .close_channel(channel)
        .during("Closing the channel")
}
