//! Carries out the daemon's requests about a process's memory.

use std::os::fd::OwnedFd;

use turnstile_preload_wire::{ChunkNumber, Pin, ToDaemon, ToLibrary};

use super::{Answer, Chunk, Device, Heap, Line, Outcome, lock};

impl<D: Device, L: Line> Heap<D, L> {
    /// Carries out a message of the daemon. False if it is invalid, or the daemon is gone.
    pub(crate) fn obey(&self, message: ToLibrary, fd: Option<OwnedFd>) -> bool {
        match (message, fd) {
            (ToLibrary::Granted { chunk }, _) => self.answer(chunk, Answer::Granted).is_ok(),
            (ToLibrary::Denied { chunk, .. }, _) => self.answer(chunk, Answer::Denied).is_ok(),
            (
                ToLibrary::Memory {
                    question,
                    free_bytes,
                    total_bytes,
                },
                _,
            ) => {
                let memory = Answer::Memory(free_bytes, total_bytes);
                self.answer(question, memory).is_ok()
            }
            (ToLibrary::Release { chunk }, _) => {
                let done = self.release(chunk);
                self.report(chunk, done, ToDaemon::Released { chunk })
            }
            (ToLibrary::Restore { chunk }, Some(fd)) => {
                let restored = self.answer(chunk, Answer::Restored(fd));
                let Err(Answer::Restored(fd)) = restored else {
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

    /// Unmaps and releases a chunk. If unmapping fails, it stays as it was. Error zero: there is no
    /// such chunk, or it does not move.
    fn release(&self, number: ChunkNumber) -> Outcome<()> {
        let mut state = lock(&self.state);
        let chunk = state.chunks.get_mut(&number).ok_or(0u32)?;
        let Some(handle) = chunk.handle.filter(|_| chunk.pin.is_none()) else {
            return Err(0);
        };
        if self.gate.leaves() {
            self.line.send(ToDaemon::Wants {}, None);
        }
        for at in 0..chunk.mappings.len() {
            let unmapped = self.device.unmap(chunk.mappings[at].address, chunk.bytes);
            if let Err(result) = unmapped {
                for at in 0..at {
                    let _ = self.lay(chunk, at, handle);
                }
                self.gate.returns();
                return Err(result);
            }
        }
        chunk.handle = None;
        self.device.release(handle)
    }

    /// Maps the memory of `fd` at the addresses of a missing chunk.
    fn restore(&self, number: ChunkNumber, fd: OwnedFd) -> Outcome<()> {
        let mut state = lock(&self.state);
        let chunk = state.chunks.get_mut(&number).ok_or(0u32)?;
        if chunk.handle.is_some() {
            return Err(0);
        }
        let handle = self.device.import(fd)?;
        for at in 0..chunk.mappings.len() {
            if let Err(result) = self.lay(chunk, at, handle) {
                for mapping in &chunk.mappings[..at] {
                    let _ = self.device.unmap(mapping.address, chunk.bytes);
                }
                let _ = self.device.release(handle);
                return Err(result);
            }
        }
        chunk.handle = Some(handle);
        chunk.made_here = false;
        self.gate.returns();
        Ok(())
    }

    /// Maps a chunk at one of its addresses.
    fn lay(&self, chunk: &Chunk, at: usize, handle: u64) -> Outcome<()> {
        let mapping = &chunk.mappings[at];
        self.device.map(mapping.address, chunk.bytes, handle)?;
        if mapping.access.is_empty() {
            return Ok(());
        }
        let permitted = self
            .device
            .permit(mapping.address, chunk.bytes, &mapping.access);
        permitted.inspect_err(|_| {
            let _ = self.device.unmap(mapping.address, chunk.bytes);
        })
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
}
