//! Parameters of a run, and its result.

use turnstile_accounting::meter::PhasePlan;
use turnstile_accounting::{Moment, Nanos};
use turnstile_gpu::Suspend;
use turnstile_policies::{DECISION_PERIOD_NS, DEFAULT_POLICY, PolicyRow, Tuning, policy_by_name};

use super::guest::Load;

/// The source of engine state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeterSetup {
    /// From the context-switch log; a decision every `period_ns`.
    Events {
        /// Time between two decisions.
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
        /// Whether the meter pauses between two reads, by the mean length of the engine's states.
        adaptive: bool,
    },
}

impl MeterSetup {
    /// LoGA's defaults: 1 ms polled, 5 ms not, per channel in use; one read takes 1 us.
    pub fn loga() -> Self {
        Self::Polled {
            phases: PhasePlan::default(),
            randomised: true,
            iteration_ns: Nanos::from_us(1),
            adaptive: false,
        }
    }

    /// LoGA's phases, with pauses between the reads.
    pub fn adaptive() -> Self {
        Self::Polled {
            phases: PhasePlan::default(),
            randomised: true,
            iteration_ns: Nanos::from_us(1),
            adaptive: true,
        }
    }

    /// Reads the registers all the time, with a decision every `period_ns`.
    pub fn always_polled(period_ns: Nanos) -> Self {
        Self::Polled {
            phases: PhasePlan {
                base_poll_ns: period_ns,
                // The least possible: 1 ns per cycle.
                base_nonpoll_ns: Nanos::ZERO,
                ..PhasePlan::default()
            },
            randomised: false,
            iteration_ns: Nanos::from_us(1),
            adaptive: false,
        }
    }
}

/// A run.
#[derive(Clone, Copy, Debug)]
// FIELDS: settings, each of its own.
pub struct Setup {
    /// The policy.
    pub policy: PolicyRow,
    /// The source of engine state.
    pub meter: MeterSetup,
    /// Interval of polls for an idle engine between two decisions.
    pub tick_ns: Nanos,
    /// From a request of the daemon until the gate has moved. SOURCE: 60 us, about the time to
    /// close one under KVM (`cargo bench -p turnstile-vmm --bench gates`).
    pub gate_move_ns: Nanos,
    /// From a trapped doorbell, or a notice of the GPU, until the daemon acts. An assumption: one
    /// wake-up of a thread.
    pub kick_ns: Nanos,
    /// Polled meter: whether held tenants are admitted while the registers are polled, as in LoGA's
    /// text. The daemon, like LoGA's code, does not admit them.
    pub admit_while_polling: bool,
    /// How queued work of a held tenant can be stopped.
    pub suspend: Suspend,
    /// Time in which an engine changes from one tenant to another.
    pub switch_ns: Nanos,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Length of the run.
    pub end: Moment,
    /// Length of the windows of [`Outcome::windows`].
    pub window_ns: Nanos,
    /// Whether laws 2 and 3 are enforced: they hold for fair queuing by measured usage.
    pub enforce_lag: bool,
    /// Whether law 4 is enforced: it holds for policies that admit a tenant when the engine is
    /// idle.
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
            suspend: Suspend::BetweenCommands,
            admit_while_polling: false,
            switch_ns: Nanos::from_us(2),
            seed,
            end,
            window_ns: Nanos::from_ms(1_000),
            enforce_lag: true,
            enforce_work_conserving: true,
        }
    }

    /// This setup with another policy, and the laws that the policy promises.
    ///
    /// # Panics
    /// If there is no such policy.
    pub fn with_policy(self, name: &str) -> Self {
        let policy = policy_by_name(name).unwrap_or_else(|| panic!("no policy is called {name}"));
        Self {
            policy: *policy,
            enforce_lag: name == "dfq" && matches!(self.meter, MeterSetup::Events { .. }),
            enforce_work_conserving: name != "dfq-literal",
            ..self
        }
    }

    /// This setup with another meter. A sample does not measure any single period, so laws 2 and 3
    /// hold for exact usage only.
    pub fn with_meter(self, meter: MeterSetup) -> Self {
        Self {
            meter,
            enforce_lag: self.enforce_lag && matches!(meter, MeterSetup::Events { .. }),
            ..self
        }
    }

    /// Longest permitted idle time of the engine while a held tenant has work: the patience, and
    /// the mediator's reaction. The mediator has to be notified of the kept write and to poll,
    /// twice if a gate was opening at first. Then it waits for two gate moves, as one in the other
    /// direction may be under way. In a poll phase it does not act.
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
        let patience = Tuning::default().patience_ns;
        self.kick_ns + Nanos(2 * self.tick_ns.0) + moves + polling + patience
    }
}

/// A tenant of a run; ids are 1, 2, and so on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Participant {
    /// Its weight within its account.
    pub weight: u32,
    /// Its account; none for an account with this tenant alone, which has the same weight.
    pub account: Option<u32>,
    /// Its load.
    pub load: Load,
    /// When it becomes a tenant; after the beginning in the order of the list, and last in it.
    pub joins: Moment,
}

impl Participant {
    /// A tenant from the beginning on.
    pub const fn new(weight: u32, load: Load) -> Self {
        Self {
            weight,
            account: None,
            load,
            joins: Moment(0),
        }
    }
}

/// Result of a run. Lists are by tenant, in the order of the participants.
#[derive(Clone, Debug, PartialEq, Eq)]
// FIELDS: a report: one figure each.
pub struct Outcome {
    /// Compute engine time by `[window][tenant]`, from the engine's own log.
    pub windows: Vec<Vec<Nanos>>,
    /// Compute engine time of the whole run, by tenant.
    pub service_ns: Vec<Nanos>,
    /// Charges of the ledger: with the polled meter a part of them is estimated.
    pub charged_ns: Vec<Nanos>,
    /// Time that the meter observed itself.
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
    /// Time in which the compute engine had nothing to execute.
    pub idle_ns: Nanos,
    /// Time in which it changed contexts.
    pub switching_ns: Nanos,
    /// Longest idle time of the engine while a doorbell write was kept behind a gate.
    pub idle_behind_gate_max_ns: Nanos,
    /// Largest lag of laws 2 and 3, in thousandths of the bound.
    pub lag_permille: u64,
    /// Requests to gates.
    pub gate_moves: u64,
    /// Doorbell writes that trapped.
    pub traps: Vec<u64>,
    /// Decisions taken at ends of periods.
    pub periods: u64,
    /// Steps of the run, after each of which the laws were checked.
    pub steps: u64,
    /// Hash of the log and of all decisions: equal for equal runs.
    pub hash: u64,
}

impl Outcome {
    /// Doorbell writes of tenant `place` that trapped, for each launch that ended.
    pub fn traps_per_launch(&self, place: usize) -> f64 {
        self.traps[place] as f64 / self.launches[place].max(1) as f64
    }

    /// Compute engine time after the first window.
    pub fn settled_ns(&self) -> Vec<Nanos> {
        let places = 0..self.service_ns.len();
        let settled = || self.windows.iter().skip(1);
        places
            .map(|place| settled().map(|window| window[place]).sum())
            .collect()
    }

    /// Compute engine time after the first window, in percent of that time.
    pub fn settled_percent(&self, setup: &Setup) -> Vec<f64> {
        let windows = self.windows.len().saturating_sub(1).max(1) as f64;
        let wall_ns = windows * setup.window_ns.0 as f64;
        let all = self.settled_ns();
        all.iter().map(|ns| ns.0 as f64 / wall_ns * 100.0).collect()
    }

    /// Engine time of all tenants.
    pub fn busy_ns(&self) -> Nanos {
        self.service_ns.iter().copied().sum()
    }
}
