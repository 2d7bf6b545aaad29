//! Guest RAM that the driver has: which object's it is, and what else keeps it in use.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::sync::Arc;

use crate::abi::numbers::PAGE_BYTES;
use crate::abi::{read_u32, read_u64};
use crate::check::Made;
use crate::proto::{Extent, Message};
use crate::sys::{Piece, Region};

/// Handles in a channel's parameters: error notifier, and the first USERD.
/// SOURCE: `alloc_channel.h`, NV_CHANNEL_ALLOC_PARAMS.
const CHANNEL_ERROR_AT: usize = 0;
const CHANNEL_USERD_AT: usize = 32;

/// Where the extents of requests are.
pub(super) trait GuestRam: Debug + Send + Sync {
    /// The files of a request's extents, which are whole pages.
    ///
    /// # Errors
    /// EINVAL if an extent is not memory that the driver may have.
    fn pieces(&self, message: &Message) -> io::Result<Pieces>;
}

/// The extents of a request.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    pub(super) list: Vec<Piece>,
    /// Their sum.
    pub(super) bytes: u64,
    /// The VM's memory areas that they are in, by address.
    pub(super) areas: BTreeSet<u64>,
    /// Dropped when they are no longer used.
    pub(super) pledge: Option<Arc<dyn Pledge>>,
}

/// Reports, when it is dropped, that memory is no longer used.
pub(super) trait Pledge: Debug + Send + Sync {}

/// Memory of one file.
#[derive(Debug)]
pub(super) struct OneFile {
    pub(super) file: Arc<File>,
    pub(super) bytes: u64,
}

/// Whether an extent is of whole pages; its end then.
pub(super) fn end_of(extent: &Extent) -> io::Result<u64> {
    let whole = extent.offset.is_multiple_of(PAGE_BYTES)
        && extent.bytes.is_multiple_of(PAGE_BYTES)
        && extent.bytes != 0;
    let end = extent.offset.checked_add(extent.bytes).filter(|_| whole);
    end.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
}

impl GuestRam for OneFile {
    fn pieces(&self, message: &Message) -> io::Result<Pieces> {
        let mut pieces = Pieces::default();
        for extent in &message.extents {
            if end_of(extent)? > self.bytes {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            }
            pieces.add(Arc::clone(&self.file), extent.offset, extent.bytes);
        }
        Ok(pieces)
    }
}

impl Pieces {
    pub(super) fn add(&mut self, file: Arc<File>, offset: u64, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.list.push(Piece {
            file,
            offset,
            bytes,
        });
    }

    /// Maps them one behind the other.
    ///
    /// # Errors
    /// As mmap(2).
    pub(super) fn map(&self) -> io::Result<Lent> {
        Ok(Lent {
            region: Region::of(&self.list, self.bytes)?,
            areas: self.areas.clone(),
            _pledge: self.pledge.clone(),
        })
    }
}

/// Guest RAM that is mapped in this process, for the driver.
#[derive(Debug)]
pub(super) struct Lent {
    // Unmapped before the pledge is dropped: fields are dropped in this order.
    region: Region,
    areas: BTreeSet<u64>,
    _pledge: Option<Arc<dyn Pledge>>,
}

impl Lent {
    pub(super) fn address(&self) -> u64 {
        self.region.address()
    }
}

/// An object that uses memory of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum User {
    /// Client and handle: a channel, or a duplicate.
    Object(u32, u32),
    /// A file of unified memory, and the range's first address.
    Range(u32, u64),
}

/// All guest RAM that is lent.
#[derive(Debug, Default)]
pub(super) struct Lending {
    /// By client and handle.
    objects: BTreeMap<(u32, u32), Arc<Lent>>,
    users: BTreeMap<User, Vec<Arc<Lent>>>,
}

impl Lending {
    pub(super) fn insert(&mut self, client: u32, handle: u32, lent: Lent) {
        self.objects.insert((client, handle), Arc::new(lent));
    }

    /// Memory of an object stays in use while another has it.
    pub(super) fn used_by(&mut self, user: User, client: u32, handle: u32) {
        let duplicated = self
            .users
            .get(&User::Object(client, handle))
            .into_iter()
            .flatten();
        let own = self.objects.get(&(client, handle));
        let all: Vec<Arc<Lent>> = own.into_iter().chain(duplicated).cloned().collect();
        if !all.is_empty() {
            self.users.entry(user).or_default().extend(all);
        }
    }

    /// A channel uses the memory of its USERD and of its notifier.
    pub(super) fn channel(&mut self, made: &Made, params: &[u8]) {
        for at in [CHANNEL_ERROR_AT, CHANNEL_USERD_AT] {
            let user = User::Object(made.client, made.handle);
            self.used_by(user, made.client, read_u32(params, at));
        }
    }

    /// An object is gone. What it returns is to be dropped without the lock.
    pub(super) fn freed(&mut self, client: u32, handle: u32) -> Vec<Arc<Lent>> {
        let mut gone = self
            .users
            .remove(&User::Object(client, handle))
            .unwrap_or_default();
        gone.extend(self.objects.remove(&(client, handle)));
        gone
    }

    /// A range of unified memory is gone.
    pub(super) fn unmapped(&mut self, file: u32, base: u64) -> Vec<Arc<Lent>> {
        self.users
            .remove(&User::Range(file, base))
            .unwrap_or_default()
    }

    /// A file is closed: its ranges are gone.
    pub(super) fn closed(&mut self, file: u32) -> Vec<Arc<Lent>> {
        let ranges = self
            .users
            .range(User::Range(file, 0)..=User::Range(file, u64::MAX));
        let ranges: Vec<User> = ranges.map(|(user, _)| *user).collect();
        ranges
            .iter()
            .filter_map(|range| self.users.remove(range))
            .flatten()
            .collect()
    }

    /// Whether any of it is in one of these areas.
    pub(super) fn uses(&self, areas: &BTreeSet<u64>) -> bool {
        let all = self.objects.values().chain(self.users.values().flatten());
        all.into_iter().any(|lent| !lent.areas.is_disjoint(areas))
    }
}

/// The range that a call of unified memory names.
pub(super) fn base_of(top: &[u8]) -> u64 {
    read_u64(top, 0)
}
