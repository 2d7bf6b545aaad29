//! What a look at an engine finds that divides its time by itself.

use turnstile_accounting::meter::Worked;
use turnstile_accounting::{Moment, Seen};

/// One look.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// When it was.
    pub at: Moment,
    /// Each tenant.
    pub seen: Vec<Seen>,
    /// Windows of which all is known now, each from one look to the next, in order of time.
    pub windows: Vec<Worked>,
}
