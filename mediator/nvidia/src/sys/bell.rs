//! Doorbells of the GPU, and memory that replaces ("muffles") those of this process.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::doorbells::{DOORBELL_AT, MAPPING_BYTES, doorbells};

/// Maps [`MAPPING_BYTES`] of `file`, or of private memory if there is none. At `place`, this
/// replaces the mapping that is there.
///
/// # Safety
/// Nothing that this process refers to, or reads, is at `place`.
unsafe fn map(place: Option<u64>, file: Option<RawFd>) -> io::Result<NonNull<u8>> {
    let (access, kind) = match file {
        Some(_) => (libc::PROT_WRITE, libc::MAP_SHARED),
        None => (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        ),
    };
    let fixed = place.map_or(0, |_| libc::MAP_FIXED);
    // CAST: addresses of this process.
    let at = ptr::with_exposed_provenance_mut(place.unwrap_or(0) as usize);
    // SAFETY: without a place the kernel chooses a free one; nothing refers to a given place, by
    // the caller's contract.
    let base = unsafe {
        libc::mmap(
            at,
            MAPPING_BYTES as usize,
            access,
            kind | fixed,
            file.unwrap_or(-1),
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::Error::other("The kernel mapped address zero"))
}

/// The word of a mapping's doorbell.
///
/// # Safety
/// The mapping at `base` has its whole length, and outlives the reference.
unsafe fn bell<'a>(base: NonNull<u8>) -> &'a AtomicU32 {
    // CAST: within a page.
    let word = base.as_ptr().wrapping_add(DOORBELL_AT as usize).cast();
    // SAFETY: within the mapping by the caller's contract, and aligned to its page. The word may
    // change at any time.
    unsafe { AtomicU32::from_ptr(word) }
}

/// The GPU's doorbells, for writing.
#[derive(Debug)]
pub(crate) struct Doorbells {
    base: NonNull<u8>,
}

// SAFETY: the mapping is owned by this value alone, is not bound to a thread, and is only written,
// a word at a time.
unsafe impl Send for Doorbells {}

impl Doorbells {
    /// Length in bytes.
    pub(crate) const BYTES: u64 = MAPPING_BYTES;

    /// Maps `file`, which the driver has prepared for it.
    pub(crate) fn of_file(file: &File) -> io::Result<Self> {
        // SAFETY: no place is named.
        let base = unsafe { map(None, Some(file.as_raw_fd()))? };
        Ok(Self { base })
    }

    /// Notifies the GPU that the channel of this token has work.
    pub(crate) fn ring(&self, token: u32) {
        // SAFETY: this value made the mapping, which exists while the word is written.
        unsafe { bell(self.base) }.store(token, Ordering::Release);
    }
}

impl Drop for Doorbells {
    fn drop(&mut self) {
        // SAFETY: this value made the mapping, nothing refers into it, and it is not used again.
        unsafe { libc::munmap(self.base.as_ptr().cast(), MAPPING_BYTES as usize) };
    }
}

/// Memory in place of doorbells of this process, for good: their tokens are written there, and do
/// not reach the GPU.
#[derive(Debug)]
pub(crate) struct Muffled {
    bases: Vec<NonNull<u8>>,
}

// SAFETY: the memory exists as long as the process; it is only accessed by atomic words.
unsafe impl Send for Muffled {}

impl Muffled {
    /// Replaces all doorbells that this process has mapped. From then on its launches reach the GPU
    /// only if another process rings for them.
    pub(crate) fn all() -> io::Result<Self> {
        let maps = fs::read_to_string("/proc/self/maps")?;
        let places = doorbells(maps.lines()).into_iter();
        let muffle = |word: u64| {
            let place = Some(word - DOORBELL_AT);
            // SAFETY: a mapping of doorbells is a device's. It cannot be read, and only the
            // vendor's library writes to it, which now writes to the memory in its place.
            unsafe { map(place, None) }
        };
        let bases = places.map(muffle).collect::<io::Result<_>>()?;
        Ok(Self { bases })
    }

    /// The last token that was rung since the last call, if there is one.
    pub(crate) fn rung(&self) -> Option<u32> {
        let word = |base: &NonNull<u8>| {
            // SAFETY: memory of that length was mapped there, and is never unmapped.
            unsafe { bell(*base) }.swap(0, Ordering::AcqRel)
        };
        // Reads every word, so that none keeps an older token.
        let rung: Vec<u32> = self.bases.iter().map(word).collect();
        rung.into_iter().find(|token| *token != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nothing_rings_nothing_is_muffled() {
        let muffled = Muffled::all().unwrap();
        assert_eq!(muffled.rung(), None);
    }

    #[test]
    fn the_word_that_is_rung_is_the_doorbell() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(Doorbells::BYTES).unwrap();
        let doorbells = Doorbells::of_file(&file).unwrap();
        doorbells.ring(0xb);
        let mut bytes = [0; 4];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, DOORBELL_AT).unwrap();
        assert_eq!(u32::from_ne_bytes(bytes), 0xb);
        // SAFETY: no place is named.
        let base = unsafe { map(None, None) }.unwrap();
        let muffled = Muffled { bases: vec![base] };
        // SAFETY: the memory was just made, and is not unmapped.
        unsafe { bell(base) }.store(7, Ordering::Release);
        assert_eq!((muffled.rung(), muffled.rung()), (Some(7), None));
    }
}
