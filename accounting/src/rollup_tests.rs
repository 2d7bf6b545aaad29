use super::*;
use crate::audit::{Audit, Finding};
use crate::ids::tenant_id;
use crate::record::CapInForce;
use crate::synthetic::{ENGINES, Metered, Synthetic};
use crate::usage::Metric;
use crate::window::Window;
use proptest::prelude::*;
use uuid::Uuid;

const EVENTS: Synthetic = Synthetic {
    seed: 3,
    tenants: 3,
    period_ns: Nanos::from_ms(10),
};
const SECOND_NS: u64 = 1_000_000_000;
/// Not a multiple of a second.
const BEGIN: u64 = 1_795_000_000 * SECOND_NS + 123_456_789;

fn config(boot: u8) -> RollupConfig {
    RollupConfig {
        gpu: GpuIdentity {
            node: "node-17".into(),
            gpu: "GPU-0".into(),
            model: "H200".into(),
        },
        boot: Uuid::from_bytes([boot; 16]),
        window_ns: Nanos(SECOND_NS),
        engines: ENGINES.to_vec(),
    }
}

fn standing(tenant: u32) -> Standing<'static> {
    Standing {
        tenant: TenantId(tenant),
        name: "vm",
        kind: TenantKind::Vm,
        account: None,
        weight: 100,
        cap: None,
        held_total_ns: Nanos::ZERO,
        backlogged: false,
        memory_bytes: None,
    }
}

fn label(period: u64) -> UnixNanos {
    UnixNanos(BEGIN + (period + 1) * EVENTS.period_ns.0)
}

fn run(
    rollup: &mut Rollup,
    metered: &mut Metered,
    periods: std::ops::Range<u64>,
    out: &mut Vec<Entry>,
) {
    let standings = [1, 2, 3, 4].map(standing);
    for period in periods {
        rollup
            .period(&[&metered.usage(period)], label(period), &standings)
            .unwrap();
        rollup.take(out);
    }
}

fn sound(entries: &[Entry]) -> crate::audit::Report {
    let gpu = config(0).gpu;
    let mut audit = Audit::new(&gpu, None);
    entries.iter().for_each(|entry| audit.entry(entry));
    let report = audit.finish();
    assert_eq!(report.broken, 0, "{:?}", report.findings);
    report
}

fn tenants(entry: &Entry) -> &[TenantRecord] {
    match &entry.body {
        Body::Window { tenants, .. } => tenants,
        Body::Gap { .. } => &[],
    }
}

#[path = "rollup/bound_tests.rs"]
mod bounds;
#[path = "rollup/money_tests.rs"]
mod money;
#[path = "rollup/name_tests.rs"]
mod names;

#[test]
fn windows_hold_what_the_engines_did_and_close_on_the_calendar() {
    let (mut rollup, mut entries) = (Rollup::new(config(1), None).unwrap(), Vec::new());
    run(&mut rollup, &mut EVENTS.metered(), 0..550, &mut entries);
    assert_eq!(entries.len(), 5);
    rollup.finish(&mut entries);
    for (seq, entry) in entries.iter().enumerate() {
        assert_eq!(entry.stretch.seq, seq as u64);
        if (1..5).contains(&seq) {
            let late = entry.stretch.start.0 % SECOND_NS;
            assert!(late < EVENTS.period_ns.0, "{late} ns after the full second");
        }
        assert_eq!(tenants(entry).len(), 4, "those without use, too");
    }
    let report = sound(&entries);
    assert_eq!(report.window_ns, 550 * u128::from(EVENTS.period_ns.0));
    for tenant in 1..=4 {
        let id = tenant_id("node-17", config(1).boot, TenantId(tenant));
        let own = entries
            .iter()
            .flat_map(tenants)
            .filter(|record| record.tenant.id == id);
        let total: Nanos = own.map(|record| record.engine_ns).sum();
        let truth = |period| EVENTS.ran_ns(period, ENGINES[0].0, TenantId(tenant));
        assert_eq!(total, (0..550).map(truth).sum());
    }
}

#[test]
fn a_restart_is_a_gap_of_the_same_sequence() {
    let mut entries = Vec::new();
    let mut first = Rollup::new(config(1), None).unwrap();
    run(&mut first, &mut EVENTS.metered(), 0..250, &mut entries);
    let last = entries.last().unwrap();
    let tail = Tail {
        seq: last.stretch.seq,
        end: last.stretch.end,
        digest: last.digest,
    };
    let mut second = Rollup::new(config(2), Some(tail)).unwrap();
    run(&mut second, &mut EVENTS.metered(), 700..950, &mut entries);
    second.finish(&mut entries);
    let report = sound(&entries);
    assert_eq!(report.gaps, 1);
    let gap = entries
        .iter()
        .find(|e| {
            matches!(
                e.body,
                Body::Gap {
                    cause: GapCause::Down
                }
            )
        })
        .unwrap();
    assert_eq!(gap.stretch.boot, config(2).boot);
    assert_eq!((gap.stretch.start, gap.stretch.end), (tail.end, label(699)));
    let length = gap.stretch.end.0 - gap.stretch.start.0;
    assert_eq!(gap.stretch.length_ns, Nanos(length));
}

/// The calendar of the second run begins where the ledger ends, or before.
#[test]
fn restart_that_takes_no_time_by_the_calendar_adds_no_gap() {
    for back in [0, 1, 500] {
        let (mut entries, mut more) = (Vec::new(), Vec::new());
        let mut first = Rollup::new(config(1), None).unwrap();
        run(&mut first, &mut EVENTS.metered(), 0..250, &mut entries);
        let tail = Tail::of(entries.last().unwrap());
        let mut second = Rollup::new(config(2), Some(tail)).unwrap();
        let mut metered = EVENTS.metered();
        for period in 0..120 {
            let after = (period + 1) * EVENTS.period_ns.0;
            let end = UnixNanos(tail.end.0 + after - back);
            let usage = metered.usage(period);
            second.period(&[&usage], end, &[standing(1)]).unwrap();
        }
        second.finish(&mut more);
        assert_eq!(more[0].stretch.start, tail.end, "{back} ns back");
        entries.append(&mut more);
        assert_eq!(sound(&entries).gaps, 0);
    }
}

#[test]
fn a_clock_set_back_labels_no_window_twice() {
    let (mut rollup, mut entries) = (Rollup::new(config(1), None).unwrap(), Vec::new());
    let mut metered = EVENTS.metered();
    run(&mut rollup, &mut metered, 0..250, &mut entries);
    let before = entries.len();
    for period in 250..700 {
        let behind = UnixNanos(label(period).0 - 3_600 * SECOND_NS);
        rollup
            .period(&[&metered.usage(period)], behind, &[standing(1)])
            .unwrap();
        rollup.take(&mut entries);
    }
    // Windows close nevertheless, so that a daemon that dies loses at most two window lengths.
    let window_ns = config(1).window_ns;
    let longest = entries.iter().map(|entry| entry.stretch.length_ns).max();
    assert_eq!(longest, Some(window_ns + window_ns));
    assert!(entries.len() > before + 1, "{}", entries.len());
    rollup.finish(&mut entries);
    let report = sound(&entries);
    assert_eq!(report.window_ns, 700 * u128::from(EVENTS.period_ns.0));
}

#[test]
fn missed_periods_are_recorded_as_gap_time() {
    let (mut rollup, mut entries) = (Rollup::new(config(1), None).unwrap(), Vec::new());
    let mut metered = EVENTS.metered();
    run(&mut rollup, &mut metered, 0..30, &mut entries);
    run(&mut rollup, &mut metered, 31..60, &mut entries);
    run(&mut rollup, &mut metered, 260..300, &mut entries);
    rollup.finish(&mut entries);
    let report = sound(&entries);
    assert_eq!((report.gaps, report.gap_ns), (1, 2 * u128::from(SECOND_NS)));
    let Body::Window { engines, .. } = &entries[0].body else {
        panic!("a window comes first")
    };
    assert_eq!(
        engines[0].gap_ns, EVENTS.period_ns,
        "short, so within the window"
    );
}

#[test]
fn a_usage_that_does_not_balance_is_a_gap() {
    let (mut rollup, mut entries) = (Rollup::new(config(1), None).unwrap(), Vec::new());
    let mut metered = EVENTS.metered();
    run(&mut rollup, &mut metered, 0..3, &mut entries);
    let mut cooked = metered.usage(3);
    cooked.engines[0].idle_ns += Nanos(1);
    let refused = rollup.period(&[&cooked], label(3), &[]);
    assert!(matches!(refused, Err(RollupError::Unbalanced { .. })));
    run(&mut rollup, &mut metered, 4..5, &mut entries);
    assert!(matches!(
        rollup.period(&[&metered.usage(4)], label(4), &[]),
        Err(RollupError::Overlap { .. })
    ));
    rollup.finish(&mut entries);
    sound(&entries);
    let Body::Window { engines, .. } = &entries[0].body else {
        panic!("a window")
    };
    assert_eq!(engines[0].gap_ns, EVENTS.period_ns);
}

#[test]
fn held_and_waiting_time_and_memory_are_integrated() {
    let (mut rollup, mut entries) = (Rollup::new(config(1), None).unwrap(), Vec::new());
    let mut metered = EVENTS.metered();
    let cap = CapInForce {
        quota_ns: Nanos(25),
        period_ns: Nanos(100),
    };
    for period in 0..10 {
        let own = Standing {
            weight: 300,
            cap: Some(cap),
            held_total_ns: Nanos(7 * (period + 1)),
            backlogged: true,
            memory_bytes: Some(1 << 40),
            ..standing(4)
        };
        rollup
            .period(&[&metered.usage(period)], label(period), &[own])
            .unwrap();
    }
    rollup.finish(&mut entries);
    let id = tenant_id("node-17", config(1).boot, TenantId(4));
    let record = tenants(&entries[0])
        .iter()
        .find(|record| record.tenant.id == id)
        .unwrap();
    let length = 10 * EVENTS.period_ns.0;
    assert_eq!(record.held_ns, Nanos(70));
    assert_eq!(record.waiting_ns, Nanos(length), "it never ran");
    assert_eq!(record.memory_byte_ns, Some((1 << 40) * u128::from(length)));
    assert_eq!((record.weight, record.cap), (300, Some(cap)));
    assert_eq!(record.signals.to_string(), "events");
}

#[test]
fn copied_bytes_are_charged_where_they_are_counted_also_to_tenants_that_left() {
    let copied = |counted: bool| {
        let (mut rollup, mut entries) = (Rollup::new(config(1), None).unwrap(), Vec::new());
        let mut metered = EVENTS.metered();
        for period in 0..2 {
            let mut usage = metered.usage(period);
            // Tenant 1 has left at the end of the second period; tenant 9 never copied.
            let here: &[_] = match period {
                0 => &[standing(1), standing(4), standing(9)],
                _ => &[standing(4), standing(9)],
            };
            let copied = [(TenantId(1), 5 + period), (TenantId(4), 100)];
            usage.copied = counted.then(|| copied.into());
            rollup.period(&[&usage], label(period), here).unwrap();
        }
        rollup.finish(&mut entries);
        let id = |tenant| tenant_id("node-17", config(1).boot, TenantId(tenant));
        [1, 4, 9].map(|tenant| {
            let mut records = tenants(&entries[0]).iter();
            let own = records.find(|record| record.tenant.id == id(tenant));
            own.unwrap().copy_bytes
        })
    };
    assert_eq!(copied(true), [Some(11), Some(200), Some(0)]);
    assert_eq!(copied(false), [None; 3]);
}

#[test]
fn polled_periods_are_marked_and_their_estimates_kept_apart() {
    let (mut rollup, mut entries) = (Rollup::new(config(1), None).unwrap(), Vec::new());
    let mut metered = EVENTS.metered();
    let mut polled = metered.usage(1);
    polled.signals = Signals::Polled;
    let extrapolated = Usage {
        window: Window::starting(Moment(0), EVENTS.period_ns),
        signals: Signals::Extrapolated,
        ..polled.clone()
    };
    rollup
        .period(&[&extrapolated, &polled], label(1), &[standing(1)])
        .unwrap();
    rollup.finish(&mut entries);
    sound(&entries);
    let all = tenants(&entries[0]);
    assert!(
        all.iter()
            .all(|record| record.signals.to_string() == "polled+extrapolated")
    );
    let estimated: Nanos = all.iter().map(|record| record.estimated_ns).sum();
    let expected: Nanos = (1..=3)
        .filter_map(|t| {
            let engine = &extrapolated.engines[0];
            engine
                .tenants
                .iter()
                .find(|part| part.tenant == TenantId(t))
        })
        .map(|part| part.metric_ns(Metric::Total))
        .sum();
    assert_eq!(estimated, expected);
}

#[test]
fn an_audit_finds_each_kind_of_change() {
    let (mut rollup, mut entries) = (Rollup::new(config(1), None).unwrap(), Vec::new());
    run(&mut rollup, &mut EVENTS.metered(), 0..350, &mut entries);
    sound(&entries);
    let gpu = config(1).gpu;
    let findings = |change: &dyn Fn(&mut Vec<Entry>)| {
        let mut changed = entries.clone();
        change(&mut changed);
        let mut audit = Audit::new(&gpu, None);
        changed.iter().for_each(|entry| audit.entry(entry));
        audit.finish().findings
    };
    let lost = findings(&|entries| drop(entries.remove(1)));
    assert!(
        lost.contains(&Finding::Sequence {
            expected: 1,
            found: 2
        }),
        "{lost:?}"
    );
    let cooked = findings(&|entries| {
        if let Body::Window { tenants, .. } = &mut entries[1].body {
            tenants[0].engine_ns += Nanos(1);
        }
    });
    assert!(cooked.contains(&Finding::Digest { seq: 1 }));
    assert!(
        cooked
            .iter()
            .any(|f| matches!(f, Finding::Sum { seq: 1, .. })),
        "{cooked:?}"
    );
    let renamed = findings(&|entries| {
        if let Body::Window { tenants, .. } = &mut entries[0].body {
            tenants[0].id = Uuid::nil();
        }
    });
    assert!(
        renamed
            .iter()
            .any(|f| matches!(f, Finding::Id { seq: 0, .. }))
    );
    let unbalanced = findings(&|entries| {
        if let Body::Window { engines, .. } = &mut entries[0].body {
            engines[1].idle_ns += Nanos(1);
        }
    });
    assert!(
        unbalanced
            .iter()
            .any(|f| matches!(f, Finding::Conservation { seq: 0, .. }))
    );
    let moved = findings(&|entries| entries[2].stretch.start.0 += 1);
    assert!(
        moved
            .iter()
            .any(|f| matches!(f, Finding::Calendar { seq: 2, .. }))
    );
    let shifted = findings(&|entries| entries[2].stretch.from.0 += 1);
    assert!(
        shifted
            .iter()
            .any(|f| matches!(f, Finding::Clock { seq: 2, .. }))
    );
}

proptest! {
    /// Whenever entries are taken and periods are missed, no nanosecond is lost or counted twice.
    #[test]
    fn entries_cover_all_time(
        steps in prop::collection::vec((0u64..300, any::<bool>(), -2_000_000_000i64..2_000_000_000), 1..120),
        seed in any::<u64>(),
    ) {
        let events = Synthetic { seed, ..EVENTS };
        let mut metered = events.metered();
        let (mut rollup, mut entries) = (Rollup::new(config(1), None).unwrap(), Vec::new());
        let (mut period, mut expected, mut first) = (0, Nanos::ZERO, None);
        let mut copied = 0;
        for (skip, take, step) in steps {
            period += if skip < 280 { 1 } else { skip };
            first.get_or_insert(period);
            let usage = metered.usage(period);
            expected += usage.tenant_ns(TenantId(1), Metric::Total);
            copied += events.copied_bytes(period, TenantId(1));
            let end = UnixNanos(label(period).0.saturating_add_signed(step));
            prop_assert!(rollup.period(&[&usage], end, &[standing(1)]).is_ok());
            if take {
                rollup.take(&mut entries);
            }
        }
        rollup.finish(&mut entries);
        let report = sound(&entries);
        let wall = (period + 1 - first.unwrap()) * events.period_ns.0;
        prop_assert_eq!(report.window_ns + report.gap_ns, u128::from(wall));
        let id = tenant_id("node-17", config(1).boot, TenantId(1));
        let own = entries.iter().flat_map(tenants).filter(|record| record.tenant.id == id);
        let got: Nanos = own.clone().map(|record| record.engine_ns + record.copy_ns).sum();
        prop_assert_eq!(got, expected);
        let bytes: u64 = own.filter_map(|record| record.copy_bytes).sum();
        prop_assert_eq!(bytes, copied);
    }
}

/// A silent GPU is no use of any tenant, whatever window it falls in.
#[test]
fn silent_time_is_a_gap_with_its_cause_and_no_tenant_is_charged() {
    let mut rollup = Rollup::new(config(1), None).unwrap();
    let mut metered = EVENTS.metered();
    let mut entries = Vec::new();
    run(&mut rollup, &mut metered, 0..150, &mut entries);
    let at = |period: u64| Moment(period * EVENTS.period_ns.0);
    // Less than a window: more may follow.
    rollup.silent(at(200), label(199), false);
    rollup.take(&mut entries);
    let gaps = |entries: &[Entry]| {
        let gaps = entries
            .iter()
            .filter(|entry| matches!(entry.body, Body::Gap { .. }));
        gaps.map(|gap| gap.stretch.length_ns).collect::<Vec<_>>()
    };
    assert!(gaps(&entries).is_empty());
    rollup.silent(at(300), label(299), false);
    rollup.silent(at(310), label(309), true);
    rollup.silent(at(310), label(309), true);
    rollup.finish(&mut entries);
    let cause = GapCause::Silent;
    let silent = entries
        .iter()
        .filter(|entry| entry.body == Body::Gap { cause });
    assert_eq!(silent.count(), 2);
    let lengths = [Nanos::from_ms(1_500), Nanos::from_ms(100)];
    assert_eq!(gaps(&entries), lengths);
    let charged = |entry: &Entry| match &entry.body {
        Body::Window { tenants, .. } => tenants.iter().map(|one| one.engine_ns.0).sum(),
        Body::Gap { .. } => 0u64,
    };
    let total: u64 = entries.iter().map(charged).sum();
    assert!(total > 0 && total <= 150 * EVENTS.period_ns.0, "{total}");
}
