//! What every workload starts from: a device, guest memory to carve up, loaded kernels.

use core::fmt;
use turnstile_abi::Platform;
use turnstile_abi::boot::{BootInfo, stop_requested};
use turnstile_guest::{Bump, Channel, ChannelMemory, Device, DriverError, Kernel};

/// Longest that a workload waits for the device. TIMEOUT: a VM that is held back may wait for
/// seconds.
pub const PATIENCE_NS: u64 = 60_000_000_000;

/// Why a workload failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fail {
    /// The driver reported an error.
    Driver {
        /// During what.
        during: &'static str,
        /// The error.
        error: DriverError,
    },
    /// The device did not do what it must.
    Text(&'static str),
    /// The device refused, but not with the documented code.
    Code {
        /// During what.
        during: &'static str,
        /// The code, 0 where it did not refuse.
        got: u32,
        /// The documented one.
        expected: u32,
    },
}

impl Fail {
    /// The device did not do what it must.
    pub const fn text(text: &'static str) -> Self {
        Self::Text(text)
    }

    pub(crate) fn code(&self) -> Option<u32> {
        match self {
            Self::Driver { error, .. } => error.code().map(|code| code as u32),
            Self::Text(_) => None,
            Self::Code { got, .. } => Some(*got),
        }
    }
}

impl fmt::Display for Fail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Driver { during, error } => write!(f, "{during}: {error}"),
            Self::Text(text) => f.write_str(text),
            Self::Code {
                during,
                got,
                expected,
            } => write!(f, "{during}: answered with {got}, documented is {expected}"),
        }
    }
}

/// Adds to an error the action during which it occurred.
pub trait During<T> {
    /// Adds `what`, the action during which the error occurred.
    ///
    /// # Errors
    /// The error, with `what`.
    fn during(self, what: &'static str) -> Result<T, Fail>;
}

impl<T> During<T> for Result<T, DriverError> {
    fn during(self, what: &'static str) -> Result<T, Fail> {
        self.map_err(|error| Fail::Driver {
            during: what,
            error,
        })
    }
}

/// A device that was found, and guest memory for what it reads and writes.
#[derive(Debug)]
pub struct Session<'p, P> {
    /// What the guest runs on.
    pub platform: &'p P,
    /// The boot block that the VMM placed in guest memory.
    pub boot: BootInfo,
    /// The device.
    pub device: Device<'p, P>,
    /// Guest memory that is free.
    pub heap: Bump,
    scratch_gpa: u64,
}

impl<'p, P: Platform> Session<'p, P> {
    /// Finds the device.
    ///
    /// # Errors
    /// When there is none, or no guest memory.
    pub fn new(platform: &'p P, boot: BootInfo) -> Result<Self, Fail> {
        let device = Device::probe(platform).during("Probing the device")?;
        let bytes = boot.memory_bytes.saturating_sub(boot.heap_gpa);
        let mut heap = Bump::new(boot.heap_gpa, bytes);
        let scratch_gpa = heap.take(4096, 4096).during("Setting up")?;
        Ok(Self {
            platform,
            boot,
            device,
            heap,
            scratch_gpa,
        })
    }

    /// Whether the VMM wants the guest to end.
    pub fn stop(&self) -> bool {
        stop_requested(self.platform)
    }

    /// Opens a channel with its interrupts on a vector of its own as far as there are any.
    ///
    /// # Errors
    /// When guest memory or channels are used up.
    pub fn channel(&mut self, entries: u32, vector: u16) -> Result<Channel<'p, P>, Fail> {
        let gpa = self
            .heap
            .take(ChannelMemory::bytes(entries), ChannelMemory::ALIGN)
            .during("Setting up a channel")?;
        self.device
            .open_channel(ChannelMemory::new(gpa, entries), vector)
            .during("Opening a channel")
    }

    /// Loads a file as a module.
    ///
    /// # Errors
    /// When there is no such file, or the device refuses it.
    pub fn module(&self, file: &'static str) -> Result<u32, Fail> {
        let text = self
            .boot
            .file(self.platform, file)
            .ok_or(Fail::text("A module's text is not among the files"))?;
        self.device.load_module(text.gpa, text.bytes).during(file)
    }

    /// Finds a function of a module.
    ///
    /// # Errors
    /// When the module has none of this name.
    pub fn kernel(&self, module: u32, name: &'static str) -> Result<Kernel, Fail> {
        self.device
            .find_function(module, name, self.scratch_gpa)
            .during(name)
    }
}
