//! Caps of accounts and tenants.

use super::*;

#[test]
fn a_tenant_is_held_once_its_quota_is_used_up_and_until_it_is_renewed() {
    let mut run = Run::new();
    run.add(A, 0, 100);
    run.dfq.set_cap(A, cap(300, 1_000)).unwrap();
    run.queue(A).run(A);
    assert_eq!(run.held(), []);
    assert_eq!(run.decide_at(), Some(300));
    run.at(400).idle();
    assert_eq!(run.held(), [A]);
    assert_eq!(run.dfq.held[&A], HoldReason::Capped);
    assert_eq!(run.decide_at(), Some(1_000));
    run.at(999);
    assert_eq!(run.held(), [A]);
    run.at(1_000);
    assert_eq!(run.held(), []);
    // 100 us of the next quota are used already.
    run.run(A);
    assert_eq!(run.decide_at(), Some(1_200));
    run.at(1_200).idle();
    assert_eq!(run.held(), [A]);
}

#[test]
fn a_cap_is_lifted_at_run_time() {
    let mut run = Run::new();
    run.add(A, 0, 100);
    run.dfq.set_cap(A, cap(100, 1_000)).unwrap();
    run.queue(A).run(A).at(100).idle();
    assert_eq!(run.held(), [A]);
    run.dfq.set_cap(A, None).unwrap();
    assert_eq!(run.held(), []);
    assert_eq!(run.decide_at(), None);
    let account = &run.dfq.accounts[&AccountId(0)];
    assert!(account.entity.is_runnable() && account.present.contains(&A));
}

#[test]
fn a_new_cap_begins_with_an_unused_quota() {
    let mut run = Run::new();
    run.add(A, 0, 100);
    run.dfq.set_cap(A, cap(100, 1_000)).unwrap();
    run.queue(A).run(A).at(100).idle();
    assert_eq!(run.held(), [A]);
    run.at(150).dfq.set_cap(A, cap(200, 1_000)).unwrap();
    assert_eq!(run.held(), []);
    run.run(A).at(350).idle();
    assert_eq!(run.held(), [A]);
    assert_eq!(
        run.decide_at(),
        Some(1_100),
        "the period began when the cap was set"
    );
}

#[test]
fn a_capped_tenant_bounds_no_other() {
    let mut run = Run::new();
    run.add(A, 0, 100).add(B, 1, 100);
    run.dfq.set_cap(A, cap(100, 100_000)).unwrap();
    run.queue(A).queue(B).run(A).at(100).run(B).at(5_000);
    assert_eq!(run.held(), [A], "B is not ahead of anything that may run");
}

#[test]
fn a_cap_of_an_account_holds_all_its_tenants() {
    let mut run = Run::new();
    run.account(0, 100, cap(300, 1_000));
    run.add(A, 0, 100).add(B, 0, 100).add(C, 1, 100);
    run.queue(A).queue(B).queue(C).run(A);
    assert_eq!(run.decide_at(), Some(300));
    run.at(200).run(B).at(300).run(C);
    assert_eq!(run.held(), [A, B]);
    assert_eq!(run.dfq.held[&B], HoldReason::Capped);
    assert!(!run.dfq.accounts[&AccountId(0)].entity.is_present());
    run.at(1_000);
    assert_eq!(run.held(), []);
    assert_eq!(
        run.account_at(0),
        700,
        "it returns at the least of those present"
    );
    run.idle();
    run.account(0, 100, cap(300, 1_000))
        .at(1_300)
        .run(A)
        .at(1_700)
        .idle();
    assert_eq!(run.held(), [A, B], "the same cap again renews nothing");
    run.account(0, 100, None);
    run.held();
    assert_eq!(
        run.dfq.held[&B],
        HoldReason::Ahead,
        "of C, no longer capped"
    );
}

#[test]
fn work_that_arrives_at_a_capped_account_waits() {
    let mut run = Run::new();
    run.account(0, 100, cap(300, 1_000));
    run.add(A, 0, 100)
        .add(B, 0, 100)
        .queue(A)
        .run(A)
        .at(300)
        .sleep(A)
        .idle();
    let decision = run.dfq.woke(B, run.now);
    assert_eq!(decision, Ok(Decision::Hold(HoldReason::Capped)));
    assert_eq!(run.held(), [A, B], "A keeps its place within the account");
    run.at(1_000);
    assert_eq!(run.held(), []);
}

#[test]
fn a_capped_tenant_that_wakes_takes_part_when_its_quota_is_renewed() {
    let mut run = Run::new();
    run.add(A, 0, 100);
    run.dfq.set_cap(A, cap(100, 1_000)).unwrap();
    run.queue(A).run(A).at(100).sleep(A).idle().at(200);
    let decision = run.dfq.woke(A, run.now);
    assert_eq!(decision, Ok(Decision::Hold(HoldReason::Capped)));
    assert!(!run.dfq.accounts[&AccountId(0)].present.contains(&A));
    run.at(1_000);
    assert_eq!(run.held(), []);
    assert!(run.dfq.accounts[&AccountId(0)].present.contains(&A));
}

#[test]
fn a_cap_that_is_lifted_gives_a_tenant_without_work_no_place() {
    let mut run = Run::new();
    run.add(A, 0, 100);
    run.dfq.set_cap(A, cap(100, 1_000)).unwrap();
    run.dfq.set_cap(A, None).unwrap();
    run.held();
    assert!(!run.dfq.accounts[&AccountId(0)].entity.is_present());
}
