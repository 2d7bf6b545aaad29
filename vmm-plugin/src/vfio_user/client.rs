//! The VMM's side: one request at a time.

use super::layout::{Area, Irq};
use super::message::{
    Capabilities, Command, HEADER_BYTES, Header, Kind, MAJOR, MINOR, PAYLOAD_BYTES_MAX, Payload,
    decode_version, encode_version, long, word,
};
use super::request::{IrqAction, REGION_INFO_BYTES, irq_set};
use super::server::{AREA_BYTES, SPARSE_BYTES, SPARSE_MMAP, region_flag};
use super::socket::{ProtocolError, Raw, Socket};
use super::{DATA_BYTES_MAX, Errno, MESSAGE_FDS_MAX};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// TIMEOUT: a server answers at once; one that hangs must not block a VMM.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no server there.
    #[error("Connecting to the vfio-user server failed")]
    Connect(#[source] io::Error),
    /// The connection is of no more use.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The server is gone.
    #[error("The vfio-user server is gone")]
    Gone,
    /// The server refused; the connection goes on.
    #[error("The vfio-user server refused command {command:?}")]
    Refused {
        /// The refused request.
        command: Command,
        /// Why.
        source: Errno,
    },
    /// More than one message moves.
    #[error("{0} bytes are more than one message moves")]
    TooLong(usize),
}

/// The server's description of a region.
#[derive(Debug)]
pub struct ClientRegion {
    /// Bytes; zero if the device does not have the region.
    pub bytes: u64,
    /// Whether it can be read.
    pub readable: bool,
    /// Whether it can be written.
    pub writable: bool,
    /// Where the region begins in `file`.
    pub file_offset: u64,
    /// Parts that can be mapped.
    pub areas: Vec<Area>,
    /// What is behind them.
    pub file: Option<File>,
}

/// A connection to a device's server, of an agreed version.
#[derive(Debug)]
pub struct Client {
    socket: Socket,
    next_id: u16,
    server: Capabilities,
}

impl Client {
    /// Connects and agrees on a version.
    ///
    /// # Errors
    /// When there is no server, or it speaks another version.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let stream = UnixStream::connect(path).map_err(ClientError::Connect)?;
        Self::over(stream)
    }

    /// As [`Self::connect`], over a stream that is connected.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn over(stream: UnixStream) -> Result<Self, ClientError> {
        stream
            .set_read_timeout(Some(ANSWER_TIMEOUT))
            .map_err(ClientError::Connect)?;
        let mut client = Self {
            socket: Socket::new(stream).map_err(ClientError::Connect)?,
            next_id: 0,
            server: Capabilities::default(),
        };
        let request = encode_version(MINOR, Capabilities::OWN);
        let answer = client.ask(Command::Version, &request, &[], 4)?;
        match decode_version(&answer.payload) {
            Some((MAJOR, _, capabilities)) => client.server = capabilities,
            _ => return Err(unanswered(Command::Version)),
        }
        Ok(client)
    }

    /// Sets the time after which a server that takes or answers nothing has failed. The connection
    /// is of no use afterwards.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_timeout(&self, timeout: Duration) -> Result<(), ClientError> {
        let stream = self.socket.stream();
        let set = stream.set_read_timeout(Some(timeout));
        set.and_then(|()| stream.set_write_timeout(Some(timeout)))
            .map_err(ClientError::Connect)
    }

    /// The server's capabilities.
    pub fn server(&self) -> Capabilities {
        self.server
    }

    /// Regions and interrupts that the device has.
    ///
    /// # Errors
    /// When the server is gone or refuses.
    pub fn counts(&mut self) -> Result<(u32, u32), ClientError> {
        let request = Payload::default().words(&[16, 0, 0, 0]).0;
        let answer = self.ask(Command::DeviceInfo, &request, &[], 16)?.payload;
        Ok((word(&answer, 8), word(&answer, 12)))
    }

    /// What a region is.
    ///
    /// # Errors
    /// When the server is gone or refuses.
    pub fn region(&mut self, index: u32) -> Result<ClientRegion, ClientError> {
        let request = |argsz: usize| {
            // CAST: at most a message
            let words = [argsz as u32, 0, index, 0];
            Payload::default().words(&words).longs(&[0, 0]).0
        };
        let command = Command::RegionInfo;
        let first = request(REGION_INFO_BYTES);
        let mut answer = self.ask(command, &first, &[], REGION_INFO_BYTES)?;
        let needed = word(&answer.payload, 0) as usize;
        if needed > REGION_INFO_BYTES {
            if needed > PAYLOAD_BYTES_MAX {
                return Err(unanswered(command));
            }
            answer = self.ask(command, &request(needed), &[], REGION_INFO_BYTES)?;
        }
        let Raw { payload, fds, .. } = answer;
        let flags = word(&payload, 4);
        Ok(ClientRegion {
            bytes: long(&payload, 16),
            readable: flags & region_flag::READ != 0,
            writable: flags & region_flag::WRITE != 0,
            file_offset: long(&payload, 24),
            areas: areas(&payload, flags).ok_or_else(|| unanswered(command))?,
            file: fds.into_iter().next().map(File::from),
        })
    }

    /// What an interrupt is.
    ///
    /// # Errors
    /// When the server is gone or refuses.
    pub fn irq(&mut self, index: u32) -> Result<Irq, ClientError> {
        let request = Payload::default().words(&[16, 0, index, 0]).0;
        let answer = self.ask(Command::IrqInfo, &request, &[], 16)?.payload;
        let count = word(&answer, 12);
        Ok(Irq { count })
    }

    /// Reads a region.
    ///
    /// # Errors
    /// When the server is gone or refuses.
    pub fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), ClientError> {
        let request = access(region, offset, data.len())?;
        let answer = self.ask(Command::RegionRead, &request, &[], 16 + data.len())?;
        data.copy_from_slice(&answer.payload[16..16 + data.len()]);
        Ok(())
    }

    /// Writes a region.
    ///
    /// # Errors
    /// When the server is gone or refuses.
    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        let mut request = access(region, offset, data.len())?;
        request.extend_from_slice(data);
        self.ask(Command::RegionWrite, &request, &[], 0).map(|_| ())
    }

    /// Lets the device use memory of this side, for reading and writing.
    ///
    /// # Errors
    /// When the server is gone or refuses.
    pub fn dma_map(
        &mut self,
        address: u64,
        bytes: u64,
        file: Option<(BorrowedFd<'_>, u64)>,
    ) -> Result<(), ClientError> {
        let offset = file.map_or(0, |(_, offset)| offset);
        let payload = Payload::default().words(&[32, 3]);
        let request = payload.longs(&[offset, address, bytes]).0;
        let fds: Vec<RawFd> = file.iter().map(|(fd, _)| fd.as_raw_fd()).collect();
        self.ask(Command::DmaMap, &request, &fds, 0).map(|_| ())
    }

    /// Takes memory back.
    ///
    /// # Errors
    /// When the server is gone or refuses.
    pub fn dma_unmap(&mut self, address: u64, bytes: u64) -> Result<(), ClientError> {
        let payload = Payload::default().words(&[24, 0]);
        let request = payload.longs(&[address, bytes]).0;
        self.ask(Command::DmaUnmap, &request, &[], 0).map(|_| ())
    }

    /// Has vectors from `start` on delivered by eventfds, one each.
    ///
    /// # Errors
    /// When the server is gone or refuses.
    pub fn set_eventfds(
        &mut self,
        index: u32,
        start: u32,
        eventfds: &[BorrowedFd<'_>],
    ) -> Result<(), ClientError> {
        let most = usize::try_from(self.server.max_msg_fds).unwrap_or(1);
        let most = most.clamp(1, MESSAGE_FDS_MAX);
        for (piece, fds) in eventfds.chunks(most).enumerate() {
            let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
            // CAST: a device has at most 2048 vectors
            let start = start + (piece * most) as u32;
            let flags = irq_set::EVENTFD | irq_set::TRIGGER;
            self.set_irqs(index, start, fds.len() as u32, flags, &fds)?;
        }
        Ok(())
    }

    /// Takes all eventfds of an interrupt back.
    ///
    /// # Errors
    /// When the server is gone or refuses.
    pub fn clear_eventfds(&mut self, index: u32) -> Result<(), ClientError> {
        self.set_irqs(index, 0, 0, irq_set::NONE | irq_set::TRIGGER, &[])
    }

    /// Masks or unmasks vectors, or delivers them now.
    ///
    /// # Errors
    /// When the server is gone or refuses.
    pub fn act_on_irqs(
        &mut self,
        index: u32,
        start: u32,
        count: u32,
        action: IrqAction,
    ) -> Result<(), ClientError> {
        let action = match action {
            IrqAction::Mask => irq_set::MASK,
            IrqAction::Unmask => irq_set::UNMASK,
            IrqAction::Trigger => irq_set::TRIGGER,
        };
        self.set_irqs(index, start, count, irq_set::NONE | action, &[])
    }

    fn set_irqs(
        &mut self,
        index: u32,
        start: u32,
        count: u32,
        flags: u32,
        fds: &[RawFd],
    ) -> Result<(), ClientError> {
        let words = [20, flags, index, start, count];
        let request = Payload::default().words(&words).0;
        self.ask(Command::SetIrqs, &request, fds, 0).map(|_| ())
    }

    /// Resets the device.
    ///
    /// # Errors
    /// When the server is gone or refuses.
    pub fn reset(&mut self) -> Result<(), ClientError> {
        self.ask(Command::Reset, &[], &[], 0).map(|_| ())
    }

    /// Sends a request and waits for the answer, which has at least `at_least` bytes.
    fn ask(
        &mut self,
        command: Command,
        payload: &[u8],
        fds: &[RawFd],
        at_least: usize,
    ) -> Result<Raw, ClientError> {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let header = Header::command(id, command, payload.len());
        self.socket.send(header, payload, fds)?;
        let answer = self.socket.receive()?.ok_or(ClientError::Gone)?;
        let Header { flags, .. } = answer.header;
        if answer.header.kind() != Some(Kind::Reply) {
            return Err(ProtocolError::Kind(flags).into());
        }
        if (answer.header.id, answer.header.command) != (id, command as u16) {
            return Err(unanswered(command));
        }
        if let Some(errno) = answer.header.refused() {
            let source = Errno(i32::try_from(errno).unwrap_or(libc::EIO));
            return Err(ClientError::Refused { command, source });
        }
        if answer.payload.len() < at_least {
            return Err(unanswered(command));
        }
        Ok(answer)
    }
}

fn unanswered(command: Command) -> ClientError {
    let command = command as u16;
    ProtocolError::Answer { command }.into()
}

fn access(region: u32, offset: u64, bytes: usize) -> Result<Vec<u8>, ClientError> {
    if bytes > DATA_BYTES_MAX {
        return Err(ClientError::TooLong(bytes));
    }
    // CAST: bounded above
    let payload = Payload::default().longs(&[offset]);
    Ok(payload.words(&[region, bytes as u32]).0)
}

/// The areas that a region's capabilities name; `None` where they are not well-formed.
fn areas(payload: &[u8], flags: u32) -> Option<Vec<Area>> {
    let mut areas = Vec::new();
    if flags & region_flag::CAPS == 0 {
        return Some(areas);
    }
    let mut at = word(payload, 12) as usize;
    // Each capability follows the one before, so this ends.
    while at != 0 {
        let capability = payload.get(at..).filter(|rest| rest.len() >= 8)?;
        let (id, next) = (word(capability, 0) & 0xffff, word(capability, 4) as usize);
        if id == SPARSE_MMAP {
            let count = word(capability, 8) as usize;
            let bytes = capability.get(SPARSE_BYTES..)?;
            if count > bytes.len() / AREA_BYTES {
                return None;
            }
            for area in bytes.chunks_exact(AREA_BYTES).take(count) {
                let (offset, bytes) = (long(area, 0), long(area, 8));
                areas.push(Area { offset, bytes });
            }
        }
        if next != 0 && next <= at {
            return None;
        }
        at = next;
    }
    Some(areas)
}

const _: () = assert!(HEADER_BYTES + PAYLOAD_BYTES_MAX < 64 << 10);
