//! Connections: bounds on their number, on the time for a request's head, and on stalled writes.
//!
//! A client at its bound does not shut itself out: the connection without a request for the longest
//! time gives its place to the new one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt as _;

use super::access::{Caller, Role};
use turnstile_daemon::limits::{Held, Holder, Limits, Resource};

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

/// One connection.
#[derive(Debug)]
struct Open {
    client: Arc<str>,
    /// When it was accepted, or its last request had arrived in full.
    since: Instant,
    end: Arc<Notify>,
    _held: Held,
}

#[derive(Debug, Default)]
struct All {
    next: u64,
    open: BTreeMap<u64, Open>,
}

/// Counts connections.
#[derive(Clone, Debug)]
pub(super) struct Connections {
    limits: Arc<Limits>,
    all: Arc<Mutex<All>>,
}

/// A connection's place; free again when dropped.
#[derive(Debug)]
pub(super) struct Place {
    of: Connections,
    number: u64,
    end: Arc<Notify>,
}

impl Connections {
    pub(super) fn new(limits: Arc<Limits>) -> Self {
        let all = Arc::default();
        Self { limits, all }
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(feature = "tls")]
    /// A place for a caller that has shown no certificate yet: one of the viewers'.
    pub(super) fn stranger(&self, from: &str) -> Option<Place> {
        self.place(Role::Viewer, from)
    }

    /// A place, if one is free or one of the client's own can be had. Otherwise the connection is
    /// closed, and an HTTP client tries again.
    pub(super) fn place(&self, role: Role, client: &str) -> Option<Place> {
        // A program that only reads, and does not read its answers, ends none of an operator's
        // connections of the same user.
        let to = match role {
            Role::Viewer => "read",
            Role::Operator | Role::Administrator => "set",
        };
        let holder = Holder {
            account: format!("api {to} {client}").into(),
            tenant: None,
            trusted: role >= Role::Operator,
        };
        let take = || self.limits.take(Resource::ApiConnections, &holder, 1).ok();
        let held = take().or_else(|| {
            self.end_slowest(&holder.account);
            take()
        })?;
        let (end, mut all) = (Arc::new(Notify::new()), self.all());
        let number = all.next;
        all.next += 1;
        let open = Open {
            client: holder.account,
            since: Instant::now(),
            end: end.clone(),
            _held: held,
        };
        all.open.insert(number, open);
        let of = self.clone();
        Some(Place { of, number, end })
    }

    /// Ends the client's connection without a request for the longest time.
    fn end_slowest(&self, client: &Arc<str>) {
        let mut all = self.all();
        let own = all.open.iter().filter(|(_, one)| one.client == *client);
        let slowest = own.min_by_key(|(_, one)| one.since).map(|(at, _)| *at);
        if let Some(ended) = slowest.and_then(|number| all.open.remove(&number)) {
            ended.end.notify_one();
        }
    }

    /// A request of a connection has arrived.
    fn requested(&self, number: u64) {
        if let Some(open) = self.all().open.get_mut(&number) {
            open.since = Instant::now();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.of.all().open.remove(&self.number);
    }
}

/// Serves one connection until it ends.
pub(super) async fn serve<S>(stream: S, router: Router, caller: Caller, place: Place)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(TAKES_NOTHING));
    let (connections, number) = (place.of.clone(), place.number);
    let service = tower::service_fn(move |mut request: Request<Incoming>| {
        connections.requested(number);
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
    tokio::select! {
        _ = connection => {}
        () = place.end.notified() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnstile_daemon::limits::rows;

    fn connections() -> (Connections, usize, usize) {
        let rows = rows(256);
        let row = rows[Resource::ApiConnections as usize];
        let connections = Connections::new(Limits::new(rows));
        // CAST: both are small.
        (connections, row.account as usize, row.all as usize)
    }

    #[test]
    fn client_at_its_bound_takes_the_place_of_its_slowest_connection() {
        let (connections, of_one, _) = connections();
        let operator = || connections.place(Role::Operator, "0").unwrap();
        let mut own: Vec<Place> = (0..of_one).map(|_| operator()).collect();
        connections.requested(own[0].number);
        own.push(operator());
        let ended = |place: &Place| !connections.all().open.contains_key(&place.number);
        let all: Vec<bool> = own.iter().map(ended).collect();
        assert!(all[1] && all.iter().filter(|ended| **ended).count() == 1);
        // The same user's connections for reading end none of these.
        let read: Vec<_> = (0..3 * of_one)
            .map(|_| connections.place(Role::Viewer, "0"))
            .collect();
        assert!(own[2..].iter().all(|place| !ended(place)));
        drop((own, read));
        assert!(connections.all().open.is_empty());
    }

    #[test]
    fn viewers_do_not_take_operators_places_nor_one_all_of_them() {
        let (connections, of_one, all) = connections();
        let viewer = |client: usize| connections.place(Role::Viewer, &client.to_string());
        let viewers = all / 4 * 3;
        let places: Vec<_> = (0..viewers).map(|n| viewer(n / of_one).unwrap()).collect();
        assert!(viewer(99).is_none());
        assert!(connections.place(Role::Operator, "0").is_some());
        drop(places);
        assert!(viewer(99).is_some());
    }
}
