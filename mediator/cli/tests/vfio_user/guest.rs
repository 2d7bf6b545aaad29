//! A guest as a thread, behind a VMM that speaks vfio-user: what QEMU does, without QEMU.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use turnstile_abi::Platform;
use turnstile_abi::boot::{BOOT_GPA, BootInfo, FILE_BYTES, File as BootFile, STOP_GPA, file_entry};
use turnstile_abi::pci::{BAR_DOORBELLS, BAR_REGS, VECTORS};
use turnstile_images::{ARGS_BYTES, Report, Workload};
use turnstile_vmm::vfio_user::{Client, irq, region};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap, MmapRegion, VolatileMemory};

const RAM_BYTES: u64 = 32 << 20;
const ARGS_GPA: u64 = 0x8000;
const REPORT_GPA: u64 = 0x9000;
const FILES_GPA: u64 = 0x10_0000;
const REGS: u32 = BAR_REGS as u32;
const DOORBELLS: u32 = BAR_DOORBELLS as u32;

/// The VMM and its guest.
pub(crate) struct Guest {
    client: Mutex<Client>,
    memory: GuestMemoryMmap<()>,
    file: File,
    /// Where the doorbells are, if they can be mapped.
    pages: Option<MmapRegion<()>>,
    eventfds: Vec<File>,
    since: Instant,
}

/// Seals of memory files of QEMU.
pub(crate) const SEALED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// A memory file with these seals.
pub(crate) fn memory_file(bytes: u64, seals: SealFlags) -> File {
    let fd = memfd_create("ram", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, bytes).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    File::from(fd)
}

impl Guest {
    /// Connects as a VMM does when the VM starts.
    pub(crate) fn new(socket: &Path) -> Self {
        Self::with_seals(socket, SEALED)
    }

    /// The same, with memory of these seals.
    pub(crate) fn with_seals(socket: &Path, seals: SealFlags) -> Self {
        let mut client = Client::connect(socket).unwrap();
        let file = memory_file(RAM_BYTES, seals);
        let range = (
            GuestAddress(0),
            RAM_BYTES as usize,
            Some(FileOffset::new(file.try_clone().unwrap(), 0)),
        );
        let memory = GuestMemoryMmap::from_ranges_with_files([range]).unwrap();
        // As a PC has it: a hole that is no memory, a piece without a file.
        client
            .dma_map(0, 0xa_0000, Some((file.as_fd(), 0)))
            .unwrap();
        client.dma_map(0xa_0000, 0x6_0000, None).unwrap();
        let high = Some((file.as_fd(), 0x10_0000));
        client
            .dma_map(0x10_0000, RAM_BYTES - 0x10_0000, high)
            .unwrap();
        let doorbells = client.region(DOORBELLS).unwrap();
        let pages = doorbells.file.map(|file| {
            let bytes = doorbells.areas[0].bytes as usize;
            MmapRegion::from_file(FileOffset::new(file, doorbells.file_offset), bytes).unwrap()
        });
        let eventfds: Vec<File> = (0..VECTORS)
            .map(|_| eventfd(0, EventfdFlags::NONBLOCK).unwrap().into())
            .collect();
        let fds: Vec<_> = eventfds.iter().map(AsFd::as_fd).collect();
        client.set_eventfds(irq::MSIX, 0, &fds).unwrap();
        Self {
            client: Mutex::new(client),
            memory,
            file,
            pages,
            eventfds,
            since: Instant::now(),
        }
    }

    pub(crate) fn client(&self) -> MutexGuard<'_, Client> {
        self.client.lock().unwrap()
    }

    /// The guest's memory file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Requests the end of the workload, as a VMM does.
    pub(crate) fn stop(&self) {
        self.write_u32(STOP_GPA, 1);
    }

    /// Runs a workload to its end.
    pub(crate) fn run(&self, workload: Workload) -> Report {
        let mut args = [0; ARGS_BYTES];
        args.copy_from_slice(&workload.encode());
        self.write_bytes(ARGS_GPA, &args);
        let files = turnstile_images::files();
        let page = |gpa: u64| gpa.next_multiple_of(4096);
        let mut next = page(FILES_GPA + (files.len() * FILE_BYTES) as u64);
        for (i, (name, text)) in files.iter().enumerate() {
            let file = BootFile {
                gpa: next,
                bytes: text.len() as u64,
            };
            let entry = file_entry(name, file).unwrap();
            self.write_bytes(FILES_GPA + (i * FILE_BYTES) as u64, &entry);
            self.write_bytes(next, text);
            next = page(next + file.bytes);
        }
        let info = BootInfo {
            memory_bytes: RAM_BYTES,
            heap_gpa: next,
            tsc_khz: 0,
            args_gpa: ARGS_GPA,
            args_bytes: args.len() as u64,
            report_gpa: REPORT_GPA,
            report_bytes: 4096,
            files_gpa: FILES_GPA,
            files: files.len() as u64,
        };
        self.write_bytes(BOOT_GPA, &info.encode());
        turnstile_images::run(self);
        let mut report = vec![0; 4096];
        self.read_bytes(REPORT_GPA, &mut report);
        Report::decode(&report).expect("a report")
    }
}

impl Platform for Guest {
    fn config_read(&self, offset: u8) -> u32 {
        let mut data = [0; 4];
        self.client()
            .read(region::CONFIG, offset.into(), &mut data)
            .unwrap();
        u32::from_le_bytes(data)
    }
    fn config_write(&self, offset: u8, value: u32) {
        let data = value.to_le_bytes();
        self.client()
            .write(region::CONFIG, offset.into(), &data)
            .unwrap();
    }
    fn reg_read32(&self, offset: u64) -> u32 {
        let mut data = [0; 4];
        self.client().read(REGS, offset, &mut data).unwrap();
        u32::from_le_bytes(data)
    }
    fn reg_read64(&self, offset: u64) -> u64 {
        let mut data = [0; 8];
        self.client().read(REGS, offset, &mut data).unwrap();
        u64::from_le_bytes(data)
    }
    fn reg_write32(&self, offset: u64, value: u32) {
        let data = value.to_le_bytes();
        self.client().write(REGS, offset, &data).unwrap();
    }
    fn reg_write64(&self, offset: u64, value: u64) {
        let data = value.to_le_bytes();
        self.client().write(REGS, offset, &data).unwrap();
    }
    fn ring_doorbell(&self, channel: u32, put: u32) {
        let at = u64::from(channel) * 4096;
        match &self.pages {
            Some(pages) => {
                let pages = pages.as_volatile_slice();
                pages.store(put, at as usize, Ordering::SeqCst).unwrap();
            }
            None => {
                let data = put.to_le_bytes();
                self.client().write(DOORBELLS, at, &data).unwrap();
            }
        }
    }
    fn aperture_read(&self, _: u64) -> u64 {
        panic!("the device has no aperture")
    }
    fn aperture_write(&self, _: u64, _: u64) {
        panic!("the device has no aperture")
    }
    fn read_u32(&self, gpa: u64) -> u32 {
        let at = GuestAddress(gpa);
        self.memory.load(at, Ordering::Acquire).unwrap()
    }
    fn read_u64(&self, gpa: u64) -> u64 {
        let at = GuestAddress(gpa);
        self.memory.load(at, Ordering::Acquire).unwrap()
    }
    fn write_u32(&self, gpa: u64, value: u32) {
        let at = GuestAddress(gpa);
        self.memory.store(value, at, Ordering::Release).unwrap();
    }
    fn write_u64(&self, gpa: u64, value: u64) {
        let at = GuestAddress(gpa);
        self.memory.store(value, at, Ordering::Release).unwrap();
    }
    fn read_bytes(&self, gpa: u64, bytes: &mut [u8]) {
        self.memory.read_slice(bytes, GuestAddress(gpa)).unwrap();
    }
    fn write_bytes(&self, gpa: u64, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(gpa)).unwrap();
    }
    fn msi(&self, vector: u16) -> (u64, u32) {
        (0xfee0_0000, vector.into())
    }
    fn wait(&self, at_most_ns: u64) {
        let timeout = Timespec {
            tv_sec: (at_most_ns / 1_000_000_000) as i64,
            tv_nsec: (at_most_ns % 1_000_000_000) as i64,
        };
        let mut fds: Vec<PollFd<'_>> = self
            .eventfds
            .iter()
            .map(|eventfd| PollFd::new(eventfd, PollFlags::IN))
            .collect();
        if poll(&mut fds, Some(&timeout)).unwrap_or(0) > 0 {
            for mut eventfd in &self.eventfds {
                let _ = eventfd.read(&mut [0; 8]);
            }
        }
    }
    fn now_ns(&self) -> u64 {
        self.since.elapsed().as_nanos() as u64
    }
}
