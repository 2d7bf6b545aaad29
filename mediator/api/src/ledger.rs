//! Reads of the durable ledger, beside the API's thread.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::StatusCode;
use turnstile_accounting::export::ExportError;
use turnstile_accounting::store::{SqliteStore, StoreError};

use super::problem::Problem;

/// Whether the caller still waits for the answer.
pub(super) type GoOn<'a> = dyn Fn() -> bool + Sync + 'a;

/// Reads of the ledger at a time; further ones get an error and may be tried again.
const READS: usize = 2;

/// The ledger, which requests read beside the API's thread.
#[derive(Debug)]
pub(crate) struct LedgerReader {
    /// Its file, if one is kept.
    path: Option<PathBuf>,
    /// Reads at a time.
    reading: Arc<tokio::sync::Semaphore>,
}

impl LedgerReader {
    pub(super) fn new(path: Option<PathBuf>) -> Self {
        Self {
            path,
            reading: Arc::new(tokio::sync::Semaphore::new(READS)),
        }
    }

    /// Reads the ledger, if not too many do.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut SqliteStore, &GoOn<'_>) -> Result<T, ExportError> + Send + 'static,
    ) -> Result<T, Problem> {
        let Some(path): Option<PathBuf> = self.path.clone() else {
            return Err(Problem::new(
                StatusCode::NOT_FOUND,
                "No ledger is kept: ledger.path in the daemon's configuration names one",
            ));
        };
        let Ok(turn) = self.reading.clone().try_acquire_owned() else {
            return Err(Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                "The ledger is being read for others; try again in a moment",
            ));
        };
        let given_up = Arc::new(AtomicBool::new(false));
        let _guard = GivenUp(given_up.clone());
        let reading = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let mut store = SqliteStore::read(&path)?;
            read(&mut store, &|| !given_up.load(Ordering::Acquire))
        });
        match reading.await {
            Ok(done) => done.map_err(|error| problem(&error)),
            Err(error) => {
                log::error!("API: reading the ledger failed: {error}");
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                Err(Problem::new(status, "Reading failed; the log says why"))
            }
        }
    }
}

/// Set when the caller no longer waits for the answer.
struct GivenUp(Arc<AtomicBool>);

impl Drop for GivenUp {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn problem(error: &ExportError) -> Problem {
    let status = match error {
        ExportError::Empty | ExportError::NotAnHour { .. } | ExportError::TooMany { .. } => {
            StatusCode::BAD_REQUEST
        }
        ExportError::NoGpu
        | ExportError::NoTenant { .. }
        | ExportError::Store(StoreError::NotFound { .. }) => StatusCode::NOT_FOUND,
        ExportError::NotClosed { .. }
        | ExportError::NotStarted { .. }
        | ExportError::Discarded { .. }
        | ExportError::NoSku { .. }
        | ExportError::Inexact { .. } => StatusCode::CONFLICT,
        ExportError::Output(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            let detail =
                "The export is too large; ask for less time, or use turnstile usage export";
            return Problem::new(StatusCode::BAD_REQUEST, detail);
        }
        _ => {
            log::error!("API: {}", turnstile_daemon::chain(error));
            let detail = "The ledger cannot be read; the log says why";
            return Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail);
        }
    };
    // The parameter has the option's name, without its dashes.
    Problem::new(
        status,
        error.to_string().replace("--allow-gaps", "allow_gaps"),
    )
}
