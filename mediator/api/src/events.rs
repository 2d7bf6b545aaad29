//! What happened lately: in pages, and as a stream of server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{self, KeepAlive, Sse};
use futures_util::Stream;
use futures_util::stream::{self, StreamExt as _};

use super::Shared;
use super::access::{Caller, Role};
use super::page::{self, Page, PageQuery, limit, query};
use super::problem::Problem;
use turnstile_daemon::Event;
use turnstile_daemon::limits::{Held, Holder, Limits, Resource};

/// TIMEOUT: shorter than the time after which a client that takes nothing is given up.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Events handed to a stream at a time.
const AT_ONCE: usize = 64;

fn number(cursor: &str) -> Result<u64, Problem> {
    cursor.parse().map_err(|_| {
        Problem::new(
            StatusCode::BAD_REQUEST,
            "A cursor of events is the number of one",
        )
    })
}

/// Events since the daemon began, oldest first; the oldest are dropped. The cursor is an event's
/// number.
#[utoipa::path(
    get, path = "/v1/events", operation_id = "list_events", tag = "events", params(PageQuery),
    responses(
        (status = 200, description = "A page of events", body = Page<Event>),
        (status = "4XX", response = super::Refused),
    )
)]
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    requested: Result<Query<PageQuery>, QueryRejection>,
) -> Result<Json<Page<Event>>, Problem> {
    let requested = query(requested)?;
    let limit = limit(requested.limit)?;
    page::cursor(requested.cursor.as_deref())?;
    let after = requested.cursor.map_or(Ok(0), |cursor| number(&cursor))?;
    let journal = shared.fleet.journal();
    let (events, more) = journal.after(journal.seen(after), limit);
    let last = events.last().map(|event| event.seq.to_string());
    Ok(Json(Page {
        items: events.iter().map(|event| Event::clone(event)).collect(),
        next_cursor: last.filter(|_| more),
    }))
}

/// A place for a stream of a caller.
pub(super) fn stream_of(limits: &Arc<Limits>, caller: &Caller) -> Result<Held, Problem> {
    let client = caller.name.split(" pid:").next().unwrap_or_default();
    let holder = Holder {
        account: format!("api {client}").into(),
        tenant: None,
        trusted: caller.role >= Role::Operator,
    };
    let taken = limits.take(Resource::EventStreams, &holder, 1);
    taken.map_err(|error| Problem::new(StatusCode::TOO_MANY_REQUESTS, error.to_string()))
}

/// Events as they happen, as server-sent events, after the one in `Last-Event-ID`.
#[utoipa::path(
    get, path = "/v1/events/stream", operation_id = "follow_events", tag = "events",
    params(("Last-Event-ID" = Option<String>, Header, description = "Number of the last event seen")),
    responses(
        (status = 200, description = "Events, without end", content_type = "text/event-stream", body = String),
        (status = "4XX", response = super::Refused),
    )
)]
pub(super) async fn follow(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<sse::Event, Infallible>>>, Problem> {
    let place = stream_of(shared.fleet.limits(), &caller)?;
    let journal = shared.fleet.journal().clone();
    let seen = headers.get("last-event-id");
    let seen = match seen.map(|seen| number(seen.to_str().unwrap_or_default())) {
        Some(number) => journal.seen(number?),
        None => journal.last(),
    };
    let bell = journal.bell();
    let batches = stream::unfold(
        (journal, bell, seen),
        |(journal, mut bell, seen)| async move {
            loop {
                bell.mark_unchanged();
                let (events, _) = journal.after(seen, AT_ONCE);
                if let Some(last) = events.last() {
                    let seen = last.seq;
                    return Some((events, (journal, bell, seen)));
                }
                bell.changed().await.ok()?;
            }
        },
    );
    let events = batches.flat_map(move |events| {
        let _held = &place;
        stream::iter(events.into_iter().map(|event| {
            let made = sse::Event::default()
                .id(event.seq.to_string())
                .event(event.kind.clone());
            // An event is always JSON.
            Ok(made.json_data(&*event).unwrap_or_default())
        }))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}
