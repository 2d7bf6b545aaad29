//! What is wrong with a configuration, and where.

use std::fmt;

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

/// Everything that is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
#[error("{}", lines(.0))]
pub struct ConfigError(pub Vec<Problem>);

fn lines(problems: &[Problem]) -> String {
    let lines: Vec<_> = problems.iter().map(Problem::to_string).collect();
    lines.join("\n")
}
