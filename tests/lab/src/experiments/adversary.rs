//! Adversary: one account's tenants against a victim of another, programs drawn by seed.
//!
//! In: a seed. Out: the victim's worst window in served time: the shortfall of its service against
//! half of all service, over any stretch of the run. Victims saturate or pause less than they run,
//! so half is what they are entitled to. The policies' own tests cover tenants that leave and
//! return, and work that is not a kernel.

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use turnstile_accounting::{Moment, Nanos};

use crate::daemon_loop::guest::{Lengths, Load};
use crate::daemon_loop::laws::Violation;
use crate::daemon_loop::world::{Outcome, Participant, Setup, run};
use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::{Seeds, over_seeds};

/// Length of a run.
pub const END: Moment = Moment(4_000_000_000);
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

/// A victim beside attackers.
#[derive(Clone, Debug)]
pub struct Attack {
    /// Kernel in microseconds, depth and pause in microseconds of the victim.
    pub victim: (u64, u32, u64),
    /// Loads of the attacking account's tenants.
    pub attackers: Vec<Load>,
    /// The longest kernel of an attacker.
    pub longest: Nanos,
}

impl Attack {
    /// The attack of this seed.
    pub fn of(seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let victims = [(1_000, 4, 0), (1_000, 1, 0), (200, 1, 100)];
        let crowd = *CROWDS.choose(&mut random).unwrap_or(&1);
        let mut longest = Nanos::ZERO;
        let attackers = (0..crowd).map(|_| {
            let kernels = random.random_range(1..=3);
            let mut kernel = || Nanos::from_us(*KERNELS_US.choose(&mut random).unwrap_or(&10));
            let kernels_ns: Vec<Nanos> = (0..kernels).map(|_| kernel()).collect();
            longest = kernels_ns.iter().copied().fold(longest, Nanos::max);
            let pause = *PAUSES_US.choose(&mut random).unwrap_or(&0);
            Load::Program {
                kernels_ns,
                depth: *[1, 1, 2, 8].choose(&mut random).unwrap_or(&1),
                pauses: Lengths::of(Nanos::from_us(pause)),
                start: Moment(random.random_range(0..20_000_000)),
            }
        });
        let attackers = attackers.collect();
        Self {
            victim: *victims.choose(&mut random).unwrap_or(&victims[0]),
            attackers,
            longest,
        }
    }

    /// One run.
    ///
    /// # Errors
    /// A law was broken.
    pub fn run(&self, seed: u64, policy: &str) -> Result<Outcome, Violation> {
        let (kernel_us, depth, pause_us) = self.victim;
        let victim = Participant::new(100, Load::program(kernel_us, depth, pause_us));
        let attackers = self.attackers.iter().map(|load| Participant {
            account: Some(1),
            ..Participant::new(100, load.clone())
        });
        let tenants: Vec<_> = std::iter::once(victim).chain(attackers).collect();
        let setup = Setup {
            window_ns: SAMPLE,
            ..Setup::new(seed, END)
        };
        let setup = Setup {
            // The law compares tenants, and the attackers share one account.
            enforce_lag: false,
            ..setup.with_policy(policy)
        };
        run(setup, &tenants)
    }

    /// The largest permitted shortfall of the victim.
    pub fn allowed_ns(&self) -> u64 {
        self.longest.0 + ALLOWED.0
    }
}

/// The shortfall of the victim, the first tenant, against half of all service, in the worst stretch
/// between two samples, in nanoseconds.
pub fn worst_window_ns(outcome: &Outcome) -> u64 {
    // Twice the shortfall: the others' service beyond the victim's.
    let (mut now, mut least, mut worst) = (0i64, 0, 0);
    for window in &outcome.windows {
        let others: u64 = window[1..].iter().map(|ns| ns.0).sum();
        now += others as i64 - window[0].0 as i64;
        least = least.min(now);
        worst = worst.max(now - least);
    }
    (worst / 2) as u64
}

/// The experiment.
///
/// # Errors
/// A law was broken.
pub fn report(seeds: &Seeds) -> Result<Report, Failure> {
    let mut quantities = Vec::new();
    for policy in ["none", "dfq"] {
        let of_seeds = over_seeds(seeds, |seed| {
            let attack = Attack::of(seed);
            let outcome = attack.run(seed, policy)?;
            let short = worst_window_ns(&outcome) as f64;
            let part = outcome.service_ns[0].0 as f64 / outcome.busy_ns().0 as f64;
            Ok::<_, Failure>((short / attack.allowed_ns() as f64, part * 100.0))
        })?;
        let over = of_seeds.iter().map(|of| of.0).collect();
        let over = Quantity::over(
            format!("{policy}: worst window, of what is allowed"),
            "",
            over,
        );
        let parts = of_seeds.iter().map(|of| of.1).collect();
        quantities.extend([
            match policy {
                "dfq" => over.between(0.0, 1.0),
                _ => over,
            },
            Quantity::over(format!("{policy}: victim, of served time"), "%", parts),
        ]);
    }
    Ok(Report {
        title: "A victim beside tenants of one other account, 4 s".to_owned(),
        parameters: Parameters {
            chosen: "all",
            ..Parameters::default()
        },
        quantities,
        notes: vec![
            "Allowed: one attacker kernel, 1 ms ahead and 1 ms of reaction, in served time."
                .to_owned(),
        ],
        ..Report::default()
    })
}
