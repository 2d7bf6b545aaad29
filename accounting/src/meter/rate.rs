//! Engine time per finished command of each tenant, and what each tenant was charged in advance.

use super::unobserved::{ChannelSnapshot, Progress};
use crate::units::{EngineId, Nanos, TenantId};
use crate::usage::Usage;

/// Poll phases after which a phase's part of the sums has decayed to 1/e.
const MEMORY_PHASES: u64 = 64;
/// Fixed point of the count of commands, so that decay does not round it to zero.
const COMMAND: u64 = 1 << 16;

/// An engine that was idle for less than this part of recent poll phases is taken to be busy in the
/// unobserved parts too. Samples show switching as idle.
const IDLE_MAX: u64 = 32;

/// One tenant's use of one engine.
#[derive(Clone, Copy, Debug)]
struct Rate {
    engine: EngineId,
    tenant: TenantId,
    /// Engine time sampled in poll phases.
    used_ns: u64,
    /// Commands finished in these phases, times [`COMMAND`].
    finished: u64,
    /// Length of these phases.
    length_ns: u64,
    /// Engine time of finished commands that is not charged; negative: charged in advance.
    uncharged_ns: i64,
}

/// Rates of all tenants, and the idle time of engines.
#[derive(Debug, Default)]
pub(super) struct Rates {
    rates: Vec<Rate>,
    idle: Vec<Idle>,
}

/// Idle time of an engine in recent poll phases, switching included.
#[derive(Debug)]
struct Idle {
    engine: EngineId,
    idle_ns: u64,
    length_ns: u64,
}

impl Rates {
    fn of(&mut self, engine: EngineId, tenant: TenantId) -> &mut Rate {
        let known = |rate: &Rate| (rate.engine, rate.tenant) == (engine, tenant);
        let index = self.rates.iter().position(known).unwrap_or_else(|| {
            self.rates.push(Rate {
                engine,
                tenant,
                used_ns: 0,
                finished: 0,
                length_ns: 0,
                uncharged_ns: 0,
            });
            self.rates.len() - 1
        });
        &mut self.rates[index]
    }

    /// Sets the length of a tenant's commands.
    #[cfg(test)]
    pub(super) fn know(&mut self, engine: EngineId, tenant: TenantId, length: Nanos) {
        let rate = self.of(engine, tenant);
        (rate.used_ns, rate.finished) = (length.0, COMMAND);
    }

    /// Adds a poll phase that began and ended with these snapshots to the sums. `known_idle`: time
    /// in it in which no tenant was permitted to run.
    ///
    /// A command that runs across an end of the phase counts as half: a launch and its fence are
    /// two commands. Otherwise a tenant that is admitted or held where a phase begins or ends would
    /// seem to begin more commands than it finishes, or fewer.
    pub(super) fn learn(
        &mut self,
        observed: &Usage,
        seen: &[Progress],
        polls: [&ChannelSnapshot; 2],
        known_idle: (EngineId, Nanos),
    ) {
        for engine in &observed.engines {
            let index = self.idle.iter().position(|of| of.engine == engine.engine);
            let index = index.unwrap_or_else(|| {
                self.idle.push(Idle {
                    engine: engine.engine,
                    idle_ns: 0,
                    length_ns: 0,
                });
                self.idle.len() - 1
            });
            let idle = &mut self.idle[index];
            for sum in [&mut idle.idle_ns, &mut idle.length_ns] {
                *sum -= *sum / MEMORY_PHASES;
            }
            // Whether an engine is busy is a question of the time in which a tenant may run.
            let known_ns = match known_idle.0 == engine.engine {
                true => known_idle.1.0.min(engine.idle_ns.0),
                false => 0,
            };
            idle.idle_ns = idle.idle_ns.saturating_add(engine.idle_ns.0 - known_ns);
            let length_ns = observed.window.length().0;
            idle.length_ns = idle.length_ns.saturating_add(length_ns - known_ns);
            for part in seen {
                let used_ns = used_ns(observed, engine.engine, part.tenant);
                let rate = self.of(engine.engine, part.tenant);
                for sum in [&mut rate.used_ns, &mut rate.finished, &mut rate.length_ns] {
                    *sum -= *sum / MEMORY_PHASES;
                }
                let runs = polls.map(|poll| poll.occupant(engine.engine) == Some(part.tenant));
                let [at_begin, at_end] = runs.map(|runs| if runs { COMMAND } else { 0 });
                let finished = part.finished.unwrap_or(0).saturating_mul(COMMAND);
                rate.length_ns = rate.length_ns.saturating_add(length_ns);
                rate.used_ns = rate.used_ns.saturating_add(used_ns);
                rate.finished = rate
                    .finished
                    .saturating_add(finished.saturating_add(at_end));
                rate.finished = rate.finished.saturating_sub(at_begin);
            }
        }
    }

    /// Whether an engine was idle for less than 1/[`IDLE_MAX`] of recent poll phases.
    pub(super) fn is_busy(&self, engine: EngineId) -> bool {
        let mut of = self.idle.iter().filter(|of| of.engine == engine);
        of.any(|of| of.idle_ns < of.length_ns / IDLE_MAX)
    }

    /// What a tenant has to be charged for an unobserved part, at most its length.
    pub(super) fn owed(
        &mut self,
        engine: EngineId,
        part: &Progress,
        length: Nanos,
        suspended: bool,
    ) -> Nanos {
        let rate = self.of(engine, part.tenant);
        let owed = match rate.finished_ns(part.finished) {
            Some(finished_ns) => finished_ns.saturating_add(rate.uncharged_ns),
            None if suspended => 0,
            None => rate.portion(length),
        };
        Nanos(u64::try_from(owed).unwrap_or(0).min(length.0))
    }

    /// Engine time of a command; `None` if no command finished in a poll phase.
    pub(super) fn command(&mut self, engine: EngineId, tenant: TenantId) -> Option<u64> {
        let time = self.of(engine, tenant).finished_ns(Some(1))?;
        u64::try_from(time).ok()
    }

    /// Charges a tenant for an unobserved part of `length`.
    pub(super) fn charge(
        &mut self,
        engine: EngineId,
        part: &Progress,
        charge: Nanos,
        length: Nanos,
    ) {
        let rate = self.of(engine, part.tenant);
        rate.account(part.finished, charge);
        // A larger remainder is not of a command that began earlier: commands take less time than
        // they did.
        let most = i64::try_from(length.0).unwrap_or(i64::MAX);
        rate.uncharged_ns = rate.uncharged_ns.min(most);
    }

    /// All finished commands of a tenant are charged, and `ahead` of the one that runs.
    pub(super) fn settle(&mut self, engine: EngineId, tenant: TenantId, ahead: Nanos) {
        let ahead = i64::try_from(ahead.0).unwrap_or(i64::MAX);
        self.of(engine, tenant).uncharged_ns = -ahead;
    }

    /// Charges a poll phase.
    pub(super) fn charge_observed(&mut self, observed: &Usage, seen: &[Progress]) {
        self.rates
            .retain(|rate| seen.iter().any(|part| part.tenant == rate.tenant));
        for engine in &observed.engines {
            for part in seen {
                let used_ns = Nanos(used_ns(observed, engine.engine, part.tenant));
                let rate = self.of(engine.engine, part.tenant);
                rate.account(part.finished, used_ns);
            }
        }
    }
}

impl Rate {
    /// Engine time of `count` commands; `None` if their number or length is unknown.
    fn finished_ns(&self, count: Option<u64>) -> Option<i64> {
        let count = count?;
        if count == 0 {
            return Some(0);
        }
        let wide = u128::from(count) * u128::from(self.used_ns) * u128::from(COMMAND);
        let time = wide.checked_div(u128::from(self.finished))?;
        Some(i64::try_from(time).unwrap_or(i64::MAX))
    }

    /// The tenant's portion of recent poll phases, applied to `length`.
    fn portion(&self, length: Nanos) -> i64 {
        let wide = u128::from(self.used_ns) * u128::from(length.0);
        let time = wide.checked_div(u128::from(self.length_ns)).unwrap_or(0);
        i64::try_from(time).unwrap_or(i64::MAX)
    }

    fn account(&mut self, finished: Option<u64>, charge: Nanos) {
        self.uncharged_ns = match self.finished_ns(finished) {
            Some(finished_ns) => {
                let charge = i64::try_from(charge.0).unwrap_or(i64::MAX);
                let uncharged_ns = finished_ns
                    .saturating_sub(charge)
                    .saturating_add(self.uncharged_ns);
                // The command that runs began after the last one that finished in this part.
                let least = if finished > Some(0) {
                    -charge
                } else {
                    i64::MIN
                };
                uncharged_ns.max(least)
            }
            None => 0,
        };
    }
}

/// A tenant's time on an engine.
fn used_ns(usage: &Usage, engine: EngineId, tenant: TenantId) -> u64 {
    let parts = usage.engine(engine).map(|engine| &engine.tenants);
    let mut own = parts
        .into_iter()
        .flatten()
        .filter(|part| part.tenant == tenant);
    own.next().map_or(0, |part| part.used_ns.0)
}
