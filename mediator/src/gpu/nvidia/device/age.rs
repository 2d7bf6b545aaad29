//! How old the counters are: measured beside all else, in a thread of its own, as it takes most of a second ([`super::super::latch`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use turnstile_accounting::{Moment, Nanos};

use super::{NvidiaError, Shared, lock};
use crate::daemon::confine::{Role, enter};
use crate::gpu::nvidia::costs::Work;
use crate::gpu::nvidia::latch::{Measurement, Next};
use crate::gpu::nvidia::sys::abi::STATUS_REGISTER;
use crate::gpu::nvidia::utilisation::{Latches, Utilisation, UtilisationError};

/// How often it is tried. SOURCE: measured on an H200: one of five measurements contradicted itself.
const MEASUREMENTS: u32 = 3;

/// Readings of registers from one look at the counters to the next, and the pause between two of these when there is nothing to be read.
const READINGS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(5);

/// The counters' latches, if there are counters.
pub(super) fn latches(utilisation: Option<&Utilisation>) -> Option<Latches> {
    let latches = utilisation?.latches();
    latches
        .inspect_err(|error| log::warn!("{error}; how old the counters are is not measured"))
        .ok()
}

/// The thread that measures. It ends when it is dropped.
#[derive(Debug)]
pub(super) struct Age {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Age {
    /// Begins to measure; the GPU's watch is told.
    ///
    /// # Errors
    /// Without a thread.
    pub(super) fn measure(shared: Arc<Shared>, latches: Latches) -> Result<Self, NvidiaError> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut measuring = Measuring {
            shared,
            latches,
            stop: stop.clone(),
        };
        let thread = thread::Builder::new()
            .name("gpu-age".into())
            .spawn(move || {
                // It asks what the accounting thread asks.
                enter(Role::Accounting);
                measuring.run();
            })
            .map_err(NvidiaError::Thread)?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Age {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // Its panic, if it had one, was reported when it happened.
            let _ = thread.join();
        }
    }
}

struct Measuring {
    shared: Arc<Shared>,
    latches: Latches,
    stop: Arc<AtomicBool>,
}

impl Measuring {
    fn run(&mut self) {
        let measured = self.measure();
        // Set here alone.
        let _ = self.shared.age_known.set(matches!(measured, Ok(true)));
        match measured {
            Ok(true) => {}
            Ok(false) if self.stopped() => {}
            Ok(false) => log::warn!(
                "How old the counters are cannot be measured; it is found out while tenants share the GPU, in a second or two"
            ),
            Err(error) => log::warn!("{error}; how old the counters are is not measured"),
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Whether it was found.
    fn measure(&mut self) -> Result<bool, UtilisationError> {
        for _ in 0..MEASUREMENTS {
            let work = Work::begin();
            let zero = self.clock_zero();
            self.asks(false);
            lock(&self.shared.age).add(&work);
            if let Some(zero) = zero?
                && self.tell(zero)
            {
                return Ok(true);
            }
            if self.stopped() {
                break;
            }
        }
        Ok(false)
    }

    /// Tells what was measured; false if it cannot be.
    fn tell(&self, zero: Moment) -> bool {
        let watched = &mut *lock(&self.shared.watched);
        let utilisation = watched.utilisation.as_ref();
        let Some(lag) = utilisation.and_then(|utilisation| utilisation.lag(zero)) else {
            return false;
        };
        watched.watch.measured(lag);
        log::info!("Counters are {lag:?} older than their time stamps");
        true
    }

    /// Launches cannot be counted meanwhile.
    fn asks(&self, without_pause: bool) {
        let now = self.shared.now();
        lock(&self.shared.watched).watch.asks(now, without_pause);
    }

    fn clock_zero(&mut self) -> Result<Option<Moment>, UtilisationError> {
        let mut measurement = Measurement::new(self.shared.now());
        let mut asks = false;
        while !self.stopped() {
            let (stamp, latch) = self.latches.last()?;
            let next = measurement.next(self.shared.now(), stamp, latch);
            if std::mem::replace(&mut asks, next == Next::Ask) != asks {
                self.asks(asks);
            }
            match next {
                Next::Over(zero) => return Ok(zero),
                Next::Pause => thread::park_timeout(PAUSE),
                Next::Ask => {
                    for _ in 0..READINGS {
                        let Some(at) = self.ask().filter(|_| !self.stopped()) else {
                            return Ok(None);
                        };
                        measurement.asked(at);
                    }
                }
            }
        }
        Ok(None)
    }

    /// Reads a register; when that was.
    fn ask(&self) -> Option<Moment> {
        let shared = &self.shared;
        let before = shared.now();
        let read = shared.driver.read_registers;
        shared.client.register(read, STATUS_REGISTER).ok()?;
        Some(before + Nanos(shared.now().since(before).0 / 2))
    }
}
