//! A channel: its ring, its doorbell, its fences.

use crate::error::DriverError;
use crate::params::{PARAMS_BYTES_MAX, Params};
use turnstile_abi::Platform;
use turnstile_abi::{
    COMMAND_BYTES, ChannelStateBlock, ChannelStatus, Command, CopyDirection, Dim3, Launch,
    TRANSFER_BYTES_MAX, regs,
};

const STATE_BYTES: u64 = 64;
/// Longest wait for an interrupt before the state is polled.
pub(crate) const WAIT_NS: u64 = 20_000_000;

/// A function of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Module.
    pub module: u32,
    /// Function.
    pub function: u32,
    /// Bytes of parameters that it takes.
    pub param_bytes: u32,
}

/// Guest memory of a channel: ring, parameters of each entry, state block, fence record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelMemory {
    gpa: u64,
    entries: u32,
}

impl ChannelMemory {
    /// Alignment of the address.
    pub const ALIGN: u64 = COMMAND_BYTES as u64;

    /// Bytes for a ring of `entries` entries in all.
    pub const fn bytes(entries: u32) -> u64 {
        entries as u64 * (COMMAND_BYTES + PARAMS_BYTES_MAX) as u64 + 2 * STATE_BYTES
    }

    /// Over [`Self::bytes`] at `gpa`, a multiple of [`Self::ALIGN`].
    pub const fn new(gpa: u64, entries: u32) -> Self {
        Self { gpa, entries }
    }

    /// Entries of the ring.
    pub const fn entries(&self) -> u32 {
        self.entries
    }

    /// Where the ring begins.
    pub const fn ring_gpa(&self) -> u64 {
        self.gpa
    }

    /// Where the state block is.
    pub const fn state_gpa(&self) -> u64 {
        self.gpa + self.entries as u64 * (COMMAND_BYTES + PARAMS_BYTES_MAX) as u64
    }

    /// Where the fence record is.
    pub const fn fence_gpa(&self) -> u64 {
        self.state_gpa() + STATE_BYTES
    }

    const fn entry_gpa(&self, index: u32) -> u64 {
        self.gpa + (index % self.entries) as u64 * COMMAND_BYTES as u64
    }

    const fn params_gpa(&self, index: u32) -> u64 {
        let slots = self.gpa + self.entries as u64 * COMMAND_BYTES as u64;
        slots + (index % self.entries) as u64 * PARAMS_BYTES_MAX as u64
    }

    pub(crate) fn clear<P: Platform>(&self, platform: &P) {
        for at in (0..2 * STATE_BYTES).step_by(8) {
            platform.write_u64(self.state_gpa() + at, 0);
        }
    }
}

/// An open channel. Commands are added to the ring and announced by [`Channel::ring`].
#[derive(Debug)]
pub struct Channel<'p, P> {
    platform: &'p P,
    memory: ChannelMemory,
    number: u32,
    /// Commands added, modulo 2^32.
    put: u32,
    /// Commands known to be finished, modulo 2^32.
    get: u32,
    /// Value of the last fence added.
    fence: u64,
}

impl<'p, P: Platform> Channel<'p, P> {
    pub(crate) fn new(platform: &'p P, memory: ChannelMemory, number: u32) -> Self {
        Self {
            platform,
            memory,
            number,
            put: 0,
            get: 0,
            fence: 0,
        }
    }

    /// Number of the channel, which is that of its doorbell page.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The channel's memory.
    pub fn memory(&self) -> ChannelMemory {
        self.memory
    }

    /// Commands added, modulo 2^32.
    pub fn put(&self) -> u32 {
        self.put
    }

    /// The state block as the device last wrote it.
    pub fn state(&self) -> ChannelStateBlock {
        let at = self.memory.state_gpa();
        ChannelStateBlock {
            get: self.platform.read_u32(at + ChannelStateBlock::GET),
            status: self.platform.read_u32(at + ChannelStateBlock::STATUS),
            error: self.platform.read_u32(at + ChannelStateBlock::ERROR),
            error_at: self.platform.read_u32(at + ChannelStateBlock::ERROR_AT),
            error_info: self.platform.read_u64(at + ChannelStateBlock::ERROR_INFO),
        }
    }

    /// # Errors
    /// [`DriverError::Faulted`] once a command has ended the channel.
    pub fn check(&self) -> Result<(), DriverError> {
        let at = self.memory.state_gpa() + ChannelStateBlock::STATUS;
        if self.platform.read_u32(at) != ChannelStatus::Faulted as u32 {
            return Ok(());
        }
        let state = self.state();
        Err(DriverError::Faulted {
            code: state.error,
            at: state.error_at,
            info: state.error_info,
        })
    }

    /// Entries of the ring that are free.
    pub fn room(&mut self) -> u32 {
        let get = self
            .platform
            .read_u32(self.memory.state_gpa() + ChannelStateBlock::GET);
        // A count of more commands than were added is ignored.
        if self.put.wrapping_sub(get) <= self.put.wrapping_sub(self.get) {
            self.get = get;
        }
        self.memory.entries - self.put.wrapping_sub(self.get)
    }

    /// Adds a command without announcing it.
    ///
    /// # Errors
    /// [`DriverError::RingFull`] or [`DriverError::Faulted`].
    pub fn submit(&mut self, command: &Command) -> Result<(), DriverError> {
        self.submit_raw(&command.encode())
    }

    /// As [`Self::submit`], with bytes that need not be a command.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn submit_raw(&mut self, bytes: &[u8; COMMAND_BYTES]) -> Result<(), DriverError> {
        self.check()?;
        if self.room() == 0 {
            return Err(DriverError::RingFull);
        }
        self.platform
            .write_bytes(self.memory.entry_gpa(self.put), bytes);
        self.put = self.put.wrapping_add(1);
        Ok(())
    }

    /// Adds a kernel launch.
    ///
    /// # Errors
    /// As [`Self::submit`], and where the parameters are not what the kernel takes.
    pub fn launch(
        &mut self,
        kernel: Kernel,
        grid: Dim3,
        block: Dim3,
        shared_bytes: u32,
        params: &Params,
    ) -> Result<(), DriverError> {
        if params.len() != kernel.param_bytes as usize {
            return Err(DriverError::Parameters {
                got: params.len() as u32,
                expected: kernel.param_bytes,
            });
        }
        if self.room() == 0 {
            return Err(DriverError::RingFull);
        }
        let params_gpa = self.memory.params_gpa(self.put);
        self.platform.write_bytes(params_gpa, params.bytes());
        self.submit(&Command::Launch(Launch {
            module: kernel.module,
            function: kernel.function,
            grid,
            block,
            shared_bytes,
            param_bytes: kernel.param_bytes,
            params_gpa,
        }))
    }

    /// Adds the copies that move `bytes`.
    ///
    /// # Errors
    /// As [`Self::submit`]; a part may have been added then.
    pub fn copy(
        &mut self,
        direction: CopyDirection,
        source: u64,
        destination: u64,
        bytes: u64,
    ) -> Result<(), DriverError> {
        let mut done = 0;
        while done < bytes {
            let part = (bytes - done).min(TRANSFER_BYTES_MAX);
            self.submit(&Command::Copy {
                direction,
                source: source.wrapping_add(done),
                destination: destination.wrapping_add(done),
                bytes: part,
            })?;
            done += part;
        }
        Ok(())
    }

    /// Adds a fill of `bytes`, a multiple of 4, at most what one command may.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn fill(&mut self, va: u64, bytes: u64, pattern: u32) -> Result<(), DriverError> {
        self.submit(&Command::Fill { va, bytes, pattern })
    }

    /// Adds a fence and returns its value, for [`Self::wait_fence`].
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn fence(&mut self, interrupt: bool) -> Result<u64, DriverError> {
        let value = self.fence + 1;
        self.submit(&Command::Fence {
            gpa: self.memory.fence_gpa(),
            value,
            interrupt,
        })?;
        self.fence = value;
        Ok(value)
    }

    /// Announces what was added.
    pub fn ring(&self) {
        self.platform.ring_doorbell(self.number, self.put);
    }

    /// Value of the last fence that was reached.
    pub fn reached(&self) -> u64 {
        self.platform.read_u64(self.memory.fence_gpa())
    }

    /// GPU time in nanoseconds at which the fence last reached was.
    pub fn reached_at_ns(&self) -> u64 {
        self.platform.read_u64(self.memory.fence_gpa() + 8)
    }

    /// Sleeps until a fence is reached. That fence, or a later one, must have been added with an
    /// interrupt.
    ///
    /// # Errors
    /// [`DriverError::Timeout`], or [`DriverError::Faulted`] where the channel ended before.
    pub fn wait_fence(&self, value: u64, timeout_ns: u64) -> Result<(), DriverError> {
        self.wait_until(timeout_ns, WAIT_NS, |channel| channel.reached() >= value)
    }

    /// Sleeps until the ring has room for `entries`.
    ///
    /// # Errors
    /// As [`Self::wait_fence`].
    pub fn wait_room(&mut self, entries: u32, timeout_ns: u64) -> Result<(), DriverError> {
        let entries = entries.min(self.memory.entries);
        let put = self.put;
        self.wait_until(timeout_ns, WAIT_NS, |channel| {
            let get = channel
                .platform
                .read_u32(channel.memory.state_gpa() + ChannelStateBlock::GET);
            channel.memory.entries.wrapping_sub(put.wrapping_sub(get)) >= entries
        })?;
        self.room();
        Ok(())
    }

    /// Sleeps until `done`, which is checked after every interrupt and at least every `wait_ns`.
    ///
    /// # Errors
    /// As [`Self::wait_fence`].
    pub fn wait_until(
        &self,
        timeout_ns: u64,
        wait_ns: u64,
        done: impl Fn(&Self) -> bool,
    ) -> Result<(), DriverError> {
        let since = self.platform.now_ns();
        let mut polled_at = since;
        while !done(self) {
            self.check()?;
            let now = self.platform.now_ns();
            if now.saturating_sub(since) > timeout_ns {
                return Err(DriverError::Timeout);
            }
            // Reading a register is an exit, so the status is read only after a while without a
            // result.
            if now.saturating_sub(polled_at) >= WAIT_NS {
                polled_at = now;
                if self.platform.reg_read32(regs::DEVICE_STATUS) & regs::device_status::LOST != 0 {
                    return Err(DriverError::Lost);
                }
            }
            self.platform.wait(wait_ns);
        }
        Ok(())
    }

    /// Adds a fence and waits until all added commands have finished. Waits first for room if the
    /// ring is full.
    ///
    /// # Errors
    /// [`DriverError::Faulted`], and as [`Self::wait_fence`]; `timeout_ns` covers both waits
    /// together.
    pub fn finish(&mut self, timeout_ns: u64) -> Result<(), DriverError> {
        let since = self.platform.now_ns();
        if self.room() == 0 {
            // The commands that fill the ring may not be announced yet.
            self.ring();
            self.wait_room(1, timeout_ns)?;
        }
        let value = self.fence(true)?;
        self.ring();
        let waited = self.platform.now_ns().saturating_sub(since);
        self.wait_fence(value, timeout_ns.saturating_sub(waited))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::vec;
    use std::vec::Vec;

    const ENTRIES: u32 = 4;

    /// A device that executes one announced command each time its guest sleeps, or none at all.
    struct Slow {
        memory: RefCell<Vec<u8>>,
        announced: Cell<u32>,
        works: bool,
        now_ns: Cell<u64>,
    }

    impl Slow {
        fn new(works: bool) -> Self {
            let bytes = ChannelMemory::bytes(ENTRIES) as usize;
            Self {
                memory: RefCell::new(vec![0; bytes]),
                announced: Cell::new(0),
                works,
                now_ns: Cell::new(0),
            }
        }

        fn execute(&self, channel: ChannelMemory) {
            let get_at = channel.state_gpa() + ChannelStateBlock::GET;
            let get = self.read_u32(get_at);
            if get == self.announced.get() || !self.works {
                return;
            }
            let mut bytes = [0; COMMAND_BYTES];
            self.read_bytes(channel.entry_gpa(get), &mut bytes);
            if let Ok(Command::Fence { gpa, value, .. }) = Command::decode(&bytes) {
                self.write_bytes(gpa, &value.to_le_bytes());
            }
            self.write_u32(get_at, get.wrapping_add(1));
        }
    }

    impl Platform for Slow {
        fn config_read(&self, _: u8) -> u32 {
            0
        }
        fn config_write(&self, _: u8, _: u32) {}
        fn reg_read32(&self, _: u64) -> u32 {
            0
        }
        fn reg_read64(&self, _: u64) -> u64 {
            0
        }
        fn reg_write32(&self, _: u64, _: u32) {}
        fn reg_write64(&self, _: u64, _: u64) {}
        fn ring_doorbell(&self, _: u32, put: u32) {
            self.announced.set(put);
        }
        fn aperture_read(&self, _: u64) -> u64 {
            0
        }
        fn aperture_write(&self, _: u64, _: u64) {}
        fn read_u32(&self, gpa: u64) -> u32 {
            let mut bytes = [0; 4];
            self.read_bytes(gpa, &mut bytes);
            u32::from_le_bytes(bytes)
        }
        fn read_u64(&self, gpa: u64) -> u64 {
            let mut bytes = [0; 8];
            self.read_bytes(gpa, &mut bytes);
            u64::from_le_bytes(bytes)
        }
        fn write_u32(&self, gpa: u64, value: u32) {
            self.write_bytes(gpa, &value.to_le_bytes());
        }
        fn write_u64(&self, gpa: u64, value: u64) {
            self.write_bytes(gpa, &value.to_le_bytes());
        }
        fn read_bytes(&self, gpa: u64, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.memory.borrow()[gpa as usize..][..bytes.len()]);
        }
        fn write_bytes(&self, gpa: u64, bytes: &[u8]) {
            self.memory.borrow_mut()[gpa as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        fn msi(&self, _: u16) -> (u64, u32) {
            (0, 0)
        }
        fn wait(&self, at_most_ns: u64) {
            self.now_ns.set(self.now_ns.get() + at_most_ns);
            self.execute(ChannelMemory::new(0, ENTRIES));
        }
        fn now_ns(&self) -> u64 {
            self.now_ns.get()
        }
    }

    fn filled(device: &Slow) -> Channel<'_, Slow> {
        let mut channel = Channel::new(device, ChannelMemory::new(0, ENTRIES), 0);
        for _ in 0..ENTRIES {
            channel.submit(&Command::Nop).expect("there is room");
        }
        assert_eq!(channel.submit(&Command::Nop), Err(DriverError::RingFull));
        channel
    }

    #[test]
    fn a_full_ring_is_finished_too() {
        let device = Slow::new(true);
        let mut channel = filled(&device);
        channel.finish(10 * WAIT_NS).expect("it waits for room");
        assert_eq!(channel.state().get, ENTRIES + 1);
        assert_eq!(channel.reached(), 1);
    }

    #[test]
    fn a_full_ring_that_stands_still_is_a_timeout() {
        let device = Slow::new(false);
        let waited = filled(&device).finish(10 * WAIT_NS);
        assert_eq!(waited, Err(DriverError::Timeout));
        assert_eq!(device.now_ns(), 11 * WAIT_NS);
    }
}
