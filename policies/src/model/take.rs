//! How program B gets an SM that program A runs on: wait, terminate, or migrate (A3.4).
//!
//! A starts at 0, B requests the SM at `requested`. Both run at speed S while they share. The cost
//! is the time from A's start to the end of both. The three costs are a consistent set: A works at
//! S during its migration, as in the paper's appendix A.
//!
//! Laws: the thresholds agree with the costs; if B ends first, waiting is best; no choice waits
//! beyond the time-out.

/// What happens to the block on the SM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// It runs to its end.
    Wait,
    /// It is stopped, and run again from its beginning.
    Terminate,
    /// Its state is saved, and restored elsewhere.
    Migrate,
}

/// The two programs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Time of A alone.
    pub a_alone: f64,
    /// Time of B alone.
    pub b_alone: f64,
    /// When B requests the SM.
    pub requested: f64,
    /// Speed of either while they share, above 0.5 and below 1.
    pub speed: f64,
}

/// The block that is on the SM.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Block {
    /// Time until its end.
    pub remaining: f64,
    /// Time that it has run.
    pub executed: f64,
    /// Time to save and restore its state.
    pub migration: f64,
}

impl Pair {
    /// The cost of a choice if A ends first.
    pub fn cost(&self, take: Take, block: &Block) -> f64 {
        let s = self.speed;
        let least = self.requested + self.b_alone + (self.a_alone - self.requested) * (1.0 - s) / s;
        least
            + match take {
                Take::Wait => (2.0 - 1.0 / s) * block.remaining,
                Take::Migrate => s * block.migration,
                Take::Terminate => (1.0 - s) * (1.0 - s) / s * block.executed,
            }
    }

    /// The cost of waiting if B ends first; it does not depend on the time waited.
    pub fn cost_if_b_ends_first(&self) -> f64 {
        self.a_alone + self.b_alone * (1.0 / self.speed - 1.0)
    }
}

/// Ratios of times up to which one choice is cheaper than another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Waiting beats migrating up to this remaining time over migration time.
    pub wait_migrate: f64,
    /// Terminating beats migrating up to this executed time over migration time.
    pub terminate_migrate: f64,
    /// Waiting beats terminating up to this remaining time over executed time.
    pub wait_terminate: f64,
}

impl Thresholds {
    /// The thresholds that follow from the costs.
    pub fn new(speed: f64) -> Self {
        let lost = (1.0 - speed) * (1.0 - speed);
        Self {
            wait_migrate: speed * speed / (2.0 * speed - 1.0),
            terminate_migrate: speed * speed / lost,
            wait_terminate: lost / (2.0 * speed - 1.0),
        }
    }

    /// As printed: one of the three follows from the main text, where A stands still during its
    /// migration, and the others from the appendix. The set is not transitive.
    pub fn printed(speed: f64) -> Self {
        Self {
            terminate_migrate: speed / ((1.0 - speed) * (1.0 - speed)),
            ..Self::new(speed)
        }
    }
}

/// What is known of the block when the SM is requested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    /// Predicted remaining time, from blocks of the same kernel that have ended.
    pub remaining: Option<f64>,
    /// Time that it has run.
    pub executed: f64,
    /// Whether it has written global memory.
    pub has_written: bool,
    /// Time to save and restore its state.
    pub migration: f64,
    /// Time that was waited already.
    pub waited: f64,
}

/// The choice. A block without a prediction is migrated, and so is one that was waited for until
/// the time-out, as its code may be faulty.
pub fn choose(known: &Known, thresholds: &Thresholds, time_out: f64) -> Take {
    let Some(remaining) = known.remaining else {
        return Take::Migrate;
    };
    if known.waited >= time_out {
        return Take::Migrate;
    }
    if remaining <= thresholds.wait_migrate * known.migration {
        Take::Wait
    } else if !known.has_written && known.executed <= thresholds.terminate_migrate * known.migration
    {
        Take::Terminate
    } else {
        Take::Migrate
    }
}
