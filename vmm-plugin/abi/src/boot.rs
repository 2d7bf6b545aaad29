//! The boot block, in which the reference VMM passes parameters to a guest at [`BOOT_GPA`], and the
//! place of the guest's report.
//!
//! All fields are little-endian u64 except `stop`. Files are in guest memory by name, with a
//! directory.
//!
//! | offset | field |
//! |---|---|
//! | 0 | [`MAGIC`] |
//! | 8 | bytes of guest memory, from address 0 |
//! | 16 | first byte of guest memory that is free |
//! | 24 | kHz of the time-stamp counter; 0 where it is not to be used |
//! | 32 | `stop` u32: not zero once the VMM wants the guest to end; an interrupt on vector 0 goes with it |
//! | 40, 48 | arguments: address, bytes |
//! | 56, 64 | report: address, bytes that it may have |
//! | 72, 80 | directory of files: address, entries |
//!
//! A directory entry has [`FILE_BYTES`]: the name, padded with zeroes to [`FILE_NAME_BYTES`],
//! address u64, bytes u64.

use crate::Platform;

/// The first module that a stock VMM passes to the guest: a head, then arguments, a directory of
/// files, and the files. Addresses in the directory count from the module's begin.
pub mod module {
    /// First word of the head; bytes of arguments and number of files follow, each a u64.
    pub const MAGIC: u64 = u64::from_le_bytes(*b"TSMODU01");
    /// Bytes of the head.
    pub const HEAD_BYTES: u64 = 24;

    /// The head.
    pub fn head(args_bytes: u64, files: u64) -> [u8; HEAD_BYTES as usize] {
        let mut bytes = [0; HEAD_BYTES as usize];
        for (room, word) in bytes.chunks_exact_mut(8).zip([MAGIC, args_bytes, files]) {
            room.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// Where the descriptor table is when the guest starts. It is the guest's from then on.
pub const GDT_GPA: u64 = 0x500;
/// Segment descriptors, in Linux's order: null, 32-bit code, code, data, 32-bit user code, user
/// data, user code, null, and room for a TSS (two words).
pub const GDT: [u64; 10] = [
    0,
    0x00cf_9b00_0000_ffff,
    0x00af_9b00_0000_ffff,
    0x00cf_9300_0000_ffff,
    0x00cf_fb00_0000_ffff,
    0x00cf_f300_0000_ffff,
    0x00af_fb00_0000_ffff,
    0,
    0,
    0,
];

/// Address at which a guest started by the PVH protocol leaves its report.
pub const PVH_REPORT_GPA: u64 = 0x3000;
/// Most bytes of the report at [`PVH_REPORT_GPA`].
pub const PVH_REPORT_BYTES: u64 = 4096;

/// Where the block is.
pub const BOOT_GPA: u64 = 0x7000;
/// Bytes of the block.
pub(crate) const BOOT_BYTES: usize = 88;
/// First word of the block.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TSBOOT01");
/// Where `stop` is.
pub const STOP_GPA: u64 = BOOT_GPA + 32;
/// Bytes of a directory entry.
pub const FILE_BYTES: usize = 64;
/// Bytes of a name in it.
pub const FILE_NAME_BYTES: usize = 48;
/// I/O port that ends the run; the byte written is the guest's exit code.
pub const PORT_EXIT: u16 = 0xf4;
/// I/O port for console output: the VMM collects the bytes written to it.
pub const PORT_CONSOLE: u16 = 0xe9;

/// The block, without `stop`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BootInfo {
    /// Bytes of guest memory.
    pub memory_bytes: u64,
    /// First byte of guest memory that is free.
    pub heap_gpa: u64,
    /// kHz of the time-stamp counter.
    pub tsc_khz: u64,
    /// Where the arguments are.
    pub args_gpa: u64,
    /// Bytes of arguments.
    pub args_bytes: u64,
    /// Where the report goes.
    pub report_gpa: u64,
    /// Bytes that the report may have.
    pub report_bytes: u64,
    /// Where the directory of files is.
    pub files_gpa: u64,
    /// Files.
    pub files: u64,
}

/// A file in guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File {
    /// Address.
    pub gpa: u64,
    /// Bytes.
    pub bytes: u64,
}

impl BootInfo {
    /// The block, with `stop` zero.
    pub fn encode(&self) -> [u8; BOOT_BYTES] {
        let words = [
            MAGIC,
            self.memory_bytes,
            self.heap_gpa,
            self.tsc_khz,
            0,
            self.args_gpa,
            self.args_bytes,
            self.report_gpa,
            self.report_bytes,
            self.files_gpa,
            self.files,
        ];
        let mut bytes = [0; BOOT_BYTES];
        for (room, word) in bytes.chunks_exact_mut(8).zip(words) {
            room.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads the block; `None` where there is none.
    pub fn read<P: Platform>(platform: &P) -> Option<Self> {
        let word = |i: u64| platform.read_u64(BOOT_GPA + 8 * i);
        (word(0) == MAGIC).then(|| Self {
            memory_bytes: word(1),
            heap_gpa: word(2),
            tsc_khz: word(3),
            args_gpa: word(5),
            args_bytes: word(6),
            report_gpa: word(7),
            report_bytes: word(8),
            files_gpa: word(9),
            files: word(10),
        })
    }

    /// Finds a file by name.
    pub fn file<P: Platform>(&self, platform: &P, name: &str) -> Option<File> {
        (0..self.files).find_map(|i| {
            let at = self.files_gpa + i * FILE_BYTES as u64;
            let mut found = [0; FILE_NAME_BYTES];
            platform.read_bytes(at, &mut found);
            (found == file_name(name)?).then(|| File {
                gpa: platform.read_u64(at + FILE_NAME_BYTES as u64),
                bytes: platform.read_u64(at + FILE_NAME_BYTES as u64 + 8),
            })
        })
    }
}

/// A directory entry; `None` where the name is too long.
pub fn file_entry(name: &str, file: File) -> Option<[u8; FILE_BYTES]> {
    let mut entry = [0; FILE_BYTES];
    entry[..FILE_NAME_BYTES].copy_from_slice(&file_name(name)?);
    entry[FILE_NAME_BYTES..FILE_NAME_BYTES + 8].copy_from_slice(&file.gpa.to_le_bytes());
    entry[FILE_NAME_BYTES + 8..].copy_from_slice(&file.bytes.to_le_bytes());
    Some(entry)
}

/// Whether the VMM wants the guest to end.
pub fn stop_requested<P: Platform>(platform: &P) -> bool {
    platform.read_u32(STOP_GPA) != 0
}

fn file_name(name: &str) -> Option<[u8; FILE_NAME_BYTES]> {
    let mut padded = [0; FILE_NAME_BYTES];
    padded
        .get_mut(..name.len())?
        .copy_from_slice(name.as_bytes());
    Some(padded)
}
