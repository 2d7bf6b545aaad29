//! A channel's side in guest memory: ring, state block, fences. The same for every GPU.
//!
//! Guest input is copied once and checked; invalid input ends the channel with a [`ChannelFault`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use turnstile_abi::{
    CHANNEL_STATE_BYTES, COMMAND_BYTES, ChannelStateBlock, ChannelStatus, Command, CopyDirection,
    Dim3, ErrorCode, FENCE_BYTES, Launch, RING_ENTRIES_MAX,
};
use turnstile_accounting::Moment;
use turnstile_host::room::zeroed;
use vm_memory::GuestAddress;

use super::{ChannelConfig, GuestMemory, Interrupts};

/// Most blocks along x, y, z. SOURCE: CUDA C programming guide, compute capability 9.0.
const GRID_MAX: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
/// Most threads of a block along z. SOURCE: as above.
const BLOCK_Z_MAX: u32 = 64;

/// An error that ends a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelFault {
    /// Code for the guest.
    pub code: ErrorCode,
    /// Details of it: an address, a number.
    pub info: u64,
}

impl ChannelFault {
    fn not_guest(gpa: u64) -> Self {
        Self {
            code: ErrorCode::NotGuestMemory,
            info: gpa,
        }
    }
}

/// Three extents as an array, x first.
pub fn extents(dim: Dim3) -> [u32; 3] {
    [dim.x, dim.y, dim.z]
}

/// Whether grid and block are within the limits of the hardware, beyond what the decoder has
/// checked.
pub fn launch_fits(launch: &Launch) -> bool {
    let grid = extents(launch.grid);
    grid.iter().zip(GRID_MAX).all(|(n, max)| *n <= max) && launch.block.z <= BLOCK_Z_MAX
}

/// Whether a range is wholly in the VM's memory.
pub(crate) fn in_guest(guest: &GuestMemory, gpa: u64, bytes: u64) -> bool {
    usize::try_from(bytes).is_ok_and(|bytes| guest.check_range(GuestAddress(gpa), bytes))
}

/// Whether the word at `gpa` is at least `value`. True for an unreadable word, so that no channel
/// waits for it.
pub fn word_reached(guest: &GuestMemory, gpa: u64, value: u64) -> bool {
    guest
        .load::<u64>(GuestAddress(gpa), Ordering::Acquire)
        .map_or(true, |word| u64::from_le(word) >= value)
}

/// Checks the guest's configuration of a channel to be opened.
pub fn check_channel(guest: &GuestMemory, config: &ChannelConfig) -> Result<(), ErrorCode> {
    if !config.entries.is_power_of_two() || config.entries > RING_ENTRIES_MAX {
        return Err(ErrorCode::BadRingSize);
    }
    if !config.state_gpa.is_multiple_of(8) || !config.ring_gpa.is_multiple_of(COMMAND_BYTES as u64)
    {
        return Err(ErrorCode::BadAlignment);
    }
    let ring_bytes = u64::from(config.entries) * COMMAND_BYTES as u64;
    if !in_guest(guest, config.ring_gpa, ring_bytes)
        || !in_guest(guest, config.state_gpa, CHANNEL_STATE_BYTES)
    {
        return Err(ErrorCode::NotGuestMemory);
    }
    Ok(())
}

/// Ring and state block of one channel.
#[derive(Debug)]
pub struct Ring {
    guest: Arc<GuestMemory>,
    interrupts: Arc<dyn Interrupts>,
    config: ChannelConfig,
    put: u32,
    get: u32,
}

impl Ring {
    /// Begins to use a ring that [`check_channel`] has passed, and reports that in the state block.
    pub fn open(
        guest: Arc<GuestMemory>,
        interrupts: Arc<dyn Interrupts>,
        config: ChannelConfig,
    ) -> Self {
        let ring = Self::of(guest, interrupts, config, 0);
        for at in (0..CHANNEL_STATE_BYTES).step_by(8) {
            ring.report_u64(at, 0);
        }
        ring.report(ChannelStateBlock::STATUS, ChannelStatus::Running as u32);
        ring
    }

    /// A ring that is in use already, of which `get` commands have finished.
    pub fn of(
        guest: Arc<GuestMemory>,
        interrupts: Arc<dyn Interrupts>,
        config: ChannelConfig,
        get: u32,
    ) -> Self {
        Self {
            guest,
            interrupts,
            config,
            put: get,
            get,
        }
    }

    /// Writes a word of the state block. The block was checked when the channel was opened, and a
    /// VM's memory does not shrink. If it does, the VM alone misses the report.
    fn report(&self, offset: u64, value: u32) {
        let at = GuestAddress(self.config.state_gpa + offset);
        let _ = self.guest.store(value.to_le(), at, Ordering::Release);
    }

    fn report_u64(&self, offset: u64, value: u64) {
        let at = GuestAddress(self.config.state_gpa + offset);
        let _ = self.guest.store(value.to_le(), at, Ordering::Release);
    }

    /// The last put index that was announced.
    pub fn put(&self) -> u32 {
        self.put
    }

    /// Number of finished commands.
    pub fn get(&self) -> u32 {
        self.get
    }

    /// Number of commands that are announced and not finished.
    pub fn pending(&self) -> u32 {
        self.put.wrapping_sub(self.get)
    }

    /// Takes a put index. True if there are new commands to fetch.
    pub fn announce(&mut self, put: u32) -> Result<bool, ChannelFault> {
        let more = put.wrapping_sub(self.put);
        if more == 0 {
            return Ok(false);
        }
        if more > self.config.entries - self.pending() {
            return Err(ChannelFault {
                code: ErrorCode::PutOutOfRange,
                info: put.into(),
            });
        }
        self.put = put;
        Ok(true)
    }

    /// Counts the command at `get` as finished, and reports that to the guest.
    pub fn complete(&mut self) {
        self.count();
        self.report_get();
    }

    /// Counts the command at `get` as finished; [`Self::report_get`] has to follow.
    pub fn count(&mut self) {
        self.get = self.get.wrapping_add(1);
    }

    /// Reports to the guest what has finished.
    pub fn report_get(&self) {
        self.report(ChannelStateBlock::GET, self.get);
    }

    /// Ends the channel with an error of the command at `get`.
    pub fn fault(&self, fault: ChannelFault) {
        self.fault_at(fault, self.get);
    }

    /// Ends the channel with an error of the command at `index`.
    pub(crate) fn fault_at(&self, fault: ChannelFault, index: u32) {
        self.report(ChannelStateBlock::ERROR, fault.code as u32);
        self.report(ChannelStateBlock::ERROR_AT, index);
        self.report_u64(ChannelStateBlock::ERROR_INFO, fault.info);
        self.report(ChannelStateBlock::STATUS, ChannelStatus::Faulted as u32);
        self.interrupt();
    }

    /// Reports that the device does not access the channel's memory any more.
    pub fn report_closed(&self) {
        self.report(ChannelStateBlock::STATUS, ChannelStatus::Closed as u32);
    }

    /// Raises the channel's vector.
    pub fn interrupt(&self) {
        self.interrupts.raise(self.config.vector);
    }

    /// Copies the command of this index out of the ring, once. Checks the copy, including the
    /// guest's ranges in it.
    pub fn command(&self, index: u32) -> Result<Command, ChannelFault> {
        let entry = u64::from(index % self.config.entries);
        let at = GuestAddress(self.config.ring_gpa + entry * COMMAND_BYTES as u64);
        let mut bytes = [0; COMMAND_BYTES];
        let read = self.guest.read_slice(&mut bytes, at);
        read.map_err(|_| ChannelFault::not_guest(at.0))?;
        let command = Command::decode(&bytes).map_err(|code| ChannelFault { code, info: 0 })?;
        let (gpa, bytes) = match command {
            Command::Fence { gpa, .. } => (gpa, FENCE_BYTES),
            Command::Wait { gpa, .. } => (gpa, 8),
            Command::Copy {
                direction: CopyDirection::GuestToGpu,
                source,
                bytes,
                ..
            } => (source, bytes),
            Command::Copy {
                direction: CopyDirection::GpuToGuest,
                destination,
                bytes,
                ..
            } => (destination, bytes),
            _ => return Ok(command),
        };
        if in_guest(&self.guest, gpa, bytes) {
            Ok(command)
        } else {
            Err(ChannelFault::not_guest(gpa))
        }
    }

    /// Copies a launch's parameters out of guest memory, once.
    pub fn params(&self, launch: &Launch) -> Result<Box<[u8]>, ChannelFault> {
        // CAST: the decoder bounds it to PARAM_BYTES_MAX.
        let params = zeroed(launch.param_bytes as usize);
        let mut params = params.ok_or(ChannelFault {
            code: ErrorCode::HostLimit,
            info: 0,
        })?;
        let read = self
            .guest
            .read_slice(&mut params, GuestAddress(launch.params_gpa));
        read.map_err(|_| ChannelFault::not_guest(launch.params_gpa))?;
        Ok(params.into())
    }

    /// Writes a fence record: first the time, then, with release order, the value.
    pub fn write_fence(&self, gpa: u64, value: u64, now: Moment) -> Result<(), ChannelFault> {
        let lost = |_| ChannelFault::not_guest(gpa);
        let time = GuestAddress(gpa.saturating_add(8));
        self.guest
            .store(now.0.to_le(), time, Ordering::Relaxed)
            .map_err(lost)?;
        self.guest
            .store(value.to_le(), GuestAddress(gpa), Ordering::Release)
            .map_err(lost)
    }
}
