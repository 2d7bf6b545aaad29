//! LoGA Fig. 11: a program beside four throttles, which run a kernel of 200 us, wait for it and
//! pause.
//!
//! In: a policy, a program, how kernels are suspended, the pauses. Out: the parts of the engine
//! that throttles and program get, and the program's turnaround against the fair line.
//!
//! The fair line is `(n + 1) t_b / (t_b + sum t_i)` times the program's turnaround without a
//! policy, over its turnaround alone. Here `t` are the engine times of the run without a policy,
//! `b` is the program and `i` the `n` throttles.

use turnstile_accounting::{Moment, Nanos};
use turnstile_gpu::Suspend;

use crate::daemon_loop::MeterSetup;
use crate::daemon_loop::guest::{Lengths, Load};
use crate::daemon_loop::laws::Violation;
use crate::daemon_loop::world::{Participant, Setup, run};
use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::{Seeds, over_seeds};

/// Length of a run; the first second does not count.
pub const END: Moment = Moment(6_000_000_000);
/// Policies that are compared, each with its own meter.
pub const POLICIES: [&str; 3] = ["none", "dfq", "dfq-literal"];
/// How kernels are suspended, and the variation of the pauses of 800 us, in microseconds.
pub const SCENES: [(Suspend, u64); 3] = [
    (Suspend::BetweenCommands, 0),
    (Suspend::BetweenCommands, 50),
    (Suspend::MidKernel, 0),
];
/// Number of throttles.
const THROTTLES: u64 = 4;
/// From the start of one throttle to that of the next.
const STAGGER: Nanos = Nanos::from_us(137);

/// The six programs.
pub fn programs() -> [(&'static str, Load); 6] {
    let mixed = Load::Program {
        kernels_ns: vec![Nanos::from_us(50), Nanos::from_us(5_000)],
        depth: 1,
        pauses: Lengths::of(Nanos::ZERO),
        start: Moment(0),
    };
    [
        ("500 us", Load::program(500, 1, 0)),
        ("2 ms", Load::program(2_000, 1, 0)),
        ("10 ms", Load::program(10_000, 1, 0)),
        ("50 us and 5 ms", mixed),
        ("2 ms, half I/O", Load::program(2_000, 1, 2_000)),
        ("2 ms, 8 deep", Load::program(2_000, 8, 0)),
    ]
}

/// Result of a run, in percent of the time.
#[derive(Clone, Debug)]
pub struct Figures {
    /// The throttle that got the least.
    pub throttle: f64,
    /// The program.
    pub program: f64,
    /// All tenants.
    pub busy: f64,
    /// The program's turnaround over its turnaround alone.
    pub turnaround: f64,
    /// That ratio over the fair line.
    pub over_fair_line: f64,
}

/// A program under a policy, beside the throttles and without a policy for comparison.
#[derive(Clone, Debug)]
pub struct Scene {
    /// Name of the program.
    pub name: &'static str,
    /// The program.
    pub program: Load,
    /// How kernels are suspended.
    pub suspend: Suspend,
    /// Variation of pauses, in microseconds.
    pub jitter_us: u64,
}

impl Scene {
    fn percent(&self, seed: u64, policy: &str, throttles: u64) -> Result<Vec<f64>, Violation> {
        let throttle = |place: u64| Load::Program {
            kernels_ns: vec![Nanos::from_us(200)],
            depth: 1,
            pauses: Lengths::between_us(800, 800 + self.jitter_us),
            start: Moment(place * STAGGER.0),
        };
        let loads = std::iter::once(self.program.clone()).chain((1..=throttles).map(throttle));
        let tenants: Vec<_> = loads.map(|load| Participant::new(100, load)).collect();
        let setup = Setup {
            suspend: self.suspend,
            ..Setup::new(seed, END)
        };
        let setup = if policy == "dfq-literal" {
            setup.with_meter(MeterSetup::loga())
        } else {
            setup
        };
        let setup = setup.with_policy(policy);
        Ok(run(setup, &tenants)?.settled_percent(&setup))
    }

    /// The promised parts of the least throttle and of all tenants under `dfq`, in percent.
    pub fn promised(&self) -> (f64, f64) {
        match (self.suspend, self.jitter_us) {
            // Less than 19: kernels collide, and each collision costs a pause of 100 to 200 us.
            (Suspend::MidKernel, _) if self.name.ends_with("half I/O") => (18.5, 94.0),
            (Suspend::MidKernel, _) => (19.0, 94.0),
            (_, 0) => (16.0, 83.0),
            _ => (15.5, 81.5),
        }
    }

    /// The result under each policy, in the order of `policies`.
    ///
    /// # Errors
    /// A law was broken.
    pub fn figures(&self, seed: u64, policies: &[&str]) -> Result<Vec<Figures>, Violation> {
        let alone = self.percent(seed, "none", 0)?[0];
        let none = self.percent(seed, "none", THROTTLES)?;
        let fair_line = (THROTTLES + 1) as f64 * none[0] / none.iter().sum::<f64>() / none[0];
        let figures = |policy: &&str| {
            let got = self.percent(seed, policy, THROTTLES)?;
            Ok(Figures {
                throttle: got[1..].iter().copied().fold(f64::MAX, f64::min),
                program: got[0],
                busy: got.iter().sum(),
                turnaround: alone / got[0],
                over_fair_line: 1.0 / got[0] / fair_line,
            })
        };
        policies.iter().map(figures).collect()
    }
}

/// All scenes.
pub fn scenes() -> Vec<Scene> {
    let of = |(suspend, jitter_us)| {
        programs().map(|(name, program)| Scene {
            name,
            program,
            suspend,
            jitter_us,
        })
    };
    SCENES.into_iter().flat_map(of).collect()
}

/// The experiment.
///
/// # Errors
/// A law was broken.
pub fn report(seeds: &Seeds) -> Result<Report, Failure> {
    let mut quantities = Vec::new();
    for scene in scenes() {
        let of_seeds = over_seeds(seeds, |seed| scene.figures(seed, &POLICIES))?;
        for (index, policy) in POLICIES.into_iter().enumerate() {
            let over = |what: &str, unit, of: fn(&Figures) -> f64| {
                let values = of_seeds.iter().map(|figures| of(&figures[index])).collect();
                let (name, suspend, jitter) = (scene.name, scene.suspend, scene.jitter_us);
                let name = format!("{policy}, {name}, {suspend:?}, +{jitter} us: {what}");
                Quantity::over(name, unit, values)
            };
            let all = [
                over("least throttle", "%", |of| of.throttle),
                over("engine busy", "%", |of| of.busy),
                over("turnaround over the fair line", "", |of| of.over_fair_line),
            ];
            let (throttle, busy) = scene.promised();
            quantities.extend(match (policy, all) {
                ("dfq", [least, engine, turnaround]) => [
                    least.between(throttle, 100.0),
                    engine.between(busy, 100.0),
                    turnaround.between(0.0, 1.2),
                ],
                (_, all) => all,
            });
        }
    }
    Ok(Report {
        title:
            "A program beside four throttles (200 us, pauses of 800 us), 5 s after the first second"
                .to_owned(),
        parameters: Parameters {
            paper: "throttles; dfq-literal polls 1 ms and 5 ms a channel",
            fitted: "",
            chosen: "the programs",
        },
        quantities,
        notes: Vec::new(),
        ..Report::default()
    })
}
