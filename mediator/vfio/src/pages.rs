//! Doorbell pages of one tenant: a run of the device's pages, which are mapped into its guest.

use std::fs::File;

use turnstile_abi::physical::BAR_DOORBELLS;
use turnstile_abi::{ErrorCode, PAGE_BYTES};
use turnstile_gpu::{Doorbells, Refusal};
use turnstile_vmm::gate::{PageWords, SharedPages};

use super::bus::{Bus, Region};

/// The pages as the mediator maps them.
#[derive(Debug)]
pub(super) struct DevicePages(SharedPages);

impl DevicePages {
    /// Maps the run of the device's pages that begins with `first`.
    pub(super) fn map(bus: &dyn Bus, first: u32, channels: u32) -> Result<Self, Refusal> {
        let offset = u64::from(first) * PAGE_BYTES;
        let bytes = u64::from(channels) * PAGE_BYTES;
        let part = bus.file(Region::Bar(BAR_DOORBELLS), offset, bytes)?;
        let pages = SharedPages::from_file_at(part.file, part.offset, channels);
        pages.map(Self).map_err(|error| Refusal {
            code: ErrorCode::HostLimit,
            detail: format!("mapping doorbell pages: {error}"),
        })
    }
}

impl Doorbells for DevicePages {
    fn put(&self, channel: u32) -> u32 {
        self.0.load(channel)
    }

    /// Does nothing: the device sets the page of a channel that it opens.
    fn clear(&self, _: u32) {}

    fn file(&self) -> Option<&File> {
        Some(self.0.file())
    }

    fn offset(&self) -> u64 {
        self.0.offset()
    }
}

/// Runs of pages that are taken.
#[derive(Debug)]
pub(super) struct Runs {
    /// First page and number, in order.
    taken: Vec<(u32, u32)>,
    pages: u32,
}

impl Runs {
    /// `pages` free pages.
    pub(super) fn new(pages: u32) -> Self {
        Self {
            taken: Vec::new(),
            pages,
        }
    }

    /// Takes a run: the first gap that is large enough.
    pub(super) fn take(&mut self, count: u32) -> Option<u32> {
        let mut first = 0;
        let gap = self.taken.iter().position(|(begin, length)| {
            let fits = begin - first >= count;
            if !fits {
                first = begin + length;
            }
            fits
        });
        if count == 0 || (gap.is_none() && self.pages - first < count) {
            return None;
        }
        let at = gap.unwrap_or(self.taken.len());
        self.taken.insert(at, (first, count));
        Some(first)
    }

    /// Frees a run.
    pub(super) fn give_back(&mut self, first: u32) {
        self.taken.retain(|(begin, _)| *begin != first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_do_not_overlap_and_come_back() {
        let mut runs = Runs::new(10);
        assert_eq!(runs.take(4), Some(0));
        assert_eq!(runs.take(4), Some(4));
        assert_eq!(runs.take(4), None);
        assert_eq!(runs.take(2), Some(8));
        runs.give_back(4);
        assert_eq!(runs.take(5), None);
        assert_eq!(runs.take(3), Some(4));
        assert_eq!(runs.take(1), Some(7));
        assert_eq!(runs.take(1), None);
        assert_eq!(Runs::new(3).take(0), None);
    }
}
