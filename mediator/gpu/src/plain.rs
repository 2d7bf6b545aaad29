//! A stand-in for a VM, for tests and the lab: memory, doorbells and interrupts in plain memory of
//! this process.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::event::{EventfdFlags, eventfd};
use turnstile_abi::{
    CHANNEL_STATE_BYTES, CHANNELS_MAX, COMMAND_BYTES, ChannelStateBlock, Command, Dim3,
    FENCE_BYTES, FenceRecord, Launch, pci,
};
use turnstile_accounting::{AccountId, Nanos, TenantId};
use turnstile_host::memory_file::memory_file;
use turnstile_vmm::gate::{PageWords, SharedPages};
use vm_memory::{FileOffset, GuestAddress};

use crate::{
    ChannelConfig, DoorbellChange, Doorbells, Gpu, GuestMemory, Interrupts, Refusal,
    TenantResources,
};

/// Doorbell pages with gates that are always open.
#[derive(Debug)]
pub struct PlainDoorbells(SharedPages);

impl PlainDoorbells {
    /// Makes `channels` pages, all zero.
    ///
    /// # Panics
    /// When the host has no memory.
    pub fn new(channels: u32) -> Self {
        // PANIC: this is for tests, which cannot go on without.
        Self(SharedPages::new(channels).expect("doorbell pages of a plain VM"))
    }

    /// Pages that the GPU gave.
    ///
    /// # Panics
    /// When they are in no file, or cannot be mapped.
    pub fn of(pages: &dyn Doorbells, channels: u32) -> Self {
        // PANIC: this is for tests, which cannot go on without.
        let file = pages.file().and_then(|file| file.try_clone().ok());
        let file = file.expect("doorbell pages in a file");
        let pages = SharedPages::from_file_at(file, pages.offset(), channels);
        Self(pages.expect("doorbell pages of the GPU"))
    }

    /// Writes a doorbell.
    pub fn write(&self, channel: u32, put: u32) {
        self.0.store(channel, put);
    }
}

impl Doorbells for PlainDoorbells {
    fn put(&self, channel: u32) -> u32 {
        self.0.load(channel)
    }

    fn clear(&self, channel: u32) {
        self.write(channel, 0);
    }

    fn file(&self) -> Option<&File> {
        Some(self.0.file())
    }
}

/// Vectors that count.
#[derive(Debug, Default)]
pub struct PlainInterrupts {
    counts: [AtomicU64; pci::VECTORS as usize],
    /// Eventfds through which another process raises the vectors; made on first request.
    events: OnceLock<Vec<File>>,
}

impl PlainInterrupts {
    /// How often the vector was raised.
    pub fn count(&self, vector: u16) -> u64 {
        let index = usize::from(vector);
        let Some(count) = self.counts.get(index) else {
            return 0;
        };
        let event = self.events.get().and_then(|events| events.get(index));
        // Not blocking: an error means that nothing is new.
        let mut word = [0; 8];
        let read = event.and_then(|mut event| event.read(&mut word).ok());
        let new = read.map_or(0, |_| u64::from_ne_bytes(word));
        count.fetch_add(new, Ordering::AcqRel) + new
    }
}

impl Interrupts for PlainInterrupts {
    fn raise(&self, vector: u16) {
        if let Some(count) = self.counts.get(usize::from(vector)) {
            count.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        if self.events.get().is_none() {
            let make =
                |_| eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map(File::from);
            let made: Result<Vec<_>, _> = self.counts.iter().map(make).collect();
            // If another thread was faster, its are as good.
            let _ = self.events.set(made?);
        }
        let events = self.events.get().into_iter().flatten();
        events
            .map(|event| event.try_clone().map(OwnedFd::from))
            .collect()
    }
}

/// A VM's side of the device contract.
#[derive(Debug)]
pub struct PlainVm {
    /// Its memory, from address 0 on.
    pub guest: Arc<GuestMemory>,
    /// Its doorbells.
    pub doorbells: Arc<PlainDoorbells>,
    /// Its interrupts.
    pub interrupts: Arc<PlainInterrupts>,
    next_gpa: AtomicU64,
}

impl PlainVm {
    /// A VM with `bytes` bytes of memory.
    ///
    /// # Panics
    /// When the host has no memory.
    pub fn new(bytes: usize) -> Self {
        // In a file, so that another process can have it too.
        let file = memory_file("turnstile-plain", bytes as u64);
        // PANIC: this is for tests, which cannot go on without.
        let file = FileOffset::new(file.expect("a memory file"), 0);
        let guest = GuestMemory::from_ranges_with_files([(GuestAddress(0), bytes, Some(file))]);
        Self {
            // PANIC: as above.
            guest: Arc::new(guest.expect("memory of a plain VM")),
            doorbells: Arc::new(PlainDoorbells::new(CHANNELS_MAX)),
            interrupts: Arc::default(),
            next_gpa: AtomicU64::new(0x1000),
        }
    }

    /// Makes a context on a GPU for a VM with `bytes` bytes of memory, with an account of its own.
    /// The VM rings the GPU's own doorbells if the GPU has some.
    ///
    /// # Errors
    /// The GPU's refusal.
    pub fn enter(
        gpu: &dyn Gpu,
        tenant: TenantId,
        bytes: usize,
        memory_bytes: u64,
        channels: u32,
    ) -> Result<Arc<Self>, Refusal> {
        let mut vm = Self::new(bytes);
        let mut resources = vm.resources(AccountId(tenant.0), memory_bytes, channels);
        if let Some(own) = gpu.doorbells(tenant, channels)? {
            vm.doorbells = Arc::new(PlainDoorbells::of(&*own, channels));
            resources.doorbells = own;
        }
        gpu.create_context(tenant, resources)?;
        Ok(Arc::new(vm))
    }

    /// The description of the VM that the GPU gets.
    pub fn resources(
        &self,
        account: AccountId,
        memory_bytes: u64,
        channels: u32,
    ) -> TenantResources {
        TenantResources {
            account,
            guest: self.guest.clone(),
            doorbells: self.doorbells.clone(),
            interrupts: self.interrupts.clone(),
            memory_bytes,
            channels,
        }
    }

    /// Memory that nothing else uses; a multiple of 64. It is never given back.
    pub fn take(&self, bytes: u64) -> u64 {
        let bytes = bytes.next_multiple_of(64);
        self.next_gpa.fetch_add(bytes, Ordering::Relaxed)
    }

    /// Copies bytes into memory of its own and returns where that is.
    ///
    /// # Panics
    /// When the VM's memory is used up.
    pub fn put(&self, bytes: &[u8]) -> u64 {
        let gpa = self.take(bytes.len() as u64);
        // PANIC: as above.
        self.guest
            .write_slice(bytes, GuestAddress(gpa))
            .expect("room in a plain VM");
        gpa
    }

    /// The fence record at `gpa`; zeros outside of memory.
    pub fn fence(&self, gpa: u64) -> FenceRecord {
        let word = |gpa| self.guest.load(GuestAddress(gpa), Ordering::Acquire);
        FenceRecord {
            value: word(gpa).unwrap_or(0),
            at_ns: word(gpa + 8).unwrap_or(0),
        }
    }

    /// Opens a channel.
    ///
    /// # Errors
    /// The GPU's refusal.
    pub fn open_channel(
        self: &Arc<Self>,
        gpu: &dyn Gpu,
        tenant: TenantId,
        entries: u32,
        vector: u16,
    ) -> Result<PlainChannel, Refusal> {
        self.open_channel_with(tenant, entries, vector, |config| {
            gpu.open_channel(tenant, config)
        })
    }

    /// Opens a channel by `open`.
    ///
    /// # Errors
    /// What `open` refuses.
    pub fn open_channel_with(
        self: &Arc<Self>,
        tenant: TenantId,
        entries: u32,
        vector: u16,
        open: impl FnOnce(ChannelConfig) -> Result<u32, Refusal>,
    ) -> Result<PlainChannel, Refusal> {
        let ring_gpa = self.take(u64::from(entries) * COMMAND_BYTES as u64);
        let state_gpa = self.take(CHANNEL_STATE_BYTES);
        let fence_gpa = self.take(FENCE_BYTES);
        let config = ChannelConfig {
            ring_gpa,
            entries,
            state_gpa,
            vector,
        };
        let number = open(config)?;
        Ok(PlainChannel {
            vm: self.clone(),
            tenant,
            number,
            config,
            fence_gpa,
            put: 0,
            fences: 0,
        })
    }
}

/// A channel as a driver has it.
#[derive(Debug)]
pub struct PlainChannel {
    /// The VM.
    pub vm: Arc<PlainVm>,
    /// The tenant.
    pub tenant: TenantId,
    /// Number and doorbell page.
    pub number: u32,
    /// Where its ring and state are.
    pub config: ChannelConfig,
    /// Where [`Self::push_fence`] has its values written.
    pub fence_gpa: u64,
    /// Commands written so far.
    pub put: u32,
    fences: u64,
}

impl PlainChannel {
    /// Writes a command into the ring, without checking for room.
    pub fn push(&mut self, command: &Command) {
        self.push_bytes(&command.encode());
    }

    /// Writes any 64 bytes into the ring.
    pub fn push_bytes(&mut self, bytes: &[u8; COMMAND_BYTES]) {
        let index = u64::from(self.put % self.config.entries);
        let at = GuestAddress(self.config.ring_gpa + index * COMMAND_BYTES as u64);
        // The ring was checked by the GPU when the channel was opened.
        let _ = self.vm.guest.write_slice(bytes, at);
        self.put = self.put.wrapping_add(1);
    }

    /// Writes a fence and returns its value: 1, 2, and so on.
    pub fn push_fence(&mut self, interrupt: bool) -> u64 {
        self.fences += 1;
        self.push(&Command::Fence {
            gpa: self.fence_gpa,
            value: self.fences,
            interrupt,
        });
        self.fences
    }

    /// Announces what was written.
    pub fn ring(&self) {
        self.vm.doorbells.write(self.number, self.put);
    }

    /// Writes the doorbell and notifies the GPU, as a watched gate does.
    pub fn ring_watched(&self, gpu: &dyn Gpu) {
        self.ring();
        gpu.doorbells_changed(self.tenant, DoorbellChange::Written);
    }

    /// The last fence.
    pub fn fence(&self) -> FenceRecord {
        self.vm.fence(self.fence_gpa)
    }

    /// What the device reports.
    pub fn state(&self) -> ChannelStateBlock {
        let at = |offset| GuestAddress(self.config.state_gpa + offset);
        let guest = &self.vm.guest;
        let word = |offset| guest.load(at(offset), Ordering::Acquire).unwrap_or(0);
        let status = word(ChannelStateBlock::STATUS);
        let info = guest.load(at(ChannelStateBlock::ERROR_INFO), Ordering::Acquire);
        ChannelStateBlock {
            get: word(ChannelStateBlock::GET),
            status,
            error: word(ChannelStateBlock::ERROR),
            error_at: word(ChannelStateBlock::ERROR_AT),
            error_info: info.unwrap_or(0),
        }
    }
}

/// A kernel of given length, for a GPU that takes a length in place of a program.
pub fn given_length(vm: &PlainVm, length: Nanos) -> Command {
    let params_gpa = vm.put(&length.0.to_le_bytes());
    Command::Launch(Launch {
        module: 0,
        function: 0,
        grid: Dim3::line(1),
        block: Dim3::line(1),
        shared_bytes: 0,
        param_bytes: 8,
        params_gpa,
    })
}
