//! The accounting thread of a GPU: reads engine state, closes periods, and between them keeps the engine busy.
//!
//! With the event meter a period is a sleep, cut into ticks; with the polled meter it is LoGA's cycle of a non-poll and
//! a poll phase (A1.2, A1.3), in which the status registers are read as fast as they can be.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::SmallRng};
use turnstile_accounting::meter::{Pace, PhasePlan, Phases};
use turnstile_accounting::{
    EngineUsage, EventMeter, Meter, Moment, Nanos, Observation, PolledMeter, Sample, TenantId,
    TenantUsage, Usage, Window,
};

use super::host::{Dry, Host, engines};
use super::timings::Seen;
use crate::mediation::COMPUTE;

/// How engine state is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeterKind {
    /// From the context-switch log: exact.
    Events,
    /// From status registers, in poll phases (LoGA).
    Polled,
    /// The same, looking away between two samples for a part of the time that the engines have been as they are.
    Adaptive,
}

/// Lengths of periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Event meter: from one decision to the next.
    pub period: Nanos,
    /// The same while nobody shares the engine.
    pub alone: Nanos,
    /// The same while, beyond that, nobody is held and nothing is told by the GPU, in steps of `period` or `alone`.
    pub quiet: Nanos,
    /// Event meter: how often, within a period, an engine without work is looked for.
    pub tick: Nanos,
    /// Polled meter: lengths per channel.
    pub phases: PhasePlan,
    /// Polled meter: seed of the phases' lengths.
    pub seed: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            period: turnstile_policies::DECISION_PERIOD_NS,
            alone: turnstile_policies::DECISION_PERIOD_NS,
            quiet: turnstile_policies::DECISION_PERIOD_NS,
            // SOURCE: the lab's setting, with which shares are within 0.5 points in every second.
            tick: Nanos::from_us(250),
            phases: PhasePlan::default(),
            seed: 0,
        }
    }
}

/// From one decision to the next at least.
const PERIOD_MIN: Nanos = Nanos::from_us(250);
/// The engine is shared for so long after two were seen on it.
const SHARED_FOR: Nanos = Nanos::from_ms(1_000);
/// From one decision to the next while there is nobody to decide about.
const EMPTY_PERIOD: Nanos = Nanos::from_ms(20);

/// Runs until `stop`.
pub(super) fn run(
    host: &Arc<Host>,
    kind: MeterKind,
    timing: Timing,
    stop: &AtomicBool,
    periods: &AtomicU64,
) {
    let mut thread = Accounting {
        host,
        stop,
        periods,
        timing,
        truth: EventMeter::new(engines(&**host.gpu())),
        events: Vec::new(),
        seen: Seen::default(),
        channels: Vec::new(),
        shared_until: Moment(0),
    };
    match kind {
        MeterKind::Events => thread.by_events(),
        MeterKind::Polled => thread.by_polling(false),
        MeterKind::Adaptive => thread.by_polling(true),
    }
}

/// Why a sleep is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slept {
    /// It is time.
    Over,
    /// Something is to be decided.
    Decide,
    /// Who was held is let in where the engine ran dry, and nobody else waits.
    LetIn,
}

struct Accounting<'a> {
    host: &'a Arc<Host>,
    stop: &'a AtomicBool,
    /// Counts those that were accounted.
    periods: &'a AtomicU64,
    timing: Timing,
    /// Follows the engines' own log; with the polled meter for comparison only.
    truth: EventMeter,
    events: Vec<turnstile_accounting::SwitchEvent>,
    seen: Seen,
    channels: Vec<crate::gpu::ChannelActivity>,
    shared_until: Moment,
}

impl Accounting<'_> {
    fn now(&self) -> Moment {
        self.host.gpu().now()
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Sleeps until `until`; while somebody is held back, in ticks, to let him in when the engine is found without work. What is told meanwhile ends it sooner if it is to be decided about.
    fn sleep_until(&self, mut until: Moment) -> Slept {
        let mut slept = Slept::Over;
        loop {
            let left = until.since(self.now());
            if left == Nanos::ZERO || self.stopped() {
                return slept;
            }
            let gpu = self.host.gpu();
            let held = self.host.anyone_held();
            let look = held.then(|| gpu.look_again(self.timing.tick)).flatten();
            let memory = self.host.memory_is_busy().then_some(self.timing.tick);
            let nap = look.into_iter().chain(memory).min().unwrap_or(left);
            if let Some(within) = gpu.nap(left.min(nap)) {
                until = until.min(self.now() + within);
                slept = Slept::Decide;
            }
            if memory.is_some() {
                self.host.memory_tick();
            }
            // What was in doubt may have been seen since.
            let doubt = || gpu.look_again(self.timing.tick).is_some();
            if held && doubt() && gpu.has_run_dry() {
                match self.host.ran_dry() {
                    Dry::Nobody => {}
                    Dry::Decide => return Slept::Decide,
                    Dry::LetIn => return Slept::LetIn,
                }
            }
        }
    }

    /// Sleeps until the policy is to be asked again, in a period that began then: if it does not say when, for a whole one, and on while there is nothing to decide.
    fn sleep(&mut self, mut from: Moment, behind: Nanos) {
        loop {
            let decide_at = self.host.decide_at();
            // Never at once again, whatever it says.
            let end = decide_at.unwrap_or_else(|| from + self.period(from));
            let slept = match self.sleep_until(end.max(from + PERIOD_MIN) + behind) {
                Slept::Over if decide_at.is_none() => self.doze(from + behind),
                slept => slept,
            };
            if slept != Slept::LetIn || self.stopped() {
                return;
            }
            // Who stopped is charged when there is something to decide; what is known of him is taken before another stops.
            if self.host.gpu().another_may_stop() {
                self.read_log();
            }
            from = Moment(self.now().0.saturating_sub(behind.0));
        }
    }

    /// Goes on sleeping while nobody is held and the GPU tells nothing: nobody has come, so that there is nothing to decide.
    fn doze(&self, from: Moment) -> Slept {
        let until = from + self.timing.quiet;
        let mut end = self.now();
        while end < until && self.may_doze() && !self.stopped() && !self.host.gpu().has_events() {
            end = until.min(end + self.step(end));
            let slept = self.sleep_until(end);
            if slept != Slept::Over {
                return slept;
            }
        }
        Slept::Over
    }

    fn may_doze(&self) -> bool {
        !self.host.is_empty() && self.host.has_nothing_to_decide()
    }

    /// From one look to the next where there is nothing to decide.
    fn step(&self, now: Moment) -> Nanos {
        let step = if now > self.shared_until {
            self.timing.alone
        } else {
            self.host.gpu().rests_on()
        };
        step.max(self.timing.period)
    }

    fn read_log(&mut self) {
        let complete = self.host.gpu().read_events(&mut self.events);
        for event in self.events.drain(..) {
            self.seen.event(&event);
            self.truth.observe(Observation::Switch(event));
        }
        self.host.saw(&mut self.seen);
        if !complete {
            self.seen.hole();
            // After what was observed: the state that the last record began ended at an unknown moment.
            for engine in engines(&**self.host.gpu()) {
                self.truth.restart(engine);
            }
        }
    }

    /// From one decision to the next, if the policy does not say.
    fn period(&self, now: Moment) -> Nanos {
        if self.host.is_empty() {
            EMPTY_PERIOD
        } else if self.may_doze() {
            self.step(now)
        } else {
            self.timing.period
        }
    }

    fn by_events(&mut self) {
        // Windows end where the log is final: what is told later of what lies before would be lost.
        let behind = self.host.gpu().events_behind();
        let final_now = |thread: &Self| Moment(thread.now().0.saturating_sub(behind.0));
        self.read_log();
        let mut from = final_now(self);
        while !self.stopped() {
            self.sleep(from, behind);
            // The end is read first: whatever is logged after that lies behind it.
            let to = final_now(self).max(from);
            self.read_log();
            let mut usage = self.truth.close(window(from, to));
            self.host.gpu().qualify(&mut usage);
            if is_shared(&usage) {
                self.shared_until = to + SHARED_FOR;
            }
            from = to;
            self.host.period_end(None, usage, None, &mut self.channels);
            self.periods.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn by_polling(&mut self, adaptive: bool) {
        let gpu = self.host.gpu().clone();
        let mut meter = PolledMeter::new(engines(&*gpu));
        let mut seen: Vec<Option<TenantId>> = engines(&*gpu).map(|_| None).collect();
        let mut random = SmallRng::seed_from_u64(self.timing.seed);
        self.read_log();
        let mut from = self.now();
        while !self.stopped() {
            let (used, allocated) = self.host.channel_counts();
            let Phases {
                poll_ns,
                nonpoll_ns,
            } = self
                .timing
                .phases
                .randomised(used, allocated, random.random());
            self.sleep_until(from + nonpoll_ns);
            let begin = self.now();
            let (mut end, mut looked_at) = (begin, begin);
            let mut pace = Pace::new(begin);
            while end.since(begin) < poll_ns && !self.stopped() {
                let mut changed = false;
                for (engine, seen) in engines(&*gpu).zip(&mut seen) {
                    let occupant = gpu.engine_status(engine).running;
                    changed |= std::mem::replace(seen, occupant) != occupant;
                    end = gpu.now();
                    let sample = Sample { at: end, occupant };
                    meter.observe(Observation::Sample(engine, sample));
                    if engine == COMPUTE
                        && occupant.is_none()
                        && end.since(looked_at) >= self.timing.tick
                    {
                        looked_at = end;
                        self.host.memory_tick();
                        self.host.ran_dry();
                    }
                }
                if adaptive && let Some(pause) = pace.pause(end, changed) {
                    thread::park_timeout(Duration::from_nanos(pause.0));
                }
            }
            let observed = meter.close(window(begin, end));
            let nonpoll = window(from, begin);
            let host = self.host;
            // Gates move at the end of a poll phase: the non-poll phase before it ran under the same ones.
            let extrapolated = observed.extrapolate(nonpoll, |tenant| host.was_admitted(tenant));
            self.read_log();
            let truth = self.truth.close(window(from, end));
            from = end;
            self.host.period_end(
                Some(extrapolated),
                observed,
                Some(truth),
                &mut self.channels,
            );
            self.periods.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Whether two tenants used the compute engine.
fn is_shared(usage: &Usage) -> bool {
    let of = |engine: &&EngineUsage| engine.engine == COMPUTE;
    let used = |tenant: &&TenantUsage| tenant.used_ns > Nanos::ZERO;
    let compute = usage.engines.iter().find(of);
    compute.is_some_and(|compute| compute.tenants.iter().filter(used).count() > 1)
}

/// A window between two moments that were read in this order.
fn window(from: Moment, to: Moment) -> Window {
    Window::starting(from, to.since(from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnstile_accounting::{EngineId, EngineState};

    #[test]
    fn an_engine_is_shared_by_two_that_used_it() {
        let copy = EngineId(7);
        let mut meter = EventMeter::new([COMPUTE, copy]);
        let used = |meter: &mut EventMeter, seq, engine, tenant| {
            meter.observe(Observation::Switch(turnstile_accounting::SwitchEvent {
                at: Moment(seq * 10),
                engine,
                seq,
                state: EngineState::Running(TenantId(tenant)),
            }));
        };
        used(&mut meter, 0, COMPUTE, 1);
        used(&mut meter, 0, copy, 2);
        used(&mut meter, 1, COMPUTE, 3);
        let alone = meter.close(window(Moment(0), Moment(10)));
        assert!(!is_shared(&alone), "{alone:?}");
        let shared = meter.close(window(Moment(5), Moment(20)));
        assert!(!is_shared(&shared), "only what is new: {shared:?}");
        used(&mut meter, 2, COMPUTE, 1);
        used(&mut meter, 3, COMPUTE, 3);
        assert!(is_shared(&meter.close(window(Moment(20), Moment(40)))));
    }
}
