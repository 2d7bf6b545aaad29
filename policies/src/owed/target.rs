//! The credit of a tenant with a latency target.
//!
//! In: its part, and the time for which it was resident. Out: whether the slices of tenants without
//! a target are short. A tenant has the short slices only while it was resident for less than its
//! part. So a target gives no tenant more of the engine.

use super::fraction::Fraction;
use super::node::signed;
use turnstile_accounting::Nanos;

/// Largest credit; also that of a new target. SOURCE: simulation `lab corun`.
const CREDIT_MAX: i64 = 20_000_000;
/// Least credit: the bound on residency beyond its part that is remembered.
/// SOURCE: simulation `lab corun`.
const CREDIT_MIN: i64 = -200_000_000;

/// Time by which a tenant was resident for less than its part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credit(i64);

impl Credit {
    pub(crate) const fn new() -> Self {
        Self(CREDIT_MAX)
    }

    /// Advances by `length`, in which the tenant was resident for `resident`.
    pub(crate) fn pass(&mut self, length: Nanos, part: Fraction, resident: Nanos) {
        let credit = self.0.saturating_add(signed(part.of(length)));
        let credit = credit.saturating_sub(signed(resident));
        self.0 = credit.clamp(CREDIT_MIN, CREDIT_MAX);
    }

    /// Whether the slices of tenants without a target are short.
    pub(crate) const fn is_positive(self) -> bool {
        self.0 > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_shortens_slices_while_less_than_the_part_is_used() {
        let (half, interval) = (Fraction::percent(50), Nanos::from_ms(20));
        let mut credit = Credit::new();
        assert!(credit.is_positive());
        (0..100).for_each(|_| credit.pass(interval, half, Nanos::from_ms(1)));
        (0..2).for_each(|_| credit.pass(interval, half, interval));
        assert!(!credit.is_positive(), "20 ms are the most");
        (0..100).for_each(|_| credit.pass(interval, half, interval));
        (0..20).for_each(|_| credit.pass(interval, half, Nanos::ZERO));
        assert!(!credit.is_positive(), "200 ms too much are kept");
        credit.pass(interval, half, Nanos::ZERO);
        assert!(credit.is_positive());
    }
}
