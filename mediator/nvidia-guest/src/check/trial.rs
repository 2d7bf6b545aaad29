//! Random calls against the checker, for its property tests and the fuzz target: two VMs, of which
//! one makes the calls, and an independent list of the places where a call names a client.

use super::{Action, Call, Limits, Vm};
use crate::abi::numbers::{class, escape};
use crate::abi::{Node, Parts, number, parts, read_u32, releases, write_u32};

/// The client of the VM that calls, and another VM's.
const OWN: u32 = 0xc1d0_0001;
const OTHER: u32 = 0xc1d0_0002;
/// Limits that random calls reach.
const LIMITS: Limits = Limits {
    clients: 3,
    objects: 12,
    channels: 3,
    files: 6,
    ranges: 2,
    mappings: 4,
    pinned_bytes: 1 << 20,
    gpu_bytes: Some(1 << 30),
};

/// Bytes of the input, zero behind its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    fn word(&mut self) -> u32 {
        u32::from_ne_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    /// A word that calls have at such places.
    fn likely(&mut self) -> u32 {
        match self.byte() % 16 {
            0..4 => 0,
            4..8 => OWN,
            8 => OTHER,
            9 => 0x5c00_0001,
            10 => 1,
            11 => u32::MAX,
            12 => 4096,
            13 => self.byte().into(),
            _ => self.word(),
        }
    }

    fn buffer(&mut self, bytes: usize) -> Vec<u8> {
        let mut buffer = vec![0; bytes];
        for at in (0..bytes.min(96)).step_by(4) {
            let word = self.likely();
            write_u32(&mut buffer, at, word);
        }
        buffer
    }
}

/// Where a call names clients, written down by hand. SOURCE: `nvos.h`, `uvm_ioctl.h`, `class/`.
fn names_other(node: Node, request: u32, parts: &Parts) -> bool {
    let top = parts.buffers.first().map(Vec::as_slice).unwrap_or_default();
    let params = parts.params().unwrap_or_default();
    let is_other = |buffer: &[u8], at: usize| read_u32(buffer, at) == OTHER;
    if node == Node::Uvm {
        return match request {
            25 | 27 => is_other(top, 20),
            28 => is_other(top, 16),
            33 => is_other(top, 9252),
            37 => is_other(top, 28),
            _ => false,
        };
    }
    let Some((number, _)) = number(request) else {
        return false;
    };
    let first = matches!(
        number,
        escape::RM_ALLOC_MEMORY
            | escape::RM_FREE
            | escape::RM_CONTROL
            | escape::RM_ALLOC
            | escape::RM_DUP_OBJECT
            | escape::RM_SHARE
            | escape::RM_MAP_MEMORY
            | escape::RM_UNMAP_MEMORY
            | escape::RM_UPDATE_DEVICE_MAPPING_INFO
            | escape::ALLOC_OS_EVENT
            | escape::FREE_OS_EVENT
    );
    let inner = match (number, read_u32(top, 12)) {
        (escape::RM_DUP_OBJECT, source) => source == OTHER,
        (escape::RM_ALLOC, class::DEVICE) => is_other(params, 4) || is_other(params, 8),
        (escape::RM_ALLOC, 0x79 | 0xcb33) => is_other(params, 0),
        (escape::RM_ALLOC, 0x83de) => is_other(params, 4),
        _ => false,
    };
    first && is_other(top, 0) || inner
}

/// Makes the calls of an input.
///
/// # Panics
/// If a call that names another VM's client is forwarded, a limit does not hold, or something is
/// left once all files are closed.
pub fn calls(bytes: &[u8]) {
    let mut input = Input(bytes);
    let Some(release) = releases().get(usize::from(input.byte()) % releases().len()) else {
        return;
    };
    let mut vm = Vm::new(release, LIMITS);
    let nodes = [Node::Control, Node::Gpu(0), Node::Uvm];
    let files: Vec<u32> = nodes
        .iter()
        .filter_map(|node| vm.open(*node, 1).ok())
        .collect();
    let escapes: Vec<(u8, usize)> = release
        .escapes
        .iter()
        .flat_map(|(number, sizes)| sizes.iter().map(|size| (*number, *size)))
        .collect();
    let classes: Vec<u32> = release.classes.keys().copied().collect();
    let controls: Vec<u32> = release.controls.keys().copied().collect();
    let ranges: Vec<u32> = release.uvm.keys().copied().collect();
    let mut first = true;
    while !input.0.is_empty() {
        let at = if first {
            0
        } else {
            usize::from(input.byte()) % nodes.len()
        };
        let node = nodes[at];
        let pick = usize::from(input.byte());
        let (request, bytes) = if first {
            request(escape::RM_ALLOC, 48)
        } else if node == Node::Uvm {
            (
                if pick == 255 {
                    input.word()
                } else {
                    ranges[pick % ranges.len()]
                },
                0,
            )
        } else if pick == 255 {
            (input.word(), 0)
        } else {
            let (number, bytes) = escapes[pick % escapes.len()];
            request(number, bytes)
        };
        let mut top = input.buffer(bytes.max(64));
        if first {
            top = vec![0; 64];
            write_u32(&mut top, 12, class::ROOT);
        } else if request & 0xff == u32::from(escape::RM_ALLOC) && node != Node::Uvm {
            write_u32(
                &mut top,
                12,
                classes[usize::from(input.byte()) % classes.len()],
            );
            write_u32(&mut top, 24, 0);
            write_u32(&mut top, 32, 0);
        } else if request & 0xff == u32::from(escape::RM_CONTROL) && node != Node::Uvm {
            let number = controls[usize::from(input.byte()) % controls.len()];
            write_u32(&mut top, 8, number);
            if input.byte() % 8 != 0 {
                let size = release.controls[&number].bytes.unwrap_or(16);
                // CAST: at most 64 KiB.
                write_u32(&mut top, 24, size as u32);
                write_u32(&mut top, 12, 0);
            }
        }
        let mut given = Some(top);
        let mut next = |_, bytes: usize| {
            let mut buffer = given.take().unwrap_or_else(|| input.buffer(bytes));
            buffer.resize(bytes, 0);
            Some(buffer)
        };
        let Ok(mut parts) = parts(release, node, request, 1, &mut next) else {
            continue;
        };
        let ram_bytes = u64::from(input.byte()) * 4096;
        let file = files[at];
        let call = Call {
            file,
            request,
            parts: &parts,
            ram_bytes,
        };
        let Ok(checked) = vm.check(&call) else {
            continue;
        };
        let issued = !matches!(checked.action, Action::Answer(_) | Action::Nothing);
        assert!(
            !issued || !names_other(node, request, &parts),
            "{node:?} {request:#x}"
        );
        if first {
            write_u32(&mut parts.buffers[0], 8, OWN);
            first = false;
        }
        let done = issued && input.byte() % 8 != 0 && !is_random_client(request, node, &parts);
        let call = Call {
            file,
            request,
            parts: &parts,
            ram_bytes,
        };
        let range = matches!(checked.action, Action::Range { .. });
        let _ = vm.settle(&call, &checked, done && !range);
        let usage = vm.usage();
        assert!(
            usage.objects <= LIMITS.objects && usage.channels <= LIMITS.channels,
            "{usage:?}"
        );
        assert!(
            usage.pinned_bytes <= LIMITS.pinned_bytes && Some(usage.gpu_bytes) <= LIMITS.gpu_bytes,
            "{usage:?}"
        );
    }
    for file in files {
        let _ = vm.close(file);
    }
    assert_eq!(vm.usage(), Default::default());
}

/// The driver never gives out another VM's client, or one that exists.
fn is_random_client(request: u32, node: Node, parts: &Parts) -> bool {
    let is_alloc = node != Node::Uvm && request & 0xff == u32::from(escape::RM_ALLOC);
    let top = parts.buffers.first().map(Vec::as_slice).unwrap_or_default();
    is_alloc && class::is_root(read_u32(top, 12)) && read_u32(top, 8) != OWN
}

fn request(number: u8, bytes: usize) -> (u32, usize) {
    // CAST: sizes of escapes have at most 14 bits.
    (
        3 << 30 | (bytes as u32) << 16 | 0x4600 | u32::from(number),
        bytes,
    )
}
