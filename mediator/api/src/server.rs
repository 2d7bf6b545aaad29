//! The API's thread: accepts connections, identifies their callers, and serves each on its own
//! task.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use axum::Router;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use super::access::{Caller, Peer, Role};
use super::connections::{ACCEPT_AGAIN, Connections, serve};
use super::in_force::{Current, InForce, ReloadError};
use super::ledger::LedgerReader;
use super::live;
use super::measured::Measured;
use super::metrics_listener::MetricsListener;
use super::router::{open_router, router};
use super::seen::Gpus;
use super::state_file::StateFile;
use super::sys::peer_groups;
use super::tls::{Network, Renewal};
use super::write::keep_names;
use super::{ApiConfig, DebtFile, Shared};
use turnstile_daemon::Fleet;
use turnstile_daemon::config::{ApiSection, MetricsSection};
use turnstile_daemon::socket::{ListenError, listen};
use turnstile_host::confine;

/// Threads for what may take long: files and exports.
const BLOCKING_THREADS: usize = 4;

/// TIMEOUT: what is under way when the daemon stops is a file of a few KiB; exports are given up.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// Why the API did not start.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// A socket could not be had.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A user or group is not known on this host, or certificates or prices could not be had.
    #[error(transparent)]
    InForce(#[from] ReloadError),
    /// The address of `metrics.listen` could not be had.
    #[error("Listening on {address} for metrics failed")]
    Metrics {
        /// The address.
        address: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// No thread.
    #[error("Starting the API's thread failed")]
    Start(#[source] io::Error),
}

/// The running API; it stops when dropped.
#[derive(Debug)]
pub struct Api {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
    sockets: Vec<PathBuf>,
    address: Option<SocketAddr>,
    certificates: Option<Renewal>,
}

/// What is listened on.
struct Doors {
    listening: Vec<Listening>,
    network: Option<Network>,
    metrics: Option<MetricsListener>,
}

/// A Unix socket, and the most that one may do on it.
struct Listening {
    listener: StdUnixListener,
    most: Role,
}

impl Api {
    /// Starts the API of a daemon, which has been given what the state file has.
    ///
    /// # Errors
    /// When a socket cannot be had.
    pub fn start(config: ApiConfig, fleet: Arc<Fleet>) -> Result<Self, ApiError> {
        let ApiConfig {
            section,
            metrics,
            prices,
            ledger,
            version,
        } = config;
        let in_force = InForce::of(&section, &metrics, prices.as_deref())?;
        let state = section.state.map(StateFile::new);
        let mode = mode(&in_force);
        let (mut listening, mut sockets) = (Vec::new(), Vec::new());
        let paths = [
            (section.socket, Role::Administrator),
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
            .transpose()
            .map_err(ReloadError::from)?;
        let address = network.as_ref().map(Network::address);
        let certificates = network.as_ref().map(Network::renewal);
        let open = |address| {
            let failed = |source| ApiError::Metrics { address, source };
            MetricsListener::bind(address).map_err(failed)
        };
        let metrics = metrics.listen.map(open).transpose()?;
        let shared = Arc::new(Shared {
            gpus: Gpus::of(&fleet),
            fleet,
            state,
            writes: tokio::sync::Mutex::new(()),
            in_force: Current::new(in_force),
            measured: Measured::new(),
            ledger: LedgerReader::new(ledger),
            version,
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("turnstile-apib")
            .build()
            .map_err(ApiError::Start)?;
        let (stop, stopped) = watch::channel(false);
        let doors = Doors {
            listening,
            network,
            metrics,
        };
        let served = shared.clone();
        let thread = thread::Builder::new()
            .name("turnstile-api".into())
            .spawn(move || {
                confine::enter(confine::Role::Api);
                runtime.block_on(run(served, doors, stopped));
                runtime.shutdown_timeout(LAST_MOMENT);
            })
            .map_err(ApiError::Start)?;
        Ok(Self {
            stop,
            thread: Some(thread),
            shared,
            sockets,
            address,
            certificates,
        })
    }

    /// Replaces roles, certificates, prices and names of metrics, for connections and requests from
    /// now on.
    ///
    /// # Errors
    /// If one of them is not usable; then all is as it was.
    pub fn reload(
        &self,
        section: &ApiSection,
        metrics: &MetricsSection,
        prices: Option<&Path>,
    ) -> Result<(), ReloadError> {
        let next = InForce::of(section, metrics, prices)?;
        if let Some(certificates) = &self.certificates {
            certificates.renew(&section.tls)?;
        }
        let mode = mode(&next);
        for socket in &self.sockets {
            turnstile_daemon::socket::permit(socket, mode);
        }
        self.shared.in_force.set(next);
        Ok(())
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
            turnstile_daemon::socket::remove(socket);
        }
    }
}

/// Permissions of the sockets. Where other users have roles, the peer's credentials decide, not the
/// file's permissions.
fn mode(in_force: &InForce) -> u32 {
    if in_force.access.is_shared() {
        0o666
    } else {
        0o660
    }
}

async fn run(shared: Arc<Shared>, doors: Doors, mut stopped: watch::Receiver<bool>) {
    tokio::spawn(live::poll(shared.clone()));
    tokio::spawn(keep_names(shared.clone()));
    if let Some(state) = &shared.state {
        tokio::spawn(DebtFile::beside(state).keep(shared.fleet.clone()));
    }
    let router = router(shared.clone());
    let connections = Connections::new(shared.fleet.limits().clone());
    for Listening { listener, most } in doors.listening {
        let listener = listener
            .set_nonblocking(true)
            .and_then(|()| UnixListener::from_std(listener));
        match listener {
            Ok(listener) => {
                let accepting = accept(
                    listener,
                    most,
                    shared.clone(),
                    router.clone(),
                    connections.clone(),
                );
                tokio::spawn(accepting);
            }
            Err(error) => log::error!("API: a socket is not served: {error}"),
        }
    }
    if let Some(metrics) = doors.metrics {
        tokio::spawn(metrics.accept(open_router(shared.clone()), connections.clone()));
    }
    if let Some(network) = doors.network {
        tokio::spawn(network.accept(shared, router, connections));
    }
    // An error is a sender that is gone: the same.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

async fn accept(
    listener: UnixListener,
    most: Role,
    shared: Arc<Shared>,
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
        // Callers without a role are closed without an answer, and not logged.
        let Some(role) = shared.in_force.get().access.role(&peer, own_uid) else {
            continue;
        };
        let caller = Caller {
            role: role.min(most),
            name: peer.to_string(),
        };
        if let Some(place) = connections.place(caller.role, &peer.uid.to_string()) {
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
