use super::*;
use proptest::prelude::*;

const A: Holder = Holder::Account(AccountId(1));
const STEPS: [Step; 3] = [Step::Begin, Step::Half, Step::End];

fn ms(ms: u64) -> Moment {
    Moment(ms * 1_000_000)
}

/// Half of a turn: the holder's worked and resident time, and the resident time of others.
fn sums(worked: u64, resident: u64, others: u64) -> Sums {
    Sums {
        worked: Nanos::from_ms(worked),
        resident: Nanos::from_ms(resident),
        others: Nanos::from_ms(others),
    }
}

/// The measurement of a turn of 20 ms with these halves.
fn measured(first: Sums, second: Sums, ended_idle: bool) -> Option<Alone> {
    let mut turns = Turns::default();
    turns.begin(A, ms(0), TURN);
    turns.add(ms(10), first);
    turns.half(ms(10));
    turns.add(ms(20), second);
    turns.end(ms(20), ended_idle);
    let (holder, measured) = turns.measured(ms(20))?;
    assert_eq!(holder, A);
    measured
}

fn rate(percent: u32) -> Option<Alone> {
    Some(Alone::Works(Fraction::percent(percent)))
}

#[test]
fn the_second_half_measures_what_the_holder_works_alone() {
    let saved_up = sums(10, 10, 0);
    assert_eq!(measured(saved_up, sums(5, 10, 0), false), rate(50));
    assert_eq!(measured(saved_up, sums(4, 8, 1), false), rate(50));
    assert_eq!(measured(saved_up, sums(4, 8, 2), false), None, "mixed");
}

#[test]
fn a_holder_that_became_idle_is_measured_over_the_whole_turn() {
    let whole = Fraction::ratio(5_000, 19_500);
    let ended_idle = measured(sums(5, 5, 0), sums(0, 0, 0), true);
    assert_eq!(ended_idle, Some(Alone::Works(whole)));
    let mut turns = Turns::default();
    turns.begin(A, ms(0), TURN);
    turns.end(ms(1), true);
    assert_eq!(turns.measured(ms(1)), Some((A, None)), "too short");
}

#[test]
fn a_holder_that_never_worked_only_waits_if_the_engine_was_idle() {
    let none = sums(0, 0, 0);
    assert_eq!(measured(none, none, false), Some(Alone::OnlyWaits));
    assert_eq!(measured(none, sums(0, 9, 0), false), Some(Alone::OnlyWaits));
    assert_eq!(measured(sums(0, 0, 8), sums(0, 0, 2), false), None);
}

#[test]
fn a_holder_that_was_resident_without_work_works_little() {
    let resident = sums(0, 9, 0);
    let little = Some(Alone::Works(Fraction::ZERO));
    assert_eq!(measured(resident, sums(0, 10, 0), false), little);
    assert_eq!(measured(resident, sums(0, 4, 6), false), little);
    assert_eq!(measured(sums(0, 4, 6), sums(0, 4, 6), false), None);
}

#[test]
fn readings_that_are_late_are_those_of_their_turn() {
    let mut turns = Turns::default();
    turns.begin(A, ms(0), TURN);
    turns.half(ms(10));
    turns.end(ms(20), false);
    turns.begin(Holder::Account(AccountId(2)), ms(20), TURN);
    turns.add(ms(10), sums(10, 10, 0));
    assert_eq!(turns.measured(ms(10)), None);
    turns.add(ms(20), sums(3, 10, 0));
    assert_eq!(turns.measured(ms(20)), Some((A, rate(30))));
    turns.note_unknown(ms(30));
    turns.half(ms(30));
    turns.add(ms(40), sums(3, 10, 0));
    turns.end(ms(40), false);
    let other = Holder::Account(AccountId(2));
    assert_eq!(
        turns.measured(ms(40)),
        Some((other, None)),
        "half is unknown"
    );
}

#[test]
fn a_cut_turn_measures_nothing() {
    let mut turns = Turns::default();
    assert!(turns.cut().is_none());
    turns.begin(A, ms(0), TURN);
    turns.add(ms(10), sums(10, 10, 0));
    assert!(turns.cut().is_some());
    assert_eq!(turns.holder(), None);
    assert_eq!(turns.measured(ms(1_000)), None);
}

#[test]
fn a_holder_admits_its_tenants() {
    let tenant = Holder::Tenant(AccountId(1), TenantId(5));
    assert!(A.admits(AccountId(1), TenantId(5)) && A.admits(AccountId(1), TenantId(6)));
    assert!(!A.admits(AccountId(2), TenantId(5)));
    assert!(tenant.admits(AccountId(1), TenantId(5)));
    assert!(!tenant.admits(AccountId(1), TenantId(6)));
    assert_eq!(tenant.account(), AccountId(1));
}

proptest! {
    /// With any steps, the phase follows the table, and a turn runs except in `Together`.
    #[test]
    fn phases_follow_the_table(tried in prop::collection::vec(prop::sample::select(&STEPS), 0..60)) {
        let mut turns = Turns::default();
        for (at, step) in (1..).zip(tried) {
            let (phase, allowed) = (turns.phase, turns.phase.after(step));
            match step {
                Step::Begin => turns.begin(A, ms(at), TURN),
                Step::Half => turns.half(ms(at)),
                Step::End => turns.end(ms(at), false),
            }
            prop_assert_eq!(turns.phase, allowed.unwrap_or(phase));
            prop_assert_eq!(turns.current().is_none(), turns.phase == Phase::Together);
        }
    }
}
