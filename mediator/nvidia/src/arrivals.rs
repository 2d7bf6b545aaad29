//! Whether those who were resumed run. Pure but for what its [`Eyes`] see.
//!
//! Two of some thousands of programs that began beside another never ran again after a release that the driver had acknowledged. Where tenants take turns the next turn
//! resumes them; where nobody else wants the engine there is no next. So whoever does not come is resumed once more, and then stopped and resumed. Both are no harm to one who
//! has nothing to do.
//!
//! ```text
//!   resumed -- held again --> forgotten
//!      '-- 200 ms -- came, and nothing waits in his channels --> forgotten
//!               '-- 400 ms -- his channels moved --> forgotten
//!                        '-- resume again -- 800 ms -- moved --> told; forgotten
//!                                                  '-- stop and resume -- 1.6 s -- moved --> told; forgotten
//!                                                                             '--> forgotten
//! ```

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use turnstile_accounting::TenantId;

use super::hold::Channel;

/// Who was resumed is looked at after so long, and then each time after as long as it is until then. TIMEOUT: turns of two tenants are shorter, so that nobody is looked at
/// who takes them.
pub(super) const FIRST_LOOK: Duration = Duration::from_millis(200);

/// What the channels of a tenant say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rung {
    /// Entries that all of them have taken, modulo their rings.
    pub(super) taken: u64,
    /// Some have entries that they have not taken.
    pub(super) waits: bool,
}

/// What is seen of tenants.
pub(super) trait Eyes {
    /// What the tenant's channels say; none if they cannot be read.
    fn rung(&self, tenant: TenantId) -> Option<Rung>;
    /// Whether it was on the engine within so long.
    fn was_there(&self, tenant: TenantId, within: Duration) -> bool;
}

/// What is to be done for one who does not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// To resume its channels once more.
    Resume,
    /// To stop and to resume them.
    Restart,
}

#[derive(Debug)]
struct Resumed {
    channels: Vec<Channel>,
    since: Instant,
    /// How long after that it is looked next.
    after: Duration,
    /// What his channels said when it was looked first.
    first: Option<Rung>,
}

/// Those who were resumed, and of whom it is not known yet that they run.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    resumed: BTreeMap<TenantId, Resumed>,
}

impl Arrivals {
    /// The channels of a tenant were resumed.
    pub(super) fn resumed(&mut self, tenant: TenantId, channels: Vec<Channel>, now: Instant) {
        if channels.is_empty() {
            return;
        }
        let resumed = Resumed {
            channels,
            since: now,
            after: FIRST_LOOK,
            first: None,
        };
        self.resumed.insert(tenant, resumed);
    }

    /// A tenant is held, or gone.
    pub(super) fn forget(&mut self, tenant: TenantId) {
        self.resumed.remove(&tenant);
    }

    /// Looks at those whose time it is; returns what is to be done for whom, and the channels that were resumed.
    pub(super) fn look(
        &mut self,
        eyes: &impl Eyes,
        now: Instant,
    ) -> Vec<(TenantId, Remedy, Vec<Channel>)> {
        let mut remedies = Vec::new();
        self.resumed.retain(|tenant, resumed| {
            let passed = now.saturating_duration_since(resumed.since);
            if passed < resumed.after {
                return true;
            }
            let looks = resumed.after.as_millis() / FIRST_LOOK.as_millis();
            resumed.after *= 2;
            let rung = eyes.rung(*tenant);
            if looks == 1 {
                resumed.first = rung;
                let idles = rung.is_some_and(|rung| !rung.waits);
                return !(idles && eyes.was_there(*tenant, passed));
            }
            let moved = rung.map(|rung| rung.taken) != resumed.first.map(|first| first.taken);
            let waited = resumed.first.is_some_and(|first| first.waits);
            match looks {
                _ if moved => {
                    if looks > 2 && waited {
                        log::warn!("{tenant} did not run after it was resumed, and did when it was resumed again");
                    }
                    false
                }
                2 => {
                    remedies.push((*tenant, Remedy::Resume, resumed.channels.clone()));
                    true
                }
                4 => {
                    // Who is on the engine runs: a long kernel, before which his channels take nothing.
                    if !eyes.was_there(*tenant, FIRST_LOOK) {
                        remedies.push((*tenant, Remedy::Restart, resumed.channels.clone()));
                    }
                    true
                }
                _ => false,
            }
        });
        remedies
    }
}

#[cfg(test)]
mod tests {
    use super::super::hold::tests::channels;
    use super::*;

    const A: TenantId = TenantId(1);

    struct Seen(Option<Rung>, bool);

    impl Eyes for Seen {
        fn rung(&self, _: TenantId) -> Option<Rung> {
            self.0
        }

        fn was_there(&self, _: TenantId, _: Duration) -> bool {
            self.1
        }
    }

    fn rung(taken: u64, waits: bool) -> Option<Rung> {
        Some(Rung { taken, waits })
    }

    /// What is done of one who is seen so after 0.2, 0.4, 0.8, 1.6 and 3.2 s.
    fn done(seen: [Seen; 5]) -> Vec<Option<Remedy>> {
        let begin = Instant::now();
        let mut arrivals = Arrivals::default();
        arrivals.resumed(A, channels(2), begin);
        let mut after = FIRST_LOOK;
        let look = |seen| {
            let early = arrivals.look(&seen, begin + after - Duration::from_millis(1));
            assert!(early.is_empty(), "{early:?}");
            let remedies = arrivals.look(&seen, begin + after);
            after *= 2;
            remedies.first().map(|(_, remedy, of)| {
                assert_eq!(*of, channels(2));
                *remedy
            })
        };
        seen.map(look).to_vec()
    }

    #[test]
    fn who_does_not_come_is_resumed_again_and_then_restarted() {
        let still = || Seen(rung(7, true), false);
        let expected = [
            None,
            Some(Remedy::Resume),
            Some(Remedy::Restart),
            None,
            None,
        ];
        assert_eq!(done([(); 5].map(|()| still())), expected);
        // Nothing waits to be taken, but he never came: a kernel in whose middle he was stopped.
        assert_eq!(
            done([(); 5].map(|()| Seen(rung(7, false), false))),
            expected
        );
        assert_eq!(
            done([(); 5].map(|()| Seen(None, false))),
            expected,
            "unknown"
        );
        let moves = || Seen(rung(8, true), true);
        let helped = [still(), still(), moves(), moves(), moves()];
        assert_eq!(done(helped), [None, Some(Remedy::Resume), None, None, None]);
    }

    #[test]
    fn who_runs_is_left_alone() {
        let none = vec![None; 5];
        let idle = [(); 5].map(|()| Seen(rung(7, false), true));
        assert_eq!(done(idle), none, "it came, and has nothing to do");
        let works = [7, 9, 11, 13, 15].map(|taken| Seen(rung(taken, true), true));
        assert_eq!(done(works), none);
        // A kernel that does not end, and others behind it: resumed once more, and never stopped.
        let endless = done([(); 5].map(|()| Seen(rung(7, true), true)));
        assert_eq!(endless, [None, Some(Remedy::Resume), None, None, None]);
        let mut arrivals = Arrivals::default();
        let begin = Instant::now();
        arrivals.resumed(A, channels(2), begin);
        arrivals.forget(A);
        let later = begin + 8 * FIRST_LOOK;
        assert!(arrivals.look(&Seen(None, false), later).is_empty(), "held");
    }
}
