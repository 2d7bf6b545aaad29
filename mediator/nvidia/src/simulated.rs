//! The whole loop without a GPU: a simulated engine writes the log, latches counters and shows a status; production code
//! watches it, accounts, decides, and its suspensions take effect as late as the hardware's.

mod age;
mod alone;
mod beside;
mod bursty;
mod engine;
mod eyes;
mod fours;
mod pauses;
mod restless;
mod rests;
mod together;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use turnstile_accounting::{
    AccountId, EventMeter, Meter, Metric, Moment, Nanos, Observation, TenantId, Window,
};
use turnstile_policies::{Membership, TenantParams, Tuning, Weight, policy_by_name};
use turnstile_vmm::gate::GateState;

use super::device::{ALONE, FIRST_SLICE, PERIOD, QUIET, TICK};
use super::hosts::{COMING_LOOKS, COMING_PAUSE, Listens};
use super::launches::OWN_HANDOVER;
use super::look::{self, Eyes};
use super::watch::heard::TOLD;
use super::watch::{SETTLED, Watch};
use engine::{Engine, Load, STEP, Tenant};
use turnstile_figures::entitlement::entitlement;
use turnstile_figures::matrix::{self, Length, Pattern};
use turnstile_figures::windows::{is_unpaused, worst_of};
use turnstile_mediation::{Activity, COMPUTE, Mediation};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
/// Counters are so much older than their time stamps, in one run after the other. SOURCE: measured: 7.5, 10, 26, 64, 67, 91 ms.
const LAGS: [u64; 6] = [17 * MS, 64 * MS, 7 * MS, 91 * MS, 26 * MS, 10 * MS];
/// A call that suspends, takes off the schedule or resumes, and when that takes effect. SOURCE: measured on an H200: 370 us and
/// 330 us in handovers, with 300 and 280 until the engine does it.
const CALL: u64 = 370 * US;
const TAKES: u64 = 290 * US;
/// The driver moves records of the log to its ring by itself so often. SOURCE: `fecs_event_list.c`.
const MOVED: u64 = 33 * MS;
/// As the device's.
const ARRIVAL: u64 = 2 * MS;

/// What a run found.
#[derive(Debug)]
struct Found {
    engine: Engine,
    charged: Vec<u64>,
    /// What was charged in all at the end of each period.
    charges: Vec<Vec<(u64, u64)>>,
    /// Time in suspending and resuming calls.
    calls: u64,
    /// Readings of the status register in each second.
    readings: Vec<u64>,
    /// Readings of the log.
    reads: u64,
    /// Periods closed.
    periods: u64,
    /// Times that who accounts woke.
    wakes: u64,
}

impl Found {
    /// Largest difference in points from what the fluid server gives of what the engine gave, over windows of a second from the one whole second to the other.
    fn worst(&self, from: u64, to: u64) -> f64 {
        self.worst_ms(from * 1_000, to * 1_000)
    }

    /// The same, in milliseconds.
    fn worst_ms(&self, from: u64, to: u64) -> f64 {
        self.worst_where(from, to, |_| true).unwrap()
    }

    /// The same where no host paused, then or in the second before; none if there is no such window.
    fn worst_unpaused_ms(&self, from: u64, to: u64) -> Option<f64> {
        let tenants = &self.engine.tenants;
        let counts = |at| tenants.iter().all(|tenant| is_unpaused(&tenant.paused, at));
        self.worst_where(from, to, counts)
    }

    /// The same of windows that count, by when they begin.
    fn worst_where(&self, from: u64, to: u64, counts: impl Fn(u64) -> bool) -> Option<f64> {
        let tenant = |tenant: &Tenant| matrix::Tenant {
            weight: tenant.load.weight,
            kernel: Length::Us(tenant.load.kernel / US),
            pattern: match tenant.load.bursts {
                Some(_) => Pattern::Bursty,
                None => Pattern::Busy,
            },
            seed: tenant.load.bursts.unwrap_or_default(),
        };
        let tenants: Vec<matrix::Tenant> = self.engine.tenants.iter().map(tenant).collect();
        let start = self.engine.tenants[0].load.start;
        let slice = 10 * MS;
        let executed = |tenant: usize| -> Vec<u64> {
            let starts = (start..to * MS).step_by(slice as usize);
            starts
                .map(|at| self.engine.executed(tenant, at, at + slice))
                .collect()
        };
        let executed: Vec<Vec<u64>> = (0..tenants.len()).map(executed).collect();
        let slices: Vec<&[u64]> = executed.iter().map(Vec::as_slice).collect();
        let due = entitlement(&tenants, slice, &slices, &slices).unwrap();
        let first = ((from * MS - start) / slice) as usize;
        let counts = |bucket: usize| counts(start + bucket as u64 * slice);
        Some(worst_of(&executed, &due, 100, first, 1, counts)?.points)
    }

    fn useful_percent(&self, from: u64, to: u64) -> f64 {
        let all: u64 = (0..self.engine.tenants.len())
            .map(|tenant| self.engine.executed(tenant, from * SECOND, to * SECOND))
            .sum();
        all as f64 / ((to - from) * SECOND) as f64 * 100.0
    }

    /// Charged less executed, of what was executed, from the one whole second to the other.
    fn charged_within_percent(&self, tenant: usize, from: u64, to: u64) -> f64 {
        self.charged_within_percent_ms(tenant, from * 1_000, to * 1_000)
    }

    /// The same, in milliseconds.
    fn charged_within_percent_ms(&self, tenant: usize, from: u64, to: u64) -> f64 {
        // Periods end when they end: what was executed is counted from the one end to the other.
        let until = |ms: u64| {
            let periods = self.charges[tenant].iter();
            let before = periods.take_while(|(at, _)| *at <= ms * MS);
            before.last().copied().unwrap_or_default()
        };
        let ((from, before), (to, after)) = (until(from), until(to));
        let executed = self.engine.executed(tenant, from, to);
        ((after - before) as f64 / executed as f64 - 1.0) * 100.0
    }

    /// The same over the whole run.
    fn charge_error_percent(&self, tenant: usize) -> f64 {
        let executed = self.engine.tenants[tenant].executed as f64;
        (self.charged[tenant] as f64 - executed) / executed * 100.0
    }
}

/// A call under way, or waiting.
#[derive(Clone, Copy, Debug)]
struct Move {
    tenant: usize,
    what: What,
    takes_effect: u64,
    done: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Suspend,
    Unschedule,
    Release,
    /// Until the engine has gone over to somebody else.
    SeeOff,
}

/// The daemon over the simulated engine.
struct Daemon {
    engine: Engine,
    watch: Watch,
    mediation: Mediation,
    meter: EventMeter,
    held: BTreeSet<TenantId>,
    /// Holds last: as the holding thread does.
    wanted: Vec<(usize, bool)>,
    moves: VecDeque<Move>,
    charged: Vec<u64>,
    calls: u64,
    /// Readings of the status register in each second.
    readings: Vec<u64>,
    /// When the log was last read.
    read_at: Moment,
    /// Readings of it.
    reads: u64,
    /// The GPU's registers are mapped.
    mapped: bool,
    /// When it is told how old the counters are, if it is.
    age_at: Option<u64>,
    /// Channels' own words can be read.
    words: bool,
    /// Whose channel shows less than he launches.
    liar: Option<TenantId>,
    /// Two were seen on the engine until then, and a little longer.
    shared_until: Moment,
    /// Periods closed.
    periods: u64,
    /// Times that who accounts woke.
    wakes: u64,
    /// Records of the log that the driver has moved to its ring by itself.
    shown: usize,
    /// Hosts tell when tenants ring and sleep: what is listened for.
    hears: bool,
    listens: BTreeMap<TenantId, (Listens, u64)>,
}

/// As `daemon::accounting::Slept`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slept {
    Over,
    Decide,
    LetIn,
}

const fn id(tenant: usize) -> TenantId {
    TenantId(tenant as u32 + 1)
}

impl Daemon {
    fn new(loads: &[Load], policy: &str) -> Self {
        let tuning = Tuning {
            first_slice_ns: FIRST_SLICE,
            ..Tuning::default()
        };
        let mut watch = Watch::new(true);
        let policy = (policy_by_name(policy).unwrap().make)(&tuning);
        let mut mediation = Mediation::new(policy, [COMPUTE]);
        for (tenant, load) in loads.iter().enumerate() {
            watch.add(id(tenant), tenant as u32, Moment(0));
            let weight = Weight::new(load.weight).unwrap();
            let params = TenantParams { weight, cap: None };
            let vm = Membership {
                account: AccountId(0),
                name: "vm",
            };
            mediation.add(id(tenant), vm, params, Moment(0)).unwrap();
        }
        Self {
            engine: Engine::new(loads),
            watch,
            mediation,
            meter: EventMeter::new([COMPUTE]),
            held: BTreeSet::new(),
            wanted: Vec::new(),
            moves: VecDeque::new(),
            charged: vec![0; loads.len()],
            calls: 0,
            readings: Vec::new(),
            read_at: Moment(0),
            reads: 0,
            mapped: true,
            age_at: None,
            words: false,
            liar: None,
            shared_until: Moment(0),
            periods: 0,
            wakes: 0,
            shown: 0,
            hears: true,
            listens: BTreeMap::new(),
        }
    }

    /// One step of the engine and of the holding thread.
    fn step(&mut self) {
        self.engine.step();
        let now = self.engine.now;
        if now % (100 * MS) < STEP {
            self.latched();
        }
        if now % MOVED < STEP {
            self.shown = self.engine.records.len();
        }
        if self.age_at.is_some_and(|at| at <= now) {
            self.age_at = None;
            self.watch.measured(Nanos(self.engine.lag));
        }
        if let Some(this) = self.moves.front().copied() {
            if now == this.takes_effect && this.what != What::SeeOff {
                let waits = self.engine.current != Some(this.tenant);
                let tenant = &mut self.engine.tenants[this.tenant];
                tenant.off = this.what != What::Release;
                tenant.once = this.what == What::Unschedule && waits && tenant.left > 0;
                self.engine.preempt = this.what != What::Unschedule;
                self.engine.stop = this.what == What::Suspend;
            }
            let seen_off = this.what == What::SeeOff && self.engine.current != Some(this.tenant);
            if now >= this.done || seen_off {
                self.moves.pop_front();
                match this.what {
                    What::Release => {
                        self.held.remove(&id(this.tenant));
                        self.watch.released(id(this.tenant), Moment(now));
                    }
                    What::SeeOff => {
                        self.read_log();
                        if !seen_off {
                            self.engine.stop = true;
                            self.watch.suspended(id(this.tenant));
                        }
                    }
                    What::Suspend | What::Unschedule => {
                        self.held.insert(id(this.tenant));
                        if this.what == What::Suspend {
                            self.watch.suspended(id(this.tenant));
                        }
                    }
                }
                self.begin();
            }
        }
        if self.moves.is_empty() && !self.wanted.is_empty() {
            self.gather();
            self.begin();
        }
    }

    /// As `Shared::latched`.
    fn latched(&mut self) {
        if self.charged.len() > 2 && self.words {
            for tenant in (0..self.charged.len()).map(id) {
                let (channel, now) = (self.channel(tenant), self.now());
                self.watch.latches.read(tenant, &channel, now);
            }
        } else if !self.held.is_empty() {
            look::at_latch(self);
        }
    }

    /// As `Shared::move_gates`.
    fn gather(&mut self) {
        let held = |tenant: usize| self.held.contains(&id(tenant));
        let mut wanted = std::mem::take(&mut self.wanted);
        // Also where somebody is let in who is not held.
        let handover = wanted.iter().any(|(_, hold)| !*hold);
        wanted.retain(|(tenant, hold)| *hold != held(*tenant));
        wanted.sort_by_key(|(_, hold)| !*hold);
        let call = |tenant, what| Move {
            tenant,
            what,
            takes_effect: 0,
            done: 0,
        };
        for (tenant, hold) in &wanted {
            self.moves.push_back(match (*hold, handover) {
                (true, true) => call(*tenant, What::Unschedule),
                (true, false) => call(*tenant, What::Suspend),
                (false, _) => call(*tenant, What::Release),
            });
        }
        if handover {
            self.engine.called(OWN_HANDOVER);
            let off = wanted.iter().filter(|(_, hold)| *hold);
            self.moves
                .extend(off.map(|(tenant, _)| call(*tenant, What::SeeOff)));
        }
    }

    /// The call that is next begins.
    fn begin(&mut self) {
        let now = self.engine.now;
        if let Some(this) = self.moves.front_mut() {
            this.takes_effect = now + TAKES;
            this.done = now
                + if this.what == What::SeeOff {
                    ARRIVAL
                } else {
                    self.calls += CALL;
                    CALL
                };
            if matches!(this.what, What::Suspend | What::Unschedule) {
                self.watch.held(id(this.tenant), Moment(now));
            }
        }
    }

    /// As `NvidiaGpu::look_again`, but that who asks there while somebody is held or released is woken when that is done.
    fn look_again(&self) -> Option<Nanos> {
        let held = |tenant: TenantId| self.held.contains(&tenant);
        if self.is_moving() {
            let to_be_held: Vec<TenantId> = self.mediation.held().collect();
            let tell = self
                .watch
                .all_tell(self.now(), |tenant| to_be_held.contains(&tenant));
            return Some(if tell { TOLD } else { TICK });
        }
        self.watch.look_within(self.now(), TICK, held)
    }

    fn pending(&self, tenant: usize) -> bool {
        self.watch.demand.wants(id(tenant), self.now())
    }

    fn order(&mut self, tenant: TenantId, state: GateState) {
        let hold = state == GateState::Closed;
        let index = tenant.0 as usize - 1;
        self.wanted.retain(|(other, _)| *other != index);
        self.wanted.push((index, hold));
    }

    /// As `Host::ran_dry`.
    fn ran_dry(&mut self) -> bool {
        for tenant in 0..self.charged.len() {
            if self.pending(tenant) {
                if self.mediation.admitted(id(tenant)) {
                    return false;
                }
                self.mediation.queued(id(tenant));
            }
        }
        if self.mediation.anyone_waits()
            && let Some(order) = self.mediation.ran_dry(self.now())
        {
            self.order(order.tenant, order.state);
            return true;
        }
        false
    }

    /// Prints what is believed of each tenant beside what it did since the last time.
    fn show(&self, shown: &mut [(u64, u64)]) {
        for (index, (executed, charged)) in shown.iter_mut().enumerate() {
            let tenant = &self.engine.tenants[index];
            println!(
                "{:5.2} s: {} of {} us: executed {:6.1} ms, charged {:6.1}, idle {:.4}",
                self.engine.now as f64 / SECOND as f64,
                id(index),
                tenant.load.kernel / US,
                (tenant.executed - *executed) as f64 / 1e6,
                (self.charged[index] - *charged) as f64 / 1e6,
                self.watch.idle_fraction(id(index)),
            );
            (*executed, *charged) = (tenant.executed, self.charged[index]);
        }
    }

    /// As the accounting thread does.
    fn sleep_until(&mut self, mut end: Moment) -> Slept {
        let mut slept = Slept::Over;
        while self.now() < end {
            let held = self.mediation.held().next().is_some();
            let look = if held { self.look_again() } else { None };
            let until = look.map_or(end, |look| end.min(self.now() + look));
            if let Some(within) = self.nap(until) {
                end = end.min(self.now() + within);
                slept = Slept::Decide;
            }
            self.wakes += 1;
            let doubt = held && self.look_again().is_some();
            if doubt && look::is_dry(self) && self.ran_dry() {
                return if self.mediation.decides_when_dry() {
                    Slept::Decide
                } else {
                    Slept::LetIn
                };
            }
        }
        slept
    }

    /// As `NvidiaGpu::nap`.
    fn nap(&mut self, until: Moment) -> Option<Nanos> {
        if self.hears {
            let held = self.held.clone();
            let now = self.now();
            for (tenant, listens) in self.watch.listens(now, |tenant| held.contains(&tenant)) {
                let told = self.engine.tenants[tenant.0 as usize - 1].told(listens);
                self.listens.insert(tenant, (listens, told));
            }
        }
        let mut moves = self.is_moving() && until.since(self.now()) > TICK;
        let mut looks = 0;
        while self.now() < until {
            self.step();
            // As `HoldOwner::moved`.
            if moves && !self.is_moving() {
                let now = self.now();
                if let Some(there) = self.on_engine() {
                    self.watch.hosts.came(there, now);
                }
                if self.watch.hosts.is_anyone_presumed() && looks < COMING_LOOKS {
                    looks += 1;
                    self.pause(COMING_PAUSE);
                    continue;
                }
                moves = false;
                let held = |tenant: TenantId| self.held.contains(&tenant);
                let within = self.watch.look_within(self.now(), TICK, held);
                let looks = self.hears && !self.held.is_empty();
                if looks && within.is_some_and(|within| within < TOLD) {
                    return None;
                }
            }
            let tenants = &self.engine.tenants;
            let heard = self.listens.iter().find(|(tenant, (listens, told))| {
                tenants[tenant.0 as usize - 1].told(*listens) != *told
            });
            if let Some((&tenant, &(what, _))) = heard {
                self.listens.remove(&tenant);
                look::look_up(self);
                return self.watch.heard(tenant, what, self.now());
            }
        }
        None
    }

    fn may_doze(&self) -> bool {
        self.mediation.held().next().is_none()
    }

    fn period(&self, now: Moment) -> Nanos {
        if !self.may_doze() {
            return PERIOD;
        }
        if now > self.shared_until {
            return ALONE;
        }
        self.watch.rests_on(self.now(), ALONE, QUIET).max(PERIOD)
    }

    /// The same, for a whole period.
    fn sleep(&mut self, mut from: Moment) {
        loop {
            let decide_at = self.mediation.decide_at();
            let end = decide_at.unwrap_or_else(|| from + self.period(from));
            let slept = match self.sleep_until(end + SETTLED) {
                Slept::Over if decide_at.is_none() => self.doze(from + SETTLED),
                slept => slept,
            };
            if slept != Slept::LetIn {
                return;
            }
            if self.watch.another_may_stop(self.now()) {
                self.read_events();
            }
            from = Moment(self.now().0.saturating_sub(SETTLED.0));
        }
    }

    fn doze(&mut self, from: Moment) -> Slept {
        let until = from + QUIET;
        let mut end = self.now();
        while end < until && self.may_doze() && !self.has_events() {
            end = until.min(end + self.period(end));
            let slept = self.sleep_until(end);
            if slept != Slept::Over {
                return slept;
            }
        }
        Slept::Over
    }

    /// As `NvidiaGpu::has_events`.
    fn has_events(&mut self) -> bool {
        self.read_shown();
        look::may_decide(self)
    }

    /// As `NvidiaGpu::read_events`, and `Accounting::read_log`.
    fn read_events(&mut self) {
        let now = self.now();
        look::glance(self, Self::read);
        let mut events = Vec::new();
        self.watch.take(now, &mut events);
        for busy in self.engine.latched.drain(..) {
            self.watch.counted(busy);
        }
        for event in events {
            self.meter.observe(Observation::Switch(event));
        }
    }

    fn run(mut self, seconds: u64) -> Found {
        if self.mapped {
            self.watch.registers_are_mapped();
        }
        let final_now = |daemon: &Self| Moment(daemon.now().0.saturating_sub(SETTLED.0));
        let mut from = final_now(&self);
        let mut shown = vec![(0, 0); self.charged.len()];
        let mut shown_at = 0;
        let mut charges = vec![Vec::new(); self.charged.len()];
        while self.engine.now < seconds * SECOND {
            if self.engine.now / (SECOND / 2) != shown_at {
                shown_at = self.engine.now / (SECOND / 2);
                self.show(&mut shown);
            }
            self.sleep(from);
            self.periods += 1;
            let to = final_now(&self).max(from);
            self.read_events();
            let usage = self.meter.close(Window::starting(from, to.since(from)));
            let used = |tenant: &usize| usage.tenant_ns(id(*tenant), Metric::Total).0 > 0;
            if (0..self.charged.len()).filter(used).count() > 1 {
                self.shared_until = to + Nanos::from_ms(1_000);
            }
            from = to;
            let activity: Vec<Activity> = (0..self.charged.len())
                .map(|tenant| Activity {
                    tenant: id(tenant),
                    pending: self.pending(tenant).into(),
                    last_active: None,
                    overcharged_ns: self.watch.overcharged_ns(id(tenant)),
                })
                .collect();
            for (tenant, charged) in self.charged.iter_mut().enumerate() {
                *charged += usage.tenant_ns(id(tenant), Metric::Total).0;
                charges[tenant].push((to.0, *charged));
            }
            let orders = self
                .mediation
                .period_end(None, usage, &activity)
                .unwrap()
                .to_vec();
            for order in orders {
                self.order(order.tenant, order.state);
            }
        }
        Found {
            engine: self.engine,
            charged: self.charged,
            charges,
            calls: self.calls,
            readings: self.readings,
            reads: self.reads,
            periods: self.periods,
            wakes: self.wakes,
        }
    }
}

fn run(loads: &[Load], policy: &str, seconds: u64) -> Found {
    Daemon::new(loads, policy).run(seconds)
}

#[test]
fn the_simulated_engine_is_as_unfair_as_the_real_one() {
    let found = run(&[Load::busy(100, 2_000), Load::busy(100, 200)], "none", 4);
    let share =
        |tenant| found.engine.executed(tenant, SECOND, 4 * SECOND) as f64 / (3.0 * SECOND as f64);
    // SOURCE: measured: 80.9 and 8.1 % by the kernels' own time stamps.
    assert!((share(0) - 0.81).abs() < 0.05, "{}", share(0));
    assert!((share(1) - 0.08).abs() < 0.03, "{}", share(1));
}

#[test]
fn busy_tenants_receive_their_weights_in_every_second() {
    let cases = [
        (vec![Load::busy(100, 2_000), Load::busy(100, 200)], 0.5),
        (vec![Load::busy(100, 200), Load::busy(300, 2_000)], 0.5),
        (vec![Load::busy(300, 200), Load::busy(100, 2_000)], 0.5),
        (vec![Load::busy(900, 200), Load::busy(100, 50_000)], 0.5),
        (vec![Load::busy(100, 50), Load::busy(100, 2_000)], 0.5),
        (
            vec![
                Load::busy(100, 50),
                Load::busy(100, 200),
                Load::busy(100, 2_000),
                Load::busy(100, 50_000),
            ],
            0.5,
        ),
    ];
    for ((loads, bound), lag) in cases.into_iter().zip(LAGS) {
        let mut daemon = Daemon::new(&loads, "slices");
        daemon.engine.lag = lag;
        let found = daemon.run(8);
        let worst = found.worst(2, 8);
        let charges: Vec<f64> = (0..loads.len())
            .map(|tenant| found.charge_error_percent(tenant))
            .collect();
        println!(
            "{:?}: worst {worst:.2} points, useful {:.1} %, calls {:.1} %, charged {charges:.2?} %, readings {:?}",
            loads
                .iter()
                .map(|l| (l.weight, l.kernel / US))
                .collect::<Vec<_>>(),
            found.useful_percent(2, 8),
            found.calls as f64 / (8 * SECOND) as f64 * 100.0,
            found.readings,
        );
        assert!(worst <= bound, "{loads:?}: {worst}");
        // Nobody pauses: that is looked for in the first second alone, more and more seldom.
        let (first, later) = (found.readings[0], &found.readings[1..]);
        assert!(first <= 100 * loads.len() as u64, "{first} readings");
        assert!(later.iter().sum::<u64>() <= 60, "{later:?}");
    }
}
