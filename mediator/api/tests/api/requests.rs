//! Requests, good and bad.

use std::io::{Read, Write};
use std::time::Instant;

use turnstile_accounting::store::{Selection, SqliteStore, Store};

use super::Bench;
use super::http::{Call, JSON, PATCH, PATIENCE, Reply, call, connect, get, send};

const SCHEDULING: &str = "/v1/vms/a/scheduling";

/// A daemon that expects a tenant named a.
fn bench() -> Bench {
    let bench = Bench::new();
    let made = send(&bench.socket(), "POST", "/v1/vms", JSON, "{\"name\":\"a\"}");
    assert_eq!(
        (made.status, made.header("location")),
        (201, Some("/v1/vms/a"))
    );
    bench
}

fn put_if(bench: &Bench, body: &str, tag: &str) -> Reply {
    let put = Call {
        method: "PUT",
        path: SCHEDULING,
        headers: &[("Content-Type", JSON), ("If-Match", tag)],
        body,
    };
    call(&bench.socket(), &put)
}

#[test]
fn a_body_that_cannot_be_taken_is_a_problem() {
    let bench = bench();
    let put = |kind: &str, body: &str| send(&bench.socket(), "PUT", SCHEDULING, kind, body);
    put(JSON, "").problem(400);
    put(JSON, "{").problem(400);
    put(JSON, "{\"weight\":1}x").problem(400);
    put(JSON, &"[".repeat(10_000)).problem(400);
    put(JSON, "\u{0}").problem(400);
    put("text/plain", "{\"weight\":1}").problem(415);
    put(PATCH, "{\"weight\":1}").problem(415);
    put(JSON, &format!("{{\"weight\":1{}}}", " ".repeat(40_000))).problem(413);
    for (body, pointer) in [
        ("{\"weight\":0}", "/weight"),
        ("{\"weight\":10001}", "/weight"),
        ("{\"weight\":\"1\"}", "/weight"),
        ("{\"weight\":1,\"wait\":2}", "/wait"),
        ("{\"weight\":[1]}", "/weight"),
        ("[1]", ""),
        ("{\"weight\":1,\"quota_us\":1}", "/quota_us"),
        (
            "{\"weight\":1,\"quota_us\":5000,\"period_us\":4000}",
            "/quota_us",
        ),
        ("{\"weight\":1,\"period_us\":1}", "/period_us"),
        ("{\"weight\":1,\"latency_target\":1}", "/latency_target"),
        ("{\"weight\":1,\"gang\":1}", "/gang"),
    ] {
        let problem = put(JSON, body).problem(422);
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{body}");
    }
    let patch = |body: &str| send(&bench.socket(), "PATCH", SCHEDULING, PATCH, body);
    patch("[]").problem(422);
    patch("{\"weight\":null}").problem(422);
    assert_eq!(get(&bench.socket(), SCHEDULING).json()["weight"], 100);
}

#[test]
fn a_body_without_a_length_is_bounded_too() {
    let bench = bench();
    let mut stream = connect(&bench.socket());
    let head = format!(
        "PUT {SCHEDULING} HTTP/1.1\r\nHost: t\r\nContent-Type: {JSON}\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = format!("1000\r\n{}\r\n", " ".repeat(4096));
    for _ in 0..1_000 {
        // The daemon stops reading, and closes.
        if stream.write_all(chunk.as_bytes()).is_err() {
            break;
        }
    }
    let mut answer = [0; 12];
    if stream.read_exact(&mut answer).is_ok() {
        assert_eq!(&answer, b"HTTP/1.1 413");
    }
    assert_eq!(get(&bench.socket(), SCHEDULING).status, 200);
}

#[test]
fn what_is_not_there_is_a_problem() {
    let bench = bench();
    let socket = bench.socket();
    for path in [
        "/",
        "/v2",
        "/v1/vms/b",
        "/v1/vms/b/scheduling",
        "/v1/vms/%2e%2e",
        "/v1/gpus/x",
    ] {
        get(&socket, path).problem(404);
    }
    let removed = Call {
        method: "DELETE",
        path: "/v1/gpus",
        headers: &[],
        body: "",
    };
    let refused = call(&socket, &removed);
    refused.problem(405);
    assert!(refused.header("allow").unwrap().contains("GET"));
    for path in [
        "/v1/vms?limit=0",
        "/v1/vms?limit=x",
        "/v1/vms?l=1",
        "/v1/events?cursor=x",
        "/v1/vms/%ff",
    ] {
        get(&socket, path).problem(400);
    }
    // A name that is no text is no path; whatever it is, it is answered.
    assert_eq!(get(&socket, "/v1/gpus/software-0").status, 200);
}

#[test]
fn versions_are_respected() {
    let bench = bench();
    let first = get(&bench.socket(), SCHEDULING);
    let tag = first.header("etag").unwrap();
    let again = Call {
        method: "GET",
        path: SCHEDULING,
        headers: &[("If-None-Match", tag)],
        body: "",
    };
    assert_eq!(call(&bench.socket(), &again).status, 304);
    let set = put_if(&bench, "{\"weight\":300}", tag);
    assert_eq!(
        (set.status, set.json()["weight"].as_u64()),
        (200, Some(300))
    );
    put_if(&bench, "{\"weight\":7}", tag).problem(412);
    assert_eq!(
        put_if(&bench, "{\"weight\":8}", set.header("etag").unwrap()).status,
        200
    );
    assert_eq!(put_if(&bench, "{\"weight\":9}", "*").status, 200);

    let strict = Bench::with(|section| section.require_if_match = true);
    send(
        &strict.socket(),
        "POST",
        "/v1/vms",
        JSON,
        "{\"name\":\"a\"}",
    );
    send(&strict.socket(), "PUT", SCHEDULING, JSON, "{\"weight\":7}").problem(428);
    assert_eq!(put_if(&strict, "{\"weight\":7}", "*").status, 200);
}

#[test]
fn what_was_set_survives_a_restart_and_is_in_the_ledger() {
    let mut bench = bench();
    let patch = |bench: &Bench, path: &str, body: &str| {
        let set = send(&bench.socket(), "PATCH", path, PATCH, body);
        assert_eq!(set.status, 200, "{set:?}");
    };
    patch(&bench, SCHEDULING, "{\"weight\":300,\"quota_us\":25000}");
    patch(&bench, "/v1/vms/a/memory", "{\"max_bytes\":4194304}");
    let before = [SCHEDULING, "/v1/vms/a/memory"].map(|path| get(&bench.socket(), path).body);
    assert_eq!(
        before[0],
        "{\"weight\":300,\"quota_us\":25000,\"period_us\":100000,\"latency_target\":false,\"gang\":false}"
    );
    bench.start(|_| {});
    let after = [SCHEDULING, "/v1/vms/a/memory"].map(|path| get(&bench.socket(), path).body);
    assert_eq!(after, before);
    patch(&bench, SCHEDULING, "{\"quota_us\":null,\"period_us\":null}");
    bench.stop();
    let mut store = SqliteStore::read(&bench.path("ledger")).unwrap();
    let mut changes = Vec::new();
    let mut visit = |change| {
        changes.push(change);
        Ok(true)
    };
    store.changes(&Selection::default(), &mut visit).unwrap();
    let parts: Vec<&str> = changes.iter().map(|change| &*change.part).collect();
    assert_eq!(parts, ["vm", "scheduling", "memory", "scheduling"]);
    assert!(changes[1].new.contains("\"weight\":300") && changes[1].by.starts_with("uid:"));
    assert_eq!(changes[3].old, changes[2].new);
    assert_ne!(changes[3].boot, changes[2].boot);
}

#[test]
fn a_write_that_cannot_be_kept_is_not_made() {
    let bench = bench();
    let state = bench.path("state.json");
    std::fs::remove_file(&state).unwrap();
    std::fs::create_dir(&state).unwrap();
    std::fs::write(state.join("in the way"), "").unwrap();
    send(
        &bench.socket(),
        "PATCH",
        SCHEDULING,
        PATCH,
        "{\"weight\":7}",
    )
    .problem(503);
    assert_eq!(get(&bench.socket(), SCHEDULING).json()["weight"], 100);
}

#[test]
fn limits_have_to_mean_something() {
    let bench = bench();
    let patch = |body: &str| send(&bench.socket(), "PATCH", "/v1/vms/a/memory", PATCH, body);
    patch("{\"max_bytes\":-1}").problem(422);
    patch("{\"max_bytes\":1125899906842625}").problem(422);
    patch("{\"max_bytes\":1,\"high_bytes\":2}").problem(409);
    // The memory of this GPU does not move.
    patch("{\"min_bytes\":2097152}").problem(409);
    assert_eq!(patch("{\"max_bytes\":2097152}").status, 200);
}

#[test]
fn tenants_are_registered_once_listed_in_pages_and_forgotten() {
    let bench = bench();
    let socket = bench.socket();
    let body = "{\"name\":\"a\",\"scheduling\":{\"weight\":7}}";
    send(&socket, "POST", "/v1/vms", JSON, body).problem(409);
    assert_eq!(
        send(&socket, "POST", "/v1/vms", JSON, "{\"name\":\"a\"}").status,
        200
    );
    send(&socket, "POST", "/v1/vms", JSON, "{\"name\":\"a/b\"}").problem(422);
    for name in ["b", "c", "d", "e"] {
        let body = format!("{{\"name\":\"{name}\",\"memory\":{{\"max_bytes\":null}}}}");
        assert_eq!(send(&socket, "POST", "/v1/vms", JSON, &body).status, 201);
    }
    let (mut names, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = get(&socket, &format!("/v1/vms?limit=2{cursor}")).json();
        let items = page["items"].as_array().unwrap();
        names.extend(
            items
                .iter()
                .map(|vm| vm["name"].as_str().unwrap().to_owned()),
        );
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
    let forget = Call {
        method: "DELETE",
        path: "/v1/vms/c",
        headers: &[],
        body: "",
    };
    assert_eq!(call(&socket, &forget).status, 204);
    call(&socket, &forget).problem(404);
}

#[test]
fn usage_is_all_of_it_or_a_refusal() {
    let bench = bench();
    let socket = bench.socket();
    get(&socket, "/v1/usage").problem(400);
    let range = "from=2020-11-20T13:00:00Z&to=2020-11-20T14:00:00Z";
    let late = "from=2020-11-20T13:00:00Z&to=2106-11-20T14:00:00Z";
    get(&socket, &format!("/v1/usage?{late}")).problem(400);
    let begin = Instant::now();
    // Until the first window is closed there are no entries of any GPU.
    while get(&socket, &format!("/v1/usage?{range}")).status == 404 {
        assert!(begin.elapsed() < PATIENCE, "no window was closed");
    }
    // Before the ledger: refused, or all of it is time without a record.
    get(&socket, &format!("/v1/usage?{range}")).problem(409);
    let range = format!("{range}&allow_gaps=true");
    let used = get(&socket, &format!("/v1/usage?{range}"));
    let unknown_ns = used.json()["unknown_ns"].as_u64();
    assert_eq!(unknown_ns, Some(3_600_000_000_000), "{used:?}");
    assert_eq!(
        used.json()["items"].as_array().map(Vec::len),
        Some(0),
        "{used:?}"
    );
    let events = get(&socket, &format!("/v1/usage/events?{range}"));
    assert_eq!((events.status, events.body.lines().count()), (200, 1));
    assert!(events.body.contains("unrecorded"), "{events:?}");
    let open = "from=2106-11-20T13:00:00Z&to=2106-11-20T14:00:00Z";
    get(&socket, &format!("/v1/usage?{open}")).problem(409);
    get(&socket, &format!("/v1/usage/events?{open}")).problem(409);
    get(&socket, &format!("/v1/usage?{range}&gpu=x")).problem(404);
}

#[test]
fn half_requests_of_one_user_do_not_shut_it_out() {
    let bench = bench();
    let half = || {
        let mut stream = connect(&bench.socket());
        stream
            .write_all(b"GET /v1/vms HTTP/1.1\r\nHost: a\r\n")
            .unwrap();
        stream
    };
    let mut held: Vec<_> = (0..64).map(|_| half()).collect();
    assert_eq!(get(&bench.socket(), "/v1/vms").status, 200);
    // The slowest ended.
    let ended = held[0].read(&mut [0]);
    let reset = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
    assert!(
        ended.as_ref().map_or_else(reset, |bytes| *bytes == 0),
        "{ended:?}"
    );
}

#[test]
fn event_streams_of_one_client_are_bounded() {
    let bench = bench();
    let follow = || {
        let mut stream = connect(&bench.socket());
        let request = b"GET /v1/events/stream HTTP/1.1\r\nHost: a\r\n\r\n";
        stream.write_all(request).unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        (String::from_utf8_lossy(&head).into_owned(), stream)
    };
    let streams: Vec<_> = (0..16).map(|_| follow()).collect();
    assert!(streams.iter().all(|(head, _)| head.ends_with("200")));
    assert!(follow().0.ends_with("429"));
    drop(streams);
    let begin = Instant::now();
    while !follow().0.ends_with("200") {
        assert!(begin.elapsed() < PATIENCE);
    }
}

#[test]
fn metrics_are_open_metrics_where_a_reader_requests_it() {
    let bench = bench();
    let metrics = |headers: &[(&str, &str)]| {
        let get = Call {
            method: "GET",
            path: "/metrics",
            headers,
            body: "",
        };
        call(&bench.socket(), &get)
    };
    let open = metrics(&[("Accept", "application/openmetrics-text")]);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(
        (open.status, open.header("content-type")),
        (200, Some(kind))
    );
    assert!(open.body.ends_with("\n# EOF\n"), "{}", open.body);
    let unit = "# UNIT turnstile_gpu_time_seconds seconds\n";
    assert!(open.body.contains(unit), "{}", open.body);
    let plain = metrics(&[("Accept", "*/*")]);
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    assert_eq!(
        (plain.status, plain.header("content-type")),
        (200, Some(kind))
    );
    assert_eq!(plain.header("vary"), Some("accept"));
    assert!(!plain.body.contains("# EOF"), "{}", plain.body);
}

#[test]
fn the_version_is_the_programs() {
    let bench = bench();
    let version = "1.2.3-4-gabc";
    for path in ["/v1/version", "/v1/host"] {
        assert_eq!(get(&bench.socket(), path).json()["version"], version);
    }
    let metrics = get(&bench.socket(), "/metrics").body;
    let line = format!("turnstile_build_info{{version=\"{version}\"");
    assert!(metrics.contains(&line), "{metrics}");
}
