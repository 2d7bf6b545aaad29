//! Rate of the link between card and host, estimated from finished copies.

use turnstile_accounting::Nanos;

/// Bytes a second of one direction, from finished copies. No rate is assumed before the first copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkRate {
    bytes: u128,
    took: u128,
}

/// Bytes after which older copies count half. It is small, because the first copies take ten times
/// as long and would make turns as much longer: their pages have not been touched yet.
const MEMORY_BYTES: u128 = 64 << 20;

impl LinkRate {
    /// A copy has ended.
    pub fn observe(&mut self, bytes: u64, took: Nanos) {
        if bytes == 0 || took == Nanos::ZERO {
            return;
        }
        self.bytes += u128::from(bytes);
        self.took += u128::from(took.0);
        if self.bytes > MEMORY_BYTES {
            self.bytes /= 2;
            self.took /= 2;
        }
    }

    /// Bytes a second, once something has been copied.
    pub fn bytes_per_second(&self) -> Option<u64> {
        let rate = (self.bytes * 1_000_000_000).checked_div(self.took)?;
        u64::try_from(rate).ok()
    }

    /// Estimated time to copy `bytes`; zero before the first measurement.
    pub(crate) fn time_for(&self, bytes: u64) -> Nanos {
        let ns = (u128::from(bytes) * self.took).checked_div(self.bytes);
        Nanos(u64::try_from(ns.unwrap_or(0)).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_late() {
        let mut link = LinkRate::default();
        assert_eq!(link.bytes_per_second(), None);
        assert_eq!(link.time_for(1 << 40), Nanos::ZERO);
        link.observe(2 << 20, Nanos::from_us(1_000));
        assert_eq!(link.bytes_per_second(), Some(2_097_152_000));
        assert_eq!(link.time_for(4 << 20), Nanos::from_us(2_000));
        for _ in 0..10_000 {
            link.observe(2 << 20, Nanos::from_us(500));
        }
        let now = link.bytes_per_second().unwrap();
        assert!(now.abs_diff(4_194_304_000) < 1_000_000, "{now}");
    }
}
