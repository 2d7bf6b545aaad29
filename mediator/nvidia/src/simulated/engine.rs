//! A simulated engine: it runs what loads launch, changes contexts as the hardware does, writes the log and latches counters.

use std::collections::VecDeque;

use rand::rngs::SmallRng;
use turnstile_accounting::{Moment, Nanos};

use super::pauses::{self, Pauses};
use super::{LAGS, MS, SECOND, US};
use crate::events::{Change, SwitchRecord};
use crate::hosts::Listens;
use crate::launches::OWN_INTERVAL;
use crate::models::H200;
use crate::residency::Edges;
use crate::utilisation::Busy;
use turnstile_figures::HOST_PAUSE_NS;
use turnstile_figures::bursts::{Burst, bursts};
use turnstile_figures::spans::Span;

/// The simulation's step.
pub(super) const STEP: u64 = 5_000;
/// From the one saved to the next active. SOURCE: measured: 84 us; of the rest, [`Edges::H200`].
const SWITCH: u64 = 85 * US;
const EDGES: Edges = Edges::H200;
/// A time slice of the hardware. SOURCE: facts sheet section 1.
const TIME_SLICE: u64 = 2_048 * US;

/// Who begins then has his context, and does not begin.
pub(super) const NEVER: u64 = u64::MAX;

/// Kernels of those who work before they begin.
const WARM_KERNEL: u64 = 200 * US;

/// What tenants executed is kept for each so long.
const BUCKET: u64 = 100 * US;
/// Standard deviation of what the counters are off by in 100 ms, in ns. SOURCE: decision 030: 0.01 to 0.02 % of an interval.
const NOISE: f64 = 20_000.0;
/// The same of launches. SOURCE: the same.
const LAUNCHES_NOISE: f64 = 5.0;

/// A tenant that launches and waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) weight: u32,
    /// Of a kernel alone.
    pub(super) kernel: u64,
    /// From its end to the next launch, without work for the engine.
    pub(super) gap: u64,
    /// It begins at this time; before, its context is made, which takes the engine for a moment.
    pub(super) start: u64,
    /// Before it begins it launches kernels of [`WARM_KERNEL`], from the one time to the other.
    pub(super) warm: (u64, u64),
    /// It has the bursts of the bench, by this seed; none: it launches all the time.
    pub(super) bursts: Option<u64>,
    /// While it rests it rings so often without work; zero: never.
    pub(super) rings: u64,
    /// Each so many times that it goes to sleep nobody hears it; zero: always.
    pub(super) unheard: u64,
    /// Its host pauses, by this seed; none: each gap is as long as the others.
    pub(super) pauses: Option<u64>,
}

impl Load {
    pub(super) const fn busy(weight: u32, kernel_us: u64) -> Self {
        Self {
            weight,
            kernel: kernel_us * US,
            gap: 10 * US,
            start: 300 * MS,
            warm: (0, 0),
            bursts: None,
            rings: 0,
            unheard: 0,
            pauses: None,
        }
    }

    pub(super) const fn bursty(weight: u32, kernel_us: u64, seed: u64) -> Self {
        Self {
            bursts: Some(seed),
            ..Self::busy(weight, kernel_us)
        }
    }
}

#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) load: Load,
    /// Bursts that are still to come, and kernels that are due.
    pub(super) bursts: VecDeque<Burst>,
    pub(super) due: u64,
    /// Left of the kernel under way.
    pub(super) left: u64,
    /// When the next is launched.
    pub(super) next: u64,
    pub(super) pauses: Option<Pauses>,
    /// Where the next launch came late.
    pub(super) paused: Vec<Span>,
    /// The host engine has taken that one, and so many in all.
    pub(super) begun: bool,
    pub(super) taken: u64,
    /// Of the kernel under way the host engine has taken the entry: as it is launched, whoever has the engine, unless the tenant is off the schedule. SOURCE: recordings: within 0.08 ms, while
    /// another runs.
    pub(super) fetched: bool,
    /// Launches so far; so often its host's thread went to sleep, and that was told.
    pub(super) launches: u64,
    slept: u64,
    pub(super) sleeps: u64,
    /// It launches nothing; what it runs goes on until the engine is needed.
    pub(super) off: bool,
    /// It was waiting for the engine when it was taken off the schedule: it comes once more. SOURCE: recordings of an H200 (decision 060): 0.4 to 2.4 ms after the call, in
    /// each second handover from two that share the engine.
    pub(super) once: bool,
    /// It was stopped in the middle of a kernel.
    pub(super) midway: bool,
    pub(super) executed: u64,
    /// The same, at the end of each step of [`BUCKET`].
    pub(super) buckets: Vec<u64>,
}

impl Tenant {
    /// A kernel of that length is launched, by one who is on the schedule.
    fn launch(&mut self, length: u64) {
        self.left = length;
        self.launches += 1;
        self.fetch();
    }

    /// The host engine takes the entry of the kernel under way.
    fn fetch(&mut self) {
        if !std::mem::replace(&mut self.fetched, true) {
            self.taken += 1;
        }
    }

    /// Its host's thread goes to sleep.
    fn sleep(&mut self) {
        self.slept += 1;
        self.sleeps +=
            u64::from(self.load.unheard == 0 || !self.slept.is_multiple_of(self.load.unheard));
    }

    /// So often its host told of what is listened for.
    pub(super) fn told(&self, of: Listens) -> u64 {
        match of {
            Listens::Begin => self.launches,
            Listens::Stop => self.sleeps,
        }
    }

    /// Kernels that are due by now.
    fn arrive(&mut self, now: u64) {
        if self.load.bursts.is_none() {
            self.due = u64::from(now >= self.load.start);
        }
        while let Some(burst) = self
            .bursts
            .pop_front_if(|burst| self.load.start + burst.at_ns <= now)
        {
            self.due += burst.kernels;
        }
    }
}

/// A simulated engine.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) now: u64,
    pub(super) tenants: Vec<Tenant>,
    pub(super) current: Option<usize>,
    /// Who came last.
    pub(super) last: usize,
    /// The current one is being saved until then.
    pub(super) saving: Option<u64>,
    /// Another comes at this time, and runs at the other.
    pub(super) switching: Option<(usize, u64, u64)>,
    /// Who runs has to make room for others, or for himself, if his time slice is over.
    pub(super) preempt: bool,
    /// Who runs and is off has to stop at once. (Otherwise he runs until the end of his kernel, or of his time slice, if others wait. SOURCE: recordings of an H200 (decision 045):
    /// kernels of 2 ms end before their tenant leaves at a handover, up to 2 ms after the other was let in; endless ones and those of 50 ms leave at once.)
    pub(super) stop: bool,
    pub(super) since: u64,
    pub(super) records: Vec<SwitchRecord>,
    pub(super) seq: u64,
    pub(super) busy: u64,
    /// The counters are so much older than their time stamps.
    pub(super) lag: u64,
    /// Counters count launches, call them busy, and are not exact; none: they are.
    pub(super) counts: Option<SmallRng>,
    /// Launched until the last latch, and what our own calls count since.
    pub(super) launched: u64,
    pub(super) calls: f64,
    pub(super) latch: (u64, u64),
    pub(super) latched: VecDeque<Busy>,
    /// Latched, and not there yet.
    pub(super) late: Option<Busy>,
}

impl Engine {
    pub(super) fn new(loads: &[Load]) -> Self {
        let tenant = |load: &Load| Tenant {
            load: *load,
            bursts: load.bursts.map_or_else(VecDeque::new, |seed| {
                bursts(seed, load.kernel, 60 * SECOND).into()
            }),
            due: 0,
            pauses: load.pauses.map(Pauses::new),
            paused: Vec::new(),
            left: 0,
            next: load.start,
            begun: false,
            taken: 0,
            fetched: false,
            launches: 0,
            slept: 0,
            sleeps: 0,
            off: false,
            once: false,
            midway: false,
            executed: 0,
            buckets: Vec::new(),
        };
        Self {
            now: 0,
            tenants: loads.iter().map(tenant).collect(),
            current: None,
            last: 0,
            saving: None,
            switching: None,
            preempt: false,
            stop: false,
            since: 0,
            records: Vec::new(),
            seq: 0,
            busy: 0,
            lag: LAGS[0],
            counts: None,
            launched: 0,
            calls: 0.0,
            latch: (0, 0),
            latched: VecDeque::new(),
            late: None,
        }
    }

    fn log(&mut self, tenant: usize, change: Change) {
        let record = SwitchRecord {
            seq: self.seq,
            at: Moment(self.now),
            pid: tenant as u32,
            context: tenant as u32,
            change,
        };
        self.seq += 1;
        self.records.push(record);
    }

    pub(super) fn works(&self) -> bool {
        let current = self.current.map(|index| &self.tenants[index]);
        self.switching.is_some()
            || self.saving.is_some()
            || current.is_some_and(|tenant| tenant.left > 0)
    }

    pub(super) fn step(&mut self) {
        self.now += STEP;
        let now = self.now;
        for tenant in &mut self.tenants {
            tenant.arrive(now);
            // A program that is making its context works a little and waits a lot.
            let begins = tenant.load.start != NEVER && now < tenant.load.start;
            let starting = begins && now.is_multiple_of(20 * MS);
            if tenant.left > 0 || tenant.off {
                continue;
            }
            if tenant.due == 0 && tenant.load.rings > 0 && now.is_multiple_of(tenant.load.rings) {
                tenant.launches += 1;
            }
            if now >= tenant.next && tenant.due > 0 {
                tenant.due -= 1;
                tenant.launch(tenant.load.kernel);
            } else if (tenant.load.warm.0..tenant.load.warm.1).contains(&now) {
                tenant.launch(WARM_KERNEL);
            } else if starting {
                tenant.launch(100 * US);
            }
        }
        if self.works() {
            self.busy += STEP;
        }
        if !self.change() {
            self.choose();
            self.execute();
        }
        self.end_step();
    }

    /// Goes on with a change of contexts; whether there is one.
    fn change(&mut self) -> bool {
        let now = self.now;
        if let Some(saved) = self.saving {
            if now >= saved {
                self.saving = None;
                if let Some(current) = self.current.take() {
                    self.log(current, Change::Saved);
                }
                self.come();
            }
            return true;
        }
        let Some((next, active, runs)) = self.switching else {
            return false;
        };
        if now == active {
            self.log(next, Change::Active);
        }
        if now >= runs {
            self.switching = None;
            self.tenants[next].midway = false;
            (self.current, self.last) = (Some(next), next);
            self.since = now;
            return false;
        }
        true
    }

    fn execute(&mut self) {
        if self.saving.is_none()
            && let Some(index) = self.current
        {
            let tenant = &mut self.tenants[index];
            if tenant.left > 0 {
                if !std::mem::replace(&mut tenant.begun, true) {
                    tenant.fetch();
                    // Whoever had nothing to do has a whole time slice again.
                    self.since = self.now;
                }
                tenant.left = tenant.left.saturating_sub(STEP);
                tenant.executed += STEP;
                if tenant.left == 0 {
                    (tenant.begun, tenant.fetched) = (false, false);
                    tenant.next = match &mut tenant.pauses {
                        Some(pauses) => pauses.launch(self.now, tenant.load.gap, STEP),
                        None => self.now + tenant.load.gap,
                    };
                    // Who has no more to launch sleeps, and who is not on a processor is as if he did.
                    if tenant.due == 0 || tenant.next - self.now >= HOST_PAUSE_NS {
                        tenant.sleep();
                    }
                    if tenant.next - self.now >= HOST_PAUSE_NS {
                        tenant.paused.push(Span::new(self.now, tenant.next));
                    }
                }
            }
        }
    }

    /// The next who has work.
    fn next(&self) -> Option<usize> {
        let count = self.tenants.len();
        let from = self.last + 1;
        let runnable = |index: &usize| {
            let tenant = &self.tenants[*index];
            tenant.left > 0 && (!tenant.off || tenant.once)
        };
        (0..count)
            .map(|offset| (from + offset) % count)
            .find(runnable)
    }

    /// Another context, if the one on the engine has had its time or nothing to do.
    fn choose(&mut self) {
        let Some(current) = self.current else {
            (self.preempt, self.stop) = (false, false);
            return self.come();
        };
        let works = self.tenants[current].left > 0;
        let another = self.next().is_some_and(|next| next != current);
        let expired = works && self.now - self.since >= TIME_SLICE;
        let gone = self.stop && self.tenants[current].off;
        if gone || (another && (!works || expired)) || (self.preempt && works && expired) {
            self.tenants[current].midway = works;
            let save = if works { EDGES.stopped } else { EDGES.left };
            self.saving = Some(self.now + save.0 / STEP * STEP);
        }
        (self.preempt, self.stop) = (false, false);
    }

    /// Whoever has work takes the empty engine.
    fn come(&mut self) {
        if let Some(next) = self.next() {
            let midway = self.tenants[next].midway;
            let restore = if midway { EDGES.resumed } else { EDGES.came };
            let active = self.now + SWITCH;
            self.tenants[next].once = false;
            self.switching = Some((next, active, active + restore.0.div_ceil(STEP) * STEP));
        }
    }

    fn end_step(&mut self) {
        let bucket = (self.now / BUCKET) as usize;
        for tenant in &mut self.tenants {
            tenant.buckets.resize(bucket + 1, tenant.executed);
            tenant.buckets[bucket] = tenant.executed;
        }
        if self.late.is_some_and(|late| late.to.0 <= self.now) {
            self.latched.extend(self.late.take());
        }
        if self.now % (100 * MS) < STEP {
            let (from, busy) = self.latch;
            let (launches, off) = self.count();
            let busy_ns = (self.busy - busy) as f64 + off;
            self.late = Some(Busy {
                from: Moment(from + self.lag),
                to: Moment(self.now + self.lag),
                busy_ns: Nanos(busy_ns.max(0.0) as u64),
                launches,
            });
            self.latch = (self.now, self.busy);
        }
    }

    /// What was launched since the last latch, our own calls with it, and what the counters call busy beside what executes, in ns; none of it if counters are exact.
    fn count(&mut self) -> (Option<u64>, f64) {
        let Some(random) = &mut self.counts else {
            return (None, 0.0);
        };
        let launched: u64 = self.tenants.iter().map(|tenant| tenant.taken).sum();
        let own = launched - std::mem::replace(&mut self.launched, launched);
        let all = own as f64
            + std::mem::take(&mut self.calls)
            + OWN_INTERVAL.0
            + LAUNCHES_NOISE * pauses::normal(random);
        let busy_ns = own as f64 * H200.launch.0 as f64 + NOISE * pauses::normal(random);
        (Some(all.max(0.0) as u64), busy_ns)
    }

    /// A call of the daemon that counts as so many launches.
    pub(super) fn called(&mut self, launches: f64) {
        self.calls += launches;
    }

    /// Executed by a tenant from the one moment to the other, each rounded down to a step.
    pub(super) fn executed(&self, tenant: usize, from: u64, to: u64) -> u64 {
        let buckets = &self.tenants[tenant].buckets;
        let until = |at: u64| match (at / BUCKET) as usize {
            0 => 0,
            bucket => buckets[bucket - 1],
        };
        until(to) - until(from)
    }
}
