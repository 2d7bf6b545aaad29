//! One engine with a round-robin dispatcher, and programs that launch kernels: the machine of the
//! LoGA paper (A1.1), without the daemon around it.
//!
//! In: programs, and which of them are admitted. Out: the end of each command, and the service of
//! each program. A command that has begun runs to its end. Nothing is random.
//!
//! A scheduler drives it: [`Engine::advance`] returns at the end of each command and at a given
//! moment.

use std::collections::VecDeque;

use crate::result::Failure;

/// A program: kernels of given lengths in turn, so many submitted at a time, and a pause from the
/// end of one to the submission of the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Lengths of its kernels, in turn.
    pub kernels_ns: Vec<u64>,
    /// Kernels submitted at a time.
    pub depth: u32,
    /// From the end of a kernel to the next submission.
    pub pause_ns: u64,
    /// When it begins.
    pub start_ns: u64,
    /// Launches until it ends; none for ever.
    pub launches: Option<u64>,
}

impl Program {
    /// Kernels of one length in microseconds, for ever.
    pub fn of_us(kernel: u64, depth: u32, pause: u64) -> Self {
        Self {
            kernels_ns: vec![kernel * 1_000],
            depth,
            pause_ns: pause * 1_000,
            start_ns: 0,
            launches: None,
        }
    }

    /// LoGA's throttle: a kernel, a wait for it, a pause. The first launch of the throttle number
    /// `place` of `all` is staggered by its part of a cycle.
    pub fn throttle_us(kernel: u64, pause: u64, place: u64, all: u64) -> Self {
        let start_ns = (kernel + pause) * 1_000 * place / all.max(1);
        Self {
            start_ns,
            ..Self::of_us(kernel, 1, pause)
        }
    }
}

#[derive(Debug)]
struct Tenant {
    program: Program,
    /// Launches so far, and those that have ended.
    launched: u64,
    ended: u64,
    /// When the next ones are submitted, in order.
    due: VecDeque<u64>,
    /// Lengths of those that wait.
    queued: VecDeque<u64>,
    admitted: bool,
    service_ns: u64,
}

/// The end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The program.
    pub tenant: usize,
    /// Length of the command.
    pub length_ns: u64,
}

/// The engine and its programs.
#[derive(Debug)]
pub struct Engine {
    tenants: Vec<Tenant>,
    now_ns: u64,
    /// Program, beginning and end of the command that runs.
    running: Option<(usize, u64, u64)>,
    /// The program that is served next, if it has work.
    turn: usize,
}

impl Engine {
    /// An idle engine; all programs are admitted.
    ///
    /// # Errors
    /// If there is no program, or one without launches or with kernels of 0 ns.
    pub fn new(programs: &[Program]) -> Result<Self, Failure> {
        let wrong = |program: &Program| {
            let none = program.depth == 0 || program.launches == Some(0);
            none || program.kernels_ns.is_empty() || program.kernels_ns.contains(&0)
        };
        if programs.is_empty() || programs.iter().any(wrong) {
            let text = "A program launches 1 or more kernels, of 1 ns or more";
            return Err(Failure(text.to_owned()));
        }
        let tenant = |program: &Program| Tenant {
            due: (0..program.depth).map(|_| program.start_ns).collect(),
            program: program.clone(),
            launched: 0,
            ended: 0,
            queued: VecDeque::new(),
            admitted: true,
            service_ns: 0,
        };
        Ok(Self {
            tenants: programs.iter().map(tenant).collect(),
            now_ns: 0,
            running: None,
            turn: 0,
        })
    }

    /// The present.
    pub const fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// The program that is on the engine.
    pub fn running(&self) -> Option<usize> {
        self.running.map(|(tenant, ..)| tenant)
    }

    /// Admits a program, or holds it: its queued commands do not begin.
    pub fn admit(&mut self, tenant: usize, admitted: bool) {
        self.tenants[tenant].admitted = admitted;
    }

    /// Whether a program has commands that wait or run.
    pub fn has_work(&self, tenant: usize) -> bool {
        !self.tenants[tenant].queued.is_empty() || self.running() == Some(tenant)
    }

    /// Whether a program has commands that wait.
    pub fn waits(&self, tenant: usize) -> bool {
        !self.tenants[tenant].queued.is_empty()
    }

    /// Whether a program has ended.
    pub fn is_over(&self, tenant: usize) -> bool {
        let of = &self.tenants[tenant];
        of.program
            .launches
            .is_some_and(|launches| of.ended >= launches)
    }

    /// Commands of a program that have ended.
    pub fn ended(&self, tenant: usize) -> u64 {
        self.tenants[tenant].ended
    }

    /// Time of each program on the engine until now.
    pub fn service_ns(&self) -> Vec<u64> {
        let part = |tenant: usize| match self.running {
            Some((of, begin, _)) if of == tenant => self.now_ns - begin,
            _ => 0,
        };
        let all = self.tenants.iter().enumerate();
        all.map(|(place, tenant)| tenant.service_ns + part(place))
            .collect()
    }

    /// When the next program submits.
    pub fn next_due_ns(&self) -> Option<u64> {
        let due = self.tenants.iter().filter_map(|tenant| tenant.due.front());
        due.copied().min()
    }

    /// Advances to `until_ns`, or to the end of a command before it. No command begins at
    /// `until_ns`.
    pub fn advance(&mut self, until_ns: u64) -> Option<Ended> {
        while self.now_ns < until_ns {
            self.submit();
            self.dispatch();
            let end = self.running.map_or(u64::MAX, |(_, _, end)| end);
            let due = self.next_due_ns().unwrap_or(u64::MAX);
            let next = end.min(due).min(until_ns);
            self.now_ns = next.max(self.now_ns);
            if end == next {
                return self.finish();
            }
        }
        None
    }

    /// Advances to the next change: a submission, the beginning or the end of a command, or
    /// `until_ns`. A command begins before time advances.
    pub fn step(&mut self, until_ns: u64) {
        self.submit();
        let was_idle = self.running.is_none();
        self.dispatch();
        if was_idle && self.running.is_some() {
            return;
        }
        let end = self.running.map_or(u64::MAX, |(_, _, end)| end);
        let due = self.next_due_ns().unwrap_or(u64::MAX);
        let next = end.min(due).min(until_ns);
        self.now_ns = next.max(self.now_ns);
        if end == next {
            self.finish();
        }
        self.submit();
    }

    fn submit(&mut self) {
        for tenant in &mut self.tenants {
            while tenant.due.front().is_some_and(|at| *at <= self.now_ns) {
                tenant.due.pop_front();
                if tenant
                    .program
                    .launches
                    .is_some_and(|most| tenant.launched >= most)
                {
                    continue;
                }
                let kernels = &tenant.program.kernels_ns;
                // CAST: a program has few kernels.
                let kernel = kernels[(tenant.launched % kernels.len() as u64) as usize];
                tenant.launched += 1;
                tenant.queued.push_back(kernel);
            }
        }
    }

    fn dispatch(&mut self) {
        if self.running.is_some() {
            return;
        }
        let all = self.tenants.len();
        let mut turn = (0..all).map(|offset| (self.turn + offset) % all);
        let next = turn.find(|place| {
            let tenant = &self.tenants[*place];
            tenant.admitted && !tenant.queued.is_empty()
        });
        let Some(place) = next else {
            return;
        };
        if let Some(length) = self.tenants[place].queued.pop_front() {
            self.running = Some((place, self.now_ns, self.now_ns + length));
            self.turn = (place + 1) % all;
        }
    }

    fn finish(&mut self) -> Option<Ended> {
        let (tenant, begin, end) = self.running.take()?;
        let of = &mut self.tenants[tenant];
        of.service_ns += end - begin;
        of.ended += 1;
        of.due.push_back(end + of.program.pause_ns);
        Some(Ended {
            tenant,
            length_ns: end - begin,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(programs: &[Program], until_ns: u64) -> Vec<u64> {
        let mut engine = Engine::new(programs).unwrap();
        while engine.advance(until_ns).is_some() {}
        engine.service_ns()
    }

    #[test]
    fn dispatch_is_round_robin_by_command() {
        let programs = [Program::of_us(2_000, 4, 0), Program::of_us(200, 4, 0)];
        assert_eq!(service(&programs, 22_000_000), [20_000_000, 2_000_000]);
    }

    #[test]
    fn a_lone_throttle_has_its_load() {
        let throttle = Program::throttle_us(10, 1_000, 0, 1);
        assert_eq!(service(&[throttle], 1_010_000_000), [10_000_000]);
    }

    #[test]
    fn a_program_ends_after_its_launches_and_a_held_one_waits() {
        let short = Program {
            launches: Some(3),
            ..Program::of_us(100, 2, 50)
        };
        let mut engine = Engine::new(&[short.clone(), short]).unwrap();
        engine.admit(1, false);
        while engine.advance(10_000_000).is_some() {}
        assert!(engine.is_over(0) && !engine.is_over(1));
        assert_eq!(engine.service_ns(), [300_000, 0]);
        engine.admit(1, true);
        while engine.advance(20_000_000).is_some() {}
        assert!(engine.is_over(1) && engine.service_ns() == [300_000, 300_000]);
    }

    #[test]
    fn programs_that_launch_nothing_are_refused() {
        let good = Program::of_us(1, 1, 0);
        let bad = [
            Program {
                kernels_ns: vec![],
                ..good.clone()
            },
            Program {
                kernels_ns: vec![0],
                ..good.clone()
            },
            Program {
                depth: 0,
                ..good.clone()
            },
            Program {
                launches: Some(0),
                ..good
            },
        ];
        for program in bad {
            assert!(Engine::new(&[program]).is_err());
        }
        assert!(Engine::new(&[]).is_err());
    }
}
