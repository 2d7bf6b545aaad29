//! The laws of fair queuing, over random loads and for sampled periods.

use crate::load::{Guest, Load};
use crate::shares::{PERIOD_NS, run};
use crate::sim::{Setup, compare};
use proptest::prelude::*;
use turnstile_accounting::{AccountId, Moment, Nanos, TenantId};
use turnstile_policies::{
    Basis, Decision, Membership, PeriodUsage, Policy, TenantParams, TenantPeriod, Tuning,
    policy_by_name,
};

fn any_saturating() -> impl Strategy<Value = Guest> {
    (1u32..=10_000, 1usize..=2, 50u64..2_000, 0u64..1_000).prop_map(
        |(weight, depth, shortest, more)| {
            Guest::saturating(weight, depth, (shortest, (shortest + more).min(2_000)))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Laws 1, 3 and 4 (the simulator checks law 1 at each decision), with any weights, lengths and
    /// period. No tenant falls behind its share by more than the others' queued commands, and the
    /// engine is never idle for a tenant.
    #[test]
    fn every_tenant_gets_its_share(
        guests in prop::collection::vec(any_saturating(), 1..6),
        period_us in 500u64..5_000, reaction_us in 0u64..200, seed: u64,
    ) {
        let mut policy = policy_by_name("dfq").unwrap().policy(&Tuning::default()).unwrap();
        let setup = Setup {
            period_ns: period_us * 1_000,
            reaction_ns: reaction_us * 1_000,
            switch_ns: 0,
            stops: false,
            seed,
        };
        let outcome = compare(policy.as_mut(), &guests, setup, 2);
        let wall: u64 = outcome.totals.iter().sum();
        prop_assert!(wall > 1_980_000_000, "one that saturates is always admitted: {}", wall);
        prop_assert!(outcome.idle_held_max_ns <= setup.reaction_ns, "idle for {}", outcome.idle_held_max_ns);
        // Service that cannot be taken back: a period, and the queued commands of all tenants.
        let queued: u64 = guests.iter().map(|g| match g.load {
            Load::Closed { depth, command_ns, .. } => depth as u64 * command_ns.1,
            Load::Open { .. } | Load::Program(_) => 0,
        }).sum();
        let bound = setup.period_ns + queued + Tuning::default().slack_ns.0;
        let weights: u64 = guests.iter().map(|g| u64::from(g.weight)).sum();
        for (guest, &used) in guests.iter().zip(&outcome.totals) {
            let due = (u128::from(wall) * u128::from(guest.weight) / u128::from(weights)) as u64;
            prop_assert!(used + bound >= due, "{} of {} with {:?}", used, due, guest);
        }
    }
}

/// Law 4 in its hardest case: a tenant that is alone after it used any amount.
#[test]
fn alone_a_tenant_has_the_whole_engine() {
    let guests = [
        Guest::saturating(1, 1, (50, 2_000)),
        Guest::idle(),
        Guest::idle(),
    ];
    let outcome = run("dfq", &guests, PERIOD_NS, 1);
    assert!(outcome.totals[0] > 5_999_000_000, "{:?}", outcome.totals);
    assert_eq!(outcome.idle_held_max_ns, 0);
}

/// Decisions about a thousand tenants, while the engine stays busy.
#[test]
fn a_thousand_tenants_share() {
    let guests = vec![Guest::saturating(100, 1, (50, 150)); 1_000];
    let mut policy = policy_by_name("dfq")
        .unwrap()
        .policy(&Tuning::default())
        .unwrap();
    let setup = Setup {
        period_ns: 10_000_000,
        reaction_ns: 50_000,
        switch_ns: 0,
        stops: false,
        seed: 1,
    };
    let outcome = compare(policy.as_mut(), &guests, setup, 2);
    let (least, most) = (
        outcome.totals.iter().min().unwrap(),
        outcome.totals.iter().max().unwrap(),
    );
    assert!(
        most - least < 1_000_000,
        "{least} to {most} of 2,000,000 ns each"
    );
}

const HEAVY: TenantId = TenantId(1);
const LIGHT: TenantId = TenantId(2);
const POLL_NS: u64 = 1_000_000;
const NONPOLL_NS: u64 = 5_000_000;

/// LoGA's cycle: all tenants run in the poll phase, nine to one by command length; only admitted
/// ones run in the rest. Returns what each received over the last half, and how often HEAVY was
/// held in it.
fn sampled(policy: &mut dyn Policy, cycles: u64) -> (u64, u64, u64) {
    for tenant in [HEAVY, LIGHT] {
        let membership = Membership {
            account: AccountId(tenant.0),
            name: "vm",
        };
        policy
            .add(tenant, membership, TenantParams::default(), Moment(0))
            .unwrap();
        policy.woke(tenant, Moment(0)).unwrap();
    }
    let (mut heavy, mut light, mut held) = (0, 0, 0);
    let (mut admitted, mut light_admitted) = (true, true);
    for cycle in 1..=cycles {
        let part = |tenant, used: u64, charged, admitted| TenantPeriod {
            tenant,
            used_ns: Nanos(used),
            charged_ns: Nanos(charged),
            admitted,
            backlogged: true,
        };
        let nonpoll = match (admitted, light_admitted) {
            (true, true) => (NONPOLL_NS / 10 * 9, NONPOLL_NS / 10),
            (true, false) => (NONPOLL_NS, 0),
            (false, true) => (0, NONPOLL_NS),
            (false, false) => (0, 0),
        };
        let polled = (POLL_NS / 10 * 9, POLL_NS / 10);
        let tenants = [
            part(HEAVY, polled.0, polled.0 + nonpoll.0, admitted),
            part(LIGHT, polled.1, polled.1 + nonpoll.1, light_admitted),
        ];
        let usage = PeriodUsage {
            end: Moment(cycle * (POLL_NS + NONPOLL_NS)),
            basis: Basis::PollSample,
            poll_ns: Nanos(POLL_NS),
            nonpoll_ns: Nanos(NONPOLL_NS),
            tenants: &tenants,
        };
        for decided in policy.period_end(&usage) {
            let admits = decided.decision == Decision::Admit;
            match decided.tenant {
                HEAVY => admitted = admits,
                _ => light_admitted = admits,
            }
        }
        if cycle > cycles / 2 {
            heavy += POLL_NS / 10 * 9 + nonpoll.0;
            light += POLL_NS / 10 + nonpoll.1;
            held += u64::from(!admitted);
        }
    }
    (heavy, light, held)
}

/// Law 5 broken: a tenant that is charged for phases in which it was held is held for ever.
#[test]
fn literal_rule_starves_the_tenant_that_it_holds() {
    let mut policy = policy_by_name("dfq-literal")
        .unwrap()
        .policy(&Tuning::default())
        .unwrap();
    let (heavy, light, held) = sampled(policy.as_mut(), 400);
    assert_eq!(held, 200, "held in every cycle");
    assert!(heavy * 5 < light, "{heavy} against {light}");
}

#[test]
fn the_repaired_rule_does_not() {
    let mut policy = policy_by_name("dfq")
        .unwrap()
        .policy(&Tuning::default())
        .unwrap();
    let (heavy, light, held) = sampled(policy.as_mut(), 400);
    assert!(held > 0 && held < 200);
    assert!(
        heavy.abs_diff(light) * 50 < heavy + light,
        "{heavy} against {light}"
    );
}

/// The literal minimum includes tenants that do not wait: one that uses 1 % holds back all others.
#[test]
fn under_the_literal_rule_a_light_tenant_stops_the_engine() {
    let idle_held = |name| {
        let guests = [
            Guest::saturating(100, 1, (500, 500)),
            Guest::saturating(100, 1, (500, 500)),
            Guest::bursty(7, 5_000, 1, (40, 60), 6_000_000_000),
        ];
        run(name, &guests, 10_000_000, 1).totals.iter().sum::<u64>()
    };
    let (literal, repaired) = (idle_held("dfq-literal"), idle_held("dfq"));
    assert!(
        literal < 4_000_000_000,
        "engine busy for {literal} ns of 6 s"
    );
    assert!(
        repaired > 5_900_000_000,
        "engine busy for {repaired} ns of 6 s"
    );
}
