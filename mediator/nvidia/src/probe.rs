//! Finds out what this host's GPU and driver permit, without affecting any tenant's work.

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
/// The refusal of the vendor's library.
pub fn memory_bytes(index: u32) -> Result<u64, CudaError> {
    Cuda::load()?.total_bytes(index)
}

/// Makes a context-switch log of GPU `index`, and closes it.
///
/// # Errors
/// The driver's refusal.
pub fn events(index: u32, driver: &DriverAbi) -> Result<(), RmError> {
    let client = RmClient::open(index)?;
    EventLog::start(&client, driver)?.close(&client)
}

/// Requests the driver to resume an empty list of channels, to find out whether it knows the call.
/// It refuses the empty list (measured: status 0x3a) before it checks the caller's rights, and does
/// nothing. (Measured: an ordinary user gets the same answer.)
///
/// # Errors
/// The driver's refusal.
pub fn suspension_known(index: u32, driver: &DriverAbi) -> Result<(), RmError> {
    let client = RmClient::open(index)?;
    let mut nobody = DisableChannelsParams::default();
    let (object, command) = (client.subdevice(), driver.disable_channels);
    match client.control("resume no channels", object, command, &mut nobody) {
        Err(RmError::Refused { status, .. }) if status == INVALID_PARAM_STRUCT => Ok(()),
        other => other,
    }
}

/// Maps the GPU's doorbells, by which the daemon starts the preemptor's kernel; rings none.
///
/// # Errors
/// The driver's refusal.
pub fn doorbells(index: u32) -> Result<(), RmError> {
    RmClient::open(index)?.map_doorbells().map(drop)
}

/// State of the compute engine, and whether its register can be mapped.
#[derive(Debug)]
pub struct EngineStatus {
    /// Whether the compute engine is busy now.
    pub works: bool,
    /// Why the register cannot be mapped, so that each reading is a call to the driver.
    pub unmapped: Option<String>,
}

/// Reads the status register, and tests its mapping.
///
/// # Errors
/// The driver's refusal.
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
    fn host_without_cuda_gets_an_error_about_the_driver_library() {
        if let Err(error) = exportable_memory(0) {
            assert!(
                error.to_string().starts_with("The CUDA driver library"),
                "{error}"
            );
        }
    }
}
