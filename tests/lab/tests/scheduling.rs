//! The promises of the scheduling rule to tenants that launch and wait, in virtual time.

use std::convert::Infallible;

use turnstile_gpu::Suspend;
use turnstile_lab::experiments::fleet::{self, Fate};
use turnstile_lab::experiments::{adversary, launch_wait, loga11};
use turnstile_lab::seeds::over_seeds;

/// Calls `check` for each element of a list on all cores, and prints all that fail.
fn all_pass<T: Sync>(list: &[T], check: impl Fn(&T) -> Vec<String> + Sync) {
    let failed = over_seeds(list.len() as u64, |place| {
        Ok::<_, Infallible>(check(&list[place as usize]))
    });
    let failed: Vec<String> = failed.unwrap().into_iter().flatten().collect();
    assert!(
        failed.is_empty(),
        "{} failed:\n{}",
        failed.len(),
        failed.join("\n")
    );
}

/// LoGA Fig. 11, with the events of the engine.
#[test]
fn throttles_beside_six_programs_get_their_part() {
    all_pass(&loga11::scenes(), |scene| {
        let (throttle, busy) = scene.promised();
        let case = format!(
            "{}, {:?}, {} us",
            scene.name, scene.suspend, scene.jitter_us
        );
        let figures = match scene.figures(0, &["none", "dfq"]) {
            Ok(figures) => figures,
            Err(violation) => return vec![format!("{case}: {violation}")],
        };
        let [none, dfq] = &figures[..] else {
            panic!("two policies")
        };
        let checks = [
            ("throttle", dfq.throttle, dfq.throttle >= throttle),
            ("busy", dfq.busy, dfq.busy >= busy),
            (
                "turnaround over the fair line",
                dfq.over_fair_line,
                dfq.over_fair_line <= 1.2,
            ),
            (
                "throttle against none",
                dfq.throttle - none.throttle,
                dfq.throttle >= none.throttle - 0.5,
            ),
        ];
        let failed = checks.into_iter().filter(|(_, _, passes)| !passes);
        failed
            .map(|(what, value, _)| format!("{case}: {what} {value:.3}"))
            .collect()
    });
}

/// Checks one in `step` of the pairs.
fn pairs_get_their_entitlement(suspend: Suspend, both_pause_points: f64, step: usize) {
    let pairs = launch_wait::pairs(suspend).into_iter();
    let pairs: Vec<_> = pairs.step_by(step).collect();
    all_pass(&pairs, |pair| {
        let [first, second] = pair.programs;
        let case = format!(
            "{suspend:?}, weights {:?}: {first} beside {second}",
            pair.weights
        );
        let figures = match pair.figures(0, &["dfq"]) {
            Ok(figures) => figures,
            Err(violation) => return vec![format!("{case}: {violation}")],
        };
        let dfq = &figures[0];
        let points = match pair.one_keeps_queued() || second.keeps_queued() {
            true => 3.0,
            false => both_pause_points,
        };
        let mut failed = Vec::new();
        if dfq.off_points().abs() > points {
            failed.push(format!("{case}: off by {:.2} points", dfq.off_points()));
        }
        // For deeper programs the bound is of bursts, which is too high by up to 2 %.
        let part = if second.depth == 1 { 0.97 } else { 0.95 };
        if dfq.bound.is_some_and(|bound| dfq.busy < part * bound) {
            let bound = dfq.bound.unwrap_or_default();
            failed.push(format!("{case}: busy {:.1} of {bound:.1} %", dfq.busy));
        }
        // A tenant that keeps its queue full writes its doorbell without exits, beside any other.
        for (program, exits) in pair.programs.iter().zip(dfq.exits) {
            if program.keeps_queued() && exits > 0.1 {
                failed.push(format!("{case}: {exits:.3} exits a kernel of {program}"));
            }
        }
        failed
    });
}

#[test]
fn pairs_between_commands_get_their_entitlement() {
    pairs_get_their_entitlement(Suspend::BetweenCommands, 8.0, 37);
}

#[test]
fn pairs_mid_kernel_get_their_entitlement() {
    pairs_get_their_entitlement(Suspend::MidKernel, 10.0, 37);
}

#[test]
#[ignore = "in full"]
fn all_pairs_between_commands() {
    pairs_get_their_entitlement(Suspend::BetweenCommands, 8.0, 1);
}

#[test]
#[ignore = "in full"]
fn all_pairs_mid_kernel() {
    pairs_get_their_entitlement(Suspend::MidKernel, 10.0, 1);
}

/// With any kernels, pauses and tenants of one account, the shortfall of another account's victim
/// is bounded. It is at most one of the kernels, the bound on being ahead and the reaction.
#[test]
fn victims_fall_short_by_at_most_one_attacker_kernel() {
    // Of 10,000: 810 has an attacker that begins after 10 ms; 9093 and 1380 are the worst.
    let seeds: Vec<u64> = (0..40).chain([810, 1_380, 9_093]).collect();
    all_pass(&seeds, |seed| {
        let attack = adversary::Attack::of(*seed);
        let outcome = attack.run(*seed, "dfq", false).unwrap();
        let (short, allowed) = (attack.worst_window_ns(&outcome), attack.allowed_ns());
        let failed = (short > allowed).then(|| format!("seed {seed}: {short} of {allowed} ns"));
        failed.into_iter().collect()
    });
}

/// The worst attack on the literal rule that the 200 seeds of the page have: the victim falls short
/// by hundreds of times of what the repaired rule permits.
#[test]
fn the_worst_attack_on_the_literal_rule_is_none_on_the_repaired_one() {
    const SEED: u64 = 183;
    let attack = adversary::Attack::of(SEED);
    assert_eq!(attack.guide, adversary::Guide::ManyChannels);
    let over = |policy, polled| {
        let outcome = attack.run(SEED, policy, polled).unwrap();
        attack.worst_window_ns(&outcome) as f64 / attack.allowed_ns() as f64
    };
    assert!(over("dfq-literal", true) > 300.0);
    assert!(over("dfq", false) <= 1.0);
}

/// Four GPUs of two sizes, 24 tenants. One GPU is removed: each GPU divides its time by weights all
/// along, and those that stay have the waits that they would have had anyway.
#[test]
fn removed_gpu_leaves_shares_and_waits_of_other_gpus() {
    let fates = [(1, Fate::End), (1, Fate::Move)];
    all_pass(&fates, |(seed, fate)| {
        let figures = fleet::figures(*seed, *fate, fleet::LEAVE_NS).unwrap();
        println!("seed {seed}, {fate:?}: {figures:?}");
        let shares = figures.share_points.iter();
        let waits = figures.p99_percent.iter();
        let off = shares.filter(|points| **points > fleet::BOUND_POINTS);
        let late = waits.filter(|percent| percent.abs() > fleet::BOUND_PERCENT);
        let moves = figures.moved > 0;
        let failed = off.count() + late.count() > 0 || moves != (*fate == Fate::Move);
        let failed = failed.then(|| format!("seed {seed}, {fate:?}: {figures:?}"));
        failed.into_iter().collect()
    });
}
