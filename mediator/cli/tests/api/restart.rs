//! A restart of the daemon.

use serde_json::json;

use super::bench::Bench;
use super::common;
use super::http::{Call, JSON, call, get, send};

const GOLD: &str = "/v1/accounts/gold";

fn bench() -> Bench {
    let bench = Bench::new();
    let body = r#"{"name":"gold","match":["au*"],"weight":300,"user":"root"}"#;
    let made = send(&bench.socket(), "POST", "/v1/accounts", JSON, body);
    assert_eq!((made.status, made.header("location")), (201, Some(GOLD)));
    bench
}

#[test]
fn accounts_and_owned_names_survive_a_restart() {
    let mut bench = bench();
    let socket = bench.socket();
    let _vm = common::vm(bench.folder.path(), "au-1", &[]);
    let of = |bench: &Bench| {
        let vm = get(&bench.socket(), "/v1/vms/au-1");
        (vm.status == 200).then(|| vm.json())
    };
    let vm = common::until("the VM", || of(&bench));
    assert_eq!(vm["account"], "gold");
    let path = GOLD;
    let (method, headers, body) = ("DELETE", &[][..], "");
    call(
        &socket,
        &Call {
            method,
            path,
            headers,
            body,
        },
    )
    .problem(409);
    common::until("its name in the state file", || {
        let kept = std::fs::read_to_string(bench.path("state.json")).ok()?;
        kept.contains("\"au-1\": \"gold\"").then_some(())
    });
    drop(_vm);
    bench.start(|_| {});
    assert_eq!(get(&socket, GOLD).json()["weight"], 300);
    let vm = of(&bench).unwrap();
    assert_eq!(
        (&vm["account"], &vm["connected"]),
        (&json!("gold"), &json!(false))
    );
    // It is not listed, as nothing is set of it; forgetting it frees its name.
    assert_eq!(get(&socket, "/v1/vms").json()["items"], json!([]));
    let path = "/v1/vms/au-1";
    let deleted = call(
        &socket,
        &Call {
            method,
            path,
            headers,
            body,
        },
    );
    assert_eq!(deleted.status, 204, "{deleted:?}");
    get(&socket, path).problem(404);
}
