//! The CUDA driver library, loaded at run time.
//!
//! What safe code can and cannot do wrong here. Host memory that the GPU may write is accessed like
//! memory shared with another process: through copies and single words, never by reference. Objects
//! keep alive what they are made of, and host memory is only freed once the GPU has finished with
//! it. A device address is a number. The driver refuses an invalid one, or it ends the context with
//! a sticky error. It may also hit other memory that this process has mapped for the GPU. That
//! includes the driver's own rings. So foreign kernels only run in a process that holds nothing
//! else and is confined (the worker).

mod api;
mod context;
mod guest_window;
mod memory;
mod stream;

use std::ffi::{CStr, c_char};
use std::sync::Arc;

use api::{Api, Code};

use crate::identity::{self, Identity};

pub(crate) use context::{Context, Function, LaunchShape, Limit, Module, ModuleFailure};
pub(crate) use guest_window::GuestWindow;
pub(crate) use memory::{Chunk, DeviceBuffer, HostBuffer, Mapping, Reservation};
pub(crate) use stream::{Event, Stream, WaitUntil};

/// Why a call to CUDA failed.
#[derive(Debug, thiserror::Error)]
pub enum CudaFailure {
    /// The library or the function is missing.
    #[error("The CUDA driver library cannot be loaded")]
    Missing(#[source] libloading::Error),
    /// The driver is older than the function.
    #[error("The CUDA driver library has no {call}; driver 550 or newer is needed")]
    Lacks {
        /// The function.
        call: &'static str,
    },
    /// The function refused.
    #[error("The CUDA driver library refused {call}: {name} ({code})")]
    Refused {
        /// The function.
        call: &'static str,
        /// CUDA's code.
        code: i32,
        /// CUDA's name of it.
        name: String,
    },
    /// An argument is outside of its valid range.
    #[error("{0} is outside of its memory")]
    Outside(&'static str),
}

/// SOURCE: cuda.h, `cudaError_enum`.
mod codes {
    pub(super) const OUT_OF_MEMORY: i32 = 2;
    pub(super) const NOT_READY: i32 = 600;
    pub(super) const ILLEGAL_ADDRESS: i32 = 700;
    pub(super) const LAUNCH_TIMEOUT: i32 = 702;
    pub(super) const ASSERT: i32 = 710;
    pub(super) const MISALIGNED_ADDRESS: i32 = 716;
    pub(super) const INVALID_ADDRESS_SPACE: i32 = 717;
}

impl CudaFailure {
    /// CUDA's code, if it gave one.
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether memory of the GPU or the host ran out.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.code() == Some(codes::OUT_OF_MEMORY)
    }

    /// Whether a kernel accessed an unmapped address.
    pub(crate) fn is_illegal_address(&self) -> bool {
        matches!(
            self.code(),
            Some(codes::ILLEGAL_ADDRESS | codes::INVALID_ADDRESS_SPACE)
        )
    }

    /// Whether a kernel's access was not aligned to its size.
    pub(crate) fn is_misaligned(&self) -> bool {
        self.code() == Some(codes::MISALIGNED_ADDRESS)
    }

    /// Whether the driver ended a kernel that ran for too long.
    pub(crate) fn is_timeout(&self) -> bool {
        self.code() == Some(codes::LAUNCH_TIMEOUT)
    }

    /// Whether the context is gone for good: every later call in the process fails as well. SOURCE:
    /// cuda.h, codes 700 to 720 except for those of one launch or call (701, 703 to 709, 711 to
    /// 713, 720).
    pub(crate) fn is_sticky(&self) -> bool {
        matches!(
            self.code(),
            Some(codes::ILLEGAL_ADDRESS | codes::LAUNCH_TIMEOUT | codes::ASSERT | 714..=719)
        )
    }
}

/// Steps of the vendor's checkpoint, in order. SOURCE: CUDA driver API, "CUDA Checkpointing".
#[derive(Clone, Copy, Debug)]
pub(crate) enum Checkpoint {
    /// Refuses further calls; waits for running work.
    Lock,
    /// Moves the memory to the host.
    Out,
    /// Moves the memory back to the GPU.
    Back,
    /// Permits calls again.
    Unlock,
}

/// The initialised library. It makes no context.
#[derive(Clone, Debug)]
pub(crate) struct Cuda {
    api: Arc<Api>,
}

impl Api {
    /// Turns the driver's code into a result.
    fn check(&self, call: &'static str, code: Code) -> Result<(), CudaFailure> {
        if code == 0 {
            return Ok(());
        }
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: `name` is borrowed for the whole call; unknown codes leave it null.
        let known = unsafe { (self.error_name)(code, &mut name) };
        let name = if known == 0 && !name.is_null() {
            // SAFETY: the driver gives a C string of its own that lasts as long as the library.
            unsafe { CStr::from_ptr(name) }
                .to_string_lossy()
                .into_owned()
        } else {
            "unknown".to_owned()
        };
        Err(CudaFailure::Refused { call, code, name })
    }
}

impl Cuda {
    /// Loads and initialises the library.
    pub(crate) fn load() -> Result<Self, CudaFailure> {
        let api = Arc::new(Api::load()?);
        // SAFETY: takes flags, which are zero by its documentation, and no address.
        api.check("cuInit", unsafe { (api.init)(0) })?;
        Ok(Self { api })
    }

    /// CUDA version of the driver: 1000 x major + 10 x minor.
    pub(crate) fn driver_version(&self) -> Result<i32, CudaFailure> {
        let mut version = 0;
        // SAFETY: `version` is borrowed for the whole call.
        let code = unsafe { (self.api.driver_version)(&mut version) };
        self.api.check("cuDriverGetVersion", code)?;
        Ok(version)
    }

    /// Number of devices.
    pub(crate) fn devices(&self) -> Result<u32, CudaFailure> {
        let mut count = 0;
        // SAFETY: `count` is borrowed for the whole call.
        let code = unsafe { (self.api.device_count)(&mut count) };
        self.api.check("cuDeviceGetCount", code)?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// The driver's handle of the GPU with this node. CUDA numbers GPUs in an order of its own.
    fn device(&self, node: u32) -> Result<i32, CudaFailure> {
        let known = identity::of(node).ok().flatten();
        let all = 0..self.devices()?;
        let same = |number: &u32| {
            let uuid = self.handle(*number).and_then(|handle| self.uuid_of(handle));
            let known = known.as_ref().and_then(Identity::bytes);
            known.is_some() && uuid.ok() == known
        };
        self.handle(all.into_iter().find(same).unwrap_or(node))
    }

    /// The driver's handle of CUDA's device of this number.
    fn handle(&self, number: u32) -> Result<i32, CudaFailure> {
        let mut handle = 0;
        let index = i32::try_from(number).unwrap_or(i32::MAX);
        // SAFETY: `handle` is borrowed for the whole call; an invalid index is refused.
        let code = unsafe { (self.api.device_get)(&mut handle, index) };
        self.api.check("cuDeviceGet", code)?;
        Ok(handle)
    }

    /// An attribute of a device. SOURCE of the numbers: cuda.h, `CUdevice_attribute`.
    pub(crate) fn attribute(&self, device: u32, attribute: i32) -> Result<i32, CudaFailure> {
        let (device, mut value) = (self.device(device)?, 0);
        // SAFETY: `value` is borrowed for the whole call; an unknown attribute is refused.
        let code = unsafe { (self.api.device_attribute)(&mut value, attribute, device) };
        self.api.check("cuDeviceGetAttribute", code)?;
        Ok(value)
    }

    /// A device's name.
    pub(crate) fn name(&self, device: u32) -> Result<String, CudaFailure> {
        let device = self.device(device)?;
        let mut name = [0u8; 256];
        // SAFETY: the driver writes at most the length given, which is the array's, with a zero at
        // the end.
        let code = unsafe { (self.api.device_name)(name.as_mut_ptr().cast(), 256, device) };
        self.api.check("cuDeviceGetName", code)?;
        let text = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    /// A device's identity.
    fn uuid_of(&self, device: i32) -> Result<[u8; 16], CudaFailure> {
        let mut uuid = [0; 16];
        // SAFETY: CUuuid is 16 bytes, borrowed for the whole call.
        let code = unsafe { (self.api.device_uuid)(&mut uuid, device) };
        self.api.check("cuDeviceGetUuid", code)?;
        Ok(uuid)
    }

    /// A device's memory in bytes.
    pub(crate) fn total_bytes(&self, device: u32) -> Result<u64, CudaFailure> {
        let (device, mut bytes) = (self.device(device)?, 0);
        // SAFETY: `bytes` is borrowed for the whole call.
        let code = unsafe { (self.api.device_bytes)(&mut bytes, device) };
        self.api.check("cuDeviceTotalMem", code)?;
        Ok(bytes as u64)
    }

    /// Takes a step of the vendor's own checkpoint of another process.
    pub(crate) fn checkpoint(&self, pid: u32, step: Checkpoint) -> Result<(), CudaFailure> {
        let (call, function) = match step {
            Checkpoint::Lock => ("cuCheckpointProcessLock", self.api.checkpoint_lock),
            Checkpoint::Out => ("cuCheckpointProcessCheckpoint", self.api.checkpoint_out),
            Checkpoint::Back => ("cuCheckpointProcessRestore", self.api.checkpoint_back),
            Checkpoint::Unlock => ("cuCheckpointProcessUnlock", self.api.checkpoint_unlock),
        };
        let function = function.ok_or(CudaFailure::Lacks { call })?;
        // CAST: a process id is positive.
        // SAFETY: takes a number, and null where arguments are optional by its documentation.
        let code = unsafe { function(pid as i32, std::ptr::null_mut()) };
        self.api.check(call, code)
    }

    /// The primary context of a device in this process. After a sticky error neither it nor the
    /// process is usable.
    pub(crate) fn context(&self, device: u32) -> Result<Context, CudaFailure> {
        Context::new(self.api.clone(), self.device(device)?)
    }
}
