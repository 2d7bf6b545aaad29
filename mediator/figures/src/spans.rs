//! Stretches of device time: when a kernel ran, and when it was off the engine in the middle.
//!
//! A launch leaves one span, from its first block's first instruction to its last block's last. Its
//! first thread reads the clock after each step of the work; two readings far apart are a gap, in
//! which the context was off the engine. Measured: a context that the driver switches out stops
//! between two instructions. A gap begins with the step that it interrupted.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

/// A stretch `[begin, end)` of time, in nanoseconds of one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Span {
    /// Its first moment.
    pub begin_ns: u64,
    /// The first moment after it.
    pub end_ns: u64,
}

impl Span {
    /// From `begin_ns` to `end_ns`.
    pub const fn new(begin_ns: u64, end_ns: u64) -> Self {
        Self { begin_ns, end_ns }
    }

    /// Its length; zero if it is reversed.
    pub const fn length_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.begin_ns)
    }

    /// The same stretch on a clock that is ahead by `by_ns`.
    pub(crate) const fn on_a_clock_ahead(&self, by_ns: i64) -> Self {
        Self {
            begin_ns: self.begin_ns.saturating_add_signed(by_ns),
            end_ns: self.end_ns.saturating_add_signed(by_ns),
        }
    }

    /// Initial span of a launch: its blocks take the minimum and the maximum.
    pub const UNTOUCHED: Self = Self::new(u64::MAX, 0);
}

/// Sum of the lengths.
pub fn total_ns(spans: &[Span]) -> u64 {
    spans.iter().map(Span::length_ns).sum()
}

/// One reading of both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// The device's clock.
    pub device_ns: u64,
    /// The host's wall clock at that moment.
    pub wall_ns: u64,
    /// Largest error between the two.
    pub error_ns: u64,
}

/// The device's clock against the wall clock, from readings at the beginning and the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    first: Reading,
    last: Reading,
}

impl Clock {
    /// A straight line through both readings; equal readings stand for clocks of one rate.
    pub const fn new(first: Reading, last: Reading) -> Self {
        Self { first, last }
    }

    /// Converts a moment of the device's clock to the wall clock.
    pub fn wall_ns(&self, device_ns: u64) -> u64 {
        let since = i128::from(device_ns) - i128::from(self.first.device_ns);
        let device = i128::from(self.last.device_ns) - i128::from(self.first.device_ns);
        let wall = i128::from(self.last.wall_ns) - i128::from(self.first.wall_ns);
        let passed = if device > 0 {
            since * wall / device
        } else {
            since
        };
        // CAST: clamped to what fits; a moment before the epoch is none that a device shows.
        (i128::from(self.first.wall_ns) + passed).clamp(0, i128::from(u64::MAX)) as u64
    }

    /// The same stretch on the wall clock.
    pub fn wall(&self, span: Span) -> Span {
        Span::new(self.wall_ns(span.begin_ns), self.wall_ns(span.end_ns))
    }

    /// Wall clock minus device clock at the first reading.
    pub fn offset_ns(&self) -> i128 {
        i128::from(self.first.wall_ns) - i128::from(self.first.device_ns)
    }

    /// How much faster the wall clock ran, in parts per billion.
    pub fn drift_ppb(&self) -> f64 {
        let device = self.last.device_ns.saturating_sub(self.first.device_ns);
        let wall = self.last.wall_ns.saturating_sub(self.first.wall_ns);
        if device == 0 {
            return 0.0;
        }
        (wall as f64 - device as f64) / device as f64 * 1e9
    }
}

/// Stretches in which kernels executed: launches without the gaps in them.
///
/// `launches` and `gaps` are in order of time, as one stream leaves them; launches that never ran
/// ([`Span::UNTOUCHED`]) are left out. A gap that begins with a step of work leaves that step:
/// `step_ns` of it are executed.
pub fn executed(launches: &[Span], gaps: &[Span], step_ns: u64) -> Vec<Span> {
    let mut pieces = Vec::with_capacity(launches.len() + gaps.len());
    let mut gaps = gaps.iter().peekable();
    let mut done = 0;
    let mut add = |begin: u64, end: u64| {
        if begin < end {
            pieces.push(Span::new(begin, end));
        }
    };
    for launch in launches {
        if launch.length_ns() == 0 {
            continue;
        }
        // Time stamps of two launches may overlap by a step of the clock.
        let mut from = launch.begin_ns.max(done);
        while gaps.next_if(|gap| gap.end_ns <= from).is_some() {}
        while let Some(gap) = gaps.next_if(|gap| gap.begin_ns < launch.end_ns) {
            let off = gap.begin_ns.saturating_add(step_ns).min(gap.end_ns);
            add(from, off.min(launch.end_ns));
            from = gap.end_ns.max(from);
        }
        add(from, launch.end_ns);
        done = done.max(launch.end_ns).max(from);
    }
    pieces
}

/// Stretches in which the engine worked for the context: what it executed, and up to `launch_ns`
/// before the first instruction of each launch, in which the engine processes it.
pub fn worked(executed: &[Span], launches: &[Span], launch_ns: u64) -> Vec<Span> {
    let begins: HashSet<u64> = launches.iter().map(|launch| launch.begin_ns).collect();
    let mut done = 0;
    let piece = |span: &Span| {
        let mut begin_ns = span.begin_ns;
        if begins.contains(&begin_ns) {
            begin_ns = begin_ns.saturating_sub(launch_ns).max(done);
        }
        done = span.end_ns;
        Span::new(begin_ns, span.end_ns)
    };
    executed.iter().map(piece).collect()
}

/// Stretches in which the context had the engine, by its own timestamps: what it executed, and the
/// pauses between that are shorter than `pause_ns`. In a pause shorter than two context switches no
/// other context can have run.
pub fn occupied(executed: &[Span], pause_ns: u64) -> Vec<Span> {
    let mut merged: Vec<Span> = Vec::new();
    for span in executed {
        match merged.last_mut() {
            Some(last) if span.begin_ns < last.end_ns.saturating_add(pause_ns) => {
                last.end_ns = last.end_ns.max(span.end_ns);
            }
            _ => merged.push(*span),
        }
    }
    merged
}

/// Time of `spans` in each of `count` buckets of `width_ns` from `from_ns` on.
pub fn buckets(spans: &[Span], from_ns: u64, width_ns: u64, count: usize) -> Vec<u64> {
    let mut filled = vec![0; count];
    for span in spans {
        let mut at = span.begin_ns.max(from_ns);
        while at < span.end_ns {
            // CAST: a place in a Vec, or beyond it.
            let index = ((at - from_ns) / width_ns) as usize;
            if index >= count {
                break;
            }
            let end = from_ns + (index as u64 + 1) * width_ns;
            filled[index] += span.end_ns.min(end) - at;
            at = end;
        }
    }
    filled
}

/// Sums of each `times` buckets; what is left over at the end is left out.
pub(crate) fn coarser(buckets: &[u64], times: usize) -> Vec<u64> {
    let sum = |group: &[u64]| group.iter().sum();
    buckets.chunks_exact(times.max(1)).map(sum).collect()
}

/// Sum of buckets of `width_ns`, the first from `from_ns` on, over a window; a bucket that is cut
/// counts in proportion. `None` if the window is not within the buckets.
pub fn within(buckets: &[u64], from_ns: u64, width_ns: u64, window: Span) -> Option<u64> {
    let end_ns = from_ns + width_ns * buckets.len() as u64;
    if window.begin_ns < from_ns || window.end_ns > end_ns {
        return None;
    }
    let until = |moment_ns: u64| -> u64 {
        let passed = moment_ns - from_ns;
        // CAST: a place in the slice, or its end.
        let whole = (passed / width_ns) as usize;
        let part = buckets.get(whole).map_or(0, |&bucket| {
            // CAST: at most the bucket's own width.
            (u128::from(bucket) * u128::from(passed % width_ns) / u128::from(width_ns)) as u64
        });
        buckets[..whole].iter().sum::<u64>() + part
    };
    Some(until(window.end_ns).saturating_sub(until(window.begin_ns)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(begin: u64, end: u64) -> Span {
        Span::new(begin, end)
    }

    #[test]
    fn a_gap_is_not_executed_but_for_its_step() {
        let launches = [span(100, 200), Span::UNTOUCHED, span(300, 500)];
        let gaps = [span(320, 400), span(450, 460)];
        assert_eq!(
            executed(&launches, &gaps, 5),
            [
                span(100, 200),
                span(300, 325),
                span(400, 455),
                span(460, 500)
            ]
        );
    }

    #[test]
    fn a_gap_of_no_launch_takes_nothing() {
        let launches = [span(100, 200)];
        assert_eq!(executed(&launches, &[span(10, 90)], 5), launches);
        assert_eq!(executed(&launches, &[span(200, 290)], 5), launches);
        assert_eq!(executed(&[], &[span(1, 2)], 5), []);
    }

    #[test]
    fn short_pauses_are_occupied() {
        let pieces = [span(0, 10), span(15, 20), span(60, 70)];
        assert_eq!(occupied(&pieces, 20), [span(0, 20), span(60, 70)]);
        assert_eq!(occupied(&pieces, 0), pieces);
    }

    #[test]
    fn a_launch_is_processed_before_its_first_instruction_and_a_gap_is_not() {
        let launches = [span(100, 200), span(201, 300), span(400, 500)];
        let pieces = executed(&launches, &[span(420, 450)], 0);
        let expected = [
            span(98, 200),
            span(200, 300),
            span(398, 420),
            span(450, 500),
        ];
        assert_eq!(worked(&pieces, &launches, 2), expected);
    }

    #[test]
    fn a_span_is_cut_at_the_edges_of_buckets() {
        assert_eq!(
            buckets(&[span(5, 35), span(38, 90)], 10, 10, 4),
            [10, 10, 7, 10]
        );
        assert_eq!(buckets(&[], 10, 10, 2), [0, 0]);
    }

    #[test]
    fn bucket_time_is_cut_to_a_span_and_merged_into_coarser_buckets() {
        let filled = [10, 4, 0, 10];
        let of = |begin, end| within(&filled, 100, 10, span(begin, end));
        assert_eq!(of(100, 140), Some(24));
        assert_eq!(of(105, 115), Some(7));
        assert_eq!(of(120, 130), Some(0));
        assert_eq!((of(99, 110), of(100, 141)), (None, None));
        assert_eq!(coarser(&filled, 2), [14, 10]);
        assert_eq!(coarser(&filled, 3), [14]);
    }

    #[test]
    fn a_clock_that_drifts_is_followed() {
        let reading = |device_ns, wall_ns| Reading {
            device_ns,
            wall_ns,
            error_ns: 0,
        };
        let clock = Clock::new(reading(1_000, 50_000), reading(2_000, 51_001));
        assert_eq!(clock.wall_ns(1_000), 50_000);
        assert_eq!(clock.wall_ns(2_000), 51_001);
        assert_eq!(clock.wall_ns(0), 48_999);
        assert_eq!(clock.offset_ns(), 49_000);
        assert!((clock.drift_ppb() - 1e6).abs() < 1.0);
        let still = Clock::new(reading(1_000, 50_000), reading(1_000, 50_000));
        assert_eq!(still.wall_ns(1_500), 50_500);
    }

    fn in_order(lengths: Vec<(u64, u64)>) -> Vec<Span> {
        let mut at = 0;
        let place = |(pause, length)| {
            let begin = at + pause;
            at = begin + length;
            span(begin, at)
        };
        lengths.into_iter().map(place).collect()
    }

    proptest! {
        #[test]
        fn nothing_is_executed_twice_or_outside_its_launch(
            launches in prop::collection::vec((0u64..50, 0u64..200), 0..20),
            gaps in prop::collection::vec((0u64..80, 1u64..60), 0..20),
            step in 0u64..20,
        ) {
            let (launches, gaps) = (in_order(launches), in_order(gaps));
            let pieces = executed(&launches, &gaps, step);
            prop_assert!(pieces.windows(2).all(|pair| pair[0].end_ns <= pair[1].begin_ns));
            for piece in &pieces {
                prop_assert!(launches.iter().any(|l| l.begin_ns <= piece.begin_ns && piece.end_ns <= l.end_ns));
                let off = |gap: &Span| {
                    let begin = piece.begin_ns.max(gap.begin_ns + step);
                    begin < piece.end_ns.min(gap.end_ns)
                };
                prop_assert!(!gaps.iter().any(off));
            }
            let none = executed(&launches, &[], step);
            prop_assert_eq!(total_ns(&none), total_ns(&launches));
        }

        #[test]
        fn buckets_lose_nothing(spans in prop::collection::vec((0u64..50, 0u64..200), 0..20), width in 1u64..100) {
            let spans = in_order(spans);
            let end = spans.last().map_or(0, |last| last.end_ns);
            let filled = buckets(&spans, 0, width, (end / width + 1) as usize);
            prop_assert_eq!(filled.iter().sum::<u64>(), total_ns(&spans));
            prop_assert!(filled.iter().all(|&bucket| bucket <= width));
        }
    }
}
