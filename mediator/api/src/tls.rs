//! The network: TLS in which both sides show a certificate, and nothing else.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::Shared;
use super::access::Caller;
use super::connections::{ACCEPT_AGAIN, Connections, serve};
use turnstile_daemon::config::TlsSection;

/// TIMEOUT: a handshake is two round trips.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Why the network is not served.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is not named.
    #[error(
        "The network is served over mutual TLS alone: api.tls.certificate, key and client_ca are needed"
    )]
    Incomplete,
    /// A file has nothing usable in it.
    #[error("{} has no usable PEM of that kind", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: pem::Error,
    },
    /// Certificate and key, or the roots, are not taken.
    #[error("The certificates are not usable")]
    Certificates(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The address could not be had.
    #[error("Listening on {address} failed")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// The network, listened on.
pub(super) struct Network {
    listener: StdTcpListener,
    address: SocketAddr,
    acceptor: Renewal,
}

/// The acceptor of connections from now on, which other certificates make another.
#[derive(Clone)]
pub(super) struct Renewal(Arc<Mutex<TlsAcceptor>>);

impl fmt::Debug for Renewal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewal").finish_non_exhaustive()
    }
}

impl Renewal {
    fn of(section: &TlsSection) -> Result<Self, TlsError> {
        let acceptor = TlsAcceptor::from(Arc::new(configuration(section)?));
        Ok(Self(Arc::new(Mutex::new(acceptor))))
    }

    /// Reads the certificates anew.
    pub(super) fn renew(&self, section: &TlsSection) -> Result<(), TlsError> {
        let next = TlsAcceptor::from(Arc::new(configuration(section)?));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    fn get(&self) -> TlsAcceptor {
        let acceptor = self.0.lock();
        acceptor.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |source| TlsError::Pem {
        path: path.to_owned(),
        source,
    };
    let certificates = CertificateDer::pem_file_iter(path).map_err(failed)?;
    let certificates: Vec<_> = certificates.collect::<Result<_, _>>().map_err(failed)?;
    if certificates.is_empty() {
        return Err(failed(pem::Error::NoItemsFound));
    }
    Ok(certificates)
}

fn configuration(section: &TlsSection) -> Result<ServerConfig, TlsError> {
    let (Some(certificate), Some(key), Some(client_ca)) =
        (&section.certificate, &section.key, &section.client_ca)
    else {
        return Err(TlsError::Incomplete);
    };
    let certificate = certificates(certificate)?;
    let mut roots = RootCertStore::empty();
    for root in certificates(client_ca)? {
        let added = roots.add(root);
        added.map_err(|error| TlsError::Certificates(error.into()))?;
    }
    let key = PrivateKeyDer::from_pem_file(key).map_err(|source| TlsError::Pem {
        path: key.clone(),
        source,
    })?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|error| TlsError::Certificates(error.into()))?;
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map(|builder| builder.with_client_cert_verifier(clients))
        .and_then(|builder| builder.with_single_cert(certificate, key))
        .map_err(|error| TlsError::Certificates(error.into()))
}

/// DNS and URI names in the alternative names of a certificate that was verified.
fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else {
        return Vec::new();
    };
    let dns = certificate.valid_dns_names().map(str::to_owned);
    dns.chain(certificate.valid_uri_names().map(str::to_owned))
        .collect()
}

impl Network {
    pub(super) fn bind(address: SocketAddr, section: &TlsSection) -> Result<Self, TlsError> {
        let acceptor = Renewal::of(section)?;
        let failed = |source| TlsError::Listen { address, source };
        let listener = StdTcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self {
            listener,
            address,
            acceptor,
        })
    }

    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn renewal(&self) -> Renewal {
        self.acceptor.clone()
    }

    /// Accepts for ever.
    pub(super) async fn accept(
        self,
        shared: Arc<Shared>,
        router: Router,
        connections: Connections,
    ) {
        let listener = match TcpListener::from_std(self.listener) {
            Ok(listener) => listener,
            Err(error) => {
                log::error!("API: the network is not served: {error}");
                return;
            }
        };
        loop {
            let Ok((stream, from)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            };
            let handshake = handshake(
                stream,
                from,
                self.acceptor.get(),
                shared.clone(),
                router.clone(),
                connections.clone(),
            );
            tokio::spawn(handshake);
        }
    }
}

/// Closes the connection if the client has shown no certificate with a role.
async fn handshake(
    stream: TcpStream,
    from: SocketAddr,
    acceptor: TlsAcceptor,
    shared: Arc<Shared>,
    router: Router,
    connections: Connections,
) {
    let Some(meanwhile) = connections.stranger(&from.ip().to_string()) else {
        return;
    };
    let _ = stream.set_nodelay(true);
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await else {
        return;
    };
    let shown = stream.get_ref().1.peer_certificates();
    let names = shown.and_then(<[_]>::first).map(names).unwrap_or_default();
    let Some(role) = shared.in_force.get().access.role_of_names(&names) else {
        return;
    };
    drop(meanwhile);
    // The audit has at most 256 characters of a certificate.
    let name: String = names.join(" cert:").chars().take(256).collect();
    let name = format!("cert:{name}");
    let Some(place) = connections.place(role, &name) else {
        return;
    };
    serve(stream, router, Caller { role, name }, place).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| Some(folder.path().join(name));
        let section = TlsSection {
            certificate: file("daemon.pem"),
            key: file("key.pem"),
            client_ca: file("clients.pem"),
        };
        let refused = configuration(&section).unwrap_err().to_string();
        assert!(refused.contains("daemon.pem"), "{refused}");
    }
}
