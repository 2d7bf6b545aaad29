//! VMs that are declared, with sockets of their own.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use serde_json::{Value, json};

use super::bench::Bench;
use super::http::{Call, JSON, PATCH, PATIENCE, call, get, send};

const ID: &str = "6f1c2a9e-0d7b-4c55-9b1e-2f8f6f0a1b2c";

fn body(more: &Value) -> String {
    let mut body = json!({
        "name": "web",
        "metadata": { "instance_id": ID, "labels": { "a": "b" } },
        "account": "gold",
        "scheduling": { "weight": 300 },
        "gpu_memory_bytes": 64 << 20,
        "attachment": { "mode": "0600" },
    });
    json_merge(&mut body, more);
    body.to_string()
}

fn json_merge(to: &mut Value, from: &Value) {
    for (key, value) in from.as_object().unwrap() {
        to[key] = value.clone();
    }
}

fn delete(bench: &Bench, path: &str) -> u16 {
    let reply = call(
        &bench.socket(),
        &Call {
            method: "DELETE",
            path,
            headers: &[],
            body: "",
        },
    );
    reply.status
}

#[test]
fn vm_is_declared_once_and_its_socket_ends_with_it() {
    let mut bench = Bench::new();
    let post =
        |bench: &Bench, more: Value| send(&bench.socket(), "POST", "/v1/vms", JSON, &body(&more));
    let made = post(&bench, json!({}));
    assert_eq!(
        (made.status, made.header("location")),
        (201, Some("/v1/vms/web"))
    );
    let vm = made.json();
    assert_eq!(
        (&vm["gpu"], &vm["account"]),
        (&json!("software-0"), &json!("gold"))
    );
    assert_eq!(vm["attachment"]["state"], "ready");
    let socket = vm["attachment"]["socket"].as_str().unwrap().to_owned();
    assert!(socket.contains(ID) && !socket.contains("web"), "{socket}");
    let of = |path: &str| std::fs::metadata(path).unwrap();
    assert!(of(&socket).file_type().is_socket());
    assert_eq!(of(&socket).permissions().mode() & 0o777, 0o600);
    let same = post(&bench, json!({}));
    assert_eq!((same.status, same.json()), (200, vm.clone()));
    for other in [
        json!({ "account": "silver" }),
        json!({ "name": "other" }),
        json!({ "metadata": { "instance_id": "6f1c2a9e-0d7b-4c55-9b1e-2f8f6f0a1b2d" } }),
    ] {
        post(&bench, other).problem(409);
    }
    // What is set later changes neither what was declared nor its answer.
    let path = "/v1/vms/web/scheduling";
    let patched = send(&bench.socket(), "PATCH", path, PATCH, r#"{"weight":7}"#);
    assert_eq!(patched.status, 200, "{patched:?}");
    assert_eq!(post(&bench, json!({})).status, 200);
    bench.start(|_| {});
    let again = get(&bench.socket(), "/v1/vms/web").json();
    assert_eq!(again["scheduling"]["weight"], 7);
    assert_eq!(again["attachment"], vm["attachment"]);
    assert_eq!(delete(&bench, "/v1/vms/web?timeout_s=x"), 400);
    assert_eq!(delete(&bench, "/v1/vms/web"), 204);
    get(&bench.socket(), "/v1/vms/web").problem(404);
    // Another thread removes the folder.
    let (folder, begun) = (Path::new(&socket).parent().unwrap(), Instant::now());
    while folder.exists() {
        assert!(begun.elapsed() < PATIENCE, "{} stays", folder.display());
        thread::yield_now();
    }
    bench.start(|_| {});
    get(&bench.socket(), "/v1/vms/web").problem(404);
}

#[test]
fn drain_of_a_vm_without_a_tenant_places_it_anew_and_the_answer_has_its_state() {
    let bench = Bench::new();
    let socket = bench.socket();
    send(&socket, "POST", "/v1/vms", JSON, &body(&json!({})));
    let drained = || {
        let reply = send(&socket, "POST", "/v1/vms/web/drain", JSON, "");
        assert_eq!(reply.status, 202, "{reply:?}");
        let vm = reply.json();
        (vm["attachment"]["state"].clone(), vm["gpu"].clone())
    };
    assert_eq!(drained(), (json!("ready"), json!("software-0")));
    let closed = send(&socket, "PUT", "/v1/gpus/software-0/cordon", JSON, "");
    assert_eq!(closed.status, 200, "{closed:?}");
    // Twice: a VM without a place stays as it is.
    for _ in 0..2 {
        assert_eq!(drained(), (json!("waiting"), Value::Null));
    }
    let opened = send(&socket, "DELETE", "/v1/gpus/software-0/cordon", JSON, "");
    assert_eq!(opened.status, 200, "{opened:?}");
    let events = get(&socket, "/v1/events").json();
    let kinds = events["items"].as_array().unwrap().iter();
    let kinds: Vec<&str> = kinds.map(|event| event["type"].as_str().unwrap()).collect();
    let own = kinds
        .into_iter()
        .filter(|kind| ["vm_ready", "vm_waiting"].contains(kind));
    let own: Vec<&str> = own.collect();
    assert_eq!(
        own,
        [
            "vm_ready",
            "vm_waiting",
            "vm_ready",
            "vm_waiting",
            "vm_ready"
        ]
    );
}

#[test]
fn body_that_declares_nothing_is_refused_with_its_place() {
    let bench = Bench::new();
    for (more, status, pointer) in [
        (json!({ "metadata": {} }), 422, "/metadata/instance_id"),
        (
            json!({ "attachment": { "mode": "888" } }),
            422,
            "/attachment/mode",
        ),
        (
            json!({ "attachment": { "owner": "no such user" } }),
            422,
            "/attachment/owner",
        ),
        (
            json!({ "attachment": { "group": "4294967295" } }),
            422,
            "/attachment/group",
        ),
        (json!({ "gpu_memory_bytes": 1 }), 422, "/gpu_memory_bytes"),
        (json!({ "attachment": null }), 422, "/account"),
        (json!({ "account": "a/b" }), 422, "/account"),
    ] {
        let reply = send(&bench.socket(), "POST", "/v1/vms", JSON, &body(&more));
        let problem = reply.problem(status);
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{more}");
    }
    for more in [
        json!({ "gpu": "software-7" }),
        json!({ "gpu_memory_bytes": 1_u64 << 40 }),
    ] {
        let reply = send(&bench.socket(), "POST", "/v1/vms", JSON, &body(&more));
        reply.problem(422);
    }
    assert_eq!(get(&bench.socket(), "/v1/vms").json()["items"], json!([]));
}

#[test]
fn daemon_ends_while_the_socket_of_a_stock_vm_waits_for_its_vmm() {
    let mut bench = Bench::new();
    let more = json!({ "attachment": { "kind": "vfio-user" } });
    let made = send(&bench.socket(), "POST", "/v1/vms", JSON, &body(&more));
    assert_eq!(made.status, 201, "{made:?}");
    let (done, ended) = channel();
    let stop = thread::spawn(move || {
        bench.stop();
        done.send(()).unwrap();
    });
    ended.recv_timeout(PATIENCE).expect("the daemon ends");
    stop.join().unwrap();
}
