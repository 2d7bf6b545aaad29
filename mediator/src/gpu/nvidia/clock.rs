//! The GPU's clock, that of its context-switch records, told without asking the GPU each time.
//!
//! The driver sets it to the wall clock when it starts; from then on it runs by itself. SOURCE: measured: 5.5 us a second apart
//! from the host's on an H200, half a second a day. So it is followed: by the host's monotonic clock between two readings of
//! the timer's registers.

use std::time::{Duration, Instant};

use turnstile_accounting::Moment;

use super::rm::{RmClient, RmError};
use super::sys::abi::{TIME_HIGH, TIME_LOW};
use super::version::DriverAbi;

/// From one reading to the next: 5.5 us a second are 55 us in it, less than a switch takes.
const READ_EVERY: Duration = Duration::from_secs(10);
/// A reading that took longer says too little. SOURCE: measured: 100 us, up to 530 after a pause.
const READ_MAX: Duration = Duration::from_micros(600);
/// The low word of the clock counts so many nanoseconds.
const LOW_SPAN: u64 = 1 << 32;

/// The GPU's clock, followed.
#[derive(Debug)]
pub struct GpuClock {
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
        let read = |register| client.register(driver.read_registers, register);
        loop {
            let high = read(TIME_HIGH)?;
            let before = Instant::now();
            let low = read(TIME_LOW)?;
            let took = before.elapsed();
            // Otherwise the low word went round between the two.
            if read(TIME_HIGH)? == high {
                return Ok(Self {
                    gpu: Moment(u64::from(high) << 32 | u64::from(low)),
                    at: before + took / 2,
                    read: before,
                });
            }
        }
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
        if self.read.elapsed() < READ_EVERY {
            return;
        }
        self.read = Instant::now();
        let low = client.register(driver.read_registers, TIME_LOW);
        let took = self.read.elapsed();
        if let Ok(low) = low
            && took <= READ_MAX
        {
            let at = self.read + took / 2;
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
