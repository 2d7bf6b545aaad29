//! The rules one by one; what they amount to is in `tests/`.

use super::*;
use proptest::prelude::*;

const A: TenantId = TenantId(1);
const B: TenantId = TenantId(2);
const C: TenantId = TenantId(3);
const MS: u64 = 1_000_000;

/// One who waits for the engine.
fn busy(tenant: TenantId, used_ms: u64) -> TenantPeriod {
    TenantPeriod {
        tenant,
        used_ns: Nanos(used_ms * MS),
        admitted: true,
        backlogged: true,
        overcharged_ns: 0,
    }
}

/// One who does not.
fn light(tenant: TenantId, used_ms: u64) -> TenantPeriod {
    TenantPeriod {
        backlogged: false,
        ..busy(tenant, used_ms)
    }
}

fn dfq(tenants: &[TenantId]) -> Dfq {
    let mut policy = Dfq::new(&Tuning::default());
    tenants
        .iter()
        .for_each(|&t| policy.add(t, TenantParams::default()).unwrap());
    policy
}

fn measured(tenants: &[TenantPeriod]) -> PeriodUsage<'_> {
    PeriodUsage {
        end: Moment(0),
        basis: Basis::Measured,
        poll_ns: Nanos::from_ms(10),
        nonpoll_ns: Nanos::ZERO,
        tenants,
    }
}

fn held(policy: &mut Dfq, tenants: &[TenantPeriod]) -> Vec<TenantId> {
    let decisions = policy.period_end(&measured(tenants)).iter();
    decisions
        .filter(|d| d.decision != Decision::Admit)
        .map(|d| d.tenant)
        .collect()
}

#[test]
fn who_is_ahead_of_a_waiting_tenant_is_held_until_level() {
    let mut policy = dfq(&[A, B]);
    assert_eq!(held(&mut policy, &[busy(A, 8), busy(B, 2)]), []);
    // 12 ms ahead: B will not catch up within the next 10.
    assert_eq!(held(&mut policy, &[busy(A, 8), busy(B, 2)]), [A]);
    assert_eq!(held(&mut policy, &[busy(A, 2), busy(B, 8)]), []);
}

#[test]
fn weights_divide_the_charge() {
    let mut policy = dfq(&[A, B]);
    policy.set_weight(A, Weight::new(400).unwrap()).unwrap();
    for _ in 0..10 {
        assert_eq!(held(&mut policy, &[busy(A, 8), busy(B, 2)]), []);
    }
}

#[test]
fn alone_nobody_is_held() {
    let mut policy = dfq(&[A, B]);
    assert_eq!(held(&mut policy, &[busy(A, 30), busy(B, 0)]), [A]);
    assert_eq!(held(&mut policy, &[busy(A, 0), light(B, 1)]), []);
}

#[test]
fn a_light_tenant_holds_nobody_back() {
    let mut policy = dfq(&[A, B, C]);
    for _ in 0..100 {
        assert_eq!(
            held(&mut policy, &[busy(A, 4), busy(B, 4), light(C, 1)]),
            []
        );
    }
}

#[test]
fn idle_time_buys_nothing() {
    let mut policy = dfq(&[A, B]);
    for _ in 0..100 {
        held(&mut policy, &[busy(A, 10)]);
    }
    assert_eq!(policy.woke(B, Moment(0)), Ok(Decision::Admit));
    assert_eq!(held(&mut policy, &[busy(A, 5), busy(B, 5)]), []);
    assert_eq!(held(&mut policy, &[busy(A, 0), busy(B, 11)]), [B]);
}

#[test]
fn using_an_idle_gpu_is_no_debt() {
    let mut policy = dfq(&[A, B]);
    for _ in 0..100 {
        held(&mut policy, &[light(A, 6)]);
    }
    policy.woke(B, Moment(0)).unwrap();
    assert_eq!(held(&mut policy, &[busy(A, 5), busy(B, 5)]), []);
}

#[test]
fn a_held_tenant_with_queued_work_keeps_its_place() {
    let mut policy = dfq(&[A, B, C]);
    assert_eq!(
        held(&mut policy, &[busy(A, 0), busy(B, 10), busy(C, 0)]),
        [B]
    );
    // Trapped doorbells of one that waits anyway do not lift it.
    policy.woke(A, Moment(5 * MS)).unwrap();
    assert_eq!(
        held(&mut policy, &[busy(A, 0), busy(B, 1), busy(C, 11)]),
        [B, C]
    );
}

#[test]
fn a_capped_tenant_is_held_even_alone_and_holds_nobody_back() {
    let mut policy = dfq(&[A, B]);
    policy
        .set_cap(
            A,
            Some(Cap::new(Nanos::from_ms(3), Nanos::from_ms(30)).unwrap()),
        )
        .unwrap();
    let decisions = policy.period_end(&measured(&[busy(A, 3)]));
    assert_eq!(decisions[0].decision, Decision::Hold(HoldReason::Capped));
    assert_eq!(policy.ran_dry(&[A], Moment(0)), None);
    assert_eq!(held(&mut policy, &[busy(A, 0), busy(B, 11)]), [A]);
    assert_eq!(held(&mut policy, &[busy(A, 0), busy(B, 11)]), []);
}

#[test]
fn a_lone_laggard_does_not_overtake_all_others() {
    let mut policy = dfq(&[A, B, C]);
    // C is 2 ms behind: it needs a part of the next 10 ms only, so the others run too.
    assert_eq!(held(&mut policy, &[busy(A, 4), busy(B, 4), busy(C, 2)]), []);
    assert_eq!(
        held(&mut policy, &[busy(A, 14), busy(B, 4), busy(C, 0)]),
        [A]
    );
}

#[test]
fn a_dry_engine_goes_to_the_one_least_ahead() {
    let mut policy = dfq(&[A, B, C]);
    assert_eq!(
        held(&mut policy, &[busy(A, 16), busy(B, 14), busy(C, 0)]),
        [A, B]
    );
    assert_eq!(policy.ran_dry(&[A, B], Moment(0)), Some(B));
    assert_eq!(policy.ran_dry(&[], Moment(0)), None);
}

/// A is taken to wait, and does not: an engine that runs dry again and again is not kept for it.
#[test]
fn who_had_no_use_for_a_dry_engine_goes_behind_all_others() {
    let mut policy = dfq(&[A, B, C]);
    let used = [busy(A, 10), busy(B, 12), busy(C, 14)];
    held(&mut policy, &used);
    let dry = |policy: &mut Dfq, at| policy.ran_dry(&[A, B, C], Moment(at * MS));
    assert_eq!(
        [1, 2, 3, 4].map(|at| dry(&mut policy, at)),
        [A, B, C, A].map(Some)
    );
    held(&mut policy, &[busy(A, 0), busy(B, 1), busy(C, 0)]);
    assert_eq!(
        [5, 6].map(|at| dry(&mut policy, at)),
        [B, C].map(Some),
        "B had, and C longer ago"
    );
}

#[test]
fn a_tenant_that_wakes_within_a_period_starts_at_the_present() {
    let mut policy = dfq(&[A, B]);
    held(&mut policy, &[busy(A, 10)]);
    policy.woke(B, Moment(10 * MS)).unwrap();
    // A used the period before B woke: B is not behind for that.
    assert_eq!(held(&mut policy, &[busy(A, 11), busy(B, 0)]), []);
}

#[test]
fn unknown_tenants_are_refused() {
    let mut policy = dfq(&[A]);
    assert_eq!(
        policy.add(A, TenantParams::default()),
        Err(PolicyError::Known(A))
    );
    assert_eq!(policy.remove(B), Err(PolicyError::Unknown(B)));
    assert_eq!(policy.woke(B, Moment(0)), Err(PolicyError::Unknown(B)));
    assert_eq!(held(&mut policy, &[busy(B, 5)]), []);
}

proptest! {
    /// Law 5 and law 1 for sampled periods.
    #[test]
    fn sampled_charges_add_up_and_spare_those_shut_out(
        used in prop::collection::vec((0u64..1 << 30, any::<bool>()), 1..20),
        poll in 1u64..1 << 40, nonpoll in 0u64..1 << 40,
    ) {
        let tenants: Vec<_> = used.iter().enumerate().map(|(id, &(used, admitted))| TenantPeriod {
            tenant: TenantId(id as u32), used_ns: Nanos(used), admitted, backlogged: true, overcharged_ns: 0,
        }).collect();
        let usage = PeriodUsage {
            poll_ns: Nanos(poll), nonpoll_ns: Nanos(nonpoll), basis: Basis::PollSample,
            ..measured(&tenants)
        };
        let charges = sampled_charges(&usage);
        let ran = used.iter().any(|u| u.0 > 0);
        let ran_admitted = used.iter().any(|u| u.0 > 0 && u.1);
        let due = if ran { poll } else { 0 } + if ran_admitted { nonpoll } else { 0 };
        prop_assert_eq!(charges.iter().map(|c| c.0).sum::<u64>(), due);
        for (charge, &(used, admitted)) in charges.iter().zip(&used) {
            prop_assert!(used > 0 || charge.0 == 0);
            prop_assert!(admitted || charge.0 <= poll);
        }
    }

    /// Somebody who wants the engine is admitted, whatever happened (law 4), and system virtual
    /// time never decreases (law 2).
    #[test]
    fn somebody_who_waits_is_admitted(
        periods in prop::collection::vec(
            prop::collection::vec((0u64..20, any::<bool>(), any::<bool>()), 4), 1..40),
        weights in prop::collection::vec(1u32..=10_000, 4),
        sampled: bool,
    ) {
        let mut policy = dfq(&[]);
        for (id, &weight) in weights.iter().enumerate() {
            let params = TenantParams { weight: Weight::new(weight).unwrap(), cap: None };
            policy.add(TenantId(id as u32), params).unwrap();
        }
        for period in periods {
            let tenants: Vec<_> = period.iter().enumerate().map(|(id, &(used, admitted, backlogged))| {
                TenantPeriod { tenant: TenantId(id as u32), used_ns: Nanos(used * MS), admitted, backlogged, overcharged_ns: 0 }
            }).collect();
            let basis = if sampled { Basis::PollSample } else { Basis::Measured };
            let before = policy.system;
            let decisions = policy.period_end(&PeriodUsage { basis, ..measured(&tenants) });
            let mut waiting = decisions.iter().zip(&tenants).filter(|(_, t)| t.backlogged).peekable();
            if waiting.peek().is_none() {
                prop_assert!(decisions.iter().all(|d| d.decision == Decision::Admit));
            } else {
                prop_assert!(waiting.any(|(d, _)| d.decision == Decision::Admit));
            }
            prop_assert!(policy.system >= before);
            prop_assert!(policy.tenants.iter().all(|(_, t)| t.clock.now() >= policy.system));
        }
    }
}
