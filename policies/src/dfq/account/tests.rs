//! Tenants within an account: places, names, allowances.

use super::*;
use crate::dfq::names::RENAME_WINDOW;

const MS: u64 = 1_000_000;
const A: TenantId = TenantId(1);
const B: TenantId = TenantId(2);

const RULES: Rules = Rules {
    patience: Nanos::from_ms(1),
    ahead: Nanos::from_ms(1),
    order: Nanos::from_us(100),
    preemption: Some(Nanos::from_us(20)),
};

impl Account {
    pub(in crate::dfq) fn reservations_left(&self, now: Moment) -> Nanos {
        self.reservations.left(now)
    }
}

fn account() -> Account {
    let params = TenantParams::default();
    Account::new(params, &RULES, VirtualTime::default(), Moment(0))
}

fn add(account: &mut Account, id: TenantId, name: &str, now: Moment) {
    account.add(id, name.into(), TenantParams::default(), now);
}

fn with_work(tenants: &[TenantId]) -> Account {
    let mut account = account();
    for id in tenants {
        add(&mut account, *id, &id.to_string(), Moment(0));
        assert!(account.wake(*id, Demand::Queued, Moment(0)));
    }
    account
}

fn at_ms(account: &Account, id: TenantId) -> u64 {
    let at = account.tenants[&id].entity.at();
    VirtualTime::default().service_until(at, 100).0 / MS
}

fn standing(account: &Account, id: TenantId) -> Standing {
    account.tenants[&id].entity.standing()
}

/// A pauses once, for `length`.
fn pause(account: &mut Account, from: u64, length: u64) {
    account.sleep(A, Moment(from), &RULES);
    assert!(account.wake(A, Demand::Queued, Moment(from + length)));
}

#[test]
fn waking_is_from_no_work_only() {
    let mut account = with_work(&[A]);
    assert!(!account.wake(A, Demand::Executes, Moment(1)));
    assert!(!account.wake(B, Demand::Queued, Moment(1)));
    assert!(account.tenants[&A].wants() && !account.tenants[&A].is_queued());
    account.wake(A, Demand::Queued, Moment(1));
    assert!(account.tenants[&A].is_queued());
    account.sleep(A, Moment(2), &RULES);
    assert!(!account.tenants[&A].is_queued());
    account.sleep(A, Moment(9), &RULES);
    assert_eq!(
        account.expires_at(),
        Some(Moment(2) + RULES.patience),
        "asleep already"
    );
}

#[test]
fn a_place_is_kept_while_pauses_are_short() {
    let mut account = with_work(&[A]);
    pause(&mut account, 0, MS);
    account.sleep(A, Moment(2 * MS), &RULES);
    assert_eq!(standing(&account, A), Standing::Pausing);
    assert_eq!(account.expires_at(), Some(Moment(3 * MS)));
    account.wake(A, Demand::Queued, Moment(3 * MS + 1));
    assert_eq!(account.expires_at(), None);
    account.sleep(A, Moment(4 * MS), &RULES);
    assert_eq!(
        standing(&account, A),
        Standing::Absent,
        "its usual pause is too long"
    );
    assert_eq!(account.expires_at(), None);
    assert!(account.present.is_empty());
}

#[test]
fn without_patience_no_place_is_kept() {
    let mut account = with_work(&[A]);
    let rules = Rules {
        patience: Nanos::ZERO,
        ..RULES
    };
    account.sleep(A, Moment(0), &rules);
    assert_eq!(standing(&account, A), Standing::Absent);
}

#[test]
fn while_little_is_saved_up_a_place_is_kept_for_twice_the_usual_pause() {
    let expires = |left_ns: u64| {
        let mut account = with_work(&[A]);
        pause(&mut account, 0, MS / 4);
        account.reservations = Allowance::new(Nanos(left_ns), RESERVED_MAX, Moment(MS));
        account.sleep(A, Moment(MS), &RULES);
        account.expires_at()
    };
    assert_eq!(expires(5 * MS), Some(Moment(2 * MS)));
    assert_eq!(expires(5 * MS - 1), Some(Moment(MS + MS / 2)));
    assert_eq!(expires(MS + 1), Some(Moment(MS + MS / 2)));
    assert_eq!(expires(MS), None, "as much as the patience is not enough");
    let mut account = with_work(&[A]);
    account.reservations = Allowance::new(Nanos(2 * MS), RESERVED_MAX, Moment(MS));
    account.sleep(A, Moment(MS), &RULES);
    assert_eq!(
        account.expires_at(),
        Some(Moment(2 * MS)),
        "never longer than the patience"
    );
}

#[test]
fn an_expired_reservation_is_spent_and_the_last_one_ends_all_places() {
    let mut account = with_work(&[A, B]);
    account.sleep(A, Moment(0), &RULES);
    account.sleep(B, Moment(MS / 2), &RULES);
    account.note_reserved(Nanos(MS / 4));
    account.expire(Moment(MS - 1), &RULES);
    assert_eq!(standing(&account, A), Standing::Pausing);
    account.expire(Moment(MS), &RULES);
    assert_eq!(standing(&account, A), Standing::Absent);
    assert_eq!(standing(&account, B), Standing::Pausing);
    assert_eq!(
        account.reservations_left(Moment(MS)),
        Nanos(10 * MS - MS / 4)
    );

    let mut account = with_work(&[A, B]);
    account.sleep(A, Moment(0), &RULES);
    account.sleep(B, Moment(MS / 2), &RULES);
    account.note_reserved(Nanos(9 * MS + 1));
    account.expire(Moment(MS), &RULES);
    assert_eq!(
        standing(&account, B),
        Standing::Absent,
        "no more than the patience is left"
    );
}

#[test]
fn reserved_time_is_noted_for_pausing_tenants_of_this_pause() {
    let mut account = with_work(&[A, B]);
    account.sleep(A, Moment(0), &RULES);
    account.note_reserved(Nanos(5));
    account.note_reserved(Nanos(5));
    let reserved = |account: &Account| [A, B].map(|id| account.tenants[&id].reserved_ns.0);
    assert_eq!(reserved(&account), [10, 0]);
    account.wake(A, Demand::Queued, Moment(1));
    assert_eq!(reserved(&account), [0, 0]);
}

#[test]
fn only_names_that_ran_within_ten_seconds_bound_new_ones() {
    let start = |ran_at: Moment, now: Moment, left: bool| {
        let mut account = with_work(&[A]);
        account.serve(A, ran_at, Nanos(7 * MS));
        if left {
            account.remove(A);
        }
        add(&mut account, B, "new", now);
        at_ms(&account, B)
    };
    let late = Moment(MS) + RENAME_WINDOW;
    assert_eq!(
        [false, true].map(|left| start(Moment(MS), late, left)),
        [7; 2]
    );
    let later = late + Nanos(1);
    assert_eq!(
        [false, true].map(|left| start(Moment(MS), later, left)),
        [0; 2]
    );
}

#[test]
fn a_tenant_that_was_added_early_starts_no_earlier() {
    let mut account = with_work(&[A]);
    add(&mut account, B, "b", Moment(0));
    account.serve(A, Moment(200 * MS), Nanos(200 * MS));
    account.sleep(A, Moment(200 * MS), &RULES);
    account.remove(A);
    assert!(account.wake(B, Demand::Queued, Moment(200 * MS)));
    assert_eq!(at_ms(&account, B), 200);
}

#[test]
fn a_known_name_starts_no_earlier_than_a_new_one() {
    let mut account = with_work(&[A, B]);
    account.serve(A, Moment(5 * MS), Nanos(5 * MS));
    account.sleep(A, Moment(5 * MS), &RULES);
    account.remove(A);
    account.serve(B, Moment(205 * MS), Nanos(200 * MS));
    add(&mut account, A, &A.to_string(), Moment(205 * MS));
    assert!(account.wake(A, Demand::Queued, Moment(205 * MS)));
    assert_eq!(at_ms(&account, A), 200);
}

#[test]
fn a_known_name_goes_on_with_its_time_and_its_pauses() {
    let mut account = with_work(&[A, B]);
    account.serve(A, Moment(MS), Nanos(7 * MS));
    pause(&mut account, MS, 5 * MS);
    account.serve(B, Moment(MS), Nanos(3 * MS));
    account.remove(A);
    account.remove(TenantId(9));
    assert!(account.present.contains(&B) && !account.present.contains(&A));
    add(
        &mut account,
        A,
        &A.to_string(),
        Moment(MS) + RENAME_WINDOW + Nanos(1),
    );
    assert_eq!(at_ms(&account, A), 7);
    assert_eq!(account.tenants[&A].pauses.longest(), Some(Nanos(5 * MS)));
    assert_eq!(account.tenants[&A].ran_at, Some(Moment(MS)));
    account.remove(A);
    account.forget_name(&A.to_string());
    add(
        &mut account,
        A,
        &A.to_string(),
        Moment(MS) + RENAME_WINDOW + Nanos(1),
    );
    assert_eq!(at_ms(&account, A), 0);
}

#[test]
fn of_tenants_with_one_name_the_larger_debt_is_kept() {
    for first in [A, B] {
        let mut account = account();
        add(&mut account, A, "one", Moment(0));
        add(&mut account, B, "one", Moment(0));
        account.serve(A, Moment(0), Nanos(7 * MS));
        account.remove(first);
        account.remove(if first == A { B } else { A });
        add(&mut account, A, "new", Moment(5_000 * MS));
        assert_eq!(at_ms(&account, A), 7, "the name ran lately");
        add(&mut account, B, "one", Moment(60_000 * MS));
        assert_eq!(at_ms(&account, B), 7);
    }
}

#[test]
fn of_1024_names_the_one_with_the_least_debt_is_dropped() {
    let mut account = account();
    for number in 0..=1_024u64 {
        let name = number.to_string();
        add(&mut account, A, &name, Moment(0));
        let debt = (1 + (number + 500) % 1_025) * MS;
        account.tenants.get_mut(&A).unwrap().entity =
            Entity::new(Weight::DEFAULT, VirtualTime::default());
        account.serve(A, Moment(0), Nanos(debt));
        account.remove(A);
        assert_eq!(account.names.known(), 1_024.min(number as usize + 1));
    }
    // Number 525 had the least debt.
    assert!(!account.names.knows("525"));
    assert!(account.names.knows("524") && account.names.knows("526"));
}

#[test]
fn preemptions_are_earned_by_time_and_service_and_saved_up() {
    let mut account = with_work(&[A]);
    let cost = Nanos::from_us(20);
    assert!(!account.pay_preemption(Moment(2 * MS - 1), cost));
    assert_eq!(account.pays_at(Moment(0), cost), Moment(2 * MS));
    assert!(account.pay_preemption(Moment(2 * MS), cost));
    assert!(!account.pay_preemption(Moment(2 * MS), cost));
    account.serve(A, Moment(2 * MS), Nanos::from_us(160));
    assert!(
        account.pay_preemption(Moment(2 * MS), cost),
        "an eighth of 160 us"
    );
    let later = Moment(10_000 * MS);
    let paid = (0..100)
        .filter(|_| account.pay_preemption(later, cost))
        .count();
    assert_eq!(paid, 10);
}

#[test]
fn an_account_does_what_its_tenants_do() {
    let mut account = with_work(&[A, B]);
    let update = |account: &mut Account, idle: bool, busy: bool| {
        let system = VirtualTime::default();
        account.update(Moment(MS), &RULES, idle, busy, system);
        account.entity.standing()
    };
    assert_eq!(update(&mut account, true, false), Standing::Runnable);
    assert!(account.is_queued());
    account.sleep(A, Moment(MS), &RULES);
    account.drop_place(B, Moment(MS));
    account.tenants.get_mut(&B).unwrap().demand = Demand::Nothing;
    assert_eq!(
        update(&mut account, true, true),
        Standing::Runnable,
        "a command of it runs"
    );
    assert!(!account.is_queued());
    assert_eq!(update(&mut account, true, false), Standing::Pausing);
    let since = account.entity.since();
    assert_eq!(update(&mut account, true, false), Standing::Pausing);
    assert_eq!(account.entity.since(), since);
    account.drop_place(A, Moment(MS));
    assert_eq!(update(&mut account, true, false), Standing::Absent);
    account.wake(A, Demand::Queued, Moment(MS));
    account.sleep(A, Moment(MS), &RULES);
    assert_eq!(
        update(&mut account, true, false),
        Standing::Absent,
        "an absent account cannot pause"
    );
}

#[test]
fn updates_are_needed_while_something_may_change() {
    let mut account = with_work(&[A]);
    let update = |account: &mut Account, busy| {
        account.update(Moment(MS), &RULES, true, busy, VirtualTime::default());
    };
    assert!(account.may_have_changed(false), "new");
    update(&mut account, false);
    assert!(!account.may_have_changed(false) && account.may_have_changed(true));
    update(&mut account, true);
    assert!(
        account.may_have_changed(false),
        "once more after it was busy"
    );
    update(&mut account, false);
    account.sleep(A, Moment(MS), &RULES);
    update(&mut account, false);
    assert!(account.may_have_changed(false), "a pause goes on");
    account.drop_place(A, Moment(MS));
    update(&mut account, false);
    account.set_cap(Some(Cap::new(Nanos(1), Nanos(2)).unwrap()), Moment(MS));
    update(&mut account, false);
    assert!(
        account.may_have_changed(false),
        "a quota is renewed by time alone"
    );
    account.set_cap(None, Moment(MS));
    update(&mut account, false);
    assert!(!account.may_have_changed(false));
}

#[test]
fn the_longest_pause_of_an_account_is_unknown_if_a_tenant_has_none_yet() {
    let mut account = with_work(&[A, B]);
    for (id, from, length) in [(A, 0, 3), (B, 0, 5)] {
        account.sleep(id, Moment(from), &RULES);
        account.wake(id, Demand::Queued, Moment(from + length));
    }
    assert_eq!(account.longest_pause(), None, "none pauses");
    account.sleep(A, Moment(9), &RULES);
    assert_eq!(account.longest_pause(), Some(Nanos(3)));
    account.sleep(B, Moment(9), &RULES);
    assert_eq!(account.longest_pause(), Some(Nanos(5)));
    add(&mut account, TenantId(3), "new", Moment(9));
    account.wake(TenantId(3), Demand::Queued, Moment(9));
    account.sleep(TenantId(3), Moment(9), &RULES);
    assert_eq!(account.longest_pause(), None);
}
