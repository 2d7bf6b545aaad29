//! Why a text is refused.

use thiserror::Error;

/// Why a text was refused. Each carries its line, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LoadError {
    /// The text is not PTX.
    #[error("Line {line}: {what}")]
    Syntax {
        /// Line.
        line: u32,
        /// What was expected and found.
        what: String,
    },
    /// PTX that this machine does not execute.
    #[error("Line {line}: {what} is not supported")]
    Unsupported {
        /// Line.
        line: u32,
        /// The instruction or directive.
        what: String,
    },
    /// Operands that do not fit the instruction.
    #[error("Line {line}: {what}")]
    Operand {
        /// Line.
        line: u32,
        /// Which operand and why.
        what: String,
    },
    /// More than [`Limits`](crate::Limits) allow.
    #[error("Line {line}: more than {limit} {what}")]
    Limit {
        /// Line.
        line: u32,
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
}

impl LoadError {
    /// The line at fault.
    pub fn line(&self) -> u32 {
        match self {
            LoadError::Syntax { line, .. }
            | LoadError::Unsupported { line, .. }
            | LoadError::Operand { line, .. }
            | LoadError::Limit { line, .. } => *line,
        }
    }

    pub(super) fn syntax(line: u32, what: &str) -> LoadError {
        let what = shorten(what);
        LoadError::Syntax { line, what }
    }

    pub(super) fn unsupported(line: u32, what: String) -> LoadError {
        let what = shorten(&what);
        LoadError::Unsupported { line, what }
    }

    pub(super) fn operand(line: u32, what: &str) -> LoadError {
        let what = shorten(what);
        LoadError::Operand { line, what }
    }
}

/// The guest chooses names; a message carries at most 160 characters of them.
fn shorten(text: &str) -> String {
    match text.char_indices().nth(160) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
