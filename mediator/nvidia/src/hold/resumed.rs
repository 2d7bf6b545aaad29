//! Whether tenants that were resumed run again. Pure, but for its [`ActivityProbe`].
//!
//! Two of some thousands of programs never ran again after a release that the driver had
//! acknowledged. Where tenants take turns the next turn resumes them; a tenant without competitors
//! has no next turn. So a tenant that does not run is resumed once more, and then suspended and
//! resumed. Both do no harm to a tenant without work.
//!
//! ```text
//!   resumed -- held again --> done
//!      '-- 200 ms: was resident, and no work --> done
//!      '-- 400 ms: was active --> done; else resume again
//!      '-- 800 ms: was active --> warn; done. Resident: a long kernel. Else suspend and resume
//!      '-- 1.6 s --> done
//! ```

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use turnstile_accounting::{Moment, TenantId};

use super::channels::Channel;

/// From a release to the first poll; the next are after twice the time each. TIMEOUT: own turns are
/// shorter, so that a tenant in turns is not polled.
pub(super) const FIRST_POLL: Duration = Duration::from_millis(200);

/// What the channels of a tenant show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Activity {
    /// When the tenant last had work; the origin if never.
    pub(crate) active: Moment,
    /// A channel has something queued.
    pub(crate) has_work: bool,
}

/// Reads tenants' channels.
pub(crate) trait ActivityProbe {
    /// None if the channels cannot be read.
    fn channel_activity(&self, tenant: TenantId) -> Option<Activity>;
    /// Whether the tenant was resident within this time.
    fn was_resident(&self, tenant: TenantId, within: Duration) -> bool;
}

/// What is to be done for a tenant that does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// To resume its channels once more.
    Resume,
    /// To suspend and to resume them.
    Restart,
}

#[derive(Debug)]
struct Polled {
    channels: Vec<Channel>,
    since: Instant,
    /// The next poll is so long after that.
    after: Duration,
    /// What the first poll found.
    first: Option<Activity>,
}

/// Tenants that were resumed, and are not known to run.
#[derive(Debug, Default)]
pub(super) struct Resumed {
    tenants: BTreeMap<TenantId, Polled>,
}

impl Resumed {
    /// The channels of a tenant were resumed.
    pub(super) fn add(&mut self, tenant: TenantId, channels: Vec<Channel>, now: Instant) {
        if channels.is_empty() {
            return;
        }
        let polled = Polled {
            channels,
            since: now,
            after: FIRST_POLL,
            first: None,
        };
        self.tenants.insert(tenant, polled);
    }

    /// A tenant is held, or gone.
    pub(super) fn forget(&mut self, tenant: TenantId) {
        self.tenants.remove(&tenant);
    }

    /// Polls tenants that are due. What is to be done for each, and the channels that were resumed.
    pub(super) fn poll(
        &mut self,
        probe: &impl ActivityProbe,
        now: Instant,
    ) -> Vec<(TenantId, Remedy, Vec<Channel>)> {
        let mut remedies = Vec::new();
        self.tenants.retain(|tenant, polled| {
            let passed = now.saturating_duration_since(polled.since);
            if passed < polled.after {
                return true;
            }
            let poll = polled.after.as_millis() / FIRST_POLL.as_millis();
            polled.after *= 2;
            let activity = probe.channel_activity(*tenant);
            if poll == 1 {
                polled.first = activity;
                let idle = activity.is_some_and(|activity| !activity.has_work);
                return !(idle && probe.was_resident(*tenant, passed));
            }
            let active = |activity: Option<Activity>| activity.map(|activity| activity.active);
            if active(activity) != active(polled.first) {
                if poll > 2 && polled.first.is_some_and(|first| first.has_work) {
                    log::warn!("{tenant} ran only after its channels were resumed again");
                }
                return false;
            }
            match poll {
                2 => remedies.push((*tenant, Remedy::Resume, polled.channels.clone())),
                // A resident tenant runs: a long kernel.
                4 if probe.was_resident(*tenant, FIRST_POLL) => {}
                4 => remedies.push((*tenant, Remedy::Restart, polled.channels.clone())),
                _ => return false,
            }
            true
        });
        remedies
    }
}

#[cfg(test)]
mod tests {
    use super::super::channels::tests::channels;
    use super::*;

    const A: TenantId = TenantId(1);

    struct Seen(Option<Activity>, bool);

    impl ActivityProbe for Seen {
        fn channel_activity(&self, _: TenantId) -> Option<Activity> {
            self.0
        }

        fn was_resident(&self, _: TenantId, _: Duration) -> bool {
            self.1
        }
    }

    fn activity(active: u64, has_work: bool) -> Option<Activity> {
        let active = Moment(active);
        Some(Activity { active, has_work })
    }

    /// Remedies of polls that find this after 0.2, 0.4, 0.8, 1.6 and 3.2 s.
    fn done(seen: [Seen; 5]) -> Vec<Option<Remedy>> {
        let begin = Instant::now();
        let mut resumed = Resumed::default();
        resumed.add(A, channels(2), begin);
        let mut after = FIRST_POLL;
        let poll = |seen| {
            let early = resumed.poll(&seen, begin + after - Duration::from_millis(1));
            assert!(early.is_empty(), "{early:?}");
            let remedies = resumed.poll(&seen, begin + after);
            after *= 2;
            remedies.first().map(|(_, remedy, of)| {
                assert_eq!(*of, channels(2));
                *remedy
            })
        };
        seen.map(poll).to_vec()
    }

    #[test]
    fn a_tenant_that_does_not_run_is_resumed_again_and_then_restarted() {
        let still = || Seen(activity(7, true), false);
        let expected = [
            None,
            Some(Remedy::Resume),
            Some(Remedy::Restart),
            None,
            None,
        ];
        assert_eq!(done([(); 5].map(|()| still())), expected);
        // Nothing is queued, but it was never resident: it was stopped in the middle of a kernel.
        assert_eq!(
            done([(); 5].map(|()| Seen(activity(7, false), false))),
            expected
        );
        assert_eq!(
            done([(); 5].map(|()| Seen(None, false))),
            expected,
            "unknown"
        );
        let moves = || Seen(activity(8, true), true);
        let helped = [still(), still(), moves(), moves(), moves()];
        assert_eq!(done(helped), [None, Some(Remedy::Resume), None, None, None]);
    }

    #[test]
    fn a_tenant_that_runs_is_left_alone() {
        let none = vec![None; 5];
        let idle = [(); 5].map(|()| Seen(activity(7, false), true));
        assert_eq!(done(idle), none, "it was resident, and has no work");
        let works = [7, 9, 11, 13, 15].map(|active| Seen(activity(active, true), true));
        assert_eq!(done(works), none);
        // A kernel that does not end, and others behind it: resumed once more, never suspended.
        let endless = done([(); 5].map(|()| Seen(activity(7, true), true)));
        assert_eq!(endless, [None, Some(Remedy::Resume), None, None, None]);
        let mut resumed = Resumed::default();
        let begin = Instant::now();
        resumed.add(A, channels(2), begin);
        resumed.forget(A);
        let later = begin + 8 * FIRST_POLL;
        assert!(resumed.poll(&Seen(None, false), later).is_empty(), "held");
    }
}
