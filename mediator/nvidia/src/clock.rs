//! The GPU's clock, that of its context-switch records, told without asking the GPU each time.
//!
//! The driver sets it to the wall clock when it starts; from then on it runs by itself. SOURCE: measured: 5.5 us a second apart
//! from the host's on an H200, half a second a day. So it is followed: by the host's monotonic clock between two readings of
//! the timer's registers.
//!
//! These are read where a process that has channels sees them, in the page of the doorbells, which is mapped for reading; the driver reads them as well, but takes 0.1 to 0.5 ms for it,
//! and does not say when in it.

use std::time::{Duration, Instant};

use turnstile_accounting::Moment;

use super::rm::{RmClient, RmError};
use super::sys::abi::{CLASS_USERMODE, TIME_HIGH, TIME_LOW, USERMODE_TIME_HIGH, USERMODE_TIME_LOW};
use super::sys::{Caching, SharedPages};
use super::version::DriverAbi;

/// From one reading to the next: 5.5 us a second are so many in it.
const READ_EVERY: Duration = Duration::from_secs(1);
/// The same where the driver reads it: less than a switch takes.
const CALLED_EVERY: Duration = Duration::from_secs(10);
/// The one of so many readings is believed that took the shortest.
const READINGS: usize = 5;
/// Readings that all took longer say too little. SOURCE: measured: 100 us, up to 530 after a pause.
const READ_MAX: Duration = Duration::from_micros(600);
/// Two ways to read it are of the same clock if they are not further apart.
const SAME_NS: u64 = 1_000_000;
/// The low word of the clock counts so many nanoseconds.
const LOW_SPAN: u64 = 1 << 32;

/// The page of the doorbells, which has the clock.
pub(super) const PAGE_BYTES: u64 = 4_096;

/// How the registers are read.
#[derive(Debug)]
enum Timer {
    Mapped(SharedPages),
    /// The driver does.
    Called,
}

impl Timer {
    fn map(client: &RmClient) -> Result<Self, RmError> {
        let page = client.alloc_plain("map the clock", client.subdevice(), CLASS_USERMODE)?;
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
            // It lies within the page.
            Self::Mapped(page) => Ok(page.read(mapped).map_or(0, u32::from_le_bytes)),
            Self::Called => client.register(driver.read_registers, register),
        }
    }

    /// The low word, when it was, and how long it took to read it.
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

    /// The whole clock, and when it was.
    fn start(&self, client: &RmClient, driver: &DriverAbi) -> Result<(Moment, Instant), RmError> {
        loop {
            let high = self.high(client, driver)?;
            let (low, at, _) = self.reading(client, driver)?;
            // Otherwise the low word went round between the two.
            if self.high(client, driver)? == high {
                return Ok((Moment(u64::from(high) << 32 | u64::from(low)), at));
            }
        }
    }
}

/// The GPU's clock, followed.
#[derive(Debug)]
pub struct GpuClock {
    timer: Timer,
    /// What the GPU's clock was at `at`.
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

    /// What it is now.
    pub fn now(&self) -> Moment {
        self.at(Instant::now())
    }

    fn at(&self, at: Instant) -> Moment {
        // CAST: 584 years.
        Moment(self.gpu.0 + at.saturating_duration_since(self.at).as_nanos() as u64)
    }

    /// Reads it again if it is time to.
    pub fn follow(&mut self, client: &RmClient, driver: &DriverAbi) {
        if self.read.elapsed() < self.timer.every() {
            return;
        }
        self.read = Instant::now();
        if let Ok((low, at, took)) = self.timer.reading(client, driver)
            && took <= READ_MAX
        {
            self.gpu = nearest(self.at(at), low);
            self.at = at;
        }
    }
}
/// The moment nearest to `expected` whose low word is this.
fn nearest(expected: Moment, low: u32) -> Moment {
    let same = expected.0 / LOW_SPAN * LOW_SPAN + u64::from(low);
    let candidates = [same.saturating_sub(LOW_SPAN), same, same + LOW_SPAN];
    let distance = |moment: &u64| moment.abs_diff(expected.0);
    // PANIC: none; there are three.
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
