//! Checks on a PCI GPU behind VFIO, for the nested lab: the host is itself a VM, the GPU is
//! simulated hardware on its bus, and its guests run under real page tables.
//!
//! Each check prints its figures, and fails if a promise is not kept.

pub mod checks;
pub mod gates;
mod stub;

use anyhow::ensure;
use turnstile_images::Report;
use turnstile_vmm::vmm::{VmEnd, VmReport};

use crate::e2e::guest_report;

/// The processor of a guest shut down. Emulated processors do, about once in eighty runs of eight
/// seconds; others did not. So only there may a check with this error be repeated, and only once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a guest's processor shut down: a triple fault")]
pub struct Lost;

/// The report of a guest that ended by itself.
///
/// # Errors
/// [`Lost`]; also if it ended otherwise, or left no report.
fn exited(vm: &VmReport) -> anyhow::Result<Report> {
    ensure!(vm.end != VmEnd::TripleFault, Lost);
    let report = guest_report(vm)?;
    ensure!(
        vm.end == VmEnd::Exited(0),
        "{:?}: {} {}",
        vm.end,
        report.text(),
        vm.console
    );
    Ok(report)
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// What was measured.
    pub what: String,
    /// The figure.
    pub figure: String,
    /// Whether the promise, if there is one, is kept.
    pub kept: bool,
}

impl Line {
    /// A figure with a promise.
    pub fn promised(what: &str, figure: impl ToString, kept: bool) -> Self {
        Self {
            what: what.to_owned(),
            figure: figure.to_string(),
            kept,
        }
    }

    /// A figure without a promise.
    pub fn measured(what: &str, figure: impl ToString) -> Self {
        Self::promised(what, figure, true)
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let verdict = if self.kept { "ok" } else { "FAILED" };
        write!(f, "{verdict:6} {}: {}", self.what, self.figure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn lost_processor_is_distinguished_from_other_ends() {
        let ended = |end| VmReport {
            end,
            report: Report::default().encode().to_vec(),
            console: String::new(),
            exits: 0,
            doorbell_exits: 0,
            ignored: 0,
            gates: Default::default(),
            lost: false,
            elapsed: Default::default(),
        };
        let of = |end| exited(&ended(end)).context("a check");
        assert!(of(VmEnd::Exited(0)).is_ok());
        assert!(of(VmEnd::TripleFault).unwrap_err().is::<Lost>());
        for end in [
            VmEnd::Exited(1),
            VmEnd::Killed,
            VmEnd::Crashed(String::new()),
        ] {
            assert!(!of(end).unwrap_err().is::<Lost>());
        }
    }
}
