//! What is estimated of tenants, and what it says of how long they are idle.

use crate::units::{Nanos, TenantId};

/// Standard deviation by which a fraction may change in an interval of the counters: for one that is idle, in parts of it. SOURCE: measured: from one
/// interval to the next, the pauses of one who launches and waits are 1 to 3 % longer or shorter; kernels that do not end have none.
const WALK: (f64, f64) = (0.000_3, 0.02);
/// The same of the time for a launch. SOURCE: 27 recordings of four tenants on an H200, replayed: the same within a tenth with half or twice of it.
const LAUNCH_WALK: f64 = 0.000_15;
/// Standard deviation of a pause that is no change: for one that is idle, in parts of it. Whoever waits more often is more likely to have waited for longer.
const PAUSED: (f64, f64) = (0.002, 0.5);
/// Standard deviation of a change: for one that is idle, in parts of it. Whoever is idle more is more likely to be it.
const CHANGED: (f64, f64) = (0.02, 0.5);
/// The same of the time for a launch.
const LAUNCH_CHANGED: f64 = 0.3;
/// Fewer launches in an interval, or longer ones, say less of it than how long the tenant was there: of the one at either end it is not known how much lies in it.
const LAUNCHES_MIN: f64 = 4.0;
const LAUNCH_NS_MAX: f64 = 1_000_000.0;
/// The same of one of whom it is not known when he stopped: that says less. (Longer kernels do not end before another comes. SOURCE: recordings of an H200, decision 045.)
const DOUBTED_NS_MAX: f64 = 2_100_000.0;
/// What is kept of how often one launches, from one interval to the next, and in how many it has to be seen. As many intervals as [`super::HICCUP`] asks for.
const USUAL_KEPT: f64 = 0.8;
const USUAL_SEEN: u32 = 5;
/// For how long the engine is idle between two launches, as far as nothing is known, and its standard deviation, in ns. SOURCE: 55 pairs on an H200, by the kernels' own time stamps: from the end of one
/// to the begin of the next it is 9.6 us for kernels of 50 us, 10.0 for 200, 12.5 for 2 ms, of which counters call 2 busy. Programs may do more in between; charges are the same with 50 to 100 us.
const GAP_NS: (f64, f64) = (8_000.0, 50_000.0);
/// That is believed of who launched so often, or was there for so long and launched less. SOURCE: the same recordings, replayed: charges are the same from 6 to 10 times, and 0.08 instead of 0.07 % wrong with 15.
const BEGAN: (f64, Nanos) = (10.0, Nanos::from_ms(100));

/// Idle time at a handover, at most, and for a fraction of idle time: from being taken off the schedule a tenant launches nothing, and
/// runs what it has. Whoever launches and waits has pauses of about the same length, so that short kernels, of which little
/// is left, go with large fractions. SOURCE: measured on an H200, 80 handovers each: 268 us for kernels of 50 us (12 % idle), 171 for 200 us
/// (4 %), 21 for 2 ms (0.5 %), none for those that do not end.
const HANDOVER_MAX: Nanos = Nanos::from_us(270);
const HANDOVER: Nanos = Nanos::from_ms(6);

/// What a tenant launched in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Launched {
    /// How often. Not whole where it was counted a little before or after an end.
    pub count: f64,
    /// Whether it was resident, and so at a launch, when the interval began, and when it ended.
    pub at_ends: (bool, bool),
    /// Standard deviation of how many of them were launched until it ended; that it began with is of the one before.
    pub off: f64,
}

/// What tenants did in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stay {
    /// How long it was resident.
    pub resident: Nanos,
    /// So long of that in stays each of which ended with its first pause, so that he was not idle in them.
    pub unpaused: Nanos,
    /// How many of its residencies ended because it is held.
    pub handovers: u32,
    /// Standard deviation of how long it had work there, where it was seen without and it is not known since when.
    pub doubt: Nanos,
    /// What it launched there, if that was counted.
    pub launched: Option<Launched>,
}

impl Stay {
    /// How long it was resident and may have been idle for a fraction of it, in ns.
    const fn paused_ns(&self) -> f64 {
        self.resident.0.saturating_sub(self.unpaused.0) as f64
    }

    /// Launches that are enough to say something of it.
    fn enough(&self) -> Option<Launched> {
        let launched = self.launched;
        launched.filter(|launched| launched.count >= LAUNCHES_MIN)
    }

    /// Launches that say more of it than its length.
    pub(super) fn launches(&self) -> Option<Launched> {
        let resident = self.resident.0 as f64;
        let most = if self.doubt == Nanos::ZERO {
            LAUNCH_NS_MAX
        } else {
            DOUBTED_NS_MAX
        };
        let enough = self.enough();
        enough.filter(|launched| resident < most * launched.count)
    }
}

/// How long one who is idle for this fraction of his residency is idle at the end of one that ends because he is held, in ns.
pub(super) fn handover_ns(fraction: f64) -> f64 {
    (HANDOVER.0 as f64 * fraction).min(HANDOVER_MAX.0 as f64)
}

/// How long one who is idle for this fraction of his residency is idle in a stay, in ns.
pub(super) fn usual_ns(fraction: f64, stay: &Stay) -> f64 {
    fraction * stay.paused_ns() + handover_ns(fraction) * f64::from(stay.handovers)
}

/// What is estimated of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Estimate {
    /// The fraction of its residency in which it is idle.
    Idle,
    /// How long a launch takes, in ns.
    Launch,
    /// What is left, in ns, of the launch that ran when an interval ended. It is nobody's.
    Left,
    /// For how much longer it was idle in all than was told, in ns.
    Sum,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) tenant: TenantId,
    pub(super) estimate: Estimate,
    pub(super) value: f64,
    /// How many intervals ago it was resident.
    pub(super) unseen: u32,
    /// Of how many intervals it told.
    pub(super) told: u32,
    /// For how long the tenant is there for each of its launches.
    pub(super) usual: Usual,
    /// What it launched before that was enough.
    pub(super) beginning: Beginning,
}

/// What a tenant launched since nothing was known of him: who launches each 2 ms is hardly idle for a tenth of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Beginning {
    resident_ns: f64,
    launches: f64,
    /// It was enough.
    is_over: bool,
}

impl Beginning {
    /// Takes a stay. Once there are enough, the fraction of which he is idle as far as launches say, and its variance.
    pub(super) fn observe(&mut self, stay: &Stay) -> Option<(f64, f64)> {
        let launched = stay
            .launched
            .filter(|_| stay.doubt == Nanos::ZERO && !self.is_over)?;
        self.resident_ns += stay.resident.0 as f64;
        self.launches += launched.count;
        let launches = if self.launches >= BEGAN.0 {
            self.launches
        } else if self.resident_ns > BEGAN.1.0 as f64 {
            // The one that goes on.
            self.launches + 1.0
        } else {
            return None;
        };
        self.is_over = true;
        let each_ns = self.resident_ns / launches;
        let deviation = GAP_NS.1 / each_ns;
        Some((GAP_NS.0 / each_ns, deviation * deviation))
    }
}

/// For how long a tenant is there for each of its launches, however long they are: who launches as often as he does otherwise has not paused.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usual {
    each_ns: f64,
    /// In so many intervals.
    seen: u32,
}

impl Usual {
    /// Launches of a stay, those at its ends by half.
    fn launches(stay: &Stay) -> Option<f64> {
        let launched = stay.enough()?;
        let (began, ended) = launched.at_ends;
        let cut = f64::from(i8::from(began) - i8::from(ended));
        Some(launched.count + cut / 2.0)
    }

    /// There was no pause in this one that is known of.
    pub(super) fn observe(&mut self, stay: &Stay) {
        if let Some(count) = Self::launches(stay) {
            let each_ns = stay.resident.0 as f64 / count;
            let kept = if self.seen == 0 { 0.0 } else { USUAL_KEPT };
            self.each_ns = kept * self.each_ns + (1.0 - kept) * each_ns;
            self.seen = self.seen.saturating_add(1);
        }
    }

    /// Whether he launched too often in a stay for so much of it to have been a pause (or too seldom for so much of one to be missing).
    pub(super) fn excludes(&self, stay: &Stay, paused_ns: f64) -> bool {
        let Some(count) = Self::launches(stay).filter(|_| self.seen >= USUAL_SEEN) else {
            return false;
        };
        let own_ns = stay.resident.0 as f64 - count * self.each_ns;
        (own_ns * paused_ns.signum() + self.each_ns) < paused_ns.abs() / 2.0
    }
}

impl Known {
    /// How long the tenant is idle in a stay, in ns.
    pub(super) fn idle_ns(&self, stay: &Stay) -> f64 {
        match (self.estimate, stay.launched) {
            (Estimate::Launch, Some(launched)) => {
                stay.resident.0 as f64 - self.value * launched.count
            }
            _ => usual_ns(self.value, stay),
        }
    }

    /// By how much that grows with what is estimated.
    pub(super) fn grows(&self, stay: &Stay) -> f64 {
        match (self.estimate, stay.launched) {
            (Estimate::Launch, Some(launched)) => -launched.count,
            _ => {
                let grows = if handover_ns(self.value) < HANDOVER_MAX.0 as f64 {
                    HANDOVER.0 as f64
                } else {
                    0.0
                };
                stay.paused_ns() + grows * f64::from(stay.handovers)
            }
        }
    }

    /// What may be left of its launch at an end of an interval, if it was there: in the mean, and its variance, in ns.
    pub(super) fn left(&self, there: bool, off: f64) -> (f64, f64) {
        let off = self.value * off;
        match self.estimate {
            Estimate::Launch if there => {
                let variance = self.value * self.value / 12.0;
                (self.value / 2.0, variance + off * off)
            }
            Estimate::Launch => (0.0, off * off),
            _ => (0.0, 0.0),
        }
    }

    /// Standard deviation by which what is estimated may change in an interval of the counters.
    pub(super) fn walk(&self) -> f64 {
        match self.estimate {
            Estimate::Idle => WALK.0 + WALK.1 * self.value,
            Estimate::Launch => LAUNCH_WALK * self.value,
            Estimate::Left | Estimate::Sum => 0.0,
        }
    }

    /// That of a change that is seen in a stay, in which the fraction is off by this at least.
    pub(super) fn change(&self, stay: &Stay, least: f64) -> f64 {
        match (self.estimate, stay.launched) {
            (Estimate::Launch, Some(launched)) => {
                LAUNCH_CHANGED * stay.resident.0 as f64 / launched.count
            }
            _ => (CHANGED.0 + CHANGED.1 * self.value).max(least),
        }
    }

    /// Standard deviation of a pause in a stay that is no change, in ns.
    pub(super) fn pause_ns(&self, stay: &Stay) -> f64 {
        let fraction = match self.estimate {
            // One that was moved beyond its bound with another.
            Estimate::Idle => self.value.max(0.0),
            Estimate::Launch | Estimate::Left | Estimate::Sum => 0.0,
        };
        (PAUSED.0 + PAUSED.1 * fraction) * stay.paused_ns()
    }
}
