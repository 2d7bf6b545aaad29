//! Notifications of `serve` to the service manager: ready, alive, stopping. Without a manager there
//! are none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sd_notify::NotifyState;

/// The service, as its manager sees it; dropping it reports that it stops.
pub(crate) struct Service {
    running: Option<Sender<()>>,
    watch: Option<JoinHandle<()>>,
}

/// Notifies the manager; a failure is only logged.
fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        log::warn!("Notifying the service manager failed: {error}");
    }
}

impl Service {
    /// Reports that all sockets listen. A manager with a watchdog is notified only while the sum of
    /// `periods` rises: a daemon that answers but no longer accounts is restarted. One GPU that
    /// stands still is no reason to end the tenants of the others.
    pub(crate) fn ready(status: &str, periods: Vec<Arc<AtomicU64>>) -> std::io::Result<Self> {
        notify(&[NotifyState::Ready, NotifyState::Status(status)]);
        let Some(limit) = sd_notify::watchdog_enabled() else {
            return Ok(Self {
                running: None,
                watch: None,
            });
        };
        let (running, stop) = channel();
        // SOURCE: sd_watchdog_enabled(3): at half of the time. A third leaves room for a busy host.
        let every = (limit / 3).max(Duration::from_millis(1));
        let mut last = None;
        let watch = thread::Builder::new()
            .name("turnstile-wdog".into())
            .spawn(move || {
                while stop.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                    let now: u64 = periods.iter().map(|one| one.load(Ordering::Relaxed)).sum();
                    if last.replace(now) != Some(now) {
                        notify(&[NotifyState::Watchdog]);
                    }
                }
            })?;
        Ok(Self {
            running: Some(running),
            watch: Some(watch),
        })
    }

    /// Reports that the configuration is being read again.
    pub(crate) fn reloading(&self) {
        // SOURCE: sd_notify(3): `RELOADING=1` comes with `MONOTONIC_USEC`.
        match NotifyState::monotonic_usec_now() {
            Ok(now) => notify(&[NotifyState::Reloading, now]),
            Err(_) => notify(&[NotifyState::Reloading]),
        }
    }

    /// Reports the end of a reload, also of one that failed.
    pub(crate) fn again(&self, status: &str) {
        notify(&[NotifyState::Ready, NotifyState::Status(status)]);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        notify(&[NotifyState::Stopping]);
        drop(self.running.take());
        if self.watch.take().is_some_and(|watch| watch.join().is_err()) {
            log::error!("The watchdog's thread panicked");
        }
    }
}
