//! Tenants that are added, removed and named.

use super::*;

#[test]
fn known_and_unknown_tenants_are_refused() {
    let mut run = Run::new();
    run.add(A, 0, 100);
    let membership = Membership {
        account: AccountId(0),
        name: "x",
    };
    let again = run.dfq.add(A, membership, TenantParams::default(), run.now);
    assert_eq!(again, Err(PolicyError::Known(A)));
    let unknown = PolicyError::Unknown(B);
    assert_eq!(run.dfq.remove(B, run.now), Err(unknown));
    assert_eq!(run.dfq.set_weight(B, Weight::DEFAULT), Err(unknown));
    assert_eq!(run.dfq.set_cap(B, None), Err(unknown));
    assert_eq!(run.dfq.woke(B, run.now), Err(unknown));
}

#[test]
fn a_tenant_that_leaves_bounds_no_other() {
    let mut run = Run::new();
    run.add(A, 0, 100)
        .add(B, 1, 100)
        .queue(A)
        .queue(B)
        .run(A)
        .at(3_000)
        .idle();
    assert_eq!(run.held(), [A]);
    run.dfq.remove(B, run.now).unwrap();
    assert_eq!(run.held(), []);
    assert!(!run.dfq.owners.contains_key(&B));
    assert!(!run.dfq.accounts[&AccountId(1)].tenants.contains_key(&B));
}

#[test]
fn a_held_tenant_that_leaves_is_decided_about_no_longer() {
    let mut run = Run::new();
    run.add(A, 0, 100)
        .add(B, 1, 100)
        .queue(A)
        .queue(B)
        .run(A)
        .at(3_000)
        .idle();
    assert_eq!(run.held(), [A]);
    run.dfq.remove(A, run.now).unwrap();
    assert_eq!(run.dfq.decide(run.now), []);
    assert_eq!(run.dfq.held.len(), 0);
}

#[test]
fn a_tenant_that_leaves_while_it_runs_is_charged_to_the_end() {
    let mut run = Run::new();
    run.add_named(A, 0, 100, "a").queue(A).run(A).at(500);
    run.dfq.remove(A, run.now).unwrap();
    assert!(run.dfq.owners.contains_key(&A), "its command runs on");
    run.at(700).state(EngineState::Running(A)).at(900).idle();
    assert!(!run.dfq.owners.contains_key(&A));
    assert_eq!(run.account_at(0), 900);
    run.add_named(B, 0, 100, "a");
    assert_eq!(run.tenant_at(B), 900, "kept under its name");
}

#[test]
fn a_name_keeps_its_virtual_time_until_it_is_forgotten() {
    let mut run = Run::new();
    run.add_named(A, 0, 100, "a")
        .add_named(B, 0, 100, "b")
        .queue(A)
        .queue(B);
    run.run(A).at(5_000).run(B).at(5_400).idle();
    run.dfq.remove(A, run.now).unwrap();
    run.dfq.remove(B, run.now).unwrap();
    run.add_named(A, 0, 100, "b");
    assert_eq!(run.tenant_at(A), 400);
    // After ten seconds a new name starts at the account's system time.
    run.at(20_000_000);
    run.dfq.forget_name(AccountId(7), "a");
    run.dfq.forget_name(AccountId(0), "a");
    run.add_named(B, 0, 100, "a");
    assert_eq!(run.tenant_at(B), 400);
}

#[test]
fn what_names_and_accounts_are_ahead_by_survives_a_restart() {
    let mut run = Run::new();
    run.add_named(A, 0, 100, "a")
        .add_named(B, 0, 100, "b")
        .add_named(C, 1, 100, "c")
        .queue(A)
        .queue(B)
        .queue(C);
    run.run(A).at(5_000).idle();
    let debts = run.dfq.debts();
    let ahead = |of: &[Debt], account, name: Option<&str>| {
        let mut of = of.iter();
        let found = of.find(|d| d.account == AccountId(account) && d.name.as_deref() == name);
        found.map_or(0, |debt| debt.ahead_ns.0)
    };
    assert_eq!(ahead(&debts, 0, Some("a")), 5_000_000);
    assert_eq!(ahead(&debts, 0, None), 5_000_000);
    assert_eq!(ahead(&debts, 1, None), 0);
    let mut next = Run::new();
    for debt in &debts {
        next.dfq.owe(debt, next.now);
    }
    assert_eq!(next.dfq.debts(), debts);
    next.add_named(B, 0, 100, "b").add_named(A, 0, 100, "a");
    assert_eq!((next.tenant_at(A), next.account_at(0)), (5_000, 5_000));
}

#[test]
fn a_new_name_starts_at_the_highest_of_its_account() {
    let mut run = Run::new();
    run.add_named(A, 0, 100, "a")
        .queue(A)
        .run(A)
        .at(5_000)
        .idle();
    run.add_named(B, 0, 100, "b").add(C, 1, 100);
    assert_eq!((run.tenant_at(B), run.tenant_at(C)), (5_000, 0));
}

/// Work arrives while the running command of another tenant is ahead of it.
#[test]
fn woke_returns_whether_the_command_may_start() {
    let mut run = Run::new();
    run.add(A, 0, 100)
        .add(B, 1, 100)
        .queue(A)
        .queue(B)
        .run(A)
        .at(3_000)
        .sleep(A)
        .run(B);
    assert_eq!(run.held(), [A], "its next command");
    let hold = Ok(Decision::Hold(HoldReason::Ahead));
    assert_eq!(run.dfq.woke(A, run.now), hold);
    assert_eq!(run.dfq.woke(A, run.now), hold, "once more changes nothing");
    assert_eq!(run.dfq.held.get(&A), Some(&HoldReason::Ahead));
    assert_eq!(run.dfq.decide(run.now), [], "woke was a decision");
}

#[test]
fn decisions_are_by_ascending_id_and_only_changes() {
    let mut run = Run::new();
    run.account(1, 100, None);
    run.add(C, 0, 100).add(A, 0, 100).add(B, 1, 100);
    run.queue(A).queue(B).queue(C).run(A).at(3_000).idle();
    let tenants =
        |decisions: &[TenantDecision]| decisions.iter().map(|d| d.tenant).collect::<Vec<_>>();
    assert_eq!(tenants(run.dfq.decide(run.now)), [A, C]);
    assert_eq!(tenants(run.dfq.decide(run.now)), []);
}

#[test]
fn a_tenant_added_early_is_held_while_its_account_is_ahead() {
    let mut run = Run::new();
    run.add(A, 1, 100).add(B, 2, 100);
    // C connects before a kernel of B starts, and has no work yet.
    run.queue(A).queue(B).add(C, 2, 100);
    assert_eq!(run.held(), [], "its account is not ahead");
    run.run(B).at(50_000);
    assert_eq!(run.held(), [B, C], "its account is 50 ms ahead");
}

/// Names that are used in turn: each is known, and ran a long time ago.
#[test]
fn names_used_in_turn_wait_for_the_others_of_their_account() {
    const V: TenantId = TenantId(9);
    let mut run = Run::new();
    for name in ["a0", "a1"] {
        run.add_named(A, 0, 100, name).queue(A).run(A);
        let now = run.now.0 / 1_000;
        run.at(now + 50_000).sleep(A).idle();
        run.dfq.remove(A, run.now).unwrap();
    }
    run.add_named(V, 0, 100, "v").queue(V).run(V).at(2_300_000);
    run.add_named(A, 0, 100, "a0").queue(A);
    run.run(A).at(2_300_010).add_named(B, 0, 100, "a1");
    assert_eq!(run.held(), []);
    run.at(2_500_000);
    assert_eq!(run.held(), [A, B], "before its first command");
    run.sleep(A).idle();
    run.dfq.remove(A, run.now).unwrap();
    run.run(V).at(2_504_000).queue(B).at(2_504_100);
    assert_eq!((run.tenant_at(V), run.tenant_at(B)), (2_304_000, 2_500_000));
}
