//! What is read of the GPU: its log, the registers that go with it, and what the counters told.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use turnstile_accounting::{Moment, TenantId};

use super::counting::Told;
use crate::costs::{Cost, Work};
use crate::events::{EventLog, SwitchRecord};
use crate::groups::Groups;
use crate::models::Model;
use crate::observe::{Group, Registers};
use crate::rm::{RmClient, RmError};
use crate::watch::Watch;

/// What is read of the GPU, and what it says.
#[derive(Debug)]
pub(super) struct Watched {
    client: Arc<RmClient>,
    pub(super) log: EventLog,
    /// When it was last read.
    pub(super) refreshed: Instant,
    /// What the counters said since.
    told: Receiver<Told>,
    pub(super) watch: Watch,
    records: Vec<SwitchRecord>,
    pub(super) reads: Reads,
    /// None where they are not mapped.
    registers: Option<Arc<Registers>>,
    groups: Groups,
}

/// What watching costs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reads {
    pub(super) log: Cost,
    /// Records in the log.
    pub(super) records: u64,
}

impl Watched {
    /// A log that begins, the counters' words, if there are any, and registers, if they are mapped.
    pub(super) fn new(
        model: Model,
        client: Arc<RmClient>,
        log: EventLog,
        counters: bool,
        told: Receiver<Told>,
        registers: Option<Arc<Registers>>,
    ) -> Self {
        let mut watch = Watch::new(counters);
        watch.is_of(model);
        if registers.is_some() {
            watch.registers_are_mapped();
        }
        Self {
            client,
            log,
            refreshed: Instant::now(),
            told,
            watch,
            records: Vec::new(),
            reads: Reads::default(),
            registers,
            groups: Groups::default(),
        }
    }

    /// A tenant is gone.
    pub(super) fn remove(&mut self, tenant: TenantId) {
        self.groups.forget(tenant);
        self.watch.remove(tenant);
    }

    /// Reads the log, in which all is that was logged before `now`.
    pub(super) fn refresh(&mut self, now: Moment) -> Result<(), RmError> {
        let work = Work::begin();
        self.refreshed = Instant::now();
        let before = self.group();
        let complete = self.log.read(&self.client, &mut self.records)?;
        let group = self.group().filter(|group| before == Some(*group));
        self.reads.log.add(&work);
        self.reads.records += self.records.len() as u64;
        self.watch.read(self.records.drain(..), complete);
        self.watch.caught_up(now);
        if let (Some(group), Some(tenant)) = (group, self.watch.residency.resident()) {
            self.groups.learn(group, tenant);
        }
        Ok(())
    }

    /// Reads what the log shows by itself. Whether somebody was there who is no tenant, or that is not known.
    pub(super) fn refresh_shown(&mut self, now: Moment) -> bool {
        match self.log.read_shown(&self.client, &mut self.records) {
            Ok(complete) => {
                self.reads.records += self.records.len() as u64;
                let strange = self.watch.read(self.records.drain(..), complete);
                self.watch.caught_up_by_itself(now);
                strange || !complete
            }
            Err(error) => {
                log::debug!("{error}");
                true
            }
        }
    }

    /// Whose channels are on the engine, if that is known.
    fn group(&self) -> Option<Group> {
        self.registers.as_ref()?.group()
    }

    /// Who is on the engine, by its own status.
    pub(super) fn on_engine(&self) -> Option<TenantId> {
        self.groups.tenant(self.group()?)
    }

    /// Who was taken to have begun has if he is on the engine. Whether all are known to have.
    pub(super) fn look_who_came(&mut self, now: Moment) -> bool {
        if self.watch.hosts.is_anyone_presumed()
            && let Some(tenant) = self.on_engine()
        {
            self.watch.hosts.came(tenant, now);
        }
        !self.watch.hosts.is_anyone_presumed()
    }

    /// Reads the log where it is no harm if that fails.
    pub(super) fn refresh_or_say(&mut self, now: Moment) {
        if let Err(error) = self.refresh(now) {
            log::debug!("{error}");
        }
    }

    /// Takes what the counters said of times of which the log was read.
    pub(super) fn count(&mut self) {
        for told in self.told.try_iter() {
            match told {
                Told::Busy(busy) => self.watch.counted(busy),
                Told::Age(age) => self.watch.measured(age),
                Told::Nothing(error) => {
                    log::warn!("{error}; idle time within residency is charged from now on");
                    self.watch.no_counters();
                }
            }
        }
    }
}
