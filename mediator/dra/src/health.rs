//! Health of the node's devices, as a stream for the kubelet.
//!
//! In: the daemon's GPUs, or why they are not known, at each poll. Out: a report with the health of
//! each device, for each watcher. Invariants: a watcher keeps at most one report, the newest; there
//! are at most [`WATCHES_MAX`] watchers. Called by the driver, which polls, and by its service.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::{Stream, StreamExt, future};
use tokio::sync::{Semaphore, watch};
use tokio_stream::wrappers::WatchStream;
use tonic::Status;

use super::daemon::Gpu;
use super::proto::{DeviceHealth, DeviceIdentifier, HealthStatus, WatchResponse};
use super::slice;

/// Watchers at a time. A kubelet is one, and one that starts anew may be a second for a moment.
pub const WATCHES_MAX: usize = 4;
/// TIMEOUT: after it the kubelet takes a device's health as unknown: several polls.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(30);

/// The last report, and its watchers.
#[derive(Debug)]
pub(crate) struct Health {
    /// None before the first poll.
    report: watch::Sender<Option<WatchResponse>>,
    watches: Arc<Semaphore>,
}

impl Health {
    pub(crate) fn new() -> Self {
        Self {
            report: watch::Sender::new(None),
            watches: Arc::new(Semaphore::new(WATCHES_MAX)),
        }
    }

    /// Reports these GPUs. An unchanged one is reported too, as its health expires.
    pub(crate) fn update(&self, node: &str, gpus: &[Gpu]) {
        self.report.send_replace(Some(report(node, gpus)));
    }

    /// Reports that the health of the known devices is not known any more.
    pub(crate) fn lost(&self, why: &str) {
        self.report.send_modify(|report| {
            let known = report.iter_mut().flat_map(|report| &mut report.devices);
            for device in known {
                device.set_health(HealthStatus::Unknown);
                device.message = why.to_owned();
                device.last_updated_time = now_s();
            }
        });
    }

    /// The reports from now on, until `end`: the last one at once.
    ///
    /// # Errors
    /// If there are too many watchers.
    pub(crate) fn watch<E>(
        &self,
        end: E,
    ) -> Result<impl Stream<Item = Result<WatchResponse, Status>> + Send + use<E>, Status>
    where
        E: Future<Output = ()> + Send + 'static,
    {
        let permit = self.watches.clone().try_acquire_owned().map_err(|_| {
            let text = format!("{WATCHES_MAX} clients watch already; end one of them first");
            Status::resource_exhausted(text)
        })?;
        let reports = WatchStream::new(self.report.subscribe()).filter_map(future::ready);
        // The permit goes with the stream.
        let reports = reports.map(move |report| {
            let _ = &permit;
            Ok(report)
        });
        Ok(reports.take_until(Box::pin(end)))
    }
}

/// Unix time in seconds.
fn now_s() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    // CAST: seconds since 1970 are far below the limit.
    since.map_or(0, |since| since.as_secs() as i64)
}

fn report(node: &str, gpus: &[Gpu]) -> WatchResponse {
    let now_s = now_s();
    let device = |(name, gpu): (String, &Gpu)| {
        let (health, message) = match (&gpu.silent, gpu.cordoned) {
            (Some(reason), _) => (
                HealthStatus::Unhealthy,
                format!("It does not answer: {reason}"),
            ),
            (None, true) => {
                let text = "It is closed to further tenants, or drained; open it by turnstile gpu uncordon";
                (HealthStatus::Unhealthy, text.to_owned())
            }
            (None, false) => (HealthStatus::Healthy, String::new()),
        };
        DeviceHealth {
            device: Some(DeviceIdentifier {
                pool_name: node.to_owned(),
                device_name: name,
            }),
            health: health.into(),
            last_updated_time: now_s,
            // CAST: a constant of half a minute.
            health_check_timeout_seconds: HEALTH_TIMEOUT.as_secs() as i64,
            message,
        }
    };
    WatchResponse {
        devices: slice::named(gpus).into_iter().map(device).collect(),
    }
}
