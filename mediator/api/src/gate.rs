//! Middleware of every request: its number, the caller's role, a time limit, and errors as
//! problems.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, Response, StatusCode, header};
use axum::middleware::Next;
use axum::response::IntoResponse;
use uuid::Uuid;

use super::Shared;
use super::access::{Caller, Role};
use super::problem::{PROBLEM_JSON, Problem};

/// TIMEOUT: a handler reads a body of a few KiB and waits for one fsync. The export of a ledger
/// streams after its handler has returned.
const REQUEST: Duration = Duration::from_secs(30);

/// Number of a request, as the audit names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestId(pub(super) Uuid);

pub(super) async fn pass(
    State(shared): State<Arc<Shared>>,
    mut request: Request,
    next: Next,
) -> Response<axum::body::Body> {
    let begin = Instant::now();
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let id = Uuid::new_v4();
    request.extensions_mut().insert(RequestId(id));
    let role = request
        .extensions()
        .get::<Caller>()
        .map(|caller| caller.role);
    let answered = match permitted(request.method(), role) {
        Ok(()) => match tokio::time::timeout(REQUEST, next.run(request)).await {
            Ok(response) => response,
            Err(_) => Problem::new(
                StatusCode::REQUEST_TIMEOUT,
                format!("It was not there in {} s", REQUEST.as_secs()),
            )
            .into_response(),
        },
        Err(problem) => problem.into_response(),
    };
    let mut response = as_problem(answered);
    if let Some(measured) = &shared.measured {
        let route = route.as_ref().map_or("none", MatchedPath::as_str);
        let seconds = begin.elapsed().as_secs_f64();
        measured.request(route, method.as_str(), response.status().as_u16(), seconds);
    }
    let headers = response.headers_mut();
    // PANIC: none; a UUID is ASCII
    if let Ok(id) = HeaderValue::from_str(&id.to_string()) {
        headers.insert("x-request-id", id);
    }
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}

fn permitted(method: &Method, role: Option<Role>) -> Result<(), Problem> {
    let needed = if method.is_safe() {
        Role::Viewer
    } else {
        Role::Operator
    };
    if role >= Some(needed) {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::FORBIDDEN,
        "You may look and not change: operators are root and whom api.operators names in the daemon's configuration, on the socket that is not read-only",
    ))
}

/// Errors that the router makes by itself have no body, or one of text.
fn as_problem(response: Response<axum::body::Body>) -> Response<axum::body::Body> {
    let status = response.status();
    let is_error = status.is_client_error() || status.is_server_error();
    let kind = response.headers().get(header::CONTENT_TYPE);
    if !is_error || kind.is_some_and(|kind| kind == PROBLEM_JSON) {
        return response;
    }
    let detail = match status {
        StatusCode::NOT_FOUND => {
            "There is no such resource; GET /openapi.json tells which there are"
        }
        StatusCode::METHOD_NOT_ALLOWED => "The resource does not take this method",
        StatusCode::BAD_REQUEST => "The path or the query cannot be read",
        _ => "The request was refused",
    };
    let mut problem = Problem::new(status, detail).into_response();
    if let Some(allow) = response.headers().get(header::ALLOW) {
        problem.headers_mut().insert(header::ALLOW, allow.clone());
    }
    problem
}
