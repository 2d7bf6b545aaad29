//! How busy the whole GPU was, by its own counters: the signal behind idle time within residency.
//!
//! The GPU latches its performance counters every 100 ms; between two latches the share of time in which any kernel was
//! active is exact, whoever ran. SOURCE: measured on an H200: 32.5 % for kernels of 2 ms that took 32.54 % of the time, 99.7
//! for 99.6, 0.0 without any; the moment of a latch is on the clock of the context-switch records; a sample costs 80 us.

use turnstile_accounting::{Moment, Nanos};

use super::sys::{Nvml, NvmlFailure, UtilisationSample};
use super::version::DriverAbi;

/// From one latch to the next. SOURCE: measured: 100.0 ms, sixteen times in a row.
const LATCH: Nanos = Nanos::from_ms(100);

/// Latches from one reading to the next where nothing new is expected: a reading takes 1.3 ms (measured).
const SELDOM: u64 = 10;

/// Why there are no counters.
#[derive(Debug, thiserror::Error)]
pub enum UtilisationError {
    /// There is no management library, or it is too old.
    #[error("The management library libnvidia-ml.so.1 cannot be used")]
    Missing(#[source] libloading::Error),
    /// It refused.
    #[error(
        "The management library refused performance samples with code {0}; they need a Hopper GPU or later, and root"
    )]
    Refused(i32),
    /// The moment in a sample is not one: the layout is another.
    #[error("A performance sample has no moment where this driver version should have it")]
    Layout,
}

impl From<NvmlFailure> for UtilisationError {
    fn from(failure: NvmlFailure) -> Self {
        match failure {
            NvmlFailure::Missing(error) => Self::Missing(error),
            NvmlFailure::Code(code) => Self::Refused(code),
        }
    }
}

/// How long kernels were active within an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    /// Its begin: a latch.
    pub from: Moment,
    /// Its end: the next that was seen.
    pub to: Moment,
    /// Time in which a kernel was active.
    pub busy_ns: Nanos,
}

/// The counters of one GPU.
#[derive(Debug)]
pub struct Utilisation {
    nvml: Nvml,
    time_at: usize,
    samples: [UtilisationSample; 2],
    /// Which of them is the last latch that was used, and when that was.
    last: usize,
    latched: Moment,
}

impl Utilisation {
    /// Those of GPU `index`; `now` on the clock of the context-switch records.
    ///
    /// # Errors
    /// If there are none.
    pub fn start(index: u32, driver: &DriverAbi, now: Moment) -> Result<Self, UtilisationError> {
        let nvml = Nvml::load(index)?;
        let mut samples = [nvml.sample()?, nvml.sample()?];
        let latched = Moment(nvml.take(&mut samples[0], driver.sample_time_at)?);
        // Ten latches of an idle GPU's clock; another layout gives something else altogether.
        let near = now.since(latched).0 + latched.since(now).0;
        if near > 10 * LATCH.0 {
            return Err(UtilisationError::Layout);
        }
        Ok(Self {
            nvml,
            time_at: driver.sample_time_at,
            samples,
            last: 0,
            latched,
        })
    }

    /// What the counters say since they were last asked; nothing before the next latch, or the tenth where that will do.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn read(&mut self, now: Moment, seldom: bool) -> Result<Option<Busy>, UtilisationError> {
        let latches = if seldom { SELDOM } else { 1 };
        if now.since(self.latched).0 <= latches * LATCH.0 {
            return Ok(None);
        }
        let next = 1 - self.last;
        let to = Moment(self.nvml.take(&mut self.samples[next], self.time_at)?);
        if to <= self.latched {
            return Ok(None);
        }
        let percent = self
            .nvml
            .busy_percent(&self.samples[self.last], &self.samples[next])?;
        let length = to.since(self.latched);
        // CAST: a part of the length.
        let busy_ns = Nanos((length.0 as f64 * percent.clamp(0.0, 100.0) / 100.0) as u64);
        let from = std::mem::replace(&mut self.latched, to);
        self.last = next;
        Ok(Some(Busy { from, to, busy_ns }))
    }
}
