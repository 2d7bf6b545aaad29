//! Adversary: attackers against a victim of another account, drawn by seed.
//!
//! In: a seed. Out: the victim's worst window in served time: the shortfall of its service against
//! its part of all service, over any stretch of the run. Victims saturate or pause less than they
//! run, so that their part is what they are entitled to. One seed in five is random; the others
//! follow a [`Guide`]. Attackers share one account or have one each; then laws 2 and 3 are checked
//! too. The policies' own tests cover work that is not a kernel.

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use turnstile_accounting::{Moment, Nanos};

use crate::daemon_loop::guest::{Lengths, Load};
use crate::daemon_loop::laws::Violation;
use crate::daemon_loop::world::{MeterSetup, Outcome, Participant, Setup, run};
use crate::result::{Failure, Parameters, Quantity, Report, number};
use crate::seeds::{Seeds, over_seeds};

/// Length of a run.
pub const END: Moment = Moment(2_000_000_000);
/// Lengths of attackers' kernels, in microseconds.
const KERNELS_US: [u64; 7] = [10, 50, 200, 1_000, 10_000, 100_000, 1_000_000];
/// Pauses of attackers, in microseconds; 950 and 990 are just below the patience.
const PAUSES_US: [u64; 7] = [0, 100, 950, 990, 1_000, 5_000, 30_000];
/// Tenants of the attacking account.
const CROWDS: [usize; 3] = [1, 4, 40];
/// From one sample of the services to the next.
const SAMPLE: Nanos = Nanos::from_us(250);
/// The bound on being ahead, and the reaction.
const ALLOWED: Nanos = Nanos::from_us(2_000);
/// Policies, and whether they see polls 1:5. Those but the first, which is promised to hold, run
/// with at most [`OTHERS_SEEDS`].
const POLICIES: [(&str, bool); 4] = [
    ("dfq", false),
    ("none", false),
    ("dfq", true),
    ("dfq-literal", true),
];
const OTHERS_SEEDS: u64 = 200;

/// What an attacker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guide {
    /// Any kernels, depths and pauses.
    Random,
    /// Its commands come once in each cycle of the polls, at one phase of it.
    BurstBetweenPolls,
    /// Now and then one kernel of up to a second.
    OneHugeKernel,
    /// Forty tenants, each with little work.
    ManyChannels,
    /// Long idle, then many commands at once.
    IdleAndReturn,
}

const GUIDES: [Guide; 5] = [
    Guide::Random,
    Guide::BurstBetweenPolls,
    Guide::OneHugeKernel,
    Guide::ManyChannels,
    Guide::IdleAndReturn,
];

impl Guide {
    /// Loads of the attackers.
    fn loads(self, random: &mut SmallRng) -> Vec<Load> {
        // Bursts of so many kernels, from a moment on, once in a cycle.
        let bursts = |from: u64, cycle: u64, count: u64, length: u64, depth| {
            let burst = |at: u64| (0..count).map(move |_| (Moment(at), Nanos(length)));
            let work = (from..END.0)
                .step_by(cycle as usize)
                .flat_map(burst)
                .collect();
            Load::Open { work, depth }
        };
        match self {
            Self::Random => {
                let crowd = *CROWDS.choose(random).unwrap_or(&1);
                (0..crowd).map(|_| any(random)).collect()
            }
            Self::BurstBetweenPolls => {
                // The phases of two tenants: polled for 2 ms, and not for 10.
                let cycle = 12_000_000;
                let length = random.random_range(1_000_000..=10_000_000);
                let count = *[1, 4].choose(random).unwrap_or(&1);
                let from = random.random_range(0..cycle);
                vec![bursts(from, cycle, count, length / count, 8)]
            }
            Self::OneHugeKernel => {
                let length = random.random_range(50_000_000..=1_000_000_000);
                let cycle = length + random.random_range(0..=500_000_000);
                vec![bursts(
                    random.random_range(0..=100_000_000),
                    cycle,
                    1,
                    length,
                    1,
                )]
            }
            Self::ManyChannels => {
                let kernel = random.random_range(10..=500);
                let pause = random.random_range(0..=20_000);
                let all = (0..40).map(|_| Load::program(kernel, 1, pause));
                all.collect()
            }
            Self::IdleAndReturn => {
                let cycle = random.random_range(50_000_000..=1_000_000_000);
                let length = random.random_range(10_000..=5_000_000);
                let count = random.random_range(1..=cycle / length / 2 + 1).min(1_000);
                let depth = *[1, 8, 32].choose(random).unwrap_or(&1);
                vec![bursts(
                    random.random_range(0..cycle),
                    cycle,
                    count,
                    length,
                    depth,
                )]
            }
        }
    }
}

/// Any program.
fn any(random: &mut SmallRng) -> Load {
    let kernels = random.random_range(1..=3);
    let mut kernel = || Nanos::from_us(*KERNELS_US.choose(random).unwrap_or(&10));
    let kernels_ns: Vec<Nanos> = (0..kernels).map(|_| kernel()).collect();
    let pause = *PAUSES_US.choose(random).unwrap_or(&0);
    Load::Program {
        kernels_ns,
        depth: *[1, 1, 2, 8].choose(random).unwrap_or(&1),
        pauses: Lengths::of(Nanos::from_us(pause)),
        start: Moment(random.random_range(0..20_000_000)),
    }
}

/// A victim beside attackers.
#[derive(Clone, Debug)]
pub struct Attack {
    /// What the attackers follow.
    pub guide: Guide,
    /// Kernel in microseconds, depth and pause in microseconds of the victim.
    pub victim: (u64, u32, u64),
    /// Loads of the attackers.
    pub attackers: Vec<Load>,
    /// The attackers have an account each, and not one together.
    pub accounts: bool,
}

impl Attack {
    /// The attack of this seed.
    pub fn of(seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let victims = [(1_000, 4, 0), (1_000, 1, 0), (200, 1, 100)];
        // CAST: below five.
        let guide = GUIDES[(seed % GUIDES.len() as u64) as usize];
        Self {
            guide,
            victim: *victims.choose(&mut random).unwrap_or(&victims[0]),
            attackers: guide.loads(&mut random),
            accounts: random.random(),
        }
    }

    /// One run.
    ///
    /// # Errors
    /// A law was broken.
    pub fn run(&self, seed: u64, policy: &str, polled: bool) -> Result<Outcome, Violation> {
        let (kernel_us, depth, pause_us) = self.victim;
        let victim = Participant::new(100, Load::program(kernel_us, depth, pause_us));
        let attackers = self.attackers.iter().map(|load| Participant {
            account: (!self.accounts).then_some(1),
            ..Participant::new(100, load.clone())
        });
        let tenants: Vec<_> = std::iter::once(victim).chain(attackers).collect();
        let setup = Setup {
            window_ns: SAMPLE,
            // LoGA's text admits held tenants while they are polled.
            admit_while_polling: policy == "dfq-literal",
            ..Setup::new(seed, END)
        };
        let setup = setup.with_policy(policy);
        let setup = Setup {
            // The laws compare tenants that have an account each.
            enforce_lag: setup.enforce_lag && self.accounts,
            ..setup
        };
        run(
            match polled {
                true => setup.with_meter(MeterSetup::loga()),
                false => setup,
            },
            &tenants,
        )
    }

    /// The largest permitted shortfall of the victim: the longest kernel of an attacker, the bound
    /// on being ahead, and the reaction.
    pub fn allowed_ns(&self) -> u64 {
        let longest = self.attackers.iter().filter_map(Load::lengths);
        longest.map(|of| of.longest_ns.0).max().unwrap_or(0) + ALLOWED.0
    }

    /// The shortfall of the victim against its part of all service, in the worst stretch between
    /// two samples, in nanoseconds.
    pub fn worst_window_ns(&self, outcome: &Outcome) -> u64 {
        // CAST: at most 40 attackers.
        let others = if self.accounts {
            self.attackers.len() as i64
        } else {
            1
        };
        // The shortfall, times all parts: the others' service beyond that many times the victim's.
        let (mut now, mut least, mut worst) = (0i64, 0, 0);
        for window in &outcome.windows {
            let served: u64 = window[1..].iter().map(|ns| ns.0).sum();
            now += served as i64 - others * window[0].0 as i64;
            least = least.min(now);
            worst = worst.max(now - least);
        }
        (worst / (others + 1)) as u64
    }
}

/// The experiment.
///
/// # Errors
/// A law was broken.
pub fn report(seeds: &Seeds) -> Result<Report, Failure> {
    let (mut quantities, mut notes) = (Vec::new(), Vec::new());
    for (place, (policy, polled)) in POLICIES.into_iter().enumerate() {
        let count = match place {
            0 => seeds.count(),
            _ => seeds.count().min(OTHERS_SEEDS),
        };
        // Fewer than those that exist.
        let seeds = Seeds::new(seeds.first(), count).unwrap_or_else(|| seeds.clone());
        let of_seeds = over_seeds(&seeds, |seed| {
            let attack = Attack::of(seed);
            let outcome = attack.run(seed, policy, polled)?;
            let short = attack.worst_window_ns(&outcome) as f64;
            let part = outcome.service_ns[0].0 as f64 / outcome.busy_ns().0 as f64;
            Ok::<_, Failure>((short / attack.allowed_ns() as f64, part * 100.0))
        })?;
        let name = match polled {
            true => format!("{policy}, polled 1:5"),
            false => format!("{policy}, events"),
        };
        for guide in GUIDES {
            let of_guide = (seeds.first()..).zip(&of_seeds);
            let of_guide = of_guide.filter(|(seed, _)| Attack::of(*seed).guide == guide);
            let of_guide: Vec<(u64, (f64, f64))> = of_guide.map(|(at, of)| (at, *of)).collect();
            let worst = of_guide.iter().max_by(|a, b| a.1.0.total_cmp(&b.1.0));
            let Some((seed, (over, part))) = worst else {
                continue;
            };
            notes.push(format!(
                "{name}, {guide:?}: worst in seed {seed}, {} of what is allowed, the victim has {} %.",
                number(*over),
                number(*part)
            ));
            let values = of_guide.iter().map(|(_, of)| of.0).collect();
            let name = format!("{name}, {guide:?}: worst window, of what is allowed");
            let one = Quantity::over(name, "", values);
            quantities.push(match place {
                0 => one.between(0.0, 1.0),
                _ => one,
            });
        }
        let parts = of_seeds.iter().map(|of| of.1).collect();
        quantities.push(Quantity::over(
            format!("{name}: victim, of served time"),
            "%",
            parts,
        ));
    }
    notes.push(
        "Allowed: one attacker kernel, 1 ms ahead and 1 ms of reaction, in served time. By events \
         `dfq` obeys laws 2 and 3 in each run with separate accounts."
            .to_owned(),
    );
    notes.push(
        "Once with seeds 0 to 9999, 28 November 2026: `dfq` by events 0.846 of what is allowed in \
         seed 9093 (ManyChannels), 0.745 in 1380 (Random), 0.598 in 4366 and 3334, 0.499 in 6702."
            .to_owned(),
    );
    Ok(Report {
        title: format!(
            "A victim beside attackers, 2 s; policies but dfq by events with at most {OTHERS_SEEDS} seeds"
        ),
        parameters: Parameters {
            chosen: "all",
            ..Parameters::default()
        },
        quantities,
        notes,
        ..Report::default()
    })
}
