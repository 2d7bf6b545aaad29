//! Minimal HTTP for tests, over any stream.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

/// TIMEOUT: an answer on a machine that builds at the same time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) headers: &'a [(&'a str, &'a str)],
    pub(crate) body: &'a str,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find_map(|(found, value)| found.eq_ignore_ascii_case(name).then_some(value))
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Asserts that it is a problem with this status, and returns it.
    pub(crate) fn problem(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json")
        );
        let problem = self.json();
        assert_eq!(problem["status"], status);
        assert!(
            problem["title"].is_string() && problem["detail"].is_string(),
            "{problem}"
        );
        problem
    }
}

pub(crate) fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends a request and returns its answer; none if the other end closed without one.
pub(crate) fn exchange(stream: &mut (impl Read + Write), call: &Call<'_>) -> Option<Reply> {
    let Call {
        method,
        path,
        headers,
        body,
    } = call;
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n");
    for (name, value) in *headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        text.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    text.push_str("\r\n");
    text.push_str(body);
    // A refused client, or one with too large a request, may find the socket closed before all of
    // it is sent.
    let _ = stream.write_all(text.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some(Reply {
        status: head.split(' ').nth(1)?.parse().ok()?,
        head: head.to_owned(),
        body: body.to_owned(),
    })
}

pub(crate) fn call(socket: &Path, call: &Call<'_>) -> Reply {
    exchange(&mut connect(socket), call).expect("an answer")
}

pub(crate) fn get(socket: &Path, path: &str) -> Reply {
    let get = Call {
        method: "GET",
        path,
        headers: &[],
        body: "",
    };
    call(socket, &get)
}

pub(crate) fn send(socket: &Path, method: &str, path: &str, kind: &str, body: &str) -> Reply {
    let send = Call {
        method,
        path,
        headers: &[("Content-Type", kind)],
        body,
    };
    call(socket, &send)
}

pub(crate) const JSON: &str = "application/json";
pub(crate) const PATCH: &str = "application/merge-patch+json";
