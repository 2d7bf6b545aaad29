//! How busy the whole GPU was, by its own counters: the signal behind idle time within residency.
//!
//! The GPU latches its performance counters every 100 ms; between two latches the share of time in which any kernel was
//! active is exact, whoever ran. SOURCE: measured on an H200: 32.5 % for kernels of 2 ms that took 32.54 % of the time, 99.7
//! for 99.6, 0.0 without any; the moment of a latch is on the clock of the context-switch records.
//!
//! They are read in their own pages ([`super::counters`]), in nanoseconds; a sample of the management library costs 0.25 ms of processor time, and 0.85 to
//! divide one of its counters by another. Where they lie nobody says, so that intervals are told by both until they agree; if they differ again and
//! again, the library is believed from then on.

use turnstile_accounting::{Moment, Nanos};

use super::counters::{CounterPages, Update};
use super::rm::RmClient;
use super::sys::{Nvml, NvmlFailure, UtilisationSample};
use super::version::{CounterLayout, LAUNCHES};

/// From one latch to the next. SOURCE: measured: 100.0 ms, sixteen times in a row.
pub(super) const LATCH: Nanos = Nanos::from_ms(100);

/// The counters' own clock and the time stamps agree on an interval so far, unless they begin anew. SOURCE: measured: 0.13 ms at most in 70
/// intervals; but they drift by 0.08 to 0.4 ms a second, and where a latch has gone by since the last stamp, the next is of one later: one more
/// or less of them.
const AGREE: Nanos = Nanos::from_ms(110);

/// Counters are so much older than their time stamps at most, and a little: from one latch to the next.
pub(super) const LAG_MAX: Nanos = Nanos::from_ms(106);

/// Counters are not younger than they say; what is measured may be, by so much. SOURCE: measured on an H200: 3.0 ms between seven starts.
const YOUNGER_MAX: Nanos = Nanos::from_ms(4);

/// Counters are latched so long before the moment that an update names first. SOURCE: measured on an H200, nine runs of daemons: 2.60 to 2.70 ms by kernels' own time stamps, 2.54 to 2.70 by what the GPU's
/// count of launches is more than channels' words (decision 056); with it, 14 more runs are 2.6 by launches in the mean (0.1 ms standard deviation).
const COLLECTED: Nanos = Nanos::from_us(2_650);

/// More than all by so small a part is all. SOURCE: measured on an H200: five of 55 daemons lost an interval beside an endless kernel, where more than all was no counter.
const ALL_OF_IT: u64 = 1_000;

/// The library's figure and ours are the same: digits of a percentage.
const SAME: f64 = 0.001;

/// Where figures differ so often in a row, words lie elsewhere. SOURCE: measured on an H200, when one interval decided: five of 83 daemons cost 1 % of a core more, and two of them,
/// beside kernels of 50 us, charged 4 % too much, as those do that read by the library and count no launches.
const UNLIKE_MAX: u32 = 8;

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
    /// Its begin: a latch. The last one's end, unless time stamps begin anew.
    pub from: Moment,
    /// Its end: the next that was seen.
    pub to: Moment,
    /// Time in which a kernel was active, or a launch was processed.
    pub busy_ns: Nanos,
    /// How many kernels, copies and fills were launched, if that is known.
    pub launches: Option<u64>,
}

impl Busy {
    /// The interval that it is of, where counters are so much older than they say.
    pub(super) fn span(&self, lag: Nanos) -> (Moment, Moment) {
        let ago = |moment: Moment| Moment(moment.0.saturating_sub(lag.0));
        (ago(self.from), ago(self.to))
    }
}

/// Counters at a latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counted {
    at: Moment,
    busy: u64,
    cycles: u64,
    clock: u64,
    launches: u64,
}

impl Counted {
    /// Words in the order of [`CounterLayout::places`].
    const fn of(at: Moment, [busy, cycles, clock, launches]: [u64; 4]) -> Self {
        Self {
            at,
            busy,
            cycles,
            clock,
            launches,
        }
    }

    /// How long it is since `before`: by the counters' own clock, which is not in step with the time stamps, unless that begins anew.
    fn since(&self, before: &Self, clock: &Clock) -> (Nanos, bool) {
        let stamps = self.at.since(before.at);
        let clock = clock.length(Nanos(self.clock.saturating_sub(before.clock)));
        let agree = stamps.0.abs_diff(clock.0) <= AGREE.0;
        (if agree { clock } else { stamps }, agree)
    }

    /// Percent of the cycles since `before` in which a kernel was active; `None` if these are no such counters.
    fn percent_since(&self, before: &Self) -> Option<f64> {
        let busy = self.busy.checked_sub(before.busy)?;
        let cycles = self.cycles.checked_sub(before.cycles)?;
        // They are not collected at the same instant: an engine that is always busy may have been so for a little more than all of the time.
        let most = cycles + cycles / ALL_OF_IT;
        (cycles > 0 && busy <= most).then(|| busy.min(cycles) as f64 / cycles as f64 * 100.0)
    }
}

/// How fast the counters' own clock is: from one latch to the next are 100 ms of the GPU's timer.
///
/// SOURCE: measured: on H200s it is within 5 millionths of the timer, on an H100 (the same driver) it said 99.78 ms for 100.00, by which counters seemed to grow younger by 2.5 ms a second, so that
/// their age was not found; nor was it on four more.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    latches: u64,
    ns: u64,
}

impl Clock {
    /// One that is off by less is right: what it says of an interval is more than that it was one of 100 ms. SOURCE: measured: latches are 0.13 ms early or late.
    const OFF: f64 = 0.000_5;
    /// Intervals of which it is learnt, at least; and at most, since then it is known.
    const LEARNT: (u64, u64) = (2, 100);

    /// It said so much of an interval.
    fn observe(&mut self, said: Nanos) {
        let latches = (said.0 + LATCH.0 / 2) / LATCH.0;
        let near = said.0.abs_diff(latches * LATCH.0) <= latches * LATCH.0 / 100;
        if near && latches > 0 && self.latches < Self::LEARNT.1 {
            self.latches += latches;
            self.ns += said.0;
        }
    }

    /// How long an interval is of which it says so much.
    fn length(&self, said: Nanos) -> Nanos {
        if self.latches < Self::LEARNT.0 {
            return said;
        }
        let rate = (self.latches * LATCH.0) as f64 / self.ns as f64;
        if (rate - 1.0).abs() < Self::OFF {
            return said;
        }
        // CAST: not negative, and no longer than it is by a hundredth.
        Nanos((said.0 as f64 * rate) as u64)
    }
}

/// Whose figures are believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    /// Ours have not agreed with the library's yet, so many times in a row.
    Both(u32),
    Ours,
    Library,
}

impl Reads {
    /// Both have told of an interval.
    fn compared(self, ours: Option<f64>, theirs: f64) -> Self {
        match self {
            Self::Library => Self::Library,
            _ if ours.is_some_and(|ours| (ours - theirs).abs() < SAME) => Self::Ours,
            // One that says nothing, as at the beginning, is no other layout.
            Self::Both(times) if times + 1 >= UNLIKE_MAX => Self::Library,
            Self::Both(times) => Self::Both(times + 1),
            Self::Ours => Self::Both(1),
        }
    }
}

/// The counters of one GPU.
#[derive(Debug)]
pub struct Utilisation {
    nvml: Nvml,
    layout: CounterLayout,
    /// Where the library has them from; none if we cannot have them from there.
    pages: Option<CounterPages>,
    samples: [UtilisationSample; 2],
    /// Which of them is the last latch that was used, if the library was asked for it, and what it says.
    last: usize,
    latched: Counted,
    /// The moment of that latch: the first one's time stamp, and from then on what the counters' own clock says.
    to: Moment,
    clock: Clock,
    reads: Reads,
}

impl Utilisation {
    /// Those of GPU `index`, which is the client's; `now` on the clock of the context-switch records.
    ///
    /// # Errors
    /// If there are none.
    pub fn start(
        index: u32,
        client: &RmClient,
        layout: CounterLayout,
        now: Moment,
    ) -> Result<Self, UtilisationError> {
        let nvml = Nvml::load(index)?;
        let mut samples = [nvml.sample()?, nvml.sample()?];
        nvml.take(&mut samples[0])?;
        let latched = of_sample(&samples[0], layout);
        // Ten latches of an idle GPU's clock; another layout gives something else altogether.
        let near = now.since(latched.at).0 + latched.at.since(now).0;
        if near > 10 * LATCH.0 {
            return Err(UtilisationError::Layout);
        }
        let pages = CounterPages::map(client)
            .inspect_err(|error| {
                log::warn!("{error}; counters are read by the management library, which costs more, and their age is not known");
            })
            .ok();
        Ok(Self {
            nvml,
            layout,
            pages,
            samples,
            last: 0,
            latched,
            to: latched.at,
            clock: Clock::default(),
            reads: Reads::Both(0),
        })
    }

    /// When the next latch should be there.
    pub(super) fn next(&self) -> Moment {
        self.latched.at + LATCH
    }

    /// Whether [`Self::lag_of_next`] can say something; nothing before it is known whether the counters are where they should be.
    pub(super) fn shows_lag(&self) -> Option<bool> {
        match (self.reads, &self.pages) {
            (Reads::Ours, Some(_)) => Some(true),
            (Reads::Both(_), Some(_)) => None,
            (Reads::Library, _) | (_, None) => Some(false),
        }
    }

    /// Looks at the pages without a pause until there is a latch that is new, or `is_over`: how much older it is than [`Busy`] says, if it shows.
    pub(super) fn lag_of_next(&self, is_over: impl Fn() -> bool) -> Option<Nanos> {
        let pages = self.pages.as_ref()?;
        let mut update = Update::after(self.latched.at.0);
        let latched = loop {
            if let Some((latched, _)) = update.saw(pages.stamps()) {
                break latched?;
            }
            if is_over() {
                return None;
            }
            std::hint::spin_loop();
        };
        let next = of_pages(pages, self.layout)?;
        let (length, agree) = next.since(&self.latched, &self.clock);
        let told = if agree { self.to + length } else { next.at };
        let said = lag(told, Moment(latched.0.saturating_sub(COLLECTED.0)));
        log::debug!("Counters told as of {told:?} were collected at {latched:?}: {said:?} older");
        said
    }

    /// The same as [`Self::read`], where that is reading some words: not while the library is asked.
    pub(super) fn read_mapped(&mut self) -> Option<Busy> {
        // The library alone can refuse.
        let read = self.is_mapped().then(|| self.read().ok().flatten());
        read.flatten()
    }

    /// Whether to read them is to read some words.
    pub(super) fn is_mapped(&self) -> bool {
        self.reads == Reads::Ours && self.pages.is_some()
    }

    /// What the counters say since they were last asked; nothing if there was no latch.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn read(&mut self) -> Result<Option<Busy>, UtilisationError> {
        let next = 1 - self.last;
        let mapped = self.pages.as_ref().filter(|_| self.reads == Reads::Ours);
        let counted = if let Some(pages) = mapped {
            of_pages(pages, self.layout)
        } else {
            self.nvml.take(&mut self.samples[next])?;
            Some(of_sample(&self.samples[next], self.layout))
        };
        let Some(counted) = counted.filter(|counted| counted.at > self.latched.at) else {
            return Ok(None);
        };
        let percent = self.percent(next, &counted)?;
        // As long as the words are where they should be.
        let launches = (self.reads == Reads::Ours)
            .then(|| LAUNCHES * counted.launches.saturating_sub(self.latched.launches));
        let before = std::mem::replace(&mut self.latched, counted);
        self.clock
            .observe(Nanos(counted.clock.saturating_sub(before.clock)));
        let (length, agree) = counted.since(&before, &self.clock);
        let from = if agree { self.to } else { before.at };
        let to = from + length;
        (self.last, self.to) = (next, to);
        Ok(percent.map(|percent| Busy {
            from,
            to,
            // CAST: a part of the length.
            busy_ns: Nanos((length.0 as f64 * percent.clamp(0.0, 100.0) / 100.0) as u64),
            launches,
        }))
    }

    /// How much of the time since the last latch was busy; `None` if the counters began anew.
    fn percent(&mut self, next: usize, counted: &Counted) -> Result<Option<f64>, UtilisationError> {
        let ours = counted.percent_since(&self.latched);
        if self.reads == Reads::Ours && (ours.is_some() || self.pages.is_some()) {
            return Ok(ours);
        }
        let theirs = self
            .nvml
            .busy_percent(&self.samples[self.last], &self.samples[next])?;
        let before = self.reads;
        self.reads = before.compared(ours, theirs);
        if self.reads != before {
            log::debug!(
                "{ours:?} % busy by us, {theirs} by the library: {:?}",
                self.reads
            );
            if self.reads == Reads::Library {
                log::warn!(
                    "Performance samples do not have the counters where this driver version should have them; \
                     they are read by the management library, which costs more"
                );
            }
        }
        if self.reads == Reads::Ours
            && let Some(pages) = &self.pages
            && let Some(mapped) = of_pages(pages, self.layout)
            && mapped.at == counted.at
            && mapped != *counted
        {
            log::warn!(
                "The pages of the counters do not have what the management library has; it is asked, which costs more"
            );
            self.pages = None;
        }
        Ok(Some(theirs))
    }
}

/// By how much those are older that are told as of a moment, and were latched at another; `None` if that cannot be.
fn lag(told: Moment, latched: Moment) -> Option<Nanos> {
    let lag = told.since(latched);
    (latched.since(told) <= YOUNGER_MAX && lag <= LAG_MAX + YOUNGER_MAX).then_some(lag)
}

fn of_pages(pages: &CounterPages, layout: CounterLayout) -> Option<Counted> {
    let (at, words) = pages.latched(layout.places())?;
    Some(Counted::of(at, words))
}

fn of_sample(sample: &UtilisationSample, layout: CounterLayout) -> Counted {
    let words = layout.places().map(|at| sample.word(layout.sample_at + at));
    Counted::of(Moment(sample.word(layout.sample_time_at)), words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_is_a_quotient_of_counters_and_nothing_else_is() {
        let counted = |busy, cycles| Counted {
            at: Moment(0),
            busy,
            cycles,
            clock: 0,
            launches: 0,
        };
        // SOURCE: two samples of an H200 under kernels of 200 us, of which the library made 95.740914454...
        let percent = counted(159_350_549, 166_439_343).percent_since(&counted(0, 0));
        assert!((percent.unwrap() - 95.740_914_45).abs() < 1e-6);
        let all = counted(174_000_310, 174_000_010).percent_since(&counted(10, 10));
        assert_eq!(all, Some(100.0), "collected a moment later");
        for (busy, cycles) in [(5, 10), (0, 9), (20, 11), (11, 10)] {
            assert_eq!(counted(busy, cycles).percent_since(&counted(10, 10)), None);
        }
    }

    #[test]
    fn one_interval_that_says_nothing_is_no_other_layout() {
        let mut reads = Reads::Both(0);
        for ours in [None, Some(3.0), Some(95.74)] {
            reads = reads.compared(ours, 95.74);
        }
        assert_eq!(reads, Reads::Ours);
        reads = reads.compared(None, 95.74);
        assert_eq!(reads, Reads::Both(1), "it is compared again");
        for _ in 1..UNLIKE_MAX {
            assert_ne!(reads, Reads::Library);
            reads = reads.compared(Some(3.0), 95.74);
        }
        assert_eq!(reads, Reads::Library);
        assert_eq!(reads.compared(Some(95.74), 95.74), Reads::Library);
    }

    #[test]
    fn a_lag_is_one_from_a_latch_to_the_next_and_nothing_else_is() {
        let of = |latched_ms: u64| lag(Moment(900_000_000), Moment(latched_ms * 1_000_000));
        assert_eq!(of(836), Some(Nanos::from_ms(64)));
        assert_eq!(of(901), Some(Nanos::ZERO), "measured a little off");
        assert_eq!(of(910), None);
        assert_eq!(of(780), None);
        assert_eq!(of(0), None);
    }

    #[test]
    fn an_interval_is_as_long_as_the_counters_clock_says_unless_it_begins_anew() {
        let at = |ms: u64, clock: u64| Counted {
            at: Moment(ms * 1_000_000),
            busy: 0,
            cycles: 1,
            clock,
            launches: 0,
        };
        let right = Clock::default();
        let before = at(500, 26_598_423_809);
        let (length, agree) = at(600, 26_698_371_476).since(&before, &right);
        assert_eq!((length, agree), (Nanos(99_947_667), true));
        // The stamps have drifted through a latch.
        let (length, agree) = at(600, 26_798_371_476).since(&before, &right);
        assert_eq!((length, agree), (Nanos(199_947_667), true));
        let (length, agree) = at(800, 5).since(&before, &right);
        assert_eq!((length, agree), (Nanos::from_ms(300), false));
    }

    #[test]
    fn a_clock_that_is_slow_is_found_and_one_that_is_right_is_believed() {
        let mut slow = Clock::default();
        let said = Nanos::from_us(99_780);
        assert_eq!(slow.length(said), said, "nothing is known yet");
        for late_us in [0, 130, -130, 60] {
            slow.observe(Nanos(said.0.saturating_add_signed(late_us * 1_000)));
        }
        let off = slow.length(said).0.abs_diff(LATCH.0);
        assert!(off < 50_000, "{slow:?}");
        let two = slow.length(Nanos(2 * said.0)).0;
        assert!(two.abs_diff(2 * LATCH.0) < 100_000);
        let mut right = Clock::default();
        for late_us in [0, 130, -130, 60, -50] {
            right.observe(Nanos(LATCH.0.saturating_add_signed(late_us * 1_000)));
        }
        assert_eq!(right.length(Nanos(99_947_667)), Nanos(99_947_667));
        let before = format!("{right:?}");
        right.observe(Nanos::from_ms(150));
        right.observe(Nanos::ZERO);
        assert_eq!(format!("{right:?}"), before, "no intervals of latches");
    }
}
