//! Pages of a list. A cursor names the last entry of a page, so that added or removed entries move
//! no other.

use std::collections::BTreeMap;
use std::ops::Bound;

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::problem::Problem;

/// Most entries of a page, and the default.
const LIMIT: std::ops::RangeInclusive<usize> = 1..=1_000;
const LIMIT_DEFAULT: usize = 100;

/// Longer than any name.
const CURSOR_BYTES_MAX: usize = 256;

/// Which page.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PageQuery {
    /// Entries at most.
    #[param(minimum = 1, maximum = 1_000)]
    pub(super) limit: Option<usize>,
    /// `next_cursor` of the page before.
    #[param(max_length = 256)]
    pub(super) cursor: Option<String>,
}

/// Part of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// The entries.
    pub items: Vec<T>,
    /// Where the next page begins; null after the last one.
    pub next_cursor: Option<String>,
}

/// The limit of the query, if there can be such a page.
pub(super) fn limit(requested: Option<usize>) -> Result<usize, Problem> {
    let limit = requested.unwrap_or(LIMIT_DEFAULT);
    LIMIT.contains(&limit).then_some(limit).ok_or_else(|| {
        let detail = format!("limit is {} to {}", LIMIT.start(), LIMIT.end());
        Problem::new(StatusCode::BAD_REQUEST, detail)
    })
}

/// Refuses a cursor that no list has given out.
pub(super) fn cursor(requested: Option<&str>) -> Result<(), Problem> {
    if requested.is_none_or(|cursor| cursor.len() <= CURSOR_BYTES_MAX) {
        return Ok(());
    }
    let detail = format!("A cursor has {CURSOR_BYTES_MAX} bytes at most");
    Err(Problem::new(StatusCode::BAD_REQUEST, detail))
}

/// A query, or what is wrong with it.
pub(super) fn query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Problem> {
    query
        .map(|Query(query)| query)
        .map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.body_text()))
}

impl<T> Page<T> {
    /// The page of the query.
    pub(super) fn of(
        requested: Result<Query<PageQuery>, QueryRejection>,
        all: BTreeMap<String, T>,
    ) -> Result<Self, Problem> {
        let requested = query(requested)?;
        let limit = limit(requested.limit)?;
        cursor(requested.cursor.as_deref())?;
        let after = requested.cursor.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = all.into_iter().filter(|(name, _)| match &after {
            Bound::Excluded(after) => name > after,
            _ => true,
        });
        let (mut items, mut last) = (Vec::new(), None);
        for (name, item) in rest.by_ref().take(limit) {
            items.push(item);
            last = Some(name);
        }
        let next_cursor = rest.next().and(last);
        Ok(Self { items, next_cursor })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_every_entry_once() {
        let all: BTreeMap<String, u32> = (0..25).map(|n| (format!("{n:02}"), n)).collect();
        let (mut seen, mut cursor) = (Vec::new(), None);
        loop {
            let limit = Some(10);
            let page = Page::of(Ok(Query(PageQuery { limit, cursor })), all.clone()).unwrap();
            seen.extend(page.items);
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(seen, (0..25).collect::<Vec<_>>());
        for limit in [0, 1_001] {
            let requested = PageQuery {
                limit: Some(limit),
                cursor: None,
            };
            assert_eq!(
                Page::of(Ok(Query(requested)), all.clone())
                    .unwrap_err()
                    .status,
                400
            );
        }
    }
}
