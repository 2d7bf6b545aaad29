//! The subcommands.

pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod nvidia;
mod report;
pub(crate) mod serve;
pub(crate) mod usage;
pub(crate) mod vmm;
