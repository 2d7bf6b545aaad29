//! The network in a build without TLS: refused.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;

use super::Shared;
use super::connections::Connections;
use turnstile_daemon::config::TlsSection;

/// Why the network is not served.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// This build has no TLS.
    #[error(
        "api.listen: this turnstile was built without `tls`; add `--features tls` to the build"
    )]
    Absent,
}

/// The network; this build has none.
pub(super) enum Network {}

/// Certificates of the network; this build has none.
#[derive(Clone, Debug)]
pub(super) enum Renewal {}

impl Renewal {
    pub(super) fn renew(&self, _: &TlsSection) -> Result<(), TlsError> {
        match *self {}
    }
}

impl Network {
    pub(super) fn bind(_: SocketAddr, _: &TlsSection) -> Result<Self, TlsError> {
        Err(TlsError::Absent)
    }

    pub(super) const fn address(&self) -> SocketAddr {
        match *self {}
    }

    pub(super) fn renewal(&self) -> Renewal {
        match *self {}
    }

    pub(super) async fn accept(self, _: Arc<Shared>, _: Router, _: Connections) {
        match self {}
    }
}
