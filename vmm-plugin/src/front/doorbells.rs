//! Doorbells of a guest whose pages cannot be exchanged.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::link::{Attached, Session};
use crate::gate::{Page, PageMap, PageMapError, PageWords, SharedPages};

/// Time between two looks at mapped doorbells while they change, and before that. The first is about what a trapped write takes,
/// the second what an idle VM costs: a wake-up a millisecond.
const LOOK_ACTIVE: Duration = Duration::from_micros(50);
const LOOK_IDLE: Duration = Duration::from_millis(1);
/// How long without a change is idle.
const ACTIVE_FOR: Duration = Duration::from_millis(20);
/// Between two looks for a channel.
const LOOK_CLOSED: Duration = Duration::from_millis(5);

/// Pages that stay where they are: every write comes out, by message or by looking.
#[derive(Debug)]
pub(super) struct NoPages;

impl PageMap for NoPages {
    fn lay(&self, _: u32, _: Page) -> Result<(), PageMapError> {
        Ok(())
    }
}

/// Looks at mapped pages, and brings what is new there to the gates, until the session ends.
pub(super) fn watch(session: &Session, pages: &SharedPages) {
    let mut known = vec![0; pages.channels() as usize];
    let mut changed_at = Instant::now();
    let mut channels = Vec::new();
    let mut of: Option<Arc<Attached>> = None;
    while !session.has_ended() {
        let attached = session.attached();
        if of.as_ref().map(Arc::as_ptr) != attached.as_ref().map(Arc::as_ptr) {
            of = attached;
            known.fill(0);
        }
        let Some(attached) = &of else {
            thread::sleep(LOOK_CLOSED);
            continue;
        };
        attached.open_channels(&mut channels);
        for channel in &channels {
            let value = pages.load(*channel);
            let last = &mut known[*channel as usize];
            if *last != value {
                *last = value;
                attached.gates.trap(*channel, value);
                changed_at = Instant::now();
            }
        }
        thread::sleep(if channels.is_empty() {
            LOOK_CLOSED
        } else if changed_at.elapsed() < ACTIVE_FOR {
            LOOK_ACTIVE
        } else {
            LOOK_IDLE
        });
    }
}
