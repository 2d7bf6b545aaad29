//! What `turnstile doctor` finds out about a feature of the host.

use std::error::Error;

use serde::Serialize;

/// State of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    Ok,
    Missing,
    /// It is configured and cannot work.
    Broken,
    /// A feature that it depends on is missing.
    NotProbed,
}

/// One line.
#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    pub(crate) feature: &'static str,
    /// The use that needs it.
    pub(crate) needed_for: &'static str,
    pub(crate) state: State,
    pub(crate) found: String,
    /// Empty if nothing is missing.
    pub(crate) remedy: String,
}

/// A feature before its probe.
#[derive(Clone, Copy)]
pub(crate) struct Feature {
    pub(crate) name: &'static str,
    pub(crate) needed_for: &'static str,
    pub(crate) remedy: &'static str,
}

impl Feature {
    pub(crate) fn found(self, result: Result<String, String>) -> Finding {
        let (state, found, remedy) = match result {
            Ok(found) => (State::Ok, found, String::new()),
            Err(reason) => (State::Missing, reason, self.remedy.to_owned()),
        };
        Finding {
            feature: self.name,
            needed_for: self.needed_for,
            state,
            found,
            remedy,
        }
    }

    /// The same of what the configuration names: without it the daemon cannot work as configured.
    pub(crate) fn configured(self, result: Result<String, String>) -> Finding {
        let found = self.found(result);
        let state = match found.state {
            State::Missing => State::Broken,
            state => state,
        };
        Finding { state, ..found }
    }

    pub(crate) fn not_probed(self, because: &str) -> Finding {
        Finding {
            feature: self.name,
            needed_for: self.needed_for,
            state: State::NotProbed,
            found: because.to_owned(),
            remedy: String::new(),
        }
    }
}

/// An error with its causes.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
