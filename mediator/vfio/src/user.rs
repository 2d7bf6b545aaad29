//! A device behind a vfio-user server: another process simulates it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use turnstile_vmm::vfio_user::{Client, ClientError, ClientRegion, irq, region};
use vm_memory::MmapRegion;

use super::bus::{Bus, BusError, Region, RegionFile};

/// BARs of a device.
const BARS: u32 = 6;

/// TIMEOUT: a server answers in microseconds; one that hangs must not keep the daemon's lock.
const ANSWER: Duration = Duration::from_secs(1);

/// A connection to a device's server.
#[derive(Debug)]
pub struct UserBus {
    path: PathBuf,
    server: Mutex<Server>,
    /// Eventfd for vectors that are not in use.
    spare: File,
}

/// A server, and the regions that it serves.
#[derive(Debug)]
struct Server {
    client: Client,
    bars: Vec<ClientRegion>,
    /// It took or answered nothing in time, or is gone: further requests fail at once.
    lost: bool,
}

impl Server {
    fn new(mut client: Client) -> Result<Self, ClientError> {
        client.set_timeout(ANSWER)?;
        let bars = (0..BARS).map(|bar| client.region(region::BAR0 + bar));
        let bars = bars.collect::<Result<_, _>>()?;
        let lost = false;
        Ok(Self { client, bars, lost })
    }

    fn connect(path: &Path) -> Result<Self, ClientError> {
        Self::new(Client::connect(path)?)
    }
}

impl UserBus {
    /// Connects to the server that listens at `path`.
    ///
    /// # Errors
    /// When there is none, or it serves no PCI device.
    pub fn connect(path: &Path) -> Result<Self, BusError> {
        let client = Client::connect(path).map_err(|error| BusError::Open {
            what: format!("No device is served at {}", path.display()),
            source: io::Error::other(error),
        })?;
        Self::over(client, path.to_owned())
    }

    /// The device of a connection; `path` is its name.
    ///
    /// # Errors
    /// When the server does not serve a PCI device.
    pub fn over(client: Client, path: PathBuf) -> Result<Self, BusError> {
        let open = |source: io::Error| BusError::Open {
            what: format!("What is served at {} is no PCI device", path.display()),
            source,
        };
        let server = Server::new(client).map_err(|error| open(io::Error::other(error)))?;
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let spare = eventfd(0, flags).map_err(|errno| open(errno.into()))?;
        Ok(Self {
            path,
            server: Mutex::new(server),
            spare: File::from(spare),
        })
    }

    fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a request, unless the server is lost. A stream that failed is out of step.
    fn request<T>(
        &self,
        make: impl FnOnce(&mut Client) -> Result<T, ClientError>,
    ) -> Result<T, io::Error> {
        let mut server = self.server();
        if server.lost {
            return Err(io::Error::other(ClientError::Gone));
        }
        make(&mut server.client).map_err(|error| {
            let goes_on = matches!(error, ClientError::Refused { .. } | ClientError::TooLong(_));
            server.lost = !goes_on;
            io::Error::other(error)
        })
    }
}

fn index(region: Region) -> u32 {
    match region {
        Region::Config => region::CONFIG,
        Region::Bar(bar) => region::BAR0 + bar,
    }
}

impl Bus for UserBus {
    fn read(&self, region: Region, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        self.request(|client| client.read(index(region), offset, data))
            .map_err(|source| BusError::Access {
                region,
                offset,
                source,
            })
    }

    fn write(&self, region: Region, offset: u64, data: &[u8]) -> Result<(), BusError> {
        self.request(|client| client.write(index(region), offset, data))
            .map_err(|source| BusError::Access {
                region,
                offset,
                source,
            })
    }

    fn file(&self, region: Region, offset: u64, bytes: u64) -> Result<RegionFile, BusError> {
        let failed = |source| BusError::Map {
            region,
            offset,
            source,
        };
        let server = self.server();
        let known = match region {
            Region::Bar(bar) => server.bars.get(bar as usize),
            Region::Config => None,
        };
        let unsupported = || failed(io::ErrorKind::Unsupported.into());
        let known = known.ok_or_else(unsupported)?;
        let end = offset.checked_add(bytes).ok_or_else(unsupported)?;
        let within = known
            .areas
            .iter()
            .any(|area| area.offset <= offset && end <= area.offset.saturating_add(area.bytes));
        let file = known.file.as_ref().filter(|_| within);
        let file = file.ok_or_else(unsupported)?.try_clone().map_err(failed)?;
        let offset = known.file_offset.checked_add(offset);
        let offset = offset.ok_or_else(unsupported)?;
        Ok(RegionFile { file, offset })
    }

    fn connect(&self, vector: u16, eventfd: Option<BorrowedFd<'_>>) -> Result<(), BusError> {
        let eventfd = eventfd.unwrap_or(self.spare.as_fd());
        self.request(|client| client.set_eventfds(irq::MSIX, vector.into(), &[eventfd]))
            .map_err(|source| BusError::Vector { vector, source })
    }

    fn dma_map(&self, iova: u64, memory: &MmapRegion<()>) -> Result<(), BusError> {
        let bytes = memory.size() as u64;
        let failed = |source| BusError::Dma {
            iova,
            bytes,
            source,
        };
        let behind = memory.file_offset();
        let behind = behind.ok_or_else(|| failed(io::ErrorKind::Unsupported.into()))?;
        let file = (behind.file().as_fd(), behind.start());
        self.request(|client| client.dma_map(iova, bytes, Some(file)))
            .map_err(failed)
    }

    fn dma_unmap(&self, iova: u64, bytes: u64) -> Result<(), BusError> {
        self.request(|client| client.dma_unmap(iova, bytes))
            .map_err(|source| BusError::Dma {
                iova,
                bytes,
                source,
            })
    }

    fn reconnect(&self) -> Result<bool, BusError> {
        let next = Server::connect(&self.path).map_err(|error| BusError::Open {
            what: format!("No device is served at {}", self.path.display()),
            source: io::Error::other(error),
        })?;
        *self.server() = next;
        Ok(true)
    }

    fn describe(&self) -> String {
        format!("device served at {}", self.path.display())
    }
}
