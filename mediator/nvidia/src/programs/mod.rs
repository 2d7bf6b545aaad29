//! Memory of programs, as reported by their preloaded libraries (`mediator/preload/`): their
//! limits, and where the memory is.
//!
//! Each process has a connection, and a thread here that receives its messages. Messages are
//! checked: a frame when it is decoded, a chunk's state in [`book`]. After a violation the
//! connection ends, and the memory of the process does not move. The memory is placed by a
//! [`Backing`], in the daemon [`ProgramChunks`]. It calls [`ProgramMemory::unmap`] and
//! [`ProgramMemory::map`] while nothing of the program runs.

mod book;
mod chunks;
mod messages;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use turnstile_accounting::TenantId;
use turnstile_preload_wire::socket::DaemonLine;
use turnstile_preload_wire::{ChunkNumber, Denial, Pin, ToLibrary};

use book::{Book, ProcessNumber};
pub use chunks::ProgramChunks;

/// Maximum number of connected processes of all programs: each takes a thread.
const CONNECTIONS_MAX: usize = 512;
/// The same for one program, so that others can connect.
const PROCESSES_MAX: usize = 64;
/// Time limit for an answer. TIMEOUT: the library's thread on a busy host. Tenants that wait for
/// memory wait for this answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// Time limit added for each chunk. TIMEOUT: unmapping or mapping one takes 0.1 ms (measured on an
/// H200).
const CHUNK_LIMIT: Duration = Duration::from_millis(1);

/// A chunk of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProgramPlace {
    process: ProcessNumber,
    chunk: ChunkNumber,
    /// Bytes.
    pub bytes: u64,
}

/// How a granted chunk is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// The program makes it, on the GPU.
    Make,
    /// The program gets it, now or when there is room ([`ProgramMemory::map`]).
    Given,
}

/// Places the memory of programs.
pub trait Backing: Send + Sync + Debug {
    /// Requests a chunk within the tenant's limits.
    ///
    /// # Errors
    /// If GPU and host have no room.
    fn allocate(&self, tenant: TenantId, place: ProgramPlace) -> Result<Grant, Denial>;
    /// Gives a chunk within the tenant's limits: its handle by `send`, or later by
    /// [`ProgramMemory::map`]. No order about the chunk is given before.
    ///
    /// # Errors
    /// If GPU and host have no room.
    fn give(
        &self,
        tenant: TenantId,
        place: ProgramPlace,
        send: &mut dyn FnMut(OwnedFd),
    ) -> Result<(), Denial>;
    /// The program has made a chunk, of which this is a handle.
    fn made(&self, tenant: TenantId, place: ProgramPlace, handle: OwnedFd);
    /// A chunk was freed, or does not move any more.
    fn freed(&self, tenant: TenantId, place: ProgramPlace);
    /// Sets a tenant's bytes on the GPU that are not in chunks and cannot move.
    fn pinned(&self, _tenant: TenantId, _bytes: u64) {}
    /// A tenant that lacks memory reports work.
    fn wants(&self, _tenant: TenantId) {}
}

/// A backing that leaves memory on the card.
#[derive(Clone, Copy, Debug)]
pub struct Unmoved;

impl Backing for Unmoved {
    fn allocate(&self, _: TenantId, _: ProgramPlace) -> Result<Grant, Denial> {
        Ok(Grant::Make)
    }

    fn give(&self, _: TenantId, _: ProgramPlace, _: &mut dyn FnMut(OwnedFd)) -> Result<(), Denial> {
        Err(Denial::Full)
    }

    /// Closes the handle, which would keep the memory.
    fn made(&self, _: TenantId, _: ProgramPlace, _: OwnedFd) {}

    fn freed(&self, _: TenantId, _: ProgramPlace) {}
}

/// Answers that are awaited, by chunk.
#[derive(Debug, Default)]
struct Awaited(BTreeMap<(ProcessNumber, ChunkNumber), Option<Result<(), u32>>>);

#[derive(Debug)]
struct State {
    book: Book,
    /// Limit of each tenant's bytes; `u64::MAX` without a limit.
    limits: BTreeMap<TenantId, u64>,
    lines: BTreeMap<ProcessNumber, Arc<DaemonLine>>,
    awaited: Awaited,
    logged_at: Option<Instant>,
    /// When it was last logged that a connection of a tenant ended early.
    ends_logged: BTreeMap<TenantId, Instant>,
}

impl State {
    /// Refuses a connection beyond the limits, or a second one of a process.
    fn admit(&self, tenant: TenantId, line: &DaemonLine) -> Result<(), String> {
        if self.lines.len() >= CONNECTIONS_MAX {
            return Err(format!(
                "{CONNECTIONS_MAX} processes have movable memory already"
            ));
        }
        let own = self.book.processes(tenant);
        if own.len() >= PROCESSES_MAX {
            return Err(format!(
                "{PROCESSES_MAX} processes of it have movable memory already"
            ));
        }
        let mut own = own.iter().filter_map(|number| self.lines.get(number));
        if own.any(|other| other.pid == line.pid) {
            return Err(format!("process {} has a connection already", line.pid));
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Shared {
    backing: Arc<dyn Backing>,
    state: Mutex<State>,
    answered: Condvar,
}

/// Memory of all programs of a GPU.
#[derive(Clone, Debug)]
pub struct ProgramMemory(Arc<Shared>);

/// The same, without keeping it alive.
#[derive(Clone, Debug)]
struct WeakMemory(Weak<Shared>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProgramMemory {
    /// Memory of programs, which together may have `room_bytes` on the card and at the host.
    pub fn new(room_bytes: u64, backing: Arc<dyn Backing>) -> Self {
        let state = State {
            book: Book::new(room_bytes),
            limits: BTreeMap::new(),
            lines: BTreeMap::new(),
            awaited: Awaited::default(),
            logged_at: None,
            ends_logged: BTreeMap::new(),
        };
        Self(Arc::new(Shared {
            backing,
            state: Mutex::new(state),
            answered: Condvar::new(),
        }))
    }

    /// Adds a program as a tenant, with its limit in bytes, if it has one.
    pub fn add(&self, tenant: TenantId, max_bytes: Option<u64>) {
        let max_bytes = max_bytes.unwrap_or(u64::MAX);
        self.0.lock().limits.insert(tenant, max_bytes);
    }

    /// Adds a process of a tenant by its connection, which is served by a thread of its own.
    ///
    /// # Errors
    /// If there are too many, no thread, or no such tenant.
    pub fn connect(&self, tenant: TenantId, socket: OwnedFd) -> Result<(), String> {
        let line = Arc::new(DaemonLine::new(socket).map_err(|error| error.to_string())?);
        let mut state = self.0.lock();
        state.admit(tenant, &line)?;
        let limit = state.limits.get(&tenant).copied();
        let max_bytes = limit.ok_or("its program is no tenant")?;
        let number = state.book.connect(tenant, max_bytes);
        state.lines.insert(number, line.clone());
        drop(state);
        let own = self.clone();
        let thread = thread::Builder::new()
            .name("gpu-program".into())
            .spawn(move || own.serve_library(tenant, number, &line));
        thread.map(drop).map_err(|error| {
            self.lose(tenant, number);
            error.to_string()
        })
    }

    /// Removes a tenant and ends the connections of its processes.
    pub fn remove(&self, tenant: TenantId) {
        let mut state = self.0.lock();
        state.limits.remove(&tenant);
        state.ends_logged.remove(&tenant);
        drop(state);
        self.end(tenant);
    }

    /// Ends all connections: processes that lack memory end then.
    pub fn end_all(&self) {
        let mut state = self.0.lock();
        state.limits.clear();
        state.lines.values().for_each(|line| line.end());
    }

    /// Ends the connections of a tenant's processes. A process that lacks memory ends when it
    /// detects that.
    fn end(&self, tenant: TenantId) {
        let state = self.0.lock();
        for number in state.book.processes(tenant) {
            if let Some(line) = state.lines.get(&number) {
                line.end();
            }
        }
    }

    /// Has chunks unmapped and their handles closed. Chunks that are freed meanwhile, or belong to
    /// a process that has ended, count as done. Precondition: nothing of the program runs.
    ///
    /// # Errors
    /// If a process may still have a chunk; the tenant's connections are ended then.
    pub fn unmap(&self, tenant: TenantId, places: &[ProgramPlace]) -> Result<(), String> {
        let orders = places.iter().map(|place| {
            let chunk = place.chunk;
            (*place, ToLibrary::Release { chunk }, None)
        });
        self.order(tenant, orders.collect())
    }

    /// Has processes map chunks by their handles, at their addresses.
    ///
    /// # Errors
    /// If a process does not; the tenant's connections are ended then.
    pub fn map(
        &self,
        tenant: TenantId,
        memory: Vec<(ProgramPlace, OwnedFd)>,
    ) -> Result<(), String> {
        let orders = memory.into_iter().map(|(place, handle)| {
            let chunk = place.chunk;
            (place, ToLibrary::Restore { chunk }, Some(handle))
        });
        self.order(tenant, orders.collect())
    }

    fn order(
        &self,
        tenant: TenantId,
        orders: Vec<(ProgramPlace, ToLibrary, Option<OwnedFd>)>,
    ) -> Result<(), String> {
        // CAST: at most 16,384 for each process.
        let until = Instant::now() + ANSWER_LIMIT + CHUNK_LIMIT * orders.len() as u32;
        let mut waits = Vec::new();
        for (place, order, fd) in orders {
            let key = (place.process, place.chunk);
            let mut state = self.0.lock();
            let Some(line) = state.lines.get(&place.process).cloned() else {
                continue;
            };
            state.awaited.0.insert(key, None);
            drop(state);
            waits.push(key);
            if !line.say(&order, fd.as_ref()) {
                self.answer(place.process, place.chunk, Err(0));
            }
        }
        let mut failed = None;
        let mut state = self.0.lock();
        for key in waits {
            loop {
                match state.awaited.0.get(&key) {
                    Some(None) => {}
                    Some(Some(Err(result))) if *result != 0 => {
                        failed = Some(format!("the driver returned {result} of chunk {}", key.1));
                        break;
                    }
                    _ => break,
                }
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    failed = Some("it does not answer".into());
                    break;
                }
                let waited = self.0.answered.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            state.awaited.0.remove(&key);
        }
        if let Some(why) = failed {
            let numbers = state.book.processes(tenant);
            let lines = numbers.iter().filter_map(|number| state.lines.get(number));
            lines.for_each(|line| line.end());
            return Err(why);
        }
        Ok(())
    }

    /// Processes of each program that lack memory, or have an answer outstanding.
    pub(crate) fn lacking(&self) -> BTreeMap<TenantId, BTreeSet<u32>> {
        let state = self.0.lock();
        let lacks = |number: &ProcessNumber| {
            let mut awaited = state.awaited.0.range((*number, 0)..=(*number, u64::MAX));
            state.book.lacks(*number) || awaited.next().is_some()
        };
        let of = |tenant: &TenantId| {
            let lacking = state.book.processes(*tenant).into_iter().filter(lacks);
            let pids = lacking.filter_map(|number| Some(state.lines.get(&number)?.pid));
            (*tenant, pids.collect())
        };
        state.limits.keys().map(of).collect()
    }

    /// Bytes of a tenant's processes, if any is connected: in chunks, wherever they are, and
    /// pinned.
    pub fn held_bytes(&self, tenant: TenantId) -> Option<(u64, u64)> {
        let bytes = self.0.lock().book.bytes(tenant)?;
        Some((bytes.chunks, bytes.pinned))
    }

    /// Metrics, by name.
    pub fn figures(&self) -> BTreeMap<&'static str, u64> {
        let state = self.0.lock();
        let [limit, full] = state.book.denied();
        let pinned = state.book.pinned_bytes();
        let names = [
            "program_pinned_array_bytes",
            "program_pinned_managed_bytes",
            "program_pinned_other_context_bytes",
            "program_pinned_shared_bytes",
            "program_pinned_pool_bytes",
            "program_pinned_graph_bytes",
            "program_pinned_too_many_bytes",
            "program_pinned_orphaned_bytes",
            "program_pinned_ending_bytes",
            "program_pinned_driver_bytes",
        ];
        let mut figures: BTreeMap<_, _> = names.into_iter().zip(pinned).collect();
        figures.insert("program_memory_denied_limit", limit);
        figures.insert("program_memory_denied_full", full);
        figures.insert("program_memory_connections", state.lines.len() as u64);
        debug_assert_eq!(names.len(), Pin::ALL.len());
        figures
    }
}
