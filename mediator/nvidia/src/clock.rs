//! The GPU's clock, on which its context-switch records are, estimated without reading it each
//! time.
//!
//! The driver sets it to the wall clock when it starts; from then on it runs by itself. SOURCE:
//! measured on an H200: it drifts 5.5 us a second from the host's clock, half a second a day. So
//! the host's monotonic clock extrapolates it between two readings of the timer's registers.
//!
//! The registers are in the page of the doorbells, which is mapped for reading, as in a process
//! that has channels. The driver can read them as well, but takes 0.1 to 0.5 ms, and does not
//! report the moment in that time.

use std::time::{Duration, Instant};

use turnstile_accounting::Moment;

use super::rm::{RmClient, RmError};
use super::sys::abi::{
    CLASS_DOORBELLS, TIME_HIGH, TIME_LOW, USERMODE_TIME_HIGH, USERMODE_TIME_LOW,
};
use super::sys::{Caching, SharedPages};
use super::version::DriverAbi;

/// Interval between two readings: 5.5 us of drift.
const READ_EVERY: Duration = Duration::from_secs(1);
/// The same where the driver reads the clock: 55 us of drift, less than a context switch takes.
const CALLED_EVERY: Duration = Duration::from_secs(10);
/// Readings per update; the one that took the shortest is used.
const READINGS: usize = 5;
/// A longer reading is too imprecise to be used. SOURCE: measured: 100 us, up to 530 after a pause.
const READ_MAX: Duration = Duration::from_micros(600);
/// Maximum difference between two readings of the same clock.
const SAME_NS: u64 = 1_000_000;
/// Nanoseconds after which the low word of the clock wraps.
const LOW_SPAN: u64 = 1 << 32;

/// Length of the page of the doorbells, which has the clock.
pub(super) const PAGE_BYTES: u64 = 4_096;

/// How the registers are read.
#[derive(Debug)]
enum Timer {
    Mapped(SharedPages),
    /// By a call to the driver.
    Called,
}

impl Timer {
    fn map(client: &RmClient) -> Result<Self, RmError> {
        let page = client.alloc_plain("map the clock", client.subdevice(), CLASS_DOORBELLS)?;
        Ok(Self::Mapped(client.map_gpu(
            page,
            (0, PAGE_BYTES),
            Caching::Own,
        )?))
    }

    fn every(&self) -> Duration {
        match self {
            Self::Mapped(_) => READ_EVERY,
            Self::Called => CALLED_EVERY,
        }
    }

    fn low(&self, client: &RmClient, driver: &DriverAbi) -> Result<u32, RmError> {
        self.word(client, driver, (USERMODE_TIME_LOW, TIME_LOW))
    }

    fn high(&self, client: &RmClient, driver: &DriverAbi) -> Result<u32, RmError> {
        self.word(client, driver, (USERMODE_TIME_HIGH, TIME_HIGH))
    }

    fn word(
        &self,
        client: &RmClient,
        driver: &DriverAbi,
        (mapped, register): (usize, u32),
    ) -> Result<u32, RmError> {
        match self {
            // The register is within the page.
            Self::Mapped(page) => Ok(page.read(mapped).map_or(0, u32::from_le_bytes)),
            Self::Called => client.register(driver.read_registers, register),
        }
    }

    /// The low word, when it was read, and how long that took.
    fn reading(
        &self,
        client: &RmClient,
        driver: &DriverAbi,
    ) -> Result<(u32, Instant, Duration), RmError> {
        let one = || {
            let before = Instant::now();
            let low = self.low(client, driver)?;
            let took = before.elapsed();
            Ok((low, before + took / 2, took))
        };
        let mut best = one()?;
        for _ in 1..READINGS {
            let next = one()?;
            if next.2 < best.2 {
                best = next;
            }
        }
        Ok(best)
    }

    /// The whole clock, and when it was read.
    fn start(&self, client: &RmClient, driver: &DriverAbi) -> Result<(Moment, Instant), RmError> {
        loop {
            let high = self.high(client, driver)?;
            let (low, at, _) = self.reading(client, driver)?;
            // Otherwise the low word wrapped between the two readings.
            if self.high(client, driver)? == high {
                return Ok((Moment(u64::from(high) << 32 | u64::from(low)), at));
            }
        }
    }
}

/// The estimate of the GPU's clock.
#[derive(Debug)]
pub struct GpuClock {
    timer: Timer,
    /// The GPU's clock at `at`.
    gpu: Moment,
    at: Instant,
    /// When it was last read.
    read: Instant,
}

impl GpuClock {
    /// Reads the GPU's clock.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn start(client: &RmClient, driver: &DriverAbi) -> Result<Self, RmError> {
        let of = |timer: Timer| {
            let (gpu, at) = timer.start(client, driver)?;
            Ok(Self {
                timer,
                gpu,
                at,
                read: at,
            })
        };
        let called = of(Timer::Called)?;
        match Timer::map(client).and_then(of) {
            Ok(mapped) => {
                let expected = called.at(mapped.at);
                let apart = mapped.gpu.0.abs_diff(expected.0);
                if apart <= SAME_NS {
                    log::debug!(
                        "The GPU's clock is mapped; what the driver reads is {} ns behind it",
                        mapped.gpu.0.wrapping_sub(expected.0).cast_signed()
                    );
                    return Ok(mapped);
                }
                log::warn!(
                    "The page of the doorbells has another clock, {apart} ns apart; the GPU's is read by the driver, to 0.1 ms"
                );
            }
            Err(error) => {
                log::warn!("{error}; the GPU's clock is read by the driver, to 0.1 ms");
            }
        }
        Ok(called)
    }

    /// The estimate of the clock now.
    pub fn now(&self) -> Moment {
        self.at(Instant::now())
    }

    fn at(&self, at: Instant) -> Moment {
        // CAST: 584 years.
        Moment(self.gpu.0 + at.saturating_duration_since(self.at).as_nanos() as u64)
    }

    /// Reads the clock again once its interval has passed.
    pub fn follow(&mut self, client: &RmClient, driver: &DriverAbi) {
        if self.read.elapsed() < self.timer.every() {
            return;
        }
        self.read = Instant::now();
        // SOURCE: measured: the clock counts 32 ns, so that only a GPU that is gone reads all ones.
        if let Ok((low, at, took)) = self.timer.reading(client, driver)
            && (took <= READ_MAX && low != u32::MAX)
        {
            self.gpu = nearest(self.at(at), low);
            self.at = at;
        }
    }
}
/// The moment nearest to `expected` that has this low word.
fn nearest(expected: Moment, low: u32) -> Moment {
    let same = expected.0 / LOW_SPAN * LOW_SPAN + u64::from(low);
    let candidates = [same.saturating_sub(LOW_SPAN), same, same + LOW_SPAN];
    let distance = |moment: &u64| moment.abs_diff(expected.0);
    // PANIC: none; there are three candidates.
    Moment(candidates.into_iter().min_by_key(distance).unwrap_or(same))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_high_word_is_found_again(at in LOW_SPAN..u64::MAX / 4, off in -1_000_000_000i64..1_000_000_000) {
            let expected = Moment(at.saturating_add_signed(off));
            // CAST: the low word.
            prop_assert_eq!(nearest(expected, at as u32), Moment(at));
        }
    }
}
