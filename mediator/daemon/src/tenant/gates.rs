//! The daemon's book of one VM's gates: the wanted state, the known state, and the pending request.
//!
//! A move takes a round trip to the VMM, which acknowledges it when it is done. At most one request
//! per channel is pending. A decision made meanwhile is sent after the answer, if it still differs.
//! The traffic is therefore bounded by the number of channels, however fast decisions change.

use std::collections::BTreeMap;

use turnstile_vmm::gate::GateState;

/// A request to the VMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateMove {
    /// Channel.
    pub channel: u32,
    /// Number of the request.
    pub seq: u64,
    /// Where to.
    pub state: GateState,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    wanted: GateState,
    /// Last state that the VMM acknowledged; none before the first answer.
    acknowledged: Option<GateState>,
    under_way: Option<(u64, GateState)>,
    /// A write may have opened it since the last request was sent.
    opened: bool,
    trapped: u64,
}

/// The book.
#[derive(Debug, Default)]
pub struct GateBook {
    gates: BTreeMap<u32, Entry>,
    next_seq: u64,
    /// Doorbell writes that trapped at gates of channels closed since.
    trapped_before: u64,
    moves: u64,
}

impl GateBook {
    /// Takes a new channel; returns the request that makes its gate.
    pub fn add(&mut self, channel: u32, state: GateState) -> Option<GateMove> {
        let entry = Entry {
            wanted: state,
            acknowledged: None,
            under_way: None,
            opened: false,
            trapped: 0,
        };
        self.gates.insert(channel, entry);
        self.next_move(channel)
    }

    /// Removes a channel.
    pub fn remove(&mut self, channel: u32) {
        if let Some(entry) = self.gates.remove(&channel) {
            self.trapped_before += entry.trapped;
        }
    }

    /// Sets the wanted state of the gate of `channel`; returns the request to send now, if any.
    pub fn set(&mut self, channel: u32, state: GateState) -> Option<GateMove> {
        self.gates.get_mut(&channel)?.wanted = state;
        self.next_move(channel)
    }

    /// The VMM acknowledged request `seq`; returns the next request, if any. Other answers are
    /// ignored.
    pub fn done(&mut self, channel: u32, seq: u64, trapped: u64) -> Option<GateMove> {
        let entry = self.gates.get_mut(&channel)?;
        match entry.under_way {
            Some((waited_for, state)) if waited_for == seq => {
                // If a write has opened the gate after the request, the answer is no longer its
                // state.
                entry.acknowledged = (!entry.opened).then_some(state);
                entry.under_way = None;
                entry.trapped = entry.trapped.max(trapped);
            }
            _ => return None,
        }
        self.next_move(channel)
    }

    fn next_move(&mut self, channel: u32) -> Option<GateMove> {
        let entry = self.gates.get_mut(&channel)?;
        if entry.under_way.is_some() || entry.acknowledged == Some(entry.wanted) {
            return None;
        }
        self.next_seq += 1;
        self.moves += 1;
        entry.under_way = Some((self.next_seq, entry.wanted));
        entry.opened = false;
        Some(GateMove {
            channel,
            seq: self.next_seq,
            state: entry.wanted,
        })
    }

    /// A write passed some gate. If it was watched it is open since then, and the VMM does not
    /// report which one it was: none counts as watched until the VMM has confirmed it again. This
    /// may arrive before the answer to the request that preceded the write.
    pub fn woke(&mut self) {
        for entry in self.gates.values_mut() {
            let stands = entry.acknowledged == Some(GateState::Watched);
            let moves = matches!(entry.under_way, Some((_, GateState::Watched)));
            if stands {
                entry.acknowledged = None;
            }
            entry.opened |= stands || moves;
        }
    }

    /// Channels that have a gate.
    pub fn channels(&self) -> impl Iterator<Item = u32> + '_ {
        self.gates.keys().copied()
    }

    /// The wanted state of the gate of `channel`.
    pub fn wanted(&self, channel: u32) -> Option<GateState> {
        self.gates.get(&channel).map(|entry| entry.wanted)
    }

    /// Whether a doorbell write might pass a gate unseen: it is open, may be, or is moving to or
    /// from open.
    pub fn any_open(&self) -> bool {
        self.gates.values().any(|entry| {
            entry.wanted == GateState::Open
                || entry.acknowledged == Some(GateState::Open)
                || entry.opened
                || entry
                    .under_way
                    .is_some_and(|(_, state)| state == GateState::Open)
        })
    }

    /// Whether a gate is about to open: its kept doorbells are then announced before anything else
    /// happens.
    pub(crate) fn any_opening(&self) -> bool {
        self.gates.values().any(|entry| {
            entry.wanted == GateState::Open && entry.acknowledged != Some(GateState::Open)
        })
    }

    /// Doorbell writes that trapped, as the VMM counted them.
    pub fn trapped(&self) -> u64 {
        self.trapped_before + self.gates.values().map(|entry| entry.trapped).sum::<u64>()
    }

    /// Requests sent.
    pub const fn moves(&self) -> u64 {
        self.moves
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use GateState::{Closed, Open, Watched};
    use proptest::prelude::*;

    #[test]
    fn one_request_at_a_time_and_the_last_decision_wins() {
        let mut book = GateBook::default();
        let first = book.add(3, Watched).unwrap();
        assert_eq!(book.set(3, Open), None);
        assert_eq!(book.set(3, Closed), None);
        let second = book.done(3, first.seq, 0).unwrap();
        assert_eq!(second.state, Closed);
        assert_eq!(book.done(3, second.seq, 5), None);
        assert_eq!((book.trapped(), book.moves()), (5, 2));
        assert_eq!(book.set(3, Closed), None, "it stands there already");
    }

    /// The order that lost a doorbell. The VMM watches, a write opens the gate, and its kick
    /// arrives before the answer. The gate is to be watched when the answer arrives, and is not.
    #[test]
    fn gate_opened_by_a_write_is_watched_only_after_a_new_request() {
        let mut book = GateBook::default();
        let made = book.add(0, Open).unwrap();
        assert_eq!(book.done(0, made.seq, 0), None);
        let watch = book.set(0, Watched).unwrap();
        book.woke();
        assert_eq!(book.set(0, Open), None);
        assert_eq!(book.set(0, Watched), None);
        assert!(book.any_open(), "writes are not reported");
        let again = book.done(0, watch.seq, 1).unwrap();
        assert_eq!(again.state, Watched);
        assert_eq!(book.done(0, again.seq, 1), None);
        assert!(!book.any_open());
        book.woke();
        assert!(book.any_open());
        assert_eq!(
            book.set(0, Watched).map(|request| request.state),
            Some(Watched)
        );
    }

    #[test]
    fn answers_without_a_pending_request_are_ignored() {
        let mut book = GateBook::default();
        let made = book.add(0, Closed).unwrap();
        assert_eq!(book.done(0, made.seq + 1, 9), None);
        assert_eq!(book.done(7, made.seq, 9), None);
        assert_eq!(book.trapped(), 0);
        assert_eq!(book.done(0, made.seq, 9), None);
        assert_eq!(book.done(0, made.seq, 99), None);
        assert_eq!(book.trapped(), 9);
    }

    proptest! {
        #[test]
        fn when_all_is_answered_the_gate_stands_as_wanted(decisions in proptest::collection::vec((0u8..3, any::<bool>()), 1..60)) {
            let mut book = GateBook::default();
            let mut stands = None;
            let mut pending = book.add(0, Watched);
            for (decision, answer) in decisions {
                let state = [Open, Watched, Closed][usize::from(decision)];
                let sent = book.set(0, state);
                prop_assert!(pending.is_none() || sent.is_none(), "two requests under way");
                pending = pending.or(sent);
                if answer && let Some(request) = pending.take() {
                    stands = Some(request.state);
                    pending = book.done(0, request.seq, 0);
                }
            }
            while let Some(request) = pending.take() {
                stands = Some(request.state);
                pending = book.done(0, request.seq, 0);
            }
            prop_assert_eq!(stands, book.wanted(0));
        }
    }
}
