//! What the rollup holds at most: entries that wait, tenants of a window, tenants that left.

use super::*;

/// Periods on a calendar that stands still, so that no window ends by itself.
struct Bench {
    rollup: Rollup,
    metered: Metered,
    next: u64,
}

impl Bench {
    fn new() -> Self {
        Self {
            rollup: Rollup::new(config(1), None).unwrap(),
            metered: EVENTS.metered(),
            next: 0,
        }
    }

    /// A period in which bytes were copied for this many tenants.
    fn period(&mut self, tenants: usize, standings: &[Standing<'_>]) {
        let mut usage = self.metered.usage(self.next);
        let crowd = (1_000..).take(tenants);
        usage.copied = Some(crowd.map(|tenant| (TenantId(tenant), 1)).collect());
        let end = label(0);
        self.rollup.period(&[&usage], end, standings).unwrap();
        self.next += 1;
    }

    /// Lets this many entries wait: each weight ends the window of the one before.
    fn fill(&mut self, entries: usize) {
        let mut weight = 100;
        while self.rollup.ready.len() < entries {
            weight += 1;
            let own = Standing {
                weight,
                ..standing(1)
            };
            for _ in 0..=SPLIT_MIN.0 / EVENTS.period_ns.0 {
                self.period(0, &[own]);
            }
        }
    }

    fn waiting(&self) -> usize {
        self.rollup.ready.len()
    }
}

/// Causes of gaps.
fn gaps(entries: &[Entry]) -> Vec<GapCause> {
    let cause = |entry: &Entry| match entry.body {
        Body::Gap { cause } => Some(cause),
        Body::Window { .. } => None,
    };
    entries.iter().filter_map(cause).collect()
}

#[test]
fn window_of_too_many_tenants_is_closed_early_or_given_up_where_none_is_written() {
    let mut bench = Bench::new();
    // Three tenants of the engines are in the window too.
    let most = TENANTS_MAX - EVENTS.tenants as usize;
    bench.period(most, &[standing(1)]);
    assert_eq!(bench.waiting(), 0, "the most that a window may have");
    bench.fill(READY_MAX - 1);
    bench.period(most + 1, &[standing(1), standing(2)]);
    assert_eq!(bench.waiting(), READY_MAX);
    assert_eq!(bench.rollup.seats.len(), 2);
    bench.period(most + 1, &[standing(1)]);
    assert_eq!(bench.waiting(), READY_MAX);
    assert_eq!(
        bench.rollup.draft(),
        None,
        "nothing is known of its tenants"
    );
    let seats: Vec<_> = bench.rollup.seats.keys().copied().collect();
    assert_eq!(seats, [TenantId(1)], "one that left is forgotten at once");
    let mut entries = Vec::new();
    bench.rollup.finish(&mut entries);
    assert_eq!(gaps(&entries), [GapCause::Overflow]);
    sound(&entries);
}

/// A change of a weight, missed time and a silent GPU end a window while there is room.
#[test]
fn no_window_ends_while_as_many_entries_wait_as_may() {
    type End = fn(&mut Bench);
    let ends: [(usize, End); 3] = [
        (1, |bench| {
            // Long enough to end with the old weight.
            for _ in 0..SPLIT_MIN.0 / EVENTS.period_ns.0 {
                bench.period(0, &[standing(1)]);
            }
            let weight = 300;
            let other = Standing {
                weight,
                ..standing(1)
            };
            bench.period(0, &[other]);
        }),
        (2, |bench| {
            bench.period(0, &[standing(1)]);
            bench.next += 500;
            bench.period(0, &[standing(1)]);
        }),
        (2, |bench| {
            bench.period(0, &[standing(1)]);
            let to = Moment((bench.next + 500) * EVENTS.period_ns.0);
            bench.rollup.silent(to, label(0), false);
        }),
    ];
    for (adds, end) in ends {
        let mut bench = Bench::new();
        bench.period(0, &[standing(1)]);
        end(&mut bench);
        assert_eq!(bench.waiting(), adds);
        let mut bench = Bench::new();
        bench.fill(READY_MAX);
        end(&mut bench);
        assert_eq!(bench.waiting(), READY_MAX);
        let mut entries = Vec::new();
        bench.rollup.finish(&mut entries);
        assert_eq!(sound(&entries).broken, 0);
    }
}

#[test]
fn tenant_that_left_keeps_its_name_for_two_windows() {
    let mut bench = Bench::new();
    bench.period(0, &[standing(1), standing(2)]);
    let seats = |bench: &Bench| bench.rollup.seats.len();
    bench.period(TENANTS_MAX + 1, &[standing(2)]);
    for left in [2, 2, 1, 1] {
        assert_eq!(seats(&bench), left);
        bench.period(TENANTS_MAX + 1, &[standing(2)]);
    }
    // Back again: as if it had not been here before.
    bench.period(0, &[standing(1), standing(2)]);
    assert_eq!(seats(&bench), 2);
}

#[test]
fn entries_are_due_when_the_window_is_over_or_one_waits() {
    let (mut rollup, mut entries) = (Rollup::new(config(1), None).unwrap(), Vec::new());
    let mut metered = EVENTS.metered();
    assert!(!rollup.due());
    for period in 0..400 {
        let usage = metered.usage(period);
        rollup.period(&[&usage], label(period), &[]).unwrap();
        let due = rollup.due();
        let before = entries.len();
        rollup.take(&mut entries);
        assert_eq!(due, entries.len() > before);
        assert!(!rollup.due());
    }
    assert!(entries.len() >= 3);
    rollup.silent(Moment(500 * EVENTS.period_ns.0), label(499), true);
    assert!(rollup.due(), "a gap waits, and no window is open");
}
