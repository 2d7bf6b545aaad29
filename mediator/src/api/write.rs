//! A write: one at a time, whole or not at all, told to the audit, and over when what it set is on the disk and in force.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Serialize;

use super::Shared;
use super::access::Caller;
use super::etag::{expect, tagged};
use super::gate::RequestId;
use super::problem::Problem;
use super::vms::Vm;
use crate::daemon::{Changed, Host, Settings, SettingsError};

/// Who writes what.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) caller: Caller,
    pub(super) id: RequestId,
    /// Which part of the tenant.
    pub(super) part: &'static str,
    /// Which tenant.
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
            part,
            name,
        }
    }
}

/// What is to be set of a tenant (none forgets it), and whether the caller means the version that there is. That comes last, as a
/// request that is refused anyhow is refused for its own fault.
/// SOURCE: RFC 9110, 13.2.1
pub(super) type Decided = Result<(Option<Settings>, Result<(), Problem>), Problem>;

/// A tenant that is there, or of which something is set.
pub(super) fn there<'a>(vm: Option<&'a Vm>, name: &str) -> Result<&'a Vm, Problem> {
    vm.ok_or_else(|| Problem::no_vm(name))
}

/// Sets a part of a tenant that is there, and answers with that part as it is then. `part` takes it out of a tenant, `enter` puts what
/// is wanted into what is set.
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
    let vm = shared.write(write, decide).await?;
    Ok(tagged(&HeaderMap::new(), &vm.as_ref().map(part)))
}

impl From<SettingsError> for Problem {
    fn from(error: SettingsError) -> Self {
        Self::new(StatusCode::CONFLICT, error.to_string())
    }
}

impl Shared {
    /// Carries a write out. `decide` is given the tenant as it is and what is set of it, and returns what is to be set, or
    /// none to forget it. Returns the tenant as it is then.
    pub(super) async fn write(
        self: &Arc<Self>,
        write: Write,
        decide: impl FnOnce(Option<&Vm>, Option<Settings>) -> Decided + Send + 'static,
    ) -> Result<Option<Vm>, Problem> {
        let shared = self.clone();
        // On a task of its own: a caller who hangs up does not leave half a write.
        let written = tokio::spawn(async move { shared.carry_out(&write, decide).await });
        written.await.unwrap_or_else(|error| {
            log::error!("API: a write failed: {error}");
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            Err(Problem::new(status, "The write failed; the log says why"))
        })
    }

    async fn carry_out(
        &self,
        write: &Write,
        decide: impl FnOnce(Option<&Vm>, Option<Settings>) -> Decided,
    ) -> Result<Option<Vm>, Problem> {
        let _one_at_a_time = self.writes.lock().await;
        self.snapshots.renew();
        let name = &write.name;
        let mut all = self.host.settings();
        let vm = self.vm(name).ok();
        let before = all.get(name).copied();
        let (wanted, meant) = decide(vm.as_ref(), before)?;
        self.host.check_settings(name, wanted.as_ref())?;
        meant?;
        if wanted == before {
            return Ok(vm);
        }
        let audit = self.audit(write, before.as_ref(), wanted.as_ref())?;
        match wanted {
            Some(settings) => all.insert(name.clone(), settings),
            None => all.remove(name),
        };
        self.keep(all).await?;
        if let Err(error) = self.host.set_settings(name, wanted) {
            // A tenant came or went meanwhile, and it does not fit any more.
            self.keep(self.host.settings()).await?;
            return Err(error.into());
        }
        self.snapshots.renew();
        audit.tell(&self.host);
        Ok(self.vm(name).ok())
    }

    /// Makes settings durable.
    async fn keep(&self, settings: BTreeMap<String, Settings>) -> Result<(), Problem> {
        let Some(file) = self.state.clone() else {
            return Ok(());
        };
        let saved = tokio::task::spawn_blocking(move || file.save(&settings)).await;
        let error: Box<dyn std::error::Error + Send + Sync> = match saved {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error.into(),
            Err(error) => error.into(),
        };
        log::error!("API: {}", crate::daemon::chain(&*error));
        Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "Nothing was changed: the state file could not be written (is the disk full?); the log says why",
        ))
    }

    /// What is told of a write, once it is done.
    fn audit(
        &self,
        write: &Write,
        old: Option<&Settings>,
        new: Option<&Settings>,
    ) -> Result<Audit, Problem> {
        if !self.host.can_note() {
            return Err(Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "Nothing was changed: the ledger, which notes every change, is not written (is the disk full?)",
            ));
        }
        let value =
            |settings: Option<&Settings>| serde_json::to_value(settings).unwrap_or_default();
        Ok(Audit {
            vm: write.name.clone(),
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

/// A write that was carried out, for the log, those who watch, and the ledger.
#[derive(Debug)]
struct Audit {
    vm: String,
    change: Changed,
}

impl Audit {
    fn tell(self, host: &Host) {
        let Self { vm, change } = self;
        log::info!(
            target: "turnstile::audit",
            "request={} by=\"{}\" vm={vm} {}: {} -> {}",
            change.request,
            change.by,
            change.part,
            change.old,
            change.new,
        );
        host.note(&vm, change);
    }
}
