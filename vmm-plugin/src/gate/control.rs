//! The gates of one VM: what the control thread sets and what vCPU threads run into.
//!
//! Two threads meet here, and one lock per channel orders them: the control thread moves a gate ([`GateControl::set`]),
//! a vCPU thread brings a doorbell write that came out of the guest ([`GateControl::trap`]). A vCPU waits for the lock
//! at most as long as a page is being mapped or unmapped, never for a gate to open.
//!
//! No value is lost and none goes back: a value that was kept is written to the page before the page is mapped, so
//! before any direct write can follow; and a write that trapped while its gate was opening is written through before
//! its vCPU, and so any later write of it, goes on.

use super::{GateEvent, GateState};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use vmm_sys_util::eventfd::EventFd;

/// Why a page could not be mapped or unmapped.
#[derive(Debug, thiserror::Error)]
#[error("Doorbell page of channel {channel} could not be {}", if *mapping { "mapped" } else { "unmapped" })]
pub struct PageMapError {
    /// Channel.
    pub channel: u32,
    /// Whether it was to be mapped.
    pub mapping: bool,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

/// Lays doorbell pages into the guest and takes them away.
pub trait PageMap: Send + Sync {
    /// From now on the guest's writes reach the page of `channel` directly. Called only while it is unmapped.
    ///
    /// # Errors
    /// When the page could not be mapped; it then stays unmapped.
    fn map(&self, channel: u32) -> Result<(), PageMapError>;

    /// Once this has returned, no direct write reaches the page of `channel`. Called only while it is mapped.
    ///
    /// # Errors
    /// When the page could not be unmapped; its state is then unknown, and the VM must not go on.
    fn unmap(&self, channel: u32) -> Result<(), PageMapError>;
}

/// The words that the device reads: the first of each doorbell page.
pub trait PageWords: Send + Sync {
    /// The word of `channel`'s page.
    fn load(&self, channel: u32) -> u32;
    /// Sets the word of `channel`'s page.
    fn store(&self, channel: u32, value: u32);
}

/// What happened at the gates, from the start of the VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateCounters {
    /// Doorbell writes that came out of the guest, to channels with a gate.
    pub trapped: u64,
    /// Of these, written to the page at once or later. Where the guest rang again meanwhile, only the last counts.
    pub delivered: u64,
    /// Doorbell writes to channels without a gate.
    pub dropped: u64,
    /// Pages mapped.
    pub mapped: u64,
    /// Pages unmapped.
    pub unmapped: u64,
}

/// What one gate has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateTrace {
    /// Its state.
    pub state: GateState,
    /// The first value that trapped since the page was last unmapped.
    pub first: Option<u32>,
    /// The last value that trapped since the page was last unmapped.
    pub last: Option<u32>,
    /// Writes that trapped since the gate was made.
    pub trapped: u64,
}

#[derive(Debug, Default)]
struct Counters {
    trapped: AtomicU64,
    delivered: AtomicU64,
    dropped: AtomicU64,
    mapped: AtomicU64,
    unmapped: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[derive(Debug)]
struct Gate {
    state: GateState,
    /// Whether the page is mapped; equals `state == Open` but for a failed mapping.
    mapped: bool,
    /// The last value that trapped and was not delivered yet.
    kept: Option<u32>,
    /// First and last value that trapped since the page was last unmapped.
    first: Option<u32>,
    last: Option<u32>,
    /// Writes that trapped since the gate was made.
    trapped: u64,
}

impl Gate {
    fn new() -> Self {
        Self {
            state: GateState::Closed,
            mapped: false,
            kept: None,
            first: None,
            last: None,
            trapped: 0,
        }
    }
}

/// The gates of one VM.
#[derive(Debug)]
pub struct GateControl<M, W> {
    gates: Vec<Mutex<Option<Gate>>>,
    map: M,
    words: W,
    /// Tells the daemon that a write went through a watched gate.
    kick: EventFd,
    counters: Counters,
}

impl<M: PageMap, W: PageWords> GateControl<M, W> {
    /// Channels `0..channels`, none with a gate yet, so that doorbell writes are dropped. `kick` must be non-blocking.
    pub fn new(channels: u32, map: M, words: W, kick: EventFd) -> Self {
        Self {
            gates: (0..channels).map(|_| Mutex::new(None)).collect(),
            map,
            words,
            kick,
            counters: Counters::default(),
        }
    }

    /// The mapping that was given to [`Self::new`].
    pub fn page_map(&self) -> &M {
        &self.map
    }

    /// The page words that were given to [`Self::new`].
    pub fn page_words(&self) -> &W {
        &self.words
    }

    /// Channels that may have a gate.
    pub fn channels(&self) -> u32 {
        self.gates.len() as u32
    }

    fn lock(&self, channel: u32) -> Option<MutexGuard<'_, Option<Gate>>> {
        let gate = self.gates.get(channel as usize)?;
        Some(gate.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Moves the gate of `channel`, making it if there is none. When this returns the move is complete: no write
    /// reaches the page any more, or all do. Watching a gate that has kept a write lets the write through, which opens
    /// the gate. Returns the number of writes that trapped since the gate was made; `None` for a channel that cannot
    /// be.
    ///
    /// # Errors
    /// When the page could not be mapped or unmapped.
    pub fn set(&self, channel: u32, state: GateState) -> Result<Option<u64>, PageMapError> {
        let Some(mut slot) = self.lock(channel) else {
            return Ok(None);
        };
        let gate = slot.get_or_insert_with(Gate::new);
        match state {
            GateState::Open => {
                gate.state = gate.state.after(GateEvent::Open);
                self.open(channel, gate)?;
            }
            GateState::Closed => {
                self.close(channel, gate)?;
                gate.state = gate.state.after(GateEvent::Close);
            }
            GateState::Watched => {
                self.close(channel, gate)?;
                gate.state = gate.state.after(GateEvent::Watch);
                if gate.kept.is_some() {
                    gate.state = gate.state.after(GateEvent::Trap);
                    self.open(channel, gate)?;
                    self.kick();
                }
            }
        }
        Ok(Some(gate.trapped))
    }

    /// A doorbell write that came out of the guest. Never blocks beyond a mapping in progress, never fails: where the
    /// page cannot be mapped, the value is delivered all the same and the next write traps again.
    pub fn trap(&self, channel: u32, value: u32) {
        let Some(mut slot) = self.lock(channel) else {
            return count(&self.counters.dropped);
        };
        let Some(gate) = slot.as_mut() else {
            return count(&self.counters.dropped);
        };
        count(&self.counters.trapped);
        gate.trapped += 1;
        gate.kept = Some(value);
        gate.first = gate.first.or(gate.kept);
        gate.last = gate.kept;
        match gate.state {
            GateState::Closed => {}
            GateState::Open => self.deliver(channel, gate),
            GateState::Watched => {
                gate.state = gate.state.after(GateEvent::Trap);
                if self.open(channel, gate).is_err() {
                    gate.state = GateState::Watched;
                }
                self.kick();
            }
        }
    }

    /// What a read of the doorbell register returns while the page is not mapped: the last value written.
    pub fn read(&self, channel: u32) -> u32 {
        match self.lock(channel).as_deref() {
            Some(Some(gate)) => gate.kept.unwrap_or_else(|| self.words.load(channel)),
            _ => 0,
        }
    }

    /// Forgets the gate of a closed channel; a value still kept is dropped.
    ///
    /// # Errors
    /// When the page could not be unmapped.
    pub fn remove(&self, channel: u32) -> Result<(), PageMapError> {
        let Some(mut slot) = self.lock(channel) else {
            return Ok(());
        };
        if let Some(gate) = slot.as_mut() {
            self.close(channel, gate)?;
            *slot = None;
        }
        Ok(())
    }

    /// Forgets all gates: the mediator is gone.
    ///
    /// # Errors
    /// The first page that could not be unmapped; the others are unmapped all the same.
    pub fn remove_all(&self) -> Result<(), PageMapError> {
        let mut first = Ok(());
        for channel in 0..self.channels() {
            first = first.and(self.remove(channel));
        }
        first
    }

    /// State of the gate of `channel`.
    pub fn state(&self, channel: u32) -> Option<GateState> {
        self.trace(channel).map(|trace| trace.state)
    }

    /// What the gate of `channel` has seen.
    pub fn trace(&self, channel: u32) -> Option<GateTrace> {
        self.lock(channel)?.as_ref().map(|gate| GateTrace {
            state: gate.state,
            first: gate.first,
            last: gate.last,
            trapped: gate.trapped,
        })
    }

    /// What happened so far.
    pub fn counters(&self) -> GateCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        GateCounters {
            trapped: read(&self.counters.trapped),
            delivered: read(&self.counters.delivered),
            dropped: read(&self.counters.dropped),
            mapped: read(&self.counters.mapped),
            unmapped: read(&self.counters.unmapped),
        }
    }

    /// Writes a kept value to the page.
    fn deliver(&self, channel: u32, gate: &mut Gate) {
        if let Some(value) = gate.kept.take() {
            self.words.store(channel, value);
            count(&self.counters.delivered);
        }
    }

    fn open(&self, channel: u32, gate: &mut Gate) -> Result<(), PageMapError> {
        self.deliver(channel, gate);
        if !gate.mapped {
            self.map.map(channel)?;
            gate.mapped = true;
            count(&self.counters.mapped);
        }
        Ok(())
    }

    fn close(&self, channel: u32, gate: &mut Gate) -> Result<(), PageMapError> {
        if gate.mapped {
            self.map.unmap(channel)?;
            gate.mapped = false;
            (gate.first, gate.last) = (None, None);
            count(&self.counters.unmapped);
        }
        Ok(())
    }

    fn kick(&self) {
        // A full counter means that the daemon has been told and has not looked yet.
        let _ = self.kick.write(1);
    }
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
