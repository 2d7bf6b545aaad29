//! Contents of guest memory when the guest starts.
//!
//! ```text
//! 0x500                    descriptor table, in Linux's order, with room for a TSS
//! 0x1000, 0x2000           top two levels of page tables
//! 0x3000..0x7000           first stack
//! 0x7000                   boot block (turnstile_abi::boot)
//! 0x8000, 0x9000           arguments, report
//! 0x10_0000                the guest program, as linked
//! 0x40_0000                page directories
//! 0x60_0000..0x80_0000     the guest's stack at CPL 3
//! 0x80_0000                directory of files, files, then the heap
//! ```

use super::{BLOB_BYTES_MAX, MEMORY_BYTES_MAX, MEMORY_BYTES_MIN, VmConfig, VmError};
use crate::attach::Request;
use crate::sys::fd::sealed_memory;
use linux_loader::loader::KernelLoader;
use linux_loader::loader::elf::Elf;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::io::{self, Cursor};
use turnstile_abi::PAGE_BYTES;
use turnstile_abi::boot::{
    BOOT_GPA, BootInfo, FILE_BYTES, File as BootFile, GDT, GDT_GPA, STOP_GPA, file_entry,
};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};

pub(super) const PML4_GPA: u64 = 0x1000;
const PDPT_GPA: u64 = 0x2000;
pub(super) const STACK_TOP: u64 = 0x7000;
const ARGS_GPA: u64 = 0x8000;
const REPORT_GPA: u64 = 0x9000;
const PROGRAM_END: u64 = 0x40_0000;
const DIRECTORIES_GPA: u64 = 0x40_0000;
const FILES_GPA: u64 = 0x80_0000;
/// Present, writable, for CPL 3 too.
const TABLE: u64 = 0b111;
/// As [`TABLE`], a large page.
const LARGE: u64 = TABLE | 1 << 7;
const GIB: u64 = 1 << 30;

/// Guest memory, in a file that the daemon maps too.
#[derive(Debug)]
pub(super) struct GuestRam {
    file: File,
    memory: GuestMemoryMmap<()>,
    bytes: u64,
}

fn memory_error(what: &'static str) -> impl FnOnce(io::Error) -> VmError {
    move |source| VmError::Memory { what, source }
}

fn guest_error(what: &'static str) -> impl FnOnce(vm_memory::GuestMemoryError) -> VmError {
    move |error| memory_error(what)(io::Error::other(error))
}

impl GuestRam {
    pub(super) fn new(config: &VmConfig) -> Result<Self, VmError> {
        let bytes = config.memory_bytes;
        if !(MEMORY_BYTES_MIN..=MEMORY_BYTES_MAX).contains(&bytes)
            || !bytes.is_multiple_of(PAGE_BYTES)
        {
            return Err(VmError::Config(
                "memory is 16 MiB to 3 GiB, a multiple of 4096",
            ));
        }
        if config.args.len() > BLOB_BYTES_MAX {
            return Err(VmError::Config("arguments are longer than 4096 bytes"));
        }
        let file =
            sealed_memory(c"turnstile-guest", bytes).map_err(memory_error("guest memory"))?;
        if config.prealloc {
            fallocate(&file, FallocateFlags::empty(), 0, bytes)
                .map_err(|errno| memory_error("guest memory")(errno.into()))?;
        }
        let copy = file.try_clone().map_err(memory_error("guest memory"))?;
        let range = (
            GuestAddress(0),
            bytes as usize,
            Some(FileOffset::new(copy, 0)),
        );
        let memory = GuestMemoryMmap::from_ranges_with_files([range])
            .map_err(|error| memory_error("guest memory")(io::Error::other(error)))?;
        Ok(Self {
            file,
            memory,
            bytes,
        })
    }

    pub(super) fn memory(&self) -> &GuestMemoryMmap<()> {
        &self.memory
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn file(&self) -> Result<File, VmError> {
        self.file.try_clone().map_err(memory_error("guest memory"))
    }

    /// What the VM requests of the daemon.
    pub(super) fn request(&self, config: &VmConfig) -> Result<Request, VmError> {
        Ok(Request {
            weight: config.weight,
            gpu_memory_bytes: config.gpu_memory_bytes,
            metadata: config.metadata.clone(),
            ..Request::new(&config.socket, &config.name, self.file()?, self.bytes)
        })
    }

    /// Loads the guest program and returns its entry.
    pub(super) fn load(&self, elf: &[u8]) -> Result<u64, VmError> {
        let loaded =
            Elf::load(&self.memory, None, &mut Cursor::new(elf), None).map_err(VmError::Load)?;
        if loaded.kernel_end > PROGRAM_END {
            return Err(VmError::Config("the guest program ends above 4 MiB"));
        }
        Ok(loaded.kernel_load.0)
    }

    /// Lays down arguments, files and the boot block.
    pub(super) fn boot(&self, config: &VmConfig, tsc_khz: u64) -> Result<(), VmError> {
        let write = |bytes: &[u8], gpa: u64| {
            self.memory
                .write_slice(bytes, GuestAddress(gpa))
                .map_err(guest_error("the guest's files"))
        };
        write(&config.args, ARGS_GPA)?;
        let page = |gpa: u64| gpa.next_multiple_of(PAGE_BYTES);
        let mut next = page(FILES_GPA + (config.files.len() * FILE_BYTES) as u64);
        for (i, (name, contents)) in config.files.iter().enumerate() {
            let file = BootFile {
                gpa: next,
                bytes: contents.len() as u64,
            };
            let entry = file_entry(name, file)
                .ok_or(VmError::Config("a file's name is longer than 48 bytes"))?;
            write(&entry, FILES_GPA + (i * FILE_BYTES) as u64)?;
            write(contents, next)?;
            next = page(next + file.bytes);
        }
        let info = BootInfo {
            memory_bytes: self.bytes,
            heap_gpa: next,
            tsc_khz,
            args_gpa: ARGS_GPA,
            args_bytes: config.args.len() as u64,
            report_gpa: REPORT_GPA,
            report_bytes: BLOB_BYTES_MAX as u64,
            files_gpa: FILES_GPA,
            files: config.files.len() as u64,
        };
        write(&info.encode(), BOOT_GPA)
    }

    /// Writes the descriptor table, and page tables that map the first 4 GiB and the aperture one
    /// to one.
    pub(super) fn start_tables(&self, aperture: u64, aperture_bytes: u64) -> Result<(), VmError> {
        let put = |word: u64, gpa: u64| {
            self.memory
                .write_obj(word, GuestAddress(gpa))
                .map_err(guest_error("page tables"))
        };
        for (i, entry) in GDT.iter().enumerate() {
            put(*entry, GDT_GPA + 8 * i as u64)?;
        }
        put(PDPT_GPA | TABLE, PML4_GPA)?;
        let first = aperture / GIB;
        let gibibytes = (0..4).chain(first..first + aperture_bytes.div_ceil(GIB));
        for (i, gibibyte) in gibibytes.enumerate() {
            let directory = DIRECTORIES_GPA + PAGE_BYTES * i as u64;
            put(directory | TABLE, PDPT_GPA + 8 * gibibyte)?;
            for page in 0..512 {
                put(gibibyte << 30 | page << 21 | LARGE, directory + 8 * page)?;
            }
        }
        Ok(())
    }

    /// Requests the guest to end.
    pub(super) fn request_stop(&self) {
        // PANIC: none; the address is within the least memory, so this cannot fail.
        let _ = self.memory.store(
            1u32,
            GuestAddress(STOP_GPA),
            std::sync::atomic::Ordering::SeqCst,
        );
    }

    /// What the guest left as its report.
    pub(super) fn report(&self) -> Vec<u8> {
        let mut report = vec![0; BLOB_BYTES_MAX];
        // PANIC: none, as above; an unread report is zeroes.
        let _ = self
            .memory
            .read_slice(&mut report, GuestAddress(REPORT_GPA));
        report
    }
}
