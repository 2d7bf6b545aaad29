//! Launch and wait: pairs of tenants of which one or both pause after their kernels, under each
//! policy.
//!
//! In: a policy, how kernels are suspended, two programs and their weights. Out: the part of the
//! served time that each gets, against its entitlement. That is weighted max-min of what each uses
//! alone, measured in the same call.
//!
//! The engine cannot be busier than `min(1, (T + n k) / (T + n (k + p) - p))` at the entitled
//! shares, with `n = T e / ((1 - e) k)`. `T` is the kernel of the tenant that keeps work queued;
//! `k`, `p` and `e` are kernel, pause and entitled part of the other.

use turnstile_accounting::Moment;
use turnstile_accounting::share::{Claim, shares, water_fill};
use turnstile_gpu::Suspend;

use crate::daemon_loop::guest::Load;
use crate::daemon_loop::laws::Violation;
use crate::daemon_loop::world::{Outcome, Participant, Setup, run};
use crate::drive::{Scheduler, drive};
use crate::engine;
use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::{Seeds, over_seeds};

/// Length of a run; the first second does not count.
pub const END: Moment = Moment(4_000_000_000);
/// Policies that are compared.
pub const POLICIES: [&str; 3] = ["none", "dfq", "dfq-literal"];
/// Policies of the lab beside them, without weights and on an engine that stops no kernel.
const COMPARED: [&str; 3] = ["neon", "engaged", "loga-cl"];
/// Lengths of kernels, in microseconds.
pub const KERNELS_US: [u64; 2] = [200, 2_000];
/// Pauses of the second tenant, in microseconds.
pub const PAUSES_US: [u64; 6] = [0, 50, 100, 200, 400, 800];
/// Kernels that the second tenant keeps submitted.
pub const DEPTHS: [u32; 3] = [1, 2, 8];
/// The experiment runs one in so many pairs; the tests run all of them.
const STEP: usize = 7;
/// Unequal weights of the two.
pub const UNEQUAL: [[u32; 2]; 2] = [[100, 300], [300, 100]];

/// A program of one kernel length and one pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// Length of its kernels, in microseconds.
    pub kernel_us: u64,
    /// Kernels submitted at a time.
    pub depth: u32,
    /// Pause before each next kernel, in microseconds.
    pub pause_us: u64,
}

impl Program {
    /// Kernels that follow each other without a pause when the program is alone, in microseconds,
    /// and the pause after them.
    fn burst_us(&self) -> (u64, u64) {
        let burst = self.kernel_us * u64::from(self.depth);
        let covered = burst - self.kernel_us;
        (burst, self.pause_us.saturating_sub(covered))
    }

    /// Whether it keeps work queued when it is alone.
    pub fn keeps_queued(&self) -> bool {
        self.depth > 1 && self.burst_us().1 == 0
    }
}

impl std::fmt::Display for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            kernel_us,
            depth,
            pause_us,
        } = self;
        write!(f, "{kernel_us} us, {depth} deep, pauses {pause_us} us")
    }
}

/// Two programs.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// The first and the second.
    pub programs: [Program; 2],
    /// Their weights.
    pub weights: [u32; 2],
    /// How kernels are suspended.
    pub suspend: Suspend,
}

/// Result of a pair.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Part of the served time that each is entitled to, in percent.
    pub entitled: [f64; 2],
    /// Part of the served time that each got, in percent.
    pub served: [f64; 2],
    /// Busy time of the engine, in percent.
    pub busy: f64,
    /// The most that the engine can be busy at the entitled shares, in percent; none where both
    /// pause.
    pub bound: Option<f64>,
    /// Doorbell writes that trapped, per kernel.
    pub exits: [f64; 2],
}

impl Figures {
    /// Difference of the second one from its entitlement, in percentage points.
    pub fn off_points(&self) -> f64 {
        self.served[1] - self.entitled[1]
    }
}

impl Pair {
    /// Whether the first keeps work queued, so that only the second can pause.
    pub fn one_keeps_queued(&self) -> bool {
        self.programs[0].keeps_queued()
    }

    fn run(
        &self,
        seed: u64,
        policy: &str,
        places: &[usize],
    ) -> Result<(Setup, Outcome), Violation> {
        let participant = |place: &usize| {
            let Program {
                kernel_us,
                depth,
                pause_us,
            } = self.programs[*place];
            let load = Load::program(kernel_us, depth, pause_us);
            Participant::new(self.weights[*place], load)
        };
        let setup = Setup {
            suspend: self.suspend,
            ..Setup::new(seed, END)
        };
        let setup = setup.with_policy(policy);
        let tenants: Vec<_> = places.iter().map(participant).collect();
        Ok((setup, run(setup, &tenants)?))
    }

    /// The parts of the engine by weighted max-min, of what each uses alone.
    fn entitled_ns(&self, seed: u64) -> Result<[u128; 2], Violation> {
        let wall_ns = END.0 - Setup::new(seed, END).window_ns.0;
        let mut claims = Vec::new();
        for (place, weight) in self.weights.into_iter().enumerate() {
            let (_, alone) = self.run(seed, "none", &[place])?;
            claims.push(Claim {
                weight,
                demand: Some(u128::from(alone.settled_ns()[0].0)),
            });
        }
        let parts = water_fill(u128::from(wall_ns), &claims);
        Ok([parts[0], parts[1]])
    }

    /// The result under a policy of the lab, of the model of an engine.
    ///
    /// # Errors
    /// If the lab has no such policy.
    fn compared(&self, policy: &str) -> Result<Figures, Failure> {
        let programs = self
            .programs
            .map(|of| engine::Program::of_us(of.kernel_us, of.depth, of.pause_us));
        let none = Scheduler::by_name("none")?;
        let mut claims = Vec::new();
        for program in &programs {
            let alone = drive(none, std::slice::from_ref(program), END.0)?;
            claims.push(Claim {
                weight: 1,
                demand: Some(u128::from(alone.service_ns[0])),
            });
        }
        let entitled = water_fill(u128::from(END.0), &claims);
        let entitled = entitled.iter().map(|ns| *ns as f64).collect::<Vec<_>>();
        let served = drive(Scheduler::by_name(policy)?, &programs, END.0)?;
        let busy = served.part(0) + served.part(1);
        let percent = |of: f64, all: f64| of / all * 100.0;
        let entitled = [0, 1].map(|place| percent(entitled[place], entitled[0] + entitled[1]));
        Ok(Figures {
            entitled,
            served: [0, 1].map(|place| percent(served.part(place), busy)),
            busy: busy * 100.0,
            bound: self.bound(entitled[1] / 100.0),
            exits: [0, 1].map(|place| served.exits(place)),
        })
    }

    fn bound(&self, entitled: f64) -> Option<f64> {
        if !self.one_keeps_queued() {
            return None;
        }
        let long = self.programs[0].kernel_us as f64;
        let (kernel, pause) = self.programs[1].burst_us();
        let (kernel, pause) = (kernel as f64, pause as f64);
        let kernels = long * entitled / ((1.0 - entitled) * kernel);
        let work = long + kernels * kernel;
        Some(100.0 * work / (work + (kernels - 1.0) * pause).max(work))
    }

    /// The result under each policy, in the order of `policies`.
    ///
    /// # Errors
    /// A law was broken.
    pub fn figures(&self, seed: u64, policies: &[&str]) -> Result<Vec<Figures>, Violation> {
        let entitled_ns = self.entitled_ns(seed)?;
        let sum = (entitled_ns[0] + entitled_ns[1]) as f64;
        let entitled = entitled_ns.map(|ns| ns as f64 / sum * 100.0);
        let figures = |policy: &&str| {
            let (setup, outcome) = self.run(seed, policy, &[0, 1])?;
            let served = shares(&outcome.settled_ns());
            Ok(Figures {
                entitled,
                served: [served[0] * 100.0, served[1] * 100.0],
                busy: outcome.settled_percent(&setup).iter().sum(),
                bound: self.bound(entitled[1] / 100.0),
                exits: [0, 1].map(|place| outcome.traps_per_launch(place)),
            })
        };
        policies.iter().map(figures).collect()
    }
}

/// The pairs: a first tenant that keeps 8 kernels queued, or pauses 100 us after each, beside each
/// kernel length, depth and pause. Then the unequal weights, at which the second launches and
/// waits.
pub fn pairs(suspend: Suspend) -> Vec<Pair> {
    let mut all = Vec::new();
    for (depth, pause_us) in [(8, 0), (1, 100)] {
        for first in KERNELS_US {
            let first = Program {
                kernel_us: first,
                depth,
                pause_us,
            };
            for kernel_us in KERNELS_US {
                for depth in DEPTHS {
                    all.extend(PAUSES_US.map(|pause_us| {
                        let second = Program {
                            kernel_us,
                            depth,
                            pause_us,
                        };
                        Pair {
                            programs: [first, second],
                            weights: [100, 100],
                            suspend,
                        }
                    }));
                }
            }
        }
    }
    let waits = |pair: &&Pair| pair.one_keeps_queued() && pair.programs[1].depth == 1;
    let waiting: Vec<Pair> = all.iter().filter(waits).copied().collect();
    for weights in UNEQUAL {
        all.extend(waiting.iter().map(|pair| Pair { weights, ..*pair }));
    }
    all
}

/// The quantities of a policy over pairs; with what the product promises in points.
fn summary(name: &str, figures: Vec<&Figures>, points: Option<f64>) -> Vec<Quantity> {
    let over = |what: &str, unit, of: &dyn Fn(&Figures) -> Option<f64>| {
        let values = figures.iter().filter_map(|figures| of(figures));
        Quantity::over(format!("{name}: {what}"), unit, values.collect())
    };
    let off = over("off the entitlement", "points", &|of| Some(of.off_points()));
    let busy = over("busy, of what it can be", "", &|of| {
        Some(of.busy / of.bound?)
    });
    let exits = over("exits a kernel of the first", "", &|of| Some(of.exits[0]));
    let (off, busy) = match points {
        Some(points) => (
            off.between(-points, points),
            busy.between(0.95, f64::INFINITY),
        ),
        None => (off, busy),
    };
    let all = [off, busy, exits].into_iter();
    all.filter(Quantity::has_value).collect()
}

/// The experiment: over all pairs of a kind, for each policy.
///
/// # Errors
/// A law was broken.
pub fn report(seeds: &Seeds) -> Result<Report, Failure> {
    let mut quantities = Vec::new();
    for (suspend, both_pause_points) in
        [(Suspend::BetweenCommands, 8.0), (Suspend::MidKernel, 10.0)]
    {
        let all: Vec<Pair> = pairs(suspend).into_iter().step_by(STEP).collect();
        let kinds = [
            ("one keeps work queued", true, 3.0),
            ("both pause", false, both_pause_points),
        ];
        for (kind, keeps, points) in kinds {
            let of_kind: Vec<&Pair> = all
                .iter()
                .filter(|pair| {
                    (pair.one_keeps_queued() || pair.programs[1].keeps_queued()) == keeps
                })
                .collect();
            let places = 0..of_kind.len() as u64 * seeds.count();
            let figures = over_seeds(places.end, |place| {
                let pair = of_kind[(place / seeds.count()) as usize];
                pair.figures(seeds.first() + place % seeds.count(), &POLICIES)
            })?;
            let name = |policy| format!("{policy}, {suspend:?}, {kind}");
            for (index, policy) in POLICIES.into_iter().enumerate() {
                let of = figures.iter().map(|figures| &figures[index]).collect();
                let points = (policy == "dfq").then_some(points);
                quantities.extend(summary(&name(policy), of, points));
            }
            if suspend == Suspend::BetweenCommands {
                let equal = |pair: &&&Pair| pair.weights[0] == pair.weights[1];
                for policy in COMPARED {
                    let of = of_kind
                        .iter()
                        .filter(equal)
                        .map(|pair| pair.compared(policy));
                    let of: Vec<Figures> = of.collect::<Result<_, _>>()?;
                    quantities.extend(summary(&name(policy), of.iter().collect(), None));
                }
            }
        }
    }
    Ok(Report {
        title: "Pairs that launch and wait, 3 s after the first second, served time of the second tenant".to_owned(),
        parameters: Parameters {
            chosen: "all",
            ..Parameters::default()
        },
        quantities,
        notes: vec![
            "Values are over one in 7 pairs, and over seeds. Entitled: weighted max-min over what each uses alone, of what both are entitled to.".to_owned(),
            "NEON, engaged and LoGA-CL run on a model of the engine, with equal weights.".to_owned(),
            "Bound: the most that the engine can be busy at the entitled shares; deeper programs count as bursts.".to_owned(),
        ],
        ..Report::default()
    })
}
