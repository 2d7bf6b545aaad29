//! A configuration that changes under a running daemon, and the use of a price list: SIGHUP,
//! metrics on an address of their own, bills over the API.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::Signal;

use super::common::{Process, turnstile, until, vm};
use super::http::{Call, exchange, get};

/// A daemon with a configuration file, and its messages.
struct Served {
    daemon: Process,
    folder: tempfile::TempDir,
}

impl Served {
    fn start(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("turnstile.toml"), config).unwrap();
        let made = turnstile()
            .args(["usage", "synthesise", "--seed", "1", "--ledger"])
            .arg(path("ledger"))
            .status();
        assert!(made.unwrap().success());
        let child = turnstile()
            .arg("serve")
            .arg("--config")
            .arg(path("turnstile.toml"))
            .arg("--socket")
            .arg(path("vmm.sock"))
            .arg("--ledger")
            .arg(path("ledger"))
            .stdout(Stdio::null())
            .stderr(fs::File::create(path("said")).unwrap())
            .spawn();
        let served = Self {
            daemon: Process(child.unwrap()),
            folder,
        };
        let socket = served.path("api.sock");
        until("the socket", || socket.exists().then_some(()));
        served
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn messages(&self) -> String {
        fs::read_to_string(self.path("said")).unwrap()
    }

    /// Makes the daemon read this configuration, and waits for `answer` in its messages.
    fn reload(&self, config: &str, answer: &str) {
        fs::write(self.path("turnstile.toml"), config).unwrap();
        let before = self.messages().len();
        self.daemon.signal(Signal::HUP);
        until(answer, || {
            self.messages()[before..].contains(answer).then_some(())
        });
    }
}

/// The answer of an address to `GET`.
fn tcp(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

fn prices(folder: &Path) -> PathBuf {
    let text = fs::read_to_string("../../accounting/tests/prices.toml").unwrap();
    let text = text
        .replace("NVIDIA H200", "*")
        .replace("name = \"vm-a\"", "name = \"a\"");
    let path = folder.join("prices.toml");
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn reload_applies_changes_and_names_those_that_need_a_restart() {
    let served = Served::start("[ledger]\nwindow_ms = 60000\n");
    let socket = served.path("api.sock");
    let _a = vm(served.folder.path(), "a", &["--kernel-us", "500"]);
    let metrics = || get(&socket, "/metrics").body;
    until("a second of figures", || {
        let at = "turnstile_vm_slices_total";
        let text = metrics();
        let line = text.lines().find(|line| line.starts_with(at))?;
        (!line.ends_with(" 0")).then_some(())
    });
    assert!(!metrics().contains("DCGM_FI"), "off by default");
    let put = |headers: &[(&str, &str)]| {
        let call = Call {
            method: "PUT",
            path: "/v1/vms/a/scheduling",
            headers,
            body: "{\"weight\":200}",
        };
        let mut stream = super::http::connect(&socket);
        exchange(&mut stream, &call).unwrap().status
    };
    let json = ("content-type", "application/json");
    assert_eq!(put(&[json]), 200);
    let focus = "/v1/usage/focus?from=2026-11-20T13:00:00Z&to=2026-11-20T14:00:00Z&gpu=synthetic-1";
    get(&socket, focus).problem(404);

    let prices = prices(served.folder.path());
    let config = format!(
        "[api]\nrequire_if_match = true\n[ledger]\nwindow_ms = 500\nprices = \"{}\"\n[metrics]\ndcgm_compat = true\n\
         [scheduling]\ndefault_weight = 300\n",
        prices.display()
    );
    served.reload(
        &config,
        "now in force: api.require_if_match, ledger.prices, metrics.dcgm_compat, scheduling.default_weight; \
         waits for a restart: ledger.window_ms",
    );
    assert_eq!(put(&[json]), 428, "If-Match is required now");
    assert_eq!(put(&[json, ("if-match", "*")]), 200);
    until("DCGM's name for a share, and the project", || {
        let text = metrics();
        let share = "DCGM_FI_PROF_GR_ENGINE_ACTIVE{";
        (text.contains(share) && text.contains("project_id=\"proj-9\"")).then_some(())
    });
    assert!(metrics().contains("turnstile_api_requests_total{code=\"428\",method=\"PUT\",route=\"/v1/vms/{name}/scheduling\"} 1"));
    let _b = vm(served.folder.path(), "b", &[]);
    until("a tenant with the new weight", || {
        let reply = get(&socket, "/v1/vms/b/scheduling");
        (reply.status == 200).then(|| assert_eq!(reply.json()["weight"], 300))
    });

    // The bill over the API is the one that the command writes.
    let over_the_api = get(&socket, focus);
    assert_eq!(over_the_api.status, 200, "{}", over_the_api.body);
    assert_eq!(over_the_api.header("content-type"), Some("text/csv"));
    let bill = turnstile()
        .args([
            "usage",
            "export",
            "--format",
            "focus-1.4",
            "--gpu",
            "synthetic-1",
        ])
        .args([
            "--from",
            "2026-11-20T13:00:00Z",
            "--to",
            "2026-11-20T14:00:00Z",
        ])
        .arg("--ledger")
        .arg(served.path("ledger"))
        .arg("--prices")
        .arg(&prices)
        .output()
        .unwrap();
    assert!(bill.status.success());
    assert_eq!(over_the_api.body.as_bytes(), &bill.stdout[..]);
    let version = get(&socket, &format!("{focus}&version=1.2"));
    assert!(version.body.contains("ProviderName") && version.status == 200);
    get(&socket, &format!("{focus}&version=1.3")).problem(400);
    let reply = metrics();
    assert!(
        reply.contains("turnstile_export_failures_total 0"),
        "{reply}"
    );

    served.reload(
        "[api]\nviewers = [\"group:no such group\"]\n",
        "Nothing was reloaded",
    );
    served.reload("[leger]\n", "Nothing was reloaded");
    assert_eq!(put(&[json]), 428, "all is as it was");
    assert!(served.path("vmm.sock").exists());
}

#[test]
fn metrics_have_an_address_of_their_own_and_nothing_else_is_on_it() {
    // Free a moment ago; no other process on this host is likely to take it.
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let _served = Served::start(&format!("[metrics]\nlisten = \"{address}\"\n"));
    let reply = until("an answer", || tcp(address, "/metrics"));
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    assert!(reply.contains("turnstile_build_info{"), "{reply}");
    for path in ["/v1/vms", "/ui/", "/"] {
        let reply = tcp(address, path).unwrap();
        assert!(reply.starts_with("HTTP/1.1 404"), "{path}: {reply}");
    }
}
