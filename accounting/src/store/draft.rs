//! The open window of a GPU, as the store keeps it until the window is closed.
//!
//! In: the window so far, and the digest of the entry before it. Out: a text, which the next run of
//! the daemon makes an entry if the window was never closed. So a daemon that is killed loses what
//! came after its last draft, and not its whole open window.

use super::StoreError;
use super::rows::damaged;
use crate::record::{Body, Digest, EngineRecord, Entry, GpuIdentity, Stretch, Tail, TenantRecord};
use crate::renumber::follow;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

#[derive(Serialize, Deserialize)]
struct Draft<'a> {
    stretch: Stretch,
    tenants: Cow<'a, [TenantRecord]>,
    engines: Cow<'a, [EngineRecord]>,
}

/// A window so far, as it is stored.
pub(super) fn written(entry: &Entry) -> Result<String, StoreError> {
    let Body::Window { tenants, engines } = &entry.body else {
        return Err(StoreError::Order);
    };
    let draft = Draft {
        stretch: entry.stretch,
        tenants: tenants.into(),
        engines: engines.into(),
    };
    serde_json::to_string(&draft).map_err(|error| damaged("draft", error.to_string()))
}

/// The entries that a draft is, if the window it was made of was not closed: `after` is the digest
/// that it follows, and still the last one.
pub(super) fn entries(
    gpu: &GpuIdentity,
    tail: Option<Tail>,
    after: &[u8],
    text: &str,
) -> Result<Vec<Entry>, StoreError> {
    let last = tail.map_or_else(|| Digest::genesis(gpu), |tail| tail.digest);
    if last.0 != after {
        return Ok(Vec::new());
    }
    let draft: Draft<'_> =
        serde_json::from_str(text).map_err(|error| damaged("draft", error.to_string()))?;
    let entry = Entry {
        stretch: draft.stretch,
        body: Body::Window {
            tenants: draft.tenants.into_owned(),
            engines: draft.engines.into_owned(),
        },
        digest: last,
    };
    Ok(follow(gpu, tail, &entry))
}
