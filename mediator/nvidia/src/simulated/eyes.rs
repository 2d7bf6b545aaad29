//! Looking at the simulated engine.

use turnstile_accounting::{Moment, Nanos, TenantId};

use super::engine::STEP;
use super::{Daemon, SECOND};
use crate::events::SwitchRecord;
use crate::launches::OWN_READING;
use crate::look::Eyes;
use crate::progress::{Entries, Said, Words};
use crate::watch::readings::READING;
use crate::watch::{Runner, Watch};

/// Channels of a simulated tenant: one, with a ring of a thousand.
pub(super) struct Channel(u64);

impl Words for Channel {
    fn generation(&self) -> u64 {
        1
    }

    fn count(&self) -> usize {
        1
    }

    fn read(&self, _: usize) -> (Entries, u32) {
        let get = (self.0 % 1024) as u32;
        (Entries { get, put: get }, 1024)
    }
}

/// A tenant that lies shows none of the last of each so many entries: for so long that what was learnt of his launches is not forgotten.
const HIDDEN: (u64, u64) = (250, 1_000);

impl Daemon {
    /// What a tenant's channel shows.
    pub(super) fn channel(&self, tenant: TenantId) -> Channel {
        let taken = self.engine.tenants[tenant.0 as usize - 1].taken;
        let (hidden, of) = HIDDEN;
        let shown = taken / of * (of - hidden) + (taken % of).min(of - hidden);
        Channel(if self.liar == Some(tenant) {
            shown
        } else {
            taken
        })
    }

    /// Reads the log: who holds and releases does as well, for what that costs him.
    pub(super) fn read_log(&mut self) {
        self.read_at = self.now();
        let records: Vec<SwitchRecord> = self.engine.records.drain(..).collect();
        self.shown = 0;
        self.watch.read(records, true);
        self.watch.caught_up(self.read_at);
    }
}

impl Eyes for Daemon {
    fn now(&self) -> Moment {
        Moment(self.engine.now)
    }

    fn is_moving(&self) -> bool {
        !self.moves.is_empty() || !self.wanted.is_empty()
    }

    fn is_held(&self, tenant: TenantId) -> bool {
        self.held.contains(&tenant)
    }

    fn with<R>(&mut self, act: impl FnOnce(&mut Watch) -> R) -> R {
        act(&mut self.watch)
    }

    fn runner(&mut self) -> Runner {
        let held = |tenant: TenantId| self.held.contains(&tenant);
        self.watch.runner(self.now(), held)
    }

    fn read_ago(&self) -> Nanos {
        self.now().since(self.read_at)
    }

    fn read(&mut self) {
        self.reads += 1;
        self.read_log();
    }

    fn read_shown(&mut self) -> bool {
        let shown: Vec<SwitchRecord> = self.engine.records.drain(..self.shown).collect();
        self.shown = 0;
        let strange = self.watch.read(shown, true);
        self.watch.caught_up_by_itself(self.now());
        !strange
    }

    fn ask(&mut self, tenant: TenantId) -> Said {
        if !self.words {
            return Said::Nothing;
        }
        let (channel, now) = (self.channel(tenant), self.now());
        self.watch.ask(tenant, &channel, now)
    }

    fn has_moved(&mut self, tenant: TenantId) -> Option<bool> {
        let channel = self.channel(tenant);
        let said = self.words.then_some(&self.watch.progress);
        said?.has_moved(tenant, &channel)
    }

    fn works(&mut self) -> bool {
        let second = (self.engine.now / SECOND) as usize;
        self.readings.resize(self.readings.len().max(second + 1), 0);
        self.readings[second] += 1;
        if self.mapped {
            return self.engine.works();
        }
        self.engine.called(OWN_READING);
        self.pause(Nanos(READING.0 / 2));
        let works = self.engine.works();
        self.pause(Nanos(READING.0 / 2));
        works
    }

    fn on_engine(&mut self) -> Option<TenantId> {
        let current = self.engine.current.filter(|_| self.mapped);
        current.map(super::id)
    }

    fn pause(&mut self, pause: Nanos) {
        (0..pause.0 / STEP).for_each(|_| self.step());
    }
}
