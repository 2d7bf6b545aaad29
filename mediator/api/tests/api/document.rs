//! The document of the API is kept, so that a change of the API is seen in review.

use std::collections::BTreeSet;

use super::Bench;
use super::http::get;

/// `TURNSTILE_BLESS=1 cargo test -p turnstile-api --test api document` writes it anew.
#[test]
fn the_openapi_document_is_the_one_that_is_kept() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let document = turnstile_api::openapi();
    let text = document.to_pretty_json().unwrap() + "\n";
    if std::env::var_os("TURNSTILE_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == text,
        "docs/openapi.json is not what the code says; see this test"
    );
    let served = get(&Bench::new().socket(), "/openapi.json");
    assert_eq!(served.body, text.trim_end());
}

#[test]
fn operations_and_their_parameters_have_names_of_their_own() {
    let document = serde_json::to_value(turnstile_api::openapi()).unwrap();
    let mut ids = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id.to_owned()), "{method} {path}: {id} again");
            let mut names = BTreeSet::new();
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let name = (parameter["in"].to_string(), parameter["name"].to_string());
                assert!(names.insert(name.clone()), "{method} {path}: {name:?}");
            }
        }
    }
    assert!(ids.contains("get_vm"));
}
