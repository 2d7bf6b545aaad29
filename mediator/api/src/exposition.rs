//! `/metrics`: the host for Prometheus.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use turnstile_accounting::ids::tenant_id;

use super::Shared;
use super::problem::Problem;
use crate::metrics::{Identity, Names, compat, families, text};

/// The text format's media type.
/// SOURCE: Prometheus, Exposition formats, text-based format
const KIND: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let host = shared.snapshots.get();
    let identity = Identity {
        node: shared.gpu.node.clone(),
        gpu: shared.gpu.gpu.clone(),
        model: shared.gpu.model.clone(),
        policy: shared.host.policy().to_owned(),
    };
    let uuid = |tenant| tenant_id(&identity.node, shared.host.boot(), tenant).to_string();
    let departed = host.departed.iter().map(|tenant| tenant.tenant);
    let tenants = host.tenants.iter().map(|tenant| tenant.tenant);
    let tenants = tenants.chain(departed);
    let in_force = shared.in_force.get();
    let names = Names {
        uuids: tenants.map(|tenant| (tenant, uuid(tenant))).collect(),
        projects: in_force
            .prices
            .as_ref()
            .map_or_else(Default::default, |prices| prices.sub_accounts()),
    };
    let ledger = shared.snapshots.get().ledger;
    let mut all = families(&identity, &host, ledger.as_ref(), &names);
    if let Some(measured) = &shared.measured {
        all.extend(measured.families());
    }
    if let (true, Some(view)) = (in_force.dcgm_compat, shared.live.last()) {
        all.extend(compat(&identity, &view));
    }
    match text(&all) {
        Ok(text) => ([(header::CONTENT_TYPE, KIND)], text).into_response(),
        Err(error) => {
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
        }
    }
}
