//! The device for programs: modules, memory, launches, one after the other on one channel.

use turnstile_abi::Platform;
use turnstile_abi::{CopyDirection, Dim3, QueryItem, regs};
use turnstile_guest::{Allocation, Bump, Channel, ChannelMemory, Device, Kernel, Params};

use crate::{Bus, GuestError};

/// Entries of the channel's ring.
const ENTRIES: u32 = 64;
/// Bytes that are copied at a time.
const STAGING_BYTES: u64 = 1 << 20;
/// TIMEOUT: a VM that is held back may wait for seconds.
const PATIENCE_NS: u64 = 60_000_000_000;

/// GPU memory; given back by [`Gpu::free`].
pub type Memory = Allocation;

/// What this VM has used, and what it may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Compute time charged, in nanoseconds.
    pub compute_ns: u64,
    /// Copy time charged, in nanoseconds.
    pub copy_ns: u64,
    /// Time held back with work queued, in nanoseconds.
    pub held_ns: u64,
    /// Weight.
    pub weight: u32,
    /// Whether the VM may run now.
    pub admitted: bool,
}

/// A device that is driven.
#[derive(Debug)]
pub struct Gpu<'b> {
    bus: &'b Bus,
    device: Device<'b, Bus>,
    channel: Option<Channel<'b, Bus>>,
    staging_gpa: u64,
    scratch_gpa: u64,
}

impl<'b> Gpu<'b> {
    /// Bytes of memory that a [`Bus`] has to be opened with.
    pub const DMA_BYTES: u64 = 2 << 20;

    /// Begins to drive the device.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn new(bus: &'b Bus) -> Result<Self, GuestError> {
        let device = Device::probe(bus)?;
        let mut heap = Bump::new(bus.dma().address(), bus.dma().bytes());
        let scratch_gpa = heap.take(4096, 4096)?;
        let ring = heap.take(ChannelMemory::bytes(ENTRIES), ChannelMemory::ALIGN)?;
        let staging_gpa = heap.take(STAGING_BYTES, 4096)?;
        let channel = device.open_channel(ChannelMemory::new(ring, ENTRIES), 0)?;
        Ok(Self {
            bus,
            device,
            channel: Some(channel),
            staging_gpa,
            scratch_gpa,
        })
    }

    /// The driver's device, for what is not here.
    pub fn device(&self) -> &Device<'b, Bus> {
        &self.device
    }

    fn channel(&mut self) -> Result<&mut Channel<'b, Bus>, GuestError> {
        let closed = GuestError::Driver(turnstile_guest::DriverError::Lost);
        self.channel.as_mut().ok_or(closed)
    }

    /// Loads PTX text.
    ///
    /// # Errors
    /// When it is longer than the driver takes, or the device refuses it.
    pub fn load(&self, ptx: &[u8]) -> Result<u32, GuestError> {
        if ptx.len() as u64 > STAGING_BYTES {
            return Err(GuestError::TooLong(ptx.len()));
        }
        self.bus.write_bytes(self.staging_gpa, ptx);
        Ok(self
            .device
            .load_module(self.staging_gpa, ptx.len() as u64)?)
    }

    /// Finds a function of a module.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn find(&self, module: u32, name: &str) -> Result<Kernel, GuestError> {
        Ok(self.device.find_function(module, name, self.scratch_gpa)?)
    }

    /// Allocates zeroed GPU memory.
    ///
    /// # Errors
    /// When the device has none left for this VM.
    pub fn allocate(&self, bytes: u64) -> Result<Memory, GuestError> {
        Ok(self.device.allocate(bytes)?)
    }

    /// Gives GPU memory back.
    ///
    /// # Errors
    /// When there is none such.
    pub fn free(&self, memory: Memory) -> Result<(), GuestError> {
        Ok(self.device.free(memory)?)
    }

    /// Copies to the GPU; done when it returns.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn copy_in(&mut self, va: u64, bytes: &[u8]) -> Result<(), GuestError> {
        let staging = self.staging_gpa;
        for (i, piece) in bytes.chunks(STAGING_BYTES as usize).enumerate() {
            self.bus.write_bytes(staging, piece);
            let at = va + i as u64 * STAGING_BYTES;
            let length = piece.len() as u64;
            let channel = self.channel()?;
            channel.copy(CopyDirection::GuestToGpu, staging, at, length)?;
            channel.finish(PATIENCE_NS)?;
        }
        Ok(())
    }

    /// Copies from the GPU; done when it returns.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn copy_out(&mut self, va: u64, bytes: &mut [u8]) -> Result<(), GuestError> {
        let staging = self.staging_gpa;
        for (i, piece) in bytes.chunks_mut(STAGING_BYTES as usize).enumerate() {
            let at = va + i as u64 * STAGING_BYTES;
            let length = piece.len() as u64;
            let channel = self.channel()?;
            channel.copy(CopyDirection::GpuToGuest, at, staging, length)?;
            channel.finish(PATIENCE_NS)?;
            self.bus.read_bytes(staging, piece);
        }
        Ok(())
    }

    /// Announces a launch. Launches and copies run in order.
    ///
    /// # Errors
    /// When the parameters are not the kernel's, or the channel has ended.
    pub fn launch(
        &mut self,
        kernel: Kernel,
        grid: Dim3,
        block: Dim3,
        shared_bytes: u32,
        params: &Params,
    ) -> Result<(), GuestError> {
        let channel = self.channel()?;
        channel.wait_room(2, PATIENCE_NS)?;
        channel.launch(kernel, grid, block, shared_bytes, params)?;
        channel.ring();
        Ok(())
    }

    /// Rings the doorbell again, which announces nothing new.
    pub fn ring(&self) {
        if let Some(channel) = &self.channel {
            channel.ring();
        }
    }

    /// Waits for all that was announced.
    ///
    /// # Errors
    /// When a command failed, or none finished for a minute.
    pub fn finish(&mut self) -> Result<(), GuestError> {
        Ok(self.channel()?.finish(PATIENCE_NS)?)
    }

    /// What this VM has used.
    pub fn usage(&self) -> Usage {
        use regs::status;
        let long = |at| self.bus.reg_read64(status::PAGE + at);
        let word = |at| self.bus.reg_read32(status::PAGE + at);
        Usage {
            compute_ns: long(status::COMPUTE_NS),
            copy_ns: long(status::COPY_NS),
            held_ns: long(status::HELD_NS),
            weight: word(status::WEIGHT),
            admitted: word(status::ADMITTED) != 0,
        }
    }

    /// GPU memory that may still be allocated.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn free_bytes(&self) -> Result<u64, GuestError> {
        Ok(self.device.query(QueryItem::MemoryFreeBytes)?)
    }
}

impl Drop for Gpu<'_> {
    /// Closes the channel, so that the device uses its memory no more.
    fn drop(&mut self) {
        if let Some(channel) = self.channel.take() {
            let _ = self.device.close_channel(channel);
        }
    }
}
