//! Bodies: bounded, of the right type, and refused with the place of what is wrong in them.

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::Segment;

use super::problem::{FieldError, Problem};

/// Bytes of a body at most; the largest that means something has a few hundred.
pub(super) const BODY_BYTES_MAX: usize = 16 << 10;

/// Media type of a merge patch.
/// SOURCE: RFC 7396, 4
pub const MERGE_PATCH: &str = "application/merge-patch+json";

/// A whole resource, as JSON.
#[derive(Debug)]
pub(super) struct Whole<T>(pub(super) T);

/// Changes to a resource, as a merge patch.
#[derive(Debug)]
pub(super) struct Patch(Value);

impl Patch {
    /// The resource as it is after the changes.
    pub(super) fn apply<T: DeserializeOwned>(&self, to: &impl Serialize) -> Result<T, Problem> {
        let mut document = serde_json::to_value(to).unwrap_or_default();
        json_patch::merge(&mut document, &self.0);
        parse(&document.to_string().into_bytes())
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Whole<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        of_type(request.headers(), "application/json")?;
        parse(&bytes(request.into_body()).await?).map(Self)
    }
}

impl<S: Send + Sync> FromRequest<S> for Patch {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        of_type(request.headers(), MERGE_PATCH)?;
        let patch: Value = parse(&bytes(request.into_body()).await?)?;
        if patch.is_object() {
            return Ok(Self(patch));
        }
        Err(Problem::field("", "A merge patch is an object here"))
    }
}

fn of_type(headers: &HeaderMap, expected: &str) -> Result<(), Problem> {
    let sent = headers.get(header::CONTENT_TYPE);
    let sent = sent.and_then(|sent| sent.to_str().ok()).unwrap_or_default();
    let essence = sent.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case(expected) {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        format!("Send it as {expected}"),
    ))
}

async fn bytes(body: Body) -> Result<Vec<u8>, Problem> {
    let limited = http_body_util::Limited::new(body, BODY_BYTES_MAX);
    let bytes = to_bytes(Body::new(limited), usize::MAX).await;
    bytes.map(Vec::from).map_err(|error| {
        let mut cause: Option<&dyn std::error::Error> = Some(&error);
        while let Some(one) = cause {
            if one.is::<http_body_util::LengthLimitError>() {
                return Problem::new(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    format!("A body has {BODY_BYTES_MAX} bytes at most"),
                );
            }
            cause = one.source();
        }
        Problem::new(StatusCode::BAD_REQUEST, "The body ended before its end")
    })
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize(&mut parser);
    let error = match parsed {
        Ok(parsed) => match parser.end() {
            Ok(()) => return Ok(parsed),
            Err(error) => return Err(malformed(&error)),
        },
        Err(error) => error,
    };
    if !error.inner().is_data() {
        return Err(malformed(error.inner()));
    }
    let mut pointer = String::new();
    for segment in error.path() {
        pointer.push('/');
        match segment {
            Segment::Seq { index } => pointer.push_str(&index.to_string()),
            Segment::Map { key } => pointer.push_str(&key.replace('~', "~0").replace('/', "~1")),
            Segment::Enum { variant } => pointer.push_str(variant),
            Segment::Unknown => pointer.push('?'),
        }
    }
    let detail = error.inner().to_string();
    let mut problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail.clone());
    problem.errors.push(FieldError { pointer, detail });
    Err(problem)
}

fn malformed(error: &serde_json::Error) -> Problem {
    Problem::new(
        StatusCode::BAD_REQUEST,
        format!("The body is not JSON: {error}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Thing {
        number: u32,
        inner: Vec<Option<u8>>,
    }

    #[test]
    fn what_is_wrong_has_its_place() {
        let refused = |text: &str| parse::<Thing>(text.as_bytes()).unwrap_err();
        assert_eq!(refused("{").status, 400);
        assert_eq!(refused("{\"number\":1,\"inner\":[]} 2").status, 400);
        let problem = refused("{\"number\":1,\"inner\":[1,300]}");
        assert_eq!(
            (problem.status, &*problem.errors[0].pointer),
            (422, "/inner/1")
        );
        assert_eq!(
            refused("{\"number\":1,\"inner\":[],\"x\":1}").errors[0].pointer,
            "/x"
        );
        assert_eq!(refused(&"[".repeat(100_000)).status, 400);
    }

    #[test]
    fn a_patch_changes_what_it_names() {
        let thing = Thing {
            number: 1,
            inner: vec![None],
        };
        let patch = Patch(serde_json::json!({"number": 2}));
        let patched: Thing = patch.apply(&thing).unwrap();
        assert_eq!((patched.number, patched.inner), (2, vec![None]));
        let removed = Patch(serde_json::json!({"number": null}));
        assert_eq!(removed.apply::<Thing>(&thing).unwrap_err().status, 422);
    }
}
