//! How long the engine processes launches, and whose they are. Pure.
//!
//! Its counters call that busy, but no kernel runs in it: a tenant with kernels of 50 us would pay 3.9 % more than they execute. A word of
//! the counters' sample says how many launches there were, of the whole engine and with our own calls; whose they were follows
//! from how residencies mix, as with idle time.
//!
//! The word counts copies as well, which take nothing of the engine. So no more is taken off than launches can have been whose results were
//! waited for: each leaves the engine idle for [`WAIT`] at least. What a tenant that is idle for a fraction of its turn saves so is less than half of
//! what it loses by that.

use std::collections::{BTreeMap, VecDeque};

use turnstile_accounting::meter::{IdleShares, Stay};
use turnstile_accounting::{Moment, Nanos, TenantId};

/// The engine is idle for so long at least from the end of a kernel to the next that was launched when it was waited for. SOURCE: measured: 6.2 to 9
/// us on an H200 with a host of 16 cores.
const WAIT: Nanos = Nanos(4_000);

/// Standard deviation of the share of launches. SOURCE: measured: 5 of 480 to 1,700 launches in 100 ms are not explained.
const NOISE: f64 = 0.000_15;

/// Launches take so much of a residency, as far as nothing is known.
const SMALL: f64 = 0.03;

/// Whoever launches otherwise than before shows in two of so many intervals: who has a tenth of the time leaves the other alone in few. SOURCE: measured on an
/// H200: beside an endless kernel at 9:1, a launcher's 0.9 % were taken for 0.2 % during six seconds, as each surprise was followed by an interval of both.
const AGAIN_WITHIN: u32 = 5;

/// What our own calls count, in launches. SOURCE: measured: of pairs, by least squares over 309 intervals, 8.5 for a handover and 8.4 for 100 ms,
/// 16 for 100 ms in which nobody launched; by 242 others, six for a reading of the status register.
pub(super) const OWN_HANDOVER: f64 = 8.5;
pub(super) const OWN_READING: f64 = 6.0;
pub(super) const OWN_INTERVAL: (f64, Nanos) = (12.0, Nanos::from_ms(100));

/// What is kept of what words said, from one interval to the next.
const WORDS_KEPT: f64 = 0.8;

/// Words are confirmed where the GPU's own count is the same, but for so many in an interval, and so much of it. SOURCE: recordings of an H200 (55 pairs, two runs of four, two with a
/// bursty tenant): 3,719 of the 3,833 intervals are in which all words are known; most others have words that were read at another time.
const OFF_AT_ONCE: (f64, f64) = (20.0, 0.01);
/// And in the mean of some twenty in which more than one was there. SOURCE: the same: 2 to 3 in the median, 5.5 at most.
const OFF_IN_THE_MEAN: f64 = 8.0;
const MEAN_KEPT: f64 = 0.95;

/// Readings of the status register that are remembered: three seconds of the most.
const READINGS: usize = 1024;

/// Launches of all tenants.
#[derive(Debug)]
pub(super) struct Launches {
    /// How long the engine takes for each.
    each: Nanos,
    shares: IdleShares,
    /// By channels' words: of each tenant so many, in so many ns, the later the more.
    words: BTreeMap<TenantId, (f64, f64)>,
    readings: VecDeque<Moment>,
    confirmation: Confirmation,
}

/// Whether tenants' words say what the GPU counted itself. (Whoever made them differ may be gone: that is not forgotten with him, but in some intervals.)
#[derive(Debug, Default)]
struct Confirmation {
    /// How much more it counted, in the mean of those that were close.
    more: f64,
    /// The last one was.
    close: bool,
}

impl Confirmation {
    /// There were so many launches in an interval by the GPU's count, and so many as tenants say.
    fn observe(&mut self, count: f64, stays: &BTreeMap<TenantId, Stay>) {
        let said = |sum: f64, stay: &Stay| Some(sum + stay.launched?.count);
        let said = stays.values().try_fold(0.0, said);
        let more = said.map(|said| count - said);
        let most = OFF_AT_ONCE.0 + OFF_AT_ONCE.1 * count;
        let close = more.filter(|more| more.abs() <= most);
        self.close = close.is_some();
        if let Some(more) = close.filter(|_| stays.len() > 1) {
            self.more = MEAN_KEPT * self.more + (1.0 - MEAN_KEPT) * more;
        }
    }

    const fn given(&self) -> bool {
        self.close && self.more.abs() <= OFF_IN_THE_MEAN
    }
}

impl Launches {
    /// None so far; the engine takes so long for each.
    pub(super) fn new(each: Nanos) -> Self {
        Self {
            each,
            shares: IdleShares::with_noise(NOISE)
                .and_small(SMALL)
                .and_again_within(AGAIN_WITHIN),
            words: BTreeMap::new(),
            readings: VecDeque::new(),
            confirmation: Confirmation::default(),
        }
    }

    /// The status register was read.
    pub(super) fn read(&mut self, at: Moment) {
        if self.readings.len() == READINGS {
            self.readings.pop_front();
        }
        self.readings.push_back(at);
    }

    /// So many were counted from `from` to `to`, in which tenants did this; at the end of a residency that ends because he is held, one
    /// launches nothing for so long.
    pub(super) fn observe(
        &mut self,
        (from, to): (Moment, Moment),
        count: u64,
        stays: &BTreeMap<TenantId, Stay>,
        at_handover: impl Fn(TenantId) -> Nanos,
    ) {
        let length = to.since(from);
        let readings = self.readings.iter().filter(|at| (from..to).contains(at));
        let handovers: u32 = stays.values().map(|stay| stay.handovers).sum();
        let own = OWN_READING * readings.count() as f64
            + OWN_HANDOVER * f64::from(handovers)
            + OWN_INTERVAL.0 * length.0 as f64 / OWN_INTERVAL.1.0 as f64;
        let count = (count as f64 - own).max(0.0);
        self.confirmation.observe(count, stays);
        // CAST: not negative; far less than 2^63.
        let processing = Nanos((count * self.each.0 as f64) as u64);
        let launching = |(tenant, stay): (&TenantId, &Stay)| {
            let none_ns = u64::from(stay.handovers) * at_handover(*tenant).0;
            let resident = stay.resident.saturating_sub(Nanos(none_ns));
            if let Some(launched) = stay.launched {
                let (count, ns) = self.words.entry(*tenant).or_default();
                *count = *count * WORDS_KEPT + launched.count;
                *ns = *ns * WORDS_KEPT + resident.0 as f64;
            }
            let stay = Stay {
                resident,
                ..Stay::default()
            };
            (*tenant, stay)
        };
        let stays = stays.iter().map(launching).collect();
        self.shares.observe(length, processing, Nanos::ZERO, &stays);
    }

    /// Fraction of its residency in which the engine processes launches of a tenant that is idle for `idle` of it; by its channels' words, if these are believed.
    pub(super) fn fraction(&self, tenant: TenantId, idle: f64, by_words: bool) -> f64 {
        let most = idle * self.each.0 as f64 / WAIT.0 as f64;
        let words = self
            .words
            .get(&tenant)
            .filter(|(_, ns)| by_words && *ns > 0.0);
        let words = words.map(|(count, ns)| count * self.each.0 as f64 / ns);
        let fraction = words.unwrap_or_else(|| self.shares.fraction(tenant));
        fraction.min(most)
    }

    /// Whether tenants launched as often in the last interval as they say, by the GPU's own count, and did in those before in the mean.
    pub(super) const fn confirmed(&self) -> bool {
        self.confirmation.given()
    }

    /// How often a tenant launches in such a residency, as far as is known.
    pub(super) fn expected(&self, tenant: TenantId, resident: Nanos) -> f64 {
        self.shares.fraction(tenant) * resident.0 as f64 / self.each.0 as f64
    }

    /// Standard deviation of [`Self::fraction`].
    pub(super) fn uncertainty(&self, tenant: TenantId, idle: f64) -> f64 {
        self.shares
            .uncertainty(tenant)
            .min(self.fraction(tenant, idle, false))
    }

    /// What was learnt of a tenant is not true any more.
    pub(super) fn unlearn(&mut self, tenant: TenantId) {
        self.shares.unlearn(tenant);
        self.words.remove(&tenant);
    }

    /// A tenant is gone.
    pub(super) fn forget(&mut self, tenant: TenantId) {
        self.shares.forget(tenant);
        self.words.remove(&tenant);
    }
}

#[cfg(test)]
mod tests {
    use turnstile_accounting::meter::Launched;

    use super::*;
    use crate::models::H200;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);
    const MS: u64 = 1_000_000;

    /// Of 30 intervals, in which A launches so many in 100 ms of residency, and B none; turns are of this length.
    fn launched(each: u64, turn: u64) -> Launches {
        let mut launches = Launches::new(H200.launch);
        let until = |at: u64| at / (2 * turn) * turn + (at % (2 * turn)).min(turn);
        for interval in 0..30 {
            let (from, to) = (interval * 100 * MS, (interval + 1) * 100 * MS);
            let a = until(to) - until(from);
            let stay = |resident, handovers| Stay {
                resident: Nanos(resident),
                handovers,
                ..Stay::default()
            };
            let stays = BTreeMap::from([(A, stay(a, 1)), (B, stay(100 * MS - a, 1))]);
            for _ in 0..3 {
                launches.read(Moment(from + 1));
            }
            let count = each * a / (100 * MS) + 12 + 2 * 9 + 3 * 6;
            launches.observe((Moment(from), Moment(to)), count, &stays, |_| Nanos::ZERO);
        }
        launches
    }

    #[test]
    fn launches_are_whose_residency_they_go_with_and_our_own_are_nobodys() {
        let launches = launched(1_700, 41_700_000);
        let (a, b) = (
            launches.fraction(A, 0.12, false),
            launches.fraction(B, 0.12, false),
        );
        assert!((a - 0.033_15).abs() < 0.001 && b < 0.001, "{a} {b}");
        assert!(launches.uncertainty(A, 0.12) < 0.003);
    }

    #[test]
    fn who_is_seldom_alone_and_begins_to_launch_is_known_soon() {
        let mut launches = Launches::new(H200.launch);
        let mut interval = |index: u64, a_ms: u64, count: u64| {
            let (from, to) = (Moment(index * 100 * MS), Moment((index + 1) * 100 * MS));
            let stay = |resident_ms: u64| Stay {
                resident: Nanos(resident_ms * MS),
                ..Stay::default()
            };
            let stays = BTreeMap::from([(A, stay(a_ms)), (B, stay(100 - a_ms))]);
            launches.observe((from, to), count, &stays, |_| Nanos::ZERO);
            launches.fraction(A, 0.04, false)
        };
        // A rests; of B nothing is known when both begin.
        (1..9).for_each(|index| {
            interval(index, 100, 12);
        });
        let mut known = 0.0;
        for index in 10..31 {
            let a_ms = if index % 3 == 0 { 100 } else { 83 };
            known = interval(index, a_ms, 480 * a_ms / 100 + 12);
        }
        assert!((known - 0.009_36).abs() < 0.000_5, "{known}");
    }

    #[test]
    fn channels_words_say_it_where_they_are_believed() {
        let mut launches = Launches::new(H200.launch);
        for interval in 0..20 {
            let (from, to) = (
                Moment(interval * 100 * MS),
                Moment((interval + 1) * 100 * MS),
            );
            let stay = |launched: f64| Stay {
                resident: Nanos(50 * MS),
                launched: Some(Launched {
                    count: launched,
                    ..Launched::default()
                }),
                ..Stay::default()
            };
            // The GPU's own count says nothing of whose they are.
            let stays = BTreeMap::from([(A, stay(850.0)), (B, stay(0.0))]);
            launches.observe((from, to), 850 + 12, &stays, |_| Nanos::ZERO);
        }
        let a = launches.fraction(A, 0.12, true);
        assert!((a - 0.033_15).abs() < 0.000_1, "{a}");
        assert_eq!(launches.fraction(B, 0.12, true), 0.0);
        assert!(
            (launches.fraction(A, 0.12, false) - a).abs() > 0.01,
            "as much as B"
        );
        assert_eq!(
            launches.fraction(A, 0.0, true),
            0.0,
            "no more than it waited for"
        );
        launches.unlearn(A);
        assert_eq!(launches.words.get(&A), None);
    }

    /// Whether A and B are confirmed at last, of whom each launches 400 times in an interval and says so often, or nothing.
    fn confirmed(said: impl Fn(u64) -> [Option<f64>; 2]) -> bool {
        let mut launches = Launches::new(H200.launch);
        for interval in 0..40 {
            let begin = Moment(interval * 100 * MS);
            let stay = |count: Option<f64>| Stay {
                resident: Nanos(50 * MS),
                launched: count.map(|count| Launched {
                    count,
                    ..Launched::default()
                }),
                ..Stay::default()
            };
            let [a, b] = said(interval).map(stay);
            let stays = BTreeMap::from([(A, a), (B, b)]);
            let span = (begin, begin + Nanos(100 * MS));
            launches.observe(span, 800 + 12, &stays, |_| Nanos::ZERO);
        }
        launches.confirmed()
    }

    #[test]
    fn who_says_how_often_he_launched_is_confirmed() {
        assert!(confirmed(|_| [Some(400.0), Some(400.0)]));
        // Read a little before or after the end of the interval.
        let off = |interval: u64| {
            if interval.is_multiple_of(2) {
                15.0
            } else {
                -15.0
            }
        };
        assert!(confirmed(|interval| [
            Some(400.0 + off(interval)),
            Some(400.0)
        ]));
        // As often as in truth, whoever says it: foretelling has to tell.
        assert!(confirmed(|_| [Some(300.0), Some(500.0)]));
    }

    #[test]
    fn who_hides_launches_is_not_confirmed_and_neither_is_who_says_nothing() {
        let half = |interval: u64| interval.is_multiple_of(2);
        assert!(!confirmed(|_| [Some(200.0), Some(400.0)]));
        assert!(!confirmed(|_| [Some(400.0), None]));
        // So few that one interval does not show it.
        assert!(!confirmed(|_| [Some(388.0), Some(400.0)]));
        assert!(confirmed(|_| [Some(394.0), Some(400.0)]));
        // Now and then, and the last one not.
        let most = |interval| if half(interval) { 373.0 } else { 400.0 };
        assert!(!confirmed(|interval| [Some(most(interval)), Some(400.0)]));
    }

    #[test]
    fn no_more_is_taken_off_than_a_tenant_waited_for() {
        // Copies: far more than it could have waited for.
        let launches = launched(20_000, 41_700_000);
        assert!(launches.fraction(A, 0.12, false) < 0.06);
        assert_eq!(launches.fraction(A, 0.0, false), 0.0);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_who_is_gone_is_forgotten() {
        let mut launches = launched(1_700, 41_700_000);
        (0..10_000).for_each(|at| launches.read(Moment(at)));
        assert_eq!(launches.readings.len(), READINGS);
        launches.forget(A);
        assert_eq!(launches.fraction(A, 0.12, false), 0.0);
    }
}
