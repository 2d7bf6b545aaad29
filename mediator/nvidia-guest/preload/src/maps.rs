//! Mappings of the process, from `/proc/self/maps`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Bits of mmap(2).
    pub(crate) protection: i32,
    pub(crate) shared: bool,
    pub(crate) offset: u64,
    pub(crate) inode: u64,
    /// The file's name; empty if other processes cannot open it.
    pub(crate) name: String,
}

impl Mapping {
    /// Whether other processes may have it.
    pub(crate) const fn is_shared_file(&self) -> bool {
        self.shared && !self.name.is_empty()
    }

    /// Its file. One that has no name any more can be opened with `CAP_SYS_ADMIN` alone.
    ///
    /// # Errors
    /// As open(2).
    pub(crate) fn open(&self) -> io::Result<File> {
        let write = self.protection & libc::PROT_WRITE != 0;
        let open = |path: &str| OpenOptions::new().read(true).write(write).open(path);
        let is_same = |file: &File| file.metadata().is_ok_and(|of| of.ino() == self.inode);
        match open(&self.name) {
            Ok(file) if is_same(&file) => Ok(file),
            _ => open(&format!(
                "/proc/self/map_files/{:x}-{:x}",
                self.from, self.to
            )),
        }
    }
}

/// The mapping of a line. SOURCE: proc_pid_maps(5).
fn mapping(line: &str) -> Option<Mapping> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
    let bits = words.next()?.as_bytes();
    let bit = |at: usize, letter: u8, value: i32| {
        if bits.get(at) == Some(&letter) {
            value
        } else {
            0
        }
    };
    let protection = bit(0, b'r', libc::PROT_READ)
        | bit(1, b'w', libc::PROT_WRITE)
        | bit(2, b'x', libc::PROT_EXEC);
    let offset = hexadecimal(words.next()?)?;
    let inode = words.nth(1)?.parse().ok()?;
    let name = words.next().unwrap_or_default();
    let named = name.starts_with('/') && name != "/dev/zero";
    Some(Mapping {
        from: hexadecimal(from)?,
        to: hexadecimal(to)?,
        protection,
        shared: bits.get(3) == Some(&b's'),
        offset,
        inode,
        name: if named {
            name.to_owned()
        } else {
            String::new()
        },
    })
}

/// All mappings, in order.
///
/// # Errors
/// As read(2).
pub(crate) fn all() -> std::io::Result<Vec<Mapping>> {
    let text = std::fs::read_to_string("/proc/self/maps")?;
    Ok(text.lines().filter_map(mapping).collect())
}

/// Those that overlap a range, cut to it. `None` if a part of it is not mapped.
pub(crate) fn within(all: &[Mapping], from: u64, to: u64) -> Option<Vec<Mapping>> {
    let mut at = from;
    let mut found = Vec::new();
    for mapping in all
        .iter()
        .filter(|mapping| mapping.to > from && mapping.from < to)
    {
        if mapping.from > at {
            return None;
        }
        let mut part = mapping.clone();
        part.offset += at - mapping.from;
        part.from = at;
        part.to = mapping.to.min(to);
        at = part.to;
        found.push(part);
    }
    (at == to).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let line =
            "7f358e000000-7f358e200000 rw-s 00400000 00:01 4711      /memfd:guest-ram (deleted)";
        let read = mapping(line).unwrap();
        assert_eq!(
            (read.offset, read.inode, read.is_shared_file()),
            (0x40_0000, 4711, true)
        );
        assert_eq!(read.protection, libc::PROT_READ | libc::PROT_WRITE);
        let private = mapping("1000-3000 r--p 00000000 00:00 0").unwrap();
        assert!(!private.shared && private.name.is_empty());
        let zero = mapping("1000-3000 rw-s 00000000 00:01 9 /dev/zero (deleted)").unwrap();
        assert!(zero.shared && !zero.is_shared_file());
        assert!(all().unwrap().len() > 3);
    }

    #[test]
    fn a_range_is_cut_out_and_a_gap_is_refused() {
        let all = [
            mapping("1000-3000 rw-p 5000 00:00 0").unwrap(),
            mapping("3000-4000 rw-p 0 00:00 0").unwrap(),
        ];
        let parts = within(&all, 0x2000, 0x4000).unwrap();
        assert_eq!(
            (parts.len(), parts[0].offset, parts[1].offset),
            (2, 0x6000, 0)
        );
        assert!(within(&all, 0x2000, 0x5000).is_none());
        assert!(within(&all, 0x0, 0x2000).is_none());
    }
}
