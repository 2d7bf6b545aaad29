//! The services of the kubelet on a Unix socket.
//!
//! In: calls over gRPC, of bounded size and number. Out: calls of the [`Driver`]. Each socket has
//! all services: the kubelet looks for registration on one and for the driver's on the other.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::{Request, Response};
use prost::Message;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Status;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::transport::Server;
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

use super::driver::Driver;
use super::proto::{self, HEALTH, PLUGIN, REGISTRATION};

/// Largest request: far above one of as many claims as are taken.
const REQUEST_BYTES_MAX: usize = 256 << 10;
/// Calls at a time on a connection.
const CALLS_MAX: u32 = 32;
/// TIMEOUT: the kubelet's own for a call is 45 s.
const CALL: Duration = Duration::from_secs(45);
/// The kubelet is root.
const SOCKET_MODE: u32 = 0o600;

/// Why a socket is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It cannot be made.
    #[error("Listening on {} failed; the kubelet's folders have to be mounted, and writable", path.display())]
    Listen {
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// It ended.
    #[error("Serving {} ended", path.display())]
    Ended {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: tonic::transport::Error,
    },
}

/// The services, until `end`.
#[derive(Clone, Debug)]
struct Services {
    driver: Arc<Driver>,
    end: watch::Receiver<bool>,
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl Service<Request<Body>> for Services {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Answer {
        let services = self.clone();
        Box::pin(async move { Ok(answer(services, request).await) })
    }
}

/// Without its sender `end` is true, too.
async fn ended(mut end: watch::Receiver<bool>) {
    let _ = end.wait_for(|ended| *ended).await;
}

async fn answer(services: Services, request: Request<Body>) -> Response<Body> {
    let Services { driver, end } = services;
    let path = request.uri().path().trim_start_matches('/').to_owned();
    let (service, method) = path.split_once('/').unwrap_or((&path, ""));
    let is_plugin = PLUGIN.iter().any(|(_, name)| *name == service);
    match method {
        "GetInfo" if service == REGISTRATION => {
            let info = driver.info();
            unary(request, move |_: proto::InfoRequest| {
                std::future::ready(Ok(info.clone()))
            })
            .await
        }
        "NotifyRegistrationStatus" if service == REGISTRATION => {
            let notify = move |status: proto::RegistrationStatus| {
                driver.registered(&status);
                std::future::ready(Ok(proto::RegistrationStatusResponse {}))
            };
            unary(request, notify).await
        }
        "NodePrepareResources" if is_plugin => {
            let prepare = move |request: proto::ClaimsRequest| {
                let driver = driver.clone();
                async move { driver.prepare(request.claims).await }
            };
            unary(request, prepare).await
        }
        "NodeUnprepareResources" if is_plugin => {
            let unprepare = move |request: proto::ClaimsRequest| {
                let driver = driver.clone();
                async move { driver.unprepare(request.claims).await }
            };
            unary(request, unprepare).await
        }
        "NodeWatchResources" if service == HEALTH => {
            let watch = service_fn(move |_: tonic::Request<proto::WatchRequest>| {
                // A stream that stayed would keep the socket from its end.
                let watched = driver.health().watch(ended(end.clone()));
                std::future::ready(watched.map(tonic::Response::new))
            });
            grpc::<proto::WatchResponse, _>()
                .server_streaming(watch, request)
                .await
        }
        _ => Status::unimplemented("There is no such method").into_http(),
    }
}

fn grpc<A, M>() -> Grpc<ProstCodec<A, M>>
where
    A: Message + 'static,
    M: Message + Default + 'static,
{
    Grpc::new(ProstCodec::default()).max_decoding_message_size(REQUEST_BYTES_MAX)
}

/// One request and one answer.
async fn unary<M, A, F>(request: Request<Body>, call: impl Fn(M) -> F) -> Response<Body>
where
    M: Message + Default + 'static,
    A: Message + Default + 'static,
    F: Future<Output = Result<A, Status>> + Send + 'static,
{
    let service = service_fn(|request: tonic::Request<M>| {
        let answered = call(request.into_inner());
        async move { answered.await.map(tonic::Response::new) }
    });
    grpc().unary(service, request).await
}

/// Serves both sockets of a driver and keeps its slice published, until `end` is true.
///
/// # Errors
/// If a socket cannot be served.
pub async fn run(driver: Arc<Driver>, end: watch::Receiver<bool>) -> Result<(), ServeError> {
    let (endpoint, registration) = (driver.endpoint(), driver.registration());
    tokio::select! {
        served = async {
            tokio::try_join!(
                serve(&endpoint, driver.clone(), end.clone()),
                serve(&registration, driver.clone(), end),
            )
        } => served.map(|_| ()),
        () = driver.keep_published() => Ok(()),
    }
}

/// Serves a socket until `end`. A socket that was left behind is replaced.
///
/// # Errors
/// If it cannot be made, or ends by itself.
async fn serve(
    path: &Path,
    driver: Arc<Driver>,
    end: watch::Receiver<bool>,
) -> Result<(), ServeError> {
    let listener = listen(path).map_err(|source| ServeError::Listen {
        path: path.to_owned(),
        source,
    })?;
    let served = Server::builder()
        .timeout(CALL)
        .max_concurrent_streams(CALLS_MAX)
        .serve_with_incoming_shutdown(
            Services {
                driver,
                end: end.clone(),
            },
            UnixListenerStream::new(listener),
            ended(end),
        )
        .await;
    let _ = std::fs::remove_file(path);
    served.map_err(|source| ServeError::Ended {
        path: path.to_owned(),
        source,
    })
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(SOCKET_MODE))?;
    Ok(listener)
}
