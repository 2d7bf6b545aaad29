//! A program's thread: reads requests from its socket and answers them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::fs::{SealFlags, fcntl_get_seals, fstatfs};

use super::events::{Eventfd, Notify};
use super::ram::{GuestRam, OneFile, Pieces};
use super::{Device, Opened, calls, locked, ranges};
use crate::abi::numbers::PAGE_BYTES;
use crate::abi::{self, Node};
use crate::check::Mapping;
use crate::proto::{Kind, Message, Received, VERSION, node_of, receive, send};

/// Most bytes of a page that is copied.
const PAGE_COPY_MAX: u64 = PAGE_BYTES;

/// A program that is connected.
#[derive(Debug)]
pub(super) struct Program<'a> {
    pub(super) device: &'a Device,
    number: u64,
    /// Memory that the driver may use.
    ram: Option<Arc<dyn GuestRam>>,
    /// The file of this call's extents, which the program shares with others.
    shared: Option<OneFile>,
    /// Gets the files' events, where the program brings no descriptor for them.
    events: Option<Arc<dyn Notify>>,
}

/// An answer, with a descriptor beside it.
type Answer<'a> = (Message, Option<BorrowedFd<'a>>);

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

impl<'a> Program<'a> {
    pub(super) const fn new(device: &'a Device, number: u64) -> Self {
        Self {
            device,
            number,
            ram: None,
            shared: None,
            events: None,
        }
    }

    /// All programs of a VM, with the memory and the events of its device.
    pub(super) fn of_machine(
        device: &'a Device,
        number: u64,
        ram: Arc<dyn GuestRam>,
        events: Arc<dyn Notify>,
    ) -> Self {
        Self {
            device,
            number,
            ram: Some(ram),
            shared: None,
            events: Some(events),
        }
    }

    /// Answers until the socket is closed, or something else than a request arrives.
    pub(super) fn serve(mut self, socket: &UnixStream) {
        while let Ok(Some(received)) = receive(socket) {
            let (answer, descriptor) = self.answer(received);
            if send(socket, &answer, descriptor.as_slice()).is_err() {
                break;
            }
        }
        self.end();
    }

    /// Closes all files.
    pub(super) fn end(&self) {
        // The lock is not held while they are closed.
        let files = locked(&self.device.vm).files_of(self.number);
        for file in files {
            self.device.close(file);
        }
    }

    /// Carries out a request.
    pub(super) fn answer(&mut self, received: Received) -> Answer<'a> {
        let Received {
            message,
            descriptors,
        } = received;
        let descriptor = descriptors.into_iter().next();
        let result = match message.kind {
            Kind::Hello => self.hello(&message, descriptor),
            Kind::Stat => self.stat(&message),
            Kind::Table => {
                let mut answer = message.answer();
                answer.buffers.push(abi::rows(self.device.release));
                Ok(answer)
            }
            Kind::Released => Ok(message.answer()),
            Kind::Open => self.open(&message, descriptor),
            Kind::Close => self.own(message.file).map(|()| {
                self.device.close(message.file);
                message.answer()
            }),
            Kind::Call => match descriptor.map(shared_file).transpose() {
                Ok(shared) => {
                    self.shared = shared;
                    let answer = calls::serve(self.device, self, message);
                    // It is of this call alone.
                    self.shared = None;
                    return (answer, None);
                }
                Err(error) => Err(error),
            },
            Kind::Managed => ranges::managed(self.device, self, &message),
            Kind::Map => match self.map(&message) {
                Ok(answer) => return answer,
                Err(error) => Err(error),
            },
        };
        (
            result.unwrap_or_else(|error| message.failed(errno(&error))),
            None,
        )
    }

    fn hello(&mut self, message: &Message, ram: Option<OwnedFd>) -> io::Result<Message> {
        if message.a != u64::from(VERSION) || self.ram.is_some() == ram.is_some() {
            return Err(io::Error::from_raw_os_error(libc::EPROTO));
        }
        let mut answer = message.answer();
        let release = self.device.release;
        answer.buffers.push(release.version.clone().into_bytes());
        if let Some(ram) = ram {
            // A file that can shrink could take pages from below a mapping.
            if !fcntl_get_seals(&ram)?.contains(SealFlags::SHRINK) {
                return Err(io::Error::from_raw_os_error(libc::EPERM));
            }
            let file = Arc::new(File::from(ram));
            let bytes = file.metadata()?.len();
            self.ram = Some(Arc::new(OneFile { file, bytes }));
            // A library of another build collects buffers as this process expects them.
            answer.buffers.push(release.text.clone().into_bytes());
        }
        Ok(answer)
    }

    fn stat(&self, message: &Message) -> io::Result<Message> {
        let node = node_of(message.a).ok_or(io::ErrorKind::NotFound)?;
        let mut answer = message.answer();
        answer.a = self.device.driver.device_number(node)?;
        Ok(answer)
    }

    fn open(&self, message: &Message, target: Option<OwnedFd>) -> io::Result<Message> {
        let node = node_of(message.a).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        let device = self.device;
        let file = device.driver.open(node)?;
        let number = locked(&device.vm).open(node, self.number);
        let number = number.map_err(|refusal| io::Error::from_raw_os_error(refusal.errno()))?;
        let opened = Opened {
            file: Some(file),
            driver: Arc::clone(&device.driver),
        };
        let mut answer = message.answer();
        answer.file = number;
        answer.a = device.driver.device_number(node)?;
        let target = match target {
            Some(target) => Some(Eventfd::target(target)?),
            None => self.events.clone(),
        };
        if let Some(target) = target.filter(|_| node != Node::Uvm) {
            device.events.add(number, opened.file()?.as_fd(), target)?;
        }
        locked(&device.files).insert(number, Arc::new(opened));
        Ok(answer)
    }

    /// Whether this program has opened the file.
    fn own(&self, file: u32) -> io::Result<()> {
        let known = locked(&self.device.vm)
            .files_of(self.number)
            .contains(&file);
        known
            .then_some(())
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    fn map(&self, message: &Message) -> io::Result<Answer<'a>> {
        let device = self.device;
        let absent = || io::Error::from_raw_os_error(libc::ENXIO);
        let (mapping, node) = {
            let vm = locked(&device.vm);
            (vm.mapping(message.file), vm.node(message.file).ok())
        };
        let mut answer = message.answer();
        match mapping.ok_or_else(absent)? {
            Mapping::Window { bar1 } => {
                let windows = match node {
                    Some(Node::Gpu(gpu)) => device.windows.get(&gpu),
                    _ => None,
                };
                // A guest has it as a BAR.
                answer.a = 1 + u64::from(bar1);
                let window = &windows.ok_or_else(absent)?[usize::from(bar1)];
                Ok((answer, Some(window.as_fd())))
            }
            Mapping::Page if message.a <= PAGE_COPY_MAX => {
                let opened = device.opened(message.file)?;
                // CAST: a page at most.
                let copy = device
                    .driver
                    .page(opened.file()?.as_fd(), message.a as usize)?;
                answer.buffers.push(copy);
                Ok((answer, None))
            }
            Mapping::Page => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
    }

    /// Guest RAM of a request.
    ///
    /// # Errors
    /// EPROTO if there is none; EINVAL if the extents are not within it.
    pub(super) fn pieces(&self, message: &Message) -> io::Result<Pieces> {
        if let Some(shared) = &self.shared {
            return shared.pieces(message);
        }
        let ram = self
            .ram
            .as_ref()
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EPROTO))?;
        ram.pieces(message)
    }

    /// Whether the memory of this call is a file that the program shares with others.
    pub(super) const fn shares(&self) -> bool {
        self.shared.is_some()
    }
}

/// A file of which the program registers pages. It may shrink: this process never touches them, and
/// the driver keeps those that it has.
///
/// # Errors
/// EINVAL if it is not in memory: pages of other file systems may never come.
fn shared_file(file: OwnedFd) -> io::Result<OneFile> {
    // SOURCE: `linux/magic.h`, TMPFS_MAGIC.
    const TMPFS: i64 = 0x0102_1994;
    if fstatfs(&file)?.f_type != TMPFS {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let file = Arc::new(File::from(file));
    let bytes = file.metadata()?.len();
    Ok(OneFile { file, bytes })
}
