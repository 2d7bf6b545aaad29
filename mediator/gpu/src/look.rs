//! What a look at an engine finds that divides its time by itself.

use turnstile_accounting::meter::Worked;
use turnstile_accounting::{Moment, Seen};

/// What was read at looks is traced under this name, for tests that replay it.
pub const LOOKS: &str = "turnstile::looks";

/// One look.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// When it was.
    pub at: Moment,
    /// Whether windows are to be closed up to this look, if that can be had.
    pub exact: bool,
    /// Each tenant.
    pub seen: Vec<Seen>,
    /// Windows of which all is known now, each from one look to the next, in order of time.
    pub windows: Vec<Worked>,
}
