//! Accounts over the API.

use serde_json::json;

use super::Bench;
use super::http::{Call, JSON, PATCH, call, get, send};

const GOLD: &str = "/v1/accounts/gold";

fn bench() -> Bench {
    let bench = Bench::new();
    let body = r#"{"name":"gold","match":["au*"],"weight":300,"user":"root"}"#;
    let made = send(&bench.socket(), "POST", "/v1/accounts", JSON, body);
    assert_eq!((made.status, made.header("location")), (201, Some(GOLD)));
    bench
}

#[test]
fn account_is_made_changed_and_forgotten() {
    let bench = bench();
    let socket = bench.socket();
    let gold = get(&socket, GOLD);
    assert_eq!(
        gold.json(),
        json!({
            "name": "gold", "origin": "api", "match": ["au*"], "user": "root", "weight": 300,
            "weight_max": 10_000, "quota_us": null, "period_us": null,
            "memory_max_bytes": null, "tenants_max": null,
        })
    );
    let list = get(&socket, "/v1/accounts").json();
    assert_eq!(list["items"], json!([gold.json()]));
    let body = r#"{"name":"gold","match":["au*"],"weight":300,"user":"root"}"#;
    assert_eq!(
        send(&socket, "POST", "/v1/accounts", JSON, body).status,
        200
    );
    let other = r#"{"name":"gold"}"#;
    send(&socket, "POST", "/v1/accounts", JSON, other).problem(409);

    let tag = gold.header("etag").unwrap().to_owned();
    let patch = |body: &str, tag: &str| {
        let headers: &[_] = &[("Content-Type", PATCH), ("If-Match", tag)];
        let (method, path) = ("PATCH", GOLD);
        call(
            &socket,
            &Call {
                method,
                path,
                headers,
                body,
            },
        )
    };
    let change = r#"{"weight":200,"quota_us":50000,"user":null,"match":["au*","ag?"]}"#;
    patch(change, &tag).problem(422);
    let changed = patch(&change.replace("ag?", "ag*"), &tag);
    assert_eq!(changed.status, 200, "{changed:?}");
    let changed = changed.json();
    assert_eq!(
        (&changed["weight"], &changed["period_us"]),
        (&json!(200), &json!(100_000))
    );
    assert_eq!(
        (&changed["user"], &changed["match"]),
        (&json!(null), &json!(["au*", "ag*"]))
    );
    patch("{\"weight\":100}", &tag).problem(412);

    let (method, headers, body) = ("DELETE", &[][..], "");
    let path = GOLD;
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
    get(&socket, GOLD).problem(404);
    let events = get(&socket, "/v1/events").json();
    let kinds: Vec<_> = events["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| &e["type"])
        .collect();
    assert_eq!(kinds, ["account_set"; 3]);
    assert_eq!(events["items"][1]["change"]["new"]["weight"], 200);
    assert_eq!(events["items"][2]["change"]["new"], json!(null));
}

#[test]
fn terms_that_cannot_be_are_refused_with_their_place() {
    let bench = bench();
    let many = vec!["a"; 65];
    for (body, pointer) in [
        (json!({"weight": 0}), "/weight"),
        (json!({"weight_max": 10_001}), "/weight_max"),
        (json!({"match": ["a b"]}), "/match/0"),
        (json!({"match": many}), "/match"),
        (json!({"match": "a"}), "/match"),
        (json!({"weight": ["a"]}), "/weight"),
        (json!({"user": "no-such-user"}), "/user"),
        (json!({"user": ""}), "/user"),
        (json!({"quota_us": 1}), "/quota_us"),
        (
            json!({"memory_max_bytes": 1_u64 << 60}),
            "/memory_max_bytes",
        ),
        (json!({"name": "silver"}), "/name"),
        (json!({"origin": "user"}), "/origin"),
        (json!({"wait": 1}), "/wait"),
    ] {
        let problem = send(&bench.socket(), "PATCH", GOLD, PATCH, &body.to_string()).problem(422);
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{body}");
    }
    let patch = |name: &str| {
        let path = format!("/v1/accounts/{name}");
        send(&bench.socket(), "PATCH", &path, PATCH, "{\"weight\":1}")
    };
    patch("none").problem(404);
    assert_eq!(get(&bench.socket(), GOLD).json()["weight"], 300);
}
