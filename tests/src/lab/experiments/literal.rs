//! LoGA's rule as printed, against the corrected one (A1.4, "Gap").

use turnstile_accounting::share::shares;
use turnstile_accounting::{Moment, Nanos};

use super::{Report, over_seeds};
use crate::lab::chart::{Chart, Series};
use crate::lab::guest::{Lengths, Load};
use crate::lab::laws::Violation;
use crate::lab::setup::MeterSetup;
use crate::lab::world::{Outcome, Participant, Setup, run};
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
pub fn report(seeds: u64) -> Result<Report, Violation> {
    let (mut rows, mut series) = (Vec::new(), Vec::new());
    for scene in SCENES {
        for policy in ["none", "dfq-literal", "dfq"] {
            let outcomes = over_seeds(seeds, |seed| run_with(seed, policy, scene))?;
            let mean = |of: &dyn Fn(&Outcome) -> f64| {
                outcomes.iter().map(of).sum::<f64>() / outcomes.len().max(1) as f64
            };
            let wall = END.0 as f64 / 100.0;
            let share = |place: usize| mean(&|o| shares(&o.service_ns)[place] * 100.0);
            let held = |place: usize| mean(&|o| o.held_ns[place].0 as f64 / wall);
            let idle = outcomes.iter().map(|o| o.idle_behind_gate_max_ns.0).max();
            rows.push(vec![
                format!("{scene:?}"),
                policy.to_owned(),
                format!("{:.1}", share(0)),
                format!("{:.1}", share(1)),
                format!("{:.1}", mean(&|o| o.busy_ns().0 as f64 / wall)),
                format!("{:.1}", held(0)),
                format!("{:.1}", held(1)),
                format!("{:.1}", idle.unwrap_or(0) as f64 / 1e6),
            ]);
            let windows = outcomes[0].windows.iter().enumerate();
            series.push(Series {
                name: format!("{scene:?}, {policy}"),
                points: windows
                    .map(|(i, w)| {
                        let busy: u64 = w.iter().map(|n| n.0).sum();
                        let value = match scene {
                            Scene::ReadmittedToPoll | Scene::DeepQueues => shares(w)[0] * 100.0,
                            Scene::LightTenant => busy as f64 / 1e7,
                        };
                        (i as f64, value)
                    })
                    .collect(),
            });
        }
    }
    Ok(Report {
        title: format!("The rule as printed against the repaired one, polled 1:5, {seeds} runs of 10 s; percent"),
        head: vec![
            "scene",
            "policy",
            "share of first",
            "share of second",
            "engine busy",
            "first held",
            "second held",
            "longest idle behind gate, ms",
        ],
        rows,
        notes: vec![
            "ReadmittedToPoll: kernels of 2 ms against 200 us, both 1 deep; who is held runs in poll phases all the same (A1.4). The printed rule charges it for the non-poll phase as well and never lets it in.".to_owned(),
            "DeepQueues: kernels of 2 ms, 8 deep, against 200 us, 1 deep. What a held tenant has queued runs on unseen in non-poll phases: the repaired rule charges it for the commands that finished there, the printed one by the poll phase alone. LightTenant: two saturating tenants and one that uses about 1 %.".to_owned(),
            "The paper prints no figure for any of these; it leaves the engine idle until the next decision, and its minimum counts tenants that do not wait.".to_owned(),
        ],
        chart: Chart {
            title: "Share of the first tenant (LightTenant: engine busy)".to_owned(),
            x: "second".to_owned(),
            y: "percent".to_owned(),
            series,
        },
    })
}
