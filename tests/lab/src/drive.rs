//! Schedulers over [`Engine`]: none, FCFS, engaged, NEON, and the policies of the product.
//!
//! In: programs and a scheduler. Out: the service of each program, and how many of its submissions
//! were trapped. Decisions take effect at once.

use turnstile_accounting::{AccountId, Demand, EngineState, Metric, Moment, Nanos, TenantId};
use turnstile_policies::model::neon::{FREE_RUN_FACTOR, Neon, SAMPLE, SAMPLE_COMMANDS_MAX, Sample};
use turnstile_policies::{
    Basis, Comparison, DECISION_PERIOD_NS, Decision, EngineEvent, Membership, PeriodUsage, Policy,
    ROWS, Rule, TenantParams, TenantPeriod, Tuning, policy_by_name,
};

use crate::engine::{Engine, Program};
use crate::result::Failure;

/// A scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduler {
    /// The dispatcher alone.
    None,
    /// One program at a time, to its end.
    Fcfs,
    /// One command at a time, each submission trapped, the least exact service first.
    Engaged,
    /// NEON's samples; tasks are held back only if it schedules.
    Neon {
        /// Whether tasks are held back.
        schedules: bool,
    },
    /// LoGA: polls 1 ms and not 5 ms for each channel, the printed rule, with so many channels a
    /// program.
    Loga {
        /// What is charged.
        metric: Metric,
        /// Channels of a program.
        channels: u64,
    },
    /// The product's `dfq`, by events.
    Dfq,
}

impl Scheduler {
    /// The scheduler of the policy of this name, of a mediator or of the lab.
    ///
    /// # Errors
    /// If there is none, or if it needs an engine that slices by itself.
    pub fn by_name(name: &str) -> Result<Self, Failure> {
        let loga = |metric| Self::Loga {
            metric,
            channels: 1,
        };
        let row = ROWS.iter().find(|row| row.name == name);
        let rule = row.map(|row| (row.make)(&Tuning::default()));
        Ok(match (name, rule) {
            (_, Some(Rule::Lab(Comparison::Fcfs))) => Self::Fcfs,
            (_, Some(Rule::Lab(Comparison::Engaged))) => Self::Engaged,
            (_, Some(Rule::Lab(Comparison::Neon))) => Self::Neon { schedules: true },
            (_, Some(Rule::Lab(Comparison::LogaPerTurn))) => loga(Metric::PerTurn),
            ("none", Some(_)) => Self::None,
            ("dfq", Some(_)) => Self::Dfq,
            ("dfq-literal", Some(_)) => loga(Metric::Total),
            _ => {
                return Err(Failure(format!(
                    "{name} is no policy of an engine with a dispatcher"
                )));
            }
        })
    }
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Served {
    /// Time of each program on the engine.
    pub service_ns: Vec<u64>,
    /// Submissions that trapped, of each program.
    pub traps: Vec<u64>,
    /// Commands that ended, of each program.
    pub commands: Vec<u64>,
    /// Length of the run.
    pub wall_ns: u64,
}

impl Served {
    /// Part of the time that a program had.
    pub fn part(&self, tenant: usize) -> f64 {
        self.service_ns[tenant] as f64 / self.wall_ns as f64
    }

    /// Traps of a program for each command.
    pub fn exits(&self, tenant: usize) -> f64 {
        self.traps[tenant] as f64 / self.commands[tenant].max(1) as f64
    }
}

/// Runs programs under a scheduler until `end_ns`.
///
/// # Errors
/// If a program launches nothing.
pub fn drive(scheduler: Scheduler, programs: &[Program], end_ns: u64) -> Result<Served, Failure> {
    let mut engine = Engine::new(programs)?;
    let mut traps = vec![0; programs.len()];
    match scheduler {
        Scheduler::None => while engine.advance(end_ns).is_some() {},
        Scheduler::Fcfs => fcfs(&mut engine, programs.len(), end_ns),
        Scheduler::Engaged => engaged(&mut engine, &mut traps, end_ns),
        Scheduler::Neon { schedules } => neon(&mut engine, &mut traps, schedules, end_ns),
        Scheduler::Loga { metric, channels } => {
            loga(&mut engine, programs.len(), (metric, channels), end_ns)?;
        }
        Scheduler::Dfq => dfq(&mut engine, &mut traps, end_ns)?,
    }
    let places = 0..programs.len();
    Ok(Served {
        service_ns: engine.service_ns(),
        traps,
        commands: places.map(|place| engine.ended(place)).collect(),
        wall_ns: end_ns,
    })
}

fn admit_only(engine: &mut Engine, tenants: usize, admitted: impl Fn(usize) -> bool) {
    (0..tenants).for_each(|tenant| engine.admit(tenant, admitted(tenant)));
}

fn fcfs(engine: &mut Engine, tenants: usize, end_ns: u64) {
    for holder in 0..tenants {
        admit_only(engine, tenants, |tenant| tenant == holder);
        while !engine.is_over(holder) {
            if engine.advance(end_ns).is_none() {
                return;
            }
        }
    }
    while engine.advance(end_ns).is_some() {}
}

fn engaged(engine: &mut Engine, traps: &mut [u64], end_ns: u64) {
    let mut virtual_ns = vec![0; traps.len()];
    let mut system_ns = 0;
    admit_only(engine, traps.len(), |_| false);
    while engine.now_ns() < end_ns {
        let work = (0..traps.len()).filter(|tenant| engine.has_work(*tenant));
        let next = work.min_by_key(|tenant| virtual_ns[*tenant].max(system_ns));
        let Some(tenant) = next else {
            let due = engine.next_due_ns().unwrap_or(end_ns);
            engine.step(due.clamp(engine.now_ns() + 1, end_ns));
            continue;
        };
        traps[tenant] += 1;
        engine.admit(tenant, true);
        // It begins now.
        engine.step(engine.now_ns());
        engine.admit(tenant, false);
        if let Some(ended) = engine.advance(end_ns) {
            // No saving up: a program that returns has at least the system's virtual time.
            system_ns = virtual_ns[tenant].max(system_ns);
            virtual_ns[tenant] = system_ns + ended.length_ns;
        }
    }
}

fn drain(engine: &mut Engine, tenants: usize, end_ns: u64) {
    admit_only(engine, tenants, |_| false);
    while engine.running().is_some() && engine.advance(end_ns).is_some() {}
}

fn neon(engine: &mut Engine, traps: &mut [u64], schedules: bool, end_ns: u64) {
    let tenants = traps.len();
    let mut rule = Neon::new(tenants);
    while engine.now_ns() < end_ns {
        drain(engine, tenants, end_ns);
        let mut season_ns = 0;
        for (tenant, trapped) in traps.iter_mut().enumerate() {
            if rule.is_held(tenant) {
                season_ns += SAMPLE.0;
                continue;
            }
            let begin = engine.now_ns();
            let until = (begin + SAMPLE.0).min(end_ns);
            let mut sample = Sample::default();
            engine.admit(tenant, true);
            while sample.commands < SAMPLE_COMMANDS_MAX
                && let Some(ended) = engine.advance(until)
            {
                sample.commands += 1;
                sample.sum += Nanos(ended.length_ns);
            }
            engine.admit(tenant, false);
            // A command that has begun ends, and counts.
            if engine.running().is_some()
                && let Some(ended) = engine.advance(end_ns)
            {
                sample.commands += 1;
                sample.sum += Nanos(ended.length_ns);
            }
            *trapped += sample.commands;
            rule.sampled(tenant, sample);
            season_ns += engine.now_ns() - begin;
        }
        let free_run = Nanos(FREE_RUN_FACTOR * season_ns);
        if schedules {
            rule.charge(free_run);
        }
        let until = (engine.now_ns() + free_run.0).min(end_ns);
        admit_only(engine, tenants, |tenant| !rule.is_held(tenant));
        while engine.advance(until).is_some() {}
    }
}

fn id(tenant: usize) -> TenantId {
    // CAST: runs have few programs.
    TenantId(tenant as u32 + 1)
}

/// A policy of the product, with a tenant for each program.
fn policy(name: &str, tenants: usize) -> Result<Box<dyn Policy>, Failure> {
    let row = policy_by_name(name).and_then(|row| row.policy(&Tuning::default()));
    let mut policy = row.ok_or_else(|| Failure(format!("no policy is called {name}")))?;
    for tenant in 0..tenants {
        // CAST: as above.
        let account = AccountId(tenant as u32 + 1);
        let membership = Membership {
            account,
            name: "program",
        };
        policy.set_account(account, TenantParams::default());
        let added = policy.add(id(tenant), membership, TenantParams::default(), Moment(0));
        added.map_err(|error| Failure(error.to_string()))?;
    }
    Ok(policy)
}

fn loga(
    engine: &mut Engine,
    tenants: usize,
    (metric, channels): (Metric, u64),
    end_ns: u64,
) -> Result<(), Failure> {
    let mut rule = policy("dfq-literal", tenants)?;
    let unit = 1_000_000 * channels * tenants as u64;
    let (poll_ns, nonpoll_ns) = (unit, 5 * unit);
    while engine.now_ns() < end_ns {
        let poll_at = (engine.now_ns() + nonpoll_ns).min(end_ns);
        while engine.advance(poll_at).is_some() {}
        let until = (poll_at + poll_ns).min(end_ns);
        let (before, mut turns) = (engine.service_ns(), vec![0_u64; tenants]);
        // The register names one owner until another one runs.
        let mut owner = engine.running();
        owner.into_iter().for_each(|tenant| turns[tenant] += 1);
        while let Some(ended) = engine.advance(until) {
            if owner != Some(ended.tenant) {
                turns[ended.tenant] += 1;
            }
            owner = Some(ended.tenant);
            if engine.next_due_ns().is_none_or(|due| due > engine.now_ns())
                && (0..tenants).all(|tenant| !engine.has_work(tenant))
            {
                // The engine is idle: the next command is a turn of its own.
                owner = None;
            }
        }
        let service = engine.service_ns();
        let parts: Vec<TenantPeriod> = (0..tenants)
            .map(|tenant| {
                let total = service[tenant] - before[tenant];
                let used_ns = Nanos(match metric {
                    Metric::Total => total,
                    Metric::PerTurn => total / turns[tenant].max(1),
                });
                TenantPeriod {
                    tenant: id(tenant),
                    used_ns,
                    charged_ns: used_ns,
                    admitted: true,
                    backlogged: engine.has_work(tenant),
                }
            })
            .collect();
        let usage = PeriodUsage {
            end: Moment(engine.now_ns()),
            basis: Basis::PollSample,
            poll_ns: Nanos(poll_ns),
            nonpoll_ns: Nanos(nonpoll_ns),
            tenants: &parts,
        };
        for decided in rule.period_end(&usage).to_vec() {
            let admitted = decided.decision == Decision::Admit;
            engine.admit(decided.tenant.0 as usize - 1, admitted);
        }
    }
    Ok(())
}

fn dfq(engine: &mut Engine, traps: &mut [u64], end_ns: u64) -> Result<(), Failure> {
    let tenants = traps.len();
    let mut rule = policy("dfq", tenants)?;
    let mut known = (None, vec![Demand::Nothing; tenants]);
    let mut before = engine.service_ns();
    let mut period_at = DECISION_PERIOD_NS.0;
    while engine.now_ns() < end_ns {
        let at = Moment(engine.now_ns());
        let state = engine
            .running()
            .map_or(EngineState::Idle, |of| EngineState::Running(id(of)));
        for tenant in 0..tenants {
            let demand = match (engine.waits(tenant), engine.running() == Some(tenant)) {
                (true, _) => Demand::Queued,
                (false, true) => Demand::Executes,
                (false, false) => Demand::Nothing,
            };
            if std::mem::replace(&mut known.1[tenant], demand) != demand {
                rule.observe(at, EngineEvent::Demand(id(tenant), demand));
            }
        }
        if known.0.replace(state) != Some(state) {
            rule.observe(at, EngineEvent::State(state));
        }
        let mut decisions = rule.decide(at).to_vec();
        if engine.now_ns() >= period_at {
            let service = engine.service_ns();
            let parts: Vec<TenantPeriod> = (0..tenants)
                .map(|tenant| TenantPeriod {
                    tenant: id(tenant),
                    used_ns: Nanos(service[tenant] - before[tenant]),
                    charged_ns: Nanos(service[tenant] - before[tenant]),
                    admitted: true,
                    backlogged: engine.has_work(tenant),
                })
                .collect();
            before = service;
            period_at += DECISION_PERIOD_NS.0;
            let usage = PeriodUsage {
                end: at,
                basis: Basis::Measured,
                poll_ns: DECISION_PERIOD_NS,
                nonpoll_ns: Nanos::ZERO,
                tenants: &parts,
            };
            decisions.extend(rule.period_end(&usage));
        }
        for decided in decisions {
            let admitted = decided.decision == Decision::Admit;
            engine.admit(decided.tenant.0 as usize - 1, admitted);
        }
        let asked = rule
            .decide_at()
            .map_or(u64::MAX, |at| at.0.max(engine.now_ns() + 1));
        engine.step(end_ns.min(period_at).min(asked));
    }
    Ok(())
}
