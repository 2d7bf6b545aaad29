//! A daemon for one VM that passes doorbell pages of a device through and moves their gates on
//! request. The device has none of its channels, so it ignores their doorbells.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use turnstile_abi::physical::BAR_DOORBELLS;
use turnstile_abi::regs::features;
use turnstile_abi::{CHUNK_BYTES, ErrorCode, MAILBOX_RESULTS, PAGE_BYTES, Request};
use turnstile_vfio::{Bus, Region};
use turnstile_vmm::gate::{GateState, PageWords, SharedPages};
use turnstile_vmm::wire::{FrameReader, PROTOCOL, Read, ToDaemon, ToVmm, send};

/// Channels of the VM.
const CHANNELS: u32 = 8;
/// TIMEOUT: to make a vCPU exit takes milliseconds, in an emulated host tens of them.
const PATIENCE: Duration = Duration::from_secs(20);

/// The daemon.
#[derive(Debug)]
pub(super) struct GateDaemon {
    folder: tempfile::TempDir,
    pages: SharedPages,
    link: Mutex<Link>,
}

#[derive(Debug)]
struct Link {
    stream: Option<UnixStream>,
    streams: Receiver<UnixStream>,
    done: Receiver<u64>,
    seq: u64,
}

/// A file of one page, for what the VM does not use.
fn nothing() -> anyhow::Result<OwnedFd> {
    Ok(SharedPages::new(1)?.file().try_clone()?.into())
}

impl GateDaemon {
    /// Waits for a VM, which gets the device's doorbell pages from `first` on.
    pub(super) fn start(bus: &dyn Bus, first: u32) -> anyhow::Result<Self> {
        let offset = u64::from(first) * PAGE_BYTES;
        let bytes = u64::from(CHANNELS) * PAGE_BYTES;
        let part = bus.file(Region::Bar(BAR_DOORBELLS), offset, bytes)?;
        let file = part.file.try_clone()?;
        let pages = SharedPages::from_file_at(part.file, part.offset, CHANNELS)?;
        // Values from now on are those of this VM.
        pages.store(0, 0);
        let folder = tempfile::tempdir()?;
        let listener = UnixListener::bind(folder.path().join("vmm.sock"))?;
        let (report, done) = channel();
        let (connect, streams) = channel();
        thread::Builder::new().name("stub".into()).spawn(move || {
            if let Err(error) = serve(&listener, file, part.offset, &connect, &report) {
                eprintln!("the stub of a daemon: {error:#}");
            }
        })?;
        let link = Link {
            stream: None,
            streams,
            done,
            seq: 1,
        };
        Ok(Self {
            folder,
            pages,
            link: Mutex::new(link),
        })
    }

    /// The socket to which the VM connects.
    pub(super) fn socket(&self) -> PathBuf {
        self.folder.path().join("vmm.sock")
    }

    /// The value of the doorbell of the VM's first channel.
    pub(super) fn page(&self) -> u32 {
        self.pages.load(0)
    }

    /// Moves the gate of the first channel and waits until that is done; returns the number of
    /// writes that exited.
    pub(super) fn gate(&self, state: GateState) -> anyhow::Result<u64> {
        let Ok(mut link) = self.link.lock() else {
            bail!("a check panicked");
        };
        if link.stream.is_none() {
            link.stream = Some(link.streams.recv_timeout(PATIENCE)?);
        }
        link.seq += 1;
        let message = ToVmm::Gate {
            channel: 0,
            seq: link.seq,
            state,
        };
        let stream = link.stream.as_ref().context("no VM")?;
        send(stream, &message, Vec::new())?;
        link.done.recv_timeout(PATIENCE).context("no answer")
    }
}

fn serve(
    listener: &UnixListener,
    pages: File,
    offset: u64,
    connect: &Sender<UnixStream>,
    report: &Sender<u64>,
) -> anyhow::Result<()> {
    let (stream, _) = listener.accept()?;
    let mut reader = FrameReader::new();
    let Read::Frame(_offer) = reader.read::<ToDaemon>(&stream)? else {
        bail!("no offer");
    };
    send(&stream, &ToVmm::Chosen { protocol: PROTOCOL }, Vec::new())?;
    let Read::Frame(_hello) = reader.read::<ToDaemon>(&stream)? else {
        bail!("no hello");
    };
    let welcome = ToVmm::Welcome {
        tenant: 1,
        channels: CHANNELS,
        gpu_memory_bytes: CHUNK_BYTES,
        features: features::PTX | features::SOFTWARE,
        doorbells_offset: offset,
    };
    // The VM's signals are written to a page that is never read: only the test moves the gates.
    let fds = vec![pages.into(), nothing()?, nothing()?, nothing()?];
    send(&stream, &welcome, fds)?;
    connect.send(stream.try_clone()?)?;
    while let Read::Frame(frame) = reader.read::<ToDaemon>(&stream)? {
        match frame.message {
            ToDaemon::Mailbox { id, op, args } => answer(&stream, id, op, &args)?,
            ToDaemon::GateDone { trapped, seq, .. } if seq > 0 => {
                let _ = report.send(trapped);
            }
            _ => {}
        }
    }
    Ok(())
}

fn answer(stream: &UnixStream, id: u64, op: u32, args: &[u64; 8]) -> anyhow::Result<()> {
    let mut error = ErrorCode::None;
    match Request::decode(op, args) {
        Ok(Request::OpenChannel { .. }) => {
            let gate = ToVmm::Gate {
                channel: 0,
                seq: 0,
                state: GateState::Open,
            };
            send(stream, &gate, Vec::new())?;
        }
        Ok(Request::CloseChannel { channel }) => {
            send(stream, &ToVmm::ChannelClosed { channel }, Vec::new())?;
        }
        Ok(_) => error = ErrorCode::UnknownOp,
        Err(refused) => error = refused,
    }
    let done = ToVmm::MailboxDone {
        id,
        error: error as u32,
        text: String::new(),
        results: [0; MAILBOX_RESULTS],
    };
    Ok(send(stream, &done, Vec::new())?)
}
