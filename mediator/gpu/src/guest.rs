//! A VM's memory as devices use it. It may gain and lose regions while they do.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};

use vm_memory::mmap::FromRangesError;
use vm_memory::{
    AtomicAccess, ByteValued, Bytes, FileOffset, GuestAddress, GuestMemoryBackend,
    GuestMemoryError, GuestMemoryMmap, GuestRegionCollectionError, GuestRegionMmap,
};

/// Memory of a VM as the daemon maps it: shared with the guest, so never referenced, only read and
/// written.
///
/// Each access uses the memory as it is when the access begins, and ends in the same memory, even
/// if a region is removed meanwhile.
#[derive(Debug)]
pub struct GuestMemory {
    now: RwLock<Arc<GuestMemoryMmap<()>>>,
}

type Accessed<T> = Result<T, GuestMemoryError>;

impl GuestMemory {
    /// Maps ranges of files.
    ///
    /// # Errors
    /// When the kernel refuses, or ranges overlap.
    pub fn from_ranges_with_files(
        ranges: impl IntoIterator<Item = (GuestAddress, usize, Option<FileOffset>)>,
    ) -> Result<Self, FromRangesError> {
        GuestMemoryMmap::from_ranges_with_files(ranges.into_iter().collect::<Vec<_>>())
            .map(Self::from)
    }

    /// The memory as it is now.
    pub fn now(&self) -> Arc<GuestMemoryMmap<()>> {
        self.now
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Adds a region.
    ///
    /// # Errors
    /// When it overlaps one that is there.
    pub fn add(&self, region: GuestRegionMmap<()>) -> Result<(), GuestRegionCollectionError> {
        let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
        *now = Arc::new(now.insert_region(Arc::new(region))?);
        Ok(())
    }

    /// Removes a region.
    ///
    /// # Errors
    /// When there is none that begins there and is that long.
    pub fn remove(&self, gpa: GuestAddress, bytes: u64) -> Result<(), GuestRegionCollectionError> {
        let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
        *now = Arc::new(now.remove_region(gpa, bytes)?.0);
        Ok(())
    }

    /// Whether a range is wholly in it.
    pub fn check_range(&self, gpa: GuestAddress, bytes: usize) -> bool {
        self.now().check_range(gpa, bytes)
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// When the range does not lie in it.
    pub fn read_slice(&self, bytes: &mut [u8], gpa: GuestAddress) -> Accessed<()> {
        self.now().read_slice(bytes, gpa)
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// When the range does not lie in it.
    pub fn write_slice(&self, bytes: &[u8], gpa: GuestAddress) -> Accessed<()> {
        self.now().write_slice(bytes, gpa)
    }

    /// Reads a value.
    ///
    /// # Errors
    /// When it does not lie in it.
    pub fn read_obj<T: ByteValued>(&self, gpa: GuestAddress) -> Accessed<T> {
        self.now().read_obj(gpa)
    }

    /// Writes a value.
    ///
    /// # Errors
    /// When it does not lie in it.
    pub fn write_obj<T: ByteValued>(&self, value: T, gpa: GuestAddress) -> Accessed<()> {
        self.now().write_obj(value, gpa)
    }

    /// Reads a word in one access.
    ///
    /// # Errors
    /// When it does not lie in it, or is not aligned.
    pub fn load<T: AtomicAccess>(&self, gpa: GuestAddress, order: Ordering) -> Accessed<T> {
        self.now().load(gpa, order)
    }

    /// Writes a word in one access.
    ///
    /// # Errors
    /// When it does not lie in it, or is not aligned.
    pub fn store<T: AtomicAccess>(
        &self,
        value: T,
        gpa: GuestAddress,
        order: Ordering,
    ) -> Accessed<()> {
        self.now().store(value, gpa, order)
    }
}

impl From<GuestMemoryMmap<()>> for GuestMemory {
    fn from(memory: GuestMemoryMmap<()>) -> Self {
        Self {
            now: RwLock::new(Arc::new(memory)),
        }
    }
}
