//! What may change while the API runs. Each connection and request reads it; it is replaced as a
//! whole.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use turnstile_accounting::export::{PriceList, PriceListError};

use super::access::{Access, AccessError};
use super::tls::TlsError;
use turnstile_daemon::config::{ApiSection, MetricsSection};

/// Why nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// A user or group is not known on this host.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The price list is not usable.
    #[error("The price list is not usable")]
    Prices(#[from] PriceListError),
    /// Certificates could not be had.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// What is in force.
#[derive(Debug)]
pub(super) struct InForce {
    /// Roles of callers.
    pub(super) access: Access,
    /// A write has to name the version that it changes.
    pub(super) strict: bool,
    /// Prices, if there is a list.
    pub(super) prices: Option<PriceList>,
    /// Metrics are also exported under DCGM's names.
    pub(super) dcgm_compat: bool,
}

impl InForce {
    pub(super) fn of(
        section: &ApiSection,
        metrics: &MetricsSection,
        prices: Option<&Path>,
    ) -> Result<Self, ReloadError> {
        Ok(Self {
            access: Access::of(section)?,
            strict: section.require_if_match,
            prices: prices.map(PriceList::read).transpose()?,
            dcgm_compat: metrics.dcgm_compat,
        })
    }
}

/// The one in force now.
#[derive(Debug)]
pub(super) struct Current(Mutex<Arc<InForce>>);

impl Current {
    pub(super) fn new(first: InForce) -> Self {
        Self(Mutex::new(Arc::new(first)))
    }

    pub(super) fn get(&self) -> Arc<InForce> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn set(&self, next: InForce) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
    }
}
