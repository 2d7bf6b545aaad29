//! Names, ids, kinds and metadata of records.

use super::*;
use crate::metadata::Metadata;

#[test]
fn an_id_has_one_name_for_good() {
    let (mut rollup, mut metered, mut entries) = (
        Rollup::new(config(1), None).unwrap(),
        EVENTS.metered(),
        Vec::new(),
    );
    let named = [1, 2, 3].map(standing);
    for period in 0..800 {
        // Seen on the engine before it is named, and long after it has left.
        let standings = if (100..200).contains(&period) {
            &named[..]
        } else {
            &[]
        };
        rollup
            .period(&[&metered.usage(period)], label(period), standings)
            .unwrap();
        rollup.take(&mut entries);
    }
    sound(&entries);
    let mut names = BTreeMap::new();
    for record in entries.iter().flat_map(tenants) {
        let name = names.entry(record.tenant.id).or_insert(&record.tenant.name);
        assert_eq!(*name, &record.tenant.name);
    }
    assert_eq!(
        names.len(),
        6,
        "three with their names, and what came before and after"
    );
}

#[test]
fn processes_without_a_tenant_are_a_record_of_their_own_kind() {
    let mut rollup = Rollup::new(config(1), None).unwrap();
    let mut metered = EVENTS.metered();
    for period in 0..10 {
        let mut usage = metered.usage(period);
        usage.copied = None;
        for used in usage
            .engines
            .iter_mut()
            .flat_map(|engine| &mut engine.tenants)
        {
            used.tenant = TenantId::UNTRACKED;
        }
        rollup.period(&[&usage], label(period), &[]).unwrap();
    }
    let mut entries = Vec::new();
    rollup.finish(&mut entries);
    let records: Vec<_> = entries.iter().flat_map(tenants).collect();
    assert!(!records.is_empty());
    for record in records {
        let tenant = &record.tenant;
        assert_eq!(
            (&*tenant.name, tenant.kind),
            ("untracked", TenantKind::Untracked)
        );
    }
}

#[test]
fn names_that_ids_cannot_carry_are_refused() {
    for node in ["", "a\nb"] {
        let mut bad = config(1);
        bad.gpu.node = node.into();
        assert!(matches!(Rollup::new(bad, None), Err(RollupError::Name(_))));
    }
    let none = RollupConfig {
        window_ns: Nanos::ZERO,
        ..config(1)
    };
    assert_eq!(
        Rollup::new(none, None).unwrap_err(),
        RollupError::WindowLength
    );
}

/// A tenant is described before its first period, anew while a window is open, and not at all.
#[test]
fn window_ends_where_metadata_change_and_each_record_has_those_in_force() {
    let label_of = |value: &str| {
        let labels = [("tier".to_owned(), value.to_owned())].into();
        Arc::new(Metadata::new(None, None, labels).unwrap())
    };
    let (web, same, batch) = (label_of("web"), label_of("web"), label_of("batch"));
    let config = RollupConfig {
        window_ns: Nanos(60 * SECOND_NS),
        ..config(1)
    };
    let mut rollup = Rollup::new(config, None).unwrap();
    let (mut metered, mut entries) = (EVENTS.metered(), Vec::new());
    // A change 0.5 s after the last one ends no window: it would be too short.
    for (periods, metadata) in [
        (0..150, &web),
        (150..300, &same),
        (300..350, &batch),
        (350..500, &web),
    ] {
        for period in periods {
            rollup.describe([(TenantId(1), metadata)].into_iter());
            let standings = [standing(1), standing(2)];
            let usage = metered.usage(period);
            let taken = rollup.period(&[&usage], label(period), &standings);
            taken.unwrap();
        }
    }
    rollup.finish(&mut entries);
    let of = |entry: &Entry| {
        let metadata = tenants(entry)
            .iter()
            .map(|record| record.tenant.metadata.clone());
        let sets: Vec<_> = metadata.filter(|metadata| !metadata.is_empty()).collect();
        (entry.stretch.length_ns.0 / EVENTS.period_ns.0, sets)
    };
    let windows: Vec<_> = entries.iter().map(of).collect();
    assert_eq!(windows, [(300, vec![web.clone()]), (200, vec![web])]);
    sound(&entries);
}
