//! The numbers of tenants' compute channels, and the time slices of their channel groups.
//!
//! The driver gives a number to the file by which a channel was made, and takes a time slice from
//! it. [`ControlFiles`] duplicates that file from the process (`pidfd_getfd`).
//!
//! # Bounds
//! What a tenant reports is not checked before. At most [`CALLS_MAX`] calls and [`SCANS_MAX`] scans
//! of descriptors are made at a poll. The channels of a tenant with more than [`CHANNELS_MAX`] are
//! not read.
//!
//! In: channels and groups that processes report ([`Processes`]), time slices that the rule orders.
//! Out: numbers of channels, by which channel status is read. Called at each poll.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use turnstile_accounting::{Nanos, TenantId};

use super::processes::Processes;
use crate::hold::Channel;
use crate::rm::{self, CONTROL_DEVICE, RmError};
use crate::sys::abi::{ControlParams, SliceParams, TokenParams};

/// NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN. SOURCE: `ctrl/ctrlc36f.h`.
const GET_TOKEN: u32 = 0xc36f_0108;
/// NVA06C_CTRL_CMD_SET_TIMESLICE. SOURCE: `ctrl/ctrla06c.h`.
const SET_SLICE: u32 = 0xa06c_0103;
/// NV_ERR_INVALID_CLIENT. SOURCE: `nvstatuscodes.h`.
const INVALID_CLIENT: u32 = 0x23;
/// The channel's number in a token. SOURCE: measured: it is the index of the channel's status.
const NUMBER: u32 = 0xffff;

/// What the CUDA library sets. SOURCE: measured: 2,048 us.
pub(crate) const OWN_SLICE: Nanos = Nanos::from_us(2_048);

/// A refused call is tried again after this time.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Calls to the driver at a poll.
const CALLS_MAX: usize = 32;
/// Processes of which the descriptors are looked through at a poll.
const SCANS_MAX: usize = 2;
/// Channels of a tenant that are read at a poll, 1.1 us each.
const CHANNELS_MAX: usize = 64;
/// A program sets the slice of a group after it made the group: the order is given again so often.
const SLICE_ORDERS: u32 = 4;

/// The driver, as a process sees it.
pub(crate) trait Driver {
    /// The number of a channel of a process.
    ///
    /// # Errors
    /// The driver's refusal; the process may not have made the channel yet.
    fn number(&mut self, pid: u32, channel: Channel) -> Result<u32, RmError>;

    /// Sets the time slice of a channel group of a process.
    ///
    /// # Errors
    /// The driver's refusal.
    fn set_slice(&mut self, pid: u32, group: Channel, slice: Nanos) -> Result<(), RmError>;
}

/// Descriptors of a process that are looked at for its control files.
const FDS_MAX: usize = 4_096;
/// Control files of a process that are tried; a program has two or three.
const FILES_MAX: usize = 64;

/// The files of a process that are open on `path`, as descriptors of our own.
fn open_files(pid: u32, path: &Path) -> io::Result<Vec<File>> {
    // CAST: process numbers are positive and far smaller.
    let number = Pid::from_raw(pid as i32).ok_or(io::ErrorKind::InvalidInput)?;
    let process = pidfd_open(number, PidfdFlags::empty())?;
    let mut files = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.take(FDS_MAX) {
        let entry = entry?;
        // It may have been closed meanwhile.
        let Ok(target) = fs::read_link(entry.path()) else {
            continue;
        };
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.parse().ok());
        if let (true, Some(number)) = (target == path, number)
            && files.len() < FILES_MAX
            && let Ok(file) = pidfd_getfd(&process, number, PidfdGetfdFlags::empty())
        {
            files.push(file.into());
        }
    }
    Ok(files)
}

/// The driver by the control files of processes.
#[derive(Debug, Default)]
pub(crate) struct ControlFiles {
    /// The file by which a client of a process was made.
    files: BTreeMap<(u32, u32), File>,
    /// When the descriptors of a process were looked through.
    scanned: BTreeMap<u32, Instant>,
    /// Scans that are left at this poll.
    scans: usize,
}

impl ControlFiles {
    /// Calls by the file of a client of a process; which file it is is found by trying.
    fn call<P: ControlParams>(
        &mut self,
        (pid, client): (u32, u32),
        what: &'static str,
        (object, command): (u32, u32),
        params: &mut P,
    ) -> Result<(), RmError> {
        if let Some(file) = self.files.get(&(pid, client)) {
            let done = rm::control_by(file, client, what, (object, command), params);
            // Another file has the client now. A refused object does not show which.
            if matches!(
                done,
                Err(RmError::Refused {
                    status: INVALID_CLIENT,
                    ..
                })
            ) {
                self.files.remove(&(pid, client));
            }
            return done;
        }
        let now = Instant::now();
        let mut refused = RmError::Refused {
            what,
            status: INVALID_CLIENT,
        };
        let recent = |at: &Instant| now.duration_since(*at) < RETRY_INTERVAL;
        if self.scans == 0 || self.scanned.get(&pid).is_some_and(recent) {
            return Err(refused);
        }
        self.scans -= 1;
        self.scanned.insert(pid, now);
        let open = |source| RmError::Open {
            path: format!("/proc/{pid}/fd"),
            source,
        };
        for file in open_files(pid, Path::new(CONTROL_DEVICE)).map_err(open)? {
            match rm::control_by(&file, client, what, (object, command), params) {
                Ok(()) => {
                    self.files.insert((pid, client), file);
                    return Ok(());
                }
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    /// A poll begins: closes the files of processes that are no tenant's any more.
    pub(crate) fn begin(&mut self, processes: &Processes) {
        self.scans = SCANS_MAX;
        let lives = |pid: u32| processes.tenant(pid).is_some();
        self.files.retain(|(pid, _), _| lives(*pid));
        self.scanned.retain(|pid, _| lives(*pid));
    }
}

impl Driver for ControlFiles {
    fn number(&mut self, pid: u32, channel: Channel) -> Result<u32, RmError> {
        let mut token = TokenParams::default();
        let call = (channel.handle, GET_TOKEN);
        self.call(
            (pid, channel.client),
            "read a channel's token",
            call,
            &mut token,
        )?;
        Ok(token.token & NUMBER)
    }

    fn set_slice(&mut self, pid: u32, group: Channel, slice: Nanos) -> Result<(), RmError> {
        let mut params = SliceParams {
            slice_us: slice.0 / 1_000,
        };
        let call = (group.handle, SET_SLICE);
        self.call((pid, group.client), "set a time slice", call, &mut params)
    }
}

/// A channel or a group of a process.
type Object = (u32, Channel);

#[derive(Clone, Copy, Debug)]
enum Number {
    Known(u32),
    /// Refused; tried again from then on.
    Unknown(Instant),
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
    channels: BTreeMap<Object, (TenantId, Number)>,
    groups: BTreeMap<Object, (TenantId, Option<Slice>)>,
    /// Numbers of the channels of each tenant of which all are known.
    numbers: BTreeMap<TenantId, Vec<u32>>,
    wanted: BTreeMap<TenantId, Nanos>,
    followed: u64,
}

impl Groups {
    /// The channels of a tenant by number; none where not all are known.
    pub(crate) fn channels(&self, tenant: TenantId) -> Option<&[u32]> {
        self.numbers.get(&tenant).map(Vec::as_slice)
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
        self.channels.retain(|_, (of, _)| *of != tenant);
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
        let (mut found_any, mut calls) = (false, CALLS_MAX);
        for ((pid, channel), (_, number)) in &mut self.channels {
            if let Number::Unknown(next) = number
                && *next <= now
                && calls > 0
            {
                calls -= 1;
                *number = match driver.number(*pid, *channel) {
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
        for ((pid, group), (tenant, slice)) in &mut self.groups {
            let wanted = self.wanted.get(tenant).copied().unwrap_or(OWN_SLICE);
            let due = match slice {
                None => wanted != OWN_SLICE,
                Some(last) => {
                    last.slice != wanted || last.orders < SLICE_ORDERS && last.next <= now
                }
            };
            if !due || calls == 0 {
                continue;
            }
            calls -= 1;
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
        let mut unknown = BTreeSet::new();
        for (tenant, number) in self.channels.values() {
            match number {
                Number::Known(number) => self.numbers.entry(*tenant).or_default().push(*number),
                Number::Unknown(_) => drop(unknown.insert(*tenant)),
            }
        }
        let readable = |numbers: &[u32]| numbers.len() <= CHANNELS_MAX;
        self.numbers
            .retain(|tenant, numbers| !unknown.contains(tenant) && readable(numbers));
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
                for channel in processes.channels_of(pid) {
                    let key = (pid, channel);
                    let known = self.channels.get(&key).map(|(_, number)| *number);
                    channels.insert(key, (tenant, known.unwrap_or(Number::Unknown(now))));
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
        fn number(&mut self, _: u32, channel: Channel) -> Result<u32, RmError> {
            self.calls += 1;
            match self.bound {
                true => Ok(channel.handle + 100),
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
