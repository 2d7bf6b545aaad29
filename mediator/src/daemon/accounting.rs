//! The accounting thread of a GPU: reads engine state, closes periods, and between them keeps the engine busy.
//!
//! With the event meter a period is a sleep, cut into ticks; with the polled meter it is LoGA's cycle of a non-poll and
//! a poll phase (A1.2, A1.3), in which the status registers are read as fast as they can be.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::SmallRng};
use turnstile_accounting::meter::{Look, Pace, PhasePlan, Phases, Unobserved};
use turnstile_accounting::{
    DemandEvent, EngineId, EngineUsage, EventMeter, Meter, Moment, Nanos, Observation, PolledMeter,
    Sample, TenantId, TenantUsage, Usage, Window,
};

use super::host::{Dry, Host, engines};
use super::timings::Seen;
use turnstile_gpu::Suspend;
use turnstile_mediation::{COMPUTE, REACTION_MIN};

/// How engine state is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeterKind {
    /// From the context-switch log: exact.
    Events,
    /// From status registers, in poll phases (LoGA).
    Polled,
    /// The same, with a pause between two reads by the mean length of the states of the engines.
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
/// A period while no tenant has work.
const IDLE_PERIOD: Nanos = Nanos::from_ms(5);
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
        demand: Vec::new(),
        demand_known: host.gpu().capabilities().demand,
        feeds_policy: host.schedules_by_events(),
        polls: kind != MeterKind::Events,
    };
    match kind {
        MeterKind::Events if thread.demand_known => thread.by_demand(),
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
    channels: Vec<turnstile_gpu::ChannelActivity>,
    shared_until: Moment,
    demand: Vec<DemandEvent>,
    demand_known: bool,
    /// The policy takes what the engines do.
    feeds_policy: bool,
    /// The policy is charged by a polled meter.
    polls: bool,
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
        self.host.gpu().read_demand(&mut self.demand);
        let complete = self.host.gpu().read_events(&mut self.events);
        if self.feeds_policy {
            let switches: &[_] = if self.polls { &[] } else { &self.events };
            self.host.observe(switches, &self.demand);
            self.demand.clear();
        }
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
            // The end is read first: whatever is logged after that is later.
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

    /// For a GPU that reports demand: between the ends of periods a decision is taken when the GPU
    /// has a notice, and when the policy has it.
    fn by_demand(&mut self) {
        self.read_log();
        let mut from = self.now();
        while !self.stopped() {
            self.wait(from + self.demand_period());
            // The end is read first: whatever is logged after that is later.
            let to = self.now().max(from);
            self.read_log();
            let usage = self.truth.close(window(from, to));
            from = to;
            self.host.period_end(None, usage, None, &mut self.channels);
            self.periods.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn demand_period(&self) -> Nanos {
        if self.host.is_empty() {
            EMPTY_PERIOD
        } else if self.host.any_wants() || self.host.memory_is_busy() {
            self.timing.period
        } else {
            self.timing.period.max(IDLE_PERIOD)
        }
    }

    /// Waits until `end`, and decides when that is due.
    fn wait(&mut self, end: Moment) {
        let mut decided = self.now();
        loop {
            let now = self.now();
            if now >= end || self.stopped() {
                return;
            }
            let due = self.host.decide_at();
            let due = due.map(|due| due.max(decided + REACTION_MIN));
            let looks = self.host.looks_at_held() || self.host.memory_is_busy();
            let tick = looks.then(|| now + self.timing.tick);
            let until = due.into_iter().chain(tick).fold(end, Moment::min);
            let noticed = self.host.gpu().nap(until.since(now)).is_some();
            if self.host.memory_is_busy() {
                self.host.memory_tick();
            }
            let now = self.now();
            if noticed || looks || due.is_some_and(|due| due <= now) {
                self.read_log();
                self.host.decide();
                decided = now;
            }
        }
    }

    /// LoGA's cycle: a part in which the registers are not read, and a poll phase.
    fn by_polling(&mut self, adaptive: bool) {
        let gpu = self.host.gpu().clone();
        let preemptible = gpu.capabilities().suspend == Suspend::MidKernel;
        let mut meter = PolledMeter::new(engines(&*gpu));
        let mut unobserved = Unobserved::new(COMPUTE, preemptible);
        let mut pace = Pace::default();
        let mut random = SmallRng::seed_from_u64(self.timing.seed);
        self.read_log();
        let mut from = self.now();
        let mut look = self.look_at_end();
        while !self.stopped() {
            unobserved.begin(look, |tenant| self.host.is_suspended(tenant));
            let (used, allocated) = self.host.channel_counts();
            let Phases {
                poll_ns,
                nonpoll_ns,
            } = self
                .timing
                .phases
                .randomised(used, allocated, random.random());
            if self.demand_known {
                self.wait(from + nonpoll_ns);
            } else {
                self.sleep_until(from + nonpoll_ns);
            }
            let begin = self.now();
            self.sample(&mut meter);
            unobserved.end(self.look_at_begin());
            let (mut end, mut gap, mut looked_at) = (begin, Nanos::ZERO, begin);
            while end.since(begin) < poll_ns && !self.stopped() {
                if pace.pause() > Nanos::ZERO {
                    thread::park_timeout(Duration::from_nanos(pace.pause().0));
                }
                let (at, idle) = self.sample(&mut meter);
                (gap, end) = (gap.max(at.since(end)), at);
                if idle && end.since(looked_at) >= self.timing.tick {
                    looked_at = end;
                    self.host.memory_tick();
                    self.host.ran_dry();
                }
            }
            look = self.look_at_end();
            meter.sampled(unobserved.finished_in_phase(&look), gap);
            let observed = meter.close(window(begin, end));
            let estimated = unobserved.charge(window(from, begin), &observed, &look);
            if adaptive {
                pace = Pace::next(&observed);
            }
            self.read_log();
            let truth = self.truth.close(window(from, end));
            from = end;
            self.host
                .period_end(Some(estimated), observed, Some(truth), &mut self.channels);
            self.periods.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reads the registers once. Returns when, and whether the compute engine was idle.
    fn sample(&self, meter: &mut PolledMeter) -> (Moment, bool) {
        let gpu = self.host.gpu();
        let (mut at, mut idle) = (gpu.now(), false);
        for engine in engines(&**gpu) {
            let occupant = gpu.engine_status(engine).running;
            at = gpu.now();
            idle |= engine == COMPUTE && occupant.is_none();
            meter.observe(Observation::Sample(engine, Sample { at, occupant }));
        }
        (at, idle)
    }

    fn occupants(&self) -> Vec<(EngineId, Option<TenantId>)> {
        let gpu = self.host.gpu();
        let of = |engine| (engine, gpu.engine_status(engine).running);
        engines(&**gpu).map(of).collect()
    }

    /// What the GPU shows where a poll phase begins. A command on an engine that is not counted as
    /// finished afterwards was on it in all of the part before.
    fn look_at_begin(&self) -> Look {
        let occupants = self.occupants();
        let channels = self.host.read_channels();
        Look {
            occupants,
            channels,
        }
    }

    /// What the GPU shows where a poll phase ends; read in the other order for the same reason.
    fn look_at_end(&self) -> Look {
        let channels = self.host.read_channels();
        let occupants = self.occupants();
        Look {
            occupants,
            channels,
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
    use turnstile_accounting::EngineState;

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
