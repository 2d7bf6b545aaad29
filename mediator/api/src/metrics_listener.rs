//! `metrics.listen`: `/metrics` and nothing else, on a loopback address, for all users of this
//! host.

use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};

use axum::Router;
use tokio::net::TcpListener;

use super::access::{Caller, Role};
use super::connections::{ACCEPT_AGAIN, Connections, serve};

/// The address, listened on.
#[derive(Debug)]
pub(super) struct MetricsListener {
    listener: StdTcpListener,
}

impl MetricsListener {
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = StdTcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener })
    }

    /// Accepts for ever; `router` has what all users may see.
    pub(super) async fn accept(self, router: Router, connections: Connections) {
        let listener = match TcpListener::from_std(self.listener) {
            Ok(listener) => listener,
            Err(error) => {
                log::error!("API: metrics are not served: {error}");
                return;
            }
        };
        loop {
            let Ok((stream, from)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            };
            let name = format!("metrics {}", from.ip());
            let Some(place) = connections.place(Role::Viewer, &name) else {
                continue;
            };
            let _ = stream.set_nodelay(true);
            let role = Role::Viewer;
            tokio::spawn(serve(stream, router.clone(), Caller { role, name }, place));
        }
    }
}
