//! The subcommands.

pub(crate) mod demo;
mod report;
pub(crate) mod serve;
pub(crate) mod vmm;
