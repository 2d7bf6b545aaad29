//! The result of polling an engine that divides its time by itself.

use turnstile_accounting::meter::Worked;
use turnstile_accounting::{Moment, Seen};

/// Readings are traced under this name, for tests that replay them.
pub const LOOKS: &str = "turnstile::looks";

/// One poll.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Time of the poll.
    pub at: Moment,
    /// Whether windows have to be closed up to this poll, if that is possible.
    pub exact: bool,
    /// Reading of each tenant.
    pub seen: Vec<Seen>,
    /// Windows that are completely known now, each from one poll to the next, in order of time.
    pub windows: Vec<Worked>,
}
