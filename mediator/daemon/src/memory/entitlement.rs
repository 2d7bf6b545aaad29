//! What a tenant is entitled to, in the terms of control groups, and how a card is divided.

use turnstile_policies::Weight;

/// What a tenant may have of GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entitlement {
    /// Its part of what is left, against other tenants.
    pub weight: Weight,
    /// Bytes that are never taken from it.
    pub min_bytes: u64,
    /// Bytes above which its memory is taken first, whatever its weight.
    pub high_bytes: u64,
    /// Bytes that it may allocate, on the card or at the host.
    pub max_bytes: u64,
}

/// Why an entitlement is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntitlementError {
    /// The three limits do not rise.
    #[error("memory.min ({min} bytes) <= memory.high ({high}) <= memory.max ({max}) does not hold")]
    Order {
        /// memory.min.
        min: u64,
        /// memory.high.
        high: u64,
        /// memory.max.
        max: u64,
    },
    /// One tenant could never run: the others' reserves leave too little room for its whole set.
    #[error(
        "With {reserved} bytes reserved by memory.min, a set of {set} bytes does not fit on a card of {card}"
    )]
    Crowded {
        /// Sum of the others' reserves.
        reserved: u64,
        /// The largest set.
        set: u64,
        /// The card.
        card: u64,
    },
}

impl Entitlement {
    /// A share by weight and no reserve.
    pub const fn by_weight(weight: Weight, max_bytes: u64) -> Self {
        Self {
            weight,
            min_bytes: 0,
            high_bytes: max_bytes,
            max_bytes,
        }
    }

    pub(super) const fn check(&self) -> Result<(), EntitlementError> {
        if self.min_bytes <= self.high_bytes && self.high_bytes <= self.max_bytes {
            return Ok(());
        }
        Err(EntitlementError::Order {
            min: self.min_bytes,
            high: self.high_bytes,
            max: self.max_bytes,
        })
    }
}

/// Whether every tenant's whole set fits on the card beside all others' reserves.
pub(super) fn all_fit<'a>(
    card_bytes: u64,
    all: impl Iterator<Item = &'a Entitlement> + Clone,
) -> Result<(), EntitlementError> {
    let sum: u64 = all.clone().map(|one| one.min_bytes).sum();
    for one in all {
        let reserved = sum - one.min_bytes;
        if reserved.saturating_add(one.max_bytes) > card_bytes {
            return Err(EntitlementError::Crowded {
                reserved,
                set: one.max_bytes,
                card: card_bytes,
            });
        }
    }
    Ok(())
}

/// Divides the card by weighted max-min fairness. `claims` has the bytes that each tenant uses,
/// which are those that it has allocated. No share is above the tenant's use, and none is below its
/// reserve (or its use, if that is smaller). The rest is divided by weight.
///
/// The sum of the shares is at most the card. If no tenant uses more than its `high_bytes`, the sum
/// is the smaller of card and use, but for rounding. A tenant with less than its use then gets at
/// least as much, by weight, as any tenant above its reserve.
pub(super) fn shares(card_bytes: u64, claims: &[(Entitlement, u64)]) -> Vec<u64> {
    let wish = |(entitlement, used): &(Entitlement, u64)| (*used).min(entitlement.high_bytes);
    let floor = |claim: &(Entitlement, u64)| claim.0.min_bytes.min(claim.1);
    let given = |level: u128, claim: &(Entitlement, u64)| {
        let by_weight = level * u128::from(claim.0.weight.get());
        let by_weight = u64::try_from(by_weight).unwrap_or(u64::MAX);
        by_weight.max(floor(claim)).min(wish(claim))
    };
    let sum = |level: u128| -> u128 {
        claims
            .iter()
            .map(|claim| u128::from(given(level, claim)))
            .sum()
    };
    // The highest level, in bytes for each unit of weight, at which the card suffices.
    let (mut low, mut high) = (0u128, u128::from(card_bytes) + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if sum(middle) <= u128::from(card_bytes) {
            low = middle;
        } else {
            high = middle;
        }
    }
    claims.iter().map(|claim| given(low, claim)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn claim(weight: u32, min: u64, used: u64) -> (Entitlement, u64) {
        let weight = Weight::new(weight).unwrap();
        let entitlement = Entitlement {
            min_bytes: min,
            ..Entitlement::by_weight(weight, 1 << 40)
        };
        (entitlement, used)
    }

    #[test]
    fn shares_are_by_weight_above_the_reserves() {
        let claims = [claim(100, 0, 900), claim(200, 0, 900), claim(100, 0, 50)];
        let given = shares(650, &claims);
        assert_eq!(given, [200, 400, 50]);
        let claims = [claim(100, 500, 900), claim(100, 0, 900)];
        assert_eq!(shares(700, &claims), [500, 200]);
    }

    proptest! {
        #[test]
        fn shares_stay_within_use_and_waste_no_memory(
            claims in prop::collection::vec((1u32..10_000, 0u64..1 << 30, 0u64..1 << 34), 1..12),
            spare in 0u64..1 << 34,
        ) {
            let claims: Vec<_> = claims.into_iter().map(|(w, min, used)| claim(w, min, used)).collect();
            let reserved: u64 = claims.iter().map(|(e, used)| e.min_bytes.min(*used)).sum();
            let used: u64 = claims.iter().map(|(_, used)| used).sum();
            let card = reserved + spare;
            let given = shares(card, &claims);
            let sum: u64 = given.iter().sum();
            let weights: u64 = claims.iter().map(|(e, _)| u64::from(e.weight.get())).sum();
            prop_assert!(sum <= card);
            prop_assert!(sum + weights >= card.min(used), "but for the rounding of the level");
            for ((entitlement, used), given) in claims.iter().zip(&given) {
                prop_assert!(given <= used);
                prop_assert!(*given >= entitlement.min_bytes.min(*used));
            }
        }
    }
}
