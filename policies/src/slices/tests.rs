//! Turns on a GPU that suspends in the middle of a kernel, late and at a cost.

use super::*;
use crate::policy::Basis;
use proptest::prelude::*;

const A: TenantId = TenantId(1);
const B: TenantId = TenantId(2);
const C: TenantId = TenantId(3);
const SECOND: u64 = 1_000_000_000;
/// Frames of two in a second, if nothing else is said.
const FRAMES: u64 = 6;

fn policy(weights: &[u32]) -> Slices {
    policy_with(weights, Nanos::ZERO)
}

fn policy_with(weights: &[u32], first_slice_ns: Nanos) -> Slices {
    let mut policy = Slices::new(&Tuning {
        first_slice_ns,
        ..Tuning::default()
    });
    for (index, weight) in weights.iter().enumerate() {
        let weight = Weight::new(*weight).unwrap();
        let params = TenantParams { weight, cap: None };
        let vm = Membership {
            account: AccountId(0),
            name: "vm",
        };
        policy
            .add(TenantId(index as u32 + 1), vm, params, Moment(0))
            .unwrap();
    }
    policy
}

/// A period with `(who, used, waits)`.
fn period(
    policy: &mut Slices,
    from: u64,
    to: u64,
    used: &[(TenantId, u64, bool)],
) -> Vec<TenantId> {
    let rightly = |&(tenant, used, waits)| (tenant, used, waits, 0);
    let used: Vec<_> = used.iter().map(rightly).collect();
    period_charged(policy, from, to, &used)
}

/// The same with `(who, used, waits, charged so much too much)`.
fn period_charged(
    policy: &mut Slices,
    from: u64,
    to: u64,
    used: &[(TenantId, u64, bool, i64)],
) -> Vec<TenantId> {
    let tenants: Vec<TenantPeriod> = used
        .iter()
        .map(|&(tenant, used, backlogged, overcharged_ns)| TenantPeriod {
            tenant,
            used_ns: Nanos(used),
            charged_ns: Nanos(used),
            admitted: true,
            backlogged,
            overcharged_ns,
        })
        .collect();
    let usage = PeriodUsage {
        end: Moment(to),
        basis: Basis::Measured,
        poll_ns: Nanos(to - from),
        nonpoll_ns: Nanos::ZERO,
        tenants: &tenants,
    };
    let admitted = |decided: &&TenantDecision| decided.decision == Decision::Admit;
    let decisions = policy.period_end(&usage).iter();
    decisions
        .filter(admitted)
        .map(|decided| decided.tenant)
        .collect()
}

/// Tenants that always want the engine. A change of holders takes effect `lag` after the decision and costs `switch` of
/// nobody's time. Returns who had the engine from when to when, and the worst difference from the entitled share over windows
/// of a second that begin 10 ms apart, after the first second.
fn run(
    weights: &[u32],
    lag: u64,
    switch: u64,
    seconds: u64,
) -> (Vec<(TenantId, u64, u64)>, Vec<f64>) {
    run_policy(policy(weights), weights, lag, switch, seconds)
}

fn run_policy(
    mut policy: Slices,
    weights: &[u32],
    lag: u64,
    switch: u64,
    seconds: u64,
) -> (Vec<(TenantId, u64, u64)>, Vec<f64>) {
    let all: Vec<TenantId> = (1..=weights.len() as u32).map(TenantId).collect();
    let mut had = Vec::new();
    let (mut now, mut holder) = (0, None);
    // Time that the holder of the last turn still had after its end.
    let mut after: Vec<(TenantId, u64)> = Vec::new();
    while now < seconds * SECOND {
        let until = policy.decide_at().map_or(now + 1_000_000, |at| at.0);
        let mut used = std::mem::take(&mut after);
        if let Some(holder) = holder {
            let begin = now + if used.is_empty() { 0 } else { lag + switch };
            if begin < until {
                had.push((holder, begin, until));
                used.push((holder, until - begin));
            }
        }
        let parts: Vec<_> = all
            .iter()
            .map(|&id| {
                let own: u64 = used
                    .iter()
                    .filter(|part| part.0 == id)
                    .map(|part| part.1)
                    .sum();
                (id, own, true)
            })
            .collect();
        let admitted = period(&mut policy, now, until, &parts);
        assert_eq!(admitted.len(), 1, "one has the engine");
        now = until;
        if let Some(last) = holder.filter(|last| *last != admitted[0]) {
            had.push((last, now, now + lag));
            after.push((last, lag));
        }
        holder = Some(admitted[0]);
    }
    let total: u32 = weights.iter().sum();
    let mut worst = vec![0.0_f64; weights.len()];
    for begin in (SECOND..(seconds - 1) * SECOND).step_by(10_000_000) {
        let end = begin + SECOND;
        let within = |id: TenantId| -> u64 {
            had.iter()
                .filter(|part| part.0 == id)
                .map(|part| part.2.min(end).saturating_sub(part.1.max(begin)))
                .sum()
        };
        let used: u64 = all.iter().map(|id| within(*id)).sum();
        for (index, id) in all.iter().enumerate() {
            let share = within(*id) as f64 / used as f64;
            let entitled = f64::from(weights[index]) / f64::from(total);
            worst[index] = worst[index].max((share - entitled).abs() * 100.0);
        }
    }
    (had, worst)
}

#[test]
fn every_second_holds_the_weights_wherever_it_begins() {
    for weights in [
        &[100, 100][..],
        &[300, 100],
        &[900, 100],
        &[100, 100, 100],
        &[100, 100, 100, 100],
        &[100, 300, 100, 900],
    ] {
        for (lag, switch) in [(0, 0), (500_000, 100_000), (900_000, 300_000)] {
            let (_, worst) = run(weights, lag, switch, 6);
            let worst = worst.into_iter().fold(0.0, f64::max);
            assert!(worst <= 0.3, "{weights:?} {lag} {switch}: {worst} points");
        }
    }
}

#[test]
fn a_frame_has_one_turn_of_each() {
    for (weights, frames) in [
        (&[100, 100][..], FRAMES),
        (&[100, 100, 100], FRAMES + 1),
        (&[100, 100, 100, 100], FRAMES + 1),
    ] {
        let (had, _) = run(weights, 0, 0, 2);
        let turns = had.iter().filter(|(_, from, to)| from < to).count() as f64 / 2.0;
        let expected = (weights.len() as u64 * frames) as f64;
        assert!(
            (turns - expected).abs() <= 1.0,
            "{turns} turns of {weights:?} in a second"
        );
    }
}

/// Whoever was charged too much has it in the turn that is planned when that is known, and not a second time when he is charged less.
#[test]
fn what_was_charged_wrongly_is_evened_out_before_it_is_made_good() {
    let frame = SECOND / FRAMES;
    let (wrong, begin) = (4_000_000, 6 * frame);
    let turn = |overcharged: [i64; 2]| {
        let mut policy = policy(&[100, 100]);
        let used = |ns, charged: [i64; 2]| [(A, ns, true, charged[0]), (B, ns, true, charged[1])];
        period_charged(&mut policy, 0, begin, &used(begin / 2, overcharged));
        policy.decide_at().unwrap().0 - begin
    };
    let even = turn([0, 0]);
    assert_eq!(
        turn([wrong, 0]),
        even + 2_000_000,
        "half of it, as the other one has it less"
    );
    assert_eq!(turn([0, wrong]), even - 2_000_000);
    assert_eq!(turn([wrong, wrong]), even);
    assert_eq!(
        turn([i64::MAX, 0]),
        turn([frame as i64, 0]),
        "no more than a frame"
    );
    // He is charged less by so much at last.
    let mut policy = policy(&[100, 100]);
    let half = begin / 2;
    period_charged(
        &mut policy,
        0,
        begin,
        &[(A, half, true, wrong), (B, half, true, 0)],
    );
    let end = begin + even + 2_000_000;
    let charged = end - begin - wrong as u64;
    period_charged(
        &mut policy,
        begin,
        end,
        &[(A, charged, true, 0), (B, 0, true, 0)],
    );
    let next = begin + frame;
    period_charged(
        &mut policy,
        end,
        next,
        &[(A, 0, true, 0), (B, next - end, true, 0)],
    );
    assert_eq!(policy.decide_at().unwrap().0 - next, even);
}

#[test]
fn first_turns_are_long_and_even_all_the_same() {
    let long = policy_with(&[300, 100], Nanos::from_ms(120));
    let (had, worst) = run_policy(long, &[300, 100], 500_000, 100_000, 6);
    let longest = |from: u64, to: u64| {
        let within = had.iter().filter(|had| had.1 >= from && had.2 <= to);
        within.map(|had| had.2 - had.1).max().unwrap()
    };
    assert!(longest(0, SECOND) > 170_000_000);
    assert!(longest(SECOND + SECOND / 2, 6 * SECOND) < 160_000_000);
    assert!(worst.iter().all(|worst| *worst <= 0.5), "{worst:?}");
}

#[test]
fn a_share_below_the_least_slice_is_given_in_rarer_turns() {
    let (had, worst) = run(&[10_000, 10], 0, 0, 8);
    assert!(
        had.iter()
            .any(|(id, from, to)| *id == B && to - from >= SLICE_MIN.0)
    );
    assert!(worst[1] <= 0.3, "{worst:?}");
}

#[test]
fn one_who_had_far_too_much_is_not_starved() {
    let mut policy = policy(&[900, 100]);
    // B ran for a second beside A, which waited: ten times its share.
    let far = [(A, 10_000_000, true), (B, 990_000_000, true)];
    period(&mut policy, 0, SECOND, &far);
    let (mut now, mut b_had) = (SECOND, false);
    while now < SECOND + SECOND / 2 {
        let until = policy.decide_at().unwrap().0;
        let held_b = policy.turn.unwrap().holder == A;
        let used = if held_b { A } else { B };
        b_had |= !held_b;
        let parts = [A, B].map(|id| (id, if id == used { until - now } else { 0 }, true));
        period(&mut policy, now, until, &parts);
        now = until;
    }
    assert!(b_had, "within half a second it has a turn again");
}

#[test]
fn who_waits_alone_is_never_held() {
    let mut policy = policy(&[100, 100]);
    for at in 0..50 {
        let (from, to) = (at * 10_000_000, (at + 1) * 10_000_000);
        let admitted = period(
            &mut policy,
            from,
            to,
            &[(A, 9_000_000, true), (B, 0, false)],
        );
        assert_eq!(admitted, [A, B]);
        assert_eq!(policy.decide_at(), None);
    }
}

#[test]
fn one_who_uses_it_lightly_is_admitted_beside_the_holder_until_it_is_ahead() {
    let mut policy = policy(&[100, 100, 100]);
    let mut at = 0;
    let mut step = |policy: &mut Slices, light: u64| {
        let from = at;
        at += 10_000_000;
        let rest = (10_000_000 - light) / 2;
        period(
            policy,
            from,
            at,
            &[(A, rest, true), (B, rest, true), (C, light, false)],
        )
    };
    for _ in 0..100 {
        let admitted = step(&mut policy, 500_000);
        assert!(admitted.contains(&C) && admitted.len() == 2, "{admitted:?}");
    }
    let held = (0..100).any(|_| !step(&mut policy, 8_000_000).contains(&C));
    assert!(held, "80 % is more than a third");
}

#[test]
fn an_unused_turn_is_the_next_ones() {
    let mut policy = policy(&[100, 100]);
    let both = [(A, 1_000_000, true), (B, 1_000_000, true)];
    let holder = period(&mut policy, 0, 2_000_000, &both)[0];
    let other = if holder == A { B } else { A };
    assert_eq!(policy.ran_dry(&[other], Moment(2_000_000)), Some(other));
    let used = [(holder, 0, false), (other, 5_000_000, true)];
    assert_eq!(period(&mut policy, 2_000_000, 7_000_000, &used), [A, B]);
}

/// Of three who are held, two had stopped before: the third has the engine all the same, however often the engine runs dry, and whoever is furthest behind.
#[test]
fn a_dry_engine_is_not_kept_for_those_who_had_no_use_for_it() {
    let mut policy = policy(&[100, 100, 100]);
    let ms = |ms: u64| ms * 1_000_000;
    period(
        &mut policy,
        0,
        ms(10),
        &[(A, ms(1), true), (B, ms(2), true), (C, ms(7), true)],
    );
    let mut at = ms(10);
    let mut let_in = Vec::new();
    for _ in 0..3 {
        let_in.extend(policy.ran_dry(&[A, B, C], Moment(at)));
        period(
            &mut policy,
            at,
            at + ms(3),
            &[(A, 0, true), (B, 0, true), (C, 0, true)],
        );
        at += ms(3);
    }
    let_in.sort();
    assert_eq!(let_in, [A, B, C]);
}

/// A has a burst, and B what A leaves. Who has the next turn, and until when, if a period ends when A stops, or not.
fn after_a_burst(ends: bool) -> (Turn, VirtualTime) {
    let ms = |ms: u64| ms * 1_000_000;
    let mut policy = policy(&[100, 100]);
    let both = [(A, ms(5), true), (B, ms(5), true)];
    assert_eq!(period(&mut policy, 0, ms(10), &both), [A]);
    assert_eq!(policy.ran_dry(&[B], Moment(ms(30))), Some(B));
    assert!(!policy.decides_when_dry() && policy.decide_at().is_none());
    let mut from = ms(10);
    let mut used = ms(25);
    if ends {
        let stopped = [(A, ms(20), false), (B, 0, true)];
        assert_eq!(period(&mut policy, from, ms(30), &stopped), [A, B]);
        (from, used) = (ms(30), ms(5));
    }
    let again = [(A, used, true), (B, ms(60), true)];
    period(&mut policy, from, ms(100), &again);
    let at = policy.tenants.get(A).unwrap().clock.now();
    (policy.turn.unwrap(), at)
}

#[test]
fn who_stops_where_nobody_else_waits_need_not_be_told_of_until_he_returns() {
    // He is not owed what B had meanwhile either way.
    let (turn, at) = after_a_burst(false);
    assert_eq!((turn, at), after_a_burst(true));
    assert_eq!(turn.holder, A);
}

/// Two that wait all the time, until A, in a turn of his, does nothing for `pause` ns, and B is let in; meanwhile periods take so long, but for the first. Who has turns from then on,
/// and for how long.
fn pausing(pause: u64, length: u64) -> Vec<(TenantId, u64)> {
    let mut policy = policy(&[100, 100]);
    let frame = SECOND / FRAMES;
    let (mut now, mut turns) = (0, Vec::new());
    let mut step = |policy: &mut Slices, to: u64, who: TenantId, a_waits: bool| {
        let parts = [(A, a_waits), (B, true)];
        let used = |id| if id == who { to - now } else { 0 };
        period(
            policy,
            now,
            to,
            &parts.map(|(id, waits)| (id, used(id), waits)),
        );
        now = to;
        policy.turn.map(|turn| turn.holder)
    };
    let mut holder = step(&mut policy, 1_000_000, A, true);
    while let Some(at) = policy.decide_at().filter(|at| at.0 <= 6 * frame) {
        holder = step(&mut policy, at.0, holder.unwrap(), true);
    }
    // A frame begins.
    assert_eq!(holder, Some(A));
    holder = step(&mut policy, 6 * frame + 20_000_000, A, true);
    assert_eq!(holder, Some(A));
    assert_eq!(
        policy.ran_dry(&[B], Moment(6 * frame + 25_000_000)),
        Some(B)
    );
    let mut at = 6 * frame + 25_000_000;
    step(&mut policy, at, B, false);
    let end = 6 * frame + 20_000_000 + pause;
    while at + length <= end {
        at += length;
        step(&mut policy, at, B, false);
    }
    at = end + 1_000_000;
    holder = step(&mut policy, at, B, true);
    while at < 9 * frame {
        let to = policy.decide_at().unwrap().0;
        turns.push((holder.unwrap(), to - at));
        holder = step(&mut policy, to, holder.unwrap(), true);
        at = to;
    }
    turns
}

#[test]
fn who_pauses_for_a_moment_has_the_rest_of_his_turn_and_turns_go_on_in_their_order() {
    let turns = pausing(10_000_000, 5_000_000);
    let holders: Vec<TenantId> = turns.iter().map(|turn| turn.0).collect();
    assert_eq!(holders, [A, B, A, B, A, B], "{turns:?}");
    // A had 20 ms, and B 11 meanwhile.
    let (rest, other) = (turns[0].1, turns[1].1);
    assert!(rest.abs_diff(63_333_333) <= 5_000_000, "{turns:?}");
    assert!(other.abs_diff(72_333_333) <= 5_000_000, "{turns:?}");
    // Who was away for longer is not owed what he did not want.
    for length in [5_000_000, 120_000_000] {
        // He is taken to have begun that long ago at most.
        let lately = LOOK.0.min(length) + 1_000;
        let turns = pausing(50_000_000, length);
        let of = |id| -> u64 {
            turns
                .iter()
                .filter(|turn| turn.0 == id)
                .map(|turn| turn.1)
                .sum()
        };
        assert!(of(A).abs_diff(of(B)) <= lately, "{turns:?}");
    }
}

/// Where A and B take turns, from when C waits no more.
#[test]
fn who_has_not_waited_for_a_second_is_looked_for_less_often() {
    let mut policy = policy(&[100, 100, 100]);
    let mut now = 0;
    let mut longest = |until: u64, c: bool| {
        let mut longest = 0;
        while now < until {
            let to = policy.decide_at().map_or(now + 1_000_000, |at| at.0);
            let holder = policy.turn.map(|turn| turn.holder);
            let used = |id| if holder == Some(id) { to - now } else { 0 };
            let parts = [
                (A, used(A), true),
                (B, used(B), true),
                (C, if c { used(C) } else { 0 }, c),
            ];
            period(&mut policy, now, to, &parts);
            longest = longest.max(to - std::mem::replace(&mut now, to));
        }
        longest
    };
    assert!(longest(SECOND, false) == LOOK_AWAY.0, "he never has");
    assert!(longest(2 * SECOND, true) > LOOK_AWAY.0, "nobody may wake");
    // The turn under way when he stopped.
    longest(2 * SECOND + 100_000_000, false);
    assert_eq!(longest(3 * SECOND - 100_000_000, false), LOOK.0);
    longest(3 * SECOND + 100_000_000, false);
    assert_eq!(longest(4 * SECOND, false), LOOK_AWAY.0);
}

#[test]
fn who_begins_to_wait_has_his_slice_at_once_and_the_holder_gets_the_rest_of_his() {
    let mut policy = policy(&[100, 100, 100]);
    let mut now = 0;
    // A and B have turns for two frames; A's is under way.
    while now < 2 * SECOND / FRAMES + 10_000_000 {
        let at = policy.decide_at().map_or(1_000_000, |at| at.0);
        assert!(at - now <= LOOK_AWAY.0, "somebody may wake");
        let to = at.min(now + LOOK.0);
        let b = policy.turn.is_some_and(|turn| turn.holder == B);
        let used = |holds: bool| if holds { to - now } else { 0 };
        let parts = [(A, used(!b), true), (B, used(b), true), (C, 0, false)];
        assert!(period(&mut policy, now, to, &parts).contains(&C));
        now = to;
    }
    let mut step = |most: Nanos, parts: [(u64, bool); 3]| {
        let to = policy.decide_at().unwrap().0.min(now + most.0);
        let parts = [A, B, C].map(|id| {
            let (part, waits) = parts[id.0 as usize - 1];
            (id, part * (to - now), waits)
        });
        let admitted = period(&mut policy, now, to, &parts);
        let length = to - std::mem::replace(&mut now, to);
        (admitted, length)
    };
    assert_eq!(step(LOOK, [(1, true), (0, true), (0, true)]).0, [C]);
    // A third of what is left of the frame, and A still has to have the rest of his.
    let (admitted, length) = step(Nanos(SECOND), [(0, true), (0, true), (1, false)]);
    assert_eq!(admitted, [A, C]);
    assert!((30_000_000..60_000_000).contains(&length), "{length}");
    let (admitted, _) = step(Nanos(SECOND), [(1, true), (0, true), (0, true)]);
    assert_eq!(admitted, [A], "not twice in a frame");
}

#[test]
fn who_stops_and_begins_again_all_the_time_does_not_change_holders_without_limit() {
    let mut policy = policy(&[100, 100, 100]);
    let (mut holders, mut last) = (0, None);
    for at in 0..3_000_u64 {
        let waits = at % 2 == 0;
        let who = last.unwrap_or(A);
        let used = |id| (id, if id == who { 1_000_000 } else { 0 });
        let parts = [A, B, C].map(|id| (id, used(id).1, id != C || waits));
        period(&mut policy, at * 1_000_000, (at + 1) * 1_000_000, &parts);
        let holder = policy.turn.map(|turn| turn.holder);
        holders += u32::from(holder != last && holder.is_some());
        last = holder.or(last);
    }
    // A turn of each in each frame, and two changes more for who wakes.
    let frames = 3 * (FRAMES + 1) as u32;
    assert!(
        holders <= frames * 5,
        "{holders} changes in {frames} frames"
    );
}

proptest! {
    /// Whatever is used and whoever waits: if anybody waits, one who waits is admitted, and decisions lie ahead.
    #[test]
    fn somebody_who_waits_is_admitted(
        weights in prop::collection::vec(1u32..1000, 1..5),
        steps in prop::collection::vec((1u64..60_000_000, prop::collection::vec((0u64..100, any::<bool>(), any::<i64>()), 5)), 1..60),
    ) {
        let mut policy = policy(&weights);
        let mut now = 0;
        for (length, parts) in steps {
            let from = now;
            now += length;
            let used: Vec<_> = (0..weights.len())
                .map(|index| (TenantId(index as u32 + 1), parts[index].0 * length / 500, parts[index].1, parts[index].2))
                .collect();
            let admitted = period_charged(&mut policy, from, now, &used);
            if used.iter().any(|part| part.2) {
                prop_assert!(used.iter().any(|part| part.2 && admitted.contains(&part.0)));
            } else {
                prop_assert_eq!(admitted.len(), weights.len());
            }
            prop_assert!(policy.decide_at().is_none_or(|at| at.0 > now));
        }
    }
}
