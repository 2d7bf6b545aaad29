//! Versions of a resource: the one that a caller has seen, and the one that a write replaces. RFC
//! 9110, 8.8.3 and 13.1.

use axum::Json;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::problem::Problem;

/// Bytes of the digest that make a tag: two versions of one resource are not taken for each other.
const TAG_BYTES: usize = 12;

/// The tag of a representation: it is the same for the same content, over restarts, too.
pub(super) fn tag(content: &impl Serialize) -> String {
    let bytes = serde_json::to_vec(content).unwrap_or_default();
    let digest = Sha256::digest(&bytes);
    let mut tag = String::from("\"");
    for byte in &digest[..TAG_BYTES] {
        tag.push_str(&format!("{byte:02x}"));
    }
    tag.push('"');
    tag
}

/// A representation with its tag, or 304 if the caller has it.
pub(super) fn tagged(headers: &HeaderMap, content: &impl Serialize) -> Response {
    let tag = tag(content);
    // PANIC: none; a tag is ASCII
    let value = HeaderValue::from_str(&tag).unwrap_or(HeaderValue::from_static("\"\""));
    let seen = headers.get_all(header::IF_NONE_MATCH).iter();
    if seen
        .filter_map(|seen| seen.to_str().ok())
        .any(|seen| names(seen, &tag))
    {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, value)]).into_response();
    }
    ([(header::ETAG, value)], Json(content)).into_response()
}

/// A representation with its tag and, if the caller `made` it now, with its place.
pub(super) fn tagged_at(place: &str, made: bool, content: &impl Serialize) -> Response {
    let mut response = tagged(&HeaderMap::new(), content);
    if made {
        *response.status_mut() = StatusCode::CREATED;
        if let Ok(location) = HeaderValue::from_str(place) {
            response.headers_mut().insert(header::LOCATION, location);
        }
    }
    response
}

/// Whether a list of tags names this one. Comparison is weak, as only `If-None-Match` may have weak
/// tags.
fn names(list: &str, tag: &str) -> bool {
    let mut tags = list.split(',').map(str::trim);
    tags.any(|one| one == "*" || one.strip_prefix("W/").unwrap_or(one) == tag)
}

/// Refuses a write with an `If-Match` that names a version that is not current. If `strict`, also
/// one without `If-Match`.
pub(super) fn expect(
    headers: &HeaderMap,
    content: &impl Serialize,
    strict: bool,
) -> Result<(), Problem> {
    let mut lists = headers.get_all(header::IF_MATCH).iter().peekable();
    if lists.peek().is_none() {
        if !strict {
            return Ok(());
        }
        return Err(Problem::new(
            StatusCode::PRECONDITION_REQUIRED,
            "Send If-Match with the ETag of the version that you change, or * for whichever there is",
        ));
    }
    let tag = tag(content);
    let names_it = |list: &HeaderValue| {
        let list = list.to_str().unwrap_or_default();
        list.split(',')
            .map(str::trim)
            .any(|one| one == "*" || one == tag)
    };
    if lists.any(names_it) {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::PRECONDITION_FAILED,
        format!("It was changed meanwhile: its ETag is {tag}; read it again"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: header::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn a_write_names_the_version_that_it_changes() {
        let status =
            |headers: &HeaderMap| expect(headers, &7, true).map_err(|problem| problem.status);
        let own = tag(&7);
        assert_ne!(own, tag(&8));
        assert_eq!(status(&HeaderMap::new()), Err(428));
        assert_eq!(expect(&HeaderMap::new(), &7, false), Ok(()));
        for (list, expected) in [
            (own.clone(), Ok(())),
            (format!("\"x\", {own}"), Ok(())),
            ("*".into(), Ok(())),
            (tag(&8), Err(412)),
            (format!("W/{own}"), Err(412)),
            (String::new(), Err(412)),
        ] {
            assert_eq!(
                status(&headers(header::IF_MATCH, &list)),
                expected,
                "{list}"
            );
        }
    }

    #[test]
    fn what_the_caller_has_is_not_sent_again() {
        let status = |list: &str| tagged(&headers(header::IF_NONE_MATCH, list), &7).status();
        assert_eq!(status(&format!("W/{}", tag(&7))), StatusCode::NOT_MODIFIED);
        assert_eq!(status(&tag(&8)), StatusCode::OK);
    }
}
