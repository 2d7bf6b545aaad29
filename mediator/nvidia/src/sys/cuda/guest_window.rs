//! A VM's memory, for copies between guest and GPU.
//!
//! In: guest addresses, GPU addresses and bytes. Out: copies in a stream. Made by
//! [`super::Context::guest_window`]; called by a VM's worker, the mover and the preemptor.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap, VolatileSlice};

use super::CudaFailure;
use super::api::Api;
use super::context::Primary;
use super::stream::Stream;

/// A VM's memory as source and destination of copies, pinned where the driver permits it.
#[derive(Debug)]
pub(crate) struct GuestWindow {
    pub(super) primary: Arc<Primary>,
    /// Freed only when the GPU has finished.
    pub(super) memory: ManuallyDrop<Arc<GuestMemoryMmap<()>>>,
    /// Host addresses that are registered.
    pub(super) registered: Vec<usize>,
    pub(super) all: bool,
}

impl GuestWindow {
    /// Whether all of the memory is pinned, so that copies run without this process.
    pub(crate) fn is_pinned(&self) -> bool {
        self.all
    }

    /// The GPU address for an address of pinned guest memory.
    pub(crate) fn address(&self, gpa: u64) -> Result<u64, CudaFailure> {
        let place = self.memory.get_host_address(GuestAddress(gpa));
        let place = place.map_err(|_| CudaFailure::Outside("An address of guest memory"))?;
        let mut address = 0;
        // SAFETY: `address` is borrowed for the whole call; a place that is not registered is
        // refused.
        let get = |api: &Api| unsafe { (api.host_device_address)(&mut address, place.cast(), 0) };
        self.primary.call("cuMemHostGetDevicePointer", get)?;
        Ok(address)
    }

    /// The pieces of a range of guest memory that are contiguous in this process.
    fn pieces(&self, gpa: u64, bytes: usize) -> Result<Vec<(*mut u8, usize)>, CudaFailure> {
        let slices = self.memory.get_slices(GuestAddress(gpa), bytes);
        let piece = |slice: Result<VolatileSlice<'_>, _>| {
            let slice = slice.map_err(|_| CudaFailure::Outside("A range of guest memory"))?;
            Ok((slice.ptr_guard_mut().as_ptr(), slice.len()))
        };
        slices.map(piece).collect()
    }

    /// Copies from guest memory to the GPU.
    pub(crate) fn copy_in(
        &self,
        stream: &Stream,
        gpa: u64,
        address: u64,
        bytes: usize,
    ) -> Result<(), CudaFailure> {
        let mut at = address;
        for (from, bytes) in self.pieces(gpa, bytes)? {
            // SAFETY: the piece is in memory that is kept until the GPU has finished, and is shared
            // memory without references to it. For the GPU address see the header of `cuda`.
            self.primary.call("cuMemcpyHtoDAsync", |api| unsafe {
                (api.copy_to_device)(at, from.cast::<c_void>(), bytes, stream.handle)
            })?;
            at += bytes as u64;
        }
        Ok(())
    }

    /// Copies from the GPU to guest memory.
    pub(crate) fn copy_out(
        &self,
        stream: &Stream,
        address: u64,
        gpa: u64,
        bytes: usize,
    ) -> Result<(), CudaFailure> {
        let mut at = address;
        for (to, bytes) in self.pieces(gpa, bytes)? {
            // SAFETY: as above.
            self.primary.call("cuMemcpyDtoHAsync", |api| unsafe {
                (api.copy_from_device)(to.cast::<c_void>(), at, bytes, stream.handle)
            })?;
            at += bytes as u64;
        }
        Ok(())
    }
}

impl Drop for GuestWindow {
    fn drop(&mut self) {
        if !self.primary.is_drained() {
            return;
        }
        for base in self.registered.drain(..) {
            // SAFETY: this value registered the address, and the GPU has finished all that could
            // use it.
            let end = |api: &Api| unsafe { (api.host_unregister)(base as *mut c_void) };
            let _ = self.primary.call("cuMemHostUnregister", end);
        }
        // SAFETY: dropped here and nowhere else.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}
