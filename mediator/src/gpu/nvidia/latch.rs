//! When the counters were latched, by their own clock: measured by reading a register without a pause. Pure.
//!
//! ```text
//!   a register is read                     |===== again and again =====|
//!   the counters are latched     |            |            |            |            |
//!   a word counts what we ask    none         a part       a part       all          what others ask
//! ```
//!
//! While the driver carries out our calls, one of the sample's words grows evenly. So what part of it a latch has says when the latch was. It takes
//! nothing of the engine's time, and may be done while others compute: what they add comes evenly, and shows afterwards.
//!
//! SOURCE: measured on an H200: 700 to 840 in a millisecond of readings, however many those are, 17 of a program that launches and waits for 50 us;
//! 12 of 14 latches were told within 1.2 ms, against the time stamps of a kernel's begin and end.

use turnstile_accounting::{Moment, Nanos};

/// What the readings count at least, and how much of it others may.
const COUNT_MIN: f64 = 20_000.0;
const OTHERS_MAX: f64 = 0.2;
/// Latches in the midst of the readings, at least, and how far they may be apart in what they say.
const LATCHES_MIN: usize = 2;
const APART_MAX: Nanos = Nanos::from_ms(3);
/// A latch so near the first or the last reading says nothing, in parts of all of them.
const EDGE: f64 = 0.03;

/// How old counters are is measured for so long: two latches lie within.
const MEASURED_FOR: Nanos = Nanos::from_ms(220);
/// Counters are so much older than their time stamps at most, and a little: from one latch to the next.
pub(super) const LAG_MAX: Nanos = Nanos::from_ms(106);
/// TIMEOUT: the measurement takes three quarters of a second.
const MEASUREMENT_MAX: Nanos = Nanos::from_ms(1_200);

/// Words of the counters' sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Latch {
    /// The counters' own clock.
    pub(super) clock_ns: u64,
    /// What was answered.
    pub(super) answers: u64,
}

/// When the counters' clock was zero, where registers were read from one moment to another, from latches in their order: the first before the
/// readings, the last two after. `None` if they do not say.
pub(super) fn clock_zero(from: Moment, to: Moment, latches: &[Latch]) -> Option<Moment> {
    let [first, midst @ .., before_last, last] = latches else {
        return None;
    };
    let since = |latch: &Latch, before: &Latch| {
        let answers = latch.answers.checked_sub(before.answers)?;
        let clock_ns = latch.clock_ns.checked_sub(before.clock_ns)?;
        Some((answers as f64, clock_ns as f64))
    };
    let (others, rest_ns) = since(last, before_last)?;
    if rest_ns == 0.0 {
        return None;
    }
    let counted = |latch: &Latch| {
        let (answers, clock_ns) = since(latch, first)?;
        let of_others = others / rest_ns * clock_ns;
        Some((answers - of_others, of_others))
    };
    let (all, of_others) = counted(last)?;
    if all < COUNT_MIN || of_others > OTHERS_MAX * all {
        return None;
    }
    let length = to.since(from);
    let mut zeros = Vec::new();
    for latch in midst {
        let part = counted(latch)?.0 / all;
        if (EDGE..1.0 - EDGE).contains(&part) {
            // CAST: a part of the length.
            let at = from + Nanos((length.0 as f64 * part) as u64);
            zeros.push(at.0.checked_sub(latch.clock_ns)?);
        }
    }
    let (least, most) = (zeros.iter().min()?, zeros.iter().max()?);
    let sound = zeros.len() >= LATCHES_MIN && most - least <= APART_MAX.0;
    sound.then(|| Moment(least + (most - least) / 2))
}

/// What is to be done next, before the counters are looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing, for some milliseconds.
    Pause,
    /// Registers are to be read for some milliseconds; each reading is [`Measurement::asked`].
    Ask,
    /// It is over: when the counters' clock was zero, if they say.
    Over(Option<Moment>),
}

/// How far a measurement has come.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// What was asked before it began is in no latch that comes.
    Before,
    /// Registers are read.
    Asking,
    /// So many latches were seen that have all that was asked.
    After(u32),
}

/// A measurement under way.
#[derive(Debug)]
pub(super) struct Measurement {
    begin: Moment,
    stage: Stage,
    latches: Vec<Latch>,
    /// The last latch's time stamp.
    stamp: Option<Moment>,
    /// From the first reading to the last.
    asked: Option<(Moment, Moment)>,
}

impl Measurement {
    pub(super) const fn new(begin: Moment) -> Self {
        Self {
            begin,
            stage: Stage::Before,
            latches: Vec::new(),
            stamp: None,
            asked: None,
        }
    }

    /// A register was read.
    pub(super) fn asked(&mut self, at: Moment) {
        self.asked = Some((self.asked.map_or(at, |(from, _)| from), at));
    }

    /// The counters were looked at: the last latch, and the moment that it names.
    pub(super) fn next(&mut self, now: Moment, stamp: Moment, latch: Latch) -> Next {
        if now.since(self.begin) >= MEASUREMENT_MAX {
            return Next::Over(None);
        }
        if self.latches.last() != Some(&latch) {
            self.latches.push(latch);
        }
        let before = self.stamp.replace(stamp);
        // However old it is, it was latched after this moment.
        let is_after =
            |moment| before.is_some_and(|before| before != stamp) && stamp > moment + LAG_MAX;
        match (self.stage, self.asked) {
            // The last latch of what was before is enough.
            (Stage::Before, _) if is_after(self.begin) => {
                self.latches = vec![latch];
                self.stage = Stage::Asking;
                Next::Ask
            }
            (Stage::Before, _) => Next::Pause,
            (Stage::Asking, Some((from, to))) if to.since(from) >= MEASURED_FOR => {
                self.stage = Stage::After(0);
                Next::Pause
            }
            (Stage::Asking, _) => Next::Ask,
            (Stage::After(1), Some((from, to))) if is_after(to) => {
                let zero = clock_zero(from, to, &self.latches);
                log::debug!("{zero:?} by {:?} from {from:?} to {to:?}", self.latches);
                Next::Over(zero)
            }
            (Stage::After(seen), Some((_, to))) => {
                self.stage = Stage::After(seen + u32::from(is_after(to)));
                Next::Pause
            }
            // Nothing was asked.
            (Stage::After(_), None) => Next::Over(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;
    const ZERO: u64 = 1_795_289_241_066_820_000;
    const FROM: Moment = Moment(ZERO + 150 * MS);
    const TO: Moment = Moment(ZERO + 370 * MS);

    /// Latches each 100 ms from `offset` on, where readings count so many in a millisecond, and others so many in a second.
    fn seen(offset_ns: u64, each: u64, others: u64) -> Vec<Latch> {
        let latch = |index: u64| {
            let clock_ns = offset_ns + index * 100 * MS;
            let done = Moment(ZERO + clock_ns).min(TO).since(FROM);
            let answers = 7_000 + each * done.0 / MS + others * clock_ns / 1_000_000_000;
            Latch { clock_ns, answers }
        };
        (0..7).map(latch).collect()
    }

    #[test]
    fn what_does_not_show_says_nothing() {
        for (each, others) in [(0, 0), (50, 0), (700, 200_000)] {
            assert_eq!(clock_zero(FROM, TO, &seen(60 * MS, each, others)), None);
        }
        let mut latches = seen(60 * MS, 700, 0);
        assert!(clock_zero(FROM, TO, &latches).is_some());
        assert_eq!(clock_zero(FROM, TO, &latches[..2]), None);
        latches[2].answers += 9_000;
        assert_eq!(clock_zero(FROM, TO, &latches), None, "they disagree");
        latches[1].answers = 0;
        assert_eq!(clock_zero(FROM, TO, &latches), None);
    }

    proptest! {
        #[test]
        fn the_clocks_zero_is_found_while_others_compute_as_well(offset_ms in 0u64..100, others in 0u64..20_000) {
            let zero = clock_zero(FROM, TO, &seen(offset_ms * MS, 700, others)).unwrap();
            prop_assert!(zero.0.abs_diff(ZERO) < MS / 10, "{}", zero.0.abs_diff(ZERO));
        }
    }

    /// A measurement that begins so long after the zero, of counters that are `lag` older than their stamps; what it says, and how long it took.
    fn measure(begin_ns: u64, lag_ns: u64, each: u64, others: u64) -> (Option<Moment>, Nanos) {
        let begin = Moment(ZERO + begin_ns);
        let mut measurement = Measurement::new(begin);
        let (mut now, mut own_ns) = (begin, 0);
        // What had been counted at each latch.
        let mut latched = Vec::new();
        loop {
            let passed = now.0 - ZERO;
            while latched.len() as u64 <= passed / (100 * MS) {
                latched.push(7_000 + each * own_ns / MS + others * passed / 1_000_000_000);
            }
            let index = (passed - lag_ns) / (100 * MS);
            let latch = Latch {
                clock_ns: index * 100 * MS,
                answers: latched[index as usize],
            };
            let stamp = Moment(ZERO + latch.clock_ns + lag_ns);
            let next = measurement.next(now, stamp, latch);
            // Readings of 200 us, of which each latch has what was done until it was latched.
            let (readings, pause_ns) = match next {
                Next::Over(zero) => return (zero, now.since(begin)),
                Next::Pause => (0, 5 * MS),
                Next::Ask => (50, 0),
            };
            for _ in 0..readings {
                now = now + Nanos(200_000);
                own_ns += 200_000;
                measurement.asked(Moment(now.0 - 100_000));
                let passed = now.0 - ZERO;
                if latched.len() as u64 <= passed / (100 * MS) {
                    latched.push(7_000 + each * own_ns / MS + others * passed / 1_000_000_000);
                }
            }
            now = now + Nanos(pause_ns);
        }
    }

    #[test]
    fn a_measurement_that_shows_nothing_ends_as_well() {
        let (zero, took) = measure(300 * MS, 64 * MS, 0, 0);
        assert_eq!(zero, None);
        assert!(took <= MEASUREMENT_MAX + Nanos::from_ms(15), "{took:?}");
        // Latches that stand still.
        let mut measurement = Measurement::new(FROM);
        let latch = seen(0, 700, 0)[0];
        let mut now = FROM;
        while measurement.next(now, FROM, latch) != Next::Over(None) {
            now = now + Nanos::from_ms(5);
            assert!(now.since(FROM) <= MEASUREMENT_MAX);
        }
    }

    proptest! {
        #[test]
        fn a_measurement_finds_the_zero_whenever_it_begins(begin_us in 250_000u64..450_000, lag_us in 0u64..104_000, others in 0u64..20_000) {
            let (zero, took) = measure(begin_us * 1_000, lag_us * 1_000, 700, others);
            prop_assert!(took <= Nanos::from_ms(850), "{took:?}");
            prop_assert!(zero.unwrap().0.abs_diff(ZERO) < MS / 2, "{zero:?}");
        }
    }
}
