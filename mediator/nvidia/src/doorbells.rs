//! Finds the doorbells in a process's memory, in the kernel's list of its mappings
//! (`/proc/PID/maps`).
//!
//! A program writes the token of a channel with work to one word of a page that the driver maps for
//! it. This alone notifies the GPU of a launch.

/// NV..._NOTIFY_CHANNEL_PENDING. SOURCE: `clc361.h`.
pub(super) const DOORBELL_AT: u64 = 0x90;
/// Length of a mapping of doorbells. It is of a GPU's device file, shared and write-only. SOURCE:
/// measured on an H200 (580.159.04): CUDA has two, of which it rings one; all other mappings are
/// readable.
pub(super) const MAPPING_BYTES: u64 = 0x1_0000;
const MAPPING: &str = "-w-s";
const DEVICE: &str = "/dev/nvidia";
/// Maximum number of doorbells of a process: a processor has four breakpoints.
const DOORBELLS_MAX: usize = 4;

/// Addresses of the doorbells in the lines of a process's `maps`.
pub(super) fn doorbells<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<u64> {
    let all = lines.into_iter().filter_map(doorbell);
    all.take(DOORBELLS_MAX).collect()
}

fn doorbell(line: &str) -> Option<u64> {
    let mut words = line.split_ascii_whitespace();
    let (range, access) = (words.next()?, words.next()?);
    if access != MAPPING {
        return None;
    }
    let number = words.nth(3)?.strip_prefix(DEVICE)?;
    let is_gpu = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let (from, to) = range.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    let (from, to) = (address(from)?, address(to)?);
    let is_page = to.checked_sub(from)? == MAPPING_BYTES;
    (is_gpu && is_page).then(|| from + DOORBELL_AT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn doorbells_are_the_pages_that_are_only_written() {
        let maps = "\
200600000-200800000 rw-s 00000000 00:06 143                              /dev/nvidia0
7f8c865f1000-7f8c865f2000 rw-s 00000000 00:06 142                        /dev/nvidiactl
7f8e97c5e000-7f8e97c6e000 -w-s 00000000 00:06 143                        /dev/nvidia0
7f8e97c6e000-7f8e97c7e000 -w-s 00000000 00:06 143                        /dev/nvidia0
7f8e97c90000-7f8e97c91000 -w-s 00000000 00:06 143                        /dev/nvidia0
7f8e97ca0000-7f8e97cb0000 -w-s 00000000 00:06 142                        /dev/nvidiactl
7f8e97cc0000-7f8e97cd0000 -w-s 00000000 00:06 142
";
        assert_eq!(
            doorbells(maps.lines()),
            [0x7f8e_97c5_e090, 0x7f8e_97c6_e090]
        );
    }

    #[test]
    fn no_more_are_known_than_a_processor_can_watch() {
        let lines = (0..20_u64).map(|page| {
            let from = 0x7000_0000 + page * MAPPING_BYTES;
            format!(
                "{from:x}-{:x} -w-s 0 00:06 143 /dev/nvidia3",
                from + MAPPING_BYTES
            )
        });
        let lines: Vec<String> = lines.collect();
        let lines = lines.iter().map(String::as_str);
        assert_eq!(doorbells(lines).len(), DOORBELLS_MAX);
    }

    proptest! {
        #[test]
        fn no_line_does_harm(line in "\\PC*", from: u64, to: u64) {
            doorbells([line.as_str()]);
            doorbells([format!("{from:x}-{to:x} -w-s 0 00:06 143 /dev/nvidia0").as_str()]);
        }
    }
}
