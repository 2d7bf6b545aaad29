//! The end: which tenants' memory is brought back to the card before the manager stops.

use turnstile_accounting::TenantId;

use super::MemoryManager;
use crate::memory::owner::Owner;
use crate::memory::turns::Candidate;

impl MemoryManager {
    /// Ends all turns. As many of these tenants as fit get all of their memory: first those that
    /// have it, then the smallest. The memory of all other tenants makes way.
    pub(crate) fn bring_back(&mut self, whose: impl IntoIterator<Item = TenantId>) {
        self.ending = Some(whose.into_iter().collect());
        self.turn = None;
        self.queue.clear();
    }

    /// After [`Self::bring_back`], has the memory of this newer tenant brought back as well.
    pub(crate) fn bring_back_too(&mut self, tenant: TenantId) {
        if let Some(ending) = &mut self.ending {
            ending.insert(tenant);
        }
    }

    /// Bytes that are still to move for the tenants that fit, and the tenants that do not fit.
    pub(crate) fn still_to_come(&self) -> (u64, Vec<TenantId>) {
        let staying = self.staying();
        let missing = |id: &TenantId| {
            let owner = self.owners.get(id);
            owner.map_or(0, |owner| {
                owner.bytes().swapped + owner.bytes().into + owner.bytes().out
            })
        };
        let all = self.ending.iter().flatten();
        let lost = all.filter(|id| !staying.contains(id) && self.owners.contains_key(id));
        let bytes = staying.iter().map(missing).sum();
        (bytes, lost.copied().collect())
    }

    /// The tenants that fit, in the order in which they are brought.
    pub(super) fn staying(&self) -> Vec<TenantId> {
        let of = |id: &TenantId| Some((*id, self.owners.get(id)?));
        let mut all: Vec<(TenantId, &Owner)> =
            self.ending.iter().flatten().filter_map(of).collect();
        all.sort_by_key(|(id, owner)| (!owner.is_whole(), owner.bytes().all(), *id));
        let mut staying: Vec<Candidate> = Vec::new();
        for (tenant, owner) in all {
            staying.push(Candidate {
                tenant,
                clock: owner.clock,
                set_bytes: owner.bytes().all(),
            });
            let sets: u64 = staying.iter().map(|one| one.set_bytes).sum();
            if sets > self.room_for(&staying) {
                staying.pop();
            }
        }
        staying.into_iter().map(|one| one.tenant).collect()
    }
}
