//! Calls of the daemon's admin API: GPUs, and tenants that are claims.
//!
//! In: a claim and its tenants. Out: requests, each of which may be repeated. The client waits for
//! each answer, so these functions belong on a thread that may wait.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use turnstile_api::client::{Call, Client, ClientError, Method};
use uuid::Uuid;

use super::cdi::Reach;
use super::claim::{Allocated, ClaimId, DEVICES_MAX, Tenant};
use super::config::Attachment;
use super::names;

/// TIMEOUT: for the daemon to end a tenant by force, for which its VMM is waited for.
const END: Duration = Duration::from_secs(5);
/// Interval at which that is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Socket of VMMs and launchers, beside the API's.
const VMM_SOCKET: &str = "vmm.sock";

/// Why a tenant is not there, or not gone.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The daemon refused or is not there.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// There is no such GPU any more.
    #[error("The daemon has no GPU {0} any more; delete the claim, so that it is allocated anew")]
    NoGpu(String),
    /// There is no room on its GPU.
    #[error(
        "{name} has no place on {gpu} yet: its state is {state}; it is placed when another tenant leaves, or the GPU is opened (turnstile gpu uncordon)"
    )]
    NoPlace {
        /// The tenant.
        name: String,
        /// The GPU.
        gpu: String,
        /// State of its VM.
        state: String,
    },
    /// It is still there.
    #[error("{0} has not ended yet; its VMM is still connected")]
    Stays(String),
}

/// A GPU, as far as it is read here.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Gpu {
    /// Its identity.
    pub id: String,
    /// Its model.
    pub model: String,
    /// Whether it executes in software.
    pub software: bool,
    /// Its memory.
    pub memory_bytes: u64,
    /// Whether it is closed to further tenants.
    #[serde(default)]
    pub cordoned: bool,
    /// Why nothing is known of it now.
    #[serde(default)]
    pub silent: Option<String>,
}

#[derive(Deserialize)]
struct Vm {
    name: String,
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    attachment: Option<Socket>,
}

#[derive(Default, Deserialize)]
struct Metadata {
    instance_id: Option<Uuid>,
}

#[derive(Deserialize)]
struct Socket {
    state: String,
    socket: PathBuf,
}

/// The daemon of this node.
#[derive(Clone, Debug)]
pub struct Daemon {
    client: Client,
    vmm_socket: PathBuf,
    account: String,
}

impl Daemon {
    /// The daemon with its API on this socket. Tenants belong to `account`.
    pub fn new(api: &Path, account: &str) -> Self {
        Self {
            client: Client::new(api),
            vmm_socket: api.with_file_name(VMM_SOCKET),
            account: account.to_owned(),
        }
    }

    /// Its GPUs.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn gpus(&self) -> Result<Vec<Gpu>, DaemonError> {
        Ok(self.client.list("/v1/gpus")?)
    }

    /// Declares the tenants of a claim, and returns how each is reached.
    ///
    /// # Errors
    /// If one is refused, or has no place yet. Those before it stay declared.
    pub(crate) fn declare(
        &self,
        claim: &ClaimId,
        allocated: Allocated,
    ) -> Result<Vec<(Tenant, Reach)>, DaemonError> {
        let gpus = self.gpus()?;
        let mut reached = Vec::new();
        for tenant in allocated.tenants {
            let mut found = gpus.iter();
            let gpu = found.find(|gpu| names::device_name(&gpu.id) == tenant.device);
            let gpu = gpu.ok_or_else(|| DaemonError::NoGpu(tenant.device.clone()))?;
            let reach = self.declare_one(claim, &tenant, gpu)?;
            self.label(&tenant.name, &allocated.pods)?;
            reached.push((tenant, reach));
        }
        Ok(reached)
    }

    fn declare_one(
        &self,
        claim: &ClaimId,
        tenant: &Tenant,
        gpu: &Gpu,
    ) -> Result<Reach, DaemonError> {
        let body = self.body(claim, tenant, gpu).to_string().into_bytes();
        let answer = self.client.call(&Call {
            method: Method::POST,
            path: "/v1/vms",
            body: Some(("application/json", body)),
            if_match: None,
        });
        let vm: Vm = match answer {
            // A program has been labelled since, which makes its body another one.
            Err(ClientError::Refused(problem)) if problem.status == 409 => {
                let vm = self.client.get::<Vm>(&format!("/v1/vms/{}", tenant.name));
                let is_it = |vm: &Vm| {
                    vm.attachment.is_none() && vm.metadata.instance_id == Some(tenant.instance)
                };
                vm.ok().filter(is_it).ok_or(ClientError::Refused(problem))?
            }
            answer => self.client.read(&answer?)?,
        };
        match vm.attachment {
            None => Ok(Reach::Program {
                daemon: self.vmm_socket.clone(),
                vendor: (!gpu.software).then(|| gpu.id.clone()),
            }),
            Some(Socket { state, .. })
                if ["waiting", "draining", "ending"].contains(&state.as_str()) =>
            {
                Err(DaemonError::NoPlace {
                    name: vm.name,
                    gpu: gpu.id.clone(),
                    state,
                })
            }
            Some(Socket { socket, .. }) => Ok(Reach::Socket(socket)),
        }
    }

    /// What is declared of a tenant: the same each time, or the daemon refuses it.
    fn body(&self, claim: &ClaimId, tenant: &Tenant, gpu: &Gpu) -> Value {
        let config = &tenant.config;
        let mut body = json!({
            "name": tenant.name,
            "scheduling": {
                "weight": tenant.share,
                "quota_us": config.quota_microseconds,
                "period_us": config.period_microseconds,
                "latency_target": config.latency_target.unwrap_or(false),
                "gang": config.gang.unwrap_or(false),
            },
            "metadata": {
                "instance_id": tenant.instance,
                "project": claim.namespace,
                "labels": {
                    "namespace": claim.namespace,
                    "claim": claim.name,
                    "claim_uid": claim.uid,
                },
            },
        });
        let kind = match config.attachment.unwrap_or_default() {
            Attachment::Program => return body,
            Attachment::VfioUser => "vfio-user",
            Attachment::Vmm => "vmm",
        };
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        body["account"] = self.account.as_str().into();
        body["gpu"] = gpu.id.as_str().into();
        body["gpu_memory_bytes"] = tenant.memory_bytes.into();
        body["attachment"] = json!({
            "kind": kind,
            "owner": number(config.owner),
            "group": number(config.group),
            "mode": config.mode,
        });
        body
    }

    /// Labels a tenant with its pod, and their number. These change while it is declared.
    fn label(&self, name: &str, pods: &[String]) -> Result<(), DaemonError> {
        let pod = match pods {
            [pod] => Value::from(pod.as_str()),
            _ => Value::Null,
        };
        let mut changes = Map::new();
        let labels = json!({ "pod": pod, "pods": pods.len().to_string() });
        changes.insert("labels".into(), labels);
        let path = format!("/v1/vms/{}/metadata", name);
        Ok(self.client.patch(&path, changes, None)?)
    }

    /// Ends the tenants of a claim, which may be none.
    ///
    /// # Errors
    /// If one stays.
    pub(crate) fn end(&self, claim: &ClaimId) -> Result<(), DaemonError> {
        for name in self.tenants_of(claim)? {
            // Its pod has ended: what is left of its work has no reader.
            let path = format!("/v1/vms/{name}?timeout_s=0&force=true");
            match self.client.delete(&path) {
                Err(ClientError::Refused(problem)) if problem.status == 404 => {}
                ended => ended?,
            }
        }
        let until = Instant::now() + END;
        while let Some(first) = self.tenants_of(claim)?.first() {
            if Instant::now() >= until {
                return Err(DaemonError::Stays(first.clone()));
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Names of a claim's tenants that the daemon has.
    fn tenants_of(&self, claim: &ClaimId) -> Result<Vec<String>, DaemonError> {
        let names: Vec<(String, Uuid)> = (0..DEVICES_MAX)
            .map(|number| claim.tenant(number))
            .collect();
        let vms: Vec<Vm> = self.client.list("/v1/vms")?;
        let is_its = |vm: &Vm| {
            let mut names = names.iter();
            names.any(|(name, instance)| {
                vm.name == *name && vm.metadata.instance_id == Some(*instance)
            })
        };
        let names = vms.into_iter().filter(is_its).map(|vm| vm.name);
        Ok(names.collect())
    }
}
