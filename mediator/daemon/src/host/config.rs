//! What a host is made with: its policy, and what tenants get that name nothing.

use turnstile_policies::{Tuning, Weight};

/// Tenants and policy of a host.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Name of the policy.
    pub policy: String,
    /// Its tuning.
    pub tuning: Tuning,
    /// Weight of a tenant that names none.
    pub weight: Weight,
    /// GPU memory of a VM that names none.
    pub gpu_memory_bytes: u64,
    /// Channels that a VM may have open.
    pub channels: u32,
    /// Tenants at a time.
    pub tenants_max: usize,
    /// Memory files of VMs have to have all of their pages.
    pub preallocated_memory: bool,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            policy: turnstile_policies::DEFAULT_POLICY.into(),
            tuning: Tuning::default(),
            weight: Weight::DEFAULT,
            gpu_memory_bytes: 64 << 20,
            channels: 64,
            tenants_max: 256,
            preallocated_memory: false,
        }
    }
}
