//! A client of the driver's resource manager, safe to use: what it allocated is freed with it.

use std::fs::{File, OpenOptions};
use std::io;

use super::sys::abi::{self, AllocParams, ControlParams};
use super::sys::{self, Caching, Doorbells, SharedPages};

/// The control device.
pub const CONTROL_DEVICE: &str = "/dev/nvidiactl";

/// Purpose of the mapping call, for its errors.
const MAP: &str = "map memory";

/// Name of an object within a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u32);

/// A failed call to the driver.
#[derive(Debug, thiserror::Error)]
pub enum RmError {
    /// The device file does not exist, or this process may not open it.
    #[error("{path} cannot be opened")]
    Open {
        /// Path of the file.
        path: String,
        /// Error of the host.
        source: io::Error,
    },
    /// The driver did not get the call.
    #[error("The driver did not take the call to {what}")]
    Call {
        /// Purpose of the call.
        what: &'static str,
        /// Error of the host.
        source: io::Error,
    },
    /// The driver refused the call.
    #[error("The driver refused to {what}: status {status:#x} ({})", meaning(*status))]
    Refused {
        /// Purpose of the call.
        what: &'static str,
        /// Status that RM returned.
        status: u32,
    },
}

/// NV_ERR_INVALID_PARAM_STRUCT. SOURCE: `nvstatuscodes.h`.
pub(super) const INVALID_PARAM_STRUCT: u32 = 0x3a;

/// Meaning of the statuses that an operator may meet. SOURCE: `nvstatuscodes.h`.
const fn meaning(status: u32) -> &'static str {
    match status {
        0x0f => "the GPU is lost",
        0x1a => "a resource ran out",
        0x1b => "insufficient permissions, run as root",
        0x1f => "invalid argument",
        0x21 => "invalid channel",
        0x23 => "invalid client",
        0x26 => "invalid device",
        0x31 | 0x33 | 0x57 => "no such object",
        INVALID_PARAM_STRUCT => "invalid parameters",
        0x40 => "invalid state",
        0x51 => "no memory",
        0x56 => "not supported",
        0x65 => "timeout",
        _ => "see nvstatuscodes.h",
    }
}

/// Turns the status of a call into its result.
fn accepted(what: &'static str, status: io::Result<u32>) -> Result<(), RmError> {
    match status {
        Ok(0) => Ok(()),
        Ok(status) => Err(RmError::Refused { what, status }),
        Err(source) => Err(RmError::Call { what, source }),
    }
}

fn open(path: &str) -> Result<File, RmError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|source| RmError::Open {
            path: path.to_owned(),
            source,
        })
}

/// Opens the GPU's device file, which belongs to `control` from then on.
fn open_gpu(index: u32, control: &File) -> Result<File, RmError> {
    let gpu = open(&format!("/dev/nvidia{index}"))?;
    sys::register_fd(&gpu, control).map_err(|source| RmError::Call {
        what: "register the GPU's file",
        source,
    })?;
    Ok(gpu)
}

/// Calls a control of an object of `client`, which was made through `file`. That may be another
/// process's.
///
/// # Errors
/// The driver's refusal.
pub(super) fn control_by<P: ControlParams>(
    file: &File,
    client: u32,
    what: &'static str,
    (object, command): (u32, u32),
    params: &mut P,
) -> Result<(), RmError> {
    accepted(what, sys::control(file, client, object, command, params))
}

/// A client with a device and a subdevice of one GPU.
#[derive(Debug)]
pub struct RmClient {
    index: u32,
    /// The driver's number of the GPU.
    number: u32,
    control: File,
    /// Keeps the GPU attached.
    _gpu: File,
    client: Handle,
    device: Handle,
    subdevice: Handle,
}

impl RmClient {
    /// A client of GPU `index`.
    ///
    /// # Errors
    /// If there is no driver or no such GPU, or the driver refuses.
    pub fn open(index: u32) -> Result<Self, RmError> {
        let control = open(CONTROL_DEVICE)?;
        let gpu = open_gpu(index, &control)?;
        let none = None::<&mut abi::DeviceParams>;
        let (status, client) =
            sys::alloc(&control, 0, 0, none, abi::CLASS_CLIENT).map_err(|source| {
                RmError::Call {
                    what: "make a client",
                    source,
                }
            })?;
        accepted("make a client", Ok(status))?;
        let mut this = Self {
            index,
            number: index,
            control,
            _gpu: gpu,
            client: Handle(client),
            device: Handle(0),
            subdevice: Handle(0),
        };
        this.number = this.device_number()?;
        let mut device = abi::DeviceParams {
            device_id: this.number,
            ..Default::default()
        };
        this.device = this.alloc("make a device", this.client, &mut device)?;
        let mut subdevice = abi::SubdeviceParams::default();
        this.subdevice = this.alloc("make a subdevice", this.device, &mut subdevice)?;
        Ok(this)
    }

    /// The driver's number of the GPU. It is that of the order in which GPUs were attached, and may
    /// differ from the number of the GPU's node.
    fn device_number(&self) -> Result<u32, RmError> {
        let what = "list the GPUs";
        let cards = sys::cards(&self.control).map_err(|source| RmError::Call { what, source })?;
        let own = |card: &&abi::Card| card.valid & 1 != 0 && card.minor == self.index;
        let Some(card) = cards.iter().find(own) else {
            return Ok(self.index);
        };
        let mut info = abi::IdInfoParams {
            gpu_id: card.gpu_id,
            ..Default::default()
        };
        self.control("number the GPU", self.client, abi::GET_ID_INFO, &mut info)?;
        Ok(info.device)
    }

    /// The number of the GPU's node.
    pub(crate) const fn index(&self) -> u32 {
        self.index
    }

    /// The driver's number of the GPU, by which programs make their devices.
    pub(crate) const fn number(&self) -> u32 {
        self.number
    }

    /// The client itself, as an object.
    pub const fn client(&self) -> Handle {
        self.client
    }

    /// The device, which is the parent of memory objects.
    pub(super) const fn device(&self) -> Handle {
        self.device
    }

    /// The subdevice: the physical GPU.
    pub(crate) const fn subdevice(&self) -> Handle {
        self.subdevice
    }

    /// Allocates an object below `parent`.
    pub(super) fn alloc<P: AllocParams>(
        &self,
        what: &'static str,
        parent: Handle,
        params: &mut P,
    ) -> Result<Handle, RmError> {
        self.alloc_class(what, parent, Some(params), P::CLASS)
    }

    /// Allocates an object below `parent` of a class without parameters.
    pub(super) fn alloc_plain(
        &self,
        what: &'static str,
        parent: Handle,
        class: u32,
    ) -> Result<Handle, RmError> {
        self.alloc_class(what, parent, None::<&mut abi::DeviceParams>, class)
    }

    fn alloc_class<P: AllocParams>(
        &self,
        what: &'static str,
        parent: Handle,
        params: Option<&mut P>,
        class: u32,
    ) -> Result<Handle, RmError> {
        let (status, new) = sys::alloc(&self.control, self.client.0, parent.0, params, class)
            .map_err(|source| RmError::Call { what, source })?;
        accepted(what, Ok(status))?;
        Ok(Handle(new))
    }

    /// Calls a control of `object`.
    pub(super) fn control<P: ControlParams>(
        &self,
        what: &'static str,
        object: Handle,
        command: u32,
        params: &mut P,
    ) -> Result<(), RmError> {
        let status = sys::control(&self.control, self.client.0, object.0, command, params);
        accepted(what, status)
    }

    /// Calls a control of `object` that takes no parameters.
    pub(super) fn control_empty(
        &self,
        what: &'static str,
        object: Handle,
        command: u32,
    ) -> Result<(), RmError> {
        accepted(
            what,
            sys::control_empty(&self.control, self.client.0, object.0, command),
        )
    }

    /// Reads a register.
    pub(super) fn register(&self, command: u32, offset: u32) -> Result<u32, RmError> {
        let what = "read a register";
        let (status, value) = sys::read_register(
            &self.control,
            self.client.0,
            self.subdevice.0,
            command,
            offset,
        )
        .map_err(|source| RmError::Call { what, source })?;
        accepted(what, Ok(status))?;
        Ok(value)
    }

    /// Maps `length` bytes of the host memory object `memory` for reading. Its parent `device` may
    /// be the client.
    pub(super) fn map(
        &self,
        device: Handle,
        memory: Handle,
        length: u64,
    ) -> Result<SharedPages, RmError> {
        let window = open(CONTROL_DEVICE)?;
        self.map_by(window, device, memory, (0, length), Caching::Own)
    }

    fn map_by(
        &self,
        window: File,
        device: Handle,
        memory: Handle,
        bytes: (u64, u64),
        caching: Caching,
    ) -> Result<SharedPages, RmError> {
        self.prepare(&window, device, memory, bytes, caching)?;
        // The mapping outlives the descriptor.
        SharedPages::of_file(&window, bytes.1.next_multiple_of(4096) as usize)
            .map_err(|source| RmError::Call { what: MAP, source })
    }

    /// Prepares a file for mapping.
    fn prepare(
        &self,
        window: &File,
        device: Handle,
        memory: Handle,
        bytes: (u64, u64),
        caching: Caching,
    ) -> Result<(), RmError> {
        let (client, control) = (self.client.0, &self.control);
        let status = sys::map_memory(control, client, device.0, memory.0, bytes, window, caching);
        accepted(MAP, status)
    }

    /// Maps the GPU's doorbells.
    ///
    /// # Errors
    /// If the driver refuses; GPUs before Hopper have doorbells of another class.
    pub(super) fn map_doorbells(&self) -> Result<Doorbells, RmError> {
        let bells = self.alloc_plain("have doorbells", self.subdevice, abi::CLASS_DOORBELLS)?;
        let window = open_gpu(self.index, &self.control)?;
        let bytes = (0, Doorbells::BYTES);
        self.prepare(&window, self.subdevice, bells, bytes, Caching::Written)?;
        Doorbells::of_file(&window).map_err(|source| RmError::Call { what: MAP, source })
    }

    /// Maps the range `bytes` (offset, length) of GPU memory, or of the GPU's registers, for
    /// reading.
    pub(super) fn map_gpu(
        &self,
        memory: Handle,
        bytes: (u64, u64),
        caching: Caching,
    ) -> Result<SharedPages, RmError> {
        let window = open_gpu(self.index, &self.control)?;
        self.map_by(window, self.subdevice, memory, bytes, caching)
    }

    /// Frees an object and all below it.
    pub(super) fn free(&self, object: Handle) -> Result<(), RmError> {
        accepted(
            "free an object",
            sys::free(&self.control, self.client.0, object.0),
        )
    }
}

impl Drop for RmClient {
    fn drop(&mut self) {
        // All objects are below the client. The driver frees it with the file in any case.
        if let Err(error) = self.free(self.client) {
            log::debug!("freeing the RM client failed: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_without_a_gpu_names_the_missing_file() {
        if std::path::Path::new(CONTROL_DEVICE).exists() {
            eprintln!("skipped: this host has {CONTROL_DEVICE}");
            return;
        }
        let error = RmClient::open(0).unwrap_err().to_string();
        assert_eq!(error, "/dev/nvidiactl cannot be opened");
    }

    #[test]
    fn a_refusal_names_what_and_why() {
        let error = accepted("bind events", Ok(0x1b)).unwrap_err().to_string();
        assert!(
            error.contains("bind events") && error.contains("root"),
            "{error}"
        );
    }
}
