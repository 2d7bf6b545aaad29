//! The VM's memory: mapped at its pages, unmapped while its channels are suspended, and mapped
//! again.

use std::os::fd::OwnedFd;

use turnstile_abi::{CHUNK_BYTES, ErrorCode, GPU_VA_BASE};

use super::Engine;
use crate::worker::executor::Executor;
use turnstile_gpu::Refusal;

impl<E: Executor> Engine<E> {
    /// Maps memory at pages: that of the descriptor `restore`, or new memory, and returns its
    /// descriptor.
    pub(in super::super) fn allocate(
        &self,
        page: u32,
        pages: u32,
        restore: Option<OwnedFd>,
    ) -> Result<Option<OwnedFd>, Refusal> {
        let va = GPU_VA_BASE + u64::from(page) * CHUNK_BYTES;
        let bytes = u64::from(pages) * CHUNK_BYTES;
        let (memory, fd) = match restore {
            Some(fd) => (self.executor.restore(va, bytes, fd)?, None),
            None => {
                let (memory, fd) = self.executor.allocate(va, bytes)?;
                (memory, Some(fd))
            }
        };
        let mut state = self.visit();
        let range = page as usize..page as usize + pages as usize;
        state.layout.insert(&range);
        state.memory.insert(page, (pages, Some(memory)));
        Ok(fd)
    }

    pub(in super::super) fn free(&self, page: u32) -> Result<(), Refusal> {
        let mut state = self.visit();
        let (pages, _) = state.memory.get(&page).ok_or(ErrorCode::NoSuchAllocation)?;
        let va = GPU_VA_BASE + u64::from(page) * CHUNK_BYTES;
        let bytes = u64::from(*pages) * CHUNK_BYTES;
        if state.in_use(va, bytes) {
            return Err(ErrorCode::AllocationInUse.into());
        }
        // No later command can use it.
        state.layout.remove(va)?;
        let memory = state.memory.remove(&page);
        drop(state);
        let scrubbed = self.executor.scrub(va, bytes);
        drop(memory);
        scrubbed
    }

    /// Maps the memory of a handle at pages, unless memory is mapped there. Without a handle the
    /// pages are recorded as absent.
    pub(in super::super) fn map(
        &self,
        page: u32,
        pages: u32,
        handle: Option<OwnedFd>,
    ) -> Result<(), Refusal> {
        let there = {
            let mut state = self.visit();
            let known = state.memory.get(&page).map(|(_, memory)| memory.is_some());
            if known.is_none() {
                let range = page as usize..page as usize + pages as usize;
                state.layout.insert(&range);
                state.memory.insert(page, (pages, None));
                state.absent += 1;
            }
            known == Some(true)
        };
        let Some(handle) = handle.filter(|_| !there) else {
            return Ok(());
        };
        let va = GPU_VA_BASE + u64::from(page) * CHUNK_BYTES;
        let bytes = u64::from(pages) * CHUNK_BYTES;
        let memory = self.executor.restore(va, bytes, handle)?;
        let mut state = self.visit();
        state.memory.insert(page, (pages, Some(memory)));
        state.absent -= 1;
        Ok(())
    }

    /// Unmaps the memory of pages. No command is submitted until it is mapped again.
    pub(in super::super) fn unmap(&self, pages: &[u32]) -> Result<(), Refusal> {
        let mut gone = Vec::with_capacity(pages.len());
        let mut state = self.visit();
        for page in pages {
            let (_, memory) = state
                .memory
                .get_mut(page)
                .ok_or(ErrorCode::NoSuchAllocation)?;
            gone.extend(memory.take());
        }
        state.absent += gone.len();
        drop(state);
        drop(gone);
        Ok(())
    }

    /// Drops memory that the guest has freed, mapped or not: all of it, or none and an error.
    pub(in super::super) fn drop_all(&self, pages: &[u32]) -> Result<(), Refusal> {
        let mut gone = Vec::with_capacity(pages.len());
        let mut state = self.visit();
        let va = |page: u32| GPU_VA_BASE + u64::from(page) * CHUNK_BYTES;
        for page in pages {
            let found = state.memory.get(page).ok_or(ErrorCode::NoSuchAllocation)?;
            if state.in_use(va(*page), u64::from(found.0) * CHUNK_BYTES) {
                return Err(ErrorCode::AllocationInUse.into());
            }
        }
        for page in pages {
            // No later command can use it.
            state.layout.remove(va(*page))?;
            if let Some((_, memory)) = state.memory.remove(page) {
                state.absent -= usize::from(memory.is_none());
                gone.push(memory);
            }
        }
        drop(state);
        drop(gone);
        Ok(())
    }
}
