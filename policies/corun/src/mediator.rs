//! Drives the rule: reads the model at each poll, and sets holds and slices.

use crate::engine::Poller;
use crate::{NEVER, Ns, Program, Random, Sim};
use std::collections::VecDeque;
use turnstile_accounting::{AccountId, Moment, Nanos, Reading, Seen, TenantId};
use turnstile_policies::{Cap, Measured, Membership, Owed, TenantParams, Tuning, Weight};

/// Weight of a program of weight 1.
const WEIGHT: u32 = 100;

/// What is unknown of a time in which the meter has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// Worked time; resident time is known.
    Worked,
    /// Both.
    Both,
}

/// Quality of the sources.
#[derive(Clone, Copy, Debug)]
pub struct Sources {
    /// Variation of a reading of worked time while tenants run together.
    pub noise: f64,
    /// How late readings are.
    pub late: Ns,
    /// Not late at polls that need all readings.
    pub on_request: bool,
    /// Factor of the readings of one tenant.
    pub bias: Option<(usize, f64)>,
    /// From, to, and what is unknown.
    pub silent: Option<(Ns, Ns, Silence)>,
    /// The tenant has a new account at each return.
    pub new_accounts: bool,
}

impl Default for Sources {
    fn default() -> Self {
        Self {
            noise: 0.03,
            late: 0,
            on_request: false,
            bias: None,
            silent: None,
            new_accounts: false,
        }
    }
}

/// What the mediator keeps of a group.
#[derive(Debug)]
struct Known {
    tenant: TenantId,
    account: u32,
    connected: bool,
    /// Worked time since the last poll, as read.
    used: Ns,
    resident: Ns,
    worked: Ns,
    waited: Ns,
}

/// The rule and its sources.
#[derive(Debug)]
// FIELDS: the state of a simulated mediator, with its measurements.
pub struct Mediator {
    /// The production rule.
    pub rule: Owed,
    sources: Sources,
    known: Vec<Known>,
    next_tenant: u32,
    in_own_turn: bool,
    /// Readings of tenants that left since the last poll.
    of_removed: Vec<Reading>,
    /// Readings that are not delivered yet.
    readings: VecDeque<(Ns, Vec<Reading>)>,
    random: Random,
    /// Polls, and what each group worked since the one before, as read.
    pub used: Vec<(Ns, Vec<Ns>)>,
    /// Longest time between two polls.
    pub longest_interval: Ns,
    polled_at: Ns,
}

fn cap((fraction, period): (f64, Ns)) -> Cap {
    let quota = Nanos((fraction * period as f64) as u64);
    Cap::new(quota, Nanos(period as u64)).unwrap()
}

impl Mediator {
    /// `accounts`: weight, and quota over period, of accounts 0 and up. An account that is not
    /// listed has one program, and that program's weight.
    pub fn new(programs: &[Program], accounts: &[(u32, Option<(f64, Ns)>)]) -> Self {
        let mut rule = Owed::new(&Tuning::default());
        for (id, (weight, quota)) in accounts.iter().enumerate() {
            let params = params(*weight, *quota);
            rule.set_account(AccountId(id as u32), params);
        }
        let mut known = Vec::new();
        for (index, program) in programs.iter().enumerate() {
            let account = program.account.unwrap_or(1_000 + index as u32);
            if program.account.is_none() {
                rule.set_account(AccountId(account), params(program.weight, None));
            }
            known.push(Known {
                tenant: TenantId(0),
                account,
                connected: false,
                used: 0,
                resident: 0,
                worked: 0,
                waited: 0,
            });
        }
        Self {
            rule,
            sources: Sources::default(),
            known,
            next_tenant: 1,
            in_own_turn: false,
            of_removed: Vec::new(),
            readings: VecDeque::new(),
            random: Random::new(77),
            used: Vec::new(),
            longest_interval: 0,
            polled_at: 0,
        }
    }

    /// The same with other sources.
    pub fn with(mut self, sources: Sources) -> Self {
        self.sources = sources;
        self
    }

    /// The current tenant of the group.
    pub fn tenant(&self, index: usize) -> TenantId {
        self.known[index].tenant
    }

    /// The group becomes a tenant, and is held or not.
    fn add(&mut self, sim: &mut Sim, index: usize) {
        let (known, group) = (&mut self.known[index], &sim.groups[index]);
        known.connected = true;
        known.tenant = TenantId(self.next_tenant);
        self.next_tenant += 1;
        if self.sources.new_accounts && group.host.returns > 0 {
            known.account = 10_000 + known.tenant.0;
        }
        let account = AccountId(known.account);
        let program = &group.host.program;
        if self.sources.new_accounts {
            self.rule.set_account(account, params(program.weight, None));
        }
        let name = format!("{index}-{}", group.host.names);
        let membership = Membership {
            account,
            name: &name,
        };
        let params = params(program.weight, program.quota);
        let now = Moment(sim.now as u64);
        let order = self.rule.add(known.tenant, membership, params, now);
        self.rule.set_target(known.tenant, program.target).unwrap();
        let mut held: Vec<bool> = sim.groups.iter().map(|group| group.held).collect();
        held[index] = order.unwrap().hold.is_some();
        sim.hold(&held);
    }

    fn remove(&mut self, sim: &Sim, index: usize) {
        let reading = self.read(sim, index, self.in_own_turn);
        self.of_removed.push(reading);
        let known = &mut self.known[index];
        known.connected = false;
        let now = Moment(sim.now as u64);
        self.rule.remove(known.tenant, now).unwrap();
    }

    /// Reads what a group did since the last reading.
    fn read(&mut self, sim: &Sim, index: usize, exact: bool) -> Reading {
        let (known, group) = (&mut self.known[index], &sim.groups[index]);
        let silent = self.sources.silent;
        let silent = silent.filter(|(from, to, _)| (from + 1..=*to).contains(&sim.now));
        let noise = if exact { 0.0 } else { self.sources.noise };
        let bias = self.sources.bias.filter(|(group, _)| *group == index);
        let factor = (1.0 + noise * self.random.normal()) * bias.map_or(1.0, |(_, bias)| bias);
        let worked = ((group.worked - known.worked) as f64 * factor) as u64;
        let resident = (group.resident - known.resident) as u64;
        let waited = (group.waited - known.waited) as u64;
        (known.worked, known.resident) = (group.worked, group.resident);
        known.waited = group.waited;
        known.used += worked as Ns;
        let logged = silent.is_none_or(|(_, _, silence)| silence == Silence::Worked);
        Reading {
            tenant: known.tenant,
            worked: silent.is_none().then_some(Nanos(worked)),
            resident: logged.then_some(Nanos(resident)),
            waited: Nanos(waited),
        }
    }

    /// Reads what all groups did since the last poll.
    fn read_all(&mut self, sim: &Sim) -> Vec<Reading> {
        // The counter of the whole engine is exact if only one tenant was resident.
        let groups = self.known.iter().zip(&sim.groups);
        let resident = groups.filter(|(known, group)| group.resident > known.resident);
        let exact = self.in_own_turn || resident.count() < 2;
        let mut readings = std::mem::take(&mut self.of_removed);
        readings.extend((0..self.known.len()).filter_map(|index| {
            let connected = self.known[index].connected;
            let reading = self.read(sim, index, exact);
            connected.then_some(reading)
        }));
        let used = self
            .known
            .iter_mut()
            .map(|known| std::mem::take(&mut known.used));
        self.used.push((sim.now, used.collect()));
        readings
    }

    fn seen(&self, sim: &Sim) -> Vec<Seen> {
        let groups = self.known.iter().zip(&sim.groups);
        let connected = groups.filter(|(known, _)| known.connected);
        let seen = connected.map(|(known, group)| Seen {
            tenant: known.tenant,
            has_work: !group.queue.is_empty(),
            blocks: false,
            idle: group
                .empty_since
                .map_or(Seen::NEVER, |at| Nanos((sim.now - at) as u64)),
        });
        seen.collect()
    }
}

impl Poller for Mediator {
    fn poll(&mut self, sim: &mut Sim) -> Ns {
        if self.next_tenant == 1 {
            (0..self.known.len()).for_each(|index| self.add(sim, index));
        }
        let readings = self.read_all(sim);
        self.readings.push_back((sim.now, readings));
        let requested = self.sources.on_request && self.rule.orders().exact;
        let known_by = if requested {
            sim.now
        } else {
            sim.now - self.sources.late
        };
        let ready = self
            .readings
            .partition_point(|(until, _)| *until <= known_by);
        let ready: Vec<_> = self.readings.drain(..ready).collect();
        let measured = ready.iter().map(|(until, readings)| Measured {
            until: Moment(*until as u64),
            tenants: readings,
        });
        let measured: Vec<_> = measured.collect();
        let seen = self.seen(sim);
        let orders = self.rule.look(Moment(sim.now as u64), &seen, &measured);
        let mut held = vec![false; self.known.len()];
        for (index, known) in self.known.iter().enumerate() {
            let own = orders
                .tenants
                .iter()
                .find(|order| order.tenant == known.tenant);
            if let Some(order) = own {
                held[index] = order.hold.is_some();
                sim.groups[index].slice = order.slice_ns.0 as Ns;
            }
        }
        sim.hold(&held);
        let standings = self
            .known
            .iter()
            .filter_map(|known| self.rule.standing(known.tenant));
        self.in_own_turn = standings.into_iter().any(|standing| standing.own_turn);
        self.longest_interval = self.longest_interval.max(sim.now - self.polled_at);
        self.polled_at = sim.now;
        (self.rule.next_look().0 as Ns - sim.now).min(NEVER)
    }

    fn connect(&mut self, sim: &mut Sim, index: usize) {
        if sim.groups[index].host.connected {
            self.add(sim, index);
        } else {
            self.remove(sim, index);
        }
    }
}

fn params(weight: u32, quota: Option<(f64, Ns)>) -> TenantParams {
    TenantParams {
        weight: Weight::new(weight * WEIGHT).unwrap(),
        cap: quota.map(cap),
    }
}
