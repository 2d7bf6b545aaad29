//! Roles of callers, by the credentials that the kernel reports.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use turnstile_daemon::config::Principal;

use super::Bench;
use super::http::{Call, PATCH, PATIENCE, Reply, call, connect, exchange, get, send};

const UNKNOWN_ID: u32 = 61_000;

/// Sends a request as another user: the kernel reports the credentials of the connecting thread.
/// None if the connection was closed.
fn as_user(uid: u32, group: u32, socket: PathBuf, method: &'static str) -> Option<Reply> {
    let client = thread::spawn(move || {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(UNKNOWN_ID));
        set_thread_groups(&[Gid::from_raw(group)]).unwrap();
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
        let (path, headers, body) = match method {
            "GET" => ("/v1/vms", &[][..], ""),
            _ => (
                "/v1/vms/a/scheduling",
                &[("Content-Type", PATCH)][..],
                "{\"weight\":7}",
            ),
        };
        let request = Call {
            method,
            path,
            headers,
            body,
        };
        exchange(&mut connect(&socket), &request)
    });
    client.join().unwrap()
}

#[test]
fn a_viewer_cannot_write_and_a_stranger_gets_nothing() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: asking as other users needs root");
        return;
    }
    let bench = Bench::with(|section| {
        section.viewers = vec![Principal::Uid(60_001), Principal::Gid(60_002)];
        section.operators = vec![Principal::Gid(60_003)];
    });
    // Other users have to reach the sockets before they can be refused.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(bench.folder.path(), open).unwrap();
    send(
        &bench.socket(),
        "POST",
        "/v1/vms",
        "application/json",
        "{\"name\":\"a\"}",
    );
    let status = |uid, group, socket: PathBuf, method| {
        as_user(uid, group, socket, method).map(|reply| reply.status)
    };
    for socket in [bench.socket(), bench.path("api-ro.sock")] {
        let path = || socket.clone();
        assert_eq!(
            status(60_001, UNKNOWN_ID, path(), "GET"),
            Some(200),
            "viewer"
        );
        assert_eq!(
            status(60_001, UNKNOWN_ID, path(), "PATCH"),
            Some(403),
            "viewer"
        );
        assert_eq!(
            status(UNKNOWN_ID, 60_002, path(), "GET"),
            Some(200),
            "its group"
        );
        assert_eq!(
            status(UNKNOWN_ID, 60_002, path(), "PATCH"),
            Some(403),
            "its group"
        );
        assert_eq!(
            status(UNKNOWN_ID, UNKNOWN_ID, path(), "GET"),
            None,
            "stranger"
        );
        assert_eq!(
            status(UNKNOWN_ID, UNKNOWN_ID, path(), "PATCH"),
            None,
            "stranger"
        );
    }
    let scheduling = get(&bench.socket(), "/v1/vms/a/scheduling").json();
    assert_eq!(scheduling["weight"], 100, "nobody wrote");
    assert_eq!(
        status(UNKNOWN_ID, 60_003, bench.socket(), "PATCH"),
        Some(200)
    );
    assert_eq!(
        status(UNKNOWN_ID, 60_003, bench.path("api-ro.sock"), "PATCH"),
        Some(403)
    );
    let refused = as_user(60_001, UNKNOWN_ID, bench.socket(), "PATCH").unwrap();
    refused.problem(403);
}

#[test]
fn read_only_socket_refuses_writes() {
    let bench = Bench::new();
    let socket = bench.path("api-ro.sock");
    assert_eq!(get(&socket, "/v1/vms").status, 200);
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        let request = Call {
            method,
            path: "/v1/vms",
            headers: &[],
            body: "",
        };
        call(&socket, &request).problem(403);
    }
}

#[test]
fn slow_clients_do_not_block_others() {
    let bench = Bench::new();
    // Half a head, half a body, and many answers that are not read: as many viewers as are
    // permitted, and more.
    let mut slow = Vec::new();
    for number in 0..200 {
        let mut stream = connect(&bench.path("api-ro.sock"));
        let text = match number % 3 {
            0 => "GET /v1/vms HTTP/1.1\r\nHost".to_owned(),
            1 => "PUT /v1/vms/a HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\n{".to_owned(),
            _ => "GET /openapi.json HTTP/1.1\r\nHost: t\r\n\r\n".repeat(200),
        };
        stream.set_nonblocking(true).unwrap();
        let _ = stream.write(text.as_bytes());
        slow.push(stream);
    }
    let begin = Instant::now();
    for _ in 0..20 {
        assert_eq!(get(&bench.socket(), "/v1/vms").status, 200);
    }
    assert!(begin.elapsed() < PATIENCE);
    // A client that closes its connection frees its place.
    drop(slow);
    let begin = Instant::now();
    loop {
        let mut stream = connect(&bench.path("api-ro.sock"));
        let request = Call {
            method: "GET",
            path: "/healthz",
            headers: &[],
            body: "",
        };
        if exchange(&mut stream, &request).is_some_and(|reply| reply.status == 200) {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "no place came free");
    }
}

#[test]
fn events_are_streamed_as_they_happen() {
    let bench = Bench::new();
    let mut stream = connect(&bench.socket());
    let text = "GET /v1/events/stream HTTP/1.1\r\nHost: t\r\nLast-Event-ID: 0\r\n\r\n";
    stream.write_all(text.as_bytes()).unwrap();
    send(
        &bench.socket(),
        "POST",
        "/v1/vms",
        "application/json",
        "{\"name\":\"a\"}",
    );
    send(
        &bench.socket(),
        "PATCH",
        "/v1/vms/a/scheduling",
        PATCH,
        "{\"weight\":7}",
    );
    let mut seen = String::new();
    while !seen.contains("\"part\":\"scheduling\"") {
        let mut buffer = [0; 4096];
        let length = stream.read(&mut buffer).unwrap();
        assert!(length > 0, "{seen}");
        seen.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
    }
    assert!(
        seen.contains("text/event-stream") && seen.contains("event: vm_set"),
        "{seen}"
    );
    assert!(seen.contains("id: 1") && seen.contains("id: 2"), "{seen}");
    let page = get(&bench.socket(), "/v1/events?limit=1").json();
    assert_eq!(page["items"][0]["seq"], 1);
    assert_eq!(page["next_cursor"], "1");
    let change = &get(&bench.socket(), "/v1/events?cursor=1").json()["items"][0]["change"];
    assert_eq!(change["new"]["weight"], 7);
    assert!(
        change["by"].as_str().unwrap().starts_with("uid:"),
        "{change}"
    );
}
