//! Looking at the GPU itself.

use std::thread;
use std::time::{Duration, Instant};

use turnstile_accounting::{Moment, Nanos, TenantId};

use super::{Shared, lock};
use crate::arrivals::{self, Rung};
use crate::costs::Work;
use crate::hosts::{COMING_LOOKS, COMING_PAUSE};
use crate::look::{self, Eyes};
use crate::progress::{Said, Words};
use crate::sys::abi::{STATUS_BUSY, STATUS_REGISTER};
use crate::userd;
use crate::watch::{Runner, Watch};

impl Shared {
    /// Opens what channels say of tenants that have others than before.
    pub(super) fn follow_channels(&self) {
        let Some(borrower) = &self.borrower else {
            return;
        };
        let changes = lock(&self.watched).watch.changes();
        if lock(&self.userds).are_of(changes) {
            return;
        }
        let places = lock(&self.watched).watch.places();
        lock(&self.userds).keep(|tenant| places.contains_key(&tenant));
        for (tenant, places) in &places {
            if lock(&self.userds).is_due(*tenant, places, Instant::now()) {
                // Not under the lock: it takes the driver milliseconds.
                let opened = userd::open(borrower, places);
                lock(&self.userds).put(*tenant, opened, Instant::now());
            }
        }
        // Those that came since are asked for the next time.
        lock(&self.userds).followed(changes);
    }

    /// Whether it is asked at latches of the counters what tenants launched: where there are more than two, or two take turns. (To be woken at each latch costs some processor time;
    /// who is alone, or beside an idle one, is told apart without.)
    pub(super) fn counts_launches(&self) -> bool {
        self.are_many() || self.hands.is_anyone_held()
    }

    fn are_many(&self) -> bool {
        lock(&self.userds).all().nth(2).is_some()
    }

    /// Whether the compute engine works, by its own status.
    fn works(&self) -> bool {
        // An engine that cannot be looked at is not taken as idle.
        if let Some(registers) = &self.registers {
            lock(&self.status).count += 1;
            return registers.works().unwrap_or(true);
        }
        let work = Work::begin();
        let read = self
            .client
            .register(self.driver.read_registers, STATUS_REGISTER);
        lock(&self.status).add(&work);
        read.map_or(true, |status| status & STATUS_BUSY != 0)
    }

    /// Somebody was taken to have begun, and another made room: sees him come.
    pub(super) fn see_who_comes(&self) {
        for _ in 0..COMING_LOOKS {
            if lock(&self.watched).look_who_came(self.now()) {
                return;
            }
            thread::sleep(Duration::from_nanos(COMING_PAUSE.0));
        }
    }

    /// The counters are latched now: asks what was launched.
    pub(super) fn latched(&self) {
        if !self.are_many() {
            return look::at_latch(&mut Looker(self));
        }
        for (tenant, words) in lock(&self.userds).all() {
            let mut watched = lock(&self.watched);
            // Not before: another thread may have had it for long.
            let now = self.now();
            // One who is gone is not learnt again.
            if watched.watch.minds(tenant) {
                watched.watch.latches.read(tenant, words, now);
            }
        }
    }
}

/// The GPU, looked at.
pub(super) struct Looker<'a>(pub(super) &'a Shared);

impl Eyes for Looker<'_> {
    fn now(&self) -> Moment {
        self.0.now()
    }

    fn is_moving(&self) -> bool {
        self.0.is_moving()
    }

    fn is_held(&self, tenant: TenantId) -> bool {
        self.0.is_held(tenant)
    }

    fn with<R>(&mut self, act: impl FnOnce(&mut Watch) -> R) -> R {
        act(&mut lock(&self.0.watched).watch)
    }

    fn runner(&mut self) -> Runner {
        let now = self.now();
        let held = |tenant| self.0.is_held(tenant);
        lock(&self.0.watched).watch.runner(now, held)
    }

    fn read_ago(&self) -> Nanos {
        let ago = lock(&self.0.watched).refreshed.elapsed();
        // CAST: 584 years.
        Nanos(ago.as_nanos() as u64)
    }

    fn read(&mut self) {
        let now = self.now();
        lock(&self.0.watched).refresh_or_say(now);
    }

    fn read_shown(&mut self) -> bool {
        let now = self.now();
        !lock(&self.0.watched).refresh_shown(now)
    }

    fn ask(&mut self, tenant: TenantId) -> Said {
        let userds = lock(&self.0.userds);
        let Some(words) = userds.of(tenant) else {
            return Said::Nothing;
        };
        let mut watched = lock(&self.0.watched);
        let work = Work::brief();
        // Not before: another thread may have had it for long.
        let now = self.now();
        let said = watched.watch.ask(tenant, words, now);
        drop(watched);
        lock(&self.0.asking).add(&work);
        said
    }

    fn has_moved(&mut self, tenant: TenantId) -> Option<bool> {
        let userds = lock(&self.0.userds);
        let words = userds.of(tenant)?;
        let watched = lock(&self.0.watched);
        watched.watch.progress.has_moved(tenant, words)
    }

    fn works(&mut self) -> bool {
        self.0.works()
    }

    fn on_engine(&mut self) -> Option<TenantId> {
        lock(&self.0.watched).on_engine()
    }

    fn pause(&mut self, pause: Nanos) {
        thread::sleep(Duration::from_nanos(pause.0));
    }
}

impl arrivals::Eyes for Shared {
    fn rung(&self, tenant: TenantId) -> Option<Rung> {
        let userds = lock(&self.userds);
        let words = userds.of(tenant)?;
        let mut rung = Rung::default();
        for index in 0..words.count() {
            let (entries, _) = words.read(index);
            rung.taken += u64::from(entries.get);
            rung.waits |= entries.get != entries.put;
        }
        Some(rung)
    }

    fn was_there(&self, tenant: TenantId, within: Duration) -> bool {
        let now = self.now();
        let mut watched = lock(&self.watched);
        watched.refresh_or_say(now);
        let residency = &watched.watch.residency;
        // CAST: less than the second or two that is remembered.
        let from = Moment(now.0.saturating_sub(within.as_nanos() as u64));
        residency.resident() == Some(tenant)
            || residency.resident_of(tenant, from, now) > Nanos::ZERO
    }
}
