use super::*;

const A: TenantId = TenantId(1);
const RING: u32 = 1024;

/// Channels with so many entries taken each.
struct Fake(u64, Vec<u32>);

impl Words for Fake {
    fn generation(&self) -> u64 {
        self.0
    }

    fn count(&self) -> usize {
        self.1.len()
    }

    fn read(&self, index: usize) -> (Entries, u32) {
        let get = self.1[index] % RING;
        (Entries { get, put: get }, RING)
    }
}

const fn ms(ms: u64) -> Moment {
    Moment(ms * 1_000_000)
}

fn look(progress: &mut Progress, taken: &[u32], at: Moment) -> Said {
    progress.look(A, &Fake(1, taken.to_vec()), at)
}

#[test]
fn entries_are_counted_round_the_ring_and_of_all_channels() {
    let mut progress = Progress::default();
    assert_eq!(look(&mut progress, &[1000, 7], ms(1)), Said::Nothing);
    assert_eq!(
        look(&mut progress, &[1000, 7], ms(2)),
        Said::Nothing,
        "anew"
    );
    let moved = |since, entries| Said::Moved { since, entries };
    let said = look(&mut progress, &[1030, 7], ms(4));
    assert_eq!(said, moved(ms(2), 30));
    // The one that never moved is not read as long as the other does.
    let said = look(&mut progress, &[1031, 9], ms(5));
    assert_eq!(said, moved(ms(4), 1));
    let said = look(&mut progress, &[1031, 9], ms(6));
    assert_eq!(said, moved(ms(5), 2), "it is seen late");
    let still = Said::Still {
        since: ms(5),
        entries: 2,
        moved_at: ms(6),
    };
    assert_eq!(look(&mut progress, &[1031, 9], ms(7)), still);
    assert_eq!(look(&mut progress, &[1031, 9], ms(8)), still);
    let moved = |words| progress.has_moved(A, &words);
    assert_eq!(moved(Fake(1, vec![1032, 9])), Some(true));
    assert_eq!(moved(Fake(1, vec![1031, 9])), Some(false));
    assert_eq!(moved(Fake(2, vec![1031, 9])), None, "other channels");
    assert_eq!(
        progress.has_moved(TenantId(2), &Fake(1, vec![])),
        None,
        "never asked"
    );
    let other = progress.look(A, &Fake(2, vec![5]), ms(9));
    assert_eq!(other, Said::Nothing, "other channels");
}

#[test]
fn what_was_launched_before_one_left_is_not_what_was_launched_since_he_came() {
    let mut progress = Progress::default();
    (0..2).for_each(|at| {
        look(&mut progress, &[0], ms(at));
    });
    progress.left(A, ms(5));
    progress.came(A, ms(8));
    assert_eq!(look(&mut progress, &[3], ms(10)), Said::Nothing, "a mix");
    progress.left(A, ms(11));
    assert_eq!(progress.to_be_asked().collect::<Vec<_>>(), [A]);
    assert_eq!(look(&mut progress, &[4], ms(12)), Said::Nothing);
    assert_eq!(progress.to_be_asked().count(), 0);
    progress.came(A, ms(14));
    let (since, entries) = (ms(14), 2);
    let said = look(&mut progress, &[6], ms(16));
    assert_eq!(said, Said::Moved { since, entries });
    progress.left(A, ms(17));
    look(&mut progress, &[6], ms(18));
    progress.came(A, ms(20));
    let still = Said::Still {
        since: ms(20),
        entries: 0,
        moved_at: ms(20),
    };
    assert_eq!(look(&mut progress, &[6], ms(22)), still);
}

/// Until 19 ms.
fn launches_four_times_a_millisecond() -> Progress {
    let mut progress = Progress::default();
    look(&mut progress, &[0], ms(0));
    for at in 1..20 {
        look(&mut progress, &[4 * at as u32], ms(at));
        progress.works(A, ms(at));
    }
    progress
}

#[test]
fn pace_is_learnt_of_those_who_worked_throughout() {
    let mut progress = launches_four_times_a_millisecond();
    assert_eq!(progress.each(A), None, "what broke it may not be known yet");
    progress.settle(ms(20));
    let each = progress.each(A).unwrap();
    assert!((each.entry_ns - 250_000.0).abs() < 1.0 && each.off_ns < 1.0);
    // He stops: that interval, and the one before it, say nothing.
    look(&mut progress, &[77], ms(20));
    progress.stops(A);
    progress.settle(ms(30));
    assert!((progress.each(A).unwrap().entry_ns - 250_000.0).abs() < 1.0);
    // Somebody else came in between.
    for at in 31..50 {
        look(&mut progress, &[77 + at as u32], ms(at));
        progress.works(A, ms(at));
        progress.came(A, ms(at));
    }
    progress.settle(ms(60));
    assert!((progress.each(A).unwrap().entry_ns - 250_000.0).abs() < 1.0);
}

/// What is known of the last stay of 10 ms of one who takes four entries a millisecond, and was there for so long before, after he had been asked.
fn after_a_stay_of(us: u64) -> Option<(Moment, u64)> {
    let mut progress = launches_four_times_a_millisecond();
    progress.settle(ms(20));
    progress.left(A, ms(20));
    look(&mut progress, &[80], ms(30));
    progress.came(A, ms(40));
    progress.left(A, ms(40) + Nanos::from_us(us));
    progress.came(A, ms(50));
    let entries = 80 + (us / 250) as u32 + 40;
    assert_eq!(look(&mut progress, &[entries], ms(60)), Said::Nothing);
    let of_stay = progress.of_stay(A);
    look(&mut progress, &[entries], ms(61));
    assert_eq!(progress.of_stay(A), None, "now it is known");
    of_stay
}

#[test]
fn what_was_launched_since_one_came_is_about_known_if_he_was_not_there_for_long_before() {
    assert_eq!(after_a_stay_of(100), Some((ms(50), 39)));
    assert_eq!(after_a_stay_of(1_000), Some((ms(50), 40)));
    assert_eq!(after_a_stay_of(3_000), None);
}

#[test]
fn who_is_slower_twice_may_run_longer_kernels_and_how_long_they_are_is_not_known_then() {
    let mut progress = launches_four_times_a_millisecond();
    progress.settle(ms(20));
    let rested = |progress: &mut Progress, from, entries| {
        progress.rested(A, ms(from), ms(from + 10), entries)
    };
    assert_eq!(rested(&mut progress, 20, 40), None, "as fast as he can");
    assert!(rested(&mut progress, 30, 10).is_some());
    // He was seen without work: he does rest.
    progress.stops(A);
    assert!(rested(&mut progress, 40, 10).is_some());
    assert_eq!(rested(&mut progress, 50, 10), None);
    assert_eq!(progress.each(A), None);
}

#[test]
fn launches_tell_when_one_began_and_when_one_stopped() {
    let each = Each {
        entry_ns: 500_000.0,
        off_ns: 0.0,
    };
    let located = each.stopped(ms(10), ms(20), ms(20), 4);
    assert_eq!(located.at, Moment(12_250_000));
    assert!(located.within < Nanos::from_us(1_500));
    assert_eq!(each.stopped(ms(10), ms(12), ms(12), 100).at, ms(12));
    // The fourth began within 1.6 ms, and ended within 2.2.
    let (soon, end) = (Moment(11_600_000), Moment(12_200_000));
    assert_eq!(each.stopped(ms(10), soon, ms(20), 4).at, Moment(12_050_000));
    assert_eq!(each.stopped(ms(10), end, end, 4).at, Moment(12_100_000));
    assert_eq!(each.began(ms(10), ms(20), 4).at, Moment(18_250_000));
    assert_eq!(each.began(ms(10), ms(20), 400).at, ms(10));
    assert!(!each.may_have_rested(ms(10), ms(20), 19, false));
    assert!(each.may_have_rested(ms(10), ms(20), 17, false));
    assert!(!each.may_have_rested(ms(10), ms(20), 17, true));
}

#[test]
fn a_rest_between_two_looks_that_both_found_work_is_as_long_as_no_launches_fill() {
    let each = Each {
        entry_ns: 200_000.0,
        off_ns: 50_000.0,
    };
    let (stopped, began) = each.rested(ms(10), ms(20), 20).unwrap();
    assert_eq!((stopped.at, began), (ms(12), ms(18)));
    assert_eq!(each.rested(ms(10), ms(20), 46), None, "that may be chance");
    let stays = [180_000, 650_000, 0].map(Nanos);
    assert_eq!(each.launched(stays.into_iter()), 1 + 3 + 1);
}

#[test]
fn who_took_a_whole_ring_and_more_took_as_many_as_he_could() {
    let mut progress = Progress::default();
    let taken = |at: u64| 20 * at as u32;
    for at in 0..10 {
        look(&mut progress, &[taken(at)], ms(at));
        progress.works(A, ms(at));
    }
    progress.settle(ms(10));
    let said = look(&mut progress, &[taken(100)], ms(100));
    let (since, entries) = (ms(9), u64::from(taken(91)));
    assert!(entries > u64::from(RING));
    assert_eq!(said, Said::Moved { since, entries });
    // He rested for most of that time.
    let said = look(&mut progress, &[taken(105)], ms(160));
    let (since, entries) = (ms(100), 100 + u64::from(RING));
    assert_eq!(said, Said::Moved { since, entries }, "which cannot be told");
    let said = look(&mut progress, &[taken(105)], ms(161));
    assert!(matches!(said, Said::Still { .. }));
}

#[test]
fn who_works_while_his_channels_stand_still_is_not_asked_any_more() {
    let mut progress = Progress::default();
    (0..2).for_each(|at| {
        look(&mut progress, &[0], ms(at));
    });
    progress.checked(A, false, ms(2));
    assert!(progress.rests(A, ms(3)) && !progress.rests(A, ms(200)));
    for mistake in 0..=MISTAKES_MAX {
        let said = look(&mut progress, &[0], ms(300 + u64::from(mistake)));
        assert!(matches!(said, Said::Still { .. }), "{mistake}");
        progress.checked(A, true, ms(300));
        assert!(!progress.rests(A, ms(301)));
        progress.checked(A, true, ms(300));
        progress.checked(A, false, ms(302));
    }
    assert_eq!(look(&mut progress, &[1], ms(400)), Said::Nothing);
    progress.forget(A);
    assert_eq!(look(&mut progress, &[1], ms(500)), Said::Nothing);
}

#[test]
fn who_works_for_longer_than_his_channels_say_is_not_asked_any_more() {
    let is_asked = |progress: &mut Progress| look(progress, &[0], ms(1)) != Said::Nothing;
    let after = |each_ns: &dyn Fn(u64) -> f64, intervals| {
        let mut progress = Progress::default();
        (0..2).for_each(|at| {
            look(&mut progress, &[0], ms(at));
        });
        let mut until = 0;
        while until < intervals && is_asked(&mut progress) {
            progress.contradicted(A, each_ns(until), 400_000.0);
            until += 1;
        }
        until
    };
    // By chance, either way.
    let honest = |at: u64| if at.is_multiple_of(2) { 1.4e6 } else { -0.6e6 };
    assert_eq!(after(&honest, 10_000), 10_000);
    // 2 ms of 100 are kept from the bill: four times 14 intervals.
    assert_eq!(after(&|_| 2e6, 10_000), 56);
    assert_eq!(after(&|_| 90e6, 10_000), 4, "all of it");
}

#[test]
fn one_with_long_kernels_is_looked_at_ever_more_seldom() {
    let mut progress = Progress::default();
    (0..2).for_each(|at| {
        look(&mut progress, &[0], ms(at));
    });
    let mut looks = 0;
    for at in (10..5_000).step_by(10) {
        look(&mut progress, &[0], ms(at));
        if progress.may_rest(A, ms(at)) {
            looks += 1;
            progress.checked(A, true, ms(at));
        }
    }
    assert!(looks < 12, "{looks}");
}

/// Of 250 us each: by the words he has none after 275 us and [`STANDS`].
#[test]
fn words_that_the_register_has_confirmed_say_when_one_has_no_work() {
    let mut progress = launches_four_times_a_millisecond();
    progress.settle(ms(20));
    let said = look(&mut progress, &[80], ms(20));
    let after = |progress: &mut Progress| progress.stands_after(A, said);
    let stood = |progress: &mut Progress, works, after_us| {
        progress.stood(A, works, ms(20) + Nanos::from_us(after_us));
    };
    assert_eq!(after(&mut progress), None, "never confirmed");
    for _ in 0..AGREED_MIN {
        assert_eq!(after(&mut progress), None);
        stood(&mut progress, false, 600);
    }
    // A launch may last so long: that says nothing.
    stood(&mut progress, true, 500);
    for _ in 1..ASKED_AGAIN {
        assert_eq!(after(&mut progress), Some(Nanos::from_us(525)));
    }
    assert_eq!(
        after(&mut progress),
        None,
        "the register is asked now and then"
    );
    assert!(after(&mut progress).is_some());
    // Who launched little may be at a longer one.
    let (since, entries) = (ms(19), LAUNCHED_MIN - 1);
    let few = Said::Moved { since, entries };
    assert_eq!(progress.stands_after(A, few), None);
    assert_eq!(progress.stands_after(A, Said::Nothing), None);
    // He works all the same.
    stood(&mut progress, true, 600);
    assert_eq!(after(&mut progress), None);
}

#[test]
fn words_of_long_launches_or_of_some_that_wait_do_not_say_when_one_has_no_work() {
    struct Waiting;
    impl Words for Waiting {
        fn generation(&self) -> u64 {
            1
        }
        fn count(&self) -> usize {
            1
        }
        fn read(&self, _: usize) -> (Entries, u32) {
            (Entries { get: 80, put: 81 }, RING)
        }
    }
    let confirmed = |progress: &mut Progress| {
        for _ in 0..AGREED_MIN {
            progress.stood(A, false, ms(40));
        }
    };
    let mut progress = launches_four_times_a_millisecond();
    progress.settle(ms(20));
    let said = progress.look(A, &Waiting, ms(20));
    confirmed(&mut progress);
    assert_eq!(progress.stands_after(A, said), None, "one waits");
    let mut progress = Progress::default();
    for at in 0..20 {
        look(&mut progress, &[at as u32], ms(at));
        progress.works(A, ms(at));
    }
    progress.settle(ms(20));
    let said = look(&mut progress, &[40], ms(20));
    confirmed(&mut progress);
    assert_eq!(progress.stands_after(A, said), None, "a millisecond each");
}
