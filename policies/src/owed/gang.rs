//! Gangs: tenants with turns on several GPUs that coincide, since their kernels wait for each
//! other.
//!
//! ```text
//!   GPU 0   |  gang   |  others  |  gang   |  others  |
//!   GPU 1   |  gang   |  others  |  gang   |  others  |
//!           ^ the same moments of the host's clock
//! ```
//!
//! In: the gangs of a GPU with their parts, and the time. Out: the gang that has the window, and
//! when that ends. Each GPU divides its rounds by itself, so that nothing passes between them. A
//! gang with different parts on its GPUs runs on all of them for the least one.

use super::fraction::Fraction;
use super::turn::EARLY;
use std::sync::Arc;
use turnstile_accounting::{AccountId, Moment, Nanos, TenantId};

/// Windows come again after this time. An own turn of 20 ms fits beside a gang of half the engine.
pub(super) const ROUND: Nanos = Nanos::from_ms(40);

/// A gang that takes part on a GPU.
#[derive(Clone, Debug)]
pub(super) struct Gang {
    /// Its name, which orders the windows: the same on each GPU.
    pub(super) name: Arc<str>,
    pub(super) account: AccountId,
    pub(super) tenant: TenantId,
    pub(super) part: Fraction,
}

/// A part of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// The gang that has it; none where the other tenants have it.
    pub(super) gang: Option<(AccountId, TenantId)>,
    /// When it ends.
    pub(super) until: Moment,
}

/// The window at this time. `None` without gangs.
pub(super) fn window(mut gangs: Vec<Gang>, now: Moment) -> Option<Window> {
    if gangs.is_empty() {
        return None;
    }
    gangs.sort_by(|a, b| (&a.name, a.account, a.tenant).cmp(&(&b.name, b.account, b.tenant)));
    let now = now.0.saturating_add(EARLY.0);
    let begin = now - now % ROUND.0;
    let mut end = begin;
    for gang in gangs {
        end += gang.part.of(ROUND).0;
        if now < end {
            return Some(Window {
                gang: Some((gang.account, gang.tenant)),
                until: Moment(end),
            });
        }
    }
    Some(Window {
        gang: None,
        until: Moment(begin + ROUND.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gang(name: &str, id: u32, percent: u8) -> Gang {
        Gang {
            name: name.into(),
            account: AccountId(id),
            tenant: TenantId(id),
            part: Fraction::percent(percent.into()),
        }
    }

    #[test]
    fn windows_are_by_part_in_the_order_of_names() {
        let at = |ms: u64| {
            let window = window(
                vec![gang("b", 1, 25), gang("a", 2, 50)],
                Moment(ms * 1_000_000),
            );
            let window = window.unwrap();
            (window.gang.map(|(_, id)| id.0), window.until.0 / 1_000_000)
        };
        assert_eq!(at(4_000), (Some(2), 4_020));
        assert_eq!(at(4_019), (Some(2), 4_020));
        assert_eq!(at(4_020), (Some(1), 4_030));
        assert_eq!(at(4_030), (None, 4_040));
        assert_eq!(window(Vec::new(), Moment(7)), None);
    }

    /// A poll that is a little early counts as the next window's.
    #[test]
    fn an_early_poll_counts_as_on_time() {
        let early = window(vec![gang("a", 2, 50)], Moment(20_000_000 - EARLY.0)).unwrap();
        assert_eq!((early.gang, early.until), (None, Moment(40_000_000)));
    }
}
