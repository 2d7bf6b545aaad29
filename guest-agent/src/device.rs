//! The device: finding it, its mailbox, its interrupts.

use crate::channel::{Channel, ChannelMemory, Kernel, WAIT_NS};
use crate::error::{DriverError, TEXT_BYTES, Text};
use core::cell::Cell;
use turnstile_abi::Platform;
use turnstile_abi::regs::{self, device_status, mailbox_status};
use turnstile_abi::{CHUNK_BYTES, MAILBOX_ARGS, MAILBOX_RESULTS, QueryItem, Request, pci};

const MSIX_CAPABILITY: u32 = 0x11;
const MSIX_ENABLE: u32 = 1 << 31;
/// Memory decoding and bus mastering.
const COMMAND_ENABLE: u32 = 0b110;
/// TIMEOUT: the longest request, loading a module of 4 MiB, takes seconds on a loaded host.
const MAILBOX_TIMEOUT_NS: u64 = 60_000_000_000;
/// TIMEOUT: a device served by a daemon becomes a tenant at the first access, which takes seconds
/// with a real GPU.
const READY_TIMEOUT_NS: u64 = 30_000_000_000;
/// Poll interval of a device that is not ready.
const READY_POLL_NS: u64 = 1_000_000;

/// GPU memory of this VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// First GPU address.
    pub va: u64,
    /// Where it begins in the aperture.
    pub aperture_offset: u64,
    /// Bytes, rounded up by the device.
    pub bytes: u64,
}

/// A device that was found and is of a known version.
#[derive(Debug)]
pub struct Device<'p, P> {
    platform: &'p P,
    /// Arguments in the mailbox. Only changed ones are written, because each write is an exit.
    args: Cell<[u64; MAILBOX_ARGS]>,
    features: u64,
    channels: u32,
    vectors: u16,
    memory_bytes: u64,
}

impl<'p, P: Platform> Device<'p, P> {
    /// Finds the device, checks its version, and enables the device, its interrupts and vector 0
    /// (the mailbox's).
    ///
    /// # Errors
    /// When there is no device or the driver does not know its version.
    pub fn probe(platform: &'p P) -> Result<Self, DriverError> {
        let id = platform.config_read(0);
        if id != u32::from(pci::DEVICE_ID) << 16 | u32::from(pci::VENDOR_ID) {
            return Err(DriverError::NotFound(id));
        }
        platform.config_write(0x04, platform.config_read(0x04) & 0xffff | COMMAND_ENABLE);
        let identity = platform.reg_read32(regs::IDENTITY);
        if identity != regs::IDENTITY_VALUE {
            return Err(DriverError::NotFound(identity));
        }
        let version = platform.reg_read32(regs::VERSION);
        if version >> 16 != regs::VERSION_VALUE >> 16 {
            return Err(DriverError::Version(version));
        }
        await_ready(platform)?;
        let device = Self {
            platform,
            args: Cell::new([0; MAILBOX_ARGS]),
            features: platform.reg_read64(regs::FEATURES),
            channels: platform.reg_read32(regs::CHANNELS),
            vectors: platform.reg_read32(regs::VECTORS).min(2048) as u16,
            memory_bytes: platform.reg_read64(regs::MEMORY_BYTES),
        };
        for i in 0..MAILBOX_ARGS as u64 {
            platform.reg_write64(regs::MAILBOX_ARG + 8 * i, 0);
        }
        device.enable_vector(0);
        let msix = device.msix_capability()?;
        platform.config_write(msix, platform.config_read(msix) | MSIX_ENABLE);
        Ok(device)
    }

    /// Bits of [`turnstile_abi::regs::features`].
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Channels that may be open.
    pub fn channels(&self) -> u32 {
        self.channels
    }

    /// GPU memory that may be allocated, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// What the device is driven through.
    pub fn platform(&self) -> &'p P {
        self.platform
    }

    /// Whether the mediator is gone.
    pub fn is_lost(&self) -> bool {
        self.platform.reg_read32(regs::DEVICE_STATUS) & device_status::LOST != 0
    }

    /// Makes a request and waits for its answer.
    ///
    /// # Errors
    /// The device's refusal with its text, or [`DriverError::Timeout`].
    pub fn request(&self, request: &Request) -> Result<[u64; MAILBOX_RESULTS], DriverError> {
        let (op, args) = request.encode();
        self.request_raw(op as u32, args)
    }

    /// As [`Self::request`], with an operation and arguments that the device may not know.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub fn request_raw(
        &self,
        op: u32,
        args: [u64; MAILBOX_ARGS],
    ) -> Result<[u64; MAILBOX_RESULTS], DriverError> {
        let platform = self.platform;
        let before = self.args.replace(args);
        for (i, (arg, before)) in args.iter().zip(before).enumerate() {
            if *arg != before {
                platform.reg_write64(regs::MAILBOX_ARG + 8 * i as u64, *arg);
            }
        }
        platform.reg_write32(regs::MAILBOX_OP, op);
        let since = platform.now_ns();
        let status = loop {
            match platform.reg_read32(regs::MAILBOX_STATUS) {
                mailbox_status::BUSY | mailbox_status::IDLE => {}
                status => break status,
            }
            if platform.now_ns().saturating_sub(since) > MAILBOX_TIMEOUT_NS {
                return Err(DriverError::Timeout);
            }
            platform.wait(WAIT_NS);
        };
        platform.reg_write32(regs::INTERRUPT_STATUS, 1);
        if status != mailbox_status::DONE {
            return Err(DriverError::Refused {
                op,
                code: platform.reg_read32(regs::MAILBOX_ERROR),
                text: self.text(),
            });
        }
        let mut results = [0; MAILBOX_RESULTS];
        for (i, result) in results.iter_mut().enumerate().take(results_of(op)) {
            *result = platform.reg_read64(regs::MAILBOX_RESULT + 8 * i as u64);
        }
        Ok(results)
    }

    fn text(&self) -> Text {
        let mut bytes = [0; TEXT_BYTES];
        let len = self.platform.reg_read32(regs::MAILBOX_TEXT_LEN) as usize;
        let len = len.min(TEXT_BYTES);
        for (i, word) in bytes.chunks_exact_mut(8).take(len.div_ceil(8)).enumerate() {
            let value = self.platform.reg_read64(regs::MAILBOX_TEXT + 8 * i as u64);
            word.copy_from_slice(&value.to_le_bytes());
        }
        Text::new(&bytes[..len])
    }

    /// Opens a channel over `memory` with interrupts on `vector`.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub fn open_channel(
        &self,
        memory: ChannelMemory,
        vector: u16,
    ) -> Result<Channel<'p, P>, DriverError> {
        if vector != 0 && vector < self.vectors {
            self.enable_vector(vector);
        }
        memory.clear(self.platform);
        let [channel, ..] = self.request(&Request::OpenChannel {
            ring_gpa: memory.ring_gpa(),
            entries: memory.entries(),
            state_gpa: memory.state_gpa(),
            vector,
        })?;
        Ok(Channel::new(self.platform, memory, channel as u32))
    }

    /// Closes a channel.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub fn close_channel(&self, channel: Channel<'p, P>) -> Result<(), DriverError> {
        let channel = channel.number();
        self.request(&Request::CloseChannel { channel }).map(|_| ())
    }

    /// Allocates zeroed GPU memory.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub fn allocate(&self, bytes: u64) -> Result<Allocation, DriverError> {
        let [va, aperture_offset, bytes, ..] = self.request(&Request::Allocate {
            bytes: bytes.next_multiple_of(CHUNK_BYTES),
        })?;
        Ok(Allocation {
            va,
            aperture_offset,
            bytes,
        })
    }

    /// Frees an allocation.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub fn free(&self, allocation: Allocation) -> Result<(), DriverError> {
        let va = allocation.va;
        self.request(&Request::Free { va }).map(|_| ())
    }

    /// Loads a module with its text in guest memory.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub fn load_module(&self, text_gpa: u64, bytes: u64) -> Result<u32, DriverError> {
        let [module, ..] = self.request(&Request::LoadModule { text_gpa, bytes })?;
        Ok(module as u32)
    }

    /// Unloads a module.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub fn unload_module(&self, module: u32) -> Result<(), DriverError> {
        self.request(&Request::UnloadModule { module }).map(|_| ())
    }

    /// Finds a function of a module; its name is put at `scratch_gpa` for the device to read.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub fn find_function(
        &self,
        module: u32,
        name: &str,
        scratch_gpa: u64,
    ) -> Result<Kernel, DriverError> {
        self.platform.write_bytes(scratch_gpa, name.as_bytes());
        let [function, param_bytes, ..] = self.request(&Request::FindFunction {
            module,
            name_gpa: scratch_gpa,
            bytes: name.len() as u64,
        })?;
        Ok(Kernel {
            module,
            function: function as u32,
            param_bytes: param_bytes as u32,
        })
    }

    /// Reads a value of the device.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub fn query(&self, item: QueryItem) -> Result<u64, DriverError> {
        self.request(&Request::Query { item })
            .map(|[value, ..]| value)
    }

    /// Declares what the next kernels need: GPU memory, and threads and blocks of the largest.
    /// Returns the task's number, for [`Self::end_task`].
    ///
    /// # Errors
    /// As [`Self::request`]; `NoRoomNow` while other tasks have what it needs.
    pub fn begin_task(
        &self,
        memory_bytes: u64,
        threads: u32,
        blocks: u32,
    ) -> Result<u32, DriverError> {
        let [task, ..] = self.request(&Request::BeginTask {
            memory_bytes,
            threads,
            blocks,
        })?;
        Ok(task as u32)
    }

    /// Ends a task.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub fn end_task(&self, task: u32) -> Result<(), DriverError> {
        self.request(&Request::EndTask { task }).map(|_| ())
    }

    fn enable_vector(&self, vector: u16) {
        let (address, data) = self.platform.msi(vector);
        let entry = pci::MSIX_TABLE + 16 * u64::from(vector);
        self.platform.reg_write64(entry, address);
        self.platform.reg_write64(entry + 8, u64::from(data));
    }

    /// Offset of the MSI-X capability.
    fn msix_capability(&self) -> Result<u8, DriverError> {
        let mut at = self.platform.config_read(0x34) as u8 & !3;
        // The list is at most as long as the space has room for.
        for _ in 0..48 {
            if at < 0x40 {
                break;
            }
            let header = self.platform.config_read(at);
            if header & 0xff == MSIX_CAPABILITY {
                return Ok(at);
            }
            at = (header >> 8) as u8 & !3;
        }
        Err(DriverError::NoMsix)
    }
}

/// Waits for the device to be ready, or to say that it will not be.
fn await_ready<P: Platform>(platform: &P) -> Result<(), DriverError> {
    let since = platform.now_ns();
    loop {
        match platform.reg_read32(regs::DEVICE_STATUS) {
            status if status & device_status::LOST != 0 => return Err(DriverError::Lost),
            status if status & device_status::READY != 0 => return Ok(()),
            _ if platform.now_ns().saturating_sub(since) > READY_TIMEOUT_NS => {
                return Err(DriverError::Timeout);
            }
            _ => platform.wait(READY_POLL_NS),
        }
    }
}

/// Results that an operation has; reading more would cost exits for nothing.
fn results_of(op: u32) -> usize {
    match op {
        3 => 3,
        5 | 7 => 2,
        1 | 8 | 9 => 1,
        2 | 4 | 6 | 10 => 0,
        _ => MAILBOX_RESULTS,
    }
}
