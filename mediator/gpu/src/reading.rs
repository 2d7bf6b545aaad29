//! What a GPU recorded of its engines since it was last read.

use std::collections::BTreeMap;

use turnstile_accounting::meter::Worked;
use turnstile_accounting::{DemandEvent, Moment, Seen, SwitchEvent, TenantId};

use crate::Metering;

/// Readings of a GPU with [`crate::Capabilities::time_slices`] are traced under this name, for
/// tests that replay them.
pub const READINGS: &str = "turnstile::looks";

/// Records that [`crate::Metering::read`] appends. The caller removes those that it has used.
#[derive(Clone, Debug, Default)]
pub struct EngineReading {
    /// Context switches, oldest first. Dropped records show as gaps in the sequence numbers.
    pub switches: Vec<SwitchEvent>,
    /// Changes of tenants' demand, oldest first. After a loss the current state of every tenant
    /// follows.
    pub demand: Vec<DemandEvent>,
    /// Bytes that copy engines moved, by the tenant that is charged for their time: those of
    /// finished commands and moves. None where the GPU does not count them.
    pub copied: Option<BTreeMap<TenantId, u64>>,
    /// Set by the caller: windows have to be closed up to this reading, if that is possible. This
    /// and the fields below have a meaning where engines have [`crate::Capabilities::time_slices`].
    pub exact: bool,
    /// Time of the reading.
    pub at: Moment,
    /// Each tenant at that time. Replaced by each reading.
    pub tenants: Vec<Seen>,
    /// Windows that are completely known now, each from one reading to the next, in order of time.
    pub windows: Vec<Worked>,
}

impl EngineReading {
    /// What a GPU has recorded since the last reading.
    pub fn of(gpu: &(impl Metering + ?Sized)) -> Self {
        let mut reading = Self::default();
        gpu.read(&mut reading);
        reading
    }

    /// Adds counted bytes.
    pub fn add_copied(&mut self, copied: BTreeMap<TenantId, u64>) {
        let sums = self.copied.get_or_insert_default();
        for (tenant, bytes) in copied {
            *sums.entry(tenant).or_default() += bytes;
        }
    }
}
