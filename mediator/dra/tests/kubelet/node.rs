//! A node: a daemon over two software GPUs, the driver, and what a kubelet calls.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::http::uri::PathAndQuery;
use prost::Message;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;
use turnstile_accounting::record::GpuIdentity;
use turnstile_api::client::{Call, Client, ClientError, Method};
use turnstile_api::{Api, ApiConfig, StateFile};
use turnstile_daemon::config::{ApiSection, MetricsSection};
use turnstile_daemon::{Card, Daemon, DaemonConfig, HostConfig, MeterKind, Timing};
use turnstile_dra::cluster::Cluster;
use turnstile_dra::driver::{Driver, Folders};
use turnstile_dra::grpc;
use turnstile_dra::names::{ACCOUNT, DRIVER};
use turnstile_dra::proto::{
    Claim, ClaimsRequest, HEALTH, PLUGIN, PrepareResponse, PreparedClaim, REGISTRATION,
    RegistrationStatus, RegistrationStatusResponse, UnprepareResponse, WatchRequest, WatchResponse,
};
use turnstile_soft::{SoftConfig, SoftGpu};

use super::cluster::Objects;

/// TIMEOUT: for what takes a second, on a machine that builds at the same time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
pub(crate) const NODE: &str = "node-1";
pub(crate) const SLICE: &str = "/apis/resource.k8s.io/v1/resourceslices/node-1-turnstile.dev";
const GPU_BYTES: u64 = 256 << 20;

pub(crate) struct Node {
    pub(crate) objects: Objects,
    client: kube::Client,
    pub(crate) driver: Arc<Driver>,
    driving: Option<(JoinHandle<()>, watch::Sender<bool>)>,
    served: Option<(Api, Daemon)>,
    /// The daemon's GPUs, for tests that break one.
    pub(crate) gpus: Vec<Arc<SoftGpu>>,
    pub(crate) folder: tempfile::TempDir,
}

/// Repeats `poll` until there is an answer.
pub(crate) async fn until<T>(what: &str, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(answer) = poll().await {
            return answer;
        }
        assert!(begin.elapsed() < PATIENCE, "{what} never came");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl Node {
    pub(crate) async fn start() -> Self {
        let objects = Objects::default();
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE, "uid": "node-uid" },
        });
        objects.lock().insert(format!("/api/v1/nodes/{NODE}"), node);
        Self::over(objects.client(), objects).await
    }

    /// A node of the API server behind this client.
    pub(crate) async fn over(client: kube::Client, objects: Objects) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let driver = driver(&folder, &client);
        let gpus = gpus();
        let served = Some(serve(&folder, &gpus));
        let mut node = Self {
            objects,
            client,
            driver,
            driving: None,
            served,
            gpus,
            folder,
        };
        std::fs::create_dir(node.path("cdi")).unwrap();
        node.drive().await;
        node
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn drive(&mut self) {
        let (end, ended) = watch::channel(false);
        let driver = self.driver.clone();
        let task = tokio::spawn(async move { grpc::run(driver, ended).await.unwrap() });
        self.driving = Some((task, end));
        let sockets = [self.driver.endpoint(), self.driver.registration()];
        until("the driver's sockets", async || {
            sockets.iter().all(|socket| socket.exists()).then_some(())
        })
        .await;
    }

    /// Another driver takes the place of the one that ran.
    pub(crate) async fn restart_driver(&mut self) {
        let (task, end) = self.driving.take().unwrap();
        end.send_replace(true);
        task.await.unwrap();
        self.driver = driver(&self.folder, &self.client);
        self.drive().await;
    }

    /// Another daemon takes the place of the one that ran.
    pub(crate) fn restart_daemon(&mut self) {
        self.stop_daemon();
        self.gpus = gpus();
        self.served = Some(serve(&self.folder, &self.gpus));
    }

    pub(crate) fn stop_daemon(&mut self) {
        self.served = None;
    }

    /// A call as the kubelet makes it.
    pub(crate) async fn call<M, A>(
        &self,
        service: &str,
        method: &str,
        message: M,
    ) -> Result<A, Status>
    where
        M: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.connect(service).await;
        let path = PathAndQuery::try_from(format!("/{service}/{method}")).unwrap();
        let codec = ProstCodec::<M, A>::default();
        let answer = grpc.unary(tonic::Request::new(message), path, codec).await;
        answer.map(tonic::Response::into_inner)
    }

    async fn connect(&self, service: &str) -> Grpc<Channel> {
        let socket = match service {
            REGISTRATION => self.driver.registration(),
            _ => self.driver.endpoint(),
        };
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap();
        let mut grpc = Grpc::new(endpoint.connect().await.unwrap());
        grpc.ready().await.unwrap();
        grpc
    }

    /// The stream of the devices' health, on a connection of its own.
    pub(crate) async fn watch(&self) -> Result<Streaming<WatchResponse>, Status> {
        let mut grpc = self.connect(HEALTH).await;
        let path = format!("/{HEALTH}/NodeWatchResources");
        let path = PathAndQuery::try_from(path).unwrap();
        let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
        let request = tonic::Request::new(WatchRequest {});
        let answer = grpc.server_streaming(request, path, codec).await;
        answer.map(tonic::Response::into_inner)
    }

    /// The kubelet reports that it took the driver, upon which the slice is published.
    pub(crate) async fn register(&self) {
        let status = RegistrationStatus {
            plugin_registered: true,
            error: String::new(),
        };
        let method = "NotifyRegistrationStatus";
        let answer: Result<RegistrationStatusResponse, _> =
            self.call(REGISTRATION, method, status).await;
        answer.unwrap();
    }

    /// Prepares one claim, by the services of both versions.
    pub(crate) async fn prepare(&self, claim: &Claim) -> PreparedClaim {
        let mut answers = Vec::new();
        for (_, service) in PLUGIN {
            let claims = vec![claim.clone()];
            let request = ClaimsRequest { claims };
            let answer: Result<PrepareResponse, _> =
                self.call(service, "NodePrepareResources", request).await;
            answers.push(answer.unwrap().claims.remove(&claim.uid).unwrap());
        }
        assert_eq!(answers[0], answers[1]);
        answers.remove(0)
    }

    /// Unprepares one claim, and returns the error.
    pub(crate) async fn unprepare(&self, claim: &Claim) -> String {
        let claims = vec![claim.clone()];
        let request = ClaimsRequest { claims };
        let answer: Result<UnprepareResponse, _> = self
            .call(PLUGIN[0].1, "NodeUnprepareResources", request)
            .await;
        answer.unwrap().claims.remove(&claim.uid).unwrap().error
    }

    /// A claim with an allocation of these devices, shares and amounts of memory.
    pub(crate) fn claim(&self, number: u64, name: &str, rows: &[(&str, &str, &str)]) -> Claim {
        self.configured(number, name, rows, &json!([]))
    }

    pub(crate) fn configured(
        &self,
        number: u64,
        name: &str,
        rows: &[(&str, &str, &str)],
        config: &Value,
    ) -> Claim {
        let uid = format!("1f0c2a9e-0d7b-4c55-9b1e-{number:012}");
        let row = |(at, (device, share, memory)): (usize, &(&str, &str, &str))| {
            json!({
                "request": format!("gpu-{at}"), "driver": DRIVER, "pool": NODE, "device": device,
                "shareID": share_id(number, at),
                "consumedCapacity": { "share": share, "memory": memory },
            })
        };
        let results: Vec<Value> = rows.iter().enumerate().map(row).collect();
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": { "namespace": "team", "name": name, "uid": uid },
            "spec": {},
            "status": {
                "allocation": { "devices": { "results": results, "config": config } },
                "reservedFor": [{ "resource": "pods", "name": format!("{name}-pod"), "uid": "p" }],
            },
        });
        let path = format!("/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/{name}");
        self.objects.lock().insert(path, claim);
        Claim {
            namespace: "team".into(),
            uid,
            name: name.into(),
        }
    }

    /// What the daemon's API answers; none for 404.
    pub(crate) async fn get(&self, path: &str) -> Option<Value> {
        let (client, path) = (Client::new(&self.path("api.sock")), path.to_owned());
        let answer = spawn_blocking(move || client.get(&path)).await.unwrap();
        match answer {
            Err(ClientError::Refused(problem)) if problem.status == 404 => None,
            answer => Some(answer.unwrap()),
        }
    }

    /// Names of all tenants.
    pub(crate) async fn tenants(&self) -> Vec<String> {
        let page = self.get("/v1/vms").await.unwrap();
        let names = page["items"].as_array().unwrap().iter();
        names
            .map(|vm| vm["name"].as_str().unwrap().to_owned())
            .collect()
    }

    pub(crate) async fn put(&self, path: &str) {
        self.write(Method::PUT, path).await;
    }

    pub(crate) async fn delete(&self, path: &str) {
        self.write(Method::DELETE, path).await;
    }

    async fn write(&self, method: Method, path: &str) {
        let (client, path) = (Client::new(&self.path("api.sock")), path.to_owned());
        let write = move || {
            client.call(&Call {
                method,
                path: &path,
                body: None,
                if_match: None,
            })
        };
        spawn_blocking(write).await.unwrap().unwrap();
    }

    /// The CDI documents.
    pub(crate) fn documents(&self) -> Vec<Value> {
        let entries = std::fs::read_dir(self.path("cdi")).unwrap();
        let read = |entry: std::io::Result<std::fs::DirEntry>| {
            serde_json::from_slice(&std::fs::read(entry.unwrap().path()).unwrap()).unwrap()
        };
        entries.map(read).collect()
    }
}

pub(crate) fn share_id(claim: u64, row: usize) -> String {
    format!("0c6b6cb0-0000-0000-{row:04}-{claim:012}")
}

fn driver(folder: &tempfile::TempDir, client: &kube::Client) -> Arc<Driver> {
    let at = |name: &str| folder.path().join(name);
    let folders = Folders {
        plugins: at("plugins"),
        registry: at("registry"),
        cdi: at("cdi"),
    };
    let daemon = turnstile_dra::daemon::Daemon::new(&at("api.sock"), ACCOUNT);
    Driver::new(daemon, Cluster::new(client.clone(), NODE), folders)
}

fn gpus() -> Vec<Arc<SoftGpu>> {
    let config = SoftConfig {
        memory_bytes: GPU_BYTES,
        ..SoftConfig::default()
    };
    let gpu = || Arc::new(SoftGpu::new(config).unwrap());
    vec![gpu(), gpu()]
}

fn serve(folder: &tempfile::TempDir, gpus: &[Arc<SoftGpu>]) -> (Api, Daemon) {
    let at = |name: &str| folder.path().join(name);
    let card = |(number, gpu): (usize, &Arc<SoftGpu>)| Card {
        identity: GpuIdentity {
            node: NODE.into(),
            gpu: format!("software-{number}"),
            model: "Software GPU".into(),
        },
        gpu: gpu.clone(),
        host: HostConfig::default(),
        meter: MeterKind::Events,
        timing: Timing::default(),
        ledger: None,
    };
    let section = ApiSection {
        socket: Some(at("api.sock")),
        state: Some(at("state.json")),
        ..ApiSection::default()
    };
    let kept = StateFile::new(at("state.json")).load().unwrap();
    let config = kept.resumed(DaemonConfig::new(at("vmm.sock")));
    let daemon = Daemon::over(config, gpus.iter().enumerate().map(card).collect()).unwrap();
    let config = ApiConfig {
        section,
        metrics: MetricsSection::default(),
        prices: None,
        ledger: None,
        version: "1.2.3-4-gabc".into(),
    };
    (Api::start(config, daemon.fleet().clone()).unwrap(), daemon)
}
