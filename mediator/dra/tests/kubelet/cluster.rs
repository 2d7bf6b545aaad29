//! An API server that keeps objects by their paths, for kube's client.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;

/// Its objects. A clone has the same ones.
#[derive(Clone, Default)]
pub(crate) struct Objects(Arc<Mutex<BTreeMap<String, Value>>>);

impl Objects {
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Value>> {
        self.0.lock().unwrap()
    }

    /// A client of it.
    pub(crate) fn client(&self) -> kube::Client {
        let objects = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let objects = objects.clone();
            async move { Ok::<_, Infallible>(objects.answer(request).await) }
        });
        kube::Client::new(service, "default")
    }

    async fn answer(&self, request: Request<Body>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let (status, object) = self.done(&head.method, head.uri.path(), &body);
        let text = Full::new(Bytes::from(object.to_string()));
        Response::builder().status(status).body(text).unwrap()
    }

    fn done(&self, method: &Method, path: &str, body: &[u8]) -> (StatusCode, Value) {
        let mut objects = self.lock();
        let status = |code: StatusCode, reason: &str| {
            let object = json!({
                "apiVersion": "v1", "kind": "Status", "status": "Failure",
                "code": code.as_u16(), "reason": reason, "message": path,
            });
            (code, object)
        };
        let sent = || serde_json::from_slice::<Value>(body).unwrap();
        match *method {
            Method::GET => match objects.get(path) {
                Some(object) => (StatusCode::OK, object.clone()),
                None => status(StatusCode::NOT_FOUND, "NotFound"),
            },
            Method::POST => {
                let mut object = sent();
                let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                object["metadata"]["resourceVersion"] = "1".into();
                objects.insert(format!("{path}/{name}"), object.clone());
                (StatusCode::CREATED, object)
            }
            Method::PUT => {
                let mut object = sent();
                let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
                if objects.get(path).map(version) != Some(version(&object)) {
                    return status(StatusCode::CONFLICT, "Conflict");
                }
                let before: u64 = version(&object).as_str().unwrap().parse().unwrap();
                object["metadata"]["resourceVersion"] = (before + 1).to_string().into();
                objects.insert(path.to_owned(), object.clone());
                (StatusCode::OK, object)
            }
            _ => status(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
        }
    }
}
