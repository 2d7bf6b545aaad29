//! Connections: limits on their number, on the time for a request's head, and on stalled writes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt as _;

use super::access::{Caller, Role};

/// Connections of operators and of viewers. Viewers cannot take the operators' places.
const OPERATORS_MAX: usize = 32;
const VIEWERS_MAX: usize = 96;

/// Connections of one user or certificate that is no operator.
const OF_ONE_MAX: usize = 32;

/// TIMEOUT: pause after a failed accept (no descriptors left, for example). Connecting clients wait
/// no longer than this.
pub(super) const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// TIMEOUT: for a request's head, also of the next request on a kept connection. Tools that poll
/// every ten seconds keep theirs.
const HEAD: Duration = Duration::from_secs(15);

/// TIMEOUT: a client that takes nothing for this time is gone or hostile.
const TAKES_NOTHING: Duration = Duration::from_secs(15);

/// Buffer of a connection, and the largest head.
const BUFFER_BYTES: usize = 16 << 10;

const HEADERS_MAX: usize = 64;

#[derive(Debug, Default)]
struct Count {
    operators: usize,
    viewers: BTreeMap<String, usize>,
}

/// Counts connections.
#[derive(Clone, Debug, Default)]
pub(super) struct Connections(Arc<Mutex<Count>>);

/// A connection's place; free again when dropped.
#[derive(Debug)]
pub(super) struct Place {
    of: Connections,
    /// None for an operator.
    viewer: Option<String>,
}

impl Connections {
    #[cfg(feature = "tls")]
    /// A place for a caller that has shown no certificate yet: one of the viewers'.
    pub(super) fn stranger(&self, from: String) -> Option<Place> {
        self.place(Role::Viewer, from)
    }

    /// A place, if one is free. Otherwise the connection is closed, and an HTTP client tries again.
    pub(super) fn place(&self, role: Role, caller: String) -> Option<Place> {
        let mut count = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let viewer = if role == Role::Operator {
            if count.operators >= OPERATORS_MAX {
                return None;
            }
            count.operators += 1;
            None
        } else {
            let own = count.viewers.get(&caller).copied().unwrap_or(0);
            if own >= OF_ONE_MAX || count.viewers.values().sum::<usize>() >= VIEWERS_MAX {
                return None;
            }
            count.viewers.insert(caller.clone(), own + 1);
            Some(caller)
        };
        let of = self.clone();
        Some(Place { of, viewer })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut count = self.of.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(viewer) = &self.viewer else {
            count.operators -= 1;
            return;
        };
        if let Some(own) = count.viewers.get_mut(viewer) {
            *own -= 1;
            if *own == 0 {
                count.viewers.remove(viewer);
            }
        }
    }
}

/// Serves one connection until it ends.
pub(super) async fn serve<S>(stream: S, router: Router, caller: Caller, place: Place)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(TAKES_NOTHING));
    let service = tower::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(caller.clone());
        router.clone().oneshot(request)
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(BUFFER_BYTES)
        .max_headers(HEADERS_MAX)
        .serve_connection(
            TokioIo::new(Box::pin(stream)),
            TowerToHyperService::new(service),
        );
    // Errors that a client causes on its connection are not logged.
    let _ = connection.await;
    drop(place);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn viewers_do_not_take_operators_places_nor_one_all_of_them() {
        let connections = Connections::default();
        let viewer = |caller: &str| connections.place(Role::Viewer, caller.into());
        let own: Vec<_> = (0..OF_ONE_MAX).map(|_| viewer("1").unwrap()).collect();
        assert!(viewer("1").is_none());
        let others: Vec<_> = (OF_ONE_MAX..VIEWERS_MAX)
            .map(|n| viewer(&format!("{}", 2 + n % 8)).unwrap())
            .collect();
        assert!(viewer("99").is_none());
        let operator = || connections.place(Role::Operator, "0".into());
        let operators: Vec<_> = (0..OPERATORS_MAX).map(|_| operator().unwrap()).collect();
        assert!(operator().is_none());
        drop((own, others, operators));
        assert!(viewer("1").is_some() && operator().is_some());
        assert!(connections.0.lock().unwrap().viewers.is_empty());
    }
}
