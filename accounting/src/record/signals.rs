//! The signals that a record is based on.
//!
//! In: the signals of each usage. Out: their set, as bits in the store and as names in exports.

use crate::usage::Signals;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// The signals that a record is based on: some of [`Signals`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SignalSet(u8);

impl SignalSet {
    const ALL: [(u8, &'static str); 4] = [
        (1, "events"),
        (2, "polled"),
        (4, "extrapolated"),
        (8, "counters"),
    ];

    /// This set with one more signal.
    #[must_use]
    pub fn with(self, signals: Signals) -> Self {
        let bits = match signals {
            Signals::Events => 1,
            Signals::Polled => 2,
            Signals::Extrapolated => 4,
            Signals::EventsAndCounters => 1 | 8,
        };
        Self(self.0 | bits)
    }

    /// As a number: one bit each.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The set of these bits, if all are known.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        if bits < 16 { Some(Self(bits)) } else { None }
    }
}

impl fmt::Display for SignalSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for (bit, name) in Self::ALL {
            if self.0 & bit != 0 {
                write!(f, "{between}{name}")?;
                between = "+";
            }
        }
        Ok(())
    }
}

impl Serialize for SignalSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SignalSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut set = Self::default();
        for name in text.split('+').filter(|name| !name.is_empty()) {
            let mut known = Self::ALL.into_iter();
            let (bit, _) = known
                .find(|(_, known)| *known == name)
                .ok_or_else(|| D::Error::custom("no such signal"))?;
            set.0 |= bit;
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_named_in_one_order() {
        let set = SignalSet::default()
            .with(Signals::Extrapolated)
            .with(Signals::Polled);
        assert_eq!(set.to_string(), "polled+extrapolated");
        assert_eq!(SignalSet::from_bits(set.bits()), Some(set));
        let counted = SignalSet::default().with(Signals::EventsAndCounters);
        assert_eq!(counted.to_string(), "events+counters");
        assert_eq!(SignalSet::from_bits(counted.bits()), Some(counted));
        assert_eq!(SignalSet::from_bits(16), None);
    }
}
