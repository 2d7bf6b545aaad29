//! The software GPU with a PCI interface: implements the physical contract
//! ([`turnstile_abi::physical`]) over a GPU that runs in real time. Serves as simulated hardware
//! for the mediator's VFIO backend.
//!
//! ```text
//! config space, BAR 0 -> registers -> commands (a thread) -> software GPU -> status page, host area
//! BAR 1 (doorbells) --------------------------------------------^   |
//! IOMMU mappings -> windows of a context = its guest memory --------+-> MSI-X
//!                                                                   +-> demand area, notices
//! ```
//!
//! The owner of a [`PciGpu`] acts as the bus: an in-process fake, or a vfio-user server. A context
//! reaches only the memory that its windows name. When the IOMMU removes a mapping that a context
//! uses, the context ends.

mod admin;
mod demand;
mod dma;
mod serve;
mod shown;

use std::fs::File;
use std::io::{self, Write};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use turnstile_abi::physical::{
    self, ENGINES_MAX, VECTORS, area, demand as demand_area, regs, status,
};
use turnstile_abi::{PAGE_BYTES, regs::mailbox_status};
use turnstile_accounting::{EngineId, TenantId};
use turnstile_vmm::device::ConfigSpace;
use turnstile_vmm::gate::{PageWords, SharedPages};

use self::admin::{Contexts, Order, Verdict};
use self::dma::Dma;
pub use self::dma::DmaError;
pub use self::serve::{serve, serve_client};
use self::shown::Shown;
use super::config::SoftConfig;
use super::tenancy::realtime::SoftGpu;
use crate::rank;
use turnstile_gpu::prelude::*;
use turnstile_gpu::{Interrupts, Suspend};
use turnstile_host::ranked::Ranked;

/// Which part of the device an access goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// Configuration space.
    Config,
    /// BAR 0.
    Regs,
    /// BAR 1.
    Doorbells,
}

/// Eventfds of the bus, by vector number.
#[derive(Debug)]
struct Vectors(Mutex<Vec<Option<File>>>);

impl Vectors {
    fn lock(&self) -> MutexGuard<'_, Vec<Option<File>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Interrupts for Vectors {
    fn raise(&self, vector: u16) {
        if let Some(Some(file)) = self.lock().get_mut(usize::from(vector)) {
            // Full means that it is pending many times over.
            let _ = file.write(&1u64.to_ne_bytes());
        }
    }
}

/// Memory of the mediator's that the device writes to, beside windows of contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shared {
    /// The host area.
    Host,
    /// The demand area.
    Demand,
}

impl Shared {
    const ALL: [Self; 2] = [Self::Host, Self::Demand];

    const fn bytes(self) -> u64 {
        match self {
            Self::Host => area::BYTES,
            Self::Demand => demand_area::BYTES,
        }
    }
}

/// Registers that hold something.
#[derive(Debug)]
struct Registers {
    args: [u64; physical::ARGS],
    command: u32,
    verdict: Verdict,
    status: u32,
    /// Where each [`Shared`] area is; zero for none.
    areas: [u64; 2],
    /// High half of the clock, kept when the low half was read.
    time_high: u32,
}

/// State shared by the bus and the command thread. [`crate::rank`] has the order of its locks.
#[derive(Debug)]
struct Device {
    gpu: SoftGpu,
    shown: Arc<Shown>,
    doorbells: Arc<SharedPages>,
    vectors: Arc<Vectors>,
    dma: Ranked<Dma>,
    contexts: Ranked<Contexts>,
    registers: Mutex<Registers>,
    config: Mutex<ConfigSpace>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is guarded stays consistent word by word.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The device.
#[derive(Debug)]
pub struct PciGpu {
    device: Arc<Device>,
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl PciGpu {
    /// Plugs one in. Memory does not move on it.
    ///
    /// # Errors
    /// When the host has no memory or threads.
    pub fn new(config: SoftConfig) -> io::Result<Self> {
        let config = SoftConfig {
            host_pool_bytes: 0,
            ..config
        };
        let vectors = Arc::new(Vectors(Mutex::new((0..VECTORS).map(|_| None).collect())));
        let shown = Arc::new(Shown::new(vectors.clone())?);
        let device = Arc::new(Device {
            gpu: SoftGpu::with_board(config, shown.clone())?,
            shown,
            doorbells: Arc::new(SharedPages::new(physical::PAGES)?),
            vectors,
            dma: Ranked::new(rank::MAPPINGS, Dma::default()),
            contexts: Ranked::new(rank::CONTEXTS, Contexts::default()),
            registers: Mutex::new(Registers {
                args: [0; physical::ARGS],
                command: 0,
                verdict: Verdict::default(),
                status: mailbox_status::IDLE,
                areas: [0; 2],
                time_high: 0,
            }),
            config: Mutex::new(ConfigSpace::physical()),
        });
        let (orders, waiting) = channel::<Order>();
        let worker = device.clone();
        let thread = thread::Builder::new()
            .name("gpu-admin".into())
            .spawn(move || {
                for order in waiting {
                    worker.serve(&order);
                }
            })?;
        Ok(Self {
            device,
            orders: Some(orders),
            thread: Some(thread),
        })
    }

    /// The GPU behind the registers.
    pub fn software(&self) -> &SoftGpu {
        &self.device.gpu
    }

    /// The memory file of the status page, at the same offset ([`status::PAGE`]) as in BAR 0.
    pub fn status_file(&self) -> &File {
        self.device.shown.file()
    }

    /// The memory file of BAR 1.
    pub fn doorbells_file(&self) -> &File {
        self.device.doorbells.file()
    }

    /// The bus reads. What is not there reads as zero.
    pub fn read(&self, region: Region, offset: u64, data: &mut [u8]) {
        data.fill(0);
        match region {
            Region::Config => lock(&self.device.config).read(offset, data),
            Region::Regs => {
                let value = self.device.register(offset, data.len());
                if let Some(value) = value {
                    let length = data.len();
                    data.copy_from_slice(&value.to_le_bytes()[..length]);
                }
            }
            Region::Doorbells => {
                if let (Some(channel), 4) = (doorbell(offset), data.len()) {
                    data.copy_from_slice(&self.device.doorbells.load(channel).to_le_bytes());
                }
            }
        }
    }

    /// The bus writes. What is not there takes nothing.
    pub fn write(&self, region: Region, offset: u64, data: &[u8]) {
        match region {
            Region::Config => lock(&self.device.config).write(offset, data),
            Region::Regs => {
                if !aligned(offset, data.len()) {
                    return;
                }
                let mut value = [0; 8];
                value[..data.len()].copy_from_slice(data);
                let order = self
                    .device
                    .write(offset, data.len(), u64::from_le_bytes(value));
                if let (Some(order), Some(orders)) = (order, &self.orders) {
                    // Fails only for a thread that has ended, with this value.
                    let _ = orders.send(order);
                }
            }
            Region::Doorbells => {
                if let (Some(channel), Ok(value)) = (doorbell(offset), data.try_into()) {
                    let value = u32::from_le_bytes(value);
                    self.device.doorbells.store(channel, value);
                }
            }
        }
    }

    /// Ties a vector to an eventfd, or to none.
    pub fn connect(&self, vector: u16, eventfd: Option<File>) {
        if let Some(known) = self.device.vectors.lock().get_mut(usize::from(vector)) {
            *known = eventfd;
        }
    }

    /// The IOMMU maps a piece of a file.
    ///
    /// # Errors
    /// When it does not fit to the file or to what is mapped.
    pub fn dma_map(&self, iova: u64, bytes: u64, file: File, offset: u64) -> Result<(), DmaError> {
        self.device.dma.lock().map(iova, bytes, file, offset)
    }

    /// The IOMMU removes mappings. When this returns, the device reaches nothing behind them any
    /// more, and the contexts that used them have ended.
    pub fn dma_unmap(&self, iova: u64, bytes: u64) {
        self.device.unmap(iova, bytes);
    }

    /// As after power-on, but for the IOMMU's mappings: no contexts, no vectors.
    pub fn reset(&self) {
        self.device.reset();
        self.device.vectors.lock().fill_with(|| None);
        *lock(&self.device.config) = ConfigSpace::physical();
    }
}

impl PciGpu {
    /// The bus is gone, and its IOMMU with it.
    pub fn unplug(&self) {
        self.reset();
        self.dma_unmap(0, u64::MAX);
    }
}

impl Drop for PciGpu {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // Its panic, if it had one, was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// Whether an access is of a kind that registers take.
fn aligned(offset: u64, bytes: usize) -> bool {
    matches!(bytes, 4 | 8) && offset.is_multiple_of(bytes as u64)
}

/// The channel with its doorbell at this offset of BAR 1.
fn doorbell(offset: u64) -> Option<u32> {
    let within = offset % PAGE_BYTES == turnstile_abi::pci::DOORBELL_OFFSET;
    let page = u32::try_from(offset / PAGE_BYTES).ok()?;
    within.then_some(page)
}

impl Device {
    /// What a register reads as.
    fn register(&self, offset: u64, bytes: usize) -> Option<u64> {
        if !aligned(offset, bytes) {
            return None;
        }
        // A register of 8 bytes can be read in halves.
        let half = |value: u64| value >> (8 * (offset & 4));
        let base = offset & !7;
        let pair = |low: u32, high: u32| half(u64::from(low) | u64::from(high) << 32);
        let capability = self.gpu.capabilities();
        let contexts = self.contexts.lock().count();
        let mut registers = lock(&self.registers);
        Some(match base {
            regs::IDENTITY => pair(regs::IDENTITY_VALUE, regs::VERSION_VALUE),
            regs::ENGINES => {
                let suspend = match capability.suspend {
                    Suspend::Drains => 0,
                    Suspend::BetweenCommands => 1,
                    Suspend::MidKernel => 2,
                };
                let engines = u32::from(capability.compute_engines)
                    | u32::from(capability.copy_engines) << 8
                    | suspend << 16;
                let bit = |has: bool, bit: u32| if has { bit } else { 0 };
                let features = regs::ENGINES_SIMULATED
                    | bit(capability.engine_holds, regs::ENGINES_HOLDS)
                    | bit(capability.demand, regs::ENGINES_DEMAND);
                pair(engines | features, capability.multiprocessors)
            }
            regs::MEMORY_BYTES => half(capability.memory_bytes),
            regs::SHARED_BYTES_MAX => pair(capability.shared_bytes_max, self.shown.faults()),
            regs::TIME if offset == regs::TIME => {
                let now = self.gpu.now().0;
                registers.time_high = (now >> 32) as u32;
                now
            }
            regs::TIME => registers.time_high.into(),
            regs::RESUME => pair(0, contexts),
            regs::HOST_AREA => half(registers.areas[Shared::Host as usize]),
            regs::DEMAND_AREA => half(registers.areas[Shared::Demand as usize]),
            regs::COMMAND => pair(registers.command, registers.status),
            regs::COMMAND_ERROR => {
                pair(registers.verdict.error as u32, registers.verdict.text_bytes)
            }
            _ => match (
                word(base, regs::COMMAND_ARG),
                word(base, regs::COMMAND_RESULT),
            ) {
                (Some(n), _) if n < physical::ARGS => half(registers.args[n]),
                (_, Some(n)) if n < physical::RESULTS => half(registers.verdict.results[n]),
                _ if (status::PAGE..status::PAGE + PAGE_BYTES).contains(&base) => {
                    half(self.shown.word(base - status::PAGE))
                }
                _ => 0,
            },
        })
    }

    /// A register is written; returns the command that this starts.
    fn write(&self, offset: u64, bytes: usize, value: u64) -> Option<Order> {
        // CAST: the low half is what a register of 4 bytes takes.
        let low = value as u32;
        match offset {
            regs::RESET => self.reset(),
            regs::SUSPEND => self
                .gpu
                .carry_out(&[turnstile_gpu::Order::Suspend(TenantId(low))]),
            regs::RESUME => self
                .gpu
                .carry_out(&[turnstile_gpu::Order::Resume(TenantId(low))]),
            regs::COMMAND => {
                let mut registers = lock(&self.registers);
                if registers.status == mailbox_status::BUSY {
                    return None;
                }
                registers.command = low;
                registers.status = mailbox_status::BUSY;
                return Some(Order {
                    op: low,
                    args: registers.args,
                });
            }
            regs::NOTICE => self.shown.arm(low),
            _ if offset & !7 == regs::HOST_AREA => {
                self.write_area(Shared::Host, offset, bytes, value);
            }
            _ if offset & !7 == regs::DEMAND_AREA => {
                self.write_area(Shared::Demand, offset, bytes, value);
            }
            _ => {
                if let Some(n) =
                    word(offset & !7, regs::COMMAND_ARG).filter(|n| *n < physical::ARGS)
                {
                    let mut registers = lock(&self.registers);
                    registers.args[n] = merge(registers.args[n], offset, bytes, value);
                } else if let Some((engine, held)) = hold(offset) {
                    self.gpu.carry_out(&[turnstile_gpu::Order::holding(
                        TenantId(low),
                        engine,
                        held,
                    )]);
                }
            }
        }
        None
    }

    fn write_area(&self, shared: Shared, offset: u64, bytes: usize, value: u64) {
        let old = lock(&self.registers).areas[shared as usize];
        self.take_area(shared, merge(old, offset, bytes, value));
    }

    /// Takes the area at this address into use.
    fn take_area(&self, shared: Shared, iova: u64) {
        let window = dma::Window {
            gpa: 0,
            iova,
            bytes: shared.bytes(),
        };
        let contexts = self.contexts.lock();
        let memory = (iova != 0).then(|| self.dma.lock().memory(&[window]));
        let memory = memory.and_then(|memory| {
            memory
                .inspect_err(|error| log::debug!("{shared:?} area: {error}"))
                .ok()
        });
        lock(&self.registers).areas[shared as usize] = if memory.is_some() { iova } else { 0 };
        self.shown.use_area(shared, memory);
        drop(contexts);
    }

    fn unmap(&self, iova: u64, bytes: u64) {
        let mut contexts = self.contexts.lock();
        for context in contexts.using(iova, bytes) {
            self.end(&mut contexts, context);
            self.shown.count_fault();
        }
        for shared in Shared::ALL {
            let area = lock(&self.registers).areas[shared as usize];
            let window = dma::Window {
                gpa: 0,
                iova: area,
                bytes: shared.bytes(),
            };
            if area != 0 && window.touches(iova, bytes) {
                lock(&self.registers).areas[shared as usize] = 0;
                self.shown.use_area(shared, None);
            }
        }
        self.dma.lock().unmap(iova, bytes);
    }

    fn reset(&self) {
        let mut contexts = self.contexts.lock();
        for context in contexts.using(0, u64::MAX) {
            self.end(&mut contexts, context);
        }
        lock(&self.registers).areas = [0; 2];
        self.shown.reset();
    }
}

/// The engine of a register [`regs::HOLD`] (true) or [`regs::RELEASE`] (false).
fn hold(offset: u64) -> Option<(EngineId, bool)> {
    let at = offset.checked_sub(regs::HOLD)?;
    let engine = u8::try_from(at / regs::HOLD_STRIDE).ok()?;
    let held = at % regs::HOLD_STRIDE == 0;
    (engine < ENGINES_MAX).then_some((EngineId(engine), held))
}

/// The number of a word in an array of words of 8 bytes that begins at `first`.
fn word(offset: u64, first: u64) -> Option<usize> {
    usize::try_from(offset.checked_sub(first)? / 8).ok()
}

/// A register of 8 bytes after a write of 4 or 8.
fn merge(old: u64, offset: u64, bytes: usize, value: u64) -> u64 {
    if bytes == 8 {
        return value;
    }
    let shift = 8 * (offset & 4);
    old & !(u64::from(u32::MAX) << shift) | (value & u64::from(u32::MAX)) << shift
}
