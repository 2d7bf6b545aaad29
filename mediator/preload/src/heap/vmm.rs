//! Memory that the program makes and maps itself (cuMemCreate, cuMemMap). The program gets handles
//! of this library, since the driver's handles change when memory moves.

use std::os::fd::OwnedFd;

use turnstile_preload_wire::{ChunkNumber, GRANULE_BYTES, Pin, ToDaemon};

use super::{Chunk, Device, Heap, Line, Mapping, Outcome, State, Use, lock};
use crate::abi::{Access, INVALID_VALUE, POSIX_HANDLE, Prop};

/// High bits of this library's handles; the driver's handles are addresses of its own.
const TAG: u64 = 0x7453 << 48;
const TAG_MASK: u64 = 0xffff << 48;

fn chunk_of(handle: u64) -> Option<ChunkNumber> {
    (handle & TAG_MASK == TAG).then_some(handle & !TAG_MASK)
}

impl<D: Device, L: Line> Heap<D, L> {
    /// cuMemCreate. Precondition: on the GPU of this heap.
    pub(crate) fn create(&self, bytes: u64, prop: Prop) -> Outcome<u64> {
        if bytes == 0 || !bytes.is_multiple_of(GRANULE_BYTES) {
            return Err(INVALID_VALUE);
        }
        let prop = Prop {
            handle_types: prop.handle_types | POSIX_HANDLE,
            ..prop
        };
        let (number, mut chunk) = self.obtain(bytes, prop)?;
        chunk.purpose = Use::Held(1);
        self.insert(&mut lock(&self.state), number, chunk);
        Ok(TAG | number)
    }

    /// Whether a handle is of this library.
    pub(crate) fn is_ours(&self, handle: u64) -> bool {
        chunk_of(handle).is_some_and(|number| lock(&self.state).chunks.contains_key(&number))
    }

    /// Properties with which a handle of this library was made.
    pub(crate) fn prop(&self, handle: u64) -> Option<Prop> {
        let number = chunk_of(handle)?;
        lock(&self.state)
            .chunks
            .get(&number)
            .map(|chunk| chunk.prop)
    }

    /// The driver's handle, for a use that does not survive a move: the chunk is pinned from now
    /// on. Fails while the chunk is missing.
    pub(crate) fn keep(&self, handle: u64, reason: Pin) -> Outcome<u64> {
        let number = chunk_of(handle).ok_or(INVALID_VALUE)?;
        let mut state = lock(&self.state);
        let mut chunk = state.chunks.remove(&number).ok_or(INVALID_VALUE)?;
        let inner = chunk.handle;
        if inner.is_some() {
            if std::mem::take(&mut chunk.known_to_daemon) {
                self.line.send(ToDaemon::Kept { chunk: number }, None);
            }
            self.pin(&mut state, &mut chunk, reason);
        }
        state.chunks.insert(number, chunk);
        inner.ok_or(crate::abi::NOT_SUPPORTED)
    }

    /// cuMemExportToShareableHandle, for a descriptor.
    pub(crate) fn export(&self, handle: u64) -> Outcome<OwnedFd> {
        self.device.export(self.keep(handle, Pin::Shared)?)
    }

    /// cuMemRelease.
    pub(crate) fn let_go(&self, handle: u64) -> Outcome<()> {
        let number = chunk_of(handle).ok_or(INVALID_VALUE)?;
        let mut state = lock(&self.state);
        let chunk = state.chunks.get_mut(&number).ok_or(INVALID_VALUE)?;
        let Use::Held(times @ 1..) = &mut chunk.purpose else {
            return Err(INVALID_VALUE);
        };
        *times -= 1;
        self.end_if_unused(&mut state, number);
        Ok(())
    }

    /// The program's memory lives as long as a handle or a mapping.
    fn end_if_unused(&self, state: &mut State, number: ChunkNumber) {
        let unused = |chunk: &Chunk| chunk.purpose == Use::Held(0) && chunk.mappings.is_empty();
        if state.chunks.get(&number).is_some_and(unused) {
            self.end(state, number);
        }
    }

    /// cuMemMap of the whole chunk: the driver maps no less. A missing chunk is mapped when it is
    /// restored.
    pub(crate) fn map(&self, address: u64, bytes: u64, handle: u64) -> Outcome<()> {
        let number = chunk_of(handle).ok_or(INVALID_VALUE)?;
        let mut state = lock(&self.state);
        let chunk = state.chunks.get_mut(&number).ok_or(INVALID_VALUE)?;
        if bytes != chunk.bytes {
            return Err(INVALID_VALUE);
        }
        if let Some(inner) = chunk.handle {
            self.device.map(address, bytes, inner)?;
        }
        let access = Vec::new();
        chunk.mappings.push(Mapping { address, access });
        state.mapped.insert(address, number);
        Ok(())
    }

    /// The mappings of this heap that begin in a range, with their bytes; None if there are none.
    fn within(state: &State, address: u64, bytes: u64) -> Option<Vec<(u64, u64, ChunkNumber)>> {
        let end = address.checked_add(bytes)?;
        let mappings = state.mapped.range(address..end).filter_map(|(at, number)| {
            let bytes = state.chunks.get(number)?.bytes;
            Some((*at, bytes, *number))
        });
        let mappings: Vec<_> = mappings.collect();
        (!mappings.is_empty()).then_some(mappings)
    }

    /// cuMemUnmap; None if no mapping of this heap is there.
    pub(crate) fn unmap(&self, address: u64, bytes: u64) -> Option<Outcome<()>> {
        let mut state = lock(&self.state);
        let mappings = Self::within(&state, address, bytes)?;
        for (at, bytes, number) in mappings {
            let Some(chunk) = state.chunks.get_mut(&number) else {
                continue;
            };
            if chunk.handle.is_some()
                && let Err(result) = self.device.unmap(at, bytes)
            {
                return Some(Err(result));
            }
            chunk.mappings.retain(|mapping| mapping.address != at);
            state.mapped.remove(&at);
            self.end_if_unused(&mut state, number);
        }
        Some(Ok(()))
    }

    /// cuMemSetAccess; None if no mapping of this heap is there.
    pub(crate) fn permit(
        &self,
        address: u64,
        bytes: u64,
        access: &[Access],
    ) -> Option<Outcome<()>> {
        let mut state = lock(&self.state);
        let mappings = Self::within(&state, address, bytes)?;
        for (at, bytes, number) in mappings {
            let Some(chunk) = state.chunks.get_mut(&number) else {
                continue;
            };
            if chunk.handle.is_some()
                && let Err(result) = self.device.permit(at, bytes, access)
            {
                return Some(Err(result));
            }
            let mapping = chunk.mappings.iter_mut().find(|m| m.address == at);
            if let Some(mapping) = mapping {
                for one in access {
                    mapping.access.retain(|had| had.location != one.location);
                    mapping.access.push(*one);
                }
            }
        }
        Some(Ok(()))
    }

    /// cuMemRetainAllocationHandle: counts another handle of the memory at an address, and returns
    /// it. None if no mapping of this heap is there.
    pub(crate) fn retain(&self, address: u64) -> Option<u64> {
        let mut state = lock(&self.state);
        let (base, number) = state.mapped.range(..=address).next_back()?;
        let (base, number) = (*base, *number);
        let chunk = state.chunks.get_mut(&number)?;
        if address - base >= chunk.bytes {
            return None;
        }
        if let Use::Held(times) = &mut chunk.purpose {
            *times += 1;
        }
        Some(TAG | number)
    }
}
