//! Doorbells of a guest with pages that cannot be exchanged.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::link::{Attached, Session};
use crate::gate::{Page, PageMap, PageMapError, PageWords, SharedPages};

/// Poll interval of mapped doorbells while they change, and while they do not. The first is about
/// the cost of a trapped write, the second bounds an idle VM's cost to one wake-up per millisecond.
const POLL_ACTIVE: Duration = Duration::from_micros(50);
const POLL_IDLE: Duration = Duration::from_millis(1);
/// Time without a change after which doorbells count as idle.
const ACTIVE_FOR: Duration = Duration::from_millis(20);
/// Poll interval for open channels.
const POLL_CLOSED: Duration = Duration::from_millis(5);

/// Pages that stay mapped: every write is reported, by message or by polling.
#[derive(Debug)]
pub(super) struct NoPages;

impl PageMap for NoPages {
    fn lay(&self, _: u32, _: Page) -> Result<(), PageMapError> {
        Ok(())
    }
}

/// Pages that the guest writes without any notification.
#[derive(Debug)]
pub(super) struct MappedPages {
    pages: Arc<SharedPages>,
    /// How often each page was given to a channel.
    given: Vec<AtomicU32>,
}

/// Value last read from a page, and the channel count of the page at that time.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    given: u32,
    value: u32,
}

impl MappedPages {
    pub(super) fn new(pages: Arc<SharedPages>) -> Self {
        let given = (0..pages.channels()).map(|_| AtomicU32::new(0)).collect();
        Self { pages, given }
    }

    pub(super) fn file(&self) -> &File {
        self.pages.file()
    }

    /// Prepares the page for a channel that is about to get its gate. The value of an earlier
    /// channel of the same number is removed and will not be reported.
    pub(super) fn give(&self, channel: u32) {
        self.pages.store(channel, 0);
        // After the store: a thread that reads the new count reads no old value.
        if let Some(given) = self.given.get(channel as usize) {
            given.fetch_add(1, Ordering::Release);
        }
    }

    /// The value written since the last poll, if any.
    fn poll(&self, channel: u32, seen: &mut Seen) -> Option<u32> {
        let given = self.given.get(channel as usize)?.load(Ordering::Acquire);
        if seen.given != given {
            *seen = Seen { given, value: 0 };
        }
        let value = self.pages.load(channel);
        (std::mem::replace(&mut seen.value, value) != value).then_some(value)
    }
}

/// Polls mapped pages and reports new values to the gates, until the session ends.
pub(super) fn watch(session: &Session, pages: &MappedPages) {
    let mut known = vec![Seen::default(); pages.given.len()];
    let mut changed_at = Instant::now();
    let mut channels = Vec::new();
    let mut of: Option<Arc<Attached>> = None;
    while !session.has_ended() {
        let attached = session.attached();
        if of.as_ref().map(Arc::as_ptr) != attached.as_ref().map(Arc::as_ptr) {
            of = attached;
            known.fill(Seen::default());
        }
        let Some(attached) = &of else {
            thread::sleep(POLL_CLOSED);
            continue;
        };
        attached.open_channels(&mut channels);
        for channel in &channels {
            let Some(seen) = known.get_mut(*channel as usize) else {
                continue;
            };
            if let Some(value) = pages.poll(*channel, seen) {
                attached.gates.trap(*channel, value);
                changed_at = Instant::now();
            }
        }
        thread::sleep(if channels.is_empty() {
            POLL_CLOSED
        } else if changed_at.elapsed() < ACTIVE_FOR {
            POLL_ACTIVE
        } else {
            POLL_IDLE
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::parking;

    #[test]
    fn doorbell_with_a_repeated_value_is_detected() {
        let pages = MappedPages::new(parking(2).unwrap());
        let mut seen = Seen::default();
        pages.give(0);
        assert_eq!(pages.poll(0, &mut seen), None);
        pages.pages.store(0, 2);
        assert_eq!(pages.poll(0, &mut seen), Some(2));
        assert_eq!(pages.poll(0, &mut seen), None);
        // Closed, opened and rung again between two polls.
        pages.give(0);
        pages.pages.store(0, 2);
        assert_eq!(pages.poll(0, &mut seen), Some(2));
        assert_eq!(pages.poll(0, &mut seen), None);
        pages.give(9);
        assert_eq!(pages.poll(9, &mut seen), None);
    }
}
