//! `/metrics`: the host for Prometheus.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use turnstile_accounting::ids::tenant_id;

use super::Shared;
use super::problem::Problem;
use crate::metrics::{Identity, Names, compat, families, joined, of_daemon, text};

/// The text format's media type.
/// SOURCE: Prometheus, Exposition formats, text-based format
const KIND: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let in_force = shared.in_force.get();
    let prices = in_force.prices.as_ref();
    let projects = prices.map_or_else(Default::default, |prices| prices.sub_accounts());
    let mut all = Vec::new();
    for seen in &shared.gpus {
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
        &shared.first().identity.node,
        &shared.fleet.limits().snapshot(),
        shared.ledger_health().as_ref(),
    ));
    let mut all = joined(all);
    if let Some(measured) = &shared.measured {
        all.extend(measured.families());
    }
    match text(&all) {
        Ok(text) => ([(header::CONTENT_TYPE, KIND)], text).into_response(),
        Err(error) => {
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
        }
    }
}
