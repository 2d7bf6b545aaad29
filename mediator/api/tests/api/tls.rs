//! The network: both sides show certificates, and a certificate has a role by its names.

use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use turnstile_daemon::config::Principal;

use super::Bench;
use super::http::{Call, PATCH, PATIENCE, Reply, exchange};

type Issuer = CertifiedIssuer<'static, KeyPair>;

/// A certificate and its key.
struct Identity {
    certificate: CertificateDer<'static>,
    pem: String,
    key: KeyPair,
}

fn issuer(name: &str) -> Issuer {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn identity(issuer: &Issuer, name: &str) -> Identity {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    let certificate = params.signed_by(&key, issuer).unwrap();
    Identity {
        certificate: certificate.der().clone(),
        pem: certificate.pem(),
        key,
    }
}

fn key(pair: &KeyPair) -> PrivateKeyDer<'static> {
    PrivateKeyDer::try_from(pair.serialize_der()).unwrap()
}

fn call(bench: &Bench, roots: &Issuer, own: Option<&Identity>, method: &str) -> Option<Reply> {
    let mut store = RootCertStore::empty();
    store.add(roots.as_ref().der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(store);
    let config = match own {
        Some(own) => config
            .with_client_auth_cert(vec![own.certificate.clone()], key(&own.key))
            .unwrap(),
        None => config.with_no_client_auth(),
    };
    let name = ServerName::try_from("daemon.example").unwrap();
    let client = ClientConnection::new(Arc::new(config), name).unwrap();
    let address = bench.api.as_ref().unwrap().address().unwrap();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = Call {
        method,
        path: if method == "GET" {
            "/v1/vms"
        } else {
            "/v1/vms/a/scheduling"
        },
        headers: &[("Content-Type", PATCH)],
        body: if method == "GET" {
            ""
        } else {
            "{\"weight\":7}"
        },
    };
    exchange(&mut StreamOwned::new(client, stream), &request)
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}

#[test]
fn a_certificate_has_the_role_of_its_name() {
    let (ours, others) = (issuer("ours"), issuer("others"));
    let daemon = identity(&ours, "daemon.example");
    let files = tempfile::tempdir().unwrap();
    let file = |name: &str| files.path().join(name);
    write(&file("daemon.pem"), &daemon.pem);
    write(&file("key.pem"), &daemon.key.serialize_pem());
    write(&file("clients.pem"), &ours.pem());
    let bench = Bench::with(|section| {
        section.listen = Some("127.0.0.1:0".parse().unwrap());
        section.tls.certificate = Some(file("daemon.pem"));
        section.tls.key = Some(file("key.pem"));
        section.tls.client_ca = Some(file("clients.pem"));
        section.operators = vec![Principal::Certificate("ops.example".into())];
        section.viewers = vec![Principal::Certificate("eyes.example".into())];
    });
    let status =
        |own: Option<&Identity>, method| call(&bench, &ours, own, method).map(|reply| reply.status);
    let operator = identity(&ours, "ops.example");
    let viewer = identity(&ours, "eyes.example");
    assert_eq!(status(Some(&operator), "GET"), Some(200));
    assert_eq!(status(Some(&operator), "PATCH"), Some(404), "no such VM");
    assert_eq!(status(Some(&viewer), "GET"), Some(200));
    assert_eq!(status(Some(&viewer), "PATCH"), Some(403));
    assert_eq!(status(Some(&identity(&ours, "else.example")), "GET"), None);
    assert_eq!(status(Some(&identity(&others, "ops.example")), "GET"), None);
    assert_eq!(status(None, "GET"), None);
    // Plain HTTP is no answer, either.
    let address = bench.api.as_ref().unwrap().address().unwrap();
    let mut plain = TcpStream::connect(address).unwrap();
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    let bytes = {
        use std::io::{Read, Write};
        plain
            .write_all(b"GET /v1/vms HTTP/1.1\r\nHost: t\r\n\r\n")
            .unwrap();
        let mut bytes = Vec::new();
        let _ = plain.read_to_end(&mut bytes);
        bytes
    };
    assert!(!bytes.starts_with(b"HTTP"), "{bytes:?}");
}
