//! The guest side: files that stand for nodes, and calls on them.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::event::{EventfdFlags, eventfd};
use turnstile_nvidia_guest::abi::numbers::{PAGE_BYTES, class, escape, status, uvm};
use turnstile_nvidia_guest::abi::{
    self, Node, Parts, Release, descriptors, number, read_u32, read_u64, status_at, write_u32,
    write_u64,
};
use turnstile_nvidia_guest::proto::{
    Extent, Kind, Message, Received, VERSION, node_word, receive, send,
};

use crate::memory::{Memory, Registered};
use crate::sys;

/// NV_ERR_INVALID_ADDRESS. SOURCE: `nvstatuscodes.h`.
const INVALID_ADDRESS: u32 = 0x1e;
/// Addresses that stand for mappings of guest RAM in the driver's answers: never dereferenced.
const LINEAR_BASE: u64 = 0x1000_0000_0000;

/// A file of the device process.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) node: Node,
    device_number: u64,
    /// Descriptors of this process that stand for it.
    descriptors: usize,
    /// Guest RAM that is mapped next.
    pub(crate) pending: Option<u64>,
}

/// What the program has of the device process.
#[derive(Debug)]
pub(crate) struct Guest {
    socket: OwnedFd,
    release: &'static Release,
    pub(crate) memory: Memory,
    /// Descriptor -> file.
    pub(crate) descriptors: BTreeMap<i32, u32>,
    pub(crate) files: BTreeMap<u32, File>,
    /// GPU memory: client and handle -> parent and bytes.
    gpu_memory: BTreeMap<(u32, u32), (u32, u64)>,
    /// Client -> file on which it was made.
    clients: BTreeMap<u32, u32>,
    /// Semaphore pools that are guest RAM: base -> bytes.
    pub(crate) pools: BTreeMap<u64, u64>,
    requests: u64,
    calls: u64,
}

pub(crate) fn os(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

impl Guest {
    /// Connects to the device process.
    ///
    /// # Errors
    /// If it does not answer, or with a table of another form.
    pub(crate) fn connect(path: &Path) -> io::Result<Self> {
        let socket = sys::high(UnixStream::connect(path)?);
        let memory = Memory::new()?;
        let hello = Message {
            a: VERSION.into(),
            ..Message::default()
        };
        send(&socket, &hello, &[memory.file()]).map_err(io::Error::other)?;
        let answer = receive(&socket)
            .map_err(io::Error::other)?
            .ok_or_else(|| os(libc::EIO))?
            .message;
        let table = answer.buffers.get(1);
        let table = table.and_then(|text| std::str::from_utf8(text).ok());
        let release = table.and_then(Release::of_table);
        Ok(Self {
            socket,
            // For as long as the program runs.
            release: Box::leak(Box::new(release.ok_or_else(|| os(libc::ENODEV))?)),
            memory,
            descriptors: BTreeMap::new(),
            files: BTreeMap::new(),
            gpu_memory: BTreeMap::new(),
            clients: BTreeMap::new(),
            pools: BTreeMap::new(),
            requests: 0,
            calls: 0,
        })
    }

    /// Descriptors of this library's own.
    pub(crate) fn own(&self) -> [i32; 2] {
        [self.socket.as_raw_fd(), self.memory.file().as_raw_fd()]
    }

    /// Guest RAM.
    pub(crate) const fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Number of calls that were forwarded.
    pub(crate) const fn calls(&self) -> u64 {
        self.calls
    }

    pub(crate) fn ask(
        &mut self,
        mut message: Message,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> io::Result<Received> {
        self.requests += 1;
        message.id = self.requests;
        send(&self.socket, &message, descriptor.as_slice()).map_err(|_| os(libc::EIO))?;
        let received = receive(&self.socket)
            .ok()
            .flatten()
            .ok_or_else(|| os(libc::EIO))?;
        match &received.message {
            answer if answer.id != message.id => Err(os(libc::EIO)),
            answer if answer.result < 0 => Err(os(answer.errno)),
            _ => Ok(received),
        }
    }

    /// Opens a node; returns the descriptor that stands for it.
    ///
    /// # Errors
    /// The device process's.
    pub(crate) fn open(&mut self, node: Node, close_on_exec: bool) -> io::Result<OwnedFd> {
        let mut flags = EventfdFlags::NONBLOCK;
        flags.set(EventfdFlags::CLOEXEC, close_on_exec);
        let event = eventfd(0, flags)?;
        let message = Message {
            kind: Kind::Open,
            a: node_word(node),
            ..Message::default()
        };
        let answer = self.ask(message, Some(event.as_fd()))?.message;
        let file = File {
            node,
            device_number: answer.a,
            descriptors: 1,
            pending: None,
        };
        self.files.insert(answer.file, file);
        self.descriptors.insert(event.as_raw_fd(), answer.file);
        Ok(event)
    }

    /// The device number of a node.
    ///
    /// # Errors
    /// ENOENT if there is no such node.
    pub(crate) fn stat(&mut self, node: Node) -> io::Result<u64> {
        let message = Message {
            kind: Kind::Stat,
            a: node_word(node),
            ..Message::default()
        };
        Ok(self.ask(message, None)?.message.a)
    }

    /// The device number of an open file.
    pub(crate) fn device_number(&self, descriptor: i32) -> Option<u64> {
        let file = self.descriptors.get(&descriptor)?;
        Some(self.files.get(file)?.device_number)
    }

    /// A descriptor was duplicated, onto one that may have stood for another file.
    pub(crate) fn duplicated(&mut self, from: i32, to: i32) {
        if let Some(file) = self.descriptors.get(&from).copied()
            && let Some(known) = self.files.get_mut(&file)
        {
            known.descriptors += 1;
            self.closed(to);
            self.descriptors.insert(to, file);
        }
    }

    /// A descriptor was closed.
    pub(crate) fn closed(&mut self, descriptor: i32) {
        let Some(file) = self.descriptors.remove(&descriptor) else {
            return;
        };
        let Some(known) = self.files.get_mut(&file) else {
            return;
        };
        known.descriptors -= 1;
        if known.descriptors == 0 {
            self.files.remove(&file);
            let gone = self.clients.iter().filter(|(_, made_on)| **made_on == file);
            let gone: Vec<u32> = gone.map(|(client, _)| *client).collect();
            for client in gone {
                self.clients.remove(&client);
                self.forget(client, client);
            }
            let message = Message {
                kind: Kind::Close,
                file,
                ..Message::default()
            };
            // The device process closes it at the latest with the connection.
            let _ = self.ask(message, None);
        }
    }

    /// Carries out a call on a descriptor.
    ///
    /// # Errors
    /// The driver's, or EINVAL if the table has no such call.
    pub(crate) fn call(&mut self, descriptor: i32, request: u32, argument: u64) -> io::Result<i32> {
        let file = *self
            .descriptors
            .get(&descriptor)
            .ok_or_else(|| os(libc::EBADF))?;
        let node = self.files.get(&file).ok_or_else(|| os(libc::EBADF))?.node;
        let mut addresses = Vec::new();
        let mut read = |address: u64, bytes: usize| {
            addresses.push(address);
            Some(sys::read(address, bytes))
        };
        let parts = abi::parts(self.release, node, request, argument, &mut read);
        let mut parts = parts.map_err(|_| os(libc::EINVAL))?;
        if self.here(node, request, &mut parts) {
            sys::write(argument, &parts.buffers[0]);
            return Ok(0);
        }
        let Registered { extents, shared } = match self.memory_of(node, request, &parts) {
            Ok(registered) => registered,
            Err(error) => {
                let at = status_at(self.release, node, request).ok_or(error)?;
                write_u32(&mut parts.buffers[0], at, INVALID_ADDRESS);
                sys::write(argument, &parts.buffers[0]);
                return Ok(0);
            }
        };
        let fields = descriptors(self.release, node, request, &parts);
        let mut saved = Vec::new();
        for field in &fields {
            let buffer = &mut parts.buffers[field.buffer];
            let own = read_u32(buffer, field.at);
            saved.push(own);
            // CAST: a descriptor has 32 bits, and is negative if there is none.
            if (own as i32) >= 0 {
                let theirs = self
                    .descriptors
                    .get(&(own as i32))
                    .ok_or_else(|| os(libc::EINVAL))?;
                write_u32(buffer, field.at, *theirs);
            }
        }
        self.calls += 1;
        let message = Message {
            kind: Kind::Call,
            file,
            request,
            buffers: std::mem::take(&mut parts.buffers),
            extents: extents.clone(),
            ..Message::default()
        };
        let answer = self.ask(message, shared.as_ref().map(AsFd::as_fd))?.message;
        if answer.buffers.len() != addresses.len() {
            return Err(os(libc::EIO));
        }
        parts.buffers = answer.buffers;
        for (field, own) in fields.iter().zip(saved) {
            write_u32(&mut parts.buffers[field.buffer], field.at, own);
        }
        for (address, buffer) in addresses.iter().zip(&parts.buffers) {
            sys::write(*address, buffer);
        }
        let at = status_at(self.release, node, request);
        if at.is_none_or(|at| read_u32(&parts.buffers[0], at) == status::OK) {
            let own = if shared.is_some() {
                Vec::new()
            } else {
                extents
            };
            let exchanged = !own.is_empty();
            self.done(file, node, request, &parts, own);
            // GPU memory that became guest RAM is mapped as such.
            if exchanged && self.here(node, request, &mut parts) {
                sys::write(argument, &parts.buffers[0]);
            }
        }
        Ok(answer.result)
    }

    /// Answers what concerns guest RAM alone; whether it did.
    fn here(&mut self, node: Node, request: u32, parts: &mut Parts) -> bool {
        let Some((number, _)) = number(request).filter(|_| node != Node::Uvm) else {
            return false;
        };
        let top = &mut parts.buffers[0];
        let key = (read_u32(top, 0), read_u32(top, 8));
        match number {
            escape::RM_MAP_MEMORY => {
                let Some((_, extents)) = self.memory.objects.get(&key) else {
                    return false;
                };
                let (offset, bytes) = (read_u64(top, 16), read_u64(top, 24));
                // Objects that the program maps are of one piece.
                let place = match extents[..] {
                    [extent]
                        if offset
                            .checked_add(bytes)
                            .is_some_and(|end| end <= extent.bytes) =>
                    {
                        extent.offset + offset
                    }
                    _ => {
                        write_u32(top, 40, INVALID_ADDRESS);
                        return true;
                    }
                };
                // CAST: a descriptor has 32 bits.
                let descriptor = read_u32(top, 48) as i32;
                let file = self
                    .descriptors
                    .get(&descriptor)
                    .and_then(|file| self.files.get_mut(file));
                if let Some(file) = file {
                    file.pending = Some(place);
                }
                write_u64(top, 32, LINEAR_BASE + place);
                write_u32(top, 40, status::OK);
                true
            }
            escape::RM_UNMAP_MEMORY if self.memory.objects.contains_key(&key) => {
                write_u32(top, 24, status::OK);
                true
            }
            _ => false,
        }
    }

    /// Memory that a call needs.
    fn memory_of(&mut self, node: Node, request: u32, parts: &Parts) -> io::Result<Registered> {
        match (&parts.buffers.first(), number(request)) {
            (Some(top), Some((escape::RM_ALLOC_MEMORY, _)))
                if node != Node::Uvm && read_u32(top, 12) == class::OS_DESCRIPTOR =>
            {
                let (address, last) = (read_u64(top, 24), read_u64(top, 32));
                let from = address & !(PAGE_BYTES - 1);
                let to = address
                    .checked_add(last)
                    .and_then(|end| end.checked_add(1))
                    .and_then(|end| end.checked_next_multiple_of(PAGE_BYTES));
                self.memory.moved(from, to.ok_or_else(|| os(libc::EINVAL))?)
            }
            _ => Ok(Registered {
                extents: self.extents(node, request, parts)?,
                shared: None,
            }),
        }
    }

    /// New guest RAM that a call needs.
    fn extents(&mut self, node: Node, request: u32, parts: &Parts) -> io::Result<Vec<Extent>> {
        let Some(top) = parts.buffers.first() else {
            return Ok(Vec::new());
        };
        if node == Node::Uvm {
            if request != uvm::SEMAPHORE_POOL {
                return Ok(Vec::new());
            }
            let (base, bytes) = (read_u64(top, 0), read_u64(top, 8));
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            return Ok(vec![self.memory.lay(base, bytes, protection)?]);
        }
        match number(request).map(|(number, _)| number) {
            Some(escape::RM_ALLOC) => {
                if read_u32(top, 12) != class::SYSTEM_MEMORY {
                    return Ok(Vec::new());
                }
                let params = parts.params().unwrap_or_default();
                self.piece(read_u64(params, 64))
            }
            Some(escape::RM_MAP_MEMORY) => {
                let key = (read_u32(top, 0), read_u32(top, 8));
                match self.gpu_memory.get(&key) {
                    Some((_, bytes)) => self.piece(*bytes),
                    None => Ok(Vec::new()),
                }
            }
            _ => Ok(Vec::new()),
        }
    }

    fn forget(&mut self, client: u32, handle: u32) {
        self.memory.freed(client, handle);
        self.gpu_memory.retain(|(of, own), (parent, _)| {
            *of != client || !(handle == client || *own == handle || *parent == handle)
        });
    }

    fn piece(&mut self, bytes: u64) -> io::Result<Vec<Extent>> {
        let bytes = bytes
            .checked_next_multiple_of(PAGE_BYTES)
            .ok_or_else(|| os(libc::EINVAL))?;
        let piece = self.memory.take(bytes)?;
        Ok(vec![Extent { bytes, ..piece }])
    }

    /// Takes note of a call that succeeded.
    fn done(&mut self, file: u32, node: Node, request: u32, parts: &Parts, extents: Vec<Extent>) {
        let Some(top) = parts.buffers.first() else {
            return;
        };
        if node == Node::Uvm {
            if request == uvm::SEMAPHORE_POOL {
                self.pools.insert(read_u64(top, 0), read_u64(top, 8));
            }
            return;
        }
        let word = |at| read_u32(top, at);
        match number(request).map(|(number, _)| number) {
            Some(escape::RM_ALLOC) if class::is_root(word(12)) => {
                self.clients.insert(word(8), file);
            }
            Some(escape::RM_ALLOC | escape::RM_ALLOC_MEMORY) if !extents.is_empty() => {
                self.memory
                    .objects
                    .insert((word(0), word(8)), (word(4), extents));
            }
            Some(escape::RM_ALLOC) if word(12) == class::GPU_MEMORY => {
                // The driver has rounded it up.
                let bytes = read_u64(parts.params().unwrap_or_default(), 64);
                self.gpu_memory.insert((word(0), word(8)), (word(4), bytes));
            }
            Some(escape::RM_MAP_MEMORY) if !extents.is_empty() => {
                // GPU memory that became guest RAM.
                let key = (word(0), word(8));
                if let Some((parent, _)) = self.gpu_memory.remove(&key) {
                    self.memory.objects.insert(key, (parent, extents));
                }
            }
            Some(escape::RM_FREE) => {
                self.forget(word(0), word(8));
                if word(0) == word(8) {
                    self.clients.remove(&word(0));
                }
            }
            _ => {}
        }
    }
}
