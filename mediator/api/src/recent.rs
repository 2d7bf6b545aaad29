//! The last seconds of a GPU, kept for some minutes, and the newest for subscribers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use tokio_stream::Stream;
use tokio_stream::wrappers::WatchStream;

use crate::view::View;

/// Samples that are kept: five minutes.
const KEPT: usize = 300;

/// The last samples, as JSON, and the newest for subscribers.
#[derive(Debug)]
pub(super) struct Live {
    kept: Mutex<VecDeque<Arc<str>>>,
    newest: watch::Sender<Arc<str>>,
    last: Mutex<Option<Arc<View>>>,
}

impl Default for Live {
    fn default() -> Self {
        Self {
            kept: Mutex::default(),
            newest: watch::Sender::new(Arc::from("")),
            last: Mutex::default(),
        }
    }
}

impl Live {
    pub(super) fn add(&self, view: View) {
        let Ok(text) = serde_json::to_string(&view) else {
            return;
        };
        let text: Arc<str> = text.into();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(text.clone());
        drop(kept);
        self.newest.send_replace(text);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(view));
    }

    /// All that is kept, the oldest first.
    pub(super) fn kept(&self) -> Vec<Arc<str>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().cloned().collect()
    }

    /// The last second.
    pub(super) fn last(&self) -> Option<Arc<View>> {
        let last = self.last.lock();
        last.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A slow subscriber gets the newest sample, and not those that it missed.
    pub(super) fn listen(&self) -> impl Stream<Item = Arc<str>> + use<> {
        WatchStream::from_changes(self.newest.subscribe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_views_are_bounded_and_the_newest_is_published() {
        let live = Live::default();
        let mut updates = live.newest.subscribe();
        for at_ns in 0..=KEPT as u64 {
            live.add(View {
                at_ns,
                ..View::default()
            });
        }
        let kept = live.kept.lock().unwrap();
        assert_eq!(kept.len(), KEPT);
        let oldest: View = serde_json::from_str(&kept[0]).unwrap();
        assert_eq!(oldest.at_ns, 1);
        let newest: View = serde_json::from_str(&updates.borrow_and_update()).unwrap();
        assert_eq!(newest.at_ns, KEPT as u64);
    }
}
