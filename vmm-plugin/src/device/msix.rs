//! The MSI-X table. Pending bits read as zero: an interrupt raised while its vector is masked stays
//! in the vector's eventfd.

use super::Host;
use turnstile_abi::pci::VECTORS;

/// Words of one entry: address low, address high, data, control.
const ENTRY_WORDS: usize = 4;
const CONTROL: usize = 3;
const MASKED: u32 = 1;

/// What a vector writes, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsiMessage {
    /// Address.
    pub address: u64,
    /// Data.
    pub data: u32,
}

#[derive(Debug)]
pub(super) struct Msix {
    enabled: bool,
    masked: bool,
    table: [[u32; ENTRY_WORDS]; VECTORS as usize],
    /// The message last passed to the host.
    reported: [Option<MsiMessage>; VECTORS as usize],
}

impl Msix {
    pub(super) fn new() -> Self {
        Self {
            enabled: false,
            masked: false,
            table: [[0, 0, 0, MASKED]; VECTORS as usize],
            reported: [None; VECTORS as usize],
        }
    }

    pub(super) fn set_control(&mut self, enabled: bool, masked: bool, host: &mut impl Host) {
        if (self.enabled, self.masked) == (enabled, masked) {
            return;
        }
        (self.enabled, self.masked) = (enabled, masked);
        for vector in 0..VECTORS {
            self.tell(vector, host);
        }
    }

    pub(super) fn word(&self, offset: u64) -> u32 {
        match self.table.get(offset as usize / 16) {
            Some(entry) => entry[offset as usize / 4 % ENTRY_WORDS],
            None => 0,
        }
    }

    pub(super) fn set_word(&mut self, offset: u64, value: u32, host: &mut impl Host) {
        let (vector, word) = (offset as usize / 16, offset as usize / 4 % ENTRY_WORDS);
        let Some(entry) = self.table.get_mut(vector) else {
            return;
        };
        entry[word] = match word {
            0 => value & !3,
            CONTROL => value & MASKED,
            _ => value,
        };
        self.tell(vector as u16, host);
    }

    fn tell(&mut self, vector: u16, host: &mut impl Host) {
        let [low, high, data, control] = self.table[usize::from(vector)];
        let open = self.enabled && !self.masked && control & MASKED == 0;
        let message = open.then_some(MsiMessage {
            address: u64::from(high) << 32 | u64::from(low),
            data,
        });
        let reported = &mut self.reported[usize::from(vector)];
        if *reported != message {
            *reported = message;
            host.set_msix(vector, message);
        }
    }
}
