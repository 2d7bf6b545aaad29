//! The processor: descriptors, interrupts, sleep, ports.
//!
//! At CPL 3 interrupts are disabled (IF = 0) except while sleeping, so that an interrupt between
//! the check for work and the sleep is not missed. Sleeping and ports need CPL 0, which is entered
//! by `UD2` with the number of a call in rax. Software interrupts, SYSCALL and a lasting IOPL are
//! not available under every KVM that this guest runs on.

use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use turnstile_abi::boot::{GDT_GPA, PORT_CONSOLE, PORT_EXIT};

/// Values of rax that make `UD2` a call: sleep, write a byte or a word (ecx) to a port (dx), read a
/// word from a port (to eax).
const SLEEP: u64 = 0x5ee9;
const OUT8: u64 = 0x5eea;
const OUT32: u64 = 0x5eeb;
const IN32: u64 = 0x5eec;
/// The port of ACPI's sleep control in Cloud Hypervisor, and what ends the machine there: state 5.
/// SOURCE: Cloud Hypervisor 54, vmm/src/device_manager.rs and devices/src/acpi.rs.
const PORT_SLEEP: u16 = 0x600;
const SLEEP_OFF: u8 = 5 << 2 | 1 << 5;
/// Interrupt vector of the timer; the device's follow.
const TIMER_VECTOR: u32 = 0x40;
/// Interrupt vector of the device's vector 0.
pub const DEVICE_VECTOR: u32 = 0x50;
/// Interrupt vectors that have a handler, the timer's and the device's: it ends the sleep, no more.
const HANDLED: core::ops::Range<usize> = 0x40..0x70;
/// Where messages to this processor's local APIC go, and where its registers are.
pub const APIC: u64 = 0xfee0_0000;
const APIC_EOI: u64 = 0xb0;
const APIC_SPURIOUS: u64 = 0xf0;
const APIC_TIMER: u64 = 0x320;
const APIC_TIMER_COUNT: u64 = 0x380;
const APIC_TIMER_DIVIDE: u64 = 0x3e0;
/// Selectors of the VMM's descriptor table ([`GDT_GPA`]); the TSS is its entry 8.
const KERNEL_CODE: u64 = 0x10;
const USER_DATA: u64 = 0x2b;
const USER_CODE: u64 = 0x33;
const TSS_SELECTOR: u16 = 0x40;
/// IF = 0.
const USER_FLAGS: u64 = 0x0002;
const KERNEL_STACK_BYTES: usize = 16 << 10;
/// Top of the stack at CPL 3; the VMM keeps the memory below free.
const USER_STACK_TOP: u64 = 0x80_0000;

/// Memory that the processor itself reads, or that is touched at one place only.
#[repr(C, align(4096))]
struct Raw<T>(UnsafeCell<T>);

// SAFETY: there is one processor, and `start` writes each of these before any other code uses it.
unsafe impl<T> Sync for Raw<T> {}

static IDT: Raw<[[u64; 2]; 256]> = Raw(UnsafeCell::new([[0; 2]; 256]));
static TSS: Raw<[u32; 26]> = Raw(UnsafeCell::new([0; 26]));
static KERNEL_STACK: Raw<[u8; KERNEL_STACK_BYTES]> = Raw(UnsafeCell::new([0; KERNEL_STACK_BYTES]));

global_asm!(
    ".macro save_and_call target",
    "push rax; push rcx; push rdx; push rsi; push rdi; push r8; push r9; push r10; push r11; push rbp",
    "mov rbp, rsp",
    "and rsp, -16",
    "cld",
    "call \\target",
    "mov rsp, rbp",
    "pop rbp; pop r11; pop r10; pop r9; pop r8; pop rdi; pop rsi; pop rdx; pop rcx; pop rax",
    "iretq",
    ".endm",
    "enter_interrupt: save_and_call {on_interrupt}",
    // Exceptions: 32 entries, 16 bytes apart, push their number and show the frame.
    ".altmacro",
    ".macro exception n",
    ".balign 16",
    "push \\n",
    "jmp enter_fault",
    ".endm",
    ".balign 16",
    "exception_table:",
    ".set i, 0",
    ".rept 32",
    "exception %i",
    ".set i, i + 1",
    ".endr",
    ".noaltmacro",
    "enter_fault:",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {on_fault}",
    "enter_illegal:",
    "cmp rax, {sleep}",
    "je 2f",
    "cmp rax, {out8}",
    "je 3f",
    "cmp rax, {out32}",
    "je 4f",
    "cmp rax, {in32}",
    "je 5f",
    "push 6",
    "jmp enter_fault",
    "2: sti",
    "hlt",
    "cli",
    "jmp 6f",
    "3: mov eax, ecx",
    "out dx, al",
    "jmp 6f",
    "4: mov eax, ecx",
    "out dx, eax",
    "jmp 6f",
    "5: in eax, dx",
    "6: add qword ptr [rsp], 2",
    "iretq",
    on_interrupt = sym on_interrupt,
    on_fault = sym on_fault,
    sleep = const SLEEP,
    out8 = const OUT8,
    out32 = const OUT32,
    in32 = const IN32,
);

unsafe extern "C" {
    fn enter_interrupt();
    fn enter_illegal();
    fn exception_table();
}

extern "C" fn on_interrupt() {
    apic_write(APIC_EOI, 0);
}

extern "C" fn on_fault(frame: *const [u64; 6]) -> ! {
    // SAFETY: the stubs pass the stack pointer after the processor pushed at least five words, and
    // the stub one more.
    let frame = unsafe { frame.read() };
    console(b"Guest fault (number, then error code or address):");
    for word in frame {
        console(b" ");
        for shift in (0..64).step_by(4).rev() {
            console(&[b"0123456789abcdef"[(word >> shift & 15) as usize]]);
        }
    }
    console(b"\n");
    exit(0xff)
}

#[repr(C, packed)]
struct TablePointer(u16, u64);

/// Sets up interrupts and goes on with `body` at CPL 3. To be called once, first thing, at CPL 0.
pub fn start(body: extern "C" fn() -> !) -> ! {
    let address = |function: unsafe extern "C" fn()| function as *const () as u64;
    let gate = |vector: usize, target: u64| {
        let entry = [
            target & 0xffff | KERNEL_CODE << 16 | 0x8e00 << 32 | (target >> 16 & 0xffff) << 48,
            target >> 32,
        ];
        // SAFETY: `vector` is below 256 wherever this is called, and nothing else writes the table.
        unsafe { IDT.0.get().cast::<[u64; 2]>().add(vector).write(entry) }
    };
    for vector in 0..32 {
        gate(vector, address(exception_table) + 16 * vector as u64);
    }
    gate(6, address(enter_illegal));
    for vector in HANDLED {
        gate(vector, address(enter_interrupt));
    }
    // SAFETY: the table is static and filled in; the stack and the TSS are this processor's own;
    // the VMM left room for the TSS descriptor, two words, in the descriptor table at GDT_GPA.
    unsafe {
        let pointer = TablePointer(4095, IDT.0.get() as u64);
        asm!("lidt [{}]", in(reg) &raw const pointer);
        let stack_top = KERNEL_STACK.0.get() as u64 + KERNEL_STACK_BYTES as u64;
        let tss = TSS.0.get().cast::<u32>();
        tss.add(1).write(stack_top as u32);
        tss.add(2).write((stack_top >> 32) as u32);
        let at = tss as u64;
        let descriptor = (GDT_GPA as *mut u64).add(usize::from(TSS_SELECTOR) / 8);
        descriptor.write(103 | (at & 0xff_ffff) << 16 | 0x89 << 40 | (at >> 24 & 0xff) << 56);
        descriptor.add(1).write(at >> 32);
        asm!("ltr {0:x}", in(reg) TSS_SELECTOR);
    }
    // Before this, messages from the device would be lost. Spurious interrupts have no handler and
    // need none: the local APIC raises them only for priorities that are never masked here.
    apic_write(APIC_SPURIOUS, 0x1ff);
    apic_write(APIC_TIMER_DIVIDE, 0xb);
    apic_write(APIC_TIMER, TIMER_VECTOR);
    // SAFETY: selectors are those of the VMM's descriptor table; `body` never returns; its stack is
    // aligned as after a call.
    unsafe {
        asm!(
            "push {ss}",
            "push {sp}",
            "push {flags}",
            "push {cs}",
            "push {ip}",
            "iretq",
            ss = const USER_DATA,
            sp = in(reg) USER_STACK_TOP - 8,
            flags = const USER_FLAGS,
            cs = const USER_CODE,
            ip = in(reg) body as *const () as u64,
            options(noreturn),
        )
    }
}

fn apic_write(register: u64, value: u32) {
    // SAFETY: the local APIC's registers are mapped one to one, for both privilege levels.
    unsafe { ((APIC + register) as *mut u32).write_volatile(value) }
}

/// Sets the timer to interrupt once, in `ns` nanoseconds: the local APIC's clock runs at 1 GHz
/// under KVM.
pub fn arm_timer(ns: u64) {
    apic_write(APIC_TIMER_COUNT, ns.clamp(1, u32::MAX.into()) as u32);
}

/// Sleeps until an interrupt.
pub fn sleep() {
    // SAFETY: the handler of `UD2` steps over it, restores all registers and returns here.
    unsafe { asm!("ud2", in("rax") SLEEP) }
}

/// The time-stamp counter.
pub fn time_stamp() -> u64 {
    // SAFETY: reads a counter; CR4.TSD is clear.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Ends the run: by the port of the reference VMM, then by that of Cloud Hypervisor.
pub fn exit(code: u8) -> ! {
    loop {
        out8(PORT_EXIT, code);
        out8(PORT_SLEEP, SLEEP_OFF);
    }
}

/// Writes to the VMM's console.
pub fn console(bytes: &[u8]) {
    for byte in bytes {
        out8(PORT_CONSOLE, *byte);
    }
}

fn out8(port: u16, value: u8) {
    // SAFETY: the VMM's ports end the run, collect text or access configuration space, never this
    // guest's memory. The handler of `UD2` changes rax only.
    unsafe {
        asm!("ud2", inout("rax") OUT8 => _, in("edx") u32::from(port), in("ecx") u32::from(value))
    }
}

/// Writes a word to a port of PCI configuration mechanism 1.
pub fn out32(port: u16, value: u32) {
    // SAFETY: as for `out8`.
    unsafe { asm!("ud2", inout("rax") OUT32 => _, in("edx") u32::from(port), in("ecx") value) }
}

/// Reads a word from a port of PCI configuration mechanism 1.
pub fn in32(port: u16) -> u32 {
    let value: u64;
    // SAFETY: as for `out8`.
    unsafe { asm!("ud2", inout("rax") IN32 => value, in("edx") u32::from(port)) }
    value as u32
}
