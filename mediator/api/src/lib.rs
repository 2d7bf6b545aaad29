//! The admin API, for operators and their tools: read and set over HTTP, without delaying the
//! daemon.
//!
//! ```text
//! Unix socket: uid, gids ------+
//! read-only socket: the same --+-> role -> gate -> router -> snapshots <--- host (policy, memory)
//! TLS: client certificate -----+                      \-> write -> state file, audit -> host
//! ```
//!
//! - In: a daemon's [`Host`], its sections of the configuration, requests of callers with a role.
//! - Out: JSON as `docs/openapi.json` describes it; metrics; a stream of samples; the dashboard.
//!   [`client`] is the other end, for the command and the bench.
//! - Invariants: a setting is on disk before it is in force. The host's lock is held for one copy,
//!   shared by all callers for a few milliseconds, or for one change.
//! - Threads: `turnstile-api` serves all connections; up to four `turnstile-apib` do what may take
//!   long (a file, an export).
//! - Features: `tls` (the network), `dashboard` (the page).
#![deny(unsafe_code)]

mod access;
pub mod accounts;
pub mod attachment;
mod body;
pub mod client;
mod connections;
mod debts;
mod declare;
mod etag;
mod events;
mod exposition;
mod gate;
pub mod gpus;
mod in_force;
mod ledger;
mod limits;
pub mod live;
mod measured;
pub(crate) mod meta;
pub mod metadata;
mod metrics;
mod metrics_listener;
mod notices;
pub mod page;
#[cfg(feature = "dashboard")]
mod pages;
mod params;
pub mod problem;
mod recent;
mod registry;
mod router;
mod seen;
mod server;
mod snapshots;
mod state_file;
mod sys;
#[cfg(not(feature = "tls"))]
#[path = "no_tls.rs"]
mod tls;
#[cfg(feature = "tls")]
mod tls;
pub mod usage;
pub mod view;
pub mod vm;
mod vms;
mod write;

use std::path::PathBuf;
use std::sync::Arc;

pub use access::AccessError;
pub use debts::DebtFile;
pub use in_force::ReloadError;
pub use router::openapi;
pub use server::{Api, ApiError};
pub use state_file::{Kept, StateFile, StateFileError};
pub use tls::TlsError;

use in_force::Current;
use ledger::LedgerReader;
use measured::Measured;
use problem::Problem;
use seen::Gpus;

use turnstile_daemon::Fleet;
use turnstile_daemon::config::{ApiSection, MetricsSection};

/// What the API is started with.
#[derive(Clone, Debug)]
pub struct ApiConfig {
    /// Its sockets, and the roles of callers.
    pub section: ApiSection,
    /// Metrics outside of it, and under other names.
    pub metrics: MetricsSection,
    /// The price list, for bills and for the billed accounts of tenants.
    pub prices: Option<PathBuf>,
    /// The file of the ledger, if one is kept there.
    pub ledger: Option<PathBuf>,
    /// The version of the program, which clients and metrics show.
    pub version: String,
}

/// What all requests share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) fleet: Arc<Fleet>,
    gpus: Gpus,
    state: Option<StateFile>,
    /// Held for the length of a write.
    writes: tokio::sync::Mutex<()>,
    in_force: Current,
    measured: Option<Measured>,
    ledger: LedgerReader,
    /// The program's version.
    version: String,
}

/// What a request and an export leave, for the test of all that is exposed.
#[cfg(test)]
pub(crate) fn measured_for_tests() -> Vec<prometheus::proto::MetricFamily> {
    let measured = Measured::new().expect("names as Prometheus wants them");
    measured.request("/v1/vms", "GET", 200, 0.001);
    measured.export(None);
    measured.families()
}

/// A refusal, as the document describes it.
#[derive(Debug, utoipa::ToResponse)]
#[response(description = "Refused", content_type = "application/problem+json")]
#[expect(dead_code, reason = "a part of the document")]
pub(crate) struct Refused(Problem);
