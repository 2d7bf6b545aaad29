//! A suspension is a lease: it ends by itself unless it is renewed. Pure; the daemon and the
//! watchdog each keep one.
//!
//! ```text
//!   Free -- hold --> Held -- renew --> Held
//!    ^                |
//!    '-- release, or no renewal within the limit --'
//! ```
//!
//! # Property
//! Channels held at `now` were renewed less than the limit ago, if [`Lease::lapsed`] was called at
//! `now`.

use std::collections::BTreeSet;

use turnstile_accounting::{Moment, Nanos};

use super::Channel;

/// Suspended channels, and when they were last renewed.
#[derive(Debug)]
pub struct Lease {
    limit: Nanos,
    renewed: Moment,
    held: BTreeSet<Channel>,
}

impl Lease {
    /// A lease on no channels.
    pub const fn new(limit: Nanos) -> Self {
        Self {
            limit,
            renewed: Moment(0),
            held: BTreeSet::new(),
        }
    }

    /// Adds channels that are about to be suspended, and renews the lease.
    pub fn hold(&mut self, channels: &[Channel], now: Moment) {
        self.renew(now);
        self.held.extend(channels);
    }

    /// Removes channels that were resumed, and renews the lease.
    pub fn release(&mut self, channels: &[Channel], now: Moment) {
        self.renew(now);
        for channel in channels {
            self.held.remove(channel);
        }
    }

    /// Renews the lease: the holder is alive.
    pub fn renew(&mut self, now: Moment) {
        self.renewed = self.renewed.max(now);
    }

    /// Time since the lease was last renewed, in any of these ways.
    pub(crate) fn renewed_ago(&self, now: Moment) -> Nanos {
        now.since(self.renewed)
    }

    /// When the lease ends; None if nothing is held.
    pub fn ends(&self) -> Option<Moment> {
        (!self.held.is_empty()).then_some(self.renewed + self.limit)
    }

    /// The channels to resume if the lease has ended by `now`; they are not held any more.
    pub(crate) fn lapsed(&mut self, now: Moment) -> Vec<Channel> {
        match self.ends() {
            Some(end) if now >= end => self.end(),
            _ => Vec::new(),
        }
    }

    /// All channels, to be resumed because the holder is gone; they are not held any more.
    pub fn end(&mut self) -> Vec<Channel> {
        std::mem::take(&mut self.held).into_iter().collect()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: Nanos = Nanos::from_ms(500);

    const fn channel(handle: u32) -> Channel {
        Channel { client: 1, handle }
    }

    const fn ms(ms: u64) -> Moment {
        Moment(ms * 1_000_000)
    }

    #[test]
    fn what_is_not_renewed_lapses() {
        let mut lease = Lease::new(LIMIT);
        assert_eq!(lease.ends(), None);
        lease.hold(&[channel(1), channel(2)], ms(0));
        lease.renew(ms(400));
        assert!(lease.lapsed(ms(899)).is_empty());
        assert_eq!(lease.lapsed(ms(900)), [channel(1), channel(2)]);
        assert!(lease.is_empty() && lease.lapsed(ms(2000)).is_empty());
    }

    #[test]
    fn what_is_released_is_not_resumed_again() {
        let mut lease = Lease::new(LIMIT);
        lease.hold(&[channel(1), channel(2)], ms(0));
        lease.release(&[channel(1)], ms(1));
        assert_eq!(lease.end(), [channel(2)]);
    }

    proptest! {
        /// Law 8 on a virtual clock: nothing is held for longer than the limit after the last sign
        /// of life.
        #[test]
        fn nothing_outlives_its_holder(steps in prop::collection::vec((0u8..3, 0u32..5, 0u64..700), 1..100)) {
            let mut lease = Lease::new(LIMIT);
            let (mut now, mut sign) = (ms(0), ms(0));
            for (what, handle, later) in steps {
                now = now + Nanos::from_ms(later);
                lease.lapsed(now);
                if now.since(sign) >= LIMIT {
                    prop_assert!(lease.is_empty());
                }
                match what {
                    0 => lease.hold(&[channel(handle)], now),
                    1 => lease.release(&[channel(handle)], now),
                    _ => lease.renew(now),
                }
                sign = now;
                prop_assert!(lease.ends().is_none_or(|end| end > now));
            }
        }
    }
}
