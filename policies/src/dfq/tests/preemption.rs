//! Preemption, on an engine on which running kernels can be stopped.

use super::*;

/// A runs a long kernel from 0 on; B's work arrives at 500 us, at A's virtual time.
fn b_arrives() -> Run {
    let mut run = Run::that_stops();
    run.add(A, 0, 100).add(B, 1, 100);
    run.demand(A, Demand::Executes).run(A).at(500).queue(B);
    run
}

#[test]
fn a_kernel_that_is_a_quantum_ahead_is_stopped() {
    let mut run = b_arrives();
    assert_eq!(run.held(), [], "no preemption is earned yet");
    assert_eq!(run.decide_at(), Some(600), "A passes what orders commands");
    run.at(2_499);
    assert_eq!(run.held(), []);
    assert_eq!(run.decide_at(), Some(2_500));
    run.at(2_500);
    assert_eq!(run.held(), [A]);
    assert_eq!(run.dfq.held[&A], HoldReason::Ahead);
    // The switch of 20 us is charged to B.
    run.at(2_510)
        .state(EngineState::Switching)
        .at(2_530)
        .run(B)
        .at(2_600);
    assert_eq!(
        run.held(),
        [A],
        "B is behind A by more than what orders commands"
    );
    assert_eq!((run.account_at(0), run.account_at(1)), (2_510, 590));
}

#[test]
fn a_preemption_that_is_under_way_is_decided_once() {
    let mut run = b_arrives();
    run.at(2_500).held();
    let left = |run: &Run| run.dfq.accounts[&AccountId(1)].pays_at(run.now, Nanos::from_us(20));
    let before = left(&run);
    run.held();
    assert_eq!(left(&run), before, "paid for once");
    run.state(EngineState::Running(A));
    assert_eq!(run.held(), [A], "its kernel still runs");
    assert_eq!(run.decide_at(), Some(2_500), "its bounds only, no payment");
}

#[test]
fn switch_that_no_account_requested_is_charged_to_none() {
    let mut run = b_arrives();
    run.at(700)
        .state(EngineState::Switching)
        .at(720)
        .run(B)
        .at(730)
        .held();
    assert_eq!((run.account_at(0), run.account_at(1)), (700, 510));
}

#[test]
fn the_payer_pays_for_the_switch_after_an_idle_moment_too() {
    let mut run = b_arrives();
    run.at(2_500).held();
    run.idle().state(EngineState::Switching).at(2_520).run(B);
    run.state(EngineState::Switching).at(2_540).run(B).held();
    assert_eq!(run.account_at(1), 520, "one switch of two");
}

/// B, of `account`, runs until `ran_us`, then A, of account 0. At `at_us` work of B arrives.
fn b_returns(account: u32, ran_us: u64, at_us: u64) -> Run {
    let mut run = Run::that_stops();
    run.add(A, 0, 100).add(B, account, 100);
    run.queue(A).queue(B).run(B).at(ran_us);
    run.sleep(B).run(A).at(at_us).queue(B);
    run
}

#[test]
fn work_that_arrives_at_the_place_of_the_running_kernel_stops_it_if_it_can_pay() {
    // B runs for 160 us: it earns 20 us.
    let mut run = b_returns(1, 160, 320);
    assert_eq!(run.held(), [A]);
    // A is at 160 us, as B is.
    let mut run = b_returns(1, 160, 319);
    assert_eq!(run.held(), [], "A is behind B");
    let mut run = b_returns(1, 120, 240);
    assert_eq!(run.held(), [], "B has earned 15 and 2.4 us");
}

#[test]
fn an_arrival_counts_at_the_next_decision_only() {
    let mut run = b_returns(1, 160, 310);
    assert_eq!(run.held(), [], "A is behind B");
    run.at(330);
    assert_eq!(run.held(), [], "no arrival");
}

#[test]
fn work_that_was_withdrawn_before_the_decision_stops_nothing() {
    let mut run = Run::that_stops();
    run.add(A, 0, 100).add(B, 1, 100).queue(A).queue(B);
    run.run(B).at(160).sleep(B).run(A).at(320).queue(B).sleep(B);
    assert_eq!(run.held(), []);
}

#[test]
fn tenants_of_one_account_preempt_each_other_by_their_own_places() {
    let mut run = b_returns(0, 160, 320);
    assert_eq!(run.held(), [A]);
    let mut run = b_returns(0, 160, 300);
    assert_eq!(run.held(), []);
    run.at(2_159);
    assert_eq!(run.held(), []);
    run.at(2_320);
    assert_eq!(run.held(), [A], "a quantum ahead");
}

#[test]
fn a_place_is_no_reason_to_hold_where_kernels_can_be_stopped() {
    let mut run = Run::that_stops();
    run.add(A, 0, 100).add(B, 1, 100).queue(A).queue(B);
    run.run(A).at(1_900).run(B).at(1_950).sleep(B).idle();
    assert_eq!(run.held(), [], "A runs in B's pause");
}

/// Virtual time of B, in us: it ran for 50 us and paused while a command of A of 500 us ran, which
/// started when A was at `ahead_us`.
fn paused_under(mut run: Run, accounts: [u32; 2], ahead_us: u64) -> u64 {
    run.add(A, accounts[0], 100).add(B, accounts[1], 100);
    run.queue(A).queue(B).run(A).at(ahead_us).run(B);
    run.at(ahead_us + 50).sleep(B).idle().run(A);
    run.at(ahead_us + 550).held();
    match accounts {
        [0, 0] => run.tenant_at(B),
        _ => run.account_at(1),
    }
}

/// If a command starts although it is ahead by more than the bound, pauses behind it count.
#[test]
fn pauses_under_a_command_that_fills_them_count() {
    for accounts in [[0, 1], [0, 0]] {
        let paused = |ahead_us| paused_under(Run::that_stops(), accounts, ahead_us);
        // 500 us less a burst of 50 us, beyond 50 us.
        assert_eq!([paused(1_050), paused(1_051)], [50, 500], "{accounts:?}");
    }
}

/// If kernels cannot be stopped, a pause beyond the burst counts, however far A was ahead.
#[test]
fn pauses_under_a_late_command_are_free_within_the_burst() {
    for accounts in [[0, 1], [0, 0]] {
        let mut run = Run::new();
        run.add(A, accounts[0], 100).add(B, accounts[1], 100);
        run.queue(A).queue(B).run(A).at(2_700).run(B).at(4_200);
        run.sleep(B).idle().run(A).at(4_400).held();
        assert_eq!(run.tenant_at(B), 1_500, "{accounts:?}");
        if accounts == [0, 1] {
            assert_eq!(run.account_at(1), 1_500);
        }
    }
}

#[test]
fn the_engine_is_left_idle_for_tiny_pauses_only() {
    let mut run = Run::that_stops();
    run.add(A, 0, 100).add(B, 1, 100).queue(A).queue(B).run(B);
    // One pause of 30 us: known to be tiny.
    run.at(10)
        .sleep(B)
        .at(40)
        .queue(B)
        .run(A)
        .at(1_900)
        .run(B)
        .at(1_950)
        .sleep(B)
        .idle();
    assert_eq!(run.held(), [A]);
    assert_eq!(run.decide_at(), Some(1_990));
    run.at(1_989);
    assert_eq!(run.held(), [A]);
    run.at(1_990);
    assert_eq!(run.held(), []);
}

#[test]
fn a_running_tenant_goes_on_until_it_is_preempted() {
    let mut run = b_arrives();
    run.at(2_400);
    assert_eq!(
        run.dfq.woke(A, run.now),
        Ok(Decision::Admit),
        "ahead, but it runs"
    );
    run.idle();
    assert_eq!(run.held(), [A]);
}

#[test]
fn a_payer_that_has_earned_too_little_is_waited_for() {
    let mut run = b_arrives();
    // B pays at 2,000 us and runs for 10 us: it earns the next one late.
    run.at(2_500).held();
    run.state(EngineState::Switching)
        .at(2_520)
        .run(B)
        .at(2_530)
        .run(A)
        .at(3_200);
    assert_eq!(run.held(), []);
    let pays = run.dfq.accounts[&AccountId(1)].pays_at(run.now, Nanos::from_us(20));
    assert!(pays > run.now);
    assert_eq!(run.dfq.decide_at(), Some(pays));
    run.now = pays;
    assert_eq!(run.held(), [A]);
}

#[test]
fn a_faulting_tenant_counts_as_running() {
    let mut run = b_arrives();
    run.state(EngineState::Fault(A)).at(2_500);
    assert_eq!(run.held(), [A]);
}

#[test]
fn a_command_that_started_as_its_tenant_was_held_is_stopped() {
    let mut run = Run::that_stops();
    run.add(A, 0, 100).add(B, 1, 100).queue(A).queue(B);
    run.run(A).at(2_400).idle();
    let hold = TenantDecision {
        tenant: A,
        decision: Decision::Hold(HoldReason::Ahead),
    };
    assert_eq!(run.dfq.decide(run.now), [hold]);
    run.run(A).at(2_410);
    assert_eq!(run.dfq.decide(run.now), [hold], "once more: it is to stop");
    assert_eq!(run.dfq.decide(run.now), []);
}

/// A is held for B's tiny pause while C runs; it may start when the pause is no longer tiny.
#[test]
fn a_tiny_pause_lapses_while_another_runs() {
    for accounts in [[0, 1, 2], [0, 0, 2], [0, 0, 0]] {
        let mut run = Run::that_stops();
        for (tenant, account) in [A, B, C].into_iter().zip(accounts) {
            run.add(tenant, account, 100).queue(tenant);
        }
        run.run(B).at(10).sleep(B).at(40).queue(B).run(A).at(1_900);
        run.run(B)
            .at(1_910)
            .sleep(B)
            .demand(C, Demand::Executes)
            .run(C);
        assert_eq!(run.held(), [A], "{accounts:?}");
        assert_eq!(run.decide_at(), Some(1_950), "{accounts:?}");
        run.at(1_950);
        assert_eq!(run.held(), [], "{accounts:?}");
    }
}
