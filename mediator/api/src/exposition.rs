//! `/metrics`: the host for Prometheus, in its own text format or, on request, as OpenMetrics.
//!
//! - In: the header `Accept`; snapshots of all GPUs. Out: text in the preferred format.
//! - Caller: the router, for the API's sockets and for `metrics.listen`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use turnstile_accounting::ids::tenant_id;

use super::Shared;
use super::problem::Problem;
use crate::metrics::{Identity, Names, compat, families, joined, of_daemon, open_text, text};

/// The text format's media type.
/// SOURCE: Prometheus, Exposition formats, text-based format
const KIND: &str = "text/plain; version=0.0.4; charset=utf-8";
/// That of OpenMetrics. SOURCE: OpenMetrics 1.0.0, protocol negotiation
const OPEN_KIND: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The weight that a request gives a media type by its own name; none where it is not named.
fn weight(headers: &HeaderMap, kind: &str) -> Option<f32> {
    let values = headers.get_all(header::ACCEPT).into_iter();
    let ranges = values.filter_map(|value| value.to_str().ok());
    let weights = ranges.flat_map(|value| value.split(',')).map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse().ok());
        (name, weight.unwrap_or(1.0))
    });
    let named = weights.filter(|(name, _)| name.eq_ignore_ascii_case(kind));
    named.map(|(_, weight)| weight).reduce(f32::max)
}

/// Whether a request prefers OpenMetrics to Prometheus' own format.
fn prefers_open(headers: &HeaderMap) -> bool {
    let open = weight(headers, "application/openmetrics-text").unwrap_or(0.0);
    open > 0.0 && open >= weight(headers, "text/plain").unwrap_or(0.0)
}

pub(super) async fn metrics(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    let in_force = shared.in_force.get();
    let prices = in_force.prices.as_ref();
    let projects = prices.map_or_else(Default::default, |prices| prices.sub_accounts());
    let mut all = Vec::new();
    for seen in shared.gpus.iter() {
        let host = seen.snapshots.get();
        let identity = Identity {
            node: seen.identity.node.clone(),
            gpu: seen.identity.gpu.clone(),
            model: seen.identity.model.clone(),
            policy: seen.host.policy().to_owned(),
        };
        let uuid = |tenant| tenant_id(&identity.node, seen.host.boot(), tenant).to_string();
        let departed = host.departed.iter().map(|tenant| tenant.tenant);
        let tenants = host.tenants.iter().map(|tenant| tenant.tenant);
        let tenants = tenants.chain(departed);
        let names = Names {
            uuids: tenants.map(|tenant| (tenant, uuid(tenant))).collect(),
            projects: projects.clone(),
        };
        all.extend(families(&identity, &host, &names));
        if let (true, Some(view)) = (in_force.dcgm_compat, seen.live.last()) {
            all.extend(compat(&identity, &view));
        }
    }
    all.extend(of_daemon(
        (&shared.gpus.first().identity.node, &shared.version),
        &shared.fleet.limits().snapshot(),
        shared.gpus.ledger_health().as_ref(),
    ));
    let mut all = joined(all);
    if let Some(measured) = &shared.measured {
        all.extend(measured.families());
    }
    let (kind, text) = if prefers_open(&headers) {
        let text = open_text(all).map_err(|error| error.to_string());
        (OPEN_KIND, text)
    } else {
        (KIND, text(&all).map_err(|error| error.to_string()))
    };
    let head = [(header::CONTENT_TYPE, kind), (header::VARY, "accept")];
    match text {
        Ok(text) => (head, text).into_response(),
        Err(error) => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_metrics_are_for_readers_that_prefer_them() {
        let prefers = |accept: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in accept {
                headers.append(header::ACCEPT, value.parse().unwrap());
            }
            prefers_open(&headers)
        };
        let open = "application/openmetrics-text";
        // SOURCE: Prometheus 3, without protocol buffers
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
             application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,\
             text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for accept in [&[open][..], &[prometheus], &["*/*;q=0.1", open]] {
            assert!(prefers(accept), "{accept:?}");
        }
        let zero = "application/openmetrics-text;q=0, */*";
        let plain = "text/plain, application/openmetrics-text; q=0.9";
        for accept in [&[][..], &["*/*"], &["text/plain"], &[zero], &[plain]] {
            assert!(!prefers(accept), "{accept:?}");
        }
    }
}
