//! What the GPU shows of its engines and channels: signals that the driver lets a root daemon read,
//! without writing anything.
//!
//! - Context-switch log ([`crate::events`]): the tenant on the compute engine, from when to when.
//! - Engine status ([`engine_status`]): the channel group on each engine, and whether it works.
//! - Busy counter ([`busy_counter`]): for how long compute or copy engines worked.
//! - Channel status ([`channel_status`]): what each channel has queued, also while it is held.
//! - Copy engines ([`copy_engines`]): the channel that each works for.
//!
//! Each signal has a self-test. A signal that fails it is absent, with the reason; what takes its
//! place stands in its file.

pub mod busy_counter;
pub mod channel_status;
pub(crate) mod context_switches;
pub(crate) mod copy_engines;
pub(crate) mod engine_status;
pub(crate) mod log_watch;
pub(crate) mod page;
#[cfg(test)]
mod replay_tests;

use serde::Serialize;
use turnstile_accounting::Moment;

use crate::rm::{RmClient, RmError};
use busy_counter::BusyCounter;
pub use busy_counter::BusyTime;
pub use channel_status::ChannelStatus;
use channel_status::ChannelTable;
use copy_engines::CopyEngine;
use engine_status::Engine;
pub(crate) use engine_status::Group;
use page::{Bar, unreadable};

/// Something that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Observation {
    /// When, by the caller's clock.
    pub at: Moment,
    /// What.
    #[serde(flatten)]
    pub kind: Kind,
}

/// A signal and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "signal")]
pub enum Kind {
    /// Engine status.
    Engine {
        /// 0 for compute, then the copy engines.
        engine: u8,
        /// The channel group on it; none without one, and while it is being switched.
        group: Option<u16>,
        /// Whether it works.
        busy: bool,
    },
    /// Busy counter.
    Busy {
        /// Its count, in its lower 31 bits.
        count: u32,
    },
    /// Channel status, of the compute engine's runlist.
    Channel {
        /// Number in the runlist.
        channel: u32,
        /// Its word.
        word: u32,
    },
}

/// The signals of a GPU that passed their self-tests.
#[derive(Debug)]
pub struct Signals {
    compute: Option<Engine>,
    copies: Vec<CopyEngine>,
    busy: Result<BusyCounter, String>,
    channels: Result<ChannelTable, String>,
    /// The mappings are its.
    _client: Option<RmClient>,
}

impl Signals {
    /// Maps the signals of GPU `index`.
    ///
    /// # Errors
    /// The driver maps no registers.
    pub fn of(index: u32) -> Result<Self, RmError> {
        let client = RmClient::open(index)?;
        let bar = Bar::open(&client)?;
        let mut engines = Engine::all(&bar).unwrap_or_default().into_iter();
        let compute = engines.next();
        let copies = engines
            .map(|engine| CopyEngine::map(&bar, engine))
            .collect();
        let busy = BusyCounter::map(&bar).map_err(|error| error.to_string());
        let channels = match &compute {
            Some(compute) => ChannelTable::map(&bar, compute).map_err(|error| error.to_string()),
            None => Err("the table of engines may not be read".to_owned()),
        };
        Ok(Self {
            compute,
            copies,
            busy,
            channels,
            _client: Some(client),
        })
    }

    /// No signal, for this reason.
    pub fn none(reason: &str) -> Self {
        Self {
            compute: None,
            copies: Vec::new(),
            busy: Err(reason.to_owned()),
            channels: Err(reason.to_owned()),
            _client: None,
        }
    }

    /// Engines with a status: the compute engine and the copy engines.
    pub fn engines(&self) -> usize {
        usize::from(self.compute.is_some()) + self.copies.len()
    }

    /// Why there is no busy counter.
    ///
    /// # Errors
    /// The reason.
    pub fn busy_counter(&self) -> Result<(), &str> {
        self.busy.as_ref().map(drop).map_err(String::as_str)
    }

    /// Why there is no channel status.
    ///
    /// # Errors
    /// The reason.
    pub fn channel_status(&self) -> Result<(), &str> {
        self.channels.as_ref().map(drop).map_err(String::as_str)
    }

    /// The busy counter's count; none without one.
    pub(crate) fn busy_count(&self) -> Option<u32> {
        self.busy.as_ref().ok().and_then(BusyCounter::read)
    }

    /// Why the registers show nothing of the GPU any more; none while they do.
    pub(crate) fn silence(&self) -> Option<String> {
        let status = self.compute.as_ref().and_then(Engine::word);
        // A status may look like a refusal, a setting does not.
        let status = status.filter(|word| *word == u32::MAX);
        let setting = self.busy.as_ref().ok().and_then(BusyCounter::setting);
        setting.into_iter().chain(status).find_map(unreadable)
    }

    /// The channel group on the compute engine, if one is and none is being switched, and whether
    /// the engine works; none where its status may not be read.
    pub(crate) fn compute(&self) -> Option<(Option<Group>, bool)> {
        let status = self.compute.as_ref()?.status()?;
        Some((status.group(), status.is_busy()))
    }

    /// The number of copy engines.
    pub(crate) fn copy_engines(&self) -> usize {
        self.copies.len()
    }

    /// The copy engines in the order of [`Self::read`]: each one that works now, none for the
    /// others.
    pub(crate) fn at_work(&self) -> impl Iterator<Item = Option<&CopyEngine>> {
        let works = |engine: &&CopyEngine| engine.works();
        self.copies
            .iter()
            .map(move |engine| Some(engine).filter(works))
    }

    /// The status of a channel of the compute engine; none where it may not be read.
    pub(crate) fn channel(&self, channel: u32) -> Option<ChannelStatus> {
        self.channels.as_ref().ok()?.read(channel)
    }

    /// The channels of the compute engine that are in use now.
    pub fn used_channels(&self) -> Vec<u32> {
        self.channels
            .as_ref()
            .map_or_else(|_| Vec::new(), ChannelTable::used)
    }

    /// Reads all signals: the busy counter first, at the moment of the observations, then the
    /// status of each engine, and these channels.
    pub fn read(
        &self,
        channels: &[u32],
        clock: impl Fn() -> Moment,
        mut take: impl FnMut(Observation),
    ) {
        let at = clock();
        if let Some(count) = self.busy.as_ref().ok().and_then(BusyCounter::read) {
            let kind = Kind::Busy { count };
            take(Observation { at, kind });
        }
        let compute = self.compute.iter().map(Engine::status);
        let copies = self.copies.iter().map(CopyEngine::status);
        for (engine, status) in (0..).zip(compute.chain(copies)) {
            if let Some(status) = status {
                let group = status.group().map(Group::number);
                let busy = status.is_busy();
                let kind = Kind::Engine {
                    engine,
                    group,
                    busy,
                };
                take(Observation { at, kind });
            }
        }
        let Ok(table) = &self.channels else {
            return;
        };
        for channel in channels {
            if let Some(status) = table.read(*channel) {
                let kind = Kind::Channel {
                    channel: *channel,
                    word: status.0,
                };
                take(Observation { at, kind });
            }
        }
    }
}
