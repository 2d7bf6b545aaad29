//! Busy counter: for how long the compute engine or any copy engine has worked.
//!
//! One of 16 counters of the power unit, as the firmware has set it. Copies count as work: while
//! they run, readings of the engine status divide its time. 1.1 us a reading.
//!
//! SOURCE: places as in nvgpu's public header `hw_pwr_ga10b.h`; measured on H100 and H200
//! (580.159.04): it agrees with the loads' own time stamps to 0.1 %.
//!
//! Fallback, where the self-test fails: *resident* time is charged.

use turnstile_accounting::{Moment, Nanos};

use super::page::{Bar, Page, RegistersError};

/// The engines of which a busy signal counts. Bit 0: the compute engine.
const MASK: u32 = 0x10_be40;
/// Bits 1:0: when the counter counts.
const CONTROL: u32 = 0x10_bfc0;
/// The count, in its lower 31 bits; the highest one is not part of it.
const COUNT: u32 = 0x10_bf80;
/// The control's value for "while busy".
const WHILE_BUSY: u32 = 2;
/// The count goes round at this value, each 3.98 s of work.
const MODULUS: u64 = 1 << 31;
/// Its rate. SOURCE: measured: 540.003 and 539.967 MHz by the wall clock.
const TICKS_PER_US: u64 = 540;
/// How much more than the time that passed may have been counted: the two clocks, and a reading
/// that was late.
const EXCESS: Nanos = Nanos::from_us(20);

/// The counter of a GPU.
#[derive(Debug)]
pub(crate) struct BusyCounter {
    page: Page,
}

impl BusyCounter {
    /// Maps it, and tests that it counts what it should.
    ///
    /// # Errors
    /// The driver's refusal, or the self-test's.
    pub(crate) fn map(bar: &Bar<'_>) -> Result<Self, RegistersError> {
        let page = bar.page(COUNT)?;
        self_test(page.read(MASK), page.read(CONTROL)).map_err(RegistersError::Unlike)?;
        if page.read(COUNT).is_none() {
            return Err(RegistersError::Unlike("the busy counter may not be read"));
        }
        Ok(Self { page })
    }

    /// The word of its setting, which does not change.
    pub(crate) fn setting(&self) -> Option<u32> {
        self.page.word(CONTROL)
    }

    /// The count; none if it may not be read.
    pub(crate) fn read(&self) -> Option<u32> {
        // A count may look like a refusal: only a refusal stays.
        self.page.read(COUNT).or_else(|| self.page.read(COUNT))
    }
}

/// Whether mask and control are those of a counter that counts while the compute engine works.
fn self_test(mask: Option<u32>, control: Option<u32>) -> Result<(), &'static str> {
    match (mask, control) {
        (None, _) | (_, None) => Err("the busy counter's settings may not be read"),
        (Some(mask), _) if mask & 1 == 0 => Err("the busy counter leaves the compute engine out"),
        (_, Some(control)) if control & 3 != WHILE_BUSY => {
            Err("the busy counter does not count while busy")
        }
        _ => Ok(()),
    }
}

/// The most that can be counted while so much time passes.
fn most(passed: Nanos) -> Nanos {
    passed + Nanos(passed.0 / 1_000) + EXCESS
}

/// Readings of the counter, one after another.
#[derive(Clone, Copy, Debug, Default)]
pub struct BusyTime {
    last: Option<(Moment, u32)>,
}

impl BusyTime {
    /// For how long the engines worked since the reading before; by the moments of the readings it
    /// may be a little more than the time that passed. None for the first reading, and
    /// where the count does not fit the time that passed: it was reset, or went round unseen.
    pub fn take(&mut self, at: Moment, count: u32) -> Option<Nanos> {
        // CAST: a modulus.
        let count = count & (MODULUS as u32 - 1);
        let (before, from) = self.last.replace((at, count))?;
        let ticks = (u64::from(count) + MODULUS - u64::from(from)) % MODULUS;
        let worked = Nanos(ticks * 1_000 / TICKS_PER_US);
        let passed = at.since(before);
        let unseen = passed.0 >= MODULUS * 1_000 / TICKS_PER_US;
        (worked <= most(passed) && !unseen).then_some(worked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const US: u64 = 1_000;

    #[test]
    fn settings_of_another_firmware_fail_the_self_test() {
        // SOURCE: H100 and H200.
        assert_eq!(self_test(Some(0x0038_0001), Some(2)), Ok(()));
        assert!(self_test(Some(0x0038_0000), Some(2)).is_err());
        assert!(self_test(Some(0x0038_0001), Some(3)).is_err());
        assert!(self_test(None, Some(2)).is_err());
        assert!(self_test(Some(1), None).is_err());
    }

    #[test]
    fn a_count_that_goes_round_goes_on() {
        let mut busy = BusyTime::default();
        let near = MODULUS as u32 - 540;
        assert_eq!(busy.take(Moment(0), near), None, "the first");
        assert_eq!(busy.take(Moment(5 * US), 540), Some(Nanos(2 * US)));
        assert_eq!(busy.take(Moment(9 * US), 540), Some(Nanos::ZERO));
    }

    #[test]
    fn more_work_than_time_is_not_known() {
        let mut busy = BusyTime::default();
        busy.take(Moment(0), 1_000_000);
        assert_eq!(busy.take(Moment(1_000 * US), 0), None, "it was reset");
        assert_eq!(busy.take(Moment(1_001 * US), 540), Some(Nanos(US)));
        assert_eq!(
            busy.take(Moment(5_000_000 * US), 541),
            None,
            "it may have gone round"
        );
    }

    proptest! {
        /// Whatever is read, the work is hardly more than the time that passed.
        #[test]
        fn worked_is_at_most_the_time(readings in prop::collection::vec((0u64..5_000_000, any::<u32>()), 1..50)) {
            let (mut busy, mut at) = (BusyTime::default(), Moment(0));
            for (passed, count) in readings {
                let next = at + Nanos(passed * US);
                if let Some(worked) = busy.take(next, count) {
                    prop_assert!(worked <= most(next.since(at)));
                }
                at = next;
            }
        }

        /// Work that fits is found to the tick, whatever the count was.
        #[test]
        fn work_is_found(from in 0..MODULUS as u32, busy_us in 0u64..1_000_000, idle_us in 0u64..1_000_000) {
            let mut busy = BusyTime::default();
            busy.take(Moment(0), from);
            let count = (u64::from(from) + busy_us * TICKS_PER_US) % MODULUS;
            let at = Moment((busy_us + idle_us) * US);
            prop_assert_eq!(busy.take(at, count as u32), Some(Nanos(busy_us * US)));
        }
    }
}
