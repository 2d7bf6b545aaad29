//! The numbers of tenants' compute channels, and the time slices of their channel groups.
//!
//! # Bounds
//! What a tenant reports is not checked before. At most [`CALLS_MAX`] calls are made at a poll. The
//! channels of a tenant with more than [`CHANNELS_MAX`] are not read.
//!
//! In: channels and groups that processes report ([`Processes`]), time slices that the rule orders.
//! Out: numbers of channels, by which channel status is read. Called at each poll.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use turnstile_accounting::{Nanos, TenantId};

use super::control_files::{Driver, RETRY_INTERVAL};
use super::processes::Processes;
use crate::hold::Channel;
use crate::observe::copy_engines::Token;

/// What the CUDA library sets. SOURCE: measured: 2,048 us.
pub(crate) const OWN_SLICE: Nanos = Nanos::from_us(2_048);

/// Calls to the driver at a poll.
const CALLS_MAX: usize = 32;
/// Channels of a tenant that are read at a poll, 1.1 us each.
const CHANNELS_MAX: usize = 64;
/// A program sets the slice of a group after it made the group: the order is given again so often.
const SLICE_ORDERS: u32 = 4;

/// A channel or a group of a process.
type Object = (u32, Channel);

#[derive(Clone, Copy, Debug)]
enum Number {
    Known(Token),
    /// Refused; tried again from then on.
    Unknown(Instant),
}

#[derive(Clone, Copy, Debug)]
struct Numbered {
    tenant: TenantId,
    /// On the compute engine.
    computes: bool,
    number: Number,
}

#[derive(Clone, Copy, Debug)]
struct Slice {
    slice: Nanos,
    orders: u32,
    next: Instant,
}

/// Numbers and time slices of all tenants' channels.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    channels: BTreeMap<Object, Numbered>,
    groups: BTreeMap<Object, (TenantId, Option<Slice>)>,
    /// Numbers of the compute channels of each tenant of which all are known.
    numbers: BTreeMap<TenantId, Vec<u32>>,
    /// Channels of each tenant that copy.
    copies: BTreeMap<TenantId, Vec<Token>>,
    wanted: BTreeMap<TenantId, Nanos>,
    followed: u64,
}

impl Groups {
    /// The compute channels of a tenant by number; none where not all are known.
    pub(crate) fn channels(&self, tenant: TenantId) -> Option<&[u32]> {
        self.numbers.get(&tenant).map(Vec::as_slice)
    }

    /// The channels of a tenant that copy, as far as they are known.
    pub(crate) fn copy_channels(&self, tenant: TenantId) -> &[Token] {
        self.copies.get(&tenant).map_or(&[], Vec::as_slice)
    }

    /// The time slice of a tenant's groups, as ordered.
    pub(crate) fn slice(&self, tenant: TenantId) -> Nanos {
        self.wanted.get(&tenant).copied().unwrap_or(OWN_SLICE)
    }

    /// Orders a time slice for all groups of a tenant.
    pub(crate) fn order(&mut self, tenant: TenantId, slice: Nanos) {
        self.wanted.insert(tenant, slice);
    }

    /// A tenant is gone.
    pub(crate) fn forget(&mut self, tenant: TenantId) {
        self.wanted.remove(&tenant);
        self.numbers.remove(&tenant);
        self.copies.remove(&tenant);
        self.channels.retain(|_, of| of.tenant != tenant);
        self.groups.retain(|_, (of, _)| *of != tenant);
    }

    /// Takes in channels and groups that are new, and gives the orders that are due.
    pub(crate) fn follow(
        &mut self,
        tenants: impl Iterator<Item = TenantId>,
        processes: &Processes,
        driver: &mut impl Driver,
        now: Instant,
    ) {
        if processes.changes() != self.followed {
            self.followed = processes.changes();
            self.take_in(tenants, processes, now);
            self.renumber();
        }
        // What decides on tenants' work and time comes first.
        let mut calls = CALLS_MAX;
        self.number(true, driver, now, &mut calls);
        self.give_slices(driver, now, &mut calls);
        self.number(false, driver, now, &mut calls);
    }

    /// Reads the tokens of channels that compute, or of the others.
    fn number(
        &mut self,
        computes: bool,
        driver: &mut impl Driver,
        now: Instant,
        calls: &mut usize,
    ) {
        let mut found_any = false;
        for ((pid, channel), of) in &mut self.channels {
            if let Number::Unknown(next) = of.number
                && next <= now
                && of.computes == computes
                && *calls > 0
            {
                *calls -= 1;
                of.number = match driver.token(*pid, *channel) {
                    Ok(found) => {
                        found_any = true;
                        Number::Known(found)
                    }
                    Err(error) => {
                        log::debug!("{error}");
                        Number::Unknown(now + RETRY_INTERVAL)
                    }
                };
            }
        }
        if found_any {
            self.renumber();
        }
    }

    /// Gives the orders of slices that are due.
    fn give_slices(&mut self, driver: &mut impl Driver, now: Instant, calls: &mut usize) {
        for ((pid, group), (tenant, slice)) in &mut self.groups {
            let wanted = self.wanted.get(tenant).copied().unwrap_or(OWN_SLICE);
            let due = match slice {
                None => wanted != OWN_SLICE,
                Some(last) => {
                    last.slice != wanted || last.orders < SLICE_ORDERS && last.next <= now
                }
            };
            if !due || *calls == 0 {
                continue;
            }
            *calls -= 1;
            if let Err(error) = driver.set_slice(*pid, *group, wanted) {
                log::debug!("{error}");
            }
            let same = slice.filter(|last| last.slice == wanted);
            *slice = Some(Slice {
                slice: wanted,
                orders: same.map_or(1, |last| last.orders + 1),
                next: now + RETRY_INTERVAL,
            });
        }
    }

    fn renumber(&mut self) {
        self.numbers.clear();
        self.copies.clear();
        let mut unknown = BTreeSet::new();
        for of in self.channels.values() {
            match (of.number, of.computes) {
                (Number::Known(token), true) => {
                    let numbers = self.numbers.entry(of.tenant).or_default();
                    numbers.push(token.channel());
                }
                (Number::Known(token), false) => {
                    self.copies.entry(of.tenant).or_default().push(token);
                }
                (Number::Unknown(_), true) => drop(unknown.insert(of.tenant)),
                (Number::Unknown(_), false) => {}
            }
        }
        self.numbers
            .retain(|tenant, numbers| !unknown.contains(tenant) && numbers.len() <= CHANNELS_MAX);
        self.copies.retain(|_, tokens| tokens.len() <= CHANNELS_MAX);
    }

    fn take_in(
        &mut self,
        tenants: impl Iterator<Item = TenantId>,
        processes: &Processes,
        now: Instant,
    ) {
        let (mut channels, mut groups) = (BTreeMap::new(), BTreeMap::new());
        for tenant in tenants {
            for pid in processes.pids(tenant) {
                let compute: BTreeSet<_> = processes.channels_of(pid).into_iter().collect();
                for channel in processes.all_channels_of(pid) {
                    let key = (pid, channel);
                    let known = self.channels.get(&key).map(|of| of.number);
                    let numbered = Numbered {
                        tenant,
                        computes: compute.contains(&channel),
                        number: known.unwrap_or(Number::Unknown(now)),
                    };
                    channels.insert(key, numbered);
                }
                for group in processes.groups_of(pid) {
                    let key = (pid, group);
                    let slice = self.groups.get(&key).and_then(|(_, slice)| *slice);
                    groups.insert(key, (tenant, slice));
                }
            }
        }
        (self.channels, self.groups) = (channels, groups);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handles::ENGINE_GRAPHICS;
    use crate::rm::RmError;
    use crate::sys::abi::CLASS_CHANNEL_GROUP;
    use turnstile_vmm::wire::{ObjectChange, ProgramObject};

    const A: TenantId = TenantId(1);

    /// A driver that numbers channels by their handles, once they are `bound`.
    #[derive(Debug, Default)]
    struct FakeDriver {
        bound: bool,
        calls: u32,
        slices: Vec<(u32, Nanos)>,
    }

    impl Driver for FakeDriver {
        fn token(&mut self, _: u32, channel: Channel) -> Result<Token, RmError> {
            self.calls += 1;
            match self.bound {
                true => Ok(Token(channel.handle + 100)),
                false => Err(RmError::Refused {
                    what: "read a channel's token",
                    status: 0x40,
                }),
            }
        }

        fn set_slice(&mut self, _: u32, group: Channel, slice: Nanos) -> Result<(), RmError> {
            self.slices.push((group.handle, slice));
            Ok(())
        }
    }

    fn processes() -> Processes {
        let mut processes = Processes::default();
        let made = |handle, class, parent, engine| {
            ObjectChange::Made(ProgramObject {
                client: 7,
                handle,
                class,
                parent,
                engine,
                userd: None,
            })
        };
        let changes = [
            made(1, CLASS_CHANNEL_GROUP, 0, ENGINE_GRAPHICS),
            made(2, 0xc86f, 1, 0),
            made(3, 0xc86f, 1, 0),
            made(4, CLASS_CHANNEL_GROUP, 0, 9),
            made(5, 0xc86f, 4, 9),
        ];
        processes.changed(A, 50, &changes);
        processes
    }

    #[test]
    fn channels_of_the_compute_group_are_numbered_once_the_driver_has_them() {
        let (processes, mut groups) = (processes(), Groups::default());
        let (mut driver, now) = (FakeDriver::default(), Instant::now());
        groups.follow([A].into_iter(), &processes, &mut driver, now);
        assert_eq!(groups.channels(A), None);
        driver.bound = true;
        groups.follow([A].into_iter(), &processes, &mut driver, now);
        assert_eq!(groups.channels(A), None, "not before the retry");
        groups.follow(
            [A].into_iter(),
            &processes,
            &mut driver,
            now + RETRY_INTERVAL,
        );
        assert_eq!(groups.channels(A), Some(&[102, 103][..]));
        assert_eq!(groups.copy_channels(A), [Token(105)]);
        let calls = driver.calls;
        groups.follow(
            [A].into_iter(),
            &processes,
            &mut driver,
            now + 9 * RETRY_INTERVAL,
        );
        assert_eq!(driver.calls, calls, "a number stays");
        groups.forget(A);
        assert_eq!(groups.channels(A), None);
    }

    #[test]
    fn what_a_tenant_reports_is_bounded() {
        let (mut processes, mut groups) = (processes(), Groups::default());
        let object = |handle| ProgramObject {
            client: 7,
            handle,
            class: 0xc86f,
            parent: 1,
            engine: 0,
            userd: None,
        };
        let many: Vec<ObjectChange> = (100..400)
            .map(|handle| ObjectChange::Made(object(handle)))
            .collect();
        processes.changed(A, 50, &many);
        let (mut driver, now) = (FakeDriver::default(), Instant::now());
        groups.follow([A].into_iter(), &processes, &mut driver, now);
        assert_eq!(driver.calls as usize, CALLS_MAX, "at a poll");
        driver.bound = true;
        for poll in 1..20 {
            let at = now + RETRY_INTERVAL * poll;
            groups.follow([A].into_iter(), &processes, &mut driver, at);
        }
        assert_eq!(groups.channels(A), None, "too many to read");
    }

    #[test]
    fn channels_that_copy_take_no_calls_from_slices() {
        let (mut processes, mut groups) = (processes(), Groups::default());
        let object = |handle| ProgramObject {
            client: 7,
            handle,
            class: 0xc86f,
            parent: 4,
            engine: 9,
            userd: None,
        };
        let many: Vec<ObjectChange> = (100..400)
            .map(|handle| ObjectChange::Made(object(handle)))
            .collect();
        processes.changed(A, 50, &many);
        let (mut driver, now) = (FakeDriver::default(), Instant::now());
        groups.order(A, Nanos::from_ms(6));
        groups.follow([A].into_iter(), &processes, &mut driver, now);
        assert_eq!(driver.slices, [(1, Nanos::from_ms(6))]);
        assert_eq!(driver.calls as usize + 1, CALLS_MAX, "at a poll");
    }

    #[test]
    fn a_slice_is_set_again_after_the_program_has_set_its_own() {
        let (processes, mut groups) = (processes(), Groups::default());
        let (mut driver, now) = (FakeDriver::default(), Instant::now());
        groups.follow([A].into_iter(), &processes, &mut driver, now);
        assert!(driver.slices.is_empty(), "the program's own is as wanted");
        let slice = Nanos::from_ms(6);
        groups.order(A, slice);
        for seconds in 0..10 {
            let at = now + RETRY_INTERVAL * seconds;
            groups.follow([A].into_iter(), &processes, &mut driver, at);
        }
        assert_eq!(driver.slices, vec![(1, slice); SLICE_ORDERS as usize]);
        groups.order(A, OWN_SLICE);
        groups.follow(
            [A].into_iter(),
            &processes,
            &mut driver,
            now + RETRY_INTERVAL * 11,
        );
        assert_eq!(driver.slices.last(), Some(&(1, OWN_SLICE)));
    }
}
