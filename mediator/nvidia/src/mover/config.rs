//! Sizes and time limits of a mover.

use std::time::Duration;

/// Configuration of a mover.
#[derive(Clone, Copy, Debug)]
pub struct MoverConfig {
    /// CUDA's number of the GPU.
    pub device: u32,
    /// Maximum size of the host's pool, which is pinned in steps.
    pub pool_bytes: u64,
    /// Size of a step.
    pub step_bytes: u64,
    /// Time until a mover has to be ready. TIMEOUT: the vendor's library takes 0.3 s on an idle
    /// host (measured).
    pub start_limit: Duration,
    /// Time limit of an order. TIMEOUT: 2 GiB take 40 ms (measured), and wait for a tenant's copies
    /// on the same engine.
    pub order_limit: Duration,
    /// Time limit of a wait for pages while the pool grows. TIMEOUT: 1 GiB is pinned in 0.45 s
    /// (measured).
    pub grow_limit: Duration,
    /// Minimum time between two starts.
    pub restart_pause: Duration,
}

impl MoverConfig {
    /// A mover for a GPU with a pool of `pool_bytes`.
    pub const fn new(device: u32, pool_bytes: u64) -> Self {
        Self {
            device,
            pool_bytes,
            step_bytes: 1 << 30,
            start_limit: Duration::from_secs(30),
            order_limit: Duration::from_secs(20),
            grow_limit: Duration::from_secs(5),
            restart_pause: Duration::from_secs(1),
        }
    }
}
