//! Time slices: longer for larger parts, short beside a tenant with credit for its latency target,
//! shortest for a tenant that keeps the host unit while it waits.

use super::fraction::Fraction;
use turnstile_accounting::Nanos;

/// Slice of the least part: the hardware's own. SOURCE: simulation `lab corun`.
pub(crate) const SLICE_MIN: Nanos = Nanos::from_us(2_048);
/// Longest slice. SOURCE: simulation `lab corun`.
const SLICE_MAX: Nanos = Nanos::from_ms(16);
/// Slice beside a tenant with a latency target that has credit. SOURCE: simulation `lab corun`.
const SLICE_SHORT: Nanos = Nanos::from_us(250);

/// Slice of a tenant that keeps the host unit while it waits: its neighbour works 0.96 to 1.00 of
/// alone. SOURCE: measured on H100 and H200 with slices of 20 to 2,048 us; 0.97 with 20.
const SLICE_BLOCKING: Nanos = Nanos::from_us(20);

/// What bounds a slice, whatever the tenant's part.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bounds {
    /// The tenant keeps the host unit while it waits.
    pub(crate) blocks: bool,
    /// A neighbour has credit for its latency target.
    pub(crate) beside_target: bool,
}

/// The slice of a tenant; `least` is the least part of a live tenant.
pub(crate) fn slice(part: Fraction, least: Fraction, bounds: Bounds) -> Nanos {
    if bounds.blocks {
        return SLICE_BLOCKING;
    }
    if bounds.beside_target {
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
        let none = Bounds::default();
        assert_eq!(slice(part(50), part(50), none), SLICE_MIN);
        assert_eq!(slice(part(25), part(50), none), SLICE_MIN);
        assert_eq!(slice(part(50), part(25), none).0 / 1_000, 4_096);
        assert_eq!(slice(part(90), part(1), none), SLICE_MAX);
        assert_eq!(slice(part(90), Fraction::ZERO, none), SLICE_MAX);
        let beside_target = true;
        let short = Bounds {
            beside_target,
            ..none
        };
        assert_eq!(slice(part(90), part(1), short), SLICE_SHORT);
        let blocks = true;
        assert_eq!(
            slice(part(90), part(1), Bounds { blocks, ..short }),
            SLICE_BLOCKING
        );
    }
}
