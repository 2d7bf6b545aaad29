//! Errors of requests that failed: RFC 9457.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Media type of a problem.
/// SOURCE: RFC 9457, 6.1
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// A request failed, or was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Names the kind of problem; `about:blank` if the status is enough.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind in words; the same for all problems of a kind.
    pub title: String,
    /// The status, again.
    #[schema(minimum = 400, maximum = 599)]
    pub status: u16,
    /// What is wrong, and what to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The request, as the audit and the log name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub instance: Option<Box<str>>,
    /// Where in the body.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
}

/// A part of a body that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldError {
    /// JSON pointer (RFC 6901).
    pub pointer: String,
    /// What is wrong with it.
    pub detail: String,
}

impl Problem {
    /// A problem of the kind of its status, with one sentence of detail.
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            kind: "about:blank".into(),
            title: status.canonical_reason().unwrap_or("Error").into(),
            status: status.as_u16(),
            detail: Some(detail.into()),
            instance: None,
            errors: Vec::new(),
        }
    }

    /// The body is JSON and not what is taken here.
    pub(super) fn field(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        let (pointer, detail) = (pointer.into(), detail.into());
        let mut problem = Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail.clone());
        problem.errors.push(FieldError { pointer, detail });
        problem
    }

    pub(super) fn no_vm(name: &str) -> Self {
        let name: String = name.chars().take(64).collect();
        Self::new(
            StatusCode::NOT_FOUND,
            format!("No tenant named {name:?} is connected, and nothing is set of one"),
        )
    }

    fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let kind = HeaderValue::from_static(PROBLEM_JSON);
        (self.status(), [(header::CONTENT_TYPE, kind)], Json(self)).into_response()
    }
}
