//! A release's table as the guest module reads it: rows of one size, so that the module knows no
//! release. `guest-agent/kernel/protocol.h` has the same layout in C.

use super::numbers::{class, escape, uvm};
use super::{Layout, Release};

const NONE: u16 = 0xffff;
const ANY: u32 = u32::MAX;

/// What a row is about.
#[derive(Clone, Copy)]
enum Kind {
    Escape,
    Uvm,
    Class,
    Control,
}

/// What the module does beyond copying.
#[derive(Clone, Copy, Default)]
enum Role {
    #[default]
    Plain,
    Alloc,
    Control,
    Register,
    Map,
    Unmap,
    Pool,
    Nothing,
    Free,
}

/// A row before it is encoded. Fields that are not set have none.
struct Row<'a> {
    kind: Kind,
    role: Role,
    number: u32,
    bytes: u32,
    status_at: Option<usize>,
    /// Address, length and selector of the parameters.
    params: Option<[usize; 3]>,
    has_rights: bool,
    ram_bytes_at: Option<usize>,
    layout: Option<&'a Layout>,
    descriptors: &'a [(usize, usize)],
}

fn offset(at: Option<usize>) -> u16 {
    at.and_then(|at| u16::try_from(at).ok()).unwrap_or(NONE)
}

impl<'a> Row<'a> {
    fn new(kind: Kind, number: u32, bytes: Option<usize>) -> Self {
        Self {
            kind,
            role: Role::Plain,
            number,
            bytes: bytes
                .and_then(|bytes| u32::try_from(bytes).ok())
                .unwrap_or(ANY),
            status_at: None,
            params: None,
            has_rights: false,
            ram_bytes_at: None,
            layout: None,
            descriptors: &[],
        }
    }

    fn of(kind: Kind, number: u32, layout: &'a Layout) -> Self {
        Self {
            status_at: layout.status,
            layout: Some(layout),
            descriptors: &layout.descriptors,
            ..Self::new(kind, number, layout.bytes)
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let buffers = self.layout.map_or(&[][..], |layout| &layout.buffers);
        let [params_at, size_at, select_at] = self.params.map_or([None; 3], |at| at.map(Some));
        let rights = self.has_rights;
        // CAST: a row has at most three buffers and two descriptors (test below).
        out.extend([
            self.kind as u8,
            self.role as u8,
            buffers.len() as u8,
            self.descriptors.len() as u8,
        ]);
        for word in [self.number, self.bytes, 0] {
            out.extend(word.to_ne_bytes());
        }
        let rights_at = rights.then_some(super::layout::RIGHTS_AT);
        let mut half = |value: u16| out.extend(value.to_ne_bytes());
        for at in [self.status_at, params_at, size_at, select_at, rights_at] {
            half(offset(at));
        }
        half(if rights {
            offset(Some(super::layout::RIGHTS_BYTES))
        } else {
            0
        });
        half(offset(self.ram_bytes_at));
        half(0);
        for index in 0..3 {
            let buffer = buffers.get(index);
            half(offset(buffer.map(|buffer| buffer.at)));
            half(offset(buffer.map(|buffer| buffer.count_at)));
            half(offset(buffer.map(|buffer| buffer.element_bytes)));
            half(buffer.is_some_and(|buffer| buffer.squared).into());
        }
        for index in 0..2 {
            let descriptor = self.descriptors.get(index);
            half(offset(descriptor.map(|(at, _)| *at)));
            half(offset(descriptor.map(|(_, width)| *width)));
        }
    }
}

/// All rows of a release.
pub fn rows(release: &Release) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, sizes) in &release.escapes {
        for bytes in sizes {
            escape_row(*number, *bytes).encode(&mut out);
        }
    }
    for (number, layout) in &release.uvm {
        let mut row = Row::of(Kind::Uvm, *number, layout);
        if *number == uvm::SEMAPHORE_POOL {
            row.role = Role::Pool;
        }
        row.encode(&mut out);
    }
    let mut end = Row::new(Kind::Uvm, uvm::DEINITIALIZE, Some(0));
    end.role = Role::Nothing;
    end.encode(&mut out);
    for (number, layout) in &release.classes {
        let mut row = Row::of(Kind::Class, *number, layout);
        if *number == class::SYSTEM_MEMORY {
            row.ram_bytes_at = Some(super::numbers::MEMORY_BYTES_AT);
        }
        row.encode(&mut out);
    }
    for (number, layout) in &release.controls {
        Row::of(Kind::Control, *number, layout).encode(&mut out);
    }
    out
}

fn escape_row(number: u8, bytes: usize) -> Row<'static> {
    let mut row = Row::new(Kind::Escape, number.into(), Some(bytes));
    row.status_at = super::layout::escape_status_at(number, bytes);
    row.descriptors = super::layout::escape_descriptors(number);
    let long = bytes == super::layout::LONG_ALLOC_BYTES;
    row.has_rights = number == escape::RM_ALLOC && long;
    match number {
        escape::RM_ALLOC => {
            row.role = Role::Alloc;
            row.params = Some([super::layout::PARAMS_AT, if long { 32 } else { 24 }, 12]);
        }
        escape::RM_CONTROL => {
            row.role = Role::Control;
            row.params = Some([super::layout::PARAMS_AT, 24, 8]);
        }
        escape::RM_ALLOC_MEMORY => row.role = Role::Register,
        escape::RM_MAP_MEMORY => row.role = Role::Map,
        escape::RM_UNMAP_MEMORY => row.role = Role::Unmap,
        escape::RM_FREE => row.role = Role::Free,
        _ => {}
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a row.
    const ROW_BYTES: usize = 64;
    use crate::abi::releases;

    #[test]
    fn every_release_fits_into_rows() {
        for release in releases() {
            let layouts = release
                .classes
                .values()
                .chain(release.controls.values())
                .chain(release.uvm.values());
            for layout in layouts {
                assert!(layout.buffers.len() <= 3 && layout.descriptors.len() <= 2);
            }
            let escapes: usize = release.escapes.values().map(Vec::len).sum();
            let others = release.uvm.len() + release.classes.len() + release.controls.len();
            assert_eq!(rows(release).len(), ROW_BYTES * (escapes + others + 1));
        }
    }

    /// Numbers of the C header, by name.
    fn header() -> std::collections::BTreeMap<String, u64> {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../guest-agent/kernel/protocol.h"
        );
        let text = std::fs::read_to_string(path).unwrap();
        let value = |text: &str| match text.split_once("<<") {
            Some((base, shift)) => Some(
                base.trim_matches(&['(', ' '][..]).parse::<u64>().ok()?
                    << shift.trim_matches(&[')', ' '][..]).parse::<u32>().ok()?,
            ),
            None => match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok(),
                None => text.parse().ok(),
            },
        };
        let defined = text.lines().filter_map(|line| {
            let (name, text) = line.strip_prefix("#define ")?.split_once(' ')?;
            Some((name.to_owned(), value(text.trim())?))
        });
        let numbered = text.lines().filter_map(|line| {
            let (name, text) = line.trim().trim_end_matches(',').split_once(" = ")?;
            Some((name.to_owned(), value(text)?))
        });
        defined.chain(numbered).collect()
    }

    #[test]
    fn module_has_the_same_numbers() {
        use crate::proto;
        use turnstile_abi::{cuda, cuda::queue, cuda::regs, pci};
        let header = header();
        let same = |name: &str, value: u64| assert_eq!(header.get(name), Some(&value), "{name}");
        same("TS_VENDOR_ID", pci::VENDOR_ID.into());
        same("TS_DEVICE_ID", cuda::DEVICE_ID.into());
        same("TS_VECTORS", cuda::VECTORS.into());
        same("TS_VECTOR_COMPLETIONS", cuda::VECTOR_COMPLETIONS as u64);
        same("TS_VECTOR_EVENTS", cuda::VECTOR_EVENTS as u64);
        same("TS_BAR_WINDOW", cuda::BAR_WINDOWS[0] as u64);
        same("TS_BAR_WINDOW_BAR1", cuda::BAR_WINDOWS[1] as u64);
        same("TS_WINDOW_BYTES", cuda::WINDOW_BYTES);
        for (name, value) in [
            ("IDENTITY", regs::IDENTITY),
            ("VERSION", regs::VERSION),
            ("STATUS", regs::STATUS),
            ("QUEUE_LOW", regs::QUEUE_LOW),
            ("QUEUE_HIGH", regs::QUEUE_HIGH),
            ("CONTROL", regs::CONTROL),
            ("KICK", regs::KICK),
        ] {
            same(&format!("TS_REG_{name}"), value);
        }
        same("TS_IDENTITY_VALUE", regs::IDENTITY_VALUE.into());
        same("TS_VERSION_VALUE", regs::VERSION_VALUE.into());
        same("TS_STATUS_RUNNING", regs::STATUS_RUNNING.into());
        same("TS_STATUS_FAILED", regs::STATUS_FAILED.into());
        for (name, value) in [
            ("BYTES", queue::BYTES),
            ("SUBMITTED", queue::SUBMITTED),
            ("COMPLETED", queue::COMPLETED),
            ("EVENTS", queue::EVENT_INDEX),
            ("OVERFLOWS", queue::OVERFLOWS),
            ("EVENTS_SEEN", queue::EVENTS_SEEN),
            ("SUBMIT_RING", queue::SUBMIT_RING),
            ("COMPLETE_RING", queue::COMPLETE_RING),
            ("EVENT_RING", queue::EVENT_RING),
            ("SLOT_TABLE", queue::SLOT_TABLE),
        ] {
            same(&format!("TS_QUEUE_{name}"), value);
        }
        same("TS_SLOTS", queue::SLOTS.into());
        same("TS_EVENTS", queue::EVENTS.into());
        same("TS_PROTOCOL", proto::VERSION.into());
        same("TS_BUFFERS_MAX", proto::BUFFERS_MAX as u64);
        same("TS_BYTES_MAX", proto::BYTES_MAX as u64);
        same("TS_EXTENTS_MAX", proto::EXTENTS_MAX as u64);
        same(
            "TS_NODE_CONTROL",
            proto::node_word(crate::abi::Node::Control),
        );
        same("TS_NODE_UVM", proto::node_word(crate::abi::Node::Uvm));
        for (name, kind) in [
            ("HELLO", proto::Kind::Hello),
            ("OPEN", proto::Kind::Open),
            ("CLOSE", proto::Kind::Close),
            ("CALL", proto::Kind::Call),
            ("MAP", proto::Kind::Map),
            ("MANAGED", proto::Kind::Managed),
            ("STAT", proto::Kind::Stat),
            ("TABLE", proto::Kind::Table),
            ("RELEASED", proto::Kind::Released),
        ] {
            same(&format!("TS_{name}"), kind as u64);
        }
    }
}
