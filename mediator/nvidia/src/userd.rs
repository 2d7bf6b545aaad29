//! Reading channels' USERDs: where the host engine and a program say which entries of a ring they took and added.
//!
//! ```text
//!   handles (who has which channels, and where they say it) -> Userds::is_due -> open: a lender maps the memory -> Userds::put
//!                                                                                                    Words <- Userds::of
//! ```
//!
//! The memory is the tenant's. The driver gives it to nobody else, unless its owner says so; [`Borrower`] says so by the owner's own control file, which a tracer may
//! have (pidfd_getfd(2)), duplicates it into our client and maps that for reading. SOURCE: decision 038, each step of which was run on an H200.
//!
//! What is mapped stays until the channels are others or the tenant is gone, also if the owner frees it: the driver keeps it as long as somebody has it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use turnstile_accounting::TenantId;
use turnstile_vmm::wire::Userd;

use super::progress::{Entries, Words};
use super::rm::{CONTROL_DEVICE, Handle, RmClient, RmError};
use super::sys::{Caching, SharedPages};

/// Where a USERD has GP_GET and, after it, GP_PUT. SOURCE: `clc86f.h`.
const WORDS_AT: u64 = 0x88;
/// Memory that is mapped at most. SOURCE: measured: CUDA has one object of 2 MiB for all channels of a process, 12 KiB apart from its begin on.
const MAPPED_MAX: u64 = 2 << 20;
/// Channels of a tenant that are read at most: each takes 1.5 us (decision 038).
const CHANNELS_MAX: usize = 64;
/// Descriptors of a process that are looked at for its control files.
const FDS_MAX: usize = 4096;
/// Control files of a process that are tried; a program has two or three.
const FILES_MAX: usize = 64;
/// What could not be opened is tried again after so long, if it is still wanted.
const AGAIN: Duration = Duration::from_secs(5);

/// Why a tenant's channels are not read.
#[derive(Debug, thiserror::Error)]
pub(super) enum UserdError {
    /// There are too many.
    #[error("It has {0} channels for kernels; {CHANNELS_MAX} are read at most")]
    TooMany(usize),
    /// One lies where none does.
    #[error("A channel's state is at {0:#x} of its memory; it is read within {MAPPED_MAX:#x}")]
    TooFar(u64),
    /// The process's files cannot be had.
    #[error("The control files of process {pid} cannot be had (needs the right to trace it)")]
    Files {
        /// Which.
        pid: u32,
        /// Why.
        source: io::Error,
    },
    /// It has none by which the memory was made.
    #[error("Process {0} has no control file by which it made the memory")]
    NoFile(u32),
    /// The driver refused.
    #[error(transparent)]
    Rm(#[from] RmError),
}

/// A channel of a process, and where it says how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) pid: u32,
    pub(super) client: u32,
    pub(super) userd: Userd,
}

/// Memory that is read.
pub(super) trait Memory {
    /// The word at an offset, which is a multiple of 8; none beyond the end.
    fn word(&self, offset: u64) -> Option<u64>;
}

/// Who maps a process's memory.
pub(super) trait Lender {
    type Memory: Memory;

    /// The first `length` bytes of memory that a client of a process has.
    fn lend(
        &self,
        pid: u32,
        client: u32,
        memory: u32,
        length: u64,
    ) -> Result<Self::Memory, UserdError>;
}

/// Maps by the driver.
#[derive(Debug)]
pub(super) struct Borrower(pub(super) Arc<RmClient>);

/// Memory of a tenant that is mapped here.
#[derive(Debug)]
pub(super) struct Borrowed {
    /// None once it is being given back.
    pages: Option<SharedPages>,
    object: Handle,
    client: Arc<RmClient>,
}

impl Memory for Borrowed {
    fn word(&self, offset: u64) -> Option<u64> {
        // CAST: usize is 64 bits here.
        let bytes = self.pages.as_ref()?.read::<8>(offset as usize)?;
        Some(u64::from_le_bytes(bytes))
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // Unmapped before the object goes.
        self.pages = None;
        if let Err(error) = self.client.free(self.object) {
            log::debug!("Giving a channel's memory back: {error}");
        }
    }
}

impl Lender for Borrower {
    type Memory = Borrowed;

    fn lend(
        &self,
        pid: u32,
        client: u32,
        memory: u32,
        length: u64,
    ) -> Result<Borrowed, UserdError> {
        let files = open_files(pid, Path::new(CONTROL_DEVICE));
        let files = files.map_err(|source| UserdError::Files { pid, source })?;
        let mut refused = UserdError::NoFile(pid);
        for file in files {
            // A client is known by the file by which it was made.
            match self.0.duplicate(&file, client, memory) {
                Ok(object) => {
                    let mut borrowed = Borrowed {
                        pages: None,
                        object,
                        client: self.0.clone(),
                    };
                    // Channels of a tenant are asked together, each of which would take a microsecond.
                    let pages = self.0.map_gpu(object, (0, length), Caching::Combined)?;
                    borrowed.pages = Some(pages);
                    return Ok(borrowed);
                }
                Err(error) => refused = error.into(),
            }
        }
        Err(refused)
    }
}

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

/// A tenant's channels, mapped.
#[derive(Debug)]
pub(super) struct Opened<M> {
    generation: u64,
    memories: Vec<M>,
    /// In which memory, where, and the entries of the ring.
    channels: Vec<(usize, u64, u32)>,
}

impl<M: Memory> Words for Opened<M> {
    fn generation(&self) -> u64 {
        self.generation
    }

    fn count(&self) -> usize {
        self.channels.len()
    }

    fn read(&self, index: usize) -> (Entries, u32) {
        let channel = self.channels.get(index);
        channel.map_or((Entries::default(), 0), |(memory, offset, ring)| {
            let word = self.memories.get(*memory);
            let word = word.and_then(|memory| memory.word(offset + WORDS_AT));
            (Entries::of(word.unwrap_or(0)), *ring)
        })
    }
}

/// Maps what these channels say.
///
/// # Errors
/// If one of them cannot be read: what is left would say too little.
pub(super) fn open<L: Lender>(
    lender: &L,
    places: &[Place],
) -> Result<Opened<L::Memory>, UserdError> {
    if places.len() > CHANNELS_MAX {
        return Err(UserdError::TooMany(places.len()));
    }
    let mut lengths: BTreeMap<(u32, u32, u32), u64> = BTreeMap::new();
    for place in places {
        let offset = place.userd.offset;
        if offset > MAPPED_MAX - (WORDS_AT + 8) || !offset.is_multiple_of(8) {
            return Err(UserdError::TooFar(offset));
        }
        let end = (offset + WORDS_AT + 8).next_multiple_of(4096);
        let memory = (place.pid, place.client, place.userd.memory);
        let length = lengths.entry(memory).or_default();
        *length = end.max(*length);
    }
    let lend = |((pid, client, memory), length): (&(u32, u32, u32), &u64)| {
        lender.lend(*pid, *client, *memory, *length)
    };
    let memories = lengths.iter().map(lend).collect::<Result<_, _>>()?;
    let index = |place: &Place| {
        let memory = (place.pid, place.client, place.userd.memory);
        lengths.keys().position(|of| *of == memory).unwrap_or(0)
    };
    let channel = |place: &Place| (index(place), place.userd.offset, place.userd.entries);
    Ok(Opened {
        generation: 0,
        memories,
        channels: places.iter().map(channel).collect(),
    })
}

#[derive(Debug)]
struct Tenant<M> {
    /// The channels that it had when it was last asked for.
    places: Vec<Place>,
    opened: Option<Opened<M>>,
    /// When these were tried in vain.
    failed: Option<Instant>,
}

/// What is mapped of all tenants.
#[derive(Debug)]
pub(super) struct Userds<M> {
    tenants: BTreeMap<TenantId, Tenant<M>>,
    generations: u64,
    /// After so many changes of channels all that there were had been opened.
    changes: Option<u64>,
}

impl<M> Default for Userds<M> {
    fn default() -> Self {
        Self {
            tenants: BTreeMap::new(),
            generations: 0,
            changes: None,
        }
    }
}

impl<M: Memory> Userds<M> {
    /// Whether a tenant's channels are to be opened now: they are the same as when this was last asked. Others that were open are given back.
    pub(super) fn is_due(&mut self, tenant: TenantId, places: &[Place], now: Instant) -> bool {
        let known = self.tenants.get(&tenant);
        if known.is_none_or(|known| known.places != places) {
            let new = Tenant {
                places: places.to_vec(),
                opened: None,
                failed: None,
            };
            self.tenants.insert(tenant, new);
            return false;
        }
        known.is_some_and(|known| {
            let again = |at: Instant| now.saturating_duration_since(at) >= AGAIN;
            known.opened.is_none() && !known.places.is_empty() && known.failed.is_none_or(again)
        })
    }

    /// Whether all are open that there are after so many changes, so that there is nothing to be done.
    pub(super) fn are_of(&self, changes: u64) -> bool {
        self.changes == Some(changes)
    }

    /// It was asked of all that there were after so many changes whether they are due.
    pub(super) fn followed(&mut self, changes: u64) {
        let all = self.tenants.values().all(|known| known.opened.is_some());
        self.changes = all.then_some(changes);
    }

    /// They were opened, or could not be. Whether that is worth a word.
    pub(super) fn put(
        &mut self,
        tenant: TenantId,
        opened: Result<Opened<M>, UserdError>,
        now: Instant,
    ) {
        let Some(known) = self.tenants.get_mut(&tenant) else {
            return;
        };
        match opened {
            Ok(opened) => {
                self.generations += 1;
                known.opened = Some(Opened {
                    generation: self.generations,
                    ..opened
                });
            }
            Err(error) => {
                if known.failed.replace(now).is_none() {
                    // One that ends closes its files before its channels are gone.
                    let level = match error {
                        UserdError::NoFile(_) => log::Level::Info,
                        _ => log::Level::Warn,
                    };
                    log::log!(level, "What {tenant}'s channels say is not read: {error}");
                }
            }
        }
    }

    /// Of others than these nothing is read any more.
    pub(super) fn keep(&mut self, tenants: impl Fn(TenantId) -> bool) {
        self.tenants.retain(|tenant, _| tenants(*tenant));
        self.changes = None;
    }

    /// Channels of all tenants of whom they are read.
    pub(super) fn all(&self) -> impl Iterator<Item = (TenantId, &Opened<M>)> {
        let tenants = self.tenants.iter();
        tenants.filter_map(|(id, tenant)| Some((*id, tenant.opened.as_ref()?)))
    }

    /// A tenant's channels, if they are read.
    pub(super) fn of(&self, tenant: TenantId) -> Option<&Opened<M>> {
        self.tenants.get(&tenant)?.opened.as_ref()
    }

    /// Channels that are read.
    pub(super) fn count(&self) -> usize {
        let opened = self
            .tenants
            .values()
            .filter_map(|known| known.opened.as_ref());
        opened.map(Words::count).sum()
    }
}

#[cfg(test)]
#[path = "userd_tests.rs"]
mod tests;
