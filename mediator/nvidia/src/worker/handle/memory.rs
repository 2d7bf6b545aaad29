//! Movable memory of a VM: made by the mover, mapped and unmapped by the worker.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use turnstile_abi::{CHUNK_BYTES, GPU_VA_BASE};

use super::super::process::{Process, host, lost};
use super::super::protocol::Order;
use super::Worker;
use super::tables::{Shared, Tables, lock};
use crate::sets::{Mapper, Place};
use turnstile_gpu::{Allocation, Refusal};

/// Time limit for mapping or unmapping, also while the VM is suspended. TIMEOUT: each piece takes
/// some hundred microseconds (measured).
const MAP_LIMIT: Duration = Duration::from_secs(5);
/// Pieces in one order: a frame has room for their descriptors.
const PIECES_MAX: usize = 32;

/// Memory by its place; `None` while it is elsewhere.
type Memory = Vec<(Place, Option<OwnedFd>)>;

/// Returns what a restarted worker has to map.
pub(super) struct Again(Box<dyn Fn() -> io::Result<Memory> + Send + Sync>);

impl fmt::Debug for Again {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Again").finish_non_exhaustive()
    }
}

fn page(place: &Place) -> u32 {
    // CAST: the VM's pages are counted by a u32.
    ((place.at - GPU_VA_BASE) / CHUNK_BYTES) as u32
}

fn pages(place: &Place) -> u32 {
    // CAST: as above.
    (place.bytes / CHUNK_BYTES) as u32
}

/// Whether a process has ended. Waits up to [`MAP_LIMIT`], as closing its files takes time.
fn is_gone(process: &Process) -> bool {
    let limit = Timespec {
        tv_sec: MAP_LIMIT.as_secs().cast_signed(),
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(&process.pidfd, PollFlags::IN)];
    poll(&mut fds, Some(&limit)).is_ok_and(|ready| ready == 1)
}

impl Worker {
    /// Makes the VM's memory movable: each later process maps what `again` returns.
    pub(crate) fn remap_from(
        &self,
        again: impl Fn() -> io::Result<Memory> + Send + Sync + 'static,
    ) {
        // Set once, before the VM has memory.
        let _ = self.shared.again.set(Again(Box::new(again)));
    }

    /// Reserves addresses of the VM.
    ///
    /// # Errors
    /// The refusal that the guest sees.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<Allocation, Refusal> {
        let mut tables = self.alive()?;
        let found = tables.layout.find(bytes)?;
        Ok(tables.layout.insert(&found))
    }

    /// Releases reserved addresses that have no memory.
    pub(crate) fn unreserve(&self, va: u64) {
        // An unknown address needs no release.
        let _ = lock(&self.shared.tables).layout.remove(va);
    }

    /// Bytes of the allocation that begins at `va`.
    ///
    /// # Errors
    /// The refusal that the guest sees.
    pub(crate) fn reserved_bytes(&self, va: u64) -> Result<u64, Refusal> {
        let found = lock(&self.shared.tables).layout.allocation(va)?;
        Ok(found.len() as u64 * CHUNK_BYTES)
    }

    /// Unmaps and drops places that the guest has freed: all of them or none.
    ///
    /// # Errors
    /// The refusal that the guest sees.
    pub(crate) fn drop_places(&self, places: &[Place]) -> Result<(), Refusal> {
        let mut tables = self.alive()?;
        let pages = places.iter().map(page).collect();
        let order = Order::Drop { pages };
        self.shared
            .order_within(&mut tables, &order, Vec::new(), MAP_LIMIT, false)?;
        Ok(())
    }
}

#[cfg(test)]
impl Worker {
    /// Ends the process as if by itself.
    pub(in crate::worker) fn end_process(&self) {
        self.process().kill();
    }

    /// Writes to the shared page as the process could.
    pub(in crate::worker) fn scribble(&self, suspended: bool) {
        self.process().board.set_suspended(suspended);
    }

    /// The flag in the shared page.
    pub(in crate::worker) fn scribbled(&self) -> bool {
        self.process().board.suspended()
    }
}

impl Mapper for Worker {
    fn unmap(&self, places: &[Place]) -> Result<(), String> {
        let mut tables = lock(&self.shared.tables);
        let process = self.process();
        for some in places.chunks(PIECES_MAX) {
            if process.is_lost() {
                break;
            }
            let pages = some.iter().map(page).collect();
            let order = Order::Unmap { pages };
            let done = self
                .shared
                .order_within(&mut tables, &order, Vec::new(), MAP_LIMIT, false);
            if let Err(refusal) = done
                && !process.is_lost()
            {
                return Err(refusal.to_string());
            }
        }
        // A process that is ending may still have the memory mapped.
        if process.is_lost() && !is_gone(&process) {
            return Err("the VM's worker does not end".into());
        }
        Ok(())
    }

    fn map(&self, memory: Memory) -> Result<(), String> {
        let mut tables = lock(&self.shared.tables);
        let process = self.process();
        if process.is_lost() {
            return Ok(());
        }
        match self.shared.map(&mut tables, memory) {
            Err(refusal) if !process.is_lost() => Err(refusal.to_string()),
            _ => Ok(()),
        }
    }

    fn end(&self, reason: &str) {
        log::error!("{}: its worker is ended: {reason}", self.shared.tenant);
        self.process().kill();
    }
}

impl Shared {
    /// Has the worker map memory, or record it as absent.
    fn map(&self, tables: &mut Tables, memory: Memory) -> Result<(), Refusal> {
        let (here, away): (Memory, Memory) = memory.into_iter().partition(|(_, fd)| fd.is_some());
        let mut left = here.into_iter().chain(away).peekable();
        while left.peek().is_some() {
            let with = left.peek().is_some_and(|(_, fd)| fd.is_some());
            let (mut memory, mut fds) = (Vec::new(), Vec::new());
            while memory.len() < PIECES_MAX
                && let Some((place, fd)) = left.next_if(|(_, fd)| fd.is_some() == with)
            {
                memory.push((page(&place), pages(&place)));
                fds.extend(fd);
            }
            self.order_within(tables, &Order::Map { memory }, fds, MAP_LIMIT, false)?;
        }
        Ok(())
    }

    /// Gives a new process the movable memory.
    pub(super) fn map_again(&self, tables: &mut Tables) -> Result<(), Refusal> {
        let Some(Again(again)) = self.again.get() else {
            return Ok(());
        };
        let memory = again().map_err(|error| host("Handing GPU memory over failed", error))?;
        if self.ended.load(std::sync::atomic::Ordering::SeqCst) {
            return Err(lost("the VM is gone"));
        }
        self.map(tables, memory)
    }
}
