//! The status registers: what anyone may read at any moment without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use turnstile_accounting::TenantId;

use super::config::ENGINES;

const BUSY: u64 = 1 << 63;
const SLOT_SHIFT: u32 = 32;

/// One register per engine: bit 63 busy, bits 62..32 the channel table's slot, bits 31..0 the tenant of that channel.
///
/// As on the hardware that LoGA describes, the channel stays in the register when the engine falls idle; only the busy
/// bit says that it is executing.
#[derive(Debug, Default)]
pub(super) struct Registers([AtomicU64; ENGINES]);

impl Registers {
    /// The engine executes this channel.
    pub(super) fn set_busy(&self, engine: usize, slot: u32, tenant: TenantId) {
        let value = BUSY | u64::from(slot) << SLOT_SHIFT | u64::from(tenant.0);
        self.0[engine].store(value, Ordering::Release);
    }

    /// The engine executes nothing.
    pub(super) fn clear_busy(&self, engine: usize) {
        self.0[engine].fetch_and(!BUSY, Ordering::Release);
    }

    /// Whose channel the engine executes; None for an engine that is idle, switching or does not exist.
    pub(super) fn running(&self, engine: usize) -> Option<TenantId> {
        let value = self.0.get(engine)?.load(Ordering::Acquire);
        // CAST: the tenant is in the low half.
        (value & BUSY != 0).then_some(TenantId(value as u32))
    }
}
