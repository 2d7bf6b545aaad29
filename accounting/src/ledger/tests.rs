use super::*;
use crate::usage::Anomalies;
use proptest::prelude::*;

const GR: EngineId = EngineId(0);

/// A window in which `tenant` used everything but `idle`.
fn usage(from: u64, length: u64, tenant: u32, idle: u64) -> Usage {
    let mut engine = EngineUsage::empty(GR);
    engine.idle_ns = Nanos(idle);
    engine.entry(TenantId(tenant)).used_ns = Nanos(length - idle);
    Usage {
        window: Window::starting(Moment(from), Nanos(length)),
        signals: Signals::Events,
        engines: vec![engine],
        copied: None,
        anomalies: Anomalies::default(),
    }
}

#[test]
fn a_window_that_does_not_balance_changes_nothing() {
    let mut ledger = Ledger::new([GR], 4);
    ledger.append(usage(0, 100, 1, 20)).unwrap();
    let before = ledger.snapshot();
    let mut cooked = usage(100, 100, 1, 20);
    cooked.engines[0].idle_ns = Nanos(21);
    assert_eq!(
        ledger.append(cooked),
        Err(LedgerError::Unbalanced {
            engine: GR,
            accounted_ns: Nanos(101),
            window_ns: Nanos(100)
        })
    );
    assert_eq!(ledger.snapshot(), before);
}

#[test]
fn time_is_charged_once() {
    let mut ledger = Ledger::new([GR], 4);
    ledger.append(usage(0, 100, 1, 0)).unwrap();
    let overlap = LedgerError::Overlap {
        from: Moment(99),
        closed: Moment(100),
    };
    assert_eq!(ledger.append(usage(99, 10, 1, 0)), Err(overlap));
}

#[test]
fn another_gpus_usage_is_refused() {
    let mut ledger = Ledger::new([GR, EngineId(1)], 4);
    assert_eq!(
        ledger.append(usage(0, 1, 1, 0)),
        Err(LedgerError::Engines { expected: 2 })
    );
}

#[test]
fn extrapolated_time_is_marked() {
    let mut ledger = Ledger::new([GR], 4);
    let poll = usage(0, 100, 1, 50);
    let nonpoll = Usage {
        signals: Signals::Extrapolated,
        ..usage(100, 500, 1, 250)
    };
    ledger.append(poll).unwrap();
    ledger.append(nonpoll).unwrap();
    let totals = ledger.tenant(TenantId(1)).totals;
    assert_eq!(
        (totals.used_ns, totals.estimated_ns),
        (Nanos(300), Nanos(250))
    );
}

#[test]
fn a_settled_tenant_leaves_only_the_engines_time() {
    let mut ledger = Ledger::new([GR], 4);
    ledger.append(usage(0, 100, 1, 0)).unwrap();
    ledger.add_held(TenantId(1), Nanos(7));
    let settled = ledger.settle(TenantId(1));
    assert_eq!(
        (settled.totals.used_ns, settled.held_ns),
        (Nanos(100), Nanos(7))
    );
    let after = ledger.snapshot();
    assert!(after.tenants.is_empty());
    assert_eq!(after.engines[0].totals.used_ns, Nanos(100));
}

proptest! {
    /// From the first window to the last no time is lost, with any gaps between windows.
    #[test]
    fn the_ledger_balances(
        windows in prop::collection::vec((0u64..50, 1u64..100, 0u32..3, 0u64..=100), 1..40),
        keep in 0usize..6,
    ) {
        let mut ledger = Ledger::new([GR], keep);
        let mut at = 0;
        for (gap, length, tenant, idle) in windows {
            ledger.append(usage(at + gap, length, tenant, idle * length / 100)).unwrap();
            at += gap + length;
        }
        let snapshot = ledger.snapshot();
        let engine = snapshot.engines[0].totals;
        prop_assert_eq!(engine.accounted_ns(), snapshot.window.unwrap().length());
        let tenants: Nanos = snapshot.tenants.iter().map(|t| t.totals.used_ns).sum();
        prop_assert_eq!(tenants, engine.used_ns);
        prop_assert!(ledger.recent().len() <= keep);
    }
}

/// Two engines; each part differs from all others, so that no two can be exchanged unseen.
#[test]
fn totals_have_each_part_of_each_tenant_and_engine_once() {
    let engines = [EngineId(0), EngineId(1)];
    let part = |engine: &mut EngineUsage, tenant: u32, base: u64| {
        let own = engine.entry(TenantId(tenant));
        own.used_ns = Nanos(base);
        own.fault_ns = Nanos(base + 1);
        own.turns = base + 2;
        own.begun = base + 3;
    };
    let usage = |from: u64, signals, scale: u64| {
        let parts = engines.map(|id| {
            let mut engine = EngineUsage::empty(id);
            let base = 100 * scale * (1 + u64::from(id.0));
            part(&mut engine, 1, base);
            part(&mut engine, 2, 3 * base);
            engine.switching_ns = Nanos(base + 5);
            engine.unobserved_ns = Nanos(base + 7);
            engine.error_bound_ns = Nanos(base + 11);
            let busy = engine.accounted_ns();
            engine.idle_ns = Nanos(10_000 - busy.0);
            engine
        });
        Usage {
            window: Window::starting(Moment(from), Nanos(10_000)),
            signals,
            engines: parts.to_vec(),
            copied: Some([(TenantId(1), 17 * scale), (TenantId(3), 19)].into()),
            anomalies: Anomalies::default(),
        }
    };
    let mut ledger = Ledger::new(engines, 8);
    ledger.append(usage(0, Signals::Polled, 1)).unwrap();
    ledger
        .append(usage(10_500, Signals::Extrapolated, 2))
        .unwrap();
    ledger.add_held(TenantId(1), Nanos(31));
    ledger.add_held(TenantId(1), Nanos(2));
    ledger.add_held(TenantId(2), Nanos(5));
    // Tenant 2 moved tenant 1's memory: what moved is the mover's.
    ledger.add_moved(TenantId(2), 4_096, Nanos(40));
    ledger.add_moved(TenantId(2), 1, Nanos(3));
    ledger.add_moved(TenantId(4), 2, Nanos(9));
    let own = |tenant| ledger.tenant(TenantId(tenant));
    let one = own(1);
    // 100 and 200 of the engines, then twice that.
    assert_eq!(
        one.totals,
        TenantTotals {
            used_ns: Nanos(900),
            estimated_ns: Nanos(600),
            fault_ns: Nanos(904),
            turns: 908,
            begun: 912,
        }
    );
    assert_eq!(one.engines[1].1.begun, 203 + 403);
    assert_eq!((one.held_ns, one.copy_bytes), (Nanos(33), Some(51)));
    assert_eq!((one.moved_bytes, one.moved_ns), (0, Nanos::ZERO));
    let two = own(2);
    assert_eq!(
        (two.totals.used_ns, two.totals.begun),
        (Nanos(2_700), 2_712)
    );
    assert_eq!((two.moved_bytes, two.moved_ns), (4_097, Nanos(43)));
    assert_eq!((two.held_ns, two.copy_bytes), (Nanos(5), Some(0)));
    assert_eq!(own(3).copy_bytes, Some(38));
    assert_eq!((own(4).moved_bytes, own(4).moved_ns), (2, Nanos(9)));
    let snapshot = ledger.snapshot();
    let ids: Vec<u32> = snapshot.tenants.iter().map(|of| of.tenant.0).collect();
    assert_eq!(ids, [1, 2, 3, 4]);
    let first = snapshot.engines[0].totals;
    assert_eq!(
        first,
        EngineTotals {
            used_ns: Nanos(1_200),
            fault_ns: Nanos(1_204),
            switching_ns: Nanos(310),
            idle_ns: Nanos(20_000 - 1_200 - 1_204 - 310 - 314),
            unobserved_ns: Nanos(314),
            gap_ns: Nanos(500),
            error_bound_ns: Nanos(322),
            begun: 1_212,
        }
    );
    let window = Window::starting(Moment(0), Nanos(20_500));
    assert_eq!(snapshot.window, Some(window));
    assert_eq!(first.accounted_ns(), window.length());
    let gaps: Vec<&Record> = ledger
        .recent()
        .filter(|record| matches!(record, Record::Gap { .. }))
        .collect();
    let gap = Window::starting(Moment(10_000), Nanos(500));
    assert_eq!(gaps, [&Record::Gap { window: gap }]);
    let settled = ledger.settle(TenantId(2));
    assert_eq!(settled, two);
    let removed = ledger.tenant(TenantId(2));
    assert_eq!(removed.totals, TenantTotals::default());
    assert_eq!((removed.held_ns, removed.moved_bytes), (Nanos::ZERO, 0));
    assert_eq!(ledger.settle(TenantId(3)).copy_bytes, Some(38));
    assert_eq!(ledger.tenant(TenantId(3)).copy_bytes, Some(0));
    assert_eq!(ledger.tenant(TenantId(1)), one, "another tenant's stays");
    assert_eq!(ledger.snapshot().engines[0].totals, first);
}

#[test]
fn recent_records_are_the_latest_ones_in_order() {
    let mut ledger = Ledger::new([GR], 3);
    for index in 0..5 {
        ledger.append(usage(100 * index, 100, 1, 0)).unwrap();
    }
    let kept: Vec<u64> = ledger
        .recent()
        .map(|record| match record {
            Record::Window(usage) => usage.window.from().0,
            Record::Gap { window } => window.from().0,
        })
        .collect();
    assert_eq!(kept, [200, 300, 400]);
}
