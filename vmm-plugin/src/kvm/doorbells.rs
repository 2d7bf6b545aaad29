//! The memory of a KVM guest's doorbell BAR: a window of exchanged pages, or a memory slot per page
//! that is added and removed.

use super::{KvmError, map_whole};
use crate::gate::{Page, PageMap, PageMapError, SharedPages};
use crate::sys::slots::{Piece, Slots};
use crate::sys::window::Window;
use std::io;
use std::sync::Arc;
use turnstile_abi::PAGE_BYTES;

/// Moves a guest's doorbell pages under its running vCPUs. A drop takes the device's memory out of
/// the guest.
#[derive(Debug)]
pub struct DoorbellMap {
    // The status page and the aperture are among them.
    slots: Slots,
    doorbells: Arc<SharedPages>,
    window: Window,
    way: Way,
}

#[derive(Debug)]
enum Way {
    /// One memory slot, made once, over a window of exchanged pages. An exchange uses KVM's MMU
    /// notifier, which waits only for vCPUs to drop their translations. A change of a slot would
    /// wait for a grace period of all that KVM does for this VM.
    Window { parking: Arc<SharedPages> },
    /// A slot for each page, so that KVM reports the value of every trapped write. Writes trap at a
    /// page without a slot and at a read-only slot. The cost: a move changes slots, and waits for a
    /// grace period.
    Slots { gpa: u64, first_slot: u32 },
}

fn window(pages: &SharedPages) -> Result<Window, KvmError> {
    Window::new(pages.file_offset(), pages.channels()).map_err(KvmError::Window)
}

impl DoorbellMap {
    /// One slot over exchanged pages.
    pub(super) fn exchanging_pages(
        slots: Slots,
        (doorbells, parking): (&Arc<SharedPages>, &Arc<SharedPages>),
        gpa: u64,
        slot: u32,
    ) -> Result<Self, KvmError> {
        let window = window(parking)?;
        map_whole(&slots, ("doorbells", slot), window.region(), gpa, false)?;
        Ok(Self {
            slots,
            doorbells: Arc::clone(doorbells),
            window,
            way: Way::Window {
                parking: Arc::clone(parking),
            },
        })
    }

    /// A slot for each page, from `first_slot` on.
    pub(super) fn exchanging_slots(
        slots: Slots,
        doorbells: &Arc<SharedPages>,
        gpa: u64,
        first_slot: u32,
    ) -> Result<Self, KvmError> {
        Ok(Self {
            slots,
            doorbells: Arc::clone(doorbells),
            window: window(doorbells)?,
            way: Way::Slots { gpa, first_slot },
        })
    }

    fn exchange(&self, channel: u32, page: Page) -> io::Result<()> {
        match &self.way {
            Way::Window { parking } => {
                let (pages, writable) = match page {
                    Page::Direct => (&self.doorbells, true),
                    Page::Protected => (&self.doorbells, false),
                    // The parking word of a channel without a gate is never read.
                    Page::Parking | Page::Sink => (parking, true),
                };
                let offset = pages.offset() + u64::from(channel) * PAGE_BYTES;
                self.window.show(channel, pages.file(), offset, writable)
            }
            Way::Slots { gpa, first_slot } => {
                if channel >= self.doorbells.channels() {
                    return Err(io::ErrorKind::InvalidInput.into());
                }
                let slot = first_slot + channel;
                // An existing slot cannot change whether it is read-only.
                self.slots.unmap(slot)?;
                let at = u64::from(channel) * PAGE_BYTES;
                let piece = |readonly| Piece {
                    gpa: gpa + at,
                    // CAST: within a mapping.
                    offset: at as usize,
                    bytes: PAGE_BYTES as usize,
                    readonly,
                };
                match page {
                    Page::Direct | Page::Protected => {
                        let piece = piece(page == Page::Protected);
                        self.slots.map(slot, self.window.region(), piece)
                    }
                    Page::Parking | Page::Sink => Ok(()),
                }
            }
        }
    }
}

impl PageMap for DoorbellMap {
    fn lay(&self, channel: u32, page: Page) -> Result<(), PageMapError> {
        self.exchange(channel, page).map_err(|source| PageMapError {
            channel,
            page,
            source,
        })
    }
}
