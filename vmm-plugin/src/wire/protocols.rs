//! Versions of the protocol that a side speaks, and the choice of one that both do.
//!
//! A peer that connects sends [`super::ToDaemon::Offer`] with its range; the daemon answers with
//! the newest version that both speak, or refuses with both ranges. The peer's greeting then is of
//! that version. Host and VMM are thus upgraded one at a time.

use super::{ToVmm, frame};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Newest version of the protocol.
///
/// | version | what is new |
/// |---|---|
/// | 2 | |
/// | 3 | [`super::ToDaemon::Offer`], [`super::ToVmm::Chosen`] |
/// | 3 | [`super::ToVmm::Waiting`], [`super::Gpus`] |
pub const PROTOCOL: u32 = 3;

/// First version in which a launcher names GPUs, and in which its answer has them.
pub const GPUS_SINCE: u32 = 3;

/// Last version without an offer. A daemon of it refuses an offer as no message of the protocol,
/// and a peer of it greets at once.
pub(crate) const WITHOUT_OFFER: u32 = 2;

/// A range of versions, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Protocols {
    /// The newest.
    pub newest: u32,
    /// The oldest.
    pub oldest: u32,
}

/// Two sides speak no version in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("The peer speaks protocol {theirs}, this daemon {ours}: update the {}", self.older())]
pub struct NoCommonProtocol {
    /// The daemon's.
    pub ours: Protocols,
    /// The peer's.
    pub theirs: Protocols,
}

impl NoCommonProtocol {
    /// The side that is to be updated.
    const fn older(&self) -> &'static str {
        if self.theirs.newest < self.ours.oldest {
            "VMM or launcher"
        } else {
            "daemon"
        }
    }
}

impl Protocols {
    /// Those of this build: the newest and the one before it.
    pub const SPOKEN: Self = Self {
        newest: PROTOCOL,
        oldest: PROTOCOL - 1,
    };

    /// One version alone.
    pub const fn only(version: u32) -> Self {
        Self {
            newest: version,
            oldest: version,
        }
    }

    /// Whether `version` is among them.
    pub const fn contains(self, version: u32) -> bool {
        self.oldest <= version && version <= self.newest
    }

    /// The newest version that this side, a daemon, and its peer speak.
    ///
    /// # Errors
    /// If there is none.
    pub fn choose(self, theirs: Self) -> Result<u32, NoCommonProtocol> {
        let newest = self.newest.min(theirs.newest);
        if self.contains(newest) && theirs.contains(newest) {
            Ok(newest)
        } else {
            Err(NoCommonProtocol { ours: self, theirs })
        }
    }
}

/// How a peer goes on after the answer to its offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreed {
    /// It greets the daemon in this version.
    Here(u32),
    /// The daemon knows no offer, and has closed: the peer connects again, and greets it in this
    /// version without an offer.
    Anew(u32),
}

impl Protocols {
    /// What the answer to an offer of these versions means; none for a refusal, or for an answer
    /// that a daemon must not give.
    pub fn agreed(self, answer: &ToVmm) -> Option<Agreed> {
        match answer {
            ToVmm::Chosen { protocol } if self.contains(*protocol) => Some(Agreed::Here(*protocol)),
            ToVmm::Refused { text }
                if text.starts_with(frame::FORMAT) && self.contains(WITHOUT_OFFER) =>
            {
                Some(Agreed::Anew(WITHOUT_OFFER))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Protocols {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.oldest == self.newest {
            write!(f, "{}", self.newest)
        } else {
            write!(f, "{} to {}", self.oldest, self.newest)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn range(oldest: u32, newest: u32) -> Protocols {
        Protocols { newest, oldest }
    }

    #[test]
    fn newest_common_version_is_chosen() {
        for (ours, theirs, chosen) in [
            (range(2, 3), range(2, 3), Some(3)),
            (range(2, 3), range(3, 4), Some(3)),
            (range(3, 4), range(2, 3), Some(3)),
            (range(2, 3), range(2, 2), Some(2)),
            (range(2, 2), range(2, 3), Some(2)),
            (range(1, 9), range(4, 5), Some(5)),
            (range(2, 3), range(4, 5), None),
            (range(4, 5), range(2, 3), None),
            // No ranges.
            (range(2, 3), range(3, 2), None),
            (range(2, 3), range(9, 3), None),
        ] {
            assert_eq!(ours.choose(theirs).ok(), chosen, "{ours:?} {theirs:?}");
        }
    }

    #[test]
    fn refusal_names_both_ranges_and_the_side_to_be_updated() {
        let text = |ours: Protocols, theirs| ours.choose(theirs).unwrap_err().to_string();
        assert_eq!(
            text(range(3, 4), range(1, 2)),
            "The peer speaks protocol 1 to 2, this daemon 3 to 4: update the VMM or launcher"
        );
        assert_eq!(
            text(range(2, 3), range(4, 4)),
            "The peer speaks protocol 4, this daemon 2 to 3: update the daemon"
        );
    }

    #[test]
    fn this_build_speaks_two_versions() {
        let Protocols { newest, oldest } = Protocols::SPOKEN;
        assert_eq!(newest, oldest + 1);
        // Once this fails, no peer without an offer is left: the code for it goes.
        assert_eq!(oldest, WITHOUT_OFFER);
    }

    /// As the daemon of protocol 2 answers any frame that it does not know, up to serde's text.
    const UNKNOWN: &str = "Frame is not a message of the protocol: unknown variant `offer`";

    #[test]
    fn answer_to_an_offer_is_a_version_of_it_or_of_a_daemon_without_offers() {
        let chosen = |protocol| ToVmm::Chosen { protocol };
        let refused = |text: &str| ToVmm::Refused { text: text.into() };
        for (spoken, answer, agreed) in [
            (range(2, 3), chosen(3), Some(Agreed::Here(3))),
            (range(2, 3), chosen(2), Some(Agreed::Here(2))),
            (range(2, 3), chosen(4), None),
            (range(2, 3), chosen(1), None),
            (range(2, 3), refused(UNKNOWN), Some(Agreed::Anew(2))),
            (range(3, 4), refused(UNKNOWN), None),
            (
                range(2, 3),
                refused("The host has 1 tenants, which is its limit"),
                None,
            ),
            (
                range(2, 3),
                ToVmm::Admitted {
                    tenant: 1,
                    gpus: Vec::new(),
                },
                None,
            ),
        ] {
            assert_eq!(spoken.agreed(&answer), agreed, "{answer:?}");
        }
    }

    proptest! {
        #[test]
        fn choice_is_the_greatest_element_of_both(
            a in 0u32..12, b in 0u32..12, c in 0u32..12, d in 0u32..12,
        ) {
            let (ours, theirs) = (range(a, b), range(c, d));
            let common = (0..12).rev().find(|v| ours.contains(*v) && theirs.contains(*v));
            prop_assert_eq!(ours.choose(theirs).ok(), common);
            prop_assert_eq!(theirs.choose(ours).ok(), common);
        }
    }
}
