//! The accounting thread of a GPU: reads engine state and closes periods.
//!
//! With the event meter a period is a sleep, cut into ticks. With the polled meter it is LoGA's
//! cycle of a non-poll and a poll phase (A1.2, A1.3). The poll phase reads the status registers
//! without a pause.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::SmallRng};
use turnstile_accounting::meter::{
    ChannelSnapshot, KnownIdle, Pace, PhasePlan, Phases, Unobserved,
};
use turnstile_accounting::{
    EngineId, EventMeter, Meter, Moment, Nanos, Observation, PolledMeter, Sample, TenantId, Window,
};

use super::host::timings::Seen;
use super::host::{Host, engines};
use turnstile_gpu::{EngineReading, Suspend};
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
    /// Interval, within a period, of steps of moving memory, and of reads of the log where held
    /// tenants give no notice.
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
            // SOURCE: the lab's setting, with which shares are within 0.5 points in every second.
            tick: Nanos::from_us(250),
            phases: PhasePlan::default(),
            seed: 0,
        }
    }
}

/// From one decision to the next at least.
const PERIOD_MIN: Nanos = Nanos::from_us(250);
/// The first period while no tenant has work; each further one is twice as long.
const IDLE_PERIOD: Nanos = Nanos::from_ms(5);
/// The longest: a period costs some microseconds for each tenant.
const IDLE_PERIOD_MAX: Nanos = Nanos::from_ms(320);
/// Time between two decisions while there is no tenant.
const EMPTY_PERIOD: Nanos = Nanos::from_ms(20);
/// Interval of attempts to take a silent GPU back, during which its readers see it as silent.
const RETAKE_INTERVAL: Duration = Duration::from_secs(1);
/// Poll interval of a GPU that divides its engine by itself, without tenants. The busy counter
/// wraps in 3.98 s.
const EMPTY_POLL: Nanos = Nanos::from_ms(100);

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
        reading: EngineReading::default(),
        seen: Seen::default(),
        channels: Vec::new(),
        idle_period: IDLE_PERIOD,
        demand_known: host.gpu().capabilities().demand,
        feeds_policy: host.schedules_by_events(),
        polls: kind != MeterKind::Events,
    };
    match kind {
        MeterKind::Events if host.gpu().capabilities().time_slices => thread.by_readings(),
        MeterKind::Events if thread.demand_known => thread.by_demand(),
        MeterKind::Events => thread.by_events(),
        MeterKind::Polled => thread.by_polling(false),
        MeterKind::Adaptive => thread.by_polling(true),
    }
}

// FIELDS: what the accounting thread owns alone.
struct Accounting<'a> {
    host: &'a Arc<Host>,
    stop: &'a AtomicBool,
    /// Counts periods that were accounted.
    periods: &'a AtomicU64,
    timing: Timing,
    /// Follows the engines' own log; with the polled meter for comparison only.
    truth: EventMeter,
    reading: EngineReading,
    seen: Seen,
    channels: Vec<turnstile_gpu::ChannelActivity>,
    /// The next period, if no tenant has work.
    idle_period: Nanos,
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

    /// Sleeps until `until`, in ticks while memory moves.
    fn sleep_until(&self, until: Moment) {
        loop {
            let left = until.since(self.now());
            if left == Nanos::ZERO || self.stopped() {
                return;
            }
            let gpu = self.host.gpu();
            let moves = self.host.memory_is_busy();
            let tick = if moves { self.timing.tick } else { left };
            gpu.wait(left.min(tick));
            if moves {
                self.host.memory_tick();
            }
        }
    }

    /// Sleeps until the policy's next decision is due, in a period that began at `from`.
    fn sleep(&self, from: Moment) {
        let due = self.host.decide_at();
        let end = due.unwrap_or_else(|| from + self.period());
        // Never at once again.
        self.sleep_until(end.max(from + PERIOD_MIN));
    }

    fn read_log(&mut self) {
        self.host.gpu().read(&mut self.reading);
        let EngineReading {
            switches, demand, ..
        } = &mut self.reading;
        if self.feeds_policy {
            let observed: &[_] = if self.polls { &[] } else { switches };
            self.host.observe(observed, demand);
        }
        demand.clear();
        for event in switches.drain(..) {
            self.seen.event(&event);
            self.truth.observe(Observation::Switch(event));
        }
        if !self.seen.is_empty() {
            self.host.lock().records.timings.take(&mut self.seen);
        }
    }

    /// The end of a period that began at `from` and for which `to` was read: `to`, if the GPU
    /// answers. Otherwise waits until the GPU was taken back: the time from `from` on is a gap,
    /// and the next period begins at the moment that is returned as an error.
    fn known(&mut self, from: Moment, to: Moment) -> Result<Moment, Moment> {
        let mut failed = false;
        if !self.host.is_there() {
            self.host.unknown(from);
        } else if let Err(reason) = self.host.gpu().answers() {
            failed = true;
            self.host.silent(from, &reason);
        } else {
            return Ok(to);
        }
        while !self.stopped() {
            self.periods.fetch_add(1, Ordering::Relaxed);
            thread::park_timeout(RETAKE_INTERVAL);
            if self.host.is_removed() {
                self.host.unknown(self.now());
                continue;
            }
            if !failed && self.host.gpu().answers().is_ok() {
                // It was removed and is restored: it has not failed.
                self.host.is_back();
                break;
            }
            failed = true;
            match self.host.retake() {
                Ok(()) => break,
                Err(error) => log::debug!("GPU: {error}"),
            }
        }
        self.reading = EngineReading::default();
        self.seen = Seen::default();
        for engine in engines(&**self.host.gpu()) {
            self.truth.restart(engine);
        }
        Err(self.now().max(to))
    }

    /// Time between two decisions, if the policy does not set it.
    fn period(&self) -> Nanos {
        match self.host.is_empty() {
            true => EMPTY_PERIOD,
            false => self.timing.period,
        }
    }

    fn by_events(&mut self) {
        self.read_log();
        let mut from = self.now();
        while !self.stopped() {
            self.sleep(from);
            // The end is read first: all that is logged after this read is later.
            let to = self.now().max(from);
            if let Err(next) = self.known(from, to) {
                from = next;
                continue;
            }
            self.read_log();
            let mut usage = self.truth.close(window(from, to));
            usage.copied = self.reading.copied.take();
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
            let period = self.demand_period();
            self.wait(from + period);
            // The end is read first: all that is logged after this read is later.
            let to = self.now().max(from);
            if let Err(next) = self.known(from, to) {
                from = next;
                continue;
            }
            self.read_log();
            let mut usage = self.truth.close(window(from, to));
            usage.copied = self.reading.copied.take();
            from = to;
            self.host.period_end(None, usage, None, &mut self.channels);
            self.periods.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// For a GPU that divides its engine by itself: polls whenever the rule requires it.
    fn by_readings(&mut self) {
        let mut next = self.now();
        while !self.stopped() {
            let due = match self.host.is_empty() {
                true => next.max(self.reading.at + EMPTY_POLL),
                false => next,
            };
            let left = due.since(self.now());
            if left > Nanos::ZERO {
                let moves = self.host.memory_is_busy();
                let tick = if moves { self.timing.tick } else { left };
                self.host.gpu().wait(left.min(tick));
                if moves {
                    self.host.memory_tick();
                }
                continue;
            }
            if self.known(self.reading.at, self.reading.at).is_err() {
                continue;
            }
            self.host.gpu().read(&mut self.reading);
            next = self.host.poll(&mut self.reading, &mut self.channels);
            next = next.max(self.reading.at + PERIOD_MIN);
            self.periods.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn demand_period(&mut self) -> Nanos {
        if self.host.is_empty() {
            EMPTY_PERIOD
        } else if self.host.any_wants() || self.host.memory_is_busy() {
            self.idle_period = IDLE_PERIOD;
            self.timing.period
        } else if self.host.begins_idle() {
            let next = Nanos(2 * self.idle_period.0).min(IDLE_PERIOD_MAX);
            std::mem::replace(&mut self.idle_period, next).max(self.timing.period)
        } else {
            self.idle_period = IDLE_PERIOD;
            self.timing.period.max(IDLE_PERIOD)
        }
    }

    /// Waits until `end`, and decides when that is due.
    fn wait(&mut self, mut end: Moment) {
        let mut decided = self.now();
        loop {
            let now = self.now();
            if now >= end || self.stopped() {
                return;
            }
            let due = self.host.decide_at();
            let due = due.map(|due| due.max(decided + REACTION_MIN));
            let ticks = self.host.polls_held() || self.host.memory_is_busy();
            let tick = ticks.then(|| now + self.timing.tick);
            let until = due.into_iter().chain(tick).fold(end, Moment::min);
            let noticed = self.host.gpu().wait(until.since(now));
            if self.host.memory_is_busy() {
                self.host.memory_tick();
            }
            let now = self.now();
            if noticed || ticks || due.is_some_and(|due| due <= now) {
                self.read_log();
                self.host.decide();
                decided = now;
            }
            if self.idle_period > IDLE_PERIOD && !self.host.is_idle() {
                // A tenant may have work: the next period is as long as those of busy tenants.
                self.idle_period = IDLE_PERIOD;
                end = end.min(now + self.timing.period);
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
        let mut snapshot = self.snapshot_at_end();
        while !self.stopped() {
            unobserved.begin(snapshot, |tenant| self.host.is_suspended(tenant));
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
            let mut known = KnownIdle {
                unobserved: self.host.memory_idle(begin),
                observed: Nanos::ZERO,
            };
            self.sample(&mut meter);
            unobserved.end(self.snapshot_at_begin());
            let (mut end, mut gap, mut ticked_at) = (begin, Nanos::ZERO, begin);
            while end.since(begin) < poll_ns && !self.stopped() {
                if pace.pause() > Nanos::ZERO {
                    thread::park_timeout(Duration::from_nanos(pace.pause().0));
                }
                let (at, idle) = self.sample(&mut meter);
                (gap, end) = (gap.max(at.since(end)), at);
                if idle && end.since(ticked_at) >= self.timing.tick {
                    ticked_at = end;
                    self.host.memory_tick();
                }
            }
            snapshot = self.snapshot_at_end();
            known.observed = self.host.memory_idle(end);
            meter.sampled(unobserved.finished_in_phase(&snapshot), gap);
            if let Err(next) = self.known(from, end) {
                (meter, from) = (PolledMeter::new(engines(&*gpu)), next);
                snapshot = self.snapshot_at_end();
                continue;
            }
            let mut observed = meter.close(window(begin, end));
            let estimated = unobserved.charge(window(from, begin), &observed, &snapshot, known);
            if adaptive {
                pace = Pace::next(&observed);
            }
            self.read_log();
            observed.copied = self.reading.copied.take();
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
    fn snapshot_at_begin(&self) -> ChannelSnapshot {
        let occupants = self.occupants();
        let channels = self.host.read_channels();
        ChannelSnapshot {
            occupants,
            channels,
        }
    }

    /// What the GPU shows where a poll phase ends; read in the other order for the same reason.
    fn snapshot_at_end(&self) -> ChannelSnapshot {
        let channels = self.host.read_channels();
        let occupants = self.occupants();
        ChannelSnapshot {
            occupants,
            channels,
        }
    }
}

/// A window between two moments that were read in this order.
fn window(from: Moment, to: Moment) -> Window {
    Window::starting(from, to.since(from))
}

#[cfg(test)]
#[path = "accounting_tests.rs"]
mod tests;
