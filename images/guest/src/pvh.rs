//! Start under a stock VMM, by the PVH protocol: in 32-bit mode without paging, with only the VMM's
//! start info. Builds in memory what the reference VMM provides, and continues at
//! [`crate::_start`].
//!
//! The first module (an initramfs, to the VMM) has the arguments and files; see
//! [`turnstile_abi::boot::module`].
//! SOURCE: Xen, docs/misc/pvh.pandoc and xen/include/public/arch-x86/hvm/start_info.h.

use core::arch::global_asm;
use core::arch::x86_64::__cpuid;
use core::cell::UnsafeCell;

use turnstile_abi::boot::{
    BOOT_GPA, BootInfo, FILE_BYTES, FILE_NAME_BYTES, GDT, GDT_GPA, PVH_REPORT_BYTES, PVH_REPORT_GPA,
    module,
};

/// `struct hvm_start_info`: its first word, and where the number and the list of modules are.
const START_MAGIC: u32 = 0x336e_c578;
const MODULES: u64 = 12;
const MODULE_LIST: u64 = 16;
/// CPUID leaf with the frequency of the time-stamp counter in kHz. SOURCE: the leaf that VMMs
/// adopted from VMware's.
const TSC_LEAF: u32 = 0x4000_0010;
/// Free memory begins behind the program and its stacks.
const HEAP_GPA: u64 = 0x80_0000;

/// The descriptors to copy to [`GDT_GPA`].
static DESCRIPTORS: [u64; GDT.len()] = GDT;

/// Page tables: the top, the next, and four directories that map 4 GiB one to one, for CPL 3 too.
#[repr(C, align(4096))]
struct Tables(UnsafeCell<[[u64; 512]; 6]>);

// SAFETY: there is one processor; the entry fills the tables before any other code runs, and from
// then on only the processor uses them.
unsafe impl Sync for Tables {}

static TABLES: Tables = Tables(UnsafeCell::new([[0; 512]; 6]));

#[repr(C, align(16))]
struct Stack(UnsafeCell<[u8; 8192]>);

// SAFETY: there is one processor, and this is its stack until the guest proper has one.
unsafe impl Sync for Stack {}

static STACK: Stack = Stack(UnsafeCell::new([0; 8192]));

global_asm!(
    // Owner "Xen", type 18: the entry.
    ".pushsection .note.pvh, \"a\", @note",
    ".long 4, 4, 18",
    ".asciz \"Xen\"",
    ".long pvh_entry",
    ".popsection",
    ".code32",
    ".globl pvh_entry",
    "pvh_entry:",
    "cld",
    "mov ebp, ebx",
    "lea esp, [{stack} + 8192]",
    "mov esi, offset {gdt}",
    "mov edi, {gdt_gpa}",
    "mov ecx, {gdt_bytes} / 4",
    "rep movsd",
    // PML4 and PDPT, then 2048 large pages; present, writable, for CPL 3.
    "mov edi, offset {tables}",
    "lea eax, [edi + 0x1007]",
    "mov [edi], eax",
    "add edi, 0x1000",
    "lea eax, [edi + 0x1007]",
    "mov ecx, 4",
    "2: mov [edi], eax",
    "add eax, 0x1000",
    "add edi, 8",
    "dec ecx",
    "jnz 2b",
    "mov edi, offset {tables} + 0x2000",
    "mov eax, 0x87",
    "mov ecx, 2048",
    "3: mov [edi], eax",
    "add eax, 0x200000",
    "add edi, 8",
    "dec ecx",
    "jnz 3b",
    // PAE, SSE; long mode; paging.
    "mov eax, 0x620",
    "mov cr4, eax",
    "mov eax, offset {tables}",
    "mov cr3, eax",
    "mov ecx, 0xc0000080",
    "mov eax, 0x100",
    "xor edx, edx",
    "wrmsr",
    "mov eax, {gdt_gpa}",
    "push eax",
    "mov eax, ({gdt_bytes} - 1) << 16",
    "push eax",
    "lgdt [esp + 2]",
    "mov eax, 0x80010033",
    "mov cr0, eax",
    "mov eax, 0x10",
    "push eax",
    "mov eax, offset pvh_long",
    "push eax",
    "retf",
    ".code64",
    "pvh_long:",
    "mov eax, 0x18",
    "mov ds, eax",
    "mov es, eax",
    "mov ss, eax",
    "xor eax, eax",
    "mov fs, eax",
    "mov gs, eax",
    "mov edi, ebp",
    "lea rsp, [{stack} + 8192]",
    "call {main}",
    "ud2",
    stack = sym STACK,
    gdt = sym DESCRIPTORS,
    gdt_gpa = const GDT_GPA,
    gdt_bytes = const size_of_val(&GDT),
    tables = sym TABLES,
    main = sym pvh_main,
);

fn word<T: Copy>(at: u64) -> T {
    // SAFETY: the VMM's start info and the data that it names are in the first 4 GiB, which are
    // mapped one to one; none of it is a Rust object.
    unsafe { (at as *const T).read_unaligned() }
}

fn put<T: Copy>(at: u64, value: T) {
    // SAFETY: as for `word`; the written memory is the module's, or not in use yet.
    unsafe { (at as *mut T).write_unaligned(value) }
}

/// Runs at CPL 0 in long mode. Without a module the guest proper finds no boot block and reports
/// that.
extern "C" fn pvh_main(start: u64) -> ! {
    if word::<u32>(start) == START_MAGIC && word::<u32>(start + MODULES) > 0 {
        let list: u64 = word(start + MODULE_LIST);
        boot_block(word(list), word(list + 8));
    }
    crate::_start()
}

/// Makes the boot block from the module; the addresses of its files count from the module's begin.
fn boot_block(at: u64, bytes: u64) {
    let head = |i: u64| word::<u64>(at + 8 * i);
    if bytes < module::HEAD_BYTES || head(0) != module::MAGIC {
        return;
    }
    let (args_bytes, files) = (head(1), head(2));
    let files_gpa = at + module::HEAD_BYTES + args_bytes;
    for i in 0..files {
        let gpa = files_gpa + i * FILE_BYTES as u64 + FILE_NAME_BYTES as u64;
        put(gpa, word::<u64>(gpa) + at);
    }
    // CPUID.40000010: eax. Nothing else of the leaf is used.
    let tsc_khz = u64::from(__cpuid(TSC_LEAF).eax);
    let info = BootInfo {
        // The module is near the end of memory; the rest behind it is not used.
        memory_bytes: at & !0xfff,
        heap_gpa: HEAP_GPA,
        tsc_khz,
        args_gpa: at + module::HEAD_BYTES,
        args_bytes,
        report_gpa: PVH_REPORT_GPA,
        report_bytes: PVH_REPORT_BYTES,
        files_gpa,
        files,
    };
    for (gpa, byte) in (BOOT_GPA..).zip(info.encode()) {
        put(gpa, byte);
    }
}
