//! What the processors of tenants' hosts tell: a thread that wakes, or a doorbell that is rung, of one who rests, a thread that goes to sleep of one who works. Pure.
//!
//! ```text
//!   rests -- listened for his thread   --> awake: he begins
//!         -- listened for his doorbell --> rung: he begins     (if his thread is awake while he rests, or wakes for something else)
//!   works -- listened for his thread   --> asleep: he may have stopped, and is looked at
//! ```
//!
//! They are hints: what they say is looked up in the log, or in the engine's status, before anything comes of it. Who was heard again and again before he was seen need not be looked at so often; who
//! was not, once, is looked at as before. Who was there as soon as he was heard, again and again, is presumed to have begun, and the engine's status says a moment later whether he has (decision 063).

use std::collections::BTreeMap;

use turnstile_accounting::{Moment, Nanos, TenantId};

use super::look::JUST_NOW;

/// So often in a row one was heard before he was seen.
const HEARD_MIN: u32 = 2;
/// So often in a row one was heard for nothing: then no more for a while, and for twice as long each time, up to a minute. (To listen anew to all threads takes a millisecond or two.)
const IN_VAIN_MAX: u32 = 4;
const DEAF: Nanos = Nanos::from_ms(1_000);
const DEAF_DOUBLED_MAX: u32 = 6;
/// Whose threads wake for something else is listened to by his doorbells until those told it so often in a row; for twice as long each time. (While a program starts its threads wake for many things.)
const RINGS: (u32, u32) = (16, 1_024);
/// Who was heard is heard again after so long: a program may ring for itself, without work for the engine, or wait now and then.
const AGAIN: Nanos = Nanos::from_ms(20);
/// Who goes to sleep twice within so long rests, and is not only kept from its processor. SOURCE: `simulated/pauses.rs`: busy hosts are for 2 ms and more twice in a minute.
const OFTEN: Nanos = Nanos::from_ms(1_000);
/// Who was on the engine within so long after he was heard, so often in a row, is taken to begin as soon as he is heard. SOURCE: facts sheet section 1: a time slice is 2.048 ms.
const PROMPT: Nanos = Nanos::from_us(3_500);
const PROMPT_MIN: u32 = 8;
/// And does not, if he is not there after so long: others lose that, so it takes twice as often in a row from then on, up to this; and half as often again when it was right for eight times as often.
const AWAY: Nanos = Nanos::from_ms(3);
const PROMPT_MAX: u32 = 1_024;
const PROMPT_LESS: u32 = 8;

/// It is looked so often, and so far apart, whether one who was taken to have begun has come as soon as another made room. SOURCE: the simulated engine, by what was measured: 110 us after the
/// call that suspends the other.
pub(super) const COMING_LOOKS: u32 = 4;
pub(super) const COMING_PAUSE: Nanos = Nanos::from_us(200);

/// What is listened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Listens {
    /// That he rings a doorbell.
    Begin,
    /// That who rings it goes to sleep.
    Stop,
}

/// How far one kind is believed.
#[derive(Clone, Copy, Debug, Default)]
struct Trust {
    /// So often in a row it was heard, and was so.
    right: u32,
    /// So often in a row it was heard, and was not, or was, and was not heard.
    in_vain: u32,
    deaf_until: Moment,
    /// So often it was given up since it was right.
    given_up: u32,
}

impl Trust {
    fn right(&mut self) {
        self.right += 1;
        (self.in_vain, self.given_up) = (0, 0);
    }

    fn in_vain(&mut self, now: Moment) {
        self.right = 0;
        self.in_vain += 1;
        if self.in_vain >= IN_VAIN_MAX {
            self.give_up(now);
        }
    }

    fn give_up(&mut self, now: Moment) {
        let length = Nanos(DEAF.0 << self.given_up.min(DEAF_DOUBLED_MAX));
        *self = Self {
            deaf_until: now + length,
            given_up: self.given_up + 1,
            ..Self::default()
        };
    }

    fn is_deaf(&self, now: Moment) -> bool {
        now < self.deaf_until
    }
}

/// One tenant's.
#[derive(Clone, Copy, Debug)]
struct Host {
    listens: Listens,
    /// It is listened, and not only known for what.
    on: bool,
    /// When that was heard; and it was before, and nobody has seen whether it was so.
    heard: Option<Moment>,
    again: bool,
    begins: Trust,
    stops: Trust,
    /// When he was last heard to go to sleep, whatever came of it; and that he was so long before that as well.
    slept: Option<Moment>,
    sleeps_often: bool,
    /// His thread woke and he did not begin, or he began and it had not woken.
    wakes_in_vain: bool,
    /// Until his doorbell told it so often in a row.
    rings: u32,
    /// Since when he could come who is taken to have begun, and was not seen since: he was heard then, or let go.
    presumed: Option<Moment>,
    /// So often in a row he was on the engine as soon as he was heard, and has to be for that; it is not known yet of this time.
    prompt: u32,
    prompt_min: u32,
    comes: bool,
}

impl Host {
    const fn of(&self, listens: Listens) -> Trust {
        match listens {
            Listens::Begin => self.begins,
            Listens::Stop => self.stops,
        }
    }

    /// What is listened for was heard for nothing, or not heard. Of one whose thread wakes for something else, doorbells tell more.
    fn in_vain(&mut self, now: Moment) {
        if self.listens == Listens::Begin && !self.wakes_in_vain && self.begins.in_vain > 0 {
            self.wakes_in_vain = true;
            self.rings = (2 * self.rings).min(RINGS.1);
            self.begins = Trust::default();
            return;
        }
        self.trust().in_vain(now);
    }

    /// He was heard to begin, and has.
    fn begins_as_heard(&mut self) {
        self.begins.right();
        self.wakes_in_vain &= self.begins.right < self.rings;
    }

    fn trust(&mut self) -> &mut Trust {
        match self.listens {
            Listens::Begin => &mut self.begins,
            Listens::Stop => &mut self.stops,
        }
    }
}

/// Those of all tenants.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    tenants: BTreeMap<TenantId, Host>,
}

impl Hosts {
    /// A tenant rests, or works, as far as was seen by now: what is to be listened for from now on, if that is not done already.
    pub(super) fn listens(
        &mut self,
        tenant: TenantId,
        rests: bool,
        now: Moment,
    ) -> Option<Listens> {
        let listens = if rests { Listens::Begin } else { Listens::Stop };
        let host = self.tenants.entry(tenant).or_insert(Host {
            listens,
            on: false,
            heard: None,
            again: false,
            begins: Trust::default(),
            stops: Trust::default(),
            slept: None,
            sleeps_often: false,
            wakes_in_vain: false,
            rings: RINGS.0 / 2,
            presumed: None,
            prompt: 0,
            prompt_min: PROMPT_MIN,
            comes: false,
        });
        if host.listens != listens {
            match (host.listens, host.on, host.heard) {
                // That he has begun is to be seen yet.
                (Listens::Begin, ..) if host.presumed.is_some() => {}
                (Listens::Begin, _, Some(_)) => host.begins_as_heard(),
                (_, true, None) => host.in_vain(now),
                _ => {}
            }
            (host.listens, host.on, host.heard) = (listens, false, None);
            host.again = false;
        }
        if let Some(heard) = host.heard {
            if now.since(heard) < AGAIN {
                return None;
            }
            host.in_vain(now);
            (host.on, host.heard) = (false, None);
            host.again = true;
        }
        if host.on || host.trust().is_deaf(now) {
            return None;
        }
        host.on = true;
        Some(listens)
    }

    /// It cannot be listened for that.
    pub(super) fn is_deaf(&mut self, tenant: TenantId, now: Moment) {
        if let Some(host) = self.tenants.get_mut(&tenant) {
            host.on = false;
            host.trust().give_up(now);
        }
    }

    /// Whether that is not listened for, since it was heard for nothing.
    pub(super) fn is_deaf_to(&self, tenant: TenantId, to: Listens, now: Moment) -> bool {
        let host = self.tenants.get(&tenant);
        host.is_some_and(|host| host.of(to).is_deaf(now))
    }

    /// Whether he begins whenever his thread wakes, as far as is known.
    pub(super) fn begins_when_awake(&self, tenant: TenantId) -> bool {
        let host = self.tenants.get(&tenant);
        host.is_some_and(|host| !host.wakes_in_vain)
    }

    /// Whether what is listened for was heard the last time.
    pub(super) fn is_known(&self, tenant: TenantId) -> bool {
        let host = self.tenants.get(&tenant);
        host.is_some_and(|host| match host.listens {
            Listens::Begin => host.begins.right > 0,
            Listens::Stop => true,
        })
    }

    /// This was heard of a tenant, and is not listened for any more. Whether anything is known of him.
    pub(super) fn heard(&mut self, tenant: TenantId, what: Listens, at: Moment) -> bool {
        let Some(host) = self.tenants.get_mut(&tenant) else {
            return false;
        };
        // Who is taken to rest since it was listened for, and goes to sleep, had begun.
        (host.listens, host.on, host.heard) = (what, false, Some(at));
        host.comes = what == Listens::Begin;
        if what == Listens::Stop {
            let before = host.slept.replace(at);
            host.sleeps_often = before.is_some_and(|before| at.since(before) < OFTEN);
        }
        true
    }

    /// Whether he who is heard to begin is on the engine at once, as he was whenever that was lately.
    pub(super) fn is_prompt(&self, tenant: TenantId) -> bool {
        let host = self.tenants.get(&tenant);
        host.is_some_and(|host| host.prompt >= host.prompt_min)
    }

    /// He who was heard is taken to have begun then.
    pub(super) fn presume(&mut self, tenant: TenantId) {
        if let Some(host) = self.tenants.get_mut(&tenant) {
            host.presumed = host.heard;
        }
    }

    /// Whether one is taken to have begun who was not seen since.
    pub(super) fn is_presumed(&self, tenant: TenantId) -> bool {
        let host = self.tenants.get(&tenant);
        host.is_some_and(|host| host.presumed.is_some())
    }

    /// Whether somebody is.
    pub(super) fn is_anyone_presumed(&self) -> bool {
        self.tenants.values().any(|host| host.presumed.is_some())
    }

    /// He is on the engine, if he was not before.
    pub(super) fn came(&mut self, tenant: TenantId, at: Moment) {
        let Some(host) = self.tenants.get_mut(&tenant) else {
            return;
        };
        let presumed = host.presumed.take();
        if presumed.is_some() {
            host.begins_as_heard();
        }
        if std::mem::take(&mut host.comes) {
            let prompt = presumed.or(host.heard);
            let prompt = prompt.is_some_and(|heard| at.since(heard) <= PROMPT);
            host.prompt = if prompt { host.prompt + 1 } else { 0 };
            if host.prompt >= PROMPT_LESS * host.prompt_min {
                host.prompt_min = (host.prompt_min / 2).max(PROMPT_MIN);
            }
        }
    }

    /// He may run. If he was taken to have begun, and was held before he came, he comes now. If he went to sleep while he was held, or just before, nobody has looked whether he has stopped.
    pub(super) fn released(&mut self, tenant: TenantId, at: Moment) {
        if let Some(host) = self.tenants.get_mut(&tenant) {
            host.presumed = host.presumed.map(|since| since.max(at));
            if host.listens == Listens::Stop {
                host.heard = None;
            }
        }
    }

    /// Who is on the engine by `at` was told. Those who were taken to have begun long before, and have not come, though nobody holds them.
    pub(super) fn stayed_away(
        &mut self,
        at: Moment,
        is_held: impl Fn(TenantId) -> bool,
    ) -> Vec<TenantId> {
        let mut away = Vec::new();
        for (tenant, host) in &mut self.tenants {
            let waited = |since: &mut Moment| at.since(*since) >= AWAY && !is_held(*tenant);
            if host.presumed.take_if(waited).is_some() {
                (host.listens, host.on, host.heard) = (Listens::Begin, false, None);
                (host.prompt, host.comes) = (0, false);
                host.prompt_min = (2 * host.prompt_min).min(PROMPT_MAX);
                host.in_vain(at);
                away.push(*tenant);
            }
        }
        away
    }

    /// When one who works was heard to go to sleep, if he was not seen since.
    pub(super) fn may_have_stopped(&self, tenant: TenantId) -> Option<Moment> {
        let host = self.tenants.get(&tenant);
        host.filter(|host| host.listens == Listens::Stop)?.heard
    }

    /// Whether one was heard to go to sleep, and was not seen since, and not for the first time in a while: hosts that are busy hardly ever do.
    pub(super) fn has_stopped_again(&self, tenant: TenantId) -> bool {
        let host = self.tenants.get(&tenant);
        host.is_some_and(|host| host.sleeps_often) && self.may_have_stopped(tenant).is_some()
    }

    /// Whether somebody was heard to go to sleep who has stopped then, as he had lately.
    pub(super) fn has_told_stop(&self) -> bool {
        let mut tenants = self.tenants.keys();
        tenants.any(|id| self.may_have_stopped(*id).is_some() && self.is_believed(*id))
    }

    /// Whether he had been before that: then he may have begun long before.
    pub(super) fn is_heard_again(&self, tenant: TenantId) -> bool {
        let host = self.tenants.get(&tenant);
        host.is_some_and(|host| host.again)
    }

    /// When one who rests was heard to ring, if he was not seen since.
    pub(super) fn may_have_begun(&self, tenant: TenantId) -> Option<Moment> {
        let host = self.tenants.get(&tenant);
        host.filter(|host| host.listens == Listens::Begin)?.heard
    }

    /// One who was heard to go to sleep stopped then, or did not, by what he launched.
    pub(super) fn stopped(&mut self, tenant: TenantId, then: bool, now: Moment) {
        if let Some(host) = self.tenants.get_mut(&tenant) {
            if then {
                host.stops.right();
            } else {
                host.stops.in_vain(now);
            }
        }
    }

    /// One who was heard to go to sleep works all the same.
    pub(super) fn works(&mut self, tenant: TenantId, now: Moment) {
        if self.may_have_stopped(tenant).is_some()
            && let Some(host) = self.tenants.get_mut(&tenant)
        {
            host.stops.in_vain(now);
            (host.on, host.heard) = (false, None);
        }
    }

    /// Whether one will be heard before he is seen, as he was lately.
    pub(super) fn tells(&self, tenant: TenantId, of: Listens) -> bool {
        self.tenants.get(&tenant).is_some_and(|host| {
            host.of(of).right >= HEARD_MIN && (host.listens != of || host.heard.is_none())
        })
    }

    /// Whether one has launched nothing since he was last seen to rest, or has only just begun to: he would have been heard.
    pub(super) fn is_silent(&self, tenant: TenantId, now: Moment) -> bool {
        self.tenants.get(&tenant).is_some_and(|host| {
            let listens = host.listens == Listens::Begin && host.begins.right >= HEARD_MIN;
            // What is told of the log ends before that.
            let just_now = |heard: Moment| now.since(heard) < JUST_NOW;
            host.presumed.is_some_and(just_now) || listens && host.heard.map_or(host.on, just_now)
        })
    }

    /// Whether one who goes to sleep has stopped then, as he had lately.
    pub(super) fn is_believed(&self, tenant: TenantId) -> bool {
        let host = self.tenants.get(&tenant);
        host.is_some_and(|host| host.stops.right >= HEARD_MIN)
    }

    /// A tenant is gone.
    pub(super) fn forget(&mut self, tenant: TenantId) {
        self.tenants.remove(&tenant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(1);

    const fn ms(ms: u64) -> Moment {
        Moment(ms * 1_000_000)
    }

    /// Rests from `at` on, rings 50 ms later, and works from then on for 50 ms, heard or not.
    fn round(hosts: &mut Hosts, at: u64, rings: bool, sleeps: bool) {
        assert_eq!(hosts.listens(A, true, ms(at)), Some(Listens::Begin));
        assert_eq!(hosts.listens(A, true, ms(at + 10)), None, "it is, already");
        if rings {
            assert!(hosts.heard(A, Listens::Begin, ms(at + 50)));
            assert_eq!(hosts.may_have_begun(A), Some(ms(at + 50)));
        }
        assert_eq!(hosts.listens(A, false, ms(at + 60)), Some(Listens::Stop));
        assert_eq!(hosts.may_have_begun(A), None);
        if sleeps {
            hosts.heard(A, Listens::Stop, ms(at + 100));
            assert_eq!(hosts.may_have_stopped(A), Some(ms(at + 100)));
            hosts.stopped(A, true, ms(at + 100));
        }
    }

    #[test]
    fn who_was_heard_twice_before_he_was_seen_is_believed_until_he_is_not_heard() {
        let mut hosts = Hosts::default();
        for at in [0, 100] {
            assert!(!hosts.tells(A, Listens::Begin) && !hosts.tells(A, Listens::Stop));
            round(&mut hosts, at, true, true);
        }
        assert!(hosts.tells(A, Listens::Begin));
        assert!(hosts.is_believed(A) && hosts.is_known(A));
        assert!(!hosts.tells(A, Listens::Stop), "he has told it just now");
        round(&mut hosts, 200, true, false);
        assert!(hosts.tells(A, Listens::Stop));
        round(&mut hosts, 300, false, true);
        assert!(!hosts.is_believed(A), "he stopped unheard");
        assert!(!hosts.tells(A, Listens::Begin), "and began unheard");
    }

    #[test]
    fn who_is_heard_for_nothing_again_and_again_is_not_listened_to_for_a_second() {
        let mut hosts = Hosts::default();
        for at in [0, 100] {
            round(&mut hosts, at, true, true);
        }
        let mut at = 200;
        for times in 0..IN_VAIN_MAX + 2 {
            assert_eq!(hosts.listens(A, true, ms(at)), Some(Listens::Begin));
            assert_eq!(hosts.begins_when_awake(A), times < 2, "then he has to ring");
            hosts.heard(A, Listens::Begin, ms(at + 1));
            assert!(!hosts.tells(A, Listens::Begin));
            assert_eq!(hosts.listens(A, true, ms(at + 10)), None, "he may come yet");
            at += 30;
        }
        assert_eq!(hosts.listens(A, true, ms(at)), None);
        assert!(!hosts.tells(A, Listens::Begin));
        assert_eq!(hosts.listens(A, true, ms(at + 500)), None);
        assert_eq!(hosts.listens(A, true, ms(at + 1_000)), Some(Listens::Begin));
    }

    #[test]
    fn whose_threads_woke_for_something_else_is_listened_to_by_them_again_after_a_while() {
        let mut hosts = Hosts::default();
        let mut at = 0;
        for rings in [16, 32] {
            for _ in 0..2 {
                hosts.listens(A, true, ms(at));
                hosts.heard(A, Listens::Begin, ms(at + 1));
                hosts.listens(A, true, ms(at + 30));
                at += 40;
            }
            for _ in 0..rings {
                assert!(!hosts.begins_when_awake(A));
                hosts.listens(A, true, ms(at));
                hosts.heard(A, Listens::Begin, ms(at + 50));
                hosts.listens(A, false, ms(at + 60));
                at += 100;
            }
            hosts.listens(A, true, ms(at));
            assert!(hosts.begins_when_awake(A), "{rings}");
        }
    }

    #[test]
    fn who_goes_to_sleep_while_he_works_is_not_believed() {
        let mut hosts = Hosts::default();
        for at in [0, 100, 200] {
            round(&mut hosts, at, true, true);
        }
        assert!(hosts.is_believed(A));
        hosts.stopped(A, false, ms(300));
        assert!(!hosts.is_believed(A));
        round(&mut hosts, 300, true, false);
        let mut at = 400;
        while hosts.listens(A, false, ms(at)).is_some() || at == 400 {
            hosts.heard(A, Listens::Stop, ms(at));
            hosts.works(A, ms(at));
            assert_eq!(hosts.may_have_stopped(A), None);
            at += 1;
        }
        assert_eq!(
            at,
            400 + u64::from(IN_VAIN_MAX) - 1,
            "one who waits for each kernel asleep"
        );
    }

    #[test]
    fn who_cannot_be_listened_to_is_tried_again_later_and_later() {
        let mut hosts = Hosts::default();
        assert_eq!(hosts.listens(A, true, ms(0)), Some(Listens::Begin));
        hosts.is_deaf(A, ms(0));
        assert_eq!(hosts.listens(A, true, ms(900)), None);
        assert_eq!(hosts.listens(A, true, ms(1_000)), Some(Listens::Begin));
        hosts.is_deaf(A, ms(1_000));
        assert_eq!(hosts.listens(A, true, ms(2_900)), None);
        let mut at = 3_000;
        for _ in 0..20 {
            assert_eq!(hosts.listens(A, true, ms(at)), Some(Listens::Begin));
            hosts.is_deaf(A, ms(at));
            at += 64_000;
        }
        assert_eq!(hosts.listens(A, true, ms(at)), Some(Listens::Begin));
        hosts.forget(A);
        assert!(!hosts.heard(A, Listens::Begin, ms(1_100)));
    }

    /// Heard so often, and there after so long each time.
    fn comes(hosts: &mut Hosts, from: u64, after: &[Nanos]) -> u64 {
        let mut at = from;
        for after in after {
            hosts.listens(A, true, ms(at));
            hosts.heard(A, Listens::Begin, ms(at + 50));
            hosts.came(A, ms(at + 50) + *after);
            // A time slice later he comes again.
            hosts.came(A, ms(at + 54));
            hosts.listens(A, false, ms(at + 60));
            hosts.heard(A, Listens::Stop, ms(at + 90));
            hosts.stopped(A, true, ms(at + 90));
            at += 100;
        }
        at
    }

    #[test]
    fn who_comes_at_once_whenever_he_is_heard_is_presumed_to() {
        let soon = Nanos::from_us(2_200);
        let mut hosts = Hosts::default();
        let at = comes(&mut hosts, 0, &[soon; 7]);
        assert!(!hosts.is_prompt(A));
        let at = comes(&mut hosts, at, &[Nanos::from_ms(4)]);
        let at = comes(&mut hosts, at, &[soon; 7]);
        assert!(!hosts.is_prompt(A), "he was late once");
        comes(&mut hosts, at, &[soon]);
        assert!(hosts.is_prompt(A));
    }

    /// Who was presumed to have begun, at `at`.
    fn presumed(at: u64) -> Hosts {
        let mut hosts = Hosts::default();
        comes(&mut hosts, 0, &[Nanos::from_ms(1); 8]);
        assert_eq!(hosts.listens(A, true, ms(at - 1)), Some(Listens::Begin));
        hosts.heard(A, Listens::Begin, ms(at));
        assert!(hosts.is_prompt(A) && hosts.is_silent(A, ms(at)));
        hosts.presume(A);
        assert_eq!(hosts.listens(A, false, ms(at)), Some(Listens::Stop));
        assert!(hosts.is_presumed(A) && hosts.is_anyone_presumed());
        hosts
    }

    #[test]
    fn who_is_presumed_to_have_begun_and_is_seen_is_listened_to_until_he_stops() {
        let mut hosts = presumed(1_000);
        assert!(hosts.stayed_away(ms(1_002), |_| false).is_empty());
        hosts.came(A, ms(1_001));
        assert!(!hosts.is_anyone_presumed() && hosts.is_prompt(A));
        assert!(hosts.stayed_away(ms(1_100), |_| false).is_empty());
        hosts.heard(A, Listens::Stop, ms(1_050));
        assert!(hosts.has_told_stop());
    }

    #[test]
    fn who_is_presumed_to_have_begun_and_held_before_he_came_is_waited_for_when_he_is_let_go() {
        let mut hosts = presumed(1_000);
        assert!(hosts.stayed_away(ms(1_020), |_| true).is_empty());
        hosts.released(A, ms(1_020));
        assert!(hosts.stayed_away(ms(1_022), |_| false).is_empty());
        hosts.came(A, ms(1_022));
        assert!(!hosts.is_anyone_presumed() && hosts.is_prompt(A));
        let mut hosts = presumed(1_000);
        hosts.released(A, ms(1_020));
        assert_eq!(hosts.stayed_away(ms(1_023), |_| false), [A]);
    }

    #[test]
    fn who_goes_to_sleep_while_he_is_held_is_listened_to_again_and_believed_as_before() {
        let mut hosts = Hosts::default();
        for at in [0, 100, 200] {
            round(&mut hosts, at, true, true);
        }
        hosts.listens(A, true, ms(300));
        hosts.heard(A, Listens::Begin, ms(350));
        assert_eq!(hosts.listens(A, false, ms(360)), Some(Listens::Stop));
        hosts.heard(A, Listens::Stop, ms(370));
        hosts.released(A, ms(400));
        assert_eq!(hosts.may_have_stopped(A), None);
        assert_eq!(hosts.listens(A, false, ms(400)), Some(Listens::Stop));
        assert!(hosts.is_believed(A));
    }

    #[test]
    fn who_goes_to_sleep_twice_in_a_while_rests() {
        let mut hosts = Hosts::default();
        for (at, again) in [(0, false), (5_000, false), (5_100, true)] {
            round(&mut hosts, at, true, false);
            hosts.heard(A, Listens::Stop, ms(at + 90));
            assert_eq!(hosts.has_stopped_again(A), again, "{at}");
            hosts.works(A, ms(at + 91));
            assert!(!hosts.has_stopped_again(A));
        }
    }

    #[test]
    fn who_is_taken_to_rest_and_goes_to_sleep_had_begun() {
        let mut hosts = presumed(1_000);
        hosts.stayed_away(ms(1_003), |_| false);
        // It was listened for while he was taken to have begun.
        hosts.heard(A, Listens::Stop, ms(1_050));
        assert_eq!(hosts.may_have_stopped(A), Some(ms(1_050)));
        assert_eq!(hosts.may_have_begun(A), None);
        assert_eq!(
            hosts.listens(A, true, ms(1_060)),
            Some(Listens::Begin),
            "at once"
        );
    }

    #[test]
    fn who_is_heard_and_not_seen_may_have_begun_when_he_was_heard_before() {
        let mut hosts = Hosts::default();
        hosts.listens(A, true, ms(0));
        hosts.heard(A, Listens::Begin, ms(50));
        assert!(!hosts.is_heard_again(A));
        hosts.listens(A, true, ms(70));
        hosts.heard(A, Listens::Begin, ms(71));
        assert!(hosts.is_heard_again(A));
        hosts.listens(A, false, ms(75));
        assert!(!hosts.is_heard_again(A));
    }

    #[test]
    fn who_is_presumed_to_have_begun_and_does_not_come_has_to_come_twice_as_often() {
        let mut hosts = presumed(1_000);
        assert_eq!(hosts.stayed_away(ms(1_003), |_| false), [A]);
        assert!(!hosts.is_anyone_presumed() && !hosts.is_prompt(A));
        assert_eq!(hosts.listens(A, true, ms(1_004)), Some(Listens::Begin));
        let soon = [Nanos::from_ms(1); 15];
        let at = comes(&mut hosts, 1_100, &soon);
        assert!(!hosts.is_prompt(A));
        let at = comes(&mut hosts, at, &soon[..1]);
        assert!(hosts.is_prompt(A));
        // Once he has been right for long, eight times are enough again.
        let at = comes(&mut hosts, at, &[soon[0]; 8 * 16]);
        let at = comes(&mut hosts, at, &[Nanos::from_ms(5)]);
        let at = comes(&mut hosts, at, &soon[..7]);
        assert!(!hosts.is_prompt(A));
        comes(&mut hosts, at, &soon[..1]);
        assert!(hosts.is_prompt(A));
    }
}
