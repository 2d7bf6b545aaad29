//! `turnstile ui`: the dashboard in a browser on this machine.
//!
//! The daemon serves the page on its Unix socket, which browsers do not connect to. This proxy
//! connects both: it listens on the loopback address and has the role of the user that started it.
//! Other users of this machine, and pages of other origins in the same browser, can reach that
//! address too. Every request therefore has to carry a secret that only the printed address has.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, UnixStream};
use turnstile_api::client::default_socket;
use uuid::Uuid;

/// The cookie that carries the secret.
const COOKIE: &str = "turnstile";

/// Arguments of `ui`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The daemon's API socket
    #[arg(long, default_value_os_t = default_socket(), hide_default_value = true, value_name = "SOCKET")]
    api: PathBuf,
    /// Port on the loopback address; any that is free unless named
    #[arg(long, default_value_t = 0)]
    port: u16,
}

/// Shared state of all requests.
#[derive(Debug)]
struct Door {
    socket: PathBuf,
    secret: String,
    /// Accepted names of the page's host: any other was made to resolve to this address by another
    /// site.
    hosts: [String; 2],
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(serve(args))
}

async fn serve(args: &Args) -> anyhow::Result<()> {
    UnixStream::connect(&args.api).await.with_context(|| {
        format!(
            "No daemon answers on {}; start one, or name its socket with --api",
            args.api.display()
        )
    })?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, args.port));
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("{address} cannot be listened on; choose another --port"))?;
    let port = listener.local_addr()?.port();
    let door = Door {
        socket: args.api.clone(),
        secret: Uuid::new_v4().simple().to_string(),
        hosts: [format!("127.0.0.1:{port}"), format!("localhost:{port}")],
    };
    println!("http://127.0.0.1:{port}/?{}", door.secret);
    eprintln!("turnstile: open this address in a browser; it is yours alone. Ctrl-C ends it");
    let router = Router::new().fallback(pass).with_state(Arc::new(door));
    Ok(axum::serve(listener, router).await?)
}

async fn pass(State(door): State<Arc<Door>>, request: Request) -> Response {
    if request.uri().path() == "/" && request.uri().query() == Some(&door.secret) {
        return door.let_in();
    }
    if !door.knows(request.headers()) {
        let text = "Use the address that turnstile ui printed";
        return (StatusCode::FORBIDDEN, text).into_response();
    }
    match forward(&door, request).await {
        Ok(response) => response,
        Err(error) => {
            let text = format!("The daemon did not answer: {error}");
            (StatusCode::BAD_GATEWAY, text).into_response()
        }
    }
}

impl Door {
    /// Moves the secret from the address into a cookie.
    fn let_in(&self) -> Response {
        let cookie = format!(
            "{COOKIE}={}; Path=/; HttpOnly; SameSite=Strict",
            self.secret
        );
        let headers = [
            (header::SET_COOKIE, cookie),
            (header::LOCATION, "/ui/".to_owned()),
            (header::REFERRER_POLICY, "no-referrer".to_owned()),
        ];
        (StatusCode::SEE_OTHER, headers).into_response()
    }

    fn knows(&self, headers: &HeaderMap) -> bool {
        let text = |value: &HeaderValue| value.to_str().map(str::to_owned).unwrap_or_default();
        let host = headers.get(header::HOST).map(text).unwrap_or_default();
        let shown = headers.get_all(header::COOKIE).iter().any(|cookies| {
            text(cookies).split(';').any(|cookie| {
                cookie.trim().strip_prefix(COOKIE) == Some(&format!("={}", self.secret))
            })
        });
        shown && self.hosts.contains(&host)
    }
}

/// Forwards a request to the daemon and streams its answer back: the stream of events does not end.
async fn forward(
    door: &Door,
    mut request: Request,
) -> Result<Response, Box<dyn std::error::Error + Send + Sync>> {
    let stream = UnixStream::connect(&door.socket).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    // The secret is between the browser and this proxy.
    request.headers_mut().remove(header::COOKIE);
    let path = request.uri().path_and_query().map(ToString::to_string);
    *request.uri_mut() = path.unwrap_or_default().parse()?;
    let response = sender.send_request(request).await?;
    Ok(response.map(Body::new))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door() -> Door {
        Door {
            socket: PathBuf::new(),
            secret: "abc".into(),
            hosts: ["127.0.0.1:80".into(), "localhost:80".into()],
        }
    }

    fn headers(host: &'static str, cookie: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static(host));
        headers.insert(header::COOKIE, HeaderValue::from_static(cookie));
        headers
    }

    #[test]
    fn request_needs_the_secret_and_the_local_host_name() {
        let door = door();
        assert!(door.knows(&headers("localhost:80", "a=b; turnstile=abc")));
        assert!(!door.knows(&headers("localhost:80", "turnstile=abcd")));
        assert!(!door.knows(&headers("localhost:80", "turnstile=")));
        assert!(!door.knows(&headers("evil.example:80", "turnstile=abc")));
        assert!(!door.knows(&HeaderMap::new()));
    }

    #[test]
    fn a_page_of_another_origin_cannot_use_the_cookie() {
        let response = door().let_in();
        let cookie = response.headers()[header::SET_COOKIE].to_str().unwrap();
        assert!(cookie.contains("SameSite=Strict") && cookie.contains("HttpOnly"));
    }
}
