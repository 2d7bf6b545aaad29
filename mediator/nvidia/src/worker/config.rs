//! Limits and time limits of a VM's worker.

use std::time::Duration;

use turnstile_accounting::Nanos;

/// Configuration of a VM's worker.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// CUDA's number of the GPU.
    pub device: u32,
    /// A daemon that runs as root gives each VM's worker a user of its own, which needs access to
    /// the GPU's device files.
    pub own_user: bool,
    /// Track the objects that the driver gives to the process, so that its channels can be
    /// suspended.
    pub learn: bool,
    /// Run time of a command, without time in which the VM is suspended, after which the VM's work
    /// is ended. For commands that share a mark (16 at most) the sum of their limits applies.
    pub kernel_limit: Nanos,
    /// Maximum number of modules of a VM.
    pub modules_max: usize,
    /// Maximum bytes of text of all modules of a VM.
    pub module_text_bytes_max: usize,
    /// Maximum number of allocations of a VM; each keeps a descriptor open.
    pub allocations_max: usize,
    /// Time until a worker has to be ready. TIMEOUT: the vendor's library takes 0.3 s on an idle
    /// host, pinning guest memory 0.45 s for each GiB (SOURCE: measured).
    pub start_limit: Duration,
    /// Time limit of an order, without time in which the VM is suspended. TIMEOUT: compiling a
    /// module of the longest text takes seconds.
    pub order_limit: Duration,
    /// Minimum time between two starts of a VM's worker, after the first two.
    pub restart_pause: Duration,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            device: 0,
            own_user: true,
            learn: true,
            kernel_limit: Nanos::from_ms(10_000),
            modules_max: 64,
            module_text_bytes_max: 16 << 20,
            allocations_max: 256,
            start_limit: Duration::from_secs(30),
            order_limit: Duration::from_secs(20),
            restart_pause: Duration::from_secs(1),
        }
    }
}
