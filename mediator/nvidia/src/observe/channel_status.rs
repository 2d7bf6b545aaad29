//! Channel status: a word for each channel of a runlist (CHRAM).
//!
//! Bit 3 is set while a channel has something queued, also while its group is off the schedule.
//! It is set for a channel that only waits as well. A tenant cannot write it, unlike its ring's
//! get and put. 1.1 us a reading.
//!
//! SOURCE: places and bits as in nvgpu's public header `hw_runlist_ga10b.h`; measured on H100 and
//! H200 (580.159.04).
//!
//! Fallback, where the self-test fails: a tenant has work while it is resident or held.

use super::engine_status::Engine;
use super::page::{Bar, Page, RegistersError};

/// In a runlist's registers: where its channels' words are, and the logarithm of their number.
const CONFIG: u32 = 4;
/// Channels that are looked at: the driver hands out the first ones first.
const CHANNELS_MAX: u32 = 1_024;
/// Words of a page.
const WORDS: u32 = 1_024;
/// The registers end here.
const BAR_END: u32 = 1 << 24;

/// The status of one channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelStatus(pub u32);

impl ChannelStatus {
    const fn bit(self, bit: u32) -> bool {
        self.0 >> bit & 1 != 0
    }

    /// The channel's group is on the schedule.
    pub const fn is_enabled(self) -> bool {
        self.bit(1)
    }

    /// Something is queued: work, or a wait.
    pub const fn is_queued(self) -> bool {
        self.bit(3)
    }

    /// Its group was stopped in the middle of a kernel.
    pub const fn is_preempted(self) -> bool {
        self.bit(9)
    }

    /// The engine works for it.
    pub const fn works(self) -> bool {
        self.bit(11)
    }

    /// The host unit found a wait that is not over.
    pub const fn waits(self) -> bool {
        self.bit(12)
    }

    /// Whether a channel with this word is in use.
    const fn is_used(self) -> bool {
        self.0 & !1 != 0
    }
}

/// The words of an engine's channels.
#[derive(Debug)]
pub(crate) struct ChannelTable {
    pages: Vec<Page>,
    at: u32,
    count: u32,
}

impl ChannelTable {
    /// Maps them.
    ///
    /// # Errors
    /// The driver's refusal, or the self-test's.
    pub(crate) fn map(bar: &Bar<'_>, engine: &Engine) -> Result<Self, RegistersError> {
        let config = engine.runlist_register(CONFIG);
        let (at, count) = place(config).map_err(RegistersError::Unlike)?;
        let pages = (0..count.div_ceil(WORDS)).map(|page| bar.page(at + page * WORDS * 4));
        let pages = pages.collect::<Result<Vec<_>, _>>()?;
        let table = Self { pages, at, count };
        if table.read(0).is_none() {
            return Err(RegistersError::Unlike("channel status may not be read"));
        }
        Ok(table)
    }

    /// The status of a channel; none if there is no such channel, or it may not be read.
    pub(crate) fn read(&self, channel: u32) -> Option<ChannelStatus> {
        let page = self.pages.get((channel / WORDS) as usize)?;
        let in_range = channel < self.count;
        let word = in_range.then(|| page.read(self.at + 4 * channel))?;
        word.map(ChannelStatus)
    }

    /// The channels in use now.
    pub(crate) fn used(&self) -> Vec<u32> {
        let used = |channel: &u32| self.read(*channel).is_some_and(ChannelStatus::is_used);
        (0..self.count).filter(used).collect()
    }
}

/// Where the words are and how many of them are looked at, by a runlist's configuration.
fn place(config: Option<u32>) -> Result<(u32, u32), &'static str> {
    let config = config.ok_or("the runlist's configuration may not be read")?;
    let (at, log) = (config & !0xf, config & 0xf);
    let count = 1_u32 << log;
    let ends_at = at.checked_add(4 * count);
    match ends_at {
        Some(end) if at != 0 && at % (WORDS * 4) == 0 && end <= BAR_END => {
            Ok((at, count.min(CHANNELS_MAX)))
        }
        _ => Err("the runlist's configuration names no channels"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_are_read_as_measured() {
        // SOURCE: H100 and H200: on the engine and works; held with work; stopped in a kernel.
        let works = ChannelStatus(0x8ce);
        assert!(works.works() && works.is_queued() && works.is_enabled() && !works.waits());
        let held = ChannelStatus(0x10c);
        assert!(held.is_queued() && !held.is_enabled());
        let waits = ChannelStatus(0x14ce);
        assert!(waits.waits() && waits.is_queued() && !waits.works());
        assert!(!ChannelStatus(2).is_queued() && ChannelStatus(2).is_used());
        assert!(!ChannelStatus(1).is_used());
    }

    #[test]
    fn runlist_configuration_gives_place_and_count_of_channel_status() {
        assert_eq!(place(Some(0x00c2_000b)), Ok((0xc2_0000, 1_024)));
        assert_eq!(place(Some(0x00c2_0008)), Ok((0xc2_0000, 256)));
        assert!(place(None).is_err());
        assert!(place(Some(0x0000_000b)).is_err());
        assert!(place(Some(0xfff0_000b)).is_err());
    }

    proptest! {
        #[test]
        fn any_configuration_stays_within_the_registers(config: u32) {
            if let Ok((at, count)) = place(Some(config)) {
                prop_assert!(at % 4_096 == 0 && at + 4 * count <= BAR_END);
            }
        }
    }
}
