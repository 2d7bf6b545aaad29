//! Accounts: which tenants belong to which, and what each account may have.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use turnstile_policies::Weight;
use utoipa::ToSchema;

use super::Shared;
use super::access::Caller;
use super::body::{Patch, Whole};
use super::etag::{expect, tagged, tagged_at};
use super::gate::RequestId;
use super::limits::LIMIT_MAX;
use super::page::{Page, PageQuery};
use super::params::IfMatch;
use super::problem::Problem;
use super::vm::Scheduling;
use super::write::{Write, detached};
use turnstile_daemon::accounts::{AccountsError, Entry, Origin, PATTERNS_MAX, Pattern, View};
use turnstile_daemon::{Fleet, NAME_BYTES_MAX, NAME_RULE, is_tenant_name, resolve};

/// An account: tenants that share a weight and limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Account {
    /// Its name. `uid-1000` is the own account of user 1000.
    #[schema(min_length = 1, max_length = 253, pattern = "^[A-Za-z0-9._+-]+$")]
    pub name: String,
    /// Where its terms come from: `user` (defaults), `configuration` or `api`.
    #[serde(default)]
    pub origin: String,
    /// Tenant names that belong to it; `*` stands for any text.
    #[serde(default, rename = "match")]
    #[schema(max_items = 64)]
    pub patterns: Vec<String>,
    /// Unix user, by name or number: its tenants belong to it. With `match`, both have to hold.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 253)]
    pub user: Option<String>,
    /// Share relative to other accounts.
    #[serde(default = "default_weight")]
    #[schema(minimum = 1, maximum = 10_000)]
    pub weight: u32,
    /// The largest weight that one of its tenants may claim.
    #[serde(default = "default_weight_max")]
    #[schema(minimum = 1, maximum = 10_000)]
    pub weight_max: u32,
    /// Engine time that its tenants get together at most in each period, in microseconds; null for
    /// no limit.
    #[serde(default)]
    #[schema(minimum = 1_000, maximum = 1_000_000)]
    pub quota_us: Option<u64>,
    /// Length of the period in microseconds; 100,000 if only a quota is given.
    #[serde(default)]
    #[schema(minimum = 1_000, maximum = 1_000_000)]
    pub period_us: Option<u64>,
    /// GPU memory that its tenants may claim together, in bytes; null for no limit.
    #[serde(default)]
    #[schema(maximum = 1_125_899_906_842_624_u64)]
    pub memory_max_bytes: Option<u64>,
    /// Tenants that it may have connected at a time; null for no limit.
    #[serde(default)]
    pub tenants_max: Option<u32>,
}

/// Changes to an account; what is left out stays as it is.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "a schema: the patch itself is merged as JSON")]
pub(super) struct AccountPatch {
    /// Tenant names that belong to it; `*` stands for any text.
    #[schema(rename = "match", max_items = 64)]
    patterns: Option<Vec<String>>,
    /// Unix user, by name or number: its tenants belong to it; null for any.
    #[schema(min_length = 1, max_length = 253)]
    user: Option<String>,
    /// Share relative to other accounts.
    #[schema(minimum = 1, maximum = 10_000)]
    weight: Option<u32>,
    /// The largest weight that one of its tenants may claim.
    #[schema(minimum = 1, maximum = 10_000)]
    weight_max: Option<u32>,
    /// Engine time that its tenants get together at most in each period, in microseconds; null
    /// lifts the limit.
    #[schema(minimum = 1_000, maximum = 1_000_000)]
    quota_us: Option<u64>,
    /// Length of the period in microseconds.
    #[schema(minimum = 1_000, maximum = 1_000_000)]
    period_us: Option<u64>,
    /// GPU memory that its tenants may claim together, in bytes; null lifts the limit.
    #[schema(maximum = 1_125_899_906_842_624_u64)]
    memory_max_bytes: Option<u64>,
    /// Tenants that it may have connected at a time; null lifts the limit.
    tenants_max: Option<u32>,
}

fn default_weight() -> u32 {
    Entry::default().weight.get()
}

fn default_weight_max() -> u32 {
    Entry::default().weight_max.get()
}

impl Account {
    fn of(name: &str, view: View) -> Self {
        let View { entry, origin, .. } = view;
        let origin = match origin {
            Origin::User => "user",
            Origin::Configuration => "configuration",
            Origin::Api => "api",
        };
        let scheduling = Scheduling::of(entry.weight.get(), entry.cap);
        Self {
            name: name.to_owned(),
            origin: origin.to_owned(),
            patterns: entry.patterns.iter().map(Pattern::to_string).collect(),
            user: entry.user,
            weight: scheduling.weight,
            weight_max: entry.weight_max.get(),
            quota_us: scheduling.quota_us,
            period_us: scheduling.period_us,
            memory_max_bytes: entry.memory_max_bytes,
            tenants_max: entry.tenants_max,
        }
    }

    /// The entry for the book of accounts, if each part of it can be.
    fn entry(&self) -> Result<Entry, Problem> {
        let weight = |pointer, weight| {
            Weight::new(weight).map_err(|error| Problem::field(pointer, error.to_string()))
        };
        let cap = Scheduling {
            quota_us: self.quota_us,
            period_us: self.period_us,
            ..Scheduling::of(self.weight, None)
        };
        let pattern = |(at, text): (usize, &String)| {
            let refused = |error| Problem::field(format!("/match/{at}"), format!("{error}"));
            text.parse()
                .map_err(|error: turnstile_daemon::accounts::PatternError| refused(error))
        };
        if self.patterns.len() > PATTERNS_MAX {
            return Err(Problem::field(
                "/match",
                format!("At most {PATTERNS_MAX} patterns"),
            ));
        }
        if self.user.as_ref().is_some_and(|user| !is_tenant_name(user)) {
            let detail = NAME_RULE;
            return Err(Problem::field("/user", detail));
        }
        if self.memory_max_bytes.is_some_and(|bytes| bytes > LIMIT_MAX) {
            let detail = format!("At most {LIMIT_MAX} bytes");
            return Err(Problem::field("/memory_max_bytes", detail));
        }
        Ok(Entry {
            patterns: (self.patterns.iter().enumerate())
                .map(pattern)
                .collect::<Result<_, _>>()?,
            user: self.user.clone(),
            weight: weight("/weight", self.weight)?,
            weight_max: weight("/weight_max", self.weight_max)?,
            cap: cap.cap()?,
            memory_max_bytes: self.memory_max_bytes,
            tenants_max: self.tenants_max,
        })
    }
}

impl From<AccountsError> for Problem {
    fn from(error: AccountsError) -> Self {
        Self::new(StatusCode::CONFLICT, error.to_string())
    }
}

fn no_account(name: &str) -> Problem {
    let name: String = name.chars().take(NAME_BYTES_MAX).collect();
    let detail = format!("There is no account named {name:?}");
    Problem::new(StatusCode::NOT_FOUND, detail)
}

impl Account {
    fn all(fleet: &Fleet) -> BTreeMap<String, Self> {
        let account = |(name, view): (String, View)| {
            let account = Self::of(&name, view);
            (name, account)
        };
        fleet.accounts().into_iter().map(account).collect()
    }

    fn named(fleet: &Fleet, name: &str) -> Result<Self, Problem> {
        Self::all(fleet)
            .remove(name)
            .ok_or_else(|| no_account(name))
    }
}

/// Carries a write of an account out. `decide` gets the account, and returns the new one or
/// `None` to remove it, and whether `If-Match` names its current version. Returns the account
/// as it is then.
async fn write_account(
    shared: Arc<Shared>,
    write: Write,
    decide: impl FnOnce(Option<&Account>) -> Decided + Send + 'static,
) -> Result<Option<Account>, Problem> {
    detached(async move { carry_out(&shared, &write, decide).await }).await
}

async fn carry_out(
    shared: &Shared,
    write: &Write,
    decide: impl FnOnce(Option<&Account>) -> Decided,
) -> Result<Option<Account>, Problem> {
    let turn = shared.turn().await;
    let name = &write.name;
    let before = Account::named(&shared.fleet, name).ok();
    let (wanted, meant) = decide(before.as_ref())?;
    let entry = wanted.as_ref().map(Account::entry).transpose()?;
    let rule = match entry {
        None => None,
        Some(entry) => {
            shared.fleet.check_terms(&entry)?;
            // The host's name service may take long.
            let resolved = tokio::task::spawn_blocking(move || resolve(entry)).await;
            let failed = |_| {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                Problem::new(status, "The user was not looked up; the log says why")
            };
            let rule = resolved.map_err(failed)?;
            Some(rule.map_err(|error| Problem::field("/user", error.to_string()))?)
        }
    };
    shared.fleet.check_account(name, rule.as_ref())?;
    meant?;
    if wanted.is_some() && wanted == before {
        return Ok(before);
    }
    let mut kept = turn.kept();
    let audit = turn.audit(
        write,
        kept.accounts.get(name),
        rule.as_ref().map(|r| &r.entry),
    )?;
    match &rule {
        Some(rule) => {
            kept.accounts.insert(name.clone(), rule.entry.clone());
        }
        None => {
            kept.accounts.remove(name);
            kept.names.retain(|_, account| account != name);
        }
    }
    turn.keep(kept).await?;
    if let Err(error) = shared.fleet.set_account(name, rule.as_ref()) {
        // A tenant of it connected meanwhile.
        turn.keep(turn.kept()).await?;
        return Err(error.into());
    }
    shared.gpus.renew();
    audit.emit(&shared.fleet);
    Ok(Account::named(&shared.fleet, name).ok())
}

/// The new account (`None` removes it), and whether `If-Match` names its current version. The
/// second is checked last, as in [`super::write::Decided`].
type Decided = Result<(Option<Account>, Result<(), Problem>), Problem>;

/// Accounts by name: those of the configuration and the API, and those of which a tenant connected.
#[utoipa::path(
    get, path = "/v1/accounts", operation_id = "list_accounts", tag = "accounts", params(PageQuery),
    responses(
        (status = 200, description = "A page of accounts", body = Page<Account>),
        (status = "4XX", response = super::Refused),
    )
)]
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    query: Result<Query<PageQuery>, QueryRejection>,
) -> Result<Json<Page<Account>>, Problem> {
    Page::of(query, Account::all(&shared.fleet)).map(Json)
}

/// One account.
#[utoipa::path(
    get, path = "/v1/accounts/{name}", operation_id = "get_account", tag = "accounts",
    params(("name" = String, Path, description = "Name of the account")),
    responses(
        (status = 200, description = "The account", body = Account, headers(("ETag" = String))),
        (status = 304, description = "As in If-None-Match"),
        (status = "4XX", response = super::Refused),
    )
)]
pub(super) async fn get(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    Ok(tagged(&headers, &Account::named(&shared.fleet, &name)?))
}

/// Makes an account. The same again is no conflict.
#[utoipa::path(
    post, path = "/v1/accounts", operation_id = "make_account", tag = "accounts",
    request_body(content = Account, content_type = "application/json"),
    responses(
        (status = 200, description = "It was there already", body = Account, headers(("ETag" = String))),
        (status = 201, description = "Made", body = Account, headers(("ETag" = String), ("Location" = String))),
        (status = "4XX", response = super::Refused),
        (status = 503, response = super::Refused),
    )
)]
pub(super) async fn make(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Extension(id): Extension<RequestId>,
    Whole(mut wanted): Whole<Account>,
) -> Result<Response, Problem> {
    let name = wanted.name.clone();
    if !is_tenant_name(&name) {
        let detail = NAME_RULE;
        return Err(Problem::field("/name", detail));
    }
    let there = Account::named(&shared.fleet, &name).is_ok();
    let decide = move |before: Option<&Account>| {
        if let Some(before) = before {
            wanted.origin.clone_from(&before.origin);
            if *before != wanted {
                let detail = format!("Account {} is there, with other terms", before.name);
                return Err(Problem::new(StatusCode::CONFLICT, detail));
            }
        }
        Ok((Some(wanted), Ok(())))
    };
    let write = Write::of_account(caller, id, name.clone());
    let account = write_account(shared, write, decide).await?;
    let place = format!("/v1/accounts/{name}");
    Ok(tagged_at(&place, !there, &account))
}

/// Changes an account, by merge patch (RFC 7396). Weight and quota apply at the next decision, the
/// rest to tenants that connect from now on.
#[utoipa::path(
    patch, path = "/v1/accounts/{name}", operation_id = "patch_account", tag = "accounts",
    params(("name" = String, Path, description = "Name of the account"), IfMatch),
    request_body(content = AccountPatch, content_type = "application/merge-patch+json"),
    responses(
        (status = 200, description = "As it is now", body = Account, headers(("ETag" = String))),
        (status = "4XX", response = super::Refused),
        (status = 503, response = super::Refused),
    )
)]
pub(super) async fn patch(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Extension(id): Extension<RequestId>,
    Path(name): Path<String>,
    headers: HeaderMap,
    patch: Patch,
) -> Result<Response, Problem> {
    let (strict, known) = (shared.in_force.get().strict, name.clone());
    let decide = move |before: Option<&Account>| {
        let before = before.ok_or_else(|| no_account(&known))?;
        let wanted: Account = patch.apply(before)?;
        for (pointer, same) in [
            ("/name", wanted.name == before.name),
            ("/origin", wanted.origin == before.origin),
        ] {
            if !same {
                return Err(Problem::field(pointer, "It cannot be changed"));
            }
        }
        Ok((Some(wanted), expect(&headers, before, strict)))
    };
    let write = Write::of_account(caller, id, name);
    let account = write_account(shared, write, decide).await?;
    Ok(tagged(&HeaderMap::new(), &account))
}

/// Removes what the API set of an account without tenants, and frees its tenants' names. An account
/// of the configuration is as the configuration has it again.
#[utoipa::path(
    delete, path = "/v1/accounts/{name}", operation_id = "forget_account", tag = "accounts",
    params(("name" = String, Path, description = "Name of the account"), IfMatch),
    responses(
        (status = 204, description = "Forgotten"),
        (status = "4XX", response = super::Refused),
        (status = 503, response = super::Refused),
    )
)]
pub(super) async fn forget(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Extension(id): Extension<RequestId>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (strict, known) = (shared.in_force.get().strict, name.clone());
    let decide = move |before: Option<&Account>| {
        let before = before.ok_or_else(|| no_account(&known))?;
        Ok((None, expect(&headers, before, strict)))
    };
    let write = Write::of_account(caller, id, name);
    write_account(shared, write, decide).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
