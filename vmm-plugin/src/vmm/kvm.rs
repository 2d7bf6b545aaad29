//! The VM proper: one vCPU, an in-kernel interrupt controller, memory slots.

use super::boot::{GuestRam, PML4_GPA, STACK_TOP};
use super::core::{Core, VmEnd, VmHandle, count, start};
use super::{VmConfig, VmError};
use crate::attach::{Welcome, interrupts};
use crate::device::{bar_bytes, doorbell};
use crate::kvm::{DoorbellMap, IrqRouter, KvmVm, Place};
use kvm_bindings::{KVM_API_VERSION, KVM_MAX_CPUID_ENTRIES, kvm_segment};
use kvm_ioctls::{Cap, Kvm, VcpuExit, VcpuFd};
use std::sync::Arc;
use turnstile_abi::PAGE_BYTES;
use turnstile_abi::boot::{GDT, GDT_GPA, PORT_CONSOLE, PORT_EXIT};
use turnstile_abi::pci::{BAR_APERTURE, BAR_DOORBELLS, BAR_REGS};
use vmm_sys_util::signal::{SIGRTMIN, register_signal_handler};

const RAM_SLOT: u32 = 0;
/// Where the device is; the aperture's address depends on its size.
const PLACE: Place = Place {
    regs_gpa: 0xd000_0000,
    doorbells_gpa: 0xd040_0000,
    aperture_gpa: 0,
    first_slot: RAM_SLOT + 1,
    first_gsi: 24,
};
/// Where KVM on Intel keeps three pages of its own, out of the way of everything here.
const TSS_ADDRESS: usize = 0xfffb_d000;
/// PCI slot of the device.
const DEVICE_SLOT: u32 = 1;
const CONFIG_ADDRESS: u16 = 0xcf8;
const CONFIG_DATA: u16 = 0xcfc;
const CONFIG_ENABLE: u32 = 1 << 31;
/// Limit of consecutive faults without a gate to serve them, after which the guest is ended. One is
/// normal: the gate moved between the guest's access and its handling.
const FAULTS_MAX: u32 = 10_000;

fn kvm(what: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> VmError {
    move |source| VmError::Kvm { what, source }
}

/// Whether this host can run VMs.
///
/// # Errors
/// [`VmError::NoKvm`] with the reason.
pub fn kvm_available() -> Result<(), VmError> {
    open().map(|_| ())
}

fn open() -> Result<(Kvm, KvmVm), VmError> {
    let refused = |what: &str, error: kvm_ioctls::Error| VmError::NoKvm(format!("{what}: {error}"));
    let kvm = Kvm::new().map_err(|error| refused("opening /dev/kvm", error))?;
    if kvm.get_api_version() != KVM_API_VERSION as i32 {
        return Err(VmError::NoKvm("its API version is not 12".into()));
    }
    for cap in [Cap::Irqchip, Cap::GetTscKhz] {
        if !kvm.check_extension(cap) {
            return Err(VmError::NoKvm(format!("it has no {cap:?}")));
        }
    }
    let vm = kvm
        .create_vm()
        .map_err(|error| refused("creating a VM", error))?;
    let vm = KvmVm::new(&kvm, Arc::new(vm)).map_err(|error| VmError::NoKvm(error.to_string()))?;
    Ok((kvm, vm))
}

type Machine = Core<DoorbellMap, IrqRouter>;

extern "C" fn on_kick(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}

/// Starts a VM.
pub(super) fn spawn(config: VmConfig) -> Result<VmHandle, VmError> {
    let (system, vm) = open()?;
    let vm = Arc::new(vm);
    let ram = GuestRam::new(&config)?;
    let entry = ram.load(&config.guest_elf)?;
    let interrupts = interrupts()?;
    let mut welcome = Welcome::request(ram.request(&config)?, &interrupts)?;
    welcome.trap_every_write = config.trap_every_write;
    let aperture_bytes = bar_bytes(BAR_APERTURE, welcome.identity.aperture_bytes());
    let aperture_gpa = aperture_bytes.max(4 << 30);
    vm.map_memory(RAM_SLOT, 0, &ram.file()?, ram.bytes())?;
    ram.start_tables(aperture_gpa, aperture_bytes)?;

    vm.vm()
        .set_tss_address(TSS_ADDRESS)
        .map_err(kvm("setting the TSS address"))?;
    vm.vm()
        .create_irq_chip()
        .map_err(kvm("creating the interrupt controller"))?;
    let vcpu = vm.vm().create_vcpu(0).map_err(kvm("creating a vCPU"))?;
    let cpuid = system
        .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
        .map_err(kvm("reading CPUID"))?;
    vcpu.set_cpuid2(&cpuid).map_err(kvm("setting CPUID"))?;
    set_start_state(&vcpu, entry).map_err(kvm("setting registers"))?;
    let tsc_khz = vcpu.get_tsc_khz().map_err(kvm("reading the TSC's rate"))?;
    ram.boot(&config, tsc_khz.into())?;

    let place = Place {
        aperture_gpa,
        ..PLACE
    };
    let (attached, frames) = vm.attach(welcome, place)?;
    attached.gpu().config().enable_memory();
    let core = Arc::new(Core::new(ram, attached, interrupts));
    register_signal_handler(SIGRTMIN(), on_kick).map_err(|error| VmError::Thread(error.into()))?;
    start(&config.name, core, frames, true, move |core| {
        run(core, vcpu)
    })
}

/// 64-bit long mode at CPL 0, with page tables and descriptors of [`super::boot`], interrupts off.
fn set_start_state(vcpu: &VcpuFd, entry: u64) -> Result<(), kvm_ioctls::Error> {
    let mut sregs = vcpu.get_sregs()?;
    let code = kvm_segment {
        limit: 0xffff_ffff,
        selector: 0x10,
        type_: 11,
        present: 1,
        s: 1,
        l: 1,
        g: 1,
        ..Default::default()
    };
    let data = kvm_segment {
        type_: 3,
        selector: 0x18,
        l: 0,
        db: 1,
        ..code
    };
    sregs.cs = code;
    (sregs.ds, sregs.es, sregs.ss, sregs.fs, sregs.gs) = (data, data, data, data, data);
    sregs.gdt.base = GDT_GPA;
    // CAST: eighty.
    sregs.gdt.limit = size_of_val(&GDT) as u16 - 1;
    sregs.cr3 = PML4_GPA;
    // PAE, OSFXSR, OSXMMEXCPT
    sregs.cr4 = 1 << 5 | 1 << 9 | 1 << 10;
    // PG, WP, NE, ET, MP, PE
    sregs.cr0 = 1 << 31 | 1 << 16 | 1 << 5 | 1 << 4 | 1 << 1 | 1;
    // LME, LMA
    sregs.efer = 1 << 8 | 1 << 10;
    vcpu.set_sregs(&sregs)?;
    let mut registers = vcpu.get_regs()?;
    registers.rip = entry;
    registers.rsp = STACK_TOP - 8;
    registers.rflags = 2;
    vcpu.set_regs(&registers)
}

/// The vCPU thread.
fn run(core: &Machine, mut vcpu: VcpuFd) -> VmEnd {
    let mut config_address = 0;
    let mut faults = 0;
    loop {
        if core.quits() {
            return VmEnd::Killed;
        }
        let exit = vcpu.run();
        // A store that the page's protection refused: the guest is still before it.
        let served = match &exit {
            Ok(VcpuExit::MemoryFault { gpa, .. }) => Some(fault(core, Some(*gpa))),
            Err(error) if error.errno() == libc::EFAULT => Some(fault(core, None)),
            _ => None,
        };
        faults = if served == Some(false) { faults + 1 } else { 0 };
        match exit {
            Ok(exit) => {
                count(&core.counters.exits);
                match exit {
                    VcpuExit::MmioWrite(gpa, data) => write(core, gpa, data),
                    VcpuExit::MmioRead(gpa, data) => read(core, gpa, data),
                    VcpuExit::IoOut(PORT_EXIT, data) => return VmEnd::Exited(data[0]),
                    VcpuExit::IoOut(port, data) => port_out(core, &mut config_address, port, data),
                    VcpuExit::IoIn(port, data) => port_in(core, config_address, port, data),
                    VcpuExit::Intr | VcpuExit::Hlt | VcpuExit::IrqWindowOpen => {}
                    VcpuExit::MemoryFault { .. } => {}
                    VcpuExit::Shutdown => return VmEnd::TripleFault,
                    VcpuExit::InternalError => {
                        return VmEnd::Crashed("KVM could not emulate an instruction".into());
                    }
                    other => return VmEnd::Crashed(format!("unexpected exit {other:?}")),
                }
            }
            Err(_) if served.is_some() => count(&core.counters.exits),
            Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {}
            Err(error) => return VmEnd::Crashed(format!("KVM_RUN: {error}")),
        }
        if faults > FAULTS_MAX {
            return VmEnd::Crashed("KVM cannot reach the guest's memory".into());
        }
    }
}

/// Handles a fault: the guest cannot continue before the page at `gpa` can be written. Without
/// `gpa` (KVM did not report it), any protected page may be the one. Returns whether a gate was
/// served.
fn fault(core: &Machine, gpa: Option<u64>) -> bool {
    let served = match gpa.map(|gpa| PLACE.bar(gpa)) {
        Some(Some((BAR_DOORBELLS, offset))) => {
            core.attached.gates.fault((offset / PAGE_BYTES) as u32)
        }
        Some(_) => false,
        None => core.attached.gates.fault_somewhere(),
    };
    if served {
        count(&core.counters.doorbell_exits);
    }
    served
}

fn write(core: &Machine, gpa: u64, data: &[u8]) {
    match PLACE.bar(gpa) {
        Some((BAR_REGS, offset)) => core.gpu().regs_write(offset, data),
        Some((_, offset)) => {
            count(&core.counters.doorbell_exits);
            match doorbell(offset, data) {
                Some((channel, value)) => core.attached.gates.trap(channel, value),
                None => count(&core.counters.ignored),
            }
        }
        None => count(&core.counters.ignored),
    }
}

fn read(core: &Machine, gpa: u64, data: &mut [u8]) {
    match PLACE.bar(gpa) {
        Some((BAR_REGS, offset)) => core.gpu().regs_read(offset, data),
        // Beyond the VM's channels; pages of channels are read without an exit.
        Some(_) => {
            count(&core.counters.doorbell_exits);
            data.fill(0);
        }
        None => {
            count(&core.counters.ignored);
            data.fill(0xff);
        }
    }
}

/// Offset in the device's configuration space that an access to a data port reaches, if any.
fn config_offset(address: u32, port: u16) -> Option<u64> {
    let function = address >> 8 & 0x00ff_ffff & !(CONFIG_ENABLE >> 8);
    (address & CONFIG_ENABLE != 0 && function == DEVICE_SLOT << 3)
        .then(|| u64::from(address & 0xfc) + u64::from(port - CONFIG_DATA))
}

fn port_out(core: &Machine, config_address: &mut u32, port: u16, data: &[u8]) {
    match (port, data) {
        (CONFIG_ADDRESS, &[a, b, c, d]) => *config_address = u32::from_le_bytes([a, b, c, d]),
        (0xcfc..=0xcff, _) => {
            if let Some(offset) = config_offset(*config_address, port) {
                core.gpu().config_write(offset, data);
            }
        }
        (PORT_CONSOLE, _) => core.console(data),
        _ => count(&core.counters.ignored),
    }
}

fn port_in(core: &Machine, config_address: u32, port: u16, data: &mut [u8]) {
    data.fill(0xff);
    match port {
        0xcfc..=0xcff => {
            if let Some(offset) = config_offset(config_address, port) {
                core.gpu().config_read(offset, data);
            }
        }
        _ => count(&core.counters.ignored),
    }
}
