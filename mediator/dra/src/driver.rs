//! The driver: claims prepared and unprepared, and the slice kept published.
//!
//! In: calls of the kubelet. Out: tenants of the daemon, CDI documents, a ResourceSlice. It keeps
//! nothing: what is prepared is what the daemon and the CDI folder have.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tonic::Status;

use super::cdi::{self, CdiError, Reach};
use super::claim::{ClaimError, ClaimId, Tenant};
use super::cluster::{Cluster, ClusterError};
use super::daemon::{Daemon, DaemonError};
use super::health::Health;
use super::names::DRIVER;
use super::proto::{
    Claim, Device, HEALTH, PLUGIN, PLUGIN_TYPE, PluginInfo, PrepareResponse, PreparedClaim,
    RegistrationStatus, UnprepareResponse, UnpreparedClaim,
};
use super::slice;

/// Most claims of a request: a pod may have 32 (SOURCE: core/v1, PodSpec.resourceClaims).
const CLAIMS_MAX: usize = 64;
/// Interval at which the daemon's GPUs are read.
const GPUS_INTERVAL: Duration = Duration::from_secs(5);
/// Interval at which a slice with unchanged devices is read: it may have been deleted.
const SLICE_INTERVAL: Duration = Duration::from_secs(60);

/// Folders that the kubelet and the container runtime know.
#[derive(Clone, Debug)]
pub struct Folders {
    /// Of plugins' sockets.
    pub plugins: PathBuf,
    /// Of sockets that register plugins.
    pub registry: PathBuf,
    /// Of CDI documents.
    pub cdi: PathBuf,
}

/// Why a claim was not prepared or unprepared.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The claim itself.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// The API server.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The daemon.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// The CDI document.
    #[error(transparent)]
    Cdi(#[from] CdiError),
    /// The driver's own fault.
    #[error("The driver failed; its log has more")]
    Lost(#[from] tokio::task::JoinError),
}

/// The driver of a node.
#[derive(Debug)]
pub struct Driver {
    daemon: Daemon,
    cluster: Cluster,
    folders: Folders,
    /// The kubelet took the driver, and may have removed its slice before.
    registered: Notify,
    health: Health,
}

/// An error with its causes, for the kubelet's events.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}

/// Logs a claim's failure, which it returns as a text; empty without one.
fn text<T>(what: &str, claim: &Claim, done: &Result<T, PrepareError>) -> String {
    let Err(error) = done else {
        return String::new();
    };
    let text = with_causes(error);
    log::warn!(
        "Claim {}/{} is not {what}: {text}",
        claim.namespace,
        claim.name
    );
    text
}

fn bounded(claims: &[Claim]) -> Result<(), Status> {
    let text = || {
        format!(
            "{} claims; at most {CLAIMS_MAX} are taken at a time",
            claims.len()
        )
    };
    (claims.len() <= CLAIMS_MAX)
        .then_some(())
        .ok_or_else(|| Status::invalid_argument(text()))
}

impl Driver {
    /// The driver over these.
    pub fn new(daemon: Daemon, cluster: Cluster, folders: Folders) -> Arc<Self> {
        Arc::new(Self {
            daemon,
            cluster,
            folders,
            registered: Notify::new(),
            health: Health::new(),
        })
    }

    /// Socket of the driver's services.
    pub fn endpoint(&self) -> PathBuf {
        self.folders.plugins.join(DRIVER).join("dra.sock")
    }

    /// Socket by which the kubelet finds it.
    pub fn registration(&self) -> PathBuf {
        self.folders.registry.join(format!("{DRIVER}-reg.sock"))
    }

    pub(crate) fn info(&self) -> PluginInfo {
        PluginInfo {
            r#type: PLUGIN_TYPE.into(),
            name: DRIVER.into(),
            endpoint: self.endpoint().display().to_string(),
            supported_versions: PLUGIN
                .iter()
                .map(|(version, _)| *version)
                .chain([HEALTH])
                .map(str::to_owned)
                .collect(),
        }
    }

    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    pub(crate) fn registered(&self, status: &RegistrationStatus) {
        if status.plugin_registered {
            log::info!("The kubelet took {DRIVER}");
            self.registered.notify_one();
        } else {
            log::error!("The kubelet refused {DRIVER}: {}", status.error);
        }
    }

    pub(crate) async fn prepare(&self, claims: Vec<Claim>) -> Result<PrepareResponse, Status> {
        bounded(&claims)?;
        let mut answers = HashMap::new();
        for claim in claims {
            let prepared = self.prepare_one(&claim).await;
            let error = text("prepared", &claim, &prepared);
            let devices = prepared.unwrap_or_default();
            answers.insert(claim.uid, PreparedClaim { devices, error });
        }
        Ok(PrepareResponse { claims: answers })
    }

    async fn prepare_one(&self, claim: &Claim) -> Result<Vec<Device>, PrepareError> {
        let id = ClaimId::new(claim)?;
        let object = self.cluster.claim(&id).await?;
        let node = self.cluster.node();
        let allocated = id.allocated(object.metadata.uid.as_deref(), &object.data, node)?;
        let (daemon, folder, uid) = (self.daemon.clone(), self.folders.cdi.clone(), id.uid);
        let declared = spawn_blocking(move || {
            let reached = daemon.declare(&id, allocated)?;
            cdi::write(&folder, id.uid, &reached)?;
            Ok::<_, PrepareError>(reached)
        });
        let reached: Vec<(Tenant, Reach)> = declared.await??;
        let device = |(number, (tenant, reach)): (usize, &(Tenant, Reach))| Device {
            request_names: vec![tenant.request.clone()],
            pool_name: node.to_owned(),
            device_name: tenant.device.clone(),
            cdi_device_ids: cdi::ids(uid, number, tenant, reach),
            share_id: tenant.share_id.clone(),
        };
        Ok(reached.iter().enumerate().map(device).collect())
    }

    pub(crate) async fn unprepare(&self, claims: Vec<Claim>) -> Result<UnprepareResponse, Status> {
        bounded(&claims)?;
        let mut answers = HashMap::new();
        for claim in claims {
            let done = self.unprepare_one(&claim).await;
            let error = text("unprepared", &claim, &done);
            answers.insert(claim.uid, UnpreparedClaim { error });
        }
        Ok(UnprepareResponse { claims: answers })
    }

    async fn unprepare_one(&self, claim: &Claim) -> Result<(), PrepareError> {
        let id = ClaimId::new(claim)?;
        let (daemon, folder) = (self.daemon.clone(), self.folders.cdi.clone());
        let ended = spawn_blocking(move || {
            daemon.end(&id)?;
            cdi::remove(&folder, id.uid)?;
            Ok::<_, PrepareError>(())
        });
        ended.await?
    }

    /// Keeps the slice and the devices' health as the daemon's GPUs are. While the daemon does not
    /// answer the slice stays as it is, as tenants outlive a daemon; health is unknown.
    pub(crate) async fn keep_published(&self) {
        let mut published: Option<(Vec<Value>, Instant)> = None;
        let mut failed = String::new();
        loop {
            let result = self.publish(&mut published).await;
            let now = result
                .err()
                .map_or_else(String::new, |error| with_causes(&error));
            if now != failed && !now.is_empty() {
                log::error!("{now}");
            }
            failed = now;
            tokio::select! {
                () = tokio::time::sleep(GPUS_INTERVAL) => {}
                () = self.registered.notified() => published = None,
            }
        }
    }

    async fn publish(&self, last: &mut Option<(Vec<Value>, Instant)>) -> Result<(), PrepareError> {
        let daemon = self.daemon.clone();
        let gpus = spawn_blocking(move || daemon.gpus()).await?;
        let gpus = gpus.inspect_err(|error| self.health.lost(&with_causes(error)))?;
        self.health.update(self.cluster.node(), &gpus);
        let devices = slice::devices(&gpus);
        let is_recent = |(known, at): &(Vec<Value>, Instant)| {
            *known == devices && at.elapsed() < SLICE_INTERVAL
        };
        if last.as_ref().is_some_and(is_recent) {
            return Ok(());
        }
        if self.cluster.publish(&devices).await? {
            log::info!("Published {} devices", devices.len());
        }
        *last = Some((devices, Instant::now()));
        Ok(())
    }
}
