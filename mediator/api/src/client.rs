//! A client for the API's Unix socket, for the command line: one request and answer per connection.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::Bytes;
pub use axum::http::Method;
use axum::http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::net::UnixStream;

use turnstile_host::run_folder;

use super::body::MERGE_PATCH;
use super::page::Page;
use super::problem::{PROBLEM_JSON, Problem};

/// Where the daemon of this user listens, else that of the system.
pub fn default_socket() -> PathBuf {
    run_folder::find(run_folder::API)
}

/// TIMEOUT: longer than a daemon takes for its longest answer.
const ANSWER: Duration = Duration::from_secs(60);

/// Largest answer; exports are made from the ledger itself.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Why there is no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon listens.
    #[error("No daemon listens on {}; start one (turnstile serve), or name its socket with --api", path.display())]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The socket may not be used.
    #[error("You may not use {}; request a role (api.operators, api.viewers in the daemon's configuration), or be root", path.display())]
    Denied {
        /// The socket.
        path: PathBuf,
    },
    /// The other end is no daemon, or has gone.
    #[error("The daemon on {} did not answer", path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// How.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A change that changes nothing, which is not requested.
    #[error("Nothing is to be set; name what by {options}")]
    Nothing {
        /// Options that name a change.
        options: String,
    },
    /// A VM still has work when the time of its drain has passed.
    #[error("{name} still has work after {seconds} s and stays; --force ends it")]
    Busy {
        /// The VM.
        name: String,
        /// The time.
        seconds: u64,
    },
    /// An argument is outside its limits.
    #[error("{text}")]
    Argument {
        /// Which, and why.
        text: String,
    },
    /// The daemon refused.
    #[error("{}", .0.detail.as_deref().unwrap_or(&.0.title))]
    Refused(Box<Problem>),
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Version of the resource.
    pub etag: Option<String>,
    /// The body.
    pub body: Bytes,
}

/// A request.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// Method.
    pub method: Method,
    /// Path and query.
    pub path: &'a str,
    /// Media type and bytes.
    pub body: Option<(&'a str, Vec<u8>)>,
    /// Version that is changed.
    pub if_match: Option<&'a str>,
}

/// A client of one daemon.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// A client of the daemon on this socket.
    pub fn new(socket: &Path) -> Self {
        let socket = socket.to_owned();
        Self { socket }
    }

    /// Reads a resource.
    ///
    /// # Errors
    /// If there is no daemon, it refuses, or its answer is of another type.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let answer = self.call(&Call {
            method: Method::GET,
            path,
            body: None,
            if_match: None,
        })?;
        self.read(&answer)
    }

    /// Reads all pages of a list.
    ///
    /// # Errors
    /// If there is no daemon, it refuses, or its answer is of another type.
    pub fn list<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, ClientError> {
        let (mut all, mut cursor) = (Vec::new(), String::new());
        loop {
            let page: Page<T> = self.get(&format!("{path}?limit=1000{cursor}"))?;
            all.extend(page.items);
            match page.next_cursor {
                // A name's only character that has to be escaped.
                Some(next) => cursor = format!("&cursor={}", next.replace('+', "%2B")),
                None => return Ok(all),
            }
        }
    }

    /// Changes a resource by a merge patch, unless its version changed meanwhile. A resource that
    /// does not exist is created first, if `made` has the collection's path and the body.
    ///
    /// # Errors
    /// If there is no daemon or it refuses.
    pub fn patch(
        &self,
        path: &str,
        changes: Map<String, Value>,
        made: Option<(&str, Value)>,
    ) -> Result<(), ClientError> {
        let get = Call {
            method: Method::GET,
            path,
            body: None,
            if_match: None,
        };
        // A change that another caller makes between these two is not overwritten.
        let etag = match (self.call(&get), made) {
            (Err(ClientError::Refused(problem)), Some((all, body))) if problem.status == 404 => {
                self.call(&Call {
                    method: Method::POST,
                    path: all,
                    body: Some(("application/json", body.to_string().into_bytes())),
                    if_match: None,
                })?;
                self.call(&get)?.etag
            }
            (answer, _) => answer?.etag,
        };
        let body = Value::Object(changes).to_string().into_bytes();
        self.call(&Call {
            method: Method::PATCH,
            body: Some((MERGE_PATCH, body)),
            if_match: etag.as_deref(),
            ..get
        })?;
        Ok(())
    }

    /// Deletes a resource, whatever its version.
    ///
    /// # Errors
    /// If there is no daemon or it refuses.
    pub fn delete(&self, path: &str) -> Result<(), ClientError> {
        self.call(&Call {
            method: Method::DELETE,
            path,
            body: None,
            if_match: Some("*"),
        })?;
        Ok(())
    }

    /// Reads an answer's body.
    ///
    /// # Errors
    /// If it is of another type.
    pub fn read<T: DeserializeOwned>(&self, answer: &Answer) -> Result<T, ClientError> {
        serde_json::from_slice(&answer.body).map_err(|error| self.broken(error))
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// If there is no daemon or it refuses.
    pub fn call(&self, call: &Call<'_>) -> Result<Answer, ClientError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| self.broken(error))?;
        runtime.block_on(async {
            match tokio::time::timeout(ANSWER, self.exchange(call)).await {
                Ok(answer) => answer,
                Err(late) => Err(self.broken(late)),
            }
        })
    }

    fn broken(&self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ClientError {
        ClientError::Broken {
            path: self.socket.clone(),
            source: source.into(),
        }
    }

    async fn exchange(&self, call: &Call<'_>) -> Result<Answer, ClientError> {
        let path = || self.socket.clone();
        let stream = UnixStream::connect(&self.socket).await;
        let stream = stream.map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied => ClientError::Denied { path: path() },
            _ => ClientError::Unreachable {
                path: path(),
                source,
            },
        })?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.broken(error))?;
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method(&call.method)
            .uri(call.path)
            .header(header::HOST, "turnstile");
        if let Some(tag) = call.if_match {
            request = request.header(header::IF_MATCH, tag);
        }
        let mut bytes = Vec::new();
        if let Some((kind, body)) = &call.body {
            request = request.header(header::CONTENT_TYPE, *kind);
            bytes.clone_from(body);
        }
        let request = request
            .body(Full::new(Bytes::from(bytes)))
            .map_err(|error| self.broken(error))?;
        // The daemon closes connections of callers without a role.
        let response = sender.send_request(request).await.map_err(|error| {
            if error.is_incomplete_message() || error.is_canceled() {
                ClientError::Denied { path: path() }
            } else {
                self.broken(error)
            }
        })?;
        let (head, body) = response.into_parts();
        let text = |name| {
            let value = head.headers.get(name).and_then(|value| value.to_str().ok());
            value.map(str::to_owned)
        };
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| self.broken(error))?.to_bytes();
        if head.status.is_success() {
            let etag = text(header::ETAG);
            return Ok(Answer { etag, body });
        }
        let problem = text(header::CONTENT_TYPE)
            .filter(|kind| kind == PROBLEM_JSON)
            .and_then(|_| serde_json::from_slice(&body).ok());
        Err(ClientError::Refused(Box::new(problem.unwrap_or_else(
            || Problem::new(head.status, format!("The daemon answered {}", head.status)),
        ))))
    }
}

impl ClientError {
    /// Exit code of a command that failed with this error: 3 not found, 4 no daemon, 5 conflict, 6
    /// not permitted, 2 refused as wrong, 1 anything else.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Unreachable { .. } => 4,
            Self::Denied { .. } => 6,
            Self::Broken { .. } => 1,
            Self::Nothing { .. } | Self::Argument { .. } => 2,
            Self::Busy { .. } => 5,
            Self::Refused(problem) => match StatusCode::from_u16(problem.status) {
                Ok(StatusCode::NOT_FOUND) => 3,
                Ok(StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED) => 5,
                Ok(StatusCode::FORBIDDEN) => 6,
                Ok(StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY) => 2,
                _ => 1,
            },
        }
    }
}
