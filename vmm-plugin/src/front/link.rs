//! The daemon's side of a session, and what its threads share.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use turnstile_abi::pci::{BAR_APERTURE, BAR_DOORBELLS, BAR_REGS, VECTORS};
use turnstile_abi::regs::features;
use turnstile_abi::{CHANNELS_MAX, PAGE_BYTES};

use super::doorbells::{MappedPages, NoPages, watch};
use super::seldom::{Allowance, Seldom};
use super::vectors::Vectors;
use super::{Doorbells, FrontConfig};
use crate::attach::{
    self, AttachError, Disobedience, NoRoutes, Request, Welcome, interrupts, parking,
};
use crate::device::bar_bytes;
use crate::vfio_user::{
    Area, DmaMap, DmaUnmap, Errno, Irq, Layout, Mapping, Maps, Memory, Region, irq,
};
use crate::wire::{ToDaemon, ToVmm};

/// Interval between attempts to become a tenant. The guest's driver sees the device as lost
/// meanwhile.
const RETRY: Duration = Duration::from_secs(1);
/// Attempts that may follow each other at once: each makes a tenant and ends another.
const ATTEMPTS: u32 = 4;
/// TIMEOUT: mapping takes milliseconds; this is for a daemon that hangs.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);

/// The VM as a tenant of the daemon's.
pub(super) type Attached = attach::Attached<NoPages, NoRoutes>;
type Frames = attach::Control<NoPages, NoRoutes>;

#[derive(Debug, Default)]
struct Link {
    /// The guest has touched the device.
    wanted: bool,
    ended: bool,
    /// The last attempt failed; logged once.
    refused: bool,
    /// The tenant. Kept after the connection is lost, until there is another.
    attached: Option<Arc<Attached>>,
    /// Whether the connection is up.
    live: bool,
    /// The daemon's answer to the last change of memory.
    done: Option<(u64, Option<String>)>,
    changes: u64,
}

/// One VMM's connection.
#[derive(Debug)]
pub(super) struct Session {
    config: FrontConfig,
    seldom: Arc<Seldom>,
    vectors: Vectors,
    /// Locked while the daemon is notified.
    maps: Mutex<Maps>,
    link: Mutex<Link>,
    changed: Condvar,
    /// The guest's doorbell pages, if they are mapped.
    pages: Option<Arc<MappedPages>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Session {
    pub(super) fn start(
        config: FrontConfig,
        seldom: Arc<Seldom>,
    ) -> Result<Arc<Self>, AttachError> {
        let pages = match config.doorbells {
            Doorbells::Trapped => None,
            Doorbells::Mapped => Some(Arc::new(MappedPages::new(parking(CHANNELS_MAX)?))),
        };
        let session = Arc::new(Self {
            vectors: Vectors::new(interrupts()?).map_err(AttachError::Descriptor)?,
            maps: Mutex::default(),
            link: Mutex::default(),
            changed: Condvar::new(),
            threads: Mutex::default(),
            pages,
            config,
            seldom,
        });
        let started = session.start_threads();
        if started.is_err() {
            session.end();
        }
        started.map_err(AttachError::Descriptor).map(|()| session)
    }

    fn start_threads(self: &Arc<Self>) -> io::Result<()> {
        self.spawn("vfu-link", |session| session.attach_when_wanted())?;
        self.spawn("vfu-irq", |session| {
            if let Err(error) = session.vectors.pass_on() {
                log::error!("{}: interrupts failed: {error}", session.config.name);
            }
        })?;
        if let Some(pages) = self.pages.clone() {
            self.spawn("vfu-doorbell", move |session| watch(session, &pages))?;
        }
        Ok(())
    }

    fn spawn(
        self: &Arc<Self>,
        name: &str,
        body: impl FnOnce(&Self) + Send + 'static,
    ) -> io::Result<()> {
        let session = Arc::clone(self);
        let builder = thread::Builder::new().name(name.into());
        let thread = builder.spawn(move || body(&session))?;
        let threads = self.threads.lock();
        threads.unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }

    /// The device's layout, as reported to the VMM.
    pub(super) fn layout(&self) -> Layout {
        let mut layout = Layout::default();
        for bar in [BAR_REGS, BAR_DOORBELLS, BAR_APERTURE] {
            layout.regions[bar] = Region::trapped(bar_bytes(bar, 0));
        }
        if let Some(pages) = &self.pages
            && let Ok(file) = pages.file().try_clone()
        {
            layout.regions[BAR_DOORBELLS].mapping = Some(Mapping {
                file: Arc::new(file),
                file_offset: 0,
                areas: vec![Area {
                    offset: 0,
                    bytes: u64::from(CHANNELS_MAX) * PAGE_BYTES,
                }],
            });
        }
        layout.irqs[irq::MSIX as usize] = Irq {
            count: VECTORS.into(),
        };
        layout
    }

    pub(super) fn vectors(&self) -> &Vectors {
        &self.vectors
    }

    /// Logs a warning about an action of the VMM or its guest.
    fn warn(&self, what: fmt::Arguments<'_>) {
        let line = format_args!("{}: {what}", self.config.name);
        self.seldom.say(log::Level::Warn, line);
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn maps(&self) -> MutexGuard<'_, Maps> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tenant, if the VM is or was one.
    pub(super) fn attached(&self) -> Option<Arc<Attached>> {
        self.link().attached.clone()
    }

    /// The guest touches the device: it wants to be a tenant.
    pub(super) fn touched(&self) -> Option<Arc<Attached>> {
        let mut link = self.link();
        if !link.wanted {
            link.wanted = true;
            self.changed.notify_all();
        }
        link.attached.clone()
    }

    /// Whether the daemon did not take the VM, or is not there.
    pub(super) fn is_refused(&self) -> bool {
        self.link().refused
    }

    pub(super) fn has_ended(&self) -> bool {
        self.link().ended
    }

    /// No tenant any more, until the device is touched again.
    pub(super) fn reset(&self) {
        let mut link = self.link();
        link.wanted = false;
        if let Some(attached) = link.attached.take() {
            attached.detach();
        }
        drop(link);
        self.vectors.table().reset();
    }

    /// The VMM is gone.
    pub(super) fn end(&self) {
        self.link().ended = true;
        self.reset();
        self.changed.notify_all();
        self.vectors.end();
        let threads = self.threads.lock();
        let threads = std::mem::take(&mut *threads.unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            if thread.join().is_err() {
                log::error!("{}: a thread panicked", self.config.name);
            }
        }
    }

    /// Takes memory.
    pub(super) fn map(&self, map: DmaMap) -> Result<(), Errno> {
        let mut maps = self.maps();
        if let Some(memory) = maps.add(map)? {
            let (region, file) = (memory.region, memory.file.try_clone()?);
            let message = |id| ToDaemon::MapMemory { id, region };
            // The device works without this memory: commands that name it fail. A VMM that got an
            // error might end. The daemon does not know it when it is given back.
            if let Some(text) = self.change(message, vec![file.into()]) {
                self.warn(format_args!("memory is not taken: {text}"));
                maps.refused(region.gpa);
            }
        }
        Ok(())
    }

    /// Gives memory back.
    pub(super) fn unmap(&self, unmap: DmaUnmap) -> Result<(), Errno> {
        let mut maps = self.maps();
        for region in maps.remove(unmap)? {
            let (gpa, bytes) = (region.gpa, region.bytes);
            let message = |id| ToDaemon::UnmapMemory { id, gpa, bytes };
            if self.change(message, Vec::new()).is_some() {
                // The memory must not be used any more, whatever the daemon answers: the VM becomes
                // a tenant again, with the remaining memory.
                if let Some(attached) = self.attached() {
                    attached.detach();
                }
            }
        }
        Ok(())
    }

    /// Has the daemon change the VM's memory, if the VM is a tenant; returns why it refused.
    fn change(&self, message: impl FnOnce(u64) -> ToDaemon, fds: Vec<OwnedFd>) -> Option<String> {
        let mut link = self.link();
        let attached = link.attached.clone().filter(|_| link.live)?;
        link.changes += 1;
        let id = link.changes;
        if attached.sender().send_with(&message(id), fds).is_err() {
            return None;
        }
        let until = Instant::now() + CHANGE_TIMEOUT;
        loop {
            match &link.done {
                Some((done, refused)) if *done == id => return refused.clone(),
                _ if !link.live || link.ended => return None,
                _ => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // The VM becomes a tenant again, with its memory as it is then.
                self.warn(format_args!("the daemon did not answer about memory"));
                attached.detach();
                return None;
            }
            let waited = self.changed.wait_timeout(link, left);
            link = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The link thread: makes the VM a tenant whenever it wants to be one and is not.
    fn attach_when_wanted(&self) {
        // A guest may reset its device and touch it again as often as it likes.
        let mut attempts = Allowance::new(ATTEMPTS, RETRY);
        loop {
            let mut link = self.link();
            while !(link.ended || link.wanted && attempts.take(Instant::now())) {
                let wait = if link.wanted {
                    RETRY / 10
                } else {
                    Duration::MAX
                };
                let waited = self.changed.wait_timeout(link, wait);
                link = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            if link.ended {
                return;
            }
            drop(link);
            match self.attach() {
                Ok((attached, frames)) => self.tend(&attached, frames),
                Err(error) => {
                    let mut link = self.link();
                    if !std::mem::replace(&mut link.refused, true) {
                        self.warn(format_args!("{error}"));
                    }
                }
            }
            let link = self.link();
            let over = |link: &mut Link| !link.ended && link.wanted;
            drop(self.changed.wait_timeout_while(link, RETRY, over));
        }
    }

    /// Introduces the VM to the daemon, with its memory.
    fn attach(&self) -> Result<(Arc<Attached>, Frames), AttachError> {
        let maps = self.maps();
        let duplicate = |file: &std::fs::File| {
            let copy = file.try_clone().map(OwnedFd::from);
            copy.map_err(AttachError::Descriptor)
        };
        let one_file = maps.one_file();
        let regions = match one_file {
            Some(_) => maps.memory().map(|memory| memory.region).collect(),
            None => Vec::new(),
        };
        let request = Request {
            daemon: self.config.daemon.clone(),
            name: self.config.name.clone(),
            weight: self.config.weight,
            gpu_memory_bytes: self.config.gpu_memory_bytes,
            memory: one_file.map(duplicate).transpose()?,
            regions,
            metadata: self.config.metadata.clone(),
        };
        let mut welcome = Welcome::request(request, self.vectors.own())?;
        welcome.identity.features &= !features::APERTURE;
        if one_file.is_none() {
            for (id, Memory { region, file }) in (1 << 32..).zip(maps.memory()) {
                let message = ToDaemon::MapMemory { id, region };
                welcome.sender.send_with(&message, vec![duplicate(file)?])?;
                match welcome.receiver.receive()? {
                    Some(ToVmm::MemoryDone { refused: None, .. }) => {}
                    Some(ToVmm::MemoryDone {
                        refused: Some(text),
                        ..
                    }) => return Err(AttachError::Refused(text)),
                    _ => return Err(AttachError::Protocol("it did not answer about memory")),
                }
            }
        }
        let (attached, frames) = welcome.attach(NoPages, NoRoutes);
        let mut link = self.link();
        link.refused = false;
        if link.wanted && !link.ended {
            link.live = true;
            link.attached = Some(Arc::clone(&attached));
        } else {
            attached.detach();
        }
        Ok((attached, frames))
    }

    /// Executes the daemon's messages until the connection ends.
    fn tend(&self, attached: &Attached, mut frames: Frames) {
        while let Some(message) = frames.receive() {
            if let (Some(pages), ToVmm::Gate { channel, .. }) = (&self.pages, &message)
                && attached.gates.state(*channel).is_none()
            {
                pages.give(*channel);
            }
            match frames.execute(message) {
                Ok(None) => {}
                Ok(Some(ToVmm::MemoryDone { id, refused })) => {
                    self.link().done = Some((id, refused));
                    self.changed.notify_all();
                }
                Ok(Some(_)) | Err(Disobedience::Over | Disobedience::Gate(_)) => break,
            }
        }
        // No page moves here, so this cannot fail.
        let _ = frames.end();
        self.link().live = false;
        self.changed.notify_all();
    }
}
