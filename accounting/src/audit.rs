//! Checks a ledger read from a disk: it is complete, it balances, and its digests are intact.
//!
//! Takes the entries of one GPU in order; memory does not grow with their number.

use crate::ids::event_id;
use crate::record::{Body, Digest, EngineRecord, Entry, GpuIdentity, TenantRecord, UnixNanos};
use crate::units::{EngineId, Nanos};
use serde::Serialize;
use thiserror::Error;

/// Findings that are kept in full; more are counted.
const FINDINGS_MAX: usize = 100;

/// A law that an entry breaks.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize)]
#[serde(tag = "law", rename_all = "snake_case")]
pub enum Finding {
    /// Entries are missing or repeated.
    #[error("Entry {found} follows entry {}", expected.wrapping_sub(1))]
    Sequence {
        /// The number of the next entry in order.
        expected: u64,
        /// The number of the entry that was read.
        found: u64,
    },
    /// An entry was changed after it was written.
    #[error("Entry {seq} does not have the digest it was written with")]
    Digest {
        /// The entry.
        seq: u64,
    },
    /// A record's id is not the one that follows from its position.
    #[error("A record of entry {seq} has the id {found}, not {expected}")]
    Id {
        /// The entry.
        seq: u64,
        /// The id that it should have.
        expected: uuid::Uuid,
        /// The id that it has.
        found: uuid::Uuid,
    },
    /// Law 1 is broken.
    #[error("Entry {seq}: engine {} accounts for {accounted_ns} of {length_ns}", engine.0)]
    Conservation {
        /// The entry.
        seq: u64,
        /// The engine.
        engine: EngineId,
        /// Sum of its parts.
        accounted_ns: u128,
        /// The window's length, which the sum has to equal.
        length_ns: Nanos,
    },
    /// Tenants' records do not add up to their engines'.
    #[error("Entry {seq}: {what} of tenants is {tenants_ns} ns, of engines {engines_ns} ns")]
    Sum {
        /// The entry.
        seq: u64,
        /// Which amount.
        what: &'static str,
        /// Sum over tenants.
        tenants_ns: u128,
        /// Sum over engines.
        engines_ns: u128,
    },
    /// A tenant has two records in a window.
    #[error("Entry {seq} has two records of tenant {tenant}")]
    Twice {
        /// The entry.
        seq: u64,
        /// The tenant.
        tenant: uuid::Uuid,
    },
    /// An entry does not begin where the one before ended, or ends before it begins.
    #[error("Entry {seq} lies from {} to {}, and the one before it ends at {}", start.0, end.0, previous.0)]
    Calendar {
        /// The entry.
        seq: u64,
        /// Its beginning.
        start: UnixNanos,
        /// Its end.
        end: UnixNanos,
        /// End of the entry before it.
        previous: UnixNanos,
    },
    /// Within a run, an entry does not begin where the one before ended on the GPU's clock.
    #[error(
        "Entry {seq} begins at {from} on the GPU's clock, where the one before ended at {previous}"
    )]
    Clock {
        /// The entry.
        seq: u64,
        /// Its beginning.
        from: u64,
        /// End of the entry before it.
        previous: u64,
    },
}

/// Result of an audit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Windows seen.
    pub windows: u64,
    /// Records of tenants seen.
    pub records: u64,
    /// Gaps seen.
    pub gaps: u64,
    /// Length of all gaps.
    pub gap_ns: u128,
    /// Length of all windows.
    pub window_ns: u128,
    /// Engine time of all tenants.
    pub engine_ns: u128,
    /// Number of laws broken.
    pub broken: u64,
    /// The first of them, at most `FINDINGS_MAX`.
    pub findings: Vec<Finding>,
}

/// Where the kept part of a ledger begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Number of the first entry kept.
    pub seq: u64,
    /// Digest of the entry before it.
    pub digest: Digest,
}

/// Checks the entries of one GPU in order.
#[derive(Debug)]
pub struct Audit<'a> {
    gpu: &'a GpuIdentity,
    /// Expected number and digest of the next entry; none if the audit begins within a ledger and
    /// has read no entry yet.
    next: Option<Anchor>,
    previous: Option<Previous>,
    report: Report,
}

/// Kept of the preceding entry.
#[derive(Clone, Copy, Debug)]
struct Previous {
    end: UnixNanos,
    boot: uuid::Uuid,
    /// Its end on the GPU's clock.
    to: u64,
}

impl<'a> Audit<'a> {
    /// An audit from `anchor` on; none is the beginning of the GPU's ledger.
    pub fn new(gpu: &'a GpuIdentity, anchor: Option<Anchor>) -> Self {
        let genesis = || Anchor {
            seq: 0,
            digest: Digest::genesis(gpu),
        };
        Self {
            next: Some(anchor.unwrap_or_else(genesis)),
            ..Self::within(gpu)
        }
    }

    /// An audit that begins within a GPU's ledger: nothing is known of what precedes the first
    /// entry.
    pub fn within(gpu: &'a GpuIdentity) -> Self {
        Self {
            gpu,
            next: None,
            previous: None,
            report: Report::default(),
        }
    }

    fn find(&mut self, finding: Finding) {
        self.report.broken += 1;
        if self.report.findings.len() < FINDINGS_MAX {
            self.report.findings.push(finding);
        }
    }

    /// Checks the next entry.
    pub fn entry(&mut self, entry: &Entry) {
        let stretch = &entry.stretch;
        let seq = stretch.seq;
        if let Some(next) = self.next {
            let (expected, found) = (next.seq, seq);
            if found != expected {
                self.find(Finding::Sequence { expected, found });
            }
            if next.digest.follow(stretch, &entry.body) != entry.digest {
                self.find(Finding::Digest { seq });
            }
        }
        let (start, end) = (stretch.start, stretch.end);
        let before = self.previous;
        let previous = before.map_or(start, |before| before.end);
        if start != previous || end < start {
            self.find(Finding::Calendar {
                seq,
                start,
                end,
                previous,
            });
        }
        let between_runs = stretch.from.0 == 0 && matches!(entry.body, Body::Gap { .. });
        if let Some(before) = before.filter(|before| before.boot == stretch.boot && before.to != 0)
        {
            let (from, previous) = (stretch.from.0, before.to);
            if from != previous {
                self.find(Finding::Clock {
                    seq,
                    from,
                    previous,
                });
            }
        }
        match &entry.body {
            Body::Gap { .. } => {
                self.report.gaps += 1;
                self.report.gap_ns += u128::from(stretch.length_ns.0);
            }
            Body::Window { tenants, engines } => self.window(entry, tenants, engines),
        }
        let to = stretch.from.0.saturating_add(stretch.length_ns.0);
        self.previous = Some(Previous {
            end,
            boot: stretch.boot,
            to: if between_runs { 0 } else { to },
        });
        self.next = Some(Anchor {
            seq: seq.saturating_add(1),
            digest: entry.digest,
        });
    }

    fn window(&mut self, entry: &Entry, tenants: &[TenantRecord], engines: &[EngineRecord]) {
        let (seq, length_ns) = (entry.stretch.seq, entry.stretch.length_ns);
        for record in engines {
            let accounted_ns = record.accounted_ns();
            if accounted_ns != u128::from(length_ns.0) {
                let engine = record.engine;
                self.find(Finding::Conservation {
                    seq,
                    engine,
                    accounted_ns,
                    length_ns,
                });
            }
        }
        for pair in tenants.windows(2) {
            if pair[0].tenant.id >= pair[1].tenant.id {
                self.find(Finding::Twice {
                    seq,
                    tenant: pair[1].tenant.id,
                });
            }
        }
        for record in tenants {
            let expected = event_id(self.gpu, record.tenant.id, &entry.stretch);
            if record.id != expected {
                self.find(Finding::Id {
                    seq,
                    expected,
                    found: record.id,
                });
            }
        }
        let of_engines = |compute: bool| {
            let chosen = engines
                .iter()
                .filter(move |record| record.compute == compute);
            chosen.map(|record| u128::from(record.used_ns.0)).sum()
        };
        let of_tenants = |part: fn(&TenantRecord) -> Nanos| {
            tenants
                .iter()
                .map(|record| u128::from(part(record).0))
                .sum()
        };
        let engine_ns: u128 = of_tenants(|record| record.engine_ns);
        let stalled: u128 = engines
            .iter()
            .map(|record| u128::from(record.fault_ns.0))
            .sum();
        for (what, tenants_ns, engines_ns) in [
            ("compute time", engine_ns, of_engines(true)),
            (
                "copy time",
                of_tenants(|record| record.copy_ns),
                of_engines(false),
            ),
            ("fault time", of_tenants(|record| record.fault_ns), stalled),
        ] {
            if tenants_ns != engines_ns {
                self.find(Finding::Sum {
                    seq,
                    what,
                    tenants_ns,
                    engines_ns,
                });
            }
        }
        self.report.windows += 1;
        self.report.records += tenants.len() as u64;
        self.report.window_ns += u128::from(length_ns.0);
        self.report.engine_ns += engine_ns;
    }

    /// The first broken law found yet.
    pub fn first_finding(&self) -> Option<&Finding> {
        self.report.findings.first()
    }

    /// The result.
    pub fn finish(self) -> Report {
        self.report
    }
}
