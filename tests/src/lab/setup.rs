//! What a run is made from, and what comes of it.

use turnstile_accounting::meter::PhasePlan;
use turnstile_accounting::{Moment, Nanos};
use turnstile_policies::{DECISION_PERIOD_NS, DEFAULT_POLICY, PolicyRow, policy_by_name};

use super::guest::Load;

/// How engine state is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeterSetup {
    /// From the context-switch log; a decision every `period_ns`.
    Events {
        /// From one decision to the next.
        period_ns: Nanos,
    },
    /// From status registers, in LoGA's poll phases; a decision at the end of each.
    Polled {
        /// Lengths per channel.
        phases: PhasePlan,
        /// Whether lengths vary around their mean.
        randomised: bool,
        /// Length of one read of the registers.
        iteration_ns: Nanos,
    },
}

impl MeterSetup {
    /// LoGA's defaults: 1 ms polled, 5 ms not, per channel in use; one read takes 1 us.
    pub fn loga() -> Self {
        Self::Polled {
            phases: PhasePlan::default(),
            randomised: true,
            iteration_ns: Nanos::from_us(1),
        }
    }

    /// The registers are read all the time; a decision every `period_ns`.
    pub fn always_polled(period_ns: Nanos) -> Self {
        Self::Polled {
            phases: PhasePlan {
                base_poll_ns: period_ns,
                // The least there is: 1 ns a cycle.
                base_nonpoll_ns: Nanos::ZERO,
                ..PhasePlan::default()
            },
            randomised: false,
            iteration_ns: Nanos::from_us(1),
        }
    }
}

/// When the daemon takes the engine to have run dry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dry {
    /// The status register shows nobody. That is so while contexts are changed and while the gate of whoever is due is
    /// still opening, too; who is let in then gets what nobody would have given it: laws 2 and 3 do not hold.
    NobodyRuns,
    /// Nobody runs, no channel has anything to do, and no gate is opening.
    NothingPending,
}

/// A run.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Who decides.
    pub policy: PolicyRow,
    /// How engine state is read.
    pub meter: MeterSetup,
    /// How often, between two decisions, an engine without work is looked for.
    pub tick_ns: Nanos,
    /// From a request of the daemon until the gate has moved. SOURCE: 60 us, about what closing
    /// one takes under KVM (`cargo bench -p turnstile-vmm --bench gates`).
    pub gate_move_ns: Nanos,
    /// From a trapped doorbell until the daemon knows. An assumption: one wake-up of a thread.
    pub kick_ns: Nanos,
    /// Whether the daemon is told of writes that are kept at closed gates, not only of those let through at watched
    /// ones. Law 4 needs it.
    pub kick_when_kept: bool,
    /// When the engine has run dry.
    pub dry: Dry,
    /// Polled meter: whether held tenants are let in while the registers are polled, as LoGA's text has it; the daemon,
    /// like LoGA's code, keeps them out.
    pub admit_while_polling: bool,
    /// What an engine spends on changing from one tenant to another.
    pub switch_ns: Nanos,
    /// Seed of all that is random.
    pub seed: u64,
    /// How long the run is.
    pub end: Moment,
    /// Length of the windows of [`Outcome::windows`].
    pub window_ns: Nanos,
    /// Whether laws 2 and 3 are enforced: they hold for fair queuing by what was measured.
    pub enforce_lag: bool,
    /// Whether law 4 is enforced: it holds for policies that let someone in when the engine runs dry.
    pub enforce_work_conserving: bool,
}

impl Setup {
    /// A run of the default policy with the event meter, all laws enforced.
    pub fn new(seed: u64, end: Moment) -> Self {
        Self {
            // PANIC: the table has a row for its own default.
            policy: *policy_by_name(DEFAULT_POLICY).expect("the default policy"),
            meter: MeterSetup::Events {
                period_ns: DECISION_PERIOD_NS,
            },
            tick_ns: Nanos::from_us(250),
            gate_move_ns: Nanos::from_us(60),
            kick_ns: Nanos::from_us(10),
            kick_when_kept: true,
            dry: Dry::NothingPending,
            admit_while_polling: false,
            switch_ns: Nanos::from_us(2),
            seed,
            end,
            window_ns: Nanos::from_ms(1_000),
            enforce_lag: true,
            enforce_work_conserving: true,
        }
    }

    /// The same with another policy, and of the laws those that it promises.
    ///
    /// # Panics
    /// There is no such policy.
    pub fn with_policy(self, name: &str) -> Self {
        let policy = policy_by_name(name).unwrap_or_else(|| panic!("no policy is called {name}"));
        Self {
            policy: *policy,
            enforce_lag: name == "dfq" && matches!(self.meter, MeterSetup::Events { .. }),
            enforce_work_conserving: name != "dfq-literal",
            ..self
        }
    }

    /// The same with another meter. A sample says nothing about any one period, so laws 2 and 3 hold for exact usage
    /// only.
    pub fn with_meter(self, meter: MeterSetup) -> Self {
        Self {
            meter,
            enforce_lag: self.enforce_lag && matches!(meter, MeterSetup::Events { .. }),
            ..self
        }
    }

    /// What the mediator may take to let somebody in when the engine runs dry: it has to be told of the kept write, to
    /// look (twice, if a gate was opening at first), and to wait for two gate moves, as one in the other direction may be
    /// under way. While it polls it does not look.
    pub fn reaction_ns(&self, tenants: usize) -> Nanos {
        let moves = Nanos(2 * self.gate_move_ns.0);
        let polling = match self.meter {
            MeterSetup::Events { .. } => Nanos::ZERO,
            MeterSetup::Polled { phases, .. } => {
                let channels = u32::try_from(tenants).unwrap_or(u32::MAX);
                let mean = phases.mean(channels, channels);
                Nanos(mean.poll_ns.0 / 2 * 3)
            }
        };
        self.kick_ns + Nanos(2 * self.tick_ns.0) + moves + polling
    }
}

/// A tenant of a run; ids are 1, 2, and so on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Participant {
    /// Its weight.
    pub weight: u32,
    /// What it wants.
    pub load: Load,
}

impl Participant {
    /// A tenant.
    pub const fn new(weight: u32, load: Load) -> Self {
        Self { weight, load }
    }
}

/// What came of a run. Lists are by tenant, in the order of the participants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Compute engine time by `[window][tenant]`, from the engine's own log.
    pub windows: Vec<Vec<Nanos>>,
    /// The same, of the whole run.
    pub service_ns: Vec<Nanos>,
    /// What the ledger charges: with the polled meter a part of it is extrapolated.
    pub charged_ns: Vec<Nanos>,
    /// What the meter observed itself.
    pub observed_ns: Vec<Nanos>,
    /// Compute engine time in the windows that the meter observed.
    pub observable_ns: Vec<Nanos>,
    /// Length of all windows that the meter observed.
    pub observed_wall_ns: Nanos,
    /// Length of all windows in the ledger.
    pub ledger_wall_ns: Nanos,
    /// Time for which tenants were held back.
    pub held_ns: Vec<Nanos>,
    /// Launches that ended.
    pub launches: Vec<u64>,
    /// Time in which the compute engine had nothing to do.
    pub idle_ns: Nanos,
    /// Time in which it changed contexts.
    pub switching_ns: Nanos,
    /// Longest stretch in which it was idle while a doorbell write was kept behind a gate.
    pub idle_behind_gate_max_ns: Nanos,
    /// Largest lag of laws 2 and 3, in thousandths of what they allow.
    pub lag_permille: u64,
    /// Requests to gates.
    pub gate_moves: u64,
    /// Doorbell writes that trapped.
    pub traps: u64,
    /// How often somebody was let in because the engine had run dry.
    pub dry_admissions: u64,
    /// Decisions taken at ends of periods.
    pub periods: u64,
    /// Steps of the run, after each of which the laws were checked.
    pub steps: u64,
    /// Of the log and of all decisions: equal for equal runs.
    pub hash: u64,
}

impl Outcome {
    /// Engine time of all tenants.
    pub fn busy_ns(&self) -> Nanos {
        self.service_ns.iter().copied().sum()
    }
}
