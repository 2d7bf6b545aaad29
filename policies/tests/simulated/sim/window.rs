//! The wait of the first guest for its part: its worst window, and the time with work.

use super::Sim;
use turnstile_accounting::Demand;

pub(super) const BILLION: i128 = 1_000_000_000;

/// The worst window of one guest: what it lacks of its entitled part of all service.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shortfall {
    pub(super) least: i128,
    pub(super) worst: i128,
}

impl Sim {
    /// Sets the first guest's part of all service, for the worst window.
    ///
    /// Each arrival of its work forgives `per_arrival_ns`.
    pub(crate) fn entitle(&mut self, part: f64, per_arrival_ns: u64) {
        self.forgiven_ns = per_arrival_ns;
        // CAST: a part of one has at most ten digits in billionths.
        self.entitled_ppb = (part * BILLION as f64) as i128;
        self.shortfall = Shortfall {
            least: self.lacks(),
            worst: 0,
        };
    }

    /// What the first guest lacked in the worst window.
    pub(crate) fn shortfall_ns(&self) -> u64 {
        u64::try_from(self.shortfall.worst / BILLION).unwrap_or(0)
    }

    /// The number of arrivals of a guest's work, and the time in which it had work.
    pub(crate) fn wanted(&self, index: usize) -> (u64, u64) {
        let channel = &self.channels[index];
        let wants = channel.demand != Demand::Nothing;
        let since = if wants { channel.arrived_at } else { self.now };
        (channel.arrivals, channel.wanted_ns + self.now - since)
    }

    pub(super) fn lacks(&self) -> i128 {
        let all: u64 = self.totals.iter().sum();
        let forgiven = self.forgiven_ns * self.channels[0].arrivals;
        i128::from(all) * self.entitled_ppb - i128::from(self.totals[0] + forgiven) * BILLION
    }

    /// Charges a guest for service until now.
    pub(super) fn served(&mut self, guest: usize, since: u64) {
        self.totals[guest] += self.now - since;
        let lacks = self.lacks();
        self.shortfall.least = self.shortfall.least.min(lacks);
        self.shortfall.worst = self.shortfall.worst.max(lacks - self.shortfall.least);
    }
}
