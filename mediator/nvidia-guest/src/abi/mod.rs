//! Tables of driver releases: what a guest may call, and how long its parameters are; numbers and
//! structures of the calls that the daemon makes.
//!
//! `tables/generate.py` makes a table out of NVIDIA's published headers. A release without a table
//! is refused: its parameters could have other lengths, and addresses at other places.

mod layout;
mod map_call;
pub mod numbers;
mod parse;
mod rows;

use std::collections::BTreeMap;
use std::sync::OnceLock;

pub use layout::{
    Descriptor, LayoutError, Link, Node, Parts, descriptors, number, parts, read_u32, read_u64,
    status_at, write_u32, write_u64,
};

pub(crate) use map_call::{MAP_CLIENT_AT, MAP_MEMORY_AT, MAP_STATUS_AT, MapCall};
pub use rows::rows;

/// Tables, as generated.
const TABLES: [&str; 5] = [
    include_str!("../../tables/570.211.01.table"),
    include_str!("../../tables/575.64.05.table"),
    include_str!("../../tables/580.159.04.table"),
    include_str!("../../tables/590.48.01.table"),
    include_str!("../../tables/595.45.04.table"),
];

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
pub enum AbiError {
    /// The release has none.
    #[error(
        "NVIDIA driver {wanted} is not known, and its calls are not used; known: {known}; nearest: {nearest}"
    )]
    Unknown {
        /// The release.
        wanted: String,
        /// All that have one.
        known: String,
        /// The one with the closest number.
        nearest: String,
    },
}

/// How a table was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// It was run on a GPU.
    Run,
    /// It was made of the headers, and not run.
    HeadersOnly,
}

/// A buffer with its address in parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Embedded {
    /// Byte of the address.
    pub at: usize,
    /// Byte of the number of elements.
    pub count_at: usize,
    /// Bytes of an element.
    pub element_bytes: usize,
    /// The number of elements is the count's square.
    pub squared: bool,
}

/// Layout of parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Their bytes; `None` if the headers have none: up to a page, without addresses.
    pub bytes: Option<usize>,
    /// Buffers in them.
    pub buffers: Vec<Embedded>,
    /// Bytes of addresses that the driver never gets.
    pub nulls: Vec<usize>,
    /// Bytes of handles of clients.
    pub clients: Vec<usize>,
    /// Bytes and widths of descriptors.
    pub descriptors: Vec<(usize, usize)>,
    /// Byte of the status.
    pub status: Option<usize>,
    /// Byte of the address of the range that a call of unified memory names.
    pub base: Option<usize>,
    /// Answered with success, without the driver.
    pub answered: bool,
    /// Answered with parameters of zero, which is an empty list.
    pub empty: bool,
}

/// A structure of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Structure {
    /// Its bytes.
    pub bytes: usize,
    /// Byte of each field that is used.
    pub fields: BTreeMap<String, usize>,
}

/// A release's table.
#[derive(Clone, Debug)]
pub struct Release {
    /// The table itself.
    pub text: String,
    /// The driver's version.
    pub version: String,
    /// The version of the headers.
    pub headers: String,
    /// How it was tried.
    pub tried: Tried,
    /// Escapes, with the sizes of their argument.
    pub escapes: BTreeMap<u8, Vec<usize>>,
    /// Classes.
    pub classes: BTreeMap<u32, Layout>,
    /// Controls.
    pub controls: BTreeMap<u32, Layout>,
    /// Calls of unified memory.
    pub uvm: BTreeMap<u32, Layout>,
    /// Numbers that the daemon uses, by the vendor's names. One that a release lacks is absent.
    pub numbers: BTreeMap<String, u32>,
    /// Structures that the daemon uses, by the vendor's names.
    pub structures: BTreeMap<String, Structure>,
}

impl Release {
    /// Reads a table; `None` if a line has another form.
    pub fn of_table(text: &str) -> Option<Self> {
        parse::table(text)
    }

    /// What an operator should know about the table, if anything.
    pub fn warning(&self) -> Option<String> {
        (self.tried == Tried::HeadersOnly).then(|| {
            format!(
                "NVIDIA driver {}: its table is made of the vendor's headers, and was not run on a GPU",
                self.version
            )
        })
    }
}

/// All tables.
pub fn releases() -> &'static [Release] {
    static RELEASES: OnceLock<Vec<Release>> = OnceLock::new();
    // The files are part of the program, and a test reads each; one that cannot be read is absent.
    RELEASES.get_or_init(|| {
        TABLES
            .iter()
            .filter_map(|text| parse::table(text))
            .collect()
    })
}

/// The table of a driver's version.
///
/// # Errors
/// [`AbiError::Unknown`], with the versions that have one.
pub fn release(version: &str) -> Result<&'static Release, AbiError> {
    let found = releases().iter().find(|release| release.version == version);
    found.ok_or_else(|| {
        let names: Vec<&str> = releases()
            .iter()
            .map(|release| release.version.as_str())
            .collect();
        let nearest = names.iter().min_by_key(|name| distance(name, version));
        AbiError::Unknown {
            wanted: version.to_owned(),
            known: names.join(", "),
            nearest: nearest.copied().unwrap_or_default().to_owned(),
        }
    })
}

/// Differences of the parts of two versions.
fn distance(one: &str, other: &str) -> Vec<u64> {
    let parts = |text: &str| -> Vec<u64> {
        let numbers = text.split('.').map(|part| part.parse().unwrap_or(0));
        numbers.chain([0, 0]).take(3).collect()
    };
    let both = parts(one).into_iter().zip(parts(other));
    both.map(|(one, other)| one.abs_diff(other)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use numbers::{class, uvm};

    #[test]
    fn every_table_is_read_whole() {
        assert_eq!(releases().len(), TABLES.len());
        for (release, text) in releases().iter().zip(TABLES) {
            let lines = text.lines().filter(|line| !line.starts_with('#')).count();
            let rows = release.escapes.len() + release.classes.len();
            let rows = rows + release.controls.len() + release.uvm.len();
            let rows = rows + release.numbers.len() + release.structures.len();
            assert_eq!(rows + 1, lines, "{}", release.version);
            assert!(release.classes.contains_key(&class::ROOT));
            assert!(release.uvm.values().all(|layout| layout.status.is_some()));
        }
        let run: Vec<&str> = releases()
            .iter()
            .filter(|release| release.tried == Tried::Run)
            .map(|release| release.version.as_str())
            .collect();
        assert_eq!(run, ["580.159.04"]);
    }

    #[test]
    fn sizes_differ_between_releases_as_the_headers_do() {
        let free = |version: &str| release(version).unwrap().uvm[&uvm::FREE].bytes;
        assert_eq!(
            (free("580.159.04"), free("590.48.01")),
            (Some(24), Some(16))
        );
        let space = |version: &str| release(version).unwrap().classes[&0x90f1].bytes;
        assert_eq!(
            (space("575.64.05"), space("580.159.04")),
            (Some(48), Some(56))
        );
    }

    #[test]
    fn nothing_that_holds_channels_of_others_is_in_a_table() {
        for release in releases() {
            assert!(
                !release
                    .controls
                    .contains_key(&numbers::control::DISABLE_CHANNELS)
            );
            assert!(!release.classes.contains_key(&class::OS_DESCRIPTOR));
        }
    }

    /// Where libcuda knows the state of the NVLink fabric, it makes objects of it over memory of
    /// 512 MiB and more. SOURCE: 580.159.04, two H200s: their class is in no table, so that
    /// `cudaMalloc` failed.
    #[test]
    fn the_fabric_is_not_shown() {
        const FABRIC_STATE: u32 = 0x2080_01a3;
        const FABRIC_MEMORY: u32 = 0xf8;
        for release in releases() {
            assert!(!release.controls.contains_key(&FABRIC_STATE));
            assert!(!release.classes.contains_key(&FABRIC_MEMORY));
        }
    }

    /// libcuda takes a wait that lasts a second for over where the driver refuses this control.
    /// SOURCE: 580.159.04: copies that waited for their turn were read before they were made.
    #[test]
    fn waits_of_a_second_are_carried_out() {
        const SERVICE_INTERRUPTS: u32 = 0x2080_1702;
        for release in releases() {
            let layout = &release.controls[&SERVICE_INTERRUPTS];
            assert_eq!(layout.bytes, Some(4), "{}", release.version);
        }
    }

    #[test]
    fn unknown_release_is_refused_with_the_nearest() {
        let refused = release("590.44.01").unwrap_err().to_string();
        assert!(
            refused.contains("nearest: 590.48.01") && refused.contains("580.159.04"),
            "{refused}"
        );
        let refused = release("600.1").unwrap_err().to_string();
        assert!(refused.contains("nearest: 595.45.04"), "{refused}");
    }
}
