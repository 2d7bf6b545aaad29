//! What a VM's worker may do, and how long it may take.

use std::time::Duration;

use turnstile_accounting::Nanos;

/// How a VM's worker is to be.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// CUDA's number of the GPU.
    pub device: u32,
    /// A daemon that is the superuser gives each VM's worker a user of its own; the GPU's device files must be open to it.
    pub own_user: bool,
    /// Listen to what the driver hands out to the process, so that its channels can be suspended.
    pub learn: bool,
    /// What a command may run, while the VM is not held back, before the VM's work is ended. Of commands that one mark tells of (16 at most),
    /// the sum counts.
    pub kernel_limit: Nanos,
    /// Modules of a VM at most.
    pub modules_max: usize,
    /// Bytes of text of all modules of a VM at most.
    pub module_text_bytes_max: usize,
    /// Allocations of a VM at most; each keeps a descriptor open.
    pub allocations_max: usize,
    /// How long a worker may take to be ready. TIMEOUT: the vendor's library takes 0.3 s where nothing else runs (measured),
    /// pinning guest memory 0.45 s for each GiB (SOURCE: measured).
    pub start_limit: Duration,
    /// How long an order may take, not counting time in which the VM is held back. TIMEOUT: compiling a module of the
    /// longest text takes seconds.
    pub order_limit: Duration,
    /// Least time between two starts of a VM's worker after the first two.
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
