//! The choice among entities that are set by hand.

use super::*;
use crate::params::Weight;

const RULES: Rules = Rules {
    patience: Nanos::from_us(1_000),
    ahead: Nanos::from_us(1_000),
    order: Nanos::from_us(100),
    preemption: None,
};

const STOPS: Rules = Rules {
    preemption: Some(Nanos::from_us(20)),
    ..RULES
};

#[derive(Clone, Copy, PartialEq)]
enum Does {
    /// Has a waiting command.
    Queued,
    /// Has a command that executes.
    Executes,
    /// Pauses; its longest pause had this number of microseconds.
    Pauses(u64),
    /// Pauses for the first time.
    PausesFirst,
    /// Pauses for the first time, with credit for this number of microseconds.
    PausesPaid(u64),
    IsAway,
}
use Does::{Executes, IsAway, Pauses, PausesFirst, PausesPaid, Queued};

fn point(us: u64) -> VirtualTime {
    VirtualTime::default() + VirtualSpan::of(Nanos::from_us(us), 100)
}

fn entity(at_us: u64, weight: u32, does: Does) -> Entity {
    let ran_us = match does {
        PausesPaid(us) => us,
        _ => 0,
    };
    let mut entity = Entity::new(Weight::new(weight).unwrap(), point(at_us - ran_us));
    if does != IsAway {
        entity.arrive(Moment(0), point(0));
    }
    entity.serve(Nanos::from_us(ran_us * u64::from(weight) / 100));
    if matches!(does, Pauses(_) | PausesFirst | PausesPaid(_)) {
        entity.pause(Moment(0));
    }
    entity
}

/// A level of entities 0, 1, ...: virtual time in microseconds, weight, activity.
fn updated(
    level: &mut Level<usize>,
    rules: &Rules,
    now_us: u64,
    idle: bool,
    of: &[(u64, u32, Does)],
) {
    let entities = of
        .iter()
        .map(|&(at, weight, does)| entity(at, weight, does));
    let entities: Vec<Entity> = entities.collect();
    let parts = entities.iter().zip(of).enumerate();
    let parts = parts.map(|(key, (entity, (_, _, does)))| Part {
        key,
        entity,
        queued: *does == Queued,
        longest: match does {
            Pauses(us) => Some(Nanos::from_us(*us)),
            _ => None,
        },
    });
    level.update(rules, Moment(now_us * 1_000), idle, parts);
}

fn level(rules: &Rules, idle: bool, of: &[(u64, u32, Does)]) -> Level<usize> {
    let mut level = Level::default();
    updated(&mut level, rules, 0, idle, of);
    level
}

/// The latest microsecond at which an entity of the default weight may be started.
fn limit(rules: &Rules, of: &[(u64, u32, Does)]) -> Option<u64> {
    let limit = level(rules, false, of).limit(100)?;
    Some(point(0).service_until(limit, 100).0 / 1_000)
}

#[test]
fn queued_work_bounds_more_closely_than_work_that_executes_or_pauses() {
    assert_eq!(limit(&RULES, &[]), None);
    assert_eq!(limit(&RULES, &[(500, 100, IsAway)]), None);
    assert_eq!(limit(&RULES, &[(500, 100, Queued)]), Some(600));
    assert_eq!(limit(&RULES, &[(500, 100, Executes)]), Some(1_500));
    assert_eq!(limit(&RULES, &[(500, 100, PausesFirst)]), Some(1_500));
    let several = [
        (500, 100, Executes),
        (1_390, 100, Queued),
        (700, 100, Executes),
    ];
    assert_eq!(limit(&RULES, &several), Some(1_490), "the least of all");
    let reversed = [(700, 100, Executes), (500, 100, Executes)];
    assert_eq!(limit(&RULES, &reversed), Some(1_500));
}

#[test]
fn where_kernels_can_be_stopped_only_queued_work_and_tiny_pauses_bound() {
    assert_eq!(limit(&STOPS, &[(500, 100, Queued)]), Some(600));
    assert_eq!(limit(&STOPS, &[(500, 100, Executes)]), None);
    assert_eq!(limit(&STOPS, &[(500, 100, PausesFirst)]), None);
    assert_eq!(limit(&STOPS, &[(500, 100, Pauses(41))]), None);
    assert_eq!(limit(&STOPS, &[(500, 100, Pauses(40))]), Some(1_500));
    let mut level = Level::default();
    for (now_us, bounds) in [(39, true), (40, false)] {
        updated(&mut level, &STOPS, now_us, false, &[(500, 100, Pauses(10))]);
        assert_eq!(level.limit(100).is_some(), bounds, "after {now_us} us");
        let lapses_at = bounds.then_some(Moment(40_000));
        assert_eq!(level.lapses_at(), lapses_at, "after {now_us} us");
    }
    assert_eq!(STOPS.tiny(), Nanos::from_us(40));
    assert_eq!(RULES.tiny(), Nanos::ZERO);
}

#[test]
fn bounds_are_in_service_of_the_lighter_one() {
    let at = |weight| {
        let level = level(&RULES, false, &[(0, 200, Queued)]);
        let limit = level.limit(weight).unwrap();
        point(0).service_until(limit, 100).0 / 1_000
    };
    assert_eq!([at(50), at(200), at(800)], [200, 50, 50]);
}

#[test]
fn an_entity_may_be_started_up_to_the_bound() {
    let level = level(
        &RULES,
        true,
        &[(500, 100, Queued), (600, 100, Queued), (601, 100, Queued)],
    );
    let allows = |us| level.allows(point(us), 100);
    assert_eq!([allows(500), allows(600), allows(601)], [true, true, false]);
    assert!(level.reserved_for().is_empty(), "none pauses");
}

#[test]
fn the_engine_is_left_idle_for_those_that_pause_behind_the_bound() {
    let of = [
        (2_000, 100, Queued),
        (900, 100, PausesFirst),
        (1_000, 100, PausesFirst),
        (2_050, 300, Queued),
    ];
    let level_idle = level(&RULES, true, &of);
    assert_eq!(level_idle.reserved_for(), [1]);
    assert_eq!(level_idle.runnable_weight(), 400);
    assert!(level_idle.any_pausing());
    assert!(!level_idle.allows(point(2_000), 100));
    assert!(level_idle.allows(point(1_900), 100));
    let busy = level(&RULES, false, &of);
    assert!(busy.reserved_for().is_empty(), "the engine is not idle");
    let nearer = [(1_900, 100, Queued), (900, 100, PausesFirst)];
    assert!(level(&RULES, true, &nearer).reserved_for().is_empty());
    let none_waits = [(900, 100, PausesFirst)];
    assert!(level(&RULES, true, &none_waits).reserved_for().is_empty());
    let none_pauses = [(900, 100, Queued)];
    assert!(!level(&RULES, true, &none_pauses).any_pausing());
}

#[test]
fn a_reservation_lasts_until_its_entities_arrive_or_leave() {
    let mut level = Level::default();
    let begins = [(2_000, 100, Queued), (900, 100, PausesFirst)];
    updated(&mut level, &RULES, 0, true, &begins);
    // Reserved time has moved the pausing entity: the barrier stays.
    let moved = [(2_000, 100, Queued), (1_500, 100, PausesFirst)];
    updated(&mut level, &RULES, 0, true, &moved);
    assert_eq!(level.reserved_for(), [1]);
    assert!(!level.allows(point(2_000), 100) && level.allows(point(1_999), 100));
    // Another entity arrives before the barrier: it may run, and the reservation stays.
    let joined = [moved[0], moved[1], (1_600, 100, Queued)];
    updated(&mut level, &RULES, 0, true, &joined);
    assert_eq!(level.reserved_for(), [1]);
    assert!(!level.allows(point(2_000), 100) && level.allows(point(1_600), 100));
    let arrived = [(2_000, 100, Queued), (1_500, 100, Executes)];
    updated(&mut level, &RULES, 0, true, &arrived);
    assert!(level.reserved_for().is_empty() && level.allows(point(2_000), 100));
    updated(&mut level, &RULES, 0, true, &begins);
    let left = [(2_000, 100, Queued), (900, 100, IsAway)];
    updated(&mut level, &RULES, 0, true, &left);
    assert!(level.reserved_for().is_empty());
    updated(&mut level, &RULES, 0, true, &begins);
    updated(&mut level, &RULES, 0, false, &moved);
    assert!(level.reserved_for().is_empty(), "the engine runs something");
}

#[test]
fn a_reservation_keeps_those_it_began_for() {
    let mut level = Level::default();
    let two = [
        (2_000, 100, Queued),
        (900, 100, PausesFirst),
        (800, 100, PausesFirst),
    ];
    updated(&mut level, &RULES, 0, true, &two);
    assert_eq!(level.reserved_for(), [1, 2]);
    let moved = [
        (2_000, 100, Queued),
        (1_500, 100, PausesFirst),
        (800, 100, PausesFirst),
    ];
    updated(&mut level, &RULES, 0, true, &moved);
    assert_eq!(level.reserved_for(), [1, 2]);
    let one_left = [
        (2_000, 100, Queued),
        (1_500, 100, IsAway),
        (950, 100, PausesFirst),
    ];
    updated(&mut level, &RULES, 0, true, &one_left);
    assert_eq!(level.reserved_for(), [2]);
}

#[test]
fn nothing_is_reserved_where_kernels_can_be_stopped_but_for_tiny_pauses() {
    let of = |pause| [(2_000, 100, Queued), (900, 100, Pauses(pause))];
    assert!(level(&STOPS, true, &of(500)).reserved_for().is_empty());
    assert_eq!(level(&STOPS, true, &of(30)).reserved_for(), [1]);
}

/// Service of entity 0, which runs, until decisions change.
fn changes(rules: &Rules, of: &[(u64, u32, Does)]) -> Option<u64> {
    let running = entity(of[0].0, of[0].1, Executes);
    level(rules, false, of)
        .changes_within(0, &running, QUANTUM)
        .map(|within| within.0)
}

#[test]
fn decisions_change_when_the_running_entity_passes_a_bound() {
    assert_eq!(changes(&RULES, &[(500, 100, Executes)]), None);
    let pauses = [(500, 100, Executes), (300, 100, PausesPaid(1))];
    assert_eq!(changes(&RULES, &pauses), Some(800_001));
    let at_once = [(500, 100, Executes), (400, 100, Queued)];
    assert_eq!(changes(&RULES, &at_once), Some(1));
    let passed = [(500, 100, Executes), (300, 100, Queued)];
    assert_eq!(
        changes(&RULES, &passed),
        Some(1_800_001),
        "until a quantum ahead"
    );
    let heavier = [(500, 200, Executes), (300, 100, PausesPaid(1))];
    assert_eq!(changes(&RULES, &heavier), Some(1_600_001));
    let far_behind = [(5_000, 100, Executes), (300, 100, Queued)];
    assert_eq!(changes(&RULES, &far_behind), None);
}

#[test]
fn an_entity_that_keeps_pace_with_the_running_one_is_passed_late_or_never() {
    let pauses = (300, 100, PausesFirst);
    let at_bound = (1_300, 100, Executes);
    assert_eq!(changes(&RULES, &[(500, 100, Executes), pauses]), None);
    assert_eq!(changes(&RULES, &[at_bound, pauses]), None);
    let not_ahead = [(300, 100, Executes), pauses];
    assert_eq!(changes(&RULES, &not_ahead), Some(1_000_001));
    // Waiting entities slow it down: it advances by a third of what the running one does.
    let two = [(500, 100, Executes), (9_000, 200, Queued), pauses];
    assert_eq!(changes(&RULES, &two), Some(1_200_001));
    assert_eq!(
        changes(&STOPS, &[(500, 100, Executes), (300, 100, Pauses(9))]),
        Some(800_001)
    );
}

#[test]
fn decisions_change_when_the_running_entity_has_come_near_one_that_waits() {
    // The entity at 3,000 us is admitted 1,000 us earlier.
    let waits = [(500, 100, Executes), (3_000, 100, Queued)];
    assert_eq!(changes(&RULES, &waits), Some(1_500_001));
    let near = [(2_000, 100, Executes), (3_000, 100, Queued)];
    assert_eq!(
        changes(&RULES, &near),
        Some(1_100_001),
        "let in already: passes it next"
    );
    let stops = [(500, 100, Executes), (3_000, 100, Queued)];
    assert_eq!(
        changes(&STOPS, &stops),
        Some(2_600_001),
        "a running one bounds none"
    );
}

#[test]
fn a_running_entity_is_overtaken_by_one_that_waits_a_quantum_behind() {
    let overtaken = |of: &[(u64, u32, Does)]| {
        let running = entity(of[0].0, of[0].1, Executes);
        let level = level(&STOPS, false, of);
        level.overtaken(0, &running, QUANTUM).collect::<Vec<_>>()
    };
    let behind = [(2_500, 100, Executes), (500, 100, Queued)];
    assert_eq!(overtaken(&behind), [1]);
    let nearer = [(2_499, 100, Executes), (500, 100, Queued)];
    assert!(overtaken(&nearer).is_empty());
    let pauses = [(2_500, 100, Executes), (500, 100, PausesFirst)];
    assert!(overtaken(&pauses).is_empty());
    let lighter = [(2_500, 100, Executes), (500, 50, Queued)];
    assert!(overtaken(&lighter).is_empty(), "in service of the lighter");
    assert_eq!(overtaken(&[(4_500, 100, Executes), (500, 50, Queued)]), [1]);
    let two = [
        (4_500, 100, Executes),
        (500, 100, Queued),
        (400, 100, Queued),
    ];
    assert_eq!(
        overtaken(&two),
        [1, 2],
        "another may pay where the first cannot"
    );
}
