//! Contexts, modules, functions.

use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::sync::Arc;

use super::CudaFailure;
use super::api::{Api, Handle};
use super::stream::{Event, Stream};

/// Shared part of the objects of a context.
#[derive(Debug)]
pub(super) struct Primary {
    pub(super) api: Arc<Api>,
    pub(super) device: i32,
    handle: Handle,
}

// SAFETY: the driver's handles are not bound to a thread: every call first makes the context
// current in its own thread, and the driver locks its shared state. SOURCE: CUDA C programming
// guide, "Driver API", thread safety of contexts.
unsafe impl Send for Primary {}
// SAFETY: as above.
unsafe impl Sync for Primary {}

impl Primary {
    /// Makes the context current in this thread and checks the answer of `call`.
    pub(super) fn call(
        &self,
        name: &'static str,
        call: impl FnOnce(&Api) -> i32,
    ) -> Result<(), CudaFailure> {
        // SAFETY: the handle is that of a context which `self` keeps retained.
        let code = unsafe { (self.api.context_set_current)(self.handle) };
        self.api.check("cuCtxSetCurrent", code)?;
        self.api.check(name, call(&self.api))
    }

    /// Waits for the GPU to finish all work of this context. True if it has.
    pub(super) fn is_drained(&self) -> bool {
        // SAFETY: takes nothing.
        self.call("cuCtxSynchronize", |api| unsafe {
            (api.context_synchronize)()
        })
        .is_ok()
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        // SAFETY: retained once when this was made; objects of the context own `self`, so that none
        // is left.
        unsafe { (self.api.context_release)(self.device) };
    }
}

/// A context: an address space on a GPU and the work in it.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(super) primary: Arc<Primary>,
}

/// Limits of a context. SOURCE: cuda.h, `CUlimit`.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(crate) enum Limit {
    /// Buffer of the device's printf.
    PrintfBytes = 1,
    /// Heap of the device's malloc.
    HeapBytes = 2,
}

/// Why a module was not loaded.
#[derive(Debug, thiserror::Error)]
#[error("{failure}{}{log}", if log.is_empty() { "" } else { ": " })]
pub(crate) struct ModuleFailure {
    /// The driver's refusal.
    #[source]
    pub(crate) failure: CudaFailure,
    /// Output of the driver's compiler, with line numbers.
    pub(crate) log: String,
}

impl From<CudaFailure> for ModuleFailure {
    fn from(failure: CudaFailure) -> Self {
        let log = String::new();
        Self { failure, log }
    }
}

impl Context {
    pub(super) fn new(api: Arc<Api>, device: i32) -> Result<Self, CudaFailure> {
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is borrowed for the whole call.
        let code = unsafe { (api.context_retain)(&mut handle, device) };
        api.check("cuDevicePrimaryCtxRetain", code)?;
        let primary = Primary {
            api,
            device,
            handle,
        };
        let primary = Arc::new(primary);
        Ok(Self { primary })
    }

    /// Sets a limit; only possible before the first kernel.
    pub(crate) fn set_limit(&self, limit: Limit, bytes: usize) -> Result<(), CudaFailure> {
        // SAFETY: takes numbers alone.
        let set = |api: &Api| unsafe { (api.context_set_limit)(limit as i32, bytes) };
        self.primary.call("cuCtxSetLimit", set)
    }

    /// Waits until the GPU has finished all work.
    pub(crate) fn synchronize(&self) -> Result<(), CudaFailure> {
        // SAFETY: takes nothing.
        let wait = |api: &Api| unsafe { (api.context_synchronize)() };
        self.primary.call("cuCtxSynchronize", wait)
    }

    /// Free and all memory of the GPU, in bytes.
    pub(crate) fn memory_info(&self) -> Result<(u64, u64), CudaFailure> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are borrowed for the whole call.
        let get = |api: &Api| unsafe { (api.memory_info)(&mut free, &mut total) };
        self.primary.call("cuMemGetInfo", get)?;
        Ok((free as u64, total as u64))
    }

    /// Compiles and loads PTX.
    pub(crate) fn load_module(&self, ptx: &str) -> Result<Module, ModuleFailure> {
        /// SOURCE: cuda.h: CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES.
        const OPTIONS: [i32; 2] = [5, 6];
        const LOG_BYTES: usize = 4096;
        let text = CString::new(ptx).map_err(|_| ModuleFailure {
            failure: CudaFailure::Outside("A zero byte"),
            log: String::new(),
        })?;
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = OPTIONS;
        // CAST: the driver takes the length in place of an address.
        let mut values = [
            log.as_mut_ptr().cast::<c_void>(),
            ptr::without_provenance_mut(LOG_BYTES - 1),
        ];
        let mut handle = ptr::null_mut();
        // SAFETY: the text ends with a zero. Options and values are two each; the first value is a
        // buffer of the length that the second gives. All are borrowed for the whole call.
        let loaded = self.primary.call("cuModuleLoadDataEx", |api| unsafe {
            (api.module_load)(
                &mut handle,
                text.as_ptr().cast(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        });
        if let Err(failure) = loaded {
            let text = CStr::from_bytes_until_nul(&log).unwrap_or_default();
            let log = text.to_string_lossy().trim().to_owned();
            return Err(ModuleFailure { failure, log });
        }
        let shared = ModuleHandle {
            primary: self.primary.clone(),
            handle,
        };
        Ok(Module(Arc::new(shared)))
    }

    /// Makes a stream that does not wait for the default stream.
    pub(crate) fn stream(&self) -> Result<Stream, CudaFailure> {
        /// SOURCE: cuda.h: CU_STREAM_NON_BLOCKING.
        const NON_BLOCKING: u32 = 1;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is borrowed for the whole call.
        let create = |api: &Api| unsafe { (api.stream_create)(&mut handle, NON_BLOCKING) };
        self.primary.call("cuStreamCreate", create)?;
        let primary = self.primary.clone();
        Ok(Stream { primary, handle })
    }

    /// Makes an event. A timed one costs a little more, and can be compared.
    pub(crate) fn event(&self, timed: bool) -> Result<Event, CudaFailure> {
        /// SOURCE: cuda.h: CU_EVENT_DISABLE_TIMING.
        const NO_TIME: u32 = 2;
        let flags = if timed { 0 } else { NO_TIME };
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is borrowed for the whole call.
        let create = |api: &Api| unsafe { (api.event_create)(&mut handle, flags) };
        self.primary.call("cuEventCreate", create)?;
        let primary = self.primary.clone();
        Ok(Event { primary, handle })
    }
}

#[derive(Debug)]
struct ModuleHandle {
    primary: Arc<Primary>,
    handle: Handle,
}

// SAFETY: as for `Primary`.
unsafe impl Send for ModuleHandle {}
// SAFETY: as for `Primary`.
unsafe impl Sync for ModuleHandle {}

impl Drop for ModuleHandle {
    fn drop(&mut self) {
        // A refusal means that the context is gone, and the module with it.
        // SAFETY: this value made the module; its functions own this value.
        let unload = |api: &Api| unsafe { (api.module_unload)(self.handle) };
        let _ = self.primary.call("cuModuleUnload", unload);
    }
}

/// A loaded module. It stays loaded while a function of it exists. The caller ensures that no
/// kernel of it runs when the last one is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Module(Arc<ModuleHandle>);

/// A kernel of a module.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    module: Module,
    pub(super) handle: Handle,
}

// SAFETY: as for `Primary`.
unsafe impl Send for Function {}
// SAFETY: as for `Primary`.
unsafe impl Sync for Function {}

/// Grid, block and dynamic shared memory of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaunchShape {
    /// Blocks along x, y, z.
    pub(crate) grid: [u32; 3],
    /// Threads along x, y, z.
    pub(crate) block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub(crate) shared_bytes: u32,
}

impl Module {
    fn function_of(&self, handle: Handle) -> Function {
        let module = self.clone();
        Function { module, handle }
    }

    /// The function with this name.
    pub(crate) fn function(&self, name: &str) -> Result<Function, CudaFailure> {
        let name = CString::new(name).map_err(|_| CudaFailure::Outside("A zero byte"))?;
        let mut handle = ptr::null_mut();
        // SAFETY: the module is loaded while `self` exists; the name ends with a zero.
        let get =
            |api: &Api| unsafe { (api.module_function)(&mut handle, self.0.handle, name.as_ptr()) };
        self.0.primary.call("cuModuleGetFunction", get)?;
        Ok(self.function_of(handle))
    }

    /// All functions with their names.
    pub(crate) fn functions(&self) -> Result<Vec<(String, Function)>, CudaFailure> {
        let (primary, mut count) = (&self.0.primary, 0);
        let (Some(get_count), Some(get_all), Some(get_name)) = (
            primary.api.module_function_count,
            primary.api.module_functions,
            primary.api.function_name,
        ) else {
            let call = "cuModuleEnumerateFunctions";
            return Err(CudaFailure::Lacks { call });
        };
        // SAFETY: the module is loaded while `self` exists; `count` is borrowed for the whole call.
        primary.call("cuModuleGetFunctionCount", |_| unsafe {
            get_count(&mut count, self.0.handle)
        })?;
        let mut handles = vec![ptr::null_mut(); count as usize];
        // SAFETY: as above; the driver writes at most `count` handles.
        primary.call("cuModuleEnumerateFunctions", |_| unsafe {
            get_all(handles.as_mut_ptr(), count, self.0.handle)
        })?;
        let named = handles.into_iter().map(|handle| {
            let mut name = ptr::null();
            // SAFETY: the function is of this module; `name` is borrowed for the whole call.
            primary.call("cuFuncGetName", |_| unsafe { get_name(&mut name, handle) })?;
            // SAFETY: the driver gives a C string that lasts as long as the module.
            let name = unsafe { CStr::from_ptr(name) };
            Ok((
                name.to_string_lossy().into_owned(),
                self.function_of(handle),
            ))
        });
        named.collect()
    }
}

impl Function {
    /// Bytes of its parameters: where the last one ends.
    pub(crate) fn param_bytes(&self) -> Result<u32, CudaFailure> {
        let call = "cuFuncGetParamInfo";
        let primary = &self.module.0.primary;
        let get = primary
            .api
            .function_param
            .ok_or(CudaFailure::Lacks { call })?;
        let mut end = 0;
        // SOURCE: cuda.h: an index after the last one is refused with CUDA_ERROR_INVALID_VALUE.
        for index in 0.. {
            let (mut offset, mut bytes) = (0, 0);
            // SAFETY: the module is loaded while `self` exists; both are borrowed for the whole
            // call.
            let got = primary.call(call, |_| unsafe {
                get(self.handle, index, &mut offset, &mut bytes)
            });
            match got {
                Ok(()) => end = offset + bytes,
                Err(failure) if failure.code() == Some(1) => break,
                Err(failure) => return Err(failure),
            }
        }
        Ok(u32::try_from(end).unwrap_or(u32::MAX))
    }

    /// Most threads of a block, as its registers allow.
    pub(crate) fn threads_max(&self) -> Result<u32, CudaFailure> {
        self.attribute(0)
    }

    /// Static shared memory of a block in bytes.
    pub(crate) fn shared_bytes(&self) -> Result<u32, CudaFailure> {
        self.attribute(1)
    }

    /// SOURCE of the numbers: cuda.h, `CUfunction_attribute`.
    fn attribute(&self, attribute: i32) -> Result<u32, CudaFailure> {
        let mut value = 0;
        // SAFETY: the module is loaded while `self` exists; `value` is borrowed for the whole call.
        let get =
            |api: &Api| unsafe { (api.function_attribute)(&mut value, attribute, self.handle) };
        self.module.0.primary.call("cuFuncGetAttribute", get)?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// Permits this much dynamic shared memory per block, as is needed above 48 KiB.
    pub(crate) fn permit_shared(&self, bytes: u32) -> Result<(), CudaFailure> {
        /// SOURCE: cuda.h: CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES.
        const DYNAMIC_SHARED: i32 = 8;
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        // SAFETY: the module is loaded while `self` exists.
        let set =
            |api: &Api| unsafe { (api.function_set_attribute)(self.handle, DYNAMIC_SHARED, bytes) };
        self.module.0.primary.call("cuFuncSetAttribute", set)
    }
}
