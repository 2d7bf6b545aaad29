//! What is wrong with a configuration, and where.

use std::fmt;
use std::path::PathBuf;

use super::Origin;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where it stands.
    pub origin: Origin,
    /// What it is.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin, self.text)
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file that was named is not to be had.
    #[error("The configuration {} cannot be read", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file as no configuration is.
    #[error("The configuration {} has more than {max} bytes", path.display())]
    TooLong {
        /// Which.
        path: PathBuf,
        /// The limit.
        max: u64,
    },
    /// It was read, and has values that are not valid.
    #[error("{}", lines(.0))]
    Wrong(Vec<Problem>),
}

fn lines(problems: &[Problem]) -> String {
    let lines: Vec<_> = problems.iter().map(Problem::to_string).collect();
    lines.join("\n")
}
