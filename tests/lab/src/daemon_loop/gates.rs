//! A simulated gate: the VMM's own gate, the daemon's book of it, and the delay between the two.
//!
//! The state machine is the one that a VMM runs ([`GateControl`]), over a flag per page instead of
//! a mapping. Only the delay is simulated: a request of the daemon takes effect, and is
//! acknowledged, one gate move later.

use std::io;
use std::sync::Arc;

use turnstile_daemon::tenant::gates::{GateBook, GateMove};
use turnstile_gpu::Doorbells;
use turnstile_gpu::plain::PlainDoorbells;
use turnstile_vmm::gate::{
    GateControl, GateCounters, GateState, PageMapError, PageWords, ThreadMap, newer,
};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// The GPU's doorbell words, as the VMM accesses them.
#[derive(Debug)]
struct Words(Arc<PlainDoorbells>);

impl PageWords for Words {
    fn load(&self, channel: u32) -> u32 {
        self.0.put(channel)
    }

    fn store(&self, channel: u32, value: u32) {
        self.0.write(channel, value);
    }

    fn exchange(&self, channel: u32, from: u32, to: u32) -> Result<(), u32> {
        // There is no concurrent writer: the lab has one thread per world.
        match self.load(channel) {
            word if word == from => {
                self.store(channel, to);
                Ok(())
            }
            word => Err(word),
        }
    }
}

/// Result of a doorbell write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rang {
    /// On the page, without an exit.
    Direct,
    /// On the page, after a trap at a watched gate; the daemon is notified.
    LetThrough,
    /// On the page, after a trap at a gate that was opening.
    Delivered,
    /// Behind a closed gate.
    Kept,
}

/// The gate of one channel, simulated.
#[derive(Debug)]
pub struct SimulatedGate {
    channel: u32,
    control: GateControl<ThreadMap, Words>,
    kick: EventFd,
    book: GateBook,
    /// The request that the VMM has not acknowledged.
    under_way: Option<GateState>,
}

impl SimulatedGate {
    /// A gate before the page of `channel`, without a state yet.
    ///
    /// # Errors
    /// If the host has no event descriptor left.
    pub fn new(doorbells: Arc<PlainDoorbells>, channel: u32) -> io::Result<Self> {
        let kick = EventFd::new(EFD_NONBLOCK)?;
        let channels = channel + 1;
        let map = ThreadMap::new(channels);
        let control = GateControl::new(
            channels,
            map,
            Words(doorbells),
            Words(Arc::new(PlainDoorbells::new(channels))),
            kick.try_clone()?,
        );
        let book = GateBook::default();
        Ok(Self {
            channel,
            control,
            kick,
            book,
            under_way: None,
        })
    }

    /// Sets the gate's first state; returns the request.
    pub fn add(&mut self, state: GateState) -> Option<GateMove> {
        let request = self.book.add(self.channel, state);
        self.sent(request)
    }

    /// Sets the wanted state; returns the request to be sent now, if any.
    pub fn want(&mut self, state: GateState) -> Option<GateMove> {
        let request = self.book.set(self.channel, state);
        self.sent(request)
    }

    /// The VMM executes a request and acknowledges it; returns the next request to be sent, if any.
    ///
    /// # Errors
    /// Never, with simulated pages.
    pub fn carry_out(&mut self, request: GateMove) -> Result<Option<GateMove>, PageMapError> {
        let trapped = self.control.set(request.channel, request.state)?;
        self.under_way = None;
        let trapped = trapped.unwrap_or(0);
        let next = self.book.done(request.channel, request.seq, trapped);
        Ok(self.sent(next))
    }

    fn sent(&mut self, request: Option<GateMove>) -> Option<GateMove> {
        self.under_way = request.map(|sent| sent.state).or(self.under_way);
        request
    }

    /// Whether the gate is opening, or will open once it has closed.
    pub fn is_opening(&self) -> bool {
        let wanted = self.book.wanted(self.channel) == Some(GateState::Open);
        wanted && self.under_way.is_some()
    }

    /// The guest writes its doorbell.
    pub fn ring(&self, put: u32) -> Rang {
        let before = self.control.state(self.channel);
        let stored = self.control.store(self.channel, put);
        if !stored {
            self.control.trap(self.channel, put);
        }
        match before {
            Some(GateState::Closed) | None => Rang::Kept,
            Some(GateState::Open | GateState::Watched) if stored => Rang::Direct,
            Some(GateState::Watched) => Rang::LetThrough,
            Some(GateState::Open) => Rang::Delivered,
        }
    }

    /// Whether the VMM has kicked the daemon since the last call.
    pub fn take_kick(&self) -> bool {
        self.kick.read().is_ok()
    }

    /// Whether a doorbell write is kept behind the gate.
    pub fn keeps(&self) -> bool {
        let shown = self.control.page_words().load(self.channel);
        let parked = self.control.parking_words().load(self.channel);
        self.state() == Some(GateState::Closed) && newer(parked, shown)
    }

    /// Whether a write may reach the page unseen, by the daemon's book.
    pub fn any_open(&self) -> bool {
        self.book.any_open()
    }

    /// The gate's state in the VMM.
    pub fn state(&self) -> Option<GateState> {
        self.control.state(self.channel)
    }

    /// Requests that the daemon has sent.
    pub const fn moves(&self) -> u64 {
        self.book.moves()
    }

    /// The gate's counters.
    pub fn counters(&self) -> GateCounters {
        self.control.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnstile_gpu::plain::PlainVm;

    #[test]
    fn a_kept_value_is_delivered_on_opening_and_a_watched_gate_kicks() {
        let vm = PlainVm::new(1 << 20);
        let mut gate = SimulatedGate::new(vm.doorbells.clone(), 0).unwrap();
        let request = gate.add(GateState::Closed).unwrap();
        assert_eq!(gate.carry_out(request).unwrap(), None);
        assert_eq!((gate.ring(3), gate.ring(5)), (Rang::Kept, Rang::Kept));
        assert!(gate.keeps() && vm.doorbells.put(0) == 0);
        assert!(
            gate.take_kick() && !gate.take_kick(),
            "kicked by the first alone"
        );
        let request = gate.want(GateState::Open).unwrap();
        gate.carry_out(request).unwrap();
        assert!(!gate.keeps() && vm.doorbells.put(0) == 5);
        assert_eq!(gate.ring(6), Rang::Direct);
        let request = gate.want(GateState::Watched).unwrap();
        gate.carry_out(request).unwrap();
        assert_eq!(
            (gate.ring(7), gate.ring(8)),
            (Rang::LetThrough, Rang::Direct)
        );
        assert!(gate.take_kick() && !gate.take_kick());
        let counters = gate.counters();
        assert_eq!(
            (counters.trapped, counters.delivered, gate.moves()),
            (2, 2, 3),
            "the second write behind the closed gate cost no exit"
        );
    }
}
