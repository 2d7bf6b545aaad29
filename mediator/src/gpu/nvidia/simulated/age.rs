//! How old the counters are, measured while the simulated daemon has tenants that take turns.

use turnstile_accounting::{Moment, Nanos};

use super::super::latch::{Latch, Measurement, Next};
use super::super::watch::Watch;
use super::{Daemon, Found, LAGS, Load, MS, STEP, US};

/// A reading of a register, and the pause where nothing is read. SOURCE: measured on an H200: 100 to 240 us.
const READING: u64 = 200 * US;
const PAUSE: u64 = 5 * MS;
/// Readings from one look at the counters to the next.
const READINGS: u64 = 50;
/// What a millisecond of readings counts, and what all else does. SOURCE: measured: 700 to 840; 450 to 560 for a handover, of which the first turns
/// have one in 120 ms.
const EACH: f64 = 770.0;
const OTHERS: f64 = 20.0;
/// When the counters' clock was zero.
const ZERO: u64 = 50 * MS;

/// The thread that measures.
#[derive(Debug)]
pub(super) struct Measuring {
    measurement: Measurement,
    /// Until when registers are read, or nothing is done.
    until: u64,
    asks: bool,
    /// Time in which registers were read.
    asked_ns: u64,
    latch: Latch,
    /// What was latched, until it may be seen.
    late: Option<Latch>,
    /// What was found, once.
    pub(super) found: Option<Option<Nanos>>,
}

impl Measuring {
    /// Begins at `begin`.
    pub(super) fn new(begin: u64) -> Self {
        let latch = Latch {
            clock_ns: 0,
            answers: 0,
        };
        Self {
            measurement: Measurement::new(Moment(begin)),
            until: begin,
            asks: false,
            asked_ns: 0,
            latch,
            late: None,
            found: None,
        }
    }

    /// A step of the engine ended.
    pub(super) fn step(&mut self, now: u64, lag: u64, watch: &mut Watch) {
        if now % (100 * MS) < STEP {
            self.late = Some(Latch {
                clock_ns: now.saturating_sub(ZERO),
                answers: (EACH * self.asked_ns as f64 / 1e6 + OTHERS * now as f64 / 1e6) as u64,
            });
        }
        if self
            .late
            .is_some_and(|late| late.clock_ns + ZERO + lag <= now)
            && let Some(late) = self.late.take()
        {
            self.latch = late;
        }
        if self.found.is_some() {
            return;
        }
        if self.asks && now <= self.until {
            self.asked_ns += STEP;
            if now % READING < STEP {
                self.measurement.asked(Moment(now - READING / 2));
            }
        }
        if now >= self.until {
            self.look(now, lag, watch);
        }
    }

    fn look(&mut self, now: u64, lag: u64, watch: &mut Watch) {
        let stamp = Moment(self.latch.clock_ns + ZERO + lag);
        let next = self.measurement.next(Moment(now), stamp, self.latch);
        let asks = next == Next::Ask;
        if std::mem::replace(&mut self.asks, asks) != asks {
            watch.asks(Moment(now), asks);
        }
        self.until = now + if asks { READINGS * READING } else { PAUSE };
        if let Next::Over(zero) = next {
            let lag = zero.map(|zero| Nanos((lag + ZERO).saturating_sub(zero.0)));
            self.found = Some(lag);
            if let Some(lag) = lag {
                watch.measured(lag);
            }
        }
    }
}

/// Two tenants that are there when the daemon begins, as after the end of the one before.
fn returning(weights: (u32, u32), kernels_us: (u64, u64)) -> [Load; 2] {
    let load = |weight, kernel_us| Load {
        start: 150 * MS,
        ..Load::busy(weight, kernel_us)
    };
    [load(weights.0, kernels_us.0), load(weights.1, kernels_us.1)]
}

fn run(loads: &[Load], lag: u64, begin: impl FnOnce(&mut Daemon)) -> Found {
    let mut daemon = Daemon::new(loads, "slices");
    daemon.engine.lag = lag;
    begin(&mut daemon);
    daemon.run(4)
}

#[test]
fn tenants_that_return_while_it_is_measured_get_their_weights() {
    let pairs = [
        ((100, 100), (50, 2_000)),
        ((100, 300), (200, 2_000)),
        ((300, 100), (50, 50_000)),
        ((100, 100), (200, 2_000)),
        ((900, 100), (200, 50_000)),
        ((100, 100), (50, 200)),
    ];
    for ((weights, kernels), lag) in pairs.into_iter().zip(LAGS) {
        let loads = returning(weights, kernels);
        let known = run(&loads, lag, |daemon| daemon.watch.measured(Nanos(lag)));
        let never = run(&loads, lag, |_| {});
        let beside = run(&loads, lag, |daemon| {
            daemon.measuring = Some(Measuring::new(130 * MS));
        });
        let found = beside.measured.flatten();
        let off = found.map(|found| found.0.abs_diff(lag));
        println!(
            "{weights:?} {kernels:?}, {} ms: worst second after the first {:.2} points measured beside (found {found:?}), {:.2} \
            known from the start, {:.2} never measured",
            lag / MS,
            beside.worst(1, 4),
            known.worst(1, 4),
            never.worst(1, 4),
        );
        assert!(off.is_some_and(|off| off < MS), "{found:?}");
        let worst = beside.worst(1, 4);
        assert!(worst <= 0.5, "{worst}");
    }
}
