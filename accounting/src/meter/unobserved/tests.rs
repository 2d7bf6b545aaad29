//! Properties of the estimate: conservation for any input, the error bound on random timelines.

use super::*;
use crate::meter::{Meter, Observation, PolledMeter};
use crate::state::Sample;
use crate::units::Moment;
use crate::usage::Metric;
use proptest::prelude::*;

const GR: EngineId = EngineId(0);
const COPY: EngineId = EngineId(1);
const A: TenantId = TenantId(1);
const B: TenantId = TenantId(2);

fn window(from: u64, to: u64) -> Window {
    Window::new(Moment(from), Moment(to)).unwrap()
}

/// The occupant of the compute engine, and finished and pending commands of A and B.
fn snapshot(occupant: Option<TenantId>, channels: &[(TenantId, u32, u32)]) -> ChannelSnapshot {
    let reading = |&(tenant, finished, pending): &(TenantId, u32, u32)| ChannelReading {
        tenant,
        channel: 0,
        finished: Some(finished),
        stalls: 0,
        pending,
    };
    ChannelSnapshot {
        occupants: vec![(GR, occupant)],
        channels: channels.iter().map(reading).collect(),
    }
}

/// A poll phase of 2,000 ns in which A ran for 600 ns and B for 400 ns.
fn phase() -> Usage {
    let mut engine = EngineUsage::empty(GR);
    engine.entry(A).used_ns = Nanos(600);
    engine.entry(B).used_ns = Nanos(400);
    engine.idle_ns = Nanos(1_000);
    Usage {
        window: window(5_000, 7_000),
        signals: Signals::Polled,
        engines: vec![engine],
        copied: None,
        anomalies: Anomalies::default(),
    }
}

/// The unobserved part from 0 to 5,000 between two snapshots. In the poll phase after it A finishes
/// 2 commands of 300 ns and B 4 of 100 ns.
fn estimate(
    begin: ChannelSnapshot,
    end: ChannelSnapshot,
    suspended: &[TenantId],
    preemptible: bool,
) -> EngineUsage {
    let mut unobserved = Unobserved::new(GR, preemptible);
    unobserved.begin(begin, |tenant| suspended.contains(&tenant));
    unobserved.end(end.clone());
    let mut after = end;
    for channel in &mut after.channels {
        let more = if channel.tenant == A { 2 } else { 4 };
        channel.finished = channel.finished.map(|finished| finished + more);
    }
    let usage = unobserved.charge(window(0, 5_000), &phase(), &after, KnownIdle::default());
    assert_eq!(usage.signals, Signals::Extrapolated);
    usage.engines[0].clone()
}

fn parts(usage: &EngineUsage) -> (u64, u64, u64, u64) {
    let of = |tenant| {
        let mut own = usage.tenants.iter().filter(|part| part.tenant == tenant);
        own.next().map_or(0, |part| part.used_ns.0)
    };
    (of(A), of(B), usage.idle_ns.0, usage.error_bound_ns.0)
}

#[test]
fn drained_commands_are_charged_to_their_owner() {
    let begin = snapshot(Some(A), &[(A, 0, 8), (B, 0, 0)]);
    let end = snapshot(None, &[(A, 8, 0), (B, 20, 0)]);
    // 8 x 300 and 20 x 100 ns; the rest is idle.
    assert_eq!(
        parts(&estimate(begin, end, &[], false)),
        (2_400, 2_000, 600, 3_000)
    );
}

#[test]
fn charges_never_exceed_the_length() {
    let begin = snapshot(Some(A), &[(A, 0, 8), (B, 0, 0)]);
    let end = snapshot(None, &[(A, 10, 0), (B, 20, 0)]);
    let usage = estimate(begin, end, &[], false);
    let (a, b, idle, _) = parts(&usage);
    assert_eq!((a, b, idle), (3_000, 2_000, 0));
}

#[test]
fn half_of_the_command_that_runs_at_the_end_is_charged_ahead() {
    let begin = snapshot(None, &[(A, 0, 0), (B, 0, 0)]);
    let end = snapshot(Some(A), &[(A, 2, 1), (B, 3, 0)]);
    assert_eq!(
        parts(&estimate(begin, end, &[], false)),
        (900, 300, 3_800, 4_700)
    );
}

#[test]
fn a_queue_that_never_empties_leaves_no_idle_time() {
    let begin = snapshot(Some(A), &[(A, 0, 9), (B, 0, 0)]);
    let end = snapshot(Some(A), &[(A, 8, 1), (B, 10, 0)]);
    let (a, b, idle, _) = parts(&estimate(begin.clone(), end.clone(), &[], false));
    assert_eq!((a + b, idle), (5_000, 0));
    assert!(a > 3_600 && a < 3_700, "2,700 to 1,000: {a}");
    // A suspended tenant keeps its queue and uses nothing.
    let (a, b, idle, _) = parts(&estimate(begin, end, &[A], false));
    assert_eq!((a, b, idle), (2_700, 1_000, 1_300));
}

#[test]
fn an_engine_that_is_hardly_idle_in_poll_phases_is_busy_in_between() {
    let mut unobserved = Unobserved::new(GR, false);
    let mut observed = phase();
    observed.window = window(5_000, 6_000);
    observed.engines[0].idle_ns = Nanos::ZERO;
    unobserved.begin(snapshot(None, &[(A, 0, 0)]), |_| false);
    unobserved.end(snapshot(None, &[(A, 4, 0)]));
    let after = snapshot(None, &[(A, 6, 0)]);
    let usage = unobserved.charge(window(0, 5_000), &observed, &after, KnownIdle::default());
    // 4 commands of 300 ns; nothing proves that it ran all the time.
    assert_eq!(parts(&usage.engines[0]), (5_000, 0, 0, 5_000));
}

#[test]
fn known_idle_time_is_charged_to_no_tenant_and_does_not_make_an_engine_idle_otherwise() {
    let mut unobserved = Unobserved::new(GR, false);
    let mut observed = phase();
    observed.window = window(5_000, 7_000);
    unobserved.begin(snapshot(None, &[(A, 0, 0), (B, 0, 0)]), |_| true);
    unobserved.end(snapshot(None, &[(A, 4, 0), (B, 10, 0)]));
    let after = snapshot(None, &[(A, 6, 0), (B, 14, 0)]);
    let known = KnownIdle {
        unobserved: Nanos(2_000),
        observed: Nanos(1_000),
    };
    let usage = unobserved.charge(window(0, 5_000), &observed, &after, known);
    // 4 commands of 300 ns and 10 of 100 ns, in 3,000 ns in which the engine was busy.
    let (a, b, idle, bound) = parts(&usage.engines[0]);
    assert_eq!((a + b, idle), (3_000, 2_000));
    assert!(
        a > 1_600 && a < 1_700 && bound < 3_000,
        "{a} within {bound}"
    );
}

#[test]
fn a_tenant_alone_with_a_queue_that_never_empties_is_known_exactly() {
    let begin = snapshot(Some(A), &[(A, 0, 9), (B, 7, 0)]);
    let end = snapshot(Some(A), &[(A, 8, 1), (B, 7, 0)]);
    let exact = (5_000, 0, 0, 0);
    assert_eq!(
        parts(&estimate(begin.clone(), end.clone(), &[], false)),
        exact
    );
    // Not exact if the tenant waited for a value meanwhile, or if commands can be preempted.
    let mut stalled = end.clone();
    stalled.channels[0].stalls = 2;
    assert_ne!(parts(&estimate(begin.clone(), stalled, &[], false)).3, 0);
    assert_ne!(parts(&estimate(begin, end, &[], true)).3, 0);
}

#[test]
fn a_command_that_remains_on_the_engine_is_known_exactly() {
    let begin = snapshot(Some(A), &[(A, 3, 1), (B, 0, 2)]);
    let end = snapshot(Some(A), &[(A, 3, 1), (B, 0, 2)]);
    assert_eq!(
        parts(&estimate(begin.clone(), end.clone(), &[], false)),
        (5_000, 0, 0, 0)
    );
    assert_eq!(parts(&estimate(begin, end, &[], true)).3, 5_000);
}

#[test]
fn a_command_charged_ahead_is_not_charged_again() {
    let mut unobserved = Unobserved::new(GR, false);
    let (mut charged, period) = (0, 6_000);
    // One command of 15,000 ns, which ends 3,000 ns after the third period began.
    for index in 0..3 {
        let from = index * period;
        let done = u32::from(index == 2);
        let begin = snapshot(Some(A), &[(A, 0, 1)]);
        let occupant = (index < 2).then_some(A);
        let end = snapshot(occupant, &[(A, done, 1 - done)]);
        let mut engine = EngineUsage::empty(GR);
        match occupant {
            Some(tenant) => engine.entry(tenant).used_ns = Nanos(1_000),
            None => engine.idle_ns = Nanos(1_000),
        }
        let observed = Usage {
            window: window(from + 5_000, from + period),
            engines: vec![engine],
            ..phase()
        };
        unobserved.begin(begin, |_| false);
        unobserved.end(end.clone());
        // As measured in earlier poll phases.
        unobserved.rates.know(GR, A, Nanos(15_000));
        let usage = unobserved.charge(
            window(from, from + 5_000),
            &observed,
            &end,
            KnownIdle::default(),
        );
        charged += usage.tenant_ns(A, Metric::Total).0 + observed.tenant_ns(A, Metric::Total).0;
    }
    assert_eq!(charged, 15_000);
}

#[test]
fn a_tenant_with_unknown_get_is_charged_its_portion_of_poll_phases() {
    let unknown = |mut poll: ChannelSnapshot| {
        poll.channels
            .iter_mut()
            .for_each(|channel| channel.finished = None);
        poll
    };
    let begin = || unknown(snapshot(Some(A), &[(A, 0, 1), (B, 0, 1)]));
    assert_eq!(
        parts(&estimate(begin(), begin(), &[], false)),
        (1_500, 1_000, 2_500, 4_000)
    );
    assert_eq!(
        parts(&estimate(begin(), begin(), &[A], false)),
        (0, 1_000, 4_000, 5_000)
    );
}

#[test]
fn what_is_unknown_of_a_channel_is_unknown_of_its_tenant() {
    let before = snapshot(None, &[(A, 5, 0), (B, 5, 0)]);
    let count = |end: &ChannelSnapshot| before.finished_until(end);
    assert_eq!(count(&snapshot(None, &[(A, 7, 0), (B, 6, 0)])), Some(3));
    assert_eq!(
        count(&snapshot(None, &[(A, 4, 0), (B, 6, 0)])),
        None,
        "opened anew"
    );
    assert_eq!(count(&snapshot(None, &[(A, 7, 0)])), None, "closed");
    let opened = ChannelSnapshot::default().finished_until(&before);
    assert_eq!(opened, Some(10), "all since it was opened");
    let wrapped = snapshot(None, &[(A, u32::MAX, 0)]).finished_until(&snapshot(None, &[(A, 1, 0)]));
    assert_eq!(wrapped, Some(2));
}

fn any_snapshot() -> impl Strategy<Value = ChannelSnapshot> {
    let occupant = || prop::option::of((0u32..4).prop_map(TenantId));
    let finished = prop::option::of(prop_oneof![0u32..50, any::<u32>()]);
    let channel = (0u32..4, 0u32..3, finished, 0u32..3, 0u32..9);
    let channels = prop::collection::vec(channel, 0..8);
    (occupant(), occupant(), channels).prop_map(|(compute, copy, channels)| {
        let reading = |(tenant, channel, finished, stalls, pending)| ChannelReading {
            tenant: TenantId(tenant),
            channel,
            finished,
            stalls,
            pending,
        };
        let mut channels: Vec<_> = channels.into_iter().map(reading).collect();
        channels.sort_by_key(|c| (c.tenant, c.channel));
        channels.dedup_by_key(|c| (c.tenant, c.channel));
        ChannelSnapshot {
            occupants: vec![(GR, compute), (COPY, copy)],
            channels,
        }
    })
}

/// A timeline of an engine without preemption: commands and idle times, one after the other.
#[derive(Clone, Debug)]
struct Timeline {
    /// Tenant, when the command was announced, began and ended.
    commands: Vec<(TenantId, u64, u64, u64)>,
}

impl Timeline {
    /// From segments: tenant or idle, length, percentage of the time since the engine was idle for
    /// which it waited.
    fn new(segments: &[(Option<u32>, u64, u64)]) -> Self {
        let (mut at, mut busy_from, mut commands) = (0, 0, Vec::new());
        for &(tenant, length, waited) in segments {
            match tenant {
                None => busy_from = at + length,
                Some(tenant) => {
                    let announced = at - (at - busy_from) * waited / 100;
                    commands.push((TenantId(tenant), announced, at, at + length));
                }
            }
            at += length;
        }
        Self { commands }
    }

    fn occupant(&self, at: u64) -> Option<TenantId> {
        let runs = |&&(_, _, from, to): &&(_, _, u64, u64)| (from..to).contains(&at);
        self.commands.iter().find(runs).map(|command| command.0)
    }

    fn snapshot(&self, at: u64) -> ChannelSnapshot {
        let reading = |tenant| {
            let own = || self.commands.iter().filter(move |c| c.0 == tenant);
            let finished = own().filter(|c| c.3 <= at).count();
            let announced = own().filter(|c| c.1 <= at).count();
            (
                tenant,
                finished as u32,
                (announced - finished.min(announced)) as u32,
            )
        };
        snapshot(
            self.occupant(at),
            &[0, 1, 2].map(|id| reading(TenantId(id))),
        )
    }

    /// Idle time; of it the part that is known, in percent.
    fn known_idle(&self, window: Window, percent: u64) -> Nanos {
        let ran: u64 = (0..3).map(|id| self.ran(TenantId(id), window)).sum();
        Nanos((window.length().0 - ran) * percent / 100)
    }

    fn ran(&self, tenant: TenantId, window: Window) -> u64 {
        let within = |&(_, _, from, to): &(_, _, u64, u64)| {
            to.min(window.to().0)
                .saturating_sub(from.max(window.from().0))
        };
        self.commands
            .iter()
            .filter(|c| c.0 == tenant)
            .map(within)
            .sum()
    }
}

proptest! {
    /// Law 1 holds, and the bound is at most the length, for any values from hardware and guests.
    #[test]
    fn any_input_is_conserved(
        periods in prop::collection::vec((any_snapshot(), any_snapshot(), any_snapshot(), 0u64..1 << 40,
            prop::collection::vec((0u32..4, 0u64..1 << 20), 0..5)), 1..12),
        known in (0u64..1 << 40, 0u64..1 << 21),
        preemptible: bool, suspended in 0u32..4,
    ) {
        let mut unobserved = Unobserved::new(GR, preemptible);
        let mut from = 0;
        let known = KnownIdle { unobserved: Nanos(known.0), observed: Nanos(known.1) };
        for (begin, end, after, length, used) in periods {
            let (middle, to) = (from + length, from + length + (1 << 21));
            let mut engine = EngineUsage::empty(GR);
            for (tenant, used) in used {
                engine.entry(TenantId(tenant)).used_ns += Nanos(used / 5);
            }
            engine.idle_ns = Nanos((1 << 21) - engine.used_ns().0);
            let engines = vec![engine, EngineUsage::empty(COPY)];
            let observed = Usage { window: window(middle, to), engines, ..phase() };
            unobserved.begin(begin, |tenant| tenant.0 == suspended);
            unobserved.end(end);
            let usage = unobserved.charge(window(from, middle), &observed, &after, known);
            prop_assert_eq!(usage.engines.len(), 2);
            for engine in &usage.engines {
                prop_assert_eq!(engine.accounted_ns(), Nanos(length));
                prop_assert!(engine.error_bound_ns <= Nanos(length));
            }
            from = to;
        }
    }

    /// No charge's error exceeds the bound, in unobserved parts and in poll phases.
    #[test]
    fn the_error_bound_holds_on_random_timelines(
        segments in prop::collection::vec(
            (prop::option::weighted(0.8, 0u32..3), 1u64..400, 0u64..100), 1..120),
        cuts in prop::collection::vec((0u64..900, 1u64..300, 1u64..40), 1..20),
        percent in 0u64..=100,
    ) {
        let timeline = Timeline::new(&segments);
        let mut unobserved = Unobserved::new(GR, false);
        let mut meter = PolledMeter::new([GR]);
        let mut from = 0;
        for (nonpoll, poll, step) in cuts {
            let (begin, end) = (from + nonpoll, from + nonpoll + poll);
            unobserved.begin(timeline.snapshot(from), |_| false);
            unobserved.end(timeline.snapshot(begin));
            for at in (begin..end).step_by(step as usize) {
                let occupant = timeline.occupant(at);
                meter.observe(Observation::Sample(GR, Sample { at: Moment(at), occupant }));
            }
            let after = timeline.snapshot(end);
            meter.sampled(unobserved.finished_in_phase(&after), Nanos(step));
            let observed = meter.close(window(begin, end));
            let known = KnownIdle {
                unobserved: timeline.known_idle(window(from, begin), percent),
                observed: timeline.known_idle(window(begin, end), percent),
            };
            let estimated = unobserved.charge(window(from, begin), &observed, &after, known);
            for usage in [&estimated, &observed] {
                let engine = &usage.engines[0];
                prop_assert_eq!(engine.accounted_ns(), usage.window.length());
                prop_assert!(engine.error_bound_ns <= usage.window.length());
                for id in 0..3 {
                    let ran = timeline.ran(TenantId(id), usage.window);
                    let charged = usage.tenant_ns(TenantId(id), Metric::Total).0;
                    prop_assert!(
                        charged.abs_diff(ran) <= engine.error_bound_ns.0,
                        "{:?}: {} of {} in {:?}", TenantId(id), charged, ran, usage
                    );
                }
            }
            from = end;
        }
    }
}
