//! Which lines the daemon logs.

use serde::{Deserialize, Serialize};

/// Lines that the daemon writes to standard error. `RUST_LOG` wins over the level.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogSection {
    /// The least important lines that are written; of other crates, warnings at most.
    pub level: LogLevel,
    /// Whether each line has its time, in UTC.
    pub timestamps: bool,
}

impl Default for LogSection {
    fn default() -> Self {
        Self {
            level: LogLevel::Info,
            timestamps: true,
        }
    }
}

/// Importance of a line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogLevel {
    /// Failures
    Error,
    /// What an operator should look into
    Warn,
    /// Start, end, tenants that come and go, changes
    Info,
    /// More, for the search of a fault
    Debug,
    /// All
    Trace,
}

impl LogLevel {
    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}
