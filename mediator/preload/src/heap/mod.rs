//! A process's GPU memory, in chunks that can be released and restored at the same addresses.
//!
//! ```text
//!   alloc ------> slab piece (up to 1 MiB) ---+
//!                 chunk of its own -----------+--> chunk: handle, mappings <-- the daemon releases
//!   create, map (the program's own) ----------+                               and restores it
//! ```
//!
//! Every wait of the driver for the GPU is before the lock is taken: the thread that carries out
//! the daemon's requests takes it while the process executes nothing.

mod answers;
mod moves;
mod sides;
mod state;
#[cfg(test)]
mod tests;
mod vmm;

pub(crate) use sides::{Answer, Device, Line};

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use turnstile_preload_wire::{CHUNKS_MAX, ChunkNumber, EXTENT_BYTES, GRANULE_BYTES, Pin};
use turnstile_preload_wire::{ToDaemon, ToLibrary};

use self::answers::Answers;
use self::state::{Chunk, Mapping, State, Use, Whole};
use crate::abi::{Access, INVALID_VALUE, OUT_OF_MEMORY, Prop};
use crate::gate::Gate;
use crate::slabs::{Slabs, rounded};

/// A value, or the result with which the driver refused: a CUresult.
pub(crate) type Outcome<T> = Result<T, u32>;

/// Largest allocation that shares a chunk. SOURCE: the driver's own allocator does the same.
const PIECE_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a chunk that is divided into pieces.
const SLAB_BYTES: u64 = GRANULE_BYTES;

/// The process's GPU memory.
#[derive(Debug)]
pub(crate) struct Heap<D, L> {
    device: D,
    line: L,
    state: Mutex<State>,
    answers: Answers,
    gate: Gate,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics under these locks; if it did, the program's own calls matter more.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `bytes` as whole granules.
fn granules(bytes: u64) -> Outcome<u64> {
    let whole = bytes.checked_next_multiple_of(GRANULE_BYTES);
    whole.filter(|bytes| *bytes > 0).ok_or(if bytes == 0 {
        INVALID_VALUE
    } else {
        OUT_OF_MEMORY
    })
}

impl<D: Device, L: Line> Heap<D, L> {
    pub(crate) fn new(device: D, line: L) -> Self {
        Self {
            device,
            line,
            state: Mutex::default(),
            answers: Answers::default(),
            gate: Gate::default(),
        }
    }

    /// Makes a call that checks addresses, once all chunks are resident. Repeats it if it was
    /// refused because a chunk left meanwhile.
    pub(crate) fn gated<R: Copy>(&self, call: impl Fn() -> R, is_refused: impl Fn(R) -> bool) -> R {
        self.gate.call(call, is_refused, || self.wants())
    }

    /// Notes work that is about to be submitted without a check of addresses.
    pub(crate) fn submits(&self) {
        if self.gate.submits() {
            self.wants();
        }
    }

    fn wants(&self) {
        self.line.send(ToDaemon::Wants {}, None);
    }

    /// Carries out a message of the daemon. False if it is invalid, or the daemon is gone.
    pub(crate) fn obey(&self, message: ToLibrary, fd: Option<OwnedFd>) -> bool {
        let answer = |number, answer| self.answers.answer(number, answer);
        match (message, fd) {
            (ToLibrary::Granted { chunk }, _) => answer(chunk, Answer::Granted).is_ok(),
            (ToLibrary::Denied { chunk, .. }, _) => answer(chunk, Answer::Denied).is_ok(),
            (
                ToLibrary::Memory {
                    question,
                    free_bytes,
                    total_bytes,
                },
                _,
            ) => answer(question, Answer::Memory(free_bytes, total_bytes)).is_ok(),
            (ToLibrary::Release { chunk }, _) => {
                let done = self.release(chunk);
                self.report(chunk, done, ToDaemon::Released { chunk })
            }
            (ToLibrary::Restore { chunk }, Some(fd)) => {
                let Err(Answer::Restored(fd)) = answer(chunk, Answer::Restored(fd)) else {
                    return true;
                };
                let done = self.restore(chunk, fd);
                self.report(chunk, done, ToDaemon::Restored { chunk })
            }
            _ => false,
        }
    }

    fn report(&self, chunk: ChunkNumber, done: Outcome<()>, word: ToDaemon) -> bool {
        let failed = |result| ToDaemon::Failed { chunk, result };
        self.line.send(done.map_or_else(failed, |()| word), None)
    }

    /// Releases a chunk's memory. Error zero: there is no such chunk, or it does not move.
    fn release(&self, number: ChunkNumber) -> Outcome<()> {
        let mut state = lock(&self.state);
        let chunk = state.chunks.get_mut(&number).ok_or(0u32)?;
        let Some(handle) = chunk.handle.filter(|_| chunk.pin.is_none()) else {
            return Err(0);
        };
        if self.gate.leaves() {
            self.wants();
        }
        chunk.release(&self.device, &self.gate, handle)
    }

    /// Brings a missing chunk back, in the memory of `fd`.
    fn restore(&self, number: ChunkNumber, fd: OwnedFd) -> Outcome<()> {
        let mut state = lock(&self.state);
        let chunk = state.chunks.get_mut(&number).ok_or(0u32)?;
        if chunk.handle.is_some() {
            return Err(0);
        }
        chunk.restore(&self.device, &self.gate, fd)
    }

    /// Announces all memory to a new daemon; `connected` makes that the current one.
    pub(crate) fn announce(&self, connected: impl FnOnce()) {
        let mut state = lock(&self.state);
        connected();
        let numbers: Vec<ChunkNumber> = state.chunks.keys().copied().collect();
        for number in numbers {
            let Some(mut chunk) = state.chunks.remove(&number) else {
                continue;
            };
            chunk.known_to_daemon = false;
            if chunk.made_here {
                self.report_chunk(&mut state, number, &mut chunk);
            } else if chunk.handle.is_some() {
                self.pin(&mut state, &mut chunk, Pin::Orphaned);
            }
            state.chunks.insert(number, chunk);
        }
        for reason in Pin::ALL {
            let bytes = state.pinned_bytes[reason as usize];
            if bytes > 0 {
                self.line.send(ToDaemon::Pinned { reason, bytes }, None);
            }
        }
    }

    /// The daemon is gone: requests are not answered any more. Returns the bytes that were lost
    /// with it.
    pub(crate) fn daemon_disconnected(&self) -> u64 {
        self.gate.give_up();
        let lost_bytes = {
            let state = lock(&self.state);
            let away = state.chunks.values().filter(|chunk| chunk.handle.is_none());
            away.map(|chunk| chunk.bytes).sum()
        };
        self.answers.daemon_disconnected();
        lost_bytes
    }

    /// Free and total bytes as the daemon reports them; None without a daemon.
    pub(crate) fn info(&self) -> Option<(u64, u64)> {
        let question = lock(&self.state).number();
        let info = ToDaemon::Info { question };
        match self.answers.request(&self.line, question, info) {
            Answer::Memory(free, total) => Some((free, total)),
            _ => None,
        }
    }

    /// Memory for a chunk, with the daemon's permission.
    fn obtain(&self, bytes: u64, prop: Prop) -> Outcome<(ChunkNumber, Chunk)> {
        let number = lock(&self.state).number();
        let question = ToDaemon::Ask {
            chunk: number,
            bytes,
        };
        let answer = self.answers.request(&self.line, number, question);
        let (handle, made_here) = match answer {
            Answer::Denied => return Err(OUT_OF_MEMORY),
            Answer::Restored(fd) => (self.device.import(fd), false),
            _ => (self.device.create(bytes, &prop), true),
        };
        let handle = handle.inspect_err(|_| {
            self.line.send(ToDaemon::Spared { chunk: number }, None);
        })?;
        let chunk = Chunk {
            bytes,
            prop,
            handle: Some(handle),
            made_here,
            known_to_daemon: false,
            pin: None,
            purpose: Use::Part,
            mappings: Vec::new(),
        };
        Ok((number, chunk))
    }

    /// Discards a chunk that is not needed after all.
    fn undo(&self, number: ChunkNumber, chunk: &Chunk) {
        if let Some(handle) = chunk.handle {
            let _ = self.device.release(handle);
        }
        self.line.send(ToDaemon::Spared { chunk: number }, None);
    }

    /// Makes memory for the allocator itself: consecutive chunks. Returns their address and
    /// numbers. Each is reported before the next is requested: a daemon that gives a chunk waits
    /// for that.
    fn make(&self, bytes: u64, prop: Prop) -> Outcome<(u64, Vec<ChunkNumber>)> {
        let address = self.device.reserve(bytes)?;
        let mut parts = Vec::new();
        let mut at = 0;
        while at < bytes {
            let part = EXTENT_BYTES.min(bytes - at);
            match self.make_part(address + at, part, prop) {
                Ok((number, chunk)) => {
                    self.insert(&mut lock(&self.state), number, chunk);
                    parts.push(number);
                }
                Err(result) => {
                    let mut state = lock(&self.state);
                    parts
                        .into_iter()
                        .for_each(|number| self.end(&mut state, number));
                    let _ = self.device.unreserve(address, bytes);
                    return Err(result);
                }
            }
            at += part;
        }
        Ok((address, parts))
    }

    fn make_part(&self, address: u64, bytes: u64, prop: Prop) -> Outcome<(ChunkNumber, Chunk)> {
        let (number, mut chunk) = self.obtain(bytes, prop)?;
        let access = vec![Access::full(prop.location)];
        // PANIC: none; a chunk that was obtained has a handle.
        let handle = chunk.handle.unwrap_or_default();
        let mapped = self.device.map(address, bytes, handle).and_then(|()| {
            let permitted = self.device.permit(address, bytes, &access);
            permitted.inspect_err(|_| {
                let _ = self.device.unmap(address, bytes);
            })
        });
        mapped.inspect_err(|_| self.undo(number, &chunk))?;
        chunk.mappings.push(Mapping { address, access });
        Ok((number, chunk))
    }

    /// Adds a chunk and reports it to the daemon.
    fn insert(&self, state: &mut State, number: ChunkNumber, mut chunk: Chunk) {
        self.report_chunk(state, number, &mut chunk);
        state.chunks.insert(number, chunk);
    }

    fn report_chunk(&self, state: &mut State, number: ChunkNumber, chunk: &mut Chunk) {
        if chunk.pin.is_some() {
            return;
        }
        let Some(handle) = chunk.handle.filter(|_| self.line.is_up()) else {
            return;
        };
        if state.chunks.len() >= CHUNKS_MAX && !chunk.known_to_daemon {
            self.line.send(ToDaemon::Spared { chunk: number }, None);
            self.pin(state, chunk, Pin::TooMany);
            return;
        }
        let bytes = chunk.bytes;
        if !chunk.made_here {
            // The daemon made it, and has a handle.
            let restored = ToDaemon::Restored { chunk: number };
            chunk.known_to_daemon = self.line.send(restored, None);
            return;
        }
        match self.device.export(handle) {
            Ok(fd) => {
                let made = ToDaemon::Made {
                    chunk: number,
                    bytes,
                };
                chunk.known_to_daemon = self.line.send(made, Some(fd));
            }
            Err(_) => {
                self.line.send(ToDaemon::Spared { chunk: number }, None);
                self.pin(state, chunk, Pin::Shared);
            }
        }
    }

    /// Pins a chunk: it does not move any more.
    fn pin(&self, state: &mut State, chunk: &mut Chunk, reason: Pin) {
        if chunk.pin.is_none() {
            chunk.pin = Some(reason);
            self.count_pinned(state, reason, chunk.bytes, true);
        }
    }

    fn count_pinned(&self, state: &mut State, reason: Pin, bytes: u64, more: bool) {
        let sum = &mut state.pinned_bytes[reason as usize];
        *sum = if more {
            sum.saturating_add(bytes)
        } else {
            sum.saturating_sub(bytes)
        };
        let bytes = *sum;
        self.line.send(ToDaemon::Pinned { reason, bytes }, None);
    }

    /// Counts memory that the driver allocated by itself, or freed.
    pub(crate) fn pinned(&self, reason: Pin, bytes: u64, more: bool) {
        self.count_pinned(&mut lock(&self.state), reason, bytes, more);
    }

    /// Allocates as cuMemAlloc does.
    pub(crate) fn alloc(&self, bytes: u64, prop: Prop) -> Outcome<u64> {
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        if bytes > PIECE_BYTES_MAX {
            let bytes = granules(bytes)?;
            let (address, numbers) = self.make(bytes, prop)?;
            let whole = Whole { bytes, numbers };
            lock(&self.state).whole.insert(address, whole);
            return Ok(address);
        }
        let piece = rounded(bytes).ok_or(OUT_OF_MEMORY)?;
        if let Some(address) = lock(&self.state).slabs.take(piece) {
            return Ok(address);
        }
        let (address, numbers) = self.make(SLAB_BYTES, prop)?;
        let mut state = lock(&self.state);
        for number in numbers {
            if let Some(chunk) = state.chunks.get_mut(&number) {
                chunk.purpose = Use::Slab;
            }
            state.slabs.add(address, SLAB_BYTES, number);
        }
        state.slabs.take(piece).ok_or(OUT_OF_MEMORY)
    }

    /// The allocation that contains an address: where it begins, and its bytes. None if it is not
    /// in this heap.
    pub(crate) fn range(&self, address: u64) -> Option<(u64, u64)> {
        lock(&self.state).range(address)
    }

    /// Whether an allocation of this heap begins at `address`.
    pub(crate) fn owns(&self, address: u64) -> bool {
        lock(&self.state).owns(address)
    }

    /// Frees the allocation that begins at `address`. Precondition: it is not in use. False if none
    /// of this heap begins there.
    pub(crate) fn free(&self, address: u64) -> bool {
        let mut state = lock(&self.state);
        if let Some(whole) = state.whole.remove(&address) {
            for number in whole.numbers {
                self.end(&mut state, number);
            }
            let _ = self.device.unreserve(address, whole.bytes);
            return true;
        }
        if !state.slabs.give(address) {
            return false;
        }
        for number in state.slabs.drop_empty(1) {
            self.end(&mut state, number);
        }
        true
    }

    /// Frees an allocation once no capture is in progress.
    pub(crate) fn defer(&self, address: u64) {
        lock(&self.state).deferred.push(address);
    }

    /// Removes and returns the allocations that wait to be freed.
    pub(crate) fn take_deferred(&self) -> Vec<u64> {
        std::mem::take(&mut lock(&self.state).deferred)
    }

    /// Releases empty slabs.
    pub(crate) fn shrink(&self) {
        let mut state = lock(&self.state);
        for number in state.slabs.drop_empty(0) {
            self.end(&mut state, number);
        }
    }

    /// Ends a chunk.
    fn end(&self, state: &mut State, number: ChunkNumber) {
        let Some(chunk) = state.chunks.remove(&number) else {
            return;
        };
        for mapping in &chunk.mappings {
            if chunk.handle.is_some() {
                let _ = self.device.unmap(mapping.address, chunk.bytes);
            }
            if chunk.purpose == Use::Slab {
                let _ = self.device.unreserve(mapping.address, chunk.bytes);
            }
        }
        match chunk.handle {
            Some(handle) => {
                let _ = self.device.release(handle);
            }
            None => self.gate.returns(),
        }
        if let Some(reason) = chunk.pin {
            self.count_pinned(state, reason, chunk.bytes, false);
        }
        if chunk.known_to_daemon {
            self.line.send(ToDaemon::Freed { chunk: number }, None);
        }
    }

    /// Pins all chunks, as the process is ending.
    pub(crate) fn keep_all(&self) {
        let mut state = lock(&self.state);
        let state = &mut *state;
        for (number, chunk) in std::mem::take(&mut state.chunks) {
            let mut chunk = chunk;
            if chunk.known_to_daemon && chunk.pin.is_none() {
                self.line.send(ToDaemon::Kept { chunk: number }, None);
                chunk.known_to_daemon = false;
                self.pin(state, &mut chunk, Pin::Ending);
            }
            state.chunks.insert(number, chunk);
        }
    }

    /// The context is gone, with all that was allocated in it.
    pub(crate) fn context_destroyed(&self) {
        let mut state = lock(&self.state);
        for (address, whole) in std::mem::take(&mut state.whole) {
            for number in whole.numbers {
                self.end(&mut state, number);
            }
            let _ = self.device.unreserve(address, whole.bytes);
        }
        let slabs = state
            .chunks
            .iter()
            .filter(|(_, chunk)| chunk.purpose == Use::Slab);
        let slabs: Vec<ChunkNumber> = slabs.map(|(number, _)| *number).collect();
        for number in slabs {
            self.end(&mut state, number);
        }
        state.slabs = Slabs::default();
        state.deferred.clear();
    }
}
