//! Lines that report what the driver hands out, from which a program's channels are known.
//!
//! For each call by which the driver makes or frees devices, channels and groups, one line goes to
//! `TURNSTILE_HANDLES`, a datagram socket or a file:
//!
//! ```text
//!   + PID CLIENT HANDLE CLASS PARENT ENGINE   (hexadecimal but for PID; ENGINE is a group's, and
//!                                             of a device the number of its GPU)
//!   - PID CLIENT HANDLE
//! ```
//!
//! SOURCE: open-gpu-kernel-modules 580.159.04: `nv_escape.h`, `nvos.h` (NVOS00, NVOS21, NVOS64),
//! `alloc/alloc_channel.h`.

use std::fmt::{self, Write};

/// NV_ESC_RM_FREE and NV_ESC_RM_ALLOC.
const FREE: u8 = 0x29;
const ALLOC: u8 = 0x2b;
/// NV01_DEVICE_0, KEPLER_CHANNEL_GROUP_A, and the low byte of all channel classes.
const DEVICE: u32 = 0x80;
const GROUP: u32 = 0xa06c;
const CHANNEL_LOW_BYTE: u32 = 0x6f;
/// Words of NVOS00, NVOS21 and NVOS64, and the index of their status.
const FREE_WORDS: (usize, usize) = (4, 3);
const ALLOC_WORDS: (usize, usize) = (8, 7);
const LONG_ALLOC_WORDS: (usize, usize) = (12, 10);
/// Maximum number of words of an argument that are read.
pub(crate) const WORDS_MAX: usize = LONG_ALLOC_WORDS.0;
/// Index of the engine in the parameters of a group, in words.
const GROUP_ENGINE_AT: usize = 3;
/// Index of the GPU's number in the parameters of a device, in words.
const DEVICE_NUMBER_AT: usize = 0;

/// Number of a relevant request, and how many words of its argument are read.
pub(crate) fn of_interest(request: u32) -> Option<(u8, usize)> {
    // CAST: the low byte is the number; the length has 14 bits.
    let (number, bytes) = (request as u8, (request >> 16 & 0x3fff) as usize);
    let words = match number {
        FREE => FREE_WORDS.0,
        ALLOC if bytes / 4 >= LONG_ALLOC_WORDS.0 => LONG_ALLOC_WORDS.0,
        ALLOC => ALLOC_WORDS.0,
        _ => return None,
    };
    (request >> 8 & 0xff == u32::from(b'F') && bytes / 4 >= words).then_some((number, words))
}

/// The line for a call that has returned, with `words` as its argument. `parameter` reads a word of
/// the parameters at an address.
pub(crate) fn line(
    number: u8,
    words: &[u32],
    pid: u32,
    parameter: impl FnOnce(u64, usize) -> u32,
) -> Option<Line> {
    let mut line = Line::default();
    match (number, words) {
        (FREE, &[client, _, handle, 0]) => {
            writeln!(line, "- {pid} {client:x} {handle:x}").ok()?;
        }
        (ALLOC, &[client, parent, handle, class, low, high, ..]) => {
            let at = if words.len() == LONG_ALLOC_WORDS.0 {
                LONG_ALLOC_WORDS.1
            } else {
                ALLOC_WORDS.1
            };
            let kept = matches!(class, DEVICE | GROUP) || class & 0xff == CHANNEL_LOW_BYTE;
            if words.get(at) != Some(&0) || !kept {
                return None;
            }
            let address = u64::from(high) << 32 | u64::from(low);
            let engine = match class {
                _ if address == 0 => 0,
                GROUP => parameter(address, GROUP_ENGINE_AT),
                DEVICE => parameter(address, DEVICE_NUMBER_AT),
                _ => 0,
            };
            writeln!(
                line,
                "+ {pid} {client:x} {handle:x} {class:x} {parent:x} {engine:x}"
            )
            .ok()?;
        }
        _ => return None,
    }
    Some(line)
}

/// A line, without a heap: the program's own allocator may be what is calling.
#[derive(Debug)]
pub(crate) struct Line {
    bytes: [u8; 96],
    length: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            bytes: [0; 96],
            length: 0,
        }
    }
}

impl Line {
    pub(crate) fn text(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        let room = self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(number: u8, words: &[u32]) -> Option<String> {
        let line = line(number, words, 77, |address, word| {
            assert_eq!(address, 0x1_0000_0020);
            [8, 0, 0, 9][word]
        })?;
        Some(String::from_utf8(line.text().to_vec()).unwrap())
    }

    #[test]
    fn requests_are_classified_by_type_number_and_length() {
        assert_eq!(of_interest(0xc020_462b), Some((ALLOC, 8)));
        assert_eq!(of_interest(0xc030_462b), Some((ALLOC, 12)));
        assert_eq!(of_interest(0xc010_4629), Some((FREE, 4)));
        assert_eq!(of_interest(0xc020_462a), None, "a control");
        assert_eq!(of_interest(0xc010_462b), None, "too short");
        assert_eq!(of_interest(0xc020_542b), None, "of a terminal");
    }

    #[test]
    fn successful_group_and_channel_requests_are_reported() {
        let group = [0xc1d0_0001, 1, 0x10, 0xa06c, 0x20, 1, 0, 0];
        let text = "+ 77 c1d00001 10 a06c 1 9\n";
        assert_eq!(encoded(ALLOC, &group).as_deref(), Some(text));
        let mut channel = [0xc1d0_0001, 0x10, 0x11, 0xc86f, 0, 0, 5, 5, 5, 5, 0, 5];
        let text = "+ 77 c1d00001 11 c86f 10 0\n";
        assert_eq!(encoded(ALLOC, &channel).as_deref(), Some(text));
        channel[10] = 0x1f;
        assert_eq!(encoded(ALLOC, &channel), None, "refused");
        let device = [0xc1d0_0001, 0xc1d0_0001, 1, 0x80, 0x20, 1, 0, 0];
        let text = "+ 77 c1d00001 1 80 c1d00001 8\n";
        assert_eq!(encoded(ALLOC, &device).as_deref(), Some(text));
        let subdevice = [1, 2, 3, 0x2080, 0, 0, 0, 0];
        assert_eq!(encoded(ALLOC, &subdevice), None);
        let text = "- 77 1 3\n";
        assert_eq!(encoded(FREE, &[1, 2, 3, 0]).as_deref(), Some(text));
        assert_eq!(encoded(FREE, &[1, 2, 3, 0x21]), None, "refused");
    }

    #[test]
    fn the_longest_line_has_room() {
        let most = [
            u32::MAX,
            u32::MAX,
            u32::MAX,
            GROUP,
            u32::MAX,
            u32::MAX,
            0,
            0,
        ];
        let line = line(ALLOC, &most, u32::MAX, |_, _| u32::MAX).unwrap();
        assert!(line.text().ends_with(b"ffffffff\n"));
    }
}
