//! A VMM under KVM. It boots the freestanding guest of the tests, which runs a load on its virtual
//! GPU. `kvm DAEMON_SOCKET`
//!
//! The guest starts at CPL 0 in long mode, memory mapped one to one. It finds the device on bus 0
//! by the ports of configuration space, and a block of parameters at a known address
//! (`turnstile_abi::boot`).
use std::error::Error;
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;
use std::{process, thread};

use linux_loader::loader::{KernelLoader, elf::Elf};
use turnstile_images::{GUEST_ELF, Load, Outcome, REPORT_BYTES, Report, Workload, files};
use turnstile_vmm::abi::boot::{
    BOOT_GPA, BootInfo, FILE_BYTES, File, GDT, GDT_GPA, PORT_CONSOLE, PORT_EXIT, file_entry,
};
use turnstile_vmm::abi::{PAGE_BYTES, pci};
use turnstile_vmm::attach::{Request, Welcome, interrupts, sealed_memory};
use turnstile_vmm::device::{bar_bytes, doorbell};
use turnstile_vmm::kvm::kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_segment};
use turnstile_vmm::kvm::kvm_ioctls::{Kvm, VcpuExit, VcpuFd};
use turnstile_vmm::kvm::{KvmDevice, KvmVm, Place};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Memory = GuestMemoryMmap<()>;

const MEMORY_BYTES: u64 = 64 << 20;
const PAGE_TABLES: u64 = 0x1000;
const STACK_TOP: u64 = 0x7000;
const ARGS: u64 = 0x8000;
const REPORT: u64 = 0x9000;
/// The guest program is linked at 1 MiB and ends below this.
const DIRECTORIES: u64 = 0x40_0000;
/// Below is the guest's stack.
const FILES: u64 = 0x80_0000;
/// PCI slot of the device, as bits 15 to 11 of an address of configuration space.
const DEVICE: u32 = 1 << 11;

/// Runs a workload in a VM, and returns what the guest reports.
pub(crate) fn run(daemon: &Path, workload: Workload) -> Result<Report> {
    let kvm = Kvm::new()?;
    let vm = Arc::new(KvmVm::new(&kvm, Arc::new(kvm.create_vm()?))?);
    // On Intel, KVM needs three pages of the guest's addresses.
    vm.vm().set_tss_address(0xfffb_d000)?;
    vm.vm().create_irq_chip()?;

    // The guest's memory: the daemon maps the same file.
    let file = sealed_memory(c"kvm", MEMORY_BYTES)?;
    vm.map_memory(0, 0, &file, MEMORY_BYTES)?;
    let behind = FileOffset::new(file.try_clone()?, 0);
    let range = (GuestAddress(0), MEMORY_BYTES as usize, Some(behind));
    let memory = Memory::from_ranges_with_files([range])?;

    // The VM becomes a tenant, and has the device.
    let request = Request::new(daemon, "kvm", file, MEMORY_BYTES);
    let welcome = Welcome::request(request, &interrupts()?)?;
    let shown = welcome.identity.aperture_bytes();
    let aperture_bytes = bar_bytes(pci::BAR_APERTURE, shown);
    let place = Place {
        regs_gpa: 0xd000_0000,
        doorbells_gpa: 0xd040_0000,
        aperture_gpa: aperture_bytes.max(4 << 30),
        first_slot: 1,
        first_gsi: 24,
    };
    let (device, control) = vm.attach(welcome, place)?;
    device.gpu().config().enable_memory();
    let control = thread::spawn(move || {
        if let Err(error) = control.run() {
            // A guest with a doorbell page that did not move must not go on.
            eprintln!("{error}");
            process::abort();
        }
    });

    // The guest.
    let elf = Elf::load(&memory, None, &mut Cursor::new(GUEST_ELF), None)?;
    let vcpu = vm.vm().create_vcpu(0)?;
    vcpu.set_cpuid2(&kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?)?;
    tables(&memory, place.aperture_gpa, aperture_bytes)?;
    parameters(&memory, workload, vcpu.get_tsc_khz()?.into())?;
    start_state(&vcpu, elf.kernel_load.0)?;
    let end = run_vcpu(vcpu, &device, place);
    device.detach();
    control.join().map_err(|_| "the control thread panicked")?;
    let console = end?;
    let mut report = [0; REPORT_BYTES];
    memory.read_slice(&mut report, GuestAddress(REPORT))?;
    let report = Report::decode(&report).ok_or("no report")?;
    match report.outcome {
        Outcome::Passed => Ok(report),
        _ => Err(format!("{} {}", report.text(), console).into()),
    }
}

/// Page tables that map the first 4 GiB and the aperture one to one, for CPL 3 too, and the
/// segments.
fn tables(memory: &Memory, aperture: u64, aperture_bytes: u64) -> Result<()> {
    let table = 0b111;
    let put = |at: u64, word: u64| memory.write_obj(word, GuestAddress(at));
    for (at, segment) in (GDT_GPA..).step_by(8).zip(GDT) {
        put(at, segment)?;
    }
    let pointers = PAGE_TABLES + PAGE_BYTES;
    put(PAGE_TABLES, pointers | table)?;
    let first = aperture >> 30;
    let gibibytes = (0..4).chain(first..first + aperture_bytes.div_ceil(1 << 30));
    for (directory, gibibyte) in (DIRECTORIES..).step_by(PAGE_BYTES as usize).zip(gibibytes) {
        put(pointers + 8 * gibibyte, directory | table)?;
        for page in 0..512 {
            // Bit 7: a page of 2 MiB.
            let entry = gibibyte << 30 | page << 21 | 1 << 7 | table;
            put(directory + 8 * page, entry)?;
        }
    }
    Ok(())
}

/// The guest's arguments, its files, and the block that names them.
fn parameters(memory: &Memory, workload: Workload, tsc_khz: u64) -> Result<()> {
    let write = |bytes: &[u8], gpa: u64| memory.write_slice(bytes, GuestAddress(gpa));
    let args = workload.encode();
    write(&args, ARGS)?;
    let (files, mut next) = (files(), FILES + PAGE_BYTES);
    for (entry, (name, text)) in (FILES..).step_by(FILE_BYTES).zip(&files) {
        let (gpa, bytes) = (next, text.len() as u64);
        let named = file_entry(name, File { gpa, bytes });
        write(&named.ok_or("a long name")?, entry)?;
        write(text, gpa)?;
        next = (next + bytes).next_multiple_of(PAGE_BYTES);
    }
    let block = BootInfo {
        memory_bytes: MEMORY_BYTES,
        heap_gpa: next,
        tsc_khz,
        args_gpa: ARGS,
        args_bytes: args.len() as u64,
        report_gpa: REPORT,
        report_bytes: REPORT_BYTES as u64,
        files_gpa: FILES,
        files: files.len() as u64,
    };
    Ok(write(&block.encode(), BOOT_GPA)?)
}

/// 64-bit mode at CPL 0, interrupts off.
fn start_state(vcpu: &VcpuFd, entry: u64) -> Result<()> {
    let mut special = vcpu.get_sregs()?;
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
    special.cs = code;
    for segment in [&mut special.ds, &mut special.es, &mut special.ss] {
        *segment = data;
    }
    special.gdt.base = GDT_GPA;
    special.gdt.limit = size_of_val(&GDT) as u16 - 1;
    special.cr3 = PAGE_TABLES;
    // PAE, OSFXSR, OSXMMEXCPT; PG, WP, NE, ET, MP, PE; LME, LMA.
    special.cr4 = 1 << 5 | 1 << 9 | 1 << 10;
    special.cr0 = 1 << 31 | 1 << 16 | 1 << 5 | 1 << 4 | 1 << 1 | 1;
    special.efer = 1 << 8 | 1 << 10;
    vcpu.set_sregs(&special)?;
    let mut registers = vcpu.get_regs()?;
    registers.rip = entry;
    registers.rsp = STACK_TOP - 8;
    registers.rflags = 2;
    Ok(vcpu.set_regs(&registers)?)
}

/// Runs the guest to its end, and returns its console output. What traps goes to the device and
/// its gates.
fn run_vcpu(mut vcpu: VcpuFd, device: &KvmDevice, place: Place) -> Result<String> {
    let (mut console, mut config) = (Vec::new(), 0);
    // The device's part of an access to a data port of configuration space.
    let config_offset = |config: u32, port: u16| {
        let offset = u64::from(config & 0xfc) + u64::from(port - 0xcfc);
        (config & !0xff == 1 << 31 | DEVICE).then_some(offset)
    };
    loop {
        match vcpu.run() {
            Ok(VcpuExit::MmioWrite(gpa, data)) => match place.bar(gpa) {
                Some((pci::BAR_REGS, offset)) => device.gpu().regs_write(offset, data),
                Some((_, offset)) => {
                    if let Some((channel, value)) = doorbell(offset, data) {
                        device.gates.trap(channel, value);
                    }
                }
                None => {}
            },
            Ok(VcpuExit::MmioRead(gpa, data)) => match place.bar(gpa) {
                Some((pci::BAR_REGS, offset)) => device.gpu().regs_read(offset, data),
                _ => data.fill(0xff),
            },
            Ok(VcpuExit::IoOut(0xcf8, &[a, b, c, d])) => config = u32::from_le_bytes([a, b, c, d]),
            Ok(VcpuExit::IoOut(port @ 0xcfc..=0xcff, data)) => {
                if let Some(offset) = config_offset(config, port) {
                    device.gpu().config_write(offset, data);
                }
            }
            Ok(VcpuExit::IoIn(port @ 0xcfc..=0xcff, data)) => match config_offset(config, port) {
                Some(offset) => device.gpu().config_read(offset, data),
                None => data.fill(0xff),
            },
            Ok(VcpuExit::IoOut(PORT_CONSOLE, data)) => console.extend_from_slice(data),
            Ok(VcpuExit::IoOut(PORT_EXIT, _)) => return Ok(String::from_utf8(console)?),
            // A store to a protected doorbell page that KVM did not emulate: the guest repeats it.
            Ok(VcpuExit::MemoryFault { .. }) => drop(device.gates.fault_somewhere()),
            Err(error) if error.errno() == libc::EFAULT => drop(device.gates.fault_somewhere()),
            Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {}
            other => return Err(format!("unexpected exit {other:?}").into()),
        }
    }
}

#[allow(dead_code)]
fn main() -> Result<()> {
    let daemon = std::env::args_os().nth(1).ok_or("usage: kvm SOCKET")?;
    let report = run(daemon.as_ref(), Workload::Load(Load::default()))?;
    println!("{} launches", report.launches);
    Ok(())
}
