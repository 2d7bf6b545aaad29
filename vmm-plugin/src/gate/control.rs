//! The gates of one VM. The control thread sets them; vCPU threads trap at them.
//!
//! Two threads use a gate, and one lock per channel orders them. The control thread moves the gate
//! ([`GateControl::set`]). A vCPU thread reports a trapped doorbell write: with its value
//! ([`GateControl::trap`]) if the hypervisor emulated the store, or without
//! ([`GateControl::fault`]) if the guest will repeat it. A vCPU waits for the lock at most while a
//! page is exchanged, never for a gate to open.
//!
//! A value reaches the doorbell's word in three ways: by the guest's own store, by a trap, or
//! through the parking page, from which it is delivered when the gate opens. Values may overtake
//! each other and need no order: they run free modulo 2^32, and the newest replaces all older ones.
//! A delivery therefore replaces only an older value ([`PageWords::advance`]), and the word never
//! goes back. No value is lost: the page that the guest writes is exchanged before the word of its
//! old page is read.

use super::{GateEvent, GateState};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use vmm_sys_util::eventfd::EventFd;

/// The page that a guest reaches at the doorbell address of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// A page that is never read.
    Sink,
    /// The doorbell page.
    Direct,
    /// The doorbell page, write-protected: writes trap.
    Protected,
    /// The parking page.
    Parking,
}

/// Why a page could not be exchanged.
#[derive(Debug, thiserror::Error)]
#[error("Doorbell page of channel {channel} could not be made {page:?}")]
pub struct PageMapError {
    /// Channel.
    pub channel: u32,
    /// The page that was to be mapped.
    pub page: Page,
    /// The system's error.
    #[source]
    pub source: io::Error,
}

/// Maps pages into the guest; at first all are sinks.
pub trait PageMap: Send + Sync {
    /// Maps `page` for `channel`. When this has returned, no guest write reaches the page that was
    /// there before. At most one thread at a time calls this for a channel.
    ///
    /// # Errors
    /// When the page could not be exchanged; the page in place is then unknown. Calling again may
    /// succeed.
    fn lay(&self, channel: u32, page: Page) -> Result<(), PageMapError>;
}

/// Whether `value` is newer than `than` in the order of numbers that run free modulo 2^32.
pub const fn newer(value: u32, than: u32) -> bool {
    value.wrapping_sub(than).cast_signed() > 0
}

/// The first word of each doorbell page, or of each parking page.
pub trait PageWords: Send + Sync {
    /// The word of `channel`'s page.
    fn load(&self, channel: u32) -> u32;
    /// Sets the word of `channel`'s page.
    fn store(&self, channel: u32, value: u32);
    /// Atomically sets the word of `channel`'s page if it is `from`.
    ///
    /// # Errors
    /// The present word, if it is not `from`.
    fn exchange(&self, channel: u32, from: u32, to: u32) -> Result<(), u32>;

    /// Sets the word of `channel`'s page if `value` is newer; returns whether it was. Other threads
    /// may write the word concurrently.
    fn advance(&self, channel: u32, value: u32) -> bool {
        let mut word = self.load(channel);
        while newer(value, word) {
            match self.exchange(channel, word, value) {
                Ok(()) => return true,
                Err(now) => word = now,
            }
        }
        false
    }
}

/// Counts of events at the gates since the start of the VM. Writes without an exit cannot be
/// counted: through an open gate, to a parking page, to a channel without a gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateCounters {
    /// Trapped doorbell writes to channels with a gate. A trapped write of unknown channel counts
    /// at every gate that served it.
    pub trapped: u64,
    /// Closed gates at which writes were parked.
    pub parked: u64,
    /// Values that this side wrote to doorbell pages: parked ones, and those of writes that trapped
    /// with their value.
    pub delivered: u64,
    /// Trapped doorbell writes to channels without a gate.
    pub dropped: u64,
    /// Pages exchanged.
    pub moves: u64,
}

/// State and counts of one gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateTrace {
    /// Its state.
    pub state: GateState,
    /// The parking page's word, if writes are parked: the last one, or the doorbell's word until
    /// the guest repeats the trapped write.
    pub parked: Option<u32>,
    /// Trapped writes since the gate was made.
    pub trapped: u64,
}

#[derive(Debug, Default)]
struct Counters {
    trapped: AtomicU64,
    parked: AtomicU64,
    delivered: AtomicU64,
    dropped: AtomicU64,
    moves: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[derive(Debug)]
struct Gate {
    state: GateState,
    page: Page,
    /// The parking page's word belongs to this gate and was not delivered yet.
    parked: bool,
    /// Trapped writes since the gate was made.
    trapped: u64,
}

impl Gate {
    fn new() -> Self {
        Self {
            state: GateState::Closed,
            page: Page::Sink,
            parked: false,
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
    parking: W,
    /// Notifies the daemon that a write went through a watched gate, or is parked at a closed one.
    kick: EventFd,
    every_write: bool,
    counters: Counters,
}

impl<M: PageMap, W: PageWords> GateControl<M, W> {
    /// Makes channels `0..channels`, none with a gate yet, so that doorbell writes are dropped.
    /// `words` are those of the doorbell pages, `parking` those of the parking pages; `kick` must
    /// be non-blocking.
    pub fn new(channels: u32, map: M, words: W, parking: W, kick: EventFd) -> Self {
        Self {
            gates: (0..channels).map(|_| Mutex::new(None)).collect(),
            map,
            words,
            parking,
            kick,
            every_write: false,
            counters: Counters::default(),
        }
    }

    /// Makes every write at a closed gate trap, not the first alone, if the hypervisor reports
    /// their values. Then no write reaches a parking page, and all are counted. A write that traps
    /// without its value is repeated by the guest and needs a page. From that write on, the gate
    /// parks as usual.
    #[must_use]
    pub fn trapping_every_write(self, every_write: bool) -> Self {
        Self {
            every_write,
            ..self
        }
    }

    /// The mapping that was given to [`Self::new`].
    pub(crate) fn page_map(&self) -> &M {
        &self.map
    }

    /// The words of the doorbell pages.
    pub fn page_words(&self) -> &W {
        &self.words
    }

    /// The words of the parking pages.
    pub fn parking_words(&self) -> &W {
        &self.parking
    }

    /// Channels that may have a gate.
    pub fn channels(&self) -> u32 {
        self.gates.len() as u32
    }

    fn lock(&self, channel: u32) -> Option<MutexGuard<'_, Option<Gate>>> {
        let gate = self.gates.get(channel as usize)?;
        Some(gate.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Moves the gate of `channel`, making it if there is none. When this returns the move is
    /// complete: either no write reaches the doorbell page any more, or all do. If a write is
    /// parked when a gate is set to watched, it is delivered and the gate opens. Returns the number
    /// of trapped writes since the gate was made; `None` for an invalid channel.
    ///
    /// # Errors
    /// When the page could not be exchanged. The VM must then stop.
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
                if gate.page != Page::Parking {
                    self.lay(channel, gate, Page::Protected)?;
                }
                gate.state = gate.state.after(GateEvent::Close);
            }
            GateState::Watched => {
                gate.state = gate.state.after(GateEvent::Watch);
                // Once the page is protected no write is parked any more, so the second check is
                // final.
                if !self.has_parked(channel, gate) {
                    self.lay(channel, gate, Page::Protected)?;
                }
                if self.has_parked(channel, gate) {
                    gate.state = gate.state.after(GateEvent::Trap);
                    self.open(channel, gate)?;
                    self.kick();
                }
                gate.parked = false;
            }
        }
        Ok(Some(gate.trapped))
    }

    /// Handles a doorbell write that trapped with its value; the guest continues after it. Never
    /// fails, and blocks at most for an exchange in progress. If the page cannot be exchanged, the
    /// value is delivered or parked all the same, and the next write traps again.
    pub fn trap(&self, channel: u32, value: u32) {
        let Some(mut slot) = self.lock(channel) else {
            return count(&self.counters.dropped);
        };
        let Some(gate) = slot.as_mut() else {
            return count(&self.counters.dropped);
        };
        self.came_out(gate);
        match gate.state {
            GateState::Closed => {
                self.park(channel, gate, Some(value));
            }
            GateState::Open => self.deliver(channel, value),
            GateState::Watched => {
                self.deliver(channel, value);
                self.let_through(channel, gate);
            }
        }
    }

    /// Handles a doorbell write that trapped without its value, which the guest will repeat: maps a
    /// page that takes it. Returns whether there was anything to do. If not, the gate has moved
    /// meanwhile, or the fault was not the gate's. Blocks at most for an exchange in progress.
    pub fn fault(&self, channel: u32) -> bool {
        let Some(mut slot) = self.lock(channel) else {
            return false;
        };
        let Some(gate) = slot.as_mut() else {
            return false;
        };
        if gate.page != Page::Protected {
            return false;
        }
        match gate.state {
            GateState::Closed => {
                self.came_out(gate);
                self.park(channel, gate, None)
            }
            GateState::Watched => {
                self.came_out(gate);
                self.let_through(channel, gate)
            }
            // Protected only if opening has failed, which ends the VM.
            GateState::Open => false,
        }
    }

    /// As [`Self::fault`], for an unknown channel: every protected page may be the one, so all are
    /// made writable. The other gates are then open, or park although nothing was written; the
    /// daemon is notified and finds nothing new.
    pub fn fault_somewhere(&self) -> bool {
        // All of them, not the first that has something to do.
        let served = (0..self.channels()).filter(|channel| self.fault(*channel));
        served.count() > 0
    }

    /// Removes the gate of a closed channel; a parked write is dropped.
    ///
    /// # Errors
    /// When the page could not be exchanged.
    pub fn remove(&self, channel: u32) -> Result<(), PageMapError> {
        let Some(mut slot) = self.lock(channel) else {
            return Ok(());
        };
        if let Some(gate) = slot.as_mut() {
            self.lay(channel, gate, Page::Sink)?;
            *slot = None;
        }
        Ok(())
    }

    /// Removes all gates: the mediator is gone.
    ///
    /// # Errors
    /// The first page that could not be exchanged; the other gates are removed all the same.
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

    /// State and counts of the gate of `channel`.
    pub fn trace(&self, channel: u32) -> Option<GateTrace> {
        self.lock(channel)?.as_ref().map(|gate| GateTrace {
            state: gate.state,
            parked: gate.parked.then(|| self.parking.load(channel)),
            trapped: gate.trapped,
        })
    }

    /// The counts up to now.
    pub fn counters(&self) -> GateCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        GateCounters {
            trapped: read(&self.counters.trapped),
            parked: read(&self.counters.parked),
            delivered: read(&self.counters.delivered),
            dropped: read(&self.counters.dropped),
            moves: read(&self.counters.moves),
        }
    }

    fn came_out(&self, gate: &mut Gate) {
        count(&self.counters.trapped);
        gate.trapped += 1;
    }

    fn lay(&self, channel: u32, gate: &mut Gate, page: Page) -> Result<(), PageMapError> {
        if gate.page != page {
            self.map.lay(channel, page)?;
            gate.page = page;
            count(&self.counters.moves);
        }
        Ok(())
    }

    /// Whether a parked write is newer than the doorbell page.
    fn has_parked(&self, channel: u32, gate: &Gate) -> bool {
        gate.parked && newer(self.parking.load(channel), self.words.load(channel))
    }

    fn deliver(&self, channel: u32, value: u32) {
        if self.words.advance(channel, value) {
            count(&self.counters.delivered);
        }
    }

    fn open(&self, channel: u32, gate: &mut Gate) -> Result<(), PageMapError> {
        // Exchange the page first: after that no more writes are parked.
        self.lay(channel, gate, Page::Direct)?;
        if std::mem::take(&mut gate.parked) {
            self.deliver(channel, self.parking.load(channel));
        }
        Ok(())
    }

    /// Handles a trapped write at a watched gate. If the page cannot be exchanged, the gate stays
    /// as it is.
    fn let_through(&self, channel: u32, gate: &mut Gate) -> bool {
        gate.state = gate.state.after(GateEvent::Trap);
        let opened = self.open(channel, gate).is_ok();
        if !opened {
            gate.state = GateState::Watched;
        }
        self.kick();
        opened
    }

    /// Handles a trapped write at a closed gate. If the page cannot be exchanged, the value is
    /// parked all the same.
    fn park(&self, channel: u32, gate: &mut Gate, value: Option<u32>) -> bool {
        let first = !gate.parked;
        if first {
            self.parking.store(channel, self.words.load(channel));
            gate.parked = true;
            count(&self.counters.parked);
        }
        if let Some(value) = value {
            self.parking.advance(channel, value);
        }
        let parks = match value {
            Some(_) if self.every_write => true,
            _ => self.lay(channel, gate, Page::Parking).is_ok(),
        };
        if first {
            self.kick();
        }
        parks
    }

    pub(crate) fn kick(&self) {
        // A full counter means that the daemon is notified already and has not read it yet.
        let _ = self.kick.write(1);
    }
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
