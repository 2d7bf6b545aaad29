//! Durations of repeated events: counts by upper bound, as Prometheus' histograms have them.

use turnstile_accounting::Nanos;

/// Upper bounds, from 1 us to 1 s: a switch takes microseconds, a turn comes within milliseconds.
pub const BOUNDS: [Nanos; 13] = [
    Nanos::from_us(1),
    Nanos::from_us(5),
    Nanos::from_us(10),
    Nanos::from_us(50),
    Nanos::from_us(100),
    Nanos::from_us(500),
    Nanos::from_ms(1),
    Nanos::from_us(2_500),
    Nanos::from_ms(5),
    Nanos::from_ms(10),
    Nanos::from_ms(50),
    Nanos::from_ms(250),
    Nanos::from_ms(1_000),
];

/// Lengths that were observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// By the first of [`BOUNDS`] that is not below them.
    counts: [u64; BOUNDS.len()],
    /// Longer than all bounds.
    longer: u64,
    /// All together.
    sum: Nanos,
}

impl Histogram {
    /// Counts one.
    pub fn observe(&mut self, length: Nanos) {
        match BOUNDS.iter().position(|bound| length <= *bound) {
            Some(index) => self.counts[index] += 1,
            None => self.longer += 1,
        }
        self.sum += length;
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum::<u64>() + self.longer
    }

    /// All lengths together.
    pub const fn sum(&self) -> Nanos {
        self.sum
    }

    /// For each bound, how many were no longer.
    pub fn cumulative(&self) -> impl Iterator<Item = (Nanos, u64)> + '_ {
        let counts = self.counts.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        BOUNDS.into_iter().zip(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_counted_by_bound_and_none_is_lost() {
        let mut histogram = Histogram::default();
        for length in [
            Nanos(1),
            Nanos::from_us(1),
            Nanos(1_001),
            Nanos::from_ms(2_000),
        ] {
            histogram.observe(length);
        }
        let buckets: Vec<_> = histogram.cumulative().collect();
        assert_eq!(buckets[0], (Nanos::from_us(1), 2));
        assert_eq!(buckets[1], (Nanos::from_us(5), 3));
        assert_eq!(buckets.last(), Some(&(Nanos::from_ms(1_000), 3)));
        assert_eq!(histogram.count(), 4);
        assert_eq!(histogram.sum(), Nanos(2_000_002_002));
    }
}
