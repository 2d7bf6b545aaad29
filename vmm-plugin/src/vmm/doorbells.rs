//! The memory of a KVM guest's doorbell BAR: a window of exchanged pages, or a memory slot per page
//! that is added and removed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use turnstile_abi::PAGE_BYTES;

use super::VmError;
use super::kvm::{DOORBELL_SLOT, DOORBELLS_GPA};
use crate::gate::{Page, PageMap, PageMapError, SharedPages};
use crate::sys::slots::{Piece, SlottedVm};
use crate::sys::window::Window;

fn window(pages: &SharedPages) -> Result<Window, VmError> {
    Window::new(pages.file_offset(), pages.channels()).map_err(|source| VmError::Memory {
        what: "doorbell window",
        source,
    })
}

/// The doorbell BAR: one memory slot, made once, over a window of exchanged pages. An exchange uses
/// KVM's MMU notifier, which waits only for vCPUs to drop their translations. A change of a slot
/// would wait for a grace period of all that KVM does for this VM.
#[derive(Debug)]
pub(super) struct WindowMap {
    pub(super) window: Window,
    doorbells: Arc<SharedPages>,
    parking: Arc<SharedPages>,
}

impl WindowMap {
    pub(super) fn new(
        doorbells: &Arc<SharedPages>,
        parking: &Arc<SharedPages>,
    ) -> Result<Self, VmError> {
        Ok(Self {
            window: window(parking)?,
            doorbells: Arc::clone(doorbells),
            parking: Arc::clone(parking),
        })
    }

    fn lay(&self, channel: u32, page: Page) -> io::Result<()> {
        let (pages, writable) = match page {
            Page::Direct => (&self.doorbells, true),
            Page::Protected => (&self.doorbells, false),
            // The parking word of a channel without a gate is never read.
            Page::Parking | Page::Sink => (&self.parking, true),
        };
        let offset = pages.offset() + u64::from(channel) * PAGE_BYTES;
        self.window.show(channel, pages.file(), offset, writable)
    }
}

/// A slot for each page, so that KVM reports the value of every trapped write. Writes trap at a
/// page without a slot and at a read-only slot. The cost: a move changes slots, and waits for a
/// grace period.
#[derive(Debug)]
pub(super) struct SlotMap {
    vm: Arc<SlottedVm>,
    doorbells: Window,
    /// Channels that have a slot. One thread at a time moves a channel's page.
    laid: Vec<AtomicBool>,
}

impl SlotMap {
    pub(super) fn new(vm: &Arc<SlottedVm>, doorbells: &SharedPages) -> Result<Self, VmError> {
        Ok(Self {
            vm: Arc::clone(vm),
            doorbells: window(doorbells)?,
            laid: (0..doorbells.channels())
                .map(|_| AtomicBool::new(false))
                .collect(),
        })
    }

    fn slot(&self, channel: u32, bytes: u64, readonly: bool) -> io::Result<()> {
        let at = u64::from(channel) * PAGE_BYTES;
        let piece = Piece {
            slot: DOORBELL_SLOT + channel,
            gpa: DOORBELLS_GPA + at,
            // CAST: within a mapping.
            offset: at as usize,
            bytes: bytes as usize,
            readonly,
        };
        self.vm.map(self.doorbells.region(), piece)
    }

    fn lay(&self, channel: u32, page: Page) -> io::Result<()> {
        let Some(laid) = self.laid.get(channel as usize) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        // A size of zero removes the slot; an existing slot cannot change whether it is read-only.
        if laid.swap(false, Ordering::Relaxed) {
            self.slot(channel, 0, false)?;
        }
        match page {
            Page::Direct | Page::Protected => {
                self.slot(channel, PAGE_BYTES, page == Page::Protected)?;
                laid.store(true, Ordering::Relaxed);
            }
            Page::Parking | Page::Sink => {}
        }
        Ok(())
    }
}

/// One or the other.
#[derive(Debug)]
pub(super) enum DoorbellMap {
    Window(WindowMap),
    Slots(SlotMap),
}

impl PageMap for DoorbellMap {
    fn lay(&self, channel: u32, page: Page) -> Result<(), PageMapError> {
        let laid = match self {
            Self::Window(map) => map.lay(channel, page),
            Self::Slots(map) => map.lay(channel, page),
        };
        laid.map_err(|source| PageMapError {
            channel,
            page,
            source,
        })
    }
}
