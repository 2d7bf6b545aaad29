//! What `mmap` of a descriptor that stands for a node maps.

use std::io;
use std::os::fd::OwnedFd;

use turnstile_nvidia_guest::abi::Node;
use turnstile_nvidia_guest::proto::{Kind, Message, Received};

use crate::guest::{Guest, os};

/// What `mmap` maps.
#[derive(Debug)]
pub(crate) enum Mapped {
    /// It is there already.
    There,
    /// Guest RAM at this byte.
    Ram(u64),
    /// A doorbell window.
    Window(OwnedFd),
    /// A copy of a page.
    Page(Vec<u8>),
}

impl Guest {
    /// What a mapping of a descriptor is.
    ///
    /// # Errors
    /// If it maps nothing.
    pub(crate) fn map(
        &mut self,
        descriptor: i32,
        address: u64,
        bytes: u64,
        protection: i32,
        offset: u64,
    ) -> io::Result<Mapped> {
        let number = *self
            .descriptors
            .get(&descriptor)
            .ok_or_else(|| os(libc::EBADF))?;
        let file = self.files.get(&number).ok_or_else(|| os(libc::EBADF))?;
        if file.node == Node::Uvm {
            if self.pools.get(&address) == Some(&bytes) {
                return Ok(Mapped::There);
            }
            if address != offset || address == 0 {
                return Err(os(libc::EINVAL));
            }
            let extent = self.memory.lay(address, bytes, protection)?;
            let message = Message {
                kind: Kind::Managed,
                file: number,
                a: address,
                b: bytes,
                extents: vec![extent],
                ..Message::default()
            };
            return match self.ask(message, None)?.message.a {
                0 => Ok(Mapped::There),
                _ => Err(os(libc::ENOMEM)),
            };
        }
        if let Some(place) = file.pending {
            return Ok(Mapped::Ram(place));
        }
        let message = Message {
            kind: Kind::Map,
            file: number,
            a: bytes,
            ..Message::default()
        };
        let Received {
            mut message,
            descriptors,
        } = self.ask(message, None)?;
        match (descriptors.into_iter().next(), message.buffers.pop()) {
            (Some(window), _) => Ok(Mapped::Window(window)),
            (None, Some(page)) => Ok(Mapped::Page(page)),
            (None, None) => Err(os(libc::ENXIO)),
        }
    }
}
