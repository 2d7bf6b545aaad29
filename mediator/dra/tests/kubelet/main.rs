//! The driver as a kubelet calls it, over its two sockets, with a daemon over two software GPUs and
//! an API server that keeps objects.

mod cluster;
mod health;
mod node;
mod scheduler;

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use node::{NODE, Node, SLICE, share_id, until};
use serde_json::{Value, json};
use tonic::Code;
use turnstile_dra::names::{CDI_KIND, CONFIG_KIND, CONFIG_VERSION, DRIVER};
use turnstile_dra::proto::{
    ClaimsRequest, InfoRequest, PLUGIN, PluginInfo, PrepareResponse, REGISTRATION,
};

const FIRST: &str = "team.a.1f0c2a9e";

/// Names of the published devices, and the generation of their pool.
fn published(node: &Node) -> Option<(Vec<String>, u64)> {
    let slice = node.objects.lock().get(SLICE)?.clone();
    let devices = slice["spec"]["devices"].as_array().unwrap().iter();
    let names = devices.map(|one| one["name"].as_str().unwrap().to_owned());
    let generation = slice["spec"]["pool"]["generation"].as_u64().unwrap();
    Some((names.collect(), generation))
}

#[tokio::test(flavor = "multi_thread")]
async fn kubelet_takes_the_driver_and_the_scheduler_sees_open_gpus() {
    let node = Node::start().await;
    let info: PluginInfo = node
        .call(REGISTRATION, "GetInfo", InfoRequest {})
        .await
        .unwrap();
    assert_eq!(
        (info.r#type.as_str(), info.name.as_str()),
        ("DRAPlugin", DRIVER)
    );
    assert_eq!(Path::new(&info.endpoint), node.driver.endpoint());
    assert_eq!(
        info.supported_versions,
        [
            "v1.DRAPlugin",
            "v1beta1.DRAPlugin",
            "v1alpha1.DRAResourceHealth"
        ]
    );
    let both = vec!["software-0".to_owned(), "software-1".to_owned()];
    let first = until("a slice", async || published(&node)).await;
    assert_eq!(first, (both.clone(), 1));
    let slice = node.objects.lock()[SLICE].clone();
    assert_eq!(slice["metadata"]["ownerReferences"][0]["uid"], "node-uid");
    assert_eq!(slice["spec"]["nodeName"], NODE);
    assert_eq!(
        slice["spec"]["devices"][1]["allowMultipleAllocations"],
        true
    );
    assert_eq!(
        slice["spec"]["devices"][1]["capacity"]["memory"]["value"],
        "256Mi"
    );
    // A GPU that is closed is no device any more; the pool's generation rises.
    node.put("/v1/gpus/software-0/cordon").await;
    node.register().await;
    let without = (both[1..].to_vec(), 2);
    until("a slice without it", async || {
        (published(&node)? == without).then_some(())
    })
    .await;
    // A kubelet that starts removes the slices of its node.
    node.objects.lock().remove(SLICE);
    node.register().await;
    let again = until("the slice again", async || published(&node)).await;
    assert_eq!(again, (both[1..].to_vec(), 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_that_is_prepared_again_is_the_same_vm_after_restarts_too() {
    let mut node = Node::start().await;
    let claim = node.claim(1, "a", &[("software-1", "50", "64Mi")]);
    let prepared = node.prepare(&claim).await;
    assert_eq!(prepared.error, "");
    let device = &prepared.devices[0];
    assert_eq!(
        (device.pool_name.as_str(), device.device_name.as_str()),
        (NODE, "software-1")
    );
    assert_eq!(device.request_names, ["gpu-0"]);
    assert_eq!(device.share_id, Some(share_id(1, 0)));
    let name = format!("{}-{}", claim.uid, share_id(1, 0));
    assert_eq!(device.cdi_device_ids, [format!("{CDI_KIND}={name}")]);
    let vm = node.get(&format!("/v1/vms/{FIRST}")).await.unwrap();
    assert_eq!(vm["scheduling"]["weight"], 50);
    assert_eq!(
        (&vm["gpu"], &vm["account"]),
        (&json!("software-1"), &json!("kubernetes"))
    );
    assert_eq!(vm["attachment"]["gpu_memory_bytes"], 64 << 20);
    assert_eq!(vm["metadata"]["project"], "team");
    let labels = json!({
        "namespace": "team", "claim": "a", "claim_uid": claim.uid, "pod": "a-pod", "pods": "1",
    });
    assert_eq!(vm["metadata"]["labels"], labels);
    // The container gets the folder of the socket.
    let socket = vm["attachment"]["socket"].as_str().unwrap();
    assert!(std::fs::metadata(socket).unwrap().file_type().is_socket());
    let documents = node.documents();
    let edits = &documents[0]["devices"][0]["containerEdits"];
    let folder = Path::new(socket).parent().unwrap().to_str().unwrap();
    assert_eq!(edits["mounts"][0]["hostPath"], folder);
    let variables = [
        format!("NAME_GPU_0={FIRST}"),
        format!("SOCKET_GPU_0={socket}"),
    ];
    let variables = variables.map(|end| Value::from(format!("TURNSTILE_CLAIM_{end}")));
    assert_eq!(edits["env"], json!(variables));
    node.restart_driver().await;
    assert_eq!(node.prepare(&claim).await, prepared);
    node.restart_daemon();
    assert_eq!(node.prepare(&claim).await, prepared);
    assert_eq!(node.documents(), documents);
    assert_eq!(node.tenants().await, [FIRST]);
    // The claim is gone from the API server by then.
    node.objects.lock().clear();
    node.restart_driver().await;
    for _ in 0..2 {
        assert_eq!(node.unprepare(&claim).await, "");
        assert!(node.documents().is_empty() && node.tenants().await.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_claims_share_a_gpu_and_a_third_waits_for_room() {
    let node = Node::start().await;
    let claim = |number, name, share| node.claim(number, name, &[("software-0", share, "100Mi")]);
    let claims = [
        claim(1, "a", "50"),
        claim(2, "b", "40"),
        claim(3, "c", "20"),
    ];
    let mut ids = Vec::new();
    for claim in &claims[..2] {
        let prepared = node.prepare(claim).await;
        assert_eq!(prepared.error, "");
        ids.extend(prepared.devices[0].cdi_device_ids.clone());
    }
    assert_ne!(ids[0], ids[1]);
    let late = node.prepare(&claims[2]).await;
    assert!(
        late.error.contains("no place on software-0 yet"),
        "{}",
        late.error
    );
    assert_eq!(node.documents().len(), 2);
    assert_eq!(node.unprepare(&claims[0]).await, "");
    assert_eq!(node.prepare(&claims[2]).await.error, "");
    let names = ["team.b.1f0c2a9e", "team.c.1f0c2a9e"];
    assert_eq!(node.tenants().await, names);
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_with_two_gpus_has_a_vm_on_each() {
    let node = Node::start().await;
    let rows = [("software-0", "30", "64Mi"), ("software-1", "70", "32Mi")];
    let claim = node.claim(1, "a", &rows);
    let prepared = node.prepare(&claim).await;
    assert_eq!((prepared.error.as_str(), prepared.devices.len()), ("", 2));
    let names = [FIRST.to_owned(), format!("{FIRST}.1")];
    assert_eq!(node.tenants().await, names);
    for (name, (gpu, share, _)) in names.iter().zip(rows) {
        let vm = node.get(&format!("/v1/vms/{name}")).await.unwrap();
        assert_eq!(vm["gpu"], gpu);
        assert_eq!(vm["scheduling"]["weight"].to_string(), share);
    }
    let documents = node.documents();
    assert_eq!(documents[0]["devices"].as_array().unwrap().len(), 2);
    assert_eq!(node.unprepare(&claim).await, "");
    assert!(node.tenants().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn share_below_the_minimum_is_refused_for_its_claim_alone() {
    let node = Node::start().await;
    let low = node.claim(1, "a", &[("software-0", "0", "64Mi")]);
    let good = node.claim(2, "b", &[("software-0", "1", "64Mi")]);
    let request = ClaimsRequest {
        claims: vec![low.clone(), good.clone()],
    };
    let answer: PrepareResponse = node
        .call(PLUGIN[0].1, "NodePrepareResources", request)
        .await
        .unwrap();
    let error = &answer.claims[&low.uid].error;
    assert!(
        error.contains("software-0: a share is a whole number from 1 to 100"),
        "{error}"
    );
    assert_eq!(answer.claims[&good.uid].error, "");
    assert_eq!(node.tenants().await, ["team.b.1f0c2a9e"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn opaque_configuration_has_the_cap_and_the_kind_of_tenant() {
    let node = Node::start().await;
    let config = |source: &str, mut parameters: Value| {
        parameters["apiVersion"] = CONFIG_VERSION.into();
        parameters["kind"] = CONFIG_KIND.into();
        let opaque = json!({ "driver": DRIVER, "parameters": parameters });
        json!([{ "source": source, "requests": [], "opaque": opaque }])
    };
    let row = [("software-0", "10", "32Mi")];
    let capped = config(
        "FromClaim",
        json!({
            "quotaMicroseconds": 20_000, "periodMicroseconds": 80_000, "attachment": "vmm",
        }),
    );
    let claim = node.configured(1, "a", &row, &capped);
    assert_eq!(node.prepare(&claim).await.error, "");
    let vm = node.get(&format!("/v1/vms/{FIRST}")).await.unwrap();
    let scheduling = &vm["scheduling"];
    assert_eq!(
        (&scheduling["quota_us"], &scheduling["period_us"]),
        (&json!(20_000), &json!(80_000))
    );
    assert!(
        vm["attachment"]["socket"]
            .as_str()
            .unwrap()
            .ends_with("vmm.sock")
    );
    // The daemon's own check, with its text.
    let wrong = config("FromClaim", json!({ "quotaMicroseconds": 1 }));
    let claim = node.configured(2, "b", &row, &wrong);
    let error = node.prepare(&claim).await.error;
    assert!(error.contains("A quota has 1000 us"), "{error}");
    // A program has settings, and no socket of its own.
    let class = config("FromClass", json!({ "attachment": "program" }));
    let program = node.configured(3, "c", &row, &class);
    let prepared = node.prepare(&program).await;
    assert_eq!(
        (
            prepared.error.as_str(),
            prepared.devices[0].cdi_device_ids.len()
        ),
        ("", 1)
    );
    let vm = node.get("/v1/vms/team.c.1f0c2a9e").await.unwrap();
    assert_eq!(
        (&vm["attachment"], &vm["scheduling"]["weight"]),
        (&Value::Null, &json!(10))
    );
    assert_eq!(node.unprepare(&program).await, "");
    assert_eq!(node.get("/v1/vms/team.c.1f0c2a9e").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_bounded_and_foreign_names_are_refused() {
    let node = Node::start().await;
    let claim = node.claim(1, "a", &[("software-0", "1", "64Mi")]);
    let method = "NodePrepareResources";
    let of =
        |claims| node.call::<_, PrepareResponse>(PLUGIN[0].1, method, ClaimsRequest { claims });
    let many = of(vec![claim.clone(); 65]).await.unwrap_err();
    assert_eq!(many.code(), Code::InvalidArgument);
    let mut long = claim.clone();
    long.name = "x".repeat(300 << 10);
    assert_eq!(of(vec![long]).await.unwrap_err().code(), Code::OutOfRange);
    let mut foreign = claim.clone();
    foreign.uid = "../../etc/cron.d/x".into();
    assert!(node.prepare(&foreign).await.error.contains("is no uid"));
    assert!(node.unprepare(&foreign).await.contains("is no uid"));
    let unknown = node
        .call::<_, PrepareResponse>(PLUGIN[0].1, "Other", InfoRequest {})
        .await;
    assert_eq!(unknown.unwrap_err().code(), Code::Unimplemented);
    assert!(node.tenants().await.is_empty());
}
