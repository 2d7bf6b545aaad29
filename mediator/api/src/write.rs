//! Writes: one at a time, whole or not at all, audited, and done when on the disk and in force.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Serialize;
use serde_json::Value;

use super::Shared;
use super::access::Caller;
use super::etag::{expect, tagged};
use super::gate::RequestId;
use super::problem::Problem;
use super::state_file::Kept;
use super::vm::Vm;
use turnstile_daemon::declared::Life;
use turnstile_daemon::{Changed, Fleet, Settings, SettingsError};

/// Names that tenants have taken are written to the state file this often.
const KEEP_EVERY: Duration = Duration::from_secs(1);

/// TIMEOUT: after a write of them that failed; each failure is a line of the log.
const KEEP_AGAIN: Duration = Duration::from_secs(60);

/// A write and its caller.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) caller: Caller,
    pub(super) id: RequestId,
    /// What is written: `vm`, `account` or `gpu`.
    of: &'static str,
    /// Which part of the tenant, or `account`.
    pub(super) part: &'static str,
    /// Which tenant, account or GPU.
    pub(super) name: String,
}

impl Write {
    pub(super) const fn new(
        caller: Caller,
        id: RequestId,
        part: &'static str,
        name: String,
    ) -> Self {
        Self {
            caller,
            id,
            of: "vm",
            part,
            name,
        }
    }

    pub(super) fn of_gpu(caller: Caller, id: RequestId, name: String) -> Self {
        Self {
            of: "gpu",
            ..Self::new(caller, id, "cordoned", name)
        }
    }

    pub(super) fn of_account(caller: Caller, id: RequestId, name: String) -> Self {
        Self {
            of: "account",
            ..Self::new(caller, id, "account", name)
        }
    }
}

/// The settings of a tenant (`None` removes them), and whether `If-Match` names its current
/// version. The second is checked last: a request that is refused anyhow is refused for its own
/// fault.
/// SOURCE: RFC 9110, 13.2.1
pub(super) type Decided = Result<(Option<Settings>, Result<(), Problem>), Problem>;

/// A tenant that is connected or has settings.
pub(super) fn there<'a>(vm: Option<&'a Vm>, name: &str) -> Result<&'a Vm, Problem> {
    vm.ok_or_else(|| Problem::no_vm(name))
}

/// Sets a part of a tenant and answers with that part as it is then. `part` reads it from a tenant,
/// `enter` puts the wanted value into the settings.
pub(super) async fn set<T: Serialize + 'static>(
    shared: &Arc<Shared>,
    write: Write,
    headers: HeaderMap,
    part: fn(&Vm) -> T,
    enter: impl FnOnce(&Vm, &mut Settings) -> Result<(), Problem> + Send + 'static,
) -> Result<Response, Problem> {
    let (strict, name) = (shared.in_force.get().strict, write.name.clone());
    let decide = move |vm: Option<&Vm>, set: Option<Settings>| {
        let vm = there(vm, &name)?;
        let mut settings = set.unwrap_or_default();
        enter(vm, &mut settings)?;
        Ok((Some(settings), expect(&headers, &part(vm), strict)))
    };
    let vm = carry_out(shared, write, decide).await?;
    Ok(tagged(&HeaderMap::new(), &vm.as_ref().map(part)))
}

/// Carries a write out on a task of its own: a caller that hangs up does not leave half a write.
pub(super) async fn detached<T: Send + 'static>(
    write: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    tokio::spawn(write).await.unwrap_or_else(|error| {
        log::error!("API: a write failed: {error}");
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Err(Problem::new(status, "The write failed; the log says why"))
    })
}

impl From<SettingsError> for Problem {
    fn from(error: SettingsError) -> Self {
        Self::new(StatusCode::CONFLICT, error.to_string())
    }
}

/// The turn of a write, which alone changes what is set.
pub(super) struct Turn<'a> {
    shared: &'a Shared,
    _one_at_a_time: tokio::sync::MutexGuard<'a, ()>,
}

impl Shared {
    pub(super) async fn turn(&self) -> Turn<'_> {
        Turn {
            shared: self,
            _one_at_a_time: self.writes.lock().await,
        }
    }
}

impl Turn<'_> {
    /// What a state file keeps, as it is now.
    pub(super) fn kept(&self) -> Kept {
        let mut tenants = self.shared.gpus.first().host.settings();
        // What is set of a VM that is ending ends with it.
        let declared = self.shared.fleet.declared();
        for vm in declared.iter().filter(|vm| vm.life == Life::Ending) {
            tenants.remove(&vm.declared.name);
        }
        let (accounts, names) = self.shared.gpus.first().host.kept_accounts();
        Kept {
            tenants,
            accounts,
            names,
            cordoned: self.shared.fleet.closed().map(str::to_owned).collect(),
            removed: self.shared.fleet.removed().map(str::to_owned).collect(),
            vms: self.shared.fleet.kept_vms(),
        }
    }

    /// Makes what is set durable.
    pub(super) async fn keep(&self, kept: Kept) -> Result<(), Problem> {
        let Some(file) = self.shared.state.clone() else {
            return Ok(());
        };
        let saved = tokio::task::spawn_blocking(move || file.save(&kept)).await;
        let error: Box<dyn std::error::Error + Send + Sync> = match saved {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error.into(),
            Err(error) => error.into(),
        };
        log::error!("API: {}", turnstile_daemon::chain(&*error));
        Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "Nothing was changed: the state file could not be written (is the disk full?); the log says why",
        ))
    }

    /// The audit of a write, to be published once the write is done.
    pub(super) fn audit<T: Serialize>(
        &self,
        write: &Write,
        old: Option<&T>,
        new: Option<&T>,
    ) -> Result<Audit, Problem> {
        if !self.shared.gpus.first().host.can_note() {
            return Err(Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "Nothing was changed: the ledger, which notes every change, is not written (is the disk full?)",
            ));
        }
        let value = |set: Option<&T>| serde_json::to_value(set).unwrap_or_default();
        Ok(Audit {
            of: write.of,
            name: write.name.clone(),
            change: Changed {
                by: write.caller.name.clone(),
                request: write.id.0,
                part: write.part.to_owned(),
                old: value(old),
                new: value(new),
            },
        })
    }
}

/// Carries a write out. `decide` gets the tenant and its settings, and returns the new settings
/// or `None` to remove them. Returns the tenant as it is then.
pub(super) async fn carry_out(
    shared: &Arc<Shared>,
    write: Write,
    decide: impl FnOnce(Option<&Vm>, Option<Settings>) -> Decided + Send + 'static,
) -> Result<Option<Vm>, Problem> {
    let shared = shared.clone();
    detached(async move { change(&shared, &write, decide).await }).await
}

async fn change(
    shared: &Shared,
    write: &Write,
    decide: impl FnOnce(Option<&Vm>, Option<Settings>) -> Decided,
) -> Result<Option<Vm>, Problem> {
    let turn = shared.turn().await;
    shared.gpus.renew();
    let name = &write.name;
    let mut kept = turn.kept();
    let vm = Vm::named(shared, name).ok();
    let before = kept.tenants.get(name).cloned();
    let (wanted, meant) = decide(vm.as_ref(), before.clone())?;
    shared.fleet.check_settings(name, wanted.as_ref())?;
    meant?;
    // A tenant that is forgotten gives its name back, whether something is set of it or not.
    let freed = wanted.is_none().then(|| kept.names.remove(name)).flatten();
    if wanted == before && freed.is_none() {
        return Ok(vm);
    }
    let mut audit = turn.audit(write, before.as_ref(), wanted.as_ref())?;
    if let (Some(account), Value::Null) = (&freed, &audit.change.old) {
        audit.change.old = serde_json::json!({ "account": account });
    }
    match wanted.clone() {
        Some(settings) => kept.tenants.insert(name.clone(), settings),
        None => kept.tenants.remove(name),
    };
    turn.keep(kept).await?;
    if let Err(error) = shared.fleet.set_settings(name, wanted) {
        // A tenant connected or left meanwhile, and the change does not fit any more.
        turn.keep(turn.kept()).await?;
        return Err(error.into());
    }
    if freed.is_some() {
        shared.fleet.forget_name(name);
    }
    shared.gpus.renew();
    audit.emit(&shared.fleet);
    Ok(Vm::named(shared, name).ok())
}

/// Writes names that tenants have taken, and moves of declared VMs, to the state file. It does
/// so every [`KEEP_EVERY`], for as long as the API runs. A name that was taken after the last
/// write is free after a crash.
pub(super) async fn keep_names(shared: Arc<Shared>) {
    let mut written = 0;
    loop {
        tokio::time::sleep(KEEP_EVERY).await;
        let changes = shared.fleet.kept_changes();
        if changes == written {
            continue;
        }
        let turn = shared.turn().await;
        let kept = turn.keep(turn.kept()).await;
        drop(turn);
        match kept {
            Ok(()) => written = changes,
            Err(_) => tokio::time::sleep(KEEP_AGAIN).await,
        }
    }
}

/// A write that was carried out, for the log, observers and the ledger.
#[derive(Debug)]
pub(super) struct Audit {
    of: &'static str,
    name: String,
    change: Changed,
}

impl Audit {
    pub(super) fn emit(self, fleet: &Fleet) {
        let Self { of, name, change } = self;
        log::info!(
            target: "turnstile::audit",
            "request={} by=\"{}\" {of}={name} {}: {} -> {}",
            change.request,
            change.by,
            change.part,
            change.old,
            change.new,
        );
        fleet.note(&format!("{of}_set"), &name, change);
    }
}
