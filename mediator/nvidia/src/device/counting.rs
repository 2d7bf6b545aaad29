//! Reading the counters, once between two of their latches: by whoever reads the log, and by a thread that sees to it that none is missed, and measures first how old
//! they are. What they say is taken by whoever reads the log next.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use turnstile_accounting::{Moment, Nanos};

use super::{NvidiaError, Shared, lock};
use crate::costs::Work;
use crate::utilisation::{Busy, LATCH, Utilisation, UtilisationError};
use turnstile_host::confine::{Role, enter};

/// Who accounts reads what a latch told whenever he wakes; it is read for him if he has not after so long: well before the next, which takes its place.
const UNREAD: Nanos = Nanos::from_ms(60);

/// A latch that has not come is looked for again after so long, at first and at most. SOURCE:
/// measured on an H200: 100.00 ms from one to the next, 0.1 ms more or less; an update takes 70 us.
const LATE: Nanos = Nanos::from_ms(1);
const AGAIN: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(64));

/// The age is measured again after so long. SOURCE: measured: it grows or shrinks by 5 us a second, as the counters' clock and the GPU's timer drift apart.
const REMEASURED: Nanos = Nanos::from_ms(30_000);

/// While the age is measured, the pages are looked at without a pause from so long before the next latch, for so long at most.
const EARLY: Nanos = Nanos::from_us(500);
const PATIENCE: Duration = Duration::from_millis(3);
/// It is known from so many latches that agree so far, of so many at most.
const AGREEING: usize = 3;
const ALIKE: Nanos = Nanos::from_us(200);
const MEASUREMENTS: usize = 16;

/// No latch comes so soon after another: it is the same one, told anew a little later.
const LATCH_MIN: Nanos = Nanos(LATCH.0 / 2);

/// What waits to be taken: as many latches as the log lasts without being read, and more.
const WAITING: usize = 64;

/// What the counters said.
#[derive(Debug)]
pub(super) enum Told {
    /// Of an interval.
    Busy(Busy),
    /// They are so much older than they say.
    Age(Nanos),
    /// Nothing more, since they cannot be read.
    Nothing(UtilisationError),
}

/// The counters, and how far they were read.
#[derive(Debug)]
pub(super) struct Counters {
    utilisation: Utilisation,
    /// End of the last interval.
    until: Option<Moment>,
    /// They began anew since that was last asked.
    anew: bool,
}

impl Counters {
    pub(super) const fn new(utilisation: Utilisation) -> Self {
        Self {
            utilisation,
            until: None,
            anew: false,
        }
    }

    /// An interval is over: it is told to `shared`, while these are locked, so that intervals are in their order.
    fn found(&mut self, busy: Busy, shared: &Shared) {
        let until = self.until.replace(busy.to);
        self.anew |= until.is_some_and(|until| until != busy.from);
        shared.tell(Told::Busy(busy));
    }
}

impl Shared {
    /// Reads the counters where that is reading some words, and tells what is new. Who wakes for another reason does, so that the thread below need not.
    pub(super) fn read_counters(&self) {
        // Who looks at them just now, without a pause, reads them as well.
        let Ok(mut counters) = self.counters.try_lock() else {
            return;
        };
        if let Some(counters) = &mut *counters
            && let Some(busy) = counters.utilisation.read_mapped()
        {
            counters.found(busy, self);
        }
    }

    /// What finds no room is lost, and the next interval begins where the last one ended that found some: see `Watch::counted`.
    fn tell(&self, told: Told) {
        if let Err(TrySendError::Full(told)) = self.tell.try_send(told) {
            log::debug!("{told:?} was not taken");
        }
    }
}

/// The thread that reads. It ends when it is dropped.
#[derive(Debug)]
pub(super) struct Counting {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Whether the age was found, when that is over.
pub(super) type AgeKnown = OnceLock<bool>;

impl Counting {
    /// What the thread will tell, from one end to the other.
    pub(super) fn channel() -> (SyncSender<Told>, Receiver<Told>) {
        sync_channel(WAITING)
    }

    /// Begins to read.
    ///
    /// # Errors
    /// Without a thread.
    pub(super) fn begin(shared: Arc<Shared>) -> Result<Self, NvidiaError> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut reader = Reader {
            shared,
            age: NEW,
            latched: Moment(0),
            stop: stop.clone(),
        };
        let thread = thread::Builder::new()
            .name("gpu-counters".into())
            .spawn(move || {
                // It asks what the accounting thread asks.
                enter(Role::Accounting);
                reader.run();
            })
            .map_err(NvidiaError::Thread)?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // Its panic, if it had one, was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// What is known of the counters' age.
#[derive(Debug)]
enum Age {
    /// So many latches were looked at, and these said how old they are.
    Unknown(usize, Vec<Nanos>),
    /// It was last measured then.
    Known(Nanos, Moment),
    /// It could not be measured, as of then.
    Unmeasurable(Moment),
}

const NEW: Age = Age::Unknown(0, Vec::new());

impl Age {
    fn is_due(&self, now: Moment) -> bool {
        match self {
            Self::Unknown(..) => true,
            Self::Known(_, at) | Self::Unmeasurable(at) => now.since(*at) >= REMEASURED,
        }
    }

    /// A latch was looked at, and said, or did not say, that it is so old. Whether there is something to be told.
    fn looked(&mut self, now: Moment, said: Option<Nanos>) -> bool {
        let alike = |a: &Nanos, b: &Nanos| a.0.abs_diff(b.0) <= ALIKE.0;
        match (&mut *self, said) {
            (Self::Known(_, at), None) => {
                *at = now;
                false
            }
            (Self::Known(age, at), Some(said)) if alike(age, &said) => {
                (*age, *at) = (said, now);
                true
            }
            (Self::Known(..) | Self::Unmeasurable(_), said) => {
                *self = Self::Unknown(1, said.into_iter().collect());
                false
            }
            (Self::Unknown(tried, ages), said) => {
                *tried += 1;
                let tried = *tried;
                ages.extend(said);
                let agreeing = said.map(|said| ages.iter().filter(move |age| alike(age, &said)));
                let agreeing: Vec<u64> = agreeing.into_iter().flatten().map(|age| age.0).collect();
                if agreeing.len() >= AGREEING {
                    let mean = agreeing.iter().sum::<u64>() / agreeing.len() as u64;
                    *self = Self::Known(Nanos(mean), now);
                    return true;
                }
                if tried >= MEASUREMENTS {
                    *self = Self::Unmeasurable(now);
                }
                false
            }
        }
    }
}

/// When the next latch is, of counters that were told until then by their time stamp and are so much older.
fn next_latch(told: Moment, age: Nanos, now: Moment) -> Moment {
    let before = Moment(told.0.saturating_sub(age.0));
    let latches = now.since(before).0 / LATCH.0 + 1;
    before + Nanos(latches * LATCH.0)
}

struct Reader {
    shared: Arc<Shared>,
    age: Age,
    /// The last latch at which it was asked what was launched.
    latched: Moment,
    stop: Arc<AtomicBool>,
}

/// What the thread wakes for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wakes {
    /// The next latch: it is asked what was launched.
    Latch,
    /// An update, in which it shows how old they are.
    Measure,
    /// What an update said.
    Read,
}

impl Reader {
    fn run(&mut self) {
        let mut again = AGAIN.0;
        while !self.stopped() {
            let Some((at, wakes)) = self.next() else {
                return;
            };
            let wait = Duration::from_nanos(at.since(self.shared.now()).0);
            if !wait.is_zero() {
                thread::park_timeout(wait);
                again = AGAIN.0;
            }
            if self.stopped() {
                return;
            }
            let work = Work::begin();
            if wakes == Wakes::Latch {
                self.latched = at;
                self.shared.latched();
            }
            self.shared.follow_channels();
            if wakes == Wakes::Read && self.is_read(at) {
                continue;
            }
            let read = self.read(wakes == Wakes::Measure);
            lock(&self.shared.counting).add(&work);
            match read {
                Ok(false) if wait.is_zero() => {
                    thread::park_timeout(again);
                    again = (2 * again).min(AGAIN.1);
                }
                Ok(_) => {}
                Err(error) => {
                    let _ = self.shared.age_known.set(false);
                    *lock(&self.shared.counters) = None;
                    // Nobody would give them back any more.
                    lock(&self.shared.userds).keep(|_| false);
                    return self.shared.tell(Told::Nothing(error));
                }
            }
        }
    }

    /// When to wake next, and what for; never again if nothing can be read.
    fn next(&mut self) -> Option<(Moment, Wakes)> {
        let mut counters = lock(&self.shared.counters);
        let Counters {
            utilisation,
            until,
            anew,
        } = counters.as_mut()?;
        let (next, until) = (utilisation.next(), *until);
        let shows = utilisation.shows_lag();
        let by_others = utilisation.is_mapped();
        if std::mem::take(anew) {
            self.age = NEW;
        }
        drop(counters);
        if shows == Some(false) {
            self.known(false);
        }
        let now = self.shared.now();
        let measures = shows == Some(true) && self.age.is_due(now);
        let measure = measures.then(|| (Moment(next.0.saturating_sub(EARLY.0)), Wakes::Measure));
        // One wake for both: an update is there until the next, and who reads the log has read it before if he had a use for it.
        let latch = match (&self.age, until) {
            (Age::Known(age, _), Some(until)) if self.shared.counts_launches() => {
                let after = now.max(self.latched + LATCH_MIN);
                Some((next_latch(until, *age, after), Wakes::Latch))
            }
            _ => None,
        };
        let first = measure.into_iter().chain(latch).min_by_key(|(at, _)| *at);
        let late = if by_others { UNREAD } else { LATE };
        Some(first.unwrap_or((next + late, Wakes::Read)))
    }

    /// Whether what it wakes for then was read by somebody else.
    fn is_read(&self, at: Moment) -> bool {
        let counters = lock(&self.shared.counters);
        let counters = counters.as_ref();
        counters.is_some_and(|counters| counters.utilisation.next() + LATE > at)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Reads what is new, and how old it is if that is to be measured. Whether there was something.
    fn read(&mut self, measures: bool) -> Result<bool, UtilisationError> {
        let shared = self.shared.clone();
        let mut counters = lock(&shared.counters);
        let Some(counters) = &mut *counters else {
            return Ok(false);
        };
        if measures {
            self.measure(&counters.utilisation);
        }
        let busy = counters.utilisation.read()?;
        Ok(busy.map(|busy| counters.found(busy, &shared)).is_some())
    }

    /// Looks at the next latch while it comes.
    fn measure(&mut self, utilisation: &Utilisation) {
        let begin = Instant::now();
        let is_over = || begin.elapsed() > PATIENCE || self.stopped();
        let said = utilisation.lag_of_next(is_over);
        if self.age.looked(self.shared.now(), said)
            && let Age::Known(age, _) = self.age
        {
            // Each half minute is no news.
            if self.shared.age_known.get() == Some(&true) {
                log::debug!("Counters are {age:?} older than their time stamps");
            } else {
                log::info!("Counters are {age:?} older than their time stamps");
            }
            self.shared.tell(Told::Age(age));
        }
        match self.age {
            Age::Unknown(..) => {}
            Age::Known(..) => self.known(true),
            Age::Unmeasurable(_) => self.known(false),
        }
    }

    /// The age is known, or will not be. What was told first counts.
    fn known(&self, known: bool) {
        if self.shared.age_known.set(known).is_ok() && !known {
            log::warn!(
                "How old the counters are cannot be measured; it is found out while tenants share the GPU, in a second or two"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Nanos {
        Nanos::from_us(us)
    }

    #[test]
    fn the_next_latch_is_in_step_with_those_that_were_told() {
        let at = |us: u64| Moment(us * 1_000);
        // Told at 1 s, of 0.97 s.
        let next = |now_us| next_latch(at(1_000_000), us(30_000), at(now_us));
        assert_eq!(next(1_001_000), at(1_070_000));
        assert_eq!(next(1_069_999), at(1_070_000));
        assert_eq!(next(1_070_000), at(1_170_000), "not the one that is");
        // Older than from one latch to the next.
        assert_eq!(
            next_latch(at(1_000_000), us(103_000), at(1_001_000)),
            at(1_097_000)
        );
    }

    #[test]
    fn three_latches_that_agree_tell_the_age_and_one_that_differs_begins_anew() {
        let at = |seconds: u64| Moment(seconds * 1_000_000_000);
        let mut age = NEW;
        for (said, told) in [
            (Some(us(30_000)), false),
            (None, false),
            (Some(us(32_400)), false),
            (Some(us(30_060)), false),
            (Some(us(30_120)), true),
        ] {
            assert!(age.is_due(at(1)));
            assert_eq!(age.looked(at(1), said), told, "{age:?}");
        }
        assert!(matches!(age, Age::Known(Nanos(30_060_000), _)), "{age:?}");
        assert!(!age.is_due(at(30)) && age.is_due(at(31)));
        assert!(age.looked(at(31), Some(us(30_200))), "it has drifted");
        assert!(!age.looked(at(70), None) && !age.is_due(at(71)), "not seen");
        assert!(!age.looked(at(200), Some(us(90_000))) && age.is_due(at(200)));
        (1..MEASUREMENTS).for_each(|_| assert!(!age.looked(at(201), None)));
        assert!(matches!(age, Age::Unmeasurable(_)) && !age.is_due(at(202)));
        assert!(age.is_due(at(300)), "it is tried again");
    }
}
