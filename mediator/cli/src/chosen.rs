//! A GPU that was chosen, for the daemon.

use std::sync::Arc;

use turnstile_daemon::Timing;
use turnstile_gpu::Gpu;

/// A GPU as the daemon takes it, and its timing.
pub(crate) struct Chosen {
    pub(crate) gpu: Arc<dyn Gpu>,
    pub(crate) timing: Timing,
}

impl Chosen {
    /// A GPU with the default timing.
    pub(crate) fn plain(gpu: Arc<dyn Gpu>) -> Self {
        let timing = Timing::default();
        Self { gpu, timing }
    }
}
