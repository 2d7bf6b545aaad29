//! The dashboard: files in the binary. They load nothing from elsewhere, and a header makes the
//! browser enforce it.

use axum::extract::Path;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};

use super::problem::Problem;

/// What the page may do: load its own files, and connect to its own origin.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the page.
struct File {
    name: &'static str,
    kind: &'static str,
    text: &'static str,
}

/// The page. uPlot (uplot.LICENSE) is as its authors released it, version 1.6.32.
const FILES: [File; 6] = [
    file(
        "",
        "text/html; charset=utf-8",
        include_str!("ui/index.html"),
    ),
    file("app.js", "text/javascript", include_str!("ui/app.js")),
    file("style.css", "text/css", include_str!("ui/style.css")),
    file("icon.svg", "image/svg+xml", include_str!("ui/icon.svg")),
    file(
        "uplot.min.js",
        "text/javascript",
        include_str!("ui/uplot.min.js"),
    ),
    file(
        "uplot.min.css",
        "text/css",
        include_str!("ui/uplot.min.css"),
    ),
];

const fn file(name: &'static str, kind: &'static str, text: &'static str) -> File {
    File { name, kind, text }
}

fn show(name: &str) -> Response {
    let Some(file) = FILES.iter().find(|file| file.name == name) else {
        return Problem::new(StatusCode::NOT_FOUND, "The page has no such file").into_response();
    };
    let mut response = file.text.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(file.kind));
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(POLICY),
    );
    headers.insert(
        header::REFERRER_POLICY,
        HeaderValue::from_static("no-referrer"),
    );
    response
}

pub(super) async fn home() -> Redirect {
    Redirect::permanent("/ui/")
}

pub(super) async fn index() -> Response {
    show("")
}

pub(super) async fn part(Path(name): Path<String>) -> Response {
    show(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_refers_to_its_own_files_alone() {
        let index = FILES[0].text;
        let refers = index.split("href=\"").chain(index.split("src=\"")).skip(1);
        let mut own = 0;
        for reference in refers.filter_map(|text| text.split('"').next()) {
            if FILES.iter().any(|file| file.name == reference) {
                own += 1;
            } else {
                assert!(
                    reference.starts_with('<'),
                    "{reference} is not part of the page"
                );
            }
        }
        assert_eq!(own, 5);
        assert!(
            !index.contains("style=") && !index.contains("onclick"),
            "the policy forbids it"
        );
    }
}
