//! The handlers of all resources, and the OpenAPI document.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

#[cfg(feature = "dashboard")]
use super::pages;
use super::problem::{FieldError, Problem};
use super::{
    Refused, Shared, accounts, declare, events, exposition, gate, gpus, limits, live, meta,
    metadata, registry, usage, vms,
};

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Turnstile",
        description = "Many VMs share one GPU: what they use, and what they are entitled to.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    components(responses(Refused), schemas(Problem, FieldError)),
    tags(
        (name = "vms", description = "Tenants: virtual machines, and programs that are shared like them"),
        (name = "accounts", description = "What tenants belong to: accounts have weights and limits"),
        (name = "gpus", description = "GPUs of this host"),
        (name = "live", description = "What happens now, as the dashboard and top show it"),
        (name = "usage", description = "What the durable ledger says"),
        (name = "events", description = "What happened lately"),
        (name = "daemon", description = "The daemon itself"),
    )
)]
struct Document;

fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(gpus::list))
        .routes(routes!(gpus::get))
        .routes(routes!(gpus::cordon, gpus::uncordon))
        .routes(routes!(gpus::remove))
        .routes(routes!(declare::drain_gpu))
        .routes(routes!(vms::list, registry::register))
        .routes(routes!(vms::get, registry::forget))
        .routes(routes!(declare::drain))
        .routes(routes!(
            vms::scheduling,
            vms::put_scheduling,
            vms::patch_scheduling
        ))
        .routes(routes!(accounts::list, accounts::make))
        .routes(routes!(accounts::get, accounts::patch, accounts::forget))
        .routes(routes!(live::host))
        .routes(routes!(live::sample))
        .routes(routes!(live::history))
        .routes(routes!(live::stream))
        .routes(routes!(limits::get, limits::put, limits::patch))
        .routes(routes!(metadata::get, metadata::put, metadata::patch))
        .routes(routes!(events::list))
        .routes(routes!(events::follow))
        .routes(routes!(usage::sums))
        .routes(routes!(usage::records))
        .routes(routes!(usage::focus))
        .routes(routes!(meta::alive))
        .routes(routes!(meta::ready))
        .routes(routes!(meta::version))
}

/// The document of this API, OpenAPI 3.1.
pub fn openapi() -> OpenApi {
    routes().into_openapi()
}

pub(super) fn router(shared: Arc<Shared>) -> Router {
    let (router, document) = routes().split_for_parts();
    let document = document.to_pretty_json().unwrap_or_default();
    #[cfg(feature = "dashboard")]
    let router = router
        .route("/ui", get(pages::home))
        .route("/ui/", get(pages::index))
        .route("/ui/{file}", get(pages::part));
    router
        .route(
            "/openapi.json",
            get(move || async move {
                let kind = [(axum::http::header::CONTENT_TYPE, "application/json")];
                (kind, document)
            }),
        )
        .route("/metrics", get(exposition::metrics))
        .with_state(shared.clone())
        .layer(axum::middleware::from_fn_with_state(shared, gate::pass))
}

/// What all users of this host may see.
pub(super) fn open_router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/metrics", get(exposition::metrics))
        .with_state(shared.clone())
        .layer(axum::middleware::from_fn_with_state(shared, gate::pass))
}
