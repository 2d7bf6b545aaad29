//! The API's thread: accepts connections, says who is at their other end, and serves each on a task of its own.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use axum::Router;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use super::access::{Access, AccessError, Caller, Peer, Role};
use super::connections::{Connections, serve};
use super::router::router;
use super::snapshots::Snapshots;
use super::state_file::{StateFile, StateFileError};
use super::sys::peer_groups;
use super::tls::{Network, TlsError};
use super::{ApiConfig, Shared};
use crate::daemon::Host;
use crate::socket::{ListenError, listen};

/// Threads for what may take long: files and exports.
const BLOCKING_THREADS: usize = 4;

/// Reads of the ledger at a time; others are told to come again.
const READS: usize = 2;

/// TIMEOUT: after a failed accept (no descriptors are left, say); soon enough for whoever waits to connect.
pub(super) const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// TIMEOUT: what is under way when the daemon stops is a file of a few KiB; exports are given up.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// Why the API did not start.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// A socket could not be had.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Somebody is not known here.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// Certificates could not be had, or the address.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Settings could not be read.
    #[error(transparent)]
    State(#[from] StateFileError),
    /// No thread.
    #[error("Starting the API's thread failed")]
    Start(#[source] io::Error),
}

/// The running API; it stops when dropped.
#[derive(Debug)]
pub struct Api {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
    sockets: Vec<PathBuf>,
    address: Option<SocketAddr>,
}

/// A Unix socket, and the most that one may do on it.
struct Listening {
    listener: StdUnixListener,
    most: Role,
}

impl Api {
    /// Starts the API of a daemon, and first restores what was set.
    ///
    /// # Errors
    /// When a socket cannot be had or the settings cannot be read.
    pub fn start(config: ApiConfig, host: Arc<Host>) -> Result<Self, ApiError> {
        let ApiConfig {
            section,
            gpu,
            ledger,
        } = config;
        let access = Access::of(&section)?;
        let state = section.state.map(StateFile::new);
        if let Some(state) = &state {
            host.restore_settings(state.load()?);
        }
        // Where others are named, the kernel's word decides and not the file's permissions.
        let mode = if access.is_shared() { 0o666 } else { 0o660 };
        let (mut listening, mut sockets) = (Vec::new(), Vec::new());
        let paths = [
            (section.socket, Role::Operator),
            (section.read_only_socket, Role::Viewer),
        ];
        for (path, most) in paths {
            let Some(path) = path else { continue };
            let listener = listen(&path, mode)?;
            sockets.push(path);
            listening.push(Listening { listener, most });
        }
        let network = section
            .listen
            .map(|address| Network::bind(address, &section.tls))
            .transpose()?;
        let address = network.as_ref().map(Network::address);
        let shared = Arc::new(Shared {
            snapshots: Snapshots::new(host.clone()),
            host,
            gpu,
            state,
            writes: tokio::sync::Mutex::new(()),
            strict: section.require_if_match,
            ledger,
            reading: Arc::new(tokio::sync::Semaphore::new(READS)),
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("turnstile-apib")
            .build()
            .map_err(ApiError::Start)?;
        let (stop, stopped) = watch::channel(false);
        let thread = thread::Builder::new()
            .name("turnstile-api".into())
            .spawn(move || {
                runtime.block_on(run(router(shared), access, listening, network, stopped));
                runtime.shutdown_timeout(LAST_MOMENT);
            })
            .map_err(ApiError::Start)?;
        Ok(Self {
            stop,
            thread: Some(thread),
            sockets,
            address,
        })
    }

    /// Where it listens on the network, if it does.
    pub const fn address(&self) -> Option<SocketAddr> {
        self.address
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if self
            .thread
            .take()
            .is_some_and(|thread| thread.join().is_err())
        {
            log::error!("The API's thread panicked");
        }
        for socket in &self.sockets {
            let _ = std::fs::remove_file(socket);
        }
    }
}

async fn run(
    router: Router,
    access: Access,
    listening: Vec<Listening>,
    network: Option<Network>,
    mut stopped: watch::Receiver<bool>,
) {
    let connections = Connections::default();
    let access = Arc::new(access);
    for Listening { listener, most } in listening {
        let listener = listener
            .set_nonblocking(true)
            .and_then(|()| UnixListener::from_std(listener));
        match listener {
            Ok(listener) => {
                let accepting = accept(
                    listener,
                    most,
                    access.clone(),
                    router.clone(),
                    connections.clone(),
                );
                tokio::spawn(accepting);
            }
            Err(error) => log::error!("API: a socket is not served: {error}"),
        }
    }
    if let Some(network) = network {
        tokio::spawn(network.accept(access, router, connections));
    }
    // An error is a sender that is gone: the same.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

async fn accept(
    listener: UnixListener,
    most: Role,
    access: Arc<Access>,
    router: Router,
    connections: Connections,
) {
    let own_uid = rustix::process::geteuid().as_raw();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(_) => {
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let Ok(peer) = peer(&stream) else { continue };
        // Strangers are closed without a word, and counted by nobody's disk.
        let Some(role) = access.role(&peer, own_uid) else {
            continue;
        };
        let caller = Caller {
            role: role.min(most),
            name: peer.to_string(),
        };
        if let Some(place) = connections.place(caller.role, peer.uid.to_string()) {
            tokio::spawn(serve(stream, router.clone(), caller, place));
        }
    }
}

fn peer(stream: &UnixStream) -> io::Result<Peer> {
    let credentials = stream.peer_cred()?;
    let mut gids = peer_groups(stream)?;
    gids.push(credentials.gid());
    Ok(Peer {
        uid: credentials.uid(),
        gids,
        pid: credentials.pid(),
    })
}
