//! Names that claims, manifests and the kubelet share with the driver.

/// Name of the driver, of its device class, and of its extended resource's domain.
pub const DRIVER: &str = "turnstile.dev";

/// Kind of the CDI devices.
pub const CDI_KIND: &str = "turnstile.dev/gpu";

/// Begin of a container's variables about its claims.
pub const VARIABLE: &str = "TURNSTILE_CLAIM";
/// Begin of those of them that have a VM's socket.
pub const SOCKET_VARIABLE: &str = "TURNSTILE_CLAIM_SOCKET_";
/// Annotation of KubeVirt's VMs with their sockets, separated by commas.
pub const SOCKETS_ANNOTATION: &str = "turnstile.dev/sockets";

/// Version and kind of a claim's opaque configuration.
pub const CONFIG_VERSION: &str = "turnstile.dev/v1";
/// Its kind.
pub const CONFIG_KIND: &str = "GpuConfig";

/// Capacity that is a tenant's weight on the GPU.
pub const SHARE: &str = "share";
/// Capacity that is its GPU memory, in bytes.
pub const MEMORY: &str = "memory";

/// Share of a whole GPU.
pub const SHARE_WHOLE: u64 = 100;
/// Smallest share: below it a tenant would have no weight.
pub const SHARE_MIN: u64 = 1;
/// Share of a claim that requests none.
pub const SHARE_DEFAULT: u64 = 10;

/// Unit of GPU memory: the daemon's chunk.
pub const MEMORY_STEP_BYTES: u64 = 2 << 20;

/// Folder of the kubelet for sockets of plugins.
pub const PLUGINS: &str = "/var/lib/kubelet/plugins";
/// Folder in which the kubelet looks for sockets that register plugins.
pub const REGISTRY: &str = "/var/lib/kubelet/plugins_registry";
/// Folder of CDI documents that do not outlive a boot.
pub const CDI_FOLDER: &str = "/var/run/cdi";

/// Account of all tenants that are claims: shares are weights within it.
pub const ACCOUNT: &str = "kubernetes";

/// Longest name of a device: a label of DNS.
const DEVICE_BYTES_MAX: usize = 63;

/// Name of a GPU as a device: a label of DNS.
pub fn device_name(gpu: &str) -> String {
    let letter = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    let name: String = gpu.chars().map(letter).take(DEVICE_BYTES_MAX).collect();
    name.trim_matches('-').to_owned()
}
