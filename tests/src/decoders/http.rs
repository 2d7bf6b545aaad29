//! Requests to the admin API, as bytes on its socket: for any bytes it answers or closes, and
//! serves the next caller.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use turnstile_accounting::record::GpuIdentity;
use turnstile_api::{Api, ApiConfig};
use turnstile_daemon::config::{ApiSection, MetricsSection, Principal};
use turnstile_daemon::{Fleet, Host, HostConfig};
use turnstile_soft::{SoftConfig, SoftGpu};

/// TIMEOUT: longer than the API permits a slow client.
const PATIENCE: Duration = Duration::from_secs(60);

/// An API without tenants, which exists as long as the process.
struct Served {
    socket: PathBuf,
    _api: Api,
    _folder: tempfile::TempDir,
}

fn served() -> &'static Served {
    static SERVED: OnceLock<Served> = OnceLock::new();
    SERVED.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("api.sock");
        let gpu = SoftGpu::new(SoftConfig::default()).expect("a GPU");
        let host = Arc::new(Host::new(Arc::new(gpu), HostConfig::default()).expect("a host"));
        let section = ApiSection {
            socket: Some(socket.clone()),
            operators: vec![Principal::Uid(own_user())],
            ..ApiSection::default()
        };
        let name = || "fuzz".to_owned();
        let gpu = GpuIdentity {
            node: name(),
            gpu: name(),
            model: name(),
        };
        let config = ApiConfig {
            section,
            metrics: MetricsSection::default(),
            prices: None,
            ledger: None,
            version: "1.2.3-4-gabc".into(),
        };
        Served {
            socket,
            _api: Api::start(config, Arc::new(Fleet::of_one(gpu, host))).expect("an API"),
            _folder: folder,
        }
    })
}

/// The user that runs this: the owner of a process's files.
fn own_user() -> u32 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").expect("proc").uid()
}

/// Sends bytes, closes the sending side unless they are `whole`, and returns the answer.
fn send(bytes: &[u8], whole: bool) -> Vec<u8> {
    let mut stream = UnixStream::connect(&served().socket).expect("the API does not listen");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    // It may have closed already.
    let _ = stream.write_all(bytes);
    // The server may close the connection if the client closes during a request: RFC 9112, 9.6.
    if !whole {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// Sends bytes that are no request, or an unusual one, and then a valid request.
///
/// # Panics
/// If the valid request gets no answer, or the bytes caused a server error.
pub fn http(bytes: &[u8]) {
    let answer = send(bytes, false);
    assert!(
        !answer.starts_with(b"HTTP/1.1 500"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    let plain = b"GET /v1/vms HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = send(plain, true);
    assert!(
        answer.starts_with(b"HTTP/1.1 200"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
}
