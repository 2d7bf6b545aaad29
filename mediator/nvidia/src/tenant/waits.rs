//! Waits that keep the host unit from the neighbours of a tenant. Pure.
//!
//! Some waits between streams keep the host unit for most of the waiting group's slice. The tenant
//! never comes to the engine, and a neighbour loses 29 to 90 % of its rate. A short time slice for
//! the waiting tenant ends that.
//!
//! The sign, measured on H100 and H200: in all of 20 readings one channel has something queued and
//! bits 9, 11 and 12 clear, and no channel of the tenant has bit 9 or 11. A wait that sets bit 12
//! does no harm.
//!
//! ```text
//!   Harmless --like--> Suspected --20 readings in which one channel is like--> Blocking
//!      ^ <-- preempted, works, resident, or no channel is like -'                     |
//!      '<---------------- preempted, works, resident, or nothing is queued -----------'
//! ```
//!
//! In: status words of the tenant's channels, one reading a poll. Out: whether it blocks.

use crate::observe::ChannelStatus;
use turnstile_accounting::Nanos;

/// Readings in a row that have to agree. SOURCE: measured: harmful waits show bit 12 in at most 2 %
/// of readings, harmless ones in at least 89 %.
const READINGS: u8 = 20;

/// What the readings show of a tenant's waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Waits {
    /// No reading, or one that a harmful wait does not give.
    #[default]
    Harmless,
    /// These channels, by place, had the sign in so many readings in a row.
    Suspected { channels: u64, readings: u8 },
    /// It keeps the host unit.
    Blocking,
}

impl Waits {
    /// Takes a reading of all channels, at most 64.
    pub(crate) fn after(self, words: &[ChannelStatus]) -> Self {
        let queued = words.iter().any(|word| word.is_queued());
        if !queued || words.iter().any(|word| word.is_preempted() || word.works()) {
            return Self::Harmless;
        }
        let like = |word: &ChannelStatus| word.is_queued() && !word.waits();
        let places = words.iter().zip(0..u64::BITS);
        let now = places.filter(|(word, _)| like(word));
        let now = now.fold(0, |channels, (_, place)| channels | 1_u64 << place);
        let (channels, readings) = match self {
            Self::Blocking => return self,
            Self::Suspected { channels, readings } if channels & now != 0 => {
                (channels & now, readings + 1)
            }
            _ => (now, 1),
        };
        match (channels, readings) {
            (0, _) => Self::Harmless,
            (_, READINGS..) => Self::Blocking,
            _ => Self::Suspected { channels, readings },
        }
    }

    /// A window has ended in which it was resident for so long. A tenant that only waits never is;
    /// one among many that work may be off the engine in all of the readings.
    pub(crate) fn after_window(self, resident: Nanos) -> Self {
        let works = resident > Nanos::ZERO;
        if works { Self::Harmless } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Words as measured: a harmful wait, a harmless one, at work, preempted, nothing queued.
    const HARMFUL: ChannelStatus = ChannelStatus(0x44e);
    const HARMLESS: ChannelStatus = ChannelStatus(0x144e);
    const WORKS: ChannelStatus = ChannelStatus(0x8ce);
    const PREEMPTED: ChannelStatus = ChannelStatus(0x24e);
    const EMPTY: ChannelStatus = ChannelStatus(0x2);

    fn read(waits: Waits, words: &[ChannelStatus], times: u8) -> Waits {
        (0..times).fold(waits, |waits, _| waits.after(words))
    }

    #[test]
    fn one_channel_with_the_sign_in_twenty_readings_blocks() {
        let words = [HARMLESS, HARMFUL, EMPTY];
        let almost = read(Waits::default(), &words, READINGS - 1);
        let expected = Waits::Suspected {
            channels: 0b10,
            readings: 19,
        };
        assert_eq!(almost, expected);
        assert_eq!(almost.after(&words), Waits::Blocking);
        assert_eq!(almost.after(&[HARMLESS, HARMLESS, EMPTY]), Waits::Harmless);
    }

    #[test]
    fn a_wait_that_sets_bit_12_and_an_idle_tenant_do_not_block() {
        for words in [[HARMLESS, EMPTY], [EMPTY, EMPTY]] {
            assert_eq!(read(Waits::default(), &words, 200), Waits::Harmless);
        }
        // Two channels that take turns are two waits, each of which sets bit 12.
        let turns = [[HARMFUL, HARMLESS], [HARMLESS, HARMFUL]];
        let waits = (0..200).fold(Waits::default(), |waits, n| waits.after(&turns[n % 2]));
        assert_ne!(waits, Waits::Blocking);
    }

    #[test]
    fn work_ends_it_and_a_single_reading_with_bit_12_does_not() {
        let blocking = read(Waits::default(), &[HARMFUL], READINGS);
        assert_eq!(blocking.after(&[HARMLESS]), Waits::Blocking);
        for words in [WORKS, PREEMPTED, EMPTY] {
            assert_eq!(blocking.after(&[words]), Waits::Harmless);
        }
        assert_eq!(blocking.after_window(Nanos::ZERO), blocking);
        // What a slice of 20 us beside many neighbours shows of work.
        assert_eq!(blocking.after_window(Nanos::from_us(20)), Waits::Harmless);
    }

    proptest! {
        /// A tenant that blocks had something queued and none at work in the last 20 readings.
        #[test]
        fn a_tenant_at_work_in_one_of_20_readings_never_blocks(
            rounds in prop::collection::vec(
                prop::collection::vec(prop::sample::select(vec![HARMFUL, HARMLESS, WORKS, PREEMPTED, EMPTY]), 1..4),
                1..400,
            ),
            working in 1_u32..60,
        ) {
            let (mut waits, mut in_a_row) = (Waits::default(), 0);
            for (words, number) in rounds.iter().zip(0..) {
                // Most readings show no work, so that a row of 20 is reached.
                let at_work = |word: &ChannelStatus| word.works() || word.is_preempted();
                let words: Vec<ChannelStatus> = words
                    .iter()
                    .map(|word| if at_work(word) && number % working != 0 { HARMFUL } else { *word })
                    .collect();
                waits = waits.after(&words);
                let free = !words.iter().any(at_work) && words.iter().any(|word| word.is_queued());
                in_a_row = if free { in_a_row + 1 } else { 0 };
                prop_assert!(waits != Waits::Blocking || in_a_row >= u32::from(READINGS));
            }
        }
    }
}
