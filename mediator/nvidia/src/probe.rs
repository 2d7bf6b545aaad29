//! What this host's GPU and driver let us do, found out without touching anybody's work.

use super::clock::GpuClock;
use super::events::EventLog;
use super::observe::engine_status;
use super::rm::{INVALID_PARAM_STRUCT, RmClient, RmError};
use super::sys::Cuda;
pub use super::sys::CudaFailure as CudaError;
use super::sys::abi::{DisableChannelsParams, STATUS_BUSY, STATUS_REGISTER};
use super::version::DriverAbi;

/// Memory of GPU `index`, in bytes.
///
/// # Errors
/// What the vendor's library refused.
pub fn memory_bytes(index: u32) -> Result<u64, CudaError> {
    Cuda::load()?.total_bytes(index)
}

/// Makes a context-switch log of GPU `index`, and ends it.
///
/// # Errors
/// What the driver refused.
pub fn events(index: u32, driver: &DriverAbi) -> Result<(), RmError> {
    let client = RmClient::open(index)?;
    EventLog::start(&client, driver)?.close(&client)
}

/// Asks the driver to resume no channels at all: whether it knows the call. It refuses the empty list (measured: status
/// 0x3a) before it looks at our rights (measured: an ordinary user gets the same answer), and does nothing.
///
/// # Errors
/// What the driver refused.
pub fn suspension_known(index: u32, driver: &DriverAbi) -> Result<(), RmError> {
    let client = RmClient::open(index)?;
    let mut nobody = DisableChannelsParams::default();
    let (object, command) = (client.subdevice(), driver.disable_channels);
    match client.control("resume no channels", object, command, &mut nobody) {
        Err(RmError::Refused { status, .. }) if status == INVALID_PARAM_STRUCT => Ok(()),
        other => other,
    }
}

/// Maps the GPU's doorbells, which the usher is rung by; rings none.
///
/// # Errors
/// What the driver refused.
pub fn doorbells(index: u32) -> Result<(), RmError> {
    RmClient::open(index)?.map_doorbells().map(drop)
}

/// What the status register says.
#[derive(Debug)]
pub struct EngineStatus {
    /// The compute engine works at this moment.
    pub works: bool,
    /// Why the driver has to be asked, if it is not mapped.
    pub unmapped: Option<String>,
}

/// Reads the status register, and maps it.
///
/// # Errors
/// What the driver refused.
pub fn engine_status(index: u32, driver: &DriverAbi) -> Result<EngineStatus, RmError> {
    let client = RmClient::open(index)?;
    let status = client.register(driver.read_registers, STATUS_REGISTER)?;
    let clock = GpuClock::start(&client, driver)?;
    let mapped = engine_status::self_test(&client, || clock.now());
    Ok(EngineStatus {
        works: status & STATUS_BUSY != 0,
        unmapped: mapped.err().map(|error| error.to_string()),
    })
}

/// Whether memory of GPU `index` can be handed to another process, which swapping needs.
///
/// # Errors
/// If there is no CUDA driver library, or it refuses.
pub fn exportable_memory(index: u32) -> Result<bool, CudaError> {
    /// SOURCE: cuda.h: CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED.
    const POSIX_HANDLES: i32 = 103;
    Ok(Cuda::load()?.attribute(index, POSIX_HANDLES)? != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_cuda_says_so() {
        if let Err(error) = exportable_memory(0) {
            assert!(
                error.to_string().starts_with("The CUDA driver library"),
                "{error}"
            );
        }
    }
}
