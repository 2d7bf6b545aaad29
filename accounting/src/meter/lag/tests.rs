use super::*;
use crate::meter::idle::Launched;

const A: TenantId = TenantId(1);
const B: TenantId = TenantId(2);
const MS: u64 = 1_000_000;
/// A's turn, and a whole frame; the first ones are longer.
const TURN: u64 = 20_800_000;
const FRAME: u64 = 41_600_000;
const FIRST: u64 = 120 * MS;
const BEGIN: u64 = 200 * MS;

/// How long A was resident until `at`.
fn until(at: u64) -> u64 {
    let first = at.min(BEGIN + 4 * FIRST).saturating_sub(BEGIN);
    let later = at.saturating_sub(BEGIN + 4 * FIRST);
    let had = |at: u64, turn: u64, frame: u64| at / frame * turn + (at % frame).min(turn);
    had(first, FIRST, 2 * FIRST) + had(later, TURN, FRAME)
}

fn stays(from: u64, to: u64) -> BTreeMap<TenantId, Stay> {
    let stay = |resident| Stay {
        resident: Nanos(resident),
        ..Stay::default()
    };
    let (from, to) = (from.max(BEGIN), to.max(BEGIN));
    let own = until(to) - until(from);
    BTreeMap::from([(A, stay(own)), (B, stay(to - from - own))])
}

/// Takes intervals `from..to`, whose counters are `lag` older than they say.
fn teach(shares: &mut LaggedShares, intervals: std::ops::Range<u64>, lag: u64) {
    for interval in intervals {
        let (from, to) = (interval * 100 * MS, (interval + 1) * 100 * MS);
        let truth = &stays(from.saturating_sub(lag), to.saturating_sub(lag))[&B];
        // B is idle for an eighth.
        let idle = Nanos(truth.resident.0 / 8);
        let ago = |at: u64, shift: Nanos| at.saturating_sub(shift.0);
        let of = |shift: Nanos| (Nanos::ZERO, stays(ago(from, shift), ago(to, shift)));
        shares.observe(Nanos(100 * MS), idle, of);
    }
}

#[test]
fn counters_that_are_older_than_they_say_are_found_out() {
    for lag_us in [0, 7_500, 12_000, 64_000, 91_200] {
        let mut shares = LaggedShares::default();
        teach(&mut shares, 2..30, lag_us * 1_000);
        let found = shares.lag().0.abs_diff(lag_us * 1_000);
        assert!(found <= FINE_STEP.0, "{lag_us} us: {:?}", shares.lag());
        let found = (shares.shares().fraction(A), shares.shares().fraction(B));
        assert!(
            found.0 < 0.005 && (found.1 - 0.125).abs() < 0.005,
            "{lag_us} us: {found:?}"
        );
    }
}

#[test]
fn a_lag_that_drifts_is_followed() {
    let mut shares = LaggedShares::default();
    let lag = |interval: u64| (30_000 + 50 * interval) * 1_000;
    for interval in 2..200 {
        teach(&mut shares, interval..interval + 1, lag(interval));
    }
    let found = shares.lag().0.abs_diff(lag(200));
    assert!(found <= STEP.0, "{:?}", shares.lag());
    let b = shares.shares().fraction(B);
    assert!((b - 0.125).abs() < 0.005, "{b}");
}

#[test]
fn a_lag_that_was_measured_is_believed_until_another_is_told() {
    let mut shares = LaggedShares::default();
    assert!(!shares.is_measured());
    shares.measured(Nanos(64_100_000));
    assert!(shares.is_measured());
    teach(&mut shares, 2..9, 64_000_000);
    let b = shares.shares().fraction(B);
    assert!((b - 0.125).abs() < 0.005, "{b}");
    teach(&mut shares, 9..12, 70_000_000);
    assert_eq!(shares.lag(), Nanos(64_100_000), "whatever fits better");
    shares.measured(Nanos(70_000_000));
    teach(&mut shares, 12..40, 70_000_000);
    assert_eq!(shares.lag(), Nanos(70_000_000));
    shares.restart();
    assert!((shares.shares().fraction(B) - 0.125).abs() < 0.005);
    assert!(shares.coarse.len() > 50 && shares.fine.is_empty());
}

#[test]
fn what_was_learnt_before_the_lag_is_told_is_kept_whichever_was_believed() {
    for lag_ms in [7, 17, 30] {
        let mut shares = LaggedShares::default();
        teach(&mut shares, 2..4, lag_ms * MS);
        assert!(!beside(shares.lag(), Nanos(lag_ms * MS)), "not found yet");
        let believed = shares.shares().fraction(B);
        assert!((believed - 0.125).abs() > 0.05, "{lag_ms} ms: {believed}");
        shares.measured(Nanos(lag_ms * MS + 100_000));
        let found = (shares.shares().fraction(A), shares.shares().fraction(B));
        assert!(
            found.0 < 0.005 && (found.1 - 0.125).abs() < 0.005,
            "{lag_ms} ms: {found:?}"
        );
        assert!(shares.shares().uncertainty(B) < 0.01);
        // One that is told again goes on from the finer steps.
        shares.measured(Nanos(lag_ms * MS));
        assert!((shares.shares().fraction(B) - found.1).abs() < 0.002);
    }
}

#[test]
fn what_is_known_of_tenants_is_kept_where_time_stamps_begin_anew() {
    let mut shares = LaggedShares::default();
    teach(&mut shares, 2..30, 30 * MS);
    shares.restart();
    assert!((shares.shares().fraction(B) - 0.125).abs() < 0.005);
    teach(&mut shares, 30..60, 50 * MS);
    // With a frame more or less, which says the same of turns that repeat.
    let off = (shares.lag().0 + FRAME - 50 * MS + FRAME / 2) % FRAME;
    let near = off.abs_diff(FRAME / 2) <= STEP.0;
    assert!(near, "{:?}", shares.lag());
    let b = shares.shares().fraction(B);
    assert!((b - 0.125).abs() < 0.005, "{b}");
}

#[test]
fn one_who_is_gone_is_forgotten_under_every_lag() {
    let mut shares = LaggedShares::default();
    let of = |_| (Nanos::ZERO, stays(500 * MS, 600 * MS));
    shares.observe(Nanos(100 * MS), Nanos(50 * MS), of);
    assert!(!shares.shares().is_new(A));
    shares.forget(A);
    assert!(shares.coarse.iter().all(|lagged| lagged.shares.is_new(A)));
    shares.observe(Nanos(100 * MS), Nanos(50 * MS), of);
    shares.unlearn(A);
    let unlearnt = |lagged: &Lagged| lagged.shares.fraction(A) == 0.0;
    assert!(shares.coarse.iter().all(unlearnt) && !shares.shares().is_new(A));
}

/// What tenants did in an interval, and how long they worked in it.
#[derive(Default)]
struct Lived {
    stays: BTreeMap<TenantId, Stay>,
    worked: BTreeMap<TenantId, u64>,
}

/// Two tenants launch kernels of 200 us each and wait for them, 9:1; pauses of the first, of 10 us, are longer by up to
/// 3 us, differently in each three intervals.
fn lived(intervals: u64) -> Vec<Lived> {
    const SLICES: [u64; 2] = [106 * MS, 12 * MS];
    const KERNEL: u64 = 200_000;
    const PAUSE: u64 = 10_000;
    let mut lived: Vec<Lived> = Vec::new();
    lived.resize_with(intervals as usize, Lived::default);
    let (mut at, mut turn) = (0, 0);
    let end = intervals * 100 * MS;
    let parts = |from: u64, to: u64| {
        let which = from / (100 * MS)..=(to - 1) / (100 * MS);
        which.map(move |interval| {
            let (begin, end) = (interval * 100 * MS, (interval + 1) * 100 * MS);
            (interval as usize, to.min(end) - from.max(begin))
        })
    };
    while at < end {
        let tenant = TenantId(turn as u32 % 2 + 1);
        let (came, slice) = (at, SLICES[turn % 2]);
        while at - came < slice && at + KERNEL + 2 * PAUSE < end {
            let interval = (at / (100 * MS)) as usize;
            let stay = lived[interval].stays.entry(tenant).or_default();
            stay.launched.get_or_insert_default().count += 1.0;
            for (interval, part) in parts(at, at + KERNEL) {
                *lived[interval].worked.entry(tenant).or_default() += part;
            }
            let longer = [0, 2_100, 3_000, 600, 1_500, 2_700, 300][interval / 3 % 7];
            at += KERNEL + PAUSE + if turn % 2 == 0 { longer } else { 0 };
        }
        at = if at - came < slice { end } else { at };
        for (interval, part) in parts(came, at) {
            let stay = lived[interval].stays.entry(tenant).or_default();
            stay.resident += Nanos(part);
            let (begin, end) = (interval as u64 * 100 * MS, (interval as u64 + 1) * 100 * MS);
            let launched = stay.launched.get_or_insert_default();
            launched.at_ends.0 |= came <= begin;
            launched.at_ends.1 |= at >= end;
        }
        turn += 1;
    }
    lived
}

/// By how much what is found of the later two thirds of the intervals is too little for each tenant, in percent of what it worked, if `said` of what it launched is told; and whether
/// launches are believed.
fn taught(
    confirmed: bool,
    said: impl Fn(TenantId, u64, f64) -> Option<f64>,
) -> (BTreeMap<TenantId, f64>, bool) {
    let mut shares = LaggedShares::default();
    shares.measured(Nanos::ZERO);
    let mut sums: BTreeMap<TenantId, (f64, f64)> = BTreeMap::new();
    let lived = lived(90);
    for (interval, Lived { stays, worked }) in lived.iter().enumerate() {
        let told: BTreeMap<TenantId, Stay> = stays
            .iter()
            .map(|(tenant, stay)| {
                let count = stay.launched.map_or(0.0, |launched| launched.count);
                let launched = said(*tenant, interval as u64, count).map(|count| Launched {
                    count,
                    at_ends: stay
                        .launched
                        .map(|launched| launched.at_ends)
                        .unwrap_or_default(),
                    ..Launched::default()
                });
                (*tenant, Stay { launched, ..*stay })
            })
            .collect();
        let idle = 100 * MS - worked.values().sum::<u64>();
        shares.observe(Nanos(100 * MS), Nanos(idle), |_| {
            (Nanos::ZERO, told.clone())
        });
        for Idled {
            tenant, idle_ns, ..
        } in shares
            .tell(confirmed)
            .into_iter()
            .filter(|_| interval >= 30)
        {
            let worked = worked.get(&tenant).copied().unwrap_or(0) as f64;
            let idle = stays[&tenant].resident.0 as f64 - worked;
            let (off, whole) = sums.entry(tenant).or_default();
            (*off, *whole) = (*off + idle - idle_ns, *whole + worked);
        }
    }
    let percent = |(tenant, (off, whole)): (TenantId, (f64, f64))| (tenant, 100.0 * off / whole);
    (
        sums.into_iter().map(percent).collect(),
        shares.by_launches(),
    )
}

fn worst(off: &BTreeMap<TenantId, f64>) -> f64 {
    off.values().map(|off| off.abs()).fold(0.0, f64::max)
}

#[test]
fn launches_foretell_where_pauses_change() {
    let (without, believed) = taught(false, |_, _, _| None);
    assert!(!believed);
    let (with, believed) = taught(false, |_, _, count| Some(count));
    assert!(believed);
    let worst = (worst(&with), worst(&without));
    assert!(
        worst.0 < 0.3 && worst.0 < worst.1 / 3.0,
        "{with:?}, {without:?}"
    );
}

#[test]
fn launches_that_do_not_foretell_are_not_believed() {
    let (without, _) = taught(false, |_, _, _| None);
    let some = |interval: u64| [0.4, 1.0, 0.7, 0.2, 0.9][interval as usize % 5];
    let (lied, believed) = taught(false, |tenant, interval, count| {
        let lies = tenant == TenantId(2);
        Some(if lies { count * some(interval) } else { count })
    });
    assert!(!believed);
    // But for how he is believed to have begun.
    for (tenant, off) in &lied {
        assert!(
            (off - without[tenant]).abs() < 0.01,
            "{lied:?}, {without:?}"
        );
    }
}

/// A has 85 % of two intervals of three and all of the third, pauses for a twentieth of it, and launches all the time; B works, but for 9 ms of the last interval. What is found of it,
/// and how much of A's time is believed to be idle after it; where A's launches are counted, or not.
fn hiccup(counted: bool) -> (BTreeMap<TenantId, f64>, f64) {
    let mut shares = LaggedShares::default();
    shares.measured(Nanos::ZERO);
    for interval in 0..=60 {
        let alone = interval % 3 == 2;
        let own = if alone { 100 * MS } else { 85 * MS };
        let launched = Launched {
            count: own as f64 / 210_000.0,
            at_ends: (true, true),
            ..Launched::default()
        };
        let stay = |resident, launched| Stay {
            resident: Nanos(resident),
            launched,
            ..Stay::default()
        };
        let mut stays = BTreeMap::from([(A, stay(own, counted.then_some(launched)))]);
        if !alone {
            stays.insert(B, stay(100 * MS - own, None));
        }
        let paused = if interval == 60 { 9 * MS } else { 0 };
        let idle = Nanos(own / 20 + paused);
        shares.observe(Nanos(100 * MS), idle, |_| (Nanos::ZERO, stays.clone()));
    }
    let found = shares.tell(false);
    let found = found.iter().map(|idled| (idled.tenant, idled.idle_ns));
    (found.collect(), shares.shares().fraction(A))
}

#[test]
fn a_pause_is_not_blamed_on_one_who_launched_on() {
    let (found, fraction) = hiccup(true);
    let own = 85.0 * MS as f64 / 20.0;
    assert!((found[&A] - own).abs() < 300_000.0, "{found:?}");
    assert!((found[&B] - 9.0 * MS as f64).abs() < 300_000.0, "{found:?}");
    assert!((fraction - 0.05).abs() < 0.002, "{fraction}");
    let (found, fraction) = hiccup(false);
    assert!(found.is_empty() && fraction > 0.1, "{found:?} {fraction}");
}

/// Who says that he launches half as much beside others as alone is believed to pause for longer, but by no more than a pause may be.
#[test]
fn who_lies_in_a_way_that_foretells_gains_little() {
    let (lied, _) = taught(false, |tenant, interval, count| {
        let alone = interval < 20;
        Some(if tenant == TenantId(2) && !alone {
            count / 2.0
        } else {
            count
        })
    });
    // 5 % of his time are pauses.
    assert!(
        worst(&lied) < 100.0 * OFF_MAX * (0.002 + 0.5 * 0.05) / 0.95,
        "{lied:?}"
    );
}

/// Launches that the GPU's own count does not miss are lied about in ways that keep in step with something.
#[test]
fn what_is_confirmed_lets_a_liar_gain_hardly_more() {
    type Lies = fn(u64, f64) -> bool;
    let ways: [Lies; 6] = [
        |_, _| true,
        |interval, _| interval.is_multiple_of(2),
        |interval, _| interval >= 20,
        |interval, _| interval.is_multiple_of(3),
        |_, count| count > 40.0,
        |_, count| count < 50.0,
    ];
    let gained = |confirmed: bool, less: f64, lies: Lies| {
        let (lied, _) = taught(confirmed, |tenant, interval, count| {
            let lies = tenant == B && lies(interval, count);
            Some((if lies { count - less } else { count }).max(0.0))
        });
        -lied[&B]
    };
    for (lies, less) in ways
        .iter()
        .flat_map(|lies| [(lies, 2.0), (lies, 5.0), (lies, 8.0)])
    {
        let (with, without) = (gained(true, less, *lies), gained(false, less, *lies));
        assert!(with < without.max(0.0) + 1.5, "{less}: {with} %, {without}");
        assert!(
            with < 100.0 * OFF_MAX * PAUSE_MAX / 0.95,
            "{less}: {with} %"
        );
    }
}

/// A has bursts of kernels of 200 us, which he waits for, and is told to have stopped 0.6 ms too early or too late; B works all the time. What is found of A's executing in the last of so many
/// intervals, less what he executed, in us; and how long he is taken to have stopped too early in it.
fn stopped(intervals: usize, counted: bool) -> (Option<f64>, f64) {
    const DOUBT: u64 = 600_000;
    let mut shares = LaggedShares::default();
    shares.measured(Nanos::ZERO);
    let (mut executed, mut told) = (0.0, 0.0);
    for interval in 0..intervals {
        let count = [80, 120, 60, 100, 140][interval % 5];
        let own = count * 210_000;
        let late = [DOUBT, 0, 2 * DOUBT][interval % 3];
        let a = Stay {
            resident: Nanos(own + late - DOUBT),
            doubt: Nanos(DOUBT),
            launched: counted.then_some(Launched {
                count: count as f64,
                ..Launched::default()
            }),
            ..Stay::default()
        };
        let rest = 4 * MS;
        let b = Stay {
            resident: Nanos(100 * MS - own - rest),
            ..Stay::default()
        };
        let idle = rest + count * 10_000 + b.resident.0 / 200;
        (executed, told) = ((count * 200_000) as f64, a.resident.0 as f64);
        let nobody = Nanos(rest + DOUBT - late);
        let stays = BTreeMap::from([(A, a), (B, b)]);
        shares.observe(Nanos(100 * MS), Nanos(idle), |_| (nobody, stays.clone()));
    }
    let misplaced_us = shares.misplaced() * 1e5;
    let found = shares.tell(false);
    let found = found.iter().find(|idled| idled.tenant == A);
    let off_us = found.map(|idled| (told - idled.idle_ns - executed) / 1e3);
    (off_us, misplaced_us)
}

#[test]
fn who_launched_so_often_executed_for_so_long_whenever_he_stopped() {
    for intervals in [60, 61, 62] {
        let (off_us, misplaced_us) = stopped(intervals, true);
        assert!(
            off_us.is_some_and(|off_us| off_us.abs() < 60.0),
            "{off_us:?}"
        );
        assert_eq!(misplaced_us, 0.0, "it is told once");
    }
    let (off_us, misplaced_us) = stopped(62, false);
    assert_eq!(off_us, None);
    assert!(misplaced_us.abs() > 200.0, "{misplaced_us}");
}

#[test]
fn what_one_was_taken_for_is_not_told_where_launches_know_better() {
    let mut shares = LaggedShares::default();
    shares.measured(Nanos::ZERO);
    let stay = |resident: u64, count: Option<u64>| Stay {
        resident: Nanos(resident * MS),
        launched: count.map(|count| Launched {
            count: count as f64,
            ..Launched::default()
        }),
        ..Stay::default()
    };
    let by_launches = shares.by_launches.as_mut().unwrap();
    for _ in 0..3 {
        let alone = BTreeMap::from([(A, stay(100, None))]);
        let idle = Nanos(50 * MS);
        let own = &mut shares.fine[0].shares;
        own.observe(Nanos(100 * MS), idle, Nanos::ZERO, &alone);
        let both = BTreeMap::from([(A, stay(60, None)), (B, stay(40, Some(190)))]);
        let idle = Nanos(2 * MS);
        let beside = &mut by_launches.shares;
        beside.observe(Nanos(100 * MS), idle, Nanos::ZERO, &both);
    }
    assert!(
        (shares.fraction(A) - 0.5).abs() < 0.01,
        "as little is known"
    );
    shares.fine[0].misfit = CLEAR + 1.0;
    shares.by_launches.as_mut().unwrap().misfit = 0.0;
    assert!(shares.fraction(A) < 0.05, "{}", shares.fraction(A));
    assert_eq!(shares.fraction(B), shares.shares().fraction(B));
}
