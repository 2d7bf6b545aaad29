//! Fractions of time as fixed-point numbers: parts, rates and `alone`.
//!
//! With 40 bits a small `alone` still grows in the shortest time between two polls.

use turnstile_accounting::Nanos;

/// Bits of a fraction after the point.
const BITS: u32 = 40;

/// A fraction in units of 2^-40, not negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fraction(u64);

impl Fraction {
    pub(crate) const ZERO: Self = Self(0);
    pub(crate) const ONE: Self = Self(1 << BITS);

    /// `part` of `whole`; zero if `whole` is zero.
    pub(crate) fn ratio(part: u64, whole: u64) -> Self {
        let units = (u128::from(part) << BITS).checked_div(u128::from(whole));
        Self(saturated(units.unwrap_or(0)))
    }

    /// A number of hundredths.
    pub(crate) const fn percent(hundredths: u32) -> Self {
        Self(((hundredths as u64) << BITS) / 100)
    }

    /// This fraction of a length of time.
    pub(crate) fn of(self, length: Nanos) -> Nanos {
        let product = u128::from(length.0) * u128::from(self.0);
        Nanos(saturated(product >> BITS))
    }

    /// This fraction of another.
    pub(crate) fn times(self, other: Self) -> Self {
        let product = u128::from(self.0) * u128::from(other.0);
        Self(saturated(product >> BITS))
    }

    /// This fraction over another; zero counts as the least fraction.
    pub(crate) fn over(self, other: Self) -> Self {
        Self::ratio(self.0, other.0.max(1))
    }

    pub(crate) const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// This fraction less another, or zero.
    pub(crate) const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The fraction that is `step` of the way from this one to `other`.
    pub(crate) fn toward(self, other: Self, step: Self) -> Self {
        if other >= self {
            self.plus(step.times(other.minus(self)))
        } else {
            self.minus(step.times(self.minus(other)))
        }
    }

    /// Time over this fraction, in nanoseconds. Zero counts as the least fraction.
    pub(crate) fn divide(self, time_ns: i64) -> i128 {
        (i128::from(time_ns) << BITS) / i128::from(self.0.max(1))
    }

    /// In parts of a thousand, rounded down.
    pub(crate) fn permille(self) -> u32 {
        let permille = (u128::from(self.0) * 1_000) >> BITS;
        u32::try_from(permille).unwrap_or(u32::MAX)
    }
}

fn saturated(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: Fraction = Fraction::percent(50);

    #[test]
    fn a_fraction_divides_time_and_fractions() {
        assert_eq!(Fraction::ratio(1, 2), HALF);
        assert_eq!(Fraction::ratio(3, 0), Fraction::ZERO);
        assert_eq!(HALF.of(Nanos(7)), Nanos(3));
        assert_eq!(HALF.times(HALF), Fraction::ratio(1, 4));
        assert_eq!(Fraction::ONE.of(Nanos(u64::MAX)), Nanos(u64::MAX));
        assert_eq!(Fraction::ratio(u64::MAX, 1).of(Nanos(9)).0 >> 24, 8);
        assert_eq!(Fraction::ratio(u64::MAX, 1).permille(), u32::MAX);
        assert_eq!(HALF.permille(), 500);
    }

    #[test]
    fn a_step_goes_either_way_and_never_past_its_end() {
        let quarter = Fraction::ratio(1, 4);
        assert_eq!(Fraction::ZERO.toward(Fraction::ONE, quarter), quarter);
        assert_eq!(Fraction::ONE.toward(HALF, HALF), Fraction::ratio(3, 4));
        assert_eq!(HALF.toward(quarter, Fraction::ONE), quarter);
    }

    #[test]
    fn time_over_a_fraction_orders_by_both() {
        assert!(HALF.divide(10) < Fraction::ratio(1, 4).divide(6));
        assert!(HALF.divide(-10) < HALF.divide(-9));
        assert_eq!(HALF.divide(-10), Fraction::ONE.divide(-20));
        assert!(Fraction::ZERO.divide(i64::MAX) > Fraction::ONE.divide(i64::MAX));
    }
}
