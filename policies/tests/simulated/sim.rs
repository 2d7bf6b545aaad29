//! A small deterministic GPU: one engine, a round-robin dispatcher that holds tenants, a mediator.
//!
//! The mediator decides while the engine is idle although a held tenant has work, and when the
//! policy requests it; always after the reaction time. It also decides at each end of a period, and
//! when work arrives if kernels can be stopped. Usage is from an [`EventMeter`] over the engine's
//! own log.

mod compare;
mod guests;
mod window;

use crate::load::{Guest, Random};
pub(crate) use compare::{Outcome, compare};
use std::collections::{BTreeSet, VecDeque};
use turnstile_accounting::{
    AccountId, Demand, EngineId, EngineState, EventMeter, Meter, Metric, Moment, Nanos,
    Observation, SwitchEvent, TenantId, Window,
};
use turnstile_policies::{
    Basis, Decision, EngineEvent, PeriodUsage, Policy, TenantParams, TenantPeriod, Weight,
};
use window::{BILLION, Shortfall};

const ENGINE: EngineId = EngineId(0);
const SECOND_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Submit(usize),
    /// The engine's command of this number ends.
    Finish(u64),
    /// The context of this number is loaded.
    Switched(u64),
    Decide,
    PeriodEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Engine {
    Idle,
    Switching(usize),
    Running { guest: usize, since: u64 },
}

#[derive(Debug)]
struct Channel {
    guest: Guest,
    /// None while it is away.
    tenant: Option<TenantId>,
    held: bool,
    demand: Demand,
    queued: VecDeque<u64>,
    /// Commands that the guest has or will have: (available from, length).
    future: VecDeque<(u64, u64)>,
    /// Commands in flight, or to be submitted, of the current batch.
    batch: usize,
    kernel: usize,
    pause: usize,
    /// When it last had work after it had none.
    arrived_at: u64,
    arrivals: u64,
    /// Time in which it had work, until its work last ended.
    wanted_ns: u64,
}

/// Parameters of the simulated mediator and engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) period_ns: u64,
    /// From an event until a decision about it.
    pub(crate) reaction_ns: u64,
    /// Time to load another context.
    pub(crate) switch_ns: u64,
    /// Running kernels can be stopped.
    pub(crate) stops: bool,
    pub(crate) seed: u64,
}

#[derive(Debug)]
pub(crate) struct Sim {
    pub(crate) now: u64,
    setup: Setup,
    random: Random,
    channels: Vec<Channel>,
    events: BTreeSet<(u64, Event)>,
    engine: Engine,
    last: usize,
    command: u64,
    length: u64,
    seq: u64,
    next_tenant: u32,
    next_name: u32,
    decides_at: Option<u64>,
    /// The dispatcher has reported that it is idle although held tenants have work.
    noticed: bool,
    meter: EventMeter,
    period_begin: u64,
    /// `[window][guest]` in windows of one second.
    pub(crate) service: Vec<Vec<Nanos>>,
    second: Vec<Nanos>,
    pub(crate) totals: Vec<u64>,
    pub(crate) preemptions: u64,
    /// Decisions that were due, and other events.
    pub(crate) decisions: u64,
    pub(crate) other_events: u64,
    pub(crate) switching_ns: u64,
    /// Idle time that ended without the arrival of the work that was started then, less reactions.
    pub(crate) expired_ns: u64,
    /// Longest time in which the engine was idle although a tenant without a cap had work.
    pub(crate) idle_held_max_ns: u64,
    idle_since: Option<u64>,
    /// Part of the first guest, in billionths, for [`Sim::shortfall_ns`].
    entitled_ppb: i128,
    forgiven_ns: u64,
    shortfall: Shortfall,
}

impl Sim {
    pub(crate) fn new(policy: &mut dyn Policy, guests: &[Guest], setup: Setup) -> Self {
        let mut sim = Self {
            now: 0,
            setup,
            random: Random(setup.seed),
            channels: Vec::new(),
            events: BTreeSet::new(),
            engine: Engine::Idle,
            last: 0,
            command: 0,
            length: 0,
            seq: 0,
            next_tenant: 0,
            next_name: 0,
            decides_at: None,
            noticed: false,
            meter: EventMeter::new([ENGINE]),
            period_begin: 0,
            service: Vec::new(),
            second: vec![Nanos::ZERO; guests.len()],
            totals: vec![0; guests.len()],
            preemptions: 0,
            decisions: 0,
            other_events: 0,
            switching_ns: 0,
            expired_ns: 0,
            idle_held_max_ns: 0,
            idle_since: None,
            entitled_ppb: BILLION / 2,
            forgiven_ns: 0,
            shortfall: Shortfall::default(),
        };
        for (index, guest) in guests.iter().enumerate() {
            let account = AccountId(guest.account.unwrap_or(1_000 + index as u32));
            let weight = Weight::new(guest.account_weight).unwrap();
            policy.set_account(account, TenantParams { weight, cap: None });
            sim.channels.push(Channel {
                guest: guest.clone(),
                tenant: None,
                held: false,
                demand: Demand::Nothing,
                queued: VecDeque::new(),
                future: VecDeque::new(),
                batch: 0,
                kernel: index,
                pause: 0,
                arrived_at: 0,
                arrivals: 0,
                wanted_ns: 0,
            });
            sim.join(policy, index, true);
            sim.fill(index);
        }
        sim.log(policy, EngineState::Idle);
        sim.events.insert((setup.period_ns, Event::PeriodEnd));
        sim
    }

    /// Runs until `end`.
    pub(crate) fn run(&mut self, policy: &mut dyn Policy, end: u64) {
        while let Some(&(at, event)) = self.events.first() {
            if at > end {
                break;
            }
            self.events.pop_first();
            self.now = at;
            self.other_events += u64::from(event != Event::Decide);
            match event {
                Event::Submit(index) => self.submit(policy, index),
                Event::Finish(command) => self.finish(policy, command),
                Event::Switched(command) => self.begin(policy, command),
                Event::Decide => {
                    if self.decides_at == Some(at) {
                        self.decides_at = None;
                        self.decisions += 1;
                        self.decide(policy);
                    }
                }
                Event::PeriodEnd => self.period_end(policy),
            }
            self.dispatch(policy);
        }
        self.now = end;
    }

    /// Service of each guest until now.
    pub(crate) fn served_until_now(&self) -> Vec<u64> {
        let mut totals = self.totals.clone();
        if let Engine::Running { guest, since } = self.engine {
            totals[guest] += self.now - since;
        }
        totals
    }

    fn log(&mut self, policy: &mut dyn Policy, state: EngineState) {
        let event = SwitchEvent {
            at: Moment(self.now),
            engine: ENGINE,
            seq: self.seq,
            state,
        };
        self.seq += 1;
        self.meter.observe(Observation::Switch(event));
        policy.observe(Moment(self.now), EngineEvent::State(state));
    }

    /// Reports the guest's demand to the policy.
    fn update_demand(&mut self, policy: &mut dyn Policy, index: usize) {
        let channel = &mut self.channels[index];
        let runs = matches!(self.engine, Engine::Running { guest, .. } if guest == index);
        let loads = self.engine == Engine::Switching(index);
        let demand = match (loads || !channel.queued.is_empty(), runs) {
            (true, _) => Demand::Queued,
            (false, true) => Demand::Executes,
            (false, false) => Demand::Nothing,
        };
        let Some(tenant) = channel.tenant.filter(|_| channel.demand != demand) else {
            return;
        };
        let before = std::mem::replace(&mut channel.demand, demand);
        if demand == Demand::Nothing {
            channel.wanted_ns += self.now - channel.arrived_at;
        }
        let now = Moment(self.now);
        if before != Demand::Nothing {
            return policy.observe(now, EngineEvent::Demand(tenant, demand));
        }
        (channel.arrived_at, channel.arrivals) = (self.now, channel.arrivals + 1);
        let decision = policy.woke(tenant, now).unwrap();
        channel.held = decision != Decision::Admit;
        if self.setup.stops && self.engine != Engine::Idle {
            self.notice();
        }
    }

    /// Schedules a decision after the reaction time.
    fn notice(&mut self) {
        self.decide_by(self.now + self.setup.reaction_ns);
    }

    fn decide_by(&mut self, at: u64) {
        let at = at.max(self.now);
        if self.decides_at.is_none_or(|then| at < then) {
            self.decides_at = Some(at);
            self.events.insert((at, Event::Decide));
        }
    }

    fn dispatch(&mut self, policy: &mut dyn Policy) {
        if self.engine != Engine::Idle {
            return;
        }
        let n = self.channels.len();
        let ready = |i: &usize| !self.channels[*i].queued.is_empty() && !self.channels[*i].held;
        let next = (1..=n).map(|step| (self.last + step) % n).find(ready);
        let Some(index) = next else {
            let held = |c: &Channel| c.held && !c.queued.is_empty();
            if self.channels.iter().any(held) {
                // One notice when the engine becomes idle, however far off the next decision is.
                if !std::mem::replace(&mut self.noticed, true) || self.decides_at.is_none() {
                    self.notice();
                }
                let uncapped = |c: &Channel| held(c) && c.guest.cap.is_none();
                if self.idle_since.is_none() && self.channels.iter().any(uncapped) {
                    self.idle_since = Some(self.now);
                }
            }
            return;
        };
        self.count_idle(index);
        self.noticed = false;
        self.command += 1;
        self.length = self.channels[index].queued.pop_front().unwrap();
        let switch = if index == self.last {
            0
        } else {
            self.setup.switch_ns
        };
        self.engine = Engine::Switching(index);
        self.last = index;
        self.switching_ns += switch;
        if switch > 0 {
            self.log(policy, EngineState::Switching);
            self.events
                .insert((self.now + switch, Event::Switched(self.command)));
        } else {
            self.begin(policy, self.command);
        }
    }

    fn begin(&mut self, policy: &mut dyn Policy, command: u64) {
        let Engine::Switching(guest) = self.engine else {
            return;
        };
        if command != self.command {
            return;
        }
        let since = self.now;
        self.engine = Engine::Running { guest, since };
        let tenant = self.channels[guest].tenant.unwrap();
        self.log(policy, EngineState::Running(tenant));
        self.update_demand(policy, guest);
        self.events
            .insert((self.now + self.length, Event::Finish(self.command)));
        self.notice_last();
    }

    /// The dispatcher reports that it has nothing more to start although held tenants have work.
    fn notice_last(&mut self) {
        let queued = || self.channels.iter().filter(|c| !c.queued.is_empty());
        if queued().all(|c| c.held) && queued().next().is_some() {
            self.notice();
        }
    }

    fn count_idle(&mut self, started: usize) {
        if let Some(since) = self.idle_since.take() {
            let idle = self.now - since;
            self.idle_held_max_ns = self.idle_held_max_ns.max(idle);
            if self.channels[started].arrived_at < since {
                self.expired_ns += idle.saturating_sub(self.setup.reaction_ns);
            }
        }
    }

    fn finish(&mut self, policy: &mut dyn Policy, command: u64) {
        let Engine::Running {
            guest: index,
            since,
        } = self.engine
        else {
            return;
        };
        if command != self.command {
            return; // it was stopped
        }
        self.served(index, since);
        self.engine = Engine::Idle;
        self.complete(policy, index);
        let any = self
            .channels
            .iter()
            .any(|c| !c.held && !c.queued.is_empty());
        if !any {
            self.log(policy, EngineState::Idle);
        }
        self.update_demand(policy, index);
        if self.channels[index].tenant.is_some() && self.leaves(index) {
            let tenant = self.channels[index].tenant.take().unwrap();
            policy.remove(tenant, Moment(self.now)).unwrap();
        }
    }

    fn decide(&mut self, policy: &mut dyn Policy) {
        let decisions = policy.decide(Moment(self.now)).to_vec();
        for decided in decisions {
            self.apply(policy, decided.tenant, decided.decision);
        }
        self.decided(policy);
    }

    fn decided(&mut self, policy: &mut dyn Policy) {
        if let Some(at) = policy.decide_at() {
            self.decide_by(at.0.max(self.now + 1));
        }
    }

    fn apply(&mut self, policy: &mut dyn Policy, tenant: TenantId, decision: Decision) {
        let find = |c: &Channel| c.tenant == Some(tenant);
        let Some(index) = self.channels.iter().position(find) else {
            return;
        };
        let held = decision != Decision::Admit;
        self.channels[index].held = held;
        if held
            && self.setup.stops
            && let Engine::Running { guest, since } = self.engine
            && guest == index
        {
            let left = self.length - (self.now - since);
            self.served(index, since);
            self.channels[index].queued.push_front(left);
            self.engine = Engine::Idle;
            self.command += 1;
            self.preemptions += 1;
            self.log(policy, EngineState::Idle);
            self.update_demand(policy, index);
            self.decide_by(self.now);
        }
    }

    fn period_end(&mut self, policy: &mut dyn Policy) {
        let window = Window::new(Moment(self.period_begin), Moment(self.now)).unwrap();
        let usage = self.meter.close(window);
        assert_eq!(usage.engines[0].accounted_ns(), window.length(), "law 1");
        assert_eq!(usage.engines[0].unobserved_ns, Nanos::ZERO);
        let mut tenants = Vec::new();
        for (index, channel) in self.channels.iter().enumerate() {
            let Some(tenant) = channel.tenant else {
                continue;
            };
            let used_ns = usage.tenant_ns(tenant, Metric::Total);
            tenants.push(TenantPeriod {
                tenant,
                used_ns,
                charged_ns: used_ns,
                admitted: !channel.held,
                backlogged: channel.demand != Demand::Nothing,
            });
            self.second[index] += used_ns;
        }
        if self.now.is_multiple_of(SECOND_NS) {
            self.service.push(self.second.clone());
            self.second.fill(Nanos::ZERO);
        }
        let period = PeriodUsage {
            end: Moment(self.now),
            basis: Basis::Measured,
            poll_ns: window.length(),
            nonpoll_ns: Nanos::ZERO,
            tenants: &tenants,
        };
        let decisions = policy.period_end(&period).to_vec();
        for decided in decisions {
            self.apply(policy, decided.tenant, decided.decision);
        }
        self.decided(policy);
        self.period_begin = self.now;
        self.events
            .insert((self.now + self.setup.period_ns, Event::PeriodEnd));
    }
}
