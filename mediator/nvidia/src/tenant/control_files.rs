//! The driver's calls on objects of a tenant's processes.
//!
//! The driver gives a number to the file by which a channel was made, and takes a time slice from
//! it. [`ControlFiles`] duplicates that file from the process (`pidfd_getfd`). At most
//! [`SCANS_MAX`] processes are looked through at a poll.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use turnstile_accounting::Nanos;

use super::processes::Processes;
use crate::hold::Channel;
use crate::observe::copy_engines::Token;
use crate::rm::{self, CONTROL_DEVICE, RmError};
use crate::sys::abi::{ControlParams, GET_TOKEN, SET_SLICE, SliceParams, TokenParams};

/// NV_ERR_INVALID_CLIENT. SOURCE: `nvstatuscodes.h`.
const INVALID_CLIENT: u32 = 0x23;

/// A refused call is tried again after this time.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Processes of which the descriptors are looked through at a poll.
const SCANS_MAX: usize = 2;

/// The driver, as a process sees it.
pub(crate) trait Driver {
    /// The token of a channel of a process.
    ///
    /// # Errors
    /// The driver's refusal; the process may not have made the channel yet.
    fn token(&mut self, pid: u32, channel: Channel) -> Result<Token, RmError>;

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
    fn token(&mut self, pid: u32, channel: Channel) -> Result<Token, RmError> {
        let mut token = TokenParams::default();
        let call = (channel.handle, GET_TOKEN);
        self.call(
            (pid, channel.client),
            "read a channel's token",
            call,
            &mut token,
        )?;
        Ok(Token(token.token))
    }

    fn set_slice(&mut self, pid: u32, group: Channel, slice: Nanos) -> Result<(), RmError> {
        let mut params = SliceParams {
            slice_us: slice.0 / 1_000,
        };
        let call = (group.handle, SET_SLICE);
        self.call((pid, group.client), "set a time slice", call, &mut params)
    }
}
