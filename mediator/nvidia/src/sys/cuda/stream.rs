//! Streams and events: work in order, and points in it.
//!
//! In: kernels, addresses and words. Out: calls of the driver, and what has finished. Made by
//! [`super::Context`]; used wherever this backend runs work on the GPU.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use super::api::{Api, Handle};
use super::context::{Function, LaunchShape, Primary};
use super::{CudaFailure, codes};

/// Condition for which a stream waits. SOURCE: cuda.h, `CUstreamWaitValue_flags`.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum WaitUntil {
    /// (word - value) is not negative, as a signed number.
    AtLeast = 0,
    /// word is the value.
    Equal = 1,
}

/// A queue of work that is executed in order.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(super) primary: Arc<Primary>,
    pub(super) handle: Handle,
}

// SAFETY: as for `Primary`.
unsafe impl Send for Stream {}
// SAFETY: as for `Primary`.
unsafe impl Sync for Stream {}

impl Stream {
    /// Launches a kernel with parameters as laid out in its PTX `.param` space; they are copied.
    pub(crate) fn launch(
        &self,
        function: &Function,
        shape: LaunchShape,
        params: &[u8],
    ) -> Result<(), CudaFailure> {
        /// SOURCE: cuda.h: CU_LAUNCH_PARAM_END, _BUFFER_POINTER, _BUFFER_SIZE.
        const END: usize = 0;
        const BUFFER: usize = 1;
        const SIZE: usize = 2;
        let mut bytes = params.len();
        let mut extra = [
            ptr::without_provenance_mut(BUFFER),
            params.as_ptr().cast_mut().cast::<c_void>(),
            ptr::without_provenance_mut(SIZE),
            (&raw mut bytes).cast(),
            ptr::without_provenance_mut(END),
        ];
        let LaunchShape {
            grid,
            block,
            shared_bytes,
        } = shape;
        // SAFETY: function and stream are kept by their values. The driver reads `bytes` bytes of
        // parameters, which are borrowed for the whole call, and keeps no address. For what the
        // kernel does see the header of `cuda`.
        self.primary.call("cuLaunchKernel", |api| unsafe {
            (api.launch)(
                function.handle,
                grid[0],
                grid[1],
                grid[2],
                block[0],
                block[1],
                block[2],
                shared_bytes,
                self.handle,
                ptr::null_mut(),
                extra.as_mut_ptr(),
            )
        })
    }

    /// Whether all its work has finished.
    pub(crate) fn is_done(&self) -> Result<bool, CudaFailure> {
        // SAFETY: the stream is kept by this value.
        let query = |api: &Api| unsafe { (api.stream_query)(self.handle) };
        match self.primary.call("cuStreamQuery", query) {
            Ok(()) => Ok(true),
            Err(failure) if failure.code() == Some(codes::NOT_READY) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Waits until all its work has finished.
    pub(crate) fn synchronize(&self) -> Result<(), CudaFailure> {
        // SAFETY: the stream is kept by this value.
        let wait = |api: &Api| unsafe { (api.stream_synchronize)(self.handle) };
        self.primary.call("cuStreamSynchronize", wait)
    }

    /// Writes a word once all earlier work has finished and is visible.
    pub(crate) fn write_word(&self, address: u64, value: u64) -> Result<(), CudaFailure> {
        // SAFETY: takes numbers; for the address see the header of `cuda`.
        let write = |api: &Api| unsafe { (api.stream_write)(self.handle, address, value, 0) };
        self.primary.call("cuStreamWriteValue64", write)
    }

    /// Blocks the stream until a word satisfies the condition.
    pub(crate) fn wait_word(
        &self,
        address: u64,
        value: u64,
        until: WaitUntil,
    ) -> Result<(), CudaFailure> {
        // SAFETY: takes numbers; for the address see the header of `cuda`.
        let wait =
            |api: &Api| unsafe { (api.stream_wait)(self.handle, address, value, until as u32) };
        self.primary.call("cuStreamWaitValue64", wait)
    }

    /// Blocks the stream until the event is reached.
    pub(crate) fn wait_event(&self, event: &Event) -> Result<(), CudaFailure> {
        // SAFETY: both are kept by their values.
        let wait = |api: &Api| unsafe { (api.stream_wait_event)(self.handle, event.handle, 0) };
        self.primary.call("cuStreamWaitEvent", wait)
    }

    /// Copies within the GPU.
    pub(crate) fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), CudaFailure> {
        // SAFETY: takes numbers; for the addresses see the header of `cuda`.
        let copy = |api: &Api| unsafe { (api.copy_on_device)(to, from, bytes, self.handle) };
        self.primary.call("cuMemcpyDtoDAsync", copy)
    }

    /// Writes the pattern `words` times.
    pub(crate) fn fill(&self, address: u64, pattern: u32, words: usize) -> Result<(), CudaFailure> {
        // SAFETY: takes numbers; for the address see the header of `cuda`.
        let fill = |api: &Api| unsafe { (api.fill_words)(address, pattern, words, self.handle) };
        self.primary.call("cuMemsetD32Async", fill)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Queued work continues; a refusal means that the context is gone.
        // SAFETY: this value made the stream.
        let destroy = |api: &Api| unsafe { (api.stream_destroy)(self.handle) };
        let _ = self.primary.call("cuStreamDestroy", destroy);
    }
}

/// A point in a stream.
#[derive(Debug)]
pub(crate) struct Event {
    pub(super) primary: Arc<Primary>,
    pub(super) handle: Handle,
}

// SAFETY: as for `Primary`.
unsafe impl Send for Event {}
// SAFETY: as for `Primary`.
unsafe impl Sync for Event {}

impl Event {
    /// Marks the end of the work that is in the stream now.
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), CudaFailure> {
        // SAFETY: both are kept by their values.
        let record = |api: &Api| unsafe { (api.event_record)(self.handle, stream.handle) };
        self.primary.call("cuEventRecord", record)
    }

    /// Whether it was reached.
    pub(crate) fn is_reached(&self) -> Result<bool, CudaFailure> {
        // SAFETY: the event is kept by this value.
        let query = |api: &Api| unsafe { (api.event_query)(self.handle) };
        match self.primary.call("cuEventQuery", query) {
            Ok(()) => Ok(true),
            Err(failure) if failure.code() == Some(codes::NOT_READY) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Waits until it was reached.
    pub(crate) fn synchronize(&self) -> Result<(), CudaFailure> {
        // SAFETY: the event is kept by this value.
        let wait = |api: &Api| unsafe { (api.event_synchronize)(self.handle) };
        self.primary.call("cuEventSynchronize", wait)
    }

    /// Milliseconds since an earlier event; both have to be timed and reached.
    pub(crate) fn ms_since(&self, earlier: &Self) -> Result<f32, CudaFailure> {
        let mut ms = 0.0;
        // SAFETY: both are kept by their values; `ms` is borrowed for the whole call.
        let get = |api: &Api| unsafe { (api.event_elapsed)(&mut ms, earlier.handle, self.handle) };
        self.primary.call("cuEventElapsedTime", get)?;
        Ok(ms)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: this value made the event.
        let destroy = |api: &Api| unsafe { (api.event_destroy)(self.handle) };
        let _ = self.primary.call("cuEventDestroy", destroy);
    }
}
