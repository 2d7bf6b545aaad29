//! The vendor's management library, loaded at run time: performance samples.

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use libloading::{Library, Symbol};

/// NVML's own result code; zero is success.
type Code = i32;

/// Why a function of it has no answer.
#[derive(Debug)]
pub(crate) enum NvmlFailure {
    /// The library or the function is not there.
    Missing(libloading::Error),
    /// The function says no.
    Code(Code),
}

impl From<libloading::Error> for NvmlFailure {
    fn from(error: libloading::Error) -> Self {
        Self::Missing(error)
    }
}

fn checked(code: Code) -> Result<(), NvmlFailure> {
    match code {
        0 => Ok(()),
        code => Err(NvmlFailure::Code(code)),
    }
}

/// nvmlGpmMetric_t. SOURCE: nvml.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct Metric {
    id: u32,
    code: Code,
    value: f64,
    names: [*const i8; 3],
}

/// Room for metrics: more than any version of nvmlGpmMetricsGet_t has. SOURCE: nvml.h: NVML_GPM_METRIC_MAX is 333 at most.
const METRICS: usize = 512;

/// nvmlGpmMetricsGet_t. SOURCE: nvml.h.
#[repr(C)]
struct MetricsGet {
    version: u32,
    count: u32,
    sample1: *mut c_void,
    sample2: *mut c_void,
    metrics: [Metric; METRICS],
}

/// The library, initialised, and one device.
#[derive(Debug)]
pub(crate) struct Nvml {
    library: Library,
    device: *mut c_void,
}

// SAFETY: NVML may be called from any thread, and its device handles are process-wide (NVML API reference, "thread safe").
unsafe impl Send for Nvml {}

/// Counters of the GPU at one moment.
#[derive(Debug)]
pub(crate) struct UtilisationSample {
    sample: NonNull<c_void>,
}

// SAFETY: memory that only the holder of this value hands to the library.
unsafe impl Send for UtilisationSample {}

impl UtilisationSample {
    /// The word of 8 bytes at `at`.
    pub(crate) fn word(&self, at: usize) -> u64 {
        /// SOURCE: measured: the library allocates 32,968 bytes for a sample.
        const SAMPLE_BYTES: usize = 32_000;
        assert!(at + 8 <= SAMPLE_BYTES);
        let memory = self.sample.as_ptr().cast::<u8>();
        // SAFETY: within the memory that the library allocated for a sample; any bytes are a number.
        unsafe { memory.add(at).cast::<u64>().read_unaligned() }
    }
}

impl Nvml {
    /// Loads it and finds device `index`.
    pub(crate) fn load(index: u32) -> Result<Self, NvmlFailure> {
        // SAFETY: the vendor's library under its versioned name: its initialisers are made to run in any process.
        let library = unsafe { Library::new("libnvidia-ml.so.1") }?;
        // SAFETY: the types are those of nvml.h.
        let init: Symbol<'_, unsafe extern "C" fn() -> Code> =
            unsafe { library.get(b"nvmlInit_v2\0") }?;
        // SAFETY: as above.
        let find: Symbol<'_, unsafe extern "C" fn(u32, *mut *mut c_void) -> Code> =
            unsafe { library.get(b"nvmlDeviceGetHandleByIndex_v2\0") }?;
        let mut device = ptr::null_mut();
        // SAFETY: takes nothing.
        checked(unsafe { init() })?;
        // SAFETY: writes one handle to `device`, which is borrowed for the call.
        checked(unsafe { find(index, &mut device) })?;
        Ok(Self { library, device })
    }

    /// Room for a sample. It is never given back: a process has two.
    pub(crate) fn sample(&self) -> Result<UtilisationSample, NvmlFailure> {
        // SAFETY: the type is that of nvml.h.
        let alloc: Symbol<'_, unsafe extern "C" fn(*mut *mut c_void) -> Code> =
            unsafe { self.library.get(b"nvmlGpmSampleAlloc\0") }?;
        let mut sample = ptr::null_mut();
        // SAFETY: writes one pointer to `sample`, which is borrowed for the call.
        checked(unsafe { alloc(&mut sample) })?;
        let sample = NonNull::new(sample).ok_or(NvmlFailure::Code(-1))?;
        Ok(UtilisationSample { sample })
    }

    /// Takes the counters as they were latched last, 10 times a second.
    pub(crate) fn take(&self, into: &mut UtilisationSample) -> Result<(), NvmlFailure> {
        // SAFETY: the type is that of nvml.h.
        let get: Symbol<'_, unsafe extern "C" fn(*mut c_void, *mut c_void) -> Code> =
            unsafe { self.library.get(b"nvmlGpmSampleGet\0") }?;
        // SAFETY: the device is the library's, the sample one that it allocated.
        checked(unsafe { get(self.device, into.sample.as_ptr()) })
    }

    /// Percent of the time between two samples in which a kernel was active: metric 1, "graphics utilisation".
    pub(crate) fn busy_percent(
        &self,
        first: &UtilisationSample,
        second: &UtilisationSample,
    ) -> Result<f64, NvmlFailure> {
        // SAFETY: the type is that of nvml.h.
        let get: Symbol<'_, unsafe extern "C" fn(*mut MetricsGet) -> Code> =
            unsafe { self.library.get(b"nvmlGpmMetricsGet\0") }?;
        let empty = Metric {
            id: 0,
            code: 0,
            value: 0.0,
            names: [ptr::null(); 3],
        };
        // SOURCE: nvml.h: NVML_GPM_METRICS_GET_VERSION, NVML_GPM_METRIC_GRAPHICS_UTIL.
        let mut request = Box::new(MetricsGet {
            version: 1,
            count: 1,
            sample1: first.sample.as_ptr(),
            sample2: second.sample.as_ptr(),
            metrics: [empty; METRICS],
        });
        request.metrics[0].id = 1;
        // SAFETY: the request is as long as the library's own or longer, the samples are ones that it allocated.
        checked(unsafe { get(&mut *request) })?;
        checked(request.metrics[0].code)?;
        Ok(request.metrics[0].value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn requests_have_the_librarys_layout() {
        assert_eq!(size_of::<Metric>(), 40);
        assert_eq!(offset_of!(MetricsGet, metrics), 24);
    }
}
