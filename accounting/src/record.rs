//! The content of the durable ledger: one entry for each stretch of a GPU's time, a window or a
//! gap.
//!
//! ```text
//! entry 41  window  13:00:00 .. 13:01:00   a record per tenant, a record per engine
//! entry 42  gap     13:01:00 .. 13:04:12   nobody was there to see
//! entry 43  window  13:04:12 .. 13:05:00   another boot id, the same sequence
//! ```
//!
//! Entries of a GPU follow each other without a hole: sequence numbers increase by one, and each
//! entry begins where the one before ends. Each has a digest over itself and the one before it. All
//! amounts are integers.

mod signals;

pub use signals::SignalSet;

use crate::metadata::Metadata;
use crate::units::{EngineId, Moment, Nanos};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::sync::Arc;
use uuid::Uuid;

/// A point of the calendar: nanoseconds since 1970-01-01T00:00:00Z.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct UnixNanos(pub u64);

/// A GPU, as named in bills.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct GpuIdentity {
    /// The host.
    pub node: String,
    /// The GPU's own identity, which together with the node is unique in the fleet.
    pub gpu: String,
    /// Its model, as named in price lists.
    pub model: String,
}

/// Kind of tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TenantKind {
    /// A virtual machine.
    Vm,
    /// A program and its children.
    Program,
    /// All processes that belong to no tenant. Their time is recorded, and no bill has it.
    Untracked,
}

/// A tenant, as named in bills. An id is never used again; a name may be. Metadata may change while
/// the tenant is connected; a record has those that were in force.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TenantIdentity {
    /// Unique for ever.
    pub id: Uuid,
    /// The name that its operator gave it.
    pub name: String,
    /// Its kind.
    pub kind: TenantKind,
    /// Name of its account; none if unknown, as in entries that are older than accounts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Instance id, project and labels in force; empty if it has none.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub metadata: Arc<Metadata>,
}

/// An upper limit in force: `quota_ns` of engine time in each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CapInForce {
    /// Engine time permitted.
    pub quota_ns: Nanos,
    /// Length of a period.
    pub period_ns: Nanos,
}

/// Position of an entry in the ledger and in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stretch {
    /// Number in the GPU's sequence, which increases by one through windows, gaps and restarts.
    pub seq: u64,
    /// The run of the daemon that wrote it.
    pub boot: Uuid,
    /// Its beginning on the calendar: the end of the entry before it.
    pub start: UnixNanos,
    /// Its end on the calendar. Never before its beginning, even if the host's clock was set back.
    pub end: UnixNanos,
    /// Its beginning on the GPU's clock; zero for a gap between two runs.
    pub from: Moment,
    /// Its length on the GPU's clock, which is what is charged; for a gap between two runs, on the
    /// calendar.
    pub length_ns: Nanos,
}

/// What one tenant used in one window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
// FIELDS: a row of the ledger: one quantity each.
pub struct TenantRecord {
    /// The record's own id; see [`crate::ids::event_id`].
    pub id: Uuid,
    /// The tenant.
    pub tenant: TenantIdentity,
    /// Time on the compute engines, which is what is billed.
    pub engine_ns: Nanos,
    /// The part of `engine_ns` that was extrapolated rather than observed.
    pub estimated_ns: Nanos,
    /// Time on all engines stalled on its faults; not part of `engine_ns` or `copy_ns`.
    pub fault_ns: Nanos,
    /// Time on the copy engines.
    pub copy_ns: Nanos,
    /// Bytes that copy engines moved in that time; none where the GPU does not count them.
    pub copy_bytes: Option<u64>,
    /// Time for which it was held back.
    pub held_ns: Nanos,
    /// Time in which it had work and did not run, held back or not; sampled at the end of each
    /// period.
    pub waiting_ns: Nanos,
    /// GPU memory held, integrated over time; none where the GPU does not report it.
    pub memory_byte_ns: Option<u128>,
    /// Weight in force at the window's end.
    pub weight: u32,
    /// Cap in force at the window's end.
    pub cap: Option<CapInForce>,
    /// The signals that it is based on.
    pub signals: SignalSet,
    /// Bound on the error of `engine_ns` and of `copy_ns`, as far as the signals show.
    pub error_bound_ns: Nanos,
    /// Residencies on engines.
    pub turns: u64,
}

/// Where one engine's time went in one window (law 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineRecord {
    /// Which engine.
    pub engine: EngineId,
    /// Whether it is a compute engine; the others are copy engines.
    pub compute: bool,
    /// All tenants' time.
    pub used_ns: Nanos,
    /// Stalls on faults.
    pub fault_ns: Nanos,
    /// Time between contexts.
    pub switching_ns: Nanos,
    /// Time with nothing to execute.
    pub idle_ns: Nanos,
    /// Time that no signal covers.
    pub unobserved_ns: Nanos,
    /// Time between two periods.
    pub gap_ns: Nanos,
    /// Sum of the periods' error bounds.
    pub error_bound_ns: Nanos,
}

/// Why nothing is known of a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GapCause {
    /// The daemon was not running.
    Down,
    /// It was running and did not account.
    Missed,
    /// The GPU did not answer: no source of engine state was readable.
    Silent,
    /// More tenants were present than a window may hold, while the disk accepted no entries.
    Overflow,
}

/// Content of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
pub enum Body {
    /// The time was accounted.
    Window {
        /// By ascending id, with tenants that used nothing.
        tenants: Vec<TenantRecord>,
        /// By ascending number.
        engines: Vec<EngineRecord>,
    },
    /// The time was not accounted.
    Gap {
        /// The reason.
        cause: GapCause,
    },
}

/// A SHA-256 over an entry and all entries before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

/// A window or a gap, numbered and sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its position.
    pub stretch: Stretch,
    /// Its content.
    pub body: Body,
    /// Digest over it and what precedes it.
    pub digest: Digest,
}

/// The last entry of a GPU's ledger: where the next one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// Its number.
    pub seq: u64,
    /// Its end on the calendar.
    pub end: UnixNanos,
    /// Its digest.
    pub digest: Digest,
}

fn is_empty(metadata: &Metadata) -> bool {
    metadata.is_empty()
}

impl TenantKind {
    /// The name in the store and in exports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Vm => "vm",
            Self::Program => "program",
            Self::Untracked => "untracked",
        }
    }

    /// The kind of this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Vm, Self::Program, Self::Untracked]
            .into_iter()
            .find(|kind| kind.as_str() == name)
    }
}

impl GapCause {
    /// The name in the store and in exports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Missed => "missed",
            Self::Silent => "silent",
            Self::Overflow => "overflow",
        }
    }

    /// All causes.
    pub(crate) const ALL: [Self; 4] = [Self::Down, Self::Missed, Self::Silent, Self::Overflow];

    /// The cause of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.as_str() == name)
    }
}

impl EngineRecord {
    /// A record of an engine, with no time yet.
    pub const fn empty(engine: EngineId, compute: bool) -> Self {
        Self {
            engine,
            compute,
            used_ns: Nanos::ZERO,
            fault_ns: Nanos::ZERO,
            switching_ns: Nanos::ZERO,
            idle_ns: Nanos::ZERO,
            unobserved_ns: Nanos::ZERO,
            gap_ns: Nanos::ZERO,
            error_bound_ns: Nanos::ZERO,
        }
    }

    /// Sum of all its time; equals the window's length (law 1). Wide, as a damaged file may contain
    /// any value.
    pub fn accounted_ns(&self) -> u128 {
        [
            self.used_ns,
            self.fault_ns,
            self.switching_ns,
            self.idle_ns,
            self.unobserved_ns,
            self.gap_ns,
        ]
        .iter()
        .map(|part| u128::from(part.0))
        .sum()
    }
}

impl Digest {
    /// The digest that precedes the first entry of a GPU's ledger.
    pub fn genesis(gpu: &GpuIdentity) -> Self {
        let mut bytes = Bytes(b"turnstile ledger 1".to_vec());
        bytes.text(&gpu.node);
        bytes.text(&gpu.gpu);
        Self(Sha256::digest(&bytes.0).into())
    }

    /// The digest of an entry that follows the one with this digest.
    #[must_use]
    pub fn follow(&self, stretch: &Stretch, body: &Body) -> Self {
        let mut bytes = Bytes(self.0.to_vec());
        bytes.stretch(stretch);
        bytes.body(body);
        Self(Sha256::digest(&bytes.0).into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The encoding that digests are calculated over: fixed order, little-endian numbers, each text
/// after its length. Records are taken apart without `..`, so that a new field cannot be left out.
struct Bytes(Vec<u8>);

impl Bytes {
    fn number(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn optional(&mut self, number: Option<u128>) {
        self.0.push(number.is_some().into());
        self.0.extend_from_slice(&number.unwrap_or(0).to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    fn stretch(&mut self, stretch: &Stretch) {
        let Stretch {
            seq,
            boot,
            start,
            end,
            from,
            length_ns,
        } = stretch;
        self.number(*seq);
        self.0.extend_from_slice(boot.as_bytes());
        [start.0, end.0, from.0, length_ns.0]
            .into_iter()
            .for_each(|number| self.number(number));
    }

    fn body(&mut self, body: &Body) {
        match body {
            Body::Gap { cause } => {
                self.text("gap");
                self.text(cause.as_str());
            }
            Body::Window { tenants, engines } => {
                // Without accounts an entry's encoding is the one from before accounts existed, and
                // likewise without metadata.
                let metadata = tenants.iter().any(|r| !r.tenant.metadata.is_empty());
                let accounts = metadata || tenants.iter().any(|r| r.tenant.account.is_some());
                self.text(match (metadata, accounts) {
                    (true, _) => "window of metadata",
                    (false, true) => "window of accounts",
                    (false, false) => "window",
                });
                self.number(tenants.len() as u64);
                for record in tenants {
                    self.tenant(record);
                    let TenantIdentity {
                        account,
                        metadata: own,
                        // In every form, by [`Self::tenant`].
                        id: _,
                        name: _,
                        kind: _,
                    } = &record.tenant;
                    if accounts {
                        self.0.push(account.is_some().into());
                        self.text(account.as_deref().unwrap_or_default());
                    }
                    if metadata {
                        self.metadata(own);
                    }
                }
                self.number(engines.len() as u64);
                engines.iter().for_each(|record| self.engine(record));
            }
        }
    }

    fn tenant(&mut self, record: &TenantRecord) {
        let TenantRecord {
            id,
            tenant,
            engine_ns,
            estimated_ns,
            fault_ns,
            copy_ns,
            copy_bytes,
            held_ns,
            waiting_ns,
            memory_byte_ns,
            weight,
            cap,
            signals,
            error_bound_ns,
            turns,
        } = record;
        self.0.extend_from_slice(id.as_bytes());
        self.0.extend_from_slice(tenant.id.as_bytes());
        self.text(&tenant.name);
        self.text(tenant.kind.as_str());
        for ns in [
            engine_ns,
            estimated_ns,
            fault_ns,
            copy_ns,
            held_ns,
            waiting_ns,
            error_bound_ns,
        ] {
            self.number(ns.0);
        }
        self.optional(copy_bytes.map(u128::from));
        self.optional(*memory_byte_ns);
        self.number((*weight).into());
        let cap = cap.map(
            |CapInForce {
                 quota_ns,
                 period_ns,
             }| (quota_ns.0, period_ns.0),
        );
        self.optional(cap.map(|(quota_ns, _)| quota_ns.into()));
        self.optional(cap.map(|(_, period_ns)| period_ns.into()));
        self.0.push(signals.bits());
        self.number(*turns);
    }

    fn metadata(&mut self, metadata: &Metadata) {
        let (instance_id, project, labels) = metadata.parts();
        self.optional(instance_id.map(|id| id.as_u128()));
        self.0.push(project.is_some().into());
        self.text(project.unwrap_or_default());
        self.number(labels.len() as u64);
        for (key, value) in labels {
            self.text(key);
            self.text(value);
        }
    }

    fn engine(&mut self, record: &EngineRecord) {
        let EngineRecord {
            engine,
            compute,
            used_ns,
            fault_ns,
            switching_ns,
            idle_ns,
            unobserved_ns,
            gap_ns,
            error_bound_ns,
        } = record;
        self.0.push(engine.0);
        self.0.push((*compute).into());
        for ns in [
            used_ns,
            fault_ns,
            switching_ns,
            idle_ns,
            unobserved_ns,
            gap_ns,
            error_bound_ns,
        ] {
            self.number(ns.0);
        }
    }
}

#[cfg(test)]
mod tests;
