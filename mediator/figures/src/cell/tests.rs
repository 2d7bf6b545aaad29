//! Lines of cells, from load reports with known figures.

use super::*;
use crate::matrix::Tenant;

const SKIP_NS: u64 = 1_000_000_000;

fn cell(patterns: &[(u32, Pattern)]) -> Cell {
    let tenant = |&(weight, pattern)| Tenant {
        weight,
        kernel: Length::Us(2_000),
        pattern,
        seed: 3,
    };
    Cell {
        tenants: patterns.iter().map(tenant).collect(),
    }
}

fn load(bucket_ns: u64, seconds: usize) -> LoadReport {
    let buckets = vec![bucket_ns / 10; 10 * seconds * BUCKETS_PER_SECOND];
    LoadReport {
        executed_ns: buckets.clone(),
        occupied_ns: buckets.clone(),
        worked_ns: buckets,
        kernels: 100 * seconds as u64,
        start_ns: 7_000_000_000,
        ..LoadReport::default()
    }
}

#[test]
fn shares_errors_and_charges_stand_in_the_line() {
    let cell = cell(&[(300, Pattern::Busy), (100, Pattern::Busy)]);
    let mut loads = [load(6_000_000, 4), load(3_000_000, 4)];
    loads[0].copied_ns = vec![25_000; loads[0].executed_ns.len()];
    let report = SchedulerReport {
        window: Some(Span::new(8_000_000_000, 10_000_000_000)),
        charges: vec![
            Some(Charge {
                compute_ns: 1_212_000_000,
                copy_ns: 49_000_000,
                ..Charge::default()
            }),
            None,
        ],
        cpu_percent: Some(0.4),
        gate_cpu_percent: Some(0.3),
        ..SchedulerReport::default()
    };
    let line = line(&cell, "dfq", &loads, &report, SKIP_NS).unwrap();
    assert_eq!(line.weights, "3:1");
    let first = &line.tenants[0];
    assert!((first.share_percent - 66.667).abs() < 0.01);
    assert!((first.entitled_percent - 75.0).abs() < 1e-6);
    assert!((first.executed_percent - 60.0).abs() < 1e-6);
    assert!((first.work_percent.unwrap() - 20.0).abs() < 1e-6);
    assert!((first.charge_error_percent.unwrap() - 1.0).abs() < 1e-6);
    assert!((first.charge_error_copied_percent.unwrap() + 2.0).abs() < 1e-6);
    assert_eq!(line.tenants[1].truth_copied_ns, None);
    assert_eq!(line.tenants[1].charge_error_percent, None);
    assert!((line.worst_sliding.unwrap().points - 8.333).abs() < 0.01);
    assert!((line.useful_percent - 90.0).abs() < 1e-6);
    assert_eq!(line.busy_while_others_idle_percent, None);
}

/// An H200's clock is set when the driver starts and then drifts by 5.5 us a second: ms after
/// some minutes.
#[test]
fn charges_are_of_the_gpus_clock_and_spans_of_the_wall_clock() {
    let cell = cell(&[(100, Pattern::Busy)]);
    let mut load = load(9_000_000, 4);
    // The tenant executed nothing for the first 20 ms of the window, by the wall clock.
    load.executed_ns[1_000..1_020].fill(0);
    load.clock_offset_ns = -20_000_000;
    let begin = load.start_ns + 1_000_000_000 + 20_000_000;
    let report = SchedulerReport {
        window: Some(Span::new(begin, begin + 1_000_000_000)),
        charges: vec![Some(Charge::default())],
        ..SchedulerReport::default()
    };
    let line = line(&cell, "dfq", &[load], &report, SKIP_NS).unwrap();
    assert_eq!(line.tenants[0].truth_ns, Some(980 * 900_000));
}

#[test]
fn what_a_busy_tenant_gets_beside_an_idle_one_is_shown() {
    let cell = cell(&[(100, Pattern::Idle), (100, Pattern::Busy)]);
    let line = line(
        &cell,
        "dfq",
        &[load(0, 2), load(9_900_000, 2)],
        &SchedulerReport::default(),
        SKIP_NS,
    )
    .unwrap();
    assert!((line.busy_while_others_idle_percent.unwrap() - 99.0).abs() < 1e-6);
    assert_eq!(line.worst_aligned.unwrap().points, 0.0);
}

#[test]
fn entitlements_and_errors_are_of_what_all_received_in_the_same_figure() {
    let cell = cell(&[(100, Pattern::Busy), (100, Pattern::Bursty)]);
    let mut loads = [load(8_700_000, 6), load(0, 6)];
    loads[0].occupied_ns.fill(950_000);
    let line = line(&cell, "dfq", &loads, &SchedulerReport::default(), SKIP_NS).unwrap();
    let lacks = line.tenants[1].entitled_percent;
    let wanted = 100.0 * 0.3 / 0.87;
    assert!((lacks - wanted).abs() < 5.0, "{lacks}, not {wanted}");
    assert!((line.tenants[0].entitled_percent + lacks - 100.0).abs() < 1e-3);
    assert_eq!(line.tenants[1].share_percent, 0.0);
    let points = |worst: Option<Worst>| worst.unwrap().points;
    let executed = points(line.worst_aligned);
    assert!((lacks..50.1).contains(&executed), "{executed}");
    // The same work is a smaller part of the longer occupied time.
    let occupied = points(line.worst_aligned_occupied);
    assert!(occupied < executed - 1.0, "{occupied} {executed}");
    assert_eq!(points(line.worst_aligned_worked), executed);
}

#[test]
fn windows_near_a_pause_of_a_host_are_left_out() {
    let cell = cell(&[(100, Pattern::Busy), (100, Pattern::Busy)]);
    let mut loads = [load(5_000_000, 8), load(5_000_000, 8)];
    let (second, ms) = (1_000_000_000, 1_000_000);
    let pause = loads[0].start_ns + 3_500 * ms;
    // The tenant lacks 20 ms there and 10 ms in the seventh second.
    loads[0].executed_ns[3_500..3_540].fill(0);
    loads[0].executed_ns[6_000..6_020].fill(0);
    let points = |loads: &[LoadReport]| {
        let line = line(&cell, "dfq", loads, &SchedulerReport::default(), SKIP_NS).unwrap();
        let worst = line.worst_sliding_unpaused;
        (
            line.worst_sliding.unwrap().points,
            worst.map(|worst| worst.points),
        )
    };
    let (worst, unpaused) = points(&loads);
    assert_eq!(Some(worst), unpaused);
    let line = line(&cell, "dfq", &loads, &SchedulerReport::default(), SKIP_NS).unwrap();
    let seen = &line.tenants[0].executed_at_worst_ns;
    assert_eq!(seen.len(), 2 * BUCKETS_PER_SECOND);
    let lacks = |buckets: &[u64]| buckets.iter().filter(|&&bucket| bucket == 0).count();
    let (before, window) = seen.split_at(BUCKETS_PER_SECOND);
    assert_eq!((lacks(before), lacks(window)), (0, 4), "{seen:?}");
    loads[0].host_pauses = vec![Span::new(pause, pause + 40 * ms)];
    let (all, unpaused) = points(&loads);
    assert_eq!(all, worst);
    let unpaused = unpaused.unwrap();
    assert!(
        unpaused > 0.4 && unpaused < worst - 0.4,
        "{unpaused} {worst}"
    );
    let (begin, end) = (loads[1].start_ns, loads[1].start_ns + 8 * second);
    loads[1].host_pauses = vec![Span::new(begin, end)];
    assert_eq!(points(&loads), (worst, None), "there is no other");
}

#[test]
fn an_incomplete_report_is_refused() {
    let cell = cell(&[(100, Pattern::Busy)]);
    let mut broken = load(1, 2);
    broken.gaps_unrecorded = 1;
    let report = SchedulerReport::default();
    assert!(matches!(
        line(&cell, "native", &[broken], &report, SKIP_NS),
        Err(CellError::Unrecorded(_, 1))
    ));
    assert!(matches!(
        line(&cell, "native", &[], &report, SKIP_NS),
        Err(CellError::Reports(0, 1))
    ));
}
