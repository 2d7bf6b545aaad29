//! What tenants used, by the durable ledger: all of it between two times, or a refusal.

mod answer;

pub use answer::{TenantUsed, UnknownTime, Used};

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, Write};
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Deserialize;
use turnstile_accounting::export::{
    Container, FocusVersion, Format, PriceList, Request, export, parse_time, show_time, summary,
};
use turnstile_accounting::ids::tenant_id;
use utoipa::IntoParams;
use uuid::Uuid;

use super::Shared;
use super::ledger::GoOn;
use super::page::query;
use super::problem::Problem;
use turnstile_daemon::{HostSnapshot, TenantSnapshot};

/// Longest time of one request; longer bills are made with `turnstile usage export`.
const RANGE_NS: u64 = 32 * 86_400 * 1_000_000_000;

/// Tenants of an answer.
const TENANTS_MAX: usize = 16_384;

/// Bytes of an export over the API.
const EXPORT_BYTES_MAX: u64 = 256 << 20;

/// Bytes that are sent at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// Which part of the ledger.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct UsageQuery {
    /// Windows that begin at or after this time (RFC 3339, UTC).
    #[param(format = "date-time", example = "2026-11-20T13:00:00Z")]
    from: String,
    /// Windows that begin before this time; all of them have to be closed.
    #[param(format = "date-time", example = "2026-11-20T14:00:00Z")]
    to: String,
    /// One tenant, by name or id.
    #[param(max_length = 253)]
    vm: Option<String>,
    /// One GPU, by identity.
    #[param(max_length = 128)]
    gpu: Option<String>,
    /// One node: the host by another name, which it had before.
    #[param(max_length = 253)]
    node: Option<String>,
    /// Answer with what is there, though the ledger begins later, ends earlier or knows no such
    /// tenant.
    #[serde(default)]
    #[param(default = false)]
    allow_gaps: bool,
}

/// Which part of the ledger, and as what.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FocusQuery {
    /// Version of FOCUS: 1.2, or 1.4, which it is without.
    #[param(pattern = "^1\\.[24]$", example = "1.4")]
    version: Option<String>,
    /// Hours that begin at or after this time (RFC 3339, UTC, a full hour).
    #[param(format = "date-time", example = "2026-11-20T13:00:00Z")]
    from: String,
    /// Hours that begin before this time (a full hour); all of them have to be closed.
    #[param(format = "date-time", example = "2026-11-20T14:00:00Z")]
    to: String,
    /// One tenant, by name or id.
    #[param(max_length = 253)]
    vm: Option<String>,
    /// One GPU, by identity.
    #[param(max_length = 128)]
    gpu: Option<String>,
    /// One node: the host by another name, which it had before.
    #[param(max_length = 253)]
    node: Option<String>,
    /// Answer with what is there, though the ledger begins later, ends earlier or knows no such
    /// tenant.
    #[serde(default)]
    #[param(default = false)]
    allow_gaps: bool,
}

impl UsageQuery {
    fn request(self) -> Result<Request, Problem> {
        let time = |name: &str, text: &str| {
            parse_time(text).ok_or_else(|| {
                let detail = format!("{name} is no time as 2026-11-20T13:00:00Z");
                Problem::new(StatusCode::BAD_REQUEST, detail)
            })
        };
        let longest = [(&self.vm, 253), (&self.gpu, 128), (&self.node, 253)];
        if longest.iter().any(|(name, most)| {
            name.as_ref()
                .is_some_and(|name| name.chars().count() > *most)
        }) {
            let detail = "vm and node have 253 characters at most, gpu 128";
            return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
        }
        let (from, to) = (time("from", &self.from)?, time("to", &self.to)?);
        if to.0.saturating_sub(from.0) > RANGE_NS {
            return Err(Problem::new(
                StatusCode::BAD_REQUEST,
                "At most 32 days at once; turnstile usage export takes more",
            ));
        }
        Ok(Request {
            from,
            to,
            node: self.node,
            gpu: self.gpu,
            tenant: self.vm,
            allow_gaps: self.allow_gaps,
            now: Some(turnstile_daemon::calendar()),
        })
    }
}

/// What of each connected tenant's memory cannot move, by its id in the ledger.
fn pinned(node: &str, boot: Uuid, host: &HostSnapshot) -> BTreeMap<Uuid, u64> {
    let of = |tenant: &TenantSnapshot| {
        let pinned = tenant.memory?.pinned_bytes;
        Some((tenant_id(node, boot, tenant.tenant), pinned))
    };
    host.tenants.iter().filter_map(of).collect()
}

/// What each tenant used between two times, in one sum; refused if any of it is not closed yet.
#[utoipa::path(
    get, path = "/v1/usage", tag = "usage", params(UsageQuery),
    responses(
        (status = 200, description = "Sums", body = Used),
        (status = "4XX", response = super::Refused),
        (status = 503, response = super::Refused),
    )
)]
pub(super) async fn sums(
    State(shared): State<Arc<Shared>>,
    requested: Result<Query<UsageQuery>, QueryRejection>,
) -> Result<Json<Used>, Problem> {
    let request = query(requested)?.request()?;
    let (from, to) = (request.from, request.to);
    let summed = shared
        .ledger
        .read(move |store, go_on| summary(store, &request, TENANTS_MAX, go_on))
        .await?;
    // CAST: of 32 days and some engines
    let ns = |wide: u128| wide as u64;
    let pinned: BTreeMap<Uuid, u64> = shared
        .gpus
        .iter()
        .flat_map(|seen| pinned(&seen.identity.node, seen.host.boot(), &seen.snapshots.get()))
        .collect();
    let items = summed.tenants.into_iter().map(|sum| TenantUsed {
        pinned_bytes: pinned.get(&sum.tenant.id).copied(),
        id: sum.tenant.id,
        resource_id: sum.resource,
        name: sum.tenant.name,
        kind: sum.tenant.kind.as_str().into(),
        account: sum.tenant.account,
        instance_id: sum.tenant.metadata.instance_id(),
        project: sum.tenant.metadata.project().map(str::to_owned),
        labels: sum.tenant.metadata.labels().clone(),
        node: sum.gpu.node,
        gpu: sum.gpu.gpu,
        windows: sum.windows,
        engine_ns: ns(sum.engine_ns),
        observed_ns: ns(sum.engine_ns.saturating_sub(sum.estimated_ns)),
        estimated_ns: ns(sum.estimated_ns),
        error_bound_ns: ns(sum.error_bound_ns),
        copy_ns: ns(sum.copy_ns),
        // CAST: of 32 days and some engines
        copy_bytes: sum.copy_bytes.map(|bytes| bytes as u64),
        held_ns: ns(sum.held_ns),
        waiting_ns: ns(sum.waiting_ns),
        memory_byte_ns: sum.memory_byte_ns.map(|sum| sum.to_string()),
    });
    let unknown = summed.unknown.into_iter().map(|sum| UnknownTime {
        node: sum.gpu.node,
        gpu: sum.gpu.gpu,
        cause: sum.cause.into(),
        start: show_time(sum.start),
        end: show_time(sum.end),
        unknown_ns: ns(sum.unknown_ns),
    });
    Ok(Json(Used {
        from: show_time(from),
        to: show_time(to),
        items: items.collect(),
        entries: summed.entries,
        unknown_ns: ns(summed.unknown_ns),
        unknown: unknown.collect(),
    }))
}

/// A file with the size limit of an export. Writes fail once the caller no longer waits.
struct Bounded<'a> {
    file: std::fs::File,
    left: u64,
    go_on: &'a GoOn<'a>,
}

impl Write for Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !(self.go_on)() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        self.left = self
            .left
            .checked_sub(bytes.len() as u64)
            .ok_or(io::ErrorKind::FileTooLarge)?;
        self.file.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Every record between two times, as CloudEvents, one a line; refused if a part is not closed yet.
#[utoipa::path(
    get, path = "/v1/usage/events", tag = "usage", params(UsageQuery),
    responses(
        (status = 200, description = "CloudEvents", content_type = "application/x-ndjson", body = String),
        (status = "4XX", response = super::Refused),
        (status = 503, response = super::Refused),
    )
)]
pub(super) async fn records(
    State(shared): State<Arc<Shared>>,
    requested: Result<Query<UsageQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let request = query(requested)?.request()?;
    let kind = "application/x-ndjson";
    exported(&shared, request, Format::Events, None, kind).await
}

/// A bill in FOCUS: a row for each tenant, GPU and hour, with the prices of `ledger.prices`.
/// Refused if a part is not closed yet.
#[utoipa::path(
    get, path = "/v1/usage/focus", tag = "usage", params(FocusQuery),
    responses(
        (status = 200, description = "CSV", content_type = "text/csv", body = String),
        (status = "4XX", response = super::Refused),
        (status = 503, response = super::Refused),
    )
)]
pub(super) async fn focus(
    State(shared): State<Arc<Shared>>,
    requested: Result<Query<FocusQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let FocusQuery {
        version,
        from,
        to,
        vm,
        gpu,
        node,
        allow_gaps,
    } = query(requested)?;
    let request = UsageQuery {
        from,
        to,
        vm,
        gpu,
        node,
        allow_gaps,
    }
    .request()?;
    let version = match version.as_deref() {
        None | Some("1.4") => FocusVersion::V1_4,
        Some("1.2") => FocusVersion::V1_2,
        Some(_) => {
            let detail = "version is 1.2 or 1.4";
            return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
        }
    };
    let in_force = shared.in_force.get();
    let Some(prices) = in_force.prices.clone() else {
        return Err(Problem::new(
            StatusCode::NOT_FOUND,
            "There are no prices: ledger.prices in the daemon's configuration names a list",
        ));
    };
    let format = Format::Focus(version, Container::Csv);
    exported(&shared, request, format, Some(prices), "text/csv").await
}

/// An export as the answer. It is complete before the first byte is sent, so that no caller gets
/// half of one.
async fn exported(
    shared: &Arc<Shared>,
    request: Request,
    format: Format,
    prices: Option<PriceList>,
    kind: &'static str,
) -> Result<Response, Problem> {
    let made = shared
        .ledger
        .read(move |store, go_on| {
            let mut out = io::BufWriter::new(Bounded {
                file: tempfile::tempfile()?,
                left: EXPORT_BYTES_MAX,
                go_on,
            });
            let prices = prices.as_ref();
            export(store, format, &request, prices, &mut out, &mut |_| {})?;
            out.flush()?;
            let mut file = out
                .into_inner()
                .map_err(io::IntoInnerError::into_error)?
                .file;
            file.rewind()?;
            Ok(file)
        })
        .await;
    if let Some(measured) = &shared.measured {
        measured.export(made.as_ref().err().map(|problem| problem.status));
    }
    let file = made?;
    let length = file.metadata().map_or(0, |data| data.len());
    let body = Body::from_stream(stream::try_unfold(file, |mut file| async move {
        let read = tokio::task::spawn_blocking(move || {
            let mut chunk = vec![0; CHUNK_BYTES];
            let length = file.read(&mut chunk)?;
            chunk.truncate(length);
            Ok::<_, io::Error>((chunk, file))
        });
        let (chunk, file) = read.await.map_err(io::Error::other)??;
        Ok::<_, io::Error>((!chunk.is_empty()).then(|| (Bytes::from(chunk), file)))
    }));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CONTENT_LENGTH, length.into()),
    ];
    Ok((headers, body).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnstile_daemon::MemorySnapshot;

    fn requested(from: &str, to: &str) -> Result<Request, u16> {
        let query = UsageQuery {
            from: from.into(),
            to: to.into(),
            vm: None,
            gpu: None,
            node: None,
            allow_gaps: false,
        };
        query.request().map_err(|problem| problem.status)
    }

    #[test]
    fn a_range_is_two_times_and_not_a_year() {
        let request = requested("2026-11-20T13:00:00Z", "2026-11-20T14:00:00Z").unwrap();
        assert_eq!(Some(request.from), parse_time("2026-11-20T13:00:00Z"));
        assert_eq!(
            requested("yesterday", "2026-11-20T14:00:00Z").unwrap_err(),
            400
        );
        assert_eq!(
            requested("2025-11-20T13:00:00Z", "2026-11-20T13:00:00Z").unwrap_err(),
            400
        );
    }

    #[test]
    fn pinned_bytes_are_reported_for_tenants_with_movable_memory() {
        let mut host = crate::metrics::tests::host();
        host.tenants[0].memory = Some(MemorySnapshot {
            pinned_bytes: 7 << 20,
            ..MemorySnapshot::default()
        });
        host.tenants[1].memory = None;
        let boot = Uuid::from_u128(1);
        let id = tenant_id("node-17", boot, host.tenants[0].tenant);
        assert_eq!(pinned("node-17", boot, &host), [(id, 7 << 20)].into());
    }
}
