//! The connection to the daemon, and the resources received with its welcome.

use super::AttachError;
use crate::device::{Host, Identity, MediatorGone, MsiMessage};
use crate::gate::SharedPages;
use crate::sys::fd::{cannot_shrink, duplicate, to_eventfd};
use crate::wire::{
    self, Agreed, Frame, FrameReader, Protocols, Read, Region, ToDaemon, ToVmm, WireError,
};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use turnstile_abi::{CHANNELS_MAX, GPU_MEMORY_BYTES_MAX, MAILBOX_ARGS, PAGE_BYTES, pci};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};
use vmm_sys_util::eventfd::EventFd;

/// Most GPU memory that the aperture can show: more does not fit into the physical addresses of
/// many processors. A VM with more has no aperture.
pub(crate) const APERTURE_BYTES_MAX: u64 = 256 << 30;
/// TIMEOUT: a daemon that lives answers at once; this is for one that hangs.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(10);
/// TIMEOUT: at most a few frames are ever unread, so the socket always has room while the daemon
/// lives. A vCPU must not wait longer than this for a daemon that hangs.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Sends frames from any thread.
#[derive(Debug)]
pub(crate) struct Sender(Mutex<UnixStream>);

impl Sender {
    pub(crate) fn send(&self, message: &ToDaemon) -> Result<(), WireError> {
        self.send_with(message, Vec::new())
    }

    /// With descriptors.
    pub(crate) fn send_with(&self, message: &ToDaemon, fds: Vec<OwnedFd>) -> Result<(), WireError> {
        let stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        wire::send(&stream, message, fds).inspect_err(|_| {
            // A part of the frame may be sent, so no frame can follow it. The reader finds the end.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        })
    }

    /// Ends the connection, for the reader too.
    pub(crate) fn shut_down(&self) {
        let stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // It may have ended already.
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}

/// The daemon's end of the connection, between frames.
#[derive(Debug)]
pub(crate) struct Receiver {
    stream: UnixStream,
    reader: FrameReader,
}

impl Receiver {
    /// The next frame; `None` at the end of the connection.
    pub(crate) fn receive(&mut self) -> Result<Option<ToVmm>, WireError> {
        match self.reader.read(&self.stream)? {
            Read::Frame(frame) => frame.with_fds::<0>().map(|(message, _)| Some(message)),
            Read::End => Ok(None),
            Read::WouldBlock => Err(WireError::Socket(io::ErrorKind::TimedOut.into())),
        }
    }
}

/// What the daemon gave.
#[derive(Debug)]
pub struct Welcome {
    /// What the device shows of itself.
    pub identity: Identity,
    /// Doorbell pages of open gates.
    pub pages: Arc<SharedPages>,
    /// Pages that take what a guest writes to closed gates: of this process alone.
    pub parking: Arc<SharedPages>,
    /// The status page, read-only.
    pub status: Arc<MmapRegion<()>>,
    /// GPU memory that the aperture shows: one page if the device has none.
    pub aperture: Arc<MmapRegion<()>>,
    /// Every write to a closed gate traps and is counted, not the first alone.
    pub trap_every_write: bool,
    pub(crate) interrupts: Arc<[EventFd]>,
    pub(super) kick: EventFd,
    pub(crate) sender: Arc<Sender>,
    pub(crate) receiver: Receiver,
}

/// Eventfds, one per vector.
///
/// # Errors
/// As eventfd(2).
pub fn interrupts() -> Result<Arc<[EventFd]>, AttachError> {
    (0..pci::VECTORS)
        .map(|_| EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC))
        .collect::<io::Result<Vec<_>>>()
        .map(Arc::from)
        .map_err(AttachError::Descriptor)
}

/// What a VM requests of the daemon.
#[derive(Debug)]
pub struct Request {
    /// The daemon's socket.
    pub daemon: PathBuf,
    /// Name, unique on the host: 1 to 253 of `[A-Za-z0-9._+-]`.
    pub name: String,
    /// Weight, 1 to 10000; the daemon's default where absent.
    pub weight: Option<u32>,
    /// GPU memory that the VM may own; the daemon's default where absent.
    pub gpu_memory_bytes: Option<u64>,
    /// The file of its memory, sealed against shrinking; absent if it follows later.
    pub memory: Option<OwnedFd>,
    /// Where the file's parts are in the guest's memory.
    pub regions: Vec<Region>,
    /// Instance id, project and labels.
    pub metadata: wire::Metadata,
}

impl Request {
    /// A VM with memory from guest-physical address 0 on: the first `bytes` of a file.
    pub fn new(
        daemon: impl Into<PathBuf>,
        name: impl Into<String>,
        file: File,
        bytes: u64,
    ) -> Self {
        Self {
            daemon: daemon.into(),
            name: name.into(),
            weight: None,
            gpu_memory_bytes: None,
            memory: Some(file.into()),
            regions: vec![Region {
                gpa: 0,
                bytes,
                file_offset: 0,
            }],
            metadata: wire::Metadata::default(),
        }
    }
}

impl Welcome {
    /// Introduces a VM to the daemon. `interrupts`: an eventfd for each vector of the device.
    ///
    /// # Errors
    /// If no daemon answers, or it does not take the VM.
    pub fn request(request: Request, interrupts: &Arc<[EventFd]>) -> Result<Self, AttachError> {
        let (mut connection, protocol) = agree(&request.daemon)?;
        let mut fds: Vec<OwnedFd> = request.memory.into_iter().collect();
        for eventfd in interrupts.iter() {
            fds.push(duplicate(eventfd).map_err(AttachError::Descriptor)?);
        }
        let hello = ToDaemon::Hello {
            protocol,
            name: request.name,
            weight: request.weight,
            gpu_memory_bytes: request.gpu_memory_bytes,
            regions: request.regions,
            metadata: request.metadata,
        };
        wire::send(&connection.stream, &hello, fds)?;
        let mut frame = answer(&mut connection)?;
        while let ToVmm::Waiting {} = frame.message {
            // For as long as no GPU has room. If the daemon ends, so does the connection.
            let forever = connection.stream.set_read_timeout(None);
            forever.map_err(connected(&request.daemon))?;
            frame = answer(&mut connection)?;
        }
        if let ToVmm::Refused { text } = frame.message {
            return Err(AttachError::Refused(text));
        }
        let (message, [pages, status, aperture, kick]) = frame.with_fds()?;
        let Receiver { stream, reader } = connection;
        let connected = connected(&request.daemon);
        let reading = stream.try_clone().map_err(&connected)?;
        let ToVmm::Welcome {
            tenant: _,
            channels,
            gpu_memory_bytes,
            mut features,
            doorbells_offset,
        } = message
        else {
            return Err(AttachError::Protocol("its first frame is no welcome"));
        };
        if channels == 0 || channels > CHANNELS_MAX {
            return Err(AttachError::Protocol("channels are 1 to 1024"));
        }
        if gpu_memory_bytes == 0
            || gpu_memory_bytes > GPU_MEMORY_BYTES_MAX
            || !gpu_memory_bytes.is_multiple_of(PAGE_BYTES)
        {
            return Err(AttachError::Protocol(
                "GPU memory is 4 KiB to 1 TiB, a multiple of 4096",
            ));
        }
        reading.set_read_timeout(None).map_err(&connected)?;
        if gpu_memory_bytes > APERTURE_BYTES_MAX {
            features &= !turnstile_abi::regs::features::APERTURE;
        }
        let identity = Identity {
            features,
            channels,
            memory_bytes: gpu_memory_bytes,
        };
        // A GPU that cannot show its memory sends one page, so that there is something to map.
        let shown = identity.aperture_bytes().max(PAGE_BYTES);
        Ok(Self {
            identity,
            pages: SharedPages::from_file_at(File::from(pages), doorbells_offset, channels)
                .map(Arc::new)
                .map_err(|source| AttachError::Memory {
                    what: "doorbell pages",
                    source,
                })?,
            parking: parking(channels)?,
            status: map("status page", status, PAGE_BYTES, false)?,
            aperture: map("aperture", aperture, shown, true)?,
            trap_every_write: false,
            interrupts: Arc::clone(interrupts),
            kick: to_eventfd(kick),
            sender: Arc::new(Sender(Mutex::new(stream))),
            receiver: Receiver {
                stream: reading,
                reader,
            },
        })
    }
}

fn connected(daemon: &Path) -> impl Fn(io::Error) -> AttachError {
    |source| AttachError::Connect {
        path: daemon.to_owned(),
        source,
    }
}

fn connect(daemon: &Path) -> Result<Receiver, AttachError> {
    let connected = connected(daemon);
    let stream = UnixStream::connect(daemon).map_err(&connected)?;
    stream
        .set_read_timeout(Some(WELCOME_TIMEOUT))
        .and_then(|()| stream.set_write_timeout(Some(SEND_TIMEOUT)))
        .map_err(&connected)?;
    Ok(Receiver {
        stream,
        reader: FrameReader::new(),
    })
}

/// Waits for the daemon's answer.
fn answer(connection: &mut Receiver) -> Result<Frame<ToVmm>, AttachError> {
    match connection.reader.read(&connection.stream)? {
        Read::Frame(frame) => Ok(frame),
        Read::End => Err(AttachError::Closed),
        Read::WouldBlock => Err(AttachError::Protocol("it did not answer within 10 s")),
    }
}

/// Connects, and agrees with the daemon on a version of the protocol.
fn agree(daemon: &Path) -> Result<(Receiver, u32), AttachError> {
    let mut connection = connect(daemon)?;
    let offer = ToDaemon::Offer(Protocols::SPOKEN);
    wire::send(&connection.stream, &offer, Vec::new())?;
    let Frame { message, .. } = answer(&mut connection)?;
    match (Protocols::SPOKEN.agreed(&message), message) {
        (Some(Agreed::Here(protocol)), _) => Ok((connection, protocol)),
        (Some(Agreed::Anew(protocol)), _) => Ok((connect(daemon)?, protocol)),
        (None, ToVmm::Refused { text }) => Err(AttachError::Refused(text)),
        (None, _) => Err(AttachError::Protocol(
            "it chose no version that was offered",
        )),
    }
}

/// Pages that take what a guest writes to closed gates: of this process alone.
pub(crate) fn parking(channels: u32) -> Result<Arc<SharedPages>, AttachError> {
    SharedPages::new(channels)
        .map(Arc::new)
        .map_err(|source| AttachError::Memory {
            what: "parking pages",
            source,
        })
}

/// Maps the first `bytes` of a memory file of the daemon. The file must have that length and a seal
/// against shrinking, because an access to a removed page would end this process.
fn map(
    what: &'static str,
    fd: OwnedFd,
    bytes: u64,
    writable: bool,
) -> Result<Arc<MmapRegion<()>>, AttachError> {
    let failed = |source| AttachError::Memory { what, source };
    let file = File::from(fd);
    if !cannot_shrink(&file) {
        return Err(AttachError::Protocol(
            "a memory file is not sealed against shrinking",
        ));
    }
    if file.metadata().map_err(failed)?.len() < bytes {
        return Err(AttachError::Protocol("a memory file is too short"));
    }
    let prot = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
    MmapRegion::build(
        Some(FileOffset::new(file, 0)),
        bytes as usize,
        prot,
        libc::MAP_SHARED | libc::MAP_NORESERVE,
    )
    .map(Arc::new)
    .map_err(|error| failed(io::Error::other(error)))
}

/// Where interrupt messages are delivered.
pub trait Router: Send {
    /// Delivers `vector` as `message` from now on, or not at all.
    fn route(&mut self, vector: u16, message: Option<MsiMessage>);
}

/// Interrupts need no routes where their eventfds are what the guest waits for, or are passed on.
#[derive(Debug)]
pub struct NoRoutes;

impl Router for NoRoutes {
    fn route(&mut self, _: u16, _: Option<MsiMessage>) {}
}

/// The device's surroundings in this VMM.
#[derive(Debug)]
pub struct LinkHost<R> {
    pub(super) sender: Arc<Sender>,
    pub(super) interrupts: Arc<[EventFd]>,
    pub(super) status: Arc<MmapRegion<()>>,
    pub(super) router: R,
}

impl<R: Router> Host for LinkHost<R> {
    fn send_mailbox(
        &mut self,
        id: u64,
        op: u32,
        args: [u64; MAILBOX_ARGS],
    ) -> Result<(), MediatorGone> {
        self.sender
            .send(&ToDaemon::Mailbox { id, op, args })
            .map_err(|_| MediatorGone)
    }

    fn set_msix(&mut self, vector: u16, message: Option<MsiMessage>) {
        self.router.route(vector, message);
    }

    fn raise(&mut self, vector: u16) {
        if let Some(eventfd) = self.interrupts.get(usize::from(vector)) {
            // A full counter means that the interrupt is pending already.
            let _ = eventfd.write(1);
        }
    }

    fn read_status_page(&self, offset: u64, data: &mut [u8]) {
        // PANIC: none; the device passes offsets within the page only.
        let _ = self
            .status
            .as_volatile_slice()
            .read_slice(data, offset as usize);
    }
}
