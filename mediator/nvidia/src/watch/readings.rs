//! How the status register is read at a look: how often, how far apart, and when words say as much.

use turnstile_accounting::{Nanos, TenantId};

use super::Watch;
use crate::begun::MISTAKEN;
use crate::progress::Said;

/// Readings of the status register without work before the engine counts as idle, at least and at most.
const IDLE_READINGS: (u32, u32) = (3, 16);
/// The same where channels tell of launches in between.
const IDLE_READINGS_TOLD: u32 = 2;
/// From one of them to the next, at least, and by how much more at most: never the same, or all would fall between the launches of one whose kernels take as long.
/// SOURCE: measured on an H200: with 150 us each, 8 of 1,533 looks at pairs with kernels of 50 us found work at the fifth reading or later, and two in 55 runs of 6 s took work for a
/// rest; with these, one of 1,474, and none in 19 runs.
const READING_PAUSE: (Nanos, Nanos) = (Nanos::from_us(50), Nanos::from_us(200));
/// In which parts of that: of the golden ratio, which is in no step with anything.
const GOLDEN: f64 = 0.618_034;
/// A reading by the driver takes so long. Where registers are mapped, the next one is later by that: who pauses for no longer has not stopped. SOURCE: measured on an H200: 235 us, of the
/// driver and the GPU's own processor; 1 us mapped. The simulated engine, 6,600 pairs: 15 shares are off where no host paused, and 31 without.
pub(crate) const READING: Nanos = Nanos::from_us(240);

impl Watch {
    /// After which time without a launch one whose channels say this has no work, where another reading of the register would cost as much as ten wakes.
    pub(crate) fn stands_after(&mut self, tenant: TenantId, said: Said) -> Option<Nanos> {
        if self.mapped {
            return None;
        }
        if said != Said::Nothing && self.was_heard_to_stop(tenant) {
            return (!self.progress.is_asked_again(tenant)).then_some(Nanos::ZERO);
        }
        self.progress.stands_after(tenant, said)
    }

    /// Whether one who works was heard to go to sleep, as he is whenever he stops.
    fn was_heard_to_stop(&self, tenant: TenantId) -> bool {
        self.hosts.may_have_stopped(tenant).is_some() && self.hosts.is_believed(tenant)
    }

    /// How long to wait for the next reading of a look.
    pub(crate) fn reading_pause(&mut self) -> Nanos {
        self.pauses = self.pauses.wrapping_add(1);
        let (least, more) = READING_PAUSE;
        let part = (f64::from(self.pauses) * GOLDEN).fract();
        let reading = if self.mapped { READING } else { Nanos::ZERO };
        // CAST: less than the most.
        reading + least + Nanos((more.0 as f64 * part) as u64)
    }

    /// Readings in a row without work that say that a tenant has paused, and not that they fell between its launches. If its channels are asked whether it launched
    /// anything meanwhile, fewer do.
    pub(crate) fn idle_readings(&self, tenant: TenantId, said: Said) -> u32 {
        let (least, most) = IDLE_READINGS;
        if self.was_heard_to_stop(tenant) {
            // Who launches them sleeps: they fall between no launches.
            return 1;
        }
        match said {
            Said::Nothing => {}
            // It rests, and is looked at all the same.
            Said::Still { .. } if self.residency.is_idle() => return 1,
            Said::Still { .. } | Said::Moved { .. } => return IDLE_READINGS_TOLD,
        }
        let between = self.idle.shares().fraction(tenant) + self.idle.shares().uncertainty(tenant);
        if between >= 1.0 {
            return most;
        }
        // CAST: saturates; negative and infinite ones are clamped.
        ((MISTAKEN.ln() / between.ln()).ceil() as u32).clamp(least, most)
    }
}
