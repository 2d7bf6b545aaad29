//! Bodies: bounded, of the right type, and refused with the place of what is wrong in them.

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::Segment;

use super::problem::Problem;

/// Bytes of a body at most: all labels at their limits fit, each character escaped.
pub(super) const BODY_BYTES_MAX: usize = 32 << 10;

/// Media type of a merge patch.
/// SOURCE: RFC 7396, 4
pub(crate) const MERGE_PATCH: &str = "application/merge-patch+json";

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
        typed(document)
    }

    /// Whether it has this member.
    pub(super) fn names(&self, member: &str) -> bool {
        self.0.get(member).is_some()
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Whole<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        of_type(request.headers(), "application/json")?;
        typed(object(&bytes(request.into_body()).await?)?).map(Self)
    }
}

impl<S: Send + Sync> FromRequest<S> for Patch {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        of_type(request.headers(), MERGE_PATCH)?;
        object(&bytes(request.into_body()).await?).map(Self)
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

/// JSON, and an object: all that is taken is one.
fn object(bytes: &[u8]) -> Result<Value, Problem> {
    let value: Value = serde_json::from_slice(bytes).map_err(|error| malformed(&error))?;
    match value {
        Value::Object(_) => Ok(value),
        _ => Err(Problem::field("", "An object is taken here")),
    }
}

fn typed<T: DeserializeOwned>(value: Value) -> Result<T, Problem> {
    // Derived code takes an array for a structure, member by member; only lists of texts are taken.
    if let Some(pointer) = array(&value) {
        return Err(Problem::field(pointer, "No array is taken here"));
    }
    serde_path_to_error::deserialize(value).map_err(|error| {
        let mut pointer = String::new();
        for segment in error.path() {
            pointer.push('/');
            match segment {
                Segment::Seq { index } => pointer.push_str(&index.to_string()),
                Segment::Map { key } => pointer.push_str(&escaped(key)),
                Segment::Enum { variant } => pointer.push_str(variant),
                Segment::Unknown => pointer.push('?'),
            }
        }
        Problem::field(pointer, error.inner().to_string())
    })
}

/// The member that is a list of texts; no structure has its name.
const TEXTS: &str = "match";

/// Pointer to the first array that is not permitted, if any.
fn array(value: &Value) -> Option<String> {
    match value {
        Value::Array(_) => Some(String::new()),
        Value::Object(members) => {
            (members.iter().filter(|(key, _)| *key != TEXTS)).find_map(|(key, member)| {
                array(member).map(|below| format!("/{}{below}", escaped(key)))
            })
        }
        _ => None,
    }
}

/// A key within a JSON pointer.
/// SOURCE: RFC 6901, 3
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
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
        #[serde(default)]
        inner: Option<Inner>,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Inner {
        small: u8,
    }

    fn whole(text: &str) -> Result<Thing, Problem> {
        typed(object(text.as_bytes())?)
    }

    #[test]
    fn what_is_wrong_has_its_place() {
        for text in ["", "{", "{\"number\":1} 2", &"[".repeat(100_000)] {
            assert_eq!(whole(text).unwrap_err().status, 400);
        }
        for (text, pointer) in [
            ("{\"number\":1,\"inner\":{\"small\":300}}", "/inner/small"),
            ("{\"number\":1,\"x\":1}", "/x"),
            ("{\"number\":1,\"inner\":[1]}", "/inner"),
            ("[1]", ""),
            ("{\"number\":-1}", "/number"),
        ] {
            let problem = whole(text).unwrap_err();
            assert_eq!(problem.status, 422);
            assert_eq!(problem.errors[0].pointer, pointer, "{text}");
        }
        assert_eq!(whole("{\"number\":1}").unwrap().number, 1);
    }

    #[test]
    fn a_patch_changes_what_it_names() {
        let thing = whole("{\"number\":1,\"inner\":{\"small\":3}}").unwrap();
        let patch = Patch(serde_json::json!({"number": 2}));
        let patched: Thing = patch.apply(&thing).unwrap();
        assert_eq!((patched.number, &patched.inner), (2, &thing.inner));
        let removed = Patch(serde_json::json!({"number": null}));
        assert_eq!(removed.apply::<Thing>(&thing).unwrap_err().status, 422);
    }
}
