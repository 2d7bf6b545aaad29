//! What is charged for service, reserved time, pauses and switches.

use super::*;

/// A ran for 500 us, B for 200 us, and B pauses from 700 us on.
fn b_pauses() -> Run {
    let mut run = Run::new();
    run.add(A, 0, 100).add(B, 1, 100).queue(A).queue(B);
    run.run(A).at(500).run(B).at(700).sleep(B).idle();
    run
}

/// B ran for 100 us after a kernel of A of 3 ms, and pauses from 3,100 us on; the engine is idle.
fn b_is_waited_for(accounts: [u32; 2]) -> Run {
    let mut run = Run::new();
    run.add(A, accounts[0], 100).add(B, accounts[1], 100);
    run.queue(A).queue(B).run(A).at(3_000).run(B);
    run.at(3_100).sleep(B).idle();
    run
}

#[test]
fn service_counts_over_the_weights_of_account_and_tenant() {
    let mut run = Run::new();
    run.account(0, 200, None)
        .add(A, 0, 50)
        .queue(A)
        .run(A)
        .at(600)
        .idle();
    assert_eq!((run.account_at(0), run.tenant_at(A)), (300, 1_200));
    run.dfq.set_weight(A, Weight::new(300).unwrap()).unwrap();
    run.run(A)
        .at(1_200)
        .state(EngineState::Fault(A))
        .at(1_800)
        .idle();
    assert_eq!((run.account_at(0), run.tenant_at(A)), (900, 1_600));
}

#[test]
fn a_pause_under_a_command_counts_beyond_the_burst() {
    let mut run = b_pauses();
    run.run(A).at(1_600).held();
    // The 900 us are at the rate of A alone; 200 us of them are the burst.
    assert_eq!((run.account_at(0), run.account_at(1)), (1_400, 900));
}

#[test]
fn a_burst_is_what_ran_since_the_last_pause() {
    let mut run = b_pauses();
    run.at(800).queue(B).at(900).sleep(B);
    run.run(A).at(1_700).held();
    assert_eq!((run.account_at(1), run.tenant_at(B)), (1_000, 200));
}

#[test]
fn a_pause_counts_at_the_rate_of_all_that_wait() {
    let mut run = Run::new();
    run.account(2, 300, None);
    run.add(A, 0, 100).add(B, 1, 100).add(C, 2, 100);
    run.queue(A).queue(B).queue(C);
    run.run(A)
        .at(500)
        .run(B)
        .at(700)
        .sleep(B)
        .run(A)
        .at(1_600)
        .held();
    assert_eq!(
        run.account_at(1),
        225,
        "a quarter of 900 us, of which 200 us are the burst"
    );
}

#[test]
fn a_pause_counts_up_to_the_place_of_the_running_entity_only() {
    let mut run = Run::new();
    run.account(0, 1_000, None).add(A, 0, 100).add(B, 1, 10);
    run.queue(A).queue(B).run(B).at(100).run(A).at(200).sleep(B);
    // A is at 10 us, B at 100 us: A is not ahead of B, so B's pause does not count.
    run.at(900).held();
    assert_eq!((run.account_at(0), run.account_at(1)), (80, 100));
}

#[test]
fn a_pause_under_a_command_of_a_tenant_within_the_burst_is_free() {
    let mut run = Run::new();
    run.add(A, 0, 100).add(B, 1, 100).queue(A).queue(B);
    run.run(B).at(800).sleep(B).run(A).at(1_700).held();
    assert_eq!((run.account_at(0), run.account_at(1)), (900, 800));
}

#[test]
fn pauses_of_tenants_of_one_account_count_like_those_of_accounts() {
    let mut run = Run::new();
    run.add(A, 0, 100).add(B, 0, 100).queue(A).queue(B);
    run.run(A)
        .at(500)
        .run(B)
        .at(700)
        .sleep(B)
        .run(A)
        .at(1_600)
        .held();
    assert_eq!((run.tenant_at(A), run.tenant_at(B)), (1_400, 900));
    assert_eq!(run.account_at(0), 1_600);
}

#[test]
fn reserved_time_counts_beyond_the_burst() {
    let mut run = b_is_waited_for([0, 1]);
    assert_eq!(run.held(), [A]);
    run.at(3_500);
    assert_eq!(run.held(), [A]);
    // Of 400 us the burst pays for 100 us.
    assert_eq!((run.account_at(0), run.account_at(1)), (3_000, 400));
    run.queue(B);
    assert_eq!(run.held(), [A], "B goes first");
    run.run(B).at(6_100).sleep(B).idle();
    assert_eq!(run.account_at(1), 3_000);
    assert_eq!(run.held(), []);
}

#[test]
fn reserved_time_within_an_account_counts_for_its_tenants_alone() {
    let mut run = b_is_waited_for([0, 0]);
    assert_eq!(run.held(), [A]);
    run.at(3_500);
    assert_eq!(run.held(), [A]);
    assert_eq!((run.tenant_at(A), run.tenant_at(B)), (3_000, 400));
    assert_eq!(run.account_at(0), 3_100);
}

#[test]
fn another_account_runs_while_tenants_of_one_wait_for_each_other() {
    let mut run = b_is_waited_for([0, 0]);
    run.add(C, 1, 100).queue(C);
    assert_eq!(run.held(), [A]);
    run.run(C).at(3_500);
    run.held();
    assert_eq!(run.tenant_at(B), 100, "the engine was not left idle for B");
}

#[test]
fn a_place_expires_after_the_patience_and_its_reserved_time_is_spent() {
    for accounts in [[0, 1], [0, 0]] {
        let mut run = b_is_waited_for(accounts);
        assert_eq!(run.held(), [A]);
        assert_eq!(run.decide_at(), Some(4_100));
        run.at(4_099);
        assert_eq!(run.held(), [A]);
        run.at(4_100);
        assert_eq!(run.held(), []);
        let account = &run.dfq.accounts[&AccountId(accounts[1])];
        assert_eq!(account.reservations_left(run.now), Nanos::from_us(9_000));
    }
}

#[test]
fn a_place_that_expires_under_a_command_costs_no_allowance() {
    let mut run = b_pauses();
    run.run(A).at(1_701).held();
    let account = &run.dfq.accounts[&AccountId(1)];
    assert!(!account.entity.is_present());
    assert_eq!(account.reservations_left(run.now), Nanos::from_us(10_000));
}

/// Places that expire between two calls do so at their own moments.
#[test]
fn time_passes_in_order() {
    let mut run = b_is_waited_for([0, 1]);
    run.at(10_000).held();
    assert_eq!(
        run.account_at(1),
        1_000,
        "1,000 us beyond 100 us of the burst"
    );
    let account = &run.dfq.accounts[&AccountId(1)];
    assert!(account.reservations_left(run.now) < Nanos::from_us(9_100));
}

#[test]
fn system_time_follows_the_least_and_never_decreases() {
    let mut run = Run::new();
    run.add(A, 0, 100).add(B, 1, 100).queue(A).run(A).at(3_000);
    run.held();
    run.queue(B);
    run.held();
    assert_eq!(run.account_at(1), 3_000, "nothing was saved up");
    run.at(4_000).held();
    assert_eq!(us(run.dfq.system), 3_000, "B is the least");
    run.run(B)
        .at(4_500)
        .sleep(B)
        .sleep(A)
        .idle()
        .at(6_000)
        .held();
    assert_eq!(
        us(run.dfq.system),
        4_000,
        "places expire at 5,500 us: from A on it is 500 us"
    );
}

#[test]
fn while_no_account_takes_part_a_lag_ahead_is_forgiven() {
    let mut run = Run::new();
    run.add(A, 0, 100).queue(A).run(A).at(2_000).sleep(A).idle();
    run.at(3_000).held();
    assert_eq!(us(run.dfq.system), 2_000, "A keeps its place until then");
    run.at(3_700).held();
    assert_eq!(us(run.dfq.system), 2_700);
    run.add(B, 1, 100).queue(B).held();
    assert_eq!(run.account_at(1), 2_700);
}

#[test]
fn time_before_the_last_event_passes_no_more() {
    let mut run = Run::new();
    run.add(A, 0, 100).queue(A).run(A).at(500).held();
    run.at(300).idle().at(600).held();
    assert_eq!(run.account_at(0), 500);
}
