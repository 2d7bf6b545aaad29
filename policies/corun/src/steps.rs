//! What a host does: it launches ahead, waits, leaves and returns.

use crate::Ns;
use crate::engine::{Event, Kernel, Sim};
use crate::programs::Op;

impl Sim {
    /// Runs a host until it computes or waits.
    pub(crate) fn run_host(&mut self, index: usize) {
        loop {
            let now = self.now;
            let host = &mut self.groups[index].host;
            let op = host.op();
            if let Op::Sync(pending) = op
                && !host.may_pass(pending)
            {
                host.blocked = true;
                return;
            }
            host.next_op = (host.next_op + 1) % host.program.ops.len();
            match op {
                Op::Host(length) => {
                    let jitter = 1.0 + host.program.jitter * (self.random.uniform() * 2.0 - 1.0);
                    let length = length as f64 * jitter * host.pace;
                    self.push(now + length as Ns, Event::Host(index));
                    return;
                }
                Op::Launch(_) | Op::LaunchAfterCopies(_) | Op::Poll(_) | Op::Spy(_, _) => {
                    self.launch(index, op);
                }
                Op::QueueCopy(length) => {
                    host.copies += 1;
                    host.copies_queued.push_back(length);
                    if host.copies_queued.len() == 1 {
                        self.push(now + length, Event::Copied(index));
                    }
                }
                Op::Sync(_) => {}
                Op::Due(period) => {
                    host.dues += 1;
                    let due = host.program.start + host.dues * period;
                    host.step_start = due;
                    if due > now {
                        self.begin_step(index);
                        self.push(due, Event::Host(index));
                        return;
                    }
                }
                Op::Leave(away) => {
                    host.connected = false;
                    self.push(now, Event::Connection(index));
                    self.push(now + away, Event::Host(index));
                    return;
                }
                Op::Return(new_name) => {
                    host.connected = true;
                    host.returns += 1;
                    host.names += u64::from(new_name);
                    host.step_start = now;
                    self.push(now, Event::Connection(index));
                }
                Op::Done => {
                    host.steps += 1;
                    host.latencies.push(now - host.step_start);
                    host.step_start = now;
                    self.begin_step(index);
                }
            }
        }
    }

    fn begin_step(&mut self, index: usize) {
        let deviation = self.random.normal();
        let host = &mut self.groups[index].host;
        host.pace = (host.program.step_jitter * deviation).exp();
    }

    fn launch(&mut self, index: usize, op: Op) {
        let mut others = self.groups.iter().enumerate();
        let others_held = others.any(|(other, group)| other != index && group.held);
        let group = &mut self.groups[index];
        let length = match op {
            Op::Launch(length) | Op::LaunchAfterCopies(length) | Op::Poll(length) => length,
            Op::Spy(held, together) => {
                if others_held {
                    held
                } else {
                    together
                }
            }
            _ => return,
        };
        let waits_for_copies = matches!(op, Op::LaunchAfterCopies(_));
        let waited_for = matches!(group.host.op(), Op::Sync(0));
        group.queue.push_back(Kernel {
            left: length,
            after_copies: if waits_for_copies {
                group.host.copies
            } else {
                0
            },
            polls_until: matches!(op, Op::Poll(_)).then_some(self.now + length),
            stopped: false,
            lone: Kernel::is_lone(length) && waited_for,
        });
        group.host.launched += 1;
        self.dispatch();
    }
}
