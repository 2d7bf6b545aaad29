//! Periods, and engines that are not logged.

use super::*;
use crate::policy::TenantPeriod;

fn part(tenant: TenantId, charged_us: u64) -> TenantPeriod {
    TenantPeriod {
        tenant,
        used_ns: Nanos::ZERO,
        charged_ns: Nanos::from_us(charged_us),
        admitted: true,
        backlogged: true,
    }
}

fn usage(end_us: u64, basis: Basis, tenants: &[TenantPeriod]) -> PeriodUsage<'_> {
    PeriodUsage {
        end: Moment(end_us * US),
        basis,
        poll_ns: Nanos::from_us(1_000),
        nonpoll_ns: Nanos::from_us(4_000),
        tenants,
    }
}

/// Two tenants with work on an engine that is not logged.
fn polled() -> Dfq {
    let mut dfq = Dfq::new(&Tuning::default());
    for (tenant, account) in [(A, 0), (B, 1)] {
        let membership = Membership {
            account: AccountId(account),
            name: "vm",
        };
        let params = TenantParams::default();
        dfq.add(tenant, membership, params, Moment(0)).unwrap();
        assert_eq!(dfq.woke(tenant, Moment(0)), Ok(Decision::Admit));
    }
    dfq
}

#[test]
fn sampled_periods_count_what_the_ledger_charges() {
    let mut dfq = polled();
    let parts = [part(A, 4_000), part(B, 1_000)];
    let held = TenantDecision {
        tenant: A,
        decision: Decision::Hold(HoldReason::Ahead),
    };
    // 3 ms ahead of a waiting tenant exceeds the bound that orders commands.
    assert_eq!(
        dfq.period_end(&usage(5_000, Basis::PollSample, &parts)),
        [held]
    );
    assert_eq!(dfq.rules.ahead, Nanos::from_us(5_000), "one period");
    assert_eq!(us(dfq.accounts[&AccountId(0)].entity.at()), 4_000);
    assert_eq!(
        us(dfq.accounts[&AccountId(0)].tenants[&A].entity.at()),
        4_000
    );
    let parts = [part(B, 3_000)];
    let admitted = TenantDecision {
        tenant: A,
        decision: Decision::Admit,
    };
    assert_eq!(
        dfq.period_end(&usage(10_000, Basis::PollSample, &parts)),
        [admitted]
    );
}

#[test]
fn a_sampled_period_is_how_far_ahead_a_tenant_may_be_of_one_that_executes() {
    let mut dfq = polled();
    dfq.observe(Moment(0), EngineEvent::Demand(B, Demand::Executes));
    let parts = [part(A, 5_000)];
    assert_eq!(dfq.period_end(&usage(5_000, Basis::PollSample, &parts)), []);
    let parts = [part(A, 1)];
    assert_eq!(
        dfq.period_end(&usage(10_000, Basis::PollSample, &parts))
            .len(),
        1
    );
}

#[test]
fn an_engine_that_is_not_logged_keeps_no_places() {
    let mut dfq = polled();
    dfq.observe(Moment(0), EngineEvent::Demand(B, Demand::Nothing));
    assert!(!dfq.accounts[&AccountId(1)].present.contains(&B));
    let parts = [part(A, 50_000)];
    assert_eq!(
        dfq.period_end(&usage(50_000, Basis::PollSample, &parts)),
        []
    );
    assert_eq!(dfq.decide_at(), None);
}

/// A new tenant of an account starts at the account's system virtual time, which samples move too.
#[test]
fn samples_raise_the_system_time_of_an_account() {
    let mut dfq = polled();
    let parts = [part(A, 4_000)];
    dfq.period_end(&usage(5_000, Basis::PollSample, &parts));
    let membership = Membership {
        account: AccountId(0),
        name: "other",
    };
    let now = Moment(60_000_000 * US);
    dfq.add(C, membership, TenantParams::default(), now)
        .unwrap();
    assert_eq!(
        us(dfq.accounts[&AccountId(0)].tenants[&C].entity.at()),
        4_000
    );
}

#[test]
fn measured_periods_charge_nothing_beside_the_log() {
    let mut run = Run::new();
    run.add(A, 0, 100).queue(A).run(A);
    run.dfq
        .period_end(&usage(5_000, Basis::Measured, &[part(A, 5_000)]));
    assert_eq!(run.account_at(0), 5_000);
    assert_eq!(run.dfq.rules.ahead, Nanos::from_us(1_000));
}

#[test]
fn unlisted_and_unknown_tenants_of_a_period_are_ignored() {
    let mut dfq = polled();
    let parts = [part(C, 4_000)];
    assert_eq!(dfq.period_end(&usage(5_000, Basis::PollSample, &parts)), []);
}

#[test]
fn the_bound_on_being_ahead_is_at_least_the_patience() {
    let ahead = |slack, patience| {
        let tuning = Tuning {
            slack_ns: Nanos(slack),
            patience_ns: Nanos(patience),
            ..Tuning::default()
        };
        Dfq::new(&tuning).rules.ahead
    };
    assert_eq!([ahead(5, 7), ahead(7, 5)], [Nanos(7); 2]);
}

/// If tenants keep work queued, the end of a period is early enough for a decision.
#[test]
fn full_queues_are_decided_about_at_the_end_of_a_period() {
    let mut run = Run::new();
    run.add(A, 0, 100).add(B, 1, 100).queue(A).queue(B);
    run.run(A).at(500).held();
    assert_eq!(run.decide_at(), None);
}
