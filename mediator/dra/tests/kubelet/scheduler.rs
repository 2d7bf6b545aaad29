//! The driver with a real API server and scheduler, of the folder that `KUBE_BIN` names.
//!
//! No kubelet runs: the test plays it, as the others do. No controller runs either: the test takes
//! the allocation of a claim back by itself.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use turnstile_dra::names::DRIVER;
use turnstile_dra::proto::Claim;

use super::cluster::Objects;
use super::node::{NODE, Node, until};

const BINARIES: [&str; 3] = ["etcd", "kube-apiserver", "kube-scheduler"];
const NAMESPACE: &str = "default";
/// The processes listen on the loopback interface alone, and end with the test.
const TOKEN: &str = "of-this-test";

/// A process that does not outlive the test.
struct Process(Child);

impl Process {
    fn start(binaries: &Path, name: &str, arguments: &[String]) -> Self {
        let mut command = Command::new(binaries.join(name));
        command
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn binaries() -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("KUBE_BIN")?);
    BINARIES
        .iter()
        .all(|name| folder.join(name).is_file())
        .then_some(folder)
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// An API server with its store, and a scheduler.
struct Control {
    client: kube::Client,
    _processes: [Process; 3],
    _folder: tempfile::TempDir,
}

impl Control {
    async fn start(binaries: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let (store, peer, port) = (free_port(), free_port(), free_port());
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let etcd = Process::start(
            binaries,
            BINARIES[0],
            &[
                format!("--data-dir={}", at("etcd")),
                format!("--listen-client-urls={}", url(store)),
                format!("--advertise-client-urls={}", url(store)),
                format!("--listen-peer-urls={}", url(peer)),
            ],
        );
        let key = rcgen::KeyPair::generate().unwrap();
        std::fs::write(at("key"), key.serialize_pem()).unwrap();
        std::fs::write(at("public"), key.public_key_pem()).unwrap();
        std::fs::write(at("tokens"), format!("{TOKEN},admin,1,system:masters\n")).unwrap();
        let server = Process::start(
            binaries,
            BINARIES[1],
            &[
                format!("--etcd-servers={}", url(store)),
                "--bind-address=127.0.0.1".into(),
                format!("--secure-port={port}"),
                format!("--cert-dir={}", at("certificates")),
                format!("--token-auth-file={}", at("tokens")),
                "--authorization-mode=AlwaysAllow".into(),
                "--service-account-issuer=https://kubernetes.default.svc".into(),
                format!("--service-account-signing-key-file={}", at("key")),
                format!("--service-account-key-file={}", at("public")),
                "--service-cluster-ip-range=10.0.0.0/24".into(),
                "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition".into(),
            ],
        );
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{ "name": "test", "cluster": {
                "server": format!("https://127.0.0.1:{port}"), "insecure-skip-tls-verify": true,
            }}],
            "users": [{ "name": "test", "user": { "token": TOKEN } }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
        });
        std::fs::write(at("config"), config.to_string()).unwrap();
        let scheduler = Process::start(
            binaries,
            BINARIES[2],
            &[
                format!("--kubeconfig={}", at("config")),
                "--leader-elect=false".into(),
                format!("--secure-port={}", free_port()),
                "--bind-address=127.0.0.1".into(),
            ],
        );
        let config = Kubeconfig::from_yaml(&config.to_string()).unwrap();
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(config, &options)
            .await
            .unwrap();
        Self {
            client: kube::Client::try_from(config).unwrap(),
            _processes: [etcd, server, scheduler],
            _folder: folder,
        }
    }

    fn all(&self, group: &str, kind: &str) -> Api<DynamicObject> {
        let of = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
        match kind {
            "Node" | "DeviceClass" => Api::all_with(self.client.clone(), &of),
            _ => Api::namespaced_with(self.client.clone(), NAMESPACE, &of),
        }
    }

    /// Makes an object, once the API server answers.
    async fn create(&self, group: &str, kind: &str, object: Value) -> DynamicObject {
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let all = self.all(group, kind);
        until(kind, async || {
            all.create(&PostParams::default(), &object).await.ok()
        })
        .await
    }

    /// A pod and its claim for a share.
    async fn pod(&self, name: &str, share: u32) -> Claim {
        let capacity = json!({ "requests": { "share": share.to_string(), "memory": "16Mi" } });
        let request = json!({
            "name": "gpu", "exactly": { "deviceClassName": DRIVER, "capacity": capacity },
        });
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": { "name": name }, "spec": { "devices": { "requests": [request] } },
        });
        let claim = self.create("resource.k8s.io", "ResourceClaim", claim).await;
        let container = json!({
            "name": "main", "image": "none", "resources": { "claims": [{ "name": "gpu" }] },
        });
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": {
                "containers": [container],
                "resourceClaims": [{ "name": "gpu", "resourceClaimName": name }],
            },
        });
        self.create("", "Pod", pod).await;
        Claim {
            namespace: NAMESPACE.into(),
            uid: claim.metadata.uid.unwrap(),
            name: name.into(),
        }
    }

    /// The share that a claim was given, once its pod has a node.
    async fn share_of(&self, claim: &Claim) -> String {
        let claims = self.all("resource.k8s.io", "ResourceClaim");
        until("an allocation", async || {
            let claim = claims.get(&claim.name).await.unwrap();
            let result = claim.data.pointer("/status/allocation/devices/results/0")?;
            Some(result["consumedCapacity"]["share"].as_str()?.to_owned())
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scheduler_places_two_claims_and_a_third_when_the_first_ends() {
    let Some(binaries) = binaries() else {
        println!(
            "skipped: KUBE_BIN names no folder with {}",
            BINARIES.join(", ")
        );
        return;
    };
    let control = Control::start(&binaries).await;
    let room = json!({ "cpu": "8", "memory": "16Gi", "pods": "110" });
    let object = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE },
        "status": {
            "capacity": room, "allocatable": room,
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    });
    control.create("", "Node", object).await;
    let class = include_str!("../../../package/kubernetes/chart/templates/deviceclass.yaml");
    let class: Value = serde_saphyr::from_str(class).unwrap();
    control
        .create("resource.k8s.io", "DeviceClass", class)
        .await;
    let node = Node::over(control.client.clone(), Objects::default()).await;
    node.put("/v1/gpus/software-1/cordon").await;
    node.register().await;

    let half = control.pod("half", 50).await;
    assert_eq!(control.share_of(&half).await, "50");
    let fifths = control.pod("two-fifths", 40).await;
    assert_eq!(control.share_of(&fifths).await, "40");
    for claim in [&half, &fifths] {
        let prepared = node.prepare(claim).await;
        assert_eq!(prepared.error, "");
        assert!(prepared.devices[0].share_id.is_some());
    }
    let fifth = control.pod("fifth", 20).await;
    let pods = control.all("", "Pod");
    until("a pod that waits", async || {
        let pod = pods.get("fifth").await.unwrap();
        let reason = pod.data.pointer("/status/conditions/0/reason")?.clone();
        (reason == "Unschedulable").then_some(())
    })
    .await;
    assert!(node.prepare(&fifth).await.error.contains("not allocated"));

    let now = DeleteParams::default().grace_period(0);
    pods.delete("half", &now).await.unwrap();
    assert_eq!(node.unprepare(&half).await, "");
    let free = json!({ "status": { "allocation": null, "reservedFor": null } });
    let claims = control.all("resource.k8s.io", "ResourceClaim");
    let patch = Patch::Merge(&free);
    claims
        .patch_status("half", &PatchParams::default(), &patch)
        .await
        .unwrap();
    assert_eq!(control.share_of(&fifth).await, "20");
    assert_eq!(node.prepare(&fifth).await.error, "");
    assert_eq!(node.tenants().await.len(), 2);
}
