//! Experiments: each is one file, a function from seeds to a [`Report`], and one row of
//! [`EXPERIMENTS`].

pub mod adriaens;
#[cfg(feature = "world")]
pub mod adversary;
pub mod case;
pub mod case_5;
pub mod case_6;
pub mod case_crash;
pub mod case_fig1;
pub mod case_task;
#[cfg(feature = "world")]
pub mod charged;
pub mod corun;
#[cfg(feature = "world")]
pub mod fleet;
#[cfg(feature = "world")]
pub mod launch_wait;
pub mod li;
pub mod li_model;
pub mod li_scenes;
pub mod li_speedup;
#[cfg(feature = "world")]
pub mod literal;
#[cfg(feature = "world")]
pub mod loga;
#[cfg(feature = "world")]
pub mod loga11;
pub mod loga_11;
pub mod loga_cpu;
pub mod loga_modes;
pub mod loga_neon;
pub mod loga_skew;
mod rows;
#[cfg(feature = "world")]
pub mod share;
pub mod slice_1;
pub mod slice_gpus;
pub mod slice_states;
pub mod slice_turns;
pub mod sm_bandwidth;
pub mod sm_even;
pub mod sm_pairs;
pub mod sm_qos;
pub mod sm_split;
pub mod sm_sweep;
pub mod sm_take;
#[cfg(feature = "world")]
pub mod swap;
#[cfg(feature = "world")]
pub mod unfair;

pub use rows::EXPERIMENTS;

use crate::result::{Failure, Report, Verdict};
use crate::seeds::Seeds;

/// What an experiment promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number, by arithmetic.
    Exact,
    /// A bound, or a tolerance.
    Bound,
    /// An order or a sign.
    Shape,
}

impl Kind {
    /// The name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Bound => "bound",
            Self::Shape => "shape",
        }
    }
}

/// The function of an experiment.
pub type RunExperiment = fn(&Seeds) -> Result<Report, Failure>;

/// One experiment.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// The name on the command line.
    pub id: &'static str,
    /// Paper and figure.
    pub source: &'static str,
    /// One line of help.
    pub about: &'static str,
    /// Parts of the simulator: W programs, D dispatcher, C channels, P policies with phases,
    /// G several GPUs, M models of SMs, K slices of kernels, X memory.
    pub needs: &'static str,
    /// What it promises.
    pub kind: Kind,
    /// Default number of seeds; 1 for an experiment without random numbers.
    pub seeds: u64,
    /// The weakest verdict of its quantities.
    pub verdict: Option<Verdict>,
    /// Runs it; none if it is not built, or needs the feature `world`.
    pub run: Option<RunExperiment>,
}
