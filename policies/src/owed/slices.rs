//! Time slices: longer for larger parts, short beside a tenant with credit for its latency target.

use super::fraction::Fraction;
use turnstile_accounting::Nanos;

/// Slice of the least part: the hardware's own. SOURCE: simulation `lab corun`.
pub(crate) const SLICE_MIN: Nanos = Nanos::from_us(2_048);
/// Longest slice. SOURCE: simulation `lab corun`.
const SLICE_MAX: Nanos = Nanos::from_ms(16);
/// Slice beside a tenant with a latency target that has credit. SOURCE: simulation `lab corun`.
const SLICE_SHORT: Nanos = Nanos::from_us(250);

/// The slice of a tenant; `least` is the least part of a live tenant.
pub(crate) fn slice(part: Fraction, least: Fraction, beside_target: bool) -> Nanos {
    if beside_target {
        return SLICE_SHORT;
    }
    let by_part = part.over(least).of(SLICE_MIN);
    by_part.clamp(SLICE_MIN, SLICE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_by_part_within_their_bounds() {
        let part = Fraction::percent;
        assert_eq!(slice(part(50), part(50), false), SLICE_MIN);
        assert_eq!(slice(part(25), part(50), false), SLICE_MIN);
        assert_eq!(slice(part(50), part(25), false).0 / 1_000, 4_096);
        assert_eq!(slice(part(90), part(1), false), SLICE_MAX);
        assert_eq!(slice(part(90), Fraction::ZERO, false), SLICE_MAX);
        assert_eq!(slice(part(90), part(1), true), SLICE_SHORT);
    }
}
