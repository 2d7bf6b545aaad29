//! The API server: claims that are read, and the slice that is kept published.
//!
//! In: a claim's name; devices. Out: the claim's object; a ResourceSlice with them, which the
//! node's object owns. A slice that has the devices already is left as it is.

use kube::Client;
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use super::claim::ClaimId;
use super::slice;

/// Why the API server did not do what was requested.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A claim could not be read.
    #[error("Reading the claim failed; the driver's ClusterRole has to permit it")]
    Claim(#[source] Box<kube::Error>),
    /// The node could not be read.
    #[error(
        "Reading the node {0} failed; --node names this node, and the ClusterRole has to permit it"
    )]
    Node(String, #[source] Box<kube::Error>),
    /// The slice could not be read or written.
    #[error(
        "Publishing the ResourceSlice failed; resource.k8s.io/v1 is served since Kubernetes 1.34, and the ClusterRole has to permit it"
    )]
    Slice(#[source] Box<kube::Error>),
}

/// The API server, as the driver of one node uses it.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    node: String,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("Cluster")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

fn resource(group: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind))
}

impl Cluster {
    /// The API server behind this client, for the driver of `node`.
    pub fn new(client: Client, node: &str) -> Self {
        let node = node.to_owned();
        Self { client, node }
    }

    /// Name of the node.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    /// Reads a claim.
    ///
    /// # Errors
    /// If it cannot be.
    pub(crate) async fn claim(&self, claim: &ClaimId) -> Result<DynamicObject, ClusterError> {
        let of = resource("resource.k8s.io", "ResourceClaim");
        let claims: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &claim.namespace, &of);
        let read = claims.get(&claim.name).await;
        read.map_err(|error| ClusterError::Claim(Box::new(error)))
    }

    /// Publishes devices in place of those that were. Returns whether anything was written.
    ///
    /// # Errors
    /// If they could not be.
    pub(crate) async fn publish(&self, devices: &[Value]) -> Result<bool, ClusterError> {
        let failed = |error| ClusterError::Slice(Box::new(error));
        let of = resource("resource.k8s.io", "ResourceSlice");
        let slices: Api<DynamicObject> = Api::all_with(self.client.clone(), &of);
        let name = slice::name(&self.node);
        let found = slices.get_opt(&name).await.map_err(failed)?;
        let before = found.as_ref().map(|found| &found.data["spec"]);
        let generation = match before {
            Some(spec) if spec["devices"].as_array().map_or(&[][..], Vec::as_slice) == devices => {
                return Ok(false);
            }
            Some(spec) => spec["pool"]["generation"].as_i64().unwrap_or(0) + 1,
            None => 1,
        };
        let spec = slice::specification(&self.node, generation, devices);
        let parameters = PostParams::default();
        match found {
            Some(mut found) => {
                found.data["spec"] = spec;
                slices.replace(&name, &parameters, &found).await
            }
            None => {
                let mut slice = DynamicObject::new(&name, &of).data(json!({ "spec": spec }));
                slice.metadata.owner_references = Some(vec![self.owner().await?]);
                slices.create(&parameters, &slice).await
            }
        }
        .map_err(failed)?;
        Ok(true)
    }

    /// The node, as owner of its slice.
    async fn owner(
        &self,
    ) -> Result<k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference, ClusterError> {
        let nodes: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource("", "Node"));
        let node = nodes.get_metadata(&self.node).await;
        let node = node.map_err(|error| ClusterError::Node(self.node.clone(), Box::new(error)))?;
        Ok(
            k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference {
                api_version: "v1".into(),
                kind: "Node".into(),
                name: self.node.clone(),
                uid: node.metadata.uid.unwrap_or_default(),
                ..Default::default()
            },
        )
    }
}
