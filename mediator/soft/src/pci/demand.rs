//! Demand and notices as a device on a bus shows them: the demand area, and one vector.
//!
//! In: changes of demand and notices of the core, in their order and under its lock. Out: words and
//! records in the mediator's memory, interrupts. Invariant: the word of a context is its demand as
//! of its last record.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use turnstile_abi::physical::{VECTORS, demand};
use turnstile_accounting::{Demand, DemandEvent};
use vm_memory::GuestAddress;

use turnstile_gpu::GuestMemory;

/// Where a context is shown, and its demand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    /// First doorbell page.
    pub(super) first: u32,
    /// Its word in the demand area.
    word: u64,
}

/// Contexts by number.
pub(super) type Places = BTreeMap<u32, Placed>;

/// The demand area's writer.
#[derive(Debug, Default)]
pub(super) struct DemandArea {
    memory: Option<GuestMemory>,
    /// Records written since the area was taken into use.
    put: u64,
}

impl DemandArea {
    /// Takes an area into use, or none; it begins with an empty log.
    pub(super) fn use_memory(&mut self, memory: Option<GuestMemory>, places: &Places) {
        *self = Self { memory, put: 0 };
        self.store(demand::LOG_PUT, 0);
        for placed in places.values() {
            self.show(placed.first, placed.word);
        }
    }

    /// A context is shown from the page `first` on, without demand.
    pub(super) fn place(&self, context: u32, first: u32) -> Placed {
        let word = u64::from(context);
        self.show(first, word);
        Placed { first, word }
    }

    /// A context is gone.
    pub(super) fn clear(&self, placed: Placed) {
        self.show(placed.first, 0);
    }

    /// The demand of a context has changed.
    pub(super) fn log(&mut self, event: &DemandEvent, places: &mut Places) {
        let Some(placed) = places.get_mut(&event.tenant.0) else {
            return;
        };
        let shift = demand::shift(event.engine.0);
        let code = code(event.demand);
        placed.word = placed.word & !(3 << shift) | u64::from(code) << shift;
        self.show(placed.first, placed.word);
        let at = demand::LOG + self.put % demand::LOG_ENTRIES * demand::RECORD_BYTES;
        let engine = u64::from(event.engine.0) << 32;
        let rest = u64::from(event.tenant.0) | engine | u64::from(code) << 48;
        self.store(at, event.at.0);
        self.store(at + 8, rest);
        self.put += 1;
        self.store(demand::LOG_PUT, self.put);
    }

    fn show(&self, first: u32, word: u64) {
        let at = demand::CONTEXTS + u64::from(first) * demand::CONTEXT_BYTES;
        self.store(at, word);
    }

    /// Writes a word; what was written before it is visible before it.
    fn store(&self, at: u64, word: u64) {
        if let Some(memory) = &self.memory {
            let _ = memory.store(word.to_le(), GuestAddress(at), Ordering::Release);
        }
    }
}

const fn code(demand: Demand) -> u32 {
    match demand {
        Demand::Nothing => demand::NOTHING,
        Demand::Executes => demand::EXECUTES,
        Demand::Queued => demand::QUEUED,
    }
}

/// What a notice does. The mediator may arm the vector after it has read what it was woken for:
/// no notice in between is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Notice {
    /// Nothing: no vector was armed.
    #[default]
    Off,
    /// It raises this vector.
    Armed(u16),
    /// It is kept: the vector was raised and not armed again.
    Raised,
    /// Nothing: one is kept already.
    Kept,
}

impl Notice {
    /// The mediator arms a vector, or none. Returns the vector that is to be raised at once.
    pub(super) fn arm(&mut self, vector: u32) -> Option<u16> {
        let vector = u16::try_from(vector).ok().filter(|v| *v < VECTORS);
        let before = std::mem::replace(self, vector.map_or(Self::Off, Self::Armed));
        match before {
            Self::Kept => self.give(),
            Self::Off | Self::Armed(_) | Self::Raised => None,
        }
    }

    /// The core has a notice. Returns the vector that is to be raised.
    pub(super) fn give(&mut self) -> Option<u16> {
        match *self {
            Self::Armed(vector) => {
                *self = Self::Raised;
                return Some(vector);
            }
            Self::Raised => *self = Self::Kept,
            Self::Off | Self::Kept => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_raises_its_vector_once_for_each_time_it_is_armed() {
        let mut notice = Notice::default();
        assert_eq!(notice.give(), None, "no vector was armed");
        assert_eq!(notice.arm(5), None, "none was kept before that");
        assert_eq!(notice.give(), Some(5));
        assert_eq!(notice.arm(5), None);
        assert_eq!(notice.give(), Some(5));
        assert_eq!((notice.give(), notice.give()), (None, None));
        assert_eq!(notice.arm(7), Some(7), "two were kept as one");
        assert_eq!(notice.arm(7), None);
    }

    #[test]
    fn a_vector_that_does_not_exist_disarms() {
        let mut notice = Notice::Kept;
        for vector in [u32::from(VECTORS), 0x1_0005, u32::MAX] {
            assert_eq!(notice.arm(vector), None);
            assert_eq!((notice, notice.give()), (Notice::Off, None));
        }
    }
}
