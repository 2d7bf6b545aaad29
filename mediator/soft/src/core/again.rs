//! A core that begins anew after a thread has ended or does not stop its command.
//!
//! In: stops that were requested. Out: since when a command has to end, and a core without tenants.
//! Called by the driver in real time.

use turnstile_accounting::Moment;

use super::Core;
use super::dispatch::Engine;
use crate::config::ENGINES;

impl Core {
    /// Begins anew, without tenants; the numbers of its records go on. Returns what was before.
    pub(crate) fn replace(&mut self, now: Moment) -> Self {
        let now = self.tick(now);
        self.stop_all();
        let mut new = Self {
            registers: self.registers.clone(),
            changes: self.changes.clone(),
            memory_log: self.memory_log.clone(),
            board: self.board.clone(),
            ..Self::new(self.config, now)
        };
        std::mem::swap(&mut new.log, &mut self.log);
        for event in new.log.restart(now) {
            new.board.iter().for_each(|board| board.switched(&event));
        }
        new.settle(now);
        new.changed();
        std::mem::replace(self, new)
    }

    /// Requests a stop of all work on engines.
    pub(crate) fn stop_all(&mut self) {
        for load in self.engines.iter().filter_map(Engine::load) {
            load.stop.end();
        }
    }

    /// Since when each engine's command is known to have to end, as it was stopped.
    pub(crate) fn stopped_since(&mut self, now: Moment) -> [Option<Moment>; ENGINES] {
        let now = self.tick(now);
        std::array::from_fn(|index| {
            let stop = &self.engines[index].load()?.stop;
            let since = || *stop.known_since.get_or_init(|| now);
            stop.is_ended().then(since)
        })
    }
}
