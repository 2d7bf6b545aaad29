//! Estimate of what a node would work if it were alone. It is measured in own turns, grows slowly
//! with time, and is reset when the node's load changes.
//!
//! In: measurements of own turns, and each half second what the node worked. Out: `Node::alone`.
//! Called by `settle.rs`.

use super::fraction::Fraction;
use super::node::{Node, signed};
use turnstile_accounting::Nanos;

/// `alone` grows by its own value in this time, so that it is measured again when it matters.
/// SOURCE: simulation `lab corun`.
const FORGET_TIME: Nanos = Nanos::from_ms(60_000);
/// Above this `alone` is a first guess, and a measurement replaces most of it.
/// SOURCE: simulation `lab corun`.
const GUESS: Fraction = Fraction::percent(95);
/// Step towards the first measurement, and towards a higher one: otherwise a node that was measured
/// while its program started is owed too little for many turns. SOURCE: simulation `lab corun`.
const LONG_STEP: Fraction = Fraction::percent(70);
/// Step towards each later measurement that is lower. SOURCE: simulation `lab corun`.
const STEP: Fraction = Fraction::percent(30);
/// The least `alone` of a node that worked: a smaller value could not grow between two polls.
const ALONE_MIN_PPM: u64 = 2;
/// Loads are compared over this time. SOURCE: simulation `lab corun`.
pub(crate) const LOAD_WINDOW: Nanos = Nanos::from_ms(500);
/// Smaller changes are ignored: half a hundredth of the engine. SOURCE: simulation `lab corun`.
const RATE_NOISE_PERMILLE: u64 = 5;
/// Step of the usual rate towards that of a window. SOURCE: simulation `lab corun`.
const USUAL_STEP: Fraction = Fraction::percent(20);

/// Result of an own turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alone {
    /// It worked this fraction of the time.
    Works(Fraction),
    /// It had the engine and never worked.
    OnlyWaits,
}

/// Work of a node in windows in which all tenants run together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Load {
    /// None before the first window.
    usual: Option<Fraction>,
    /// In the open window.
    worked: Nanos,
    /// In the open window: time with work, but not resident.
    pub(crate) waited: Nanos,
}

/// A window of [`LOAD_WINDOW`] that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) length: Nanos,
    /// Own turns took little enough of it for loads to be compared.
    pub(crate) calm: bool,
}

impl Load {
    pub(crate) fn add(&mut self, worked: Nanos, waited: Nanos) {
        self.worked = Nanos(self.worked.0.saturating_add(worked.0));
        self.waited = Nanos(self.waited.0.saturating_add(waited.0));
    }

    /// Drops the open window.
    pub(crate) fn restart(&mut self) {
        (self.worked, self.waited) = (Nanos::ZERO, Nanos::ZERO);
    }

    /// Ends the window; returns whether the load has changed, or suffered.
    fn close(&mut self, window: Window, judged: bool) -> bool {
        let rate = Fraction::ratio(self.worked.0, window.length.0);
        let waits = self.waited.0.saturating_mul(2) > window.length.0;
        self.restart();
        if !window.calm {
            self.usual = None;
            return false;
        }
        let Some(usual) = self.usual else {
            self.usual = Some(rate);
            return false;
        };
        let noise = Fraction::ratio(RATE_NOISE_PERMILLE, 1_000);
        let fell = rate.plus(noise) < usual.times(Fraction::percent(50));
        let rose = rate > usual.plus(usual).plus(noise);
        let changed = judged && waits && (fell || rose);
        self.usual = Some(if changed {
            rate
        } else {
            usual.toward(rate, USUAL_STEP)
        });
        changed
    }
}

impl Node {
    /// Lets `alone` grow for `length`.
    pub(crate) fn forget_alone(&mut self, length: Nanos) {
        let growth = Fraction::ratio(length.0, FORGET_TIME.0);
        let grown = self.alone.plus(self.alone.times(growth));
        self.alone = grown.min(Fraction::ONE);
    }

    /// Takes the measurement of an own turn. Owed time that grew with a higher estimate falls with
    /// it: otherwise a node that works little repays in hundreds of own turns what it never lacked.
    pub(crate) fn learn(&mut self, measured: Alone) {
        let before = self.alone;
        self.alone = match measured {
            Alone::OnlyWaits => Fraction::ZERO,
            Alone::Works(rate) => {
                let rate = rate.min(Fraction::ONE);
                let rose = rate > self.alone;
                let step = if rose || self.alone > GUESS {
                    LONG_STEP
                } else {
                    STEP
                };
                let alone = self.alone.toward(rate, step);
                alone.max(Fraction::ratio(ALONE_MIN_PPM, 1_000_000))
            }
        };
        if self.owed > 0 && self.alone < before {
            let part = self.alone.over(before);
            self.owed = signed(part.of(Nanos(self.owed.unsigned_abs())));
        }
    }

    /// Ends a window of its load. After a change the node is taken to saturate until it is
    /// measured. So is a node that only waited and worked after all, where own turns of others
    /// leave no window in which loads can be compared.
    pub(crate) fn close_window(&mut self, window: Window) {
        let judged = !self.is_capped();
        let only_waited = !window.calm && self.alone == Fraction::ZERO;
        let began = only_waited && self.load.worked > Nanos::ZERO;
        if self.load.close(window, judged) || began {
            self.alone = Fraction::ONE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_ms(1_000);

    fn half() -> Fraction {
        Fraction::percent(50)
    }

    fn window(node: &mut Node, worked_ms: u64, waited_ms: u64, calm: bool) {
        node.load
            .add(Nanos::from_ms(worked_ms), Nanos::from_ms(waited_ms));
        node.close_window(Window {
            length: LOAD_WINDOW,
            calm,
        });
    }

    #[test]
    fn the_first_measurement_counts_most_and_is_slowly_forgotten() {
        let mut node = Node::new(0, None);
        node.learn(Alone::Works(half()));
        assert_eq!(node.alone.permille(), 650);
        node.learn(Alone::Works(half()));
        assert_eq!(node.alone.permille(), 605);
        (0..60).for_each(|_| node.forget_alone(SECOND));
        assert_eq!(node.alone, Fraction::ONE);
        node.learn(Alone::Works(Fraction::ratio(3, 1)));
        assert_eq!(node.alone, Fraction::ONE);
    }

    #[test]
    fn owed_time_falls_with_the_estimate_that_it_grew_by() {
        let ms = |ms: i64| ms * 1_000_000;
        let mut node = Node::new(ms(20), None);
        node.learn(Alone::Works(half()));
        assert_eq!(node.owed, ms(13), "as alone: 1.0 to 0.65");
        (0..20).for_each(|_| node.learn(Alone::Works(Fraction::percent(1))));
        assert!((1..ms(1)).contains(&node.owed), "{}", node.owed);
        let before = node.owed;
        node.learn(Alone::Works(Fraction::ONE));
        assert_eq!(node.owed, before, "a higher estimate adds nothing");
        node.learn(Alone::OnlyWaits);
        assert_eq!(node.owed, 0);
        node.owed = ms(-10);
        node.learn(Alone::Works(half()));
        node.learn(Alone::Works(Fraction::percent(1)));
        assert_eq!(node.owed, ms(-10), "nor does a lower one forgive");
    }

    #[test]
    fn a_node_that_was_measured_at_its_start_rises_in_two_turns() {
        let mut node = Node::new(0, None);
        node.learn(Alone::Works(Fraction::percent(5)));
        assert_eq!(node.alone.permille(), 335);
        (0..2).for_each(|_| node.learn(Alone::Works(Fraction::ONE)));
        assert!(node.alone.permille() >= 940, "{:?}", node.alone);
    }

    #[test]
    fn a_node_that_worked_is_never_taken_to_wait_only() {
        let mut node = Node::new(0, None);
        (0..200).for_each(|_| node.learn(Alone::Works(Fraction::ZERO)));
        assert!(node.alone > Fraction::ZERO);
        let least = node.alone;
        node.forget_alone(Nanos::from_ms(1));
        assert!(node.alone > least, "and it is forgotten");
        node.learn(Alone::OnlyWaits);
        node.forget_alone(SECOND);
        assert_eq!(node.alone, Fraction::ZERO);
    }

    #[test]
    fn a_load_that_changes_while_it_waits_is_measured_anew() {
        for (worked_ms, waited_ms, calm, anew) in [
            (40, 400, true, true),
            (250, 400, true, true),
            (60, 400, true, false),
            (180, 400, true, false),
            (40, 100, true, false),
            (40, 400, false, false),
        ] {
            let mut node = Node::new(0, None);
            node.learn(Alone::Works(half()));
            window(&mut node, 100, 0, true);
            window(&mut node, worked_ms, waited_ms, calm);
            assert_eq!(node.alone == Fraction::ONE, anew, "{worked_ms} {waited_ms}");
        }
    }

    #[test]
    fn no_load_is_judged_by_a_window_of_own_turns() {
        let mut node = Node::new(0, None);
        node.learn(Alone::Works(half()));
        window(&mut node, 100, 0, true);
        window(&mut node, 100, 0, false);
        window(&mut node, 10, 400, true);
        assert_ne!(node.alone, Fraction::ONE, "there was no usual rate");
        window(&mut node, 100, 400, true);
        assert_eq!(node.alone, Fraction::ONE, "ten times the usual");
    }
}
