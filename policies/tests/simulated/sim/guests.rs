//! Behaviour of guests: they join, submit, wait, and leave.

use super::{Engine, Event, Sim};
use crate::load::{Leave, Load};
use turnstile_accounting::{AccountId, Moment, Nanos, TenantId};
use turnstile_policies::{Cap, Membership, Policy, TenantParams, Weight};

impl Sim {
    /// The guest becomes a tenant.
    pub(super) fn join(&mut self, policy: &mut dyn Policy, index: usize, new_name: bool) {
        let guest = self.channels[index].guest.clone();
        let tenant = TenantId(self.next_tenant);
        self.next_tenant += 1;
        self.next_name += u32::from(new_name);
        let name = match guest.leave {
            Leave::Rename(_) => format!("new{}", self.next_name),
            Leave::Never | Leave::Return(_) => format!("guest{index}"),
        };
        let account = AccountId(guest.account.unwrap_or(1_000 + index as u32));
        let cap = guest
            .cap
            .map(|(quota, period)| Cap::new(Nanos(quota), Nanos(period)).unwrap());
        let params = TenantParams {
            weight: Weight::new(guest.weight).unwrap(),
            cap,
        };
        let membership = Membership {
            account,
            name: &name,
        };
        policy
            .add(tenant, membership, params, Moment(self.now))
            .unwrap();
        self.channels[index].tenant = Some(tenant);
        self.channels[index].held = false;
    }

    /// The guest's first commands.
    pub(super) fn fill(&mut self, index: usize) {
        let channel = &mut self.channels[index];
        match &channel.guest.load {
            Load::Open { work, .. } => channel.future.extend(work),
            Load::Closed {
                depth, command_ns, ..
            } => {
                for _ in 0..*depth {
                    let length = self.random.within(command_ns.0, command_ns.1);
                    channel.future.push_back((0, length));
                }
            }
            Load::Program(program) => {
                let depth = match channel.guest.leave {
                    Leave::Never => program.depth,
                    _ => 1,
                };
                channel.batch = depth;
                for _ in 0..depth {
                    channel.kernel += 1;
                    let length = program.kernels_ns[channel.kernel % program.kernels_ns.len()];
                    channel.future.push_back((program.start_ns, length));
                }
            }
        }
        if let Some(first) = channel.future.front() {
            self.events.insert((first.0, Event::Submit(index)));
        }
    }

    pub(super) fn submit(&mut self, policy: &mut dyn Policy, index: usize) {
        if self.channels[index].tenant.is_none() {
            self.join(policy, index, true);
        }
        while let Some(&(at, length)) = self.channels[index].future.front() {
            if self.full(index) {
                break; // resumed by the end of a command
            }
            if at > self.now {
                self.events.insert((at, Event::Submit(index)));
                break;
            }
            self.channels[index].future.pop_front();
            self.channels[index].queued.push_back(length);
        }
        self.update_demand(policy, index);
    }

    /// Whether the guest has as many commands submitted as its load permits.
    pub(super) fn full(&self, index: usize) -> bool {
        let channel = &self.channels[index];
        let runs = matches!(self.engine, Engine::Running { guest, .. } if guest == index);
        match channel.guest.load {
            Load::Open { depth, .. } => channel.queued.len() + usize::from(runs) >= depth,
            Load::Closed { .. } | Load::Program(_) => false,
        }
    }

    pub(super) fn leaves(&self, index: usize) -> bool {
        let channel = &self.channels[index];
        channel.guest.leave != Leave::Never && channel.queued.is_empty()
    }

    /// A command has ended: the guest's next step.
    pub(super) fn complete(&mut self, policy: &mut dyn Policy, index: usize) {
        let channel = &mut self.channels[index];
        match channel.guest.load.clone() {
            Load::Open { .. } => self.submit(policy, index),
            Load::Closed {
                command_ns,
                think_ns,
                ..
            } => {
                let length = self.random.within(command_ns.0, command_ns.1);
                self.later(index, think_ns, length);
            }
            Load::Program(program) => {
                channel.batch -= 1;
                let away = match channel.guest.leave {
                    Leave::Never => None,
                    Leave::Return(after) | Leave::Rename(after) => Some(after),
                };
                let count = match (program.batch, channel.batch) {
                    (true, 0) => program.depth,
                    (true, _) => return,
                    (false, _) => 1,
                };
                let jitter = self.random.within(0, program.jitter_ns);
                channel.pause += 1;
                let pause = program.pauses_ns[channel.pause % program.pauses_ns.len()] + jitter;
                let pause = away.unwrap_or(pause);
                let count = if away.is_some() { 1 } else { count };
                channel.batch += count;
                for _ in 0..count {
                    let channel = &mut self.channels[index];
                    channel.kernel += 1;
                    let length = program.kernels_ns[channel.kernel % program.kernels_ns.len()];
                    self.later(index, pause, length);
                }
            }
        }
    }

    fn later(&mut self, index: usize, after: u64, length: u64) {
        let channel = &mut self.channels[index];
        if after == 0 && channel.guest.leave == Leave::Never {
            channel.queued.push_back(length);
        } else {
            channel.future.push_back((self.now + after, length));
            self.events.insert((self.now + after, Event::Submit(index)));
        }
    }
}
