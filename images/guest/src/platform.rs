//! The driver's surroundings in the freestanding guest.

use crate::cpu;
use core::cell::Cell;
use core::fmt;
use core::sync::atomic::{Ordering, fence};
use turnstile_abi::{PAGE_BYTES, pci};
use turnstile_abi::Platform;
use turnstile_abi::boot::BootInfo;

const CONFIG_ADDRESS: u16 = 0xcf8;
const CONFIG_DATA: u16 = 0xcfc;
const CONFIG_ENABLE: u32 = 1 << 31;
const BARS: u8 = 0x10;

/// The VMM's console.
pub struct Console;

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        cpu::console(text.as_bytes());
        Ok(())
    }
}

/// The device as this guest found it, and the machine around it.
pub struct Freestanding {
    /// Bits of the configuration address that select the device.
    device: u32,
    regs: u64,
    doorbells: u64,
    aperture: u64,
    tsc_khz: u64,
    /// When the timer will interrupt, as far as it is armed.
    timer_at_ns: Cell<u64>,
}

fn config_address(device: u32, offset: u8) -> u32 {
    CONFIG_ENABLE | device | u32::from(offset & 0xfc)
}

fn config_read(device: u32, offset: u8) -> u32 {
    cpu::out32(CONFIG_ADDRESS, config_address(device, offset));
    cpu::in32(CONFIG_DATA)
}

/// Longest wait for a device that is plugged in later, in cycles of the time-stamp counter: some
/// seconds.
const PLUG_CYCLES: u64 = 30_000_000_000;

impl Freestanding {
    /// Polls for the device until it exists, for some seconds.
    pub fn wait() -> Option<Self> {
        let begin = cpu::time_stamp();
        loop {
            let found = Self::find();
            if found.is_some() || cpu::time_stamp().wrapping_sub(begin) > PLUG_CYCLES {
                return found;
            }
        }
    }

    /// Finds the device on bus 0.
    pub fn find() -> Option<Self> {
        let id = u32::from(pci::DEVICE_ID) << 16 | u32::from(pci::VENDOR_ID);
        let device = (0..32)
            .map(|slot| slot << 11)
            .find(|device| config_read(*device, 0) == id)?;
        let bar = |bar: usize| config_read(device, BARS + 4 * bar as u8);
        let base = |bar_number: usize| u64::from(bar(bar_number) & !0xf);
        let mut found = Self {
            device,
            regs: base(pci::BAR_REGS),
            doorbells: base(pci::BAR_DOORBELLS),
            aperture: base(pci::BAR_APERTURE) | u64::from(bar(pci::BAR_APERTURE + 1)) << 32,
            tsc_khz: 0,
            timer_at_ns: Cell::new(0),
        };
        found.tsc_khz = BootInfo::read(&found)?.tsc_khz.max(1);
        Some(found)
    }

    fn read<T>(&self, address: u64) -> T {
        // SAFETY: all of guest memory and the BARs are mapped one to one; the driver passes
        // addresses of its own memory and offsets within its BARs, aligned. Nothing there is ever a
        // Rust object, so nothing is aliased.
        unsafe { (address as *const T).read_volatile() }
    }

    fn write<T>(&self, address: u64, value: T) {
        // SAFETY: as for `read`; the driver's memory is in the heap that the VMM left free.
        unsafe { (address as *mut T).write_volatile(value) }
    }
}

impl Platform for Freestanding {
    fn config_read(&self, offset: u8) -> u32 {
        config_read(self.device, offset)
    }

    fn config_write(&self, offset: u8, value: u32) {
        cpu::out32(CONFIG_ADDRESS, config_address(self.device, offset));
        cpu::out32(CONFIG_DATA, value);
    }

    fn reg_read32(&self, offset: u64) -> u32 {
        self.read(self.regs + offset)
    }

    fn reg_read64(&self, offset: u64) -> u64 {
        self.read(self.regs + offset)
    }

    fn reg_write32(&self, offset: u64, value: u32) {
        self.write(self.regs + offset, value);
    }

    fn reg_write64(&self, offset: u64, value: u64) {
        self.write(self.regs + offset, value);
    }

    fn ring_doorbell(&self, channel: u32, put: u32) {
        fence(Ordering::Release);
        let page = self.doorbells + u64::from(channel) * PAGE_BYTES;
        self.write(page + pci::DOORBELL_OFFSET, put);
    }

    fn aperture_read(&self, offset: u64) -> u64 {
        self.read(self.aperture + offset)
    }

    fn aperture_write(&self, offset: u64, value: u64) {
        self.write(self.aperture + offset, value);
    }

    fn read_u32(&self, gpa: u64) -> u32 {
        let value = self.read(gpa);
        fence(Ordering::Acquire);
        value
    }

    fn read_u64(&self, gpa: u64) -> u64 {
        let value = self.read(gpa);
        fence(Ordering::Acquire);
        value
    }

    fn write_u32(&self, gpa: u64, value: u32) {
        self.write(gpa, value);
    }

    fn write_u64(&self, gpa: u64, value: u64) {
        self.write(gpa, value);
    }

    fn read_bytes(&self, gpa: u64, bytes: &mut [u8]) {
        for (at, byte) in (gpa..).zip(bytes) {
            *byte = self.read(at);
        }
    }

    fn write_bytes(&self, gpa: u64, bytes: &[u8]) {
        for (at, byte) in (gpa..).zip(bytes) {
            self.write(at, *byte);
        }
    }

    fn msi(&self, vector: u16) -> (u64, u32) {
        (cpu::APIC, cpu::DEVICE_VECTOR + u32::from(vector))
    }

    fn wait(&self, at_most_ns: u64) {
        // Arming the timer costs an exit. A timer armed for a time before the limit is therefore
        // kept, even if it then ends the sleep early.
        let now = self.now_ns();
        let armed = self.timer_at_ns.get();
        if armed <= now || armed > now.saturating_add(at_most_ns) {
            cpu::arm_timer(at_most_ns);
            self.timer_at_ns
                .set(now.saturating_add(at_most_ns.min(u32::MAX.into())));
        }
        cpu::sleep();
    }

    fn now_ns(&self) -> u64 {
        (u128::from(cpu::time_stamp()) * 1_000_000 / u128::from(self.tsc_khz)) as u64
    }
}
