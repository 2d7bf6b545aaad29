//! Unmodified CUDA programs as tenants of one GPU: their events in, suspensions out.
//!
//! The shell around the pure parts: it reads the clock, the log, the file of handles and `/proc`, and makes the calls.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use turnstile_accounting::{
    EventMeter, Meter, Moment, Observation, SwitchEvent, TenantId, Usage, Window,
};

use super::events::{EventLog, Losses, SwitchRecord};
use super::guardian::{Guardian, GuardianError, LIMIT, Order};
use super::handles::Handles;
use super::hold::{Channel, ChannelSwitch, HardwareSwitch, resume_all};
use super::lease::Lease;
use super::residency::Residency;
use super::rm::{RmClient, RmError};
use super::version::{self, DriverAbi, VersionError};
use crate::mediation::COMPUTE;
use crate::process;

/// What went wrong with the programs of a GPU.
#[derive(Debug, thiserror::Error)]
pub enum ProgramsError {
    /// The driver is none that we know.
    #[error("The driver's privileged calls are not used")]
    Version(#[from] VersionError),
    /// The driver refused something.
    #[error("The driver failed")]
    Rm(#[from] RmError),
    /// Nobody would resume in our stead.
    #[error("Nobody is held without a guardian")]
    Guardian(#[from] GuardianError),
    /// The file of handles.
    #[error("The file of handles cannot be read")]
    Handles(#[source] io::Error),
    /// A tenant that reported no channel cannot be held.
    #[error("{0} has reported no channels")]
    NoChannels(TenantId),
}

/// Calls that moved a tenant.
#[derive(Clone, Copy, Debug, Default)]
pub struct HoldCalls {
    /// How many.
    pub count: u64,
    /// Those that the driver refused.
    pub failed: u64,
    /// Time in them.
    pub total: Duration,
    /// The longest.
    pub longest: Duration,
}

/// Lines appended by the preloaded library.
#[derive(Debug)]
struct HandleFile {
    file: File,
    rest: Vec<u8>,
}

/// The programs of one GPU.
#[derive(Debug)]
pub struct Programs {
    client: RmClient,
    driver: DriverAbi,
    log: EventLog,
    residency: Residency,
    meter: EventMeter,
    handles: Handles,
    handle_file: Option<HandleFile>,
    guardian: Option<Guardian>,
    lease: Lease,
    held: BTreeMap<TenantId, Vec<Channel>>,
    /// Every channel instead of those on the compute engine.
    all_channels: bool,
    calls: HoldCalls,
    /// Processes whose ancestors were looked at without finding a tenant.
    strangers: BTreeSet<u32>,
    begin: Instant,
    from: Moment,
    records: Vec<SwitchRecord>,
    events: Vec<SwitchEvent>,
    records_read: u64,
}

impl Programs {
    /// Starts the log of GPU `index`. Without a guardian nobody can be held.
    ///
    /// # Errors
    /// If the driver is not known or refuses.
    pub fn start(index: u32, guardian: Option<Guardian>) -> Result<Self, ProgramsError> {
        let driver = version::detect()?;
        let client = RmClient::open(index)?;
        let log = EventLog::start(&client, &driver)?;
        Ok(Self {
            client,
            driver,
            log,
            residency: Residency::new(COMPUTE),
            meter: EventMeter::new([COMPUTE]),
            handles: Handles::default(),
            handle_file: None,
            guardian,
            lease: Lease::new(LIMIT),
            held: BTreeMap::new(),
            all_channels: false,
            calls: HoldCalls::default(),
            strangers: BTreeSet::new(),
            begin: Instant::now(),
            from: wall(),
            records: Vec::new(),
            events: Vec::new(),
            records_read: 0,
        })
    }

    /// Reads handles from this file from now on; holds every channel if `all`, else those on the compute engine.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn watch_handles(&mut self, path: &Path, all: bool) -> Result<(), ProgramsError> {
        let file = File::open(path).map_err(ProgramsError::Handles)?;
        let rest = Vec::new();
        self.handle_file = Some(HandleFile { file, rest });
        self.all_channels = all;
        self.read_handles()
    }

    /// A process, and what it starts, is a tenant's from now on.
    pub fn assign(&mut self, pid: u32, tenant: TenantId) {
        self.residency.assign(pid, tenant);
        self.strangers.clear();
    }

    /// What was lost of the log so far.
    pub const fn losses(&self) -> Losses {
        self.log.losses()
    }

    /// Records that the driver dropped, by its own count.
    pub fn dropped(&self) -> u64 {
        self.log.dropped()
    }

    /// Records read so far.
    pub const fn records_read(&self) -> u64 {
        self.records_read
    }

    /// Calls made so far.
    pub const fn calls(&self) -> HoldCalls {
        self.calls
    }

    /// Processes that used the GPU and are nobody's.
    pub const fn untracked(&self) -> &BTreeMap<u32, u64> {
        self.residency.untracked()
    }

    /// Whether a tenant is held.
    pub fn is_held(&self, tenant: TenantId) -> bool {
        self.held.contains_key(&tenant)
    }

    /// Channels by which a tenant would be held: of all its processes.
    pub fn channels(&self, tenant: TenantId) -> Vec<Channel> {
        let mine = |pid: &u32| self.residency.tenant(*pid) == Some(tenant);
        let of = |pid| {
            if self.all_channels {
                self.handles.all_channels(pid)
            } else {
                self.handles.compute_channels(pid)
            }
        };
        self.handles.pids().filter(mine).flat_map(of).collect()
    }

    /// Ends a period: what the engine was used for since the last one. Renews the lease.
    ///
    /// # Errors
    /// If the driver fails, or the guardian is gone.
    pub fn period_end(&mut self) -> Result<Usage, ProgramsError> {
        // The end is read first: whatever is logged after that lies behind it.
        let now = wall();
        let complete = self.log.read(&self.client, &mut self.records)?;
        self.records_read += self.records.len() as u64;
        for record in self.records.drain(..) {
            self.residency.take(&record, &mut self.events);
        }
        if !complete {
            self.residency.lose();
        }
        self.residency.settle(now, &mut self.events);
        for event in self.events.drain(..) {
            self.meter.observe(Observation::Switch(event));
        }
        if !complete {
            // After what was observed: the state that the last record began ended at an unknown moment.
            self.meter.restart(COMPUTE);
        }
        self.adopt();
        self.read_handles()?;
        self.keep_lease()?;
        let from = std::mem::replace(&mut self.from, now);
        Ok(self.meter.close(Window::starting(from, now.since(from))))
    }

    /// Processes that came up in the log and are children of a tenant are its own.
    fn adopt(&mut self) {
        let unknown = self.residency.untracked().keys();
        let new: Vec<u32> = unknown
            .filter(|pid| !self.strangers.contains(pid))
            .copied()
            .collect();
        self.adopt_all(&new);
    }

    fn adopt_all(&mut self, pids: &[u32]) {
        for &pid in pids {
            match process::nearest(pid, process::parent, |pid| self.residency.tenant(pid)) {
                Some(tenant) => self.residency.assign(pid, tenant),
                None => {
                    self.strangers.insert(pid);
                }
            }
        }
    }

    fn read_handles(&mut self) -> Result<(), ProgramsError> {
        let Some(HandleFile { file, rest }) = &mut self.handle_file else {
            return Ok(());
        };
        file.read_to_end(rest).map_err(ProgramsError::Handles)?;
        let whole = rest
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        for line in rest.drain(..whole).as_slice().split(|byte| *byte == b'\n') {
            let text = String::from_utf8_lossy(line);
            if !text.is_empty()
                && let Err(error) = self.handles.take(&text)
            {
                log::debug!("{error}");
            }
        }
        let nobodys =
            |pid: &u32| self.residency.tenant(*pid).is_none() && !self.strangers.contains(pid);
        let new: Vec<u32> = self.handles.pids().filter(nobodys).collect();
        self.adopt_all(&new);
        Ok(())
    }

    fn keep_lease(&mut self) -> Result<(), ProgramsError> {
        let now = self.now();
        if !self.lease.lapsed(now).is_empty() {
            // We were away for too long, the guardian has resumed them.
            log::warn!("the lease on held tenants ended; they are held again");
            for tenant in std::mem::take(&mut self.held).into_keys() {
                self.hold(tenant)?;
            }
        }
        self.lease.renew(now);
        if self.guardian.is_some() && !self.lease.is_empty() {
            self.tell(&Order::Renew)?;
        }
        Ok(())
    }

    /// Suspends a tenant's channels.
    ///
    /// # Errors
    /// If it cannot be held; then it runs.
    pub fn hold(&mut self, tenant: TenantId) -> Result<(), ProgramsError> {
        if self.held.contains_key(&tenant) {
            return Ok(());
        }
        let channels = self.channels(tenant);
        if channels.is_empty() {
            return Err(ProgramsError::NoChannels(tenant));
        }
        // The guardian knows before it happens.
        self.tell(&Order::Hold(channels.clone()))?;
        let now = self.now();
        self.lease.hold(&channels, now);
        let result = self.set(&channels, true);
        self.held.insert(tenant, channels);
        if let Err(error) = result {
            self.calls.failed += 1;
            self.release(tenant)?;
            return Err(error.into());
        }
        Ok(())
    }

    /// Resumes a tenant's channels.
    ///
    /// # Errors
    /// If the guardian is gone; the tenant runs all the same.
    pub fn release(&mut self, tenant: TenantId) -> Result<(), ProgramsError> {
        let Some(channels) = self.held.remove(&tenant) else {
            return Ok(());
        };
        if self.set(&channels, false).is_err() {
            // One of them is gone perhaps.
            resume_all(&HardwareSwitch::new(&self.client, &self.driver), &channels);
        }
        let now = self.now();
        self.lease.release(&channels, now);
        self.tell(&Order::Release(channels))
    }

    fn set(&mut self, channels: &[Channel], suspended: bool) -> Result<(), RmError> {
        let begin = Instant::now();
        let result = HardwareSwitch::new(&self.client, &self.driver).set(channels, suspended);
        let took = begin.elapsed();
        self.calls.count += 1;
        self.calls.total += took;
        self.calls.longest = self.calls.longest.max(took);
        result
    }

    fn tell(&mut self, order: &Order) -> Result<(), ProgramsError> {
        let gone = || GuardianError::Gone(io::ErrorKind::NotFound.into());
        let told = self
            .guardian
            .as_mut()
            .ok_or_else(gone)
            .and_then(|guardian| guardian.tell(order));
        if told.is_err() {
            // Without a guardian nobody stays held.
            self.guardian = None;
            let held: Vec<Channel> = std::mem::take(&mut self.held)
                .into_values()
                .flatten()
                .collect();
            resume_all(&HardwareSwitch::new(&self.client, &self.driver), &held);
            self.lease.end();
        }
        Ok(told?)
    }

    /// The lease's clock.
    fn now(&self) -> Moment {
        // CAST: 584 years.
        Moment(self.begin.elapsed().as_nanos() as u64)
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        for tenant in self.held.keys().copied().collect::<Vec<_>>() {
            if let Err(error) = self.release(tenant) {
                log::warn!("resuming {tenant}: {error}");
            }
        }
    }
}

/// The clock of the driver's records. SOURCE: measured: time stamps are of the wall clock.
fn wall() -> Moment {
    // CAST: until the year 2554.
    Moment(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_nanos() as u64,
    )
}
