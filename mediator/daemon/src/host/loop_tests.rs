//! What the host answers the accounting thread: work that waits, decisions, polls, channels.

use turnstile_accounting::meter::ChannelReading;
use turnstile_accounting::{Demand, DemandEvent, Moment};
use turnstile_gpu::{Capabilities, ChannelActivity, EngineReading, Suspend};

use super::recording_gpu::{GATES, MOVABLE};
use super::test_bench::{Bench, activity, show};
use super::*;

const MS: u64 = 1_000_000;

/// The GPU's dispatcher holds tenants.
const HOLDS: Capabilities = Capabilities {
    engine_holds: true,
    demand: true,
    ..GATES
};

/// Queued work runs in any case.
const DRAINS: Capabilities = Capabilities {
    suspend: Suspend::Drains,
    ..GATES
};

#[test]
fn commands_stay_pending_where_a_tenant_is_held_or_memory_moves() {
    let mut bench = Bench::new(GATES);
    let (a, b) = (bench.open("a", 100), bench.open("b", 100));
    assert!(!bench.anyone_held() && !bench.host.polls_held());
    assert!(!bench.host.is_suspended(a));
    bench.busy = vec![a, b];
    bench.period(&[(a, 9), (b, 1)]);
    assert!(bench.host.is_suspended(a) && !bench.host.is_suspended(b));
    let mut bench = Bench::new(DRAINS);
    let (a, b) = (bench.open("a", 100), bench.open("b", 100));
    bench.busy = vec![a, b];
    bench.period(&[(a, 9), (b, 1)]);
    assert!(bench.anyone_held() && !bench.host.is_suspended(a));
    let mut bench = Bench::new(MOVABLE);
    let a = bench.open("a", 100);
    assert!(bench.host.is_suspended(a), "its memory may be away");
    assert!(!bench.host.memory_is_busy());
}

#[test]
fn dispatcher_that_holds_tenants_needs_no_polls_and_gets_orders_alone() {
    let mut bench = Bench::new(HOLDS);
    let (a, b) = (bench.open("a", 100), bench.open("b", 100));
    bench.busy = vec![a, b];
    let demand = |tenant| DemandEvent {
        at: Moment(0),
        tenant,
        engine: COMPUTE,
        demand: Demand::Executes,
    };
    bench.host.observe(&[], &[demand(a), demand(b)]);
    let calls = show(&bench.period(&[(a, 9), (b, 1)]));
    assert!(calls.contains(&"gpu hold 1 0".to_owned()), "{calls:?}");
    assert!(
        !calls.iter().any(|call| call.contains("Closed")),
        "{calls:?}"
    );
    assert!(bench.anyone_held() && !bench.host.polls_held());
    // The other one stops: the engine is idle, and the next decision is not at a period's end.
    let nothing = Demand::Nothing;
    let stopped = DemandEvent {
        at: Moment(11 * MS),
        demand: nothing,
        ..demand(b)
    };
    bench.host.observe(&[], &[stopped]);
    let at = bench.host.decide_at().expect("patience ends");
    assert!(at >= Moment(11 * MS) && at < Moment(20 * MS), "{at:?}");
    bench.gpu.reported().now = at;
    bench.host.decide();
    assert_eq!(show(&bench.take()), ["gpu release 1 0"]);
    assert!(!bench.anyone_held());
}

#[test]
fn policies_of_engines_and_gpus_with_demand_are_scheduled_by_events() {
    let by_events = |gpu, policy| Bench::of_policy(gpu, policy).host.schedules_by_events();
    assert!(by_events(GATES, "dfq"));
    assert!(by_events(HOLDS, "none"));
    assert!(!by_events(GATES, "none"));
}

#[test]
fn reading_of_a_gpu_with_slices_asks_for_the_next_one() {
    let sliced = Capabilities {
        time_slices: true,
        ..GATES
    };
    let bench = Bench::of_policy(sliced, "owed");
    let mut reading = EngineReading {
        at: Moment(7 * MS),
        ..EngineReading::default()
    };
    let next = bench.host.poll(&mut reading, &mut Vec::new());
    assert!(next > Moment(7 * MS), "{next:?}");
}

#[test]
fn channels_are_counted_open_and_in_use_and_read_with_their_tenant() {
    let mut bench = Bench::new(GATES);
    let (a, b) = (bench.open("a", 100), bench.open("b", 100));
    bench.channel(a, 1);
    bench.channel(a, 2);
    let on = |channel, last_active| ChannelActivity {
        channel,
        ..activity(3, last_active)
    };
    bench.gpu.reported().activity = vec![
        (a, on(0, Moment(1))),
        (a, on(1, Moment(9))),
        (a, on(2, Moment(0))),
        (b, on(0, Moment(2))),
    ];
    assert_eq!(bench.host.channel_counts(), (3, 4));
    let readings = bench.host.read_channels();
    let found: Vec<_> = readings
        .iter()
        .map(|one| (one.tenant, one.channel))
        .collect();
    assert_eq!(found, [(a, 0), (a, 1), (a, 2), (b, 0)]);
    let first = ChannelReading {
        tenant: a,
        channel: 0,
        finished: Some(0),
        stalls: 0,
        pending: 3,
    };
    assert_eq!(readings[0], first);
}
