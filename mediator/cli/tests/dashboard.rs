//! The dashboard in a real browser: it shows running VMs, a weight is changed in it, and the shares
//! follow. Screenshots stay in `target/screens`. `top` reads the same daemon.

mod common;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use common::{Process, serve, turnstile, until, vm};
use serde_json::{Value, json};

/// A browser behind a WebDriver.
struct Browser {
    port: u16,
    session: String,
    _driver: Process,
}

fn exchange(port: u16, method: &str, path: &str, body: &Value) -> Option<Value> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let body = if method == "GET" {
        String::new()
    } else {
        body.to_string()
    };
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}").ok()?;
    // The driver keeps its connections open, despite the header.
    let mut answer = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        answer.read_line(&mut line).ok()?;
        match line.trim().to_lowercase().split_once(':') {
            Some(("content-length", count)) => length = count.trim().parse().ok()?,
            Some(_) => {}
            None if line.trim().is_empty() => break,
            None => {}
        }
    }
    let mut body = vec![0; length];
    answer.read_exact(&mut body).ok()?;
    Some(serde_json::from_slice::<Value>(&body).ok()?["value"].take())
}

impl Browser {
    /// None, with a message, where there is no browser.
    fn start(folder: &Path) -> Option<Self> {
        let driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut driver) = driver else {
            println!("SKIPPED: there is no chromedriver (packages chromium and chromium-driver)");
            return None;
        };
        let lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let driver = Process(driver);
        // "ChromeDriver was started successfully on port 12345."
        let port: Option<u16> = lines.map_while(Result::ok).find_map(|line| {
            let (_, port) = line.split_once("successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        let port = port.expect("the driver says its port");
        let mut args = vec![
            "--headless=new",
            "--disable-gpu",
            "--hide-scrollbars",
            "--no-first-run",
        ];
        // A browser that root starts refuses its sandbox.
        if rustix::process::geteuid().is_root() {
            args.push("--no-sandbox");
        }
        let profile = format!("--user-data-dir={}", folder.join("profile").display());
        args.push(&profile);
        let options =
            json!({"capabilities": {"alwaysMatch": {"goog:chromeOptions": {"args": args}}}});
        let session = exchange(port, "POST", "/session", &options).expect("a session");
        let id = session["sessionId"].as_str().map(str::to_owned);
        let session = id.unwrap_or_else(|| panic!("no browser: {session:#}"));
        Some(Self {
            port,
            session,
            _driver: driver,
        })
    }

    fn request(&self, method: &str, path: &str, body: &Value) -> Value {
        let path = format!("/session/{}{path}", self.session);
        exchange(self.port, method, &path, body).expect("the browser answers")
    }

    fn script(&self, script: &str) -> Value {
        self.request(
            "POST",
            "/execute/sync",
            &json!({"script": script, "args": []}),
        )
    }

    fn window(&self, width: u32, height: u32, dark: bool) {
        self.request(
            "POST",
            "/window/rect",
            &json!({"width": width, "height": height}),
        );
        let scheme = if dark { "dark" } else { "light" };
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        let command =
            json!({"cmd": "Emulation.setEmulatedMedia", "params": {"features": features}});
        self.request("POST", "/goog/cdp/execute", &command);
    }

    fn screenshot(&self, path: &Path) {
        let picture = self.request("GET", "/screenshot", &Value::Null);
        let bytes = base64(picture.as_str().unwrap());
        assert!(
            bytes.starts_with(b"\x89PNG") && bytes.len() > 10_000,
            "a picture of something"
        );
        fs::write(path, bytes).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = exchange(
            self.port,
            "DELETE",
            &format!("/session/{}", self.session),
            &Value::Null,
        );
    }
}

/// SOURCE: RFC 4648, section 4
fn base64(text: &str) -> Vec<u8> {
    let digit = |byte| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits: Vec<u32> = text.bytes().filter_map(digit).map(u32::from).collect();
    let mut bytes = Vec::new();
    for four in digits.chunks(4) {
        let bits = four
            .iter()
            .enumerate()
            .map(|(at, digit)| digit << (18 - 6 * at))
            .sum::<u32>();
        bytes.extend_from_slice(&bits.to_be_bytes()[1..four.len()]);
    }
    bytes
}

fn screens() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/screens");
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// The received part of a tenant in the last second that the page shows.
fn shown(browser: &Browser, name: &str) -> Option<f64> {
    let row = browser.script(&format!(
        "const row = document.querySelector('tr[data-tenant=\"{name}\"]'); return row && row.cells[6].textContent"
    ));
    row.as_str()?.trim_end_matches(" %").parse().ok()
}

#[test]
fn a_weight_that_is_changed_in_the_page_changes_the_shares() {
    let folder = tempfile::tempdir().unwrap();
    let _daemon = serve(folder.path(), &[]);
    let _vms = [("batch", "700"), ("interactive", "300"), ("train", "1500")]
        .map(|(name, us)| vm(folder.path(), name, &["--kernel-us", us]));
    let socket = folder.path().join("api.sock");
    let top = turnstile()
        .args(["top", "--api"])
        .arg(&socket)
        .args(["--batch", "--count", "1", "--output", "json"])
        .output()
        .unwrap();
    assert!(
        top.status.success(),
        "{}",
        String::from_utf8_lossy(&top.stderr)
    );
    let view: Value = serde_json::from_slice(&top.stdout).unwrap();
    assert!(view["interval_ns"].as_u64().unwrap() > 0, "{view:#}");

    let Some(browser) = Browser::start(folder.path()) else {
        return;
    };
    let ui = turnstile()
        .args(["ui", "--api"])
        .arg(&socket)
        .stdout(Stdio::piped())
        .spawn();
    let mut ui = Process(ui.unwrap());
    let mut address = String::new();
    BufReader::new(ui.0.stdout.take().unwrap())
        .read_line(&mut address)
        .unwrap();
    browser.window(1400, 1250, false);
    browser.request("POST", "/url", &json!({"url": address.trim()}));

    let third = |part: f64| (25.0..42.0).contains(&part);
    until("equal shares in the page", || {
        let parts = ["batch", "interactive", "train"].map(|name| shown(&browser, name));
        parts
            .iter()
            .all(|part| part.is_some_and(third))
            .then_some(())
    });
    let errors = browser.script("return [document.getElementById('link').textContent, document.querySelectorAll('.chart canvas').length]");
    assert_eq!(errors[0], "live", "{errors}");
    assert!(
        errors[1].as_u64() >= Some(2),
        "the charts are drawn: {errors}"
    );

    // As a person would: type a weight, and leave the field.
    browser.script(
        "const field = document.querySelector('tr[data-tenant=\"batch\"] input'); field.focus(); field.value = 800; \
         field.dispatchEvent(new Event('change'));",
    );
    let share = until("the share that the weight is worth", || {
        shown(&browser, "batch").filter(|part| (70.0..90.0).contains(part))
    });
    println!("batch, weight 800 of 1000: {share} % in the page");
    let shown = browser.script("return document.getElementById('said').textContent");
    assert!(shown.as_str().unwrap().contains("weight 800"), "{shown}");

    // A minute of history makes a better picture; a few seconds make one.
    until("some seconds to be drawn", || {
        browser
            .script("return views.length")
            .as_u64()
            .filter(|count| *count >= 8)
    });
    for (name, width, height) in [("wide", 1400, 1250), ("narrow", 500, 1500)] {
        for (shade, dark) in [("light", false), ("dark", true)] {
            browser.window(width, height, dark);
            until("the page in its new size", || {
                let fits = "return document.documentElement.scrollWidth <= window.innerWidth && \
                     [...document.querySelectorAll('.chart canvas')].every((canvas) => canvas.clientWidth <= canvas.closest('.chart').clientWidth + 1)";
                browser.script(fits).as_bool().filter(|fits| *fits)
            });
            browser.screenshot(&screens().join(format!("dashboard-{name}-{shade}.png")));
        }
    }
}

#[test]
fn page_dims_without_a_daemon_and_sets_caps_and_memory() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let page = tests.join("../../api/src/ui/app.js");
    let Ok(run) = Command::new("node")
        .arg(tests.join("page.js"))
        .arg(page)
        .output()
    else {
        println!("SKIPPED: node is not installed");
        return;
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        run.status.success(),
        "{}{}",
        text(&run.stdout),
        text(&run.stderr)
    );
    assert_eq!(text(&run.stdout).trim(), "11 checks");
}
