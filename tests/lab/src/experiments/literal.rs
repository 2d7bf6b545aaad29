//! LoGA's rule as printed, against the corrected one (A1.4, "Gap").

use turnstile_accounting::share::shares;
use turnstile_accounting::{Moment, Nanos};

use crate::daemon_loop::MeterSetup;
use crate::daemon_loop::guest::{Lengths, Load};
use crate::daemon_loop::laws::Violation;
use crate::daemon_loop::world::{Outcome, Participant, Setup, run};
use crate::result::{Failure, Parameters, Quantity, Report};
use crate::seeds::{Seeds, over_seeds};
use turnstile_gpu::Suspend;

/// Length of a run.
pub const END: Moment = Moment(10_000_000_000);

/// A scene in which the printed rule fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    /// Held tenants run while they are polled, as in LoGA's text, and are charged for the phase in
    /// which they did not run: the one with long kernels is held for ever.
    ReadmittedToPoll,
    /// Deep queues: queued work of a held tenant runs for longer than a period.
    DeepQueues,
    /// One tenant of three uses the GPU lightly: it sets the minimum, and the other two are held
    /// although the GPU idles.
    LightTenant,
}

/// All scenes.
pub const SCENES: [Scene; 3] = [
    Scene::ReadmittedToPoll,
    Scene::DeepQueues,
    Scene::LightTenant,
];

/// The tenants of a scene; the last of [`Scene::LightTenant`] is the light one.
pub fn tenants(scene: Scene, seed: u64) -> Vec<Participant> {
    let saturating = |us, depth| {
        let kernels = Lengths::of(Nanos::from_us(us));
        Participant::new(100, Load::saturating(kernels, depth))
    };
    match scene {
        Scene::ReadmittedToPoll => vec![saturating(2_000, 1), saturating(200, 1)],
        Scene::DeepQueues => vec![saturating(2_000, 8), saturating(200, 1)],
        Scene::LightTenant => {
            let (every, kernels) = (Nanos::from_ms(5), Lengths::between_us(40, 60));
            let light = Load::bursty(seed, every, 1, kernels, 1, END);
            vec![
                saturating(500, 1),
                saturating(500, 1),
                Participant::new(100, light),
            ]
        }
    }
}

/// One run, polled one sixth of the time.
///
/// # Errors
/// A law was broken.
pub fn run_with(seed: u64, policy: &str, scene: Scene) -> Result<Outcome, Violation> {
    let setup = Setup {
        admit_while_polling: scene == Scene::ReadmittedToPoll,
        suspend: Suspend::Drains,
        ..Setup::new(seed, END)
    };
    let setup = setup.with_meter(MeterSetup::loga()).with_policy(policy);
    run(setup, &tenants(scene, seed))
}

/// The experiment.
///
/// # Errors
/// A law was broken.
pub fn report(seeds: &Seeds) -> Result<Report, Failure> {
    let mut quantities = Vec::new();
    for scene in SCENES {
        for policy in ["none", "dfq-literal", "dfq"] {
            let outcomes = over_seeds(seeds, |seed| run_with(seed, policy, scene))?;
            let over = |what: &str, unit, of: &dyn Fn(&Outcome) -> f64| {
                let name = format!("{scene:?}, {policy}: {what}");
                Quantity::over(name, unit, outcomes.iter().map(of).collect())
            };
            let wall = END.0 as f64 / 100.0;
            let first = over("share of the first", "%", &|o| {
                shares(&o.service_ns)[0] * 100.0
            });
            let busy = over("engine busy", "%", &|o| o.busy_ns().0 as f64 / wall);
            let held = over("first held", "%", &|o| o.held_ns[0].0 as f64 / wall);
            quantities.extend(match (scene, policy) {
                (_, "none") => [first, busy, held.exactly(0.0)],
                (Scene::ReadmittedToPoll, "dfq-literal") => {
                    let starves = first.ours.mean < 35.0;
                    let always = held.ours.mean > 95.0;
                    [
                        first.shape("< 35: starves", starves),
                        busy,
                        held.shape("> 95", always),
                    ]
                }
                (Scene::ReadmittedToPoll, _) => [first.within(50.0, 10.0), busy, held],
                (Scene::DeepQueues, "dfq") => [first.within(50.0, 5.0), busy, held],
                (Scene::LightTenant, "dfq-literal") => {
                    let idles = busy.ours.mean < 90.0;
                    [first, busy.shape("< 90: idles", idles), held]
                }
                (Scene::LightTenant, "dfq") => [first, busy.between(99.0, 100.0), held],
                _ => [first, busy, held],
            });
        }
    }
    Ok(Report {
        title: "The rule as printed against the repaired one, polled 1:5, runs of 10 s".to_owned(),
        parameters: Parameters {
            paper: "the rule; 1 ms and 5 ms a channel",
            fitted: "",
            chosen: "all tenants",
        },
        quantities,
        notes: vec![
            "ReadmittedToPoll: kernels of 2 ms against 200 us, both 1 deep. A held tenant runs in poll phases all the same (A1.4). The printed rule charges it for the non-poll phase as well and never admits it.".to_owned(),
            "DeepQueues: kernels of 2 ms, 8 deep, against 200 us, 1 deep. Queued work of a held tenant runs unseen in non-poll phases. The repaired rule charges the commands that finished there, the printed one extrapolates the poll phase.".to_owned(),
            "LightTenant: two saturating tenants and one that uses about 1 %. The printed minimum counts tenants that do not wait. The paper prints no figure for any of these.".to_owned(),
        ],
        ..Report::default()
    })
}
