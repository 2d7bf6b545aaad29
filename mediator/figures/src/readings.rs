//! Cumulative service of tenants, read at uneven moments and cut into buckets.

use turnstile_accounting::{Moment, Nanos};

use super::BUCKET_NS;

/// Sums of what each tenant received, from one reading after the other.
#[derive(Clone, Debug)]
pub struct Readings {
    begin: Moment,
    /// Moment of the last reading; its sums follow.
    at: Moment,
    sums: Vec<Nanos>,
    /// Of the bucket under way.
    part: Vec<u64>,
    /// `[tenant][bucket]`.
    buckets: Vec<Vec<u64>>,
}

impl Readings {
    /// Starts with a first reading; buckets begin at its moment.
    pub fn beginning(at: Moment, sums: Vec<Nanos>) -> Self {
        Self {
            begin: at,
            at,
            part: vec![0; sums.len()],
            buckets: vec![Vec::new(); sums.len()],
            sums,
        }
    }

    /// Adds a reading; one that is not later than the last is left out. Service between two
    /// readings is spread evenly over that time.
    pub fn read(&mut self, at: Moment, sums: &[Nanos]) {
        let whole = at.since(self.at).0;
        if whole == 0 {
            return;
        }
        let more: Vec<u64> = std::iter::zip(sums, &self.sums)
            .map(|(now, before)| now.saturating_sub(*before).0)
            .collect();
        let mut assigned = vec![0; more.len()];
        let mut from = self.at;
        while from < at {
            let bucket = from.since(self.begin).0 / BUCKET_NS + 1;
            let end = self.begin + Nanos(bucket * BUCKET_NS);
            let to = end.min(at);
            let passed = to.since(self.at).0;
            for ((part, more), assigned) in self.part.iter_mut().zip(&more).zip(&mut assigned) {
                // CAST: no more than `more`.
                let until = (u128::from(*more) * u128::from(passed) / u128::from(whole)) as u64;
                *part += until - std::mem::replace(assigned, until);
            }
            if to == end {
                for (part, buckets) in self.part.iter_mut().zip(&mut self.buckets) {
                    buckets.push(std::mem::take(part));
                }
            }
            from = to;
        }
        self.at = at;
        self.sums.copy_from_slice(sums);
    }

    /// What each tenant received in each whole bucket, `[tenant][bucket]`.
    pub fn buckets(&self) -> &[Vec<u64>] {
        &self.buckets
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn time_in_a_shared_bucket_is_split_between_its_tenants() {
        let mut readings = Readings::beginning(Moment(7), vec![Nanos(100), Nanos(0)]);
        let at = |ms: u64| Moment(7 + ms * MS);
        readings.read(at(25), &[Nanos(100 + 25 * MS), Nanos(0)]);
        readings.read(at(25), &[Nanos(1), Nanos(1)]);
        readings.read(at(40), &[Nanos(100 + 25 * MS), Nanos(15 * MS)]);
        let ms = |bucket: &u64| bucket / MS;
        let of =
            |tenant: usize| -> Vec<u64> { readings.buckets()[tenant].iter().map(ms).collect() };
        assert_eq!(of(0), [10, 10, 5, 0]);
        assert_eq!(of(1), [0, 0, 5, 10]);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_made(steps in proptest::collection::vec((0u64..50 * MS, 0u64..50 * MS), 1..60)) {
            let mut readings = Readings::beginning(Moment(3), vec![Nanos(0)]);
            let (mut at, mut sum) = (3, 0);
            for (passed, more) in steps {
                at += passed;
                // A reading at the moment of the last is left out, so it adds nothing here.
                sum += if passed == 0 { 0 } else { more };
                readings.read(Moment(at), &[Nanos(sum)]);
            }
            let total: u64 = readings.buckets()[0].iter().sum();
            prop_assert_eq!(total + readings.part[0], sum);
            prop_assert_eq!(readings.buckets()[0].len() as u64, (at - 3) / BUCKET_NS);
        }
    }
}
