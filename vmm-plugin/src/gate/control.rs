//! The gates of one VM: what the control thread sets and what vCPU threads run into.
//!
//! Two threads meet here, and one lock per channel orders them: the control thread moves a gate ([`GateControl::set`]),
//! a vCPU thread brings a doorbell write that came out of the guest: with its value ([`GateControl::trap`]) where the
//! hypervisor emulated the store, or without ([`GateControl::fault`]) where the guest will repeat it. A vCPU waits for
//! the lock at most as long as a page is being exchanged, never for a gate to open.
//!
//! Every value has three ways to the doorbell's word: the guest's own store, a trap, and the parking page's word that
//! is delivered when the gate opens. They may overtake each other, and need no order: values run free modulo 2^32, the
//! newest says all that the others said, so what is delivered replaces only what is older ([`PageWords::advance`]).
//! Nothing goes back; and nothing is lost, because the page the guest writes is exchanged before the word of the page
//! it wrote so far is read.

use super::{GateEvent, GateState};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use vmm_sys_util::eventfd::EventFd;

/// What a guest finds where the doorbell page of a channel should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// A page that nobody reads.
    Sink,
    /// The doorbell page.
    Direct,
    /// The doorbell page, but writes come out of the guest.
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
    /// What it was to be.
    pub page: Page,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

/// Lays pages into the guest; at first all are sinks.
pub trait PageMap: Send + Sync {
    /// Makes the page of `channel` what `page` says. Once this has returned, no write of the guest's reaches what was
    /// there before. At most one thread at a time calls this for a channel.
    ///
    /// # Errors
    /// When the page could not be exchanged; what is there is then unknown. Calling again may succeed.
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
    /// Sets the word of `channel`'s page where it is `from`, at once.
    ///
    /// # Errors
    /// What it is, where that is not `from`.
    fn exchange(&self, channel: u32, from: u32, to: u32) -> Result<(), u32>;

    /// Sets the word of `channel`'s page where `value` is newer; tells whether it was. Others may write it meanwhile.
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

/// What happened at the gates, from the start of the VM. Writes that cost no exit (through an open gate, to a parking
/// page, to a channel without a gate) cannot be counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateCounters {
    /// Doorbell writes that came out of the guest, to channels with a gate. One that came out without telling where
    /// counts at every gate that it was served at.
    pub trapped: u64,
    /// Closed gates at which writes were parked.
    pub parked: u64,
    /// Values that this side wrote to doorbell pages: parked ones, and those of writes that trapped with their value.
    pub delivered: u64,
    /// Doorbell writes that came out of the guest, to channels without a gate.
    pub dropped: u64,
    /// Pages exchanged.
    pub moves: u64,
}

/// What one gate has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateTrace {
    /// Its state.
    pub state: GateState,
    /// The parking page's word, where writes are parked: the last one, or the doorbell's word until the write that
    /// trapped is repeated.
    pub parked: Option<u32>,
    /// Writes that came out of the guest since the gate was made.
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
    /// Writes that came out of the guest since the gate was made.
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
    /// Tells the daemon that a write went through a watched gate, or is parked at a closed one.
    kick: EventFd,
    every_write: bool,
    counters: Counters,
}

impl<M: PageMap, W: PageWords> GateControl<M, W> {
    /// Channels `0..channels`, none with a gate yet, so that doorbell writes go nowhere. `words` are those of the
    /// doorbell pages, `parking` those of the parking pages; `kick` must be non-blocking.
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

    /// Has every write at a closed gate come out of the guest, not the first alone, where the hypervisor tells their values: none then
    /// lands in a parking page, and all are counted. A write that comes out without its value is repeated by the guest and needs a
    /// page to land in, so from it on the gate parks as ever.
    #[must_use]
    pub fn trapping_every_write(self, every_write: bool) -> Self {
        Self {
            every_write,
            ..self
        }
    }

    /// The mapping that was given to [`Self::new`].
    pub fn page_map(&self) -> &M {
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

    /// Moves the gate of `channel`, making it if there is none. When this returns the move is complete: no write
    /// reaches the doorbell page any more, or all do. Watching a gate at which something is parked lets it through,
    /// which opens the gate. Returns the number of writes that came out of the guest since the gate was made; `None`
    /// for a channel that cannot be.
    ///
    /// # Errors
    /// When the page could not be exchanged. The VM must not go on.
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
                // Protected, nothing more is parked: what the second look does not find, does not come.
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

    /// A doorbell write that came out of the guest with its value; the guest goes on behind it. Never blocks beyond an
    /// exchange in progress, never fails: where the page cannot be exchanged, the value is delivered or kept all the
    /// same and the next write traps again.
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

    /// A doorbell write that came out of the guest without its value, which the guest will repeat: makes that it gets
    /// somewhere. Returns whether there was anything to do; if not, the gate has moved meanwhile, or the fault was not
    /// the gate's. Never blocks beyond an exchange in progress.
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
            // Protected only where opening has failed, which ends the VM.
            GateState::Open => false,
        }
    }

    /// As [`Self::fault`] where nothing tells the channel: every protected page may be the one, so all are made
    /// writable. A gate that was not the one is then open, or parks what nobody has written: the daemon is kicked and
    /// finds nothing new.
    pub fn fault_somewhere(&self) -> bool {
        // All of them, not the first that has something to do.
        let served = (0..self.channels()).filter(|channel| self.fault(*channel));
        served.count() > 0
    }

    /// Forgets the gate of a closed channel; what is parked there is dropped.
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

    /// Forgets all gates: the mediator is gone.
    ///
    /// # Errors
    /// The first page that could not be exchanged; the others are all the same.
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
            parked: gate.parked.then(|| self.parking.load(channel)),
            trapped: gate.trapped,
        })
    }

    /// What happened so far.
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

    /// Whether a write is parked that the doorbell page does not show.
    fn has_parked(&self, channel: u32, gate: &Gate) -> bool {
        gate.parked && newer(self.parking.load(channel), self.words.load(channel))
    }

    fn deliver(&self, channel: u32, value: u32) {
        if self.words.advance(channel, value) {
            count(&self.counters.delivered);
        }
    }

    fn open(&self, channel: u32, gate: &mut Gate) -> Result<(), PageMapError> {
        // First the page: behind this the parking page's word is the last that was parked.
        self.lay(channel, gate, Page::Direct)?;
        if std::mem::take(&mut gate.parked) {
            self.deliver(channel, self.parking.load(channel));
        }
        Ok(())
    }

    /// A write came out at a watched gate. Where the page cannot be exchanged, the gate stays as it is.
    fn let_through(&self, channel: u32, gate: &mut Gate) -> bool {
        gate.state = gate.state.after(GateEvent::Trap);
        let opened = self.open(channel, gate).is_ok();
        if !opened {
            gate.state = GateState::Watched;
        }
        self.kick();
        opened
    }

    /// A write came out at a closed gate. Where the page cannot be exchanged, the value is kept all the same.
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
        // A full counter means that the daemon has been told and has not looked yet.
        let _ = self.kick.write(1);
    }
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
