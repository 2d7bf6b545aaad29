//! Copy engines: the channel that each works for.
//!
//! In: the status of the engine, and of the channels of its runlist. Out: whether it works for one
//! of a tenant's channels. A channel is named by its token: the number of its runlist, and its
//! number there. 1.1 us a reading.
//!
//! SOURCE: places and bits as in nvgpu's public header `hw_runlist_ga10b.h`.
//!
//! Fallback, where the self-test of the channels fails: the engine's time is idle.

use super::channel_status::ChannelTable;
use super::engine_status::{Engine, EngineStatus};
use super::page::{Bar, RegistersError};

/// In a runlist's registers: the number of the runlist in tokens, in the upper half.
const DOORBELL: u32 = 8;

/// A channel as its token names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token(pub(crate) u32);

impl Token {
    /// Its number in its runlist. SOURCE: measured: it is the index of the channel's status.
    pub(crate) const fn channel(self) -> u32 {
        self.0 & 0xffff
    }

    const fn runlist(self) -> u32 {
        self.0 >> 16
    }
}

/// A copy engine with a runlist of its own.
#[derive(Debug)]
pub(crate) struct CopyEngine {
    engine: Engine,
    /// Its runlist's number in tokens, and the channels there.
    channels: Option<(u32, ChannelTable)>,
}

impl CopyEngine {
    pub(super) fn map(bar: &Bar<'_>, engine: Engine) -> Self {
        let channels = Self::channels(bar, &engine).ok();
        Self { engine, channels }
    }

    fn channels(bar: &Bar<'_>, engine: &Engine) -> Result<(u32, ChannelTable), RegistersError> {
        let unread = RegistersError::Unlike("the runlist's number may not be read");
        let doorbell = engine.runlist_register(DOORBELL).ok_or(unread)?;
        Ok((doorbell >> 16, ChannelTable::map(bar, engine)?))
    }

    pub(super) fn status(&self) -> Option<EngineStatus> {
        self.engine.status()
    }

    pub(super) fn works(&self) -> bool {
        self.status().is_some_and(EngineStatus::is_busy)
    }

    /// Whether it works for one of these channels.
    pub(crate) fn works_for(&self, tokens: &[Token]) -> bool {
        let Some((runlist, channels)) = &self.channels else {
            return false;
        };
        let works = |token: &Token| {
            let status = channels.read(token.channel());
            status.is_some_and(|status| status.works())
        };
        let own = tokens.iter().filter(|token| token.runlist() == *runlist);
        own.into_iter().any(works)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_names_runlist_and_channel() {
        let token = Token(0x000c_0007);
        assert_eq!((token.runlist(), token.channel()), (12, 7));
    }
}
