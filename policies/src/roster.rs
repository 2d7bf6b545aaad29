//! The tenants of a policy, by ascending id.

use crate::policy::PolicyError;
use turnstile_accounting::TenantId;

/// A policy's state of each tenant.
#[derive(Debug)]
pub(crate) struct Roster<T> {
    entries: Vec<(TenantId, T)>,
}

impl<T> Default for Roster<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
        }
    }
}

impl<T> Roster<T> {
    fn find(&self, id: TenantId) -> Result<usize, PolicyError> {
        let index = self.entries.binary_search_by_key(&id, |entry| entry.0);
        index.map_err(|_| PolicyError::Unknown(id))
    }

    pub(crate) fn add(&mut self, id: TenantId, tenant: T) -> Result<(), PolicyError> {
        match self.entries.binary_search_by_key(&id, |entry| entry.0) {
            Ok(_) => Err(PolicyError::Known(id)),
            Err(index) => {
                self.entries.insert(index, (id, tenant));
                Ok(())
            }
        }
    }

    pub(crate) fn remove(&mut self, id: TenantId) -> Result<T, PolicyError> {
        let index = self.find(id)?;
        Ok(self.entries.remove(index).1)
    }

    pub(crate) fn get(&self, id: TenantId) -> Result<&T, PolicyError> {
        self.find(id).map(|index| &self.entries[index].1)
    }

    pub(crate) fn get_mut(&mut self, id: TenantId) -> Result<&mut T, PolicyError> {
        let index = self.find(id)?;
        Ok(&mut self.entries[index].1)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (TenantId, &T)> + '_ {
        self.entries.iter().map(|(id, tenant)| (*id, tenant))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> + '_ {
        self.entries.iter_mut().map(|(_, tenant)| tenant)
    }
}
