//! Movable memory of a VM: GPU memory that the daemon takes out and puts back while the VM is
//! suspended, without the help of the guest's programs.
//!
//! ```text
//!   RM_ALLOC of GPU memory --Take--> daemon --> mover makes it --descriptor--> imported here, under
//!                                                                the handle that the program named
//!   Release: unmap from unified memory, free the handle     (the mover copies, the memory is free)
//!   Restore: import under the same handle, map where it was
//! ```
//!
//! Memory is the mover's from the start, so that each object of the driver can be exported. The
//! program sees the handle, the sizes and the addresses that it would have natively. While a part
//! is away no call of the VM reaches the driver: [`Movable::enter`] waits for the rest. Memory that
//! another object names, or that several handles share, is pinned and stays.
//!
//! Locks: `flight` (of the device), then the table; the line alone. A wait for the daemon holds
//! none of them.

mod link;
pub(super) mod moves;
mod table;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{
    Arc, Condvar, LockResult, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard,
    RwLockWriteGuard, Weak,
};
use std::thread;
use std::time::Duration;

use turnstile_preload_wire::socket::ProcessLine;
use turnstile_preload_wire::{GRANULE_BYTES, Pin, ToDaemon, ToLibrary};

use super::{Device, locked};
use crate::abi::MapCall;
use crate::abi::numbers::{MEMORY_BYTES_AT, class, control, escape, uvm};
use crate::abi::{Node, Parts, number, read_u32, read_u64};
use crate::check::Action;
use crate::proto::Message;
use link::Link;
use table::{Came, Found, Key, Mapping, Table};

/// Interval at which a device process without a daemon connects again.
const CONNECT_EVERY: Duration = Duration::from_secs(1);
/// Exit status of a device process of which memory was lost with the daemon, as that of a program
/// with movable memory. SOURCE: sysexits.h, EX_SOFTWARE.
const MEMORY_LOST: i32 = 70;
/// Length in the parameters of unified memory's calls that name a range. SOURCE: `uvm_ioctl.h`.
const MAP_BYTES_AT: usize = 8;

/// Controls that register memory for peers of other vendors. They name it, and keep nothing of it.
const PEERS: [u32; 2] = [control::REGISTER_VIDMEM, control::UNREGISTER_VIDMEM];

/// Memory that a program's call allocates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    key: Key,
    parent: u32,
    /// As the program names them, and in whole granules.
    given_bytes: u64,
    bytes: u64,
}

/// How an allocation gets its memory.
#[derive(Debug)]
pub(super) enum Grant {
    /// The daemon has given it; it is to be imported.
    Memory(OwnedFd),
    /// The mover thread has imported it already.
    Placed,
    /// The daemon gives none.
    Denied,
    /// There is no daemon: it is made natively, and does not move.
    Native,
}

#[derive(Debug, Default)]
struct State {
    table: Table,
    /// The first connection has neither come nor failed.
    is_connecting: bool,
    /// A report that the VM waits for memory that is away was sent.
    wants_sent: bool,
    /// Bytes that were last reported as not movable.
    pinned_bytes: u64,
    /// What the VM may have at most, by the daemon.
    limit_bytes: Option<u64>,
    /// Parameters of short allocations, as given and as the driver fills them in.
    fills: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The movable memory of a VM.
#[derive(Debug)]
pub(super) struct Movable {
    link: Link,
    line: Mutex<Option<Arc<ProcessLine>>>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Movable {
    /// Takes connections for the daemon to `launcher`.
    pub(super) fn new(launcher: OwnedFd) -> Self {
        Self {
            link: Link::new(launcher),
            line: Mutex::default(),
            state: Mutex::new(State {
                is_connecting: true,
                ..State::default()
            }),
            changed: Condvar::new(),
        }
    }

    fn line(&self) -> Option<Arc<ProcessLine>> {
        locked(&self.line).clone()
    }

    fn say(&self, message: &ToDaemon) -> bool {
        self.line().is_some_and(|line| line.say(message, None))
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let waited = self.changed.wait(state);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// The first connection is decided: without one, memory is made natively.
    fn has_tried(&self) {
        locked(&self.state).is_connecting = false;
        self.changed.notify_all();
    }

    /// Waits until all memory is on the GPU, at the start also for the daemon.
    fn wait_whole(&self) {
        let mut state = locked(&self.state);
        while state.is_connecting || state.table.is_away() {
            if !state.is_connecting && !std::mem::replace(&mut state.wants_sent, true) {
                drop(state);
                self.say(&ToDaemon::Wants {});
                state = locked(&self.state);
                continue;
            }
            state = self.wait(state);
        }
    }

    /// Requests memory, and waits for the daemon's answer.
    pub(super) fn request(&self, wanted: Wanted, file: u32) -> Option<u64> {
        let Wanted {
            key, parent, bytes, ..
        } = wanted;
        let chunk = locked(&self.state)
            .table
            .request(key, parent, file, bytes)?;
        if self.say(&ToDaemon::Take { chunk, bytes }) {
            return Some(chunk);
        }
        locked(&self.state).table.remove(key);
        None
    }

    /// Removes a chunk that the program has freed.
    pub(super) fn freed(&self, client: u32, handle: u32) {
        let chunk = locked(&self.state).table.remove((client, handle));
        if let Some(chunk) = chunk {
            self.say(&ToDaemon::Freed { chunk });
            self.changed.notify_all();
        }
    }

    /// Chunks that can move no more. Their memory stays where it is.
    fn pin(&self, keys: Vec<Key>) {
        for key in keys {
            let chunk = locked(&self.state).table.remove(key);
            if let Some(chunk) = chunk {
                self.say(&ToDaemon::Kept { chunk });
            }
        }
    }

    pub(super) fn closed(&self, file: u32) {
        locked(&self.state).table.closed(file);
    }

    /// What the VM may have at most, by the daemon.
    pub(super) fn limit_bytes(&self) -> Option<u64> {
        locked(&self.state).limit_bytes
    }

    /// Reports bytes that do not move, of the VM's `all_bytes`.
    fn report_pinned(&self, all_bytes: u64) {
        let mut state = locked(&self.state);
        let bytes = all_bytes.saturating_sub(state.table.bytes());
        if std::mem::replace(&mut state.pinned_bytes, bytes) != bytes {
            drop(state);
            let reason = Pin::Driver;
            self.say(&ToDaemon::Pinned { reason, bytes });
        }
    }
}

/// The thread that carries out the daemon's orders, until the device is gone.
pub(super) fn serve(device: &Weak<Device>) {
    loop {
        let connected = {
            let Some(device) = device.upgrade() else {
                return;
            };
            let Some(movable) = &device.movable else {
                return;
            };
            let connected = movable.link.connect();
            if let Ok(Some((line, limit_bytes))) = &connected {
                locked(&movable.state).limit_bytes = Some(*limit_bytes);
                *locked(&movable.line) = Some(Arc::clone(line));
            }
            movable.has_tried();
            match connected {
                Ok(connected) => connected.map(|(line, _)| line),
                // The launcher is gone, and with it the way to a daemon.
                Err(_) => return,
            }
        };
        let Some(line) = connected else {
            thread::sleep(CONNECT_EVERY);
            continue;
        };
        if let Some(device) = device.upgrade() {
            device.report_pinned();
        }
        while let Ok(Some((message, memory))) = line.next() {
            let Some(device) = device.upgrade() else {
                return;
            };
            if !device.obey(&line, message, memory) {
                break;
            }
        }
        line.end();
        let Some(device) = device.upgrade() else {
            return;
        };
        device.orphaned();
    }
}

impl Device {
    /// Waits until the VM's memory is on the GPU; calls may be issued until the result is dropped.
    pub(super) fn enter(&self) -> RwLockReadGuard<'_, ()> {
        self.enter_with(RwLock::read)
    }

    /// The same, while no other call is issued.
    pub(super) fn enter_alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.enter_with(RwLock::write)
    }

    fn enter_with<'a, G>(&'a self, lock: impl Fn(&'a RwLock<()>) -> LockResult<G>) -> G {
        loop {
            if let Some(movable) = &self.movable {
                movable.wait_whole();
            }
            let flight = lock(&self.flight).unwrap_or_else(PoisonError::into_inner);
            if !self.is_away() {
                return flight;
            }
        }
    }

    fn is_away(&self) -> bool {
        let is_away = |movable: &Movable| locked(&movable.state).table.is_away();
        self.movable.as_ref().is_some_and(is_away)
    }

    /// Carries out a message of the daemon. False if it makes no sense.
    fn obey(&self, line: &ProcessLine, message: ToLibrary, memory: Option<OwnedFd>) -> bool {
        let Some(movable) = &self.movable else {
            return false;
        };
        let answer = |chunk, done: Result<(), u32>, word| {
            let failed = |result| ToDaemon::Failed { chunk, result };
            line.say(&done.map_or_else(failed, |()| word), None)
        };
        match (message, memory) {
            (ToLibrary::Denied { chunk, .. }, _) => {
                locked(&movable.state).table.denied(chunk);
                movable.changed.notify_all();
                true
            }
            (ToLibrary::Release { chunk }, _) => {
                // No call is in flight, and none begins before the answer is sent.
                let _flight = self.flight.write().unwrap_or_else(PoisonError::into_inner);
                let done = moves::release(self, movable, chunk);
                answer(chunk, done, ToDaemon::Released { chunk })
            }
            (ToLibrary::Restore { chunk }, Some(memory)) => {
                let _flight = self.flight.write().unwrap_or_else(PoisonError::into_inner);
                let came = locked(&movable.state).table.came(chunk, memory);
                let done = match came {
                    Came::Kept => Ok(()),
                    Came::Returned(key, memory) => moves::restore(self, movable, key, &memory),
                    Came::Unknown => Err(0),
                };
                let said = answer(chunk, done, ToDaemon::Restored { chunk });
                movable.changed.notify_all();
                said
            }
            (ToLibrary::Memory { .. }, _) => true,
            _ => false,
        }
    }

    /// The daemon is gone.
    fn orphaned(&self) {
        let Some(movable) = &self.movable else { return };
        *locked(&movable.line) = None;
        let lost = locked(&movable.state).table.orphaned();
        movable.changed.notify_all();
        if lost {
            log::error!("GPU memory of the VM was lost with the daemon: its programs end");
            std::process::exit(MEMORY_LOST);
        }
    }

    /// Reports memory that cannot move.
    pub(super) fn report_pinned(&self) {
        if let Some(movable) = &self.movable {
            let all_bytes = locked(&self.vm).usage().gpu_bytes;
            movable.report_pinned(all_bytes);
        }
    }

    /// The memory that a call allocates, if it can move.
    pub(super) fn wants(
        &self,
        message: &Message,
        node: Node,
        parts: &Parts,
        action: Action,
    ) -> Option<Wanted> {
        self.movable.as_ref()?.line()?;
        let top = parts.buffers.first()?;
        let is_alloc = node != Node::Uvm
            && action == Action::Forward
            && number(message.request).is_some_and(|(number, _)| number == escape::RM_ALLOC)
            && read_u32(top, 12) == class::GPU_MEMORY;
        let given_bytes = read_u64(parts.params()?, MEMORY_BYTES_AT);
        let bytes = given_bytes.checked_next_multiple_of(GRANULE_BYTES)?;
        (is_alloc && bytes > 0).then(|| Wanted {
            key: (read_u32(top, 0), read_u32(top, 8)),
            parent: read_u32(top, 4),
            given_bytes,
            bytes,
        })
    }

    /// Gets memory for an allocation. Called without locks: it waits for the daemon, and for the
    /// VM's turn if the GPU is full. Returns with the right to issue calls.
    pub(super) fn granted(&self, file: u32, wanted: Wanted) -> (Grant, RwLockReadGuard<'_, ()>) {
        let request = |movable: &'_ Movable| movable.request(wanted, file);
        let requested = self.movable.as_ref();
        let Some((movable, chunk)) = requested.and_then(|of| Some((of, request(of)?))) else {
            return (Grant::Native, self.enter());
        };
        let mut state = locked(&movable.state);
        while state.table.waits(wanted.key, chunk) {
            state = movable.wait(state);
        }
        drop(state);
        loop {
            let flight = self.enter();
            let found = locked(&movable.state).table.find(wanted.key, chunk);
            let grant = match found {
                Found::Memory(memory) => Grant::Memory(memory),
                Found::Here => Grant::Placed,
                Found::Gone if movable.line().is_some() => Grant::Denied,
                Found::Gone => Grant::Native,
                // It left before it was imported: the mover thread brings it.
                Found::Away => continue,
            };
            return (grant, flight);
        }
    }

    /// Pins memory that a call names in another way than by mapping or freeing it.
    pub(super) fn pin_named(&self, message: &Message, node: Node, parts: &Parts) {
        let (Some(movable), Some(top)) = (&self.movable, parts.buffers.first()) else {
            return;
        };
        let word = |at| read_u32(top, at);
        let state = locked(&movable.state);
        let named = match number(message.request).map(|(number, _)| number) {
            _ if node == Node::Uvm => return,
            Some(escape::RM_DUP_OBJECT) => state.table.named(word(12), &word(16).to_ne_bytes()),
            Some(escape::RM_ALLOC) if word(12) == class::GPU_MEMORY => return,
            Some(escape::RM_CONTROL) if PEERS.contains(&word(8)) => return,
            Some(escape::RM_ALLOC | escape::RM_CONTROL) => {
                let mut named = state
                    .table
                    .named(word(0), parts.params().unwrap_or_default());
                named.extend(state.table.named(word(0), &word(4).to_ne_bytes()));
                named
            }
            _ => return,
        };
        drop(state);
        movable.pin(named);
    }

    /// Whether a call registers memory for peers of other vendors, or takes that back. Movable
    /// memory is at no fixed place, and is registered for none.
    pub(super) fn registers_for_peers(&self, message: &Message, node: Node, parts: &Parts) -> bool {
        let is_control =
            number(message.request).is_some_and(|(number, _)| number == escape::RM_CONTROL);
        let Some(top) = parts
            .buffers
            .first()
            .filter(|_| node != Node::Uvm && is_control)
        else {
            return false;
        };
        let params = parts.params().unwrap_or_default();
        let key = (
            read_u32(top, 0),
            params
                .first_chunk()
                .map_or(0, |word| u32::from_ne_bytes(*word)),
        );
        PEERS.contains(&read_u32(top, 8))
            && self
                .movable
                .as_ref()
                .is_some_and(|movable| locked(&movable.state).table.get(key).is_some())
    }

    /// Notes where unified memory maps what, after a call that succeeded.
    pub(super) fn mapped(&self, message: &Message, node: Node, parts: &Parts) {
        let (Some(movable), Some(top)) = (&self.movable, parts.buffers.first()) else {
            return;
        };
        if node != Node::Uvm {
            return;
        }
        let (file, base) = (message.file, super::ram::base_of(top));
        let mut state = locked(&movable.state);
        let cut = match message.request {
            uvm::CREATE_EXTERNAL_RANGE => {
                state
                    .table
                    .range_made(file, base, read_u64(top, MAP_BYTES_AT));
                Vec::new()
            }
            uvm::FREE => {
                state.table.range_gone(file, base);
                Vec::new()
            }
            uvm::UNMAP_EXTERNAL => state
                .table
                .unmapped(file, base, read_u64(top, MAP_BYTES_AT)),
            // The driver accepts none that cannot be read.
            uvm::MAP_EXTERNAL_ALLOCATION => match MapCall::read(top) {
                Some(call) => state.table.mapped(Mapping { file, call }),
                None => Vec::new(),
            },
            _ => Vec::new(),
        };
        drop(state);
        movable.pin(cut);
    }
}
