//! One run of a script: a software GPU, its guests, and the daemon's keeper on the small card.
//!
//! In go acts of guests; out come hashes of what the guests read, or the law that was broken.
//! [`super::play`] calls it.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use turnstile_abi::{CHUNK_BYTES, ChannelStatus, Command, CopyDirection, Dim3, Launch};
use turnstile_accounting::{
    AccountId, EngineId, EventMeter, Meter, Metric, Nanos, Observation, TenantId, Window,
};
use turnstile_daemon::memory::{Entitlement, MemoryConfig, MemoryKeeper};
use turnstile_gpu::plain::{PlainChannel, PlainVm};
use turnstile_gpu::prelude::*;
use turnstile_gpu::{ChannelActivity, EngineReading, Order, Suspend};
use turnstile_policies::Weight;
use turnstile_soft::{ENGINES, Kernels, SoftConfig, VirtualGpu};
use vm_memory::GuestAddress;

use super::script::Act;
use super::{GUESTS, broken};
use crate::daemon_loop::laws::BrokenLaw;

/// Chunks that a guest may own.
const OWN_CHUNKS: u64 = 4;
/// Chunks of the small card: the whole set of one guest just fits.
const CARD_CHUNKS: u64 = OWN_CHUNKS;
/// Time between two polls of the daemon.
const TICK: Nanos = Nanos::from_us(250);
/// Bytes that are read or written at once.
const PIECE: u64 = 4096;
/// Longest time for a step to end in any run.
const PATIENCE: Nanos = Nanos::from_ms(20_000);

pub(super) struct Guest {
    pub(super) id: TenantId,
    vm: Arc<PlainVm>,
    channel: PlainChannel,
    kernel: (u32, u32),
    staging: u64,
    /// Address and bytes.
    owned: Vec<(u64, u64)>,
    closed: bool,
    fences: u64,
    seen: u64,
}

pub(super) struct World {
    pub(super) gpu: VirtualGpu,
    pub(super) keeper: Option<MemoryKeeper>,
    pub(super) guests: Vec<Guest>,
    meter: EventMeter,
    pub(super) log: DefaultHasher,
    pub(super) read: Vec<u64>,
}

impl World {
    pub(super) fn new(seed: u64, small: bool) -> Result<Self, BrokenLaw> {
        let all = OWN_CHUNKS * GUESTS as u64 * CHUNK_BYTES;
        let (memory_bytes, host_pool_bytes) = if small {
            (CARD_CHUNKS * CHUNK_BYTES, all)
        } else {
            (all, 0)
        };
        let config = SoftConfig {
            suspend: [Suspend::BetweenCommands, Suspend::MidKernel][seed as usize % 2],
            switch: Nanos::from_us(2),
            kernels: Kernels::Interpreted,
            memory_bytes,
            host_pool_bytes,
            seed,
            ..SoftConfig::default()
        };
        let gpu = VirtualGpu::new(config);
        let card = MemoryConfig {
            window_bytes: 4 * CHUNK_BYTES,
            turn_min: Nanos::from_ms(1),
            ..MemoryConfig::new(memory_bytes, host_pool_bytes)
        };
        let mut world = Self {
            gpu,
            keeper: small.then(|| MemoryKeeper::new(card)),
            guests: Vec::new(),
            meter: EventMeter::new((0..ENGINES as u8).map(EngineId)),
            log: DefaultHasher::new(),
            read: Vec::new(),
        };
        let text = turnstile_images::KERNELS
            .iter()
            .find(|(name, _)| *name == "vecadd");
        let (_, text) = text.ok_or_else(|| broken("no kernel"))?;
        for place in 0..GUESTS {
            let id = TenantId(place as u32 + 1);
            let vm = Arc::new(PlainVm::new(4 << 20));
            let limit = OWN_CHUNKS * CHUNK_BYTES;
            let gpu = &world.gpu;
            gpu.create_context(id, vm.resources(AccountId(id.0), limit, 1))
                .map_err(broken)?;
            if let Some(keeper) = &mut world.keeper {
                let weight = Weight::new(100 * (place as u32 + 1)).map_err(broken)?;
                keeper
                    .add(id, Entitlement::by_weight(weight, limit))
                    .map_err(broken)?;
            }
            let (module, _) = gpu.load_module(id, text, None).map_err(broken)?;
            let found = gpu.find_function(id, module, "vecadd").map_err(broken)?;
            let channel = vm.open_channel(gpu, id, 64, 1).map_err(broken)?;
            world.guests.push(Guest {
                id,
                staging: vm.take(CHUNK_BYTES),
                vm,
                channel,
                kernel: (module, found.0),
                owned: Vec::new(),
                closed: false,
                fences: 0,
                seen: 0,
            });
        }
        Ok(world)
    }

    /// Advances by a tick, after which the daemon polls.
    fn tick(&mut self) -> Result<(), BrokenLaw> {
        let from = self.gpu.now();
        self.gpu.advance_to(from + TICK);
        let now = self.gpu.now();
        for event in EngineReading::of(&self.gpu).switches {
            // All fields of the record.
            format!("{event:?}").hash(&mut self.log);
            self.meter.observe(Observation::Switch(event));
        }
        let usage = self.meter.close(Window::starting(from, TICK));
        if let Some(keeper) = &mut self.keeper {
            let mut channels: Vec<ChannelActivity> = Vec::new();
            for guest in &self.guests {
                channels.clear();
                self.gpu.activity(guest.id, &mut channels);
                let wants = channels.iter().any(|channel| channel.pending > 0);
                let manager = keeper.manager_mut();
                let used = usage.engine(EngineId(0)).map_or(Nanos::ZERO, |engine| {
                    let own = engine.tenants.iter().filter(|t| t.tenant == guest.id);
                    own.map(|part| part.metric_ns(Metric::Total)).sum()
                });
                manager.used(guest.id, used);
                // As for a daemon: a tenant with a closed gate does not want the engine.
                manager.wants(now, guest.id, wants && !guest.closed);
            }
            let guests = &self.guests;
            let open = |id: TenantId| !guests.iter().any(|guest| guest.id == id && guest.closed);
            keeper.step(&self.gpu, now, open);
        }
        self.check()
    }

    fn check(&mut self) -> Result<(), BrokenLaw> {
        for guest in &mut self.guests {
            let state = guest.channel.state();
            if state.status != ChannelStatus::Running as u32 {
                return Err(broken(format!("{} has faulted: {state:?}", guest.id)));
            }
            let fence = guest.channel.fence().value;
            if fence < guest.seen || fence > guest.fences {
                return Err(broken(format!("{}: fence {fence}", guest.id)));
            }
            guest.seen = fence;
        }
        let Some(keeper) = &self.keeper else {
            return Ok(());
        };
        let mut on_card = 0;
        for guest in &self.guests {
            let bytes = keeper.manager().totals(guest.id).bytes;
            let owned: u64 = guest.owned.iter().map(|(_, bytes)| bytes).sum();
            if bytes.all() != owned {
                let id = guest.id;
                return Err(broken(format!("{id} owns {owned} bytes of {bytes:?}")));
            }
            let runs = self.gpu.engine_status(EngineId(0)).running == Some(guest.id);
            if runs && bytes.on_card() != bytes.resident {
                return Err(broken(format!("{} runs while its memory moves", guest.id)));
            }
            // Bytes in transit have left the card already, or have not arrived yet.
            on_card += bytes.resident;
        }
        if on_card > CARD_CHUNKS * CHUNK_BYTES {
            return Err(broken(format!("{on_card} bytes on the card")));
        }
        Ok(())
    }

    fn gate(&mut self, guest_index: usize, closed: bool) {
        let guest = &mut self.guests[guest_index];
        guest.closed = closed;
        let id = guest.id;
        let there = |keeper: &MemoryKeeper| keeper.manager().may_run(id);
        if closed {
            self.gpu.carry_out(&[Order::Suspend(id)]);
        } else if self.keeper.as_ref().is_none_or(there) {
            self.gpu.carry_out(&[Order::Resume(id)]);
        }
    }

    /// Announces a command followed by a fence.
    fn push(&mut self, guest_index: usize, command: &Command) -> Result<(), BrokenLaw> {
        if self.guests[guest_index].fences - self.guests[guest_index].seen >= 30 {
            self.drain(guest_index)?;
        }
        let guest = &mut self.guests[guest_index];
        guest.channel.push(command);
        guest.fences = guest.channel.push_fence(false);
        guest.channel.ring_watched(&self.gpu);
        Ok(())
    }

    /// Waits until a guest's commands have ended.
    fn drain(&mut self, guest_index: usize) -> Result<(), BrokenLaw> {
        if self.guests[guest_index].closed {
            self.gate(guest_index, false);
        }
        let until = self.gpu.now() + PATIENCE;
        while self.guests[guest_index].seen < self.guests[guest_index].fences {
            self.tick()?;
            if self.gpu.now() > until {
                let id = self.guests[guest_index].id;
                return Err(broken(format!("{id} waits for ever")));
            }
        }
        Ok(())
    }

    /// Reads GPU memory through guest memory, and stores a hash of the content.
    fn read(
        &mut self,
        guest_index: usize,
        va: u64,
        bytes: u64,
        zero: bool,
    ) -> Result<(), BrokenLaw> {
        let to = self.guests[guest_index].staging;
        let copy = Command::Copy {
            direction: CopyDirection::GpuToGuest,
            source: va,
            destination: to,
            bytes,
        };
        self.push(guest_index, &copy)?;
        self.drain(guest_index)?;
        let mut found = vec![0; bytes as usize];
        let guest = &self.guests[guest_index];
        guest
            .vm
            .guest
            .read_slice(&mut found, GuestAddress(to))
            .map_err(broken)?;
        if zero && found.iter().any(|byte| *byte != 0) {
            let id = guest.id;
            return Err(broken(format!("{id} finds something in new memory")));
        }
        let mut hash = DefaultHasher::new();
        found.hash(&mut hash);
        self.read.push(hash.finish());
        Ok(())
    }

    /// An address in an allocation, with at least `bytes` bytes after it.
    fn place(&self, guest_index: usize, nth: usize, offset: u64, bytes: u64) -> Option<u64> {
        let owned = &self.guests[guest_index].owned;
        let (va, whole) = owned.get(nth.checked_rem(owned.len())?)?;
        Some(va + offset % (whole - bytes + 1) / 4 * 4)
    }

    pub(super) fn perform(&mut self, guest_index: usize, act: Act) -> Result<(), BrokenLaw> {
        match act {
            Act::Allocate(chunks) => {
                let own: u64 = self.guests[guest_index]
                    .owned
                    .iter()
                    .map(|(_, bytes)| bytes)
                    .sum();
                if own + chunks * CHUNK_BYTES > OWN_CHUNKS * CHUNK_BYTES {
                    return Ok(());
                }
                let given = self
                    .gpu
                    .allocate(self.guests[guest_index].id, chunks * CHUNK_BYTES);
                let Ok(given) = given else {
                    // Its address space is fragmented; it is equally so in the other run.
                    self.read.push(u64::MAX);
                    return Ok(());
                };
                self.guests[guest_index].owned.push((given.va, given.bytes));
                // The keeper learns of the allocation with its next step.
                self.tick()?;
                for chunk in 0..chunks {
                    let va = given.va + chunk * CHUNK_BYTES;
                    self.read(guest_index, va + CHUNK_BYTES / 2, PIECE, true)?;
                }
            }
            Act::Free(nth) => {
                self.drain(guest_index)?;
                let guest = &mut self.guests[guest_index];
                if !guest.owned.is_empty() {
                    let (va, _) = guest.owned.swap_remove(nth % guest.owned.len());
                    self.gpu.free(guest.id, va).map_err(broken)?;
                    self.tick()?;
                }
            }
            Act::Fill(nth, offset, pattern) => {
                let bytes = CHUNK_BYTES / 2 + 4 * PIECE;
                if let Some(va) = self.place(guest_index, nth, offset, bytes) {
                    self.push(guest_index, &Command::Fill { va, bytes, pattern })?;
                }
            }
            Act::Upload(nth, offset, seed) => {
                let bytes = 2 * PIECE;
                if let Some(va) = self.place(guest_index, nth, offset, bytes) {
                    let mut data = vec![0u8; bytes as usize];
                    SmallRng::seed_from_u64(seed).fill(&mut data[..]);
                    self.drain(guest_index)?;
                    let staging = self.guests[guest_index].staging;
                    let guest = &self.guests[guest_index].vm.guest;
                    guest
                        .write_slice(&data, GuestAddress(staging))
                        .map_err(broken)?;
                    let copy = Command::Copy {
                        direction: CopyDirection::GuestToGpu,
                        source: staging,
                        destination: va,
                        bytes,
                    };
                    self.push(guest_index, &copy)?;
                }
            }
            Act::Copy([from, to], [a, b], bytes) => {
                let source = self.place(guest_index, from, a, bytes);
                let destination = self.place(guest_index, to, b, bytes);
                if let Some((source, destination)) = source.zip(destination)
                    && source.abs_diff(destination) >= bytes
                {
                    let direction = CopyDirection::GpuToGpu;
                    let copy = Command::Copy {
                        direction,
                        source,
                        destination,
                        bytes,
                    };
                    self.push(guest_index, &copy)?;
                }
            }
            Act::Kernel(of, at) => {
                let n = 512u32;
                let place = |i: usize| self.place(guest_index, of[i], at[i], u64::from(4 * n));
                let (Some(a), Some(b), Some(c)) = (place(0), place(1), place(2)) else {
                    return Ok(());
                };
                let guest = &self.guests[guest_index];
                let mut params: Vec<u8> =
                    [a, b, c].iter().flat_map(|va| va.to_le_bytes()).collect();
                params.extend(n.to_le_bytes());
                let (module, function) = guest.kernel;
                let launch = Command::Launch(Launch {
                    module,
                    function,
                    grid: Dim3::line(4),
                    block: Dim3::line(128),
                    shared_bytes: 0,
                    param_bytes: params.len() as u32,
                    params_gpa: guest.vm.put(&params),
                });
                self.push(guest_index, &launch)?;
            }
            Act::Read(nth, offset) => {
                if let Some(va) = self.place(guest_index, nth, offset, PIECE) {
                    self.read(guest_index, va, PIECE, false)?;
                }
            }
            Act::Gate(closed) => self.gate(guest_index, closed),
            Act::Pass(ticks) => {
                for _ in 0..ticks {
                    self.tick()?;
                }
            }
        }
        Ok(())
    }

    /// Reads all memory of all guests.
    pub(super) fn finish(&mut self) -> Result<(), BrokenLaw> {
        for guest_index in 0..GUESTS {
            self.drain(guest_index)?;
            for (va, bytes) in self.guests[guest_index].owned.clone() {
                for at in (0..bytes).step_by(CHUNK_BYTES as usize) {
                    self.read(guest_index, va + at, CHUNK_BYTES, false)?;
                }
            }
        }
        Ok(())
    }
}
