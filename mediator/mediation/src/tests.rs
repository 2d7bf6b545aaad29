//! The loop with a meter as the daemon feeds it.

use super::*;
use turnstile_accounting::meter::{Case, WorkedMeter};
use turnstile_accounting::{
    EngineState, EventMeter, Meter, Observation, Seen, SwitchEvent, Window,
};
use turnstile_gpu::EngineReading;
use turnstile_policies::{Tuning, policy_by_name};

const A: TenantId = TenantId(1);
const B: TenantId = TenantId(2);
const PERIOD: Nanos = Nanos::from_ms(10);

/// A mediation with the default policy, fed by an event meter as the daemon feeds it.
struct Bench {
    mediation: Mediation,
    meter: EventMeter,
    at: Moment,
    seq: u64,
}

impl Bench {
    fn new(policy: &str) -> Self {
        let policy = policy_by_name(policy)
            .unwrap()
            .policy(&Tuning::default())
            .unwrap();
        let mut mediation = Mediation::new(policy, [COMPUTE]);
        for tenant in [A, B] {
            let membership = Membership {
                account: AccountId(0),
                name: "vm",
            };
            mediation
                .add(tenant, membership, TenantParams::default(), Moment(0))
                .unwrap();
        }
        Self {
            mediation,
            meter: EventMeter::new([COMPUTE]),
            at: Moment(0),
            seq: 0,
        }
    }

    fn log(&mut self, at: Moment, state: EngineState) {
        let event = SwitchEvent {
            at,
            engine: COMPUTE,
            seq: self.seq,
            state,
        };
        self.seq += 1;
        self.meter.observe(Observation::Switch(event));
        self.mediation.observe(&[event], &[]);
    }

    /// A period in which `used` ran one after the other; those in `busy` have work at its end.
    fn period(&mut self, used: &[(TenantId, u64)], busy: &[TenantId]) -> Vec<GateOrder> {
        let mut at = self.at;
        for (tenant, ms) in used {
            self.log(at, EngineState::Running(*tenant));
            at = at + Nanos::from_ms(*ms);
        }
        self.log(at, EngineState::Idle);
        let usage = self.meter.close(Window::starting(self.at, PERIOD));
        self.at = self.at + PERIOD;
        let activity = [A, B].map(|tenant| Activity {
            tenant,
            pending: busy.contains(&tenant).into(),
            last_active: busy.contains(&tenant).then_some(self.at),
        });
        self.mediation
            .period_end(None, usage, &activity)
            .unwrap()
            .to_vec()
    }
}

fn order(tenant: TenantId, state: GateState) -> GateOrder {
    GateOrder { tenant, state }
}

#[test]
fn gates_of_a_tenant_that_is_ahead_close_until_both_are_even() {
    let mut bench = Bench::new("dfq");
    for tenant in [A, B] {
        let woke = bench.mediation.woke(tenant, bench.at);
        assert_eq!(woke, Some(order(tenant, GateState::Open)));
    }
    let orders = bench.period(&[(A, 9), (B, 1)], &[A, B]);
    assert_eq!(orders, [order(A, GateState::Closed)], "8 ms ahead");
    let orders = bench.period(&[(B, 8)], &[A, B]);
    assert_eq!(orders, [order(A, GateState::Open)]);
    let held = bench.mediation.ledger().tenant(A).held_ns;
    assert_eq!(held, PERIOD);
}

#[test]
fn what_is_due_follows_weights_and_waiting_is_time_with_work_off_the_engine() {
    let mut bench = Bench::new("dfq");
    bench
        .mediation
        .set_weight(A, Weight::new(300).unwrap())
        .unwrap();
    bench.period(&[(A, 2), (B, 6)], &[A, B]);
    bench.period(&[(B, 5)], &[B]);
    let due = |tenant| {
        let due = bench.mediation.due(tenant);
        (due.entitled_ns.0 / 1_000_000, due.waited_ns.0 / 1_000_000)
    };
    assert_eq!(due(A), (6, 8));
    assert_eq!(due(B), (2 + 5, 4 + 5));
}

#[test]
fn without_a_policy_all_gates_stay_open() {
    let mut bench = Bench::new("none");
    for _ in 0..5 {
        let orders = bench.period(&[(A, 9), (B, 1)], &[A, B]);
        assert!(
            orders.iter().all(|order| order.state == GateState::Open),
            "{orders:?}"
        );
    }
}

#[test]
fn an_idle_tenant_is_watched_and_opens_when_it_wakes() {
    let mut bench = Bench::new("dfq");
    bench.mediation.woke(A, bench.at);
    bench.period(&[(A, 1)], &[A]);
    let mut orders = Vec::new();
    for _ in 0..4 {
        orders.extend(bench.period(&[], &[]));
    }
    assert!(orders.contains(&order(A, GateState::Watched)), "{orders:?}");
    assert_eq!(
        bench.mediation.woke(A, bench.at),
        Some(order(A, GateState::Open))
    );
    assert_eq!(bench.mediation.woke(A, bench.at), None, "it stands open");
}

/// The GPU reports demand; its report of finished work may precede the report of the doorbell.
#[test]
fn doorbell_without_work_that_lasts_leaves_no_gate_open() {
    let row = policy_by_name("dfq").unwrap();
    let gpu = Capabilities {
        time_slices: false,
        ..SLICING
    };
    let mut mediation = Mediation::for_gpu(row, &Tuning::default(), &gpu);
    let membership = Membership {
        account: AccountId(0),
        name: "vm",
    };
    let added = mediation.add(A, membership, TenantParams::default(), Moment(0));
    added.unwrap();
    let mut meter = EventMeter::new([COMPUTE]);
    let demand = |ms: u64, demand| DemandEvent {
        at: Moment(0) + Nanos::from_ms(ms),
        tenant: A,
        engine: COMPUTE,
        demand,
    };
    let mut ends = |mediation: &mut Mediation, ms: u64| {
        let from = Moment(0) + Nanos::from_ms(ms);
        let usage = meter.close(Window::starting(from, PERIOD));
        mediation.period_end(None, usage, &[]).unwrap();
        mediation.gates(A)
    };
    mediation.observe(
        &[],
        &[demand(1, Demand::Queued), demand(2, Demand::Nothing)],
    );
    mediation.woke(A, demand(3, Demand::Nothing).at);
    assert_eq!(ends(&mut mediation, 0), Some(GateState::Open));
    assert_eq!(
        ends(&mut mediation, 10),
        Some(GateState::Open),
        "17 ms later"
    );
    assert_eq!(ends(&mut mediation, 20), Some(GateState::Watched));
    // Work that lasts keeps them open.
    mediation.woke(A, demand(31, Demand::Queued).at);
    mediation.observe(&[], &[demand(32, Demand::Queued)]);
    for ms in [30, 40, 50, 60] {
        assert_eq!(ends(&mut mediation, ms), Some(GateState::Open));
    }
    mediation.woke(A, demand(70, Demand::Queued).at);
    assert_eq!(
        ends(&mut mediation, 70),
        Some(GateState::Open),
        "of one that works"
    );
}

#[test]
fn a_usage_that_does_not_balance_charges_nothing() {
    let mut bench = Bench::new("dfq");
    bench.period(&[(A, 5)], &[A]);
    let before = bench.mediation.ledger().tenant(A);
    let mut usage = bench.meter.close(Window::starting(bench.at, PERIOD));
    usage.engines[0].idle_ns += Nanos(1);
    assert!(bench.mediation.period_end(None, usage, &[]).is_err());
    assert_eq!(bench.mediation.ledger().tenant(A), before);
}

/// A GPU that divides its engine by itself.
const SLICING: Capabilities = Capabilities {
    compute_engines: 1,
    copy_engines: 0,
    suspend: Suspend::MidKernel,
    engine_holds: true,
    demand: true,
    time_slices: true,
    worked: true,
    multiprocessors: 1,
    shared_bytes_max: 0,
    memory_bytes: 0,
    memory_held: false,
    host_pool_bytes: 0,
    move_window_bytes: 0,
    follows_guest_memory: false,
    software: false,
    aperture: false,
};

/// Polls, each 20 ms, an engine on which both tenants have work and only A is served.
fn polls(count: u64, waits_for_memory: Option<TenantId>) -> (Mediation, Vec<Order>) {
    let row = policy_by_name("owed").unwrap();
    let mut mediation = Mediation::for_gpu(row, &Tuning::default(), &SLICING);
    for tenant in [A, B] {
        let account = AccountId(tenant.0);
        let membership = Membership {
            account,
            name: "vm",
        };
        mediation
            .add(tenant, membership, TenantParams::default(), Moment(0))
            .unwrap();
    }
    mediation.memory_waits(Moment(0), |tenant| waits_for_memory == Some(tenant));
    let mut meter = WorkedMeter::new(COMPUTE);
    meter.switched(SwitchEvent {
        at: Moment(0),
        engine: COMPUTE,
        seq: 0,
        state: EngineState::Running(A),
    });
    let interval = Nanos::from_ms(20);
    let mut holds = Vec::new();
    for index in 0..count {
        let from = Moment(index * interval.0);
        let window = Window::starting(from, interval);
        let seen = [A, B].map(|tenant| Seen {
            tenant,
            has_work: true,
            blocks: false,
            idle: Nanos::ZERO,
        });
        let reading = EngineReading {
            at: from + interval,
            tenants: seen.to_vec(),
            windows: vec![meter.close(window, Some(interval), Case::default())],
            ..EngineReading::default()
        };
        let polled = mediation.poll(&reading);
        let closes = |order: &GateOrder| order.state == GateState::Closed;
        assert!(polled.next > reading.at && !polled.gates.iter().any(closes));
        let orders = mediation.take_gpu_orders();
        holds.extend(
            orders
                .into_iter()
                .filter(|order| matches!(order, Order::Hold(..) | Order::Release(..))),
        );
        for window in reading.windows {
            mediation.period_end(None, window.usage, &[]).unwrap();
        }
    }
    (mediation, holds)
}

#[test]
fn a_tenant_that_is_owed_a_turn_has_the_other_held_at_a_poll() {
    let (mediation, holds) = polls(4, None);
    let held = Order::Hold(A, COMPUTE);
    assert_eq!(holds.first(), Some(&held), "{holds:?}");
    assert!(mediation.owed(B).unwrap().own_turn);
    assert!(mediation.ledger().tenant(A).engines[0].1.used_ns >= Nanos::from_ms(60));
}

#[test]
fn a_tenant_that_waits_for_its_memory_is_owed_nothing() {
    let (mediation, holds) = polls(10, Some(B));
    assert_eq!(holds, []);
    assert_eq!(mediation.owed(B).unwrap().owed_ns, 0);
}

#[test]
fn beside_a_latency_target_the_other_tenants_slices_are_short() {
    let (mut mediation, _) = polls(1, None);
    let mut at = Moment(Nanos::from_ms(20).0);
    let mut slice_of_a = |mediation: &mut Mediation| {
        at = at + Nanos::from_ms(20);
        let reading = EngineReading {
            at,
            ..EngineReading::default()
        };
        mediation.poll(&reading);
        mediation.slices[&A]
    };
    let usual = slice_of_a(&mut mediation);
    mediation.set_target(B, true).unwrap();
    assert!(slice_of_a(&mut mediation) < usual);
    mediation.set_target(B, false).unwrap();
    assert_eq!(slice_of_a(&mut mediation), usual);
    assert!(mediation.set_target(TenantId(9), true).is_err());
}

/// Six seconds without a decision, in which A ran for `a_ms` of each `a_ms + b_ms`. `lost` records
/// are missing from the log in the middle.
fn after_a_stall(a_ms: u64, b_ms: u64, lost: u64) -> Bench {
    let mut bench = Bench::new("dfq");
    for tenant in [A, B] {
        bench.mediation.woke(tenant, bench.at);
    }
    let rounds = 6_000 / (a_ms + b_ms);
    let mut at = bench.at;
    for round in 0..rounds {
        for (tenant, ms) in [(A, a_ms), (B, b_ms)] {
            // The hole begins while A runs.
            if lost > 0 && (rounds / 4..rounds / 4 * 3).contains(&round) {
                bench.seq += 1;
            } else {
                bench.log(at, EngineState::Running(tenant));
            }
            at = at + Nanos::from_ms(ms);
        }
    }
    bench.meter = EventMeter::new([COMPUTE]);
    bench.at = at;
    bench
}

/// Time for which B runs alone until A may run again, in periods.
fn made_good_periods(bench: &mut Bench) -> u64 {
    let mut periods = 0;
    let mut orders = bench.period(&[(A, 0), (B, 10)], &[A, B]);
    while !orders.contains(&order(A, GateState::Open)) {
        periods += 1;
        assert!(periods < 10_000);
        orders = bench.period(&[(B, 10)], &[A, B]);
    }
    periods
}

#[test]
fn shares_of_a_stall_are_made_good_at_once() {
    let mut bench = after_a_stall(43, 7, 0);
    // 86:14 of 6 s: B gets the 4.32 s that A was ahead.
    let periods = made_good_periods(&mut bench);
    assert!((425..=440).contains(&periods), "{periods} of 10 ms");
}

#[test]
fn use_that_stays_unknown_does_not_enter_lag() {
    let mut bench = after_a_stall(43, 7, 1);
    // Half of the stall is not in the log.
    let periods = made_good_periods(&mut bench);
    assert!((205..=225).contains(&periods), "{periods} of 10 ms");
}
