//! A small deterministic GPU: non-preemptive commands, round-robin over channels, gates, periods.
//!
//! One engine, one channel per tenant. Closed-loop tenants keep `depth` commands submitted and replace
//! each as it ends; open-loop ones submit at given moments. A submission at a closed gate waits behind
//! it; what is in the channel already drains. Usage comes from an [`EventMeter`] over the engine's own
//! log, so the meter is tested along with the policy.

use crate::load::{Guest, Load, Random};
use std::collections::{BTreeSet, VecDeque};
use turnstile_accounting::gps::{Arrival, FluidTenant, fluid_service};
use turnstile_accounting::share::max_share_error_points;
use turnstile_accounting::{
    EngineId, EngineState, EventMeter, Meter, Metric, Moment, Nanos, Observation, SwitchEvent,
    TenantId, Window,
};
use turnstile_policies::{
    Basis, Cap, Decision, PeriodUsage, Policy, TenantParams, TenantPeriod, Weight,
};

const ENGINE: EngineId = EngineId(0);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Finish,
    Submit(usize),
    Dry(u64),
    PeriodEnd,
}

#[derive(Debug)]
struct Channel {
    guest: Guest,
    open: bool,
    held: bool,
    behind_gate: VecDeque<u64>,
    queued: VecDeque<u64>,
    admitted_in_period: bool,
    /// Commands that the guest's program has or will have: (from when on, length).
    future: VecDeque<(u64, u64)>,
}

/// How the simulated mediator works.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) period_ns: u64,
    /// How long a dry engine waits for the mediator; `None`: until the next decision.
    pub(crate) dry_ns: Option<u64>,
    /// Time to load another context.
    pub(crate) switch_ns: u64,
    pub(crate) seed: u64,
}

#[derive(Debug)]
pub(crate) struct Sim {
    pub(crate) now: u64,
    setup: Setup,
    random: Random,
    channels: Vec<Channel>,
    events: BTreeSet<(u64, Event)>,
    running: Option<usize>,
    last: usize,
    idle_epoch: u64,
    seq: u64,
    meter: EventMeter,
    period_begin: u64,
    /// `[window][tenant]` in windows of one second.
    pub(crate) service: Vec<Vec<Nanos>>,
    second: Vec<Nanos>,
    pub(crate) totals: Vec<u64>,
    pub(crate) gate_changes: u64,
    /// Longest stretch in which the engine was idle although somebody had work and no cap.
    pub(crate) idle_held_max_ns: u64,
    idle_since: Option<u64>,
}

impl Sim {
    pub(crate) fn new(policy: &mut dyn Policy, guests: &[Guest], setup: Setup) -> Self {
        let mut sim = Self {
            now: 0,
            setup,
            random: Random(setup.seed),
            channels: Vec::new(),
            events: BTreeSet::new(),
            running: None,
            last: 0,
            idle_epoch: 0,
            seq: 0,
            meter: EventMeter::new([ENGINE]),
            period_begin: 0,
            service: Vec::new(),
            second: vec![Nanos::ZERO; guests.len()],
            totals: vec![0; guests.len()],
            gate_changes: 0,
            idle_held_max_ns: 0,
            idle_since: Some(0),
        };
        sim.log(EngineState::Idle);
        for (index, guest) in guests.iter().enumerate() {
            let cap = guest
                .cap
                .map(|(quota, period)| Cap::new(Nanos(quota), Nanos(period)).unwrap());
            let params = TenantParams {
                weight: Weight::new(guest.weight).unwrap(),
                cap,
            };
            policy.add(TenantId(index as u32), params).unwrap();
            let mut future = VecDeque::new();
            match &guest.load {
                Load::Open { work, .. } => future.extend(work),
                Load::Closed {
                    depth, command_ns, ..
                } => {
                    for _ in 0..*depth {
                        future.push_back((0, sim.random.within(command_ns.0, command_ns.1)));
                    }
                }
            }
            if let Some(first) = future.front() {
                sim.events.insert((first.0, Event::Submit(index)));
            }
            sim.channels.push(Channel {
                guest: guest.clone(),
                open: false,
                held: false,
                behind_gate: VecDeque::new(),
                queued: VecDeque::new(),
                admitted_in_period: false,
                future,
            });
        }
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
            match event {
                Event::Finish => self.finish(policy),
                Event::Submit(index) => self.submit(policy, index),
                Event::Dry(epoch) => self.dry(policy, epoch),
                Event::PeriodEnd => self.period_end(policy),
            }
            self.dispatch();
        }
    }

    fn log(&mut self, state: EngineState) {
        let event = SwitchEvent {
            at: Moment(self.now),
            engine: ENGINE,
            seq: self.seq,
            state,
        };
        self.seq += 1;
        self.meter.observe(Observation::Switch(event));
    }

    fn submit(&mut self, policy: &mut dyn Policy, index: usize) {
        while let Some(&(at, length)) = self.channels[index].future.front() {
            if self.full(index) {
                break; // resumed by the end of a command
            }
            if at > self.now {
                self.events.insert((at, Event::Submit(index)));
                break;
            }
            self.channels[index].future.pop_front();
            self.channels[index].behind_gate.push_back(length);
        }
        // Both a watched and a closed gate trap.
        if !self.channels[index].open && !self.channels[index].behind_gate.is_empty() {
            let decision = policy
                .woke(TenantId(index as u32), Moment(self.now))
                .unwrap();
            self.apply(index, decision);
            if self.running.is_none() && !self.channels[index].open {
                self.wait_for_mediator();
            }
        }
        self.deliver(index);
    }

    /// The guest keeps as many commands submitted as it ever does.
    fn full(&self, index: usize) -> bool {
        let channel = &self.channels[index];
        let submitted = channel.queued.len() + channel.behind_gate.len();
        match channel.guest.load {
            Load::Open { depth, .. } => {
                submitted + usize::from(self.running == Some(index)) >= depth
            }
            Load::Closed { .. } => false,
        }
    }

    fn apply(&mut self, index: usize, decision: Decision) {
        let channel = &mut self.channels[index];
        let open = decision == Decision::Admit;
        self.gate_changes += u64::from(channel.open != open);
        channel.open = open;
        channel.held = !open;
        channel.admitted_in_period |= open;
        self.deliver(index);
    }

    fn deliver(&mut self, index: usize) {
        let channel = &mut self.channels[index];
        if channel.open {
            channel.queued.append(&mut channel.behind_gate);
        }
    }

    fn dispatch(&mut self) {
        if self.running.is_some() {
            return;
        }
        let n = self.channels.len();
        let next = (1..=n)
            .map(|step| (self.last + step) % n)
            .find(|&i| !self.channels[i].queued.is_empty());
        let wanted = self
            .channels
            .iter()
            .any(|c| c.held && c.guest.cap.is_none() && !c.behind_gate.is_empty());
        match next {
            Some(index) => {
                self.count_idle();
                let length = self.channels[index].queued.pop_front().unwrap();
                let switch = if index == self.last {
                    0
                } else {
                    self.setup.switch_ns
                };
                if switch > 0 {
                    self.log(EngineState::Switching);
                }
                let begin = self.now + switch;
                let event = SwitchEvent {
                    at: Moment(begin),
                    engine: ENGINE,
                    seq: self.seq,
                    state: EngineState::Running(TenantId(index as u32)),
                };
                self.seq += 1;
                self.meter.observe(Observation::Switch(event));
                self.running = Some(index);
                self.last = index;
                self.idle_epoch += 1;
                self.events.insert((begin + length, Event::Finish));
            }
            None if wanted && self.idle_since.is_none() => self.idle_since = Some(self.now),
            None => {}
        }
    }

    fn count_idle(&mut self) {
        if let Some(since) = self.idle_since.take() {
            let idle = self.now - since;
            self.idle_held_max_ns = self.idle_held_max_ns.max(idle);
        }
    }

    fn finish(&mut self, policy: &mut dyn Policy) {
        let index = self.running.take().expect("a command ran");
        if let Load::Open { .. } = self.channels[index].guest.load {
            self.submit(policy, index);
        }
        if let Load::Closed {
            command_ns,
            think_ns,
            ..
        } = self.channels[index].guest.load
        {
            let length = self.random.within(command_ns.0, command_ns.1);
            if think_ns == 0 {
                self.channels[index].behind_gate.push_back(length);
                self.deliver(index);
            } else {
                self.channels[index]
                    .future
                    .push_back((self.now + think_ns, length));
                self.events
                    .insert((self.now + think_ns, Event::Submit(index)));
            }
        }
        if self.channels.iter().all(|c| c.queued.is_empty()) {
            self.log(EngineState::Idle);
            self.wait_for_mediator();
        }
    }

    /// The mediator notices a dry engine after its reaction time.
    fn wait_for_mediator(&mut self) {
        if let Some(after) = self.setup.dry_ns {
            self.events
                .insert((self.now + after, Event::Dry(self.idle_epoch)));
        }
    }

    fn dry(&mut self, policy: &mut dyn Policy, epoch: u64) {
        if self.running.is_some() || epoch != self.idle_epoch {
            return;
        }
        let held = self
            .channels
            .iter()
            .enumerate()
            .filter(|(_, c)| c.held && !c.behind_gate.is_empty());
        let waiting: Vec<_> = held.map(|(index, _)| TenantId(index as u32)).collect();
        if let Some(tenant) = policy.ran_dry(&waiting, Moment(self.now)) {
            self.apply(tenant.0 as usize, Decision::Admit);
        }
    }

    fn period_end(&mut self, policy: &mut dyn Policy) {
        let window = Window::new(Moment(self.period_begin), Moment(self.now)).unwrap();
        let usage = self.meter.close(window);
        assert_eq!(usage.engines[0].accounted_ns(), window.length(), "law 1");
        assert_eq!(usage.engines[0].unobserved_ns, Nanos::ZERO);
        let tenants: Vec<_> = self
            .channels
            .iter()
            .enumerate()
            .map(|(index, channel)| TenantPeriod {
                tenant: TenantId(index as u32),
                used_ns: usage.tenant_ns(TenantId(index as u32), Metric::Total),
                admitted: channel.admitted_in_period,
                backlogged: self.running == Some(index)
                    || !channel.queued.is_empty()
                    || !channel.behind_gate.is_empty(),
                overcharged_ns: 0,
            })
            .collect();
        for (index, tenant) in tenants.iter().enumerate() {
            self.second[index] += tenant.used_ns;
            self.totals[index] += tenant.used_ns.0;
        }
        if self.now.is_multiple_of(1_000_000_000) {
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
        assert_eq!(
            decisions.len(),
            self.channels.len(),
            "one decision for every tenant"
        );
        for (index, decided) in decisions.iter().enumerate() {
            self.channels[index].admitted_in_period = false;
            let wants = tenants[index].backlogged;
            if decided.decision == Decision::Admit && !wants {
                // Watched: the next doorbell traps and asks.
                self.channels[index].open = false;
                self.channels[index].held = false;
            } else {
                self.apply(index, decided.decision);
            }
        }
        if self.running.is_none() {
            self.wait_for_mediator();
        }
        self.period_begin = self.now;
        self.events
            .insert((self.now + self.setup.period_ns, Event::PeriodEnd));
    }
}

/// What came of a run.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// Worst share error in percentage points of each one-second window, the first included.
    pub(crate) errors: Vec<f64>,
    /// The same of absolute service, as points of the window: idle time counts too.
    pub(crate) service_errors: Vec<f64>,
    pub(crate) totals: Vec<u64>,
    pub(crate) gate_changes: u64,
    pub(crate) idle_held_max_ns: u64,
}

impl Outcome {
    /// The worst of all windows after the first.
    pub(crate) fn worst(&self) -> f64 {
        self.errors[1..].iter().copied().fold(0.0, f64::max)
    }

    pub(crate) fn worst_service(&self) -> f64 {
        self.service_errors[1..].iter().copied().fold(0.0, f64::max)
    }
}

/// Runs `guests` under `policy` for `seconds` and compares with the fluid server.
pub(crate) fn compare(
    policy: &mut dyn Policy,
    guests: &[Guest],
    setup: Setup,
    seconds: u64,
) -> Outcome {
    let end = seconds * 1_000_000_000;
    let mut sim = Sim::new(policy, guests, setup);
    sim.run(policy, end);
    let fluid: Vec<_> = guests
        .iter()
        .map(|g| FluidTenant {
            weight: g.weight,
            saturating: matches!(g.load, Load::Closed { .. }),
        })
        .collect();
    let mut arrivals: Vec<_> = guests
        .iter()
        .enumerate()
        .filter_map(|(tenant, g)| match &g.load {
            Load::Open { work, .. } => Some((tenant, work)),
            Load::Closed { .. } => None,
        })
        .flat_map(|(tenant, submissions)| {
            submissions.iter().map(move |&(at, work)| Arrival {
                tenant,
                at: Moment(at),
                work_ns: Nanos(work),
            })
        })
        .collect();
    arrivals.sort_by_key(|a| a.at);
    let ideal = fluid_service(&fluid, &arrivals, Nanos(1_000_000_000), seconds as usize).unwrap();
    let pairs = || sim.service.iter().zip(&ideal);
    let service_error = |(got, due): (&Vec<Nanos>, &Vec<Nanos>)| {
        let pairs = got.iter().zip(due);
        pairs
            .map(|(g, d)| g.0.abs_diff(d.0) as f64 / 1e7)
            .fold(0.0, f64::max)
    };
    Outcome {
        errors: pairs()
            .map(|(got, due)| max_share_error_points(got, due))
            .collect(),
        service_errors: pairs().map(service_error).collect(),
        totals: sim.totals,
        gate_changes: sim.gate_changes,
        idle_held_max_ns: sim.idle_held_max_ns,
    }
}
