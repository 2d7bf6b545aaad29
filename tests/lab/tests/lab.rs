//! The experiment lab's promises, over seeds. In release, on two cores: about half a minute.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use turnstile_accounting::meter::PhasePlan;
use turnstile_accounting::{Demand, Moment, Nanos, TenantId};
use turnstile_lab::experiments::charged::{self, DEPTHS, KERNELS_US, POLICIES, SUSPENDS};
use turnstile_lab::experiments::share::{self, BOUND_POINTS, Heavier, WEIGHTS};
use turnstile_lab::experiments::{literal, loga, swap, unfair};
use turnstile_lab::seeds::over_seeds;
use turnstile_lab::{BrokenLaw, Lengths, Load, MeterSetup, Participant, Setup, run};
use turnstile_policies::{
    Cap, Decision, EngineEvent, HoldReason, Membership, PeriodUsage, Policy, PolicyError,
    PolicyRow, Rule, TenantDecision, TenantParams, Weight,
};

const SECOND: Moment = Moment(1_000_000_000);

/// Seeds 0..99 of one pair of weights: each window is within the bound, each law holds, and each
/// seed gives the same run twice, to the hash of log and decisions.
fn shares_are_within_the_bound(weights: (u32, u32)) {
    let setup = |seed| Setup::new(seed, share::END);
    let results = share::worst_of_seeds(100, weights, setup).unwrap();
    for (seed, pair) in results.iter().enumerate() {
        for (outcome, worst) in pair {
            assert!(*worst <= BOUND_POINTS, "seed {seed}: {worst:.3} points");
            assert!(outcome.windows.len() == 4 && outcome.busy_ns().0 > 3_900_000_000);
            assert!(outcome.launches[2] > 100, "the bursts came");
        }
    }
    let again = share::worst_of_seeds(100, weights, setup).unwrap();
    for (seed, (first, second)) in results.iter().zip(&again).enumerate() {
        assert!(first == second, "seed {seed} twice gives two runs");
    }
}

#[test]
fn equal_shares_of_a_hundred_seeds() {
    shares_are_within_the_bound(WEIGHTS[0]);
}

#[test]
fn three_to_one_of_a_hundred_seeds() {
    shares_are_within_the_bound(WEIGHTS[1]);
}

#[test]
fn nine_to_one_of_a_hundred_seeds() {
    shares_are_within_the_bound(WEIGHTS[2]);
}

/// From the second second of the daemon's life to the end of the third, over seeds. Returns two
/// errors: the largest share error of a second in points; and the largest charge error of the two
/// saturating tenants in percent of what ran in both seconds.
fn early_errors(meter: MeterSetup) -> (f64, f64) {
    let of = |seed, weights, heavier| {
        let run = |seconds| {
            let setup = Setup::new(seed, Moment(seconds * SECOND.0)).with_meter(meter);
            share::run_seed(setup, weights, heavier).unwrap()
        };
        let ((first, _), (third, points)) = (run(1), run(3));
        let charge = (0..2).map(|place| {
            let ran = (third.service_ns[place] - first.service_ns[place]).0 as f64;
            let charged = (third.charged_ns[place] - first.charged_ns[place]).0 as f64;
            100.0 * (charged - ran).abs() / ran
        });
        (points, charge.fold(0.0, f64::max))
    };
    let scenes = WEIGHTS[..2].iter().flat_map(|weights| {
        [Heavier::Long, Heavier::Short]
            .into_iter()
            .map(|heavier| (*weights, heavier))
    });
    let errors = scenes.flat_map(|(weights, heavier)| {
        over_seeds(10, |seed| Ok::<_, Infallible>(of(seed, weights, heavier))).unwrap()
    });
    errors.fold((0.0, 0.0), |worst: (f64, f64), error| {
        (worst.0.max(error.0), worst.1.max(error.1))
    })
}

#[test]
fn shares_and_charges_hold_from_the_second_second_on() {
    for (name, meter) in charged::meters() {
        let (points, percent) = early_errors(meter);
        println!("{name}: share {points:.3} points, charge {percent:.2} %");
        let most = match meter {
            MeterSetup::Events { .. } => (BOUND_POINTS, 0.0),
            // A sixth of the time is polled: a sample of a second does not bound the share.
            MeterSetup::Polled { .. } => (5.0, 10.0),
        };
        assert!(points <= most.0, "{name}: {points:.3} points");
        assert!(percent <= most.1, "{name}: {percent:.2} %");
    }
}

#[test]
fn another_seed_is_another_run() {
    let hashes = [0, 1].map(|seed| {
        let (outcome, _) =
            share::run_seed(Setup::new(seed, SECOND), WEIGHTS[0], Heavier::Long).unwrap();
        outcome.hash
    });
    assert_ne!(hashes[0], hashes[1]);
}

/// The bound is not trivial: without a policy it is exceeded by far, in each window and for each
/// seed.
#[test]
fn without_a_policy_shares_are_far_off() {
    for seed in 0..5 {
        let setup = Setup::new(seed, share::END).with_policy("none");
        let (_, worst) = share::run_seed(setup, WEIGHTS[0], Heavier::Long).unwrap();
        assert!(worst > 30.0, "seed {seed}: {worst:.3} points");
    }
}

/// Laws 2 and 3 are not trivial: without a policy they are broken.
#[test]
fn without_a_policy_the_lag_is_not_bounded() {
    let setup = Setup {
        enforce_lag: true,
        ..Setup::new(0, SECOND).with_policy("none")
    };
    let broken = run(setup, &unfair::tenants()).unwrap_err();
    assert!(matches!(broken.law, BrokenLaw::Lag { .. }), "{broken}");
}

/// A policy that saves time up: while the second tenant has work the first is held until both have
/// used the same since the beginning.
#[derive(Debug, Default)]
struct Saving {
    used_ns: [Nanos; 2],
    wants: bool,
    decisions: Vec<TenantDecision>,
}

impl Policy for Saving {
    fn add(
        &mut self,
        _: TenantId,
        _: Membership<'_>,
        _: TenantParams,
        _: Moment,
    ) -> Result<(), PolicyError> {
        Ok(())
    }
    fn remove(&mut self, _: TenantId, _: Moment) -> Result<(), PolicyError> {
        Ok(())
    }
    fn set_weight(&mut self, _: TenantId, _: Weight) -> Result<(), PolicyError> {
        Ok(())
    }
    fn set_cap(&mut self, _: TenantId, _: Option<Cap>) -> Result<(), PolicyError> {
        Ok(())
    }
    fn woke(&mut self, _: TenantId, _: Moment) -> Result<Decision, PolicyError> {
        Ok(Decision::Admit)
    }
    fn observe(&mut self, _: Moment, event: EngineEvent) {
        if let EngineEvent::Demand(TenantId(2), demand) = event {
            self.wants = demand != Demand::Nothing;
        }
    }
    fn period_end(&mut self, usage: &PeriodUsage<'_>) -> &[TenantDecision] {
        for (part, used_ns) in usage.tenants.iter().zip(&mut self.used_ns) {
            *used_ns += part.used_ns;
        }
        let ahead = self.wants && self.used_ns[0] > self.used_ns[1];
        let decision = match ahead {
            true => Decision::Hold(HoldReason::Ahead),
            false => Decision::Admit,
        };
        let tenant = TenantId(1);
        self.decisions = vec![TenantDecision { tenant, decision }];
        &self.decisions
    }
}

/// Law 2 is not trivial: a tenant that returns with saved-up time is detected.
#[test]
fn saved_up_time_is_seen() {
    let work = vec![(Moment(500_000_000), Nanos::from_us(500)); 1_000];
    let kernels = Lengths::between_us(300, 500);
    let tenants = [
        Participant::new(100, Load::saturating(kernels, 1)),
        Participant::new(100, Load::Open { work, depth: 2 }),
    ];
    let setup = Setup::new(0, SECOND);
    let kept = run(setup, &tenants).unwrap();
    let dfq = setup.policy;
    assert_eq!(dfq.name, "dfq");
    let policy = PolicyRow {
        name: "saving",
        every_engine: false,
        make: |_| Rule::Events(Box::new(Saving::default())),
        ..dfq
    };
    let saving = Setup {
        policy,
        enforce_work_conserving: false,
        ..setup
    };
    let broken = run(saving, &tenants).unwrap_err();
    assert!(matches!(broken.law, BrokenLaw::Lag { .. }), "{broken}");
    // Half of the second half, to a period and the queued work.
    let returned = kept.service_ns[1].0;
    assert!(returned.abs_diff(250_000_000) < 5_000_000, "{returned} ns");
}

/// Law 4 is not trivial: a policy that leaves the engine idle breaks it.
#[test]
fn an_idle_engine_with_work_behind_a_gate_is_seen() {
    let setup = Setup {
        enforce_work_conserving: true,
        ..Setup::new(0, Moment(5_000_000_000))
            .with_meter(MeterSetup::loga())
            .with_policy("dfq-literal")
    };
    let broken = run(setup, &literal::tenants(literal::Scene::LightTenant, 0)).unwrap_err();
    assert!(matches!(broken.law, BrokenLaw::Idle { .. }), "{broken}");
}

/// LoGA, Fig. 9: within 6 % when polled all the time; the event meter is exact.
#[test]
fn kernel_lengths_are_measured() {
    for kernel_us in loga::KERNELS_US {
        let ratio = loga::length_ratio(kernel_us, SECOND, loga::always(), kernel_us).unwrap();
        assert!((ratio - 1.0).abs() <= 0.06, "{kernel_us} us: {ratio}");
        assert_ne!(ratio, 1.0, "polling is not exact");
        let period_ns = Nanos::from_ms(1);
        let events = MeterSetup::Events { period_ns };
        let ratio = loga::length_ratio(kernel_us, SECOND, events, kernel_us).unwrap();
        assert_eq!(ratio, 1.0, "{kernel_us} us: not off by a nanosecond");
    }
}

/// The bound of Fig. 9 is not trivial: reads every 2 ms exceed it for kernels of 100 us.
#[test]
fn slow_reads_do_not_measure_short_kernels() {
    let meter = MeterSetup::Polled {
        phases: PhasePlan {
            base_poll_ns: Nanos::from_ms(10),
            base_nonpoll_ns: Nanos::ZERO,
            ..PhasePlan::default()
        },
        randomised: false,
        iteration_ns: Nanos::from_ms(2),
        adaptive: false,
    };
    let end = Moment(100_000_000);
    let ratios = (0..10).map(|seed| loga::length_ratio(seed, end, meter, 100).unwrap());
    assert!(ratios.into_iter().any(|ratio| (ratio - 1.0).abs() > 0.06));
}

/// LoGA, Fig. 10: within 2.5 % when polled all the time. When polled one sixth of the time, the
/// mean of ten runs is.
#[test]
fn load_is_measured() {
    let end = Moment(4_000_000_000);
    for kernel_us in loga::KERNELS_US {
        let error = loga::load_error(kernel_us, end, loga::always(), kernel_us).unwrap();
        assert!(error.abs() <= 0.025, "{kernel_us} us: {error}");
        let run = |seed| loga::load_error(seed, end, MeterSetup::loga(), kernel_us);
        let errors = over_seeds(10, run).unwrap();
        let mean = errors.iter().sum::<f64>() / 10.0;
        assert!(mean.abs() <= 0.025, "{kernel_us} us at 1:5: {errors:?}");
    }
}

/// Polled and adaptive: each charge is within 10 % of what ran. The ratio of the two differs by at
/// most 10 % between any two depths or lengths. The registers are polled at most 17 % of the time.
/// The run itself checks the error bound.
#[test]
fn what_drains_is_charged_to_its_owner() {
    let mut scenes = Vec::new();
    for policy in POLICIES {
        for (_, meter) in &charged::meters()[..2] {
            for suspend in SUSPENDS {
                for kernel_us in KERNELS_US {
                    scenes.extend(DEPTHS.map(|depth| charged::Scene {
                        policy,
                        meter: *meter,
                        suspend,
                        kernel_us,
                        depth,
                    }));
                }
            }
        }
    }
    let run = |index| charged::run_with(index, scenes[index as usize]);
    let outcomes = over_seeds(scenes.len() as u64, run).unwrap();
    let group = KERNELS_US.len() * DEPTHS.len();
    for (scenes, outcomes) in scenes.chunks(group).zip(outcomes.chunks(group)) {
        let mut ratios = [(f64::MAX, f64::MIN); 2];
        for (scene, outcome) in scenes.iter().zip(outcomes) {
            let worst = charged::worst_percent(outcome);
            assert!(worst.abs() <= 10.0, "{scene:?}: {worst:.2} %");
            let polled = charged::polled_percent(outcome);
            assert!((15.0..=17.0).contains(&polled), "{scene:?}: {polled:.1} %");
            for (place, (least, most)) in ratios.iter_mut().enumerate() {
                let ran = outcome.service_ns[place].0 as f64;
                let ratio = outcome.charged_ns[place].0 as f64 / ran;
                (*least, *most) = (least.min(ratio), most.max(ratio));
            }
        }
        for (least, most) in ratios {
            assert!(
                most - least <= 0.1,
                "{:?}: {least:.3} to {most:.3}",
                scenes[0]
            );
        }
    }
}

#[test]
fn long_commands_earn_more_unless_scheduled() {
    let period_ns = Nanos::from_ms(1);
    let events = MeterSetup::Events { period_ns };
    let long = |policy, meter| {
        let outcome = unfair::run_with(1, policy, meter).unwrap();
        outcome.service_ns[0].0 as f64 / outcome.busy_ns().0 as f64
    };
    assert!((long("none", events) - 10.0 / 11.0).abs() < 0.001);
    assert!((long("dfq", events) - 0.5).abs() < 0.005);
    assert!((long("dfq", MeterSetup::loga()) - 0.5).abs() < 0.06);
}

#[test]
fn printed_rule_starves_the_tenant_that_it_polls() {
    let share = |policy, scene| {
        let outcome = literal::run_with(0, policy, scene).unwrap();
        let part = outcome.service_ns[0].0 as f64 / outcome.busy_ns().0 as f64;
        let held = outcome.held_ns[0].0 as f64 / literal::END.0 as f64;
        (part, held, outcome.busy_ns())
    };
    let scene = literal::Scene::ReadmittedToPoll;
    let (part, held, _) = share("dfq-literal", scene);
    assert!(part < 0.35 && held > 0.95, "{part} {held}");
    let (part, held, _) = share("dfq", scene);
    assert!((part - 0.5).abs() < 0.1 && held < 0.8, "{part} {held}");
    let off = |policy| (share(policy, literal::Scene::DeepQueues).0 - 0.5).abs();
    let (literal, repaired) = (off("dfq-literal"), off("dfq"));
    assert!(
        repaired <= literal && repaired < 0.05,
        "{repaired} {literal}"
    );
    let scene = literal::Scene::LightTenant;
    let (literal, repaired) = (share("dfq-literal", scene).2, share("dfq", scene).2);
    assert!(literal.0 < 9_000_000_000 && repaired.0 > 9_900_000_000);
}

/// A load with few parameters, for the report of a failure.
#[derive(Clone, Debug)]
enum Wish {
    Closed(Lengths, u32, Lengths),
    /// Seed, milliseconds from burst to burst, kernels of each, their lengths, depth.
    Bursty(u64, u64, u64, Lengths, u32),
    Idle,
}

impl Wish {
    fn load(&self, end: Moment) -> Load {
        match *self {
            Self::Closed(kernels, depth, think) => Load::Closed {
                kernels,
                depth,
                think,
            },
            Self::Bursty(seed, ms, mean, kernels, depth) => {
                Load::bursty(seed, Nanos::from_ms(ms), mean, kernels, depth, end)
            }
            Self::Idle => Load::idle(),
        }
    }
}

/// Weights out of range, loads without a kernel, kernels of 0 ns: the run does not begin.
#[test]
fn participants_that_cannot_run_are_refused() {
    let program = |kernels_ns: &[u64], depth| Load::Program {
        kernels_ns: kernels_ns.iter().map(|ns| Nanos(*ns)).collect(),
        depth,
        pauses: Lengths::of(Nanos::ZERO),
        start: Moment(0),
    };
    let refused = |weight, load| {
        let broken = run(Setup::new(7, SECOND), &[Participant::new(weight, load)]).unwrap_err();
        assert_eq!((broken.seed, broken.at), (7, Moment(0)));
        broken.to_string()
    };
    for weight in [0, 10_001] {
        let text = refused(weight, program(&[1_000], 1));
        assert!(text.contains(&weight.to_string()), "{text}");
    }
    for load in [
        program(&[], 1),
        program(&[1_000, 0], 1),
        program(&[1_000], 0),
        program(&[1_000], 33),
        Load::saturating(Lengths::of(Nanos::ZERO), 1),
    ] {
        assert!(refused(100, load).contains("1 to 32 kernels submitted, of 1 ns or more"));
    }
    let nothing = Load::Open {
        work: Vec::new(),
        depth: 1,
    };
    let outcome = run(Setup::new(7, SECOND), &[Participant::new(100, nothing)]).unwrap();
    assert_eq!(outcome.launches, [0], "it submits nothing");
}

fn any_wish() -> impl Strategy<Value = Wish> {
    let kernels = (20u64..2_000, 0u64..1_000)
        .prop_map(|(least, more)| Lengths::between_us(least, least + more));
    let think = (0u64..3_000).prop_map(|us| Lengths::between_us(us / 2, us));
    let none = Just(Lengths::of(Nanos::ZERO));
    prop_oneof![
        3 => (kernels.clone(), 1u32..=4, none).prop_map(|(k, d, t)| Wish::Closed(k, d, t)),
        2 => (kernels.clone(), 1u32..=4, think).prop_map(|(k, d, t)| Wish::Closed(k, d, t)),
        2 => (any::<u64>(), 1u64..40, 1u64..8, kernels, 1u32..=8)
            .prop_map(|(seed, ms, mean, k, d)| Wish::Bursty(seed, ms, mean, k, d)),
        1 => Just(Wish::Idle),
    ]
}

fn any_meter() -> impl Strategy<Value = MeterSetup> {
    prop_oneof![
        2 => (500u64..5_000).prop_map(|us| MeterSetup::Events { period_ns: Nanos::from_us(us) }),
        1 => Just(MeterSetup::loga()),
        1 => Just(MeterSetup::adaptive()),
    ]
}

/// Swapped memory: on a card that is too small, guests read the same as on a large one.
#[test]
fn swapped_memory_is_the_same_to_the_byte_for_a_hundred_seeds() {
    let results = over_seeds(100, swap::compare).unwrap();
    let moved = results.iter().filter(|[large, small]| {
        assert_eq!(large.swapped_bytes, [0, 0]);
        small.swapped_bytes.iter().all(|bytes| *bytes > 4 << 20)
    });
    assert!(moved.count() > 80, "scripts that need swapping");
    for (seed, [_, small]) in (0u64..).zip(&results).take(10) {
        assert_eq!(
            swap::play(seed, true).as_ref(),
            Ok(small),
            "seed {seed} again"
        );
    }
}

static WORLDS: AtomicU64 = AtomicU64::new(0);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Laws 1 and 6 for any policy and meter; law 4 for policies that admit a waiting tenant when
    /// the engine is idle; laws 2 and 3 for fair queuing by events. One in eight is run twice.
    #[test]
    fn random_worlds_obey(
        tenants in prop::collection::vec((1u32..=1_000, any_wish()), 1..6),
        meter in any_meter(),
        policy in prop_oneof![3 => Just("dfq"), 1 => Just("dfq-literal"), 1 => Just("none")],
        switch_us in 0u64..20, move_us in 1u64..200, tick_us in 100u64..1_000, seed: u64,
    ) {
        let end = Moment(500_000_000);
        let tenants: Vec<_> = tenants
            .into_iter()
            .map(|(weight, wish)| Participant::new(weight, wish.load(end)))
            .collect();
        let setup = Setup {
            switch_ns: Nanos::from_us(switch_us),
            gate_move_ns: Nanos::from_us(move_us),
            tick_ns: Nanos::from_us(tick_us),
            window_ns: Nanos::from_ms(100),
            ..Setup::new(seed, end)
        };
        let setup = setup.with_meter(meter).with_policy(policy);
        let outcome = run(setup, &tenants);
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
        if WORLDS.fetch_add(1, Ordering::Relaxed).is_multiple_of(8) {
            prop_assert_eq!(run(setup, &tenants), outcome, "the same again");
        }
    }
}
