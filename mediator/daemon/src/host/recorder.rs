//! From the accounting thread to the disk: periods are rolled up where they end, windows are
//! written on a thread that may wait.
//!
//! ```text accounting --periods--> Rollup --closed windows, at most QUEUE--> writer --> Store ```
//!
//! Nothing here makes the accounting thread wait. A disk that takes nothing is logged each minute,
//! and the writer retries. When the queue is full, the open window stays open and grows. What a
//! daemon has not written when it dies is a gap in the ledger after its restart.
//!
//! Another writer of the same entries is refused by the store. Should entries be there all the
//! same, the writer waits until no more are added, and goes on behind them.

mod writer;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde::Serialize;
use turnstile_accounting::change::Change;
use turnstile_accounting::record::{CapInForce, Digest, Entry, GpuIdentity, TenantKind, UnixNanos};
use turnstile_accounting::rollup::{RollupConfig, RollupError, Standing};
use turnstile_accounting::store::{Store, StoreError};
use turnstile_accounting::{Metadata, Moment, Nanos, Rollup, TenantId, Usage};
use turnstile_policies::Weight;
use uuid::Uuid;

use super::peer::{Kind, Tenant};
use crate::accounts::Book;
use crate::error::chain;
use crate::journal::{Changed, calendar};
use turnstile_gpu::Gpu;
use turnstile_host::confine::{Role, enter};
use turnstile_mediation::Mediation;

use writer::{QUIET, Writer};

/// Batches of closed entries on their way to the disk.
const QUEUE: usize = 8;

/// Changes on their way to the disk; a write that finds no room is refused.
const CHANGES: usize = 64;

/// How often the open window is kept. A daemon that is killed loses at most 5 s, with the time of
/// a period and of a write.
const DRAFT_EVERY: Nanos = Nanos::from_ms(3_000);

/// A ledger that all GPUs of a daemon write to. Its lock is an innermost one, held for a write.
pub type SharedStore = Arc<Mutex<Box<dyn Store>>>;

/// A durable ledger, as a daemon is given one for a GPU.
#[derive(Clone, Debug)]
pub struct LedgerConfig {
    /// Where entries go.
    pub store: SharedStore,
    /// The GPU of the ledger.
    pub gpu: GpuIdentity,
    /// Length of a window.
    pub window_ns: Nanos,
    /// For how long entries are kept; none is for ever.
    pub keep_ns: Option<Nanos>,
}

/// Why a daemon does not begin to write its ledger.
#[derive(Debug, thiserror::Error)]
pub enum LedgerStartError {
    /// The ledger's end could not be found.
    #[error("The end of the ledger cannot be read")]
    Store(#[from] StoreError),
    /// The configuration is not usable.
    #[error("The ledger cannot go on")]
    Rollup(#[from] RollupError),
    /// No thread.
    #[error("Starting the ledger's writer failed")]
    Thread(#[source] std::io::Error),
}

/// How the ledger stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LedgerHealth {
    /// Entries on the disk since this daemon began.
    pub written: u64,
    /// The last attempt to write failed.
    pub failing: bool,
    /// Periods that were refused, as they did not balance: gaps of their windows.
    pub refused: u64,
    /// Time since the end of the last entry on the disk, or since the daemon's start if there is
    /// none. It is at most two windows without faults, three where the calendar was set back.
    pub behind_ns: Nanos,
    /// Length of a window.
    pub window_ns: Nanos,
}

/// What accounting and writer share.
#[derive(Debug, Default)]
struct Shared {
    in_flight: AtomicUsize,
    /// A draft is on its way.
    drafting: AtomicBool,
    /// Changes on their way.
    noting: AtomicUsize,
    written: AtomicU64,
    failing: AtomicBool,
    /// Why the last attempt to write failed.
    reason: Mutex<Option<String>>,
    /// Something was given up: the ledger lacks it.
    lost: AtomicBool,
    /// End of the last entry on the disk, on the GPU's clock.
    durable_to: AtomicU64,
    /// Where accounting is, on the same.
    accounted_to: AtomicU64,
}

/// Rolls periods up, and hands windows to the writer.
#[derive(Debug)]
pub(crate) struct Recorder {
    rollup: Rollup,
    shared: Arc<Shared>,
    letters: Option<SyncSender<Letter>>,
    /// Dropped when the daemon stops.
    running: Option<Sender<()>>,
    writer: Option<JoinHandle<()>>,
    refused: u64,
    /// When the last draft was made or the last window was closed, on the GPU's clock.
    drafted_at: u64,
    window_ns: Nanos,
    node: String,
    boot: Uuid,
}

/// A request to the writer.
#[derive(Debug)]
enum Letter {
    Closed(Vec<Entry>),
    Changed(Box<Change>),
    /// The open window so far, and the digest that it follows.
    Draft(Box<(Digest, Entry)>),
}

impl Recorder {
    /// Continues after the last entry of the ledger.
    pub(crate) fn start(
        config: LedgerConfig,
        boot: Uuid,
        gpu: &dyn Gpu,
    ) -> Result<Self, LedgerStartError> {
        let LedgerConfig {
            store,
            gpu: identity,
            window_ns,
            keep_ns,
        } = config;
        let tail = {
            let mut store = store.lock().unwrap_or_else(PoisonError::into_inner);
            store.claim(&identity)?;
            // What the last run left of its open window, if it was killed.
            store.adopt(&identity)?;
            store.tail(&identity)?
        };
        let capability = gpu.capabilities();
        let node = identity.node.clone();
        let rollup = RollupConfig {
            gpu: identity.clone(),
            boot,
            window_ns,
            engines: super::engines(gpu)
                .map(|engine| (engine, engine.0 < capability.compute_engines))
                .collect(),
        };
        if let Some(ahead) = tail.map(|tail| tail.end.0.saturating_sub(calendar().0))
            && ahead > window_ns.0
        {
            log::warn!(
                "Ledger: it ends {} s after what the calendar says; windows are labelled with its end until that is over",
                ahead / 1_000_000_000
            );
        }
        let rollup = Rollup::new(rollup, tail)?;
        let now = gpu.now().0;
        let shared = Arc::new(Shared {
            durable_to: now.into(),
            accounted_to: now.into(),
            ..Shared::default()
        });
        let (letters, received) = sync_channel(QUEUE + CHANGES + 1);
        let (running, stop) = channel();
        let writer = Writer {
            store,
            gpu: identity,
            keep_ns,
            retained: None,
            tail,
            overtaken: None,
            quiet: QUIET.max(2 * Duration::from_nanos(window_ns.0)),
            shared: shared.clone(),
            stop,
        };
        let writer = thread::Builder::new()
            .name("turnstile-ledg".into())
            .spawn(move || {
                enter(Role::Writer);
                writer.run(&received);
            })
            .map_err(LedgerStartError::Thread)?;
        Ok(Self {
            rollup,
            shared,
            letters: Some(letters),
            running: Some(running),
            writer: Some(writer),
            refused: 0,
            drafted_at: now,
            window_ns,
            node,
            boot,
        })
    }

    /// Takes the metadata in force of tenants that have or had any.
    pub(crate) fn describe(&mut self, metadata: &BTreeMap<TenantId, Arc<Metadata>>) {
        let each = metadata
            .iter()
            .map(|(tenant, metadata)| (*tenant, metadata));
        self.rollup.describe(each);
    }

    /// A period ended just now and was charged.
    pub(crate) fn period(
        &mut self,
        gpu: &dyn Gpu,
        mediation: &Mediation,
        tenants: &BTreeMap<TenantId, Tenant>,
        starting: &BTreeMap<String, TenantId>,
        accounts: &Book,
        usages: &[&Usage],
    ) {
        let Some(last) = usages.last() else { return };
        let end = last.window.to();
        let uses = |tenant: TenantId| {
            let engines = usages.iter().flat_map(|usage| &usage.engines);
            let mut parts = engines.flat_map(|engine| &engine.tenants);
            parts.any(|part| part.tenant == tenant)
        };
        // A GPU may execute for a VM during its admission: its worker sets itself up.
        let arriving = starting
            .iter()
            .filter(|(_, tenant)| !tenants.contains_key(tenant) && uses(**tenant))
            .map(|(name, tenant)| Standing {
                tenant: *tenant,
                name,
                kind: TenantKind::Vm,
                account: accounts.owner(name).map(|account| &**account),
                weight: Weight::DEFAULT.get(),
                cap: None,
                held_total_ns: Nanos::ZERO,
                backlogged: false,
                memory_bytes: None,
            });
        let held = gpu.capabilities().memory_held;
        let standings: Vec<Standing<'_>> = tenants
            .iter()
            .map(|(tenant, entry)| Standing {
                tenant: *tenant,
                name: &entry.name,
                kind: match entry.kind {
                    Kind::Vm(_) => TenantKind::Vm,
                    Kind::Program(_) => TenantKind::Program,
                },
                account: Some(&entry.account.1),
                weight: mediation.weight(*tenant).map_or(0, Weight::get),
                cap: mediation.cap(*tenant).map(|cap| CapInForce {
                    quota_ns: cap.quota_ns(),
                    period_ns: cap.period_ns(),
                }),
                held_total_ns: mediation.ledger().held_ns(*tenant)
                    + mediation.held_now(*tenant, end),
                backlogged: mediation.backlogged(*tenant),
                memory_bytes: held.then(|| gpu.memory(*tenant).held_bytes),
            })
            .chain(arriving)
            .collect();
        self.add(usages, calendar(), &standings);
    }

    /// Nothing is known of the engines until `to`, which is now.
    pub(crate) fn silent(&mut self, to: Moment) {
        self.rollup.silent(to, calendar(), false);
        self.shared.accounted_to.store(to.0, Ordering::Relaxed);
        self.pass_on();
    }

    /// The same, at the end of the daemon.
    pub(super) fn ends_silent(&mut self, to: Moment) {
        self.rollup.silent(to, calendar(), true);
    }

    /// Hands closed windows to the writer, if it has room.
    fn pass_on(&mut self) {
        if self.rollup.due() && self.shared.in_flight.load(Ordering::Acquire) < QUEUE {
            let mut closed = Vec::new();
            self.rollup.take(&mut closed);
            self.send(closed);
            self.drafted_at = self.shared.accounted_to.load(Ordering::Relaxed);
        }
    }

    fn add(&mut self, usages: &[&Usage], end: UnixNanos, standings: &[Standing<'_>]) {
        if let Some(last) = usages.last() {
            let to = last.window.to().0;
            self.shared.accounted_to.store(to, Ordering::Relaxed);
        }
        if let Err(error) = self.rollup.period(usages, end, standings) {
            self.refused += 1;
            // Only the first is logged; each is a gap of its window.
            if self.refused == 1 {
                log::error!("Ledger: {}", chain(&error));
            }
        }
        self.pass_on();
        self.draft();
    }

    /// Hands the open window so far to the writer every `DRAFT_EVERY`, so that a daemon that is
    /// killed loses no more than that and the time of a write.
    fn draft(&mut self) {
        let now = self.shared.accounted_to.load(Ordering::Relaxed);
        let queued = self.shared.in_flight.load(Ordering::Acquire);
        // The window would be written behind those in the queue; what was kept is good until then.
        if now.saturating_sub(self.drafted_at) < DRAFT_EVERY.0 || queued > 0 {
            return;
        }
        let (Some(letters), Some(window)) = (&self.letters, self.rollup.draft()) else {
            return;
        };
        self.drafted_at = now;
        let draft = Letter::Draft(Box::new((self.rollup.digest(), window)));
        let drafting = &self.shared.drafting;
        if !drafting.swap(true, Ordering::AcqRel) && letters.try_send(draft).is_err() {
            drafting.store(false, Ordering::Release);
        }
    }

    /// Precondition: the queue has room, or the caller may wait for the writer.
    fn send(&self, closed: Vec<Entry>) {
        if let (Some(letters), false) = (&self.letters, closed.is_empty()) {
            self.shared.in_flight.fetch_add(1, Ordering::AcqRel);
            if letters.send(Letter::Closed(closed)).is_err() {
                log::error!("Ledger: the writer is gone");
            }
        }
    }

    /// Whether a change can be noted now. Not while the ledger's writes fail, though the queue may
    /// have room.
    pub(crate) fn can_note(&self) -> bool {
        !self.shared.failing.load(Ordering::Relaxed)
            && self.shared.noting.load(Ordering::Acquire) < CHANGES
    }

    /// Queues a change for the writer, without waiting. A change without room is lost and logged.
    pub(crate) fn note(&self, tenant: &str, changed: &Changed) {
        let change = Change {
            request: changed.request,
            at: calendar(),
            node: self.node.clone(),
            boot: self.boot,
            by: changed.by.clone(),
            tenant: tenant.to_owned(),
            part: changed.part.clone(),
            old: changed.old.to_string(),
            new: changed.new.to_string(),
        };
        let letter = Letter::Changed(Box::new(change));
        let Some(letters) = &self.letters else { return };
        self.shared.noting.fetch_add(1, Ordering::AcqRel);
        if letters.try_send(letter).is_err() {
            self.shared.noting.fetch_sub(1, Ordering::AcqRel);
            log::error!("Ledger: change {} is not noted", changed.request);
        }
    }

    pub(crate) fn health(&self) -> LedgerHealth {
        LedgerHealth {
            written: self.shared.written.load(Ordering::Relaxed),
            failing: self.shared.failing.load(Ordering::Relaxed),
            refused: self.refused,
            behind_ns: Nanos(
                self.shared
                    .accounted_to
                    .load(Ordering::Relaxed)
                    .saturating_sub(self.shared.durable_to.load(Ordering::Relaxed)),
            ),
            window_ns: self.window_ns,
        }
    }
}

impl Recorder {
    /// Why windows are not written now; none while they are.
    pub(super) fn reason(&self) -> Option<String> {
        self.shared.reason().clone()
    }

    /// Ends as a drop does; false if the ledger lacks something of this run.
    pub(super) fn close(self) -> bool {
        let shared = self.shared.clone();
        drop(self);
        !shared.lost.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn reason(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Recorder {
    /// Closes the open window and waits until it is written, or the disk has refused a few times.
    fn drop(&mut self) {
        drop(self.running.take());
        let mut closed = Vec::new();
        self.rollup.finish(&mut closed);
        self.send(closed);
        drop(self.letters.take());
        if self
            .writer
            .take()
            .is_some_and(|writer| writer.join().is_err())
        {
            log::error!("Ledger: the writer panicked");
        }
    }
}

#[cfg(test)]
#[path = "recorder_tests.rs"]
mod tests;
