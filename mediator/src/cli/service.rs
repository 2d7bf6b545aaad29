//! What `serve` tells the service manager: that it is ready, that it lives, that it ends. Without one, nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sd_notify::NotifyState;

/// The service, as its manager sees it; dropped, it ends.
pub(crate) struct Service {
    running: Option<Sender<()>>,
    watch: Option<JoinHandle<()>>,
}

/// Tells the manager; that it cannot be reached is no reason to stop.
fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        log::warn!("The service manager was not told: {error}");
    }
}

impl Service {
    /// Everything listens. If the manager wants signs of life, `periods` has to rise for it to get them: a daemon that
    /// answers and does not account is to be started again.
    pub(crate) fn ready(status: &str, periods: Arc<AtomicU64>) -> std::io::Result<Self> {
        tell(&[NotifyState::Ready, NotifyState::Status(status)]);
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
                    let now = periods.load(Ordering::Relaxed);
                    if last.replace(now) != Some(now) {
                        tell(&[NotifyState::Watchdog]);
                    }
                }
            })?;
        Ok(Self {
            running: Some(running),
            watch: Some(watch),
        })
    }

    /// The configuration is being read anew.
    pub(crate) fn reloading(&self) {
        // SOURCE: sd_notify(3): the moment belongs to the word.
        match NotifyState::monotonic_usec_now() {
            Ok(now) => tell(&[NotifyState::Reloading, now]),
            Err(_) => tell(&[NotifyState::Reloading]),
        }
    }

    /// It was, or could not be.
    pub(crate) fn again(&self, status: &str) {
        tell(&[NotifyState::Ready, NotifyState::Status(status)]);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        tell(&[NotifyState::Stopping]);
        drop(self.running.take());
        if self.watch.take().is_some_and(|watch| watch.join().is_err()) {
            log::error!("The watchdog's thread panicked");
        }
    }
}
