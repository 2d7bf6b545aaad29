//! The status registers: what anyone may read at any moment without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use turnstile_accounting::TenantId;

use super::board::Board;
use super::config::ENGINES;

const BUSY: u64 = 1 << 63;
const SLOT_SHIFT: u32 = 32;

/// One register per engine: bit 63 busy, bits 62..32 the channel table's slot, bits 31..0 the
/// tenant of that channel.
///
/// As on the hardware that LoGA describes, the channel stays in the register when the engine
/// becomes idle. Only the busy bit indicates execution.
#[derive(Debug, Default)]
pub(super) struct Registers {
    words: [AtomicU64; ENGINES],
    /// Where they are shown besides.
    board: OnceLock<Arc<dyn Board>>,
}

impl Registers {
    /// Shows the registers on `board` from now on; the first board stays.
    pub(super) fn show_on(&self, board: Arc<dyn Board>) {
        let _ = self.board.set(board);
    }

    /// Precondition: the core's lock is held, so that the board shows what was set last.
    fn show(&self, engine: usize, value: u64) {
        if let Some(board) = self.board.get() {
            board.status(engine, value);
        }
    }

    /// The engine executes this channel.
    pub(super) fn set_busy(&self, engine: usize, slot: u32, tenant: TenantId) {
        let value = BUSY | u64::from(slot) << SLOT_SHIFT | u64::from(tenant.0);
        self.words[engine].store(value, Ordering::Release);
        self.show(engine, value);
    }

    /// The engine executes nothing.
    pub(super) fn clear_busy(&self, engine: usize) {
        let before = self.words[engine].fetch_and(!BUSY, Ordering::Release);
        if before & BUSY != 0 {
            self.show(engine, before & !BUSY);
        }
    }

    /// The tenant of the channel that the engine executes. None if the engine is idle or switching,
    /// or does not exist.
    pub(super) fn running(&self, engine: usize) -> Option<TenantId> {
        let value = self.words.get(engine)?.load(Ordering::Acquire);
        // CAST: the tenant is in the low half.
        (value & BUSY != 0).then_some(TenantId(value as u32))
    }
}
