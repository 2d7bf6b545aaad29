//! The connection to the daemon, and the resources received with its welcome.

use super::boot::GuestRam;
use super::{APERTURE_BYTES_MAX, VmConfig, VmError};
use crate::device::{Host, Identity, MediatorGone, MsiMessage, VirtualGpu};
use crate::gate::{GateControl, PageMap, PageMapError, SharedPages};
use crate::sys::fd::{cannot_shrink, duplicate, to_eventfd};
use crate::wire::{self, FrameReader, PROTOCOL, Read, Region, ToDaemon, ToVmm, WireError};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use turnstile_abi::{CHANNELS_MAX, GPU_MEMORY_BYTES_MAX, MAILBOX_ARGS, PAGE_BYTES, pci};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};
use vmm_sys_util::eventfd::EventFd;

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
pub(crate) struct Welcome {
    pub(crate) identity: Identity,
    pub(crate) pages: Arc<SharedPages>,
    pub(crate) status: Arc<MmapRegion<()>>,
    pub(crate) aperture: Arc<MmapRegion<()>>,
    pub(crate) kick: EventFd,
}

/// Eventfds, one per vector.
pub(crate) fn interrupts() -> Result<Arc<[EventFd]>, VmError> {
    (0..pci::VECTORS)
        .map(|_| EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC))
        .collect::<io::Result<Vec<_>>>()
        .map(Arc::from)
        .map_err(VmError::Thread)
}

/// Hello of a VM.
#[derive(Debug)]
pub(crate) struct Greeting<'a> {
    pub(crate) socket: &'a Path,
    pub(crate) name: &'a str,
    pub(crate) weight: Option<u32>,
    pub(crate) gpu_memory_bytes: Option<u64>,
    /// The file of its memory; absent if it follows later.
    pub(crate) memory: Option<OwnedFd>,
    pub(crate) regions: Vec<Region>,
    pub(crate) metadata: wire::Metadata,
}

/// Introduces the VM to the daemon.
pub(super) fn connect(
    config: &VmConfig,
    ram: &GuestRam,
    interrupts: &[EventFd],
) -> Result<(Sender, Receiver, Welcome), VmError> {
    let greeting = Greeting {
        socket: &config.socket,
        name: &config.name,
        weight: config.weight,
        gpu_memory_bytes: config.gpu_memory_bytes,
        memory: Some(ram.file()?.into()),
        regions: vec![Region {
            gpa: 0,
            bytes: ram.bytes(),
            file_offset: 0,
        }],
        metadata: config.metadata.clone(),
    };
    greet(greeting, interrupts)
}

/// Introduces a VM to the daemon.
pub(crate) fn greet(
    greeting: Greeting<'_>,
    interrupts: &[EventFd],
) -> Result<(Sender, Receiver, Welcome), VmError> {
    let connected = |source| VmError::Connect {
        path: greeting.socket.to_owned(),
        source,
    };
    let stream = UnixStream::connect(greeting.socket).map_err(connected)?;
    let reading = stream.try_clone().map_err(connected)?;
    stream
        .set_read_timeout(Some(WELCOME_TIMEOUT))
        .and_then(|()| stream.set_write_timeout(Some(SEND_TIMEOUT)))
        .map_err(connected)?;
    let mut fds: Vec<OwnedFd> = greeting.memory.into_iter().collect();
    for eventfd in interrupts {
        fds.push(duplicate(eventfd).map_err(VmError::Thread)?);
    }
    let hello = ToDaemon::Hello {
        protocol: PROTOCOL,
        name: greeting.name.to_owned(),
        weight: greeting.weight,
        gpu_memory_bytes: greeting.gpu_memory_bytes,
        regions: greeting.regions,
        metadata: greeting.metadata,
    };
    wire::send(&stream, &hello, fds)?;
    let mut reader = FrameReader::new();
    let frame = match reader.read(&reading)? {
        Read::Frame(frame) => frame,
        Read::End => return Err(VmError::Closed),
        Read::WouldBlock => return Err(VmError::Protocol("it did not answer within 10 s")),
    };
    if let ToVmm::Refused { text } = frame.message {
        return Err(VmError::Refused(text));
    }
    let (message, [pages, status, aperture, kick]) = frame.with_fds()?;
    let ToVmm::Welcome {
        tenant: _,
        channels,
        gpu_memory_bytes,
        mut features,
        doorbells_offset,
    } = message
    else {
        return Err(VmError::Protocol("its first frame is no welcome"));
    };
    if channels == 0 || channels > CHANNELS_MAX {
        return Err(VmError::Protocol("channels are 1 to 1024"));
    }
    if gpu_memory_bytes == 0
        || gpu_memory_bytes > GPU_MEMORY_BYTES_MAX
        || !gpu_memory_bytes.is_multiple_of(PAGE_BYTES)
    {
        return Err(VmError::Protocol(
            "GPU memory is 4 KiB to 1 TiB, a multiple of 4096",
        ));
    }
    reading.set_read_timeout(None).map_err(connected)?;
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
    let welcome = Welcome {
        identity,
        pages: SharedPages::from_file_at(File::from(pages), doorbells_offset, channels)
            .map(Arc::new)
            .map_err(|source| VmError::Memory {
                what: "doorbell pages",
                source,
            })?,
        status: map("status page", status, PAGE_BYTES, false)?,
        aperture: map("aperture", aperture, shown, true)?,
        kick: to_eventfd(kick),
    };
    let receiver = Receiver {
        stream: reading,
        reader,
    };
    Ok((Sender(Mutex::new(stream)), receiver, welcome))
}

/// Pages that take what a guest writes to closed gates: of this process alone.
pub(crate) fn parking(channels: u32) -> Result<Arc<SharedPages>, VmError> {
    SharedPages::new(channels)
        .map(Arc::new)
        .map_err(|source| VmError::Memory {
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
) -> Result<Arc<MmapRegion<()>>, VmError> {
    let failed = |source| VmError::Memory { what, source };
    let file = File::from(fd);
    if !cannot_shrink(&file) {
        return Err(VmError::Protocol(
            "a memory file is not sealed against shrinking",
        ));
    }
    if file.metadata().map_err(failed)?.len() < bytes {
        return Err(VmError::Protocol("a memory file is too short"));
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
pub(crate) trait Router: Send {
    /// Delivers `vector` as `message` from now on, or not at all.
    fn route(&mut self, vector: u16, message: Option<MsiMessage>);
}

/// Interrupts need no routes where their eventfds are what the guest waits for, or are passed on.
#[derive(Debug)]
pub(crate) struct NoRoutes;

impl Router for NoRoutes {
    fn route(&mut self, _: u16, _: Option<MsiMessage>) {}
}

/// Why a frame of the daemon's was not obeyed.
#[derive(Debug)]
pub(crate) enum Disobedience {
    /// The connection is of no more use.
    Over,
    /// The VM must not go on.
    Gate(PageMapError),
}

impl From<PageMapError> for Disobedience {
    fn from(error: PageMapError) -> Self {
        Self::Gate(error)
    }
}

/// Executes a frame about gates or the mailbox; returns any other frame.
pub(crate) fn obey<M: PageMap, H: Host>(
    message: ToVmm,
    gates: &GateControl<M, Arc<SharedPages>>,
    gpu: &Mutex<VirtualGpu<H>>,
    sender: &Sender,
) -> Result<Option<ToVmm>, Disobedience> {
    match message {
        ToVmm::Gate {
            channel,
            seq,
            state,
        } => {
            let Some(trapped) = gates.set(channel, state)? else {
                log::warn!("the daemon moved the gate of channel {channel}, which cannot be");
                return Err(Disobedience::Over);
            };
            let done = ToDaemon::GateDone {
                channel,
                seq,
                trapped,
            };
            sender.send(&done).map_err(|_| Disobedience::Over)?;
        }
        ToVmm::ChannelClosed { channel } => gates.remove(channel)?,
        ToVmm::MailboxDone {
            id,
            error,
            text,
            results,
        } => {
            let mut gpu = gpu.lock().unwrap_or_else(PoisonError::into_inner);
            gpu.mailbox_done(id, error, &text, results);
        }
        other => return Ok(Some(other)),
    }
    Ok(None)
}

/// The device's surroundings in this VMM.
#[derive(Debug)]
pub(crate) struct LinkHost<R> {
    pub(crate) sender: Arc<Sender>,
    pub(crate) interrupts: Arc<[EventFd]>,
    pub(crate) status: Arc<MmapRegion<()>>,
    pub(crate) router: R,
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
