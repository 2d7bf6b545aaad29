//! Messages of the kubelet's services, as protocol buffers.
//!
//! SOURCE: kubernetes/kubernetes, staging/src/k8s.io/kubelet/pkg/apis: pluginregistration/v1,
//! dra/v1 and dra-health/v1alpha1, api.proto. The messages of dra/v1beta1 are those of v1. Fields
//! that a kubelet does not know are skipped.

use std::collections::HashMap;

use prost::Message;

/// The service of registration, of version 1 in spite of its name.
pub const REGISTRATION: &str = "pluginregistration.Registration";
/// The services of a driver, with the versions by which the kubelet knows them.
pub const PLUGIN: [(&str, &str); 2] = [
    ("v1.DRAPlugin", "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"),
    (
        "v1beta1.DRAPlugin",
        "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
    ),
];
/// The service of health; its version and its path have one name.
pub const HEALTH: &str = "v1alpha1.DRAResourceHealth";
/// Type of plugin that a DRA driver is.
pub const PLUGIN_TYPE: &str = "DRAPlugin";

/// `GetInfo`.
#[derive(Clone, PartialEq, Message)]
pub struct InfoRequest {}

/// What a plugin is.
#[derive(Clone, PartialEq, Message)]
pub struct PluginInfo {
    /// `DRAPlugin`.
    #[prost(string, tag = "1")]
    pub r#type: String,
    /// Name of the driver.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Socket of its services.
    #[prost(string, tag = "3")]
    pub endpoint: String,
    /// Versions of its services.
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

/// `NotifyRegistrationStatus`.
#[derive(Clone, PartialEq, Message)]
pub struct RegistrationStatus {
    /// Whether the kubelet took the plugin.
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    /// Why not.
    #[prost(string, tag = "2")]
    pub error: String,
}

/// Its answer.
#[derive(Clone, PartialEq, Message)]
pub struct RegistrationStatusResponse {}

/// A claim, by its three names.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Claim {
    /// Its namespace.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// Its uid.
    #[prost(string, tag = "2")]
    pub uid: String,
    /// Its name.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// `NodePrepareResources` and `NodeUnprepareResources`, which have equal requests.
#[derive(Clone, PartialEq, Message)]
pub struct ClaimsRequest {
    /// The claims.
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<Claim>,
}

/// Answer of `NodePrepareResources`.
#[derive(Clone, PartialEq, Message)]
pub struct PrepareResponse {
    /// By uid of the claim.
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, PreparedClaim>,
}

/// A claim that was prepared, or why it was not.
#[derive(Clone, PartialEq, Message)]
pub struct PreparedClaim {
    /// Its devices.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
    /// Empty if it was prepared.
    #[prost(string, tag = "2")]
    pub error: String,
}

/// A device of a claim.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Device {
    /// Requests of the claim that it is for.
    #[prost(string, repeated, tag = "1")]
    pub request_names: Vec<String>,
    /// Its pool.
    #[prost(string, tag = "2")]
    pub pool_name: String,
    /// Its name in the pool.
    #[prost(string, tag = "3")]
    pub device_name: String,
    /// Names of CDI devices that a container gets.
    #[prost(string, repeated, tag = "4")]
    pub cdi_device_ids: Vec<String>,
    /// Which share of it, where several claims have one.
    #[prost(string, optional, tag = "5")]
    pub share_id: Option<String>,
}

/// Answer of `NodeUnprepareResources`.
#[derive(Clone, PartialEq, Message)]
pub struct UnprepareResponse {
    /// By uid of the claim.
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, UnpreparedClaim>,
}

/// A claim that was unprepared, or why it was not.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct UnpreparedClaim {
    /// Empty if it was unprepared.
    #[prost(string, tag = "1")]
    pub error: String,
}

/// `NodeWatchResources`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WatchRequest {}

/// One of its answers: the devices as they are now.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WatchResponse {
    /// The devices of the node.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<DeviceHealth>,
}

/// Health of a device.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DeviceHealth {
    /// The device.
    #[prost(message, optional, tag = "1")]
    pub device: Option<DeviceIdentifier>,
    /// Whether it works.
    #[prost(enumeration = "HealthStatus", tag = "2")]
    pub health: i32,
    /// Unix time in seconds.
    #[prost(int64, tag = "3")]
    pub last_updated_time: i64,
    /// Seconds after which the kubelet takes the device's health as unknown; of newer kubelets.
    #[prost(int64, tag = "4")]
    pub health_check_timeout_seconds: i64,
    /// Why it has this health; of newer kubelets.
    #[prost(string, tag = "5")]
    pub message: String,
}

/// A device by its names.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DeviceIdentifier {
    /// Its pool.
    #[prost(string, tag = "1")]
    pub pool_name: String,
    /// Its name in the pool.
    #[prost(string, tag = "2")]
    pub device_name: String,
}

/// Whether a device works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum HealthStatus {
    /// It is not known.
    Unknown = 0,
    /// It works.
    Healthy = 1,
    /// It does not, or is not to be used.
    Unhealthy = 2,
}
