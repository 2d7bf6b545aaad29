//! Share errors over windows of buckets.
//!
//! A share is a part of what all tenants received, or were entitled to of the same sum
//! ([`super::entitlement`]). Switching and idle time are not counted as unfairness; another figure
//! of a cell is how much of it there is.

use serde::{Deserialize, Serialize};
use turnstile_accounting::Nanos;
use turnstile_accounting::share::max_share_error_points;

use super::spans::Span;
use super::{BUCKET_NS, BUCKETS_PER_SECOND};

/// The window with the largest error.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Worst {
    /// Largest difference of a tenant's share from its entitlement, in percentage points.
    pub points: f64,
    /// The window's first bucket.
    pub bucket: usize,
}

/// Sums of the first `n` buckets, for every `n`.
#[derive(Clone, Debug)]
struct Sums(Vec<u64>);

impl Sums {
    fn of(buckets: &[u64]) -> Self {
        let mut sum = 0;
        let mut sums = vec![0];
        sums.extend(buckets.iter().map(|bucket| {
            sum += bucket;
            sum
        }));
        Self(sums)
    }

    fn between(&self, from: usize, to: usize) -> Nanos {
        Nanos(self.0[to] - self.0[from])
    }
}

/// The worst window among those of `width` buckets that begin at `first`, `first + step`, ... and
/// end within the run; `None` if there is no such window. Both sides are indexed
/// `[tenant][bucket]`, with the same tenants in the same order. Windows in which no tenant is
/// entitled to anything are left out.
pub fn worst(
    received: &[Vec<u64>],
    entitled: &[Vec<u64>],
    width: usize,
    first: usize,
    step: usize,
) -> Option<Worst> {
    worst_of(received, entitled, width, first, step, |_| true)
}

/// As [`worst`], over the windows for which `counts` holds, given their first bucket.
pub fn worst_of(
    received: &[Vec<u64>],
    entitled: &[Vec<u64>],
    width: usize,
    first: usize,
    step: usize,
    counts: impl Fn(usize) -> bool,
) -> Option<Worst> {
    let count = received
        .iter()
        .chain(entitled)
        .map(Vec::len)
        .min()
        .unwrap_or(0);
    let sums = |side: &[Vec<u64>]| -> Vec<Sums> {
        side.iter()
            .map(|buckets| Sums::of(&buckets[..count]))
            .collect()
    };
    let (received, entitled) = (sums(received), sums(entitled));
    (first..)
        .step_by(step.max(1))
        .take_while(|from| from + width <= count)
        .filter(|from| counts(*from))
        .filter_map(|from| {
            let of = |side: &[Sums]| -> Vec<Nanos> {
                side.iter()
                    .map(|sums| sums.between(from, from + width))
                    .collect()
            };
            let due = of(&entitled);
            (due.iter().any(|due| due.0 > 0)).then(|| Worst {
                points: max_share_error_points(&of(&received), &due),
                bucket: from,
            })
        })
        .max_by(|a, b| a.points.total_cmp(&b.points))
}

/// Whether none of `pauses` is in the window of one second from `begin_ns` or in the second before
/// it. After a pause, its tenant is given what it lacks, which moves the shares of a window that
/// follows.
pub(crate) fn is_unpaused(pauses: &[Span], begin_ns: u64) -> bool {
    const SECOND_NS: u64 = BUCKET_NS * BUCKETS_PER_SECOND as u64;
    let is_near =
        |pause: &Span| pause.begin_ns < begin_ns + SECOND_NS && begin_ns < pause.end_ns + SECOND_NS;
    !pauses.iter().any(is_near)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_sliding_window_sees_what_an_aligned_one_misses() {
        // One tenant has the second half of one window and the first half of the next.
        let mut mine = vec![0; 300];
        mine[150..250].fill(10);
        let theirs: Vec<u64> = mine.iter().map(|mine| 10 - mine).collect();
        let (received, even) = ([mine, theirs], [vec![5; 300], vec![5; 300]]);
        let aligned = worst(&received, &even, 100, 100, 100).unwrap();
        assert_eq!(aligned.points, 0.0);
        let sliding = worst(&received, &even, 100, 100, 1).unwrap();
        assert_eq!((sliding.points, sliding.bucket), (50.0, 150));
    }

    #[test]
    fn without_a_whole_window_there_is_no_error() {
        let side = [vec![1; 199]];
        assert_eq!(worst(&side, &side, 100, 100, 1), None);
        assert_eq!(worst(&[], &[], 100, 100, 1), None);
        assert_eq!(
            worst(&[vec![3; 300]], &[vec![0; 300]], 100, 100, 1),
            None,
            "nobody wants any"
        );
    }

    proptest! {
        #[test]
        fn sliding_is_never_better_than_aligned(mine in prop::collection::vec(0u64..=10, 30..60)) {
            let theirs: Vec<u64> = mine.iter().map(|mine| 10 - mine).collect();
            let even = vec![vec![5; mine.len()]; 2];
            let received = [mine, theirs];
            let sliding = worst(&received, &even, 10, 10, 1).unwrap();
            let aligned = worst(&received, &even, 10, 10, 10).unwrap();
            prop_assert!(sliding.points >= aligned.points);
            prop_assert!((0.0..=50.0).contains(&sliding.points));
        }
    }
}
