//! Stretches of time.

use crate::units::{Moment, Nanos};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A half-open stretch of time `[from, to)` on the clock of the engine state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Window {
    from: Moment,
    to: Moment,
}

/// Why two points of time make no window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WindowError {
    /// The end is before the beginning.
    #[error("Window ends at {} ns, before it begins at {} ns", to.0, from.0)]
    Reversed {
        /// The beginning that was passed.
        from: Moment,
        /// The end that was passed.
        to: Moment,
    },
}

impl Window {
    /// From `from` until just before `to`; may be empty.
    pub fn new(from: Moment, to: Moment) -> Result<Self, WindowError> {
        if to < from {
            return Err(WindowError::Reversed { from, to });
        }
        Ok(Self { from, to })
    }

    /// The window that begins at `from` and is `length` long.
    pub fn starting(from: Moment, length: Nanos) -> Self {
        Self {
            from,
            to: from + length,
        }
    }

    /// Its first moment.
    pub const fn from(&self) -> Moment {
        self.from
    }

    /// The first moment after it.
    pub const fn to(&self) -> Moment {
        self.to
    }

    /// Its length.
    pub const fn length(&self) -> Nanos {
        self.to.since(self.from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reversed_window_is_refused() {
        assert!(Window::new(Moment(2), Moment(1)).is_err());
        assert_eq!(
            Window::new(Moment(1), Moment(4)).unwrap().length(),
            Nanos(3)
        );
    }
}
