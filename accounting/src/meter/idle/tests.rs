use super::{sums::LEARNT, *};

const A: TenantId = TenantId(1);
const B: TenantId = TenantId(2);
const C: TenantId = TenantId(3);
const INTERVAL: u64 = super::INTERVAL.0;

const fn stay(resident_ns: u64) -> Stay {
    Stay {
        resident: Nanos(resident_ns),
        unpaused: Nanos::ZERO,
        handovers: 0,
        doubt: Nanos::ZERO,
        launched: None,
    }
}

/// Turns of `slices` (ms) within frames, seen in intervals of 100 ms; `fractions` are the truth. Returns the estimates
/// after so many intervals.
fn taught(
    slices: &[f64],
    fractions: &[f64],
    lumps: &[f64],
    intervals: usize,
    noise: f64,
) -> IdleShares {
    let frame: f64 = slices.iter().sum();
    let mut shares = IdleShares::default();
    for interval in 0..intervals {
        let (begin, end) = (interval as f64 * 100.0, (interval + 1) as f64 * 100.0);
        let mut stays = BTreeMap::new();
        let mut idle = 0.0;
        for (index, slice) in slices.iter().enumerate() {
            let before: f64 = slices[..index].iter().sum();
            let (mut had, mut handovers) = (0.0, 0);
            let mut at = (begin / frame).floor() * frame + before;
            while at < end {
                had += (at + slice).min(end) - at.max(begin).min(at + slice).min(end);
                if (begin..end).contains(&(at + slice)) {
                    handovers += 1;
                }
                at += frame;
            }
            idle += had * fractions[index] + f64::from(handovers) * lumps[index];
            let stay = Stay {
                handovers,
                ..stay((had * 1e6) as u64)
            };
            stays.insert(TenantId(index as u32 + 1), stay);
        }
        // Noise that alternates in a way of its own, not in step with the frames.
        let sign = [1.0, -1.0, 0.5, -0.8, 0.3, -0.1, 0.9][interval % 7];
        let idle = (idle * 1e6 + sign * noise * INTERVAL as f64).max(0.0);
        shares.observe(Nanos(INTERVAL), Nanos(idle as u64), Nanos::ZERO, &stays);
    }
    shares
}

/// What counts is the idle part of a whole turn, whatever of it is taken for idle at handovers.
fn of_turns(shares: &IdleShares, slices: &[f64]) -> Vec<f64> {
    let of = |(index, slice): (usize, &f64)| {
        let tenant = TenantId(index as u32 + 1);
        shares.fraction(tenant) + shares.at_handover(tenant).0 as f64 / 1e6 / slice
    };
    slices.iter().enumerate().map(of).collect()
}

fn turns(slices: &[f64], fractions: &[f64], intervals: usize, noise: f64) -> Vec<f64> {
    // The shorter a kernel, the more is idle at handovers.
    let lumps: Vec<f64> = fractions
        .iter()
        .map(|f| 270.0_f64.min(6_000.0 * f) / 1e3)
        .collect();
    let shares = taught(slices, fractions, &lumps, intervals, noise);
    (0..slices.len())
        .map(|index| shares.fraction(TenantId(index as u32 + 1)))
        .collect()
}

fn worst(found: &[f64], truth: &[f64]) -> f64 {
    found
        .iter()
        .zip(truth)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f64::max)
}

#[test]
fn one_who_was_alone_is_known_at_once() {
    let mut shares = IdleShares::default();
    let alone = BTreeMap::from([(A, stay(INTERVAL))]);
    shares.observe(Nanos(INTERVAL), Nanos(65_000_000), Nanos::ZERO, &alone);
    assert!((shares.fraction(A) - 0.65).abs() < 0.001);
    shares.observe(Nanos(INTERVAL), Nanos(100_000), Nanos::ZERO, &alone);
    assert!(
        shares.fraction(A) < 0.02,
        "and when it changes its ways: {shares:?}"
    );
    shares.observe(Nanos(INTERVAL), Nanos(100_000), Nanos::ZERO, &alone);
    shares.observe(Nanos(INTERVAL), Nanos(4_000_000), Nanos::ZERO, &alone);
    assert!(shares.fraction(A) < 0.02, "once may be a pause: {shares:?}");
    shares.observe(Nanos(INTERVAL), Nanos(4_000_000), Nanos::ZERO, &alone);
    assert!(shares.fraction(A) > 0.03, "twice is a change: {shares:?}");
}

#[test]
fn fractions_of_tenants_that_take_turns_follow_from_how_the_turns_mix() {
    let half = 1000.0 / 48.0;
    for (slices, truth) in [
        (&[half, half][..], &[0.005, 0.05][..]),
        (&[half, half], &[0.15, 0.0]),
        (&[1.5 * half, 0.5 * half], &[0.005, 0.14]),
        (&[10.4, 10.4, 10.4, 10.466], &[0.005, 0.05, 0.14, 0.0]),
    ] {
        let found = turns(slices, truth, 50, 0.0005);
        // Four are found more slowly: what one has too much the one beside it has too little.
        let bound = if slices.len() > 2 { 0.02 } else { 0.01 };
        assert!(
            worst(&found, truth) < bound,
            "{slices:?}: {found:?} for {truth:?}"
        );
    }
}

#[test]
fn idle_time_at_handovers_does_not_make_fractions_alike() {
    let half = 1000.0 / 48.0;
    for (slices, truth, lumps) in [
        (&[half, half][..], &[0.005, 0.05][..], &[0.0, 0.2][..]),
        (&[1.5 * half, 0.5 * half], &[0.14, 0.0], &[0.33, 0.0]),
        (&[0.2 * half, 1.8 * half], &[0.05, 0.14], &[0.25, 0.33]),
    ] {
        let shares = taught(slices, truth, lumps, 40, 0.0005);
        let found = of_turns(&shares, slices);
        let whole = |index: usize| truth[index] + lumps[index] / slices[index];
        let expected: Vec<f64> = (0..slices.len()).map(whole).collect();
        assert!(
            worst(&found, &expected) < 0.01,
            "{slices:?}: {found:?} for {expected:?}"
        );
    }
}

#[test]
fn where_the_mix_never_changes_the_sum_is_right() {
    let slices = [50.0, 50.0];
    let shares = taught(&slices, &[0.0, 0.2], &[0.0, 0.27], 30, 0.0);
    let found = of_turns(&shares, &slices);
    let sum = 0.2 + 0.27 / 50.0;
    assert!((found[0] + found[1] - sum).abs() < 0.002, "{found:?}");
}

#[test]
fn a_wrong_start_does_not_leave_one_below_nothing_and_another_above() {
    let mut shares = IdleShares::default();
    let native = |a: u64, b: u64| BTreeMap::from([(A, stay(a)), (B, stay(b))]);
    // While programs start, counters and residency say anything.
    shares.observe(
        Nanos(INTERVAL),
        Nanos(INTERVAL),
        Nanos::ZERO,
        &native(1_000_000, 99_000_000),
    );
    for _ in 0..20 {
        shares.observe(
            Nanos(INTERVAL),
            Nanos(150_000),
            Nanos::ZERO,
            &native(83_000_000, 10_500_000),
        );
    }
    assert!(
        shares.fraction(A) < 0.01 && shares.fraction(B) < 0.05,
        "{shares:?}"
    );
}

#[test]
fn one_that_is_gone_is_forgotten_and_others_stay() {
    let mut shares = IdleShares::default();
    let both = BTreeMap::from([(A, stay(INTERVAL / 2)), (B, stay(INTERVAL / 2))]);
    shares.observe(Nanos(INTERVAL), Nanos(INTERVAL / 2), Nanos::ZERO, &both);
    shares.forget(A);
    assert_eq!(shares.fraction(A), 0.0);
    assert!(shares.fraction(B) > 0.3);
    assert_eq!(shares.fraction(C), 0.0);
    for id in 0..200 {
        let one = BTreeMap::from([(TenantId(id), stay(INTERVAL))]);
        shares.observe(Nanos(INTERVAL), Nanos(id.into()), Nanos::ZERO, &one);
    }
    assert!(shares.known.len() <= ROWS_MAX);
}

#[test]
fn a_pause_is_known_as_his_who_waits_more_often_and_says_nothing_of_what_comes() {
    let mut shares = taught(&[41.7, 41.7], &[0.14, 0.0], &[0.0, 0.0], 40, 0.0);
    let both = BTreeMap::from([(A, stay(30_000_000)), (B, stay(70_000_000))]);
    let usual = 0.14 * 30_000_000.0;
    for paused in [3_000_000.0, 0.0] {
        let before = (shares.fraction(A), shares.fraction(B));
        let idle = Nanos((usual + paused) as u64);
        shares.observe(Nanos(INTERVAL), idle, Nanos::ZERO, &both);
        let found: BTreeMap<TenantId, f64> = shares
            .found()
            .iter()
            .map(|found| (found.tenant, found.idle_ns))
            .collect();
        assert!((found[&A] - usual - paused).abs() < 200_000.0, "{found:?}");
        assert!(found[&B].abs() < 100_000.0, "{found:?}");
        let after = (shares.fraction(A), shares.fraction(B));
        let moved = (after.0 - before.0).abs() + (after.1 - before.1).abs();
        assert!(moved < 0.005, "{before:?} {after:?}");
    }
    // Two of them in a row, and a large one, are changes.
    let idle = Nanos((usual + 20_000_000.0) as u64);
    shares.observe(Nanos(INTERVAL), idle, Nanos::ZERO, &both);
    assert!(shares.found().is_empty());
}

#[test]
fn what_is_unlearnt_of_one_is_learnt_anew_and_others_keep_what_is_known_of_them() {
    let mut shares = IdleShares::default();
    for (tenant, idle) in [(A, 90), (B, 12)] {
        let alone = BTreeMap::from([(tenant, stay(INTERVAL))]);
        let idle = Nanos(INTERVAL / 100 * idle);
        shares.observe(Nanos(INTERVAL), idle, Nanos::ZERO, &alone);
    }
    let (a, b) = (shares.fraction(A), shares.fraction(B));
    assert!((a - 0.9).abs() < 0.01 && (b - 0.12).abs() < 0.01, "{a} {b}");
    shares.unlearn(A);
    shares.unlearn(C);
    assert_eq!((shares.fraction(A), shares.fraction(B)), (0.0, b));
    assert!(shares.uncertainty(A) > 0.2 && shares.uncertainty(B) < 0.01);
    let both = BTreeMap::from([(A, stay(INTERVAL / 2)), (B, stay(INTERVAL / 2))]);
    let idle = Nanos(INTERVAL / 100 * 11);
    shares.observe(Nanos(INTERVAL), idle, Nanos::ZERO, &both);
    let (a, b) = (shares.fraction(A), shares.fraction(B));
    assert!((a - 0.1).abs() < 0.01 && (b - 0.12).abs() < 0.01, "{a} {b}");
}

/// Programs that are no tenant's come up under the number that what is left of launches has.
#[test]
fn who_is_nobodys_is_not_what_is_left_of_launches() {
    let mut shares = IdleShares::default().and_launches();
    for interval in 0..40 {
        let a_ms = [30_u32, 70, 50][interval % 3];
        let launched = Launched {
            count: f64::from(a_ms) * 5.0,
            at_ends: (true, false),
            off: 0.0,
        };
        let a = Stay {
            launched: Some(launched),
            ..stay(u64::from(a_ms) * 1_000_000)
        };
        let other = stay(u64::from(100 - a_ms) * 1_000_000);
        // A's launches take 0.18 ms of 0.2, the other's are idle for a fifth.
        let idle = u64::from(a_ms) * 100_000 + u64::from(100 - a_ms) * 200_000;
        let stays = BTreeMap::from([(A, a), (NOBODY, other)]);
        shares.observe(Nanos(INTERVAL), Nanos(idle), Nanos::ZERO, &stays);
    }
    assert!(shares.launched());
    let fraction = shares.fraction(NOBODY);
    assert!((fraction - 0.2).abs() < 0.01, "{fraction}");
    let found: BTreeMap<TenantId, f64> = shares
        .found()
        .iter()
        .map(|found| (found.tenant, found.idle_ns))
        .collect();
    assert_eq!(found.len(), 2, "{found:?}");
    shares.forget(NOBODY);
    assert!(shares.is_new(NOBODY));
}

/// One who works for so much of so many ms, launches of so many us.
fn launching(ms: f64, works: f64, launch_us: f64) -> Stay {
    Stay {
        launched: Some(Launched {
            count: ms * works * 1e3 / launch_us,
            ..Launched::default()
        }),
        ..stay((ms * 1e6) as u64)
    }
}

/// A and B launch for 89.5 and 90.75 % of their time, which is foretold as 90 of both; only when their turns change is it known whose launches are how long.
#[test]
fn what_is_learnt_is_told_of_the_intervals_before_as_well() {
    let mut shares = IdleShares::default().and_launches();
    let (mut off_ns, mut later_ns) = (0.0, 0.0);
    for interval in 0..300 {
        let a_ms = match interval < 60 {
            true => 60.0,
            false => [40.0, 70.0, 55.0][interval % 3],
        };
        let b_ms = 100.0 - a_ms;
        let stays = [
            launching(a_ms, 0.895, 200.0),
            launching(b_ms, 0.9075, 100.0),
        ];
        let stays = BTreeMap::from([(A, stays[0]), (B, stays[1])]);
        let (a_idle_ns, b_idle_ns) = (a_ms * 1e6 * 0.105, b_ms * 1e6 * 0.0925);
        let idle = Nanos((a_idle_ns + b_idle_ns) as u64);
        shares.observe(Nanos(INTERVAL), idle, Nanos::ZERO, &stays);
        if interval >= LEARNT as usize {
            let found = shares.found().iter().find(|found| found.tenant == A);
            off_ns += a_idle_ns - found.unwrap().idle_ns;
            later_ns += shares.tell_earlier_ns(A);
        }
    }
    assert!(off_ns.abs() > 5_000_000.0, "{off_ns} ns");
    let left_ns = off_ns - later_ns;
    assert!(
        left_ns.abs() < off_ns.abs() / 10.0,
        "{left_ns} of {off_ns} ns"
    );
}

/// What one who is alone was idle is told as it was, however slowly it is learnt that his launches take longer.
#[test]
fn who_is_alone_is_not_told_again() {
    let mut shares = IdleShares::default().and_launches();
    let mut later_ns = 0.0;
    for interval in 0..200_u32 {
        let longer = 1.0 + 0.000_5 * f64::from(interval.saturating_sub(LEARNT));
        let (a_ms, b_ms) = if interval < LEARNT {
            (60.0, 40.0)
        } else {
            (100.0, 0.0)
        };
        let a = launching(a_ms, 0.9 / longer, 200.0);
        let mut stays = BTreeMap::from([(A, a), (B, launching(b_ms, 0.9, 100.0))]);
        stays.retain(|_, stay| stay.resident > Nanos::ZERO);
        shares.observe(Nanos(INTERVAL), Nanos(10_000_000), Nanos::ZERO, &stays);
        later_ns += shares.tell_earlier_ns(A);
    }
    assert!(later_ns.abs() < 1_000.0, "{later_ns} ns");
}

/// Launches of A, of 50 us, and of B, of 200 us, take 2.3 us more or less each. What is learnt of B's is as far off as it is said to be.
#[test]
fn launches_that_vary_are_known_no_better_than_that() {
    let mut noise = 1_u32;
    // A sum of twelve in 0..1 is near to a normal deviate.
    let mut normal = || {
        let parts = (0..12).map(|_| {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(noise >> 8) / f64::from(1 << 24)
        });
        parts.sum::<f64>() - 6.0
    };
    let mut off = Vec::new();
    for _ in 0..40 {
        let mut shares = IdleShares::default().and_launches();
        for interval in 0..60 {
            let a_ms = [75.0, 85.0, 66.0][interval % 3];
            let b_ms = 100.0 - a_ms;
            let stays = [launching(a_ms, 0.86, 50.0), launching(b_ms, 0.95, 200.0)];
            let stays = BTreeMap::from([(A, stays[0]), (B, stays[1])]);
            let count = a_ms * 0.86e3 / 50.0 + b_ms * 0.95e3 / 200.0;
            let idle_ns = a_ms * 0.14e6 + b_ms * 0.05e6 + 2_300.0 * f64::sqrt(count) * normal();
            shares.observe(Nanos(INTERVAL), Nanos(idle_ns as u64), Nanos::ZERO, &stays);
        }
        let row = shares.find(B, Estimate::Launch).unwrap();
        let error = shares.known[row].value - 200_000.0;
        off.push(error / shares.covariance[row][row].sqrt());
    }
    let mean = (off.iter().map(|off| off * off).sum::<f64>() / off.len() as f64).sqrt();
    assert!((0.4..1.5).contains(&mean), "{mean} deviations");
}

/// How long A, whose launches are unknown, and B, with kernels of 2 ms, were idle in an interval in which the engine paused for `pause_ms` more than in the forty before, and in the next one, if B launched for so many
/// ms less; and whether it was A alone.
fn paused(pause_ms: f64, less_ms: f64) -> Vec<(Vec<(f64, bool)>, f64)> {
    let mut shares = IdleShares::default();
    let mut interval = |index: usize, pause_ms: f64, less_ms: f64| {
        let a_ms = [40.0, 60.0, 50.0][index % 3];
        let b_ms = 100.0 - a_ms;
        let b = launching(b_ms, 0.99 - less_ms / b_ms, 2_000.0);
        let stays = BTreeMap::from([(A, stay((a_ms * 1e6) as u64)), (B, b)]);
        let idle = Nanos(((b_ms * 0.01 + pause_ms) * 1e6) as u64);
        shares.observe(Nanos(INTERVAL), idle, Nanos::ZERO, &stays);
        let of = |found: &Found| (found.idle_ns / 1e6, found.only);
        let found = shares.found().iter().map(of).collect();
        (found, shares.fraction(B))
    };
    (0..40).for_each(|index| {
        interval(index, 0.0, 0.0);
    });
    let both = [40, 41].map(|index| interval(index, pause_ms, less_ms));
    both.into()
}

#[test]
fn who_launches_as_often_as_he_does_otherwise_has_not_paused() {
    let know = |pause_ms: f64| {
        let all = paused(pause_ms, 0.0);
        for (found, fraction) in &all {
            assert!((found[0].0 - pause_ms).abs() < 0.5, "{found:?}");
            assert!(found[1].0 < 1.0 && !found[1].1, "{found:?}");
            assert!((fraction - 0.01).abs() < 0.002, "{fraction}");
        }
        all
    };
    assert!(know(25.0).iter().all(|(found, _)| found[0].1));
    // Less than `PAUSE_MAX`, and again: a change, but of his ways alone.
    know(4.5);
}

#[test]
fn whose_pause_it_was_is_not_said_if_it_may_have_been_anybodys() {
    // B launched as much less as the engine paused, and A may have paused as well.
    for (found, _) in paused(25.0, 25.0) {
        assert!(found.iter().all(|(_, only)| !only), "{found:?}");
    }
    // So little less that it is no pause, and so short a pause that it is no surprise.
    for (found, _) in paused(0.3, 0.0) {
        assert!(found.iter().all(|(_, only)| !only), "{found:?}");
    }
}

/// How long A and B are believed to be idle in 100 ms, who were for 6 ms in the mean of forty, after two intervals in which it was longer by so many us.
fn after_pauses(pauses_us: [u64; 2]) -> f64 {
    let mut shares = IdleShares::default();
    let mut interval = |pause_us: u64| {
        let stays = BTreeMap::from([(A, stay(60_000_000)), (B, stay(40_000_000))]);
        let idle = Nanos(6_000_000 + pause_us * 1_000);
        shares.observe(Nanos(INTERVAL), idle, Nanos::ZERO, &stays);
        shares.fraction(A) * 60.0 + shares.fraction(B) * 40.0
    };
    (0..40).for_each(|_| {
        interval(0);
    });
    pauses_us.map(&mut interval)[1]
}

#[test]
fn a_pause_and_a_shorter_one_are_no_change() {
    let (short, alike) = (after_pauses([4_800, 2_000]), after_pauses([4_800, 3_000]));
    assert!((short - 6.0).abs() < 0.1, "{short} ms");
    assert!(alike > 8.0, "{alike} ms");
}

/// A, whose launches are unknown, pauses for a tenth, and B, who launches each 2 ms, for 0.5 %; their turns are always the same.
#[test]
fn who_launches_long_kernels_is_not_taken_for_one_who_pauses() {
    let mut shares = IdleShares::default();
    for _ in 0..3 {
        let stays = BTreeMap::from([(A, stay(60_000_000)), (B, launching(40.0, 0.995, 2_000.0))]);
        shares.observe(Nanos(INTERVAL), Nanos(6_200_000), Nanos::ZERO, &stays);
    }
    let (a, b) = (shares.fraction(A), shares.fraction(B));
    assert!(
        (a - 0.1).abs() < 0.01 && (b - 0.005).abs() < 0.01,
        "{a} {b}"
    );
}

/// B waits for 0.3 ms after each kernel of 2 ms, ten deviations more than is believed of him.
#[test]
fn who_waits_for_longer_than_others_between_launches_is_known_soon() {
    let mut shares = IdleShares::default();
    for interval in 0..8 {
        let a_ms = [60.0, 40.0, 50.0][interval % 3];
        let b_ms = 100.0 - a_ms;
        let b = launching(b_ms, 2.0 / 2.3, 2_000.0);
        let stays = BTreeMap::from([(A, stay((a_ms * 1e6) as u64)), (B, b)]);
        let idle = Nanos((b_ms * 0.3 / 2.3 * 1e6) as u64);
        shares.observe(Nanos(INTERVAL), idle, Nanos::ZERO, &stays);
    }
    let (a, b) = (shares.fraction(A), shares.fraction(B));
    assert!(a < 0.01 && (b - 0.3 / 2.3).abs() < 0.01, "{a} {b}");
}
