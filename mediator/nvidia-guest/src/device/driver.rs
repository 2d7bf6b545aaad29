//! The driver of the host: its nodes, and its calls.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::abi::numbers::{WINDOW_BYTES, class, escape, status};
use crate::abi::{Link, Node, Parts, read_u32, write_u32, write_u64};
use crate::sys;

/// What the device process needs of a driver.
pub trait Driver: Debug + Send + Sync {
    /// Opens a node.
    ///
    /// # Errors
    /// As open(2).
    fn open(&self, node: Node) -> io::Result<OwnedFd>;

    /// Closes a node.
    fn close(&self, file: OwnedFd) {
        drop(file);
    }

    /// The device number of a node.
    ///
    /// # Errors
    /// As stat(2).
    fn device_number(&self, node: Node) -> io::Result<u64>;

    /// Issues a call. Descriptors in it are numbers of this process.
    ///
    /// # Errors
    /// As ioctl(2).
    fn call(&self, file: BorrowedFd<'_>, request: u32, parts: &mut Parts) -> io::Result<i32>;

    /// Numbers of the GPUs that have a node.
    fn gpus(&self) -> Vec<u8>;

    /// A doorbell window of a GPU, without and with its mapping through BAR 1.
    ///
    /// # Errors
    /// The driver's.
    fn windows(&self, gpu: u8) -> io::Result<[OwnedFd; 2]>;

    /// A copy of a page that a file maps.
    ///
    /// # Errors
    /// As mmap(2).
    fn page(&self, file: BorrowedFd<'_>, bytes: usize) -> io::Result<Vec<u8>> {
        sys::copy_of(file, bytes)
    }
}

/// Nodes of GPUs that are looked for. SOURCE: `nv-ioctl-numbers.h`, NV_MAX_DEVICES.
const GPUS_MAX: u8 = 32;

/// NVIDIA's.
#[derive(Debug, Default)]
pub struct Nvidia {
    /// Nodes of GPUs that there are, by number; all of the host's if none is given.
    nodes: Option<BTreeSet<u8>>,
    /// Files that keep the windows' client alive.
    own: std::sync::Mutex<Vec<OwnedFd>>,
}

impl Nvidia {
    /// The driver of this host with these GPUs alone, by the numbers of their nodes. As in a
    /// container without the other nodes, the vendor's library finds no other GPU.
    pub fn with_gpus(nodes: BTreeSet<u8>) -> Self {
        Self {
            nodes: Some(nodes),
            ..Self::default()
        }
    }

    /// Refuses the node of a GPU that is not among these.
    fn find(&self, node: Node) -> io::Result<()> {
        match (&self.nodes, node) {
            (Some(nodes), Node::Gpu(gpu)) if !nodes.contains(&gpu) => {
                Err(io::Error::from_raw_os_error(libc::ENOENT))
            }
            _ => Ok(()),
        }
    }
}

impl Driver for Nvidia {
    fn open(&self, node: Node) -> io::Result<OwnedFd> {
        self.find(node)?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        // The filter of system calls has this one.
        Ok(openat(CWD, node.path(), flags, Mode::empty())?)
    }

    fn device_number(&self, node: Node) -> io::Result<u64> {
        self.find(node)?;
        Ok(rustix::fs::stat(node.path())?.st_rdev)
    }

    fn call(&self, file: BorrowedFd<'_>, request: u32, parts: &mut Parts) -> io::Result<i32> {
        sys::call(file, request, parts)
    }

    fn gpus(&self) -> Vec<u8> {
        let there = |gpu: &u8| self.device_number(Node::Gpu(*gpu)).is_ok();
        (0..GPUS_MAX).filter(there).collect()
    }

    fn windows(&self, gpu: u8) -> io::Result<[OwnedFd; 2]> {
        const DEVICE: u32 = 0xcc00_0001;
        const SUBDEVICE: u32 = 0xcc00_0002;
        const DOORBELLS: u32 = 0xcc00_0003;
        let control = self.open(Node::Control)?;
        let node = self.open(Node::Gpu(gpu))?;
        let alloc = |client, parent, new, kind, params: Vec<u8>| {
            let top = words(&[client, parent, new, kind, 0, 0, 0, 0]);
            let mut parts = with_params(top, params);
            self.issue(&control, escape::RM_ALLOC, &mut parts, 28)?;
            Ok::<u32, io::Error>(read_u32(&parts.buffers[0], 8))
        };
        let client = alloc(0, 0, 0, class::ROOT, Vec::new())?;
        // NV0080_ALLOC_PARAMETERS: the GPU's number, then zeroes. SOURCE: `class/cl0080.h`.
        let mut device = vec![0; 56];
        write_u32(&mut device, 0, self.number(&control, client, gpu)?);
        alloc(client, client, DEVICE, class::DEVICE, device)?;
        alloc(client, DEVICE, SUBDEVICE, class::SUBDEVICE, vec![0; 4])?;
        let window = |bar1: u8| {
            let handle = DOORBELLS + u32::from(bar1);
            // HOPPER_USERMODE_A; bBar1Mapping, bPriv. SOURCE: `class/clc661.h`.
            alloc(client, SUBDEVICE, handle, 0xc661, vec![bar1, 0])?;
            let file = self.open(Node::Gpu(gpu))?;
            let number = control.as_raw_fd().cast_unsigned();
            self.issue(
                &file,
                escape::REGISTER_FD,
                &mut argument(words(&[number])),
                usize::MAX,
            )?;
            let mut top = vec![0; 56];
            for (at, word) in [(0, client), (4, SUBDEVICE), (8, handle), (44, 2)] {
                write_u32(&mut top, at, word);
            }
            write_u64(&mut top, 24, WINDOW_BYTES);
            write_u32(&mut top, 48, file.as_raw_fd().cast_unsigned());
            self.issue(&control, escape::RM_MAP_MEMORY, &mut argument(top), 40)?;
            Ok::<OwnedFd, io::Error>(file)
        };
        let windows = [window(0)?, window(1)?];
        let mut own = self
            .own
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        own.extend([control, node]);
        Ok(windows)
    }
}

impl Nvidia {
    /// The driver's number of the GPU with this node: of the order in which GPUs were attached.
    fn number(&self, control: &OwnedFd, client: u32, gpu: u8) -> io::Result<u32> {
        // nv_ioctl_card_info_t: valid, GPU's id, number of the node. SOURCE: `nv-ioctl.h`.
        const CARD_BYTES: usize = 72;
        let mut cards = argument(vec![0; 32 * CARD_BYTES]);
        self.issue(control, escape::CARD_INFO, &mut cards, usize::MAX)?;
        let mut cards = cards.buffers[0].chunks_exact(CARD_BYTES);
        let own = |card: &&[u8]| card[0] & 1 != 0 && read_u32(card, 56) == u32::from(gpu);
        let Some(id) = cards.find(own).map(|card| read_u32(card, 16)) else {
            return Ok(gpu.into());
        };
        // NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2: id, flags, number. SOURCE: `ctrl0000gpu.h`.
        let mut info = vec![0; 32];
        write_u32(&mut info, 0, id);
        let top = words(&[client, client, 0x205, 0, 0, 0, 32, 0]);
        let mut parts = with_params(top, info);
        self.issue(control, escape::RM_CONTROL, &mut parts, 28)?;
        Ok(read_u32(&parts.buffers[1], 8))
    }

    fn issue(
        &self,
        file: &OwnedFd,
        number: u8,
        parts: &mut Parts,
        status_at: usize,
    ) -> io::Result<()> {
        let request = request(number, parts.buffers[0].len());
        self.call(file.as_fd(), request, parts)?;
        match read_u32(&parts.buffers[0], status_at) {
            status::OK => Ok(()),
            status => Err(io::Error::other(format!(
                "escape {number:#x} has status {status:#x}"
            ))),
        }
    }
}

/// The request of an escape. SOURCE: `asm-generic/ioctl.h`.
pub(super) fn request(number: u8, bytes: usize) -> u32 {
    // CAST: arguments have at most 14 bits.
    3 << 30
        | (bytes as u32) << 16
        | u32::from(crate::abi::numbers::ESCAPE_TYPE) << 8
        | u32::from(number)
}

pub(super) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// A call without further buffers.
pub(super) fn argument(top: Vec<u8>) -> Parts {
    Parts {
        buffers: vec![top],
        links: Vec::new(),
    }
}

pub(super) fn with_params(top: Vec<u8>, params: Vec<u8>) -> Parts {
    let mut parts = argument(top);
    let child = (!params.is_empty()).then_some(1);
    parts.buffers.extend(child.map(|_| params));
    parts.links.push(Link {
        parent: 0,
        at: 16,
        child,
    });
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_of_another_tenant_has_no_node() {
        let driver = Nvidia::with_gpus(BTreeSet::from([1]));
        let missing = |error: io::Error| error.raw_os_error() == Some(libc::ENOENT);
        assert!(driver.open(Node::Gpu(0)).is_err_and(missing));
        assert!(driver.device_number(Node::Gpu(0)).is_err_and(missing));
        assert!(driver.find(Node::Gpu(1)).is_ok() && driver.find(Node::Control).is_ok());
        assert!(Nvidia::default().find(Node::Gpu(0)).is_ok());
    }
}
