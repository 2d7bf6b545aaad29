//! The choice of a GPU for a job (CASE, A5).
//!
//! In: jobs with memory, blocks and threads of a block. Out: the GPU of each, or that it waits.
//! [`Fleet`] keeps what is in use; a [`Rule`] chooses. [`tasks`] groups launches into jobs.
//!
//! Laws: no rule but [`Rule::RoundRobin`] commits more memory than a GPU has. [`Rule::Exact`]
//! commits no more blocks and warps than an SM holds. A failed attempt changes nothing, and a
//! release gives back what was committed.

mod fleet;
pub mod tasks;

pub use fleet::{Fleet, GpuSize, Job, PlaceError, Placed, RULES, Rule, RuleRow, rule_by_name};
