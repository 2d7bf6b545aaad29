//! Latest events, for observers: a ring of bounded size, and a notification for readers that wait.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use turnstile_accounting::Metadata;
use turnstile_accounting::export::show_time;
use turnstile_accounting::record::UnixNanos;
use utoipa::ToSchema;
use uuid::Uuid;

/// Events kept. Tenants cause them, so the oldest are dropped.
const KEPT: usize = 4_096;

/// Bytes of metadata in the events that are kept, likewise: 2 KiB of each event on average.
const BYTES_MAX: usize = 8 << 20;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Counts up by one within a run of the daemon, from 1.
    pub seq: u64,
    /// When, by the calendar.
    pub at: String,
    /// What: `vm_connected`, `vm_left`, `vm_set`, `account_set`, `gpu_set`, `gpu_silent`,
    /// `gpu_back`, `gpu_removed`; `cap_reached`, `memory_pressure`, `vm_fault`, `ledger_gap` as
    /// they begin; `vm_waiting` of a VM without a place; of declared VMs `vm_ready`,
    /// `vm_attached`, `vm_lost`, `vm_draining`, `vm_drain_failed`, `vm_deleted`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name of the tenant; of `account_set` and `gpu_set`, of the account and the GPU; of events of
    /// a GPU and of the ledger, empty.
    pub vm: String,
    /// Of a VM that connects, leaves or moves: instance id, project and labels, if it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Arc<Metadata>>,
    /// Of a change: its author, its request, and what was set before and is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Changed>,
    /// Of an event of a GPU, of a figure or of the ledger: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What was set of a tenant or an account.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Changed {
    /// Author, as `uid:0 pid:17` or `cert:NAME`.
    pub by: String,
    /// Number of the request.
    pub request: Uuid,
    /// Which part: `scheduling`, `memory`, `metadata`, `vm`, `account`.
    pub part: String,
    /// What was set before; null if nothing was.
    pub old: serde_json::Value,
    /// What is set now; null if nothing is.
    pub new: serde_json::Value,
}

impl Event {
    /// One that happened now, not numbered yet.
    fn of(kind: &str, vm: String) -> Self {
        Self {
            seq: 0,
            at: show_time(calendar()),
            kind: kind.to_owned(),
            vm,
            metadata: None,
            change: None,
            reason: None,
        }
    }

    fn bytes(&self) -> usize {
        self.metadata
            .as_ref()
            .map_or(0, |metadata| metadata.bytes())
    }
}

#[derive(Debug, Default)]
struct Ring {
    events: VecDeque<Arc<Event>>,
    /// Bytes of their metadata.
    bytes: usize,
    last: u64,
}

/// The ring. Its lock is an innermost one.
#[derive(Debug)]
pub struct Journal {
    ring: Mutex<Ring>,
    /// Number of the last event.
    bell: watch::Sender<u64>,
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            ring: Mutex::default(),
            bell: watch::Sender::new(0),
        }
    }
}

impl Journal {
    /// Takes an event down.
    pub(crate) fn add(&self, kind: &str, vm: &str, change: Option<Changed>) {
        let vm = vm.to_owned();
        self.push(Event {
            change,
            ..Event::of(kind, vm)
        });
    }

    /// Takes an event of a tenant with these metadata down.
    pub(crate) fn vm(&self, kind: &str, vm: &str, metadata: &Arc<Metadata>) {
        let metadata = Some(metadata.clone()).filter(|metadata| !metadata.is_empty());
        self.push(Event {
            metadata,
            ..Event::of(kind, vm.to_owned())
        });
    }

    /// Takes an event with a reason down, of a tenant or, where `vm` is empty, of a GPU.
    pub fn report(&self, kind: &str, vm: &str, reason: &str) {
        self.push(Event {
            reason: Some(reason.to_owned()),
            ..Event::of(kind, vm.to_owned())
        });
    }

    fn push(&self, event: Event) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.last += 1;
        let seq = ring.last;
        ring.bytes += event.bytes();
        ring.events.push_back(Arc::new(Event { seq, ..event }));
        while ring.events.len() > KEPT || ring.bytes > BYTES_MAX {
            let Some(oldest) = ring.events.pop_front() else {
                break;
            };
            ring.bytes -= oldest.bytes();
        }
        self.bell.send_replace(ring.last);
    }

    /// At most `limit` events after number `seq`, oldest first, and whether there are more.
    pub fn after(&self, seq: u64, limit: usize) -> (Vec<Arc<Event>>, bool) {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = ring.events.partition_point(|event| event.seq <= seq);
        let rest = ring.events.range(begin..);
        let more = rest.len() > limit;
        (rest.take(limit).cloned().collect(), more)
    }

    /// The last event of this run that a reader has seen, from the number that it names. A number
    /// that was not reached is from an earlier run: all that is kept is new to its reader.
    pub fn seen(&self, seq: u64) -> u64 {
        if seq > self.last() { 0 } else { seq }
    }

    /// Number of the last event.
    pub fn last(&self) -> u64 {
        *self.bell.borrow()
    }

    /// Notifies at each event.
    pub fn bell(&self) -> watch::Receiver<u64> {
        self.bell.subscribe()
    }
}

/// Calendar time now: labels windows, charges nothing.
pub fn calendar() -> UnixNanos {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    // CAST: until 2554
    UnixNanos(since.map_or(0, |since| since.as_nanos() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_events_make_room() {
        let journal = Journal::default();
        let mut bell = journal.bell();
        for number in 0..KEPT + 10 {
            journal.add("vm_left", &number.to_string(), None);
        }
        assert!(bell.has_changed().unwrap());
        assert_eq!(*bell.borrow_and_update(), journal.last());
        let (events, more) = journal.after(0, 2);
        assert!(more);
        assert_eq!((events[0].seq, &*events[0].vm), (11, "10"));
        let (events, more) = journal.after(journal.last() - 1, 2);
        assert_eq!((events.len(), more), (1, false));
        assert!(journal.after(journal.last(), 2).0.is_empty());
        assert_eq!(journal.seen(journal.last()), journal.last());
        assert_eq!(journal.seen(journal.last() + 5), 0, "of a run before");
    }

    #[test]
    fn metadata_of_kept_events_are_bounded_in_bytes() {
        let label = |n: u32| (format!("{n:063}"), "x".repeat(253));
        let most = Metadata::new(None, None, (0..32).map(label).collect());
        let most = Arc::new(most.unwrap());
        let journal = Journal::default();
        for number in 0..KEPT {
            journal.vm("vm_connected", &number.to_string(), &most);
        }
        let (events, _) = journal.after(0, KEPT);
        assert_eq!(events.len(), BYTES_MAX / most.bytes(), "the last ones");
        assert_eq!(events.last().unwrap().seq, KEPT as u64);
        assert_eq!(events[0].metadata.as_ref(), Some(&most));
        for number in 0..KEPT {
            journal.vm("vm_connected", &number.to_string(), &Arc::default());
        }
        let (events, _) = journal.after(0, KEPT + 1);
        assert_eq!(events.len(), KEPT, "the bytes are free again");
    }
}
