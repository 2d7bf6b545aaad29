//! Memory of the GPU, of the host for the GPU, and addresses.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vm_memory::{GuestMemoryBackend, GuestMemoryRegion, VolatileSlice};

use super::CudaFailure;
use super::api::{AccessDesc, AllocationProp, Api, Location};
use super::context::{Context, Primary};
use super::guest_window::GuestWindow;
use super::stream::Stream;

use turnstile_gpu::GuestMemory;

/// SOURCE: cuda.h: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.
const POSIX_HANDLE: i32 = 1;

/// GPU memory from the driver's own allocator.
#[derive(Debug)]
pub(crate) struct DeviceBuffer {
    primary: Arc<Primary>,
    address: u64,
    bytes: usize,
}

impl DeviceBuffer {
    /// First GPU address.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // SAFETY: this value made the allocation; the driver waits for work that uses it.
        let free = |api: &Api| unsafe { (api.memory_free)(self.address) };
        let _ = self.primary.call("cuMemFree", free);
    }
}

/// Pinned host memory that the GPU reads and writes. Only accessed by copies and single words.
#[derive(Debug)]
pub(crate) struct HostBuffer {
    primary: Arc<Primary>,
    base: NonNull<u8>,
    bytes: usize,
    address: u64,
}

// SAFETY: the memory is owned by this value, not bound to a thread, and only accessed through
// volatile copies and atomics.
unsafe impl Send for HostBuffer {}
// SAFETY: as above.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Its first GPU address.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// All of it, as memory that the GPU may write.
    fn slice(&self) -> VolatileSlice<'_> {
        // SAFETY: the memory is valid while `self` is, and only accessed as shared memory.
        unsafe { VolatileSlice::new(self.base.as_ptr(), self.bytes) }
    }

    /// The word at `8 * index`; None outside.
    fn word(&self, index: usize) -> Option<&AtomicU64> {
        (index < self.bytes / 8).then(|| {
            // SAFETY: within the memory by the check, aligned to its page; atomics may change at
            // any time.
            unsafe { AtomicU64::from_ptr(self.base.as_ptr().cast::<u64>().add(index)) }
        })
    }

    /// The current word at `8 * index`; zero outside.
    pub(crate) fn load(&self, index: usize) -> u64 {
        let word = self.word(index);
        word.map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Sets the word at `8 * index`; nothing happens outside.
    pub(crate) fn store(&self, index: usize, value: u64) {
        if let Some(word) = self.word(index) {
            word.store(value, Ordering::Release);
        }
    }

    /// Copies bytes out.
    pub(crate) fn read(&self, at: usize, out: &mut [u8]) -> Result<(), CudaFailure> {
        let slice = self.slice().subslice(at, out.len());
        slice.map_err(|_| OUTSIDE)?.copy_to(out);
        Ok(())
    }

    /// Copies bytes in.
    pub(crate) fn write(&self, at: usize, data: &[u8]) -> Result<(), CudaFailure> {
        let slice = self.slice().subslice(at, data.len());
        slice.map_err(|_| OUTSIDE)?.copy_from(data);
        Ok(())
    }
}

const OUTSIDE: CudaFailure = CudaFailure::Outside("A range of host memory");

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // The GPU may still write it; memory that the GPU may access is not freed.
        if self.primary.is_drained() {
            // SAFETY: this value made the allocation, and the GPU has finished all that could use
            // it.
            let free = |api: &Api| unsafe { (api.host_free)(self.base.as_ptr().cast()) };
            let _ = self.primary.call("cuMemFreeHost", free);
        }
    }
}

/// GPU memory without an address, in granules of 2 MiB; it can be exported to another process.
#[derive(Debug)]
pub(crate) struct Chunk {
    primary: Arc<Primary>,
    handle: u64,
    bytes: usize,
}

impl Chunk {
    /// Length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// A descriptor for another process to import the same memory. The memory lives while one is
    /// open.
    pub(crate) fn export(&self) -> Result<OwnedFd, CudaFailure> {
        let mut fd: RawFd = -1;
        // SAFETY: for this handle type the driver writes one descriptor; it is borrowed for the
        // whole call.
        let export = |api: &Api| unsafe {
            (api.chunk_export)((&raw mut fd).cast(), self.handle, POSIX_HANDLE, 0)
        };
        self.primary.call("cuMemExportToShareableHandle", export)?;
        // SAFETY: the driver returned a new descriptor without another owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // Mappings keep the memory; only the handle is released.
        // SAFETY: this value owns the handle.
        let release = |api: &Api| unsafe { (api.chunk_release)(self.handle) };
        let _ = self.primary.call("cuMemRelease", release);
    }
}

/// A range of GPU addresses without memory.
#[derive(Debug)]
pub(crate) struct Reservation {
    primary: Arc<Primary>,
    address: u64,
    bytes: usize,
}

impl Reservation {
    /// First address.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Maps a chunk to the addresses from `offset` on.
    pub(crate) fn map(
        self: &Arc<Self>,
        offset: usize,
        chunk: Chunk,
    ) -> Result<Mapping, CudaFailure> {
        let end = offset.checked_add(chunk.bytes);
        if end.is_none_or(|end| end > self.bytes) {
            return Err(CudaFailure::Outside("A chunk"));
        }
        let (address, bytes) = (self.address + offset as u64, chunk.bytes);
        // SAFETY: takes numbers: a reserved range and a chunk; a mapped range is refused.
        let map = |api: &Api| unsafe { (api.chunk_map)(address, bytes, 0, chunk.handle, 0) };
        self.primary.call("cuMemMap", map)?;
        let mapping = Mapping {
            reservation: self.clone(),
            chunk,
            address,
        };
        let access = AccessDesc {
            location: on_device(self.primary.device),
            // SOURCE: cuda.h: CU_MEM_ACCESS_FLAGS_PROT_READWRITE.
            flags: 3,
        };
        // SAFETY: the range is mapped; one descriptor is borrowed for the whole call.
        let permit = |api: &Api| unsafe { (api.chunk_access)(address, bytes, &access, 1) };
        self.primary.call("cuMemSetAccess", permit)?;
        Ok(mapping)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: this value reserved the range; mappings in it own this value.
        let free = |api: &Api| unsafe { (api.address_free)(self.address, self.bytes) };
        let _ = self.primary.call("cuMemAddressFree", free);
    }
}

/// A chunk that is mapped to addresses; accesses fault after this is dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    reservation: Arc<Reservation>,
    chunk: Chunk,
    address: u64,
}

impl Mapping {
    /// First address.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// The mapped chunk.
    pub(crate) fn chunk(&self) -> &Chunk {
        &self.chunk
    }

    /// Unmaps and releases the chunk. The unmapped addresses are returned: freeing them takes time
    /// that the chunk need not wait for.
    pub(crate) fn unmap(self) -> Arc<Reservation> {
        self.reservation.clone()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value mapped the range.
        let unmap = |api: &Api| unsafe { (api.chunk_unmap)(self.address, self.chunk.bytes) };
        let _ = self.reservation.primary.call("cuMemUnmap", unmap);
    }
}

/// SOURCE: cuda.h: CU_MEM_LOCATION_TYPE_DEVICE.
fn on_device(device: i32) -> Location {
    Location {
        kind: 1,
        id: device,
    }
}

/// Plain memory of the device, exportable. SOURCE: cuda.h: CU_MEM_ALLOCATION_TYPE_PINNED.
fn exportable(device: i32) -> AllocationProp {
    AllocationProp {
        kind: 1,
        handle_types: POSIX_HANDLE,
        location: on_device(device),
        win32: ptr::null_mut(),
        flags: [0; 8],
    }
}

impl Context {
    /// Allocates GPU memory.
    pub(crate) fn buffer(&self, bytes: usize) -> Result<DeviceBuffer, CudaFailure> {
        let mut address = 0;
        // SAFETY: `address` is borrowed for the whole call.
        let alloc = |api: &Api| unsafe { (api.memory_alloc)(&mut address, bytes) };
        self.primary.call("cuMemAlloc", alloc)?;
        let primary = self.primary.clone();
        Ok(DeviceBuffer {
            primary,
            address,
            bytes,
        })
    }

    /// Allocates zeroed pinned host memory that the GPU can access.
    pub(crate) fn host_buffer(&self, bytes: usize) -> Result<HostBuffer, CudaFailure> {
        /// SOURCE: cuda.h: CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP.
        const FLAGS: u32 = 3;
        let mut base = ptr::null_mut();
        // SAFETY: `base` is borrowed for the whole call.
        let alloc = |api: &Api| unsafe { (api.host_alloc)(&mut base, bytes, FLAGS) };
        self.primary.call("cuMemHostAlloc", alloc)?;
        let base = NonNull::new(base.cast()).ok_or(OUTSIDE)?;
        let mut buffer = HostBuffer {
            primary: self.primary.clone(),
            base,
            bytes,
            address: 0,
        };
        let (host, address) = (base.as_ptr().cast(), &mut buffer.address);
        // SAFETY: the memory was made with DEVICEMAP; `address` is borrowed for the whole call.
        let get = |api: &Api| unsafe { (api.host_device_address)(address, host, 0) };
        self.primary.call("cuMemHostGetDevicePointer", get)?;
        for at in (0..bytes).step_by(4096) {
            buffer.write(at, &[0; 4096][..4096.min(bytes - at)])?;
        }
        Ok(buffer)
    }

    /// Pins a VM's memory for copies, as far as the driver permits.
    pub(crate) fn guest_window(&self, memory: &GuestMemory) -> GuestWindow {
        /// SOURCE: cuda.h: CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP.
        const FLAGS: u32 = 3;
        let mut registered = Vec::new();
        let mut all = true;
        let memory = memory.now();
        for region in memory.iter() {
            // CAST: a region is mapped, so that its length fits.
            let bytes = region.len() as usize;
            let base = region.get_slice(vm_memory::MemoryRegionAddress(0), bytes);
            let Ok(base) = base.map(|slice| slice.ptr_guard_mut().as_ptr()) else {
                all = false;
                continue;
            };
            // SAFETY: the region is mapped and kept until it is unregistered; it is shared memory
            // without references.
            let pin = |api: &Api| unsafe { (api.host_register)(base.cast(), bytes, FLAGS) };
            match self.primary.call("cuMemHostRegister", pin) {
                Ok(()) => registered.push(base as usize),
                Err(_) => all = false,
            }
        }
        GuestWindow {
            primary: self.primary.clone(),
            memory: ManuallyDrop::new(memory),
            registered,
            all,
        }
    }

    /// Copies pinned host memory to the GPU.
    pub(crate) fn copy_in(
        &self,
        stream: &Stream,
        from: &HostBuffer,
        at: usize,
        address: u64,
        bytes: usize,
    ) -> Result<(), CudaFailure> {
        let slice = from.slice().subslice(at, bytes).map_err(|_| OUTSIDE)?;
        let base = slice.ptr_guard().as_ptr();
        // SAFETY: within the buffer by the check; the buffer is freed only when the GPU has
        // finished.
        let copy =
            |api: &Api| unsafe { (api.copy_to_device)(address, base.cast(), bytes, stream.handle) };
        self.primary.call("cuMemcpyHtoDAsync", copy)
    }

    /// Copies from the GPU to pinned host memory.
    pub(crate) fn copy_out(
        &self,
        stream: &Stream,
        address: u64,
        to: &HostBuffer,
        at: usize,
        bytes: usize,
    ) -> Result<(), CudaFailure> {
        let slice = to.slice().subslice(at, bytes).map_err(|_| OUTSIDE)?;
        let base = slice.ptr_guard_mut().as_ptr();
        // SAFETY: as above.
        let copy = |api: &Api| unsafe {
            (api.copy_from_device)(base.cast(), address, bytes, stream.handle)
        };
        self.primary.call("cuMemcpyDtoHAsync", copy)
    }

    /// Granularity of chunks in bytes.
    pub(crate) fn chunk_granularity(&self) -> Result<usize, CudaFailure> {
        let prop = exportable(self.primary.device);
        let mut bytes = 0;
        // SAFETY: both are borrowed for the whole call; 0 requests the minimum.
        let get = |api: &Api| unsafe { (api.chunk_granularity)(&mut bytes, &prop, 0) };
        self.primary.call("cuMemGetAllocationGranularity", get)?;
        Ok(bytes)
    }

    /// Makes a chunk. Its content is undefined: fill it before another process gets access.
    pub(crate) fn chunk(&self, bytes: usize) -> Result<Chunk, CudaFailure> {
        let prop = exportable(self.primary.device);
        let mut handle = 0;
        // SAFETY: both are borrowed for the whole call.
        let create = |api: &Api| unsafe { (api.chunk_create)(&mut handle, bytes, &prop, 0) };
        self.primary.call("cuMemCreate", create)?;
        let primary = self.primary.clone();
        Ok(Chunk {
            primary,
            handle,
            bytes,
        })
    }

    /// Imports an exported chunk of `bytes`. A shorter one is refused when it is mapped.
    pub(crate) fn import(&self, fd: &OwnedFd, bytes: usize) -> Result<Chunk, CudaFailure> {
        let mut handle = 0;
        // CAST: the driver takes the descriptor in place of an address.
        let os: *mut c_void = ptr::without_provenance_mut(fd.as_raw_fd() as usize);
        // SAFETY: the descriptor is open for the whole call; one that is not of a chunk is refused.
        let import = |api: &Api| unsafe { (api.chunk_import)(&mut handle, os, POSIX_HANDLE) };
        self.primary
            .call("cuMemImportFromShareableHandle", import)?;
        let primary = self.primary.clone();
        Ok(Chunk {
            primary,
            handle,
            bytes,
        })
    }

    /// Reserves addresses, at `hint` if the driver can.
    pub(crate) fn reserve(&self, bytes: usize, hint: u64) -> Result<Arc<Reservation>, CudaFailure> {
        let mut address = 0;
        // SAFETY: `address` is borrowed for the whole call.
        let reserve = |api: &Api| unsafe { (api.address_reserve)(&mut address, bytes, 0, hint, 0) };
        self.primary.call("cuMemAddressReserve", reserve)?;
        let primary = self.primary.clone();
        Ok(Arc::new(Reservation {
            primary,
            address,
            bytes,
        }))
    }
}
