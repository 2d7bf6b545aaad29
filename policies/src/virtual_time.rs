//! Virtual time: service divided by weight, without rounding loss.

use crate::params::Weight;
use core::ops::Add;
use turnstile_accounting::Nanos;

/// A point of virtual time, in 2^-20 ns of service to a tenant of the default weight.
///
/// 128 bits do not overflow; the fraction represents the smallest charge to the largest weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VirtualTime(u128);

/// A stretch of virtual time, in the same unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VirtualSpan(u128);

impl VirtualSpan {
    pub(crate) const ZERO: Self = Self(0);

    /// Advance of entities with `weight` in total while they are served for `service`.
    pub(crate) fn of(service: Nanos, weight: u64) -> Self {
        Self(u128::from(service.0) * PER_NS / u128::from(weight.max(1)))
    }

    pub(crate) fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for VirtualSpan {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl Add<VirtualSpan> for VirtualTime {
    type Output = Self;
    fn add(self, span: VirtualSpan) -> Self {
        Self(self.0 + span.0)
    }
}

const FRACTION_BITS: u32 = 20;

/// Service of one nanosecond times the default weight, in units of virtual time.
const PER_NS: u128 = (Weight::DEFAULT.get() as u128) << FRACTION_BITS;

impl VirtualTime {
    /// The point that is earlier by `span`.
    pub(crate) fn back(self, span: VirtualSpan) -> Self {
        Self(self.0.saturating_sub(span.0))
    }

    /// Engine time in which tenants with `weight` in total advance from here to `later`, rounded
    /// down.
    pub(crate) fn service_until(self, later: Self, weight: u64) -> Nanos {
        let units = later
            .0
            .saturating_sub(self.0)
            .saturating_mul(u128::from(weight));
        Nanos(u64::try_from(units / PER_NS).unwrap_or(u64::MAX))
    }
}

/// A tenant's own virtual time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VirtualClock {
    now: VirtualTime,
    /// Remainder of the division by the weight: virtual time times weight, less than the weight.
    remainder: u128,
}

impl VirtualClock {
    pub(crate) const fn at(now: VirtualTime) -> Self {
        Self { now, remainder: 0 }
    }

    pub(crate) const fn now(self) -> VirtualTime {
        self.now
    }

    /// Charges `service`; over any charges at one weight, no fraction is lost.
    pub(crate) fn charge(&mut self, service: Nanos, weight: u64) {
        let weight = u128::from(weight);
        let units = u128::from(service.0) * PER_NS + self.remainder;
        self.now.0 += units / weight;
        self.remainder = units % weight;
    }

    /// Advances by `span` without engine time.
    pub(crate) fn skip(&mut self, span: VirtualSpan) {
        self.now = self.now + span;
    }

    /// Moves back to `time`, if it is ahead of it.
    pub(crate) fn cap(&mut self, time: VirtualTime) {
        if self.now > time {
            *self = Self::at(time);
        }
    }

    /// Moves forward to `time`; never back.
    pub(crate) fn raise(&mut self, time: VirtualTime) {
        if self.now < time {
            *self = Self::at(time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Many charges equal their sum.
        #[test]
        fn no_time_is_lost_in_division(
            charges in prop::collection::vec(0u64..1 << 40, 1..50), weight in 1u64..=10_000,
        ) {
            let (mut many, mut one) = (VirtualClock::default(), VirtualClock::default());
            charges.iter().for_each(|&ns| many.charge(Nanos(ns), weight));
            one.charge(Nanos(charges.iter().sum()), weight);
            prop_assert_eq!(many, one);
        }
    }

    #[test]
    fn raising_goes_forward_only() {
        let mut clock = VirtualClock::default();
        clock.charge(Nanos(10), 100);
        let there = clock;
        clock.raise(VirtualTime::default());
        assert_eq!(clock, there);
        clock.raise(point(11));
        assert!(clock.now() > there.now());
    }

    fn point(ns: u64) -> VirtualTime {
        VirtualTime::default() + VirtualSpan::of(Nanos(ns), 100)
    }

    #[test]
    fn spans_and_points_are_service_over_weight() {
        let (one, two) = (
            VirtualSpan::of(Nanos(10), 100),
            VirtualSpan::of(Nanos(20), 100),
        );
        assert_eq!(VirtualSpan::of(Nanos(10), 50), two);
        assert_eq!(VirtualSpan::of(Nanos(10), 0), VirtualSpan::of(Nanos(10), 1));
        assert_eq!(one + one, two);
        assert_eq!(two.saturating_sub(one), one);
        assert_eq!(one.saturating_sub(two), VirtualSpan::ZERO);
        assert_eq!(point(5) + one, point(15));
        assert_eq!(point(25).back(two), point(5));
        assert_eq!(point(5).back(two), point(0));
        assert_eq!(point(20).service_until(point(10), 100), Nanos(0));
        let heavy = point(0).service_until(VirtualTime(u128::MAX), 10_000);
        assert_eq!(heavy, Nanos(u64::MAX));
    }

    #[test]
    fn a_clock_skips_and_is_capped() {
        let mut clock = VirtualClock::at(point(10));
        clock.skip(VirtualSpan::of(Nanos(5), 100));
        assert_eq!(clock.now(), point(15));
        clock.cap(point(16));
        assert_eq!(clock.now(), point(15));
        clock.cap(point(12));
        assert_eq!(clock.now(), point(12));
        clock.charge(Nanos(1), 3);
        let with_rest = clock;
        clock.cap(with_rest.now());
        clock.raise(with_rest.now());
        assert_eq!(clock, with_rest, "what the division left over stays");
    }
}
