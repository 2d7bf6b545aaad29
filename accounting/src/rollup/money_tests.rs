//! What decides amounts: weights, held time, polled time, error bounds and the open window so far.

use super::*;

fn of(entry: &Entry, tenant: u32) -> TenantRecord {
    let id = tenant_id("node-17", entry.stretch.boot, TenantId(tenant));
    let mut records = tenants(entry).iter();
    records.find(|of| of.tenant.id == id).unwrap().clone()
}

fn used_ns(entry: &Entry, tenant: u32) -> Nanos {
    of(entry, tenant).engine_ns
}

#[test]
fn change_of_a_weight_or_a_cap_ends_the_window_and_each_part_has_its_own() {
    let mut config = config(1);
    config.window_ns = Nanos(60 * SECOND_NS);
    let cap = CapInForce {
        quota_ns: Nanos(25),
        period_ns: Nanos(100),
    };
    let states = [(40, None), (700, None), (700, Some(cap))];
    let (mut rollup, mut entries) = (Rollup::new(config, None).unwrap(), Vec::new());
    let mut metered = EVENTS.metered();
    let mut expected = [Nanos::ZERO; 3];
    // From the beginning of a minute, so that no window ends by itself.
    let begin = BEGIN / (60 * SECOND_NS) * 60 * SECOND_NS;
    for period in 0..600 {
        let state = usize::try_from(period / 200).unwrap();
        let usage = metered.usage(period);
        let one = usage.engines[0].tenants.iter();
        expected[state] += one
            .filter(|part| part.tenant == TenantId(1))
            .map(|part| part.used_ns)
            .sum();
        let own = Standing {
            weight: states[state].0,
            cap: states[state].1,
            ..standing(1)
        };
        let end = UnixNanos(begin + (period + 1) * EVENTS.period_ns.0);
        rollup.period(&[&usage], end, &[own, standing(2)]).unwrap();
        rollup.take(&mut entries);
    }
    rollup.finish(&mut entries);
    sound(&entries);
    assert_eq!(entries.len(), 3);
    for (index, entry) in entries.iter().enumerate() {
        let record = of(entry, 1);
        assert_eq!((record.weight, record.cap), states[index]);
        assert_eq!(record.engine_ns, expected[index]);
        assert_eq!(of(entry, 2).weight, 100);
    }
}

#[test]
fn window_shorter_than_a_second_is_not_ended_by_a_weight() {
    let mut config = config(1);
    config.window_ns = Nanos(60 * SECOND_NS);
    let (mut rollup, mut entries) = (Rollup::new(config, None).unwrap(), Vec::new());
    let mut metered = EVENTS.metered();
    let begin = BEGIN / (60 * SECOND_NS) * 60 * SECOND_NS;
    for period in 0..500 {
        let own = Standing {
            weight: 1 + u32::try_from(period).unwrap(),
            ..standing(1)
        };
        let end = UnixNanos(begin + (period + 1) * EVENTS.period_ns.0);
        let usage = metered.usage(period);
        rollup.period(&[&usage], end, &[own]).unwrap();
        rollup.take(&mut entries);
    }
    rollup.finish(&mut entries);
    sound(&entries);
    assert_eq!(
        entries.len(),
        5,
        "a change in each period: a window a second"
    );
    assert_eq!(of(&entries[0], 1).weight, 100, "in force at its end");
}

#[test]
fn draft_is_the_window_as_it_would_be_closed_and_changes_nothing() {
    let (mut rollup, mut entries) = (Rollup::new(config(1), None).unwrap(), Vec::new());
    let mut metered = EVENTS.metered();
    assert_eq!(rollup.draft(), None);
    assert_eq!(rollup.digest(), Digest::genesis(&config(1).gpu));
    run(&mut rollup, &mut metered, 0..130, &mut entries);
    let before = rollup.digest();
    assert_eq!(before, entries.last().unwrap().digest);
    let draft = rollup.draft().unwrap();
    assert_eq!(rollup.draft().unwrap(), draft);
    assert_eq!(rollup.digest(), before);
    let closed = entries.len();
    rollup.finish(&mut entries);
    assert_eq!(entries[closed..], [draft]);
    assert_eq!(rollup.draft(), None);
    sound(&entries);
}

#[test]
fn held_time_of_each_window_is_what_was_added_in_it() {
    let (mut rollup, mut entries) = (Rollup::new(config(1), None).unwrap(), Vec::new());
    let mut metered = EVENTS.metered();
    // The tenant leaves for two periods and is listed again, with the same sum.
    for period in 0..300_u64 {
        let own = Standing {
            held_total_ns: Nanos(period * period),
            weight: 55,
            ..standing(1)
        };
        let here: &[_] = if (120..122).contains(&period) {
            &[]
        } else {
            &[own]
        };
        let usage = metered.usage(period);
        rollup.period(&[&usage], label(period), here).unwrap();
        rollup.take(&mut entries);
    }
    rollup.finish(&mut entries);
    let mut before = 0;
    for entry in &entries {
        let last = entry.stretch.from.0 + entry.stretch.length_ns.0;
        let last = last / EVENTS.period_ns.0 - 1;
        assert_eq!(of(entry, 1).held_ns, Nanos(last * last - before), "{last}");
        assert_eq!(of(entry, 1).weight, 55);
        before = last * last;
    }
}

#[test]
fn estimates_bounds_waiting_and_copies_are_those_of_the_periods() {
    let (mut rollup, mut entries) = (Rollup::new(config(1), None).unwrap(), Vec::new());
    let mut metered = EVENTS.metered();
    let (mut estimated, mut used, mut copied, mut bound, mut waiting, mut faults, mut turns) =
        (0, 0, 0, 0, 0, 0, 0);
    let mut unobserved = 0;
    for period in 0..40 {
        let mut usage = metered.usage(period);
        usage.signals = match period % 2 {
            0 => Signals::Extrapolated,
            _ => Signals::Polled,
        };
        usage.engines[0].error_bound_ns = Nanos(3);
        let unseen = usage.engines[0].idle_ns.0 / 2;
        usage.engines[0].idle_ns -= Nanos(unseen);
        usage.engines[0].unobserved_ns += Nanos(unseen);
        unobserved += unseen;
        usage.engines[1].error_bound_ns = Nanos(5 + period);
        let part = |engine: usize| {
            let mut parts = usage.engines[engine].tenants.iter();
            parts.find(|part| part.tenant == TenantId(2)).copied()
        };
        let ns = |engine| part(engine).map_or(0, |part| part.used_ns.0);
        let fault = |engine| part(engine).map_or(0, |part| part.fault_ns.0);
        used += ns(0);
        copied += ns(1);
        estimated += if period % 2 == 0 { ns(0) } else { 0 };
        bound += 5 + period;
        waiting += EVENTS.period_ns.0 - ns(0) - fault(0);
        faults += fault(0) + fault(1);
        turns += [0, 1]
            .map(|engine| part(engine).map_or(0, |part| part.turns))
            .iter()
            .sum::<u64>();
        let own = Standing {
            backlogged: true,
            ..standing(2)
        };
        let both = [own, standing(3)];
        rollup.period(&[&usage], label(period), &both).unwrap();
    }
    rollup.finish(&mut entries);
    sound(&entries);
    let record = of(&entries[0], 2);
    assert_eq!(used_ns(&entries[0], 2), Nanos(used));
    assert!(estimated > 0 && estimated < used && estimated * 2 != used);
    assert_eq!(record.estimated_ns, Nanos(estimated));
    assert_eq!(record.copy_ns, Nanos(copied));
    assert_eq!(
        record.error_bound_ns,
        Nanos(bound),
        "the largest of the engines"
    );
    assert_eq!(record.waiting_ns, Nanos(waiting));
    let Body::Window { engines, .. } = &entries[0].body else {
        panic!("a window")
    };
    assert!(unobserved > 0);
    assert_eq!(engines[0].unobserved_ns, Nanos(unobserved));
    let idle = of(&entries[0], 3);
    assert_eq!(idle.waiting_ns, Nanos::ZERO, "it had no work");
    assert_eq!(record.fault_ns, Nanos(faults));
    assert_eq!(record.turns, turns);
}
