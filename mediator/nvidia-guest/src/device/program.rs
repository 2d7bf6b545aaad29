//! A program's thread: reads requests from its socket and answers them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, PoisonError};

use rustix::fs::{SealFlags, fcntl_get_seals};

use super::{Device, Opened, locked};
use crate::abi::Node;
use crate::abi::numbers::PAGE_BYTES;
use crate::check::Mapping;
use crate::proto::{Extent, Kind, Message, Received, VERSION, node_of, receive, send};

/// Most bytes of a page that is copied.
const PAGE_COPY_MAX: u64 = PAGE_BYTES;

/// A program that is connected.
#[derive(Debug)]
pub(super) struct Program<'a> {
    pub(super) device: &'a Device,
    number: u64,
    socket: UnixStream,
    ram: Option<Ram>,
}

/// The program's memory that the driver may use.
#[derive(Debug)]
struct Ram {
    file: File,
    bytes: u64,
}

/// An answer, with a descriptor beside it.
type Answer<'a> = (Message, Option<BorrowedFd<'a>>);

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

impl<'a> Program<'a> {
    pub(super) const fn new(device: &'a Device, number: u64, socket: UnixStream) -> Self {
        Self {
            device,
            number,
            socket,
            ram: None,
        }
    }

    /// Answers until the socket is closed, or something else than a request arrives.
    pub(super) fn serve(mut self) {
        while let Ok(Some(received)) = receive(&self.socket) {
            let (answer, descriptor) = self.answer(received);
            if send(&self.socket, &answer, descriptor.as_slice()).is_err() {
                break;
            }
        }
        // The lock is not held while they are closed.
        let files = locked(&self.device.vm).files_of(self.number);
        for file in files {
            self.device.close(file);
        }
    }

    fn answer(&mut self, received: Received) -> Answer<'a> {
        let Received {
            message,
            descriptors,
        } = received;
        let descriptor = descriptors.into_iter().next();
        let result = match message.kind {
            Kind::Hello => self.hello(&message, descriptor),
            Kind::Stat => self.stat(&message),
            Kind::Open => self.open(&message, descriptor),
            Kind::Close => self.own(message.file).map(|()| {
                self.device.close(message.file);
                message.answer()
            }),
            Kind::Call => return (self.device.call(self, message), None),
            Kind::Managed => self.device.managed(self, &message),
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
        let ram = ram.ok_or(io::ErrorKind::InvalidInput)?;
        if message.a != u64::from(VERSION) || self.ram.is_some() {
            return Err(io::Error::from_raw_os_error(libc::EPROTO));
        }
        // A file that can shrink could take pages from below a mapping.
        if !fcntl_get_seals(&ram)?.contains(SealFlags::SHRINK) {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        let file = File::from(ram);
        let bytes = file.metadata()?.len();
        self.ram = Some(Ram { file, bytes });
        let mut answer = message.answer();
        answer
            .buffers
            .push(self.device.release.version.clone().into_bytes());
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
        let mapping = locked(&device.vm).mapping(message.file);
        let mut answer = message.answer();
        match mapping.ok_or_else(|| io::Error::from_raw_os_error(libc::ENXIO))? {
            Mapping::Window { bar1 } => {
                Ok((answer, Some(device.windows[usize::from(bar1)].as_fd())))
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

    /// The program's RAM, if the extents are whole pages within it.
    pub(super) fn ram(&self, extents: &[Extent]) -> io::Result<(BorrowedFd<'_>, u64)> {
        let ram = self
            .ram
            .as_ref()
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EPROTO))?;
        let mut sum = 0_u64;
        for extent in extents {
            let end = extent.offset.checked_add(extent.bytes);
            let whole =
                extent.offset.is_multiple_of(PAGE_BYTES) && extent.bytes.is_multiple_of(PAGE_BYTES);
            sum = sum.saturating_add(extent.bytes);
            if !whole || extent.bytes == 0 || end.is_none_or(|end| end > ram.bytes) {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            }
        }
        Ok((ram.file.as_fd(), sum))
    }
}

impl Device {
    /// Closes a file. The driver frees the clients that were made on it; none of their calls is in
    /// flight then.
    fn close(&self, file: u32) {
        let flight = self.flight.write().unwrap_or_else(PoisonError::into_inner);
        let freed = locked(&self.vm).close(file);
        self.events.remove(file);
        let opened = locked(&self.files).remove(&file);
        drop(opened);
        drop(flight);
        self.forget(&freed);
    }
}
