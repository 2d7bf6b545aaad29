//! What is shown on a PCI GPU behind VFIO: in the nested lab, where the host is itself a VM, the GPU simulated hardware on
//! its bus, and its guests run under real page tables.
//!
//! Each check prints its figures as it goes, and fails where a promise is not kept.

pub mod checks;
pub mod gates;
mod stub;

/// What one check found.
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
