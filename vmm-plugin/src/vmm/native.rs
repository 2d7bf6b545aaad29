//! A native guest: a thread, not a VM, for hosts where there is no KVM.
//!
//! The guest program runs as a thread of this process, against the same device model, gates and
//! daemon socket. It is not isolated from the VMM and has no real page tables: a value behind a
//! lock per doorbell page replaces them.

use super::boot::GuestRam;
use super::core::{Core, VmEnd, VmHandle, count, start};
use super::{VmConfig, VmError};
use crate::attach::{NoRoutes, Welcome, interrupts};
use crate::gate::ThreadMap;
use std::fmt;
use std::os::fd::AsRawFd;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use turnstile_abi::Platform;
use vm_memory::{Bytes, GuestAddress, MmapRegion, VolatileMemory};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::timerfd::TimerFd;

type NativeCore = Core<ThreadMap, NoRoutes>;

/// What a native guest runs on.
pub struct NativePlatform<'c> {
    core: &'c NativeCore,
    aperture: &'c MmapRegion<()>,
    epoll: Epoll,
    timer: Mutex<TimerFd>,
    since: Instant,
}

impl fmt::Debug for NativePlatform<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativePlatform").finish_non_exhaustive()
    }
}

/// Starts a native guest; `program` returns its exit code.
///
/// # Errors
/// When the daemon does not take it, or the host has no memory or threads for it.
pub fn spawn(
    config: VmConfig,
    program: impl FnOnce(&NativePlatform<'_>) -> u8 + Send + 'static,
) -> Result<VmHandle, VmError> {
    let ram = GuestRam::new(&config)?;
    let interrupts = interrupts()?;
    let mut welcome = Welcome::request(ram.request(&config)?, &interrupts)?;
    ram.boot(&config, 0)?;
    welcome.trap_every_write = config.trap_every_write;
    let map = ThreadMap::new(welcome.identity.channels);
    let (attached, frames) = welcome.attach(map, NoRoutes);
    let aperture = Arc::clone(attached.aperture());
    let core = Arc::new(Core::new(ram, attached, Arc::clone(&interrupts)));
    let (epoll, timer) = sleeper(&interrupts).map_err(VmError::Thread)?;
    start(&config.name, core, frames, false, move |core| {
        let platform = NativePlatform {
            core,
            aperture: &aperture,
            epoll,
            timer: Mutex::new(timer),
            since: Instant::now(),
        };
        VmEnd::Exited(program(&platform))
    })
}

/// Runs a native guest to its end.
///
/// # Errors
/// As [`spawn`].
pub fn run(
    config: VmConfig,
    program: impl FnOnce(&NativePlatform<'_>) -> u8 + Send + 'static,
) -> Result<super::VmReport, VmError> {
    spawn(config, program)?.join()
}

/// What a guest sleeps on: its interrupts and a timer.
fn sleeper(interrupts: &[EventFd]) -> std::io::Result<(Epoll, TimerFd)> {
    let epoll = Epoll::new()?;
    let timer = TimerFd::new()?;
    let add = |fd, data| {
        epoll.ctl(
            ControlOperation::Add,
            fd,
            EpollEvent::new(EventSet::IN, data),
        )
    };
    add(timer.as_raw_fd(), u64::MAX)?;
    for (vector, eventfd) in (0..).zip(interrupts) {
        add(eventfd.as_raw_fd(), vector)?;
    }
    Ok((epoll, timer))
}

impl NativePlatform<'_> {
    /// Kicks the daemon without a doorbell write, as a VMM that means harm can.
    pub fn kick(&self) {
        self.core.attached.gates.kick();
    }

    /// Accesses beyond guest memory or the BARs are a fault of the driver's.
    fn memory(&self) -> &vm_memory::GuestMemoryMmap<()> {
        self.core.ram.memory()
    }

    fn reg<const N: usize>(&self, offset: u64) -> [u8; N] {
        count(&self.core.counters.exits);
        self.core.gpu().reg(offset)
    }
}

impl Platform for NativePlatform<'_> {
    fn config_read(&self, offset: u8) -> u32 {
        count(&self.core.counters.exits);
        let mut data = [0; 4];
        self.core.gpu().config_read(offset.into(), &mut data);
        u32::from_le_bytes(data)
    }

    fn config_write(&self, offset: u8, value: u32) {
        count(&self.core.counters.exits);
        self.core
            .gpu()
            .config_write(offset.into(), &value.to_le_bytes());
    }

    fn reg_read32(&self, offset: u64) -> u32 {
        u32::from_le_bytes(self.reg(offset))
    }

    fn reg_read64(&self, offset: u64) -> u64 {
        u64::from_le_bytes(self.reg(offset))
    }

    fn reg_write32(&self, offset: u64, value: u32) {
        count(&self.core.counters.exits);
        self.core.gpu().regs_write(offset, &value.to_le_bytes());
    }

    fn reg_write64(&self, offset: u64, value: u64) {
        count(&self.core.counters.exits);
        self.core.gpu().regs_write(offset, &value.to_le_bytes());
    }

    fn ring_doorbell(&self, channel: u32, put: u32) {
        fence(Ordering::SeqCst);
        let gates = &self.core.attached.gates;
        if !gates.store(channel, put) {
            count(&self.core.counters.exits);
            count(&self.core.counters.doorbell_exits);
            gates.trap(channel, put);
        }
    }

    fn aperture_read(&self, offset: u64) -> u64 {
        let slice = self.aperture.as_volatile_slice();
        slice
            .load(offset as usize, Ordering::Acquire)
            .expect("the driver stays within its aperture")
    }

    fn aperture_write(&self, offset: u64, value: u64) {
        let slice = self.aperture.as_volatile_slice();
        slice
            .store(value, offset as usize, Ordering::Release)
            .expect("the driver stays within its aperture");
    }

    fn read_u32(&self, gpa: u64) -> u32 {
        self.memory()
            .load(GuestAddress(gpa), Ordering::Acquire)
            .expect("the driver stays within its memory")
    }

    fn read_u64(&self, gpa: u64) -> u64 {
        self.memory()
            .load(GuestAddress(gpa), Ordering::Acquire)
            .expect("the driver stays within its memory")
    }

    fn write_u32(&self, gpa: u64, value: u32) {
        self.memory()
            .store(value, GuestAddress(gpa), Ordering::Release)
            .expect("the driver stays within its memory");
    }

    fn write_u64(&self, gpa: u64, value: u64) {
        self.memory()
            .store(value, GuestAddress(gpa), Ordering::Release)
            .expect("the driver stays within its memory");
    }

    fn read_bytes(&self, gpa: u64, bytes: &mut [u8]) {
        self.memory()
            .read_slice(bytes, GuestAddress(gpa))
            .expect("the driver stays within its memory");
    }

    fn write_bytes(&self, gpa: u64, bytes: &[u8]) {
        self.memory()
            .write_slice(bytes, GuestAddress(gpa))
            .expect("the driver stays within its memory");
    }

    fn msi(&self, vector: u16) -> (u64, u32) {
        (0xfee0_0000, vector.into())
    }

    fn wait(&self, at_most_ns: u64) {
        let mut timer = self.timer.lock().unwrap_or_else(PoisonError::into_inner);
        // If the timer cannot be set, the wait ends by the limit of the epoll below.
        let _ = timer.reset(Duration::from_nanos(at_most_ns.max(1)), None);
        let limit_ms = i32::try_from(at_most_ns / 1_000_000 + 2).unwrap_or(i32::MAX);
        let mut events = [EpollEvent::default(); 33];
        // Interrupted by a signal, it ends early, which it may.
        let ready = self.epoll.wait(limit_ms, &mut events).unwrap_or(0);
        for event in &events[..ready] {
            if let Some(eventfd) = self.core.interrupts.get(event.data() as usize) {
                // No other thread reads it, and the read does not block.
                let _ = eventfd.read();
            }
        }
    }

    fn now_ns(&self) -> u64 {
        self.since.elapsed().as_nanos() as u64
    }
}
